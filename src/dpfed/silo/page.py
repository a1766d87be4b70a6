# SPDX-License-Identifier: Apache-2.0
"""The officer's page: one HTML file that loads nothing and runs no script.

It shows what each data set has left, which trainings were asked for and are not approved, which are
approved and until when, what left the building on which day, and the command for each decision.

Guarantee: every word that came from a server is escaped, of bounded length, and on one line. The
page is for the officer alone: answers with zero rows depend on records, and are on it.

| edge case                          | what happens                                                |
|------------------------------------|-------------------------------------------------------------|
| nothing was approved, asked or     | said, with the command that comes first                     |
| answered yet                       |                                                             |
| what is left cannot be said        | said so; the picture shows what is spent                    |
| spent beyond the budget            | the picture is full, and the word OVERSPENT stands there    |
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from dpfed._version import VERSION
from dpfed.accounting.guarantee import round_up
from dpfed.core.log import shown
from dpfed.silo.figures import DataFigures, GateFigures, TrainingFigures, gate_figures

if TYPE_CHECKING:
    from dpfed.silo.approvals import Event
    from dpfed.silo.owner import Owner

_MOST_EVENTS = 200
_ROLLED_BACK = (
    '<p class="bad">Nothing is answered: the ledger is an older copy than others keep a signed '
    "head of. See <code>dpfed ledger declare-lost --help</code></p>"
)
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1b1f24; background: #fff; margin: 0 auto;
  max-width: 60rem; padding: 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } th { text-align: left; font-weight: 600; }
td, th { padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #d8dee4; vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
code { font-size: .9em; background: #f2f4f7; padding: .1rem .3rem; overflow-wrap: anywhere; }
.wide { overflow-x: auto; } .time { white-space: nowrap; } .quiet { color: #57606a; }
.bar { height: 1.1rem; border: 1px solid #57606a; border-radius: 3px; overflow: hidden; }
.spent { height: 100%; background: #2f6f9f; } .over { background: #b3261e; }
.bad { color: #b3261e; font-weight: 600; }
@media (max-width: 40rem) {  /* a telephone: each cell is a line, with its column's name */
  tr { display: block; border-bottom: 1px solid #d8dee4; padding: .4rem 0; }
  th { display: none; } td, td.n { display: block; border: 0; padding: 0; text-align: left; }
  td::before { content: attr(data-of) ": "; color: #57606a; }
}
"""


def page_html(handler: Owner) -> str:
    """The page as HTML.

    Args:
        handler: the silo's.
    """
    figures, events = gate_figures(handler), handler.approvals.events()
    parts = [
        "<h1>This silo's gate</h1>",
        f'<p class="quiet">as of {_moment(figures.at)}</p>',
        *([_ROLLED_BACK] if figures.rolled_back else []),
        "<h2>Budgets</h2>",
        *(_budget(each) for each in figures.data),
        "<h2>Asked for, and not approved</h2>",
        _waiting(figures, events),
        "<h2>Trainings</h2>",
        _trainings(figures.trainings),
        "<h2>What left, and what was refused</h2>",
        _days(events),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>dpfed gate</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _moment(text: str) -> str:
    """A time in UTC, to the minute."""
    return f'<span class="time">{text[:16].replace("T", " ")}{" UTC" * bool(text)}</span>'


def _day(text: str) -> str:
    return f'<span class="time">{text}</span>'


def _budget(data: DataFigures) -> str:
    """A data set's name, its picture, and one sentence."""
    part = min(1.0, data.spent / data.epsilon) if math.isfinite(data.spent) else 1.0
    over = ' over"' if data.overspent else '"'
    said = f"epsilon {round_up(data.spent)} of {data.epsilon:g} is spent (delta {data.delta:g})"
    if data.left is not None:
        left = math.floor(data.left * 1e3) / 1e3
        said += f"; one more training may cost {left:g} (squares add up, epsilon does not)"
    if data.overspent:
        said += '. <span class="bad">OVERSPENT: the policy allows less than was released</span>'
    return (
        f"<p><b>{escape(data.name)}</b><br>{said}</p>"
        f'<div class="bar"><div class="spent{over} style="width:{100 * part:.1f}%"></div></div>'
    )


def _waiting(figures: GateFigures, events: Sequence[Event]) -> str:
    """Names under which the server asked in vain: the last one of each day is kept."""
    rows = [
        (_day(e.day), f"{e.times:,}", escape(shown(e.said, 200)))
        for e in reversed(events)
        if e.kind == "refused" and not e.training
    ]
    if not rows:
        return "<p>None. To approve a training: <code>dpfed silo approve terms.toml</code></p>"
    return (
        f"<p>{figures.refused_unknown:,} orders were refused because nobody has approved their "
        "training. If one of them is meant, look at its terms with "
        "<code>dpfed silo approve terms.toml</code>, which shows the verdict before it asks.</p>"
        + _table(("day", "orders", "the last of them"), rows[:_MOST_EVENTS], numbers=(1,))
    )


def _trainings(trainings: Iterable[TrainingFigures]) -> str:
    rows = []
    for each in trainings:
        name = escape(each.name)
        lost = f", {each.zero_rows:,} with zero rows" if each.zero_rows else ""
        way = f"<code>dpfed silo revoke {name}</code>" if each.state == "approved" else ""
        said = f"{each.state}, until {each.until[:10]}, by {escape(each.by)}"
        if each.state == "approved" and each.dpfed != VERSION:
            said += f'<br><span class="bad">REFUSED: terms of dpfed {escape(each.dpfed)}</span>'
        counts = f"{each.answered:,} answered{lost}, {each.refused:,} refused"
        rows.append(
            (f"<b>{name}</b><br>{each.fingerprint[:16]}", said, counts, _moment(each.last), way)
        )
    if not rows:
        return "<p>No training was approved yet.</p>"
    return _table(("training", "approval", "orders", "last answer", "to end it"), rows)


def _days(events: Sequence[Event]) -> str:
    rows = [
        (
            _day(e.day),
            escape(e.kind),
            escape(e.training or "--"),
            f"{e.times:,}",
            escape(shown(e.said)),
        )
        for e in reversed(events)
    ]
    if not rows:
        return "<p>Nothing yet.</p>"
    left = f"<p>{len(rows) - _MOST_EVENTS:,} earlier lines: <code>dpfed silo log</code></p>"
    head = ("day", "what", "training", "times", "last said")
    return _table(head, rows[:_MOST_EVENTS], numbers=(3,)) + left * (len(rows) > _MOST_EVENTS)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """A table of cells that are HTML already; on a telephone each cell is a line."""
    kinds = [" class=n" * (at in numbers) for at in range(len(head))]
    top = "".join(f"<th{kind}>{name}</th>" for kind, name in zip(kinds, head, strict=True))
    body = ""
    for cells in rows:
        placed = zip(kinds, head, cells, strict=True)
        made = "".join(f'<td{kind} data-of="{name}">{cell}</td>' for kind, name, cell in placed)
        body += f"<tr>{made}</tr>"
    return f'<div class="wide"><table><tr>{top}</tr>{body}</table></div>'
