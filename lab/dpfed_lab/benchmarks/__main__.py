# SPDX-License-Identifier: Apache-2.0
"""``scripts/bench [name ...] [--json FILE]``: all of them, or those named, as one table.

``--page results/benchmarks/table.md`` writes the tables of that page anew, from the kept files that
each names; a digest of the measured code is kept beside the figures (_freshness.py).

Exits with 1 where a target is missed. Each benchmark is a file of this folder with a ``run()``;
what its limit is, and why, stands at the top of the file.
"""

from __future__ import annotations

import argparse
import json
import pkgutil
import sys
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

from dpfed_lab.benchmarks._freshness import digest
from dpfed_lab.benchmarks._measure import Result, breakdown, machine, quartiles, table
from dpfed_lab.benchmarks._page import write_tables


def names() -> list[str]:
    """The benchmarks: every file here that is not private."""
    found = pkgutil.iter_modules([str(Path(__file__).parent)])
    return sorted(module.name for module in found if not module.name.startswith("_"))


def main() -> int:
    """Run them one after the other, print the table, write the file."""
    parser = argparse.ArgumentParser(prog="python -m dpfed_lab.benchmarks", description=__doc__)
    parser.add_argument("name", nargs="*", help=f"one of {', '.join(names())}; all by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write every number")
    parser.add_argument("--page", type=Path, metavar="FILE", help="a page whose tables to renew")
    asked = parser.parse_args()
    unknown = sorted(set(asked.name) - set(names()))
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(names())}")
    results = {name: _run(name) for name in asked.name or names()}
    lines = [line for group in results.values() for line in group]
    _say(table(lines))
    _say(f"\nquartiles, ms:\n{quartiles(lines)}")
    for line in lines:
        _say(breakdown(line))
    if asked.json:
        found = {name: [line.to_dict() for line in group] for name, group in results.items()}
        kept = {
            "date": datetime.now(UTC).date().isoformat(),
            "machine": machine(),
            "measured": {name: digest(name) for name in results},
            "results": found,
        }
        asked.json.write_text(json.dumps(kept, indent=2) + "\n")
    if asked.page:
        write_tables(asked.page)
    return 1 if any(line.met is False for line in lines) else 0


def _run(name: str) -> list[Result]:
    sys.stderr.write(f"{name} ...\n")
    results: list[Result] = import_module(f"dpfed_lab.benchmarks.{name}").run()
    return results


def _say(text: str) -> None:
    if text:
        sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
