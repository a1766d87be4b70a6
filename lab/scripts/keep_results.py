#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A study's folder as it is committed: tables, figures and compact runs, no large files.

    lab/scripts/keep_results.py runs/sofim-cifar10 lab/studies/sofim-cifar10/results

All runs are kept as runs.jsonl.gz, from which ``dpfed report`` makes the folder again, and the
tuning runs as tuning.csv, too, for people. Leaves out LaTeX and PDF.
"""

from __future__ import annotations

import csv
import gzip
import json
import shutil
import sys
from pathlib import Path

WHOLE = ("study.toml", "settings.json", "paper.csv", "final.csv")
MOST = 12
"""More figures than this are left to the page, which ``dpfed report`` makes."""
PARTS = {"tables": ("*.md", "*.csv"), "figures": ("*.png",)}


def keep(source: Path, target: Path) -> None:
    """Copy what is kept; what was there before is replaced, but for pages written by people.

    Where the folder has no search of its own, the trials of an earlier one stay.
    """
    target.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        shutil.rmtree(target / part, ignore_errors=True)
    for name in WHOLE:
        (target / name).unlink(missing_ok=True)
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)
    for part, patterns in PARTS.items():
        found = [path for pattern in patterns for path in sorted((source / part).glob(pattern))]
        if part == "figures" and len(found) > MOST:
            continue
        for path in found:
            (target / part).mkdir(exist_ok=True)
            put = copy_figure if path.suffix == ".png" else shutil.copyfile
            put(path, target / part / path.name)
    write_tuning(source / "runs.jsonl", target / "tuning.csv")
    write_runs(source / "runs.jsonl", target / "runs.jsonl.gz")


def copy_figure(source: Path, target: Path) -> None:
    """A figure with 256 colours, a third of the bytes; what it shows is lines and text."""
    from PIL import Image

    image = Image.open(source).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    image.save(target, optimize=True)


def write_runs(runs: Path, path: Path) -> None:
    """Every run, without what McNemar's test alone needs; the same bytes for the same runs."""
    if not runs.exists():
        return
    rows = map(json.loads, runs.read_text(encoding="utf-8").splitlines())
    kept = [{k: v for k, v in row.items() if k not in ("correct", "tested")} for row in rows]
    lines = "".join(json.dumps(row) + "\n" for row in kept)
    path.write_bytes(gzip.compress(lines.encode(), 9, mtime=0))


def write_tuning(runs: Path, path: Path) -> None:
    """What was tried: one line per run."""
    lines = runs.read_text(encoding="utf-8").splitlines() if runs.exists() else []
    tried = [row for row in map(json.loads, lines) if row.get("stage") == "tuning"]
    if not tried:
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["entry", "setting", "accuracy", "loss", "seconds"])
        for row in tried:
            setting = "; ".join(f"{key} = {_short(value)}" for key, value in row["point"].items())
            judged = [_short(row["accuracy"]), _short(row.get("loss"))]
            writer.writerow([row["entry"], setting, *judged, row["seconds"]])


def _short(value: object) -> object:
    return f"{value:.4g}" if isinstance(value, float) else value


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    keep(Path(sys.argv[1]), Path(sys.argv[2]))
