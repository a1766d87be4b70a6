# SPDX-License-Identifier: Apache-2.0
"""The tables of a study, made from its stored runs: pure functions, rows in, a table out.

Accuracy is given in percent as mean ± sample standard deviation over seeds. Where a study has no
classes, its loss takes that place, and less is better. A seed that is missing, or that ended
without a finite figure, is left out of the mean and named in the note: a mean over fewer seeds is
never shown as if it were over all.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpfed.accounting import gdp
from dpfed.errors import RecipeError
from dpfed.experiments.jobs import Row
from dpfed.experiments.study import Cell, Contestant, Study, cells, tuned_cell
from dpfed.experiments.sweep import Entry, entries_of, label_of, settings_for, tuning_cost
from dpfed.recipe import PrivacyRecipe

NOTHING = "-"
"""What stands where there is no figure."""

CONFIDENCE = 0.95

Settings = Mapping[str, Mapping[str, Any]]
"""Of settings.json: cell and method -> set, validation, tried."""


# --------------------------------------------------------------------------------------- the value


@dataclass(frozen=True)
class Number:
    """A figure in a table: shown rounded, written to CSV in full."""

    mean: float
    std: float | None = None
    digits: int = 2

    def __str__(self) -> str:
        spread = "" if self.std is None else f" ± {self.std:.{self.digits}f}"
        return f"{self.mean:.{self.digits}f}{spread}"


Value = str | Number


@dataclass(frozen=True)
class Table:
    """A table, whatever it is written as."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    note: str = ""
    bold: frozenset[tuple[int, int]] = frozenset()
    """(row, column) of the best figures."""

    def numeric(self, column: int) -> bool:
        """Whether a column has figures, and so is set flush right."""
        return any(isinstance(row[column], Number) for row in self.rows)

    def to_markdown(self) -> str:
        """A heading, the table, its note."""
        rule = "|" + "".join("---:|" if self.numeric(c) else "---|" for c in range(self._width))
        head = f"| {' | '.join(map(_in_markdown, self.columns))} |"
        body = [f"| {' | '.join(cells)} |" for cells in self._marked(_in_markdown, "**{}**")]
        lines = [
            f"### {self.title}",
            "",
            head,
            rule,
            *body,
            *(["", self.note] if self.note else []),
        ]
        return "\n".join(lines) + "\n"

    def to_latex(self) -> str:
        """A table environment; its rules are those of the package booktabs."""
        shape = "".join("r" if self.numeric(c) else "l" for c in range(self._width))
        head = " & ".join(map(_in_latex, self.columns))
        body = [f"{' & '.join(cells)} \\\\" for cells in self._marked(_in_latex, r"\textbf{{{}}}")]
        caption = _in_latex(f"{self.title}. {self.note}".rstrip())
        return "\n".join(
            [
                "% needs \\usepackage{booktabs}", r"\begin{table}[t]", r"\centering",
                rf"\caption{{{caption}}}", rf"\begin{{tabular}}{{{shape}}}", r"\toprule",
                rf"{head} \\", r"\midrule", *body, r"\bottomrule", r"\end{tabular}",
                r"\end{table}", "",
            ]
        )  # fmt: skip

    def to_csv(self) -> str:
        """Figures in full; a standard deviation gets its own column."""
        spread = [any(isinstance(v := row[c], Number) and v.std is not None for row in self.rows)
                  for c in range(self._width)]  # fmt: skip
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(_wide(self.columns, spread, lambda name: [name, f"{name} std"]))
        writer.writerows(_wide(row, spread, _mean_and_std) for row in self.rows)
        return text.getvalue()

    @property
    def _width(self) -> int:
        return len(self.columns)

    def _marked(self, escape: Callable[[str], str], bold: str) -> Iterator[list[str]]:
        for i, row in enumerate(self.rows):
            texts = [escape(str(value)) for value in row]
            yield [bold.format(t) if (i, c) in self.bold else t for c, t in enumerate(texts)]


def _wide(cells: Sequence[Any], spread: list[bool], split: Callable[[Any], list[str]]) -> list[str]:
    """The cells of a row, each with one more where its column needs it."""
    return [
        text for cell, two in zip(cells, spread, strict=True) for text in split(cell)[: 1 + two]
    ]


def _mean_and_std(value: Value) -> list[str]:
    if isinstance(value, str):
        return ["" if value == NOTHING else value, ""]
    return [f"{value.mean:.10g}", "" if value.std is None else f"{value.std:.10g}"]


def _in_markdown(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("_", "\\_")


_LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": "$<$", ">": "$>$", "±": r"$\pm$", "\u00d7": r"$\times$",
}  # fmt: skip


def _in_latex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in text)


# -------------------------------------------------------------------------------------- the scores


@dataclass(frozen=True)
class Measure:
    """What the runs of a study are judged by."""

    name: str
    label: str
    scale: float
    sign: int
    """+1 where more is better, -1 where less is."""
    digits: int
    unit: str
    """Of a difference."""

    def value(self, raw: Any) -> float | None:
        """A stored figure as the tables show it; None if there is none."""
        return self.scale * float(raw) if _finite(raw) else None


ACCURACY = Measure("accuracy", "accuracy (%)", 100.0, 1, 2, "points")
LOSS = Measure("loss", "loss", 1.0, -1, 4, "loss")

BySeed = dict[int, float]


def _finite(raw: Any) -> bool:
    return raw is not None and math.isfinite(raw)


def cell_words(cell: Mapping[str, str]) -> str:
    """A cell's name in titles."""
    return ", ".join(f"{axis} {value}" for axis, value in cell.items()) or "all runs"


def final_rows(study: Study, rows: Iterable[Row], settings: Settings | None = None) -> list[Row]:
    """The final runs that the study asks for, one per cell, method and seed.

    A folder may also hold runs of other seeds, of a miniature, or at settings that a later search
    replaced. Among runs of the same name, the one that was stored last counts.
    """
    asked = {_name(cell, method.label, seed): (cell, base, method)
             for cell, base in cells(study) for method in study.methods
             for seed in study.final.seeds}  # fmt: skip
    found: dict[str, Row] = {}
    for row in rows:
        name = _name(_cell_of(study, row), row.get("method"), row.get("seed"))
        if row.get("stage") != "final" or name not in asked:
            continue
        cell, base, method = asked[name]
        used = row.get("set") or {}
        rounds = {**method.set, **base, **used}.get("rounds", study.base.get("rounds"))
        chosen = settings_for(study, settings, cell, method.label) if settings else {}
        if rounds in (None, row["rounds"]) and chosen in ({}, used):
            found[name] = row
    return [found[name] for name in asked if name in found]


def _cell_of(study: Study, row: Row) -> Cell:
    return {axis.label: str(row.get(axis.label)) for axis in study.axes}


def _name(cell: Cell, method: Any, seed: Any) -> str:
    return label_of(cell, f"{method} seed {seed}")


@dataclass(frozen=True)
class Scores:
    """What the runs reached: by cell and method, seed, and round."""

    study: Study
    measure: Measure
    runs: Mapping[str, Mapping[int, Mapping[int, float]]]

    def at(self, cell: Cell, method: str, round: int | None = None) -> BySeed:
        """Seed -> figure at a round; without one, at the end."""
        runs = self.runs.get(label_of(cell, method), {})
        wanted = {seed: max(by, default=0) if round is None else round for seed, by in runs.items()}
        return {seed: by[wanted[seed]] for seed, by in runs.items() if wanted[seed] in by}

    def rounds(self, cell: Cell) -> list[int]:
        """The rounds at which anything was measured in a cell."""
        runs = (self.runs.get(label_of(cell, m.label), {}) for m in self.study.methods)
        return sorted({at for by_seed in runs for by in by_seed.values() for at in by})

    def number(self, cell: Cell, method: str, round: int | None = None) -> Value:
        """Mean ± std over the seeds that have a figure."""
        values = list(self.at(cell, method, round).values())
        return _number(values, self.measure.digits)

    def mean(self, cell: Cell, method: str, round: int | None = None) -> float | None:
        """The mean over seeds, if there is any."""
        values = self.at(cell, method, round)
        return statistics.fmean(values.values()) if values else None

    def fewer(self, cell: Cell) -> list[str]:
        """Methods that have fewer seeds than the study asks for, in words."""
        wanted = len(self.study.final.seeds)
        have = {m.label: len(self.at(cell, m.label)) for m in self.study.methods}
        return [f"{name} ({count} of {wanted})" for name, count in have.items() if count < wanted]


def scores(study: Study, rows: Iterable[Row]) -> Scores:
    """The final runs as figures; accuracy if any run has one, or else the loss."""
    found = final_rows(study, rows)
    measure = ACCURACY if any(_finite(row["accuracy"]) for row in found) or not found else LOSS
    runs: dict[str, dict[int, dict[int, float]]] = {}
    for row in found:
        name = label_of(_cell_of(study, row), row["method"])
        runs.setdefault(name, {})[row["seed"]] = _by_round(row, measure)
    return Scores(study, measure, runs)


def _by_round(row: Row, measure: Measure) -> dict[int, float]:
    """A run that ended without a figure has none at all: its earlier rounds would flatter it."""
    last = measure.value(row[measure.name])
    if last is None:
        return {}
    measured = row.get("by_round") or {} if measure is ACCURACY else {}
    values = {int(at): measure.value(raw) for at, raw in measured.items()}
    return {**{r: v for r, v in sorted(values.items()) if v is not None}, row["rounds"]: last}


def _number(values: Sequence[float], digits: int) -> Value:
    if not values:
        return NOTHING
    return Number(statistics.fmean(values), _std(values), digits)


def _std(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


def _best(rows: Sequence[Sequence[Value]], columns: Iterable[int], sign: int, top: int = 0
          ) -> set[tuple[int, int]]:  # fmt: skip
    """The best of each column, as it is shown: figures that look the same are both best."""
    marked = set()
    for column in columns:
        shown = {i: sign * round(v.mean, v.digits) for i, row in enumerate(rows)
                 if isinstance(v := row[column], Number)}  # fmt: skip
        if len(shown) > 1:
            marked |= {(top + i, column) for i, v in shown.items() if v == max(shown.values())}
    return marked


def _seeds_note(study: Study) -> str:
    count = len(study.final.seeds)
    if count == 1:
        return "One seed, so no standard deviation."
    return f"Mean ± sample standard deviation over {count} seeds."


def _fewer_note(found: Scores, where: Iterable[Cell]) -> str:
    parts = [f"{cell_words(cell)}: {', '.join(found.fewer(cell))}" for cell in where
             if found.fewer(cell)]  # fmt: skip
    return f"Fewer seeds than asked for: {'; '.join(parts)}." if parts else ""


def _sentences(*parts: str) -> str:
    return " ".join(part for part in parts if part)


# -------------------------------------------------------------------------------- accuracy, speed


def progress_table(study: Study, rows: Iterable[Row], cell: Cell) -> Table:
    """Accuracy at each measured round, one row per method (seed 000, Table 3)."""
    found = scores(study, rows)
    rounds = found.rounds(cell)
    body = [(m.label, *(found.number(cell, m.label, r) for r in rounds)) for m in study.methods]
    return Table(
        f"{found.measure.label.capitalize()} by round: {cell_words(cell)}",
        ("method", *(f"round {r}" for r in rounds)),
        tuple(body),
        _sentences(_seeds_note(study), _fewer_note(found, [cell])),
        frozenset(_best(body, range(1, 1 + len(rounds)), found.measure.sign)),
    )


def final_table(study: Study, rows: Iterable[Row]) -> Table:
    """Methods by the first axis, at the last round; further axes are columns on the left."""
    found = scores(study, rows)
    note = _sentences(_seeds_note(study), _fewer_note(found, (c for c, _ in cells(study))))
    title = f"{found.measure.label.capitalize()} at the last round"
    return _by_first_axis(study, title, note, found.number, found.measure.sign)


def speed_table(study: Study, rows: Iterable[Row], share: float = 0.95) -> Table:
    """The first measured round at which the mean is that part of the baseline's final mean."""
    found = scores(study, rows)
    goals = {cell_words(cell): _goal(found, cell, share) for cell, _ in cells(study)}

    def reached(cell: Cell, method: str) -> Value:
        means = ((at, found.mean(cell, method, at)) for at in found.rounds(cell))
        goal = goals[cell_words(cell)]
        there = (at for at, mean in means if goal is not None and mean is not None and mean >= goal)
        first = next(there, None)
        return NOTHING if first is None else Number(first, digits=0)

    words = "; ".join(f"{name}: {goal:.2f}" for name, goal in goals.items() if goal is not None)
    note = f"To reach, in %: {words}. Measured every {study.final.every} rounds."
    missing = f"No accuracy of {study.baseline} to compare with."
    title = f"Rounds to {100 * share:g} % of the final accuracy of {study.baseline}"
    return _by_first_axis(study, title, note if words else missing, reached, -1)


def _goal(found: Scores, cell: Cell, share: float) -> float | None:
    """Accuracy alone is stored by round; a share of a loss would mean nothing anyway."""
    final = found.mean(cell, found.study.baseline)
    return None if final is None or found.measure is not ACCURACY else share * final


def _by_first_axis(
    study: Study, title: str, note: str, value: Callable[[Cell, str], Value], sign: int
) -> Table:
    """One row per method, one column per value of the first axis, blocks for the other axes."""
    others = study.axes[1:]
    blocks: dict[str, list[Cell]] = {}
    for cell, _ in cells(study):
        blocks.setdefault(cell_words({a.label: cell[a.label] for a in others}), []).append(cell)
    body: list[tuple[Value, ...]] = []
    bold: set[tuple[int, int]] = set()
    for block in blocks.values():
        left = [block[0][axis.label] for axis in others]
        part = [(*left, m.label, *(value(c, m.label) for c in block)) for m in study.methods]
        bold |= _best(part, range(len(left) + 1, len(part[0])), sign, len(body))
        body += part
    first = [cell_words({a.label: c[a.label] for a in study.axes[:1]})
             for c in next(iter(blocks.values()))]  # fmt: skip
    columns = (*(axis.label for axis in others), "method", *first)
    return Table(title, columns, tuple(body), note, frozenset(bold))


# ------------------------------------------------------------------------------------- comparisons


@dataclass(frozen=True)
class Gap:
    """A method less another one, seed by seed; a 95 % t-interval from two seeds on."""

    seeds: int
    mean: float
    std: float | None
    low: float | None
    high: float | None

    @property
    def settled(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def gap(found: Scores, cell: Cell, method: str, other: str) -> Gap | None:
    """Over the seeds that both have; None if there is none."""
    ours, theirs = found.at(cell, method), found.at(cell, other)
    both = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
    if not both:
        return None
    mean, std = statistics.fmean(both), _std(both)
    if std is None:
        return Gap(1, mean, None, None, None)
    from scipy.stats import t

    half = float(t.ppf((1 + CONFIDENCE) / 2, len(both) - 1)) * std / math.sqrt(len(both))
    return Gap(len(both), mean, std, mean - half, mean + half)


def paired_table(study: Study, rows: Iterable[Row], baseline: str | None = None) -> Table:
    """Each method less the baseline, seed by seed, with an interval for the mean."""
    found, other = scores(study, rows), baseline or study.baseline
    digits = found.measure.digits
    body = []
    for cell, _ in cells(study):
        for method in study.methods:
            pair = gap(found, cell, method.label, other) if method.label != other else None
            if pair is not None:
                body.append((*cell.values(), method.label, *_gap_cells(pair, digits)))
    name = f"difference ({found.measure.unit})"
    columns = (*_axes(study), "method", "seeds", name, "low", "high", "excludes 0")
    title = f"Difference to {other}, paired by seed"
    return Table(title, columns, tuple(body), _paired_note(study, found.measure))


def _gap_cells(pair: Gap, digits: int) -> list[Value]:
    difference = Number(pair.mean, pair.std, digits)
    ends = [NOTHING if end is None else Number(end, None, digits) for end in (pair.low, pair.high)]
    verdict = NOTHING if pair.low is None else "yes" if pair.settled else "no"
    return [Number(pair.seeds, digits=0), difference, *ends, verdict]


def _paired_note(study: Study, measure: Measure) -> str:
    better = "above" if measure.sign > 0 else "below"
    if len(study.final.seeds) == 1:
        return f"Better is {better} 0. One seed, so no interval."
    return (
        f"Better is {better} 0. Low and high: the 95 % t-interval of the mean difference over "
        "seeds; each stands alone, without a correction for the number of methods."
    )


def _axes(study: Study) -> list[str]:
    return [axis.label for axis in study.axes]


@dataclass(frozen=True)
class McNemar:
    """How often each of two methods alone was right, summed over seeds."""

    seeds: int
    b: int
    """Records that the reference got right and the other wrong."""
    c: int

    @property
    def chi2(self) -> float:
        """With the correction for continuity, which is not carried past b = c."""
        if self.b == self.c:
            return 0.0
        return (abs(self.b - self.c) - 1) ** 2 / (self.b + self.c)

    @property
    def p(self) -> float:
        """Of no difference; 1 where the two never differ."""
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
    """Each method against the reference, on the test records that only one of the two got right."""
    if reference not in (labels := [m.label for m in study.methods]):
        raise RecipeError(f"the study has no method {reference!r}; it has {', '.join(labels)}")
    runs: dict[str, dict[int, Row]] = {}
    for row in final_rows(study, rows):
        name = label_of(_cell_of(study, row), row["method"])
        runs.setdefault(name, {})[row["seed"]] = row
    body: list[tuple[Value, ...]] = []
    for cell, _ in cells(study):
        ours = runs.get(label_of(cell, reference), {})
        tests = {
            m: mcnemar(ours, runs.get(label_of(cell, m), {})) for m in labels if m != reference
        }
        known = {m: test for m, test in tests.items() if test is not None}
        adjusted = holm([test.p for test in known.values()])
        body += [(*cell.values(), m, *_test_cells(test, p))
                 for (m, test), p in zip(known.items(), adjusted, strict=True)]  # fmt: skip
    columns = (*_axes(study), "method", "seeds", "b", "c", "chi2", "p", "p (Holm)")
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


def side_by_side(
    study: Study,
    rows: Iterable[Row],
    theirs: Mapping[tuple[str, str, int], float],
    rounds: Sequence[int] | None = None,
) -> Table:
    """A paper's figures, (value of the first axis, method, round) -> accuracy in %, beside ours.

    Further axes are at their first value. Where we have no run at that round, nothing is compared.
    """
    found, first = scores(study, rows), study.axes[0]
    rest = {axis.label: next(iter(axis.options())) for axis in study.axes[1:]}
    labels, values = [m.label for m in study.methods], list(first.options())
    asked = [key for key in theirs if rounds is None or key[2] in rounds]
    body = []
    order = sorted(asked, key=lambda k: (*_at(k[0], values), *_at(k[1], labels), k[2]))
    for value, method, at in order:
        figure = theirs[value, method, at]
        ours = found.number({first.label: value, **rest}, method, at)
        lead = Number(ours.mean - figure) if isinstance(ours, Number) else NOTHING
        body.append((value, method, Number(at, digits=0), Number(figure), ours, lead))
    columns = (first.label, "method", "round", "theirs", "ours", "difference")
    note = f"{_seeds_note(study)} Difference: ours less theirs, in points."
    return Table("Published figures beside ours, accuracy (%)", columns, tuple(body), note)


def _at(name: str, known: list[str]) -> tuple[int, str]:
    """A place in the study's order; what the study does not have comes last."""
    return (known.index(name) if name in known else len(known), name)


# ---------------------------------------------------------------------------------------- settings


def settings_table(study: Study, rows: Iterable[Row], settings: Settings) -> Table:
    """What was chosen, how it did on held-out records, and what so many runs would cost."""
    rows, body = list(rows), []
    for cell, changes, method in entries_of(study):
        entry = settings.get(label_of(cell, method.label), {})
        chosen = settings_for(study, settings, cell, method.label)
        # where no table of settings is at hand, what the final runs say of themselves
        used = [row.get("set") for row in _runs_of(study, rows, cell, method)]
        words = setting_words(next(filter(None, [chosen, *used]), {}))
        validation, tried = ACCURACY.value(entry.get("validation")), int(entry.get("tried", 0))
        figures = [
            NOTHING if validation is None else Number(validation),
            Number(tried, digits=0) if tried else NOTHING,
            _cost(tried, _price(study, rows, (cell, changes, method))) if tried else NOTHING,
        ]
        body.append((*cell.values(), method.label, words, *figures))
    columns = (*_axes(study), "method", "setting", "validation (%)", "tried", "composed epsilon")
    note = (
        "Composed epsilon: against a server that sees every run that was tried, for Gaussian "
        "releases, at the delta of one run; a setting that two grids share counts twice. The runs' "
        "own epsilon does not cover this search."
    )
    note = _sentences(note, *_borrowed(study))
    return Table("Settings, and what their search would cost", columns, tuple(body), note)


def _borrowed(study: Study) -> list[str]:
    """Which cells use the settings of another one."""
    lent: dict[str, list[str]] = {}
    for cell, _ in cells(study):
        if (lender := tuned_cell(study, cell)) != cell:
            lent.setdefault(cell_words(lender), []).append(cell_words(cell))
    return [f"Also used by {'; '.join(names)}: the settings of {lender}." for lender, names in
            lent.items()]  # fmt: skip


def search_cost(
    study: Study, rows: Iterable[Row], settings: Settings, cell: Cell | None = None
) -> tuple[int, float | None]:
    """How many runs the search made, in a cell or in all, and their epsilon together.

    All of them looked at the same records. None where the epsilon of one of them is not known.
    """
    rows, runs, squares, deltas = list(rows), 0, 0.0, [0.0]
    for place, changes, method in entries_of(study):
        tried = int(settings.get(label_of(place, method.label), {}).get("tried", 0))
        if not tried or cell not in (None, place):
            continue
        epsilon, delta = _price(study, rows, (place, changes, method)) or (math.nan, 0.0)
        runs += tried
        squares += tried * (gdp.mu_for(epsilon, delta) ** 2 if math.isfinite(epsilon) else epsilon)
        deltas.append(delta)
    if not runs or math.isnan(squares):
        return runs, None
    return runs, gdp.epsilon_for(max(deltas), math.sqrt(squares))


def _cost(tried: int, price: tuple[float, float] | None) -> Value:
    if price is None:
        return NOTHING
    return Number(tuning_cost(tried, *price)) if math.isfinite(price[0]) else "no privacy"


def _price(study: Study, rows: Iterable[Row], entry: Entry) -> tuple[float, float] | None:
    """Epsilon against the server and delta of one run: as the final runs say, or as asked for.

    Trials aim at the same epsilon. Where a study fixes the noise instead, those with fewer rounds
    cost less than this.
    """
    cell, axes, method = entry
    changes, base = {**method.set, **axes}, study.base.get("privacy", {})
    delta = changes.get("privacy.delta", base.get("delta", PrivacyRecipe().delta))
    spent = [row["epsilon_server"] for row in _runs_of(study, rows, cell, method)]
    epsilon = max(spent) if spent else changes.get("privacy.epsilon", base.get("epsilon"))
    return None if epsilon is None else (float(epsilon), float(delta))


def _runs_of(study: Study, rows: Iterable[Row], cell: Cell, method: Contestant) -> list[Row]:
    return [
        row for row in final_rows(study, rows)
        if row["method"] == method.label and all(str(row[a]) == v for a, v in cell.items())
    ]  # fmt: skip


def setting_words(chosen: Mapping[str, Any]) -> str:
    """A setting in one line."""
    texts = (f"{value:g}" if isinstance(value, float) else value for value in chosen.values())
    return ", ".join(f"{key} = {text}" for key, text in zip(chosen, texts, strict=True)) or NOTHING
