# SPDX-License-Identifier: Apache-2.0
"""The officer's page: every decision with its command, and no word of a server's as it came."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from typer.testing import CliRunner

from dpfed.cli.main import app
from dpfed.silo.page import page_html
from tests.helpers.handlers import (
    _own_environment,  # noqa: F401
    approved,
    enrolment,
    handler,
    order,
)


class Tags(HTMLParser):
    """All tags of a page, and that each is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        self.open += [tag] if tag not in ("meta", "br") else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_it_shows_budget_trainings_and_commands(tmp_path: Path) -> None:
    held, terms = approved(tmp_path)
    held.reply(order(terms))
    held.reply(order(terms, round=1), zero_rows=True)
    page = page_html(held)
    tags = Tags(page)
    assert tags.open == []
    assert tags.seen.isdisjoint({"script", "img", "link", "iframe", "object"})
    assert f"dpfed silo revoke {terms.name}" in page
    assert "of 4 is spent (delta 1e-05)" in page
    assert "2 answered, 1 with zero rows, 0 refused" in page
    assert "OVERSPENT:" not in page


def test_words_of_a_server_are_harmless(tmp_path: Path) -> None:
    held = handler(tmp_path)
    for name in ("<script>alert(1)</script>", "a\x1b[2J\u202e", "x" * 5000):
        held.reply(enrolment(name))
        page = page_html(held)
        assert Tags(page).open == []
        assert "script>" not in page
        assert not {"\x1b", "\u202e"} & set(page)
        assert len(page) < 8000
    assert "3 orders were refused" in page


def test_a_new_gate_says_what_comes_first(tmp_path: Path) -> None:
    handler(tmp_path)
    out = tmp_path / "gate.html"
    policy = str(tmp_path / "silo" / "silo.toml")
    run = CliRunner().invoke(app, ["silo", "page", "--policy", policy, "--out", str(out)])
    assert run.exit_code == 0, run.output
    assert out.stat().st_mode & 0o777 == 0o600
    assert "dpfed silo approve terms.toml" in out.read_text()
