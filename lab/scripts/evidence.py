#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All the evidence of results/ by one command, which can be killed and goes on where it was.

    DPFED_DATA=data lab/scripts/evidence.py             # every study with its search, what is measured
    DPFED_DATA=data lab/scripts/evidence.py --finals    # at the settings that come along: no search
    lab/scripts/evidence.py --cost                      # what it took here: results/evidence.md

Studies go into runs/NAME, one after the other, the shortest first; a run that is stored there is
never made again. ``--keep`` copies each finished study into results/, as lab/scripts/keep_results.py does.
A line per study says how long it took; the total is of this command's own time.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STUDIES = ROOT / "lab" / "studies"
MEASURED = (
    ("lab/studies/sofim-control/sofim_control.py", "--out", "lab/studies/sofim-control/results"),
    ("-m", "dpfed_lab.theory", "--out", "lab/studies/theory/results"),
    ("lab/studies/participation/participation_table.py",),
    ("-m", "dpfed_lab.paper_tables", "partition", "--out", "lab/studies/partition/results"),
    ("-m", "dpfed_lab.paper_tables", "runtime", "--out", "results/runtime"),
    ("lab/studies/auto-clear/auto_clear.py", "lab/studies/auto-clear/results"),
)
"""What is no study in TOML; each writes its results itself."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("studies", nargs="*", help="names; all by default")
    parser.add_argument("--finals", action="store_true", help="use stored settings, search nothing")
    parser.add_argument("--keep", action="store_true", help="copy finished studies' results")
    parser.add_argument("--workers", default="2", help="processes; 2 by default")
    parser.add_argument("--cost", action="store_true", help="write results/evidence.md only")
    asked = parser.parse_args()
    if asked.cost:
        (ROOT / "results/evidence.md").write_text(cost_table(), encoding="utf-8")
        return
    began = time.monotonic()
    for name in asked.studies or by_cost():
        run_study(name, asked)
    for command in () if asked.studies else MEASURED:
        timed(" ".join(command), [sys.executable, *command])
    print(f"all of it: {(time.monotonic() - began) / 60:.1f} minutes", flush=True)


def run_study(name: str, asked: argparse.Namespace) -> None:
    verb, out = "reproduce" if asked.finals else "sweep", f"runs/{name}"
    timed(
        name,
        [
            str(Path(sys.executable).with_name("dpfed")),
            verb,
            name,
            "--out",
            out,
            "--workers",
            asked.workers,
        ],
    )
    if asked.keep:
        timed(
            f"{name}, kept",
            [sys.executable, "lab/scripts/keep_results.py", out, f"lab/studies/{name}/results"],
        )


def timed(what: str, command: list[str]) -> None:
    """Run a command to its end; the first that fails ends everything, and nothing is lost."""
    began = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, check=False)
    print(f"{what}: {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
    if done.returncode:
        sys.exit(f"{what} ended with {done.returncode}; mend it, and give this command again")


# ----------------------------------------------------------------------------------- what it took


def spent(folder: Path) -> dict[str, tuple[int, float]]:
    """Runs and seconds of a committed folder, by file."""
    found = {}
    for part in ("tuning", "final"):
        path = folder / "results" / f"{part}.csv"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        rows = list(csv.DictReader(text.splitlines()))
        found[part] = (len(rows), sum(float(row["seconds"]) for row in rows))
    return found


def studied() -> list[Path]:
    """The studies with committed runs, by their folders."""
    return sorted(path.parents[1] for path in STUDIES.glob("*/results/study.toml"))


def by_cost() -> list[str]:
    """Every study that comes with the package: those that were never run here come last."""
    from dpfed_lab.study import study_names

    took = {path.name: sum(each[1] for each in spent(path).values()) for path in studied()}
    return sorted(study_names(), key=lambda name: took.get(name, float("inf")))


OPENING = """# What the studies took

Written by `lab/scripts/evidence.py --cost` from the seconds of every committed run, each of one process
beside whatever else ran: an upper bound of what an idle core needs. `lab/scripts/evidence.py` makes all of
them again; killed, it goes on where it was.

| study | searched | minutes | final runs | minutes |
|---|---:|---:|---:|---:|
"""


def cost_table() -> str:
    """Runs and minutes of every committed study."""
    lines = []
    totals = [0, 0.0, 0, 0.0]
    for folder in studied():
        took = spent(folder)
        row = [*took["tuning"], *took["final"]]
        totals = [a + b for a, b in zip(totals, row, strict=True)]
        lines.append(_line(folder.name, row))
    lines += [_line("**all**", totals), ""]
    hours = (totals[1] + totals[3]) / 3600
    lines.append(f"{hours:.1f} hours of one core, {hours / 2:.1f} of a machine with two.")
    return OPENING + "\n".join(lines) + "\n"


def _line(name: str, row: list[float]) -> str:
    tried, search, finals, seconds = row
    return f"| {name} | {tried:,} | {search / 60:.0f} | {finals:,} | {seconds / 60:.0f} |"


if __name__ == "__main__":
    main()
