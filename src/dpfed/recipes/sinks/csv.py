# SPDX-License-Identifier: Apache-2.0
"""metrics.csv, a line after each round: ``tail -f`` and any spreadsheet read it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from csv import DictWriter

from dpfed.recipes.sinks._open import About, Add
from dpfed.training.history import Row


@contextmanager
def csv(about: About) -> Iterator[Add]:
    """One line per round, in the file that a finished run has anyway.

    A column that a later row brings (a number of ``evaluate_fn``) is added to the lines before it.
    """
    path, columns, rows = about.folder / "metrics.csv", list(about.columns), list[Row]()

    def write_all() -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)

    def add(row: Row) -> None:
        rows.append(row)
        if new := [name for name in row if name not in columns]:
            columns.extend(new)
            write_all()
            return
        with path.open("a", newline="", encoding="utf-8") as file:
            DictWriter(file, columns).writerow(row)

    write_all()
    yield add
