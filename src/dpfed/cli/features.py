# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: D301  click cuts the help at \f
"""The command ``dpfed features``: images become features of a frozen public backbone, once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def features_command(
    images: Annotated[str, typer.Argument(help="A data set of images, as data.source takes it.")],
    out: Annotated[Path, typer.Option(help="The .npz to write.")],
    backbone: Annotated[str, typer.Option(help="resnet32-cifar100, efficientnet-lite0, ...")],
    size: Annotated[int, typer.Option(help="Images get this height and width.", min=1)] = 32,
    fit: Annotated[str, typer.Option(help="How they get it: pad or resize.")] = "pad",
    weights: Annotated[Path | None, typer.Option(help="The backbone's weights.")] = None,
    quiet: Annotated[bool, typer.Option(help="No progress bar.")] = False,
) -> None:
    """Turn images into features of a frozen public backbone, once, for many runs to read.

    The backbone maps each image on its own and never learns from it: no privacy is spent.

    Example: dpfed features images/cifar10.npz --backbone efficientnet-lite0 --size 128 --fit resize
    --out data/features/cifar10-efficientnet-lite0.npz

    \f

    Args:
        images: a data set of images, as data.source takes it.
        out: the .npz file to write.
        backbone: the name of a frozen model, e.g. efficientnet-lite0.
        size: the height and width in pixels that images get, at least 1.
        fit: how they get it, pad or resize.
        weights: the file of the backbone's weights; None looks in $DPFED_DATA and its package.
        quiet: show no progress bar.
    """
    from dpfed.data.datasets import load
    from dpfed.data.featurize import write_features
    from dpfed.recipes.display import bar

    dataset = load(images)
    total = len(dataset.train) + (0 if dataset.test is None else len(dataset.test))
    with bar(quiet) as shown:
        task = shown.add_task("images", total=total, figures="")
        made = write_features(
            dataset,
            out,
            backbone,
            size=size,
            fit=fit,
            weights=weights,
            watch=lambda added: shown.advance(task, added),
        )
    typer.echo(f"{total} x {made.train.x.shape[1]} features in {out}")
