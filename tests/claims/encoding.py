# SPDX-License-Identifier: Apache-2.0
"""What encodings are worth: from lab/studies/encoding/results."""

from __future__ import annotations

import statistics

from tests.claims.files import rows

ENCODINGS = ("as they are", "ranges", "categories", "log")
TRUSTS = {"local": "local", "distributed": "secure sum"}
SETS = ("credit default", "heart disease", "breast cancer")


def reached(table: str, trust: str, encoding: str, column: str = "auc") -> float:
    """The mean over five seeds."""
    found = [
        float(row[column])
        for row in rows("encoding")
        if (row["set"], row["trust"], row["encoding"]) == (table, trust, encoding)
    ]
    assert len(found) == 5, f"{len(found)} runs of {table}, {trust}, {encoding}"
    return statistics.fmean(found)


def aucs(table: str, trust: str) -> tuple[float, ...]:
    """AUC at each encoding."""
    return tuple(reached(table, trust, each) for each in ENCODINGS)


def both(table: str, trust: str) -> tuple[float, ...]:
    """AUC and accuracy at each encoding, one after the other."""
    columns = ("auc", "accuracy")
    return tuple(reached(table, trust, each, c) for each in ENCODINGS for c in columns)
