# SPDX-License-Identifier: Apache-2.0
"""A paper's figures beside ours: read from its CSV, in the study's cells, with both leads."""

from __future__ import annotations

import csv
import runpy
from pathlib import Path

import pytest
from lab.tests.made_up import ROWS, STUDY, texts, two_axes
from lab.tests.studies import write

from dpfed.core.errors import RecipeError
from dpfed_lab import study as studies
from dpfed_lab.published import PAPER, Paper, read_paper, side_by_side
from dpfed_lab.reproduce import reproduce
from dpfed_lab.study import PAPERS, STUDIES, Study

PRINTED = """epsilon,method,round,accuracy,std
8,DP-FedGD,6,70.5,0.1
0.5,DP-FedSOFIM,4,55.0,
0.5,DP-FedSOFIM,6,56.0,
0.5,DP-FedGD,2,40.0,1.5
0.5,DP-FedGD,6,53.25,
0.5,DP-FedSOFIM,2,42.0,
0.5,Elsewhere,6,60.0,
"""


def paper(folder: Path, text: str = PRINTED, study: Study = STUDY) -> Paper:
    path = folder / PAPER
    path.write_text(text, encoding="utf-8")
    return read_paper(path, study)


def test_theirs_ours_and_both_leads(tmp_path: Path) -> None:
    table = side_by_side(STUDY, ROWS, paper(tmp_path))
    assert table.columns == (
        "epsilon",
        "method",
        "round",
        "theirs",
        "ours",
        "difference",
        "theirs less DP-FedGD",
        "ours less DP-FedGD",
    )
    assert texts(table) == [
        ["0.5", "DP-FedGD", "2", "40.00 ± 1.50", "32.00 ± 2.00", "-8.00", "-", "-"],
        ["0.5", "DP-FedGD", "6", "53.25", "52.00 ± 2.00", "-1.25", "-", "-"],
        ["0.5", "DP-FedSOFIM", "2", "42.00", "53.33 ± 2.08", "11.33", "2.00", "21.33 ± 0.58"],
        ["0.5", "DP-FedSOFIM", "6", "56.00", "55.33 ± 2.08", "-0.67", "2.75", "3.33 ± 0.58"],
        ["0.5", "Elsewhere", "6", "60.00", "-", "-", "6.75", "-"],
        ["8", "DP-FedGD", "6", "70.50 ± 0.10", "71.00 ± 1.00", "0.50", "-", "-"],
    ]
    assert "the lead over DP-FedGD" in table.note


def test_rounds_are_the_first_and_last_printed_or_those_asked_for(tmp_path: Path) -> None:
    given = paper(tmp_path)
    assert given.ends() == {2, 6}
    assert [line[1:3] for line in texts(side_by_side(STUDY, ROWS, given, rounds=[4]))] == [
        ["DP-FedSOFIM", "4"]
    ]
    assert paper(tmp_path, "method,round,accuracy\n").ends() == set()


def test_axes_that_the_paper_does_not_vary_are_at_their_first_value(tmp_path: Path) -> None:
    study, rows = two_axes()
    table = side_by_side(study, rows, paper(tmp_path, PRINTED, study))
    assert table.columns[:2] == ("epsilon", "method")
    assert texts(table)[1][4] == "52.00 ± 2.00"
    assert "Ours at split iid." in table.note
    skewed = PRINTED.replace("std", "split").replace("6,53.25,", "6,53.25,skewed")
    skewed = "\n".join(line for line in skewed.splitlines() if line.endswith(("split", "skewed")))
    table = side_by_side(study, rows, paper(tmp_path, skewed, study))
    assert texts(table)[0][:2] == ["0.5", "skewed"]
    assert texts(table)[0][5] == "47.00 ± 2.00"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "epsilon,method,accuracy\n",
            r"must have the columns .*, got epsilon, method, accuracy; add round",
        ),
        ("rho,method,round,accuracy\n", r"the study's axes \(epsilon\), got rho; rename"),
        (
            "method,round,accuracy\nA,1,high\n",
            "must have numbers for round, .*high.*; correct that line",
        ),
    ],
)
def test_a_wrong_file_is_answered_in_a_sentence(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        paper(tmp_path, text)


@pytest.mark.long
@pytest.mark.slow
def test_a_folder_gets_the_figures_of_its_study(tmp_path: Path) -> None:
    source = write(tmp_path)
    reproduce(source, tmp_path / "without", quick=True, tune=True, workers=1)
    assert not (tmp_path / "without" / PAPER).exists()
    (tmp_path / "small.paper.csv").write_text("epsilon,method,round,accuracy\n1,DP-FedGD,6,50\n")
    reproduce(source, tmp_path / "with", quick=True, tune=True, workers=1)
    assert (tmp_path / "with" / PAPER).read_text() == (tmp_path / "small.paper.csv").read_text()


KNOWN = [name for name in studies.study_names() if (STUDIES / name / PAPER).exists()]


@pytest.mark.parametrize("name", KNOWN)
def test_every_printed_figure_has_a_run_to_stand_beside(name: str) -> None:
    study = studies.load_study(name)
    found = read_paper(STUDIES / name / PAPER, study)
    cells = [cell for cell, _ in studies.cells(study)]
    labels = [method.label for method in study.methods]
    for each in found.figures:
        assert each.cell in cells
        assert each.method in labels
        assert each.round % study.final.every == 0
        assert 20 < each.accuracy.mean < 90
    assert study.baseline in {each.method for each in found.figures}


def test_the_figures_are_what_the_paper_prints(repository: Path) -> None:
    """Read by eye: 9 and 7 methods at 4 epsilons and 7 rounds; 3 at 4 epsilons; 7 rho at 2.

    Where the papers' text is at hand, every file is read from it again.
    """
    found = {path.parent.name: path.read_text().splitlines() for path in STUDIES.glob(f"*/{PAPER}")}
    assert [
        len(found[name]) - 1
        for name in ("sofim-cifar10", "sofim-cifar10-iid", "sofim-ablation", "sofim-rho")
    ] == [252, 196, 12, 14]
    for name, line in (
        ("sofim-cifar10", "0.5,DP-FedYogi,40,52.69,0.85"),
        ("sofim-cifar10", "5,DP-SCAFFOLD,20,62.19,0.74"),
        ("sofim-cifar10", "10,DP-FedSOFIM,70,68.56,0.05"),
        ("sofim-cifar10-iid", "1,DP-FedYogi,50,60.13,0.82"),
        ("sofim-cifar10-iid", "10,DP-FedSOFIM,60,68.87,0.11"),
        ("sofim-ablation", "10,EMA-only,70,68.45,0.02"),
        ("sofim-rho", "5,rho 10,70,61.99,0.62"),
    ):
        assert line in found[name]
    script = runpy.run_path(str(repository / "lab/scripts/published.py"))
    if not script["SEEDS"].exists():
        pytest.skip("the papers' text is not at hand")
    files = set(STUDIES.glob(f"*/{PAPER}")) | set(PAPERS.glob("*.csv"))
    assert {path for path, *_ in script["tables"](STUDIES.parent)} == files
    for path, paper_of, columns, read in script["tables"](STUDIES.parent):
        text = (script["SEEDS"] / f"{paper_of}.txt").read_text(encoding="utf-8")
        with path.open(newline="", encoding="utf-8") as file:
            stored = [tuple(line) for line in csv.reader(file)]
        assert stored == [columns, *script["lines_of"](read, columns, text)]
