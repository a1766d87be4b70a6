# SPDX-License-Identifier: Apache-2.0
"""The Gaussian accountant against dp_accounting's interface, its PLD, and its known bugs."""

import itertools
import math
import random

import pytest
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    UnsupportedEventError,
    dp_event,
    privacy_accountant_test,
)
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld import privacy_loss_distribution as distributions
from dp_accounting.rdp import RdpAccountant

from dpfed.accounting import gdp
from dpfed.accounting.accountant import RELATIONS, DrawnPLDAccountant, GaussianAccountant
from dpfed.accounting.guarantee import RDP, _accountants, _accounted, epsilon_of_event
from dpfed.core.errors import Unpriceable
from dpfed.core.types import Adjacency

DELTA = 1e-5
TIMES = 3


class TestDpAccountingsOwnSuite(privacy_accountant_test.PrivacyAccountantTest):
    """What every accountant of dp_accounting must do."""

    def _make_test_accountants(self):
        kinds = (GaussianAccountant, DrawnPLDAccountant)
        return [kind(relation) for kind in kinds for relation in RELATIONS.values()]


# --------------------------------------------------------------------------------- the closed form


def settings_of(count: int) -> list[tuple[float, float, int, int, Adjacency]]:
    """(epsilon, delta >= 1e-9, rounds T, clients n, adjacency), spread over orders of magnitude."""
    draw = random.Random(0)
    return [
        (
            math.exp(draw.uniform(math.log(0.05), math.log(20))),
            10 ** draw.uniform(-9, -2),
            draw.randint(1, 1000),
            draw.randint(1, 200),
            draw.choice(list(Adjacency)),
        )
        for _ in range(count)
    ]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.long)])
def test_closed_form_is_pld_to_1e_6(count):
    """n shares of noise in the sum, T rounds, at the noise of the target epsilon.

    PLD's default interval of 1e-4 is too coarse for a small mu: it is off by 9e-6 at mu = 0.01. Its
    error falls with the square of interval / mu, so that an interval of mu / 1000 brings it below
    2e-7 in all 200.
    """
    worst = 0.0
    for epsilon, delta, rounds, clients, adjacency in settings_of(count):
        mu = gdp.mu_for(epsilon, delta)
        share = gdp.SENSITIVITY[adjacency] * math.sqrt(rounds / clients) / mu
        event = SelfComposedDpEvent(GaussianDpEvent(share * math.sqrt(clients)), rounds)
        relation = RELATIONS[adjacency]
        exact = GaussianAccountant(relation).compose(event).get_epsilon(delta)
        pld = PLDAccountant(relation, mu / 1000).compose(event).get_epsilon(delta)
        assert exact == pytest.approx(epsilon, rel=1e-8)
        assert exact <= pld * (1 + 2e-9), "PLD is pessimistic, and we are exact"
        worst = max(worst, abs(exact / pld - 1))
    assert worst < 1e-6, worst


@pytest.mark.sample(3)
@pytest.mark.slow
@pytest.mark.parametrize("adjacency", Adjacency)
def test_delta_agrees_with_pld(adjacency):
    relation = RELATIONS[adjacency]
    event = SelfComposedDpEvent(GaussianDpEvent(30.0), 70)
    exact = GaussianAccountant(relation).compose(event)
    pld = PLDAccountant(relation, 1e-5).compose(event)
    for epsilon in (0.1, 0.5, 1.0, 2.0):
        assert exact.get_delta(epsilon) == pytest.approx(pld.get_delta(epsilon), rel=1e-5)


@pytest.mark.parametrize(
    ("adjacency", "distance"),
    [(Adjacency.REPLACE_ONE, 2), (Adjacency.ADD_REMOVE, 1), (Adjacency.ZERO_OUT, 1)],
)
def test_mu_of_mixed_releases_adds_in_squares(adjacency, distance):
    accountant = GaussianAccountant(RELATIONS[adjacency])
    accountant.compose(GaussianDpEvent(4.0), 70).compose(GaussianDpEvent(2.0))
    assert accountant.mu == pytest.approx(distance * math.sqrt(70 / 16 + 1 / 4), rel=1e-14)
    assert accountant.neighboring_relation is RELATIONS[adjacency]


def test_each_word_for_a_neighbour_is_one_of_dp_accountings():
    """The names are its own; a data set of another size is another matter than an empty record."""
    assert {str(word): relation.name for word, relation in RELATIONS.items()} == {
        "replace-one": "REPLACE_ONE",
        "add-remove": "ADD_OR_REMOVE_ONE",
        "zero-out": "REPLACE_SPECIAL",
    }
    for relation, distance in zip(RELATIONS.values(), (2, 1, 1), strict=True):
        assert GaussianAccountant(relation).compose(GaussianDpEvent(1.0)).mu == distance


@pytest.mark.parametrize("adjacency", Adjacency)
def test_no_noise_is_no_privacy(adjacency):
    accountant = GaussianAccountant(RELATIONS[adjacency]).compose(GaussianDpEvent(0.0))
    assert accountant.get_epsilon(DELTA) == math.inf
    assert accountant.get_delta(100.0) == 1


def test_no_op_is_free_and_non_private_is_not():
    accountant = GaussianAccountant().compose(NoOpDpEvent(), 5)
    assert accountant.mu == 0
    assert accountant.compose(NonPrivateDpEvent()).get_epsilon(DELTA) == math.inf


def test_a_multiplier_that_is_not_a_number_is_refused():
    """NaN in the configuration passes ``<= 0`` (FLIP PR 833)."""
    for adjacency in Adjacency:
        with pytest.raises((ValueError, UnsupportedEventError)):
            epsilon_of_event(GaussianDpEvent(math.nan), DELTA, adjacency)


# ---------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("relation", RELATIONS.values())
@pytest.mark.parametrize(
    "event",
    [
        PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0)),
        LaplaceDpEvent(1.0),
        dp_event.SampledWithoutReplacementDpEvent(100, 10, GaussianDpEvent(1.0)),
        dp_event.SingleEpochTreeAggregationDpEvent(1.0, 8),
        dp_event.ZCDpEvent(0.1),
    ],
    ids=lambda event: type(event).__name__,
)
def test_other_events_are_refused_without_composing_partially(relation, event):
    accountant = GaussianAccountant(relation).compose(GaussianDpEvent(4.0))
    mu, ledger = accountant.mu, accountant.ledger
    nested = ComposedDpEvent([GaussianDpEvent(1.0), SelfComposedDpEvent(event, 2)])
    for refused in (event, nested):
        assert not accountant.supports(refused)
        with pytest.raises(UnsupportedEventError, match="closed form"):
            accountant.compose(refused)
    assert (accountant.mu, accountant.ledger) == (mu, ledger)


# ------------------------------------------------------------------------------- the compose law

KINDS = {
    "no_op": NoOpDpEvent(),
    "non_private": NonPrivateDpEvent(),
    "unsupported": dp_event.UnsupportedDpEvent(),
    "gaussian": GaussianDpEvent(8.0),
    "mixed": ComposedDpEvent([GaussianDpEvent(9.0), SelfComposedDpEvent(GaussianDpEvent(20.0), 2)]),
    "laplace": LaplaceDpEvent(3.0),
    "discrete_laplace": dp_event.DiscreteLaplaceDpEvent(0.5, 1),
    "poisson_gaussian": PoissonSampledDpEvent(0.1, GaussianDpEvent(3.0)),
    "poisson_laplace": PoissonSampledDpEvent(0.1, LaplaceDpEvent(1.5)),
    "poisson_composed": PoissonSampledDpEvent(0.1, SelfComposedDpEvent(GaussianDpEvent(3.0), 2)),
    "without_replacement": dp_event.SampledWithoutReplacementDpEvent(100, 10, GaussianDpEvent(3.0)),
    "with_replacement": dp_event.SampledWithReplacementDpEvent(100, 10, GaussianDpEvent(3.0)),
    "tree": dp_event.SingleEpochTreeAggregationDpEvent(3.0, 8),
    "select": dp_event.RepeatAndSelectDpEvent(GaussianDpEvent(3.0), 2.0, 1.0),
    "mixture": dp_event.MixtureOfGaussiansDpEvent(30.0, [0.0, 1.0], [0.5, 0.5]),
    "zcdp": dp_event.ZCDpEvent(0.01),
    "truncated": dp_event.TruncatedSubsampledGaussianDpEvent(100, 0.1, 30, 6.0),
}
RESPONSE = dp_event.RandomizedResponseDpEvent(0.5, 2)
SLOW = {"mixture", "truncated"}  # seconds per composition in PLD
PLACES = [
    pytest.param(adjacency, kind, marks=[pytest.mark.long] * (kind in SLOW))
    for adjacency, kind in itertools.product(Adjacency, KINDS)
]


def ways(event: dp_event.DpEvent) -> list[dp_event.DpEvent]:
    """Different words for TIMES times the event."""
    return [
        SelfComposedDpEvent(event, TIMES),
        ComposedDpEvent([event] * TIMES),
        ComposedDpEvent([SelfComposedDpEvent(event, TIMES - 1), event]),
        SelfComposedDpEvent(SelfComposedDpEvent(ComposedDpEvent([event]), TIMES), 1),
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("adjacency", "kind"), PLACES)
@pytest.mark.sample(5)
def test_compose_n_is_n_times_compose(adjacency, kind):
    """To 1e-3 (PLD convolves on a grid of 1e-4), and to rounding in the closed form."""
    event = KINDS[kind]
    for turn, (fresh, name) in enumerate(_accountants(adjacency)):
        if not fresh.supports(event):
            assert not any(fresh.supports(way) for way in ways(event)), name
            continue

        def accountant(turn=turn):
            return _accountants(adjacency)[turn][0]

        one_by_one = accountant()
        for _ in range(TIMES):
            one_by_one.compose(event)
        found = [accountant().compose(way).get_epsilon(DELTA) for way in ways(event)]
        found.append(fresh.compose(event, TIMES).get_epsilon(DELTA))
        tolerance = 1e-12 if isinstance(fresh, GaussianAccountant) else 1e-3
        expected = one_by_one.get_epsilon(DELTA)
        assert found == pytest.approx([expected] * len(found), rel=tolerance, abs=tolerance), name


def epsilon_or_nan(event: dp_event.DpEvent, adjacency: Adjacency) -> float:
    """The epsilon, or NaN where it is refused."""
    try:
        return epsilon_of_event(event, DELTA, adjacency)[0]
    except Unpriceable:
        return math.nan


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("adjacency", Adjacency)
def test_price_of_repeated_randomized_response_is_refused_or_grows(adjacency):
    """In dp_accounting 0.6.0 PLD (and RDP) drop the count of a randomized response."""
    found = [epsilon_or_nan(way, adjacency) for way in ways(RESPONSE)]
    assert found == pytest.approx([found[1]] * len(found), rel=1e-3, nan_ok=True)


def test_pld_still_drops_the_count_of_a_randomized_response():
    """If this fails, upstream has fixed it, and ``price`` need not refuse the event."""
    relation = RELATIONS[Adjacency.REPLACE_ONE]
    once = PLDAccountant(relation).compose(RESPONSE).get_epsilon(DELTA)
    assert PLDAccountant(relation).compose(RESPONSE, 10).get_epsilon(DELTA) == once


# --------------------------------------------------------------------------- PLD with a cache


def drawn(rate: float, multiplier: float, count: int) -> dp_event.DpEvent:
    return SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier)), count)


COMPOSED = [
    *(drawn(0.1, 4.0, count) for count in (1, 2, 3, 7, 8)),  # as a run's account grows
    ComposedDpEvent([drawn(0.1, 8.0, 3), drawn(0.1, 4.0, 5)]),
    ComposedDpEvent([drawn(0.1, 4.0, 5), GaussianDpEvent(9.0), drawn(0.2, 4.0, 1)]),
    SelfComposedDpEvent(ComposedDpEvent([drawn(0.1, 4.0, 2), NoOpDpEvent()]), 4),
    PoissonSampledDpEvent(1.0, GaussianDpEvent(4.0)),
    PoissonSampledDpEvent(0.1, GaussianDpEvent(0.0)),
    PoissonSampledDpEvent(0.1, LaplaceDpEvent(4.0)),
]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "relation",
    [
        RELATIONS[Adjacency.ADD_REMOVE],
        pytest.param(RELATIONS[Adjacency.ZERO_OUT], marks=pytest.mark.long),
    ],
)
def test_kept_distributions_give_the_figures_of_pld_to_the_last_bit(relation):
    for _ in range(2):  # what was kept is the same the second time
        for event in COMPOSED:
            ours = DrawnPLDAccountant(relation).compose(event)
            theirs = PLDAccountant(relation).compose(event)
            for delta in (1e-9, DELTA, 1e-2):
                assert ours.get_epsilon(delta) == theirs.get_epsilon(delta), event


@pytest.mark.sample(3)
@pytest.mark.slow
@pytest.mark.parametrize("event", COMPOSED)
def test_a_cached_figure_is_that_of_pld(event):
    expected = PLDAccountant(RELATIONS[Adjacency.ZERO_OUT]).compose(event).get_epsilon(DELTA)
    found = [epsilon_of_event(event, DELTA, Adjacency.ZERO_OUT)[0] for _ in range(2)]
    assert found == [expected * (1 + gdp.CAUTION)] * 2


def test_one_release_is_discretised_once_however_the_account_grows(monkeypatch):
    made = []
    whole = distributions.from_gaussian_mechanism
    monkeypatch.setattr(
        distributions, "from_gaussian_mechanism", lambda **o: made.append(o) or whole(**o)
    )
    for count in range(1, 6):
        event = ComposedDpEvent([drawn(0.1, 4.321, count), drawn(0.1, 8.642, 1)])
        assert epsilon_of_event(event, DELTA, Adjacency.ADD_REMOVE)[0] > 0
    assert [options["standard_deviation"] for options in made] == [4.321, 8.642]


# ------------------------------------------------------- google/differential-privacy issue 378


@pytest.mark.parametrize("multiplier", [4.0, 62.425 / math.sqrt(70)])
def test_rdp_forgets_the_factor_2_under_replace_one(multiplier):
    """RDP is an upper bound elsewhere; here its figure is the one for add-remove."""
    event = GaussianDpEvent(multiplier)
    figures = {
        adjacency: RdpAccountant(neighboring_relation=RELATIONS[adjacency])
        .compose(event)
        .get_epsilon(DELTA)
        for adjacency in Adjacency
    }
    true = epsilon_of_event(event, DELTA, Adjacency.REPLACE_ONE)[0]
    assert figures[Adjacency.REPLACE_ONE] == figures[Adjacency.ADD_REMOVE]
    assert figures[Adjacency.REPLACE_ONE] < 0.7 * true
    assert figures[Adjacency.ADD_REMOVE] > epsilon_of_event(event, DELTA, Adjacency.ADD_REMOVE)[0]


@pytest.mark.parametrize("adjacency", [Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT])
@pytest.mark.parametrize("kind", KINDS)
def test_price_never_uses_rdp_but_for_add_remove(monkeypatch, adjacency, kind):
    def refuse(*args, **kwargs):
        pytest.fail(f"RDP was asked under {adjacency}")

    monkeypatch.setattr(RdpAccountant, "__init__", refuse)
    _accounted.cache_clear()
    try:
        _, name = epsilon_of_event(KINDS[kind], DELTA, adjacency)
    except Unpriceable:
        return
    assert name != RDP
