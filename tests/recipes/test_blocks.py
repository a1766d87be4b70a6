# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from dpfed.core.errors import RecipeError
from dpfed.recipes.blocks import choose_blocks, chosen
from dpfed.recipes.terms import read_terms

SIZES = {"2026-02": [80.0], "2025-12": [70.0], "before": [500.0], "2026-01": [90.0]}


@pytest.mark.parametrize(
    ("rule", "without", "names"),
    [
        ("last 2", (), ["2026-01", "2026-02"]),
        ("last 2", ("2026-01",), ["2026-02"]),  # what is spent is not made up for by an older one
        ("last 9", (), ["before", "2025-12", "2026-01", "2026-02"]),
        ("all", ("before",), ["2025-12", "2026-01", "2026-02"]),
        ("2026-02, before", (), ["2026-02", "before"]),
    ],
)
def test_a_rule_is_resolved_into_names(
    rule: str, without: tuple[str, ...], names: list[str]
) -> None:
    assert list(chosen(rule, SIZES, without)) == names


@pytest.mark.parametrize(
    ("rule", "without"),
    [("2026-09", ()), ("last 1", ("2026-02",)), ("last 0", ()), ("all", ("x",))],
)
def test_names_that_are_not_declared_or_nothing_are_refused(
    rule: str, without: tuple[str, ...]
) -> None:
    with pytest.raises(RecipeError):
        chosen(rule, SIZES, without)


def test_the_file_of_sizes(tmp_path: Path) -> None:
    file = tmp_path / "sizes.toml"
    file.write_text('"2026-01" = [90, 80]\n"2026-02" = [95, 85]\n')
    assert choose_blocks("last 1", file) == {"2026-02": [95.0, 85.0]}
    assert choose_blocks(None, None) is None
    with pytest.raises(RecipeError, match="given together"):
        choose_blocks("all", None)
    file.write_text("2026-01 = ninety\n")
    with pytest.raises(RecipeError, match="cannot be read"):
        choose_blocks("all", file)


TERMS = """
name = "sepsis-2026"
rounds = 3
method = "dp-fedgd"
privacy = {epsilon = 1.0}
[terms]
dataset = "sepsis"
shape = [4]
classes = 2
sizes = [170.0, 165.0]
dpfed = "0.3.0"
[terms.blocks]
"2026-01" = [80, 85]
"2026-02" = [90, 80]
"""


def test_terms_list_blocks_with_sizes_that_add_up() -> None:
    terms = read_terms(TERMS)
    assert terms.plan.blocks == ("2026-01", "2026-02")
    assert "(replace-one inside its block)" in terms.plan.guarantee().sentence
    other = read_terms(TERMS.replace('"2026-02"', '"2026-03"'))
    assert terms.plan.fingerprint() != other.plan.fingerprint()
    plain = read_terms(TERMS[: TERMS.index("[terms.blocks]")])
    assert plain.plan.blocks == ()
    assert "block" not in plain.plan.guarantee().sentence


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sizes = [170.0", "sizes = [171.0"),
        ("[80, 85]", "[80, 85, 1]"),
        ('"2026-01"', '"../2026"'),
        ("[90, 80]", "[90, -80]"),
    ],
)
def test_terms_with_other_blocks_are_refused(old: str, new: str) -> None:
    with pytest.raises(RecipeError):
        read_terms(TERMS.replace(old, new))
