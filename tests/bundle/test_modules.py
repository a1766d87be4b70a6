# SPDX-License-Identifier: Apache-2.0
"""From a description to a module: by numbers alone, and never by a name of code."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dpfed
from dpfed.core.errors import DataError
from tests.helpers.bundles import TINY_LENGTH, TINY_LORA, TINY_WORDS, tiny_encoder

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


def test_a_module_of_another_number_of_scores_is_refused(tmp_path: Path) -> None:
    run(tmp_path, model=NETWORK)
    change(tmp_path / "model", classes=["a", "b"])
    with pytest.raises(DataError, match="2 scores"):
        dpfed.load(tmp_path / "model").predict(torch.zeros(2, 4))


def test_a_pretrained_model_is_named_by_the_caller(tmp_path: Path) -> None:
    run(tmp_path, model=NETWORK)
    kind = {"kind": "pretrained", "library": "transformers", "source": "/etc", "options": {}}
    change(tmp_path / "model", architecture=kind)
    with pytest.raises(DataError, match="base=FOLDER"):
        dpfed.load(tmp_path / "model")


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dpfed.Result]:
    """An adapter on a tiny encoder, trained on token numbers."""
    folder = tmp_path_factory.mktemp("adapted")
    base = tiny_encoder(folder / "base")
    ids = np.random.default_rng(0).integers(1, TINY_WORDS, (60, TINY_LENGTH))
    np.savez(folder / "tokens.npz", x=ids.astype(np.float32), y=ids[:, 0] % 3)
    data = {"source": str(folder / "tokens.npz"), "holdout": 0.3, "partition": {"clients": 2}}
    model = {"name": "transformers", "options": {"source": str(base), "lora": TINY_LORA}}
    return folder, run(folder, data=data, model=model, rounds=2)


def test_an_adapter_on_its_base_predicts_what_training_judged(
    adapted: tuple[Path, dpfed.Result], tmp_path: Path
) -> None:
    folder, result = adapted
    model = dpfed.load(folder / "model", base=folder / "base")
    x = torch.from_numpy(np.load(folder / "tokens.npz")["x"])
    trained = result.model.score(result.params, x).detach()  # type: ignore[attr-defined]
    torch.testing.assert_close(model.scores(x), trained)
    untrained = result.model.initial(0)
    start = result.model.score(untrained, x).detach()  # type: ignore[attr-defined]
    assert not torch.allclose(trained, start, atol=1e-3)
    with pytest.raises(DataError, match="base=FOLDER"):
        dpfed.load(folder / "model")
    other = tiny_encoder(tmp_path / "base", seed=1)
    with pytest.raises(DataError, match="another digest"):
        dpfed.load(folder / "model", base=other)


def test_an_adapter_on_a_gpt_2_says_how_its_weights_lie(
    adapted: tuple[Path, dpfed.Result], tmp_path: Path
) -> None:
    folder, _ = adapted
    shutil.copytree(folder / "model", tmp_path / "model")
    architecture = json.loads((folder / "model/model.json").read_text())["architecture"]
    architecture["options"]["lora"]["fan_in_fan_out"] = False
    change(tmp_path / "model", architecture=architecture)
    assert dpfed.load(tmp_path / "model", base=folder / "base").module


MEGATRON = {"megatron_config": {"a": 1}, "megatron_core": "antigravity"}
HOSTILE: dict[str, dict[str, Any]] = {
    "a module to import": {"lora": {**TINY_LORA, **MEGATRON}},
    "a file that is no tensors": {"checkpoint_path": "model.pth"},
    "code of the hub": {"attn_implementation": "somebody/kernel"},
    "remote code": {"trust_remote_code": True},
    "another folder": {"subfolder": "../.."},
    "files on this disk": {"device_map": "auto", "offload_folder": "/tmp"},
    "a pattern that hangs": {"lora": {"r": 2, "target_modules": "(a+)+$"}},
    "a large rank": {"lora": {**TINY_LORA, "r": 1 << 30}},
    "many classes": {"lora": TINY_LORA, "classes": 1 << 30},
    "no table": {"lora": ["r"]},
}


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("library", ["transformers", "timm"])
def test_a_bundle_chooses_little_of_a_pretrained_model(
    adapted: tuple[Path, dpfed.Result], tmp_path: Path, case: str, library: str
) -> None:
    folder, _ = adapted
    shutil.copytree(folder / "model", tmp_path / "model")
    told = {"kind": "pretrained", "source": "base", "options": HOSTILE[case]}
    change(tmp_path / "model", architecture={**told, "library": library})
    with pytest.raises(DataError, match=r"architecture\.options"):
        dpfed.load(tmp_path / "model", base=folder / "base")
    assert "antigravity" not in sys.modules


@pytest.mark.sample(3)
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
