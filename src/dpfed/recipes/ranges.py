# SPDX-License-Identifier: Apache-2.0
"""Ranges of a contract by private quantiles: the way out for those who have no public ones.

    a drafted contract --> numbers whose range was read off records --> quantiles over magnitudes
                       --> low and high, rounded outwards --> the contract without that mark

The grid has cells of ratio 10^(1/4) from 1e-6 to 1e12 on both sides of 0, so that nothing need be
known of a column. Ends are those of the intervals of the outermost quantiles that the noise leaves
something of, rounded outwards to 1, 2 or 5 times a power of ten. The release is one of the owner's:
ledger and budget count it.

Several owners ask their gates together: ``ranges_query`` is a query as any other, from which terms
are written, and ``answers_in`` reads what it left. No range is known yet, so there is no contract
in it: each gate reads numbers by the names of their columns, in the order of ``asked_columns``.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dpfed.client.questions.answers import Answer, Value
from dpfed.core.checks import refuse
from dpfed.core.errors import DataError
from dpfed.data._checks import unreadable
from dpfed.data.contract import Contract, Kind
from dpfed.recipes.query import ALGORITHM, MODEL

RANGE = "range"
PARTS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.9, 0.95, 0.98, 0.99, 0.995)
"""Quantiles, of one release: a range reaches to the outermost that is known. Beyond it is cut."""
_TAILS = 5
_STEPS = (1.0, 2.0, 5.0, 10.0)


class ProposedRange(NamedTuple):
    """A column's range, and the quantiles that it surely holds."""

    column: str
    low: float
    high: float
    low_part: float
    """The quantile that the low end is below of; 0 if the noise leaves none."""
    high_part: float
    """The quantile that the high end is above of; 1 if the noise leaves none."""

    @property
    def sure(self) -> bool:
        """Whether both ends are of use."""
        return 0 < self.low_part < self.high_part < 1


def asked_columns(contract: Contract) -> tuple[str, ...]:
    """The numbers whose range was read off records.

    Args:
        contract: a draft, as 'dpfed data describe' writes it.
    """
    marked = (c for c in contract.columns if c.kind is Kind.NUMBER and RANGE in c.from_records)
    return tuple(column.name for column in marked)


def ranges_options(contract: Contract) -> dict[str, Any]:
    """What a table is read by, as ``data.options`` of a recipe or ``load.options`` of a policy.

    Args:
        contract: a draft.
    """
    names = asked_columns(contract)
    if not names:
        raise refuse("the contract", "one with ranges that were read off records", "none of them")
    if contract.label is None:
        raise refuse("the contract", "one with a label, by which the table is read", "none")
    person = {"groups": contract.person} if contract.person else {}
    return {"x": list(names), "y": contract.label.column, **person}


def ranges_query(
    contract: Contract, privacy: Mapping[str, Any], name: str = "ranges"
) -> dict[str, Any]:
    """The recipe of one release of quantiles of each column in question, without any data.

    Args:
        contract: a draft.
        privacy: a recipe's table; epsilon is for all columns together.
        name: the query's, once and for all where gates are asked.
    """
    names = ranges_options(contract)["x"]
    questions = [
        {"name": name, "kind": "quantiles", "column": name, "at": list(PARTS)} for name in names
    ]
    columns = {name: {"at": at, "raw": True} for at, name in enumerate(names)}
    return {
        "name": name,
        "privacy": dict(privacy),
        "client": {"name": ALGORITHM, "questions": questions, "columns": columns},
        "model": {"name": MODEL},
        "rounds": 1,
        "evaluation": {"kind": "off"},
    }


def ranges_recipe(
    contract: Contract, source: str, privacy: Mapping[str, Any], ledger: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The same with one owner's table, in one process.

    Args:
        contract: a draft.
        source: the table's file.
        privacy: a recipe's table; epsilon is for all columns together.
        ledger: a recipe's table, or None.
    """
    return {
        **ranges_query(contract, privacy),
        "data": {"source": source, "options": ranges_options(contract)},
        **({"ledger": dict(ledger)} if ledger else {}),
    }


def answers_in(path: Path, contract: Contract) -> tuple[Answer, ...]:
    """The answers to ``ranges_query`` in the file answers.csv that it left.

    Args:
        path: the file.
        contract: the draft.
    """
    found: dict[str, list[Value]] = {name: [] for name in asked_columns(contract)}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                ends = (float(row[key] or "nan") for key in ("value", "low", "high"))
                found[row["question"]].append(Value(row["label"], *ends))
    except OSError as error:
        raise unreadable(path, "answers", error, "check the path") from error
    except (KeyError, ValueError, TypeError, UnicodeDecodeError, csv.Error) as error:
        raise _other_answers(path) from error
    if any(len(values) != len(PARTS) for values in found.values()):
        raise _other_answers(path)
    return tuple(
        Answer(name, "quantiles", f"quantiles of {name}", tuple(values))
        for name, values in found.items()
    )


def _other_answers(path: Path) -> DataError:
    return DataError(
        f"{path.name!r} must have {len(PARTS)} quantiles of each range that the draft marks, and "
        f"has others; give the answers.csv that its own query left"
    )


def proposed(found: Sequence[Answer]) -> tuple[ProposedRange, ...]:
    """A range for each column: the outermost quantiles that the noise leaves something of.

    Args:
        found: the answers to ``ranges_recipe``.
    """
    return tuple(_proposed(answer) for answer in found)


def _proposed(answer: Answer) -> ProposedRange:
    values = dict(zip(PARTS, answer.values, strict=True))
    spread = abs(values[0.9].value - values[0.1].value)
    low = next((part for part in PARTS[:_TAILS] if _known(values[part], spread)), None)
    high = next((part for part in PARTS[: -_TAILS - 1 : -1] if _known(values[part], spread)), None)
    least, most = values[low or 0.1].low, values[high or 0.9].high
    ends = _rounded(least, math.floor), _rounded(most, math.ceil)
    if not ends[0] < ends[1]:  # a column of one value
        ends = ends[0], _rounded(ends[0] + max(1.0, abs(ends[0])), math.ceil)
    return ProposedRange(answer.name, *ends, low or 0.0, high or 1.0)


def _known(value: Value, spread: float) -> bool:
    """Whether an interval is within a factor of 4, or short beside the column's spread."""
    width, least = value.high - value.low, min(abs(value.low), abs(value.high))
    return width <= (3 * least if value.low * value.high > 0 else spread / 2)


def _rounded(value: float, outwards: Any) -> float:
    """To 1, 2 or 5 times a power of ten, downwards by ``floor`` and upwards by ``ceil``."""
    if value == 0:
        return 0.0
    size, larger = abs(value), (outwards is math.ceil) == (value > 0)
    power = 10.0 ** math.floor(math.log10(size))
    steps = [step * power for step in _STEPS]
    found = (
        next((step for step in steps if step >= size * (1 - 1e-9)), steps[-1])
        if larger
        else next(step for step in reversed(steps) if step <= size * (1 + 1e-9))
    )
    return math.copysign(float(f"{found:g}"), value)


def with_ranges(contract: Contract, found: Sequence[ProposedRange]) -> Contract:
    """The contract with these ranges, which are no longer marked as read off records.

    Args:
        contract: the draft.
        found: what ``proposed`` gave.
    """
    by_name = {each.column: each for each in found}
    columns = tuple(
        column if column.name not in by_name else _replaced(column, by_name[column.name])
        for column in contract.columns
    )
    return msgspec.structs.replace(contract, columns=columns)


def _replaced(column: Any, found: ProposedRange) -> Any:
    marks = tuple(mark for mark in column.from_records if mark != RANGE)
    missing = column.missing
    if isinstance(missing, float):
        missing = min(max(missing, found.low), found.high)
    linear = {} if found.low > 0 else {"scale": "linear"}
    return msgspec.structs.replace(
        column, range=(found.low, found.high), from_records=marks, missing=missing, **linear
    )
