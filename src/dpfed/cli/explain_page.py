# SPDX-License-Identifier: Apache-2.0
"""A statement as files: Markdown, and one HTML page that needs nothing beside it.

No script, and nothing is loaded from anywhere.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from dpfed.cli.explain import (
    Block,
    Section,
    StatementMaterial,
    TextTable,
    gather_statement,
    sections,
)
from dpfed.recipes.page import html_page, markdown_table, style_of


def html(material: StatementMaterial) -> str:
    """The whole page."""
    title = f"Privacy statement: {material.name}"
    body = "".join(map(_section, sections(material)))
    quoted = f"<blockquote>{escape(material.guarantee.sentence)}</blockquote>"
    style = style_of("dpfed.cli", "statement.css")
    return html_page(title, f"<h1>{escape(title)}</h1>\n{quoted}\n{body}", style)


def _section(section: Section) -> str:
    blocks = "".join(map(_block, section.blocks))
    return f"<section><h2>{escape(section.title)}</h2>{blocks}</section>\n"


def _block(block: Block) -> str:
    if isinstance(block, str):
        return f"<p>{escape(block)}</p>"
    if isinstance(block, TextTable):
        return _table(block)
    return f"<ul>{''.join(f'<li>{escape(each)}</li>' for each in block)}</ul>"


def _table(table: TextTable) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.head)
    rows = "".join(f"<tr>{_cells(table.head, row)}</tr>" for row in table.rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _cells(head: tuple[str, ...], row: tuple[str, ...]) -> str:
    pairs = zip(head, row, strict=True)
    return "".join(
        f'<td{_short(text)} data-label="{escape(name)}"><span>{escape(text)}</span></td>'
        for name, text in pairs
    )


def _short(text: str) -> str:
    """The class of short texts, such as figures, which must not wrap."""
    return ' class="short"' if len(text) < 16 else ""


# -------------------------------------------------------------------------------------- Markdown


def markdown(material: StatementMaterial) -> str:
    """The page as Markdown."""
    lines = [f"# Privacy statement: {material.name}", "", f"> {material.guarantee.sentence}", ""]
    for section in sections(material):
        lines += [f"## {section.title}", ""]
        for block in section.blocks:
            lines += [*_markdown_block(block), ""]
    return "\n".join(lines)


def _markdown_block(block: Block) -> list[str]:
    if isinstance(block, str):
        return [block]
    if isinstance(block, TextTable):
        return markdown_table(block.head, block.rows)
    return [f"- {each}" for each in block]


def write_statement(folder: Path, out: Path, ledger: Path | None = None) -> tuple[Path, Path]:
    """Write statement.md and statement.html; returns their paths.

    Args:
        folder: the run's, with guarantee.json and, if there is one, recipe.toml.
        out: the folder for both files; made if missing.
        ledger: a ledger's file to sum up as a whole; None is the data set that the recipe names.
    """
    material = gather_statement(folder, ledger)
    out.mkdir(parents=True, exist_ok=True)
    text, page = out / "statement.md", out / "statement.html"
    text.write_text(markdown(material), encoding="utf-8")
    page.write_text(html(material), encoding="utf-8")
    return text, page
