# SPDX-License-Identifier: Apache-2.0
"""Laws of mechanisms, over all that the registry finds."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
import torch
from scipy import stats

from dpfed import registry
from dpfed.randomness import KeyStream, Noise, derive
from dpfed.rows import Dense
from dpfed.types import Mechanism, Total, Trust

MECHANISMS = list(registry.names("mechanisms"))
SIZE = 45_500


@pytest.fixture(params=MECHANISMS)
def mechanism(request: pytest.FixtureRequest) -> Mechanism:
    built: Mechanism = registry.build("mechanisms", request.param, {"clip": 2.0})
    return built


def noise_of(mechanism: Mechanism, size: int, seed: int = 0) -> np.ndarray:
    """What a release adds to an empty sum."""
    rows = Dense(torch.zeros(1, size))
    release, _ = mechanism.release(rows, mechanism.init(size), Noise(seed).stream("release"))
    return release.vector.numpy() * release.step


def test_measured_noise_is_what_the_release_states(mechanism: Mechanism) -> None:
    noise = noise_of(mechanism, SIZE)
    assert float(noise.std()) == pytest.approx(mechanism.std, rel=0.01)
    assert abs(float(noise.mean())) <= 4 * mechanism.std / math.sqrt(SIZE)


def test_measured_noise_is_what_is_priced(mechanism: Mechanism) -> None:
    event = mechanism.event(3)
    if mechanism.std == 0:
        assert isinstance(event, dp_accounting.NonPrivateDpEvent)
        return
    assert event.count == 3
    measured = float(noise_of(mechanism, SIZE).std()) / mechanism.clip
    assert event.event.noise_multiplier == pytest.approx(measured, rel=0.01)


def test_noise_passes_ks_at_its_std_and_fails_at_nine_tenths(mechanism: Mechanism) -> None:
    if mechanism.std == 0:
        pytest.skip("adds no noise")
    noise = noise_of(mechanism, 1_000_000)
    assert stats.kstest(noise, "norm", args=(0, mechanism.std)).pvalue > 1e-3
    assert stats.kstest(noise[:5000], "norm", args=(0, 0.9 * mechanism.std)).pvalue < 1e-3


def test_another_noise_level_is_another_value(mechanism: Mechanism) -> None:
    if mechanism.std == 0:
        pytest.skip("adds no noise")
    louder = mechanism.with_std(7.0)
    assert (louder.std, mechanism.std) == (7.0, 1.0)
    assert louder.clip == mechanism.clip


def test_zero_releases_cost_nothing(mechanism: Mechanism) -> None:
    accountant = dp_accounting.pld.PLDAccountant()
    accountant.compose(mechanism.event(0))
    assert accountant.get_epsilon(1e-5) == 0


def test_the_grid_is_public(mechanism: Mechanism) -> None:
    """The step is the same whatever the data: a power of two from clip and noise alone."""
    steps = set()
    for scale in (0.0, 1e-20, 1.0, 1e20):
        rows = Dense(torch.full((4, 3), scale))
        release, _ = mechanism.release(rows, mechanism.init(3), Noise(1).stream("release"))
        steps.add(release.step)
    assert steps == {mechanism.step}
    assert math.frexp(mechanism.step)[0] == 0.5


@pytest.mark.parametrize("name", MECHANISMS)
def test_central_noise_is_added_once_by_the_server(name: str) -> None:
    mechanism = registry.build("mechanisms", name, {"clip": 2.0, "trust": Trust.CENTRAL})
    assert not noise_of(mechanism, 100).any()
    total = Total(torch.zeros(SIZE, dtype=torch.int64), (0, 1), (1.0, 1.0))
    release, _ = mechanism.finish(total, (), Noise(0).stream("finish"))
    measured = float((release.vector.numpy() * release.step).std())
    assert measured == pytest.approx(mechanism.std, rel=0.01)
    assert release.std == mechanism.std


def test_a_million_keys_give_a_million_first_words() -> None:
    fields = [
        (round, client, 0, channel, call)
        for round in range(100)
        for client in range(500)
        for channel in ("update", "metrics")
        for call in range(10)
    ]
    words = {int(KeyStream(derive(7, "release", *field)).words(1)[0]) for field in fields}
    assert len(fields) == len(words) == 1_000_000
