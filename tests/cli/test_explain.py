# SPDX-License-Identifier: Apache-2.0
"""What reports and statements share: one page that loads nothing."""

from __future__ import annotations

from dpfed.cli.explain import html_page, style_of


def test_a_page_needs_nothing_beside_it() -> None:
    page = html_page("a < b & c", "<p>body</p>", ".own { color: red; }")
    assert "<title>a &lt; b &amp; c</title>" in page
    assert page.count("<style>") == 1
    assert style_of("dpfed.cli", "page.css") in page
    assert ".own { color: red; }" in page
    for loads in ("<script", "http:", "https:", "@import", "url("):
        assert loads not in page
