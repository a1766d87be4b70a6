# SPDX-License-Identifier: Apache-2.0
"""The list of privacy mutants is up to date, and those of its sample are caught."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent / "soak" / "mutants.py"
ROOMS = {
    "accounting",
    "accounting/ledger",
    "cli/deploy",
    "client",
    "core",
    "data",
    "mechanisms",
    "metrics",
    "recipes",
    "silo",
    "sums",
    "sums/secagg",
    "training",
    "training/wire",
}
"""Where code is that a guarantee rests on."""


def script() -> Any:
    """tests/soak/mutants.py as a module."""
    spec = spec_from_loader("mutants", loader := SourceFileLoader("mutants", str(SCRIPT)))
    assert spec
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up there
    loader.exec_module(module)
    return module


MUTANTS = script().load()


@pytest.mark.parametrize("module", sorted({each.module for each in MUTANTS}))
def test_a_mutant_changes_one_place_and_is_code(module: str) -> None:
    for mutant in (each for each in MUTANTS if each.module == module):
        assert mutant.places() == 1, mutant.name
        assert mutant.before != mutant.after, mutant.name
        compile(mutant.source(), mutant.name, "exec")
        for each in (*mutant.tests, *mutant.mapped()):
            assert (SCRIPT.parents[2] / each.split("::")[0]).is_file(), each


def test_names_are_unique_and_each_room_has_mutants() -> None:
    names = Counter(each.name for each in MUTANTS)
    assert [name for name, count in names.items() if count > 1] == []
    assert {str(Path(each.module).parent) for each in MUTANTS} >= ROOMS


def test_the_sample_is_from_all_rooms() -> None:
    sample = [each for each in MUTANTS if each.sample]
    assert {str(Path(each.module).parent) for each in sample} == ROOMS
    assert not any(each.equivalent for each in sample)


@pytest.mark.long  # before a release all of them are tried: tests/soak/mutants.py
def test_the_sample_is_caught() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--sample"], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_table_has_counts_and_a_row_for_each() -> None:
    found, (first, second, third) = script(), MUTANTS[:3]
    caught = found.Outcome(first, True, 1.26, "tests/a/test_b.py::test_c[x|y]")
    page = found.table([caught, found.Outcome(second, False, 30.0, "")], [third])
    assert "- tried 3: caught 1, survived 1, equivalent 1\n" in page
    assert f"| {first.module} | {first.name} | `a/test_b.py::test_c[x/y]` | 1.3 |\n" in page
    assert f"| {second.module} | {second.name} | **survived** | 30.0 |\n" in page
    assert f"| {third.module} | {third.name} | equivalent: " in page
