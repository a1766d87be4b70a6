# SPDX-License-Identifier: Apache-2.0
"""What a round's row of the history takes where clients are drawn: epsilon after one round more.

The limit is what dp_accounting takes for the same figure when it composes all rounds anew from one
release that is discretised already; both figures are the same to the last bit. The rows are of
rounds after the 50th, one after the other, as a training asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from dp_accounting.pld import privacy_loss_distribution

from dpfed.accounting.accountant import RELATIONS
from dpfed.accounting.event_tree import ChannelUse, TrainingReleases
from dpfed.accounting.guarantee import guarantee
from dpfed.core.sampling import Poisson
from dpfed.core.types import UPDATE, Adjacency, Facts, NoiseSource, Trust, Unit
from dpfed.mechanisms.gaussian import gaussian
from dpfed_lab.benchmarks._measure import Result, Task, compare, interleaved, threads

MEASURES = (
    "dpfed.accounting.accountant",
    "dpfed.accounting.composition",
    "dpfed.accounting.guarantee",
    "dpfed.accounting.event_tree",
)

DELTA, FIRST, REPEATS = 1e-5, 50, 20
SETTINGS = {"1 of 1000 clients": (0.001, 1.0), "1 of 100": (0.01, 0.8), "1 of 10": (0.1, 2.0)}


def run() -> list[Result]:
    """One line for each rate of a draw."""
    with threads(1):
        return [_line(name, *setting) for name, setting in SETTINGS.items()]


def _line(name: str, rate: float, multiplier: float) -> Result:
    rows, fresh = _rows(rate, multiplier), _fresh(rate, multiplier)
    tasks = {"row": Task(lambda: next(rows)), "fresh": Task(lambda: next(fresh))}
    found = interleaved(tasks, REPEATS, warmup=2)
    against = "dp_accounting composes all rounds anew, and reads off epsilon"
    return compare(f"row of a round, {name}", found["row"], found["fresh"], None, against)


def _rows(rate: float, multiplier: float) -> Iterator[float]:
    """Epsilon after one round more, as a row of the history has it."""
    facts = Facts(clip=1.0, unit=Unit.CLIENT, adjacency=Adjacency.ZERO_OUT, trust=Trust.CENTRAL)
    channels = {UPDATE: gaussian(facts, std=multiplier)}
    kind = (ChannelUse(UPDATE, releases=1),)
    for rounds in count(FIRST):
        made = TrainingReleases(channels, {kind: rounds}, Poisson(rate))
        yield guarantee(made, DELTA, NoiseSource.OPERATING_SYSTEM, rounds=rounds).epsilon


def _fresh(rate: float, multiplier: float) -> Iterator[float]:
    made: Callable[..., Any] = privacy_loss_distribution.from_gaussian_mechanism
    one = made(
        standard_deviation=multiplier,
        value_discretization_interval=1e-4,
        sampling_prob=rate,
        neighboring_relation=RELATIONS[Adjacency.ZERO_OUT],
    )
    for rounds in count(FIRST):
        yield float(one.self_compose(rounds).get_epsilon_for_delta(DELTA))
