#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Networks with nothing to tune: minibatches, Adam and a rate from the rounds, beside tuned ones.

    DPFED_DATA=FOLDER lab/studies/networks-untuned/networks_untuned.py OUT --work DIR [--seeds 5]

One site, local trust, one record by zero-out, each record drawn with probability 0.1 in each of 100
rounds. The untuned recipe (examples/recipes/own-network.toml) was chosen on Adult, credit, MNIST and
Fashion-MNIST (development.py), and frozen before any record of the cells below was read. Beside it:
three methods, each with the same TRIALS rates per cell, chosen on a tenth of the training records,
which no guarantee covers. With one site DP-FedAvg is DP-FedGD with more steps; momentum stands in.

DIR gets subsets of the data (public rows of it, drawn once). Writes runs.jsonl (a killed run goes
on), tuning.csv, judged.csv and README.md. Needs images/cifar10.npz (lab/scripts/fetch_images.py),
pneumoniamnist.npz and tables/har.npz.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import platform
import statistics
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from dpfed_lab.jobs import Job, Row, Store, make_job, run_jobs

ROUNDS, RATE_OF_DRAWS = 100, 0.1
UNTUNED = "untuned"
ADAM = {"name": "adam", "rate": 1.0, "beta1": 0.9, "beta2": 0.99}
SERVERS: dict[str, list[dict[str, Any]]] = {
    UNTUNED: [ADAM, {"name": "pace", "strength": 0.5}],
    "dp-fedgd": [{"name": "scale", "rate": 1.0}],
    "ema-only": [{"name": "ema", "beta": 0.9, "corrected": True}, {"name": "scale", "rate": 1.0}],
    "dp-fedadam": [ADAM],
}
TRIALS: dict[str, tuple[str, list[float]]] = {
    "dp-fedgd": ("server.0.rate", [0.3, 1.0, 3.0, 10.0]),
    "ema-only": ("server.1.rate", [0.3, 1.0, 3.0, 10.0]),
    "dp-fedadam": ("server.0.rate", [0.001, 0.003, 0.01, 0.03]),
}
CNN = {
    "name": "network",
    "factory": "dpfed.data.networks:groupnorm_cnn",
    "options": {"inputs": 1, "classes": 2, "channels": [8, 16], "pool": 2},
}
MLP = {
    "name": "network",
    "factory": "dpfed.data.networks:mlp",
    "options": {"features": 1152, "classes": 6},
}
RESNET = {
    "name": "network",
    "factory": "dpfed_lab.benchmarks.row_time:resnet",
    "options": {"widths": [8, 16, 32]},
}
CELLS: dict[str, tuple[str, dict[str, Any], float]] = {
    "activity, MLP, 3": ("activity.npz", MLP, 3.0),
    "activity, MLP, 8": ("activity.npz", MLP, 8.0),
    "pneumonia, CNN, 3": ("pneumonia.npz", CNN, 3.0),
    "pneumonia, CNN, 8": ("pneumonia.npz", CNN, 8.0),
    "CIFAR-10, ResNet, 8": ("cifar10.npz", RESNET, 8.0),
}
"""File in DIR, model, epsilon."""


def subsets(root: Path, work: Path) -> None:
    """The records of this study: 5,000 images of CIFAR-10; the other two sets whole."""
    work.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(39)
    if not (work / "pneumonia.npz").exists():
        found = np.load(root / "pneumoniamnist.npz")
        _save(work / "pneumonia.npz", *(found[name] for name in NAMES))
    if not (work / "activity.npz").exists():
        found = np.load(root / "tables/har.npz")
        x, y, part = (found[name] for name in ("x", "y", "split"))
        x = np.tanh(x.astype(np.float32).reshape(len(x), -1)) / 12  # public: a norm of 3 at most
        test = part == 1
        _save(work / "activity.npz", x[~test], y[~test], x[test], y[test])
    if not (work / "cifar10.npz").exists():
        found = np.load(root / "images/cifar10.npz")
        x, y, x_test, y_test = (found[name] for name in NAMES)
        kept, judged = rng.permutation(len(x))[:5000], rng.permutation(len(x_test))[:2000]
        _save(work / "cifar10.npz", x[kept], y[kept], x_test[judged], y_test[judged])


NAMES = ("x_train", "y_train", "x_test", "y_test")


def _save(path: Path, *arrays: Any) -> None:
    np.savez(path, **dict(zip(NAMES, arrays, strict=True)))


def job(cell: str, method: str, rate: float | None, work: Path, **more: Any) -> Job:
    source, model, epsilon = CELLS[cell]
    base = {
        "data": {"source": source, "partition": {"name": "iid", "clients": 1}},
        "model": model,
        "privacy": {
            "epsilon": epsilon,
            "delta": 1e-5,
            "noise": "keyed",
            "adjacency": "zero-out",
            "record_rate": RATE_OF_DRAWS,
        },
        "client": {"name": "gradient"},
        "server": SERVERS[method],
        "rounds": ROUNDS,
        "evaluation": {"every": ROUNDS},
    }
    changes = {} if rate is None else {TRIALS[method][0]: rate}
    labels = {"cell": cell, "method": method, "rate": rate, "seed": more["seed"]}
    return make_job(base, labels, {**changes, **more}, work)


def holm(ps: list[float]) -> list[float]:
    """Holm's correction, in the order given."""
    order, found, least = sorted(range(len(ps)), key=ps.__getitem__), [0.0] * len(ps), 0.0
    for place, at in enumerate(order):
        least = max(least, min(1.0, (len(ps) - place) * ps[at]))
        found[at] = least
    return found


def write(path: Path, rows: list[Row]) -> None:
    names = ["cell", "method", "rate", "seed", "accuracy"]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def table(rows: list[Row], tuning: list[Row]) -> str:
    """Accuracies, and the untuned recipe less the best tuned method of each cell."""
    lines = [
        "| cell, epsilon | "
        + " | ".join(SERVERS)
        + " | best tuned | untuned less best | p, Holm |",
        "|---|" + "---:|" * len(SERVERS) + "---|---:|---:|",
    ]
    cells = [cell for cell in CELLS if any(row["cell"] == cell for row in rows)]
    found: list[tuple[str, str, float, float, float]] = []
    for cell in cells:
        by = {m: _by_seed(rows, cell, m) for m in SERVERS}
        best = max(TRIALS, key=lambda m: statistics.fmean(by[m].values()))
        gaps = [100 * (by[UNTUNED][s] - by[best][s]) for s in sorted(by[best])]
        mean, spread = statistics.fmean(gaps), statistics.stdev(gaps)
        df = len(gaps) - 1
        half = float(student.ppf(0.975, df)) * spread / math.sqrt(len(gaps))
        p = (
            float(2 * student.sf(abs(mean) / (spread / math.sqrt(len(gaps))), df))
            if spread
            else 1.0
        )
        words = " | ".join(_spread(by[m]) for m in SERVERS)
        found.append((f"| {cell} | {words} | {best}", "", mean, half, p))
    for line, p in zip(found, holm([each[4] for each in found]), strict=True):
        lines.append(f"{line[0]} | {line[2]:+.1f} ± {line[3]:.1f} | {p:.2f} |")
    del tuning
    return "\n".join(lines) + "\n"


def _by_seed(rows: list[Row], cell: str, method: str) -> dict[int, float]:
    here = [row for row in rows if (row["cell"], row["method"]) == (cell, method)]
    return {row["seed"]: row["accuracy"] for row in here}


def _spread(found: dict[int, float]) -> str:
    figures = [100 * each for each in found.values()]
    return f"{statistics.fmean(figures):.1f} ± {statistics.stdev(figures):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--cells", nargs="*", default=list(CELLS))
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    subsets(Path(os.environ["DPFED_DATA"]), asked.work)
    store = Store.open(asked.out / "runs.jsonl")

    def watch(done: int, of: int, row: Row) -> None:
        print(done, of, row["cell"], row["method"], row["rate"], row["accuracy"], flush=True)

    tuning: list[Row] = []
    judged: list[Row] = []
    for cell in asked.cells:
        held = {"seed": 1000, "data.validation": 0.1}
        tries = [
            job(cell, method, rate, asked.work, **held)
            for method, (_, rates) in TRIALS.items()
            for rate in rates
        ]
        found = run_jobs(tries, store, asked.workers, watch)
        tuning += found
        best = {
            method: max(
                (row for row in found if row["method"] == method), key=lambda row: row["accuracy"]
            )["rate"]
            for method in TRIALS
        }
        finals = [
            job(cell, method, best.get(method), asked.work, seed=seed)
            for seed in range(asked.seeds)
            for method in SERVERS
        ]
        judged += run_jobs(finals, store, asked.workers, watch)
        write(asked.out / "tuning.csv", tuning)
        write(asked.out / "judged.csv", judged)
        when = f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {os.cpu_count()} cores"
        (asked.out / "table.md").write_text(table(judged, tuning) + f"\n{when}\n")


if __name__ == "__main__":
    main()
