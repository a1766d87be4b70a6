# SPDX-License-Identifier: Apache-2.0
"""The default of networks: what lab/studies/networks-untuned/results has of it."""

from __future__ import annotations

import json
import math
import statistics
from statistics import stdev

from scipy.stats import t as student

from tests.claims.files import RESULTS, results_of, rows


def accuracy(name: str, rate: float, quantile: str = "") -> float:
    """Of one run of 100 rounds with a clip of 1, in percent."""
    (found,) = (
        each
        for each in rows("networks-untuned", "development.csv")
        if each["set"] == name
        and float(each["rate"]) == rate
        and (each["rounds"], each["clip"], each["quantile"]) == ("100", "1.0", quantile)
        and each["debias"] == "False"
    )
    return 100 * float(found["accuracy"])


def normalised() -> tuple[float, ...]:
    """What rows of one length gain on MNIST, at two rates."""
    return tuple(accuracy("mnist", rate, "0.5") - accuracy("mnist", rate) for rate in (0.01, 0.03))


def at_a_quantile() -> tuple[float, ...]:
    """What a clip at the 0.8 quantile gains, set by set."""
    sets = ("adult", "credit", "mnist", "fashion-mnist")
    return tuple(accuracy(name, -3.0, "0.8") - accuracy(name, -3.0) for name in sets)


def by_the_start() -> tuple[float, float]:
    """The rule beside the rate by the start: its lead on LeNet, and what it is behind on MNIST."""
    return tuple(  # type: ignore[return-value]
        sign * (accuracy(name, 0.05) - accuracy(name, -3.0))
        for sign, name in ((1, "fashion-mnist"), (-1, "mnist"))
    )


CELLS = (
    *("activity, MLP, 3", "activity, MLP, 8", "pneumonia, CNN, 3", "pneumonia, CNN, 8"),
    "CIFAR-10, ResNet, 8",
)
TUNED = ("dp-fedgd", "ema-only", "dp-fedadam")


def judged(cell: str, method: str) -> dict[int, float]:
    """Seed -> percent."""
    return {
        int(each["seed"]): 100 * float(each["accuracy"])
        for each in rows("networks-untuned", "judged.csv")
        if (each["cell"], each["method"]) == (cell, method)
    }


def row(cell: str) -> tuple[float | str, ...]:
    """Means and deviations, the best tuned method, the lead of the untuned one, its half."""
    found = {method: judged(cell, method) for method in ("untuned", *TUNED)}
    best = max(TUNED, key=lambda method: statistics.fmean(found[method].values()))
    both = [f(each.values()) for each in found.values() for f in (statistics.fmean, stdev)]
    gaps = [found["untuned"][seed] - figure for seed, figure in found[best].items()]
    half = student.ppf(0.975, len(gaps) - 1) * stdev(gaps) / math.sqrt(len(gaps))
    return (*both, best, statistics.fmean(gaps), half)


def full_batch(adjacency: str, method: str) -> tuple[float, ...]:
    """What all records in each round give, on Adult and credit."""
    return tuple(
        100 * float(each["accuracy"]) + 1e-9  # a half goes up
        for each in rows("networks-untuned", "full-batch.csv")
        if (each["adjacency"], each["method"]) == (adjacency, method)
    )


def search_seconds() -> tuple[float, ...]:
    """What the rounds of each cell's search took, and the fastest training."""
    kept = (results_of("networks-untuned") / "runs.jsonl").read_text(encoding="utf-8")
    runs = [json.loads(line) for line in kept.splitlines()]
    tried = [[r["seconds"] for r in runs if (r["cell"], r["seed"]) == (c, 1000)] for c in CELLS]
    assert {len(each) for each in tried} == {12}
    return (*(sum(each) for each in tried), min(r["seconds"] for r in runs))


def leads() -> tuple[float, ...]:
    """Of the untuned one over the best tuned method, cell by cell."""
    return tuple(float(row(cell)[-2]) for cell in CELLS)


def behind_momentum() -> tuple[float]:
    """What the untuned one is behind tuned momentum on CIFAR-10."""
    found = row("CIFAR-10, ResNet, 8")
    return (float(found[4]) - float(found[0]),)


def leads_over_gradient_descent() -> tuple[float, float]:
    """The least and the largest lead of the untuned one over tuned DP-FedGD."""
    gaps = [float(found[0]) - float(found[2]) for found in map(row, CELLS)]
    return min(gaps), max(gaps)


def row_times() -> tuple[float, ...]:
    """Network by network: the step's time over the fastest other way's, and over a plain one's."""
    kept = (RESULTS / "benchmarks" / "rows.json").read_text(encoding="utf-8")
    found = json.loads(kept)["results"]["row_time"]
    names = dict.fromkeys(each["name"] for each in found)
    by = {name: [each for each in found if each["name"] == name] for name in names}
    assert list(by) == ["rows of LeNet", "rows of ResNet", "rows of MLP", "rows of MiniLM, LoRA"]
    return tuple(
        each["measured"] / each["limit"]
        for lines in by.values()
        for each in lines
        if "fastest" in each["against"] or "not private" in each["against"]
    )
