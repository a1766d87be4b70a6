# SPDX-License-Identifier: Apache-2.0
"""The law "how many units were drawn shows nowhere": not in work, memory, reading or bytes.

Who sees that number faces a draw of a fixed size: a zero-out delta of 2.1e-4 becomes 7.7e-3 at a
multiplier of 1, a rate of 0.1 and epsilon 1. So a release that drew nobody and one that drew as
many as it has room for make the same torch operations on tensors of the same shapes, one after
the other: equal blocks, and equal memory at each moment.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dpfed.accounting.guarantee import MOST_DRAWN_EPSILON
from dpfed.core.randomness import Noise
from dpfed.core.rows import Dense, Outer
from dpfed.core.sampling import CHANCE_OF_MORE, Poisson, most_drawn
from dpfed.core.types import Facts, Unit
from dpfed.data.batches import dataset_batches, tensor_batches
from dpfed.data.modules import Network
from dpfed.flower import make_plan
from dpfed.mechanisms.gaussian import gaussian

RECORDS, RATE = 1500, 0.02
ROOM = most_drawn(RECORDS, RATE)  # two blocks, the second one in part


class Shapes(TorchDispatchMode):
    """Each operation with the shapes and types of what it takes and makes."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Any] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        flat = torch.utils._pytree.tree_leaves((args, kwargs, result))
        tensors = [(tuple(t.shape), t.dtype) for t in flat if isinstance(t, torch.Tensor)]
        self.made.append((str(func), tensors))
        return result


@contextmanager
def drawing(monkeypatch: pytest.MonkeyPatch, count: int) -> Iterator[None]:
    """Exactly so many units are drawn: the first and the last ones."""

    def draw(_: Poisson, units: int, rng: object) -> torch.Tensor:
        kept = np.zeros(units, dtype=bool)
        kept[: count // 2] = True
        kept[units - (count - count // 2) :] = count > 0
        return torch.from_numpy(kept)

    with monkeypatch.context() as patch:
        patch.setattr(Poisson, "draw", draw)
        yield


def network(sampler: str) -> Network:
    torch.manual_seed(1)
    layers = (torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    return Network(torch.nn.Sequential(*layers), chunk=64, sampler=sampler)


def kinds() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(RECORDS, 6, generator=generator)
    y = torch.arange(RECORDS) % 3
    made: dict[str, Any] = {
        name: network(name).problem(tensor_batches(x, y)) for name in ("ghost", "func", "alone")
    }
    rows = {
        name: problem.rows(problem.model.initial(0), Unit.RECORD) for name, problem in made.items()
    }
    return {**rows, "dense": Dense(x), "outer": Outer(x[:, :3], x)}


@pytest.mark.parametrize("kind", ["ghost", "func", "dense", "outer"])
def test_a_release_makes_the_same_operations_whoever_is_drawn(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = kinds()[kind]
    mechanism = gaussian(Facts(), std=2.0).with_sampling(Poisson(RATE))
    traces, sizes = [], set()
    mechanism.release(rows, (), Noise(1).stream("release"))  # modules are tried once
    for count in (0, 1, 64, ROOM - 1, ROOM):
        with drawing(monkeypatch, count), Shapes() as shapes:
            release, _ = mechanism.release(rows, (), Noise(1).stream("release"))
        traces.append(shapes.made)
        sizes.add((release.vector.numel(), release.vector.dtype))
    assert len(sizes) == 1
    assert len(traces[0]) > 5
    assert all(trace == traces[0] for trace in traces[1:])


def test_as_many_records_are_read_whoever_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting:
        read = 0

        def __len__(self) -> int:
            return RECORDS

        def __getitem__(self, index: int) -> Any:
            self.read += 1
            return torch.full((6,), index / RECORDS), index % 3

    data, model = Counting(), network("ghost")
    rows = model.problem(dataset_batches(data, (torch.zeros(6), 0))).rows(
        model.initial(0), Unit.RECORD
    )
    mechanism, reads = gaussian(Facts(), std=2.0).with_sampling(Poisson(RATE)), set()
    for count in (0, 5, ROOM):
        data.read = 0
        with drawing(monkeypatch, count):
            mechanism.release(rows, (), Noise(1).stream("release"))
        reads.add(data.read)
    assert reads == {ROOM}


def test_what_a_larger_draw_would_show_is_taken_out_of_delta() -> None:
    privacy = {"std_over_clip": 4.0, "record_rate": 0.1}
    plan = make_plan([500] * 3, rounds=20, method="dp-fedgd", privacy=privacy)
    (claim, *_) = plan.guarantee().claims
    most = 20 * CHANCE_OF_MORE * (1 + math.exp(MOST_DRAWN_EPSILON))
    assert most <= claim.delta_reserved <= plan.delta / 1000
    everyone = make_plan([500] * 3, rounds=20, method="dp-fedgd", privacy={"std_over_clip": 4.0})
    assert everyone.guarantee().claims[0].delta_reserved == 0
