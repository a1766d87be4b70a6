# SPDX-License-Identifier: Apache-2.0
"""Buffered noise against its matrix, what participation costs, and one test per line of the table.

The noise that a server adds under participation is tested here for tree, banded and blt together.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch

from dpfed.accounting.accountant import RELATIONS, GaussianAccountant
from dpfed.core.errors import BadRelease, RecipeError
from dpfed.core.participation import Participation
from dpfed.core.randomness import Noise
from dpfed.core.rows import Dense
from dpfed.core.sampling import Poisson
from dpfed.core.types import Adjacency, Facts, Mechanism, Total, Trust, Unit
from dpfed.mechanisms._toeplitz import best_buffers
from dpfed.mechanisms.banded import banded
from dpfed.mechanisms.blt import Blt, Buffers, blt
from dpfed.mechanisms.discrete_gaussian import discrete_gaussian
from dpfed.mechanisms.gaussian import gaussian
from dpfed.mechanisms.tree import tree
from dpfed.training.wire import state as states
from tests.mechanisms.patterns import lower, node_matrix, patterns, worst

ROUNDS, SIZE = 12, 60_000
LIMITS = Participation(min_separation=3, at_most=3)
DEVICES = Facts(
    unit=Unit.CLIENT,
    trust=Trust.CENTRAL,
    adjacency=Adjacency.ZERO_OUT,
    participation=LIMITS,
)
MECHANISMS: dict[str, Any] = {
    "tree": tree(DEVICES, 2.0, horizon=ROUNDS),
    "banded": banded(DEVICES, 2.0, rounds=ROUNDS),
    "blt": blt(DEVICES, 2.0, rounds=ROUNDS),
    "given": blt(DEVICES, 2.0, decays=[0.9, 0.4], scales=[0.2, 0.3]),
}


def matrix_of(mechanism: Any, n: int = ROUNDS) -> np.ndarray:
    """C, so that the noise of n releases is std C^-1 z: from what the mechanism says of itself."""
    if hasattr(mechanism, "horizon"):
        return node_matrix(n)
    if isinstance(mechanism, Blt):
        pairs = list(zip(mechanism.decays, mechanism.scales, strict=True))
        return lower([1.0] + [sum(s * d**j for d, s in pairs) for j in range(n - 1)], n)
    return lower(list(mechanism.coefficients), n)


def served(mechanism: Mechanism, n: int = ROUNDS, size: int = SIZE) -> tuple[np.ndarray, Any]:
    """What a server adds to sums of nothing in n rounds, and the levels that it states."""
    state, made, levels = mechanism.init(size), [], []
    for t in range(n):
        total = Total(torch.zeros(size, dtype=torch.int64), (), ())
        release, state = mechanism.finish(total, state, Noise(0).stream("finish", t, 0, "update"))
        made.append(release.vector.numpy() * release.step)
        levels.append(release.std)
    return np.stack(made), levels


def deviation(noise: np.ndarray, C: np.ndarray, std: float) -> float:
    """How far the covariance of C noise / std is from the identity, in standard errors."""
    white = C @ noise / std
    return float(np.abs(np.cov(white) - np.eye(len(C))).max() * math.sqrt(noise.shape[1]))


# --------------------------------------------------------------------------------------- noise


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_noise_has_the_covariance_of_the_strategy(name: str) -> None:
    mechanism, C = MECHANISMS[name], matrix_of(MECHANISMS[name])
    noise, levels = served(mechanism)
    assert deviation(noise, C, mechanism.std) < 6  # 78 pairs; a variance has sqrt 2 of it
    # release = S + (Z_t - Z_(t-1)) for the tree: its inverse is that of the node matrix, too
    stated = mechanism.std * np.sqrt(np.square(np.linalg.inv(C)).sum(axis=1))
    assert levels == pytest.approx(list(stated), rel=1e-9)
    drawn = np.stack(
        [Noise(0).stream("finish", t, 0, "update").normal(SIZE) for t in range(ROUNDS)]
    )
    assert np.abs(C @ noise / mechanism.std - drawn).max() < 1e-4  # and draw by draw


class Forgets(Blt):
    """Planted: each release begins from no noise."""

    def _advance(self, size: int, state: Buffers, rng: Any) -> Any:
        noise, _ = super()._advance(size, self.init(size), rng)
        return noise, state._replace(t=state.t + 1)


class Late(Blt):
    """Planted: a buffer takes up the noise before it has decayed, not after."""

    def _advance(self, size: int, state: Buffers, rng: Any) -> Any:
        noise, after = super()._advance(size, state, rng)
        pairs = zip(self.decays, state.noise, strict=True)
        return noise, Buffers(tuple((b + noise / self.std) * d for d, b in pairs), after.t)


class Adds(Blt):
    """Planted: buffers are added where they are to be subtracted."""

    def _advance(self, size: int, state: Buffers, rng: Any) -> Any:
        flipped = Buffers(tuple(-kept for kept in state.noise), state.t)
        noise, after = super()._advance(size, flipped, rng)
        return noise, after


@pytest.mark.parametrize("planted", [Forgets, Late, Adds])
def test_planted_errors_in_the_noise_are_seen(planted: type[Blt]) -> None:
    right = MECHANISMS["blt"]
    wrong = planted(**{name: getattr(right, name) for name in right.__dataclass_fields__})
    assert deviation(served(wrong)[0], matrix_of(right), right.std) > 20


def test_another_matrix_or_level_than_was_priced_is_seen() -> None:
    for name, mechanism in MECHANISMS.items():
        noise, _ = served(mechanism)
        assert deviation(noise, matrix_of(mechanism), 0.95 * mechanism.std) > 20
        if name != "tree":
            assert deviation(noise, node_matrix(ROUNDS), mechanism.std) > 20
    slower = replace(MECHANISMS["given"], decays=(0.8, 0.4))
    assert deviation(served(slower)[0], matrix_of(MECHANISMS["given"]), slower.std) > 6


def test_local_noise_is_the_same() -> None:
    mechanism = blt(std=2.0)
    state, made = mechanism.init(SIZE), []
    for t in range(5):
        rng = Noise(0).stream("release", t)
        release, state = mechanism.release(Dense(torch.zeros(1, SIZE)), state, rng)
        made.append(release.vector.numpy() * release.step)
    assert deviation(np.stack(made), matrix_of(mechanism, 5), 2.0) < 6


# --------------------------------------------------------------------------------------- cost


@pytest.mark.parametrize("name", MECHANISMS)
def test_no_pattern_and_no_signs_cost_more_and_one_costs_as_much(name: str) -> None:
    mechanism = MECHANISMS[name]
    for n in range(1, ROUNDS + 1):
        found = worst(matrix_of(mechanism, n), LIMITS.min_separation, LIMITS.at_most)
        assert mechanism.squared_sensitivity(n) == pytest.approx(found, rel=1e-12)


@pytest.mark.parametrize("name", MECHANISMS)
def test_no_unit_of_several_coordinates_costs_more(name: str) -> None:
    rng, C = np.random.default_rng(0), matrix_of(MECHANISMS[name])
    squared, allowed = MECHANISMS[name].squared_sensitivity(ROUNDS), [*patterns(ROUNDS, 3, 3)]
    for _ in range(500):
        steps = allowed[rng.integers(len(allowed))]
        units = np.zeros((ROUNDS, 3))
        units[steps] = rng.normal(size=(len(steps), 3))
        units /= np.maximum(1.0, np.linalg.norm(units, axis=1, keepdims=True))
        assert np.square(C @ units).sum() <= squared * (1 + 1e-12)


@pytest.mark.parametrize("make", [gaussian, discrete_gaussian])
def test_independent_noise_costs_one_release_per_participation(make: Any) -> None:
    mechanism = make(DEVICES, 2.0)
    assert [mechanism.squared_sensitivity(n) for n in (0, 1, 2, 3, 70)] == [0, 1, 2, 3, 3]
    accountant = GaussianAccountant(RELATIONS[Adjacency.ZERO_OUT])
    accountant.compose(mechanism.event(70))
    assert accountant.mu**2 == pytest.approx(3 / mechanism.noise_multiplier() ** 2)


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("make", [tree, banded, blt])
def test_the_event_costs_what_the_releases_are_worth(make: Any, adjacency: Adjacency) -> None:
    mechanism = make(replace(DEVICES, clip=2.0, replace_bound=4.0, adjacency=adjacency), 60.0)
    D = 4.0 if adjacency is Adjacency.REPLACE_ONE else 2.0
    for n in (1, 5, 70):
        accountant = GaussianAccountant(RELATIONS[adjacency])
        accountant.compose(mechanism.event(n))
        assert accountant.mu**2 == pytest.approx(
            mechanism.squared_sensitivity(n) * (D / 60) ** 2, rel=1e-12
        )
    assert mechanism.event(0) in (dp_accounting.NoOpDpEvent(), dp_accounting.ComposedDpEvent([]))


def test_without_participation_every_release_counts() -> None:
    for n in range(1, 20):
        C = matrix_of(blt(), n)
        assert blt().squared_sensitivity(n) == pytest.approx(float((C.T @ C).sum()), rel=1e-12)


def test_the_default_is_the_best_for_a_unit_that_takes_part_once() -> None:
    found = best_buffers(70, Participation(min_separation=70, at_most=1))
    assert (blt().decays, blt().scales) == found


# ----------------------------------------------------------------------------------- edge cases


@pytest.mark.parametrize("name", ["clip", "std"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_numbers_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(RecipeError, match=f"{name} must be a .*, got {value};"):
        blt(Facts(clip=value)) if name == "clip" else blt(**{name: value})


@pytest.mark.parametrize(
    ("decays", "scales"),
    [
        ([], []),
        ([1.0], [0.5]),
        ([0.0], [0.5]),
        ([math.nan], [0.5]),
        ([0.5], [0.0]),
        ([0.5], [-0.1]),
        ([0.5], [math.nan]),
        ([0.5, 0.4], [0.6, 0.5]),
        ([0.5, 0.4], [0.6]),
    ],
)
def test_buffers_whose_worst_unit_is_another_are_refused(
    decays: list[float], scales: list[float]
) -> None:
    with pytest.raises(RecipeError, match=r"blt\.(decays|scales) must be .* got "):
        blt(decays=decays, scales=scales)


def test_half_of_the_buffers_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"together with blt\.scales"):
        blt(decays=[0.5])


def test_what_is_not_accounted_for_is_refused() -> None:
    with pytest.raises(RecipeError, match="mechanism 'gaussian'"):
        blt(Facts(trust=Trust.DISTRIBUTED))
    with pytest.raises(RecipeError, match="2 shares"):
        Blt(Facts(1.0), 1.0, shares=2)
    with pytest.raises(RecipeError, match="Poisson"):
        Blt(Facts(1.0), 1.0, sampling=Poisson(0.5))


@pytest.mark.parametrize("make", [gaussian, discrete_gaussian, tree, banded, blt])
@pytest.mark.parametrize(
    "change", [{"trust": Trust.LOCAL}, {"unit": Unit.RECORD}, {"unit": Unit.GROUP}], ids=str
)
def test_participation_is_a_clients_under_central_trust(make: Any, change: Any) -> None:
    with pytest.raises(RecipeError, match=r"participation.*unit 'client', central"):
        make(replace(DEVICES, **change))


def test_participation_and_a_draw_do_not_go_together() -> None:
    with pytest.raises(RecipeError, match="no draw"):
        gaussian(DEVICES).with_sampling(Poisson(0.5))


def test_more_bands_than_rounds_apart_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"most privacy.*min_separation = 3 numbers, got 4"):
        banded(DEVICES, coefficients=[1.0, 0.5, 0.3, 0.2])
    assert len(MECHANISMS["banded"].coefficients) == 3


def test_a_tree_that_restarts_is_not_priced() -> None:
    with pytest.raises(RecipeError, match=r"tree\.restart must be 0 under"):
        tree(DEVICES, restart=4)


def test_rows_of_another_size_are_not_broadcast() -> None:
    for size in (1, 4):
        with pytest.raises(BadRelease, match=f"must have size 3, as those before it, got {size};"):
            blt().release(Dense(torch.zeros(1, size)), blt().init(3), Noise(0).stream("release"))


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_state_goes_through_a_file(tmp_path: Path, name: str) -> None:
    mechanism = MECHANISMS[name]
    straight, _ = served(mechanism, 6, 5)
    for t in range(6):
        state = states.load_at(tmp_path, (t - 1, 0), mechanism.init(5))
        total = Total(torch.zeros(5, dtype=torch.int64), (), ())
        release, state = mechanism.finish(total, state, Noise(0).stream("finish", t, 0, "update"))
        assert np.array_equal(release.vector.numpy() * release.step, straight[t])
        states.save_state(tmp_path, t, state)
