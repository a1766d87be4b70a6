#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Accuracy against epsilon under both trusts, from a study's table: what the secure sum is worth.

lab/studies/secure-sum/secure_figure.py lab/studies/secure-sum/results/final.csv lab/studies/secure-sum/results/trust.png
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt

STYLES = {
    "local": ("#d55e00", "local: the server reads each release"),
    "distributed": ("#0072b2", "distributed: it opens only the sum"),
}
MARKERS = {"DP-FedGD": ("o", "-"), "DP-FedSOFIM": ("s", "--")}


def main() -> None:
    rows = list(csv.DictReader(Path(sys.argv[1]).read_text().splitlines()))
    found: dict[tuple[str, str], dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        key = row["trust"], row["method"]
        found[key][float(row["epsilon"])].append(100 * float(row["accuracy"]))
    figure, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    for (trust, method), by_epsilon in found.items():
        color, label = STYLES[trust]
        marker, line = MARKERS[method]
        private = sorted(e for e in by_epsilon if e != float("inf"))
        axes.errorbar(
            private,
            [statistics.mean(by_epsilon[e]) for e in private],
            [statistics.stdev(by_epsilon[e]) for e in private],
            color=color,
            ls=line,
            marker=marker,
            capsize=3,
            label=f"{method}, {label}",
        )
    clear = statistics.mean(found["local", "DP-FedGD"][float("inf")])
    axes.axhline(clear, color="#666666", lw=0.8, label="DP-FedGD without noise: no privacy")
    axes.set(
        xscale="log",
        xlabel="epsilon (delta = 1e-5, replace-one record)",
        ylabel="test accuracy (%)",
    )
    axes.set_xticks([0.5, 1, 5, 10], ["0.5", "1", "5", "10"])
    axes.minorticks_off()
    axes.legend(frameon=False, loc="lower right", fontsize=8)
    target = Path(sys.argv[2])
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=150)


main()
