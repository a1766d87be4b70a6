# SPDX-License-Identifier: Apache-2.0
"""Who holds what: class counts per client and how far they are from uniform.

Nair et al. 2026, Tables 13 and 14. Read from the data in clear: a description of a simulated
federation, not a release.
"""

from __future__ import annotations

from dpfed.data.partitions import Statistics, statistics
from dpfed.experiments import study as studies
from dpfed.experiments.table import Number, Table, Value
from dpfed.recipes.federation import divide, load_dataset
from dpfed.recipes.schema import Recipe, load

SOURCES = {
    "cifar10": "features/cifar10.npz",
    "fashion": "features/fashion-mnist.npz",
    "malaria": "features/malaria.npz",
    "x-rays": "features/covid-radiography.npz",
}


def tables(quick: bool = False) -> dict[str, Table]:
    """One table for all data sets, and one for each, divided as the study sofim-cifar10 divides."""
    base = studies.load("sofim-cifar10").base
    names = list(SOURCES)[: 1 if quick else None]
    found = {name: _statistics(load(base, [f'data.source="{SOURCES[name]}"'])) for name in names}
    counted = {f"clients-{name}": _counts(name, each) for name, each in found.items()}
    return {"partition": _summary(found), **counted}


def _statistics(recipe: Recipe) -> Statistics:
    dataset = load_dataset(recipe, None)
    return statistics(dataset.train, divide(recipe, dataset), dataset.classes or 1)


def _summary(found: dict[str, Statistics]) -> Table:
    columns = (
        "data", "records", "clients", "classes", "smallest", "largest", "size std",
        "mean KL", "max KL", "absent classes", "largest class (%)",
    )  # fmt: skip
    note = (
        "Dirichlet 0.5 over 20 clients, seed 0. KL: of a client's class mixture from the uniform "
        "one, in nats. Absent classes: mean per client. Largest class: mean over clients of its "
        "share. Nair et al.'s CIFAR-10 partition: sizes 891 to 3,498 (std 780), mean KL 0.666, "
        "maximum 1.039, 0.3 classes absent; PathMNIST: 1,045 to 9,986, mean KL 0.581, maximum "
        "1.115."
    )
    rows = tuple((name, *_figures(each)) for name, each in found.items())
    return Table("Partitions", columns, rows, note)


def _figures(found: Statistics) -> list[Value]:
    sizes = found.counts.sum(dim=1)
    shares = found.counts.max(dim=1).values / sizes
    whole = [int(sizes.sum()), *found.counts.shape, int(sizes.min()), int(sizes.max())]
    spread, absent = float(sizes.double().std()), float((found.counts == 0).sum(1).double().mean())
    counts: list[Value] = [Number(count, digits=0) for count in whole]
    distances = [Number(kl, digits=3) for kl in (found.mean_kl, found.max_kl)]
    largest = Number(100 * float(shares.mean()), digits=1)
    return [*counts, Number(spread, digits=0), *distances, Number(absent), largest]


def _counts(name: str, found: Statistics) -> Table:
    classes = found.counts.shape[1]
    columns = ("client", *(f"class {k}" for k in range(classes)), "total", "KL")
    rows: list[tuple[Value, ...]] = []
    for client, (counts, kl) in enumerate(zip(found.counts, found.kl, strict=True)):
        figures = [Number(int(c), digits=0) for c in (*counts, counts.sum())]
        rows.append((str(client), *figures, Number(float(kl), digits=3)))
    return Table(f"Records by client and class: {name}", columns, tuple(rows), "Seed 0.")
