# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: D301  click cuts the help at \f
"""``dpfed checkpoint export``: the model of a training that has not ended, or ended badly."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dpfed.training.checkpoint import KeptModel

checkpoint_app = typer.Typer(
    help="Read a training's checkpoint, from which it continues after a crash.",
    no_args_is_help=True,
)


@checkpoint_app.callback()
def checkpoint_root() -> None:
    """Read a training's checkpoint, from which it continues after a crash."""


@checkpoint_app.command("export")
def export_model(
    folder: Annotated[Path, typer.Argument(help="The checkpoint's folder.")],
    out: Annotated[Path, typer.Option(help="The .safetensors or folder to write.")] = Path(
        "model.safetensors"
    ),
) -> None:
    """Write the model of the last committed round, with what it has cost.

    A name that ends in .safetensors is a file with the parameters. Any other name is a folder that
    'dpfed predict' and dpfed.load take, like the model/ of a finished run; it states the plan's
    whole guarantee, which holds for fewer rounds, too.

    It reads the checkpoint without changing it, and asks no client. What exists is not overwritten.

    Example: dpfed checkpoint export /var/lib/dpfed/ward --out ward-model

    \f

    Args:
        folder: the checkpoint's folder, on the server's disk.
        out: the .safetensors or the folder to write; one that exists is refused.
    """
    from safetensors.torch import save

    from dpfed.accounting.guarantee import round_up
    from dpfed.core.errors import RecipeError
    from dpfed.core.files import from_word, replace_file
    from dpfed.training.checkpoint import Checkpoint

    if out.exists():
        raise RecipeError(f"{str(out)!r} already exists and was not changed; give another --out")
    kept = Checkpoint(folder).model()
    spent = from_word(kept.history[-1]["epsilon"]) if kept.history else 0.0
    about = {"training": kept.training, "rounds": str(kept.round), "epsilon": round_up(spent)}
    if out.suffix == ".safetensors":
        tensors = {name: tensor.contiguous() for name, tensor in kept.tensors.items()}
        replace_file(out, save(tensors, about), 0o644)
    else:
        _export_bundle(folder, kept, spent, out)
    typer.echo(
        f"{out}: {kept.training} after {kept.round} rounds; epsilon {about['epsilon']} spent, "
        f"against the server"
    )


def _export_bundle(folder: Path, kept: KeptModel, spent: float, out: Path) -> None:
    """The kept model as a bundle, by what the run has said of it at its start."""
    import datetime as dt

    import msgspec

    from dpfed.bundle.description import MAX_BYTES, decode
    from dpfed.bundle.folder import read_bounded, write_bundle
    from dpfed.core.errors import DataError
    from dpfed.training.checkpoint import MODEL_DESCRIPTION

    path = folder / MODEL_DESCRIPTION
    if not path.exists():
        raise DataError(
            f"{folder} has no {MODEL_DESCRIPTION}, as no recipe said what its model takes; give a "
            f"name that ends in .safetensors"
        )
    found = decode(read_bounded(path, MAX_BYTES), str(path))
    planned = found.stated.claims[0].epsilon
    if not spent <= planned * (1 + 1e-9):
        raise DataError(
            f"the checkpoint must have spent at most epsilon {planned:g}, as its plan states, got "
            f"{spent:g}; export it as .safetensors"
        )
    training = msgspec.structs.replace(
        found.training, rounds=kept.round, stopped="exported from a checkpoint"
    )
    today = dt.datetime.now(dt.UTC).date().isoformat()
    write_bundle(out, msgspec.structs.replace(found, training=training, date=today), kept.tensors)
