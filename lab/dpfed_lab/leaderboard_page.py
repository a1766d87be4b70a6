# SPDX-License-Identifier: Apache-2.0
"""The boards of leaderboard.py as one HTML page that is complete by itself, and as Markdown.

    leaderboard.html      no script, nothing is loaded; long boards fold
    leaderboard.md        the same tables

The same folder gives the same bytes: neither file has a date.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from html import escape
from itertools import groupby
from pathlib import Path

from dpfed.cli.explain import html_page, style_of
from dpfed_lab.figures import slug
from dpfed_lab.jobs import DIVERGED
from dpfed_lab.leaderboard import NO_PRIVACY, WITHIN, Board, BoardLine, Found, collect
from dpfed_lab.table import NOTHING, Number, Table, Value

TITLE = "Leaderboard"
SHOWN = 8
"""Lines of a board that are always shown; the rest is folded."""

ABOUT = (
    "Every final run that is kept here, by data set, trust and epsilon: test accuracy (%), or a "
    "squared error where there are no classes, as mean ± standard deviation over seeds. A board "
    "compares what can be compared: the same records, division into clients, model, unit and "
    "delta.",
    "Tuned: settings were searched on training records of the same data set, which no epsilon here "
    "covers. Untuned: nothing was searched on these records; the settings are defaults, fixed by "
    "the study, or lent by a search on other records.",
    f"Bold is the best mean of a column. {WITHIN} is within noise of it: the paired 95 % t "
    "interval of the difference over the seeds that both have includes 0. Intervals are not "
    "corrected for the number of lines, and with three seeds they are wide: within noise often "
    "means that it cannot be told. The best of many lines was picked by the same test figures, and "
    "looks better than it is.",
    "A column with a diverged seed has no mean: such a run ended without a finite figure, or as a "
    f"classifier with a loss above {DIVERGED:g} nats.",
)


def write_leaderboard(results: Path, out: Path | None = None) -> Path:
    """Write leaderboard.html and leaderboard.md; returns the page.

    Args:
        results: a folder with one folder per study, as ``dpfed sweep`` writes it.
        out: the folder to write into; None is ``results``.
    """
    out = out or results
    found = collect(results, out)
    (out / "leaderboard.md").write_text(board_markdown(found), encoding="utf-8")
    page = out / "leaderboard.html"
    page.write_text(board_html(found), encoding="utf-8")
    return page


# ---------------------------------------------------------------------------------------- in short


def standings(found: Found) -> Table:
    """How often each method is best, within noise of it, or neither, over all columns.

    Of a method with several lines on a board, the best line of each column counts.
    """
    names = sorted({line.name for board in found.boards for line in board.lines})
    counted = [(name, [_counts(found, name, tuned) for tuned in (True, False)]) for name in names]
    counted.sort(key=lambda each: [-count for kind in each[1] for count in kind])
    body = [
        (name, *(" / ".join(map(str, kind)) if any(kind) else NOTHING for kind in counts))
        for name, counts in counted
        if any(map(any, counts))
    ]
    note = (
        "Best / within noise of the best / behind: columns of the boards below in which a method "
        "stands beside another one. Methods were not all run on the same boards, and one with more "
        "lines has more chances: a count is a guide to the boards, not a rank. A method is not "
        "counted on data sets that its own constants were chosen on."
    )
    return Table("How often", ("method", "tuned", "untuned"), tuple(body), note)


def _counts(found: Found, name: str, tuned: bool) -> list[int]:
    """Columns in which a method is best, within noise, behind."""
    counts = [0, 0, 0]
    for board in found.boards:
        ours = [line for line in board.lines if line.name == name]
        for epsilon in board.epsilons if board.tuned == tuned else ():
            there = [line for line in ours if epsilon in line.figures and not line.at_home]
            names = {line.name for line in board.lines if epsilon in line.figures}
            if there and len(names) > 1 and epsilon != NO_PRIVACY:
                counts[min(_place(board, line, epsilon) for line in there)] += 1
    return counts


def _place(board: Board, line: BoardLine, epsilon: str) -> int:
    if line is board.best(epsilon):
        return 0
    return 1 if board.within_noise(line, epsilon) else 2


# ---------------------------------------------------------------------------------------- Markdown


def board_markdown(found: Found) -> str:
    """The whole page as Markdown."""
    parts = [f"# {TITLE}\n", *(f"{text}\n" for text in ABOUT), standings(found).to_markdown()]
    for records, boards in _by_records(found):
        parts += [
            f"## {records}\n",
            *(_table(board, found.links).to_markdown() for board in boards),
        ]
    parts += ["## The studies\n", _listed(found.about, found.links)]
    if found.left_out:
        parts += ["## Not on a board\n", _listed(found.left_out, found.links)]
    return "\n".join(parts)


def _by_records(found: Found) -> Iterator[tuple[str, list[Board]]]:
    for records, boards in groupby(found.boards, key=lambda board: board.task.records):
        yield records, list(boards)


def _listed(texts: Mapping[str, str], links: Mapping[str, str]) -> str:
    return "\n".join(f"- [{name}]({links[name]}): {text}" for name, text in texts.items()) + "\n"


def _title(board: Board) -> str:
    kind = "tuned" if board.tuned else "untuned"
    return f"{board.task.records}, {board.task.trust} trust, {kind}"


def _columns(board: Board) -> tuple[str, ...]:
    return ("method", *map(_head, board.epsilons), "how", "settings", "seeds", "runs")


def _table(board: Board, links: Mapping[str, str]) -> Table:
    body: list[tuple[Value, ...]] = []
    bold: set[tuple[int, int]] = set()
    for i, line in enumerate(board.lines):
        linked = ", ".join(f"[{name}]({links[name]})" for name in line.studies)
        figures = [board.value(line, epsilon) for epsilon in board.epsilons]
        body.append((line.method, *figures, line.how, _settings(line), _seeds(line), linked))
        bold |= {(i, 1 + c) for c, each in enumerate(board.epsilons) if line is board.best(each)}
    return Table(
        title=_title(board),
        columns=_columns(board),
        rows=tuple(body),
        note=f"{_details(board)}.",
        bold=frozenset(bold),
    )


def _head(epsilon: str) -> str:
    return epsilon if epsilon == NO_PRIVACY else f"epsilon {epsilon}"


def _details(board: Board) -> str:
    measure = board.task.measure
    return board.task.details + ("" if measure.sign > 0 else "; less is better")


def _settings(line: BoardLine) -> str:
    return line.settings + (" that were made on these records" if line.at_home else "")


def _seeds(line: BoardLine) -> str:
    counts = {len(values) + line.lost.get(e, 0) for e, values in line.figures.items()}
    return " or ".join(map(str, sorted(counts)))


# -------------------------------------------------------------------------------------------- HTML


def board_html(found: Found) -> str:
    """The whole page."""
    groups = list(_by_records(found))
    links = "".join(f'<a href="#{slug(records)}">{escape(records)}</a>' for records, _ in groups)
    about = "".join(f"<p>{escape(text)}</p>" for text in ABOUT)
    counts = standings(found)
    rows = [[escape(str(value)) for value in row] for row in counts.rows]
    sections = [
        f"<section><h2>In short</h2>{_box(counts.title, counts.columns, rows)}"
        f'<p class="note">{escape(counts.note)}</p></section>'
    ]
    for records, boards in groups:
        body = "".join(_one_board(board, found.links) for board in boards)
        sections.append(f'<section id="{slug(records)}"><h2>{escape(records)}</h2>{body}</section>')
    sections.append(_studies_html("The studies", found.about, found.links))
    if found.left_out:
        sections.append(_studies_html("Not on a board", found.left_out, found.links))
    header = f"<header><h1>{TITLE}</h1>{about}<nav>{links}</nav></header>"
    style = style_of("dpfed_lab", "report.css")
    return html_page(TITLE, f"{header}\n<main>\n{''.join(sections)}</main>", style)


def _link(name: str, links: Mapping[str, str]) -> str:
    return f'<a href="{escape(links[name])}">{escape(name)}</a>'


def _studies_html(title: str, texts: Mapping[str, str], links: Mapping[str, str]) -> str:
    lines = "".join(
        f"<li>{_link(name, links)}: {escape(text)}</li>" for name, text in texts.items()
    )
    return f"<section><h2>{title}</h2><ul>{lines}</ul></section>"


def _one_board(board: Board, links: Mapping[str, str]) -> str:
    columns, rows = _columns(board), [_cells(board, line, links) for line in board.lines]
    title = _title(board)
    text = _box(title, columns, rows[:SHOWN])
    if more := rows[SHOWN:]:
        folded = _box(f"{title}, further lines", columns, more)
        text += f"<details><summary>{len(more)} further lines</summary>{folded}</details>"
    return f'<h3>{escape(title)}</h3><p class="note">{escape(_details(board))}.</p>{text}\n'


def _cells(board: Board, line: BoardLine, links: Mapping[str, str]) -> list[str]:
    linked = ", ".join(_link(name, links) for name in line.studies)
    texts = [_figure(board, line, epsilon) for epsilon in board.epsilons]
    words = (line.how, _settings(line), _seeds(line))
    return [escape(line.method), *texts, *map(escape, words), linked]


def _figure(board: Board, line: BoardLine, epsilon: str) -> str:
    """A figure with room for a mark, so that figures stay in line."""
    value = board.value(line, epsilon)
    if not isinstance(value, Number):
        return f'<span class="soft">{escape(value)}</span>'
    best = line is board.best(epsilon)
    text = f"<strong>{value.text}</strong>" if best else value.text
    return f'{text} <span class="mark">{value.mark}</span>'


def _box(title: str, columns: Iterable[str], rows: Iterable[list[str]]) -> str:
    """A table that scrolls by itself where the screen is narrow; its first column stays."""
    head = "".join(
        f'<th scope="col"{_kind(name, c)}>{escape(name)}</th>' for c, name in enumerate(columns)
    )
    names = list(columns)
    lines = []
    for first, *rest in rows:
        cells = "".join(f"<td{_kind(names[c], c)}>{text}</td>" for c, text in enumerate(rest, 1))
        lines.append(f'<tr><th scope="row" class="method">{first}</th>{cells}</tr>')
    return (
        f'<div class="box" role="region" tabindex="0" aria-label="{escape(title)}"><table><thead>'
        f"<tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _kind(name: str, column: int) -> str:
    if column == 0:
        return ' class="method"'
    return "" if name in ("how", "settings", "runs") else ' class="n"'
