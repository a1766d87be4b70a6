# SPDX-License-Identifier: Apache-2.0
"""One line of the table: a statement, what it predicts, and what was measured."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

AT_MOST, AT_LEAST, EQUAL, BESIDE, SEEN = "at most", "at least", "equal", "beside", "seen"
"""How a measurement must relate to its prediction.

BESIDE: the prediction does not bind the measurement, but their ratio is of interest; SEEN: nothing
is predicted.
"""

COLUMNS = (
    "statement",
    "case",
    "quantity",
    "relation",
    "predicted",
    "measured",
    "tolerance",
    "loose",
    "holds",
    "over",
)


class Finding(NamedTuple):
    """A prediction and the measurement that it is compared with."""

    statement: str
    case: str
    quantity: str
    relation: str
    predicted: float
    """NaN if the paper predicts nothing, or no number."""
    measured: float
    over: str
    """What the measurement is a mean, a maximum or a minimum over."""
    tolerance: float = 0.0
    """Relative tolerance: of an equality, or of an expectation that is estimated from few runs."""

    @property
    def loose(self) -> float:
        """By what factor the measurement is within the bound; 1 is exact, below 1 breaks it."""
        if self.relation == SEEN or not self.measured or not self.predicted:
            return math.nan
        ratio = self.predicted / self.measured
        return 1 / ratio if self.relation == AT_LEAST else ratio

    @property
    def holds(self) -> bool | None:
        """Whether the statement holds; None if nothing binds the measurement."""
        if self.relation in (BESIDE, SEEN) or math.isnan(self.predicted):
            return None
        above = self.measured - self.predicted
        slack = self.tolerance * abs(self.predicted)
        if self.relation == EQUAL:
            return abs(above) <= slack
        return above <= slack if self.relation == AT_MOST else -above <= slack

    def row(self) -> dict[str, str]:
        """The finding as a row of the CSV file."""
        verdict = {True: "yes", False: "no", None: ""}[self.holds]
        numbers = {"predicted": self.predicted, "measured": self.measured, "loose": self.loose}
        texts = {key: "" if math.isnan(value) else f"{value:.6g}" for key, value in numbers.items()}
        return {
            "statement": self.statement,
            "case": self.case,
            "quantity": self.quantity,
            "relation": self.relation,
            **texts,
            "tolerance": f"{self.tolerance:g}",
            "holds": verdict,
            "over": self.over,
        }


def write_findings(path: Path, findings: Iterable[Finding]) -> None:
    """Write the findings to a CSV file, one per line."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(each.row() for each in findings)


def read_findings(path: Path) -> list[Finding]:
    """Read the findings that ``write_findings`` wrote."""
    with path.open(newline="", encoding="utf-8") as file:
        return [_read(row) for row in csv.DictReader(file)]


def _read(row: dict[str, str]) -> Finding:
    return Finding(
        statement=row["statement"],
        case=row["case"],
        quantity=row["quantity"],
        relation=row["relation"],
        predicted=float(row["predicted"] or math.nan),
        measured=float(row["measured"]),
        over=row["over"],
        tolerance=float(row["tolerance"]),
    )
