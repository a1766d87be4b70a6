# SPDX-License-Identifier: Apache-2.0
"""Calibrated noise keeps its target, and is the least that does."""

import math
from dataclasses import dataclass, replace

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfed.accounting import gdp
from dpfed.accounting.calibrate import calibrate
from dpfed.accounting.event_tree import ChannelUse, TrainingReleases
from dpfed.accounting.guarantee import EXACT, PLD, epsilon_of_event, guarantee, is_gaussian
from dpfed.core.errors import DpfedError, RecipeError, Unpriceable
from dpfed.core.types import Adjacency, Facts, Mechanism, NoiseSource, Release, State, Trust, Unit
from dpfed.mechanisms.clear import clear
from dpfed.mechanisms.gaussian import Gaussian, gaussian

DELTA = 1e-5


def spent(mechanism: Mechanism, releases: int, delta: float = DELTA) -> tuple[float, str]:
    shares = 1 if mechanism.trust is Trust.LOCAL else None
    return epsilon_of_event(mechanism.event(releases, shares), delta, mechanism.adjacency)


def start(adjacency: Adjacency, trust: Trust, clip: float = 1.0, shares: float = 20) -> Gaussian:
    shares = shares if trust is Trust.DISTRIBUTED else 1
    return gaussian(
        Facts(clip, unit=Unit.RECORD, adjacency=adjacency, trust=trust), 1.0, shares=shares
    )


# ------------------------------------------------------------------------------- the closed form


@pytest.mark.parametrize("trust", Trust)
@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 10.0])
def test_closed_form_keeps_the_target_and_is_tight_to_1e_6(epsilon, adjacency, trust):
    found = calibrate(start(adjacency, trust), epsilon=epsilon, delta=DELTA, releases=70)
    assert spent(found, 70)[1] == EXACT
    assert epsilon * (1 - 1e-6) < spent(found, 70)[0] <= epsilon * (1 + gdp.CAUTION)
    assert spent(found.with_std(found.std * (1 - 1e-6)), 70)[0] > epsilon


@pytest.mark.parametrize(
    ("epsilon", "std"), [(0.5, 117.665), (1, 62.425), (5, 14.924), (10, 8.365)]
)
def test_golden_noise(epsilon, std):
    """PRIVACY.md, section 1."""
    found = calibrate(gaussian(Facts(clip=3.0)), epsilon=epsilon, delta=DELTA, releases=70)
    assert found.std == pytest.approx(3.0 * std, rel=1e-4)
    zero_out = calibrate(
        gaussian(Facts(adjacency=Adjacency.ZERO_OUT)), epsilon=epsilon, delta=DELTA, releases=70
    )
    assert zero_out.std == pytest.approx(std / 2, rel=1e-4)


def test_only_the_noise_changes():
    mechanism = start(Adjacency.ZERO_OUT, Trust.DISTRIBUTED, clip=0.3)
    found = calibrate(mechanism, epsilon=1.0, delta=DELTA, releases=7)
    assert replace(found, std=mechanism.std) == mechanism
    again = calibrate(found, epsilon=1.0, delta=DELTA, releases=7)
    assert again.std == pytest.approx(found.std, rel=1e-14)


def test_shares_of_one_budget_add_up_to_it():
    one = calibrate(gaussian(), epsilon=1.0, delta=DELTA, releases=70, budget_fraction=0.9)
    other = calibrate(
        gaussian(Facts(clip=5.0)), epsilon=1.0, delta=DELTA, releases=1, budget_fraction=0.1
    )
    rounds = {(ChannelUse("one", 1),): 69, (ChannelUse("one", 1), ChannelUse("other", 1)): 1}
    both = TrainingReleases({"one": one, "other": other}, rounds)
    found = guarantee(both, DELTA, NoiseSource.KEYED, 70).epsilon
    assert found == pytest.approx(1.0, rel=1e-6)
    assert found <= 1 + gdp.CAUTION
    whole = calibrate(gaussian(), epsilon=1.0, delta=DELTA, releases=70)
    assert one.std == pytest.approx(whole.std / math.sqrt(0.9), rel=1e-12)


def stays_within(epsilon, delta, releases, clip, shares):
    for adjacency in Adjacency:
        for trust in Trust:
            mechanism = start(adjacency, trust, clip, shares)
            found = calibrate(mechanism, epsilon=epsilon, delta=delta, releases=releases)
            # price has a caution of a part in 10^9: the true figure is below the target
            assert spent(found, releases, delta)[0] <= epsilon * (1 + gdp.CAUTION)
            mu = math.sqrt(gdp.mu_squared(found.noise_multiplier(), releases, adjacency))
            assert gdp.delta_for(epsilon, mu) <= delta


TARGETS = (
    st.floats(-5, 6).map(math.exp),
    st.floats(-12, -0.5).map(lambda power: 10**power),
    st.integers(1, 10**6),
    st.floats(-6, 6).map(lambda power: 10**power),
    st.integers(1, 10_000),
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, derandomize=True)
@given(*TARGETS)
def test_calibrated_noise_never_overshoots(epsilon, delta, releases, clip, shares):
    stays_within(epsilon, delta, releases, clip, shares)


@pytest.mark.long
@settings(max_examples=10_000, deadline=None)
@given(*TARGETS)
def test_calibrated_noise_never_overshoots_in_ten_thousand_cases(
    epsilon, delta, releases, clip, shares
):
    stays_within(epsilon, delta, releases, clip, shares)


# ------------------------------------------------------------------------------------ the search


@dataclass(frozen=True)
class Tenth:
    """Each unit takes part with probability 0.1."""

    def amplify(self, event):
        return PoissonSampledDpEvent(0.1, event)


@dataclass(frozen=True)
class Sampled:
    """Gaussian noise on a Poisson sample: no closed form."""

    clip: float = 1.0
    std: float = 1.0
    step: float = 2.0**-20
    unit: Unit = Unit.RECORD
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    trust: Trust = Trust.CENTRAL
    sampling: Tenth = Tenth()
    shares: float = 1

    def init(self, size: int) -> State:
        return ()

    def release(self, rows, state, rng) -> tuple[Release, State]:
        raise NotImplementedError

    def finish(self, total, state, rng) -> tuple[Release, State]:
        raise NotImplementedError

    def event(self, releases: int, shares: float | None = None) -> SelfComposedDpEvent:
        noise = GaussianDpEvent(self.std / self.clip)
        return SelfComposedDpEvent(self.sampling.amplify(noise), releases)

    def with_std(self, std: float) -> "Sampled":
        return replace(self, std=std)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "clip", "releases"),
    [
        (0.5, 1.0, 20),
        pytest.param(0.3, 0.01, 3, marks=pytest.mark.long),
    ],
)
def test_the_search_ends_on_the_safe_side_and_is_tight(epsilon, clip, releases):
    """opacus issue 346: a search that stops on the wrong side overspends."""
    mechanism = Sampled(clip=clip)
    assert not is_gaussian(mechanism)
    found = calibrate(mechanism, epsilon=epsilon, delta=DELTA, releases=releases)
    paid, name = spent(found, releases)
    assert name == PLD
    assert paid <= epsilon
    assert spent(found.with_std(found.std * (1 - 1e-3)), releases)[0] > epsilon


@pytest.mark.slow
def test_gaussian_noise_on_a_sample_is_not_accounted_for_as_if_everyone_took_part():
    mechanism = replace(gaussian(Facts(adjacency=Adjacency.ADD_REMOVE)), sampling=Tenth())
    assert not is_gaussian(mechanism)
    assert spent(mechanism, 1)[1] == PLD
    assert spent(mechanism, 1)[0] < spent(gaussian(Facts(adjacency=Adjacency.ADD_REMOVE)), 1)[0]


# -------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("share", [0.5, 0.999])
def test_a_share_of_a_searched_budget_is_refused(share):
    with pytest.raises(Unpriceable, match=f"a fraction of {share}"):
        calibrate(Sampled(), epsilon=1.0, delta=DELTA, releases=5, budget_fraction=share)


@pytest.mark.parametrize("share", [1.5, 4.0, 0.0, -1.0, math.nan, math.inf])
def test_a_share_that_is_no_part_of_the_budget_is_refused(share):
    with pytest.raises(RecipeError, match=f"must be above 0 and at most 1, got {share}; leave"):
        calibrate(gaussian(), epsilon=1.0, delta=DELTA, releases=70, budget_fraction=share)


@pytest.mark.parametrize("mechanism", [gaussian(), Sampled()], ids=["closed", "search"])
@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [
        *((bad, DELTA) for bad in (math.nan, math.inf, 0.0, -1.0)),
        *((1.0, bad) for bad in (math.nan, math.inf, 0.0, -1.0, 1.0)),
    ],
)
def test_a_senseless_target_is_refused(mechanism, epsilon, delta):
    said = "epsilon must be a finite number" if delta == DELTA else "delta must be at least 1e-300"
    with pytest.raises(RecipeError, match=said):
        calibrate(mechanism, epsilon=epsilon, delta=delta, releases=5)


@pytest.mark.parametrize("releases", [0, -1])
def test_a_senseless_number_of_releases_is_refused(releases):
    with pytest.raises(DpfedError, match=f"releases must be .* at least 1, got {releases}; plan"):
        calibrate(gaussian(), epsilon=1.0, delta=DELTA, releases=releases)


def test_what_adds_no_noise_cannot_be_calibrated():
    with pytest.raises(DpfedError):
        calibrate(clear(), epsilon=1.0, delta=DELTA, releases=5)


@pytest.mark.parametrize("shares", [math.inf, math.nan, 0.0, -1.0])
def test_senseless_shares_are_refused(shares):
    """With infinitely many shares every run would have epsilon 0."""
    with pytest.raises(RecipeError, match="shares"):
        gaussian(Facts(trust=Trust.DISTRIBUTED), shares=shares)
