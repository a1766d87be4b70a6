# SPDX-License-Identifier: Apache-2.0
"""What a terminal shows during a run or a study: rounds, time left, accuracy, epsilon.

A terminal gets a panel that is redrawn after each round; a log file gets a line every few seconds.
All of it comes from the rows of ``training/history.py``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress, TaskID
    from rich.table import Table

    from dpfed.training.history import Row

BARS = " ▁▂▃▄▅▆▇█"
CURVE_WIDTH = 40  # characters, if the terminal has room
LOG_INTERVAL_S = 5.0  # between two lines of a log file


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
        speed_estimate_period=math.inf,  # rounds of more than rich's 30 s would never have an ETA
    )


def advance(
    shown: Progress, task: TaskID, row: Mapping[str, Any], rounds: int, name: str = "round"
) -> None:
    """Show one more round of a run.

    Args:
        shown: the bar, as made by ``bar``.
        task: the bar's task for this run.
        row: the round's row, of which round, accuracy and epsilon are shown.
        rounds: how many rounds are planned.
        name: what stands before the bar.
    """
    figures = f"accuracy {percent(row['accuracy'])}  {spent(row['epsilon'])}"
    shown.update(task, description=name, total=rounds, completed=row["round"], figures=figures)


def spent(epsilon: float) -> str:
    """The epsilon that a run has spent so far, rounded up to three digits."""
    from dpfed.accounting.guarantee import round_up

    return "no privacy" if math.isinf(epsilon) else f"epsilon spent {round_up(epsilon, 3)}"


def percent(value: float | None) -> str:
    """A fraction in percent; two dashes if it is not known."""
    return "--" if value is None else f"{100 * value:.1f} %"


def steps_text(steps: Mapping[str, float]) -> str:
    """Numbers that a server steps by, in one line.

    >>> steps_text({"eta": 2.3026, "rho": 31.5, "eta / rho": 0.0731})
    'eta 2.303, rho 31.5, eta / rho 0.0731'
    """
    return ", ".join(f"{name} {value:.4g}" for name, value in steps.items())


class View:
    """Give it to ``dpfed.run(watch=...)``, inside of ``with``."""

    def __init__(self, name: str, epsilon: float | None = None, quiet: bool = False) -> None:
        """``epsilon`` is what the run may spend; None if it guarantees nothing."""
        from rich.console import Console

        self.name, self.epsilon, self.quiet = name, epsilon, quiet
        self.console = Console(stderr=True)
        self.rows: list[Row] = []
        self.bar = bar(quiet=True)
        self.task = self.bar.add_task("loading data", total=None, figures="")
        self._live: Any = None
        self._said = 0.0

    def __enter__(self) -> Self:
        from rich.live import Live

        if not self.quiet and self.console.is_terminal:
            self._live = Live(self, console=self.console, refresh_per_second=8)
            self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.__exit__(kind, error, where)

    def __call__(self, row: Row, rounds: int) -> None:
        """One more round."""
        self.rows.append(row)
        self.bar.update(self.task, description="round", total=rounds, completed=row["round"])
        if not self.quiet and self._live is None:
            self._line(row, rounds)

    def _line(self, row: Row, rounds: int) -> None:
        """For log files: at the start, at the end, and every few seconds."""
        now = time.monotonic()
        if row["round"] < rounds and now - self._said < LOG_INTERVAL_S and self._said:
            return
        self._said = now
        left = self.bar.tasks[0].time_remaining
        eta = "" if left is None or row["round"] >= rounds else f", about {left:.0f} s left"
        print(
            f"round {row['round']}/{rounds}: accuracy {percent(row['accuracy'])}, "
            f"{spent(row['epsilon'])}{eta}",
            file=self.console.file,
            flush=True,
        )

    def __rich__(self) -> RenderableType:
        """The panel."""
        from rich.console import Group
        from rich.panel import Panel

        figures = [self.figures()] if self.rows else []
        shown = self.bar.make_tasks_table(self.bar.tasks)
        return Panel(Group(shown, *figures), title=self.name, title_align="left", expand=False)

    @property
    def width(self) -> int:
        """The width of a curve that leaves room for its name and its figure."""
        return max(8, min(CURVE_WIDTH, self.console.width - 34))

    def figures(self) -> Table:
        """One line per figure: its newest value, then how it developed."""
        from rich.table import Table

        row = self.rows[-1]
        grid = Table.grid(padding=(0, 2))
        for name in ("accuracy", "loss"):
            values = [each[name] for each in self.rows if each[name] is not None]
            if values:
                last = percent(values[-1]) if name == "accuracy" else f"{values[-1]:.4g}"
                grid.add_row(name, last, f"[cyan]{curve(values, self.width)}")
        grid.add_row("epsilon", *self._epsilon(row))
        grid.add_row("clients", f"{row['clients']}", _answered(row))
        return grid

    def _epsilon(self, row: Row) -> tuple[str, str]:
        from dpfed.accounting.guarantee import round_up

        if self.epsilon is None:
            return "none", "nothing is guaranteed"
        part = min(1.0, row["epsilon"] / self.epsilon)
        filled = round(self.width * part)
        gauge = f"[yellow]{'█' * filled}{'░' * (self.width - filled)}[/]"
        return round_up(row["epsilon"], 3), f"{gauge} of {self.epsilon:g}"


def curve(values: Sequence[float], width: int = CURVE_WIDTH) -> str:
    """A line of small bars, from the least to the greatest; long histories are thinned."""
    if len(values) > width:
        last = len(values) - 1
        values = [values[round(i * last / (width - 1))] for i in range(width)]
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(BARS[1 + round((value - low) / span * (len(BARS) - 2))] for value in values)


def _answered(row: Row) -> str:
    missing = f", missing: {row['absent']}" if row["missing"] else ""
    snr = row["snr"]
    signal = "" if snr is None or snr != snr else f", signal to noise {snr:.2g}"
    if row["seconds"] is None:  # a secret draw: history.py leaves out what would show it
        return f"expected{signal}"
    return f"answered{missing}; {1000 * row['seconds']:.0f} ms a round{signal}"
