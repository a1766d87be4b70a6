# SPDX-License-Identifier: Apache-2.0
"""An app's own model as a bundle: what it says, what it computes, what it refuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from torch import nn
from typer.testing import CliRunner

import dpfed
from dpfed.cli.main import app
from dpfed.core.errors import DataError, RecipeError
from dpfed.flower import Linear, Network, Standardised, make_plan, save_model
from tests.helpers.bundles import CONTRACT

HISTORY = [
    {"round": 1, "accuracy": 0.5, "loss": 1.0},
    {"round": 2, "accuracy": 0.9, "loss": 0.3},
    {"round": 3, "accuracy": None, "loss": None},
]


def result_of(state: dict[str, torch.Tensor], **changes: Any) -> Any:
    """What a strategy returns of a training that ended with these arrays."""
    privacy = {"epsilon": 2.0, "unit": "client"}
    guarantee = make_plan(clients=4, rounds=3, privacy=privacy).guarantee()
    made = {"history": HISTORY, "guarantee": guarantee, "stopped": None, **changes}
    return SimpleNamespace(arrays=ArrayRecord(state), **made)


def of_module(module: nn.Module) -> Any:
    return result_of(module.state_dict())


def seeded(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(3)
    for each in (layer for whole in layers for layer in whole.modules()):
        if hasattr(each, "reset_parameters"):
            each.reset_parameters()
    return layers[0] if len(layers) == 1 else nn.Sequential(*layers)


X = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)


@pytest.mark.parametrize(
    "module",
    [nn.Linear(4, 3), nn.Linear(4, 3, bias=False), (nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))],
)
def test_linear_layers_need_nothing_but_the_folder(module: Any, tmp_path: Path) -> None:
    made = seeded(*(module if isinstance(module, tuple) else (module,)))
    save_model(tmp_path, of_module(made), made, name="ward", classes=["a", "b", "c"], tested=100)
    loaded = dpfed.load(tmp_path)
    wanted = torch.softmax(made(torch.from_numpy(X)), 1).detach().numpy()
    assert loaded.predict_proba(X) == pytest.approx(wanted, abs=1e-6)
    assert loaded.predict(X).tolist() == [["a", "b", "c"][at] for at in wanted.argmax(1)]
    accuracy, loss = loaded.description.metrics
    assert (accuracy.value, accuracy.round, accuracy.records) == (0.9, 2, 100)
    assert 0.8 < (accuracy.low or 0) < 0.9 < (accuracy.high or 0)
    assert loss.value == 0.3
    assert loaded.guarantee.epsilon == pytest.approx(2.0)
    assert loaded.description.training.rounds == 3


def test_a_network_of_the_library_is_the_same_and_counts_its_classes(tmp_path: Path) -> None:
    module = seeded(nn.Linear(4, 3))
    save_model(tmp_path, of_module(module), Network(module), name="ward")
    loaded = dpfed.load(tmp_path)
    assert loaded.classes_.tolist() == [0, 1, 2]
    assert loaded.predict(X).tolist() == module(torch.from_numpy(X)).argmax(1).tolist()


@pytest.mark.parametrize(
    ("model", "classes"),
    [
        (Standardised("softmax", 4, 3), [0, 1, 2]),
        (Linear("logistic", 4, 1), [0, 1]),
        (Linear("poisson", 4, 1), None),
    ],
)
def test_models_of_the_library_say_what_they_are(
    model: Any, classes: list[int] | None, tmp_path: Path
) -> None:
    state = model.layout.unflatten(model.initial(0) + 0.1)
    save_model(tmp_path, result_of(state), model, name="ward")
    loaded = dpfed.load(tmp_path)
    assert loaded.description.classes == classes
    scores = model.problem(dpfed.flower.Records(torch.from_numpy(X), torch.zeros(7).long()))
    wanted = scores.scores(model.initial(0) + 0.1)
    assert loaded.scores(torch.from_numpy(X)) == pytest.approx(wanted)


def test_one_score_for_two_classes_is_a_logistic_regression(tmp_path: Path) -> None:
    module = seeded(nn.Linear(4, 1))
    save_model(tmp_path, of_module(module), module, name="ward", classes=["no", "yes"])
    second = dpfed.load(tmp_path).predict_proba(X)[:, 1]
    wanted = torch.sigmoid(module(torch.from_numpy(X)))[:, 0].detach().numpy()
    assert second == pytest.approx(wanted, abs=1e-6)


def test_a_module_without_classes_predicts_numbers(tmp_path: Path) -> None:
    module = seeded(nn.Linear(4, 1))
    save_model(tmp_path, of_module(module), module, name="ward")
    loaded = dpfed.load(tmp_path)
    assert loaded.predict(X) == pytest.approx(module(torch.from_numpy(X))[:, 0].detach().numpy())
    with pytest.raises(AttributeError):
        _ = loaded.classes_


def test_a_table_is_read_by_the_apps_contract(tmp_path: Path) -> None:
    """Words in, words out; the columns in another order, a word that means missing."""
    module = seeded(nn.Linear(4, 2))
    save_model(tmp_path / "model", of_module(module), module, name="ward", contract=CONTRACT)
    table = tmp_path / "new.csv"
    table.write_text("sex;dose;age\nm;1.5;61\nf;0.2;?\n")
    out = ["predict", str(tmp_path / "model"), str(table), "--out", str(tmp_path / "scored.csv")]
    assert CliRunner().invoke(app, out).exit_code == 0
    head, *rest = (tmp_path / "scored.csv").read_text().splitlines()
    assert head == "prediction," + ",".join(f"p_{word}" for word in CONTRACT["label"]["words"])
    assert [line.split(",")[0] in CONTRACT["label"]["words"] for line in rest] == [True, True]
    loaded = dpfed.load(tmp_path / "model")
    assert loaded.description.target == "outcome"
    rows = [{"age": 61, "dose": 1.5, "sex": "m"}]
    assert loaded.predict(rows)[0] == rest[0].split(",")[0]


def test_any_other_module_is_the_readers_own(tmp_path: Path) -> None:
    module = seeded(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    save_model(tmp_path, of_module(module), module, name="ward", classes=2)
    with pytest.raises(DataError, match="module of other code"):
        dpfed.load(tmp_path)
    fresh = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    wanted = torch.softmax(module(torch.from_numpy(X)), 1).detach().numpy()
    assert dpfed.load(tmp_path, module=fresh).predict_proba(X) == pytest.approx(wanted, abs=1e-6)


def refusal(tmp_path: Path, module: Any, state: Any = None, **options: Any) -> str:
    result = of_module(module) if state is None else state
    with pytest.raises((RecipeError, DataError)) as raised:
        save_model(tmp_path / "model", result, module, name="ward", **options)
    assert not (tmp_path / "model").exists()
    return str(raised.value)


def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    module = seeded(nn.Linear(4, 2))
    assert "as many as the model tells apart" in refusal(tmp_path, module, classes=["a", "b", "c"])
    wide = seeded(nn.Linear(5, 2))
    assert "contract must be one of 5 features" in refusal(tmp_path, wide, contract=CONTRACT)
    lost = result_of(module.state_dict(), guarantee=None)
    assert "with a guarantee" in refusal(tmp_path, module, lost)
    assert "'weight' is not one of both" in refusal(tmp_path, wide, of_module(module))
    convolution = seeded(nn.Conv2d(1, 2, 3), nn.Flatten())
    assert "shape must be that of a record" in refusal(tmp_path, convolution, classes=8)
    frozen = seeded(nn.Linear(4, 2))
    frozen.bias.requires_grad_(False)  # type: ignore[union-attr,operator]
    assert "nothing frozen" in refusal(tmp_path, frozen, classes=2)
    mixing = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
    assert "mixes records" in refusal(tmp_path, mixing, classes=2)


def test_integers_of_layers_are_no_parameters(tmp_path: Path) -> None:
    module = seeded(nn.Linear(4, 2))
    state = {**module.state_dict(), "steps": torch.tensor(7)}
    save_model(tmp_path, result_of(state), module, name="ward", classes=2)
    assert dpfed.load(tmp_path).predict(X).shape == (7,)


def test_a_convolution_has_the_shape_that_is_given(tmp_path: Path) -> None:
    module = seeded(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    made = save_model(tmp_path, of_module(module), module, name="w", classes=2, shape=[1, 4, 4])
    images = np.zeros((3, 1, 4, 4), np.float32)
    loaded = dpfed.load(made, module=seeded(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)))
    assert loaded.predict(images).shape == (3,)
