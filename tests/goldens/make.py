# SPDX-License-Identifier: Apache-2.0
"""Writes the goldens: ``python -m tests.goldens.make``, before a change that must keep them.

runs.json             by run: a digest of the final parameters, the parameters, the sentence
kept/recipe/          what ``dpfed.run(recipe, out=...)`` left: recipe, model, metrics, guarantee
kept/checkpoint/      the same recipe, stopped after 2 of 4 rounds by its own caller
kept/flower/          a Flower server's checkpoint after 1 of 3 rounds of dp-scaffold
kept/state/           what its clients keep
kept/ledger.sqlite    what the checkpoint's run has booked so far, with a budget declared
kept/facts.json       what the tests compare with
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from dpfed.accounting.ledger.ledger import Ledger
from dpfed.recipes.run import run
from dpfed.training import account as booking
from dpfed.training.checkpoint import Checkpoint
from tests.goldens.runs import GOLDENS, PRINTED, digest, in_process, over_flower
from tests.training.flower.local_grid import become_a_server

FOLDER = Path(__file__).parent
KEPT = FOLDER / "kept"
RECIPE: dict[str, Any] = {
    "name": "kept",
    "method": "dp-fedsofim",
    **PRINTED,
    "rounds": 4,
    "seed": 7,
    "data": {
        "source": "synthetic",
        "options": {"records": 300, "features": 6, "classes": 3},
        "partition": {"clients": 3},
        "holdout": 0.2,
    },
    "privacy": {"epsilon": 4.0, "noise": "keyed"},
}
BUDGET = {"dataset": "kept", "epsilon": 6.0, "delta": 1e-5}


class Stopped(Exception):
    """The process ends between two rounds."""


@contextmanager
def stopped_before(round: int) -> Iterator[None]:
    """The run within ends when it is about to ask for this round."""
    ask = Checkpoint.ask

    def last(self: Checkpoint, progress: Any) -> None:
        if progress.round == round:
            raise Stopped
        ask(self, progress)

    with pytest.MonkeyPatch.context() as patch, suppress(Stopped):
        patch.setattr(Checkpoint, "ask", last)
        yield


def make_runs() -> dict[str, Any]:
    made: dict[str, Any] = {
        "machine": {
            "capability": torch.backends.cpu.get_cpu_capability(),
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
    }
    for name, golden in GOLDENS.items():
        params, sentence = in_process(golden)
        made[name] = {"digest": digest(params), "params": params.tolist(), "sentence": sentence}
    return made


def make_kept() -> dict[str, Any]:
    """A finished run, one that was stopped, and the ledger of that one."""
    shutil.rmtree(KEPT, ignore_errors=True)
    KEPT.mkdir()
    whole = run(RECIPE, out=KEPT / "recipe")
    for name in ("convergence.png", "metrics.csv"):
        (KEPT / "recipe" / name).unlink()
    ledger = KEPT / "ledger.sqlite"
    booked = {**RECIPE, "ledger": {**BUDGET, "path": str(ledger)}}
    with stopped_before(round=2):
        run(booked, resume=KEPT / "checkpoint")
    _forget_path(KEPT / "checkpoint" / "recipe.toml", ledger)
    with stopped_before(round=1), pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPFED_STATE", str(KEPT / "state"))
        become_a_server(patch)
        over_flower(GOLDENS["dp-scaffold"], KEPT / "flower")
    for folder in ("checkpoint", "flower"):
        (KEPT / folder / "lock").unlink()
    _into_one_file(ledger)
    return {
        "guarantee": whole.guarantee.sentence,
        "history": [[row["round"], row["epsilon"]] for row in whole.history],
        "spent": spent(ledger),
    }


def _into_one_file(ledger: Path) -> None:
    booking._opened(ledger.resolve(), os.getpid()).close()
    booking._opened.cache_clear()
    file = sqlite3.connect(ledger)
    file.execute("PRAGMA journal_mode=DELETE")
    file.close()


def _forget_path(recipe: Path, ledger: Path) -> None:
    """Where the ledger lay on the machine that wrote it is the reader's to say."""
    text = recipe.read_text(encoding="utf-8")
    recipe.write_text(text.replace(str(ledger), "LEDGER"), encoding="utf-8")


def spent(path: Path) -> dict[str, Any]:
    """What the ledger says: its rows, what is wrong with them, and what each client has spent."""
    with closing(Ledger(path)) as ledger:
        return _told(ledger)


def _told(ledger: Ledger) -> dict[str, Any]:
    balance = ledger.balance()
    keys = [key for name in sorted(balance.guarantees) for key in balance.stated_for(name)]
    found = {str(k): balance.spent(k).epsilon(BUDGET["delta"], k.adjacency) for k in keys}
    return {"rows": len(ledger.rows()), "wrong": ledger.verify(), "epsilon": found}


def main() -> None:
    (FOLDER / "runs.json").write_text(json.dumps(make_runs(), indent=1) + "\n", encoding="utf-8")
    facts = make_kept()
    (KEPT / "facts.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
