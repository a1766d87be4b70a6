# SPDX-License-Identifier: Apache-2.0
"""What a shard costs above its train function: 200 shards of 25 records, one after the other.

The limit is 10 ms a shard on one core: a fork, the shard's data through a pipe, limits, an empty
folder, the row back, and the end of all that the shard has left. The function's own time is
measured in this process, on the same shards, and taken off. A function in NumPy runs in processes
without torch, which are smaller and so faster to fork. On a machine that does other things at the
same time, run it as ``chrt -f 1 taskset -c 1 python -m benchmarks shards``.
"""

from __future__ import annotations

import time
from importlib import import_module

import torch

from benchmarks._measure import Result, threads
from dpfed.core.types import Unit
from dpfed.data import shard_data
from dpfed.data.datasets import Records
from dpfed.data.models import Linear
from dpfed.data.shard_process import CleanProcess, Limits
from dpfed.data.shards import Cut, ShardedProblem, parameters_of
from dpfed.data.train_functions import CALL, row_of

MEASURES = ("dpfed.data.shard_child", "dpfed.data.shard_process", "dpfed.data.shards")

SHARDS, RECORDS, FEATURES, CLASSES = 200, 25, 64, 10
LIMIT_MS = 10.0
ROUNDS = 3


def run() -> list[Result]:
    """A function in NumPy, and one in torch."""
    with threads(1):
        return [_line("NumPy", "_shard_numpy"), _line("torch", "_shard_torch")]


def _line(name: str, module: str) -> Result:
    model = Linear("softmax", FEATURES, CLASSES)
    process = CleanProcess(CALL, f"benchmarks.{module}:train")
    problem = ShardedProblem(
        data=_records(),
        cut=Cut(SHARDS),
        dimension=model.layout.size,
        pack=parameters_of(model.layout),
        process=process,
        limits=Limits(seconds=5.0),
        classes=CLASSES,
    )
    start = torch.zeros(model.layout.size)
    try:
        problem.made_up().rows(start, Unit.RECORD)
        whole = min(_timed(lambda: problem.rows(start, Unit.RECORD)) for _ in range(ROUNDS))
    finally:
        process.close()
    own = min(_timed(lambda: _here(problem, module, start)) for _ in range(ROUNDS))
    above, each = (whole - own) / SHARDS * 1e3, own / SHARDS * 1e3
    said = f"{LIMIT_MS:g} ms above the function's own {each:.2f} ms"
    return Result(f"a shard, {name}", above, LIMIT_MS, "ms", 1.0, said, {"own_ms": each})


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
    x = torch.randn(SHARDS * RECORDS, FEATURES, generator=made)
    return Records(x, torch.randint(0, CLASSES, (len(x),), generator=made))
