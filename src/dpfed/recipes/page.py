# SPDX-License-Identifier: Apache-2.0
"""One HTML page without other files, and tables in Markdown: for reports and statements.

The page has no script and loads nothing: its styles are inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources


def html_page(title: str, body: str, style: str) -> str:
    """The whole page.

    Args:
        title: what the browser shows; a text, not HTML.
        body: the HTML inside of ``<body>``.
        style: what the page adds to the common style.
    """
    common = style_of("dpfed.recipes", "page.css")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{common}{style}</style>\n</head>\n<body>\n"
        f"{body}\n</body>\n</html>\n"
    )


def style_of(package: str, name: str) -> str:
    """A style sheet that comes with a package."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table; a bar in a cell would end it, and becomes a slash."""

    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"

    return [line(head), "|" + "---|" * len(head), *map(line, rows)]
