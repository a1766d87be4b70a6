# SPDX-License-Identifier: Apache-2.0
"""Figures of a search: the best score at each pair of settings that was tried."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dpfed_lab.jobs import Row
from dpfed_lab.study import Study, cells
from dpfed_lab.sweep import label_of, score

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
from dpfed_lab.figures import VERMILION, Picture, set_decades, sheet, slug

Point = tuple[float, float]


def heat_map(
    rows: Iterable[Row], entry: str, keys: tuple[str, str] | None = None
) -> Picture | None:
    """Validation accuracy over two tuned parameters; None if there are not two numbers tuned.

    Where other parameters were tuned as well, the best over them is shown.

    Args:
        rows: stored runs, of which those of the search are used.
        entry: the cell and the method, as ``label_of`` names them.
        keys: the parameters on the two axes; None is rho and the clip where they were tuned, or
            else the two that were tried at the most values.
    """
    tried = [row for row in rows if row.get("stage") == "tuning" and row.get("entry") == entry]
    keys = keys or _widest(tried)
    best = {} if keys is None else _best_at(tried, keys)
    if keys is None or not best:
        return None
    classes = any(row["accuracy"] is not None for row in tried)
    label = "validation accuracy (%)" if classes else "minus the validation loss"
    with sheet(2.7) as (figure, axes):
        _draw_map(figure, axes, best, label)
        axes.set_xlabel(keys[0])
        axes.set_ylabel(keys[1])
    others = sorted({key for row in tried for key in row["point"]} - set(keys))
    rest = f" The best over {', '.join(others)} at each point." if others else ""
    top = max(best, key=lambda point: best[point])
    caption = (
        f"{label.capitalize()} of the settings tried, {entry}.{rest} The frame marks the best."
    )
    alt = (
        f"Map of {label} over {keys[0]} and {keys[1]}, {entry}: the best is "
        f"{best[top]:.4g} at {top[0]:g} and {top[1]:g}."
    )
    return Picture(slug(f"tuning-{entry}"), figure, caption, alt)


def heat_maps(study: Study, rows: Iterable[Row], method: str) -> list[Picture]:
    """One for each cell in which the method was tuned.

    Args:
        study: the study.
        rows: stored runs, of which those of the search are used.
        method: the method's label.
    """
    rows = list(rows)
    entries = (label_of(cell, method) for cell, _ in cells(study, tuned_only=True))
    pictures = (heat_map(rows, entry) for entry in entries)
    return [picture for picture in pictures if picture is not None]


def _widest(tried: list[Row]) -> tuple[str, str] | None:
    values: dict[str, set[float]] = {}
    for row in tried:
        for key, value in row["point"].items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                values.setdefault(key, set()).add(float(value))
    several = [key for key in values if len(values[key]) > 1]
    ranked = sorted(several, key=lambda key: (_rank(key), -len(values[key])))
    return (ranked[0], ranked[1]) if len(ranked) > 1 else None


def _rank(key: str) -> int:
    name = key.rpartition(".")[2]
    return FIRST.index(name) if name in FIRST else len(FIRST)


def _best_at(tried: list[Row], keys: tuple[str, str]) -> dict[Point, float]:
    best: dict[Point, float] = {}
    for row in tried:
        value = score(row) * (100 if row["accuracy"] is not None else 1)
        if value == float("-inf") or not all(key in row["point"] for key in keys):
            continue
        point = (float(row["point"][keys[0]]), float(row["point"][keys[1]]))
        best[point] = max(value, best.get(point, value))
    return best


FIRST = ("rho", "clip")
"""What a map is about, where it was tuned."""

GRID = 12
"""More values than this on a side have no room as cells, and are drawn as points."""


def _draw_map(figure: Figure, axes: Axes, best: Mapping[Point, float], label: str) -> None:
    xs, ys = sorted({x for x, _ in best}), sorted({y for _, y in best})
    side = max(len(xs), len(ys))
    # points of a random search share no row: a grid has more of them than rows or columns
    draw = _draw_grid if side <= GRID and side < len(best) else _draw_points
    bar = figure.colorbar(draw(axes, best, xs, ys), ax=axes, fraction=0.05, pad=0.02)
    bar.set_label(label)
    bar.outline.set_visible(False)


def _draw_grid(axes: Axes, best: Mapping[Point, float], xs: list[float], ys: list[float]) -> Any:
    from matplotlib.patches import Rectangle

    table = [[best.get((x, y), float("nan")) for x in xs] for y in ys]
    image = axes.imshow(table, cmap="cividis", origin="lower", aspect="auto")
    axes.set_facecolor("#dddddd")  # not tried
    axes.set_xticks(range(len(xs)), [f"{x:g}" for x in xs], rotation=90 if len(xs) > 6 else 0)
    axes.set_yticks(range(len(ys)), [f"{y:g}" for y in ys])
    middle = statistics.fmean((min(best.values()), max(best.values())))
    for (x, y), value in best.items() if len(xs) <= 6 else ():
        axes.text(
            xs.index(x),
            ys.index(y),
            f"{value:.3g}",
            ha="center",
            va="center",
            color="black" if value > middle else "white",
        )
    x, y = max(best, key=lambda point: best[point])
    corner = (xs.index(x) - 0.5, ys.index(y) - 0.5)
    axes.add_patch(
        Rectangle(corner, 1, 1, fill=False, edgecolor=VERMILION, linewidth=2, clip_on=False)
    )
    return image


def _draw_points(axes: Axes, best: Mapping[Point, float], xs: list[float], ys: list[float]) -> Any:
    for values, scale, axis in (
        (xs, axes.set_xscale, axes.xaxis),
        (ys, axes.set_yscale, axes.yaxis),
    ):
        if values[0] > 0 and values[-1] / values[0] > 30:
            scale("log")
            set_decades(axis, values[0], values[-1])
    drawn = axes.scatter(
        [x for x, _ in best],
        [y for _, y in best],
        c=list(best.values()),
        cmap="cividis",
        s=24,
        edgecolors="#333333",
        linewidths=0.4,
    )
    x, y = max(best, key=lambda point: best[point])
    axes.plot([x], [y], "s", markersize=9, fillstyle="none", color=VERMILION, markeredgewidth=1.6)
    return drawn
