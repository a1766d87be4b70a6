# SPDX-License-Identifier: Apache-2.0
"""Two Flower apps made private: what lab/studies/quickstart-private/results has of it."""

from __future__ import annotations

import statistics

from tests.claims.files import rows

CELLS = ("Fashion-MNIST, CNN", "CIFAR-10, CNN", "SST-2, LoRA")
ROWS, AVERAGE = "dpfed, rows, Adam", "dpfed, DP-FedAvg"
EPOCH, STEP = "Opacus, an epoch per round", "Opacus, a step per round"
WAYS = (ROWS, EPOCH, AVERAGE, STEP)


def of(cell: str, way: str, kind: str) -> list[dict[str, str]]:
    """The runs of one way, those of a search or the last ones."""
    found = rows("quickstart-private", "runs.csv")
    return [row for row in found if (row["cell"], row["way"], row["kind"]) == (cell, way, kind)]


def line(cell: str, way: str) -> tuple[str | float, ...]:
    """Rates tried, the chosen one, accuracy with its deviation, and seconds of the processor."""
    tried = of(cell, way, "tune")
    best = max(tried, key=lambda row: float(row["accuracy"]))["rate"]
    final = [row for row in of(cell, way, "final") if row["rate"] == best]
    assert len(tried) == 4, (cell, way)
    assert len(final) == 3, (cell, way)
    figures = [100 * float(row["accuracy"]) for row in final]
    rates = ", ".join(f"{float(row['rate']):g}" for row in tried)
    seconds = statistics.fmean(float(row["cpu_seconds"]) for row in final)
    spread = statistics.stdev(figures)
    return rates, float(best), statistics.fmean(figures), spread, seconds


def lead(cell: str) -> float:
    """The better of dpfed's two ways less the better of Opacus' two."""
    ours, theirs = (
        max(float(line(cell, way)[2]) for way in pair) for pair in ((ROWS, AVERAGE), (EPOCH, STEP))
    )
    return ours - theirs


def leads() -> tuple[float, ...]:
    """Cell by cell."""
    return tuple(lead(cell) for cell in CELLS)
