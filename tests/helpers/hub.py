# SPDX-License-Identifier: Apache-2.0
"""Flower's own ``flwr build``, as its hub asks for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile


def build(app: Path) -> set[str]:
    """The names of the files in the app's FAB."""
    here = Path.cwd()
    before = set(here.glob("*.fab"))
    flwr = Path(sys.executable).with_name("flwr")
    done = subprocess.run([flwr, "build", "--app", app], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = set(here.glob("*.fab")) - before
    with ZipFile(made) as fab:
        return set(fab.namelist())
