# SPDX-License-Identifier: Apache-2.0
"""``dpfed export``: what it asks for (what it writes: tests/bundle/test_export.py)."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpfed.cli.main import app
from dpfed.core.errors import RecipeError


def test_nothing_to_write_is_said(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="nothing to write"):
        CliRunner().invoke(app, ["export", str(tmp_path)], catch_exceptions=False)
