# SPDX-License-Identifier: Apache-2.0
"""Draws under replace-one: the bound against integration of densities, which shares no formula.

An exact delta is the integral of max(p - exp(e) r, 0) over a grid, of the densities p and r of what
is released on two data sets that differ in one unit.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpfed.accounting import event_tree, events, gdp, triangle
from dpfed.accounting.event_tree import ChannelUse, TrainingReleases
from dpfed.accounting.guarantee import (
    EXACT,
    TRIANGLE,
    Guarantee,
    delta_of,
    epsilon_of,
    epsilon_of_event,
    guarantee,
    rough_epsilon_of,
    strongest,
)
from dpfed.accounting.second_opinion import TOLERANCE, checked
from dpfed.core.errors import Unpriceable
from dpfed.core.sampling import EVERYONE, Poisson
from dpfed.core.types import Adjacency, Facts, NoiseSource
from dpfed.mechanisms.gaussian import gaussian

Floats = NDArray[np.float64]
REPLACE = Adjacency.REPLACE_ONE
POINTS = 301  # on each axis of a plane
PLANE = 1 + 3e-3  # the error of a sum over so many cells


def drawn(z: float, rate: float, count: int = 1) -> Any:
    one = {"kind": "PoissonSampled", "rate": rate, "event": normal(z)}
    return events.times(one if rate < 1 else normal(z), count)


def normal(z: float) -> Any:
    return {"kind": "Gaussian", "noise_multiplier": z}


def marked(*parts: Any) -> Any:
    return events.through_zero(events.composed(list(parts)))


def density(x: Floats, mean: float, std: float) -> Floats:
    found: Floats = np.exp(-((x - mean) ** 2) / (2 * std * std)) / (std * math.sqrt(2 * math.pi))
    return found


def axis(std: float, points: int) -> tuple[Floats, float]:
    x = np.linspace(-1.5 - 9 * std, 1.5 + 9 * std, points)
    return x, float(x[1] - x[0])


def exact(p: Floats, r: Floats, epsilon: float, cell: float) -> float:
    """The larger of both directions."""
    factor = math.exp(epsilon)
    return max(float(np.maximum(a - factor * b, 0).sum() * cell) for a, b in ((p, r), (r, p)))


# ------------------------------------------------------------------------------- one release


@pytest.mark.parametrize(
    ("z", "rate"), [(1.0, 0.1), (0.5, 0.3), (2.0, 0.5), (1.0, 0.9), (0.7, 0.02), (2.0, 0.99)]
)
def test_no_pair_of_rows_in_one_dimension_is_worse(z: float, rate: float) -> None:
    x, cell = axis(z, 40_001)

    def law(row: float) -> Floats:
        return (1 - rate) * density(x, 0, z) + rate * density(x, row, z)

    rows, largest = {row: law(row) for row in (-1.0, -0.5, 0.0, 0.3, 0.5, 1.0)}, 0.0
    for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0, 5.0):
        bound = delta_of(marked(drawn(z, rate)), epsilon, REPLACE)
        for p in rows.values():
            for r in rows.values():
                true = exact(p, r, epsilon, cell)
                assert true <= bound * (1 + 1e-6) + 1e-13
                largest = max(largest, true / bound)
    assert largest > 0.9  # the bound is nearly reached: a looser one would hide a fault here


def plane(std_x: float, std_y: float) -> tuple[Callable[[float, float], Floats], float]:
    """The density of two independent normals at a pair of means, and the size of a cell."""
    (x, dx), (y, dy) = axis(std_x, POINTS), axis(std_y, POINTS)

    def law(a: float, b: float) -> Floats:
        made: Floats = density(x, a, std_x)[:, None] * density(y, b, std_y)[None, :]
        return made

    return law, dx * dy


def test_no_pair_of_rows_at_an_angle_is_worse() -> None:
    for z, rate in ((1.0, 0.1), (0.5, 0.3), (0.7, 0.02)):
        law, cell = plane(z, z)
        for angle in (1.0, 2.0, math.pi):
            for length, other in ((1, 1), (1, 0.5), (0.3, 1)):
                p = (1 - rate) * law(0, 0) + rate * law(length, 0)
                q = (1 - rate) * law(0, 0)
                q = q + rate * law(other * math.cos(angle), other * math.sin(angle))
                for epsilon in (0.0, 0.5, 2.0):
                    bound = delta_of(marked(drawn(z, rate)), epsilon, REPLACE)
                    assert exact(p, q, epsilon, cell) <= bound * PLANE + 1e-13


@pytest.mark.parametrize(
    ("first", "second"),
    [((1.0, 0.2), (0.8, 0.5)), ((0.6, 0.1), (0.6, 0.1)), ((1.5, 0.5), (1, 0.9))],
)
def test_two_adaptive_releases_of_other_noise_and_rates_are_no_worse(
    first: tuple[float, float], second: tuple[float, float]
) -> None:
    """The rows of the second release, of both units, follow from what was seen of the first."""
    (z, rate), (w, other_rate) = first, second
    (x, dx), (y, dy) = axis(z, POINTS), axis(w, POINTS)
    draw, trees = random.Random(52), marked(drawn(z, rate), drawn(w, other_rate))
    bounds = {e: delta_of(trees, e, REPLACE) for e in (0.0, 0.3, 1.0, 2.0)}

    def law(grid: Floats, std: float, q: float, row: float) -> Floats:
        return (1 - q) * density(grid, 0, std) + q * density(grid, row, std)

    for _ in range(6):
        a, b = draw.choice([(1, -1), (1, 0), (1, 1), (-1, 0.5)])
        seen = (x > draw.uniform(-1, 1))[:, None]
        pairs = [draw.choice([(1, -1), (-1, 1), (1, 0), (0, -1), (1, 0.2)]) for _ in range(2)]
        p, r = (
            law(x, z, rate, row)[:, None]
            * np.where(
                seen,
                law(y, w, other_rate, pairs[1][which])[None, :],
                law(y, w, other_rate, pairs[0][which])[None, :],
            )
            for which, row in enumerate((a, b))
        )
        for epsilon, bound in bounds.items():
            assert exact(p, r, epsilon, dx * dy) <= bound * PLANE + 1e-13


# ------------------------------------------------------- the multiplier in every leaf: the trap


def facts(**changes: Any) -> Facts:
    return Facts(**{"adjacency": REPLACE, **changes})


CLIENTS = {"unit": "client", "trust": "central"}
USES = (ChannelUse("update", 1), ChannelUse("count", 1))


def released(draw: Any = EVERYONE, **channels: Any) -> Any:
    kind = tuple(use for use in USES if use.channel in channels)
    whole = TrainingReleases(channels, {kind: 1}, draw)
    return whole.event(strongest(whole))


UNDRAWN = "a count without a draw, and a channel with one"


def leaf_plans() -> Iterator[tuple[str, Any, tuple[Floats, Floats], float]]:
    """Plans with one kind of leaf each, and the exact laws of a pair of units that is allowed.

    Rows are in [0, 1], or turn by a right angle: replacing one moves the sum by less than 2 clips.
    """
    rate, std = 0.1, 1.0
    both, cell = plane(std, std)
    nothing = (1 - rate) * both(0, 0)
    counts, turns = facts(replace_bound=1.0), facts(replace_bound=math.sqrt(2))
    sampled = Poisson(rate)
    yield (
        "records are drawn for a count in [0, 1]",
        released(update=gaussian(counts, std).with_sampling(sampled)),
        (nothing + rate * both(1, 0), both(0, 0)),
        cell,
    )
    yield (
        "records are drawn for a histogram",
        released(update=gaussian(turns, std).with_sampling(sampled)),
        (nothing + rate * both(1, 0), nothing + rate * both(0, 1)),
        cell,
    )
    faint = 30.0  # so much noise on the drawn channel that the undrawn one decides
    law, large = plane(std, faint)
    yield (
        UNDRAWN,
        released(
            update=gaussian(facts(), faint).with_sampling(sampled), count=gaussian(counts, std)
        ),
        (law(1, 0), law(0, 0)),
        large,
    )
    joint = facts(replace_bound=1.0, **CLIENTS)
    yield (
        "clients are drawn once for two counts in [0, 1]",
        released(sampled, update=gaussian(joint, std), count=gaussian(joint, std)),
        (nothing + rate * both(1, 1), both(0, 0)),
        cell,
    )


def too_small(epsilons: tuple[float, ...] = (0.2, 1.0, 2.0)) -> list[str]:
    """The kinds of leaves for which a printed delta is below that of the pair."""
    return [
        name
        for name, event, (p, r), cell in leaf_plans()
        if any(delta_of(event, e, REPLACE) * PLANE < exact(p, r, e, cell) for e in epsilons)
    ]


def test_every_leaf_has_the_multiplier_of_a_zeroed_row() -> None:
    assert too_small() == []


def test_the_multiplier_of_a_replaced_row_would_be_noticed_in_every_leaf(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_tree, "in_zero_out", lambda mechanism: mechanism)
    assert too_small() == [name for name, *_ in leaf_plans() if name != UNDRAWN]


def test_an_undrawn_leaf_has_the_multiplier_of_a_zeroed_row_too() -> None:
    """No integral can tell: a row half-way, in the place of zero, would do for that leaf alone."""
    event = next(event for name, event, *_ in leaf_plans() if name == UNDRAWN)
    inner = events.below_mark(event)
    assert inner
    assert event_tree.gaussian_leaves(inner) == {(1.0, 1.0): 1, (30.0, 0.1): 1}


# ---------------------------------------------------------------------------------- figures


@pytest.mark.parametrize(
    ("z", "rate", "releases", "zeroed", "replaced"),
    [
        (8, 0.1, 100, 0.445, 0.930),
        (4, 0.1, 100, 0.983, 2.018),
        (2, 0.1, 100, 2.337, 4.604),
        (1, 0.01, 1000, 1.829, 3.519),
    ],
)
def test_figures_that_others_computed(
    z: float, rate: float, releases: int, zeroed: float, replaced: float
) -> None:
    """They used a grid of losses ten times as coarse as ours: a part in 1000 more, at most."""
    tree = drawn(z, rate, releases)
    printed, how = epsilon_of(marked(tree), 1e-5, REPLACE)
    assert how == TRIANGLE
    assert rough_epsilon_of(marked(tree), 1e-5, REPLACE) == pytest.approx(replaced, abs=6e-4)
    assert replaced * (1 - 2e-3) < printed < replaced
    assert epsilon_of(tree, 1e-5, Adjacency.ZERO_OUT)[0] == pytest.approx(zeroed, abs=1e-3)
    assert delta_of(marked(tree), printed, REPLACE) == pytest.approx(1e-5, rel=1e-4)


@pytest.mark.parametrize(("z", "count"), [(5.0, 25), (20.0, 100), (3.0, 1), (40.0, 10)])
def test_at_rate_1_it_is_the_closed_form(z: float, count: int) -> None:
    mu = 2 * math.sqrt(count) / z
    for delta in (1e-6, 1e-5, 1e-2):
        true = gdp.epsilon_for(delta, mu)
        printed, _ = epsilon_of(marked(drawn(z, 1.0, count)), delta, REPLACE)
        assert true * (1 - 1e-9) <= printed <= true * (1 + 1e-3) + 1e-4


@pytest.mark.slow
def test_60_drawn_plans_lie_between_the_ends_of_the_second_opinion() -> None:
    draw, both = random.Random(152), 0
    for _ in range(60):
        rate = 10 ** draw.uniform(-3, -0.3)
        std = draw.uniform(1.5, 8.0)
        releases = draw.randint(1, 100)
        mechanism = gaussian(facts(clip=0.5), 0.5 * std).with_sampling(Poisson(rate))
        channels: dict[str, Any] = {"update": mechanism}
        if draw.random() < 0.3:
            channels["count"] = gaussian(facts(replace_bound=1.0), 60.0)
        kind = tuple(use for use in USES if use.channel in channels)
        made = TrainingReleases(channels, {kind: releases})
        found: Guarantee = guarantee(made, 1e-5, NoiseSource.OPERATING_SYSTEM, releases)
        (opinion,) = checked(found).opinions  # refuses what is below
        assert opinion.at_most is None or found.epsilon <= opinion.at_most * (1 + TOLERANCE)
        assert opinion.at_least is None or opinion.at_least <= found.epsilon
        both += opinion.at_most is not None and opinion.at_least is not None
    assert both >= 50


# ------------------------------------------------------------------------------- edge cases


def test_a_reader_that_does_not_know_the_mark_refuses() -> None:
    tree = marked(drawn(2.0, 0.1, 10))
    assert event_tree.gaussian_mu_squared(tree, REPLACE) is None
    assert event_tree.gaussian_mu_squared(marked(drawn(2.0, 1.0, 10)), REPLACE) is None
    assert event_tree.gaussian_leaves(tree) is None
    with pytest.raises(Unpriceable, match="draws under replace-one"):
        events.from_json(tree)
    for adjacency in (Adjacency.ZERO_OUT, Adjacency.ADD_REMOVE):
        with pytest.raises(Unpriceable, match="hold for replace-one"):
            epsilon_of(tree, 1e-5, adjacency)
    for bad in (events.composed([tree, tree]), marked(tree), marked({"kind": "ZCDp"})):
        with pytest.raises(Unpriceable):
            epsilon_of(bad, 1e-5, REPLACE)


def test_a_draw_without_the_mark_has_no_bound_under_replace_one() -> None:
    """Its multiplier may be that of a replaced row: no figure can be told from it."""
    with pytest.raises(Unpriceable):
        epsilon_of(drawn(2.0, 0.1, 10), 1e-5, REPLACE)
    with pytest.raises(Unpriceable):
        epsilon_of_event(events.from_json(drawn(2.0, 0.1)), 1e-5, REPLACE)


def test_no_draw_no_mark() -> None:
    assert released(update=gaussian(facts(), 3.0).with_sampling(Poisson(1.0)))["kind"] == "Composed"
    assert released(update=gaussian(facts(), 3.0))["kind"] == "Composed"
    whole = released(update=gaussian(facts(), 3.0).with_sampling(Poisson(0.5)))
    assert whole["kind"] == "ThroughZero"
    mechanism = gaussian(facts(), 3.0)
    made = guarantee(
        TrainingReleases({"update": mechanism}, {USES[:1]: 1}), 1e-5, NoiseSource.KEYED, 1
    )
    assert made.claims[0].accounting == EXACT


@pytest.mark.parametrize(
    "tree",
    [
        marked({"kind": "NonPrivate"}),
        marked(drawn(2.0, 0.5), {"kind": "NonPrivate"}),
        marked(drawn(0.04, 0.5)),
        marked(drawn(1.0, 0.9, 10_000_000)),
        marked(drawn(1.0, 0.1), events.times(normal(1e-3), 7)),
    ],
)
def test_what_has_no_end_or_no_noise_is_infinite(tree: Any) -> None:
    assert epsilon_of(tree, 1e-5, REPLACE)[0] == math.inf
    assert delta_of(tree, 3.0, REPLACE) == 1.0


def test_a_tiny_delta_is_infinite_and_no_large_split_is_used() -> None:
    tree = marked(drawn(2.0, 0.1, 100))
    assert epsilon_of(tree, 0.9e-9, REPLACE)[0] == math.inf
    assert epsilon_of(tree, 1e-6, REPLACE)[0] < math.inf
    # the first step alone takes an e1 of 3.9, which would multiply the error by 50
    assert epsilon_of(tree, 2e-9, REPLACE)[0] == math.inf
    # what exp(e1) 1e-13 could hide is not said
    assert delta_of(tree, 40.0, REPLACE) >= 1e3 * triangle.TRANSFORM_ERROR


def test_masses_that_are_negative_or_no_number() -> None:
    from dp_accounting.pld.pld_pmf import DensePLDPmf

    def pmf(*masses: float, infinite: float = 0.0) -> Any:
        return DensePLDPmf(0.5, -1, np.array(masses), infinite, True)

    clean = triangle._direction(pmf(0.1, 0.2, 0.3, 0.0, 0.4))
    dirty = triangle._direction(pmf(0.1, 0.2, 0.3, -1e-3, 0.4))
    assert clean is not None
    assert dirty is not None
    at = np.linspace(0, 3, 50)
    assert (dirty.deltas(at) == clean.deltas(at)).all()
    assert triangle._direction(pmf(0.5, math.nan, 0.5)) is None
    assert triangle._direction(pmf(0.5, math.inf, 0.5)) is None
    assert triangle._direction(pmf(0.5, 0.5, infinite=math.nan)) is None


def test_a_direction_is_what_dp_accounting_says_of_it() -> None:
    from dp_accounting.pld import privacy_loss_distribution as pld

    made = pld.from_gaussian_mechanism(0.9, sampling_prob=0.2).self_compose(5)
    for pmf in (made._pmf_remove, made._pmf_add):
        direction = triangle._direction(pmf)
        assert direction is not None
        at = np.sort(np.random.default_rng(1).uniform(0, 12, 200))
        assert direction.deltas(at) == pytest.approx(pmf.get_delta_for_epsilon(at), abs=1e-14)
        deltas = np.array([0.3, 1e-2, 1e-5, 1e-9, 1e-16, 0.0])
        for delta, epsilon in zip(deltas, direction.epsilons(deltas), strict=True):
            assert epsilon == pytest.approx(pmf.get_epsilon_for_delta(delta), rel=1e-7)


def test_transforms_lose_no_more_than_is_allowed_for() -> None:
    """Compositions of Gaussian releases have a closed form, far into the tail."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    for z, count in ((1.0, 1), (3.0, 30), (30.0, 1000), (8.0, 400)):
        made = pld.from_gaussian_mechanism(z).self_compose(count)
        direction = triangle._direction(made._pmf_remove)
        assert direction is not None
        at = np.linspace(0, 60, 400)
        true = np.array([gdp.delta_for(e, math.sqrt(count) / z) for e in at])
        assert (true - direction.deltas(at)).max() <= triangle.TRANSFORM_ERROR
