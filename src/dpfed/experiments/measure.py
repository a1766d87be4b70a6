# SPDX-License-Identifier: Apache-2.0
"""Tables of Nair et al. 2026 that are measured, not trained; ``dpfed reproduce`` knows them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from dpfed.experiments import measurements as runtime
from dpfed.experiments import partition
from dpfed.experiments.table import Table, write_tables


class Measurement(NamedTuple):
    """A title, and what makes the tables."""

    title: str
    tables: Callable[[bool], dict[str, Table]]


MEASUREMENTS = {
    "partition": Measurement("Class counts per client, KL from uniform", partition.tables),
    "runtime": Measurement("Seconds per round and the server step's part", runtime.tables),
}


def measure(name: str, out: Path, *, quick: bool = False) -> Path:
    """Make the tables of a measurement into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    return write_tables(MEASUREMENTS[name].tables(quick), out / "tables")
