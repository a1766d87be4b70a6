# SPDX-License-Identifier: Apache-2.0
"""``python -m dpfed_lab.paper_tables``: tables of Nair et al. 2026 that are measured, not trained.

    partition   who holds what: class counts per client, and how far they are from uniform (Tables
                13 and 14). Read from the data in clear: a description of a simulated federation
    runtime     what a round costs, method by method, in one process, interleaved (Table 7)

Two figures per method for the runtime. Milliseconds per round as medians: they carry the machine's
noise, which on a shared machine is above the 2 % in question. The server's step by itself, beside a
whole round of DP-FedGD: both are measured within the same seconds, and their ratio is the claim.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dpfed.core.types import UPDATE, Aggregate
from dpfed.core.vector import one_thread
from dpfed.data.partitions import Statistics
from dpfed.data.partitions import statistics as class_statistics
from dpfed.recipes.federation import Federation, divide, federation
from dpfed.recipes.records import load_dataset
from dpfed.recipes.schema import Recipe, load_recipe
from dpfed.recipes.session import Session, prepare
from dpfed.training.inprocess import rounds
from dpfed_lab import study as studies
from dpfed_lab.jobs import make_job
from dpfed_lab.sweep import check_settings, settings_for, stored_settings
from dpfed_lab.table import Number, Table, Value, write_tables

# --------------------------------------------------------------------------------------- partition

SOURCES = {
    "cifar10": "features/cifar10.npz",
    "fashion": "features/fashion-mnist.npz",
    "malaria": "features/malaria.npz",
    "x-rays": "features/covid-radiography.npz",
}


def partition_tables(quick: bool = False) -> dict[str, Table]:
    """One table for all data sets, and one for each, divided as the study sofim-cifar10 divides."""
    base = studies.load_study("sofim-cifar10").base
    names = list(SOURCES)[: 1 if quick else None]
    found = {
        name: _statistics(load_recipe(base, [f'data.source="{SOURCES[name]}"'])) for name in names
    }
    counted = {f"clients-{name}": _class_counts(name, each) for name, each in found.items()}
    return {"partition": _partition_summary(found), **counted}


def _statistics(recipe: Recipe) -> Statistics:
    dataset = load_dataset(recipe, None)
    return class_statistics(dataset.train, divide(recipe, dataset), dataset.classes or 1)


def _partition_summary(found: dict[str, Statistics]) -> Table:
    columns = (
        "data",
        "records",
        "clients",
        "classes",
        "smallest",
        "largest",
        "size std",
        "mean KL",
        "max KL",
        "absent classes",
        "largest class (%)",
    )
    note = (
        "Dirichlet 0.5 over 20 clients, seed 0. KL: of a client's class mixture from the uniform "
        "one, in nats. Absent classes: mean per client. Largest class: mean over clients of its "
        "share. Nair et al.'s CIFAR-10 partition: sizes 891 to 3,498 (std 780), mean KL 0.666, "
        "maximum 1.039, 0.3 classes absent; PathMNIST: 1,045 to 9,986, mean KL 0.581, maximum "
        "1.115."
    )
    rows = tuple((name, *_partition_figures(each)) for name, each in found.items())
    return Table("Partitions", columns, rows, note)


def _partition_figures(found: Statistics) -> list[Value]:
    sizes = found.counts.sum(dim=1)
    shares = found.counts.max(dim=1).values / sizes
    whole = [int(sizes.sum()), *found.counts.shape, int(sizes.min()), int(sizes.max())]
    spread, absent = float(sizes.double().std()), float((found.counts == 0).sum(1).double().mean())
    counts: list[Value] = [Number(count, digits=0) for count in whole]
    distances = [Number(kl, digits=3) for kl in (found.mean_kl, found.max_kl)]
    largest = Number(100 * float(shares.mean()), digits=1)
    return [*counts, Number(spread, digits=0), *distances, Number(absent), largest]


def _class_counts(name: str, found: Statistics) -> Table:
    classes = found.counts.shape[1]
    columns = ("client", *(f"class {k}" for k in range(classes)), "total", "KL")
    rows: list[tuple[Value, ...]] = []
    for client, (counts, kl) in enumerate(zip(found.counts, found.kl, strict=True)):
        figures = [Number(int(c), digits=0) for c in (*counts, counts.sum())]
        rows.append((str(client), *figures, Number(float(kl), digits=3)))
    return Table(f"Records by client and class: {name}", columns, tuple(rows), "Seed 0.")


# ----------------------------------------------------------------------------------------- runtime

STUDY, CELL, BASELINE = "sofim-cifar10", {"epsilon": "5"}, "DP-FedGD"
REPEATS, BLOCK, STEPS = 9, 10, 200


@dataclass(frozen=True)
class Timed:
    """One method's times, in seconds."""

    releases: int
    """Per client and round: one for each local step."""
    per_round: float
    server: float


def runtime_tables(quick: bool = False) -> dict[str, Table]:
    """Every method of the study at the setting that was chosen for epsilon 5."""
    sessions = _sessions()
    repeats = 1 if quick else REPEATS
    samples: dict[str, list[float]] = {label: [] for label in sessions}
    servers: dict[str, list[float]] = {label: [] for label in sessions}
    for _ in range(repeats):
        for label, each in sessions.items():
            samples[label] += _rounds(each)
            servers[label].append(_server_step(each))
    timed = {
        label: Timed(
            round(each.plan.planned(UPDATE) / each.plan.rounds),
            statistics.median(samples[label]),
            statistics.median(servers[label]),
        )
        for label, each in sessions.items()
    }
    return {"runtime": _runtime_table(timed, repeats)}


def _sessions() -> dict[str, Session]:
    study = studies.load_study(STUDY)
    settings = stored_settings(STUDY, study)
    check_settings(study, settings, STUDY)
    found: dict[str, Session] = {}
    silos: Federation | None = None
    for method in study.methods:
        chosen = settings_for(study, settings, CELL, method.label)
        changes = {**method.set, "privacy.epsilon": 5.0, **chosen, "evaluation.kind": "off"}
        recipe = make_job(study.base, {}, changes).recipe
        silos = silos or federation(recipe)
        found[method.label] = prepare(recipe, None, silos)
    return found


def _rounds(session: Session) -> list[float]:
    """Seconds of each round of a block; the first, which fills caches, is left out."""
    silos = session.federation
    times, began = [], time.perf_counter()
    for _ in rounds(session.plan, silos.problems, silos.model.initial(0)):
        times.append(time.perf_counter() - began)
        if len(times) > BLOCK:
            break
        began = time.perf_counter()
    return times[1:]


def _server_step(session: Session) -> float:
    """Seconds of the server's update alone: the mean of a loop, since one is microseconds."""
    optimizer = session.plan.server
    size = session.federation.model.layout.size
    released = torch.linspace(-1.0, 1.0, size)
    state = optimizer.init(released)
    update: Callable[..., tuple[torch.Tensor, object]] = optimizer.update_ or optimizer.update
    seen = Aggregate(0, released, released, std=1.0, clients=len(session.plan.nominal))
    with one_thread():
        began = time.perf_counter()
        for t in range(STEPS):
            _, state = update(released.clone(), state, replace(seen, round=t))
        return (time.perf_counter() - began) / STEPS


def _runtime_table(timed: dict[str, Timed], repeats: int) -> Table:
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
        "method",
        "releases",
        "ms per round",
        "of DP-FedGD's round",
        "server step (us)",
        "step over DP-FedGD's (% of a round)",
    )
    note = (
        f"CIFAR-10 features, 20 clients, Dirichlet 0.5, 650 parameters, one thread, no "
        f"evaluation; medians of {repeats} interleaved blocks of {BLOCK} rounds. The last column "
        "is Table 7's claim: what the optimizer's own step adds to a round."
    )
    return Table("What a round costs", columns, rows, note)


# ------------------------------------------------------------------------------------ the command

TABLES = {"partition": partition_tables, "runtime": runtime_tables}


def main() -> None:
    """Make the tables of one of them into a folder."""
    parser = argparse.ArgumentParser(prog="python -m dpfed_lab.paper_tables", description=__doc__)
    parser.add_argument("name", choices=list(TABLES))
    parser.add_argument("--out", type=Path, help="a folder; runs/NAME by default")
    parser.add_argument("--quick", action="store_true", help="one data set, one repeat")
    asked = parser.parse_args()
    out = asked.out or Path("runs") / asked.name
    out.mkdir(parents=True, exist_ok=True)
    where = write_tables(TABLES[asked.name](asked.quick), out / "tables")
    sys.stdout.write(f"tables in {where}\n")


if __name__ == "__main__":
    main()
