# SPDX-License-Identifier: Apache-2.0
"""Which differences are statistically significant: t intervals over seeds, McNemar over records.

Over seeds the test is the paired t test at 5 %: a difference is significant if the 95 % t interval
of the mean paired difference excludes 0. The table of differences also has p with Holm's correction
for all of its lines. Over records it is McNemar's test with continuity correction, and Holm's
correction within a cell.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpfed.core.checks import refuse
from dpfed_lab.jobs import Row
from dpfed_lab.scores import BySeed, Measure, Scores, cell_of, final_rows, scores, std
from dpfed_lab.study import Cell, Study, cells
from dpfed_lab.sweep import label_of
from dpfed_lab.table import BETTER, NOTHING, WORSE, Number, Table, Value

CONFIDENCE = 0.95

# ------------------------------------------------------------------------------------- over seeds


@dataclass(frozen=True)
class Gap:
    """A method minus another one, seed by seed; with a 95 % t interval from two seeds on."""

    seeds: int
    mean: float
    std: float | None
    low: float | None
    high: float | None
    digits: int = 2

    @property
    def p(self) -> float:
        """The p-value of the paired t test of no difference; 1 if there is only one seed."""
        if self.std is None:
            return 1.0
        if self.std == 0:
            return float(self.mean == 0)
        from scipy.stats import t

        size = abs(self.mean) / (self.std / math.sqrt(self.seeds))
        return float(2 * t.sf(size, self.seeds - 1))

    @property
    def significant(self) -> bool:
        """Whether the difference is statistically significant: the interval excludes 0."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def gap(found: Scores, cell: Cell, method: str, other: str, round: int | None = None) -> Gap | None:
    """The gap over the seeds that both have, at a round or at the end; None if there is none.

    Args:
        found: what the runs reached.
        cell: the cell in which the two are compared.
        method: the label of one method.
        other: the label of the method that is subtracted, such as the baseline.
        round: the round at which they are compared; None is the last of each run.
    """
    ours, theirs = found.at(cell, method, round), found.at(cell, other, round)
    return paired_gap(ours, theirs, found.measure)


def paired_gap(ours: BySeed, theirs: BySeed, measure: Measure) -> Gap | None:
    """One less the other, over the seeds that both have; None if there is none.

    Args:
        ours: seed -> figure of one method.
        theirs: seed -> figure of the method that is subtracted.
        measure: what the figures are.
    """
    seeds = sorted(ours.keys() & theirs.keys())
    both = [ours[seed] - theirs[seed] for seed in seeds]
    if not both:
        return None
    digits = measure.digits(*(side[seed] for side in (ours, theirs) for seed in seeds))
    mean, spread = statistics.fmean(both), std(both)
    if spread is None:
        return Gap(seeds=1, mean=mean, std=None, low=None, high=None, digits=digits)
    from scipy.stats import t

    half = float(t.ppf((1 + CONFIDENCE) / 2, len(both) - 1)) * spread / math.sqrt(len(both))
    return Gap(
        seeds=len(both), mean=mean, std=spread, low=mean - half, high=mean + half, digits=digits
    )


def mark(found: Scores, cell: Cell, method: str) -> str:
    """Better or worse than the baseline, where that is statistically significant; or else nothing.

    Args:
        found: what the runs reached.
        cell: the cell in which they are compared.
        method: the method's label.
    """
    pair = gap(found, cell, method, found.study.baseline)
    if pair is None or not pair.significant:
        return ""
    return BETTER if pair.mean * found.measure.sign > 0 else WORSE


def mark_note(found: Scores) -> str:
    """What the marks mean; nothing if there can be none."""
    study = found.study
    if len(study.final.seeds) < 2 or study.baseline not in (m.label for m in study.methods):
        return ""
    return (
        f"{BETTER} better, {WORSE} worse than {study.baseline}: statistically significant, since "
        "the paired 95 % t interval over seeds excludes 0; without a mark it is not."
    )


def paired_table(study: Study, rows: Iterable[Row], baseline: str | None = None) -> Table:
    """Each method minus the baseline, seed by seed, with an interval for the mean.

    Args:
        study: the study.
        rows: its stored runs.
        baseline: the label of the method that is subtracted; None is the study's own baseline.
    """
    found, other = scores(study, rows), baseline or study.baseline
    pairs = [
        ((*cell.values(), method.label), gap(found, cell, method.label, other))
        for cell, _ in cells(study)
        for method in study.methods
        if method.label != other
    ]
    known = [(named, pair) for named, pair in pairs if pair is not None]
    adjusted = holm([pair.p for _, pair in known])
    body = [
        (*named, *_gap_cells(pair), NOTHING if pair.std is None else _p_value(p))
        for (named, pair), p in zip(known, adjusted, strict=True)
    ]
    unit = f" ({found.measure.unit})" if found.measure.unit else ""
    axes = (axis.label for axis in study.axes)
    columns = (
        *axes,
        "method",
        "seeds",
        f"difference{unit}",
        "low",
        "high",
        "excludes 0",
        "p (Holm)",
    )
    title = f"Difference to {other}, paired by seed"
    return Table(title, columns, tuple(body), _paired_note(study, found.measure))


def _gap_cells(pair: Gap) -> list[Value]:
    difference = Number(pair.mean, pair.std, pair.digits)
    ends = [
        NOTHING if end is None else Number(end, None, pair.digits) for end in (pair.low, pair.high)
    ]
    verdict = NOTHING if pair.low is None else "yes" if pair.significant else "no"
    return [Number(pair.seeds, digits=0), difference, *ends, verdict]


def _paired_note(study: Study, measure: Measure) -> str:
    better = "above" if measure.sign > 0 else "below"
    if len(study.final.seeds) == 1:
        return f"Better is {better} 0. One seed, so no interval."
    return (
        f"Better is {better} 0. Low and high: the 95 % t interval of the mean difference over "
        "seeds; each stands alone. p (Holm): the paired t test, corrected for all lines of this "
        "table."
    )


# ----------------------------------------------------------------------------------- over records


@dataclass(frozen=True)
class McNemar:
    """How often each of two methods alone was right, summed over seeds."""

    seeds: int
    b: int
    """Records that the reference got right and the other wrong."""
    c: int

    @property
    def chi2(self) -> float:
        """With the correction for continuity, which stops at b = c."""
        if self.b == self.c:
            return 0.0
        return (abs(self.b - self.c) - 1) ** 2 / (self.b + self.c)

    @property
    def p(self) -> float:
        """The p-value of no difference; 1 if the two never differ."""
        from scipy.stats import chi2

        return float(chi2.sf(self.chi2, 1))


def mcnemar(ours: Mapping[int, Row], theirs: Mapping[int, Row]) -> McNemar | None:
    """Over the seeds for which both stored which test records they got right."""
    import numpy as np

    seeds = b = c = 0
    for seed in sorted(ours.keys() & theirs.keys()):
        if not all(row.get("correct") for row in (ours[seed], theirs[seed])):
            continue
        if ours[seed]["tested"] != theirs[seed]["tested"]:  # not the same records: no pairs
            continue
        right, other = _bits(ours[seed]), _bits(theirs[seed])
        seeds += 1
        b += int(np.sum(right & ~other))
        c += int(np.sum(other & ~right))
    return McNemar(seeds, b, c) if seeds else None


def _bits(row: Row) -> Any:
    import numpy as np

    packed = np.frombuffer(bytes.fromhex(row["correct"]), dtype=np.uint8)
    return np.unpackbits(packed)[: row["tested"]].astype(bool)


def mcnemar_table(study: Study, rows: Iterable[Row], reference: str = "DP-FedSOFIM") -> Table:
    """Each method against the reference, on the test records that only one of the two got right.

    Args:
        study: the study.
        rows: its stored runs; those without ``correct`` are left out.
        reference: the label of the method that all others are compared with.
    """
    if reference not in (labels := [m.label for m in study.methods]):
        bound = f"a method of the study ({', '.join(labels)})"
        raise refuse("reference", bound, reference, "name one of these")
    runs: dict[str, dict[int, Row]] = {}
    for row in final_rows(study, rows):
        name = label_of(cell_of(study, row), row["method"])
        runs.setdefault(name, {})[row["seed"]] = row
    body: list[tuple[Value, ...]] = []
    for cell, _ in cells(study):
        ours = runs.get(label_of(cell, reference), {})
        tests = {
            m: mcnemar(ours, runs.get(label_of(cell, m), {})) for m in labels if m != reference
        }
        known = {m: test for m, test in tests.items() if test is not None}
        adjusted = holm([test.p for test in known.values()])
        body += [
            (*cell.values(), m, *_test_cells(test, p))
            for (m, test), p in zip(known.items(), adjusted, strict=True)
        ]
    axes = (axis.label for axis in study.axes)
    columns = (*axes, "method", "seeds", "b", "c", "chi2", "p", "p (Holm)")
    note = (
        f"b: records that {reference} alone got right; c: the other alone. Continuity-corrected "
        "McNemar test, counts summed over seeds. All seeds share the test records, so the sums "
        "overstate how much was seen; the paired intervals over seeds do not. Holm: adjusted for "
        "the methods of a cell."
    )
    return Table(f"McNemar tests against {reference}", columns, tuple(body), note)


def _test_cells(test: McNemar, adjusted: float) -> list[Value]:
    counts = [Number(count, digits=0) for count in (test.seeds, test.b, test.c)]
    return [*counts, Number(test.chi2), _p_value(test.p), _p_value(adjusted)]


def _p_value(p: float) -> str:
    return "< 1e-300" if p < 1e-300 else f"{p:.2g}"


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values (1979): at most a share alpha of families has one false alarm."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted
