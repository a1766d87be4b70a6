# SPDX-License-Identifier: Apache-2.0
"""What a run lets people watch: one row per round, with these columns and no others.

| column                    | where it comes from                                                  |
|---------------------------|----------------------------------------------------------------------|
| round, seconds            | the server's own count and clock                                     |
| accuracy, loss            | by ``evaluation.kind``: test records that the server holds (test),   |
|                           | or the priced metrics channel (federated)                            |
| worst_silo                | ``evaluation.kind = "exact"`` only: in clear, and the report says so |
| epsilon, epsilon_others   | spent so far: to the server, to everyone else                        |
| surplus, snr              | of the private mean, its known noise and the public plan             |
| clients, missing, absent, | who answered: the server sees that                                   |
| aborted                   |                                                                      |

Guarantee: whoever shows or stores a row adds nothing to what the server knows. A client's own
losses, counts and times are no columns: they are releases, and nobody priced them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from dpfed.core.errors import RecipeError

Row = dict[str, Any]
"""One round: plain numbers and texts, ready for CSV and JSON."""

COLUMNS = (
    "round", "accuracy", "loss", "worst_silo", "epsilon", "epsilon_others", "surplus", "snr",
    "clients", "missing", "absent", "aborted", "seconds",
)  # fmt: skip


def plain(seen: Mapping[str, Any]) -> Row:
    """The columns of a row, in their order; an engine's lists become counts and texts."""
    missing = seen["missing"]
    listed = None if isinstance(missing, int) else list(missing)
    known = dict(seen, aborted=seen["aborted"] or "")
    if listed is not None:
        known.update(missing=len(listed), absent=" ".join(map(str, listed)))
    if known["aborted"]:
        known.update(accuracy=None, loss=None)
    return {name: known.get(name) for name in COLUMNS}


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """What of a row can be drawn against rounds."""
    return {
        name: float(row[name])
        for name in COLUMNS
        if name != "round" and isinstance(row.get(name), int | float) and isfinite(row[name])
    }


# -------------------------------------------------------------------------------------- sinks

Add = Callable[[Row], None]
"""Takes one round's row."""


@dataclass(frozen=True)
class About:
    """What a sink is told of a run before its first round."""

    name: str
    folder: Path
    promise: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


@contextmanager
def needs(package: str) -> Iterator[None]:
    """The import of an optional package, or one sentence with the way out."""
    try:
        yield
    except ImportError as error:
        raise RecipeError(
            f"sink {package!r} needs {error.name or package}, which is not installed; "
            f"install it with: pip install 'dpfed[{package}]'"
        ) from error
