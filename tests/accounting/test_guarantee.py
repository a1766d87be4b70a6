# SPDX-License-Identifier: Apache-2.0
"""What a run guarantees, and whether its sentence says no more than is true."""

import json
import math
from collections.abc import Mapping
from typing import NamedTuple

import pytest
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    dp_event,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfed.accounting import gdp
from dpfed.accounting import guarantee as module
from dpfed.accounting.event_tree import ChannelUse, RoundKind, TrainingReleases
from dpfed.accounting.events import to_json
from dpfed.accounting.guarantee import (
    EXACT,
    NONE,
    OTHERS,
    PLD,
    RDP,
    READER,
    SERVER,
    Claim,
    Guarantee,
    delta_warning,
    epsilon_of,
    epsilon_of_event,
    guarantee,
    is_gaussian,
    rough_epsilon_of,
    round_up,
)
from dpfed.core.errors import DpfedError, Unpriceable
from dpfed.core.sampling import EVERYONE, Poisson
from dpfed.core.types import Adjacency, Facts, Mechanism, NoiseSource, Sampling, Trust, Unit
from dpfed.mechanisms.clear import clear
from dpfed.mechanisms.discrete_gaussian import discrete_gaussian
from dpfed.mechanisms.gaussian import Gaussian, gaussian
from dpfed.mechanisms.tree import tree

DELTA = 1e-5
ROUNDS = 70
OS = NoiseSource.OPERATING_SYSTEM
ONE_OTHER = f"1 other client (the rest add their noise) and {READER}"
CLAUSE = "if the server starts no other training on the data"
STD = 62.425  # golden: epsilon 1 for 70 rounds, replace-one, against the server


class Spent(NamedTuple):
    """The releases of one channel; ``outside``: shares of noise against outsiders -> releases."""

    mechanism: Mechanism
    releases: int
    outside: Mapping[float, int] = {}
    participation: Sampling = EVERYONE


def training(*spent: Spent) -> TrainingReleases:
    """Channels whose releases are in rounds of their own."""
    rounds: dict[RoundKind, int] = {}
    for number, each in enumerate(spent):
        for shares, count in (each.outside or {1.0: each.releases}).items():
            rounds[(ChannelUse(str(number), 1, shares),)] = count
    channels = {str(number): each.mechanism for number, each in enumerate(spent)}
    return TrainingReleases(channels, rounds, spent[0].participation)


def account(*spent: Spent, noise: NoiseSource = OS) -> Guarantee:
    return guarantee(training(*spent), DELTA, noise, ROUNDS)


def local(clients: int = 20, **facts) -> Guarantee:
    mechanism = gaussian(Facts(**facts), std=STD)
    return account(Spent(mechanism, ROUNDS, {clients - 1: ROUNDS}))


# ----------------------------------------------------------------------------------- price's order


@pytest.mark.parametrize("adjacency", Adjacency)
def test_gaussian_releases_are_accounted_for_exactly(adjacency):
    event = ComposedDpEvent([GaussianDpEvent(9.0), SelfComposedDpEvent(GaussianDpEvent(30.0), 70)])
    mu = gdp.SENSITIVITY[adjacency] * math.sqrt(1 / 81 + 70 / 900)
    found, name = epsilon_of_event(event, DELTA, adjacency)
    assert name == EXACT
    assert found == pytest.approx(gdp.epsilon_for(DELTA, mu), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", [Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT])
def test_what_is_not_gaussian_is_accounted_for_by_pld(adjacency):
    event = PoissonSampledDpEvent(0.1, GaussianDpEvent(1.5))
    found, name = epsilon_of_event(event, DELTA, adjacency)
    assert name == PLD
    assert 0 < found < epsilon_of_event(GaussianDpEvent(1.5), DELTA, adjacency)[0]


@pytest.mark.parametrize("event", [dp_event.ZCDpEvent(0.1)], ids=["zcdp"])
def test_rdp_is_the_last_resort_and_for_add_remove_only(event):
    found, name = epsilon_of_event(event, DELTA, Adjacency.ADD_REMOVE)
    assert name == RDP
    # zCDP to (epsilon, delta): rho + 2 sqrt(rho ln(1/delta)) is an upper bound of it
    assert 0 < found <= 0.1 + 2 * math.sqrt(0.1 * math.log(1 / DELTA))
    for adjacency in (Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT):
        with pytest.raises(Unpriceable, match=str(adjacency)):
            epsilon_of_event(event, DELTA, adjacency)


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize(
    "event",
    [
        dp_event.UnsupportedDpEvent(),
        dp_event.SampledWithoutReplacementDpEvent(100, 10, GaussianDpEvent(3.0)),
        dp_event.SingleEpochTreeAggregationDpEvent(3.0, 8),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_no_accountant_bounds_is_refused(adjacency, event):
    with pytest.raises(Unpriceable, match="gives an upper bound"):
        epsilon_of_event(ComposedDpEvent([GaussianDpEvent(3.0), event]), DELTA, adjacency)


def test_a_draw_is_not_accounted_for_under_replace_one():
    """Whether PLD's figure is a bound after composition is an open question."""
    event = SelfComposedDpEvent(PoissonSampledDpEvent(0.1, GaussianDpEvent(3.0)), 2)
    with pytest.raises(Unpriceable, match="replace-one"):
        epsilon_of_event(event, DELTA, Adjacency.REPLACE_ONE)


def test_a_draw_of_clients_does_not_amplify_correlated_noise():
    mechanism = tree(Facts(unit="client", adjacency="zero-out", trust="central"), std=9.0)
    with pytest.raises(Unpriceable, match="Tree has releases"):
        account(Spent(mechanism, 4, participation=Poisson(0.1)))


def test_the_same_event_is_accounted_for_once_and_others_anew(monkeypatch):
    asked = []
    whole = module._accountants
    monkeypatch.setattr(module, "_accountants", lambda a: asked.append(a) or whole(a))
    one = PoissonSampledDpEvent(0.1, GaussianDpEvent(7.77))
    lists = [[SelfComposedDpEvent(one, 3)], [SelfComposedDpEvent(one, 3)]]
    found = {
        epsilon_of_event(ComposedDpEvent(events), DELTA, Adjacency.ADD_REMOVE) for events in lists
    }
    assert (len(found), len(asked)) == (1, 1)
    others = [(lists[0], DELTA / 2, Adjacency.ADD_REMOVE), (lists[0], DELTA, Adjacency.ZERO_OUT)]
    lists[0].append(one)  # an event that was changed is another one, too
    for events, delta, adjacency in [*others, (lists[0], DELTA, Adjacency.ADD_REMOVE)]:
        epsilon_of_event(ComposedDpEvent(events), delta, adjacency)
    assert len(asked) == 4
    assert epsilon_of_event(ComposedDpEvent(lists[0]), DELTA, Adjacency.ADD_REMOVE) > found.pop()


def test_a_drawn_round_is_accounted_for_once_for_its_row_and_for_the_end(monkeypatch):
    asked = []
    whole = module._accountants
    monkeypatch.setattr(module, "_accountants", lambda a: asked.append(a) or whole(a))
    mechanism = gaussian(Facts(adjacency=Adjacency.ZERO_OUT), std=7.7).with_sampling(Poisson(0.1))
    for _ in range(3):
        account(Spent(mechanism, 5, {3.0: 4, 1.0: 1}))
    assert len(asked) == 2  # to the server, and to all others


@pytest.mark.parametrize("make", [gaussian, clear])
def test_no_releases_cost_nothing(make):
    assert epsilon_of_event(make().event(0), DELTA, Adjacency.REPLACE_ONE) == (0.0, EXACT)


@pytest.mark.parametrize("delta", [math.nan, 0.0, -1.0, 1.0, 2.0])
@pytest.mark.parametrize(
    "event",
    [GaussianDpEvent(3.0), PoissonSampledDpEvent(0.1, GaussianDpEvent(3.0))],
    ids=["exact", "pld"],
)
def test_a_senseless_delta_is_refused_by_every_path(event, delta):
    with pytest.raises(DpfedError, match="delta"):
        epsilon_of_event(event, delta, Adjacency.ADD_REMOVE)


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("trust", Trust)
def test_the_event_and_the_closed_form_agree(trust, adjacency):
    """One mechanism, accounted for through dp_accounting's event and without it."""
    shares = 5 if trust is Trust.DISTRIBUTED else 1
    mechanism = gaussian(
        Facts(2.0, unit=Unit.RECORD, adjacency=adjacency, trust=trust), 2 * STD, shares=shares
    )
    assert is_gaussian(mechanism)
    by_event = epsilon_of_event(mechanism.event(ROUNDS, shares), DELTA, adjacency)[0]
    assert account(Spent(mechanism, ROUNDS)).epsilon == pytest.approx(by_event, rel=1e-12)


# ------------------------------------------------------------------------------------------- trust


def test_local_states_two_epsilons_with_h_one_less_than_the_clients():
    server, others = local(20).claims
    mu = 2 * math.sqrt(ROUNDS) / STD
    assert (server.adversary, others.adversary) == (SERVER, ONE_OTHER)
    assert server.epsilon == pytest.approx(1.0, rel=1e-4)
    assert server.epsilon == pytest.approx(gdp.epsilon_for(DELTA, mu), rel=1e-12)
    assert others.epsilon == pytest.approx(gdp.epsilon_for(DELTA, mu / math.sqrt(19)), rel=1e-12)
    assert local(20).epsilon == server.epsilon


def test_local_sentence_states_both():
    others = round_up(local().claims[1].epsilon)
    found = local().sentence
    assert found.startswith(f"({round_up(local().epsilon)}, 1e-05)-DP")
    assert "for each record (replace-one), against the server, and" in found
    assert f"({others}, 1e-05)-DP against {ONE_OTHER}, over 70 rounds, {CLAUSE}; exact" in found
    assert f"{CLAUSE}; exact Gaussian accounting; idealized arithmetic" in found
    assert found == str(local())


def test_rounds_with_fewer_clients_protect_less():
    mechanism = gaussian(std=STD)
    full = local(20)
    fewer = account(Spent(mechanism, ROUNDS, {19: 60, 4: 10}))
    mu = 2 / STD * math.sqrt(60 / 19 + 10 / 4)
    assert fewer.claims[1].epsilon == pytest.approx(gdp.epsilon_for(DELTA, mu), rel=1e-12)
    assert fewer.claims[1].epsilon > full.claims[1].epsilon
    assert fewer.claims[0] == full.claims[0]


@pytest.mark.parametrize("outside", [{}, {1: ROUNDS}], ids=["not_unchanged", "one_share"])
def test_one_claim_for_all_where_others_noise_hides_nothing(outside):
    found = account(Spent(gaussian(std=STD), ROUNDS, outside))
    (claim,) = found.claims
    assert SERVER in claim.adversary
    assert OTHERS in claim.adversary
    assert claim.epsilon == local().claims[0].epsilon
    assert f"against {SERVER}, {OTHERS}, over 70 rounds" in found.sentence


def test_distributed_prices_the_shares_and_names_them():
    mechanism = gaussian(Facts(trust=Trust.DISTRIBUTED), std=STD / math.sqrt(20), shares=20)
    found = account(Spent(mechanism, ROUNDS))
    (claim,) = found.claims
    assert claim.epsilon == pytest.approx(local().claims[0].epsilon, rel=1e-12)
    assert "who see only sums with at least 20 honest shares of noise" in found.sentence
    assert claim.adversary.startswith(f"{SERVER}, and {READER}, who see only")
    assert (found.trust, found.shares) == (Trust.DISTRIBUTED, 20)


@pytest.mark.parametrize(("missing", "epsilon"), [(1, 1.029), (2, 1.060), (4, 1.13), (10, 1.465)])
def test_missing_noise_shares_cost_what_privacy_md_says(missing, epsilon):
    mechanism = gaussian(
        Facts(trust=Trust.DISTRIBUTED), std=STD / math.sqrt(20), shares=20 - missing
    )
    assert account(Spent(mechanism, ROUNDS)).epsilon == pytest.approx(epsilon, rel=3e-3)


def test_what_a_sum_may_fail_with_is_taken_out_of_delta():
    """The sentence states the whole delta, and the epsilon at what is left of it."""
    mechanism = gaussian(Facts(trust=Trust.DISTRIBUTED), std=STD, shares=4)
    spent = training(Spent(mechanism, ROUNDS))
    found = guarantee(spent, DELTA, OS, ROUNDS, delta_reserved=DELTA / 2)
    (at_half,) = guarantee(spent, DELTA / 2, OS, ROUNDS).claims
    assert (found.delta, found.epsilon) == (DELTA, at_half.epsilon)
    assert found.epsilon > guarantee(spent, DELTA, OS, ROUNDS).epsilon


def test_central_trusts_the_server():
    found = account(Spent(gaussian(Facts(trust=Trust.CENTRAL), std=STD), ROUNDS))
    (claim,) = found.claims
    assert claim.adversary == f"{OTHERS} (the server is trusted with the sums)"
    assert claim.epsilon == pytest.approx(local().claims[0].epsilon, rel=1e-12)


# ---------------------------------------------------------------------------------- what is hidden


@pytest.mark.parametrize(
    ("unit", "words"),
    [
        (Unit.RECORD, "for each record ("),
        (Unit.GROUP, "for each person, with all of their records at one client ("),
        (Unit.CLIENT, "for each client ("),
    ],
)
def test_the_sentence_names_the_unit(unit, words):
    assert words in local(unit=unit).sentence
    assert local(unit=unit).unit is unit


@pytest.mark.parametrize("adjacency", Adjacency)
def test_the_sentence_names_the_adjacency_of_the_accounting(adjacency):
    found = local(adjacency=adjacency)
    mu = gdp.SENSITIVITY[adjacency] * math.sqrt(ROUNDS) / STD
    assert f"({adjacency})" in found.sentence
    assert found.epsilon == pytest.approx(gdp.epsilon_for(DELTA, mu), rel=1e-12)


def test_rows_that_share_a_cone_pay_their_swap_only():
    ordinary, closer = (
        Gaussian(Facts(1.0), STD),
        Gaussian(Facts(1.0, replace_bound=math.sqrt(2)), STD),
    )
    mu = math.sqrt(2) * math.sqrt(ROUNDS) / STD
    found = account(Spent(closer, ROUNDS)).epsilon
    assert found == pytest.approx(gdp.epsilon_for(DELTA, mu), rel=1e-12)
    assert found < account(Spent(ordinary, ROUNDS)).epsilon


def test_the_sentence_says_where_the_noise_comes_from():
    spent = Spent(gaussian(std=STD), ROUNDS)
    keyed = account(spent, noise=NoiseSource.KEYED).sentence
    assert account(spent).sentence.endswith("; noise from the operating system.")
    assert keyed.endswith("; noise keyed by a seed (research only).")


def test_the_sentence_says_which_arithmetic():
    claims = (Claim(SERVER, 1.0, DELTA, EXACT, {"kind": "NoOp"}),)
    ours = (Unit.RECORD, Adjacency.REPLACE_ONE, Trust.LOCAL, ROUNDS, OS)
    assert "; idealized arithmetic;" in Guarantee(claims, *ours).sentence
    assert "; exact integer arithmetic;" in Guarantee(claims, *ours, idealized=False).sentence


def test_one_channel_in_floats_makes_the_whole_idealized():
    exact, floats = Spent(discrete_gaussian(std=STD), ROUNDS), Spent(gaussian(std=STD), ROUNDS)
    assert not account(exact).idealized
    assert account(exact, floats).idealized


@pytest.mark.parametrize("trust", Trust)
def test_clear_says_no_privacy(trust):
    noisy = Spent(gaussian(Facts(trust=trust), std=STD), ROUNDS)
    for spent in (
        [Spent(clear(Facts(trust=trust)), ROUNDS)],
        [noisy, Spent(clear(Facts(trust=trust)), 1)],
    ):
        found = account(*spent)
        assert found.epsilon == math.inf
        assert found.claims[0].accounting == NONE
        assert found.sentence == "No privacy: 70 rounds in clear, for comparison only."


def test_several_channels_add_mu_squared():
    """mu^2 = mu_cov^2 + T mu_g^2."""
    gradient, covariance = gaussian(std=STD), gaussian(Facts(clip=3.0), std=40.0)
    found = account(Spent(gradient, ROUNDS, {19: ROUNDS}), Spent(covariance, 1, {19: 1}))
    squared = ROUNDS * (2 / STD) ** 2 + (6 / 40.0) ** 2
    server, others = found.claims
    assert server.epsilon == pytest.approx(gdp.epsilon_for(DELTA, math.sqrt(squared)), rel=1e-12)
    expected = gdp.epsilon_for(DELTA, math.sqrt(squared / 19))
    assert others.epsilon == pytest.approx(expected, rel=1e-12)


# ---------------------------------------------------------------------------------------- printing


@settings(max_examples=300, deadline=None)
@given(st.floats(1e-12, 1e6), st.integers(2, 6))
def test_a_printed_figure_is_never_below_the_true_one(true, digits):
    """What is printed has the caution of a part in 10^9; the true figure does not."""
    printed = float(round_up(true * (1 + gdp.CAUTION), digits))
    assert true * (1 - 1e-15) <= printed <= true * (1 + 1.2 * 10.0 ** (1 - digits))


@settings(max_examples=300, deadline=None)
@given(st.floats(1e-3, 100.0), st.floats(1e-9, 1e-2))
def test_the_printed_epsilon_keeps_the_guarantee(mu, delta):
    printed = float(round_up(gdp.epsilon_for(delta, mu)))
    assert gdp.delta_for(printed, mu) <= delta * (1 + 1e-12)


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (0.9999999999, "1"),
        (1.0 + 1e-10, "1"),
        (1.0001, "1.001"),
        (0.22341, "0.2235"),
        (12345.0, "12350"),
        (0.0, "0"),
        (math.inf, "inf"),
    ],
)
def test_round_up(value, printed):
    assert round_up(value) == printed


def test_a_printed_delta_is_never_below_the_true_one():
    delta = 1.2345642e-5
    found = guarantee(training(Spent(gaussian(std=STD), ROUNDS)), delta, OS, ROUNDS)
    printed = found.sentence.split(", ")[1].split(")")[0]
    assert float(printed) >= delta


@pytest.mark.parametrize(("delta", "units"), [(1e-5, 1e5), (1e-3, 1e5), (0.05, 20)])
def test_a_delta_that_allows_publishing_a_unit_is_warned_about(delta, units):
    found = delta_warning(delta, units)
    assert f"delta = {delta:g}" in found
    assert f"1 / {units:g}" in found


@pytest.mark.parametrize(("delta", "units"), [(1e-5, 99_999), (1e-9, 1e5), (1e-5, 20)])
def test_a_small_delta_is_not_warned_about(delta, units):
    assert delta_warning(delta, units) is None


def test_to_json_is_plain():
    found = local(unit=Unit.GROUP)
    back = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert back["sentence"] == found.sentence
    assert back["epsilon"] == found.epsilon
    assert [claim["adversary"] for claim in back["claims"]] == [SERVER, ONE_OTHER]
    assert (back["colluders"], back["budgeted"], back["correlated"]) == (1, False, False)
    assert (back["unit"], back["adjacency"], back["trust"]) == ("group", "replace-one", "local")
    assert (back["noise"], back["idealized"], back["rounds"]) == ("os", True, ROUNDS)


def test_a_rough_epsilon_of_a_composed_tree_is_near_the_stated_one() -> None:
    """It is kept by its tree, which must be hashable: a composed event of dp_accounting is not."""
    drawn = SelfComposedDpEvent(PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0)), 10)
    event = to_json(ComposedDpEvent([drawn, GaussianDpEvent(5.0)]))
    stated, _ = epsilon_of(event, 1e-5, Adjacency.ADD_REMOVE)
    for _ in range(2):
        rough = rough_epsilon_of(event, 1e-5, Adjacency.ADD_REMOVE)
        assert rough == pytest.approx(stated, rel=0.01)
