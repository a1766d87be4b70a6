# SPDX-License-Identifier: Apache-2.0
"""Answers from noisy sums: values and 95 % intervals, by nothing but the noise that was added.

    noisy sums of the joint row, std of the noise --> parts, in their own scale --> answers

Guarantee: an interval holds the value that the same records give without noise, through the same
cuts and cells, with probability at least about 95 %, whatever the records are. It says nothing of
other records: sampling error comes on top. Everything here is post-processing, and costs nothing.

| kind       | how the interval is made                                                          |
|------------|-----------------------------------------------------------------------------------|
| counts     | z std to both sides, then cut at 0                                                |
| mean       | Fieller 1954: all r for which sum - r count is within z std of 0; exact           |
| variance   | the same around the released mean, and lower by that mean's own error, squared    |
| quantiles  | all edges e for which F(e) - q N is within z std of 0, and what is between them   |
| survival   | S z std(log S) to both sides, made monotone (Chernozhukov et al. 2009)            |

| edge case                                        | what happens                                  |
|--------------------------------------------------|-----------------------------------------------|
| fewer units than the noise can tell from none    | the interval is the column's whole range      |
| so few at risk that the noise hides them         | the curve ends; the interval is 0 to what the |
|                                                  | curve was at most before                      |
| no noise (mechanism 'clear')                     | intervals of one value                        |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

import torch

from dpfed.client.questions.cells import halved_sum
from dpfed.client.questions.columns import Columns
from dpfed.client.questions.rows import (
    Count,
    Histogram,
    Mean,
    Quantiles,
    Question,
    Survival,
    Table,
)
from dpfed.core.metric import KEPT, metric_parts
from dpfed.core.types import Vector

CONFIDENCE = 0.95
Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
MIN_AT_RISK = 3.0
"""In standard deviations of their noise: with fewer at risk, a curve ends."""


class Value(NamedTuple):
    """One number of an answer, with its interval."""

    label: str
    value: float
    low: float
    high: float


class Answer(NamedTuple):
    """What came back for one question.

    >>> Answer("age", "count", "how many there are", (Value("count", 9.0, 7.0, 11.0),)).name
    'age'
    """

    name: str
    kind: str
    said: str
    values: tuple[Value, ...]


def answers(
    questions: Sequence[Question], columns: Columns, sums: Vector, std: float
) -> tuple[Answer, ...]:
    """What noisy sums of the joint row say.

    Args:
        questions: as they were asked.
        columns: what is public of the columns.
        sums: of the joint row, over all units.
        std: the known standard deviation of the noise in each number of ``sums``.
    """
    found = []
    for question, part in metric_parts(questions, sums):
        values = _VALUES[type(question)](question, columns, part, std * question.bound / KEPT)
        found.append(Answer(question.name, kind_of(question), question.said, tuple(values)))
    return tuple(found)


def kind_of(question: Question) -> str:
    """The word that a query names its kind by."""
    return str(question.__struct_config__.tag)


def _around(label: str, value: float, error: float) -> Value:
    """A count: never below 0."""
    return Value(label, max(0.0, value), max(0.0, value - error), max(0.0, value + error))


def _count(question: Count, columns: Columns, part: Vector, std: float) -> Iterator[Value]:
    del question, columns
    yield _around("count", float(part[0]), Z * std)


def _cells(
    question: Histogram | Table, columns: Columns, part: Vector, std: float
) -> Iterator[Value]:
    del columns
    for label, value in zip(question.labels, part.tolist(), strict=True):
        yield _around(label, value, Z * std)


# ------------------------------------------------------------------------------ mean and variance


def _mean(question: Mean, columns: Columns, part: Vector, std: float) -> Iterator[Value]:
    column = columns[question.column]
    count, total, squares = part.tolist()
    square = (Z * std) ** 2
    low, high = ratio_interval(total, count, square, 1.0, 0.0, (-1.0, 1.0))
    r = min(max(total / count, low), high) if count > 0 else (low + high) / 2
    middle, half = column.middle, column.half
    yield Value("mean", middle + half * r, middle + half * low, middle + half * high)
    off = max(high - r, r - low)
    spread = squares - 2 * r * total + r * r * count
    least, most = ratio_interval(spread, count, square, 1 + 4 * r * r, r * r, (0.0, 1.0))
    least = max(0.0, least - off * off)
    value = min(max(spread / count, least), most) if count > 0 else (least + most) / 2
    unit = half * half
    yield Value("variance", unit * value, unit * least, unit * most)
    found = (math.sqrt(each) * half for each in (value, least, most))
    yield Value("standard deviation", *found)


def ratio_interval(
    above: float,
    below: float,
    square: float,
    plain: float,
    shift: float,
    within: tuple[float, float],
) -> tuple[float, float]:
    """All ratios t for which above - t below is no further from 0 than its noise.

    (above - t below)^2 <= square (plain + (shift - t)^2): Fieller's set, between its two roots; the
    whole range where ``below`` cannot be told from 0.

    Args:
        above: what is divided.
        below: what it is divided by.
        square: the variance of the noise in each number, times that of the interval's width.
        plain: noise of ``above`` that is in no other number, in such variances.
        shift: how much of the noise of ``below`` is in ``above``.
        within: the range that the ratio can have.
    """
    a = below * below - square
    b = above * below - square * shift
    c = above * above - square * (plain + shift * shift)
    if a <= 0 or below <= 0:
        return within
    root = math.sqrt(max(0.0, b * b - a * c))
    low, high = within
    ends = (b - root) / a, (b + root) / a
    return min(max(ends[0], low), high), min(max(ends[1], low), high)


# -------------------------------------------------------------------------------------- quantiles


def _quantiles(question: Quantiles, columns: Columns, part: Vector, std: float) -> Iterator[Value]:
    del columns
    weights = halved_sum(question.size)
    below = weights @ part
    for at in question.at:
        tested = weights - at * weights[-1]
        low, high = _crossing(tested @ part, Z * std * tested.norm(dim=1))
        ends = question.edges[low], question.edges[high]
        yield Value(f"{at:g}", _interpolated(below, at, question.edges, ends), *ends)


def _crossing(above: Vector, error: Vector) -> tuple[int, int]:
    """Between which edges F(e) - q N becomes positive.

    The lower one is the last edge up to which all are below 0 by more than their noise; the upper
    one the first from which on all are above. Each is wrong only if the test at one edge is: that
    just before, or just after, the true crossing.
    """
    under, over = (above < -error).tolist(), (above > error).tolist()
    low = next((k for k, clear in enumerate(under) if not clear), len(under) - 1)
    after = next((k for k, clear in enumerate(reversed(over)) if not clear), len(over))
    return low, min(len(over), max(len(over) - after + 1, low + 1))


def _interpolated(
    below: Vector, at: float, edges: Sequence[float], ends: tuple[float, float]
) -> float:
    """Where the cumulative counts, made monotone, reach a part of the total."""
    from scipy.optimize import isotonic_regression  # slow to import, and no training needs it

    counts = isotonic_regression(below.clamp(min=0.0).numpy()).x
    wanted = at * float(counts[-1])
    k = min(int((counts < wanted).sum()), len(counts) - 1)
    before = float(counts[k - 1]) if k else 0.0
    share = (wanted - before) / (float(counts[k]) - before) if counts[k] > before else 0.5
    value = edges[k] + share * (edges[k + 1] - edges[k])
    return float(min(max(value, ends[0]), ends[1]))


# --------------------------------------------------------------------------------------- survival


def _survival(question: Survival, columns: Columns, part: Vector, std: float) -> Iterator[Value]:
    del columns
    last = question.cells - 1
    sums = halved_sum(question.cells)
    nothing = torch.zeros_like(sums[0])
    log_survival, slope = 0.0, torch.zeros_like(part)
    found: list[tuple[float, float, float]] = []
    for j in range(last):
        later = sums[last - j]  # exits at this time or after it
        risk, event = torch.cat([later, later]), torch.cat([later - sums[last - j - 1], nothing])
        n, d = float(risk @ part), float(event @ part)
        if not (n > MIN_AT_RISK * std * float(risk.norm()) and n > d):
            break
        log_survival += math.log1p(-d / n)
        slope = slope - event / (n - d) + risk * (d / (n * (n - d)))
        value, error = math.exp(log_survival), Z * std * float(slope.norm())
        found.append((value, value * (1 - error), value * (1 + error)))
    yield from _monotone(found, question.times)


def _monotone(
    found: Sequence[tuple[float, float, float]], times: Sequence[float]
) -> Iterator[Value]:
    """The curve and both of its bands, each made to fall; nothing is known after its end."""
    curve, lows, highs = ([], [], []) if not found else map(list, zip(*found, strict=True))
    if curve:
        from scipy.optimize import isotonic_regression  # slow to import, and no training needs it

        curve = [float(each) for each in isotonic_regression(curve, increasing=False).x]
    lows, highs = sorted(lows, reverse=True), sorted(highs, reverse=True)
    for j, time in enumerate(times):
        if j < len(curve):
            yield Value(
                f"{time:g}", *(min(max(v, 0.0), 1.0) for v in (curve[j], lows[j], highs[j]))
            )
        else:
            yield Value(f"{time:g}", math.nan, 0.0, min(1.0, highs[-1]) if highs else 1.0)


_VALUES: Mapping[type, Callable[..., Iterator[Value]]] = {
    Count: _count,
    Mean: _mean,
    Histogram: _cells,
    Table: _cells,
    Quantiles: _quantiles,
    Survival: _survival,
}
