# SPDX-License-Identifier: Apache-2.0
"""One draw of clients serves all channels of a round, and was priced as if each had its own.

Central trust, unit client, 1 % of the clients a round, half of the budget for an adaptive clip, 100
rounds: epsilon 8.00 was printed where at least 17.77 is true; with federated metrics at their
default share, 8.00 where at least 8.60 is true.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution as pld

from dpfed.accounting.event_tree import TrainingReleases
from dpfed.audit import recount
from dpfed.audit.finding import Verdict
from dpfed.audit.suite import AUDITS
from dpfed.flower import make_plan
from dpfed.training.plan import Plan
from tests.audit.planted import small, target

CENTRAL = {"unit": "client", "trust": "central", "adjacency": "zero-out", "delta": 1e-5}


def plan_of(
    rate: float, rounds: int, adaptive: Any = None, evaluation: Any = None, **privacy: Any
) -> Plan:
    privacy = {**CENTRAL, "client_rate": rate, **privacy}
    if adaptive:
        privacy["adaptive"] = adaptive
    more = {"evaluation": evaluation} if evaluation else {}
    return make_plan([1] * 1000, rounds=rounds, method="dp-fedavg", privacy=privacy, **more)


def at_least(plan: Plan) -> float:
    """A lower bound of epsilon: an optimistic PLD of one draw for all channels of each round."""
    kinds = Counter(
        round(
            sum(plan.releases(n, r) / m.noise_multiplier() ** 2 for n, m in plan.channels.items()),
            14,
        )
        for r in range(plan.rounds)
    )
    total = None
    for square, count in kinds.items():
        one = pld.from_gaussian_mechanism(
            1 / math.sqrt(square),
            pessimistic_estimate=False,
            use_connect_dots=False,
            sampling_prob=plan.client_sampling.rate,
            value_discretization_interval=1e-3,
            neighboring_relation=NeighboringRelation.REPLACE_SPECIAL,
        ).self_compose(count)
        total = one if total is None else total.compose(one)
    return float(total.get_epsilon_for_delta(plan.delta))


SETTINGS: dict[str, dict[str, Any]] = {
    "half for the clip": {"adaptive": {"share": 0.5}, "std_over_clip": 0.66},
    "a little for the clip": {"adaptive": {"share": 0.01}, "std_over_clip": 0.47},
    "metrics": {"evaluation": {"kind": "federated"}, "std_over_clip": 0.48},
    "metrics every fifth": {
        "evaluation": {"kind": "federated", "share": 0.3, "every": 5},
        "std_over_clip": 0.55,
    },
    "few rounds": {
        "rate": 0.001,
        "rounds": 20,
        "adaptive": {"share": 0.5},
        "std_over_clip": 0.56,
    },
    "all three": {
        "rate": 0.05,
        "rounds": 30,
        "adaptive": {"share": 0.3},
        "evaluation": {"kind": "federated"},
        "std_over_clip": 1.5,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each, marks=[pytest.mark.long] * (at % 3 > 0))
        for at, each in enumerate(SETTINGS)
    ],
)
@pytest.mark.long
def test_no_figure_is_below_that_of_one_draw_for_all_channels(name: str) -> None:
    plan = plan_of(**{"rate": 0.01, "rounds": 100, **SETTINGS[name]})
    assert plan.guarantee().epsilon >= at_least(plan) > 0


@pytest.mark.long
@pytest.mark.slow
def test_noise_is_calibrated_for_one_draw() -> None:
    plan = plan_of(0.2, 6, {"share": 0.5}, epsilon=2.0)
    assert at_least(plan) <= plan.guarantee().epsilon <= 2.0
    alone = plan_of(0.2, 6, epsilon=2.0)  # one channel: as before
    update = plan.channels["update"].noise_multiplier()
    assert update == pytest.approx(math.sqrt(2) * alone.update.noise_multiplier(), rel=1e-3)


# ------------------------------------------------------------------- the fault, planted in the tree


def each_channel_by_itself(self: TrainingReleases, uses: Any) -> Any:
    """What the tree did before: a draw for each channel."""
    return {"kind": "Composed", "events": [WHOLE_ROUND(self, [use]) for use in uses]}


WHOLE_ROUND = TrainingReleases._drawn_round


def drawn_recipe() -> Any:
    return small(
        unit="client",
        trust="central",
        adjacency="zero-out",
        client_rate=0.5,
        nominal=1.0,
        adaptive={"share": 0.5},
    )


@pytest.mark.long
@pytest.mark.slow
def test_the_audit_counts_the_draws_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = target(drawn_recipe())
    honest = AUDITS["rounds"](sound)
    assert honest.verdict is Verdict.PASSED
    assert honest.found == pytest.approx(sound.claimed, rel=1e-3)  # no weaker than the claim
    assert "one draw of clients for count+update" in honest.detail
    monkeypatch.setattr(TrainingReleases, "_drawn_round", each_channel_by_itself)
    recount.recorded.cache_clear()
    planted = target(drawn_recipe())  # calibrated, and claimed, by the fault
    assert AUDITS["rounds"](planted).verdict is Verdict.FLAGGED
