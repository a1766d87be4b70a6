#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a model's size costs: accuracy beside bytes, seconds and memory, as a table and a figure.

    python -m dpfed_lab.benchmarks dimension --json lab/studies/dimension/results/benchmark.json
    lab/studies/dimension/dimension_cost.py lab/studies/dimension/results lab/studies/dimension-newton/results

reads the accuracies of the studies (final.csv) and what lab/dpfed_lab/benchmarks/dimension.py measured. Into the
first folder it writes tables/cost.csv, tables/cost.md and figures/cost.png. By method and size:

    accuracy   the mean over seeds; empty where no study has it
    sent       bytes that one client sends in a training: 4 for each number that is due
    seconds    processor time of one client and of the server in a training, 1,000 records
    memory     bytes at the peak of a client or of the server
    computed   whether seconds and memory were computed from a smaller size, not measured
"""

from __future__ import annotations

import csv
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt

from dpfed.data.models import Linear
from dpfed.recipes.build import plan_for
from dpfed.recipes.methods import markdown_table
from dpfed_lab.jobs import make_job
from dpfed_lab.study import load_study

CLASSES, CLIENTS, RECORDS = 10, 10, 1200.0
LINES = {
    "DP-FedGD": ("dp-fedgd", "#999999", "o"),
    "EMA-only": ("ema-only", "#56b4e9", "s"),
    "DP-FedAdam": ("dp-fedadam", "#0072b2", "^"),
    "DP-FedSOFIM": ("dp-fedsofim", "#d55e00", "D"),
    "DP-FedFC": ("dp-fedfc", "#e69f00", "v"),
    "DP-FedAuto": ("dp-fedauto", "#009e73", "P"),
    "DP-FedNew": ("dp-fednew", "#cc79a7", "X"),
    "FedNewton": ("fednewton", "#000000", "h"),
    "DP-FedAdam, 5 rounds": ("dp-fedadam", "#0072b2", "2"),
}
NEWTON = {"DP-FedNew": "DP-FedNew", "FedNewton": "FedNewton", "DP-FedAdam, 5 rounds": "DP-FedAdam"}
"""Lines of the study dimension-newton -> the methods' labels in it."""
HEAD = ("method", "parameters", "rounds", "accuracy", "sent", "seconds", "memory", "computed")
Row = dict[str, Any]


def accuracies(folder: Path) -> dict[tuple[str, int], float]:
    """Method and parameters -> the mean over seeds, percent."""
    found: dict[tuple[str, int], list[float]] = {}
    with (folder / "final.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key = row["method"], int(row["parameters"].replace(",", ""))
            found.setdefault(key, []).append(100 * float(row["accuracy"]))
    return {key: statistics.fmean(values) for key, values in found.items()}


def sent(study: str, method: str, features: int) -> tuple[int, int]:
    """Rounds of a training, and the bytes that a client sends in it."""
    source = load_study(study)
    changes = next(each.set for each in source.methods if each.label == method)
    recipe = make_job(source.base, {}, changes).recipe
    layout = Linear("softmax", features, CLASSES).layout
    plan = plan_for(recipe, [RECORDS] * CLIENTS, layout)
    size = layout.size
    due = (plan.size(name, size) for at in range(plan.rounds) for name in plan.due(at))
    return plan.rounds, 4 * sum(due)


def seconds(found: dict[str, Any], rounds: int) -> float:
    """Of a training: the rounds that were measured, and the last of them for all others."""
    if "computed" in found:
        return rounds * float(found["seconds"])
    both = zip(found["client_seconds"], found["server_seconds"], strict=True)
    taken = [client + server for client, server in both]
    return float(sum(taken[:rounds]) + (rounds - len(taken)) * taken[-1])


def table(folders: dict[str, Path]) -> list[Row]:
    """One row per method and size."""
    report = json.loads((folders["dimension"] / "benchmark.json").read_text(encoding="utf-8"))
    lines = [each["detail"] for each in report["results"]["dimension"] if each["detail"]]
    measured = {(line["method"], line["parameters"]): line for line in lines}
    reached = {name: accuracies(folder) for name, folder in folders.items()}
    rows = []
    for label, (method, _, _) in LINES.items():
        study = "dimension-newton" if label in NEWTON else "dimension"
        name = NEWTON.get(label, label)
        for key in (key for key in measured if key[0] == method):
            found, accuracy = measured[key], reached[study].get((name, key[1]), "")
            if "rounds" in label and not accuracy:
                continue
            rounds, numbers = sent(study, name, found["features"])
            figures = (
                label,
                key[1],
                rounds,
                accuracy,
                numbers,
                seconds(found, rounds),
                found["memory"],
                "computed" in found,
            )
            rows.append(dict(zip(HEAD, figures, strict=True)))
    return rows


def markdown(rows: list[Row]) -> str:
    """The table for people."""
    cells = [
        [
            row["method"],
            f"{row['parameters']:,}",
            str(row["rounds"]),
            f"{row['accuracy']:.2f}" if row["accuracy"] != "" else "-",
            f"{row['sent'] / 1e6:.3g}",
            f"{row['seconds']:.3g}{' (computed)' if row['computed'] else ''}",
            f"{row['memory'] / 1e6:.3g}{' (computed)' if row['computed'] else ''}",
        ]
        for row in rows
    ]
    head = [
        "method",
        "parameters",
        "rounds",
        "accuracy (%)",
        "sent by a client (MB)",
        "processor seconds, client + server",
        "peak memory (MB)",
    ]
    return "\n".join(markdown_table(head, cells)) + "\n"


def draw(rows: list[Row], path: Path) -> None:
    """Accuracy against bytes and seconds; memory against the number of parameters."""
    figure, axes = plt.subplots(1, 3, figsize=(13.5, 4.8), layout="constrained")
    for label, (_, color, marker) in LINES.items():
        mine = [row for row in rows if row["method"] == label]
        known = [row for row in mine if row["accuracy"] != ""]
        style: dict[str, Any] = {"color": color, "marker": marker, "ms": 5, "lw": 1.2}
        for axis, what in ((axes[0], "sent"), (axes[1], "seconds")):
            scale = 1e6 if what == "sent" else 1.0
            axis.plot(
                [row[what] / scale for row in known], [row["accuracy"] for row in known], **style
            )
        if "rounds" in label:
            axes[2].plot([], [], label=label, **style)
            continue
        axes[2].plot(
            [row["parameters"] for row in mine],
            [row["memory"] / 1e6 for row in mine],
            label=label,
            **style,
        )
        hollow = [row for row in mine if row["computed"]]
        axes[2].plot(
            [row["parameters"] for row in hollow],
            [row["memory"] / 1e6 for row in hollow],
            ls="",
            marker=marker,
            ms=5,
            mfc="white",
            mec=color,
            zorder=3,
        )
    _slopes(axes[2])
    axes[0].set(
        xscale="log",
        xlabel="sent by a client in a training (MB)",
        ylabel="test accuracy (%)",
        title="Accuracy against bytes",
    )
    axes[1].set(
        xscale="log",
        xlabel="processor seconds, a client and the server",
        title="Accuracy against seconds",
    )
    axes[2].set(
        xscale="log",
        yscale="log",
        xlabel="parameters d",
        ylabel="peak memory (MB)",
        title="Memory (hollow: computed, not run)",
    )
    figure.legend(loc="outside lower center", ncols=5, frameon=False)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=90)


def _slopes(axis: Any) -> None:
    """Grey lines: 4 float32 vectors of d, one float64 matrix of d x d."""
    ends = (650, 20_010)
    for power, unit, words in ((1, 16, "4 vectors"), (2, 8, "one d x d matrix")):
        at = [unit * end**power / 1e6 for end in ends]
        axis.plot(ends, at, color="#bbbbbb", lw=0.8, ls="--", zorder=0)
        axis.annotate(
            words,
            (ends[0], at[0]),
            (2, -9),
            textcoords="offset points",
            fontsize=7,
            color="#777777",
        )


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folders = dict(zip(("dimension", "dimension-newton"), map(Path, sys.argv[1:]), strict=True))
    rows = table(folders)
    with (folders["dimension"] / "tables/cost.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, HEAD, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    (folders["dimension"] / "tables/cost.md").write_text(markdown(rows), encoding="utf-8")
    draw(rows, folders["dimension"] / "figures/cost.png")


if __name__ == "__main__":
    main()
