# SPDX-License-Identifier: Apache-2.0
"""What grows how: the fit of exponents, the kept figures and their page, and what is one pass."""

from __future__ import annotations

import json
import math
import random
from collections.abc import ItemsView
from pathlib import Path
from typing import Any

import pytest

from dpfed.accounting.ledger.conversions import LedgerKey
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.core.types import UPDATE, Channel, Phase
from dpfed.flower import make_plan
from dpfed.training.checkpoint import _RowTexts
from dpfed_lab.benchmarks import growth
from dpfed_lab.benchmarks.growth import Fit, Line, Point, exponents, extrapolated, fit, results_of
from tests.helpers.ledgers import request

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "results/benchmarks/growth.json"
PAGE = ROOT / "docs/scale.md"
JUDGED = {"kind": "federated", "every": 5}


# ---------------------------------------------------------------------------------- the fit


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_the_exponent_of_an_exact_power_is_found(power: float) -> None:
    found = fit((size, 3e-4 * size**power) for size in (10, 30, 100, 1000))
    assert found == Fit(power, 0.0)


def test_the_spread_is_that_of_the_data() -> None:
    rng = random.Random(0)
    fits = [fit((10**k, 10 ** (k + rng.gauss(0, 0.1))) for k in range(1, 5)) for _ in range(2000)]
    off = math.sqrt(sum((each.exponent - 1) ** 2 for each in fits) / len(fits))
    assert off == pytest.approx(0.1 / math.sqrt(5), rel=0.1)  # sum of (x - mean)^2 is 5
    squares = sum(each.spread**2 for each in fits) / len(fits)
    assert math.sqrt(squares) == pytest.approx(off, rel=0.1)


def test_two_points_have_no_spread() -> None:
    assert math.isnan(fit([(1, 1.0), (10, 10.0)]).spread)


def points(power: float, *sizes: int) -> list[Point]:
    return [Point(size, 1e-3 * size**power, 1e4 * size) for size in sizes]


def test_a_further_point_follows_the_exponents_and_is_marked() -> None:
    found = extrapolated(points(2.0, 10, 1000, 3000, 10_000), 100_000)
    assert found.measured is False
    assert found.seconds == pytest.approx(1e-3 * 1e10)
    assert found.bytes == pytest.approx(1e4 * 1e5)


def test_extrapolated_points_and_little_memory_are_not_fitted() -> None:
    known = [*points(1.0, 10, 100, 300), Point(1000, 1e9, 1e9, measured=False)]
    assert set(exponents(known)) == {"seconds"}
    assert exponents(known)["seconds"].exponent == pytest.approx(1.0)


def test_quadratic_growth_misses_the_target() -> None:
    line = Line("rounds", "made up", lambda size, folder: lambda: None, (10, 100, 300, 1000))
    for power, met in ((2.0, False), (1.0, True)):
        (time, *_) = results_of(line, points(power, *line.sizes))
        assert (time.measured, time.met) == (pytest.approx(power), met)


# --------------------------------------------------------------------------- what is kept of it


@pytest.mark.skipif(not KEPT.exists(), reason="an sdist has no results")
def test_the_table_of_the_page_is_that_of_the_file() -> None:
    found = json.loads(KEPT.read_text(encoding="utf-8"))["results"]["growth"]
    text = PAGE.read_text(encoding="utf-8")
    command = "python -m dpfed_lab.benchmarks.growth results/benchmarks/growth.json docs/scale.md"
    assert growth.with_table(text, found) == text, command


@pytest.mark.skipif(not KEPT.exists(), reason="an sdist has no results")
def test_every_line_is_kept_and_its_exponent_follows_from_its_points() -> None:
    found = json.loads(KEPT.read_text(encoding="utf-8"))["results"]["growth"]
    times = [each for each in found if each["detail"]["of"] == "seconds"]
    kept = [(each["detail"]["axis"], each["detail"]["line"]) for each in times]
    assert kept == [(line.axis, line.name) for line in growth.LINES]
    for each in times:
        seen = [Point(**point) for point in each["detail"]["points"]]
        assert exponents(seen)["seconds"] == (each["measured"], each["detail"]["spread"])


# ----------------------------------------------------------------------------- what is one pass


@pytest.mark.parametrize("seed", range(20))
def test_releases_counted_at_once_are_those_of_each_round(seed: int) -> None:
    rng = random.Random(seed)
    spans = [rng.choice([0, 1, 2, 5, None]) for _ in range(rng.randint(0, 4))]
    channel = Channel(tuple(Phase(many, rng.randint(0, 3)) for many in spans))
    assert channel.releases_by_round(12) == tuple(channel.releases(at) for at in range(12))


def test_a_plan_knows_rounds_outside_of_its_own_as_its_channels_do() -> None:
    plan = make_plan([5] * 3, rounds=7, privacy={"epsilon": 8.0}, evaluation=JUDGED)
    for name, channel in plan.declared.items():
        for at in (-8, -1, *range(7), 7, 10**12):
            assert plan.releases(name, at) == channel.releases(at), (name, at)
    kinds = [tuple(c.releases(at) for c in plan.declared.values()) for at in range(7)]
    assert plan.round_kinds == {kind: (kinds.index(kind), kinds.count(kind)) for kind in kinds}


def test_a_plan_does_not_walk_all_phases_for_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    def walk(channel: Channel, round: int) -> int:
        raise AssertionError(f"round {round} is counted by itself")

    monkeypatch.setattr(Channel, "releases", walk)
    plan = make_plan([5] * 3, rounds=2_000, privacy={"epsilon": 8.0}, evaluation=JUDGED)
    assert (plan.planned(UPDATE), plan.planned("metrics")) == (2_000, 400)
    assert plan.due(4) == [UPDATE, "metrics"]


def test_rows_are_written_out_once_and_as_they_are() -> None:
    made: list[Any] = []

    def plain(row: Any) -> Any:
        made.append(row)
        return row

    texts, rows = _RowTexts(), [{"round": at, "seconds": 0.5} for at in range(4)]
    for many in range(5):
        assert texts.of(rows[:many], plain) == json.dumps(rows[:many])
    assert made == rows
    other = [rows[0], {"round": 1, "aborted": "x"}]  # another run, or an older state of this one
    assert texts.of(other, plain) == json.dumps(other)
    assert texts.of(rows[:1], plain) == json.dumps(rows[:1])


def test_accounts_are_added_up_in_one_pass(tmp_path: Path) -> None:
    passes = []

    class Counted(dict[Any, Any]):
        def items(self) -> ItemsView[Any, Any]:
            passes.append(1)
            return super().items()

    ledger = Ledger(tmp_path / "ledger.sqlite")
    for at in range(3):
        for round in range(at + 1):
            ledger.begin(request(round, key=LedgerKey(f"wards/{at}")))
    balance = ledger.balance()
    balance.entries = Counted(balance.entries)
    found = balance.totals(1e-5, every=True)
    assert [each.key.dataset for each in found] == ["wards/0", "wards/1", "wards/2"]
    assert [(each.releases, each.runs, each.open) for each in found] == [
        (at, 1, at) for at in (1, 2, 3)
    ]
    (whole,) = balance.totals(1e-5)
    assert (whole.clients, whole.releases, whole.runs, whole.open) == (3, 3, 1, 6)
    assert len(passes) == 2
