#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a linear model can do without privacy, on the sets of auto-development and auto-unseen.

    DPFED_DATA=FOLDER lab/studies/auto-clear/auto_clear.py lab/studies/auto-clear/results

Multinomial logistic regression on all clients' records together, by L-BFGS to a gradient of 1e-6
(at most 500 steps); features as each study prepares them, in units of each column's deviation. The
ridge is the best of five on a tenth of the training records, which then are trained on, too. Writes
accuracy.csv (set, ridge, accuracy on the test records).
"""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path

import torch

from dpfed.recipes.federation import federation
from dpfed_lab.jobs import make_job
from dpfed_lab.study import cells, load_study

RIDGES = (0.0, 1e-5, 1e-4, 1e-3, 1e-2)
STUDY_NAMES = ("auto-development", "auto-unseen")


def fit(x: torch.Tensor, y: torch.Tensor, classes: int, ridge: float) -> torch.Tensor:
    """Weights with a last row of biases."""
    W = torch.zeros(x.shape[1], classes, dtype=torch.float64, requires_grad=True)
    steps = torch.optim.LBFGS(
        [W],
        max_iter=500,
        tolerance_grad=1e-6,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def loss() -> torch.Tensor:
        steps.zero_grad()
        found = torch.nn.functional.cross_entropy(x @ W, y) + ridge * W[:-1].square().sum()
        found.backward()  # type: ignore[no-untyped-call]
        return found

    steps.step(loss)  # type: ignore[no-untyped-call]
    return W.detach()


def right(x: torch.Tensor, y: torch.Tensor, W: torch.Tensor) -> float:
    return float(((x @ W).argmax(1) == y).double().mean())


def judge(study: str, changes: dict[str, object]) -> tuple[float, float]:
    """The ridge that was chosen, and the accuracy on test records."""
    base = load_study(study).base
    changes = {**changes, "method": "dp-fedgd", "privacy.epsilon": 1.0}
    made = federation(make_job(base, {}, changes).recipe, Path(os.environ["DPFED_DATA"]))
    if made.test is None:
        raise SystemExit(f"{study}: no test records")
    x = torch.cat([each.x for each in made.clients]).flatten(1).double()
    y = torch.cat([each.y for each in made.clients]).long()
    mean, scale = x.mean(0), x.std(0).clamp(min=1e-6)
    x, test = (_with_bias((each - mean) / scale) for each in (x, made.test.x.flatten(1).double()))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    held, kept = order[: len(y) // 10], order[len(y) // 10 :]
    classes = int(y.max()) + 1
    tried = {r: right(x[held], y[held], fit(x[kept], y[kept], classes, r)) for r in RIDGES}
    ridge = max(RIDGES, key=tried.__getitem__)
    return ridge, right(test, made.test.y.long(), fit(x, y, classes, ridge))


def _with_bias(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with (out / "accuracy.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["records", "ridge", "accuracy"])
        for name in STUDY_NAMES:
            study, done = load_study(name), set()
            for cell, changes in cells(study):
                if cell["records"] in done or "sum.name" in changes:
                    continue
                done.add(cell["records"])
                ridge, accuracy = judge(name, changes)
                writer.writerow([cell["records"], f"{ridge:g}", f"{accuracy:.4f}"])
                file.flush()
                print(cell["records"], ridge, f"{100 * accuracy:.2f} %", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
