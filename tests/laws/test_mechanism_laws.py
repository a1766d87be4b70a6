# SPDX-License-Identifier: Apache-2.0
"""Laws of mechanisms, over all that the registry finds."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
import torch
from scipy import stats

from dpfed.accounting.accountant import RELATIONS, GaussianAccountant
from dpfed.core import registry
from dpfed.core.randomness import KeyStream, Noise, derive
from dpfed.core.rows import Dense
from dpfed.core.types import Adjacency, Facts, Mechanism, Release, Total, Trust

MECHANISMS = list(registry.names("mechanisms"))
SIZE = 45_500


@pytest.fixture(params=MECHANISMS)
def mechanism(request: pytest.FixtureRequest) -> Mechanism:
    built: Mechanism = registry.build("mechanisms", request.param, {}, facts=Facts(2.0))
    return built


def releases_of(mechanism: Mechanism, size: int, count: int) -> list[Release]:
    """The first releases of an empty sum: nothing but noise."""
    state, made = mechanism.init(size), []
    for call in range(count):
        rng = Noise(0).stream("release", call)
        release, state = mechanism.release(Dense(torch.zeros(1, size)), state, rng)
        made.append(release)
    return made


def noise_of(release: Release) -> np.ndarray:
    return release.vector.numpy() * release.step


def test_measured_noise_is_what_the_release_states(mechanism: Mechanism) -> None:
    for release in releases_of(mechanism, SIZE, 4):
        noise = noise_of(release)
        assert float(noise.std()) == pytest.approx(release.std, rel=0.01)
        assert abs(float(noise.mean())) <= 4 * release.std / math.sqrt(SIZE)


def test_measured_noise_is_what_is_accounted_for(mechanism: Mechanism) -> None:
    """A unit that moves every release by D costs mu^2 = D^2 1^T S^-1 1, S the noise's covariance.

    Independent noise makes that n (D / std)^2. Where S^-1 has no negative entry, as for the
    defaults here, no unit costs more, so the event must say neither more nor less.
    """
    event = mechanism.event(4)
    if mechanism.std == 0:
        assert isinstance(event, dp_accounting.NonPrivateDpEvent)
        return
    noise = np.stack([noise_of(release) for release in releases_of(mechanism, SIZE, 4)])
    inverse = np.linalg.inv(np.cov(noise))
    assert mechanism.adjacency is Adjacency.REPLACE_ONE
    accountant = GaussianAccountant(RELATIONS[mechanism.adjacency])
    accountant.compose(event)
    measured = (2 * mechanism.clip) ** 2 * float(inverse.sum())
    assert accountant.mu**2 == pytest.approx(measured, rel=0.02)


def test_what_releases_are_worth_is_what_the_event_says(mechanism: Mechanism) -> None:
    if mechanism.std == 0:
        pytest.skip("adds no noise")
    for releases in (1, 2, 7, 64, 70):
        accountant = GaussianAccountant(RELATIONS[mechanism.adjacency])
        accountant.compose(mechanism.event(releases, 3.0))
        mu = 2 / mechanism.noise_multiplier(3.0)
        assert accountant.mu**2 == pytest.approx(
            mechanism.squared_sensitivity(releases) * mu * mu, rel=1e-12
        )
    worths = [mechanism.squared_sensitivity(releases) for releases in range(71)]
    assert worths == sorted(worths)
    assert worths[0] == 0


def test_noise_passes_ks_at_its_std_and_fails_at_nine_tenths(mechanism: Mechanism) -> None:
    if mechanism.std == 0:
        pytest.skip("adds no noise")
    [release] = releases_of(mechanism, 1_000_000, 1)
    noise = noise_of(release)
    assert stats.kstest(noise, "norm", args=(0, release.std)).pvalue > 1e-3
    assert stats.kstest(noise[:5000], "norm", args=(0, 0.9 * release.std)).pvalue < 1e-3


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
    mechanism = registry.build("mechanisms", name, {}, facts=Facts(2.0, trust=Trust.CENTRAL))
    [silent] = releases_of(mechanism, 100, 1)
    assert not silent.vector.any()
    assert silent.std == 0
    total = Total(torch.zeros(SIZE, dtype=torch.int64), (0, 1), (1.0, 1.0))
    release, _ = mechanism.finish(total, mechanism.init(SIZE), Noise(0).stream("finish"))
    assert float(noise_of(release).std()) == pytest.approx(release.std, rel=0.01)
    private = registry.build("mechanisms", name, {}, facts=Facts(2.0))
    assert release.std == releases_of(private, 1, 1)[0].std  # as much as a client would add


@pytest.mark.long
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
