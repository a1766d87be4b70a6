# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: D301  click cuts the help at \f
"""``dpfed push``: a trained model or an adapter to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def push_command(
    folder: Annotated[Path, typer.Argument(help="A run's folder, its model/ or its adapter/.")],
    repo: Annotated[str, typer.Argument(help="OWNER/NAME on the hub.")],
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Push the run's adapter, not its bundle.")
    ] = False,
    public: Annotated[
        bool, typer.Option("--public", help="Make a public repository, if it is not there yet.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would go, and send nothing.")
    ] = False,
) -> None:
    """Push a trained model to the Hugging Face hub: parameters, description, card, nothing else.

    The history of rounds, the recipe, the ledger and other files of the run stay here. A new
    repository is private. It needs pip install 'dpfed[push]' and a token (hf auth login).

    Example: dpfed push runs/first me/first-private-model

    \f

    Args:
        folder: a bundle, an adapter, or a run's folder.
        repo: where to, as OWNER/NAME.
        adapter: push the adapter of a run's folder.
        public: make a public repository.
        dry_run: send nothing.
    """
    from dpfed.bundle.hub import files_to_push, push

    files = files_to_push(folder, adapter=adapter)
    for name, content in files.items():
        typer.echo(f"{name:26} {len(content):>12,} bytes")
    if not dry_run:
        typer.echo(push(files, repo, public=public))
