# SPDX-License-Identifier: Apache-2.0
"""What reports and statements share: one page that loads nothing, and tables in Markdown."""

from __future__ import annotations

from dpfed.recipes.page import html_page, markdown_table, style_of


def test_a_page_needs_nothing_beside_it() -> None:
    page = html_page("a < b & c", "<p>body</p>", ".own { color: red; }")
    assert "<title>a &lt; b &amp; c</title>" in page
    assert page.count("<style>") == 1
    assert style_of("dpfed.recipes", "page.css") in page
    assert ".own { color: red; }" in page
    for loads in ("<script", "http:", "https:", "@import", "url("):
        assert loads not in page


def test_a_bar_in_a_cell_does_not_end_it() -> None:
    lines = markdown_table(["name", "a|b"], [["x", "y|z"], ["u", "v"]])
    assert lines == ["| name | a/b |", "|---|---|", "| x | y/z |", "| u | v |"]
