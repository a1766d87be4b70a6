# SPDX-License-Identifier: Apache-2.0
"""The figures of a study: a method has the same colour, line and marker in all of them.

Each is 3.4 inches wide, a column of a two-column page, with text of 8 points, so that nothing is
scaled down in print. Colours are Okabe and Ito's, told apart by colour-blind readers, each with a
solid, a broken and a dotted line; bars have a hatch where lines are not solid. Figures are made
without pyplot: no window, no state between them.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfed.core.extras import require_extra
from dpfed_lab.jobs import Row
from dpfed_lab.scores import Measure, Scores, cell_words, scores
from dpfed_lab.significance import mark, mark_note
from dpfed_lab.study import Cell, Study, cells
from dpfed_lab.table import Number, Value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

WIDTH, LINE = 3.4, 0.17
"""Inches: one column, and one line of its legend."""
ACROSS = 32
"""Letters of a label that stand beside the axes of a figure."""

TYPOGRAPHY: Any = {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "axes.linewidth": 0.6,
    "pdf.fonttype": 42,
    "svg.hashsalt": "dpfed",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,
}

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
COLOURS = (VERMILION, BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, YELLOW)
LINES = ("-", "--", ":")
GREY = "#B8B8B8"
MANY = 6
"""Of more lines than this, only those have a colour that a reader looks for first."""


# ---------------------------------------------------------------------------------------- the style


@dataclass(frozen=True)
class Style:
    """How a method is drawn, everywhere."""

    colour: str
    line: str
    marker: str

    @property
    def hatch(self) -> str:
        """For bars: the second and third method of a colour."""
        return {"-": "", "--": "////", ":": "...."}[self.line]


# yellow is pale on white: it comes last
_KNOWN = {
    name: Style(COLOURS[i % 7], LINES[i // 7], marker)
    for i, (name, marker) in enumerate(
        {
            "dp-fedsofim": "o",
            "dp-fedgd": "s",
            "ema-only": "^",
            "dp-fedadam": "D",
            "dp-fedavg": "v",
            "dp-fedyogi": "P",
            "dp-scaffold": "X",
            "dp-fedfc": "<",
            "fedgd": "s",
            "dp-ftrl": ">",
            "dp-adafedprox": "h",
            "dp-mf": "p",
            "dp-fednew": "*",
            "dp-fedavg-ls": "d",
        }.items()
    )
}
_MARKERS = ("o", "s", "^", "v", "<", ">", "D", "d", "p", "P", "X", "*", "h")


def styles_of(study: Study) -> dict[str, Style]:
    """Each method's style: fixed for known names, and what they leave free for others, in order."""
    labels = [method.label for method in study.methods]
    found = {name: _KNOWN[name.casefold()] for name in labels if name.casefold() in _KNOWN}
    taken = {(style.colour, style.line) for style in found.values()}
    pairs = [(c, line) for line in LINES for c in COLOURS[:-1]] + [(YELLOW, line) for line in LINES]
    free = cycle([pair for pair in pairs if pair not in taken] or pairs)
    for marker, name in zip(cycle(_MARKERS), (n for n in labels if n not in found), strict=False):
        found[name] = Style(*next(free), marker)
    return found


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure with its texts: the file's name, a caption, and a description in words."""

    name: str
    figure: Figure
    caption: str
    alt: str


def require_plots() -> None:
    """Refuse before the first run of a study, whose report has figures."""
    with require_extra("plots", "a report", "matplotlib"):
        import matplotlib as mpl  # noqa: F401


@contextmanager
def sheet(height: float) -> Iterator[tuple[Figure, Axes]]:
    """An empty figure of one column's width."""
    require_plots()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(TYPOGRAPHY):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        yield figure, figure.subplots()


def save_picture(picture: Picture, folder: Path) -> None:
    """As PNG and SVG to look at and as PDF to print; the same figure gives the same bytes."""
    from matplotlib import rc_context

    with rc_context(TYPOGRAPHY):
        picture.figure.savefig(folder / f"{picture.name}.png", dpi=200)
        picture.figure.savefig(folder / f"{picture.name}.pdf", metadata={"CreationDate": None})
    (folder / f"{picture.name}.svg").write_bytes(svg(picture))


def svg(picture: Picture) -> bytes:
    """As SVG, for a page."""
    from matplotlib import rc_context

    text = io.BytesIO()
    with rc_context(TYPOGRAPHY):
        picture.figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def slug(text: str) -> str:
    """A name that file systems and LaTeX take."""
    kept = (sign if sign.isalnum() else "_" if sign == "." else "-" for sign in text.casefold())
    return "-".join(part for part in "".join(kept).split("-") if part)


# -------------------------------------------------------------------------------- lines over rounds


def convergence(study: Study, rows: Iterable[Row], cell: Cell) -> Picture:
    """Accuracy or loss against rounds: the mean over seeds, with one standard deviation.

    Args:
        study: the study.
        rows: its stored runs.
        cell: the cell that the figure is about.
    """
    from matplotlib.ticker import MaxNLocator

    found, styles = scores(study, rows), styles_of(study)
    drawn = [m.label for m in study.methods if found.at(cell, m.label)]
    loud = _of_interest(found, cell, drawn)
    with sheet(2.6 + LINE * ((len(drawn) + 1) // 2)) as (figure, axes):
        for label in drawn:
            line = {r: found.number(cell, label, r) for r in found.rounds(cell)}
            points = {float(r): n for r, n in line.items()}
            style = styles[label] if label in loud else replace(styles[label], colour=GREY)
            _draw_line(axes, label, style, points, band=label in loud)
        axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10], integer=True))
        first, last = found.rounds(cell)[0], found.rounds(cell)[-1]
        if last >= 20 * first:  # else the early rounds, where methods differ most, are a thin strip
            axes.set_xscale("log")
            set_decades(axes.xaxis, first, last)
        axes.set_xlabel("round" + (" (log scale)" if last >= 20 * first else ""))
        _finish_lines(figure, axes, found.measure)
    words = cell_words(cell)
    caption = f"{found.measure.label.capitalize()} by round, {words}. {_spread_words(study)}"
    caption += " In colour: the best at the end, and the baseline." if len(drawn) > MANY else ""
    alt = f"Lines of {found.measure.name} against rounds, {words}. {_order(found, cell)}"
    return Picture(f"convergence-{slug(words)}", figure, caption, alt)


def _of_interest(found: Scores, cell: Cell, drawn: list[str]) -> set[str]:
    """What has a colour: among more than ``MANY`` lines the best few and the baseline; or all."""
    if len(drawn) <= MANY:
        return set(drawn)
    means = {label: found.mean(cell, label) or 0.0 for label in drawn}
    best = sorted(drawn, key=lambda label: -found.measure.sign * means[label])[: MANY // 2]
    return {*best, found.study.baseline}


def _draw_line(
    axes: Axes, label: str, style: Style, points: Mapping[float, Value], *, band: bool
) -> None:
    from matplotlib.patheffects import withStroke

    known = {x: number for x, number in points.items() if isinstance(number, Number)}
    xs = list(known)
    means = [number.mean for number in known.values()]
    stds = [number.std or 0.0 for number in known.values()]
    (line,) = axes.plot(
        xs,
        means,
        style.line,
        color=style.colour,
        marker=style.marker,
        label=label,
        linewidth=1.1,
        markersize=3.6,
        markeredgewidth=0.5,
        markeredgecolor=GREY if style.colour == GREY else "#333333",
        zorder=1.5 if style.colour == GREY else 2.0,
        markevery=0.06 if len(xs) > 20 else None,  # by their distance, where there are too many
    )
    if style.colour == YELLOW:
        line.set_path_effects([withStroke(linewidth=2.0, foreground="#555555")])
    if not any(stds) or style.colour == GREY:
        return
    low = [mean - std for mean, std in zip(means, stds, strict=True)]
    high = [mean + std for mean, std in zip(means, stds, strict=True)]
    if band:
        axes.fill_between(xs, low, high, color=style.colour, alpha=0.12, linewidth=0)
    else:
        axes.errorbar(xs, means, stds, fmt="none", ecolor=style.colour, elinewidth=0.8, capsize=2)


def _finish_lines(figure: Figure, axes: Axes, measure: Measure) -> None:
    import numpy as np

    means = [y for line in axes.get_lines() for y in np.asarray(line.get_ydata(), float).tolist()]
    if measure.wide(means):
        axes.set_yscale("log", nonpositive="clip")
        set_decades(axes.yaxis, min(means), max(means))
        room = (max(means) / min(means)) ** 0.06
        axes.set_ylim(min(means) / room, max(means) * room)  # a band may reach below 0
    words = measure.label + (" (log scale)" if measure.wide(means) else "")
    axes.set_ylabel(textwrap.fill(words, ACROSS))
    axes.grid(alpha=0.25, linewidth=0.5)
    if axes.get_lines():
        _write_legend(figure, len(axes.get_lines()))


def _write_legend(figure: Figure, lines: int) -> None:
    """Below the axes in two columns, or in one and a higher figure where two would be cut off."""
    legend = _legend(figure, 2)
    if legend.get_window_extent().width > figure.bbox.width:
        legend.remove()
        _legend(figure, 1)
        figure.set_figheight(figure.get_figheight() + LINE * (lines // 2))


def _legend(figure: Figure, columns: int) -> Legend:
    return figure.legend(
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        handlelength=2.6,
        columnspacing=1.0,
        labelspacing=0.25,
        borderpad=0.2,
    )


def set_decades(axis: Axis, low: float, high: float, ticks: int = 8) -> None:
    """Ticks of a logarithmic axis as plain numbers, between decades too where there are few.

    Args:
        axis: the axis, which is logarithmic already.
        low: the least value on it, above 0.
        high: the greatest value on it.
        ticks: how many there may be, about.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    steps = (1.0,) if high / low > 300 else (1.0, 3.0) if high / low > 30 else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(subs=steps, numticks=ticks))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _spread_words(study: Study) -> str:
    seeds = len(study.final.seeds)
    return "One seed." if seeds == 1 else f"Mean ± one standard deviation over {seeds} seeds."


def _order(found: Scores, cell: Cell) -> str:
    """All methods with their final means, best first: what the lines say, in words."""
    means = {m.label: found.mean(cell, m.label) for m in found.study.methods}
    known = [(label, mean) for label, mean in means.items() if mean is not None]
    ranked = sorted(known, key=lambda pair: -found.measure.sign * pair[1])
    words = (f"{label} {Number(mean, digits=found.measure.digits(mean))}" for label, mean in ranked)
    return f"At the end: {', '.join(words)}."


# --------------------------------------------------------------------------- bars at the last round


def final_bars(study: Study, rows: Iterable[Row], cell: Cell) -> Picture:
    """A bar per method at the last round, from 0, with its figure written beside it.

    Losses over more than a decade are points on a logarithmic axis, which has no 0 to start from.

    Args:
        study: the study.
        rows: its stored runs.
        cell: the cell that the figure is about.
    """
    found, styles = scores(study, rows), styles_of(study)
    pairs = {m.label: found.number(cell, m.label) for m in study.methods}
    bars = {label: value for label, value in pairs.items() if isinstance(value, Number)}
    wide = found.measure.wide([value.mean for value in bars.values()])
    with sheet(0.6 + 0.24 * max(2, len(bars))) as (figure, axes):
        for place, (label, value) in enumerate(bars.items()):
            (_draw_dot if wide else _draw_bar)(axes, place, styles[label], value)
            _write_figure(axes, place, value, mark(found, cell, label))
        axes.set_yticks(range(len(bars)), list(bars))
        axes.set_ylim(len(bars) - 0.4, -0.6)
        _set_reach(axes, list(bars.values()), wide=wide)
        axes.set_xlabel(found.measure.label + (" (log scale)" if wide else ""))
    words = cell_words(cell)
    caption = (
        f"{found.measure.label.capitalize()} at the last round, {words}. {_spread_words(study)} "
        f"{mark_note(found)}"
    ).rstrip()
    alt = f"Bars of the final {found.measure.name}, {words}. {_order(found, cell)}"
    return Picture(f"final-{slug(words)}", figure, caption, alt)


def _set_reach(axes: Axes, values: list[Number], *, wide: bool) -> None:
    """Room on the right for what is written beside the longest bar."""
    ends = [value.mean + (value.std or 0.0) for value in values]
    if wide:
        axes.set_xscale("log", nonpositive="clip")
        low, high = min(value.mean for value in values), max(ends)
        axes.set_xlim(low / (high / low) ** 0.06, high * (high / low) ** 0.5)
        set_decades(axes.xaxis, low, high, ticks=5)
    else:
        room = 1.16 + 0.025 * max((len(_written(value)) for value in values), default=0)
        axes.set_xlim(1.2 * min([0.0, *ends]), room * max([0.0, *ends]) or 1.0)


def _written(value: Number) -> str:
    return Number(value.mean, digits=value.digits).text


def _write_figure(axes: Axes, place: int, value: Number, sign: str) -> None:
    end = (value.mean + (value.std or 0.0), place)
    text = f"{_written(value)} {sign}".rstrip()
    axes.annotate(text, end, (4, 0), va="center", textcoords="offset points")


def _draw_bar(axes: Axes, place: int, style: Style, value: Number) -> None:
    std = value.std or 0.0
    # the hatch is white, and so is the bar's own edge: the outline is another one
    axes.barh(
        place,
        value.mean,
        0.72,
        color=style.colour,
        hatch=style.hatch,
        edgecolor="white",
        linewidth=0,
    )
    axes.barh(place, value.mean, 0.72, fill=False, edgecolor="#333333", linewidth=0.5)
    for colour, width in (("white", 2.4), ("#333333", 0.9)) if std else ():  # seen on black too
        axes.errorbar(
            value.mean,
            place,
            xerr=std,
            fmt="none",
            ecolor=colour,
            elinewidth=width,
            capsize=2,
            capthick=width,
        )


def _draw_dot(axes: Axes, place: int, style: Style, value: Number) -> None:
    axes.errorbar(
        value.mean,
        place,
        xerr=value.std or 0.0,
        fmt=style.marker,
        color=style.colour,
        markeredgecolor="#333333",
        markeredgewidth=0.5,
        ecolor="#333333",
        elinewidth=0.9,
        capsize=2,
    )


# ------------------------------------------------------------------------------------- the frontier


def frontiers(study: Study, rows: Iterable[Row]) -> list[Picture]:
    """The final figure against the first axis, where that is numbers; one per value of the others.

    Against epsilon this is the frontier of privacy and accuracy. An axis of words has no such
    figure: its cells have bars.
    """
    values = [name for axis in study.axes[:1] for name in axis.options()]
    numbers = [value for value in values if _is_number(value)]
    if len(numbers) < 2 or not all(map(_is_number, set(values) - {"inf"})):
        return []
    found, axis = scores(study, rows), study.axes[0].label
    others: dict[str, Cell] = {}
    for cell, _ in cells(study):
        rest = {name: value for name, value in cell.items() if name != axis}
        others.setdefault(cell_words(rest) if rest else "", rest)
    return [_frontier(found, numbers, words, rest) for words, rest in others.items()]


def _is_number(text: str) -> bool:
    try:
        return abs(float(text)) < float("inf")
    except ValueError:
        return False


def _frontier(found: Scores, values: list[str], words: str, rest: Cell) -> Picture:
    study, axis, styles = found.study, found.study.axes[0].label, styles_of(found.study)
    places = {value: _in_order(study, {**rest, axis: value}) for value in values}
    drawn = [m.label for m in study.methods if any(found.at(c, m.label) for c in places.values())]
    with sheet(2.6 + LINE * ((len(drawn) + 1) // 2)) as (figure, axes):
        for label in drawn:
            line = {float(value): found.number(cell, label) for value, cell in places.items()}
            _draw_line(axes, label, styles[label], dict(sorted(line.items())), band=False)
        _set_ticks(axes, axis, values)
        _finish_lines(figure, axes, found.measure)
    where = f", {words}" if words else ""
    opening = "What privacy costs: final" if axis == "epsilon" else "Final"
    caption = f"{opening} {found.measure.label} by {axis}{where}. {_spread_words(study)}"
    ends = [f"{axis} {value}: {_order(found, places[value])}" for value in values]
    alt = f"Lines of the final {found.measure.name} against {axis}{where}. {' '.join(ends)}"
    kind = "frontier" if axis == "epsilon" else f"by-{axis}"
    return Picture(slug(f"{kind}-{words}"), figure, caption, alt)


def _set_ticks(axes: Axes, label: str, values: list[str]) -> None:
    """A tick at each value; logarithmic for epsilon, and where values span a decade."""
    numbers = sorted(map(float, values))
    logarithmic = numbers[0] > 0 and (label == "epsilon" or numbers[-1] / numbers[0] >= 10)
    if logarithmic:
        axes.set_xscale("log")
    axes.set_xticks(numbers, sorted(values, key=float))
    axes.minorticks_off()
    axes.set_xlabel(f"{label} (log scale)" if logarithmic else label)


def _in_order(study: Study, cell: Cell) -> Cell:
    """With the axes in the study's order, which a cell's name follows."""
    return {axis.label: cell[axis.label] for axis in study.axes}
