#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The seven pictures of results/README.md, from the final runs that are committed.

    lab/scripts/results_figures.py [results/images]

``FIGURES`` has two functions for each: one reads the runs and returns the points, the other draws
them. The points stand in the picture's own description, too: tests/test_results.py compares them
with the runs. One width fits a page and a telephone.
"""

from __future__ import annotations

import csv
import json
import statistics
import sys
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt

from dpfed_lab.figures import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILION
from dpfed_lab.jobs import diverged

LAB = Path(__file__).resolve().parents[1]
WIDTH = 4.9
"""Inches: 470 pixels of a page, and still legible on a telephone."""
EPSILONS = ("0.5", "1", "5", "10")
TUNED = ("DP-FedGD", "EMA-only", "DP-FedAdam")
DARK = "#444444"
plt.rcParams.update(
    {
        "svg.hashsalt": "dpfed",
        "font.size": 9.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 9.5,
        "legend.fontsize": 9,
        "legend.frameon": False,
    }
)

Points = dict[str, Any]
"""What a picture shows: lists of numbers, or groups of them, by name."""


@cache
def runs(folder: str, method: str = "") -> list[dict[str, str]]:
    """The final runs of a folder that did not diverge, of one method or of all."""
    if method:
        return [row for row in runs(folder) if row["method"] == method]
    with (LAB / "studies" / folder / "results/final.csv").open(
        newline="", encoding="utf-8"
    ) as file:
        return [row for row in csv.DictReader(file) if not diverged(row)]


def mean(folder: str, method: str, **cell: str) -> float:
    """Test accuracy in percent, over seeds."""
    return statistics.fmean(
        100 * float(row["accuracy"])
        for row in runs(folder, method)
        if all(row[key] == value for key, value in cell.items())
    )


def lead(folder: str, method: str, other: str = "DP-FedGD", **cell: str) -> float:
    return mean(folder, method, **cell) - mean(folder, other, **cell)


def committed(folder: str) -> bool:
    return (LAB / "studies" / folder / "results/final.csv").exists()


# ------------------------------------------------------------------------ each method is tuned

METHODS = (
    "EMA-only",
    "DP-FedAdam",
    "DP-FedAvg",
    "DP-AdaFedProx",
    "DP-FedYogi",
    "DP-FedFC",
    "DP-FedSOFIM",
    "DP-SCAFFOLD",
    "DP-FTRL",
)


def tuned_points() -> Points:
    """Points beside DP-FedGD: sofim-wide (raw features, sum), sofim-fair."""
    at = {"features": "raw", "weights": "sum"}
    found: Points = {
        f"CIFAR-10, epsilon {e}": {m: lead("sofim-wide", m, epsilon=e, **at) for m in METHODS}
        for e in ("0.5", "5")
    }
    found["Fashion-MNIST, epsilon 10"] = {
        m: lead("sofim-fair", m, records="Fashion-MNIST", epsilon="10") for m in TUNED[1:]
    }
    return found


def tuned(points: Points) -> Any:
    figure, ax = plt.subplots(figsize=(WIDTH, 3.6), layout="constrained")
    styles = (("o", VERMILION), ("s", BLUE), ("D", GREEN))
    for row, ((label, by_method), (marker, color)) in enumerate(
        zip(points.items(), styles, strict=True)
    ):
        places = [len(METHODS) - METHODS.index(m) + 0.2 - 0.2 * row for m in by_method]
        ax.plot(list(by_method.values()), places, marker, color=color, ms=6, label=label)
    ax.set_yticks(range(len(METHODS), 0, -1), METHODS)
    _beside(ax, "points beside DP-FedGD")
    ax.legend(loc="lower left", bbox_to_anchor=(-0.3, 1), ncols=2, columnspacing=1)
    return figure


# --------------------------------------------------------------------------- nothing is tuned


def untuned_points() -> Points:
    """By data set: an untuned line less the best tuned one, in every cell."""
    names, ours = ("records", "trust", "epsilon"), "DP-FedAuto, 10 rounds"
    found: Points = {ours: {}}
    for values in dict.fromkeys(tuple(row[name] for name in names) for row in runs("auto-unseen")):
        cell = dict(zip(names, values, strict=True))
        best = max(mean("auto-unseen", method, **cell) for method in TUNED)
        by_cell = found[ours].setdefault(cell["records"], {})
        by_cell[f"{cell['trust']} {cell['epsilon']}"] = mean("auto-unseen", ours, **cell) - best
    if committed("sofim-readings"):
        found["DP-FedSOFIM, 70 rounds"] = {
            images: {
                e: mean("sofim-readings", "DP-FedSOFIM, untuned", images=images, epsilon=e)
                - max(mean("sofim-readings", m, images=images, epsilon=e) for m in TUNED)
                for e in EPSILONS
            }
            for images in dict.fromkeys(row["images"] for row in runs("sofim-readings"))
        }
    return found


def untuned(points: Points) -> Any:
    lines = [
        (label, records, cells)
        for label, by_set in points.items()
        for records, cells in sorted(by_set.items(), key=_mean_of, reverse=True)
    ]
    figure, ax = plt.subplots(figsize=(WIDTH, 1.3 + 0.27 * len(lines)), layout="constrained")
    colors = dict(zip(points, (BLUE, VERMILION), strict=False))
    for place, (label, _, cells) in zip(range(len(lines), 0, -1), lines, strict=True):
        ax.plot(
            list(cells.values()),
            [place] * len(cells),
            "o",
            color=colors[label],
            alpha=0.3,
            ms=5,
            mec="none",
        )
        ax.plot(_mean_of(("", cells)), place, "D", color=colors[label], ms=7)
    for label, color in colors.items():
        ax.plot([], [], "D", color=color, ms=7, label=label)
    ax.set_yticks(range(len(lines), 0, -1), [records for _, records, _ in lines])
    _beside(ax, "points beside the best tuned method (pale: each cell)")
    ax.legend(loc="lower left", bbox_to_anchor=(-0.36, 1))
    return figure


def _mean_of(item: tuple[str, dict[str, float]]) -> float:
    return statistics.fmean(item[1].values())


# ------------------------------------------------------------------- DP-FedSOFIM and DP-FedGD

FAIR = {
    "printed, rho 10": "DP-FedSOFIM, rho 10",
    "printed, rho 1": "DP-FedSOFIM, rho 1",
    "EMA-only": "EMA-only",
}
READINGS = {
    "printed, searched": "DP-FedSOFIM, printed",
    "momentum, searched": "DP-FedSOFIM, momentum",
    "momentum, untuned": "DP-FedSOFIM, untuned",
    "EMA-only": "EMA-only",
}


def readings_points() -> Points:
    """Lines of DP-FedSOFIM less DP-FedGD by epsilon: sofim-readings, or sofim-fair until then."""
    folder, column, lines = ("sofim-fair", "records", FAIR)
    if committed("sofim-readings"):
        folder, column, lines = ("sofim-readings", "images", READINGS)
    return {
        data: {
            label: [lead(folder, method, epsilon=e, **{column: data}) for e in EPSILONS]
            for label, method in lines.items()
        }
        for data in ("CIFAR-10", "Fashion-MNIST")
    }


def readings(points: Points) -> Any:
    figure, axes = plt.subplots(1, 2, figsize=(WIDTH, 2.9), layout="constrained", sharey=True)
    styles = {
        "printed, rho 10": ("o-", VERMILION),
        "printed, rho 1": ("o:", ORANGE),
        "printed, searched": ("o--", ORANGE),
        "momentum, searched": ("s-", VERMILION),
        "momentum, untuned": ("D-", PURPLE),
        "EMA-only": ("^--", BLUE),
    }
    for ax, (data, lines) in zip(axes, points.items(), strict=True):
        for label, values in lines.items():
            style, color = styles[label]
            ax.plot(range(len(EPSILONS)), values, style, color=color, ms=5, label=label)
        ax.axhline(0, color=BLACK, lw=0.8)
        ax.set_xticks(range(len(EPSILONS)), EPSILONS)
        ax.set(title=data, xlabel="epsilon")
    axes[0].set_ylabel("points beside DP-FedGD")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=2)
    return figure


# ------------------------------------------------------------------------- a client's curvature


def curvature_points() -> Points:
    """DP-FedFC less DP-FedGD and less DP-FedAdam, records protected."""
    sets = {"Fashion": "fednew-fashion", "Adult": "fednew-adult"}
    return {
        f"{name}, {clients} clients, epsilon {e}": {
            other: lead(folder, "DP-FedFC", other, epsilon=e, setting=f"{clients} clients, records")
            for other in ("DP-FedGD", "DP-FedAdam")
        }
        for name, folder in sets.items()
        for e in ("1", "10")
        for clients in ("10", "100")
    }


def curvature(points: Points) -> Any:
    figure, ax = plt.subplots(figsize=(WIDTH, 3.1), layout="constrained")
    places = range(len(points), 0, -1)
    for other, marker, color in (("DP-FedGD", "o", GREY), ("DP-FedAdam", "D", GREEN)):
        ax.plot(
            [each[other] for each in points.values()],
            list(places),
            marker,
            color=color,
            ms=7,
            label=f"DP-FedFC less {other}",
        )
    ax.set_yticks(list(places), list(points))
    _beside(ax, "points")
    ax.legend(loc="lower left", bbox_to_anchor=(-0.6, 1), ncols=2, columnspacing=1)
    return figure


# ---------------------------------------------------------------------------------- secure sum


def secure_points() -> Points:
    found: Points = {
        trust: [mean("secure-sum", "DP-FedGD", epsilon=e, trust=trust) for e in EPSILONS]
        for trust in ("distributed", "local")
    }
    return {**found, "none": [mean("secure-sum", "DP-FedGD", epsilon="inf", trust="local")]}


def secure(points: Points) -> Any:
    figure, ax = plt.subplots(figsize=(WIDTH, 2.7), layout="constrained")
    ax.axhline(points["none"][0], color=DARK, ls=":", label="no privacy")
    for trust, style, color, label in (
        ("distributed", "o-", BLUE, "secure sum: shared noise"),
        ("local", "s--", VERMILION, "each client adds all noise"),
    ):
        ax.plot(range(len(EPSILONS)), points[trust], style, color=color, label=label)
    for place, (up, low) in enumerate(zip(points["distributed"], points["local"], strict=True)):
        ax.annotate(
            f"+{up - low:.1f}",
            (place, low),
            (0, -16),
            textcoords="offset points",
            ha="center",
            color=BLUE,
        )
    ax.set_xticks(range(len(EPSILONS)), EPSILONS)
    ax.set(xlabel="epsilon", ylabel="test accuracy (%)", xlim=(-0.3, 3.3))
    ax.set_ylim(bottom=points["local"][0] - 1)
    ax.legend(loc="lower right")
    return figure


# ----------------------------------------------------------------------------- correlated noise

NOISES = {"banded": "banded, turns", "BLT": "BLT, turns", "tree": "tree (DP-FTRL), turns"}


def noise_points() -> Points:
    """Points beside independent noise: devices that take turns, silos that are in every round."""
    devices = {
        label: [lead("users", method, "independent, turns", epsilon=e) for e in ("2", "8", "18")]
        for label, method in NOISES.items()
    }
    silos = {"tree": [lead("sofim-cifar10", "DP-FTRL", epsilon=e) for e in EPSILONS]}
    return {"devices that take turns": devices, "silos, in every round": silos}


def noise(points: Points) -> Any:
    figure, axes = plt.subplots(1, 2, figsize=(WIDTH, 2.8), layout="constrained")
    styles = {"banded": ("o-", BLUE), "BLT": ("s--", ORANGE), "tree": ("^:", VERMILION)}
    places = (("2", "8", "18"), EPSILONS)
    for ax, (title, lines), epsilons in zip(axes, points.items(), places, strict=True):
        for label, values in lines.items():
            style, color = styles[label]
            ax.plot(range(len(epsilons)), values, style, color=color, label=label)
        ax.axhline(0, color=BLACK, lw=0.8)
        ax.set_xticks(range(len(epsilons)), epsilons)
        ax.set(title=title, xlabel="epsilon")
    axes[0].set_ylabel("points beside\nindependent noise")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=3)
    return figure


# ------------------------------------------------------------------------------- whole persons

PERSONS = {
    "malaria": {
        "each record\n(200 patients, a silo each)": "malaria, 200 patients",
        "each patient\n(in 5 silos)": "malaria, whole patients, 5 silos",
    },
    "activity": {
        "each record\n(30 subjects, a silo each)": "activity, 30 subjects",
        "each subject\n(in 5 silos)": "activity, whole subjects, 5 silos",
    },
}


def persons_points() -> Points:
    """DP-FedGD at epsilon 5."""
    return {
        data: {
            unit: mean("silos", "DP-FedGD", silos=silos, epsilon="5")
            for unit, silos in by_unit.items()
        }
        for data, by_unit in PERSONS.items()
    }


def persons(points: Points) -> Any:
    figure, ax = plt.subplots(figsize=(WIDTH, 2.6), layout="constrained")
    bars = [
        (data, unit, value) for data, by_unit in points.items() for unit, value in by_unit.items()
    ]
    places = [4.6, 3.6, 2, 1]
    colors = [BLUE, VERMILION] * 2
    ax.barh(places, [value for *_, value in bars], color=colors, height=0.8)
    for place, (data, _, value) in zip(places, bars, strict=True):
        ax.text(value + 1, place, f"{value:.1f} %", va="center")
        ax.text(1, place, data, va="center", color="white")
    ax.set_yticks(places, [unit for _, unit, _ in bars])
    ax.set(xlim=(0, 100), xlabel="test accuracy of DP-FedGD (%)", ylabel="epsilon 5 for")
    return figure


def _beside(ax: Any, label: str) -> None:
    """Rows with a line at 0."""
    ax.axvline(0, color=BLACK, lw=0.8)
    ax.grid(axis="y", color=GREY, lw=0.4)
    ax.set_axisbelow(True)
    ax.set_xlabel(label)


FIGURES = {
    "tuned": (tuned_points, tuned),
    "untuned": (untuned_points, untuned),
    "readings": (readings_points, readings),
    "curvature": (curvature_points, curvature),
    "secure-sum": (secure_points, secure),
    "noise": (noise_points, noise),
    "persons": (persons_points, persons),
}


def described(points: Points) -> str:
    """The points as text, to hundredths, so that no platform's last digit matters."""
    return json.dumps(
        json.loads(json.dumps(points), parse_float=lambda text: round(float(text), 2))
    )


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else LAB.parent / "results/images"
    target.mkdir(parents=True, exist_ok=True)
    for name, (read, draw) in FIGURES.items():
        points = read()
        figure = draw(points)
        about = {"Date": None, "Description": described(points)}
        figure.savefig(target / f"{name}.svg", metadata=about)
        plt.close(figure)


if __name__ == "__main__":
    main()
