# SPDX-License-Identifier: Apache-2.0
"""The leaderboard's page: complete by itself, the same bytes each time, and what is committed."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from lab.tests.test_leaderboard import FIGURES, STUDY, Figures, write

from dpfed_lab.leaderboard import collect
from dpfed_lab.leaderboard_page import (
    SHOWN,
    board_html,
    board_markdown,
    standings,
    write_leaderboard,
)

RESULTS = Path(__file__).parents[2] / "results"
VOID = {"meta", "br", "img"}


class Nesting(HTMLParser):
    """Every tag is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open += [] if tag in VOID else [tag]
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_loads_nothing(tmp_path: Path) -> None:
    write(tmp_path, "one")
    page = write_leaderboard(tmp_path).read_text(encoding="utf-8")
    parsed = Nesting()
    parsed.feed(page)
    assert not parsed.open
    assert set(parsed.links) == {"#cifar-10", "one/"}
    assert "<script" not in page
    assert "http" not in page
    assert "@import" not in page


def test_figures_marks_and_links_are_on_both_pages(tmp_path: Path) -> None:
    write(tmp_path, "one", losses={("8", "DP-FedGD", 0): 99.0})
    found = collect(tmp_path)
    page, text = board_html(found), board_markdown(found)
    assert "<strong>52.17 ± 2.02</strong>" in page
    assert "**52.17 ± 2.02**" in text
    assert '52.00 ± 2.00 <span class="mark">≈</span>' in page
    assert "52.00 ± 2.00 ≈" in text
    assert "1 of 3 diverged" in page
    assert "1 of 3 diverged" in text
    assert '<a href="one/">one</a>' in page
    assert "[one](one/)" in text


def test_names_are_escaped(tmp_path: Path) -> None:
    odd = '<b>&"'
    figures: Figures = {(e, odd if m == "EMA-only" else m): v for (e, m), v in FIGURES.items()}
    study = STUDY.replace('label = "EMA-only"', f"label = '{odd}'")
    folder = write(tmp_path, "one", figures, study)
    text = (folder / "final.csv").read_text(encoding="utf-8")
    quoted = '"<b>&"""'
    (folder / "final.csv").write_text(text.replace(odd, quoted), encoding="utf-8")
    page = write_leaderboard(tmp_path).read_text(encoding="utf-8")
    assert "<b>" not in page
    assert "&lt;b&gt;&amp;&quot;" in page


def test_a_long_board_folds(tmp_path: Path) -> None:
    one = '[[methods]]\nlabel = "DP-FedGD {i}"\nset = {{method = "dp-fedgd"}}\n'
    count = SHOWN + 3
    methods = "".join(one.format(i=i) for i in range(count))
    head, _, rest = STUDY.partition("[[methods]]")
    figures: Figures = {("1", f"DP-FedGD {i}"): (0.5, 0.6, 0.1 * i / count) for i in range(count)}
    write(tmp_path, "one", figures, head + methods + "[final]" + rest.partition("[final]")[2])
    page = write_leaderboard(tmp_path).read_text(encoding="utf-8")
    shown, _, folded = page.partition("<details>")
    assert "<summary>3 further lines</summary>" in folded
    assert len(re.findall("DP-FedGD \\d+<", shown)) == SHOWN
    assert "1 further lines" not in page


def test_how_often_counts_columns_with_a_rival(tmp_path: Path) -> None:
    write(tmp_path, "one")
    rows = {row[0]: row[1:] for row in standings(collect(tmp_path)).rows}
    assert rows == {"ema-only": ("2 / 0 / 0", "-"), "dp-fedgd": ("0 / 1 / 1", "-")}


def test_a_home_game_is_not_counted_and_said(tmp_path: Path) -> None:
    write(tmp_path, "home", chosen={})
    write(tmp_path, "away", study=STUDY.replace("cifar10.npz", "har.npz"), chosen={})
    found = collect(tmp_path)
    rows = {row[0]: row[1:] for row in standings(found).rows}
    assert rows["dp-fedauto"] == ("-", "0 / 0 / 2"), "the two columns of the other data set"
    assert board_markdown(found).count("defaults that were made on these records") == 1


def test_the_same_folder_gives_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path, "one")
    first = write_leaderboard(tmp_path).read_bytes()
    assert write_leaderboard(tmp_path).read_bytes() == first


@pytest.mark.long
@pytest.mark.skipif(not RESULTS.exists(), reason="an sdist has no results")
@pytest.mark.parametrize("name", ["leaderboard.html", "leaderboard.md"])
def test_the_committed_page_is_what_the_committed_runs_give(name: str) -> None:
    found = collect(RESULTS.parent / "lab" / "studies", RESULTS)
    made = board_html(found) if name.endswith("html") else board_markdown(found)
    assert made == (RESULTS / name).read_text(encoding="utf-8"), (
        "run 'dpfed leaderboard lab/studies --out results' and commit what it writes"
    )


@pytest.mark.skipif(not RESULTS.exists(), reason="an sdist has no results")
def test_every_link_of_the_committed_page_leads_somewhere() -> None:
    parsed = Nesting()
    parsed.feed((RESULTS / "leaderboard.html").read_text(encoding="utf-8"))
    folders = [link for link in parsed.links if not link.startswith("#")]
    assert folders
    assert all((RESULTS / link).is_dir() for link in folders)
