# SPDX-License-Identifier: Apache-2.0
"""What a run's bundle says, and what it must not say."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import dpfed
from dpfed.bundle.folder import read_description
from dpfed.core.types import METRICS
from dpfed.data.datasets import Records
from dpfed.recipes import describe
from dpfed.recipes.describe import _released, wilson
from dpfed.recipes.schema import load_recipe
from dpfed.recipes.session import prepare
from dpfed.training.inprocess import rounds
from dpfed.training.metrics import measured
from tests.helpers.bundles import SCHEMA, write_table

MADE_UP: dict[str, Any] = {
    "options": {"records": 90, "features": 3, "classes": 2},
    "partition": {"clients": 3},
}


def told(folder: Path, **sections: Any) -> dict[str, Any]:
    given = {"data": MADE_UP, "privacy": {"epsilon": 5.0}, "rounds": 3, "method": "dp-fedgd"}
    dpfed.run(**{**given, **sections}, out=folder)
    found: dict[str, Any] = json.loads((folder / "model/model.json").read_bytes())
    return found


def test_words_that_were_read_off_the_records_are_left_out(tmp_path: Path) -> None:
    """That a word occurs at all is a fact of the records; a declared one is public."""
    path = write_table(tmp_path / "ward.csv", 200)
    data = {"source": str(path), "options": {"y": "outcome"}, "schema": SCHEMA, "missing": "fill"}
    data |= {"partition": {"clients": 2}, "holdout": 0.2}
    found = told(tmp_path / "one", data=data)
    assert found["classes"] == [0, 1]
    assert "dead" not in json.dumps(found)
    data["options"]["labels"] = ["alive", "dead"]  # type: ignore[index]
    assert told(tmp_path / "two", data=data)["classes"] == ["alive", "dead"]


def test_accuracy_in_clear_is_not_shown(tmp_path: Path) -> None:
    found = told(tmp_path, evaluation={"kind": "exact"})
    assert found["metrics"] == []


def test_a_released_accuracy_has_an_interval_of_its_noise(tmp_path: Path) -> None:
    found = told(tmp_path, evaluation={"kind": "federated"})
    accuracy = next(each for each in found["metrics"] if each["name"] == "accuracy")
    assert accuracy["low"] < accuracy["high"]
    assert "released with noise" in accuracy["on"]


@pytest.mark.long
def test_a_released_loss_has_the_interval_of_a_coin_that_is_0_or_its_bound(tmp_path: Path) -> None:
    """No loss in [0, bound] of this mean spreads further (Bhatia and Davis 2000)."""
    found = told(tmp_path, evaluation={"kind": "federated", "loss_bound": 2.0})
    loss = next(each for each in found["metrics"] if each["name"] == "loss")
    assert 0 <= loss["low"] <= loss["value"] <= loss["high"] <= 2.0
    assert loss["on"].endswith("released with noise, each at most 2")
    options = {"records": 900, "features": 3, "classes": 2}
    tree = {"data": {"options": options, "partition": {"clients": 3}}, "privacy": {"epsilon": 5.0}}
    judged = {"kind": "federated", "loss_bound": 2.0}
    plan = prepare(
        load_recipe({**tree, "rounds": 3, "method": "dp-fedgd", "evaluation": judged})
    ).plan
    ((low, high),) = ((m.low, m.high) for m in _released(plan, [{"round": 1, "loss": 1.0}]))
    ends = _noisy_interval(0.5, round(sum(plan.nominal)), plan.noise_std(METRICS))
    assert (low, high) == pytest.approx([2 * end for end in ends], abs=2e-4)


@pytest.mark.parametrize("records", [200, 40])
def test_the_loss_on_test_records_has_the_textbooks_interval(tmp_path: Path, records: int) -> None:
    data = {"options": {**MADE_UP["options"], "records": records}, "partition": {"clients": 2}}
    given: dict[str, Any] = {"privacy": {"epsilon": 5.0}, "rounds": 3, "method": "dp-fedgd"}
    result = dpfed.run(data={**data, "holdout": 0.5}, **given, out=tmp_path)
    loss = next(m for m in read_description(tmp_path / "model").metrics if m.name == "loss")
    if records == 40:  # too few for a mean that is nearly normal
        assert loss.low is None
        return
    test = prepare(load_recipe({"data": {**data, "holdout": 0.5}, **given})).federation.test
    assert test is not None
    losses = result.model.judge(result.params, test)[1].double().numpy()
    error = 1.96 * losses.std(ddof=1) / len(losses) ** 0.5
    assert loss.low == pytest.approx(losses.mean() - error, abs=1e-4)
    assert loss.high == pytest.approx(losses.mean() + error, abs=1e-4)


def test_labels_above_a_number_are_called_so(tmp_path: Path) -> None:
    data = {**MADE_UP, "positive_above": 0}
    assert told(tmp_path, data=data)["classes"] == ["at most 0", "above 0"]


def test_it_says_how_far_the_training_went(tmp_path: Path) -> None:
    found = told(tmp_path)
    assert found["training"] == {
        "method": "dp-fedgd",
        "rounds": 3,
        "planned": 3,
        "stopped": "",
    }
    assert found["date"][:2] == "20"


def test_a_result_is_saved_without_a_bundle_if_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(describe, "describe", fail)
    given = {"data": MADE_UP, "privacy": {"epsilon": 5.0}, "rounds": 1, "method": "dp-fedgd"}
    dpfed.run(**given, out=tmp_path)  # type: ignore[arg-type]
    assert (tmp_path / "guarantee.json").exists()
    assert not (tmp_path / "model").exists()


def test_wilsons_interval_is_the_textbooks() -> None:
    low, high = wilson(0.5, 10)
    assert (round(low, 4), round(high, 4)) == (0.2366, 0.7634)
    assert wilson(1.0, 20)[1] == 1.0
    assert wilson(0.0, 20)[0] == 0.0


def test_both_engines_describe_the_same(tmp_path: Path) -> None:
    told(tmp_path)
    found = read_description(tmp_path / "model")
    assert found.guarantee["sentence"] == found.stated.sentence


def _noisy_interval(part: float, count: int, noise: float) -> tuple[float, float]:
    """By search, instead of by formula."""
    grid = [at / 20_000 for at in range(20_001)]
    z = 1.959964
    held = [p for p in grid if (part - p) ** 2 <= z**2 * (p * (1 - p) / count + noise**2)]
    return held[0], held[-1]


@pytest.mark.parametrize("case", [(0.9, 50, 0.03), (1.0, 20, 0.0), (1.0, 20, 0.1), (0.0, 300, 0.2)])
def test_an_interval_with_noise_is_where_it_solves_its_equation(
    case: tuple[float, int, float],
) -> None:
    assert wilson(*case) == pytest.approx(_noisy_interval(*case), abs=1e-4)


def _covered(units: int, right: float, epsilon: float, runs: int) -> float:
    """How often the intervals of released figures hold the truth, in rounds as they are run.

    A model of zeros predicts the first class, which a record is of by a coin of this probability.
    """
    data = {"options": {"records": units, "features": 1, "classes": 2}}
    recipe = load_recipe(
        {
            "data": {**data, "partition": {"clients": 2}},
            "privacy": {"epsilon": epsilon},
            "rounds": 1,
            "method": "dp-fedgd",
            "evaluation": {"kind": "federated"},
        }
    )
    session = prepare(recipe, None)
    plan, model = session.plan, session.federation.model
    draw = torch.Generator().manual_seed(units)
    truths = {"accuracy": right, "loss": math.log(2)}
    held = dict.fromkeys(truths, 0)
    for _ in range(runs):
        labels = [(torch.rand(round(n), generator=draw) >= right).long() for n in plan.nominal]
        problems = [model.problem(Records(torch.zeros(len(y), 1), y)) for y in labels]
        ((_, outcome),) = rounds(plan, problems, torch.zeros(model.layout.size))
        row = {"round": 1, **measured(outcome.aggregate, plan.loss_bound, plan.metrics)}
        for each in _released(plan, [row]):
            held[each.name] += (each.low or 0) <= truths[each.name] <= (each.high or 0)
    return min(held.values()) / runs


@pytest.mark.long  # a thousand rounds each; the formula is tested above
@pytest.mark.parametrize(
    "case", [(40, 0.97, 1e4), (40, 0.97, 20.0), (400, 0.9, 2.0), (400, 0.6, 0.5)]
)
def test_the_intervals_of_released_figures_cover(case: tuple[int, float, float]) -> None:
    """At nearly no noise, where the plain interval of 40 units was empty in 3 runs of 10, too."""
    assert _covered(*case, runs=1000) >= 0.93


@pytest.mark.long
def test_an_accuracy_of_drawn_clients_has_no_interval(tmp_path: Path) -> None:
    data = {**MADE_UP, "options": {"records": 600, "features": 3, "classes": 2}}
    data["partition"] = {"clients": 20}
    privacy = {"epsilon": 5.0, "client_rate": 0.5, "unit": "client", "trust": "central"}
    found = told(
        tmp_path,
        data=data,
        privacy={**privacy, "adjacency": "zero-out"},
        evaluation={"kind": "federated"},
        method="dp-fedavg",
    )
    accuracy = next(each for each in found["metrics"] if each["name"] == "accuracy")
    assert accuracy["low"] is accuracy["high"] is None
