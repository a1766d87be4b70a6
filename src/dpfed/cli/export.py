# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: D301  click cuts the help at \f
"""``dpfed export``: a trained model as ONNX, or as a program of torch.export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    model: Annotated[Path, typer.Argument(help="The model's folder, such as out/model.")],
    onnx: Annotated[Path | None, typer.Option(help="The .onnx to write.")] = None,
    pt2: Annotated[
        Path | None, typer.Option("--torch", help="The .pt2 of torch.export to write.")
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="The pretrained model that an adapter was trained on.")
    ] = None,
) -> None:
    """Write a trained model for use without dpfed, and check that it predicts the same.

    ONNX: of a table, each column is an input [records, 1], doubles for numbers (NaN is missing)
    and strings for words; ranges, scales and words are inside. Outputs are label, in the classes'
    words, and probabilities. It needs pip install 'dpfed[export]', and takes 10 to 20 seconds.

    --torch: numbers and codes (the places of words in model.json, -1 for missing) are the inputs,
    probabilities the output.

    Either is left only if it agrees with the bundle to 1e-5 on made-up records.

    Example: dpfed export out/model --onnx model.onnx

    \f

    Args:
        model: the folder with model.json.
        onnx: the ONNX file to write.
        pt2: the torch.export file to write.
        base: the folder, or the name on the hub, of a pretrained model.
    """
    from dpfed.bundle.export import export_onnx, export_torch
    from dpfed.bundle.trained import load
    from dpfed.core.errors import RecipeError

    if onnx is None and pt2 is None:
        raise RecipeError("there is nothing to write; give --onnx model.onnx or --torch model.pt2")
    loaded = load(model, base=base)
    for out, write in ((onnx, export_onnx), (pt2, export_torch)):
        if out is not None:
            apart = write(loaded, out)
            typer.echo(f"{out}: agrees with {model} to {apart:.1e} on made-up records")
