#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Three years of a consortium: accuracy by month, with a budget for each month of data or without.

    lab/studies/blocks/months.py --seed 0   a seed of five, some minutes of one core
    lab/studies/blocks/months.py --join     all of them: results/months.json, table and pictures
    lab/studies/blocks/months.py            table and pictures again, from results/months.json

Adult (a9a): its 32,561 training records arrive in random order over 36 months, at five silos of
equal size. In months 13 to 24 the silos change their coding: the columns of education, marital
status, occupation and relationship are written in another order, by a share of records that rises
from 0 to 1. A model is judged by the 16,281 test records, coded as in its month. All arms have the
same method (dp-fedauto, untuned), local trust, and for each record (3, 1e-5) in its whole life.
What each may spend is entered in a ledger, which refuses the rest.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpfed.accounting import gdp
from dpfed.accounting.ledger.balance import Budget
from dpfed.accounting.ledger.blocks import BlockBinding
from dpfed.accounting.ledger.conversions import LedgerKey
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.core.environment import data_folders
from dpfed.core.randomness import public_seed
from dpfed.core.types import Broadcast
from dpfed.data.datasets import Records
from dpfed.data.models import evaluate
from dpfed.data.places import find_file
from dpfed.recipes.build import plan_for, trained_model
from dpfed.recipes.model import sized_model
from dpfed.recipes.noise_for import monthly_epsilon
from dpfed.recipes.schema import parse
from dpfed.training.account import Account
from dpfed.training.inprocess import rounds
from dpfed.training.plan import Plan
from dpfed.training.reply import ClientState

MONTHS, SILOS, SEEDS, WINDOW = 36, 5, 5, 12
EACH = 180
"""Records that arrive at a silo in a month."""
EPSILON, DELTA = 3.0, 1e-5
GROUPS = ((18, 34), (39, 46), (46, 60), (60, 66))
"""Columns of a9a whose coding changes: education, marital status, occupation, relationship."""
OUT = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Arm:
    """One way to spend a budget: which months' records a month's training uses, and its epsilon."""

    name: str
    uses: Callable[[int], range]
    """By month, from 0; an empty range does not train."""
    epsilon: float
    every: str = "month"
    """What has an account of its own: month, year, or all."""


def arms() -> list[Arm]:
    monthly, slower = (monthly_epsilon(n, EPSILON, DELTA) for n in (WINDOW, MONTHS))
    return [
        Arm("a budget for each month, last 12", lambda m: range(max(0, m - 11), m + 1), monthly),
        Arm("one account, as fast", lambda m: range(m + 1), monthly, "all"),
        Arm("one account, planned for 36", lambda m: range(m + 1), slower, "all"),
        Arm("a budget for each year, monthly", lambda m: range(m - m % 12, m + 1), monthly, "year"),
        Arm(
            "a budget for each year, in December",
            lambda m: range(m - 11, m + 1) if m % 12 == 11 else range(0),
            EPSILON,
            "year",
        ),
    ]


def load() -> tuple[dict[str, Any], torch.Tensor]:
    with np.load(find_file("tables/a9a.npz", data_folders()[0])) as file:
        arrays = {name: torch.from_numpy(file[name]) for name in file.files}
    order = torch.arange(123)
    for first, end in GROUPS:  # a fixed new coding, of nobody's choice
        order[first:end] = order[first:end].flip(0)
    return arrays, order


def share(month: int) -> float:
    """The part of records in the new coding."""
    return min(1.0, max(0.0, (month - 11) / 12))


def coded(x: torch.Tensor, order: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    return torch.where(new[:, None], x[:, order], x).float()


@cache
def plan_of(epsilon: float, months: int) -> tuple[Plan, Any]:
    recipe = parse(
        {
            "method": "dp-fedauto",
            "rounds": 10,
            "data": {"low": 0.0, "high": 1.0},
            "privacy": {"epsilon": epsilon, "delta": DELTA},
            "evaluation": {"kind": "off"},
        }
    )
    model = sized_model(recipe.model, [123], 2, 0)
    plan = plan_for(recipe, [float(EACH * months)] * SILOS, model.layout)
    return plan, trained_model(recipe, plan, model)


class Owner:
    """One silo's ledger: what may still be trained."""

    def __init__(self, arm: Arm, folder: Path) -> None:
        self.arm, self.ledger = arm, Ledger(folder / "ledger.sqlite")
        self.ledger.declare(LedgerKey("adult"), Budget(EPSILON, DELTA))
        if arm.every != "all":
            self.ledger.bind_blocks("adult", BlockBinding("admitted", arm.every, "id", "", ""))

    def admits(self, plan: Plan, month: int, used: range) -> bool:
        """Enter a whole training, or refuse it."""
        names = {"month": [f"m{m}" for m in used], "year": [f"y{used[0] // 12}"], "all": []}
        blocks = tuple(names[self.arm.every])
        plan = replace(plan, blocks=blocks)
        account = Account(self.ledger, "adult", divided=False, blocks=blocks)
        if account.refusals(plan, f"month-{month}", [0]):
            return False
        for at in range(plan.rounds):
            sent = Broadcast(at, torch.zeros(1), training=f"month-{month}")
            account.confirm(account.begin(plan, sent, ClientState(0)))
        return True

    def most(self) -> float:
        """The largest epsilon that any account has spent."""
        key = LedgerKey("adult")
        balance = self.ledger.balance()
        costs = [balance.spent(key._replace(dataset=n)) for n in balance.accounts_of("adult")]
        assert self.ledger.verify() == []
        return max(cost.epsilon(DELTA, key.adjacency) for cost in costs)


def admitted() -> dict[str, Any]:
    """By arm: the months in which it may train, and what that costs a record at most."""
    found = {}
    for arm in arms():
        with tempfile.TemporaryDirectory() as folder:
            owner = Owner(arm, Path(folder))
            months = []
            for month in range(MONTHS):
                used = arm.uses(month)
                if not used:
                    continue
                if owner.admits(plan_of(arm.epsilon, len(used))[0], month, used):
                    months.append(month)
            found[arm.name] = {"months": months, "spent": owner.most(), "epsilon": arm.epsilon}
    return found


def accuracies(seed: int) -> dict[str, list[float]]:
    """By arm, the accuracy of the newest model in each month."""
    arrays, order = load()
    generator = torch.Generator().manual_seed(seed)
    lot = torch.randperm(len(arrays["y_train"]), generator=generator)[: EACH * MONTHS * SILOS]
    lot = lot.reshape(MONTHS, SILOS, EACH)
    switch = torch.rand(MONTHS, SILOS, EACH, generator=generator)
    judge = torch.rand(len(arrays["y_test"]), generator=generator)
    labels = {name: (arrays[name] > 0).long() for name in ("y_train", "y_test")}

    def records(months: range, silo: int) -> Records:
        x = [
            coded(arrays["x_train"][lot[m, silo]], order, switch[m, silo] < share(m))
            for m in months
        ]
        return Records(torch.cat(x), torch.cat([labels["y_train"][lot[m, silo]] for m in months]))

    found = {}
    for arm in arms():
        scored, newest, may = list[float](), None, planned(arm)
        for month in range(MONTHS):
            if month in may:
                used = arm.uses(month)
                plan, model = plan_of(arm.epsilon, len(used))
                problems = [model.problem(records(used, silo)) for silo in range(SILOS)]
                start = model.initial(public_seed(0, "model"))
                *_, (step, _) = rounds(plan, problems, start)
                newest = model, step.params
            scored.append(math.nan)
            if newest is not None:
                x = coded(arrays["x_test"], order, judge < share(month))
                judged = evaluate(newest[0], newest[1], Records(x, labels["y_test"]))
                scored[-1] = judged.accuracy
        found[arm.name] = scored
        print("seed", seed, arm.name, round(float(np.nanmean(scored)), 4), flush=True)
    return found


def planned(arm: Arm) -> list[int]:
    """The months in which an arm's budget suffices, by our own count; the ledger has to agree."""
    whole, each = (gdp.mu_for(e, DELTA) ** 2 for e in (EPSILON, arm.epsilon))
    spent: dict[int, float] = {}
    months = []
    for month in range(MONTHS):
        size = {"month": 1, "year": 12, "all": MONTHS}[arm.every]
        accounts = {used // size for used in arm.uses(month)}
        if accounts and all(spent.get(a, 0.0) + each <= whole * (1 + 1e-9) for a in accounts):
            spent |= {a: spent.get(a, 0.0) + each for a in accounts}
            months.append(month)
    return months


def join() -> None:
    """All seeds together, once a ledger has admitted the same trainings."""
    may = admitted()
    for arm in arms():
        if may[arm.name]["months"] != planned(arm):
            sys.exit(f"{arm.name}: the ledger admits {may[arm.name]['months']}")
    parts = [OUT / f"seed-{seed}.json" for seed in range(SEEDS)]
    seeds = [json.loads(part.read_text()) for part in parts]
    facts = {"arms": may, "epsilon": EPSILON, "delta": DELTA, "silos": SILOS, "seeds": seeds}
    (OUT / "months.json").write_text(json.dumps(facts) + "\n")
    for part in parts:
        part.unlink()


PHASES = {"before (1-12)": (0, 12), "change (13-24)": (12, 24), "after (25-36)": (24, 36)}


def table() -> str:
    """Mean accuracy by phase with its spread over seeds, and what each arm has spent."""
    facts = json.loads((OUT / "months.json").read_text())
    lines = [
        f"| arm | trainings | epsilon each | spent at most | {' | '.join(PHASES)} | month 36 |",
        "|---|---:|---:|---:|" + "---:|" * (len(PHASES) + 1),
    ]
    for name, arm in facts["arms"].items():
        by_seed = np.array([seed[name] for seed in facts["seeds"]])
        cells = []
        for first, end in [*PHASES.values(), (MONTHS - 1, MONTHS)]:
            part = by_seed[:, first:end]
            if np.isnan(part).all(axis=1).any():
                cells.append("no model")
                continue
            each = 100 * np.nanmean(part, axis=1)
            star = "*" if np.isnan(part).any() else ""
            cells.append(f"{each.mean():.1f} ± {each.std(ddof=1):.1f}{star}")
        lines.append(
            f"| {name} | {len(arm['months'])} | {arm['epsilon']:.4g} | {arm['spent']:.3g} "
            f"| {' | '.join(cells)} |"
        )
    return "\n".join(lines) + "\n"


def picture(wide: bool) -> None:
    """Accuracy by month: the mean over seeds, and their range."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    plt.rcParams |= {"svg.hashsalt": "blocks", "font.size": 11, "svg.fonttype": "none"}
    facts = json.loads((OUT / "months.json").read_text())
    figure, axes = plt.subplots(figsize=(9, 4.6) if wide else (4.4, 5.2))
    axes.axvspan(13, 24, color="#eceff2", zorder=0)
    axes.text(18.5, 0.8465, "coding changes", ha="center", color="#57606a", fontsize=10)
    months = np.arange(1, MONTHS + 1)
    colors, dashes = (
        ("#1f5f99", "#b3261e", "#c77700", "#2e7d4f", "#7a4fa3"),
        ("-", "--", "-.", ":", "-"),
    )
    for name, color, dash in zip(facts["arms"], colors, dashes, strict=True):
        by_seed = np.array([seed[name] for seed in facts["seeds"]])
        axes.plot(months, by_seed.mean(axis=0), dash, color=color, label=name, linewidth=1.8)
        axes.fill_between(
            months, by_seed.min(axis=0), by_seed.max(axis=0), color=color, alpha=0.15, linewidth=0
        )
    axes.set(xlabel="month", ylabel="accuracy on that month's test records", xlim=(1, MONTHS))
    axes.set_ylim(0.765, 0.85)
    axes.spines[["top", "right"]].set_visible(False)
    above: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "frameon": False}
    axes.legend(ncols=2 if wide else 1, fontsize=9.5, **above)
    figure.tight_layout()
    target = Path(__file__).parents[3] / f"docs/images/months{'' if wide else '-narrow'}.svg"
    figure.savefig(target, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    match sys.argv[1:]:
        case ["--seed", seed]:
            (OUT / f"seed-{seed}.json").write_text(json.dumps(accuracies(int(seed))))
            return
        case ["--join"]:
            join()
    (OUT / "months.md").write_text(table())
    for wide in (True, False):
        picture(wide)


if __name__ == "__main__":
    main()
