# SPDX-License-Identifier: Apache-2.0
"""Flower's own ``flwr build``, as its hub asks for it."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

from flwr.cli.app import app as flower
from typer.testing import CliRunner


def build(app: Path) -> set[str]:
    """The names of the files in the app's FAB."""
    here = Path.cwd()
    before = set(here.glob("*.fab"))
    done = CliRunner().invoke(flower, ["build", "--app", str(app)])
    assert done.exit_code == 0, done.output
    (made,) = set(here.glob("*.fab")) - before
    with ZipFile(made) as fab:
        return set(fab.namelist())
