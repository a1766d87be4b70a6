# SPDX-License-Identifier: Apache-2.0
"""The report of a folder: one page that loads nothing, says what was run, and claims no more."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lab.tests.made_up import ODD, ROWS, SETTINGS, STUDY, losses, one_seed, row
from lab.tests.studies import write
from lab.tests.test_figures import TRIALS

from dpfed.core.errors import RecipeError
from dpfed_lab import figures, report
from dpfed_lab import study as studies
from dpfed_lab.figures import Picture
from dpfed_lab.findings import findings, listed, overall_finding
from dpfed_lab.report import write_report
from dpfed_lab.reproduce import dump_study, reproduce
from dpfed_lab.scores import scores
from dpfed_lab.study import Study
from dpfed_lab.sweep import tuning_cost
from dpfed_lab.table import Number, Table

pytestmark = pytest.mark.xdist_group("report")  # the page is made once

VOID = {"meta", "img", "br", "hr", "link"}


class Page(HTMLParser):
    """Every tag is closed in order; images, links and text are kept."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        self.ids += [str(given["id"])] if "id" in given else []
        self.images += [given] if tag == "img" else []
        self.loads += [
            str(given[name]) for name in ("src", "href", "srcset", "data") if name in given
        ]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def folder(path: Path, rows: list[dict[str, Any]] | None = None, study: Study = STUDY) -> Path:
    path.mkdir(exist_ok=True)
    lines = [json.dumps(row) for row in ([*TRIALS, *ROWS] if rows is None else rows)]
    (path / "runs.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (path / "settings.json").write_text(json.dumps(SETTINGS), encoding="utf-8")
    (path / "study.toml").write_text(dump_study(study), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(folder(tmp_path_factory.mktemp("study"))).parent


@pytest.fixture(scope="module")
def page(made: Path) -> Page:
    return Page((made / "report.html").read_text(encoding="utf-8"))


@pytest.fixture
def words_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes most of a report's time; where no figure is asked about, none is drawn."""
    monkeypatch.setattr(report, "all_pictures", lambda _: [])


@pytest.fixture
def unpainted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every figure is made, and named; its files are empty. test_figures.py has what is in them."""

    def save(picture: Picture, folder: Path) -> None:
        for kind in ("png", "svg", "pdf"):
            (folder / f"{picture.name}.{kind}").touch()

    monkeypatch.setattr(figures, "save_picture", save)
    monkeypatch.setattr(figures, "svg", lambda picture: picture.name.encode())


# ----------------------------------------------------------------------------------------- the page


@pytest.mark.long
@pytest.mark.slow
def test_the_page_is_well_formed_and_has_every_figure(made: Path, page: Page) -> None:
    files = {path.stem for path in (made / "figures").glob("*.png")}
    assert files == {
        "frontier",
        "convergence-epsilon-0_5",
        "convergence-epsilon-8",
        "final-epsilon-0_5",
        "final-epsilon-8",
        "tuning-epsilon-0_5-dp-fedsofim",
        "differences-epsilon-0_5",
        "differences-epsilon-8",
    }
    for kind in ("pdf", "svg"):
        assert files == {path.stem for path in (made / "figures").glob(f"*.{kind}")}
    assert files <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert len(page.images) == len(files)
    assert page.tags.count("figcaption") == len(files)
    for image in page.images:
        assert len(image["alt"] or "") > 40
        kind, data = str(image["src"]).split(",", 1)
        assert kind == "data:image/svg+xml;base64"
        assert base64.b64decode(data).startswith(b"<?xml")


@pytest.mark.long
@pytest.mark.slow
def test_the_page_loads_nothing(made: Path, page: Page) -> None:
    text = (made / "report.html").read_text(encoding="utf-8")
    assert all(load.startswith(("data:", "#")) for load in page.loads)
    assert {load[1:] for load in page.loads if load.startswith("#")} <= set(page.ids)
    assert "script" not in page.tags
    assert "link" not in page.tags
    assert not re.search(r"https?://|@import|url\(", text)


@pytest.mark.long
@pytest.mark.slow
def test_the_page_says_what_was_run_and_what_is_guaranteed(page: Page) -> None:
    for expected in (
        "made up",
        "made-up records",
        "on test records that the server holds",
        "18 of 18 final runs, 27 s of training",
        "12 runs, 12 s of training",
        "dpfed sweep study.toml",
        "UTC, with dpfed",
        "numpy",
        "processors",
        "(0.5, 1e-06)-DP for each record. DP-FedGD, DP-FedSOFIM and 50%_new|x.",
        "(8, 1e-06)-DP for each record.",
        "Tuning on private data is not covered by these figures.",
        f"epsilon 0.5: 4 settings, epsilon {tuning_cost(4, 0.5, 1e-6):.4g}",
        "There are 18 final runs on the same records",
    ):
        assert expected in page.text


@pytest.mark.long
@pytest.mark.slow
def test_tables_are_on_the_page_and_in_files(made: Path, page: Page) -> None:
    names = {
        "final",
        "progress-epsilon-0_5",
        "progress-epsilon-8",
        "speed",
        "paired",
        "mcnemar",
        "settings",
    }
    for kind in ("md", "csv", "tex"):
        assert {path.stem for path in (made / "tables").glob(f"*.{kind}")} == names
    assert page.tags.count("table") == len(names)
    assert "55.33 ± 2.08" in page.text
    assert "**55.33 ± 2.08 ▲**" in (made / "tables" / "final.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("words_only")
def test_a_long_table_is_folded() -> None:
    def shown(rows: int) -> str:
        table = Table("Many", ("method", "accuracy"), (("x", Number(0.5)),) * rows)
        return report._table_html(table)

    assert "<details>" not in shown(report.LONG)
    folded = shown(report.LONG + 1)
    assert f"<details><summary>{report.LONG + 1} rows</summary>" in folded
    assert folded.count("<tr>") == report.LONG + 2


@pytest.mark.usefixtures("unpainted")
def test_names_are_escaped(tmp_path: Path) -> None:
    study = msgspec.structs.replace(STUDY, title="a <b> & 'c'", about="<script>alert(1)</script>")
    path = write_report(folder(tmp_path), study)
    page = Page(path.read_text(encoding="utf-8"))
    assert "script" not in page.tags
    assert "a <b> & 'c'" in page.text
    assert "<script>alert(1)</script>" in page.text


@pytest.mark.slow
@pytest.mark.usefixtures("unpainted")
def test_the_same_folder_gives_the_same_files(tmp_path: Path) -> None:
    def written() -> dict[str, str]:
        page = write_report(folder(tmp_path)).read_text(encoding="utf-8")
        texts = {p.name: p.read_text(encoding="utf-8") for p in (tmp_path / "tables").iterdir()}
        return {**texts, "page": re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", "", page)}

    assert written() == written()


@pytest.mark.slow
@pytest.mark.usefixtures("unpainted")
def test_what_an_earlier_report_left_is_dropped(tmp_path: Path) -> None:
    write_report(folder(tmp_path))
    (tmp_path / "figures" / "notes.txt").touch()
    write_report(
        tmp_path,
        msgspec.structs.replace(STUDY, axes=[msgspec.structs.replace(STUDY.axes[0], values=[8.0])]),
    )
    left = {path.name for path in (tmp_path / "figures").iterdir()}
    kinds, files = ("convergence", "final", "differences"), ("png", "svg", "pdf")
    kept = {f"{kind}-epsilon-8.{end}" for kind in kinds for end in files}
    assert left == {"notes.txt", *kept}
    assert not list((tmp_path / "tables").glob("*0_5*"))


# ----------------------------------------------------------------------------------- what was found


def test_a_lead_is_stated_with_its_interval() -> None:
    found = findings(scores(STUDY, ROWS))
    assert found["epsilon 0.5"] == (
        "DP-FedSOFIM has the highest mean accuracy, 55.33 ± 2.08 %. It is 3.33 points above the "
        "baseline DP-FedGD (paired 95 % t interval over 3 seeds 1.90 to 4.77, excludes 0: "
        "statistically significant). It is 2.33 points above the next, 50%_new|x (paired 95 % t "
        "interval over 3 seeds -3.92 to 8.58, includes 0: not statistically significant)."
    )


def test_all_cells_have_one_answer() -> None:
    assert overall_finding(scores(STUDY, ROWS)) == (
        "The highest mean accuracy in 2 cells: DP-FedSOFIM in 1 and a tie in 1. Compared "
        "with the baseline DP-FedGD, by intervals that exclude 0, each by itself: better "
        f"DP-FedSOFIM in 1; worse {ODD} in 1."
    )


def test_many_cells_are_folded_behind_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    material = report.gather(folder(tmp_path))
    assert "<summary>" not in report._found_html(material)
    monkeypatch.setattr(report, "MANY", 1)
    page = report._found_html(material)
    assert page.index("The highest mean accuracy in 2 cells") < page.index("cell by cell</summary>")


def test_a_tie_has_no_winner() -> None:
    found = findings(scores(STUDY, ROWS))
    assert found["epsilon 8"] == (
        "DP-FedGD and DP-FedSOFIM share the highest mean accuracy, 71.00 %."
    )


def test_no_winner_where_the_interval_has_zero_or_there_is_one_seed() -> None:
    rows = [r for r in ROWS if r["method"] != "DP-FedSOFIM"]
    found = findings(scores(STUDY, rows))["epsilon 0.5"]
    assert "includes 0: not statistically significant" in found
    single = findings(scores(one_seed(), ROWS))["epsilon 0.5"]
    assert single.count("one seed, so no interval: significance is not known") == 2
    assert "excludes" not in single


def test_names_with_commas_are_parted_by_semicolons() -> None:
    assert listed(["A"]) == "A"
    assert listed(["A", "B", "C"]) == "A, B and C"
    assert listed(["tree, turns", "independent, drawn"]) == "tree, turns; independent, drawn"


def test_a_method_without_a_seed_is_not_called_best() -> None:
    """Two seeds at 53 and 57 would have the highest mean of all."""
    rows = [r for r in ROWS if (r["method"], r["seed"]) != ("DP-FedSOFIM", 0)]
    found = findings(scores(STUDY, rows))["epsilon 0.5"]
    assert found.startswith(f"{ODD} has the highest mean accuracy, 53.00")
    alone = [r for r in ROWS if r["seed"] == 0]
    assert findings(scores(STUDY, alone))["epsilon 0.5"].startswith("No method has all")


def test_the_baseline_may_be_best_or_missing() -> None:
    rows = [r for r in ROWS if r["method"] != "DP-FedSOFIM"]
    assert "It is the baseline: no method is ahead" in findings(scores(STUDY, rows))["epsilon 8"]
    rows = [r for r in ROWS if r["method"] != "DP-FedGD"]
    assert "no runs of the baseline DP-FedGD" in findings(scores(STUDY, rows))["epsilon 0.5"]


def test_a_lower_loss_is_a_lead() -> None:
    found = findings(scores(STUDY, losses()))["epsilon 0.5"]
    assert found.startswith(
        "DP-FedSOFIM has the lowest mean loss, 1.447 ± 0.021. It is 0.033 below the baseline "
        "DP-FedGD (paired 95 % t interval over 3 seeds -0.048 to -0.019, excludes 0: "
        "statistically significant)."
    )


# ---------------------------------------------------------------------------------- what is at hand


@pytest.mark.slow
@pytest.mark.usefixtures("unpainted")
def test_a_study_of_losses_has_curves_where_it_was_measured_by_round(tmp_path: Path) -> None:
    rows = [{**r, "by_round": {}} for r in losses()]
    path = write_report(folder(tmp_path / "last", rows))
    Page(path.read_text(encoding="utf-8"))
    files = {p.stem for p in (tmp_path / "last/tables").glob("*.md")}
    assert files == {"final", "paired", "settings"}
    assert not list((tmp_path / "last/figures").glob("convergence*"))
    write_report(folder(tmp_path / "all", losses()))
    files = {p.stem for p in (tmp_path / "all/tables").glob("*.md")}
    assert files >= {"progress-epsilon-0_5", "progress-epsilon-8", "speed"}
    assert len(list((tmp_path / "all/figures").glob("convergence*.png"))) == 2


@pytest.mark.usefixtures("words_only")
def test_silos_and_published_figures_have_their_tables(tmp_path: Path) -> None:
    rows = [{**r, "worst_silo": 0.25} for r in ROWS]
    made = folder(tmp_path, rows)
    text = "epsilon,method,round,accuracy\n0.5,DP-FedSOFIM,6,60\n0.5,DP-FedGD,6,50\n"
    (made / "paper.csv").write_text(text, encoding="utf-8")
    page = Page(write_report(made).read_text(encoding="utf-8"))
    assert {"silos", "published"} <= {p.stem for p in (made / "tables").glob("*.tex")}
    assert "theirs less DP-FedGD" in page.text
    assert "worst silo (%)" in page.text
    # nothing of ours stands beside a round that we did not measure
    (made / "paper.csv").write_text(text.replace(",6,", ",70,"), encoding="utf-8")
    page = Page(write_report(made).read_text(encoding="utf-8"))
    assert "theirs less DP-FedGD" not in page.text


@pytest.mark.long
@pytest.mark.slow
def test_marks_leave_figures_in_line(made: Path) -> None:
    text = (made / "report.html").read_text(encoding="utf-8")
    assert '<strong>55.33 ± 2.08 <span class="mark better">▲</span></strong>' in text
    assert '52.00 ± 2.00 <span class="mark"></span>' in text


@pytest.mark.usefixtures("words_only")
def test_runs_with_different_guarantees_show_the_weakest(tmp_path: Path) -> None:
    rows = [
        {**r, "epsilon_others": 0.1 * r["seed"], "guarantee": f"(1, {r['seed']})-DP."} for r in ROWS
    ]
    page = Page(write_report(folder(tmp_path, rows)).read_text(encoding="utf-8"))
    assert f"(1, 2)-DP. The weakest of 3 runs of DP-FedGD, DP-FedSOFIM and {ODD}." in page.text
    assert "(1, 1)-DP" not in page.text


@pytest.mark.usefixtures("words_only")
def test_without_a_search_the_page_still_warns(tmp_path: Path) -> None:
    folder(tmp_path, ROWS)
    (tmp_path / "settings.json").unlink()
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    assert "Tuning on private data is not covered by these figures." in page.text
    assert "This folder has no record of a search" in page.text
    assert "server.0.rate = 0.5" in page.text


@pytest.mark.usefixtures("words_only")
def test_runs_that_do_not_belong_are_left_out_and_counted(tmp_path: Path) -> None:
    stale = row("0.5", "DP-FedGD", 0, key="stale", set={"server.0.rate": 9.0}, accuracy=0.99)
    page = Page(write_report(folder(tmp_path, [*ROWS, stale])).read_text(encoding="utf-8"))
    assert "runs of other seeds, rounds or settings: 1" in page.text
    assert "52.00 ± 2.00" in page.text


@pytest.mark.usefixtures("words_only")
def test_a_line_cut_short_does_no_harm(tmp_path: Path) -> None:
    folder(tmp_path)
    with (tmp_path / "runs.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"key": "x", "stage": "fin')
    Page(write_report(tmp_path).read_text(encoding="utf-8"))


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="study 'made up'"):
        write_report(folder(tmp_path / "a", []))
    with pytest.raises(RecipeError, match=r"study.*path of a TOML file.*none/study\.toml"):
        write_report(tmp_path / "none")


def test_the_command_names_a_study_that_comes_along() -> None:
    study = studies.load_study("sofim-cifar10")
    assert report.command(study, searched=True) == "DPFED_DATA=data dpfed sweep sofim-cifar10"
    assert report.command(study, searched=False).endswith("dpfed reproduce sofim-cifar10")
    quick = msgspec.structs.replace(study, title=f"{study.title} (miniature)")
    assert report.command(quick, searched=True).endswith("reproduce sofim-cifar10 --quick")
    assert report.command(STUDY, searched=False) == "dpfed sweep study.toml"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("unpainted")
def test_a_real_study_has_a_report(tmp_path: Path) -> None:
    out = tmp_path / "out"
    reproduce(write(tmp_path), out, tune=True, workers=1)
    page = Page(write_report(out).read_text(encoding="utf-8"))
    assert "16 of 16 final runs" in page.text
    assert "epsilon 1, split skewed" in page.text
    assert "against the server" in page.text


@pytest.mark.long
@pytest.mark.slow  # a browser looks at it
def test_a_page_with_every_kind_of_figure_is_sound(tmp_path: Path, repository: Path) -> None:
    page = write_report(folder(tmp_path))
    command = [sys.executable, str(repository / "scripts/check_page.py"), str(page)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
