# SPDX-License-Identifier: Apache-2.0
"""Objects in the place of a file's name: the same run, and a name that says nothing of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dpfed
from dpfed.core.errors import DataError, RecipeError
from dpfed.core.registry import installed_only, keep_object, kept_object
from dpfed.data.datasets import load
from dpfed.flower import Network, dataset_batches
from dpfed.recipes.schema import dump_recipe, load_recipe, parse

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(80, 3))
Y = (X[:, 0] > 0).astype(int)
TENSORS = torch.tensor(X, dtype=torch.float32), torch.tensor(Y)


def read(given: Any, **options: Any) -> Any:
    return load(keep_object("data", given), **options)


@pytest.mark.parametrize(
    "given",
    [
        (X, Y),
        (X.tolist(), Y.tolist()),
        {"x": X, "y": Y},
        {"x_train": X, "y_train": Y, "x_test": X[:5], "y_test": Y[:5]},
        TensorDataset(*TENSORS),
        DataLoader(TensorDataset(*TENSORS), shuffle=True),
        dataset_batches(TensorDataset(*TENSORS), (torch.zeros(3), 0)),
    ],
    ids=["pair", "lists", "dict", "parts", "TensorDataset", "DataLoader", "batches"],
)
def test_objects_become_what_an_npz_becomes(given: Any, tmp_path: Any) -> None:
    np.savez(tmp_path / "whole.npz", x=X, y=Y)
    wanted, found = load(tmp_path / "whole.npz"), read(given)
    assert torch.equal(found.train.x, wanted.train.x)
    assert torch.equal(found.train.y, wanted.train.y)
    assert found.classes == wanted.classes == 2
    assert "given in Python" in found.source


def test_data_frames_are_read_as_tables() -> None:
    pa = pytest.importorskip("pyarrow")
    columns = {"a": X[:, 0], "b": X[:, 1], "died": Y, "sex": ["f", "m"] * 40}
    frames = [pa.table(columns)]
    for name in ("pandas", "polars"):
        try:
            frames.append(__import__(name).DataFrame(columns))
        except ImportError:
            continue
    schema = {"a": [-3, 3], "sex": ["f", "m"]}
    for frame in frames:
        plain, said = read(frame, y="died"), read(frame, y="died", schema=schema)
        assert torch.equal(plain.train.x, TENSORS[0][:, :2])
        assert plain.table.left_out == ("sex (text)",)
        assert said.train.x.shape == (80, 3)
        assert torch.equal(said.train.y, TENSORS[1])


def test_records_that_cannot_be_read_have_an_unknown_label() -> None:
    records: list[Any] = [(x, int(y)) for x, y in zip(*TENSORS, strict=True)]
    records[7] = "nothing"
    found = read(dataset_batches(records, (torch.zeros(3), 0)))
    assert found.train.y[7] == -1
    assert int((found.train.y >= 0).sum()) == 79


def test_several_labels_a_record_stay_as_they_are() -> None:
    tokens = np.where(X > 0, 5, -100)
    found = read((X, tokens))
    assert found.train.y.tolist() == tokens.tolist()
    assert read((X, X)).train.y.dtype == torch.float32


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((X, Y[:3]), r"one row per record, got lengths \[3, 80\]"),
        ((X, [[1], [2, 3]]), "y must be an array with one row per record"),
        (([["a", "b"]], [1]), "features must be numbers"),
        (object(), r"a object; give dataset_batches\(data, example=...\)"),
        (
            dataset_batches([{"ids": [1], "labels": 0}], {"ids": [1], "labels": 0}),
            "one tensor each",
        ),
    ],
)
def test_what_cannot_be_taken_says_what_to_give(given: Any, words: str) -> None:
    with pytest.raises(DataError, match=words) as error:
        read(given)
    assert "\n" not in str(error.value)


SMALL: dict[str, Any] = {"privacy": {"epsilon": 8.0, "delta": 1e-3}, "rounds": 4}


def test_a_run_takes_arrays_and_a_module() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    before = [p.detach().clone() for p in module.parameters()]
    data = {"source": (X, Y), "holdout": 0.2, "partition": {"clients": 3}}
    for model in (module, Network(module, chunk=7), {"factory": lambda: nn.Linear(3, 2)}):
        result = dpfed.run(data=data, model=model, **SMALL)
        assert isinstance(result.model, Network)
        assert result.source == "arrays given in Python"
    assert all(map(torch.equal, before, module.parameters()))
    whole = dpfed.run(data=(X, Y), **SMALL)  # 20 clients, the default model
    assert len(whole.nominal) == 20


def test_the_name_of_an_object_says_nothing_of_it() -> None:
    one, again, other = (load_recipe({"data": (X, Y)}) for _ in range(3)), (X, Y), (X, Y.copy())
    names = {each.data.source for each in one}
    assert len(names) == 1
    (name,) = names
    assert name == keep_object("data", again) != keep_object("data", other)
    prefix, _, token = str(name).partition("@")
    assert (prefix, len(token)) == ("data", 12)
    assert str(name) in dump_recipe(load_recipe({"data": (X, Y)}))


def test_a_name_that_this_process_does_not_know_is_refused() -> None:
    with pytest.raises(RecipeError, match="its own process alone has"):
        dpfed.run(data={"source": "data@000000000000"}, **SMALL)
    with pytest.raises(RecipeError, match="its own process alone has"):
        dpfed.run(model={"name": "network", "factory": "model@000000000000"}, **SMALL)
    name = keep_object("data", (X, Y))
    with installed_only(), pytest.raises(RecipeError, match="its own process alone has"):
        kept_object("data", name)  # a recipe that somebody else wrote


def test_a_simulation_refuses_objects_since_its_processes_have_none() -> None:
    with pytest.raises(RecipeError, match=r"data\.source must be a name, a file"):
        dpfed.run(data=(X, Y), engine="flower-simulation", **SMALL)
    with pytest.raises(RecipeError, match=r"model\.factory must be a name"):
        dpfed.run(model=nn.Linear(20, 10), engine="flower-simulation", **SMALL)


def test_what_is_no_model_is_refused_and_not_trained_as_another() -> None:
    """A module was once read as a table without fields: a softmax regression was trained."""
    with pytest.raises(RecipeError, match="model must be a table or a torch module, got 'object'"):
        parse({"model": object()})
    with pytest.raises(RecipeError, match="model must be a table, got 'softmax'"):
        parse({"model": "softmax"})
