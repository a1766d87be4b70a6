#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A consortium to which data comes, month by month: three gates with budgets by month of arrival.

    tests/soak/arrivals.py            15 months, in a few minutes
    tests/soak/arrivals.py --short    4 months, in which a block is spent and people return

Each month patients arrive, some return, and their first visits are taken out of the file; the gates
are opened anew; terms name the last three months, by the rule of ``dpfed silo terms``, and all
silos train over Flower's messages. In the second month a training more is too dear for January:
what the officer's verdict says is spent is left out, then and later. At the end every account is
counted again from the ledger's rows, every patient's block from the months in which they came, and
``dpfed verify`` has to find each training's evidence complete.
"""

from __future__ import annotations

import datetime as dt
import math
import os
import random
import signal
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict
from tests.silo.gates import CLASSES, FEATURES, Silo, read
from tests.training.flower.local_grid import LocalGrid, become_a_server

from dpfed.accounting import gdp
from dpfed.cli.silo_text import verdict
from dpfed.core.environment import IDENTITY, LEDGER, STATE
from dpfed.core.flower_private import from_bytes, to_bytes
from dpfed.data.readers import person_tensors
from dpfed.recipes.blocks import chosen
from dpfed.recipes.flower_app import run_server
from dpfed.recipes.noise_for import monthly_epsilon
from dpfed.recipes.schema import to_toml
from dpfed.recipes.terms import write_terms
from dpfed.recipes.verify import verify_evidence
from dpfed.silo.approvals import LEDGER_FILE, Approvals
from dpfed.silo.handler import RequestHandler
from dpfed.silo.policy import load_policy

SILOS, EACH, WINDOW, LIFETIME, DELTA = 3, 12, 3, 3.0, 1e-5
HEADER = ",".join(["patient", "admitted", *(f"x{i}" for i in range(FEATURES)), "y"])


class Consortium:
    """Three silos, their patients, and the server's side."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch, self.rng = folder, patch, random.Random(5)
        self.silos = [Silo(folder / f"silo-{number}", number) for number in range(SILOS)]
        self.lines: list[dict[str, list[str]]] = [defaultdict(list) for _ in self.silos]
        self.first: list[dict[str, str]] = [{} for _ in self.silos]
        self.handlers: dict[int, RequestHandler] = {}
        self.sizes: dict[str, list[float]] = {}
        self.left_out: list[str] = []
        become_a_server(patch)

    def month(self, number: int) -> str:
        """A month passes: who comes, who returns, who is taken out; then gates are opened anew."""
        day = dt.date(2025 + number // 12, 1 + number % 12, 15)
        name = f"{day:%Y-%m}"
        now = dt.datetime.combine(day, dt.time(12), dt.UTC)
        self.patch.setattr(Approvals, "now", lambda _: now)
        for silo, lines, first in zip(self.silos, self.lines, self.first, strict=True):
            known = sorted(first)
            for each in self.rng.sample(known, min(3, len(known))):
                lines.pop(each, None)  # their first visit is deleted
                self.visit(lines, each, day)
            for at in range(EACH):
                patient = f"s{silo.number}-{name}-{at}"
                first[patient] = name
                self.visit(lines, patient, day - dt.timedelta(days=self.rng.randrange(14)))
            self.open(silo, lines)
        self.sizes[name] = [float(EACH)] * SILOS
        return name

    def visit(self, lines: dict[str, list[str]], patient: str, day: dt.date) -> None:
        values = [f"{self.rng.gauss(0, 1):.3f}" for _ in range(FEATURES)]
        cells = [patient, str(day), *values, str(self.rng.randrange(CLASSES))]
        lines[patient].append(",".join(cells))

    def open(self, silo: Silo, lines: dict[str, list[str]]) -> None:
        path = silo.folder / "ward.csv"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(
            "\n".join([HEADER, *(row for rows in lines.values() for row in rows)]) + "\n"
        )
        silo.write(
            load={"source": str(path), "options": {"y": "y", "groups": "patient"}},
            blocks={"column": "admitted", "every": "month"},
            unit="group",
            epsilon=LIFETIME,
        )
        self.handlers[silo.number] = RequestHandler(load_policy(silo.policy))
        self.handlers[silo.number].open()

    def terms(self, name: str, epsilon: float, without: list[str]) -> Path:
        recipe, path = self.folder / "recipe.toml", self.folder / f"{name}.toml"
        privacy = {"epsilon": epsilon, "noise": "keyed", "unit": "group"}
        facts = {"name": name, "method": "dp-fedgd", "rounds": 3, "privacy": privacy}
        recipe.write_text(to_toml({**facts, "evaluation": {"kind": "off"}}))
        blocks = chosen(f"last {WINDOW}", self.sizes, without)
        facts = {"dataset": "sepsis", "shape": [FEATURES], "classes": CLASSES}
        path.write_text(write_terms(recipe, **facts, blocks=blocks))  # type: ignore[arg-type]
        return path

    def refused(self, terms: Path) -> str:
        """What the first silo's officer is told; "" if it can run."""
        return verdict(self.handlers[0], read(terms)).refused

    def run(self, name: str, epsilon: float) -> None:
        """A training of the last months, without those that the officer says are spent."""
        terms = self.terms(name, epsilon, [])
        if said := self.refused(terms):
            spent = said.partition("terms without ")[2].partition(", or raise")[0].split(", ")
            self.left_out.append(f"{name} without {spent}")
            terms = self.terms(f"{name}-less", epsilon, spent)
        self.train(terms)
        print(*(self.left_out[-1:] if said else [f"{name}: all of the last {WINDOW}"]))

    def train(self, terms: Path) -> None:
        """All silos approve and train; the evidence has to be complete."""
        for silo in self.silos:
            silo.approve(terms)

        def answer(message: Message, context: Context) -> Message:
            held = self.handlers[int(context.node_config["partition-id"])]
            own = {STATE: str(held.state / "trainings"), LEDGER: str(held.state / LEDGER_FILE)}
            os.environ.update({**own, IDENTITY: ""})
            timer = signal.getitimer(signal.ITIMER_REAL)
            made = from_bytes(held.reply(to_bytes(message.content)))
            signal.setitimer(signal.ITIMER_REAL, *timer)
            return Message(made, reply_to=message)

        grid = LocalGrid(answer, {100 + n: n for n in self.handlers})  # type: ignore[arg-type]
        out = self.folder / f"out-{terms.stem}"
        config: Any = {"terms": str(terms), "out": str(out)}
        run_server(grid, Context(1, 0, {}, RecordDict(), config))
        found = verify_evidence(out)
        if found.verdict != "complete" or "inside its block" not in found.sentence:
            sys.exit(f"{terms.stem}: {found.verdict}, {found.problems}, {found.sentence}")

    def recount(self) -> dict[str, float]:
        """The largest epsilon of each block over the silos, from rows; and who is in which."""
        most: dict[str, float] = {}
        for silo, first in zip(self.silos, self.first, strict=True):
            handler, squares = self.handlers[silo.number], defaultdict[str, float](float)
            ledger = handler.ledger()
            for row in ledger.rows():
                if row.body["kind"] == "entry":
                    squares[row.body["dataset"]] += float(row.body["mu_squared"])
            if wrong := ledger.verify():
                sys.exit(wrong[0])
            ledger.close()
            for name, square in squares.items():
                epsilon = gdp.epsilon_for(DELTA, math.sqrt(square))
                most[name] = max(epsilon, most.get(name, 0.0))
            held = handler.blocks["sepsis"]
            persons = held.records.persons
            numbers = {int(person_tensors([[p]])[0]): p for p in first}  # type: ignore[arg-type]
            for number, block in zip(persons.tolist(), held.names, strict=True):  # type: ignore[union-attr]
                if block != first[numbers[number]]:
                    sys.exit(f"{numbers[number]} is in {block}, not {first[numbers[number]]}")
        return most


def main() -> None:
    months = 4 if "--short" in sys.argv else 15
    each = monthly_epsilon(WINDOW, LIFETIME, DELTA)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for name in (STATE, LEDGER, IDENTITY):
            patch.setenv(name, "")
        consortium = Consortium(Path(folder), patch)
        for number in range(months):
            name = consortium.month(number)
            consortium.run(f"month-{name}", each)
            if number == 1:
                consortium.run("dear", 1.2 * each)
        if not consortium.left_out:
            sys.exit("no block was spent")
        for name, epsilon in sorted(consortium.recount().items()):
            print(f"{name}: epsilon {epsilon:.3f} of {LIFETIME:g}")
            if epsilon > LIFETIME * (1 + 1e-6):
                sys.exit("over the budget")


if __name__ == "__main__":
    main()
