# SPDX-License-Identifier: Apache-2.0
"""A statement as files: Markdown, and one HTML page that needs nothing beside it.

No script, and nothing is loaded from anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from dpfed.cli.explain import Block, Material, Section, Table, gather, sections

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de;
  --shade: #f3f6f9; --paper: #ffffff; --mark: #0b5cad; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9aa5b1; --line: #3d444d;
  --shade: #1c2128; --paper: #0f1318; --mark: #6cb2ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 56rem; padding: 1.5rem 1.25rem 3rem; color: var(--ink);
  background: var(--paper); font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", sans-serif;
  overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .75rem; }
h2 { font-size: 1.05rem; margin: 1.4rem 0 .3rem; color: var(--mark); }
p, ul { margin: .3rem 0; } ul { padding-left: 1.2rem; } li { margin: .15rem 0; }
blockquote { margin: 0; padding: .7rem 1rem; background: var(--shade);
  border-left: 4px solid var(--mark); }
table { border-collapse: collapse; width: 100%; margin: .4rem 0; font-size: .95rem; }
th, td { text-align: left; vertical-align: top; padding: .4rem .6rem;
  border-bottom: 1px solid var(--line); }
th { font-weight: 600; background: var(--shade); font-size: .85rem; }
td + td { font-variant-numeric: tabular-nums; }
td.short span { white-space: nowrap; }
@media (max-width: 40rem) {
  thead { position: absolute; clip-path: inset(50%); height: 1px; width: 1px; overflow: hidden; }
  tr { display: block; border: 1px solid var(--line); border-radius: 6px; margin: .5rem 0; }
  td { display: flex; justify-content: space-between; gap: 1rem; }
  td + td { text-align: right; } tr td:last-child { border-bottom: 0; }
  td::before { content: attr(data-label); color: var(--soft); text-align: left; flex: 0 0 45%; }
  td:first-child { display: block; background: var(--shade); font-weight: 600; }
  td:first-child::before { content: none; } }
@page { margin: 14mm; }
@media print { html { font-size: 8.5pt; } body { line-height: 1.35; padding: 0; max-width: none; }
  h2 { margin-top: .8rem; } }
"""


def html(material: Material) -> str:
    """The whole page."""
    title = escape(f"Privacy statement: {material.name}")
    body = "".join(map(_section, sections(material)))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        f"<blockquote>{escape(material.guarantee.sentence)}</blockquote>\n{body}</body>\n</html>\n"
    )


def _section(section: Section) -> str:
    blocks = "".join(map(_block, section.blocks))
    return f"<section><h2>{escape(section.title)}</h2>{blocks}</section>\n"


def _block(block: Block) -> str:
    if isinstance(block, str):
        return f"<p>{escape(block)}</p>"
    if isinstance(block, Table):
        return _table(block)
    return f"<ul>{''.join(f'<li>{escape(each)}</li>' for each in block)}</ul>"


def _table(table: Table) -> str:
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
    """A figure is never broken."""
    return ' class="short"' if len(text) < 16 else ""


# -------------------------------------------------------------------------------------- Markdown


def markdown(material: Material) -> str:
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
    if isinstance(block, Table):
        return [_line(block.head), _line(["---"] * len(block.head)), *map(_line, block.rows)]
    return [f"- {each}" for each in block]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def write(folder: Path, out: Path, ledger: Path | None = None) -> tuple[Path, Path]:
    """Write statement.md and statement.html; returns their paths."""
    material = gather(folder, ledger)
    out.mkdir(parents=True, exist_ok=True)
    text, page = out / "statement.md", out / "statement.html"
    text.write_text(markdown(material), encoding="utf-8")
    page.write_text(html(material), encoding="utf-8")
    return text, page
