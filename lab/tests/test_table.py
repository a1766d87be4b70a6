# SPDX-License-Identifier: Apache-2.0
"""A table as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
from lab.tests.made_up import LOW, ODD, ROWS, STUDY

from dpfed_lab import table
from dpfed_lab.study_tables import progress_table
from dpfed_lab.table import Number, Table

SMALL = Table(
    "A & B",
    ("method", "a_1"),
    ((ODD, Number(1.234, 0.5)), ("{x}", "-")),
    "100 % ^2.",
    frozenset({(0, 1)}),
)


def test_markdown() -> None:
    assert SMALL.to_markdown() == (
        "### A & B\n\n| method | a\\_1 |\n|---|---:|\n| 50%\\_new\\|x | **1.23 ± 0.50** |\n"
        "| {x} | - |\n\n100 % ^2.\n"
    )


def test_latex_is_escaped() -> None:
    text = SMALL.to_latex()
    assert r"\caption{A \& B. 100 \% \textasciicircum{}2.}" in text
    assert r"50\%\_new|x & \textbf{1.23 $\pm$ 0.50} \\" in text
    assert r"\{x\} & - \\" in text
    assert r"\begin{tabular}{lr}" in text
    assert table._in_latex("a\\b~<$") == r"a\textbackslash{}b\textasciitilde{}$<$\$"


def test_csv_is_numbers_in_full_with_the_deviation_beside() -> None:
    found = list(csv.reader(io.StringIO(SMALL.to_csv())))
    assert found == [["method", "a_1", "a_1 std"], [ODD, "1.234", "0.5"], ["{x}", "", ""]]
    progress = progress_table(STUDY, ROWS, LOW)
    rows = list(csv.DictReader(io.StringIO(progress.to_csv())))
    assert float(rows[1]["round 6"]) == pytest.approx(100 * (0.53 + 0.56 + 0.57) / 3)
    assert float(rows[1]["round 6 std"]) == pytest.approx(np.std([53, 56, 57], ddof=1))


def test_figures_are_rounded_marked_and_never_minus_zero() -> None:
    assert str(Number(-0.001)) == "0.00"
    assert str(Number(55.333, 2.0817, mark="▲")) == "55.33 ± 2.08 ▲"
    assert Number(55.333, 2.0817, mark="▲").text == "55.33 ± 2.08"
    assert str(Number(1.23456e-7, 2e-8, digits=10)) == "1.235e-07 ± 2.0e-08"
    assert str(Number(3.2e9, digits=0)) == "3.200e+09"
