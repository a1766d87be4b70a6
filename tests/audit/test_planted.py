# SPDX-License-Identifier: Apache-2.0
"""Planted bugs are found by the audits that docs/audit.md names, and sound code is left alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from dpfed.audit.finding import Effort, Subject, Verdict
from dpfed.audit.noise import noise_scale
from dpfed.audit.one_run import one_run
from dpfed.audit.suite import AUDITS
from tests.audit.planted import BUGS, Quiet, asked, small, target, with_mechanism

CAUGHT = {
    "half the noise": {"noise-scale", "two-world"},
    "1/sqrt(20) of the noise": {"noise-scale", "two-world", "one-run"},
    "2 % too little noise": {"noise-scale"},
    "no clip": {"clip", "two-world"},
    "replace-one's factor forgotten": {"noise-scale", "clip", "two-world"},
    "preconditioned before the noise": {"clip"},
    "optimizer sees sums in clear": {"order"},
    "a coordinate without noise": {"noise-scale"},
    "one key for all releases": {"noise-scale"},
}
"""What docs/audit.md says; one-run also catches some others, by luck."""


def flagged(subject: Subject) -> set[str]:
    return {name for name, audit in AUDITS.items() if audit(subject).verdict is Verdict.FLAGGED}


@pytest.fixture(scope="module")
def sound() -> Subject:
    return target(small(), seed=1)


@pytest.mark.sample(3)
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught_by_the_audits_that_are_named(bug: str, sound: Subject) -> None:
    plant: Callable[[Subject], Subject] = BUGS[bug]
    assert flagged(plant(sound)) >= CAUGHT[bug]


@pytest.mark.parametrize("bug", BUGS)
def test_no_bug_changes_what_is_claimed(bug: str, sound: Subject) -> None:
    assert BUGS[bug](sound).claimed == pytest.approx(1.0, rel=1e-6)


def test_the_page_names_each_bug_with_its_audits(repository: Path) -> None:
    text = (repository / "docs" / "audit.md").read_text(encoding="utf-8")
    rows = {
        cells[1].strip(): set(cells[2].replace("`", "").replace(",", " ").split())
        for cells in (line.split("|") for line in text.splitlines())
        if len(cells) > 3 and cells[1].strip() in CAUGHT
    }
    assert rows == CAUGHT


FEW = Effort(samples=50_000, pairs=2_000, canaries=200)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.sample(4)
def test_sound_code_is_not_flagged(seed: int) -> None:
    assert flagged(target(small(), seed, FEW)) == set()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 200))
def test_sound_code_is_not_flagged_at_full_effort(seed: int) -> None:
    assert flagged(target(small(), seed, Effort(pairs=20_000))) == set()


KINDS = {
    "central": small(trust="central"),
    "secure": asked(small(trust="distributed"), sum={"name": "secure"}),
    "exact": small(mechanism="discrete_gaussian"),
    "tree": small(mechanism="tree"),
    "banded": small(mechanism="banded"),
    "zero-out": small(adjacency="zero-out"),
    "drawn": small(adjacency="add-remove", record_rate=0.2, nominal=100),
    "client": small(unit="client"),
    "metrics": asked(small(), evaluation={"kind": "federated"}),
    "std": small(epsilon=None, std_over_clip=20.0),
    "fedavg": asked(small(), client={"name": "fedavg"}),
    "adadps": asked(small(), client={"name": "adadps"}),
    "fednew": asked(small(), client={"name": "fednew"}),
    "fedfc": asked(small(), client={"name": "fedfc"}),
}


QUICK = {"central", "secure", "exact", "tree", "fedavg"}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind not in QUICK)) for kind in KINDS]
)
@pytest.mark.sample(9)
def test_sound_code_of_every_kind_is_not_flagged(kind: str) -> None:
    assert flagged(target(KINDS[kind], 3, FEW)) == set()


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["central", "zero-out"])
def test_half_the_noise_is_caught_under_other_guarantees(kind: str) -> None:
    quiet = with_mechanism(target(KINDS[kind], 3), Quiet, part=0.5)
    assert {"noise-scale", "two-world"} <= flagged(quiet)


def test_a_shortfall_of_one_per_cent_is_seen_with_enough_samples() -> None:
    short = with_mechanism(target(small(), 5, Effort()), Quiet, part=0.99)
    found = noise_scale(short)
    assert found.verdict is Verdict.FLAGGED
    assert found.sees > 0.99


def test_more_noise_than_was_accounted_for_is_not_flagged(sound: Subject) -> None:
    assert flagged(with_mechanism(sound, Quiet, part=1.5)) == set()


def test_a_stated_power_is_kept_by_one_run(sound: Subject) -> None:
    """At the part that it says it sees, it flags; and it says so before it looks."""
    sees = one_run(sound).sees
    assert 0.2 < sees < 0.5
    weaker = with_mechanism(sound, Quiet, part=0.9 * sees)
    assert one_run(weaker).verdict is Verdict.FLAGGED


@pytest.mark.long
@pytest.mark.slow
def test_one_client_alone_can_be_audited() -> None:
    data = {
        "source": "synthetic",
        "options": {"records": 200, "features": 5, "classes": 2},
        "partition": {"name": "iid", "clients": 1},
    }
    alone = target(asked(small(), data=data), 0, FEW)
    assert flagged(alone) == set()
    assert flagged(BUGS["optimizer sees sums in clear"](alone)) == {"order"}
    assert math.isinf(noise_scale(BUGS["one key for all releases"](alone)).found)
