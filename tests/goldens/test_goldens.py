# SPDX-License-Identifier: Apache-2.0
"""What was kept before the house was rebuilt: the same bits, the same sentences, the same files.

On a processor with other vector instructions than those the goldens were made with, float sums may
round another way: there parameters are compared to 1e-5 instead of by their digest.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dpfed.accounting.ledger.ledger import Ledger
from dpfed.core.errors import BudgetSpent
from dpfed.recipes import schema as recipes
from dpfed.recipes.run import Result, run
from tests.goldens.make import FOLDER, KEPT, spent
from tests.goldens.runs import GOLDENS, Golden, digest, in_process, over_flower
from tests.training.flower.local_grid import become_a_server

RUNS = json.loads((FOLDER / "runs.json").read_text(encoding="utf-8"))
FACTS = json.loads((KEPT / "facts.json").read_text(encoding="utf-8"))
SAME_MACHINE = RUNS["machine"]["capability"] == torch.backends.cpu.get_cpu_capability()
ENGINES = {"in-process": in_process, "flower": over_flower}


@pytest.fixture(autouse=True)
def _server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFED_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("DPFED_IDENTITY", "simulated")
    become_a_server(monkeypatch)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A copy of what was kept, that may be written to; the ledger's path is the copy's."""
    folder = tmp_path / "kept"
    shutil.copytree(KEPT, folder)
    recipe = folder / "checkpoint" / "recipe.toml"
    text = recipe.read_text(encoding="utf-8")
    recipe.write_text(text.replace("LEDGER", str(folder / "ledger.sqlite")), encoding="utf-8")
    return folder


def assert_same(params: torch.Tensor, name: str) -> None:
    golden = RUNS[name]
    if SAME_MACHINE:
        assert digest(params) == golden["digest"]
    expected = torch.tensor(golden["params"], dtype=params.dtype)
    torch.testing.assert_close(params, expected, rtol=1e-5, atol=1e-5)


def test_every_golden_has_its_run_and_every_run_its_golden() -> None:
    assert set(RUNS) - {"machine"} == set(GOLDENS)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", GOLDENS)
@pytest.mark.sample(2)
def test_a_run_gives_the_bits_and_the_sentence_of_before(name: str, engine: str) -> None:
    params, sentence = ENGINES[engine](GOLDENS[name])
    assert_same(params, name)
    assert sentence == RUNS[name]["sentence"]


def test_a_digest_sees_a_single_bit() -> None:
    params = torch.tensor(RUNS["dp-fedgd"]["params"])
    assert digest(params) == RUNS["dp-fedgd"]["digest"]
    params[0] = torch.nextafter(params[0], torch.tensor(9.0))
    assert digest(params) != RUNS["dp-fedgd"]["digest"]


# ------------------------------------------------------------------------- files of before


def assert_same_result(result: Result, kept: Path, sentence: str) -> None:
    """To the rounding of float32 sums, which were double ever after (changelog: float sums)."""
    model = result.model.layout.flatten(load_file(kept / "recipe" / "model.safetensors"))
    torch.testing.assert_close(result.params, model, rtol=1e-5, atol=1e-5)
    assert sentence == FACTS["guarantee"]


def test_a_recipe_of_before_is_read_as_it_was_and_repeats_its_run(kept: Path) -> None:
    path = kept / "recipe" / "recipe.toml"
    text = path.read_text(encoding="utf-8")
    assert recipes.dump_recipe(recipes.load_recipe(path)) == text
    result = run(path)
    assert_same_result(result, kept, result.guarantee.sentence)
    told: dict[str, Any] = json.loads((kept / "recipe" / "guarantee.json").read_text())
    figures = [(claim["epsilon"], claim["delta"]) for claim in told["claims"]]  # worded otherwise
    assert figures == [(claim.epsilon, claim.delta) for claim in result.guarantee.claims]


def test_a_checkpoint_and_a_ledger_of_before_go_on_to_the_same_end(kept: Path) -> None:
    folder = kept / "checkpoint"
    result = run(folder / "recipe.toml", resume=folder)
    assert result.guarantee.budgeted
    assert_same_result(result, kept, replace(result.guarantee, budgeted=False).sentence)
    assert [[row["round"], row["epsilon"]] for row in result.history] == FACTS["history"]
    after = spent(kept / "ledger.sqlite")
    assert after["wrong"] == []
    assert after["rows"] > FACTS["spent"]["rows"]
    assert all(after["epsilon"][key] > before for key, before in FACTS["spent"]["epsilon"].items())


def test_a_ledger_of_before_says_what_it_said_and_holds_its_budget(kept: Path) -> None:
    assert spent(kept / "ledger.sqlite") == FACTS["spent"]
    assert Ledger(kept / "ledger.sqlite").verify() == []
    recipe = recipes.load_recipe(kept / "checkpoint" / "recipe.toml", ["privacy.epsilon=30"])
    with pytest.raises(BudgetSpent, match="budget"):  # another training, beyond what is left
        run(recipe)


def test_clients_of_before_that_have_counted_nothing_do_not_go_on(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 0.1 counted releases in a named ledger only: a client cannot know what it has made.

    The server goes on from its checkpoint, and its clients refuse: begin a new training.
    """
    monkeypatch.setenv("DPFED_STATE", str(kept / "state"))
    golden: Golden = GOLDENS["dp-scaffold"]
    params, _ = over_flower(golden, checkpoint=kept / "flower")
    assert digest(params) != RUNS["dp-scaffold"]["digest"]
    assert not list((kept / "state").rglob("releases.sqlite*"))
    found = {path.name for path in (kept / "state/run/client-0").iterdir()}
    assert found == {"0.safetensors", "lock"}
