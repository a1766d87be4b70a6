# SPDX-License-Identifier: Apache-2.0
"""fedauto: what it releases, what that costs, what it refuses, and that attacks do not refute it.

Its equations are tested in tests/oracles/test_fedauto.py, its bounds in tests/laws.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from dpfed.accounting.gdp import mu_for
from dpfed.accounting.guarantee import mechanism_mu_squared
from dpfed.audit.finding import Effort, Verdict, subject
from dpfed.audit.one_run import one_run
from dpfed.audit.two_world import two_world
from dpfed.client._paced import cleaned, paced
from dpfed.client._standardised import MEAN, Standardised, standardiser_of
from dpfed.core.errors import RecipeError, UnsoundPlan
from dpfed.core.registry import build
from dpfed.core.types import UPDATE, Adjacency, Aggregate, Broadcast, Trust, Unit
from dpfed.data.datasets import Records
from dpfed.data.models import Linear
from dpfed.data.modules import Network
from dpfed.flower import make_plan
from dpfed.recipes.build import plan_for, trained_model
from dpfed.recipes.schema import parse
from dpfed.training.plan import Plan
from dpfed.training.reply import ClientState, client_reply
from tests.refusals import named

MODEL = Linear("softmax", 6, 3)
FULL = Standardised("softmax", 6, 3)


def plan_of(
    rounds: int = 10,
    client: dict[str, Any] | None = None,
    layout: Any = MODEL.layout,
    **privacy: Any,
) -> Plan:
    tables = {"method": "dp-fedauto", "rounds": rounds, "privacy": {"noise": "keyed", **privacy}}
    if client:
        tables["client"] = {"name": "fedauto", **client}
    return plan_for(parse(tables), [400.0, 600.0, 500.0], layout)


# ------------------------------------------------------------------------------------ the price


@pytest.mark.parametrize("unit", list(Unit))
@pytest.mark.parametrize(
    ("adjacency", "moved"),
    [
        (Adjacency.REPLACE_ONE, {"mean": 2.0, "second": math.sqrt(2), UPDATE: 1.0}),
        (Adjacency.ZERO_OUT, {"mean": 1.0, "second": 1.0, UPDATE: 0.5}),
        (Adjacency.ADD_REMOVE, {"mean": 1.0, "second": 1.0, UPDATE: 0.5}),
    ],
)
def test_three_shares_make_up_the_guarantee(
    unit: Unit, adjacency: Adjacency, moved: dict[str, float]
) -> None:
    """mu^2 = (D_1 / s_1)^2 + (D_2 / s_2)^2 + T' (D / s)^2, at 5, 10 and 85 % of it."""
    if (unit, adjacency) == (Unit.CLIENT, Adjacency.ADD_REMOVE):
        pytest.skip("refused: it shows who was there")
    plan = plan_of(epsilon=2.0, unit=unit, adjacency=adjacency, nominal=500.0)
    mu, counts = mu_for(2.0, 1e-5), {"mean": 1, "second": 1, UPDATE: 8}
    assert {name: plan.planned(name) for name in plan.channels} == counts
    shares = {"mean": 0.05, "second": 0.10, UPDATE: 0.85}
    for name, mechanism in plan.channels.items():
        spent = counts[name] * (moved[name] / mechanism.std) ** 2
        assert spent == pytest.approx(shares[name] * mu**2)
        assert mechanism_mu_squared(mechanism, counts[name]) == pytest.approx(spent)
    assert plan.guarantee().claims[0].epsilon == pytest.approx(2.0)


def test_without_the_second_moment_its_share_is_the_gradients() -> None:
    plan = plan_of(epsilon=2.0, client={"second": "none"})
    spent = plan.planned(UPDATE) * (1.0 / plan.update.std) ** 2
    assert set(plan.channels) == {"mean", UPDATE}
    assert (plan.planned(UPDATE), spent) == (9, pytest.approx(0.95 * mu_for(2.0, 1e-5) ** 2))


def test_truncated_matrices_are_priced_at_two() -> None:
    exact = plan_of(epsilon=2.0, mechanism="discrete_gaussian")
    assert exact.channels["second"].replace_bound == 2.0  # type: ignore[attr-defined]
    assert exact.guarantee().claims[0].epsilon <= 2.0
    # from 2 grid steps and the square root of the size on, sqrt 2 would not be enough
    assert plan_of(epsilon=2.0).channels["second"].replace_bound == math.sqrt(2)  # type: ignore[attr-defined]


def test_each_round_has_one_channel_and_its_size() -> None:
    plan = plan_of(epsilon=2.0)
    assert [plan.due(t) for t in range(4)] == [["mean"], ["second"], [UPDATE], [UPDATE]]
    sizes = [plan.size(name, FULL.layout.size) for name in ("mean", "second", UPDATE)]
    assert sizes == [6, 21, 21]


@pytest.mark.parametrize("unit", list(Unit))
def test_all_trusts_are_sound(unit: Unit) -> None:
    for trust in Trust:
        sum_ = {"name": "secure"} if trust is Trust.DISTRIBUTED else {"name": "plain"}
        tables = {"method": "dp-fedauto", "sum": sum_, "rounds": 6}
        privacy = {"epsilon": 2.0, "trust": trust, "unit": unit}
        plan = plan_for(parse({**tables, "privacy": privacy}), [100.0] * 20, MODEL.layout)
        assert plan.guarantee().claims[0].epsilon == pytest.approx(2.0, rel=1e-4)


@pytest.mark.sample(3)
@pytest.mark.parametrize("trust", list(Trust))
def test_the_level_of_a_plan_is_that_of_a_round(trust: Trust) -> None:
    """Damping and bias are decided by it before the first gradient is there."""
    import dpfed

    seen = []
    data = {"options": {"records": 300, "features": 4, "classes": 2}, "partition": {"clients": 3}}
    tables = {
        "method": "dp-fedauto",
        "rounds": 4,
        "data": data,
        "evaluation": {"kind": "off"},
        "sum": {"name": "secure" if trust is Trust.DISTRIBUTED else "plain"},
        "privacy": {"epsilon": 5.0, "trust": trust, "noise": "keyed"},
    }
    from dpfed.recipes.session import prepare
    from dpfed.training.inprocess import rounds

    run = prepare(parse(tables))
    for _, result in rounds(run.plan, run.federation.problems, run.initial):
        assert result.aggregate is not None
        seen.append(result.aggregate)
    assert [each.lead for each in seen] == ["mean", "second", UPDATE, UPDATE]
    assert {each.planned_std for each in seen} == {seen[-1].std}
    assert seen[1].std == pytest.approx(run.plan.noise_std("second"))
    assert dpfed.run(**tables).guarantee.epsilon == pytest.approx(5.0)


# --------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rounds": 3}, "rounds must be at least 4"),
        ({"weights": "average"}, "privacy.weights must be 'sum'"),
    ],
)
def test_what_it_cannot_do_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsoundPlan, match=words):
        plan_of(**{"epsilon": 1.0, **change})


def test_correlated_noise_is_refused() -> None:
    with pytest.raises((RecipeError, UnsoundPlan)):
        plan_of(epsilon=1.0, mechanism="tree")


def test_another_optimizer_behind_it_is_refused() -> None:
    tables = {"method": "dp-fedauto", "server": [{"name": "adam"}], "privacy": {"epsilon": 1.0}}
    with pytest.raises(RecipeError, match="takes its own steps"):
        plan_for(parse(tables), [10.0], MODEL.layout)


def test_a_clip_that_it_would_not_use_is_refused() -> None:
    tables = {"method": "dp-fedauto", "privacy": {"epsilon": 1.0, "clip": 3.0}}
    with pytest.raises(RecipeError, match=r"privacy\.clip must be left.*set client\.clip"):
        plan_for(parse(tables), [10.0], MODEL.layout)


def test_its_model_has_no_other_method() -> None:
    tables = {"method": "dp-fedgd", "privacy": {"epsilon": 1.0}}
    with pytest.raises(RecipeError, match=r"must be 'fedauto', .*, got 'gradient'"):
        plan_for(parse(tables), [10.0], FULL.layout)


def test_a_model_without_a_standardiser_is_refused_before_data_is_touched() -> None:
    plan = plan_of(epsilon=1.0)
    stranger = Network(torch.nn.Linear(6, FULL.layout.size // 6)).problem(
        Records(torch.zeros(2, 6), torch.zeros(2, dtype=torch.int64))
    )
    broadcast = Broadcast(0, torch.zeros(stranger.dimension))
    reply, _ = client_reply(plan, broadcast, "reply", {}, ClientState(0, stranger))
    assert str(reply) == UnsoundPlan.__name__


def test_a_network_is_refused() -> None:
    deep = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    for layout in (None, Network(deep).layout):
        with pytest.raises(RecipeError, match="fedauto needs a model"):
            build("client", "fedauto", {}, layout=layout)


@pytest.mark.parametrize(
    "options",
    [
        {"clip": 0.0},
        {"clip": math.nan},
        {"mean_share": 0.0},
        {"mean_share": 1.0},
        {"beta": 1.0},
        {"second_share": math.nan},
        {"pace": -1.0},
        {"damping": -1.0},
        {"cap": 0.0},
        {"second": "diagonal"},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=named("fedauto", options)):
        build("client", "fedauto", options, layout=MODEL.layout)


def test_the_shares_leave_something_for_the_gradients() -> None:
    options = {"mean_share": 0.5, "second_share": 0.5}
    with pytest.raises(RecipeError, match="mean_share"):
        build("client", "fedauto", options, layout=MODEL.layout)


def test_the_model_decides_about_the_second_moment_where_it_is_given() -> None:
    none = Standardised("softmax", 6, 3, full=False)
    assert "second" not in plan_of(epsilon=1.0, layout=none.layout).channels
    with pytest.raises(RecipeError, match=r"fedauto\.second"):
        plan_of(epsilon=1.0, layout=none.layout, client={"second": "full"})


# ------------------------------------------------------------------------------------- the rule


@pytest.mark.parametrize(
    ("features", "epsilon", "records", "found"),
    [
        (64, 1.0, 50_000, True),
        (6, 1.0, 20, False),  # no eigenvalue of a trace of 1 can leave the noise
        (384, 0.5, 18_000, True),  # between the thresholds: by bytes
        (1000, 0.5, 18_000, False),
        (1000, 10.0, 2_000_000, True),  # clearly worth its bytes
        (10_000, 10.0, 50_000_000, False),  # never so many
    ],
)
def test_the_second_moment_is_released_where_the_noise_leaves_some_of_it(
    features: int, epsilon: float, records: int, found: bool
) -> None:
    tables = {"method": "dp-fedauto", "privacy": {"epsilon": epsilon}}
    layout = Linear("softmax", features, 10).layout
    plan = plan_for(parse(tables), [records / 20] * 20, layout)
    assert ("second" in plan.channels) == found
    assert str(plan.client.made_by).startswith(f"fedauto(second='{'full' if found else 'none'}'")


# -------------------------------------------------------------------------------- the server half


def test_without_noise_a_spectrum_is_left_alone() -> None:
    values = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64)
    assert torch.allclose(cleaned(values, 0.0), values)


def test_noise_is_taken_out_of_a_spectrum() -> None:
    """What noise adds to the largest eigenvalues of a flat matrix is mostly taken away."""
    d, std, generator = 60, 0.004, torch.Generator().manual_seed(1)
    noise = torch.randn(d, d, generator=generator, dtype=torch.float64)
    noise = (noise.triu(1) / math.sqrt(2) + noise.triu(1).T / math.sqrt(2)) + noise.diag().diag()
    seen = torch.linalg.eigvalsh(torch.eye(d, dtype=torch.float64) / d + std * noise)
    made = cleaned(seen, std)
    assert float(made.sum()) == pytest.approx(1.0)
    assert float(made.std()) < 0.35 * float(seen.std())
    assert bool((made > 0).all())


@pytest.mark.parametrize("std", [0.01, 1.0, 30.0])
def test_a_mean_that_is_noise_alone_leaves_the_center_where_it_is(std: float) -> None:
    """1,000 releases without a signal: the center moves by less than its radius times the noise."""
    model = Standardised("softmax", 16, 3, full=False)
    shape = standardiser_of(model.layout, full=False)
    optimizer = paced(shape, beta=0.5, pace=1.0, damping=5.0, cap=2.0)
    params, draws = model.initial(0), torch.Generator().manual_seed(0)
    before, radius = model.layout.unflatten(params)["center"], 4.0  # sqrt(16)
    moved = []
    for _ in range(1000):
        noise = std * torch.randn(16, generator=draws)
        seen = Aggregate(0, params, noise, std, 4, lead=MEAN, rounds=10, planned_std=std)
        step, _ = optimizer.update(noise, optimizer.init(params), seen)
        moved.append(float((model.layout.unflatten(params - step)["center"] - before).norm()))
    assert max(moved) <= radius * min(4 * std, 1.5 / std)


# ----------------------------------------------------------------------------------------- attacks


@pytest.mark.long
def test_audits_do_not_refute_it() -> None:
    data = {"options": {"records": 120, "features": 8, "classes": 3}, "partition": {"clients": 4}}
    tables = {
        "method": "dp-fedauto",
        "rounds": 6,
        "data": data,
        "evaluation": {"kind": "off"},
        "privacy": {"epsilon": 2.0, "noise": "keyed"},
    }
    target = subject(parse(tables), seed=3, effort=Effort())
    for attack in (two_world, one_run):
        found = attack(target)
        assert found.verdict is Verdict.PASSED, found


# ------------------------------------------------------------------- an algorithm brings its model


def test_its_model_is_recognised_in_a_layout_and_in_a_state_dict() -> None:
    module = FULL.module(FULL.initial(0))
    for layout in (FULL.layout, dict(module.state_dict())):
        plan = make_plan([50.0], layout, privacy={"epsilon": 1.0, "noise": "keyed"})
        assert str(plan.client.made_by).startswith("fedauto(")
    linear = make_plan([50.0], MODEL.layout, privacy={"epsilon": 1.0, "noise": "keyed"})
    assert str(linear.client.made_by).startswith("gradient(")


def test_only_the_algorithm_says_which_model_is_trained() -> None:
    """Another algorithm leaves the recipe's model alone; its own model is not wrapped again."""
    recipe = parse({"method": "dp-fedauto", "privacy": {"epsilon": 1.0}})
    plan = plan_for(recipe, [50.0], MODEL.layout)
    made = trained_model(recipe, plan, MODEL)
    assert isinstance(made, Standardised)
    assert trained_model(recipe, plan, made) is made
    plain = parse({"method": "dp-fedgd", "privacy": {"epsilon": 1.0}})
    assert trained_model(plain, plan_for(plain, [50.0], MODEL.layout), MODEL) is MODEL
