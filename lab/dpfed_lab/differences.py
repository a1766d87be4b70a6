# SPDX-License-Identifier: Apache-2.0
"""The figure that answers: each method less the baseline, paired by seed, with its interval.

A dot is the mean difference, the line its 95 % t interval over seeds. Methods whose interval
excludes 0 have their colour; the rest, which the seeds cannot tell from the baseline, is grey.
"""

from __future__ import annotations

from collections.abc import Iterable

from dpfed_lab.figures import Picture, sheet, slug, styles_of
from dpfed_lab.jobs import Row
from dpfed_lab.scores import cell_words, scores
from dpfed_lab.significance import Gap, gap
from dpfed_lab.study import Cell, Study
from dpfed_lab.table import Number

GREY = "#8a8f96"


def difference_dots(study: Study, rows: Iterable[Row], cell: Cell) -> Picture | None:
    """A dot and an interval per method, best first; None if no pair has two seeds.

    Args:
        study: the study, whose baseline is subtracted.
        rows: its stored runs.
        cell: the cell that the figure is about.
    """
    found, styles = scores(study, rows), styles_of(study)
    gaps = {
        m.label: gap(found, cell, m.label, study.baseline)
        for m in study.methods
        if m.label != study.baseline
    }
    known = {name: pair for name, pair in gaps.items() if pair is not None and pair.std is not None}
    if not known:
        return None
    ranked = sorted(known, key=lambda name: -found.measure.sign * known[name].mean)
    with sheet(0.6 + 0.24 * max(2, len(ranked))) as (figure, axes):
        axes.axvline(0, color="#333333", linewidth=0.8)
        for place, name in enumerate(ranked):
            pair, style = known[name], styles[name]
            colour = style.colour if pair.significant else GREY
            low, high = pair.mean - (pair.low or 0.0), (pair.high or 0.0) - pair.mean
            axes.errorbar(
                pair.mean,
                place,
                xerr=[[low], [high]],
                fmt=style.marker,
                color=colour,
                ecolor=colour,
                elinewidth=1.1,
                capsize=2,
                markersize=4.5,
                markeredgecolor="#333333",
                markeredgewidth=0.5,
            )
        axes.set_yticks(range(len(ranked)), ranked)
        axes.set_ylim(len(ranked) - 0.4, -0.6)
        axes.grid(axis="x", alpha=0.25, linewidth=0.5)
        unit = f" ({found.measure.unit})" if found.measure.unit else ""
        axes.set_xlabel(f"less {study.baseline}{unit}")
    words = cell_words(cell)
    better = "right" if found.measure.sign > 0 else "left"
    caption = (
        f"Final {found.measure.name} less {study.baseline}'s, {words}: mean paired difference and "
        f"95 % t interval over seeds. Better is {better}. Grey: the interval includes 0."
    )
    alt = f"Dots with intervals, {words}. {' '.join(_words(n, known[n]) for n in ranked)}"
    return Picture(f"differences-{slug(words)}", figure, caption, alt)


def _words(name: str, pair: Gap) -> str:
    mean, low, high = (
        Number(value or 0.0, digits=pair.digits) for value in (pair.mean, pair.low, pair.high)
    )
    return f"{name} {mean} ({low} to {high})."
