# SPDX-License-Identifier: Apache-2.0
"""What a shard costs above its train function, one after the other, and a round by their number.

The limit is 10 ms a shard on one core: a fork, the shard's data through a pipe, limits, an empty
folder, the row back, and the end of all that the shard has left. The function's own time is
measured in this process, on the same shards, and taken off. A function in NumPy runs in processes
without torch, which are smaller and so faster to fork. What a fork costs later is page faults: how
many a shard has is counted, and what one takes on this machine is measured beside it. A round is
that of 5,000 records in 50, 200 and 500 shards. On a machine that does other things at the same
time, run it as ``chrt -f 1 taskset -c 1 python -m benchmarks shards``.
"""

from __future__ import annotations

import mmap
import os
import time
from importlib import import_module
from importlib.util import find_spec

import torch

from benchmarks._measure import Result, threads
from dpfed.core.rows import Dense
from dpfed.core.types import Unit
from dpfed.data import shard_data
from dpfed.data.datasets import Records
from dpfed.data.models import Linear
from dpfed.data.shard_process import CleanProcess, Limits
from dpfed.data.shards import Cut, ShardedProblem, parameters_of
from dpfed.data.train_functions import CALL, row_of

MEASURES = ("dpfed.data.shard_child", "dpfed.data.shard_process", "dpfed.data.shards")

COUNTS, USUAL = (50, 200, 500), 200
RECORDS, FEATURES, CLASSES = 5000, 64, 10
LIMIT_MS = 10.0
ROUNDS = 2
FUNCTIONS = {"NumPy": "_shard_numpy", "torch": "_shard_torch", "scikit-learn": "_shard_sklearn"}


def run() -> list[Result]:
    """A function in NumPy, one in torch and one in scikit-learn, where that is installed."""
    found = {name: each for name, each in FUNCTIONS.items() if _installed(name)}
    with threads(1):
        fault = min(_fault_us() for _ in range(9))
        return [line for name, module in found.items() for line in _lines(name, module, fault)]


def _installed(name: str) -> bool:
    return name != "scikit-learn" or find_spec("sklearn") is not None


def _lines(name: str, module: str, fault: float) -> list[Result]:
    process = CleanProcess(CALL, f"benchmarks.{module}:train")
    counting = CleanProcess(CALL, f"benchmarks.{module}:faults")
    start = torch.zeros(Linear("softmax", FEATURES, CLASSES).layout.size)
    try:
        found = {count: _seconds(_problem(process, count), module, start) for count in COUNTS}
        problem = _problem(counting, USUAL)
        problem.made_up().rows(start, Unit.RECORD)
        rows = problem.rows(start, Unit.RECORD)
    finally:
        process.close()
        counting.close()
    assert isinstance(rows, Dense)
    faults = -float(rows.matrix.median())
    whole, own = found[USUAL]
    above, each = (whole - own) / USUAL * 1e3, own / USUAL * 1e3
    said = f"{LIMIT_MS:g} ms above the function's own {each:.2f} ms"
    detail = {"own_ms": each, "faults": faults, "us_a_fault": fault}
    rounds = [
        Result(f"a round of {count} shards, {name}", both, alone, "s", None, "the function alone")
        for count, (both, alone) in found.items()
    ]
    return [Result(f"a shard, {name}", above, LIMIT_MS, "ms", 1.0, said, detail), *rounds]


def _problem(process: CleanProcess, count: int) -> ShardedProblem:
    model = Linear("softmax", FEATURES, CLASSES)
    return ShardedProblem(
        data=_records(),
        cut=Cut(count),
        dimension=model.layout.size,
        pack=parameters_of(model.layout),
        process=process,
        limits=Limits(seconds=5.0),
        classes=CLASSES,
    )


def _seconds(problem: ShardedProblem, module: str, start: torch.Tensor) -> tuple[float, float]:
    """Of a round, and of the function alone on the same shards."""
    problem.made_up().rows(start, Unit.RECORD)
    whole = min(_timed(lambda: problem.rows(start, Unit.RECORD)) for _ in range(ROUNDS))
    return whole, min(_timed(lambda: _here(problem, module, start)) for _ in range(ROUNDS))


def _fault_us(pages: int = 1000) -> float:
    """Microseconds of writing to a page that a forked process shares with its parent."""
    with mmap.mmap(-1, pages * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE) as held:
        for page in range(pages):
            held[page * mmap.PAGESIZE] = 1
        reading, writing = os.pipe()
        if os.fork() == 0:
            began = time.perf_counter()
            for page in range(pages):
                held[page * mmap.PAGESIZE] = 2
            os.write(writing, str((time.perf_counter() - began) / pages * 1e6).encode())
            os._exit(0)
        os.wait()
        os.close(writing)
        with os.fdopen(reading) as found:
            return float(found.read())


def _here(problem: ShardedProblem, module: str, start: torch.Tensor) -> None:
    """The function on each shard, in this process."""
    train = import_module(f"benchmarks.{module}").train
    for index in problem.members(Unit.RECORD):
        before = problem.pack(start)["parameters"]
        row_of(before, train(dict(before), shard_data.part(problem.data, index)))


def _timed(work: object) -> float:
    began = time.perf_counter()
    work()  # type: ignore[operator]
    return time.perf_counter() - began


def _records() -> Records:
    made = torch.Generator().manual_seed(0)
    x = torch.randn(RECORDS, FEATURES, generator=made)
    return Records(x, torch.randint(0, CLASSES, (len(x),), generator=made))
