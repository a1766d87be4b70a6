# SPDX-License-Identifier: Apache-2.0
"""How wide intervals will be, before anything is asked: from the noise and a public size alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpfed.client.questions.answers import Z
from dpfed.client.questions.cells import halved_sum
from dpfed.client.questions.columns import Columns
from dpfed.client.questions.rows import Mean, Quantiles, Question, Survival
from dpfed.core.metric import KEPT


def forecast(
    questions: Sequence[Question], columns: Columns, std: float, units: float
) -> tuple[str, ...]:
    """For each question what half an interval is expected to be, in words.

    Args:
        questions: that are going to be asked.
        columns: what is public of the columns.
        std: the standard deviation of the noise in each number of the joint sum.
        units: the public number of units.
    """
    return tuple(_half(each, columns, Z * std * each.bound / KEPT, units) for each in questions)


def _half(question: Question, columns: Columns, error: float, units: float) -> str:
    """``error`` is that of one number of the question's own row."""
    if isinstance(question, Mean):
        half = columns[question.column].half
        mean, variance = half * error / units, half * half * math.sqrt(10) / 3 * error / units
        return (
            f"mean +- {mean:.3g} where it is near the middle of the range, variance about +- "
            f"{variance:.3g}, if all {units:,g} units have a value"
        )
    if isinstance(question, Quantiles):
        C = halved_sum(question.size)
        tested = C[(question.size - 1) // 2] - C[-1] / 2
        rank = 100 * error * float(tested.norm()) / units
        return f"+- {rank:.2g} % of the units in rank, and up to one cell more"
    if isinstance(question, Survival):
        C = halved_sum(question.cells)
        last = error * float((C[-1] - C[0]).norm()) / units
        return f"+- {last:.2g} at the last time with all units at risk; more where fewer are"
    return f"each count +- {error:,.3g}, of {units:,g} units"
