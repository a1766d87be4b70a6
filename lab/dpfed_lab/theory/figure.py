# SPDX-License-Identifier: Apache-2.0
"""One figure from theory.csv: whether the bounds predict what is seen."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from dpfed_lab.figures import BLACK, BLUE, TYPOGRAPHY, VERMILION, WIDTH
from dpfed_lab.theory.page import WHAT, Found, bounds_of, one, one_bound

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(found: Found, folder: Path) -> None:
    """Whether the bounds predict what is seen: by statement, and by condition number."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(TYPOGRAPHY):
        sheet = Figure(figsize=(2.2 * WIDTH, 3.9), layout="constrained")
        left, right = sheet.subplots(1, 2, width_ratios=(1.35, 1))
        _dots(left, found)
        _lines(right, found)
        sheet.savefig(folder / "theory.png", dpi=160)
        sheet.savefig(folder / "theory.svg", metadata={"Date": None})


def plain_power(value: float, _: object = None) -> str:
    """A tick of a log axis without mathematics, which figures here do not parse."""
    power = round(math.log10(value))
    return f"{value:,.{max(0, -power)}f}" if power < 6 else f"{value / 1e6:g} million"


def _dots(axes: Axes, found: Found) -> None:
    lines = [e for e in bounds_of(found) if not math.isnan(e.loose) and e.loose > 0]
    names = [name for name in WHAT if any(e.statement == name for e in lines)]
    for colour, marker, verdict, label in (
        (BLUE, "o", True, "holds"),
        (VERMILION, "X", False, "broken"),
    ):
        kept = [e for e in lines if e.holds is verdict]
        places = [names.index(e.statement) for e in kept]
        axes.scatter(
            [e.loose for e in kept],
            places,
            s=16,
            c=colour,
            marker=marker,
            alpha=0.7,
            linewidths=0,
            label=label,
            zorder=3,
        )
    axes.axvline(1, color="#333333", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="x", alpha=0.25, linewidth=0.5)
    axes.set_xlabel("bound / what is seen (1 is exact)")
    axes.set_xticks([10.0**k for k in (-2, 0, 2, 4, 6)])
    axes.xaxis.set_major_formatter(plain_power)
    axes.legend(frameon=False, loc="lower right")


def _lines(axes: Axes, found: Found) -> None:
    kappas = (1, 10, 100, 1000)
    for statement, rest, colour, words in (
        ("Theorem 4.21", ", rho 1", VERMILION, "DP-FedSOFIM, rho 1"),
        ("Theorem 4.26", "", BLUE, "DP-FedGD"),
    ):
        cases = [f"kappa {k}, noise 1, from 0{rest}" for k in kappas]
        bound = [one_bound(found, statement, case) for case in cases]
        seen = [one(found, statement, "E F - F*", case) for case in cases]
        axes.plot(kappas, bound, color=colour, linestyle="--", marker="^", markersize=4)
        axes.plot(kappas, seen, color=colour, marker="o", markersize=4)
        place, side = ((-8, 2), "right") if rest else ((6, -18), "left")
        axes.annotate(
            f"{statement}:\n{words}",
            (kappas[2], bound[2]),
            xytext=place,
            color=colour,
            textcoords="offset points",
            ha=side,
        )
    axes.annotate(
        "what both reach",
        (kappas[2], seen[2]),
        xytext=(0, 6),
        color=BLACK,
        textcoords="offset points",
        ha="center",
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("condition number")
    axes.set_ylabel("E F - F* (noise 1, from the minimum)")
    axes.set_xlim(0.7, 6000)
    axes.set_xticks(kappas)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(plain_power)
    axes.grid(alpha=0.25, linewidth=0.5)
