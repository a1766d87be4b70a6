# SPDX-License-Identifier: Apache-2.0
"""The figures of a study: a method has the same colour, line and marker in all of them.

Each is 3.4 inches wide, a column of a two-column page, with letters of 8 points, so that nothing is
scaled down in print. Colours are Okabe and Ito's, told apart by colour-blind readers, each with a
solid and a broken line; bars have a hatch where lines are broken. Figures are made without pyplot:
no window, no state between them.
"""

from __future__ import annotations

import hashlib
import io
import statistics
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfed.experiments.jobs import Row
from dpfed.experiments.study import Cell, Study, cells
from dpfed.experiments.sweep import label_of, score
from dpfed.experiments.tables import Measure, Number, Scores, Value, cell_words, scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 3.4
"""Inches: one column."""

LETTERS: Any = {
    "font.size": 8, "axes.labelsize": 8, "axes.titlesize": 8, "xtick.labelsize": 8,
    "ytick.labelsize": 8, "legend.fontsize": 8, "axes.linewidth": 0.6, "pdf.fonttype": 42,
    "svg.hashsalt": "dpfed", "axes.spines.top": False, "axes.spines.right": False,
    "text.parse_math": False,
}  # fmt: skip

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
COLOURS = (VERMILION, BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, YELLOW)
LINES = ("-", "--")


# ---------------------------------------------------------------------------------------- the style


@dataclass(frozen=True)
class Style:
    """How a method is drawn, everywhere."""

    colour: str
    line: str
    marker: str

    @property
    def hatch(self) -> str:
        """For bars: the second method of a colour."""
        return "" if self.line == "-" else "////"


# yellow is pale on white: those that most tables have get the others
_KNOWN = {
    name: Style(COLOURS[i % 7], LINES[i // 7], marker)
    for i, (name, marker) in enumerate(
        {
            "dp-fedsofim": "o", "dp-fedgd": "s", "ema-only": "^", "dp-fedadam": "D",
            "dp-fedavg": "v", "dp-fedyogi": "P", "dp-scaffold": "X", "dp-fedfc": "<",
            "fedgd": "s", "dp-ftrl": ">", "dp-adafedprox": "h", "dp-mf": "p", "dp-fednew": "*",
            "dp-fedavg-ls": "d",
        }.items()
    )
}  # fmt: skip
_MARKERS = ("o", "s", "^", "v", "<", ">", "D", "d", "p", "P", "X", "*", "h")


def style_of(label: str) -> Style:
    """A method's style: fixed for known names, and drawn from the letters of any other name."""
    name = label.casefold()
    if name in _KNOWN:
        return _KNOWN[name]
    digest = hashlib.sha256(name.encode()).digest()
    line, marker = LINES[digest[1] % 2], _MARKERS[digest[2] % len(_MARKERS)]
    return Style(COLOURS[digest[0] % len(COLOURS)], line, marker)


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure with its words: the file's name, a caption, and what it shows to who cannot see."""

    name: str
    figure: Figure
    caption: str
    alt: str


@contextmanager
def _sheet(height: float) -> Iterator[tuple[Figure, Axes]]:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(LETTERS):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        yield figure, figure.subplots()


def save(picture: Picture, folder: Path) -> None:
    """As PNG to look at and as PDF to print; the same figure gives the same bytes."""
    from matplotlib import rc_context

    with rc_context(LETTERS):
        picture.figure.savefig(folder / f"{picture.name}.png", dpi=200)
        picture.figure.savefig(folder / f"{picture.name}.pdf", metadata={"CreationDate": None})


def svg(picture: Picture) -> bytes:
    """As SVG, for a page."""
    from matplotlib import rc_context

    text = io.BytesIO()
    with rc_context(LETTERS):
        picture.figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def slug(text: str) -> str:
    """A name that file systems and LaTeX take."""
    kept = (sign if sign.isalnum() else "_" if sign == "." else "-" for sign in text.casefold())
    return "-".join(part for part in "".join(kept).split("-") if part)


# -------------------------------------------------------------------------------- lines over rounds


def convergence(study: Study, rows: Iterable[Row], cell: Cell) -> Picture:
    """Accuracy against rounds: the mean over seeds, and a band of one standard deviation."""
    from matplotlib.ticker import MaxNLocator

    found = scores(study, rows)
    drawn = [m.label for m in study.methods if found.at(cell, m.label)]
    with _sheet(2.6 + 0.17 * ((len(drawn) + 1) // 2)) as (figure, axes):
        for label in drawn:
            line = {r: found.number(cell, label, r) for r in found.rounds(cell)}
            _draw_line(axes, label, {float(r): n for r, n in line.items()}, band=True)
        axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10], integer=True))
        axes.set_xlabel("round")
        _finish_lines(figure, axes, found.measure)
    words = cell_words(cell)
    caption = f"{found.measure.label.capitalize()} by round, {words}. {_spread_words(study)}"
    alt = f"Lines of {found.measure.name} against rounds, {words}. {_order(found, cell)}"
    return Picture(f"convergence-{slug(words)}", figure, caption, alt)


def _draw_line(axes: Axes, label: str, points: Mapping[float, Value], *, band: bool) -> None:
    from matplotlib.patheffects import withStroke

    known = {x: number for x, number in points.items() if isinstance(number, Number)}
    style, xs = style_of(label), list(known)
    means = [number.mean for number in known.values()]
    stds = [number.std or 0.0 for number in known.values()]
    (line,) = axes.plot(
        xs, means, style.line, color=style.colour, marker=style.marker, label=label,
        linewidth=1.1, markersize=3.6, markeredgewidth=0.5,
        markeredgecolor="#333333",
    )  # fmt: skip
    if style.colour == YELLOW:
        line.set_path_effects([withStroke(linewidth=2.0, foreground="#555555")])
    if not any(stds):
        return
    low = [mean - std for mean, std in zip(means, stds, strict=True)]
    high = [mean + std for mean, std in zip(means, stds, strict=True)]
    if band:
        axes.fill_between(xs, low, high, color=style.colour, alpha=0.12, linewidth=0)
    else:
        axes.errorbar(xs, means, stds, fmt="none", ecolor=style.colour, elinewidth=0.8, capsize=2)


def _finish_lines(figure: Figure, axes: Axes, measure: Measure) -> None:
    axes.set_ylabel(measure.label)
    axes.grid(alpha=0.25, linewidth=0.5)
    if axes.get_lines():
        figure.legend(loc="outside lower center", ncols=2, frameon=False, handlelength=2.6,
                      columnspacing=1.0, labelspacing=0.25, borderpad=0.2)  # fmt: skip


def _spread_words(study: Study) -> str:
    seeds = len(study.final.seeds)
    return "One seed." if seeds == 1 else f"Mean ± one standard deviation over {seeds} seeds."


def _order(found: Scores, cell: Cell) -> str:
    """All methods with their final means, best first: what the lines say, in words."""
    means = {m.label: found.mean(cell, m.label) for m in found.study.methods}
    known = [(label, mean) for label, mean in means.items() if mean is not None]
    ranked = sorted(known, key=lambda pair: -found.measure.sign * pair[1])
    digits = found.measure.digits
    return "At the end: " + ", ".join(f"{label} {mean:.{digits}f}" for label, mean in ranked) + "."


# --------------------------------------------------------------------------- bars at the last round


def final_bars(study: Study, rows: Iterable[Row], cell: Cell) -> Picture:
    """A bar per method at the last round, from 0, with its figure written beside it."""
    found = scores(study, rows)
    pairs = {m.label: found.number(cell, m.label) for m in study.methods}
    bars = {label: value for label, value in pairs.items() if isinstance(value, Number)}
    with _sheet(0.6 + 0.24 * max(2, len(bars))) as (figure, axes):
        for place, (label, value) in enumerate(bars.items()):
            _draw_bar(axes, place, label, value)
        axes.set_yticks(range(len(bars)), list(bars))
        axes.invert_yaxis()
        ends = [0.0, *(value.mean + (value.std or 0.0) for value in bars.values())]
        axes.set_xlim(1.2 * min(ends), 1.2 * max(ends) or 1.0)
        axes.set_xlabel(found.measure.label)
    words = cell_words(cell)
    caption = (
        f"{found.measure.label.capitalize()} at the last round, {words}. {_spread_words(study)}"
    )
    alt = f"Bars of the final {found.measure.name}, {words}. {_order(found, cell)}"
    return Picture(f"final-{slug(words)}", figure, caption, alt)


def _draw_bar(axes: Axes, place: int, label: str, value: Number) -> None:
    style, std = style_of(label), value.std or 0.0
    # the hatch is white, and so is the bar's own edge: the outline is another one
    axes.barh(place, value.mean, 0.72, color=style.colour, hatch=style.hatch, edgecolor="white",
              linewidth=0)  # fmt: skip
    axes.barh(place, value.mean, 0.72, fill=False, edgecolor="#333333", linewidth=0.5)
    for colour, width in (("white", 2.4), ("#333333", 0.9)) if std else ():  # seen on black too
        axes.errorbar(value.mean, place, xerr=std, fmt="none", ecolor=colour, elinewidth=width,
                      capsize=2, capthick=width)  # fmt: skip
    text = f"{value.mean:.{min(value.digits, 3)}f}"
    axes.annotate(text, (value.mean + std, place), (4, 0), va="center", textcoords="offset points")


# ------------------------------------------------------------------------------------- the frontier


def frontiers(study: Study, rows: Iterable[Row]) -> list[Picture]:
    """Final accuracy against epsilon, one for each value of the other axes; needs two epsilons."""
    values = next((list(a.options()) for a in study.axes if a.label == "epsilon"), [])
    if sum(_is_number(value) for value in values) < 2:
        return []
    found = scores(study, rows)
    others: dict[str, Cell] = {}
    for cell, _ in cells(study):
        rest = {axis: value for axis, value in cell.items() if axis != "epsilon"}
        others.setdefault(cell_words(rest) if rest else "", rest)
    epsilons = [value for value in values if _is_number(value)]
    return [_frontier(found, epsilons, words, rest) for words, rest in others.items()]


def _is_number(text: str) -> bool:
    try:
        return 0 < float(text) < float("inf")
    except ValueError:
        return False


def _frontier(found: Scores, epsilons: list[str], words: str, rest: Cell) -> Picture:
    study = found.study
    places = {value: _in_order(study, {**rest, "epsilon": value}) for value in epsilons}
    drawn = [m.label for m in study.methods if any(found.at(c, m.label) for c in places.values())]
    with _sheet(2.6 + 0.17 * ((len(drawn) + 1) // 2)) as (figure, axes):
        for label in drawn:
            line = {float(value): found.number(cell, label) for value, cell in places.items()}
            _draw_line(axes, label, line, band=False)
        axes.set_xscale("log")
        axes.set_xticks([float(value) for value in epsilons], epsilons)
        axes.minorticks_off()
        axes.set_xlabel("epsilon (log scale)")
        _finish_lines(figure, axes, found.measure)
    where = f", {words}" if words else ""
    caption = (
        f"What privacy costs: final {found.measure.label} by epsilon{where}. {_spread_words(study)}"
    )
    ends = [f"epsilon {value}: {_order(found, places[value])}" for value in epsilons]
    alt = f"Lines of the final {found.measure.name} against epsilon{where}. {' '.join(ends)}"
    return Picture(slug(f"frontier-{words}"), figure, caption, alt)


def _in_order(study: Study, cell: Cell) -> Cell:
    """With the axes in the study's order, which a cell's name follows."""
    return {axis.label: cell[axis.label] for axis in study.axes}


# ------------------------------------------------------------------------------------- the heat map

Point = tuple[float, float]


def heat_map(
    rows: Iterable[Row], entry: str, keys: tuple[str, str] | None = None
) -> Picture | None:
    """Validation accuracy over two tuned parameters; None if there are not two numbers tuned.

    Without ``keys``, the two that were tried at the most values. Where others were tuned as well,
    the best over them is shown.
    """
    tried = [row for row in rows if row.get("stage") == "tuning" and row.get("entry") == entry]
    keys = keys or _widest(tried)
    best = {} if keys is None else _best_at(tried, keys)
    if keys is None or not best:
        return None
    classes = any(row["accuracy"] is not None for row in tried)
    label = "validation accuracy (%)" if classes else "minus the validation loss"
    with _sheet(2.7) as (figure, axes):
        _draw_map(figure, axes, best, label)
        axes.set_xlabel(keys[0])
        axes.set_ylabel(keys[1])
    others = sorted({key for row in tried for key in row["point"]} - set(keys))
    rest = f" The best over {', '.join(others)} at each point." if others else ""
    top = max(best, key=lambda point: best[point])
    caption = (
        f"{label.capitalize()} of the settings tried, {entry}.{rest} The frame marks the best."
    )
    alt = (f"Map of {label} over {keys[0]} and {keys[1]}, {entry}: the best is "
           f"{best[top]:.4g} at {top[0]:g} and {top[1]:g}.")  # fmt: skip
    return Picture(slug(f"tuning-{entry}"), figure, caption, alt)


def heat_maps(study: Study, rows: Iterable[Row], method: str) -> list[Picture]:
    """One for each cell in which the method was tuned."""
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
    ranked = sorted((key for key in values if len(values[key]) > 1), key=lambda k: -len(values[k]))
    return (ranked[0], ranked[1]) if len(ranked) > 1 else None


def _best_at(tried: list[Row], keys: tuple[str, str]) -> dict[Point, float]:
    best: dict[Point, float] = {}
    for row in tried:
        value = score(row) * (100 if row["accuracy"] is not None else 1)
        if value == float("-inf") or not all(key in row["point"] for key in keys):
            continue
        point = (float(row["point"][keys[0]]), float(row["point"][keys[1]]))
        best[point] = max(value, best.get(point, value))
    return best


GRID = 12
"""More values than this on a side are points of a random search, and are drawn as points."""


def _draw_map(figure: Figure, axes: Axes, best: Mapping[Point, float], label: str) -> None:
    xs, ys = sorted({x for x, _ in best}), sorted({y for _, y in best})
    draw = _draw_grid if max(len(xs), len(ys)) <= GRID else _draw_points
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
        axes.text(xs.index(x), ys.index(y), f"{value:.3g}", ha="center", va="center",
                  color="black" if value > middle else "white")  # fmt: skip
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
            axis.set_major_formatter(lambda value, _: f"{value:g}")
    drawn = axes.scatter([x for x, _ in best], [y for _, y in best], c=list(best.values()),
                         cmap="cividis", s=24, edgecolors="#333333", linewidths=0.4)  # fmt: skip
    x, y = max(best, key=lambda point: best[point])
    axes.plot([x], [y], "s", markersize=9, fillstyle="none", color=VERMILION, markeredgewidth=1.6)
    return drawn
