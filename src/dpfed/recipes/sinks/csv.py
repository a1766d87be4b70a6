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
    """One line per round, in the file that a finished run has anyway."""
    path = about.folder / "metrics.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = DictWriter(file, fieldnames=about.columns)
        writer.writeheader()

        def add(row: Row) -> None:
            writer.writerow(row)
            file.flush()

        file.flush()
        yield add
