#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Clip and rate of a network read off its architecture and the plan's noise, beside tuned ones.

    DPFED_DATA=FOLDER lab/studies/paced-networks/paced_networks.py lab/studies/paced-networks/results --workers 2

J is the root mean square norm of one score's gradient at the start, over 500 random inputs: no
record is looked at. With clip C = c J, K classes and a mean's noise level s by the plan, the rate is

    min(q / (s sqrt(T) J), cap K / (C J))

whose first half leaves noise q in a score after T steps, and whose second lets no step move a score
by more than cap K. Without that steps diverge where there is little noise (Adult stays at the
majority class in most settings). cap = 4 was read off Adult's search. Tried:
c = 1/2 with q = 1, c = 1/4 with q = 1 and 2, and the best of 12 pairs (c, rate J^2 / K) per cell on
held-out training records, which no guarantee covers. Writes runs.jsonl (a killed run goes on),
tuning.csv, judged.csv and README.md. Needs images/mnist.npz (lab/scripts/fetch_images.py).
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import platform
import statistics
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch

from dpfed.core.types import UPDATE
from dpfed.data.modules import seeded
from dpfed.data.networks import groupnorm_cnn, mlp
from dpfed.recipes.federation import federation
from dpfed.recipes.session import prepare
from dpfed_lab.jobs import Job, Store, make_job, run_jobs

ROUNDS, SEEDS, EPSILONS = 30, range(3), (1.0, 5.0)
CAP = 4.0
RULES = {"C = J/2, q = 1": (0.5, 1.0), "C = J/4, q = 1": (0.25, 1.0), "C = J/4, q = 2": (0.25, 2.0)}
SEARCHED = [(c, rate) for c in (0.1, 0.25, 0.5) for rate in (0.5, 2.0, 8.0, 32.0)]
SAMPLED = {"record_rate": 0.1, "adjacency": "zero-out"}
CENTER = {"center": "features/cifar100-test.npz", "radius": 1.0}
PROBLEMS: dict[str, tuple[dict[str, Any], str, dict[str, Any], dict[str, Any]]] = {
    "Adult, 64 tanh": (
        {"source": "tables/a9a.npz", "radius": 1.0},
        "mlp",
        {"features": 123},
        SAMPLED,
    ),
    "Fashion-MNIST's features, 64 tanh": (
        {"source": "features/fashion-mnist.npz", **CENTER},
        "mlp",
        {"features": 64, "classes": 10},
        SAMPLED,
    ),
    "MNIST, two convolutions": (
        {"source": "images/mnist.npz"},
        "groupnorm_cnn",
        {"inputs": 1, "channels": [8, 16], "pool": 2},
        {"record_rate": 0.05, "adjacency": "zero-out"},
    ),
}
"""Data, factory, its options, and what else the privacy table has."""


@cache
def gain(problem: str) -> float:
    """J: the root mean square norm of one score's gradient, over random inputs."""
    _, factory, options, _ = PROBLEMS[problem]
    generator = torch.Generator().manual_seed(0)
    if factory == "mlp":
        x = torch.randn(500, options["features"], generator=generator)
        x = x / x.norm(dim=1, keepdim=True)
    else:
        x = torch.rand(500, 1, 28, 28, generator=generator)
    make: Any = {"mlp": mlp, "groupnorm_cnn": groupnorm_cnn}[factory]
    module = seeded(lambda: make(**options), 0)
    squares = []
    for each in x:
        made = torch.autograd.grad(module(each[None])[0, 0], list(module.parameters()))
        squares.append(sum(float(g.double().square().sum()) for g in made))
    return math.sqrt(statistics.fmean(squares))


def base(problem: str, epsilon: float) -> dict[str, Any]:
    data, factory, options, privacy = PROBLEMS[problem]
    return {
        "data": {**data, "partition": {"name": "iid", "clients": 20}},
        "model": {
            "name": "network",
            "factory": f"dpfed.data.networks:{factory}",
            "options": options,
        },
        "privacy": {"epsilon": epsilon, "delta": 1e-5, "noise": "keyed", **privacy},
        "client": {"name": "gradient"},
        "server": [{"name": "scale", "rate": 1.0}],
        "rounds": ROUNDS,
        "evaluation": {"every": ROUNDS},
    }


@cache
def noise_level(problem: str, epsilon: float) -> float:
    """Of a mean by the plan, at clip 1."""
    recipe = make_job(base(problem, epsilon), {}, {"privacy.clip": 1.0}).recipe
    silos = federation(recipe, Path(os.environ["DPFED_DATA"]))
    return float(prepare(recipe, None, silos).plan.noise_std(UPDATE))


def outputs(problem: str) -> int:
    """K: how many classes there are."""
    return 10 if "MNIST" in problem else 2


def paced_rate(problem: str, epsilon: float, c: float, q: float) -> float:
    J, classes = gain(problem), outputs(problem)
    level = c * J * noise_level(problem, epsilon)
    return min(q / (level * math.sqrt(ROUNDS) * J), CAP * classes / (c * J**2))


def job(problem: str, epsilon: float, label: str, pair: tuple[float, float], **how: Any) -> Job:
    """A rule's pair is (c, q), a searched one (c, rate J^2 / K)."""
    c, second = pair
    J, classes = gain(problem), outputs(problem)
    rate = (
        second * classes / J**2 if label == "searched" else paced_rate(problem, epsilon, c, second)
    )
    labels = {
        "problem": problem,
        "epsilon": epsilon,
        "label": label,
        "c": c,
        "second": second,
        "rate": rate,
        "seed": how["seed"],
    }
    changes = {"privacy.clip": c * J, "server.0.rate": rate, **how}
    return make_job(base(problem, epsilon), labels, changes, Path(os.environ["DPFED_DATA"]))


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    names = ["problem", "epsilon", "label", "c", "second", "rate", "seed", "accuracy"]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    store = Store.open(asked.out / "runs.jsonl")

    def watch(done: int, of: int, row: dict[str, Any]) -> None:
        print(done, of, row["problem"], row["epsilon"], row["label"], row["accuracy"], flush=True)

    cells = [(problem, epsilon) for problem in PROBLEMS for epsilon in EPSILONS]
    tries = [
        job(*cell, "searched", pair, **{"seed": 1000, "data.validation": 0.1})  # type: ignore[arg-type]
        for cell in cells
        for pair in SEARCHED
    ]
    found = run_jobs(tries, store, asked.workers, watch)
    write(asked.out / "tuning.csv", found)
    best = {
        cell: max(
            (row for row in found if (row["problem"], row["epsilon"]) == cell),
            key=lambda row: row["accuracy"],
        )
        for cell in cells
    }
    finals = [
        job(*cell, label, pair, seed=seed)
        for cell in cells
        for label, pair in {**RULES, "searched": (best[cell]["c"], best[cell]["second"])}.items()
        for seed in SEEDS
    ]
    rows = run_jobs(finals, store, asked.workers, watch)
    write(asked.out / "judged.csv", rows)
    (asked.out / "README.md").write_text(table(rows), encoding="utf-8")


def table(rows: list[dict[str, Any]]) -> str:
    labels = [*RULES, "searched"]
    lines = [
        "# Clip and rate of networks from their architecture, beside searched ones",
        "",
        "Test accuracy in %, mean and standard deviation over seeds 0, 1, 2; 20 clients, local trust, one record,",
        f"{ROUNDS} rounds of DP-FedGD. The last column: what the search chose of 12 pairs, on held-out training records.",
        f"Command: `DPFED_DATA=FOLDER lab/studies/paced-networks/paced_networks.py`, {datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, "
        f"{os.cpu_count()} cores.",
        "",
        "| problem | epsilon | J | " + " | ".join(labels) + " | chosen |",
        "|---|---:|---:|" + "---:|" * len(labels) + "---|",
    ]
    for problem in PROBLEMS:
        for epsilon in EPSILONS:
            here = [row for row in rows if (row["problem"], row["epsilon"]) == (problem, epsilon)]
            words = []
            for label in labels:
                figures = [100 * row["accuracy"] for row in here if row["label"] == label]
                words.append(f"{statistics.fmean(figures):.1f} ± {statistics.stdev(figures):.1f}")
            chosen = next(row for row in here if row["label"] == "searched")
            lines.append(
                f"| {problem} | {epsilon:g} | {gain(problem):.2f} | {' | '.join(words)} | "
                f"C = {chosen['c']:g} J, rate = {chosen['second']:g} K / J^2 |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
