# SPDX-License-Identifier: Apache-2.0
"""Rounds of many small clients in one process: by the lab's engine, by the library, and by pfl.

The limit of the first lines is one softmax gradient over all records as a single matrix
computation (round_time.py). "central": the client is the unit, and the server adds the noise;
"local": each of 50,000 records is clipped, and each client adds noise to its 650 numbers. The lab
computes 10,000 clients together (many_clients.py); the library 1,000, one after the other.

pfl: the same model (650 parameters), records, cohort and one full-batch step, one torch thread.
$DPFED_PFL names a Python with pfl 0.6.0 (_pfl_round.py); it clips differences and has its server
add Gaussian noise, as "central" does here. Alike: records, clip, noise level, plain sum, no
evaluation. Not alike: pfl makes steps by autograd in float32 and adds floats up; here gradients are
in closed form, sums are integers, and each client's count is kept. Both processes take turns.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import torch

from dpfed.client.gradient import gradient
from dpfed.core.chain import chain
from dpfed.core.randomness import Noise
from dpfed.core.types import UPDATE, Facts, Trust, Unit
from dpfed.data.models import Linear
from dpfed.mechanisms.gaussian import gaussian
from dpfed.server.scale import scale
from dpfed.server.sofim import sofim
from dpfed.sums.plain import plain
from dpfed.training.plan import Plan
from dpfed_lab.benchmarks import round_time
from dpfed_lab.benchmarks._measure import Result, Task, compare, interleaved, threads, timing
from dpfed_lab.many_clients import held, parameters

MEASURES = (
    "dpfed.training.inprocess",
    "dpfed.training.reply",
    "dpfed.training.round",
    "dpfed.core.clipping",
    "dpfed.data.models",
    "dpfed.core.randomness",
    "dpfed.mechanisms.gaussian",
)

MANY, EACH, COHORT = 10_000, 5, 1_000
TARGET = 15.0
MODEL = Linear("softmax", round_time.FEATURES, round_time.CLASSES)
KINDS = {"central": (Unit.CLIENT, Trust.CENTRAL), "local": (Unit.RECORD, Trust.LOCAL)}
PFL = "DPFED_PFL"
TURNS = 3


def run() -> list[Result]:
    """10,000 clients in the lab, 1,000 in the library, by both trusts; 1,000 by pfl, if there."""
    lines = [_against_bare(kind, engine) for engine in (_lab, _library) for kind in KINDS]
    return lines + ([_beside_pfl(os.environ[PFL])] if PFL in os.environ else [])


def plan_for(kind: str, clients: int) -> Plan:
    """DP-FedSOFIM of so many clients, by the trust."""
    unit, trust = KINDS[kind]
    mechanism = gaussian(Facts(clip=round_time.CLIP, unit=unit, trust=trust), std=round_time.CLIP)
    return Plan(
        client=gradient(),
        channels={UPDATE: mechanism},
        sum=plain(),
        server=chain(sofim(rho=1.0), scale(0.1)),
        nominal=[1.0] * clients,
        rounds=10_000,
        noise=Noise(0),
    )


Engine = Callable[[str], tuple[str, int, Callable[[], object]]]
"""From a trust to an engine's name, its number of clients, and their next round."""


def _lab(kind: str) -> tuple[str, int, Callable[[], object]]:
    records, every = round_time.random_records(MANY * EACH), torch.arange(MANY * EACH)
    of = held([records.take(own) for own in every.tensor_split(MANY)])
    played = parameters(plan_for(kind, MANY), MODEL, of)
    return "lab", MANY, lambda: next(played)


def _library(kind: str) -> tuple[str, int, Callable[[], object]]:
    problems = round_time.split(round_time.random_records(COHORT * EACH), COHORT)
    return "one by one", COHORT, round_time.player(plan_for(kind, COHORT), problems)


def _against_bare(kind: str, engine: Engine) -> Result:
    with threads(1):
        name, clients, turn = engine(kind)
        bare = round_time.bare_gradient(round_time.random_records(clients * EACH))
        tasks = {"round": Task(turn), "bare": Task(bare)}
        found = interleaved(tasks, repeats=10, warmup=1)
    against = f"one bare gradient over {clients * EACH} records, 1 thread"
    target = TARGET if name == "lab" else None
    name = f"round, {clients} clients, {kind}, {name}"
    return compare(name, found["round"], found["bare"], target, against)


def _beside_pfl(python: str) -> Result:
    """Some of the library's rounds, then some of pfl's, by turns."""
    ours: list[float] = []
    theirs: list[float] = []
    with threads(1):
        problems = round_time.split(round_time.random_records(COHORT * EACH), COHORT)
        turn = round_time.player(plan_for("central", COHORT), problems)
        turn()
        for _ in range(TURNS):
            ours += [_seconds(turn) for _ in range(5)]
            theirs += _pfl(python)
    against = "a round of pfl 0.6.0, the same users, model, clip and noise"
    return compare(f"round, {COHORT} clients, central", timing(ours), timing(theirs), 1.0, against)


def _seconds(turn: Callable[[], object]) -> float:
    begin = time.perf_counter()
    turn()
    return time.perf_counter() - begin


def _pfl(python: str) -> list[float]:
    script = Path(__file__).with_name("_pfl_round.py")
    command = [python, str(script), str(COHORT), "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found
