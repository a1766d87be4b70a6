# SPDX-License-Identifier: Apache-2.0
"""How the benchmarks measure: ratios of interleaved medians, and peaks of resident memory.

A time in seconds says as much about the machine as about the code. So whatever is measured is
measured in turn with its limit (A, B, A, B, ...), noise of the machine hits both alike, and what
is reported and held to a target is the ratio of the two medians.
"""

from __future__ import annotations

import gc
import math
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

REPEATS = 40
WARMUP = 5


# ----------------------------------------------------------------------------------------- time


@dataclass(frozen=True)
class Task:
    """What is timed, what is done before each time, untimed, and how many calls one time is of."""

    run: Callable[[], object]
    prepare: Callable[[], object] = lambda: None
    calls: int = 1


@dataclass(frozen=True)
class Timing:
    """Seconds of one task: the median and the quartiles over all repeats."""

    median: float
    low: float
    high: float
    repeats: int


def interleaved(
    tasks: Mapping[str, Task],
    repeats: int = REPEATS,
    warmup: int = WARMUP,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time all tasks in turn, ``repeats`` times after ``warmup`` untimed turns.

    The order within a turn is shuffled, so that no task always finds the caches as one other
    task leaves them. Another clock is ``time.thread_time``: work of one thread, where others wait
    for the same processor.
    """
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    order, shuffle = list(tasks), random.Random(0).shuffle
    gc.collect()
    for turn in range(warmup + repeats):
        shuffle(order)
        for name in order:
            taken = _once(tasks[name], clock)
            if turn >= warmup:
                seconds[name].append(taken)
    return {name: timing(each) for name, each in seconds.items()}


def _once(task: Task, clock: Callable[[], float]) -> float:
    task.prepare()
    begin = clock()
    for _ in range(task.calls):
        task.run()
    return (clock() - begin) / task.calls


def timing(seconds: list[float]) -> Timing:
    """The median and the quartiles of some times."""
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return Timing(median, low, high, len(seconds))


@contextmanager
def threads(count: int) -> Iterator[None]:
    """This many torch threads, then as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# --------------------------------------------------------------------------------------- memory


def peak_above(run: Callable[[], object]) -> tuple[int, object]:
    """Bytes of resident memory at the peak of ``run`` above those before it, and its result.

    The kernel keeps the high-water mark: it sees every allocation of every library. Call it in a
    process of its own, with allocations of a vector's size going back to the system when freed
    (``RETURN_FREED``), or the mark hides what an earlier step left behind.
    """
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the mark falls to what is resident now
    before = _resident("VmRSS")
    result = run()
    return _resident("VmHWM") - before, result


RETURN_FREED = {"MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_TRIM_THRESHOLD_": "262144"}
"""Environment of glibc: each allocation above 256 KiB is a mapping, unmapped when freed."""


def _resident(kind: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(kind):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {kind}; measure memory on Linux")


# -------------------------------------------------------------------------------------- results


@dataclass(frozen=True)
class Result:
    """One line of the table: ``measured / limit`` is held to ``target`` (none: only stated)."""

    name: str
    measured: float
    limit: float
    unit: str
    target: float | None
    against: str
    """What the limit is."""
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """The measured over its limit; below 1 is better than the limit."""
        return self.measured / self.limit if self.limit else math.nan

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where there is none."""
        return None if self.target is None else self.ratio <= self.target

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {**asdict(self), "ratio": self.ratio, "met": self.met}


def compare(
    name: str,
    measured: Timing,
    limit: Timing,
    target: float | None,
    against: str,
    copies: float = 1.0,
    **detail: Any,
) -> Result:
    """The line of one timing against ``copies`` times another of the same run."""
    seen = {"measured": asdict(measured), "limit": asdict(limit), "limit_counts": copies, **detail}
    bound = copies * limit.median * 1e3
    return Result(name, measured.median * 1e3, bound, "ms", target, against, seen)


def table(results: list[Result]) -> str:
    """The results as one table of text."""
    head = ("name", "measured", "limit", "unit", "ratio", "target", "met", "the limit is")
    rows = [head, *(_cells(result) for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def _cells(r: Result) -> tuple[str, ...]:
    target = "-" if r.target is None else f"<= {r.target:g}"
    met = "-" if r.met is None else "yes" if r.met else "NO"
    numbers = (f"{r.measured:.4g}", f"{r.limit:.4g}", r.unit, f"{r.ratio:.3g}")
    return (r.name, *numbers, target, met, r.against)


def quartiles(results: list[Result]) -> str:
    """How far the repeats of each timing lie apart: the quartiles of both sides, in ms."""
    timed = [r for r in results if "measured" in r.detail]
    return "\n".join(
        f"  {r.name:<34}{_range(r, 'measured', 1.0)}  limit {_range(r, 'limit', _counts(r))}"
        for r in timed
    )


def _counts(result: Result) -> float:
    return float(result.detail["limit_counts"])


def _range(result: Result, side: str, counts: float) -> str:
    timing = result.detail[side]
    low, high = (1e3 * counts * timing[end] for end in ("low", "high"))
    return f"[{low:.4g}, {high:.4g}] of {timing['repeats']}"


def breakdown(result: Result) -> str:
    """What the parts of a timing take, where it has parts."""
    parts = result.detail.get("breakdown_ms")
    if not parts:
        return ""
    rows = "\n".join(f"  {part:<32}{value:8.2f} ms" for part, value in parts.items())
    return f"\n{result.name}, by part:\n{rows}"


def machine() -> dict[str, Any]:
    """What the numbers depend on: processor and versions, no host name and no path."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch_threads": torch.get_num_threads(),
        **{name: _version(name) for name in ("dpfed", "torch", "numpy", "opacus")},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
