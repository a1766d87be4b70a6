# SPDX-License-Identifier: Apache-2.0
"""(h) A round of DP-FedAuto against one of DP-FedGD on the same records, at 64 to 4,096 features.

The limit is DP-FedGD's round: the same gradients, clip, noise and sum, on inputs that need no
standardiser. Inputs are standardised once for each center and transform, and kept, so that a later
round costs what DP-FedGD's does, but for the broadcast that holds the transform. Measured are the
rounds of gradients; on a line of its own, without a target, a whole training of 20 rounds with its
two statistics over 20 rounds of DP-FedGD.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial

import torch

from dpfed.data.datasets import Records
from dpfed.data.models import Linear
from dpfed.recipes.build import plan_for, trained_model
from dpfed.recipes.schema import parse
from dpfed.training.inprocess import rounds
from dpfed_lab.benchmarks._measure import Result, Task, compare, interleaved, threads

MEASURES = (
    "dpfed.client.fedauto",
    "dpfed.client._paced",
    "dpfed.training.inprocess",
    "dpfed.training.round",
)

CLIENTS, CLASSES, ROUNDS = 10, 10, 20
NUMBERS = 1 << 22  # of all features together: as many records as make so many
TARGET = 1.3


def run() -> list[Result]:
    """Two lines for each number of features."""
    with threads(1):
        return [line for features in (64, 512, 4096) for line in _lines(features)]


def _lines(features: int) -> list[Result]:
    records = _records(features)
    played = {name: _rounds(name, records, 1_000) for name in ("dp-fedauto", "dp-fedgd")}
    for each in played.values():  # the statistics, and the first inputs that are standardised
        list(itertools.islice(each, 3))
    steps = interleaved({name: Task(partial(next, p)) for name, p in played.items()}, repeats=15)
    whole = interleaved(
        {name: Task(_training(name, records)) for name in played}, repeats=3, warmup=1
    )
    name, against = f"DP-FedAuto, {features} features", f"DP-FedGD, {len(records)} records"
    return [
        compare(name, steps["dp-fedauto"], steps["dp-fedgd"], TARGET, f"a round of {against}"),
        compare(
            f"{name}, a training",
            whole["dp-fedauto"],
            whole["dp-fedgd"],
            None,
            f"{ROUNDS} rounds of {against}",
        ),
    ]


def _records(features: int) -> Records:
    made = torch.Generator().manual_seed(0)
    count = max(4_000, NUMBERS // features)
    x = torch.randn(count, features, generator=made)
    return Records(x, torch.randint(CLASSES, (count,), generator=made))


def _rounds(method: str, records: Records, count: int) -> Iterator[object]:
    """The rounds of a training in one process, each made when it is asked for."""
    shares = torch.arange(len(records)).tensor_split(CLIENTS)
    named = Linear("softmax", records.x.shape[1], CLASSES)
    recipe = parse({"method": method, "rounds": count, "privacy": {"epsilon": 3.0}})
    plan = plan_for(recipe, [float(len(share)) for share in shares], named.layout)
    model = trained_model(recipe, plan, named)
    problems = [model.problem(records.take(share)) for share in shares]
    return rounds(plan, problems, model.initial(0))


def _training(method: str, records: Records) -> Callable[[], object]:
    return lambda: [None for _ in _rounds(method, records, ROUNDS)]
