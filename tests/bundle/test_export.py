# SPDX-License-Identifier: Apache-2.0
"""Exports predict as the bundle does, words and missing values included; a wrong one is not left.

The exporter of torch takes 10 s and more, so there are few exports here; what they are made of is
tried in torch alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

import dpfed
from dpfed.bundle import export
from dpfed.bundle.description import (
    ColumnsInput,
    ContractInput,
    Divide,
    Fill,
    Input,
    LimitNorm,
    SchemaInput,
    SetNorm,
    Subtract,
)
from dpfed.bundle.export import GraphModule, _check, _tensors, export_onnx, export_torch, probe
from dpfed.bundle.modules import architecture_of
from dpfed.client._standardised import Standardised
from dpfed.core.errors import DataError
from dpfed.data.contract import contract_of
from dpfed.data.models import Linear

CONTRACT = contract_of(
    {
        "missing_words": ["?", "-999"],
        "columns": [
            {"name": "age", "kind": "number", "range": [18, 100]},
            {"name": "lactate", "kind": "number", "range": [0.1, 30], "scale": "log"},
            {"name": "dose", "kind": "number", "range": [0, 9], "missing": 2},
            {"name": "sex", "kind": "category", "words": ["f", "m", "other"]},
            {"name": "grade", "kind": "category", "words": ["1", "2"], "missing": "2"},
            {"name": "smoker", "kind": "flag", "words": ["no", "yes"]},
            {"name": "label", "kind": "flag", "missing": "1"},  # as an output would be called
        ],
        "label": {"column": "outcome", "words": ["alive", "dead"]},
    }
)
INPUTS: dict[str, tuple[Input, list[Any], int]] = {
    "contract": (ContractInput(contract=CONTRACT), [], CONTRACT.width),
    "schema": (
        SchemaInput(columns={"age": [0, 9], "sex": ["f", "m"], "grade": [1, 2, 3]}),
        [Fill(value=0.5)],
        6,
    ),
    "columns": (
        ColumnsInput(columns=["a", "b", "numbers"]),
        [Subtract(values=[1.0, 2.0, 3.0]), Divide(values=[2.0]), LimitNorm(norm=1.0)],
        3,
    ),
    "norm": (ColumnsInput(columns=["a", "b"]), [SetNorm(norm=3.0)], 2),
}


def made(base: dpfed.TrainedModel, name: str, link: str = "softmax") -> dpfed.TrainedModel:
    """A model with weights of its own on one of the inputs."""
    taken, steps, width = INPUTS[name]
    model: Any = Standardised(link, width, 2) if link == "softmax" else Linear(link, width)
    params = torch.randn(model.layout.size, generator=torch.Generator().manual_seed(1))
    described = msgspec.structs.replace(
        base.description,
        input=taken,
        steps=steps,
        output={"softmax": "softmax", "logistic": "sigmoid", "poisson": "exp"}[link],
        classes=None if link == "poisson" else ["alive", "dead"],
        architecture=architecture_of(model),
        parameters=[(n, list(s)) for n, s in model.layout.shapes.items()],
    )
    return dpfed.TrainedModel(described, params)


@pytest.fixture
def base(trained: tuple[Path, dpfed.Result]) -> dpfed.TrainedModel:
    return dpfed.load(trained[0] / "out/model")


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("link", ["softmax", "logistic", "poisson"])
def test_the_graph_is_the_bundle(name: str, link: str, base: dpfed.TrainedModel) -> None:
    model = made(base, name, link)
    given = probe(model, 60)
    with torch.no_grad():
        found = GraphModule(model).eval()(*_tensors(model, given))
    assert _check(model, given, found, "graph") < 1e-5


def test_a_word_that_is_mapped_wrongly_is_noticed(
    base: dpfed.TrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: two words in each other's place."""
    model = made(base, "contract")
    given = probe(model, 60)
    swapped = export.graph_columns(model.description)
    sex = swapped[3]
    assert isinstance(sex, export.WordColumn)
    sex.places.update(f=1, m=0)
    monkeypatch.setattr(export, "graph_columns", lambda _: swapped)
    with torch.no_grad():
        found = GraphModule(model).eval()(*_tensors(model, given))
    with pytest.raises(DataError, match="nothing was written"):
        _check(model, given, found, "graph")


@pytest.mark.long
@pytest.mark.slow
def test_onnx_predicts_the_same_with_words(base: dpfed.TrainedModel, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = made(base, "contract")
    assert export_onnx(model, tmp_path / "model.onnx") < 1e-5
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    shapes = {each.name: each.type for each in session.get_inputs()}
    assert shapes["age"] == "tensor(double)"
    assert shapes["sex"] == "tensor(string)"
    cells = {
        "age": [20.0, np.nan, 300.0],
        "lactate": [1.0, 0.0, np.nan],
        "dose": [np.nan, 1.0, 2.0],
        "sex": ["f", "", "m"],
        "grade": ["1", "?", "9"],
        "smoker": ["no", "yes", "?"],
        "label": ["1", "0", ""],
    }
    feed = {
        name: np.array(column, dtype=object if isinstance(column[0], str) else np.float64)[:, None]
        for name, column in cells.items()
    }
    label, chances = session.run(["predicted_label", "probabilities"], feed)
    table = {
        name: [None if isinstance(cell, float) and np.isnan(cell) else cell for cell in column]
        for name, column in cells.items()
    }
    assert np.abs(chances - model.predict_proba(table)).max() < 1e-5
    assert label.tolist() == model.predict(table).tolist()


@pytest.mark.slow
def test_a_program_of_torch_takes_any_number_of_records(
    base: dpfed.TrainedModel, tmp_path: Path
) -> None:
    model = made(base, "contract")
    assert export_torch(model, tmp_path / "model.pt2") < 1e-5
    program = torch.export.load(tmp_path / "model.pt2").module()
    for records in (1, 2, 77):
        given = probe(model, records)
        found = program(*_tensors(model, given)).detach()
        assert _check(model, given, found, "program") < 1e-5


@pytest.mark.long
@pytest.mark.slow
def test_a_network_of_arrays_is_exported(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    made_up = {"records": 90, "features": 4, "classes": 3}
    options = {"features": 4, "classes": 3}
    dpfed.run(
        data={"options": made_up, "partition": {"clients": 2}},
        privacy={"epsilon": 8.0},
        rounds=2,
        method="dp-fedgd",
        model={"name": "network", "factory": "dpfed.data.networks:mlp", "options": options},
        out=tmp_path,
    )
    model = dpfed.load(tmp_path / "model")
    assert export_onnx(model, tmp_path / "model.onnx") < 1e-5


@pytest.mark.slow
def test_the_command_writes_and_says_how_near_it_is(
    trained: tuple[Path, dpfed.Result], tmp_path: Path
) -> None:
    from typer.testing import CliRunner

    from dpfed.cli.main import app

    words = ["export", str(trained[0] / "out/model"), "--torch", str(tmp_path / "m.pt2")]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert "agrees with" in done.output
