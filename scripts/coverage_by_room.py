#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The lines of each room that the last run with --cov ran: 80 % of all, 60 % of one, at least."""

import sys
from collections import defaultdict
from pathlib import Path

from coverage import Coverage

SOURCE = Path(__file__).parent.parent / "src" / "dpfed"
ALL, ONE = 80, 60

measured = Coverage()
measured.load()
lines: dict[str, int] = defaultdict(int)
missed: dict[str, int] = defaultdict(int)
for path in sorted(SOURCE.rglob("*.py")):
    found = measured.analysis2(str(path))
    statements, missing = found[1], found[3]
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    for name in (room, "all"):
        lines[name] += len(statements)
        missed[name] += len(missing)
ran = {name: 100 * (1 - missed[name] / lines[name]) for name in sorted(lines) if lines[name]}
print("lines of src/dpfed run:", ", ".join(f"{name} {share:.0f} %" for name, share in ran.items()))
low = [name for name, share in ran.items() if share < (ALL if name == "all" else ONE)]
if low:
    sys.exit(f"too few lines of {', '.join(low)}; at least {ONE} % of a room, {ALL} % of all")
