# SPDX-License-Identifier: Apache-2.0
"""Pretrained models from folders, adapters, and adapter folders that peft reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from dpfed.core.errors import MissingExtra, RecipeError
from dpfed.core.types import Unit
from dpfed.data.batches import tensor_batches
from dpfed.data.modules import Network
from dpfed.data.pretrained import TokenIds, image_model, save_adapter, text_model
from tests.helpers.bundles import TINY_LENGTH, TINY_LORA, TINY_WORDS, tiny_encoder

WORDS, T, LORA = TINY_WORDS, TINY_LENGTH, TINY_LORA


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny encoder as its library saves it."""
    return tiny_encoder(tmp_path / "base")


def inputs(count: int = 8) -> dict[str, torch.Tensor]:
    ids = torch.randint(1, WORDS, (count, T), generator=torch.Generator().manual_seed(0))
    ids[::2, 4:] = 0
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def test_only_the_adapter_and_the_head_are_trained_and_agreed_on_by_name(folder: Path) -> None:
    one, other = (Network(text_model(folder, classes=3, lora=LORA)) for _ in range(2))
    assert one.layout == other.layout
    assert all("lora_" in name or "classifier" in name for name in one.layout.shapes)
    assert one.layout.size < sum(p.numel() for p in one.module.parameters()) / 2
    assert not one.module.training


def test_a_frozen_first_factor_is_the_same_at_all_sites_and_is_saved(
    folder: Path, tmp_path: Path
) -> None:
    """No message carries it: sites whose first factors differ would train different models."""
    peft, library = pytest.importorskip("peft"), pytest.importorskip("transformers")
    both = Network(text_model(folder, classes=3, lora=LORA))
    made = []
    for seed in (1, 2):  # two sites, with generators of their own
        torch.manual_seed(seed)
        made.append(Network(text_model(folder, classes=3, lora={**LORA, "freeze_a": True})))
    one, other = made
    assert {n for n in both.layout.shapes if "lora_A" not in n} == set(one.layout.shapes)
    assert any("lora_B" in name for name in one.layout.shapes)
    first, second = (dict(each.module.named_parameters()) for each in made)
    frozen = [name for name in first if "lora_A" in name]
    assert frozen
    assert all(torch.equal(first[n], second[n]) and bool(first[n].any()) for n in frozen)
    x, y = inputs(), torch.arange(8) % 3
    problem = one.problem(tensor_batches(x, y))
    assert one.rows_by(problem.records) == "ghost"
    step = problem.rows(one.initial(0), Unit.RECORD).clipped_sum(1.0).vector.float()
    assert other.layout == one.layout
    params = one.initial(0) - step
    base = library.BertForSequenceClassification.from_pretrained(folder)
    read = peft.PeftModel.from_pretrained(base, str(save_adapter(one, params, tmp_path / "a")))
    with torch.no_grad():
        torch.testing.assert_close(read.eval()(**x).logits, one.score(params, x))


def test_a_relative_folder_is_looked_for_where_data_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPFED_DATA", str(folder.parent))
    one, other = text_model(folder.name, classes=3), text_model(folder, classes=3)
    name = "bert.encoder.layer.0.attention.self.query.weight"
    assert torch.equal(one.state_dict()[name], other.state_dict()[name])


def test_an_adapter_is_trained_and_read_by_peft(folder: Path, tmp_path: Path) -> None:
    peft, library = pytest.importorskip("peft"), pytest.importorskip("transformers")
    model = Network(text_model(folder, classes=3, lora=LORA), chunk=4)
    x, y = inputs(), torch.arange(8) % 3
    problem = model.problem(tensor_batches(x, y))
    assert model.rows_by(problem.records) == "ghost"
    params = model.initial(0)
    for _ in range(3):
        params = params - problem.rows(params, Unit.RECORD).clipped_sum(1.0).vector.float()
    saved = save_adapter(model, params, tmp_path / "adapter")
    assert {each.name for each in saved.iterdir()} >= {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    base = library.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3)
    read = peft.PeftModel.from_pretrained(base, saved).eval()
    with torch.no_grad():
        scores = read(**x).logits
    torch.testing.assert_close(scores, model.score(params, x).detach())
    assert not torch.allclose(scores, model.score(model.initial(0) * 0, x), atol=1e-3)


def test_a_sentence_encoder_has_a_head_on_the_mean_of_its_tokens(
    folder: Path, tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    module = text_model(folder, task="pool", classes=3, lora=LORA)
    model, x = Network(TokenIds(module, padding=0)), inputs()
    assert all("lora_" in name or "head" in name for name in model.layout.shapes)
    assert model.rows_by(tensor_batches(x["input_ids"], torch.arange(8) % 3)) == "ghost"
    params = model.initial(0) + 0.1
    scores = model.score(params, x["input_ids"]).detach()
    longer = functional.pad(x["input_ids"][:, :4], (0, 1))  # what is not attended to is no matter
    shorter = model.score(params, longer).detach()
    torch.testing.assert_close(shorter[::2], scores[::2])
    saved = save_adapter(model, params, tmp_path / "adapter")
    read = peft.PeftModel.from_pretrained(text_model(folder, task="pool", classes=3), saved)
    torch.testing.assert_close(read.eval()(**x).detach(), scores)


def test_records_of_token_numbers_are_taken(folder: Path, tmp_path: Path) -> None:
    module = text_model(folder, classes=3, lora=LORA)
    wrapped = Network(TokenIds(module, padding=0))
    x = inputs()
    found = wrapped.score(wrapped.initial(0), x["input_ids"].float())
    torch.testing.assert_close(found, Network(module).score(Network(module).initial(0), x))
    assert save_adapter(wrapped, wrapped.initial(0), tmp_path / "adapter").is_dir()


@pytest.fixture
def recipe(folder: Path, tmp_path: Path) -> dict[str, Any]:
    ids = inputs(60)["input_ids"].numpy()
    np.savez(tmp_path / "tokens.npz", x=ids.astype(np.float32), y=ids[:, 0] % 3)
    model = {
        "name": "transformers",
        "options": {"source": str(folder), "lora": LORA},
        "loss": {"name": "cross-entropy", "smoothing": 0.1},
    }
    data = {
        "source": str(tmp_path / "tokens.npz"),
        "holdout": 0.3,
        "partition": {"name": "iid", "clients": 2},
    }
    privacy = {"epsilon": 8.0, "delta": 1e-3, "noise": "keyed"}
    return {"rounds": 2, "model": model, "data": data, "privacy": privacy}


def hold_the_adapter(result: Any, base: Path, written: Path) -> None:
    """peft's own reader finds what was trained."""
    peft, library = pytest.importorskip("peft"), pytest.importorskip("transformers")
    empty = library.AutoModelForSequenceClassification.from_pretrained(base, num_labels=3)
    read, x = peft.PeftModel.from_pretrained(empty, written / "adapter").eval(), inputs()
    with torch.no_grad():
        scores = read(**x).logits
    trained = result.model.score(result.params, x["input_ids"].float()).detach()
    torch.testing.assert_close(scores, trained)
    start = result.model.score(result.model.initial(0), x["input_ids"].float())
    assert not torch.allclose(scores, start, atol=1e-3)


@pytest.mark.long
def test_a_recipe_trains_an_adapter_from_a_folder(
    recipe: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    from dpfed import run

    result = run(recipe, out=tmp_path / "run")
    assert result.guarantee.epsilon <= 8.0
    assert result.rows == "per-record gradients: ghost clipping (never materialised)"
    hold_the_adapter(result, folder, tmp_path / "run")
    exact = {**recipe, "privacy": {**recipe["privacy"], "mechanism": "discrete_gaussian"}}
    assert run(exact).rows == "per-record gradients: materialised, by sampler 'alone'"


@pytest.mark.long  # CI has the same recipe in one process, above
def test_the_command_writes_an_adapter_and_says_how_rows_are_clipped(
    recipe: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    from dpfed import run
    from dpfed.recipes.schema import dump_recipe, parse

    path = tmp_path / "lora.toml"
    path.write_text(dump_recipe(parse(recipe)))
    command = [sys.executable, "-m", "dpfed.cli.main", "run", str(path), "--out", "done"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert "per-record gradients: ghost clipping (never materialised)\n" in done.stdout
    hold_the_adapter(run(recipe), folder, tmp_path / "done")  # the same bits: its noise is keyed


# ---------------------------------------------------------------------------------- what is refused


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtra, match=r"install 'dpfed\[timm\]'"):
        image_model("resnet18", classes=2)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"install 'dpfed\[text\]'"):
        text_model("somewhere", classes=2)


def test_what_cannot_be_loaded_is_said(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"cannot be loaded .*; give a folder"):
        text_model(tmp_path / "nowhere", classes=3)
    with pytest.raises(RecipeError, match=r"task.*got 'sing'"):
        text_model(folder, task="sing")
    with pytest.raises(RecipeError, match=r"LoraConfig, got .*'rank'.*; give r and target_modules"):
        text_model(folder, classes=3, lora={"rank": 2})
    plain: Any = Network(nn.Linear(2, 2))
    with pytest.raises(RecipeError, match="got a Linear"):
        save_adapter(plain, plain.initial(0), tmp_path)
