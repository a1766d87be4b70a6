# SPDX-License-Identifier: Apache-2.0
"""Every method of the papers: it runs where it says, gives the same bits over Flower, costs what it
is priced, and the table in the docs is the one that the code makes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from torch import nn

from dpfed.accounting import gdp
from dpfed.accounting.guarantee import mechanism_mu_squared
from dpfed.core import registry
from dpfed.core.errors import RecipeError, UnsoundPlan
from dpfed.core.types import METRICS, UPDATE, BoundedSum, Release, Trust, Unit
from dpfed.data.datasets import Records
from dpfed.data.models import Linear, Model
from dpfed.data.modules import Network
from dpfed.flower import DPStrategy, client_app
from dpfed.recipes import methods
from dpfed.recipes.build import plan_for, trained_model
from dpfed.recipes.methods import METHODS, markdown_table
from dpfed.recipes.schema import load_recipe, parse
from dpfed.sums.secure import secure
from dpfed.training.inprocess import rounds
from dpfed.training.metrics import measured
from dpfed.training.plan import Plan
from tests.helpers.least_squares import minimiser, silos
from tests.training.flower.local_grid import LocalGrid, become_a_server, nodes

HEAD = Linear("softmax", features=4, outputs=3).layout
SIZES = [14, 9, 20]
LOGISTIC = Linear("logistic", 3)
ROUNDS = 4


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


MODELS: dict[str, Model] = {
    "softmax": Linear("softmax", features=4, outputs=3),
    "logistic": Linear("logistic", features=4),
    "poisson": Linear("poisson", features=4, bias=False),
    "network": Network(module(), chunk=8),
}


def clients(model: str) -> list[Records]:
    generator = torch.Generator().manual_seed(4)
    made = []
    for size in SIZES:
        x = torch.randn(size, 4, generator=generator)
        y = torch.randint(0, 3, (size,), generator=generator)
        targets = {"logistic": (y > 0).long(), "poisson": y.float()}
        made.append(Records(x, targets.get(model, y), torch.arange(size) // 2))
    return made


def sizes(unit: str) -> list[float]:
    return [{"record": n, "group": (n + 1) // 2, "client": 1}[unit] for n in map(float, SIZES)]


def plan_of(method: str, model: str, unit: str, **privacy: Any) -> Plan:
    noise = {} if "mechanism" in privacy else {"epsilon": 8.0}
    tables = {
        "method": method,
        "rounds": ROUNDS,
        "privacy": {"unit": unit, "noise": "keyed", **noise, **privacy},
    }
    return plan_for(parse(tables), sizes(unit), MODELS[model].layout)


TABLE = methods.methods_table()


def supported() -> list[tuple[str, str, str]]:
    """Every method with every model and unit that it declares."""
    found = []
    for row in TABLE:
        units = [unit for unit in ("record", "group", "client") if unit in row["protects"]]
        models = [model for model in MODELS if model != "network" or row["model"] == "any"]
        found.extend((row["method"], model, unit) for unit in units for model in models)
    return found


SUPPORTED = supported()


def is_fast(place: tuple[str, str, str]) -> bool:
    """The fast suite has one model."""
    return place[1] == "softmax"


def is_paired(place: tuple[str, str, str]) -> bool:
    """Each other model meets each method under one of its units, which go round with both."""
    method, model, unit = place
    units = [other for name, each, other in SUPPORTED if (name, each) == (method, model)]
    turn = list(METHODS).index(method) + list(MODELS).index(model)
    return unit == units[turn % len(units)]


def marked(place: tuple[str, str, str]) -> Any:
    """All triples are in the long suite: what this one has of them, has every pair."""
    marks = [pytest.mark.slow] if is_paired(place) else [pytest.mark.long]
    return pytest.param(*place, marks=[] if is_fast(place) else marks)


@pytest.fixture(autouse=True)
def _server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFED_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("DPFED_IDENTITY", "simulated")
    become_a_server(monkeypatch)


def test_every_pair_of_method_model_and_unit_is_run() -> None:
    run = [place for place in SUPPORTED if is_fast(place) or is_paired(place)]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert {(p[one], p[other]) for p in run} == {(p[one], p[other]) for p in SUPPORTED}
    assert len(run) < 0.6 * len(SUPPORTED)


@pytest.mark.parametrize(("method", "model", "unit"), map(marked, SUPPORTED))
@pytest.mark.sample(10)
def test_a_method_runs_where_it_says_with_the_same_bits_over_flower(
    method: str, model: str, unit: str
) -> None:
    plan = plan_of(method, model, unit)
    made = trained_model(parse({}), plan, MODELS[model])
    problems = [made.problem(records) for records in clients(model)]
    initial = made.initial(0)
    *_, (last, outcome) = rounds(plan, problems, initial)
    assert outcome.clients == (0, 1, 2)
    assert bool(torch.isfinite(last.params).all())
    assert not torch.equal(last.params, initial)

    app = client_app(lambda context: problems[context.node_config["partition-id"]], plan)
    arrays = ArrayRecord({n: t.clone() for n, t in made.layout.unflatten(initial).items()})
    result = DPStrategy(plan).start(LocalGrid(app, nodes(3)), arrays)
    assert torch.equal(made.layout.flatten(result.arrays.to_torch_state_dict()), last.params)
    assert result.guarantee is not None
    assert result.guarantee.sentence == plan.guarantee().sentence


# ------------------------------------------------------------------------------------ the price


class Given:
    """Rows whose clipped sum is known."""

    def __init__(self, bounded: BoundedSum) -> None:
        self.bounded = bounded

    def clipped_sum(self, clip: float) -> BoundedSum:
        return self.bounded


class Recording:
    """A mechanism that remembers the noise of each release."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.noise = inner, []  # type: ignore[var-annotated]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def release(self, rows: Any, state: Any, rng: Any) -> tuple[Release, Any]:
        bounded = rows.clipped_sum(self.inner.clip)
        made, state = self.inner.release(Given(bounded), state, rng)
        values = made.vector.double().numpy() * made.step
        self.noise.append(values - bounded.vector.double().numpy())
        return made, state


FRESH = [name for name, method in METHODS.items() if method.mechanism == "gaussian"]


@pytest.mark.parametrize("unit", ["record", "client"])
@pytest.mark.parametrize("method", FRESH)
def test_every_release_is_counted_and_its_noise_is_what_the_event_says(
    method: str, unit: str
) -> None:
    if (method, "softmax", unit) not in SUPPORTED:
        pytest.skip(f"does not protect a {unit}")
    plan = plan_of(method, "softmax", unit)
    recorders = {name: Recording(m) for name, m in plan.channels.items()}
    watched = replace(plan, channels=recorders)  # type: ignore[arg-type]
    made = trained_model(parse({}), plan, MODELS["softmax"])
    problems = [made.problem(records) for records in clients("softmax")]
    list(rounds(watched, problems, made.initial(0)))
    spent = 0.0
    for name, recorder in recorders.items():
        mechanism = plan.channels[name]
        assert len(recorder.noise) == len(SIZES) * plan.planned(name)
        drawn = np.concatenate(recorder.noise)
        tolerance = 5 / math.sqrt(2 * drawn.size)  # five deviations of a measured deviation
        assert float(drawn.std()) == pytest.approx(mechanism.std, rel=tolerance)
        event = mechanism.event(plan.planned(name))
        bound = mechanism.replace_bound / 2
        assert event.count == plan.planned(name)
        assert event.event.noise_multiplier == pytest.approx(mechanism.std / bound)
        spent += event.count * (2 / event.event.noise_multiplier) ** 2
    assert gdp.epsilon_for(plan.delta, math.sqrt(spent)) == pytest.approx(8.0, rel=1e-6)
    assert plan.guarantee().claims[0].epsilon <= 8.0 * (1 + 1e-8)


@pytest.mark.parametrize(
    ("method", "per_step"), [("dp-fedavg", 1), ("dp-fedsam", 2), ("dp-localadamw", 1)]
)
def test_k_local_steps_cost_k(method: str, per_step: int) -> None:
    stds = {}
    for steps in (1, 4):
        tables = {"rounds": 7, "method": method, "privacy": {"epsilon": 1.0}}
        recipe = load_recipe(tables, [f"client.steps={steps}"])
        plan = plan_for(recipe, [50.0] * 4, MODELS["softmax"].layout)
        assert plan.planned(UPDATE) == 7 * steps * per_step
        stds[steps] = plan.update.std
    assert stds[4] == pytest.approx(2 * stds[1])


def test_channels_share_one_budget() -> None:
    """mu^2 = mu_cov^2 + T mu_g^2, and what is released once is priced once."""
    plan = plan_of("dp-fedfc", "softmax", "record")
    target = gdp.mu_for(8.0, plan.delta) ** 2
    parts = {name: mechanism_mu_squared(m, plan.planned(name)) for name, m in plan.channels.items()}
    assert sum(parts.values()) == pytest.approx(target)
    assert parts["covariance"] == pytest.approx(0.1 * target)
    assert plan.planned("covariance") == 1
    assert [plan.due(t) for t in (0, 1)] == [[UPDATE, "covariance"], [UPDATE]]


def test_shares_that_leave_nothing_are_refused() -> None:
    tables = {"method": "dp-fedfc", "privacy": {"epsilon": 1.0}}
    with pytest.raises(RecipeError, match="leave nothing for"):
        plan_for(
            load_recipe(tables, ["client.share=0.97", "evaluation.kind=federated"]), [9.0], HEAD
        )


# ------------------------------------------------------------------------------------ trust, units


HIDING = secure(survivors=1.0)


@pytest.mark.parametrize("trust", [Trust.DISTRIBUTED, Trust.CENTRAL])
@pytest.mark.parametrize(("method", "unit"), sorted({(m, u) for m, _, u in SUPPORTED}))
def test_trust_is_what_the_table_says(method: str, unit: str, trust: Trust) -> None:
    row = next(row for row in TABLE if row["method"] == method)
    parts = [part for part in row["trust"].split("; ") if ":" not in part or unit in part]
    assert len(parts) == 1
    allowed = str(trust) in parts[0]
    local = plan_of(method, "softmax", unit)

    def under_trust() -> None:
        channels = {n: m.with_facts(trust=trust) for n, m in local.channels.items()}
        replace(local, channels=channels, sum=HIDING, nominal=[1.0] * 3)

    if allowed:
        under_trust()
    else:
        with pytest.raises((UnsoundPlan, RecipeError), match="trust"):
            under_trust()


def test_a_method_that_keeps_its_own_releases_says_why_only_local_trust_is_sound() -> None:
    local = plan_of("dp-fednew", "softmax", "record")
    channels = {n: m.with_facts(trust=Trust.DISTRIBUTED) for n, m in local.channels.items()}
    with pytest.raises(UnsoundPlan, match="private on their own"):
        replace(local, channels=channels, sum=HIDING)
    assert len(local.guarantee().claims) == 1  # and others' noise hides nothing from others


def test_a_method_that_cannot_protect_a_unit_says_so() -> None:
    refused = 0
    for name in METHODS:
        for unit in Unit:
            if any((name, model, unit) in SUPPORTED for model in MODELS):
                continue
            refused += 1
            with pytest.raises((RecipeError, UnsoundPlan), match=str(unit)):
                plan_of(name, "softmax", str(unit))
    assert refused


def test_a_linear_method_is_refused_on_a_network() -> None:
    for name in ("dp-fedfc", "dp-fednew", "fednewton"):
        with pytest.raises(RecipeError, match="one linear layer"):
            plan_of(name, "network", "record")


# ---------------------------------------------------------------------------- names and the table


def test_every_client_and_server_file_is_in_a_method() -> None:
    used = {method.client["name"] for method in METHODS.values()}
    assert set(registry.names("client")) - used == {"statistics"}  # questions: nothing is trained
    servers = {link["name"] for method in METHODS.values() for link in method.server}
    assert set(registry.names("server")) - servers == {"pace", "schedule"}  # a rate, not a method


def test_a_method_fills_the_tables_that_a_recipe_leaves_out() -> None:
    recipe = load_recipe({"method": "dp-ftrl"}, ["server.0.momentum=0.5"])
    assert recipe.client == {"name": "gradient"}
    assert recipe.server == [{"name": "ftrl", "momentum": 0.5}]
    assert recipe.privacy.mechanism == "tree"
    own = load_recipe({"method": "dp-fedadam", "server": [{"name": "scale", "rate": 2.0}]})
    assert own.server == [{"name": "scale", "rate": 2.0}]


def test_the_method_is_set_before_its_options() -> None:
    recipe = load_recipe({}, ["client.steps=2", "method=dp-fedavg"])
    assert recipe.client == {"name": "fedavg", "steps": 2}


def test_an_unknown_method_is_answered_with_the_nearest() -> None:
    with pytest.raises(RecipeError, match="did you mean 'dp-fedadam'"):
        parse({"method": "dp-fedadan"})


def test_the_table_in_the_docs_is_the_codes(repository: Path) -> None:
    text = (repository / "docs" / "methods.md").read_text(encoding="utf-8")
    made = methods.methods_markdown(methods.methods_table())
    assert made in text, "run: dpfed methods --markdown, and put it there"


def test_post_processing_only_methods_cost_what_fedgd_costs() -> None:
    fedgd = plan_of("dp-fedgd", "softmax", "record")
    for row in methods.methods_table():
        if row["post-processing only"] == "yes":
            plan = plan_of(row["method"], "softmax", "record")
            assert plan.update == fedgd.update
            assert plan.guarantee().sentence == fedgd.guarantee().sentence


@pytest.mark.parametrize("name", ["dp-scaffold", "dp-fedadamw", "fednewton"])
def test_federated_metrics_go_with_every_method(name: str) -> None:
    tables = {
        "method": name,
        "rounds": ROUNDS,
        "privacy": {"epsilon": 8.0, "noise": "keyed"},
        "evaluation": {"kind": "federated", "every": 2},
    }
    plan = plan_for(parse(tables), sizes("record"), MODELS["softmax"].layout)
    problems = [MODELS["softmax"].problem(records) for records in clients("softmax")]
    figures = [
        measured(outcome.aggregate, plan.loss_bound)
        for _, outcome in rounds(plan, problems, MODELS["softmax"].initial(0))
    ]
    assert [METRICS in plan.due(t) for t in range(ROUNDS)] == [False, True, False, True]
    assert [bool(each) for each in figures] == [False, True, False, True]


@pytest.mark.long
@pytest.mark.parametrize("method", ["dp-fedavg", "dp-scaffold"])
def test_a_client_in_flight_holds_few_vectors(method: str) -> None:
    """All methods: benchmarks/method_memory.py of the lab. Here two, with room for a busy machine.

    Drawing noise needs some blocks of 2^14 numbers besides, however large the model is.
    """
    from dpfed_lab.benchmarks import method_memory

    found, blocks = method_memory._in_child(method), 4 * 8 * (1 << 14)
    assert found["alone"] <= 4 + blocks / method_memory.VECTOR
    assert found["all"] <= 1.5


# ---------------------------------------------------------------------------------- without noise

LIMITS: dict[str, tuple[dict[str, Any], int, bool]] = {
    "dp-fedgd": ({"server.0.rate": 2.0}, 300, False),
    "dp-fedsofim": ({"server.0.rho": 1.0, "server.1.rate": 2.0}, 300, False),
    "dp-fedsofim-printed": ({"server.0.rho": 1.0, "server.1.rate": 2.0}, 300, False),
    "ema-only": ({"server.1.rate": 2.0}, 300, False),
    "dp-fedavg": ({"server.0.rate": 1.0, "client.rate": 0.5}, 150, True),
    "dp-fedadam": ({"server.0.rate": 0.05, "server.0.beta2": 0.9, "server.0.eps": 0.1}, 600, False),
    "dp-fedyogi": ({"server.0.rate": 0.05, "server.0.beta2": 0.9, "server.0.eps": 0.1}, 600, False),
    "dp-ftrl": ({"server.0.rate": 0.5}, 300, False),
    "dp-mf": ({"server.0.rate": 0.5}, 300, False),
    "dp-adafedprox": ({"client.rate": 0.5}, 200, True),
    "dp-scaffold": ({"client.rate": 0.3}, 300, False),
    "dp-fedfc": ({"client.radius": 1000.0, "client.gamma": 0.2, "server.0.rate": 0.5}, 300, False),
    "dp-fednew": ({"client.c1": 1000.0, "client.c2": 1000.0, "client.hessian": 1000.0}, 300, False),
    "dp-fednew-fc": (
        {"client.c1": 1000.0, "client.c2": 1000.0, "client.hessian": 1000.0},
        300,
        False,
    ),
    "fednewton": ({"client.hessian": 1000.0}, 40, True),
    "fedhybrid": ({"client.step": 2.0}, 300, False),
    "dp-localadamw": (
        {"client.decay": 0.0, "client.rate": 0.02, "client.beta2": 0.9, "client.eps": 0.1},
        400,
        True,
    ),
    "dp-fedadamw": (
        {"client.decay": 0.0, "client.rate": 0.02, "client.beta2": 0.9, "client.eps": 0.1},
        400,
        True,
    ),
    "dp-fedavg-ls": ({"client.rate": 0.5}, 300, True),
    "dp-fedsam": ({"client.rate": 0.5}, 200, True),
    "adadps": ({"server.0.rate": 2.0}, 400, False),
    "sofim-local": ({"client.rate": 0.5}, 400, True),
}
"""Settings, rounds, and whether clients are alike: local steps drift where they are not."""

BIAS = {"dp-fedsam": 5e-3, "dp-fedavg-ls": 1e-3}
"""FedSAM ends at a flat place near the minimiser; smoothing slows down rough directions."""


def test_every_method_has_a_limit() -> None:
    assert set(LIMITS) == set(METHODS) - {"dp-fedauto"}  # whose model is another one


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [pytest.param(each, marks=[pytest.mark.long] * (at % 3 > 0)) for at, each in enumerate(LIMITS)],
)
@pytest.mark.sample(4)
def test_without_noise_a_method_reaches_the_minimiser(method: str) -> None:
    """Logistic regression on labels that no model explains in full; the oracle is scipy's."""
    changes, count, alike = LIMITS[method]
    data, model = silos(twins=alike), LOGISTIC
    clip = {} if method.startswith("dp-fednew") else {"clip": 1e3}  # which have their own
    tables = {"method": method, "rounds": count, "privacy": {"mechanism": "clear", **clip}}
    recipe = load_recipe(tables, [f"{key}={value}" for key, value in changes.items()])
    plan = plan_for(recipe, [float(len(x)) for x, _ in data], model.layout)
    problems = [model.problem(Records(x, y)) for x, y in data]
    *_, (last, _) = rounds(plan, problems, model.initial(0))
    distance = np.abs(last.params.double().numpy() - minimiser("logistic", data)).max()
    assert distance < BIAS.get(method, 1e-4)


def test_a_bar_in_a_cell_does_not_end_it() -> None:
    lines = markdown_table(["name", "a|b"], [["x", "y|z"], ["u", "v"]])
    assert lines == ["| name | a/b |", "|---|---|", "| x | y/z |", "| u | v |"]
