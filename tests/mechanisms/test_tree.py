# SPDX-License-Identifier: Apache-2.0
"""The tree's noise and cost against its definition, and one test per line of the table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
import torch

from dpfed.accounting.accountant import RELATIONS, GaussianAccountant
from dpfed.accounting.guarantee import epsilon_of_event
from dpfed.core.errors import BadRelease, RecipeError, Unpriceable
from dpfed.core.randomness import Noise
from dpfed.core.rows import Dense
from dpfed.core.sampling import Poisson
from dpfed.core.types import Adjacency, BoundedSum, Facts, Release, Total, Trust
from dpfed.mechanisms.tree import Nodes, Tree, tree
from dpfed.training.wire import state as states


class Fixed:
    """Rows that claim whatever bound they are told to."""

    def __init__(
        self, vector: torch.Tensor, bound: float = 1.0, replace_bound: float = 2.0
    ) -> None:
        self.sum = BoundedSum(vector, bound, replace_bound)

    def clipped_sum(self, clip: float) -> BoundedSum:
        return self.sum


def run(mechanism: Tree, sums: torch.Tensor, seed: int = 0) -> Iterator[tuple[Release, Nodes]]:
    """One release per row of ``sums``, with the state after it."""
    state = mechanism.init(sums.shape[1])
    for t, row in enumerate(sums):
        release, state = mechanism.release(Fixed(row), state, Noise(seed).stream("release", t))
        yield release, state


def nodes_of(t: int) -> set[tuple[int, int]]:
    """The first t steps as nodes (first step, size), from the bits of t: the definition."""
    found, start = set(), 1
    for k in reversed(range(t.bit_length())):
        if t >> k & 1:
            found.add((start, 2**k))
            start += 2**k
    return found


def opened(n: int) -> set[tuple[int, int]]:
    return set().union(*(nodes_of(t) for t in range(1, n + 1)))


# --------------------------------------------------------------------------------------- noise


def test_a_prefix_carries_the_noise_of_its_nodes() -> None:
    size, std = 60_000, 3.0
    prefix = np.zeros(size)
    for t, (release, _) in enumerate(run(tree(std=std), torch.zeros(20, size)), start=1):
        prefix += release.vector.numpy() * release.step
        assert float(prefix.var()) == pytest.approx(t.bit_count() * std**2, rel=0.03)


def test_prefixes_telescope_exactly() -> None:
    """What is left of the noise, to the last bit, is that of the open nodes: in integers."""
    mechanism = tree(std=50.0)
    prefix = torch.zeros(9, dtype=torch.int64)
    for t, (release, state) in enumerate(run(mechanism, torch.zeros(100, 9)), start=1):
        prefix += release.vector
        assert torch.equal(prefix, torch.stack(state.noise).sum(0))
        assert [bool(node.any()) for node in state.noise] == [bool(t >> k & 1) for k in range(11)]


def test_a_release_is_the_sum_and_its_noise() -> None:
    sums = torch.randn(16, 40, dtype=torch.float64)
    quiet = run(tree(std=2.0), torch.zeros(16, 40))
    for row, (release, _), (noise, _) in zip(sums, run(tree(std=2.0), sums), quiet, strict=True):
        values = (release.vector - noise.vector).double() * release.step
        shorter = row * (1 - 2 * release.step * math.sqrt(40))  # by what rounding may add
        assert float((values - shorter).abs().max()) <= release.step / 2
        assert release.std == noise.std


def test_a_restart_begins_a_new_tree() -> None:
    mechanism = tree(std=4.0, restart=6)
    assert len(mechanism.init(1).noise) == 3
    prefix, size = np.zeros(40_000), 40_000
    for t, (release, _) in enumerate(run(mechanism, torch.zeros(15, size)), start=1):
        prefix += release.vector.numpy() * release.step
        trees, place = divmod(t, 6)
        nodes = trees * (6).bit_count() + place.bit_count()  # each old tree leaves its last nodes
        assert float(prefix.var()) == pytest.approx(nodes * 16.0, rel=0.03)


def test_a_release_leaves_its_state_as_it_was() -> None:
    mechanism = tree()
    *_, (_, state) = run(mechanism, torch.zeros(7, 5))
    before = [node.clone() for node in state.noise]
    first, after = mechanism.release(Fixed(torch.zeros(5)), state, Noise(1).stream("release"))
    again, _ = mechanism.release(Fixed(torch.zeros(5)), state, Noise(1).stream("release"))
    assert torch.equal(first.vector, again.vector)
    assert all(map(torch.equal, before, state.noise))
    assert (state.t, after.t) == (7, 8)


# --------------------------------------------------------------------------------------- cost


def test_the_squared_sensitivity_is_the_squared_sizes_of_all_nodes_ever_opened() -> None:
    for n in range(201):
        sizes = [size for _, size in opened(n)] if n else []
        assert tree().squared_sensitivity(n) == sum(size * size for size in sizes)
        assert tree().opened(n) == [sizes.count(2**k) for k in range(n.bit_length())]


def test_the_goldens_at_seventy() -> None:
    """All nodes of the padded tree, all that are completed by step 70, and those ever opened."""
    padded = sum(min(size, max(0, 70 - start)) ** 2 for size, start in every_node(128))
    completed = sum(size**2 for size, start in every_node(128) if start + size <= 70)
    assert math.sqrt(padded) == pytest.approx(114.9, abs=0.05)
    assert completed == 8162
    assert math.sqrt(completed) == pytest.approx(90.34, abs=0.01)
    assert tree().squared_sensitivity(70) == 6139
    assert math.sqrt(tree().squared_sensitivity(70)) == pytest.approx(78.35, abs=0.01)


def every_node(leaves: int) -> list[tuple[int, int]]:
    sizes = [2**k for k in range(leaves.bit_length())]
    return [(size, start) for size in sizes for start in range(0, leaves, size)]


def test_the_squared_sensitivity_is_the_squared_sensitivity_of_the_linear_map() -> None:
    """The releases as C^-1 z, read off the code's own noises: sum of C^T C, no entry below 0."""
    n = 21
    rows = [nodes_of(t) - nodes_of(t - 1) for t in range(1, n + 1)]
    C = np.zeros((n, n))
    for t, [(start, size)] in enumerate(rows):
        C[t, start - 1 : start - 1 + size] = 1
    inverse = np.linalg.inv(C)  # what a release adds: its own node, less those that it closes
    assert np.array_equal(np.diag(inverse), np.ones(n))
    releases = [r for r, _ in run(tree(std=1.0), torch.zeros(n, 30_000))]
    noise = np.stack([r.vector.numpy() * r.step for r in releases])
    assert np.abs(np.cov(noise) - inverse @ inverse.T).max() < 0.12
    assert np.abs(C @ noise - np.stack([*fresh(n, 30_000)])).max() < 1e-8
    assert tree().squared_sensitivity(n) == (C.T @ C).sum()


def fresh(n: int, size: int) -> Iterator[np.ndarray]:
    for t in range(n):
        yield Noise(0).stream("release", t).normal(size)


def test_trees_after_a_restart_are_independent_ones() -> None:
    for restart in (1, 5, 16):
        mechanism = tree(restart=restart)
        for n in (0, 1, 4, 5, 16, 17, 70, 2000):
            trees, rest = divmod(n, restart)
            expected = trees * tree().squared_sensitivity(restart) + tree().squared_sensitivity(
                rest
            )
            assert mechanism.squared_sensitivity(n) == expected
    assert tree(restart=1).squared_sensitivity(70) == 70  # independent noise


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("restart", [0, 9])
def test_the_event_costs_what_the_releases_are_worth(adjacency: Adjacency, restart: int) -> None:
    mechanism = tree(Facts(clip=2.0, adjacency=adjacency), std=60.0, restart=restart)
    D = 4.0 if adjacency is Adjacency.REPLACE_ONE else 2.0
    for n in (1, 2, 3, 8, 70, 200):
        accountant = GaussianAccountant(RELATIONS[adjacency])
        accountant.compose(mechanism.event(n))
        assert accountant.mu**2 == pytest.approx(
            mechanism.squared_sensitivity(n) * (D / 60.0) ** 2, rel=1e-12
        )


def test_a_smaller_replace_bound_costs_less() -> None:
    mechanism = tree(Facts(clip=2.0, replace_bound=math.sqrt(2) * 2), std=6.0)
    assert mechanism.noise_multiplier() == pytest.approx(6.0 / math.sqrt(2))
    assert mechanism.noise_multiplier(4) == pytest.approx(12.0 / math.sqrt(2))


def test_the_single_epoch_event_would_understate_and_is_refused() -> None:
    """dp_accounting's event says: ceil(log2(T + 1)) nodes, each moved by one contribution.

    So at T = 70 it gives mu = sqrt(7) / z, z a node's noise over the clip. With a unit in each
    of the 70 releases mu is 78.35 / z: 29.6 times as much.
    """
    event = dp_accounting.SingleEpochTreeAggregationDpEvent(100.0, 70)
    seven_nodes = dp_accounting.GaussianDpEvent(100.0 / math.sqrt(7))
    assert renyi(event) == pytest.approx(renyi(seven_nodes), rel=1e-12)
    ours = GaussianAccountant(RELATIONS[Adjacency.ZERO_OUT])
    ours.compose(tree(Facts(adjacency=Adjacency.ZERO_OUT), std=100.0).event(70))
    assert ours.mu / (math.sqrt(7) / 100.0) == pytest.approx(29.61, abs=0.01)
    for adjacency in Adjacency:
        with pytest.raises(Unpriceable, match="SingleEpochTree"):
            epsilon_of_event(event, 1e-5, adjacency)


def renyi(event: dp_accounting.DpEvent) -> float:
    relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    accountant = dp_accounting.rdp.RdpAccountant(neighboring_relation=relation)
    return float(accountant.compose(event).get_epsilon(1e-5))


def test_full_participation_makes_a_tree_lose_to_independent_noise() -> None:
    """At equal mu, T = 70, squared errors of prefix sums are s(T) x nodes, against T x t."""
    squared = tree().squared_sensitivity(70)
    tree_errors = [squared * t.bit_count() for t in range(1, 71)]
    independent = [70 * t for t in range(1, 71)]
    last = math.sqrt(tree_errors[-1] / independent[-1])
    mean = math.sqrt(sum(tree_errors) / sum(independent))
    assert last == pytest.approx(1.939, abs=0.001)
    assert mean == pytest.approx(2.709, abs=0.001)


# -------------------------------------------------------------------------------------- central


def test_under_central_trust_the_server_draws_the_tree() -> None:
    mechanism = tree(Facts(trust=Trust.CENTRAL), std=3.0)
    size, prefix = 40_000, np.zeros(40_000)
    client, server = mechanism.init(size), mechanism.init(size)
    for t in range(1, 13):
        rng = Noise(0).stream("release", t)
        sent, client = mechanism.release(Dense(torch.ones(1, size) * 1e-3), client, rng)
        assert (sent.std, client.t) == (0.0, 0)
        total = Total(2 * sent.vector.long(), (0, 1), (1.0, 1.0))
        release, server = mechanism.finish(total, server, Noise(0).stream("finish", t))
        prefix += release.vector.numpy() * release.step - 2e-3
        level = (t & -t).bit_length() - 1
        assert release.std == 3.0 * math.sqrt(1 + level)
        assert float(prefix.var()) == pytest.approx(t.bit_count() * 9.0, rel=0.03)


def test_an_opened_sum_carries_the_noise_of_its_terms() -> None:
    mechanism, state = tree(std=4.0), tree().init(3)
    for closed in (0, 1, 0, 2):
        total = Total(torch.zeros(3, dtype=torch.int64), (0, 1, 2), (1.0, 0.5, 0.5))
        release, state = mechanism.finish(total, state, Noise(0).stream("finish"))
        assert release.std == pytest.approx(4.0 * math.sqrt(1.5 * (1 + closed)))
        assert not release.vector.any()
    assert state.t == 4


# ----------------------------------------------------------------------------------- edge cases


@pytest.mark.parametrize("name", ["clip", "std"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_numbers_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(RecipeError, match=f"{name} must be a .*, got {value};"):
        tree(Facts(clip=value)) if name == "clip" else tree(**{name: value})


@pytest.mark.parametrize(
    ("horizon", "restart", "sentence"),
    [
        (0, 0, "tree.horizon must be a whole number, at least 1, got 0;"),
        (8, -1, "tree.restart must be between 0, for never, and horizon = 8, got -1;"),
        (8, 9, "tree.restart must be between 0, for never, and horizon = 8, got 9;"),
    ],
)
def test_trees_that_hold_nothing_are_refused(horizon: int, restart: int, sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        tree(horizon=horizon, restart=restart)


def test_what_no_tree_accounts_for_is_refused() -> None:
    with pytest.raises(RecipeError, match="mechanism 'gaussian'"):
        tree(Facts(trust=Trust.DISTRIBUTED))
    with pytest.raises(RecipeError, match="2 shares"):
        Tree(Facts(1.0), 1.0, shares=2)
    with pytest.raises(RecipeError, match="Poisson"):
        Tree(Facts(1.0), 1.0, sampling=Poisson(0.5))


def test_no_release_goes_past_the_horizon() -> None:
    mechanism = tree(horizon=5)
    *_, (_, state) = run(mechanism, torch.zeros(5, 2))
    with pytest.raises(BadRelease, match="least 6 for release 6, got 5"):
        mechanism.release(Fixed(torch.zeros(2)), state, Noise(0).stream("release"))
    assert math.isfinite(mechanism.squared_sensitivity(5))
    assert mechanism.squared_sensitivity(6) == math.inf
    assert mechanism.event(6) == dp_accounting.NonPrivateDpEvent()


@pytest.mark.parametrize(("bound", "replace_bound"), [(1.1, 2.0), (1.0, 2.1), (math.nan, 2.0)])
def test_rows_beyond_the_bounds_are_refused(bound: float, replace_bound: float) -> None:
    rows = Fixed(torch.zeros(3), bound, replace_bound)
    with pytest.raises(BadRelease, match="rows must be bounded by"):
        tree().release(rows, tree().init(3), Noise(0).stream("release"))


def test_rows_of_another_size_are_not_broadcast() -> None:
    for size in (1, 4):
        with pytest.raises(BadRelease, match=f"must have size 3, .*, got {size};"):
            tree().release(Fixed(torch.zeros(size)), tree().init(3), Noise(0).stream("release"))
        total = Total(torch.zeros(size, dtype=torch.int64), (0,), (1.0,))
        central = tree(Facts(trust=Trust.CENTRAL))
        with pytest.raises(BadRelease, match=f"must have size 3, .*, got {size};"):
            central.finish(total, central.init(3), Noise(0).stream("finish"))


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_a_sum_that_fits_no_grid_is_not_released(value: float) -> None:
    with pytest.raises(BadRelease, match="does not fit"):
        next(run(tree(), torch.full((1, 3), value)))


@pytest.mark.parametrize("std", [1e-6, 1.0, 1e3, 1e9, 1e15])
def test_the_grid_holds_many_clients_noise_and_is_fine_for_the_clip(std: float) -> None:
    """A thousand clients' releases, each twelve deviations out, stay within a sum's limit."""
    mechanism = tree(std=std)
    assert 12 * math.sqrt(11) * std / mechanism.step < 2.0**62 / 1000
    assert mechanism.step <= 2.0**-36 * max(1.0, std / 64)


# ---------------------------------------------------------------------------------------- state


def test_the_state_goes_through_a_file(tmp_path: Path) -> None:
    """A template of fixed shapes, whatever the step: the noise goes on to the bit."""
    mechanism = tree(horizon=12)
    straight = [release.vector for release, _ in run(mechanism, torch.zeros(12, 5))]
    for t in range(12):
        template = mechanism.init(5)
        state = states.load_at(tmp_path, (t - 1, 0), template)
        shapes = [(leaf.shape, leaf.dtype) for leaf in state.noise]
        assert shapes == [(leaf.shape, leaf.dtype) for leaf in template.noise]
        rng = Noise(0).stream("release", t)
        release, state = mechanism.release(Fixed(torch.zeros(5)), state, rng)
        assert torch.equal(release.vector, straight[t])
        states.save_state(tmp_path, t, state)
