# SPDX-License-Identifier: Apache-2.0
"""Attacks by a model that terms name: its options, its folder, its factory, and when it is loaded.

Before: a policy with ``models = ["transformers"]`` let terms choose ``trust_remote_code``, so that
code of the model's folder ran in the owner's process before anybody had approved anything; and a
factory that was allowed let any ``model.name`` through.
"""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch

from dpfed.cli.silo_text import proposal, verdict
from dpfed.core.errors import DpfedError, RecipeError, UnsoundPlan
from dpfed.data.folder_digest import folder_digest
from dpfed.recipes import terms as written
from dpfed.recipes.terms import Terms, read_terms, with_pinned_model
from dpfed.silo import policy as policies
from dpfed.silo.handler import RequestHandler
from tests.helpers.handlers import _own_environment, enrolment, handler, order, said  # noqa: F401
from tests.helpers.policies import TODAY, policy
from tests.silo.gates import FEATURES, terms_for

CODE = """
import os
open(os.environ["PROOF"], "w").write("ran")
from transformers import PretrainedConfig, PreTrainedModel
class C(PretrainedConfig):
    model_type = "redteam"
class M(PreTrainedModel):
    config_class = C
"""


@pytest.fixture
def encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that ships code, as many on the hub do."""
    folder = tmp_path / "models/encoder"
    folder.mkdir(parents=True)
    names = {"AutoConfig": "conf.C", "AutoModelForSequenceClassification": "conf.M"}
    (folder / "config.json").write_text(json.dumps({"model_type": "redteam", "auto_map": names}))
    (folder / "conf.py").write_text(CODE)
    monkeypatch.setenv("PROOF", str(tmp_path / "proof"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # read once
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return folder


LAYOUT = [["w", [FEATURES, 3]]]


def asking(folder: Path, options: dict[str, Any], model: Path | None = None, **pins: Any) -> str:
    """Terms for a pretrained model, written by hand: a server needs no model for that."""
    tree = tomllib.loads(terms_for(folder, 3).read_text())
    tree["model"] = {"name": "transformers", "options": {"source": "encoder", **options}}
    tree["terms"] |= {"layout": LAYOUT, **pins}
    if model is not None:
        tree["terms"]["model"] = folder_digest(model)
    return tomli_w.dumps(tree)


def allowing(encoder: Path, **options: list[Any]) -> dict[str, Any]:
    listed = {"encoder": {"folder": str(encoder), "options": options}}
    return {"models": ["transformers"], "pretrained": listed}


@pytest.mark.parametrize(
    "options",
    [
        {"trust_remote_code": True},
        {"trust_remote_code": False},
        {"code_revision": "main"},
        {"lora": {"r": 64}},
        {"lora": {"r": 8, "modules_to_save": ["head"]}},
        {"lora": {}},
        {"lora": {"r": [8, 64]}},
        {"lora": {"r": True}},
        {"lora": {"r": 8.0}},
        {"weights_only": False},
        {"attn_implementation": "x"},
        {"lora.r": 8},
        {"lora": {"nested": {"trust_remote_code": True}}},
    ],
)
def test_terms_choose_no_option_that_the_policy_does_not_list(
    tmp_path: Path, encoder: Path, options: dict[str, Any]
) -> None:
    found = policy(tmp_path / "silo", **allowing(encoder, **{"lora.r": [1, 16]}))
    policies.permit(found, read_terms(asking(tmp_path, {"lora": {"r": 8}}, encoder)), TODAY)
    with pytest.raises(UnsoundPlan, match=r"pretrained\.options"):
        policies.permit(found, read_terms(asking(tmp_path, options, encoder)), TODAY)
    assert not (tmp_path / "proof").exists()


@pytest.mark.parametrize("key", ["trust_remote_code", "lora.trust_remote_code", "code_revision"])
def test_no_policy_can_list_code_of_a_model(tmp_path: Path, encoder: Path, key: str) -> None:
    with pytest.raises(RecipeError, match="without trust_remote_code"):
        policy(tmp_path, **allowing(encoder, **{key: [True, False]}))
    with pytest.raises(RecipeError, match="without trust_remote_code"):
        policy(tmp_path, factories={"a.b:c": {key: [True, False]}})
    with pytest.raises(RecipeError, match="an absolute path"):
        policy(tmp_path, **allowing(Path("models/encoder")))


@pytest.mark.parametrize("source", ["other", "..", ".", "encoder2"])
def test_terms_choose_no_other_folder(tmp_path: Path, encoder: Path, source: str) -> None:
    found = policy(tmp_path / "silo", **allowing(encoder))
    text = asking(tmp_path, {"source": source}, encoder)
    with pytest.raises(UnsoundPlan, match=r"pretrained: one of \['encoder'\]"):
        policies.permit(found, read_terms(text), TODAY)


def test_code_of_a_folder_does_not_run_even_after_approval(tmp_path: Path, encoder: Path) -> None:
    held = handler(tmp_path, **allowing(encoder))
    text = asking(tmp_path, {}, encoder)
    terms = read_terms(text)
    held.approvals.approve(terms, text, days=1, by="root")
    with pytest.raises(RecipeError, match="cannot be loaded"):
        held.training(terms.name)
    assert not (tmp_path / "proof").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda f: (f / "conf.py").write_text(CODE + "#"),
        lambda f: (f / "more.bin").write_bytes(b""),
        lambda f: (f / "config.json").rename(f / "x.json"),
        lambda f: (f / "conf.py").unlink(),
    ],
)
def test_a_models_folder_is_pinned_by_its_digest(
    tmp_path: Path, encoder: Path, change: Any
) -> None:
    """Also one that was changed after approval: the digest is looked at with each order."""
    held, text = handler(tmp_path, **allowing(encoder)), asking(tmp_path, {}, encoder)
    terms = read_terms(text)
    held.permitted(terms)
    change(encoder)
    with pytest.raises(UnsoundPlan, match=r"pretrained\.folder: encoder as terms\.model pins"):
        held.permitted(terms)
    with pytest.raises(UnsoundPlan, match=r"pretrained\.folder"):
        held.permitted(read_terms(asking(tmp_path, {})))  # no pin at all


def test_a_digest_is_of_names_contents_and_what_links_lead_to(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        (folder / "sub").mkdir(parents=True)
        (folder / "sub/a").write_text("a")
    assert folder_digest(one) == folder_digest(other)
    (other / ".cache").mkdir()
    (other / ".cache/when").write_text("now")
    (other / "sub/a").unlink()
    (tmp_path / "blob").write_text("a")
    (other / "sub/a").symlink_to(tmp_path / "blob")
    assert folder_digest(one) == folder_digest(other)
    (tmp_path / "blob").write_text("b")
    assert folder_digest(one) != folder_digest(other)
    with pytest.raises(RecipeError, match="folder on this machine"):
        folder_digest(tmp_path / "none")
    (one / "nowhere").symlink_to(tmp_path / "none")
    with pytest.raises(RecipeError, match="nowhere cannot be read"):
        folder_digest(one)
    os.mkfifo(other / "pipe")  # reading it would not end
    with pytest.raises(RecipeError, match="pipe must be a file"):
        folder_digest(other)
    (one / "nowhere").unlink()
    (one / "sub/round").symlink_to(one)
    with pytest.raises(RecipeError, match="has no end"):
        folder_digest(one)


def test_nothing_of_a_model_is_loaded_before_approval(
    tmp_path: Path, encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for the officer's page, nor for an enrolment, by hand or by rule."""
    monkeypatch.setattr(written, "sized_model", lambda *_: pytest.fail("loaded"))
    rule: dict[str, Any] = {"approve": "within-policy", "most_epsilon": 2.0, "week_epsilon": 3.0}
    text = asking(tmp_path, {}, encoder)
    for more in ({}, {**rule, "largest_model": 17}):
        held = handler(tmp_path, **allowing(encoder), **more)
        assert said(held.reply(enrolment("gated", text)))["error"] == "UnsoundPlan"
        assert held.approvals.all() == []
    held = handler(tmp_path, **allowing(encoder))
    page = proposal(held, read_terms(text))
    assert "model     encoder, 18 numbers by the terms, and nothing of it is loaded" in page
    assert verdict(held, read_terms(text)).refused == ""


@pytest.mark.slow
def test_a_pretrained_model_is_answered_from_until_its_folder_changes(tmp_path: Path) -> None:
    """From the recipe to the answer: terms as the server writes them, the owner's own folder."""
    library = pytest.importorskip("transformers")
    pytest.importorskip("peft")
    config = library.BertConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=20,
        max_position_embeddings=FEATURES,
        num_labels=3,
    )
    for owner in ("server", "silo"):
        torch.manual_seed(0)
        made = library.BertForSequenceClassification(config)
        made.save_pretrained(tmp_path / owner / "encoder")
    x = np.random.default_rng(0).integers(1, 30, (90, FEATURES))
    np.savez(tmp_path / "silo/data.npz", x=x.astype(np.float32), y=x[:, 0] % 3)
    lora = {"r": 2, "target_modules": ["query"]}
    options = {"source": "encoder", "lora": lora}
    text = terms_for(tmp_path, 3, model={"name": "transformers", "options": options}).read_text()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPFED_DATA", str(tmp_path / "server"))
        text = with_pinned_model(text)
        served = read_terms(text)
        asked = order(served)
    listed = {"lora.r": [1, 4], "lora.target_modules": ["query", "value"]}
    held = handler(tmp_path, **allowing(tmp_path / "silo/encoder", **listed))
    page = proposal(held, read_terms(text))
    assert "model     encoder, 115 numbers by the terms" in page
    held.approvals.approve(served, text, days=1, by="root")
    assert "error" not in said(held.reply(asked))
    with (tmp_path / "silo/encoder/config.json").open("a") as file:
        file.write(" ")
    assert said(held.reply(asked))["error"] == "UnsoundPlan"


def test_terms_that_do_not_say_how_large_a_model_is_are_not_approved(
    tmp_path: Path, encoder: Path
) -> None:
    tree = tomllib.loads(asking(tmp_path, {}, encoder))
    del tree["terms"]["layout"]
    held = handler(tmp_path, **allowing(encoder))
    with pytest.raises(UnsoundPlan, match="approval before a model"):
        proposal(held, read_terms(tomli_w.dumps(tree)))


# ------------------------------------------------------------------------------------- factories


def factory_terms(folder: Path, pins: dict[str, Any], **model: Any) -> Terms:
    tree = tomllib.loads(terms_for(folder, 3).read_text())
    tree["model"] = {"factory": "tests.silo.factories:linear", **model}
    tree["terms"] |= {"packages": {"tests": "digest of tests"}, **pins}
    return read_terms(tomli_w.dumps(tree))


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RequestHandler:
    monkeypatch.setattr("dpfed.recipes.terms.package_digest", lambda name: f"digest of {name}")
    return handler(
        tmp_path, models=[], factories={"tests.silo.factories:linear": {"width": [1, 8]}}
    )


@pytest.mark.parametrize("name", ["softmax", "logistic", "poisson", "transformers", "timm"])
def test_a_factory_lets_no_other_model_through(
    tmp_path: Path, listed: RequestHandler, name: str
) -> None:
    with pytest.raises(UnsoundPlan, match=r"model\.name 'network' beside"):
        listed.permitted(factory_terms(tmp_path, {"layout": LAYOUT}, name=name))
    assert listed.permitted(factory_terms(tmp_path, {"layout": LAYOUT}, name="network"))


def test_a_model_that_is_not_the_pinned_one_is_refused_when_it_is_built(
    tmp_path: Path, listed: RequestHandler
) -> None:
    """Terms that say 18 numbers, and a factory that makes 21: a policy's bound, passed by a lie."""
    for layout, fits in (
        (LAYOUT, False),
        ([["weight", [3, 6]], ["bias", [3]]], True),
        ([["bias", [3]], ["weight", [3, 6]]], False),
    ):
        terms = factory_terms(tmp_path, {"layout": layout}, name="network")
        listed.permitted(terms)
        if fits:
            assert terms.model.layout.size == 21
        else:
            with pytest.raises(RecipeError, match="of other names or shapes"):
                _ = terms.model


def test_terms_are_written_with_what_a_model_is(tmp_path: Path, listed: RequestHandler) -> None:
    made = read_terms(with_pinned_model(factory_terms(tmp_path, {}, name="network").text))
    assert made.layout is not None
    assert dict(made.layout.shapes) == {"weight": (3, 6), "bias": (3,)}
    assert listed.permitted(made)
    plain = terms_for(tmp_path, 3).read_text()
    assert with_pinned_model(plain) == plain


@pytest.mark.parametrize(
    "layout",
    [
        [],
        [["w", [0]]],
        [["w", [-1]]],
        [["w", [2**40]]],
        [["w", [1]], ["w", [2]]],
        [["", [1]]],
        [["w w", [1]]],
        [["w", [1] * 9]],
        [["x" * 300, [1]]],
    ],
)
def test_a_layout_that_cannot_be_is_refused(tmp_path: Path, layout: list[Any]) -> None:
    with pytest.raises(RecipeError, match=r"terms\.layout"):
        factory_terms(tmp_path, {"layout": layout}, name="network")


def test_a_layout_beside_a_model_of_dpfeds_own_is_refused(tmp_path: Path) -> None:
    tree = tomllib.loads(terms_for(tmp_path, 3).read_text())
    tree["terms"] |= {"layout": LAYOUT}
    with pytest.raises(DpfedError, match="model of dpfed's own"):
        read_terms(tomli_w.dumps(tree))
