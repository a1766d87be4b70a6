# SPDX-License-Identifier: Apache-2.0
"""What a round costs, method by method, in one process, interleaved (Nair et al. 2026, Table 7).

Two figures per method. Milliseconds per round as medians: they carry the machine's noise, which on
a shared machine is above the 2 % in question. The server's step by itself, beside a whole round of
DP-FedGD: both are measured within the same seconds, and their ratio is what the claim is about.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from dpfed.core.types import UPDATE, Aggregate
from dpfed.core.vector import one_thread
from dpfed.experiments import study as studies
from dpfed.experiments.jobs import make_job
from dpfed.experiments.settings import check, stored
from dpfed.experiments.sweep import settings_for
from dpfed.experiments.table import Number, Table
from dpfed.recipes.federation import Federation, federation
from dpfed.recipes.run import Prepared, prepare
from dpfed.training.inprocess import rounds

STUDY, CELL, BASELINE = "sofim-cifar10", {"epsilon": "5"}, "DP-FedGD"
REPEATS, BLOCK, STEPS = 9, 10, 200


@dataclass(frozen=True)
class Timed:
    """One method's times, in seconds."""

    releases: int
    """Per client and round: one for each local step."""
    per_round: float
    server: float


def tables(quick: bool = False) -> dict[str, Table]:
    """Every method of the study at the setting that was chosen for epsilon 5."""
    prepared = _prepared()
    repeats = 1 if quick else REPEATS
    samples: dict[str, list[float]] = {label: [] for label in prepared}
    servers: dict[str, list[float]] = {label: [] for label in prepared}
    for _ in range(repeats):
        for label, each in prepared.items():
            samples[label] += _rounds(each)
            servers[label].append(_server_step(each))
    timed = {
        label: Timed(round(each.plan.planned(UPDATE) / each.plan.rounds),
                     statistics.median(samples[label]), statistics.median(servers[label]))
        for label, each in prepared.items()
    }  # fmt: skip
    return {"runtime": _table(timed, repeats)}


def _prepared() -> dict[str, Prepared]:
    study = studies.load(STUDY)
    settings = stored(STUDY, study)
    check(study, settings, STUDY)
    found: dict[str, Prepared] = {}
    silos: Federation | None = None
    for method in study.methods:
        chosen = settings_for(study, settings, CELL, method.label)
        changes = {**method.set, "privacy.epsilon": 5.0, **chosen, "evaluation.kind": "off"}
        recipe = make_job(study.base, {}, changes).recipe
        silos = silos or federation(recipe)
        found[method.label] = prepare(recipe, None, silos)
    return found


def _rounds(prepared: Prepared) -> list[float]:
    """Seconds of each round of a block; the first, which fills caches, is left out."""
    silos = prepared.federation
    times, began = [], time.perf_counter()
    for _ in rounds(prepared.plan, silos.problems, silos.model.initial(0)):
        times.append(time.perf_counter() - began)
        if len(times) > BLOCK:
            break
        began = time.perf_counter()
    return times[1:]


def _server_step(prepared: Prepared) -> float:
    """Seconds of the server's update alone: the mean of a loop, since one is microseconds."""
    optimizer = prepared.plan.server
    size = prepared.federation.model.layout.size
    released = torch.linspace(-1.0, 1.0, size)
    state = optimizer.init(released)
    update: Callable[..., tuple[torch.Tensor, object]] = optimizer.update_ or optimizer.update
    seen = Aggregate(0, released, released, std=1.0, clients=len(prepared.plan.nominal))
    with one_thread():
        began = time.perf_counter()
        for t in range(STEPS):
            _, state = update(released.clone(), state, replace(seen, round=t))
        return (time.perf_counter() - began) / STEPS


def _table(timed: dict[str, Timed], repeats: int) -> Table:
    base = timed[BASELINE]
    rows = tuple(
        (
            label,
            Number(each.releases, digits=0),
            Number(1e3 * each.per_round),
            Number(each.per_round / base.per_round, digits=3),
            Number(1e6 * each.server, digits=1),
            Number(100 * (each.server - base.server) / base.per_round, digits=3),
        )
        for label, each in timed.items()
    )
    columns = (
        "method", "releases", "ms per round", "of DP-FedGD's round", "server step (us)",
        "step over DP-FedGD's (% of a round)",
    )  # fmt: skip
    note = (
        f"CIFAR-10 features, 20 clients, Dirichlet 0.5, 650 parameters, one thread, no "
        f"evaluation; medians of {repeats} interleaved blocks of {BLOCK} rounds. The last column "
        "is Table 7's claim: what the optimizer's own step adds to a round."
    )
    return Table("What a round costs", columns, rows, note)
