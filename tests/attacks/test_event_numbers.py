# SPDX-License-Identifier: Apache-2.0
"""Numbers of an event that no release can have: a count of -9 gave nine releases back.

Before: ten releases and "minus nine" cost what one costs, in ``epsilon_of_event``, in a ledger and
in what ``explain`` recomputes; a multiplier of -1 counted as 1, and a rate of 0 as no cost.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import dp_accounting as dp
import pytest

from dpfed.accounting import epsilon_of_event, events
from dpfed.accounting.event_tree import gaussian_leaves, gaussian_mu_squared
from dpfed.accounting.guarantee import delta_of, epsilon_of
from dpfed.core.errors import RecipeError, Unpriceable
from dpfed.core.sampling import Poisson
from dpfed.core.types import Adjacency
from dpfed.parts import NoisySum, charged

ONE = {"kind": "Gaussian", "noise_multiplier": 4.0}
WRONG: list[dict[str, Any]] = [
    *({"kind": "SelfComposed", "count": n, "event": ONE} for n in (-1, 1.5, True, math.nan, "3")),
    *(
        {"kind": kind, "noise_multiplier": z}
        for kind in ("Gaussian", "Laplace")
        for z in (-1.0, 0, 0.0, math.nan, math.inf, "1", None, True)
    ),
    *(
        {"kind": "PoissonSampled", "rate": q, "event": ONE}
        for q in (-0.5, 0, 0.0, 1.5, math.nan, math.inf, "0.1", True)
    ),
]
READERS = {
    "from_json": events.from_json,
    "epsilon_of": lambda tree: epsilon_of(tree, 1e-5, Adjacency.ZERO_OUT),
    "delta_of": lambda tree: delta_of(tree, 1.0, Adjacency.ZERO_OUT),
    "mu squared": lambda tree: gaussian_mu_squared(tree, Adjacency.ZERO_OUT),
    "leaves": gaussian_leaves,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_no_reader_prices_a_number_that_no_release_can_have(
    wrong: dict[str, Any], reader: str
) -> None:
    deep = {"kind": "SelfComposed", "count": 2, "event": {"kind": "Composed", "events": [wrong]}}
    for tree in (wrong, {"kind": "Composed", "events": [ONE, wrong]}, deep):
        with pytest.raises(Unpriceable, match="of an event must be"):
            READERS[reader](tree)


def test_releases_are_not_given_back(tmp_path: Path) -> None:
    def times(count: int) -> Any:
        return dp.SelfComposedDpEvent(dp.GaussianDpEvent(4.0), count)

    both = dp.ComposedDpEvent([times(10), times(-9)])
    with pytest.raises(Unpriceable, match="count of an event must be"):
        epsilon_of_event(both, 1e-5, "add-remove")
    with (
        pytest.raises(Unpriceable, match="count of an event must be"),
        charged(both, dataset="ward", name="a", ledger=tmp_path / "ledger.sqlite"),
    ):
        raise AssertionError("the block runs")
    with pytest.raises(Unpriceable):
        epsilon_of_event(dp.PoissonSampledDpEvent(0.0, dp.GaussianDpEvent(1.0)), 1e-5, "zero-out")
    assert epsilon_of_event(dp.GaussianDpEvent(0.0), 1e-5, "zero-out")[0] == math.inf


@pytest.mark.parametrize("rate", [1e-17, 1e-9, 9.9e-7, 0.0, -0.1, 1.1, math.nan])
def test_a_draw_is_met_by_53_bits(rate: float) -> None:
    """At 1e-17 each unit was drawn eleven times as often as was priced."""
    for make in (
        lambda: Poisson(rate),
        lambda: NoisySum(clip=1.0, epsilon=1.0, delta=1e-5, adjacency="zero-out", rate=rate),
    ):
        with pytest.raises(RecipeError, match="a sampling rate"):
            make()
    drawn = math.ceil(1e-6 * 2**53) / 2**53
    assert drawn / Poisson(1e-6).rate - 1 < 1e-9
