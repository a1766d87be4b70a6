# SPDX-License-Identifier: Apache-2.0
"""The page of every field: made from the code, and each field says what it means."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dpfed.recipes.schema import DataRecipe, Recipe
from dpfed.silo.policy import DataPolicy
from dpfed_lab.study import Axis, Study
from tests.helpers.pages import load_script

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def script() -> Any:
    return load_script("reference")


def test_the_page_is_what_the_code_says(script: Any) -> None:
    written = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert written == script.page(), "run scripts/reference.py"


@pytest.mark.parametrize("struct", [Recipe, DataRecipe, Study, Axis, DataPolicy])
def test_every_field_is_on_the_page(script: Any, struct: Any) -> None:
    page = script.page()
    for field in msgspec.structs.fields(struct):
        name = re.escape(field.encode_name)
        assert re.search(rf"^(\| `{name}` \||### `\[+(\w+\.)*{name}\]+`$)", page, re.MULTILINE)


def test_every_field_says_what_it_means(script: Any) -> None:
    silent = [line for line in script.page().splitlines() if line.endswith("|  |")]
    assert not silent
