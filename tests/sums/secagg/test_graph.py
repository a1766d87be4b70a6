# SPDX-License-Identifier: Apache-2.0
"""The graph of masks: its chances against scipy and against drawing it many times."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dpfed.core.errors import UnsoundPlan
from dpfed.sums.secagg import graph
from dpfed.sums.secagg.graph import (
    COMPLETE_UP_TO,
    MAX_FAILURE,
    MAX_UNOPENED,
    Design,
    design,
    neighbours,
)


def connected(kept: set[int], degree: int, clients: int, run: str) -> bool:
    """Whether these stay one piece once all others are gone."""
    left = set(kept)
    new = {left.pop()}
    while new and left:
        near = {n for i in new for n in neighbours(i, clients, degree, run)}
        new = near & left
        left -= new
    return not left


# --------------------------------------------------------------------------------------- neighbours


@pytest.mark.parametrize(("clients", "degree"), [(2, 1), (5, 4), (7, 2), (65, 28), (100, 32)])
def test_each_has_as_many_neighbours_and_is_one_of_theirs(clients: int, degree: int) -> None:
    near = {i: neighbours(i, clients, degree, "run") for i in range(clients)}
    for i, others in near.items():
        assert len(set(others)) == len(others) == degree
        assert i not in others
        assert all(i in near[other] for other in others)


def test_on_the_complete_graph_all_others_are_neighbours() -> None:
    assert neighbours(2, 5, 4, "run") == neighbours(2, 5, 99, "run") == (0, 1, 3, 4)


def test_the_ring_is_the_same_for_all_of_a_run_and_another_in_the_next() -> None:
    first, again, other = (
        [neighbours(i, 100, 10, run) for i in range(100)] for run in ("a", "a", "b")
    )
    assert first == again
    assert sum(x == y for x, y in zip(first, other, strict=True)) < 5


def test_all_orders_of_the_ring_are_as_likely() -> None:
    """Over many runs, each other client is a neighbour equally often."""
    clients, degree, runs = 11, 4, 3000
    counts = np.zeros(clients)
    for run in range(runs):
        counts[list(neighbours(0, clients, degree, f"run {run}"))] += 1
    assert counts[0] == 0
    z = (counts[1:] - runs * 0.4) / np.sqrt(runs * 0.4 * 0.6)
    assert np.abs(z).max() < 5.5


# ------------------------------------------------------------------------------------------ chances


@pytest.mark.parametrize(
    ("population", "marked", "draws", "least"),
    [
        (99, 20, 32, 18),
        (99, 0, 32, 1),
        (99, 99, 32, 32),
        (10, 3, 5, 0),
        (10, 8, 5, 2),
        (499, 50, 58, 28),
    ],
)
def test_the_tail_is_scipys(population: int, marked: int, draws: int, least: int) -> None:
    expected = stats.hypergeom(population, marked, draws).sf(least - 1)
    assert graph._tail(population, marked, draws, least) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(
    ("clients", "marked", "run"), [(20, 8, 3), (20, 3, 3), (20, 2, 3), (9, 9, 4)]
)
def test_a_run_of_marked_ones_is_as_likely_as_drawing_only_marked_ones(
    clients: int, marked: int, run: int
) -> None:
    expected = stats.hypergeom(clients, marked, run).pmf(run)
    assert graph._in_a_row(clients, marked, run) == pytest.approx(expected, rel=1e-9, abs=1e-15)


def frequency(event, trials: int = 1500) -> tuple[float, float]:
    """How often it happens over as many runs, and the standard error."""
    hits = np.mean([event(f"trial {i}") for i in range(trials)])
    return hits, np.sqrt(max(hits * (1 - hits), 1 / trials) / trials)


@pytest.mark.parametrize(("clients", "degree", "marked"), [(20, 4, 8), (24, 6, 10), (16, 4, 5)])
def test_the_honest_are_cut_apart_less_often_than_the_bound_says(
    clients: int, degree: int, marked: int
) -> None:
    left = set(range(marked, clients))
    found, error = frequency(lambda run: not connected(left, degree, clients, run))
    bound = clients * graph._in_a_row(clients, marked, degree // 2)
    assert found <= bound + 4 * error
    assert found > 0  # or the size is one where nothing is seen


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "degree", "marked", "least"), [(20, 6, 5, 4), (30, 8, 6, 4)])
def test_too_many_marked_neighbours_are_less_often_than_the_bound_says(
    clients: int, degree: int, marked: int, least: int
) -> None:
    def somewhere(run: str) -> bool:
        near = (neighbours(i, clients, degree, run) for i in range(clients))
        return any(sum(n < marked for n in others) >= least for others in near)

    found, error = frequency(somewhere)
    assert 0 < found <= clients * graph._tail(clients - 1, marked, degree, least) + 4 * error


def test_a_design_for_visible_chances_keeps_its_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "MAX_FAILURE", 0.2)
    monkeypatch.setattr(graph, "MAX_UNOPENED", 0.2)
    clients, least, colluders = 40, 32, 3
    options = (graph._sparse(clients, least, colluders, k) for k in range(2, clients - 1, 2))
    found = next(option for option in options if option is not None)
    assert found.degree < 20
    gone, bad = set(range(clients - least)), set(range(clients - colluders, clients))

    def hides_too_little(run: str) -> bool:
        near = [set(neighbours(i, clients, found.degree, run)) for i in range(clients)]
        kept = set(range(clients)) - gone - bad
        return not connected(kept, found.degree, clients, run) or any(
            len(others & bad) >= found.threshold for others in near
        )

    def cannot_open(run: str) -> bool:
        near = (set(neighbours(i, clients, found.degree, run)) for i in range(clients))
        return any(len(others - gone) < found.threshold for others in near)

    for event, target in ((hides_too_little, found.failure), (cannot_open, 0.2)):
        often, error = frequency(event, 400)
        assert often <= target + 4 * error


@pytest.mark.sample(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("clients", "least", "colluders"), [(100, 80, 10), (500, 400, 0), (500, 450, 100)]
)
def test_the_degree_is_the_least_even_one_that_keeps_both_targets(
    clients: int, least: int, colluders: int
) -> None:
    def chances(k: int, threshold: int) -> tuple[float, float]:
        """By scipy: that it hides too little, and that it cannot be opened."""
        gone = clients - least
        few = stats.hypergeom(clients - 1, gone, k).sf(k - threshold)
        bad = stats.hypergeom(clients - 1, colluders, k).sf(threshold - 1)
        row = stats.hypergeom(clients, gone + colluders, k // 2).pmf(k // 2)
        return clients * (bad + row), clients * few

    def good(k: int, threshold: int) -> bool:
        apart, stuck = chances(k, threshold)
        return apart <= MAX_FAILURE and stuck <= MAX_UNOPENED

    found = design(clients, least, colluders)
    assert good(found.degree, found.threshold)
    assert found.failure == pytest.approx(chances(found.degree, found.threshold)[0], rel=1e-6)
    assert not any(
        good(k, threshold) for k in range(2, found.degree, 2) for threshold in range(1, k + 1)
    )
    assert chances(found.degree, found.threshold + 1)[1] > MAX_UNOPENED  # the highest threshold


# ------------------------------------------------------------------------------------------ designs


@pytest.mark.parametrize("clients", [2, 3, 20, COMPLETE_UP_TO])
def test_few_clients_are_all_tied_to_all_and_nothing_is_left_to_chance(clients: int) -> None:
    least = max(2, round(0.8 * clients))
    assert design(clients, least, 0) == Design(clients - 1, least - 1, 0.0)


def test_many_clients_are_tied_to_few_unless_all_are_asked_for() -> None:
    assert design(COMPLETE_UP_TO + 1, 52, 0).degree < COMPLETE_UP_TO
    assert design(500, 400, 0).degree < 60
    assert design(500, 400, 0, 0) == Design(499, 399, 0.0)


def test_where_no_sparse_graph_is_good_enough_all_are_tied_to_all() -> None:
    assert design(70, 36, 20) == Design(69, 35, 0.0)


def test_more_colluders_or_fewer_survivors_need_more_neighbours() -> None:
    degrees = [design(200, 160, colluders).degree for colluders in (0, 10, 20, 40)]
    assert degrees == sorted(degrees)
    degrees = [design(200, least, 5).degree for least in (190, 160, 120)]
    assert degrees == sorted(degrees)
    assert degrees[0] < degrees[-1]


@pytest.mark.parametrize(("clients", "least", "colluders"), [(5, 4, 3), (2, 2, 1), (100, 80, 79)])
def test_colluders_who_could_open_a_mask_by_themselves_are_refused(
    clients: int, least: int, colluders: int
) -> None:
    with pytest.raises(UnsoundPlan, match=f"at least {colluders + 2}, .*, got {least};"):
        design(clients, least, colluders)
    assert design(clients, least, least - 2).threshold > least - 2


@pytest.mark.parametrize("degree", [2, 20, 30, 33, -2])
def test_a_degree_that_is_too_low_or_odd_is_refused(degree: int) -> None:
    with pytest.raises(UnsoundPlan, match=f"enough for 100 clients, 80 .*, got {degree};"):
        design(100, 80, 0, degree)


def test_a_degree_that_is_good_enough_is_taken() -> None:
    assert design(100, 80, 0, 40).degree == 40
    assert design(100, 80, 0, 40).failure < design(100, 80, 0).failure
    assert design(100, 80, 0, 99) == design(100, 80, 0, 200) == design(100, 80, 0, 0)
