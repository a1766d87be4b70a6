# SPDX-License-Identifier: Apache-2.0
"""The relay of a Flower app loads neither torch nor code that reads data."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys
from dpfed.flower import silo_app
silo_app()
heavy = [name for name in ("torch", "scipy", "dpfed.data", "dpfed.training") if name in sys.modules]
assert not heavy, heavy
"""


@pytest.mark.slow
def test_it_imports_neither_torch_nor_data_code() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True)
