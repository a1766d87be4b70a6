# SPDX-License-Identifier: Apache-2.0
"""Memory of a population of 10^6 clients in one process, of which about 1,000 are asked a round.

Their problems are made when they are asked, and dropped after. The limit is what the process held
after the second round; the 100th, when 50 times as many clients have taken part, must not need more
than 2 % beyond it. Resident bytes of the whole process are counted, the interpreter's and all
caches too.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import torch

from dpfed.client.gradient import gradient
from dpfed.core.randomness import Noise
from dpfed.core.sampling import Poisson
from dpfed.core.types import UPDATE, Adjacency, Facts, Trust, Unit
from dpfed.data.datasets import Records
from dpfed.data.models import Linear, LinearProblem
from dpfed.mechanisms.gaussian import gaussian
from dpfed.server.scale import scale
from dpfed.sums.plain import plain
from dpfed.training.inprocess import rounds
from dpfed.training.plan import Plan
from dpfed_lab.benchmarks import round_time
from dpfed_lab.benchmarks._measure import Result, _resident, threads

MEASURES = (
    "dpfed.training.inprocess",
    "dpfed.training.population",
    "dpfed.training.round",
    "dpfed.training.loop",
    "dpfed.accounting.accountant",
    "dpfed.accounting.composition",
)

POPULATION, COHORT, EACH, ROUNDS = 10**6, 1_000, 5, 100
TARGET = 1.02
MODEL = Linear("softmax", round_time.FEATURES, round_time.CLASSES)


class Made(Sequence[LinearProblem]):
    """Problems that are made when they are taken."""

    def __len__(self) -> int:
        return POPULATION

    def __getitem__(self, at: Any) -> Any:
        """Five random records, the same whenever this client is asked."""
        made = torch.Generator().manual_seed(at)
        x = torch.randn(EACH, round_time.FEATURES, generator=made)
        return MODEL.problem(Records(x, torch.randint(round_time.CLASSES, (EACH,), generator=made)))


def plan() -> Plan:
    """DP-FedGD at client level: the server draws clients, and adds the noise."""
    mechanism = gaussian(
        Facts(
            clip=round_time.CLIP,
            unit=Unit.CLIENT,
            adjacency=Adjacency.ZERO_OUT,
            trust=Trust.CENTRAL,
        ),
        std=round_time.CLIP,
    )
    return Plan(
        client=gradient(),
        channels={UPDATE: mechanism},
        sum=plain(),
        server=scale(0.1),
        nominal=[1.0] * POPULATION,
        rounds=1_000,
        noise=Noise(0),
        client_sampling=Poisson(COHORT / POPULATION),
    )


def run() -> list[Result]:
    """A hundred rounds, and what is resident after each."""
    with threads(1):
        played, held = rounds(plan(), Made(), MODEL.initial(0)), []
        for _ in range(ROUNDS):
            next(played)
            gc.collect()
            held.append(_resident("VmRSS") / 2**20)
    name = f"memory, {POPULATION} clients, {COHORT} a round"
    detail = {"resident_mb": held}
    return [Result(name, held[-1], held[1], "MB", TARGET, "the same after 2 rounds", detail)]
