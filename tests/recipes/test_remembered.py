# SPDX-License-Identifier: Apache-2.0
"""Noise from the disk: found once, priced whenever it is read, and worth nothing if it is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dpfed.flower import make_plan
from dpfed.recipes import build
from dpfed.recipes.build import plan_for
from dpfed.recipes.schema import parse

PRIVACY = {"epsilon": 1.0, "record_rate": 0.2, "delta": 1e-4}


def plan() -> Any:
    return make_plan([400] * 2, rounds=2, method="dp-fedgd", privacy=PRIVACY)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[float]:
    monkeypatch.setenv("DPFED_STATE", str(tmp_path / "state"))
    found: list[float] = []
    real = build.least_factor

    def counted(*args: Any) -> float:
        found.append(real(*args))
        return found[-1]

    monkeypatch.setattr(build, "least_factor", counted)
    return found


def test_a_search_is_made_once_and_its_factor_is_kept(searches: list[float]) -> None:
    first, second = plan(), plan()
    assert len(searches) == 1
    assert first.update.std == second.update.std
    assert first.fingerprint() == second.fingerprint()


@pytest.mark.parametrize(
    "poison",
    [b"1e-3", b"1e-9", b"1e9", b"NaN", b"Infinity", b"-1.0", b"1", b'{"std": 1}', b"", b"[" * 99],
)
def test_a_poisoned_file_is_harmless(poison: bytes, searches: list[float], tmp_path: Path) -> None:
    right = plan()
    (file,) = (tmp_path / "state" / "noise").iterdir()
    assert isinstance(json.loads(file.read_bytes()), float)  # no epsilon, and no more
    file.write_bytes(poison)
    again = plan()
    assert again.update.std == right.update.std
    assert len(searches) == 2
    assert json.loads(file.read_bytes()) == searches[0]


def test_terms_read_and_write_nothing(searches: list[float], tmp_path: Path) -> None:
    plan()
    recipe = parse({"rounds": 2, "method": "dp-fedgd", "privacy": PRIVACY})
    (file,) = (tmp_path / "state" / "noise").iterdir()
    file.write_bytes(b"1e9")
    plan_for(recipe, [400.0, 400.0])
    assert len(searches) == 2
    assert file.read_bytes() == b"1e9"


def test_a_folder_that_cannot_be_written_is_no_error(searches: list[float], tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    assert plan().guarantee().epsilon <= 1.0


def test_a_stated_noise_is_priced_and_not_searched(searches: list[float], tmp_path: Path) -> None:
    stated = {"std_over_clip": 3.0, "record_rate": 0.2}
    make_plan([400] * 2, rounds=2, method="dp-fedgd", privacy=stated)
    assert searches == []
    assert not (tmp_path / "state").exists()
