# SPDX-License-Identifier: Apache-2.0
"""The table of environment variables: what each does, set, empty and not set."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from dpfed.core import environment

NAMES = (
    environment.DATA,
    environment.STATE,
    environment.LEDGER,
    environment.DATASET,
    environment.IDENTITY,
    environment.GATE,
)


@pytest.fixture(autouse=True)
def _none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def test_the_table_names_every_variable_that_is_read() -> None:
    source = Path(environment.__file__).parent.parent
    used = set()
    for path in source.rglob("*.py"):
        used |= set(re.findall(r"\bDPFED_[A-Z]+\b", path.read_text(encoding="utf-8")))
    assert used == set(NAMES)
    for name in NAMES:
        assert name in (environment.__doc__ or "")


def test_an_empty_variable_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment.variable(environment.DATASET) is None
    monkeypatch.setenv(environment.DATASET, "")
    assert environment.variable(environment.DATASET) is None
    monkeypatch.setenv(environment.DATASET, "ward")
    assert environment.variable(environment.DATASET) == "ward"


def test_the_defaults_are_in_the_home_folder() -> None:
    assert environment.state_folder() == Path.home() / ".dpfed"
    assert environment.ledger_path() == Path.home() / ".dpfed" / "ledger.sqlite"
    assert environment.data_folders() == []


def test_the_ledger_is_with_the_state_unless_it_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(environment.STATE, str(tmp_path))
    assert environment.ledger_path() == tmp_path / "ledger.sqlite"
    monkeypatch.setenv(environment.LEDGER, "~/own.sqlite")
    assert environment.ledger_path() == Path.home() / "own.sqlite"


def test_data_folders_are_a_list_like_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.DATA, os.pathsep.join(["/a", "", "~/b"]))
    assert environment.data_folders() == [Path("/a"), Path.home() / "b"]
