# SPDX-License-Identifier: Apache-2.0
"""How often intervals held the exact answer, and how wide they were: lab/studies/statistics."""

from __future__ import annotations

from tests.claims.files import rows

KINDS = ("count", "mean", "histogram", "table", "quantiles", "survival")


def kind(name: str = "") -> tuple[float, ...]:
    """Numbers of a kind; the ends of how often each was held, and of its width over the least."""
    found = [row for row in rows("statistics", "coverage.csv") if name in ("", row["kind"])]
    assert {row["runs"] for row in found} == {"1000"}
    held = [int(row["held"]) for row in found]
    wide = [float(row["median_width"]) / float(row["least_width"]) for row in found]
    return len(found), min(held), max(held), min(wide), max(wide)


def in_short() -> tuple[float, ...]:
    """Over all kinds: the numbers, the least often held, the ends of the widths."""
    numbers, least, _, narrow, wide = kind()
    return numbers, least, narrow, wide


def widest() -> tuple[float]:
    """Of the 10 % quantile, which has the widest interval of all beside the least possible."""
    row = next(r for r in rows("statistics", "coverage.csv") if r["kind"] == "quantiles")
    ratio = float(row["median_width"]) / float(row["least_width"])
    assert (row["label"], ratio) == ("0.1", kind()[4])
    return (ratio,)


def half_of_a_count() -> tuple[float]:
    """Half the median width of the one count."""
    row = next(r for r in rows("statistics", "coverage.csv") if r["kind"] == "count")
    return (float(row["median_width"]) / 2,)


def missed() -> tuple[float, ...]:
    """Of the first run: exact answers and the nearer ends of the intervals that miss them."""
    found = rows("statistics", "coverage.csv")
    held = [float(r["low"]) - 1e-3 <= float(r["exact"]) <= float(r["high"]) + 1e-3 for r in found]
    one, other = (row for row, inside in zip(found, held, strict=True) if not inside)
    return (
        len(found),
        *(float(one[name]) for name in ("exact", "high")),
        *(float(other[name]) for name in ("exact", "low")),
    )


def late_curve() -> tuple[float]:
    """The widest part of the curve."""
    return (kind("survival")[4],)
