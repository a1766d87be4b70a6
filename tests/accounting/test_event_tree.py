# SPDX-License-Identifier: Apache-2.0
"""The tree of a training: what it holds, what it refuses, and that its figures are bounds."""

from __future__ import annotations

import doctest
import itertools
import json
import math
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant

from dpfed.accounting import event_tree, events, gdp
from dpfed.accounting.event_tree import ChannelUse, TrainingReleases, gaussian_mu_squared
from dpfed.accounting.guarantee import (
    EXACT,
    PLD,
    Claim,
    Guarantee,
    SecondOpinion,
    certified,
    delta_of,
    epsilon_of,
    guarantee,
    strongest,
)
from dpfed.accounting.second_opinion import TOLERANCE, _refuse_outside, checked
from dpfed.core.errors import RecipeError, Unpriceable
from dpfed.core.sampling import EVERYONE, Poisson
from dpfed.core.types import Adjacency, Facts, NoiseSource
from dpfed.flower import make_plan
from dpfed.mechanisms.clear import clear
from dpfed.mechanisms.gaussian import gaussian
from dpfed.mechanisms.tree import tree
from dpfed.training.plan import Plan
from tests.helpers.round_counts import only_updates

CENTRAL = Facts(unit="client", trust="central", adjacency="zero-out")
UPDATE, COUNT = ChannelUse("update", 1), ChannelUse("count", 1)


def made(rounds: Any, draw: Any = EVERYONE, **channels: Any) -> Any:
    whole = TrainingReleases(channels, rounds, draw)
    return whole.event(strongest(whole))


def test_the_example_of_the_docstring_runs() -> None:
    assert doctest.testmod(event_tree).failed == 0


def test_channels_of_a_drawn_round_are_one_release() -> None:
    one, other = (
        gaussian(CENTRAL, 3.0),
        gaussian(replace(CENTRAL, clip=2.0, replace_bound=4.0), 8.0),
    )
    event = made({(UPDATE, COUNT): 5}, Poisson(0.1), update=one, count=other)
    (rounds,) = event["events"]
    assert (rounds["kind"], rounds["count"]) == ("SelfComposed", 5)
    assert (rounds["event"]["kind"], rounds["event"]["rate"]) == ("PoissonSampled", 0.1)
    assert rounds["event"]["event"]["noise_multiplier"] == pytest.approx(
        1 / math.hypot(1 / 3, 1 / 4)
    )
    assert rounds["event"]["event"]["combines"] == {"update": 3.0, "count": 4.0}


def test_several_releases_of_a_drawn_round_are_one_too() -> None:
    kind = (ChannelUse("update", 4),)
    event = made({kind: 1}, Poisson(0.1), update=gaussian(CENTRAL, 3.0))
    assert event["events"][0]["event"]["noise_multiplier"] == pytest.approx(1.5)


def test_records_are_drawn_anew_for_each_release() -> None:
    mechanism = gaussian(Facts(1.0, adjacency="zero-out"), 3.0).with_sampling(Poisson(0.1))
    event = made({(ChannelUse("update", 2), COUNT): 5}, update=mechanism, count=mechanism)
    found = PLDAccountant(NeighboringRelation.REPLACE_SPECIAL)
    found.compose(PoissonSampledDpEvent(0.1, mechanism.event(1).event.event), 15)
    assert epsilon_of(event, 1e-5, Adjacency.ZERO_OUT)[0] == pytest.approx(found.get_epsilon(1e-5))


def test_noise_that_is_correlated_is_one_event_over_all_rounds() -> None:
    mechanism = tree(std=9.0, horizon=8)
    (event,) = made({(UPDATE,): 8}, update=mechanism)["events"]
    assert event["noise_multiplier"] == pytest.approx(
        4.5 * 2 / math.sqrt(mechanism.squared_sensitivity(8))
    )
    assert event["releases"] == 8


@pytest.mark.parametrize(
    ("channels", "draw"),
    [
        ({"update": tree(CENTRAL, 9.0)}, Poisson(0.1)),
        ({"update": gaussian(CENTRAL, 3.0).with_sampling(Poisson(0.5))}, Poisson(0.1)),
    ],
)
def test_a_draw_of_clients_that_no_accountant_bounds_is_refused(channels: Any, draw: Any) -> None:
    with pytest.raises(Unpriceable):
        made({(UPDATE,): 4}, draw, **channels)


def test_a_release_in_clear_is_not_private() -> None:
    event = made({(UPDATE, COUNT): 2}, update=gaussian(std=2.0), count=clear())
    assert gaussian_mu_squared(event, Adjacency.REPLACE_ONE) == math.inf
    assert gaussian_mu_squared(made({}, update=gaussian()), Adjacency.REPLACE_ONE) == 0


def test_the_order_of_rounds_does_not_matter() -> None:
    rounds = [((UPDATE, COUNT), 2), ((UPDATE,), 7)]
    trees = [
        made(dict(each), update=gaussian(), count=gaussian(Facts(2.0)))
        for each in itertools.permutations(rounds)
    ]
    assert trees[0] == trees[1]


def test_kinds_that_look_alike_to_an_adversary_add_up() -> None:
    rounds = {(ChannelUse("update", 1, 4.0),): 3, (ChannelUse("update", 1, 1.0),): 2}
    event = made(
        rounds, update=gaussian(Facts(1.0), 2.0)
    )  # under local trust the server faces one share
    assert gaussian_mu_squared(event, Adjacency.REPLACE_ONE) == pytest.approx(5.0)


# --------------------------------------------------------------------------- what else it gives


def stated(**changes: Any) -> Guarantee:
    whole = TrainingReleases({"update": gaussian(Facts(1.0), 20.0)}, {(UPDATE,): 100}, **changes)
    return guarantee(whole, 1e-5, NoiseSource.KEYED, 100)


def test_epsilon_at_another_delta_and_back() -> None:
    found = stated()
    assert found.epsilon_at(1e-5) == found.epsilon
    assert found.epsilon_at(1e-7) > found.epsilon > found.epsilon_at(1e-3)
    assert found.delta_at(found.epsilon_at(1e-7)) == pytest.approx(1e-7, rel=1e-6)


def test_rho_is_that_of_zero_concentrated_dp() -> None:
    assert stated().rho() == pytest.approx(0.5)  # mu = 1
    drawn = gaussian(Facts(1.0, adjacency="zero-out"), 3.0).with_sampling(Poisson(0.1))
    whole = TrainingReleases({"update": drawn}, {(UPDATE,): 10})
    assert guarantee(whole, 1e-5, NoiseSource.KEYED, 10).rho() is None


@pytest.mark.parametrize("drawn", [False, True])
def test_the_trade_off_curve_is_that_of_the_best_test(drawn: bool) -> None:
    """Gaussian: exact. Drawn: below the curve of a test that sees who was drawn."""
    from scipy.special import ndtr, ndtri

    alarms = [0.0, 0.01, 0.1, 0.5, 0.9, 1.0]
    if not drawn:
        exact = [float(ndtr(ndtri(1 - a) - 1)) for a in alarms]  # mu = 1
        assert [stated().trade_off(a) for a in alarms] == pytest.approx(exact, abs=1e-12)
        return
    rate, mu = 0.2, 0.5
    mechanism = gaussian(Facts(1.0, adjacency="add-remove"), 1 / mu).with_sampling(Poisson(rate))
    whole = TrainingReleases({"update": mechanism}, {(UPDATE,): 1})
    found = guarantee(whole, 1e-5, NoiseSource.KEYED, 1)
    curve = [found.trade_off(a) for a in alarms]
    known = [(1 - rate) * (1 - a) + rate * float(ndtr(ndtri(1 - a) - mu)) for a in alarms]
    assert all(0 <= c <= k + 1e-9 for c, k in zip(curve, known, strict=True))
    assert curve[2] > 0.85
    assert curve == sorted(curve, reverse=True)


def test_false_alarms_are_a_probability() -> None:
    with pytest.raises(RecipeError):
        stated().trade_off(1.5)


# ------------------------------------------------------------------------ a second accountant


@pytest.mark.parametrize(
    ("low", "high", "accounting", "sound"),
    [
        (0.9, 1.1, EXACT, True),
        (None, 1.1, PLD, True),
        (0.9, None, EXACT, True),
        (None, None, PLD, True),
        (1.0 + 3 * TOLERANCE, None, PLD, False),
        (None, 1.0 - 3 * TOLERANCE, EXACT, False),
        (None, 1.0 - 3 * TOLERANCE, PLD, True),  # larger than it need be, and said so
    ],
)
def test_a_figure_outside_of_the_second_opinion_is_refused(
    low: Any, high: Any, accounting: str, sound: bool, caplog: Any
) -> None:
    claim, opinion = Claim("all", 1.0, 1e-5, accounting, {"kind": "NoOp"}), SecondOpinion(low, high)
    if sound:
        _refuse_outside(claim, opinion)
        assert ("RDP has a smaller one" in caplog.text) == (high is not None and high < 1)
    else:
        with pytest.raises(Unpriceable, match=r"epsilon 1 .* must lie between"):
            _refuse_outside(claim, opinion)


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_a_sensitivity_that_is_halved_is_found(adjacency: Adjacency, monkeypatch: Any) -> None:
    whole = TrainingReleases(
        {"update": gaussian(Facts(1.0, adjacency=adjacency), 20.0)}, {(UPDATE,): 50}
    )
    sound = checked(guarantee(whole, 1e-5, NoiseSource.KEYED, 50))
    assert sound.opinions[0].at_least
    assert sound.opinions[0].at_most
    monkeypatch.setitem(gdp.SENSITIVITY, adjacency, gdp.SENSITIVITY[adjacency] * 0.9)
    with pytest.raises(Unpriceable, match="second accountant"):
        checked(guarantee(whole, 1e-5, NoiseSource.KEYED, 50))


def test_what_says_nothing_is_no_check() -> None:
    tiny = gaussian(Facts(1.0), 1e4)
    found = checked(
        guarantee(TrainingReleases({"update": tiny}, {(UPDATE,): 1}), 0.5, NoiseSource.KEYED, 1)
    )
    assert found.opinions[0].at_least is None
    bare = checked(
        guarantee(TrainingReleases({"update": clear()}, {(UPDATE,): 1}), 1e-5, NoiseSource.KEYED, 1)
    )
    assert bare.opinions == ()


# ------------------------------------------------------------- plans of many kinds, and the bounds


def plans() -> list[Any]:
    """Methods, units, trusts, draws, adaptive clips, metrics: at least 60."""
    clients, found = [40] * 6, []
    metrics = [None, {"kind": "federated"}, {"kind": "federated", "share": 0.3, "every": 3}]
    for method, judged in itertools.product(
        ["dp-fedgd", "dp-fedsofim", "dp-fedavg", "dp-fedadam", "dp-scaffold", "dp-ftrl"], metrics
    ):
        for unit, trust in (("record", "local"), ("client", "local"), ("client", "central")):
            if (method, trust) != ("dp-scaffold", "central"):  # refused
                found.append((clients, method, judged, {"unit": unit, "trust": trust}))
    draws = [
        {"unit": "client", "trust": "central", "client_rate": 0.1},
        {"unit": "client", "trust": "central", "client_rate": 0.02},
        {"unit": "record", "record_rate": 0.05},
        {"unit": "record", "record_rate": 0.05, "adaptive": {"share": 0.2}},
        {"unit": "client", "trust": "central", "client_rate": 0.1, "adaptive": {"share": 0.2}},
        {"unit": "client", "adaptive": {"share": 0.2}},
    ]
    for judged, privacy in itertools.product(metrics, draws):
        method = "dp-fedgd" if privacy["unit"] == "record" else "dp-fedavg"
        found.append((clients, method, judged, {**privacy, "adjacency": "zero-out"}))
    secure = {"sum": {"name": "secure"}}
    for adjacency, judged in itertools.product(["replace-one", "zero-out"], metrics):
        privacy = {"unit": "record", "trust": "distributed", "adjacency": adjacency}
        found.append((clients, "dp-fedgd", judged, {**privacy, "more": secure}))
    return found


def plan_of(case: Any) -> Plan:
    clients, method, judged, given = case
    privacy = {"std_over_clip": 3.0, "delta": 1e-5, **given}
    more = {**privacy.pop("more", {}), **({"evaluation": judged} if judged else {})}
    sizes = [1] * len(clients) if privacy["unit"] == "client" else clients
    return make_plan(sizes, rounds=12, method=method, privacy=privacy, **more)


@cache
def cases() -> list[Plan]:
    return [plan_of(case) for case in plans()]


@pytest.mark.long
@pytest.mark.slow
def test_every_figure_lies_between_the_bounds_of_a_second_accountant() -> None:
    assert len(cases()) >= 60
    below = above = 0
    for plan in cases():
        found = checked(plan.guarantee())  # refuses what is outside
        for claim, opinion in zip(found.claims, found.opinions, strict=True):
            below += opinion.at_least is not None
            above += opinion.at_most is not None
            assert opinion.at_least is None or opinion.at_least <= claim.epsilon * (1 + TOLERANCE)
            assert opinion.at_most is None or claim.epsilon <= opinion.at_most * (1 + TOLERANCE)
    assert above >= 60
    assert below >= 60


def test_guarantee_and_ledger_read_one_tree() -> None:
    for plan in cases():
        claim = plan.guarantee().claims[0]
        assert claim.event == plan.whole_event


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (55, 65))]
)
@pytest.mark.sample(3)
def test_anyone_can_compute_epsilon_again(number: int, tmp_path: Path, repository: Path) -> None:
    """The script knows nothing of dpfed, and asserts that its figure is that of the file."""
    path = tmp_path / "guarantee.json"
    found = cases()[number].guarantee()
    path.write_text(json.dumps(found.to_json()))
    script = repository / "examples" / "check_epsilon.py"
    assert "dpfed" not in script.read_text().partition('"""\n')[2].replace("without dpfed", "")
    with path.open() as file:
        done = subprocess.run([sys.executable, script], stdin=file, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("computed again") == len(found.claims)
    forged = json.loads(path.read_text())
    forged["claims"][0]["epsilon"] *= 0.99
    done = subprocess.run(
        [sys.executable, script], input=json.dumps(forged), capture_output=True, text=True
    )
    assert done.returncode != 0


def test_delta_and_events_that_nobody_bounds_are_refused() -> None:
    with pytest.raises(RecipeError):
        delta_of(events.composed([]), -1.0, Adjacency.ZERO_OUT)
    drawn = made({(UPDATE,): 1}, update=gaussian().with_sampling(Poisson(0.5)))
    unmarked = events.below_mark(drawn)
    assert unmarked
    with pytest.raises(Unpriceable):
        delta_of(unmarked, 1.0, Adjacency.REPLACE_ONE)


@pytest.mark.parametrize(
    ("made", "stated"),
    [
        ({4.0: 10}, "planned"),
        ({4.0: 2}, "planned"),  # ended early: by what was seen, perhaps
        ({1.0: 10}, "spent"),  # all others dropped out
    ],
)
def test_a_run_that_ended_early_states_its_plans_figures(made: Any, stated: str) -> None:
    plan = make_plan([40] * 5, rounds=10, method="dp-fedgd", privacy={"std_over_clip": 9.0})
    planned, spent = plan.guarantee(), plan.guarantee(only_updates(made), sum(made.values()))
    found = certified(planned, spent)
    assert found.claims[0].epsilon == planned.claims[0].epsilon >= spent.claims[0].epsilon
    larger = planned if stated == "planned" else spent
    assert found.claims[-1].epsilon == larger.claims[-1].epsilon
    assert found.realised == tuple(claim.epsilon for claim in spent.claims)
    assert (found.claims == planned.claims) == (stated == "planned")
    assert found.rounds == sum(made.values())
