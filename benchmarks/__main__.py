# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks [name ...] [--json FILE]``: all of them, or those named, as one table.

Exits with 1 where a target is missed. Each benchmark is a file of this folder with a ``run()``;
what its limit is, and why, stands at the top of the file.
"""

from __future__ import annotations

import argparse
import json
import pkgutil
import sys
from importlib import import_module
from pathlib import Path

from benchmarks._measure import Result, machine, quartiles, table


def names() -> list[str]:
    """The benchmarks: every file here that is not private."""
    found = pkgutil.iter_modules([str(Path(__file__).parent)])
    return sorted(module.name for module in found if not module.name.startswith("_"))


def main() -> int:
    """Run them one after the other, print the table, write the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="*", help=f"one of {', '.join(names())}; all by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write every number")
    asked = parser.parse_args()
    unknown = sorted(set(asked.name) - set(names()))
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(names())}")
    results = {name: _run(name) for name in asked.name or names()}
    lines = [line for group in results.values() for line in group]
    _say(table(lines))
    _say(f"\nquartiles, ms:\n{quartiles(lines)}")
    for line in lines:
        _say(_breakdown(line))
    if asked.json:
        found = {name: [line.to_dict() for line in group] for name, group in results.items()}
        asked.json.write_text(json.dumps({"machine": machine(), "results": found}, indent=2) + "\n")
    return 1 if any(line.met is False for line in lines) else 0


def _run(name: str) -> list[Result]:
    sys.stderr.write(f"{name} ...\n")
    results: list[Result] = import_module(f"benchmarks.{name}").run()
    return results


def _breakdown(line: Result) -> str:
    parts = line.detail.get("breakdown_ms")
    if not parts:
        return ""
    rows = "\n".join(f"  {part:<32}{value:8.2f} ms" for part, value in parts.items())
    return f"\n{line.name}, by part:\n{rows}"


def _say(text: str) -> None:
    if text:
        sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
