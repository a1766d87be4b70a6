#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lab/studies/participation/results/table.md: the noise in prefix sums at T = 2,000, devices 100 rounds apart.

    lab/studies/participation/participation_table.py [--amplified]

All rows have one cost: sensitivity 1 at noise 1. So an error is that of C^-1 z times the
sensitivity of all releases together.
Amplified noise has no such number. With ``--amplified`` its row is at (8, 10^-6), each device asked
with probability k / T, and is divided by the mu of that guarantee, as the others would be.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpfed.accounting import gdp
from dpfed.accounting.guarantee import epsilon_of_event
from dpfed.core.participation import Participation
from dpfed.core.sampling import Poisson
from dpfed.core.types import Adjacency, Facts, Trust, Unit
from dpfed.mechanisms.banded import banded
from dpfed.mechanisms.blt import blt
from dpfed.mechanisms.gaussian import gaussian
from dpfed.mechanisms.tree import tree
from dpfed.recipes.compare_mechanisms import unit_errors

ROUNDS, APART, TIMES = 2000, 100, (5, 10, 20)
EPSILON, DELTA = 8.0, 1e-6
FACTS = Facts(unit=Unit.CLIENT, adjacency=Adjacency.ZERO_OUT, trust=Trust.CENTRAL)
OUT = Path(__file__).parent / "results"
ROOM = 0.01  # how far above the least noise the search may end


def rows(times: int) -> dict[str, tuple[float, float, int]]:
    """Root mean square over prefixes, the last one's, and vectors that the server keeps."""
    limits = Participation(min_separation=APART, at_most=times)
    facts = replace(FACTS, participation=limits)
    made: dict[str, Any] = {
        "independent": gaussian(facts),
        "tree": tree(facts, horizon=ROUNDS),
        "banded": banded(facts, rounds=ROUNDS),
        "blt": blt(facts, rounds=ROUNDS),
        "blt, last": blt(facts, rounds=ROUNDS, error="last"),
    }
    found = {}
    for name, mechanism in made.items():
        errors, kept, _ = unit_errors(mechanism, ROUNDS)
        squared = mechanism.squared_sensitivity(ROUNDS)
        mean = math.sqrt(squared * math.fsum(errors) / ROUNDS)
        found[name] = mean, math.sqrt(squared * errors[-1]), kept
    return found


def amplified(times: int) -> tuple[float, float, int]:
    """Independent noise on a draw, over 1 / mu: a level at which PLD confirmed the target."""
    above, below = 1.5, 0.4
    while above / below > 1 + ROOM:
        middle = math.sqrt(above * below)
        mechanism = gaussian(FACTS, middle).with_sampling(Poisson(times / ROUNDS))
        keeps = epsilon_of_event(mechanism.event(ROUNDS), DELTA, Adjacency.ZERO_OUT)[0] <= EPSILON
        above, below = (middle, below) if keeps else (above, middle)
    level = above * gdp.mu_for(EPSILON, DELTA)
    return level * math.sqrt((ROUNDS + 1) / 2), level * math.sqrt(ROUNDS), 0


def main() -> None:
    table = {times: rows(times) for times in TIMES}
    if "--amplified" in sys.argv:
        for times in TIMES:
            table[times]["amplified, at epsilon 8"] = amplified(times)
    names = list(table[TIMES[0]])
    heads = " | ".join(f"k = {times}: RMSE | last" for times in TIMES)
    lines = [f"| noise | vectors | {heads} |", "|---|---:|" + "---:|---:|" * len(TIMES)]
    for name in names:
        cells = " | ".join(f"{table[t][name][0]:.2f} | {table[t][name][1]:.2f}" for t in TIMES)
        most = max(table[times][name][2] for times in TIMES)
        lines.append(f"| {name} | {most} | {cells} |")
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    plain = {str(times): found for times, found in table.items()}
    (OUT / "table.json").write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
