# SPDX-License-Identifier: Apache-2.0
"""From a description to a module: by numbers alone, and never by a name of code."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dpfed
from dpfed.core.errors import DataError

NETWORK: dict[str, Any] = {
    "name": "network",
    "factory": "dpfed.data.networks:mlp",
    "options": {"features": 4, "classes": 3, "width": 8},
}


def run(folder: Path, **sections: Any) -> dpfed.Result:
    made_up = {"records": 90, "features": 4, "classes": 3}
    given = {
        "data": {"options": made_up, "partition": {"clients": 2}},
        "privacy": {"epsilon": 8.0},
        "rounds": 4,
        "method": "dp-fedgd",
    }
    return dpfed.run(**{**given, **sections}, out=folder)


def change(bundle: Path, **fields: Any) -> None:
    told = json.loads((bundle / "model.json").read_bytes())
    (bundle / "model.json").write_text(json.dumps({**told, **fields}))


def test_a_network_of_this_package_is_built(tmp_path: Path) -> None:
    result = run(tmp_path, model=NETWORK)
    model = dpfed.load(tmp_path / "model")
    x = torch.randn(5, 4)
    named = result.model.layout.unflatten(result.params)
    with torch.no_grad():
        expected = torch.func.functional_call(result.model.module, named, (x,))  # type: ignore[attr-defined]
        torch.testing.assert_close(model.module(x), expected)
    torch.testing.assert_close(model.scores(x), expected)


def test_sizes_are_made_only_if_they_fit(tmp_path: Path) -> None:
    run(tmp_path, model=NETWORK)
    kind = {"kind": "network", "factory": NETWORK["factory"]}
    for width in (1 << 40, 1 << 20, 9, -1, "x"):
        options = {**NETWORK["options"], "width": width}
        change(tmp_path / "model", architecture={**kind, "options": options})
        with pytest.raises(DataError):
            dpfed.load(tmp_path / "model")


@pytest.mark.parametrize("factory", ["os:system", "antigravity:fly", "torch:load"])
def test_code_that_a_bundle_names_is_not_imported(factory: str, tmp_path: Path) -> None:
    run(tmp_path, model=NETWORK)
    kind = {"kind": "network", "factory": factory, "options": {"command": "touch x"}}
    change(tmp_path / "model", architecture=kind)
    with pytest.raises(DataError, match="module=make_module"):
        dpfed.load(tmp_path / "model")
    assert "antigravity" not in sys.modules


def test_the_callers_own_module_is_filled(tmp_path: Path) -> None:
    run(tmp_path, model=NETWORK)
    change(tmp_path / "model", architecture={"kind": "module", "name": "Mine"})
    with pytest.raises(DataError, match=r"other code \(Mine\)"):
        dpfed.load(tmp_path / "model")
    own = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    model = dpfed.load(tmp_path / "model", module=own)
    assert model.predict(torch.zeros(2, 4)).shape == (2,)
    with pytest.raises(DataError, match="is not one of both"):
        dpfed.load(tmp_path / "model", module=nn.Linear(4, 3))


def test_a_pretrained_model_is_named_by_the_caller(tmp_path: Path) -> None:
    run(tmp_path, model=NETWORK)
    kind = {"kind": "pretrained", "library": "transformers", "source": "/etc", "options": {}}
    change(tmp_path / "model", architecture=kind)
    with pytest.raises(DataError, match="base=FOLDER"):
        dpfed.load(tmp_path / "model")


@pytest.mark.parametrize("link", ["softmax", "logistic"])
@pytest.mark.parametrize("method", ["dp-fedgd", "dp-fedauto"])
def test_linear_models_predict_what_training_judged(link: str, method: str, tmp_path: Path) -> None:
    options = {"records": 200, "features": 4, "classes": 2}
    data = {"options": options, "partition": {"clients": 2}}
    run(tmp_path, data=data, model={"name": link}, method=method)
    model = dpfed.load(tmp_path / "model")
    x = torch.randn(20, 4)
    chances = model.predict_proba(x)
    assert chances.shape == (20, 2)
    assert (chances.argmax(axis=1) == model.predict(x)).all()
    with torch.no_grad():
        torch.testing.assert_close(model.module(x), model.scores(x), rtol=1e-5, atol=1e-6)
