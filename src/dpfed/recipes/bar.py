# SPDX-License-Identifier: Apache-2.0
"""The bar that shows a run's rounds, or a study's runs, while they go on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def bar(quiet: bool = False) -> Progress:
    """A bar on the error stream; each task has a field ``figures``."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=quiet,
    )


def advance(
    shown: Progress, task: TaskID, row: Mapping[str, Any], rounds: int, name: str = "round"
) -> None:
    """One more round of a run."""
    figures = f"accuracy {percent(row['accuracy'])}  {spent(row['epsilon'])}"
    shown.update(task, description=name, total=rounds, completed=row["round"], figures=figures)


def spent(epsilon: float) -> str:
    """What a run has cost so far, in three digits, never below what it is."""
    from dpfed.accounting.guarantee import round_up

    return "no privacy" if math.isinf(epsilon) else f"epsilon spent {round_up(epsilon, 3)}"


def percent(value: float | None) -> str:
    """A part of 1 in percent; two dashes where it is not known."""
    return "--" if value is None else f"{100 * value:.1f} %"
