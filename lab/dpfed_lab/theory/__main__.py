# SPDX-License-Identifier: Apache-2.0
"""``python -m dpfed_lab.theory``: write theory.csv, then the page and the figure from it."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from dpfed_lab.theory import figure, page, quadratics, runs, second_order
from dpfed_lab.theory.finding import read_findings, write_findings


def main() -> None:
    """Measure, write theory.csv, then make page and figure from that file only."""
    parser = argparse.ArgumentParser(prog="python -m dpfed_lab.theory", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/theory"))
    parser.add_argument(
        "--page", action="store_true", help="measure nothing: make page and figure from theory.csv"
    )
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    table, about = asked.out / "theory.csv", asked.out / "README.md"
    if asked.page:
        stamp = page.stamp_of(about.read_text(encoding="utf-8"))
    else:
        began = time.process_time()
        found = [*runs.findings(runs.traces()), *quadratics.findings(), *second_order.findings()]
        write_findings(table, found)
        stamp = page.stamp(time.process_time() - began)
    found = read_findings(table)
    about.write_text(page.text(found, stamp), encoding="utf-8")
    figure.draw(found, asked.out)


if __name__ == "__main__":
    main()
