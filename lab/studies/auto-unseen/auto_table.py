#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the studies auto-development and auto-unseen say, in one table each.

    lab/studies/auto-unseen/auto_table.py lab/studies/auto-unseen/results [lab/studies/auto-clear/results]

writes FOLDER/tables/summary.md and against.md from its runs: DP-FedAuto untuned beside the best of
the tuned methods, the best at lent settings, its own family tuned, and (from the second folder) the
best without privacy; its paired differences to each of them, with Holm's correction over the table;
and the same set by set, since a mean over sets hides on which it loses.
"""

from __future__ import annotations

import csv
import statistics
import sys
from pathlib import Path

from dpfed_lab.jobs import Store
from dpfed_lab.scores import Scores, scores
from dpfed_lab.significance import gap, paired_table
from dpfed_lab.study import Cell, cells, load_study
from dpfed_lab.sweep import RUNS

SHORT, LONG, OWN = "DP-FedAuto, 10 rounds", "DP-FedAuto, 30 rounds", "DP-FedAuto tuned, 30 rounds"
TUNED = ("DP-FedGD", "EMA-only", "DP-FedAdam")
LENT = ("DP-FedGD, lent", "DP-FedAdam, lent")
COLUMNS = (
    "records",
    "trust",
    "epsilon",
    "10 rounds",
    "30 rounds",
    "best tuned, 70 rounds",
    "10 less best",
    "30 less best",
    "best lent, 70 rounds",
    "own family tuned, 30 rounds",
    "regret of 30 rounds",
)


def line(found: Scores, cell: Cell) -> list[str]:
    """One cell of the study."""
    best, lent = (max(names, key=lambda n: found.mean(cell, n) or 0) for names in (TUNED, LENT))
    differences = []
    for method, other in ((SHORT, best), (LONG, best), (OWN, LONG)):
        pair = gap(found, cell, method, other)
        differences.append("-" if pair is None else f"{pair.mean:+.2f} ± {pair.std or 0:.2f}")
    return [
        *cell.values(),
        str(found.number(cell, SHORT)),
        str(found.number(cell, LONG)),
        f"{found.number(cell, best)} ({best})",
        *differences[:2],
        f"{found.number(cell, lent)} ({lent.removesuffix(', lent')})",
        str(found.number(cell, OWN)),
        differences[2],
    ]


def by_set(found: Scores, all_cells: list[Cell], clear: dict[str, str]) -> list[str]:
    """Set by set: the mean over its cells of what 10 and 30 rounds are ahead, and the regrets."""
    heads = (
        "records",
        "10 less best tuned",
        "30 less best tuned",
        "10 less best lent",
        "mean regret",
        "largest regret",
        "not private",
    )
    out = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for name in dict.fromkeys(cell["records"] for cell in all_cells):
        mine = [cell for cell in all_cells if cell["records"] == name]

        def ahead(method: str, others: tuple[str, ...], mine: list[Cell] = mine) -> str:
            best = [max(found.mean(c, n) or 0 for n in others) for c in mine]
            gaps = [(found.mean(c, method) or 0) - b for c, b in zip(mine, best, strict=True)]
            return f"{statistics.fmean(gaps):+.2f}"

        gaps = [gap(found, c, OWN, LONG) for c in mine]
        regrets = [each.mean for each in gaps if each is not None]
        out.append(
            "| "
            + " | ".join(
                [
                    name,
                    ahead(SHORT, TUNED),
                    ahead(LONG, TUNED),
                    ahead(SHORT, LENT),
                    f"{statistics.fmean(regrets):.2f}",
                    f"{max(regrets):.2f}",
                    clear.get(name, "-"),
                ]
            )
            + " |"
        )
    return out


def not_private(folder: Path | None) -> dict[str, str]:
    """Set -> accuracy (%) of a linear model without privacy, as lab/studies/auto-clear/auto_clear.py wrote it."""
    if folder is None:
        return {}
    with (folder / "accuracy.csv").open(encoding="utf-8") as file:
        return {
            row["records"]: f"{100 * float(row['accuracy']):.2f}" for row in csv.DictReader(file)
        }


def means(found: Scores, all_cells: list[Cell]) -> list[str]:
    """Over all cells: how much better or worse, and how often."""
    out = []
    for method in (SHORT, LONG):
        against = {
            name: [d.mean for c in all_cells if (d := gap(found, c, method, name))]
            for name in (*TUNED, *LENT)
        }
        best = [max(found.mean(c, n) or 0 for n in TUNED) for c in all_cells]
        ours = [found.mean(c, method) or 0 for c in all_cells]
        ahead = sum(a > b for a, b in zip(ours, best, strict=True))
        words = ", ".join(f"{statistics.fmean(v):+.2f} to {k}" for k, v in against.items())
        out.append(
            f"{method}: on average {words}; "
            f"{statistics.fmean(a - b for a, b in zip(ours, best, strict=True)):+.2f} to the best "
            f"of the three tuned ones, which it beats in {ahead} of {len(all_cells)} cells."
        )
    return out


def main(folder: Path, clear: Path | None = None) -> None:
    study = load_study(folder / "study.toml")
    rows = list(Store.open(folder / RUNS).rows.values())
    found, all_cells = scores(study, rows), [cell for cell, _ in cells(study)]
    body = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    body += ["| " + " | ".join(line(found, cell)) + " |" for cell in all_cells]
    note = (
        "Accuracy (%), mean ± standard deviation over seeds; differences paired by seed. "
        "The best tuned one is picked by its test accuracy, which favours it. Regret: its own pace "
        "and clip searched per cell, less untuned; both 30 rounds."
    )
    sets = by_set(found, all_cells, not_private(clear))
    head = [f"### {study.title}", "", *sets, "", *means(found, all_cells), ""]
    text = "\n".join([*head, *body, "", note, ""])
    (folder / "tables" / "summary.md").write_text(text, encoding="utf-8")
    against = paired_table(study, rows, baseline=LONG)
    (folder / "tables" / "against.md").write_text(against.to_markdown(), encoding="utf-8")
    print(text)


if __name__ == "__main__":
    if len(sys.argv) not in {2, 3}:
        raise SystemExit(__doc__)
    main(*map(Path, sys.argv[1:]))
