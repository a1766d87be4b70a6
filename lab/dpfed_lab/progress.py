# SPDX-License-Identifier: Apache-2.0
"""What ``dpfed sweep`` and ``reproduce`` show: how many runs have ended, and the time left.

A terminal gets a bar, which is redrawn. A log file gets a line at the start, then one every few
seconds at most, and one at the end. ``progress.json`` in the study's folder says the same.

    4 runs to do, 12 are done
    run 13/16: DP-FedGD seed 2: 71.3 %, about 2 min left
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dpfed.recipes.display import LOG_INTERVAL_S, bar, percent
from dpfed_lab.jobs import ProgressFile


class StudyView:
    """A study's progress; use it inside of ``with``.

    Args:
        folder: the study's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._file, self._said = ProgressFile(folder), 0.0
        self._images: Any = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._bar = bar(quiet=not sys.stderr.isatty())
        self._open.enter_context(self._bar)
        self._runs = self._bar.add_task("runs", total=None, figures="")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._open.close()

    def begin(self, done: int, total: int) -> None:
        """A stage begins: a search, or the final runs.

        Args:
            done: runs that an earlier process has made.
            total: all runs of the stage.
        """
        self._file.begin(done)
        self._bar.reset(self._runs, total=total, completed=done)
        self._line(f"{total - done} runs to do, {done} are done", at_once=True)

    def run_ended(self, done: int, total: int, row: dict[str, Any]) -> None:
        """One more run has ended.

        Args:
            done: finished runs of this stage.
            total: all runs of this stage.
            row: the run.
        """
        what = row.get("entry") or f"{row.get('method')} seed {row.get('seed')}"
        figures = f"{what}: {judged(row)}"
        left = self._file.write(done, total, figures)
        self._bar.update(self._runs, total=total, completed=done, figures=figures)
        time_left = f", about {in_words(left)} left" if left and done < total else ""
        self._line(f"run {done}/{total}: {figures}{time_left}", at_once=done == total)

    def images(self, done: int, total: int) -> None:
        """Images become features, before all runs.

        Args:
            done: images that are done.
            total: all images.
        """
        if self._images is None:
            self._images = self._bar.add_task("images to features", total=total, figures="")
        self._bar.update(self._images, total=total, completed=done)
        self._line(f"images to features: {done}/{total}", at_once=done == total)

    def _line(self, text: str, at_once: bool) -> None:
        now = time.monotonic()
        if not self._bar.disable or not (at_once or now - self._said >= LOG_INTERVAL_S):
            return
        self._said = now
        print(text, file=sys.stderr, flush=True)


def in_words(seconds: float) -> str:
    """A duration as a person says it.

    Args:
        seconds: how long.

    >>> in_words(40), in_words(150), in_words(9000)
    ('40 s', '2 min', '2 h 30 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def judged(row: dict[str, Any]) -> str:
    """What came of a run, in one word: accuracy, or loss where labels are not classes.

    Args:
        row: the run.
    """
    if "refused" in row:
        return "refused"
    if row["accuracy"] is None and row["loss"] is not None:
        return f"loss {row['loss']:.3g}"
    return percent(row["accuracy"])
