# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: D301  click cuts the help at \f
"""``dpfed checkpoint export``: the model of a training that has not ended, or ended badly."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("model.safetensors"),
) -> None:
    """Write the model of the last committed round as safetensors, with what it has cost so far.

    It reads the checkpoint without changing it, and asks no client. An existing file is not
    overwritten.

    Example: dpfed checkpoint export /var/lib/dpfed/ward --out ward.safetensors

    \f

    Args:
        folder: the checkpoint's folder, on the server's disk.
        out: the file to write; one that exists is refused.
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
    tensors = {name: tensor.contiguous() for name, tensor in kept.tensors.items()}
    replace_file(out, save(tensors, about), 0o644)
    typer.echo(
        f"{out}: {kept.training} after {kept.round} rounds; epsilon {about['epsilon']} spent, "
        f"against the server"
    )
