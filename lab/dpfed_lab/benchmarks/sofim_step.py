# SPDX-License-Identifier: Apache-2.0
"""(c) The buffer-reusing SOFIM step against the time that its memory traffic takes.

The step cannot be one pass: the coefficient of M needs the inner products M.G and M.M over all of
both. Two passes read M and G and write M, then read G and M and write G: six vectors. The limit is
the time to move six vectors, at the bandwidth of ``copy_`` (two vectors: one read, one written) in
the same run and with as many threads: three copies.

The direction is put back before each step, untimed: a preconditioned direction shrinks, and a
few steps on would be made of denormal numbers.
"""

from __future__ import annotations

import torch

from dpfed.core.types import Aggregate
from dpfed.server.sofim import sofim
from dpfed_lab.benchmarks._measure import Result, Task, compare, interleaved, threads

MEASURES = ("dpfed.server._rank_one",)

SIZE = 10**7
TRAFFIC, COPY = 6, 2
TARGET = 2.5


def run() -> list[Result]:
    """With one thread, and with as many as torch takes."""
    counts = dict.fromkeys((1, torch.get_num_threads()))
    return [_with(count) for count in counts]


def _with(count: int) -> Result:
    with threads(count):
        timings = interleaved(_tasks())
    step, copy = timings["step"], timings["copy"]
    bandwidth = COPY * 4 * SIZE / copy.median / 1e9
    name = f"sofim step, {count} thread{'s' if count > 1 else ''}"
    against = f"moving {TRAFFIC} vectors of {SIZE:.0e} float32 at copy speed"
    ratio = TRAFFIC / COPY
    return compare(name, step, copy, TARGET, against, copies=ratio, copy_gigabytes_s=bandwidth)


def _tasks() -> dict[str, Task]:
    made = torch.Generator().manual_seed(0)
    source = torch.randn(SIZE, generator=made)
    target, direction = torch.empty_like(source), source.clone()
    optimizer = sofim(rho=1.0)
    state = optimizer.init(source)
    seen = Aggregate(0, source, source, std=1.0, clients=1)
    assert optimizer.update_ is not None
    update_ = optimizer.update_
    return {
        "step": Task(lambda: update_(direction, state, seen), lambda: direction.copy_(source)),
        "copy": Task(lambda: target.copy_(source)),
    }
