# SPDX-License-Identifier: Apache-2.0
"""A study's folder as tables, figures and one HTML page that is complete by itself.

    report.html            styles and figures are inside; no script, nothing is loaded
    tables/                each table as .md, .csv and .tex
    figures/               each figure as .png, .svg and .pdf

The page is made from runs.jsonl and settings.json alone: nothing is run. It calls a lead
statistically significant only where the paired 95 % t interval over seeds excludes 0.
"""

from __future__ import annotations

import base64
import json
import math
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from html import escape
from importlib import metadata
from pathlib import Path

from dpfed.cli.explain import html_page, style_of
from dpfed.core.errors import RecipeError
from dpfed_lab import figures
from dpfed_lab import study as studies
from dpfed_lab.differences import difference_dots
from dpfed_lab.figures import Picture, slug
from dpfed_lab.findings import findings, listed, overall_finding
from dpfed_lab.heat_map import heat_maps
from dpfed_lab.jobs import Row, Store
from dpfed_lab.published import PAPER, Paper, read_paper, side_by_side
from dpfed_lab.scores import ACCURACY, Scores, Settings, cell_words, final_rows, scores
from dpfed_lab.significance import mcnemar_table, paired_table
from dpfed_lab.study import Cell, Study, cells
from dpfed_lab.study_tables import (
    final_table,
    progress_table,
    search_cost,
    settings_table,
    silos_table,
    speed_table,
)
from dpfed_lab.sweep import RUNS, SETTINGS
from dpfed_lab.table import BETTER, WORSE, Number, Table, Value, write_tables

REFERENCE = "DP-FedSOFIM"
"""The method of McNemar's tests and of the maps of tuned parameters, where a study has it."""


LONG = 30
"""Rows of a table; a longer one is folded."""

MANY = 4
"""More cells than this are folded behind the answer for all of them."""

ANSWERS = 4
"""Figures of differences that a page opens with; further cells have theirs among the figures."""


@dataclass(frozen=True)
class Material:
    """All that a report is made of."""

    study: Study
    tuning: list[Row]
    final: list[Row]
    settings: Settings
    left_out: int = 0
    """Final runs of the folder that this study does not ask for."""
    paper: Paper | None = None
    """What the paper prints, where the folder has it."""

    @cached_property
    def scores(self) -> Scores:
        """The final runs as figures."""
        return scores(self.study, self.final)

    @property
    def cells(self) -> list[Cell]:
        """The cells that have a run."""
        return [cell for cell, _ in cells(self.study) if self.scores.rounds(cell)]

    @property
    def curves(self) -> list[Cell]:
        """The cells that were measured at more rounds than the last."""
        return [cell for cell in self.cells if len(self.scores.rounds(cell)) > 1]

    @property
    def reference(self) -> str:
        """See REFERENCE; the baseline, where a study has no such method."""
        labels = [method.label for method in self.study.methods]
        known = [name for name in (REFERENCE, self.study.baseline) if name in labels]
        return [*known, labels[0]][0]


def gather(folder: Path, study: Study | None = None) -> Material:
    """The folder's runs, those that its study asks for."""
    study = study or studies.load_study(folder / "study.toml")
    rows = list(Store.open(folder / RUNS).rows.values())
    path = folder / SETTINGS
    settings = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    finals = [row for row in rows if row.get("stage") == "final"]
    kept = final_rows(study, finals, settings)
    if not kept:
        raise RecipeError(
            f"{folder.name} has no finished run of the study {study.title!r} at its settings; "
            "run 'dpfed sweep' or 'dpfed reproduce' into it first"
        )
    tuning = [row for row in rows if row.get("stage") == "tuning"]
    paper = read_paper(folder / PAPER, study) if (folder / PAPER).exists() else None
    return Material(
        study=study,
        tuning=tuning,
        final=kept,
        settings=settings,
        left_out=len(finals) - len(kept),
        paper=paper,
    )


def write_report(folder: Path, study: Study | None = None) -> Path:
    """Write tables, figures and the page; returns the path of the page."""
    material = gather(folder, study)
    tables, pictures = all_tables(material), all_pictures(material)
    write_tables(tables, folder / "tables")
    (folder / "figures").mkdir(exist_ok=True)
    for picture in pictures:
        figures.save_picture(picture, folder / "figures")
    _clear(folder / "tables", (".md", ".csv", ".tex"), set(tables))
    _clear(folder / "figures", (".png", ".svg", ".pdf"), {picture.name for picture in pictures})
    page = folder / "report.html"
    page.write_text(_page(material, tables, pictures), encoding="utf-8")
    return page


def _clear(folder: Path, kinds: tuple[str, ...], kept: set[str]) -> None:
    """Remove files of an earlier report on other cells: they would look like part of this one."""
    for path in folder.iterdir():
        if path.suffix in kinds and path.stem not in kept:
            path.unlink()


def all_tables(material: Material) -> dict[str, Table]:
    """By the name of the file; those that would be empty are left out."""
    study, rows = material.study, material.final
    found = {"final": final_table(study, rows)}
    found |= {
        f"progress-{slug(cell_words(cell))}": progress_table(study, rows, cell)
        for cell in material.curves
    }
    if material.curves:
        found["speed"] = speed_table(study, rows)
    found["silos"] = silos_table(study, rows)
    found["paired"] = paired_table(study, rows)
    found["mcnemar"] = mcnemar_table(study, rows, material.reference)
    found |= _published(material)
    found["settings"] = settings_table(study, rows, material.settings)
    return {name: table for name, table in found.items() if table.rows}


def _published(material: Material) -> dict[str, Table]:
    """The paper's figures beside ours, if there is one of ours for any of them."""
    if material.paper is None or material.scores.measure is not ACCURACY:
        return {}
    table = side_by_side(material.study, material.final, material.paper)
    ours = table.columns.index("ours")
    known = any(isinstance(row[ours], Number) for row in table.rows)
    return {"published": table} if known else {}


def all_pictures(material: Material) -> list[Picture]:
    """In the order of the page: what answers first."""
    study, rows = material.study, material.final
    dots = (difference_dots(study, rows, cell) for cell in material.cells)
    return [
        *(picture for picture in dots if picture is not None),
        *figures.frontiers(study, rows),
        *(figures.convergence(study, rows, cell) for cell in material.curves),
        *(figures.final_bars(study, rows, cell) for cell in material.cells),
        *heat_maps(study, material.tuning, material.reference),
    ]


# ------------------------------------------------------------------------------------- what was run


def facts(material: Material) -> dict[str, str]:
    """What was run, on what, and with what this page was written."""
    study, final = material.study, material.final
    rounds = sorted({row["rounds"] for row in final})
    asked = len(study.final.seeds) * len(study.methods) * len(list(cells(study)))
    found = {
        "Records": "; ".join(_unique(row["data"] for row in final)),
        "From": study.source,
        "Measured": "; ".join(_unique(row["evaluation"] for row in final)),
        "Methods": ", ".join(method.label for method in study.methods),
        "Rounds": ", ".join(map(str, rounds)),
        "Seeds": ", ".join(map(str, study.final.seeds)),
        "Runs": f"{len(final)} of {asked} final runs, {_hours(final)} of training",
        "Search": f"{len(material.tuning)} runs, {_hours(material.tuning)} of training",
        "Left out": f"runs of other seeds, rounds or settings: {material.left_out}",
        "Command": command(study, searched=bool(material.tuning)),
        "Page written": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, with {_versions()}",
        "On": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
    }
    empty = {
        "From": not study.source,
        "Search": not material.tuning,
        "Left out": not material.left_out,
    }
    return {name: text for name, text in found.items() if not empty.get(name)}


def command(study: Study, *, searched: bool) -> str:
    """What repeats the study: by its name if it comes with the package, or else from its file."""
    titles = {studies.load_study(name).title: name for name in studies.study_names()}
    quick = study.title.removesuffix(" (miniature)")
    name = titles.get(quick)
    verb = "sweep" if (searched and quick == study.title) or name is None else "reproduce"
    data = study.base.get("data", {}).get("source", "synthetic")
    parts = [*([] if data == "synthetic" else ["DPFED_DATA=data"]), "dpfed", verb]
    parts.append(name or "study.toml")
    return " ".join([*parts, *(["--quick"] if name and quick != study.title else [])])


def _unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _hours(rows: Iterable[Row]) -> str:
    seconds = sum(row.get("seconds") or 0.0 for row in rows)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _versions() -> str:
    packages = ("dpfed", "torch", "numpy", "scipy", "matplotlib")
    known = [f"{name} {metadata.version(name)}" for name in packages]
    return ", ".join([*known, f"Python {platform.python_version()}"])


# ------------------------------------------------------------------------------- what is guaranteed


def guarantees(material: Material) -> dict[str, dict[str, list[str]]]:
    """For each cell the sentences of its runs, each with the methods that it is about."""
    found: dict[str, dict[str, list[str]]] = {}
    for cell in material.cells:
        said = found.setdefault(cell_words(cell), {})
        for method in material.study.methods:
            runs = [
                row
                for row in material.final
                if row["method"] == method.label
                and all(str(row[axis]) == value for axis, value in cell.items())
            ]
            if runs:
                said.setdefault(_weakest(runs), []).append(method.label)
    return found


def _weakest(runs: Sequence[Row]) -> str:
    """The weakest guarantee: it depends on the clients' sizes, which may differ between seeds."""
    weakest = max(runs, key=lambda row: (row["epsilon_server"], row["epsilon_others"]))
    text = str(weakest["guarantee"])
    if all(row["guarantee"] == text for row in runs):
        return text
    return f"{text} The weakest of {len(runs)} runs of"


def tuning_words(material: Material) -> list[str]:
    """What the guarantees leave out: the search, and that there are many runs."""
    return [
        "Tuning on private data is not covered by these figures.",
        _search_words(material),
        f"Each sentence below is about one run. There are {len(material.final)} final runs on the "
        "same records: an adversary that sees several of them learns more than from one run.",
    ]


def _search_words(material: Material) -> str:
    study, rows, settings = material.study, material.final, material.settings
    runs, cost = search_cost(study, rows, settings)
    if not runs:
        return (
            "This folder has no record of a search: what choosing the settings cost on the same "
            "records, here or elsewhere, comes on top."
        )
    parts = []
    for cell, _ in cells(study, tuned_only=True):
        count, spent = search_cost(study, rows, settings, cell)
        parts += [f"{cell_words(cell)}: {count} settings, {_epsilon(spent)}"] if count else []
    return (
        f"The search tried {runs} settings, one run each. Against a server that sees all of these "
        f"runs: {_epsilon(cost)}. By cell: {'; '.join(parts)}."
    )


def _epsilon(cost: float | None) -> str:
    if cost is None:
        return "epsilon not known"
    return f"epsilon {cost:.4g}" if math.isfinite(cost) else "no privacy"


# ----------------------------------------------------------------------------------------- the page


def _page(material: Material, tables: dict[str, Table], pictures: list[Picture]) -> str:
    study = material.study
    answers = [picture for picture in pictures if picture.name.startswith("differences-")][:ANSWERS]
    drawn = "".join(_figure_html(picture) for picture in pictures if picture not in answers)
    shown = "".join(map(_figure_html, answers))
    found = f'{_found_html(material)}<div class="figures">{shown}</div>'
    sections = {
        "found": ("What was found", found),
        "guarantee": ("What is guaranteed", _guarantee_html(material)),
        "run": ("What was run", _facts_html(material)),
        "tables": ("Tables", _tables_html(tables, {"settings"})),
        "figures": ("Figures", f'<div class="figures">{drawn}</div>'),
        "settings": ("Settings", _tables_html(tables, set(tables) - {"settings"})),
    }
    links = "".join(f'<a href="#{key}">{title}</a>' for key, (title, _) in sections.items())
    body = "".join(
        f'<section id="{key}"><h2>{title}</h2>{text}</section>\n'
        for key, (title, text) in sections.items()
    )
    about = f"<p>{escape(study.about)}</p>" if study.about else ""
    header = f"<header><h1>{escape(study.title)}</h1>{about}<nav>{links}</nav></header>"
    style = style_of("dpfed_lab", "report.css")
    return html_page(study.title, f"{header}\n<main>\n{body}</main>", style)


def _facts_html(material: Material) -> str:
    lines = []
    for name, text in facts(material).items():
        shown = f"<code>{escape(text)}</code>" if name == "Command" else escape(text)
        lines.append(f"<dt>{name}</dt><dd>{shown}</dd>")
    return f"<dl>{''.join(lines)}</dl>"


def _guarantee_html(material: Material) -> str:
    first, *more = tuning_words(material)
    warning = "".join(f"<p>{escape(text)}</p>" for text in more)
    items = []
    for words, said in guarantees(material).items():
        lines = "".join(
            f'<p>{escape(text)} <span class="soft">{escape(listed(names))}.</span></p>'
            for text, names in said.items()
        )
        items.append(f"<dt>{escape(words)}</dt><dd>{lines}</dd>")
    box = f'<div class="warn"><p><strong>{escape(first)}</strong></p>{warning}</div>'
    return f"{box}<dl>{''.join(items)}</dl>"


def _found_html(material: Material) -> str:
    found = findings(material.scores)
    lines = [f"<li><b>{escape(cell)}</b>: {escape(text)}</li>" for cell, text in found.items()]
    box, opening = f"<ul>{''.join(lines)}</ul>", ""
    if len(lines) > 1:
        opening = f"<p><strong>{escape(overall_finding(material.scores))}</strong></p>"
    if len(lines) > MANY:
        box = f"<details><summary>cell by cell</summary>{box}</details>"
    note = (
        "Leads are means over the same seeds. A lead is called statistically significant if the "
        "paired 95 % t interval over seeds excludes 0. Choosing the best of several methods first "
        "makes its lead look larger than it is."
    )
    return f'{opening}{box}<p class="note">{note}</p>'


def _tables_html(tables: dict[str, Table], without: set[str]) -> str:
    return "".join(_table_html(table) for name, table in tables.items() if name not in without)


def _table_html(table: Table) -> str:
    head = "".join(
        _cell("th", table, c, escape(name), ' scope="col"') for c, name in enumerate(table.columns)
    )
    axes = max(1, table.columns.index("method") if "method" in table.columns else 1)
    lines = []
    for i, row in enumerate(table.rows):
        # a line between cells, so that they are told apart
        new = ' class="new"' if i and row[:axes] != table.rows[i - 1][:axes] else ""
        lines.append(f"<tr{new}>{_row_html(table, i, row)}</tr>")
    title, note = escape(table.title), f'<p class="note">{escape(table.note)}</p>'
    box = (
        f'<div class="box" role="region" tabindex="0" aria-label="{title}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>{note}"
    )
    if len(lines) > LONG:
        box = f"<details><summary>{len(lines)} rows</summary>{box}</details>"
    return f"<h3>{title}</h3>{box}\n"


def _row_html(table: Table, i: int, row: tuple[Value, ...]) -> str:
    texts = []
    for c, value in enumerate(row):
        text = _value_html(table, c, value)
        if (i, c) in table.bold:
            text = f"<strong>{text}</strong>"
        if table.columns[c] == "method":
            texts.append(_cell("th", table, c, text, ' scope="row"'))
        else:
            texts.append(_cell("td", table, c, text))
    return "".join(texts)


def _value_html(table: Table, column: int, value: Value) -> str:
    """A figure; where its column has marks, each has room for one, so that figures stay in line."""
    marked = any(isinstance(v := row[column], Number) and v.mark for row in table.rows)
    if not isinstance(value, Number) or not marked:
        return escape(str(value))
    kind = {BETTER: " better", WORSE: " worse"}.get(value.mark, "")
    return f'{escape(value.text)} <span class="mark{kind}">{value.mark}</span>'


def _cell(tag: str, table: Table, column: int, text: str, more: str = "") -> str:
    kinds = {"method": "method", "setting": "long"}
    kind = "n" if table.numeric(column) else kinds.get(table.columns[column], "")
    return f'<{tag}{more} class="{kind}">{text}</{tag}>' if kind else f"<{tag}{more}>{text}</{tag}>"


def _figure_html(picture: Picture) -> str:
    image = base64.b64encode(figures.svg(picture)).decode()
    return (
        f'<figure id="{picture.name}"><img alt="{escape(picture.alt)}" '
        f'src="data:image/svg+xml;base64,{image}"><figcaption>{escape(picture.caption)}</figcaption>'
        "</figure>\n"
    )
