# SPDX-License-Identifier: Apache-2.0
"""The tables of results/benchmarks/table.md, written from the kept files.

A block of code after ``<!-- table: devices.json noise_rate -->`` is the table of that benchmark in
that file beside the page; several pairs of a file and its benchmarks are separated by semicolons,
and ``quartiles`` at the end adds how far the repeats lie apart and what the parts take. Each table
opens with the date and the version that its figures are of, so that no sentence has to repeat them.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from dpfed_lab.benchmarks._measure import Result, breakdown, quartiles, table

BLOCK = re.compile(r"(<!-- table: (.+?) -->\n\n?```\w*\n)(.*?)(^```$)", re.DOTALL | re.MULTILINE)


def write_tables(page: Path) -> None:
    """Write the page's tables anew."""
    text = page.read_text(encoding="utf-8")
    page.write_text(with_tables(text, page.parent), encoding="utf-8")


def with_tables(text: str, folder: Path) -> str:
    """A page's text with its tables as the files in ``folder`` have them."""
    return BLOCK.sub(lambda found: f"{found[1]}{_block(found[2], folder)}\n{found[4]}", text)


def _block(asked: str, folder: Path) -> str:
    sources = asked.removesuffix(" quartiles")
    lines: list[Result] = []
    heads: list[str] = []
    for source in sources.split("; "):
        file, *names = source.split()
        kept = json.loads((folder / file).read_text(encoding="utf-8"))
        heads.append(f"# {kept.get('date', 'no date kept')}, {_machine(kept['machine'])}: {file}")
        lines += [
            _result(row) for name in names or kept["results"] for row in kept["results"][name]
        ]
    parts = [*heads, table(lines)]
    if asked != sources:
        parts += ["", "quartiles, ms:", quartiles(lines), *filter(None, map(breakdown, lines))]
    return "\n".join(parts)


def _machine(seen: dict[str, Any]) -> str:
    return f"dpfed {seen['dpfed']}, torch {seen['torch']}, {seen['cores']} cores, {seen['system']}"


def _result(row: dict[str, Any]) -> Result:
    return Result(**{each.name: row[each.name] for each in fields(Result)})
