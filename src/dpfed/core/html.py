# SPDX-License-Identifier: Apache-2.0
"""A table as notebooks show it: plain HTML, every text escaped, no style and no script of its own.

Names of runs, columns and clients come from recipes and from other machines: here they are text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

Cells = Iterable[object]


def html_table(caption: str, head: Sequence[str], rows: Iterable[Cells], note: str = "") -> str:
    """A table with a line above and a line below it.

    Args:
        caption: the line above; "" for none.
        head: the columns' names; none, and the first cell of each row is its name.
        rows: the cells, of any type: their ``str`` is shown.
        note: the line below; "" for none.

    >>> html_table("", ["a"], [["<b>"]])
    '<table><thead><tr><th>a</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr></tbody></table>'
    """
    top = f"<thead><tr>{_cells(head, 'th')}</tr></thead>" if head else ""
    body = "".join(f"<tr>{_row(row, named=not head)}</tr>" for row in rows)
    return "".join(
        [
            f"<p><b>{escape(caption)}</b></p>" if caption else "",
            f"<table>{top}<tbody>{body}</tbody></table>",
            f"<p>{escape(note)}</p>" if note else "",
        ]
    )


def _row(row: Cells, *, named: bool) -> str:
    first, *rest = row
    return _cells([first], "th" if named else "td") + _cells(rest, "td")


def _cells(cells: Cells, tag: str) -> str:
    return "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells)
