#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw a terminal that has run ``dpfed demo``, from its real output: docs/images/demo-terminal.svg.

    scripts/demo_picture.py [FILE.svg]

The picture has the demo's progress bars, its table and its suggestions; the sentences between them
are left out, which the picture says. Noise is drawn anew in every run, so the figures change with
each drawing: tests/test_readme.py compares everything else with what the demo prints.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

TARGET = Path(__file__).resolve().parent.parent / "docs/images/demo-terminal.svg"
COLUMNS = 94
SHOW_CURSOR = "\x1b[?25h"
LEFT_OUT = "[...]  what each line means, and the guarantee of each run"
FORM = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: "Fira Code", "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">
{matrix}
</g></g></svg>
"""
"""Rich's own form without its fonts, which would be loaded from another host."""


def demo_output() -> str:
    """What ``dpfed demo`` prints, bars and all, with the colours of a terminal."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "dpfed.cli.main", "demo"],
            cwd=folder,
            env={**os.environ, "COLUMNS": str(COLUMNS), "FORCE_COLOR": "1", "MPLBACKEND": "agg"},
            capture_output=True,
            text=True,
            check=True,
        )
    bars = done.stderr.split("\r")[-1].split("\x1b[2K")[
        -1
    ]  # as the last of their drawings left them
    return f"{bars.removesuffix(SHOW_CURSOR).strip()}\n{done.stdout}"


def shown(output: str) -> Text:
    """The lines of the picture: all but the sentences between the table and the suggestions."""
    lines = Text.from_ansi(output).split("\n")
    plain = [line.plain for line in lines]
    table = next(i for i, line in enumerate(plain) if line.startswith("└")) + 1
    following = next(i for i, line in enumerate(plain) if line.startswith("what next"))
    kept = [Text("$ dpfed demo", "bold"), *lines[:table], Text(LEFT_OUT, "dim"), *lines[following:]]
    return Text("\n").join(kept)


def draw(text: Text) -> str:
    """The picture as SVG."""
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True)
    console.print(text, soft_wrap=False)
    return console.export_svg(title="dpfed demo", code_format=FORM, unique_id="demo")


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    target.write_text(draw(shown(demo_output())), encoding="utf-8")
    print(f"{target}: {target.stat().st_size / 1000:.0f} kB")
