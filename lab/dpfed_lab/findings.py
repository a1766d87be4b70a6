# SPDX-License-Identifier: Apache-2.0
"""What a study found, in sentences; each says whether a lead is statistically significant.

The test is that of significance.py: the paired 95 % t interval over seeds excludes 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dpfed_lab.scores import ACCURACY, Scores, cell_words
from dpfed_lab.significance import Gap, gap
from dpfed_lab.study import Cell, cells
from dpfed_lab.table import Number


def overall_finding(found: Scores) -> str:
    """Which methods lead in how many cells, and which are significantly off the baseline."""
    there = _there(found)
    tops = [_top(found, cell) for cell in there]
    first = Counter(top[0] if len(top) == 1 else "a tie" for top in tops if top)
    leaders = listed([f"{name} in {count}" for name, count in first.most_common()] or ["no method"])
    better, worse = (listed(_counts(found, there, sign) or ["none"]) for sign in (1, -1))
    return (
        f"The {_best(found)} in {len(there)} cells: {leaders}. Compared with the baseline "
        f"{found.study.baseline}, by intervals that exclude 0, each by itself: better {better}; "
        f"worse {worse}."
    )


def _best(found: Scores) -> str:
    return f"{'highest' if found.measure.sign > 0 else 'lowest'} mean {found.measure.name}"


def _top(found: Scores, cell: Cell) -> list[str]:
    """The method with the best mean; several if their means are the same in the digits shown."""
    ranked = _ranked(found, cell)
    return [name for name in ranked if _shown(found, cell, name) == _shown(found, cell, ranked[0])]


def _there(found: Scores) -> list[Cell]:
    return [cell for cell, _ in cells(found.study) if found.rounds(cell)]


def _counts(found: Scores, there: Sequence[Cell], sign: int) -> list[str]:
    """Methods that are significantly on one side of the baseline, with the number of cells."""
    baseline = found.study.baseline
    others = [m.label for m in found.study.methods if m.label != baseline]
    pairs = {name: [gap(found, cell, name, baseline) for cell in there] for name in others}
    side = sign * found.measure.sign
    counts = {
        name: sum(pair is not None and pair.significant and side * pair.mean > 0 for pair in every)
        for name, every in pairs.items()
    }
    return [f"{name} in {count}" for name, count in counts.items() if count]


def findings(found: Scores) -> dict[str, str]:
    """For each cell: the method with the best mean, and whether its lead is significant."""
    return {cell_words(cell): _finding(found, cell) for cell in _there(found)}


def _finding(found: Scores, cell: Cell) -> str:
    ranked = _ranked(found, cell)
    if not ranked:
        return "No method has all of its seeds, so none is compared."
    top, unit = _top(found, cell), " %" if found.measure is ACCURACY else ""
    if len(top) > 1:
        return f"{listed(top)} share the {_best(found)}, {_shown(found, cell, top[0])}{unit}."
    parts = [f"{top[0]} has the {_best(found)}, {found.number(cell, top[0])}{unit}."]
    baseline = found.study.baseline
    if top[0] == baseline:
        parts.append("It is the baseline: no method is ahead of it.")
    else:
        parts.append(_versus(found, cell, top[0], baseline, "the baseline "))
    rivals = [name for name in ranked[1:] if name != baseline]
    parts += [_versus(found, cell, top[0], name, "the next, ") for name in rivals[:1]]
    return " ".join(parts)


def _ranked(found: Scores, cell: Cell) -> list[str]:
    """Methods, best first; one without all seeds is left out, as the missing runs may be worse."""
    wanted = len(found.study.final.seeds)
    means = {
        m.label: found.mean(cell, m.label)
        for m in found.study.methods
        if len(found.at(cell, m.label)) == wanted
    }
    known = {name: mean for name, mean in means.items() if mean is not None}
    return sorted(known, key=lambda name: -found.measure.sign * known[name])


def _shown(found: Scores, cell: Cell, method: str) -> str:
    mean = found.mean(cell, method) or 0.0
    return str(Number(mean, digits=found.measure.digits(mean)))


def _versus(found: Scores, cell: Cell, method: str, other: str, role: str) -> str:
    pair = gap(found, cell, method, other)
    if pair is None:
        return f"There are no runs of {role}{other} to compare with."
    side = "above" if found.measure.sign > 0 else "below"
    size = f"{Number(abs(pair.mean), digits=pair.digits)} {found.measure.unit}".rstrip()
    return f"It is {size} {side} {role}{other} ({_interval(pair)})."


def _interval(pair: Gap) -> str:
    if pair.low is None or pair.high is None:
        return "one seed, so no interval: significance is not known"
    low, high = (Number(end, digits=pair.digits) for end in (pair.low, pair.high))
    ends = f"paired 95 % t interval over {pair.seeds} seeds {low} to {high}"
    if pair.significant:
        return f"{ends}, excludes 0: statistically significant"
    return f"{ends}, includes 0: not statistically significant"


def listed(names: Sequence[str]) -> str:
    """Names as a list in a sentence; separated by semicolons if one of them has a comma."""
    if any("," in name for name in names):
        return "; ".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
