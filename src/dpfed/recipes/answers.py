# SPDX-License-Identifier: Apache-2.0
"""Answers to a query as people read them: a table, lines of a CSV, a picture."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dpfed.client.questions.answers import CONFIDENCE, Answer, Value
from dpfed.client.questions.forecast import forecast
from dpfed.client.questions.model import Statistics
from dpfed.core.errors import RecipeError
from dpfed.core.log import shown
from dpfed.core.types import UPDATE
from dpfed.training.plan import Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ANSWERS_TABLE, ANSWERS_PICTURE = "answers.csv", "answers.png"
_BLUE = "#0072B2"
_PANELS_PER_ROW = 2
_MOST_LABELS = 12
"""On one axis: more cannot be read."""
_PERCENT = f"{100 * CONFIDENCE:g} %"


def answers_rows(found: Sequence[Answer]) -> list[dict[str, Any]]:
    """One line for each number: question, kind, label, value, and the ends of its interval.

    Args:
        found: as ``Result.answers`` has them.
    """
    return [
        {"question": answer.name, "kind": answer.kind, "label": value.label}
        | {"value": _plain(value.value), "low": value.low, "high": value.high}
        for answer in found
        for value in answer.values
    ]


def _plain(value: float) -> float | str:
    return "" if math.isnan(value) else value


def answers_text(found: Sequence[Answer]) -> str:
    """All answers as lines of text, with their intervals.

    Args:
        found: as ``Result.answers`` has them.
    """
    return "\n\n".join(_text(answer) for answer in found)


def _text(answer: Answer) -> str:
    names = [shown(value.label) for value in answer.values]
    width = max(map(len, names))
    lines = [
        f"  {name:{width}}  {_number(each.value):>12}   {_number(each.low)} to {_number(each.high)}"
        for name, each in zip(names, answer.values, strict=True)
    ]
    head = f"{shown(answer.name)}: {shown(answer.said)}   (value, {_PERCENT} interval)"
    return "\n".join([head, *lines])


def _number(value: float) -> str:
    if math.isnan(value):
        return "--"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def cost_text(plan: Plan, model: Any) -> str:
    """What a query would cost, what it asks, and how wide its intervals will be.

    Args:
        plan: the query's; nothing is asked yet.
        model: what the plan trains: the questions.
    """
    if not isinstance(model, Statistics):
        raise RecipeError("a query must have questions, got none; add a table [[ask]]")
    units = plan.denominator(UPDATE)
    widths = forecast(model.questions, model.columns, plan.noise_std(UPDATE) * units, units)
    lines = [
        f"- {shown(question.name)}: {shown(question.said)}; {width}"
        for question, width in zip(model.questions, widths, strict=True)
    ]
    return "\n".join([f"would cost: {plan.guarantee().sentence}", *lines])


# ------------------------------------------------------------------------------------ the picture


def draw_answers(figure: Figure, found: Sequence[Answer], title: str, caption: str) -> Figure:
    """One panel for each question, intervals as bars or a band, the guarantee underneath.

    Args:
        figure: an empty one.
        found: as ``Result.answers`` has them.
        title: above all of it.
        caption: below it.
    """
    across = min(len(found), _PANELS_PER_ROW)
    down = math.ceil(len(found) / across)
    figure.set_size_inches(5.6 * across, 3.2 * down + 0.8)
    figure.set_layout_engine("constrained")
    panels = figure.subplots(down, across, squeeze=False)
    for axes, answer in zip(panels.flat, found, strict=False):
        _draw(axes, answer)
    for axes in list(panels.flat)[len(found) :]:
        axes.set_axis_off()
    figure.suptitle(title, fontsize=12)
    figure.supxlabel(textwrap.fill(caption, 60 * across), fontsize=8, color="#333333")
    return figure


def _draw(axes: Axes, answer: Answer) -> None:
    axes.set_title(textwrap.fill(f"{answer.name}: {answer.said}", 80), fontsize=9, loc="left")
    if answer.kind == "survival":
        _draw_curve(axes, answer.values)
    elif answer.kind in ("mean", "count"):
        _write_values(axes, answer.values)
    elif answer.kind in ("histogram", "table"):
        _draw_bars(axes, answer.values)
    else:
        _draw_points(axes, answer.values)


def _errors(values: Sequence[Value]) -> list[list[float]]:
    """How far an interval reaches below and above each value."""
    below = [max(0.0, each.value - each.low) for each in values]
    return [below, [max(0.0, each.high - each.value) for each in values]]


def _label_places(axes: Axes, values: Sequence[Value]) -> None:
    step = math.ceil(len(values) / _MOST_LABELS)
    places = range(0, len(values), step)
    labels = [textwrap.shorten(values[place].label, 18, placeholder="...") for place in places]
    long = sum(map(len, labels)) > 50
    axes.set_xticks(list(places), labels, fontsize=8, rotation=35 if long else 0)
    if long:
        for label in axes.get_xticklabels():
            label.set_horizontalalignment("right")


def _draw_bars(axes: Axes, values: Sequence[Value]) -> None:
    places, heights = range(len(values)), [each.value for each in values]
    axes.bar(places, heights, color=_BLUE, alpha=0.75, width=0.9)
    axes.errorbar(places, heights, _errors(values), fmt="none", ecolor="black", capsize=3, lw=1)
    axes.set_ylabel("units")
    axes.set_ylim(bottom=0)
    _label_places(axes, values)


def _draw_points(axes: Axes, values: Sequence[Value]) -> None:
    places, heights = range(len(values)), [each.value for each in values]
    axes.errorbar(places, heights, _errors(values), fmt="o", color=_BLUE, ecolor="black", capsize=4)
    axes.set_xlim(-0.5, len(values) - 0.5)
    axes.set_xlabel("quantile", fontsize=8)
    axes.grid(alpha=0.25)
    _label_places(axes, values)


def _write_values(axes: Axes, values: Sequence[Value]) -> None:
    """Numbers of different units have no common axis."""
    axes.set_axis_off()
    for line, each in enumerate(values):
        said = (
            f"{each.label}: {_number(each.value)}   ({_number(each.low)} to {_number(each.high)})"
        )
        axes.text(0.02, 0.8 - 0.25 * line, said, fontsize=11, transform=axes.transAxes)


def _draw_curve(axes: Axes, values: Sequence[Value]) -> None:
    times = [0.0, *(float(each.label) for each in values)]
    times.append(1.04 * times[-1])  # so that the last step shows
    values = [*values, values[-1]]
    lows, highs = [1.0, *(each.low for each in values)], [1.0, *(each.high for each in values)]
    axes.fill_between(times, lows, highs, step="post", color=_BLUE, alpha=0.2, linewidth=0)
    axes.step(times, [1.0, *(each.value for each in values)], where="post", color=_BLUE, lw=2)
    axes.set_ylim(0, 1.02)
    axes.set_xlim(0, times[-1])
    axes.set_ylabel("survival")
    axes.set_xlabel(f"time; band: {_PERCENT} interval, of the noise alone", fontsize=8)
    axes.grid(alpha=0.25)
