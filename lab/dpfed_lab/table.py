# SPDX-License-Identifier: Apache-2.0
"""A table as a value: figures with their spread, written as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NOTHING = "-"
"""What stands in a cell without a figure."""

BETTER, WORSE = "▲", "▼"
"""Beside a figure whose difference to the baseline's is statistically significant (mark_note)."""

FIXED = 6
"""With more decimals or places than this a figure is written with a power of ten."""


@dataclass(frozen=True)
class Number:
    """A figure in a table: shown rounded, written to CSV in full."""

    mean: float
    std: float | None = None
    digits: int = 2
    mark: str = ""

    @property
    def text(self) -> str:
        """Mean and spread, without the mark."""
        how, spread = (f"z.{self.digits}f",) * 2
        if self.digits > FIXED or abs(self.mean) >= 10**FIXED:
            how, spread = "z.3e", "z.1e"
        return f"{self.mean:{how}}" + ("" if self.std is None else f" ± {self.std:{spread}}")

    def __str__(self) -> str:
        return f"{self.text} {self.mark}".rstrip()


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
                "% needs \\usepackage{booktabs}",
                r"\begin{table}[t]",
                r"\centering",
                rf"\caption{{{caption}}}",
                rf"\begin{{tabular}}{{{shape}}}",
                r"\toprule",
                rf"{head} \\",
                r"\midrule",
                *body,
                r"\bottomrule",
                r"\end{tabular}",
                r"\end{table}",
                "",
            ]
        )

    def to_csv(self) -> str:
        """Figures in full; a standard deviation gets its own column."""
        spread = [
            any(isinstance(v := row[c], Number) and v.std is not None for row in self.rows)
            for c in range(self._width)
        ]
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
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "±": r"$\pm$",
    "\u00d7": r"$\times$",
    BETTER: r"$\bigtriangleup$",
    WORSE: r"$\bigtriangledown$",
}


def _in_latex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in text)


def best(
    rows: Sequence[Sequence[Value]], columns: Iterable[int], sign: int, top: int = 0
) -> set[tuple[int, int]]:
    """The best of each column, as it is shown: figures that look the same are both best.

    Args:
        rows: the table's rows, or a block of them.
        columns: the columns in which the best is looked for; one with a single figure has none.
        sign: 1 where more is better, -1 where less is.
        top: the number of table rows above this block.
    """
    marked = set()
    for column in columns:
        shown = {
            i: sign * round(v.mean, v.digits)
            for i, row in enumerate(rows)
            if isinstance(v := row[column], Number)
        }
        if len(shown) > 1:
            marked |= {(top + i, column) for i, v in shown.items() if v == max(shown.values())}
    return marked


def write_tables(tables: Mapping[str, Table], folder: Path) -> Path:
    """Each table as .md, .csv and .tex; returns the folder."""
    folder.mkdir(exist_ok=True)
    for name, table in tables.items():
        (folder / f"{name}.md").write_text(table.to_markdown(), encoding="utf-8")
        (folder / f"{name}.csv").write_text(table.to_csv(), encoding="utf-8")
        (folder / f"{name}.tex").write_text(table.to_latex(), encoding="utf-8")
    return folder
