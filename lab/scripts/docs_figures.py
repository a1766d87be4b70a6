#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The pictures of the documentation, from the accountant and from measured files.

    lab/scripts/docs_figures.py [docs/images]

Each is drawn twice: NAME.svg for a page of 700 pixels, NAME-narrow.svg for a telephone. Pages
choose between them by ``<picture>``; both are on white, in the dark scheme, too.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import Any

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch

from dpfed.accounting import gdp
from dpfed.core.types import Trust
from dpfed.recipes.noise_for import noise_for

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "results" / "benchmarks"
BLUE, RED, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#666666"
DELTA = 1e-5
plt.rcParams.update(
    {"svg.hashsalt": "dpfed", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False}
)


# --------------------------------------------------------------------------------- the path

SILO = [
    ("its records", ""),
    ("a row each:\ngradients", "Rows"),
    ("clipped,\nadded up", "BoundedSum"),
    ("noise added", "Release"),
]
SERVER = [("the sum of\nall silos", "Aggregate"), ("optimizer", ""), ("new model", "Broadcast")]
ZONES = ("inside each silo: sensitive", "the server: already private, costs nothing")
DOOR = "the only door out"
BACK = "next round"
PALE = {BLUE: "#e8f3f9", GREEN: "#e8f6f1"}


def path(narrow: bool) -> Any:
    """One round, from records to the next model."""
    return _path_down() if narrow else _path_across()


def _path_across() -> Any:
    figure, ax = _canvas((7.5, 2.8), (100, 36))
    for shift in (2.0, 1.0, 0.0):  # there are several silos
        _zone(ax, (1 + shift / 2, 9 + shift, 55, 24), BLUE)
    _zone(ax, (62, 9, 37, 24), GREEN)
    ax.text(28.5, 30, ZONES[0], ha="center", color=BLUE, fontsize=9.5, weight="bold")
    ax.text(
        80.5,
        30,
        "the server: already private",
        ha="center",
        color=GREEN,
        fontsize=9.5,
        weight="bold",
    )
    ax.plot([59, 59], [8, 34.5], color=RED, ls="--", lw=1.6)
    ax.text(59, 6, DOOR, ha="center", va="center", color=RED, fontsize=9, weight="bold")
    left = [(8.3 + 13.5 * i, 19) for i in range(4)]
    right = [(68.2 + 12.3 * i, 19) for i in range(3)]
    for stations, places, width, color in ((SILO, left, 11.6, BLUE), (SERVER, right, 10.6, GREEN)):
        for (text, name), at in zip(stations, places, strict=True):
            _station(ax, at, (width, 12), text, name, color)
        for one, other in pairwise(places):
            _arrow(ax, (one[0] + width / 2, 19), (other[0] - width / 2, 19))
    _arrow(ax, (54.6, 19), (62.9, 19), RED, 1.8)
    ax.plot([92.8, 92.8, 8.3], [13, 2.5, 2.5], color=GREY, lw=1)
    _arrow(ax, (8.3, 2.5), (8.3, 13))
    ax.text(30, 4.2, f"{BACK}: the model goes out again", ha="center", color=GREY, fontsize=9)
    return figure


def _path_down() -> Any:
    figure, ax = _canvas((4, 6.6), (100, 165))
    for shift in (4.0, 2.0, 0.0):
        _zone(ax, (2 + shift, 72 + shift, 84, 88), BLUE)
    _zone(ax, (2, 2, 84, 60), GREEN)
    ax.text(44, 154, ZONES[0], ha="center", va="center", color=BLUE, fontsize=10, weight="bold")
    ax.text(44, 7, ZONES[1], ha="center", va="center", color=GREEN, fontsize=9.5, weight="bold")
    ax.plot([0, 12], [67, 67], color=RED, ls="--", lw=1.6)
    ax.plot([60, 92], [67, 67], color=RED, ls="--", lw=1.6)
    ax.text(36, 67, DOOR, ha="center", va="center", color=RED, fontsize=10, weight="bold")
    places = [(44, 142 - 19.5 * i) for i in range(4)]
    after = [(44, 53 - 17 * i) for i in range(3)]
    for stations, at, color in ((SILO, places, BLUE), (SERVER, after, GREEN)):
        for (text, name), place in zip(stations, at, strict=True):
            _station(ax, place, (66, 12), text.replace("\n", " "), name, color)
        for one, other in pairwise(at):
            _arrow(ax, (44, one[1] - 6), (44, other[1] + 6))
    _arrow(ax, (66, 77.5), (66, 59), RED, 1.8)
    ax.plot([77, 94.5, 94.5], [19, 19, 142], color=GREY, lw=1)
    _arrow(ax, (94.5, 142), (77, 142))
    ax.text(97, 110, BACK, rotation=90, ha="center", va="center", color=GREY, fontsize=9.5)
    return figure


def _canvas(size: tuple[float, float], span: tuple[float, float]) -> tuple[Any, Any]:
    figure = plt.figure(figsize=size)
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, span[0]), ylim=(0, span[1]))
    ax.axis("off")
    return figure, ax


def _zone(ax: Any, box: tuple[float, float, float, float], color: str) -> None:
    x, y, width, height = box
    ax.add_patch(
        FancyBboxPatch(
            (x, y),
            width,
            height,
            fc=PALE[color],
            ec=color,
            lw=0.5,
            boxstyle="round,pad=0,rounding_size=1.5",
        )
    )


def _station(
    ax: Any, at: tuple[float, float], size: tuple[float, float], text: str, name: str, color: str
) -> None:
    (x, y), (width, height) = at, size
    ax.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - height / 2),
            width,
            height,
            fc="white",
            ec=color,
            boxstyle="round,pad=0,rounding_size=1.2",
        )
    )
    lift = 0.17 * height if name else 0.0
    ax.text(x, y + lift, text, ha="center", va="center", fontsize=9)
    ax.text(
        x,
        y - 0.3 * height,
        name,
        ha="center",
        va="center",
        fontsize=7.5,
        color=GREY,
        family="monospace",
    )


def _arrow(
    ax: Any,
    start: tuple[float, float],
    end: tuple[float, float],
    color: str = GREY,
    width: float = 1.0,
) -> None:
    ax.annotate(
        "",
        end,
        start,
        arrowprops={"arrowstyle": "->", "color": color, "lw": width, "shrinkA": 0, "shrinkB": 0},
    )


# ------------------------------------------------------------------------------- who sees what

PANELS = [
    ("local", "the server reads each reply", ["x1 + N", "x2 + N", "x3 + N"], ""),
    ("distributed", "it opens only the sum", ["x1 + n", "x2 + n", "x3 + n"], "masked"),
    ("central", "it is trusted with the sums", ["x1", "x2", "x3"], "in clear"),
]
SEES = {
    "local": "x1 + N,  x2 + N,  x3 + N",
    "distributed": "x1 + x2 + x3 + three n",
    "central": "x1,  x2,  x3",
}
WORLD = {"local": "sum, three N", "distributed": "sum, three n", "central": "sum, one N"}


def who_sees_what(narrow: bool) -> Any:
    """The three trusts, beside or below each other."""
    shape, size = ((3, 1), (4, 10.2)) if narrow else ((1, 3), (7.8, 3.8))
    figure, axes = plt.subplots(*shape, figsize=size, layout="constrained")
    for ax, (trust, says, sent, note) in zip(axes, PANELS, strict=True):
        ax.set(xlim=(0, 10), ylim=(0.4, 10.3))
        ax.axis("off")
        ax.set_title(f'trust = "{trust}"\n{says}', fontsize=10.5)
        for i, text in enumerate(sent):
            x = 1.7 + 3.3 * i
            _box(ax, x, 9.2, 2.6, 1.7, f"silo {i + 1}", BLUE)
            ax.annotate(
                "",
                (5 + (i - 1) * 1.9, 5.9),
                (x, 8.3),
                arrowprops={"arrowstyle": "->", "color": GREY},
            )
            ax.text(
                x + (1 - i) * 0.35,
                7.2,
                text,
                ha="center",
                fontsize=9.5,
                bbox={"fc": "white", "ec": "none", "pad": 1},
            )
        if note:
            ax.text(9.9, 6.1, note, ha="right", fontsize=9, style="italic", color=GREY)
        _box(ax, 5, 4.9, 9.4, 1.9, f"the server sees\n{SEES[trust]}", RED)
        ax.annotate("", (5, 2.4), (5, 3.9), arrowprops={"arrowstyle": "->", "color": GREY})
        _box(ax, 5, 1.5, 9.4, 1.8, f"everyone else sees models\nmade from: {WORLD[trust]}", GREEN)
    return figure


def _box(ax: Any, x: float, y: float, width: float, height: float, text: str, color: str) -> None:
    ax.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - height / 2),
            width,
            height,
            fc=f"{color}18",
            ec=color,
            boxstyle="round,pad=0,rounding_size=0.3",
        )
    )
    ax.text(x, y, text, ha="center", va="center", fontsize=9)


# ------------------------------------------------------------------------- what epsilon allows


def guess(narrow: bool) -> Any:
    """How often an attacker who knows all but one record guesses a coin about it."""
    epsilons = [0.05 * 1.05**i for i in range(115)]
    figure, ax = plt.subplots(figsize=(4.2, 3.6) if narrow else (7, 3.9), layout="constrained")
    worst = [100 * (math.exp(e) + DELTA) / (1 + math.exp(e)) for e in epsilons]
    best = [100 * NormalDist().cdf(gdp.mu_for(e, DELTA) / 2) for e in epsilons]
    ax.fill_between(epsilons, best, worst, color=RED, alpha=0.08)
    ax.plot(epsilons, worst, color=RED, ls="--", label="(epsilon, 1e-5) alone allows")
    ax.plot(epsilons, best, color=BLUE, label="Gaussian noise at that epsilon allows")
    for e in (0.5, 1, 2, 5, 10):
        value = 100 * NormalDist().cdf(gdp.mu_for(e, DELTA) / 2)
        ax.plot(e, value, "o", color=BLUE)
        ax.annotate(
            f"{value:.0f} %",
            (e, value),
            (4, -13) if value > 54 else (-8, 8),
            textcoords="offset points",
            color=BLUE,
            fontsize=9,
        )
    ax.axhline(50, color=GREY, lw=0.8)
    ax.text(0.052, 48.4, "a blind guess", color=GREY, fontsize=9)
    ax.set(
        xscale="log",
        xlim=(0.05, 12),
        ylim=(47, 101),
        xlabel="epsilon (delta = 1e-5)",
        ylabel="right guesses, at most (%)",
    )
    ax.set_xticks([0.05, 0.1, 0.5, 1, 2, 5, 10], ["0.05", "0.1", "0.5", "1", "2", "5", "10"])
    ax.minorticks_off()
    place = {"loc": "lower left", "bbox_to_anchor": (-0.12, 1)} if narrow else {"loc": "upper left"}
    ax.legend(frameon=False, **place)
    return figure


# ------------------------------------------------------------------- the same promise, by trust


def noise(narrow: bool) -> Any:
    """The noise in the sum of n silos, for one promise under each trust."""
    silos = [2, 3, 5, 10, 20, 50, 100, 200, 500]
    figure, ax = plt.subplots(figsize=(4.2, 3.9) if narrow else (7, 3.8), layout="constrained")
    lines: dict[str, Any] = {
        "local": (RED, "local", {}),
        "distributed": (BLUE, "distributed, all take part", {}),
        "central": (GREEN, "central", {}),
    }
    for trust, (color, label, more) in lines.items():
        levels = [_total(trust, n, **more) for n in silos]
        style = ":" if trust == "central" else "-"
        ax.plot(
            silos,
            levels,
            color=color,
            ls=style,
            lw=3 if trust == "central" else 1.5,
            marker="o" if trust != "central" else "",
            label=label,
        )
    least = [_total("distributed", n, survivors=math.ceil(0.8 * n), colluders=1) for n in silos[2:]]
    ax.plot(
        silos[2:], least, color=BLUE, ls="--", label="distributed, 20 % may drop out, one colludes"
    )
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="silos",
        ylabel="noise in the sum, over the clip",
        title="epsilon 1, 40 rounds, one record",
    )
    ax.set_xticks([2, 5, 10, 20, 50, 100, 500], ["2", "5", "10", "20", "50", "100", "500"])
    ax.minorticks_off()
    ax.set_ylim(top=5000 if narrow else None)  # room for the legend
    ax.legend(frameon=False, fontsize=9, loc="upper left")
    return figure


def _total(trust: str, clients: int, **more: Any) -> float:
    answer = noise_for(
        epsilon=1, delta=DELTA, rounds=40, clients=clients, trust=Trust(trust), **more
    )
    return float(answer["std_over_clip"]) * (1 if trust == "central" else math.sqrt(clients))


# -------------------------------------------------------------------------------- what is measured


def scale(narrow: bool) -> Any:
    """Memory, seconds and bytes, from results/benchmarks and release alone."""
    shape, size = ((4, 1), (4.2, 13)) if narrow else ((2, 2), (8.2, 6.6))
    figure, axes = plt.subplots(*shape, figsize=size, layout="constrained")
    memory, seconds, longer, sent = axes.flat
    found = json.loads((MEASURED / "benchmarks.json").read_text())["results"]
    _memory(memory, found)
    _seconds(seconds)
    _seconds_by_size(longer)
    _bytes(sent)
    return figure


def _memory(ax: Any, found: dict[str, Any]) -> None:
    rows = [row for group in found.values() for row in group]
    for prefix, color, label in (
        ("server memory, ", BLUE, "rounds in one process"),
        ("DPStrategy memory, ", RED, "Flower strategy"),
    ):
        points: dict[Any, Any] = {}
        for row in rows:
            name = row["name"].removeprefix(prefix).removesuffix(" clients")
            if row["name"].startswith(prefix) and name.isdigit():
                points.setdefault(int(name), row["measured"])
        ax.plot(list(points), list(points.values()), "o-", color=color, label=label)
    ax.set(
        xscale="log",
        ylim=(0, 7),
        xlabel="clients",
        ylabel="vectors of the model's size",
        title="server memory, $d = 10^6$",
    )
    ax.legend(frameon=False, fontsize=8.5, loc="lower left")


def _seconds(ax: Any) -> None:
    rows = [r for r in _secure() if r["measured"] == "yes"]
    clients = [int(r["clients"]) for r in rows]
    ax.plot(
        clients,
        [float(r["server_ms"]) / 1e3 for r in rows],
        "o-",
        color=RED,
        label="secure sum, the server",
    )
    ax.plot(
        clients,
        [float(r["client_ms"]) / 1e3 for r in rows],
        "o-",
        color=BLUE,
        label="secure sum, one client",
    )
    ax.set(
        xscale="log",
        yscale="log",
        ylim=(5e-5, 10),
        xlabel="clients",
        ylabel="seconds a round",
        title="time, $d = 650$",
    )
    ax.legend(frameon=False, fontsize=8.5, loc="upper left")


def _seconds_by_size(ax: Any) -> None:
    files = (MEASURED / "secure.json", ROOT / "results/release/round.json")
    groups = [json.loads(path.read_text())["results"].values() for path in files]
    rows = [row for each in groups for group in each for row in group]
    lines: dict[str, Any] = {
        "plain round, Flower's simulation,\nwith ledger and answers": (
            "Flower round",
            ", with noise",
            "s-",
            GREY,
        ),
        "secure sum, one process": ("secure sum in one process", "", "o-", BLUE),
    }
    for label, (start, end, style, color) in lines.items():
        taken = [r for r in rows if r["name"].startswith(start) and r["name"].endswith(end)]
        points = {int(r["name"].removesuffix(end).split()[-2]): r["measured"] / 1e3 for r in taken}
        ax.plot(list(points), list(points.values()), style, color=color, label=label)
    ax.set(
        xscale="log",
        yscale="log",
        ylim=(5e-3, 100),
        xlabel="parameters",
        ylabel="seconds a round",
        title="time, 20 clients",
    )
    ax.legend(frameon=False, fontsize=8.5, loc="upper left")


def _bytes(ax: Any) -> None:
    rows = {int(r["clients"]): r for r in _secure()}
    sizes = [10**i for i in range(2, 8)]
    extra = {n: float(rows[n]["sent_bytes"]) - float(rows[n]["plain_bytes"]) for n in (20, 500)}
    ax.plot(sizes, [4 * d for d in sizes], color=GREY, label="plain: int32 words")
    for n, color in ((20, BLUE), (500, RED)):
        ax.plot(sizes, [8 * d + extra[n] for d in sizes], color=color, label=f"secure, {n} clients")
        ax.plot(650, float(rows[n]["sent_bytes"]), "o", color=color)
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="parameters",
        ylabel="bytes sent, per client and round",
        title="upload (points measured, lines counted)",
    )
    ax.legend(frameon=False, fontsize=8.5)


def _secure() -> list[dict[str, str]]:
    return list(csv.DictReader((MEASURED / "secure-scale.csv").read_text().splitlines()))


# --------------------------------------------------------------------------- what grows how

AXES = ("clients", "parameters", "records", "silos", "rounds", "rows of a ledger")
LIMITS = ((1, "1 s"), (60, "1 min"), (3600, "1 h"))


def growth(narrow: bool) -> Any:
    """Seconds by size on every axis, from results/benchmarks/growth.json: dashed is extrapolated."""
    shape, size = ((6, 1), (4.2, 16)) if narrow else ((2, 3), (8.6, 5.8))
    figure, axes = plt.subplots(*shape, figsize=size, layout="constrained")
    found = json.loads((MEASURED / "growth.json").read_text(encoding="utf-8"))["results"]["growth"]
    for ax, name in zip(axes.flat, AXES, strict=True):
        ax.set(xscale="log", yscale="log", title=name)  # first: room is made on these axes
        _grown(ax, [r["detail"] for r in found if r["detail"]["axis"] == name], found)
    figure.supylabel("processor seconds; dashed: extrapolated", fontsize=9.5)
    return figure


def _grown(ax: Any, details: list[dict[str, Any]], found: list[dict[str, Any]]) -> None:
    lines = [each for each in details if "points" in each]
    for line, color in zip(lines, (BLUE, RED, GREEN, GREY), strict=False):
        power = next(r["measured"] for r in found if r["detail"] is line)
        seen = [p for p in line["points"] if p["measured"]]
        rest = [p for p in line["points"] if not p["measured"]]
        label = f"{line['line']}: {power:.2f}"
        for part, style in ((seen, "o-"), ([seen[-1], *rest], "--")):
            ax.plot(
                [p["size"] for p in part],
                [p["seconds"] for p in part],
                style,
                color=color,
                ms=3,
                label=label,
            )
            label = ""
    low, high = ax.get_ylim()
    for limit, text in LIMITS:
        if low < limit < high:
            ax.axhline(limit, color=GREY, lw=0.6, ls=":", zorder=0)
            ax.annotate(
                text,
                (1, limit),
                xycoords=("axes fraction", "data"),
                ha="right",
                va="bottom",
                fontsize=7.5,
                color=GREY,
            )
    ax.set_ylim(low, high * (high / low) ** (0.17 * len(lines)))  # room for the legend
    ax.legend(frameon=False, fontsize=7.5, loc="upper left", handlelength=1.2)


# ------------------------------------------------------------------------------ nothing is tuned

UNTUNED = {
    "DP-FedAuto": (
        ("DP-FedAuto, 10 rounds",),
        BLUE,
        "-",
        "DP-FedAuto, the default method: 10 rounds, untuned",
    ),
    "tuned": (
        ("DP-FedGD", "EMA-only", "DP-FedAdam"),
        GREY,
        "--",
        "best of three methods tuned on the same data: 70 rounds",
    ),
    "lent": (
        ("DP-FedGD, lent", "DP-FedAdam, lent"),
        RED,
        "-",
        "best of two at settings lent by other data: 70 rounds",
    ),
}


def untuned(narrow: bool) -> Any:
    """Six data sets that the default was not made on, from lab/studies/auto-unseen/results alone."""
    text = (ROOT / "lab/studies/auto-unseen/results/final.csv").read_text(encoding="utf-8")
    rows = [row for row in csv.DictReader(text.splitlines()) if row["trust"] == "local"]
    sets = list(dict.fromkeys(row["records"] for row in rows))
    shape, size = ((3, 2), (4.2, 6.2)) if narrow else ((2, 3), (7.8, 4.4))
    figure, axes = plt.subplots(*shape, figsize=size, layout="constrained", sharex=True)
    for ax, records in zip(axes.flat, sets, strict=True):
        _one_set(ax, [row for row in rows if row["records"] == records])
        ax.set_title(records, fontsize=10)
    lines, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside upper left", frameon=False, fontsize=9)
    figure.supxlabel("epsilon, for each record, against the server", fontsize=9.5)
    figure.supylabel("test accuracy (%)", fontsize=9.5)
    return figure


def _one_set(ax: Any, rows: list[dict[str, str]]) -> None:
    epsilons = sorted({row["epsilon"] for row in rows}, key=float)
    for methods, color, style, label in UNTUNED.values():
        best = [max(_mean(rows, method, epsilon) for method in methods) for epsilon in epsilons]
        ax.plot(range(len(epsilons)), best, style, marker="o", ms=4, color=color, label=label)
    ax.set_xticks(range(len(epsilons)), epsilons)
    ax.margins(y=0.15)


def _mean(rows: list[dict[str, str]], method: str, epsilon: str) -> float:
    found = [
        100 * float(row["accuracy"])
        for row in rows
        if (row["method"], row["epsilon"]) == (method, epsilon)
    ]
    return sum(found) / len(found)


# ------------------------------------------------------------------------------ DP-FedSOFIM

SOFIM_SERVER = [
    ("noisy mean\n$G_t$", "released"),
    ("momentum\n$M_t$", "kept, O(d)"),
    ("precondition\nby $H_t$", "O(d)"),
    ("new model\n$W_{t+1}$", "sent out"),
]
SOFIM_LINES = [
    r"$M_t = \beta M_{t-1} + (1 - \beta)\, G_t$",
    r"$H_t = (M_t M_t^{\top} + \rho I)^{-1}$",
    r"$W_{t+1} = W_t - \eta\, H_t M_t = W_t - \eta\, M_t\, /\, (\rho + |M_t|^2)$",
]
SOFIM_SILO = "a gradient for each\nrecord, clipped to C,\nadded up, with noise"


def sofim_round(narrow: bool) -> Any:
    """A round of DP-FedSOFIM: a client is DP-FedGD's, all that is new is the server's."""
    return _sofim_down() if narrow else _sofim_across()


def _sofim_across() -> Any:
    figure, ax = _canvas((7.5, 3.1), (100, 40))
    for shift in (2.0, 1.0, 0.0):
        _zone(ax, (1 + shift / 2, 13 + shift, 26, 23), BLUE)
    _zone(ax, (34, 13, 65, 25), GREEN)
    ax.text(14, 33, "each silo: as in DP-FedGD", ha="center", color=BLUE, fontsize=9, weight="bold")
    ax.text(
        66.5,
        35,
        "the server: only released numbers, no privacy cost",
        ha="center",
        color=GREEN,
        fontsize=9.5,
        weight="bold",
    )
    ax.plot([31.2, 31.2], [12, 38.5], color=RED, ls="--", lw=1.6)
    _station(ax, (14, 22.5), (23, 15), SOFIM_SILO, "", BLUE)
    places = [(42.5 + 16 * i, 26) for i in range(4)]
    for (text, name), at in zip(SOFIM_SERVER, places, strict=True):
        _station(ax, at, (13, 12), text, name, GREEN)
    for one, other in pairwise(places):
        _arrow(ax, (one[0] + 6.5, 26), (other[0] - 6.5, 26))
    ax.text(66.5, 16.5, SOFIM_LINES[2], ha="center", va="center", fontsize=10)
    _arrow(ax, (25.5, 26), (36, 26), RED, 1.8)
    ax.plot([97, 98, 98, 14], [26, 26, 9, 9], color=GREY, lw=1)
    _arrow(ax, (14, 9), (14, 15))
    ax.text(56, 10.3, "next round: the model goes out again", ha="center", color=GREY, fontsize=9)
    ax.text(
        50,
        3.5,
        SOFIM_LINES[0] + "          " + SOFIM_LINES[1],
        ha="center",
        va="center",
        fontsize=10.5,
    )
    return figure


def _sofim_down() -> Any:
    figure, ax = _canvas((4, 6.4), (100, 160))
    for shift in (4.0, 2.0, 0.0):
        _zone(ax, (2 + shift, 118 + shift, 84, 34), BLUE)
    ax.text(
        44,
        147,
        "each silo: as in DP-FedGD",
        ha="center",
        va="center",
        color=BLUE,
        fontsize=10,
        weight="bold",
    )
    _station(ax, (44, 131), (72, 20), SOFIM_SILO, "", BLUE)
    ax.plot([0, 92], [112.5, 112.5], color=RED, ls="--", lw=1.6)
    _zone(ax, (2, 34, 84, 74), GREEN)
    ax.text(
        44,
        38.5,
        "the server: no privacy cost",
        ha="center",
        va="center",
        color=GREEN,
        fontsize=9.5,
        weight="bold",
    )
    places = [(44, 99 - 17 * i) for i in range(4)]
    for (text, name), place in zip(SOFIM_SERVER, places, strict=True):
        _station(ax, place, (66, 12.5), text.replace("\n", " "), name, GREEN)
    for one, other in pairwise(places):
        _arrow(ax, (44, one[1] - 6.25), (44, other[1] + 6.25))
    _arrow(ax, (66, 121), (66, 105.5), RED, 1.8)
    ax.plot([77, 94.5, 94.5], [48, 48, 131], color=GREY, lw=1)
    _arrow(ax, (94.5, 131), (80, 131))
    ax.text(97.2, 90, BACK, rotation=90, ha="center", va="center", color=GREY, fontsize=9.5)
    for i, line in enumerate(SOFIM_LINES):
        ax.text(50, 25 - 9.5 * i, line, ha="center", va="center", fontsize=10)
    return figure


ROUNDS = range(10, 71, 10)
BY_ROUND = {
    "DP-FedSOFIM, untuned": (BLUE, "-", "o", "DP-FedSOFIM, untuned"),
    "DP-FedGD": (GREY, "--", "", "DP-FedGD, searched"),
    "EMA-only": (GREEN, "--", "", "momentum (EMA-only), searched"),
    "DP-FedAdam": (RED, "--", "", "DP-FedAdam, searched"),
}


def sofim_by_round(narrow: bool) -> Any:
    """Accuracy by round at epsilon 1 and 10 on CIFAR-10 features, from lab/studies/sofim-readings/results."""
    shape, size = ((2, 1), (4.2, 5.8)) if narrow else ((1, 2), (7.8, 3.2))
    figure, axes = plt.subplots(*shape, figsize=size, layout="constrained", sharex=True)
    for ax, epsilon in zip(axes, ("1", "10"), strict=True):
        for method, (color, style, marker, label) in BY_ROUND.items():
            curve = [_by_round(method, epsilon, each) for each in ROUNDS]
            ax.plot(ROUNDS, curve, style, color=color, marker=marker, ms=4, label=label)
        ax.set_title(f"epsilon {epsilon}", fontsize=10)
        ax.margins(y=0.12)
    lines, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        lines, labels, loc="outside upper left", frameon=False, fontsize=9, ncols=1 if narrow else 2
    )
    figure.supxlabel("round", fontsize=9.5)
    figure.supylabel("test accuracy (%)", fontsize=9.5)
    return figure


def _by_round(method: str, epsilon: str, at: int) -> float:
    text = (ROOT / "lab/studies/sofim-readings/results/final.csv").read_text(encoding="utf-8")
    cell = (method, epsilon, "CIFAR-10")
    found = [
        100 * float(row[f"round_{at}"])
        for row in csv.DictReader(text.splitlines())
        if (row["method"], row["epsilon"], row["images"]) == cell
    ]
    return sum(found) / len(found)


FIGURES = {
    "path": path,
    "who-sees-what": who_sees_what,
    "guess": guess,
    "noise": noise,
    "scale": scale,
    "growth": growth,
    "untuned": untuned,
    "sofim-round": sofim_round,
    "sofim-by-round": sofim_by_round,
}


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images"
    target.mkdir(parents=True, exist_ok=True)
    for name, draw in FIGURES.items():
        for suffix, narrow in (("", False), ("-narrow", True)):
            figure = draw(narrow)
            figure.savefig(target / f"{name}{suffix}.svg", metadata={"Date": None})
            plt.close(figure)


if __name__ == "__main__":
    main()
