# SPDX-License-Identifier: Apache-2.0
"""Simulated federations: which records of one data set belong to which client.

=========== ==================================================================================
iid         a random permutation, cut into equal pieces
dirichlet   for each class k, proportions p_k ~ Dir(alpha * 1) over the clients; client i gets the
            share p_k[i] of the records of class k
shards      records sorted by class, cut into clients * shards_per_client pieces, dealt at random
            (McMahan et al., 2017)
natural     one client per group id, or whole groups pooled into silos of about equal size
=========== ==================================================================================

The per-class draw is that of Yurochkin et al. (2019); papers cite Hsu et al. (2019) for it, who
draw the class mixture of each client instead. Both are known as "Dirichlet(alpha)".

Each function returns one sorted int64 index tensor per client. The tensors are disjoint, cover
all records, hold at least one record each, and depend on nothing but the arguments. The
randomness is no noise, so numpy's generator will do. A partition is a simulation: it reads the
labels of all clients at one place, as no real federation could.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dpfed.core.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from dpfed.data.datasets import Records

Parts = list[torch.Tensor]

_TRIES = 1000


def iid(records: Records, clients: int, seed: int) -> Parts:
    """A random permutation of the records, cut into ``clients`` pieces of equal size (or +1)."""
    _check_clients(clients, len(records), "records")
    order = np.random.default_rng(seed).permutation(len(records))
    return _tensors(np.array_split(order, clients))


def dirichlet(
    records: Records, clients: int, seed: int, alpha: float = 0.5, minimum: int = 10
) -> Parts:
    """Label skew: small ``alpha`` gives each client few classes, large ``alpha`` tends to iid.

    The draw is repeated until the smallest client has at least ``minimum`` records.
    """
    _check_clients(clients, len(records), "records")
    minimum = max(minimum, 1)
    if not 0 < alpha < float("inf"):
        raise DataError(f"alpha is {alpha}, but must be positive and finite: try 0.5.")
    if minimum * clients > len(records):
        raise DataError(
            f"{clients} clients with at least {minimum} records each need {minimum * clients} "
            f"records, but there are {len(records)}: lower clients or minimum."
        )
    return _draw_until(minimum, _by_class(records), clients, alpha, np.random.default_rng(seed))


def _draw_until(
    minimum: int,
    classes: list[NDArray[np.int64]],
    clients: int,
    alpha: float,
    rng: np.random.Generator,
) -> Parts:
    best = 0
    for _ in range(_TRIES):
        parts = _dirichlet_once(classes, clients, alpha, rng)
        smallest = min(len(part) for part in parts)
        if smallest >= minimum:
            return _tensors(parts)
        best = max(best, smallest)
    raise DataError(
        f"In {_TRIES} Dirichlet draws the smallest client had at most {best} records, but minimum "
        f"is {minimum}: raise alpha (now {alpha}), lower minimum, or lower clients (now {clients})."
    )


def _dirichlet_once(
    classes: list[NDArray[np.int64]], clients: int, alpha: float, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    pieces: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    for members in classes:
        shares = rng.dirichlet(np.full(clients, alpha))
        # The last cut is left out: rounding may put it below the size, and records would be lost.
        cuts = (np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        for mine, piece in zip(pieces, np.split(rng.permutation(members), cuts), strict=True):
            mine.append(piece)
    return [np.concatenate(mine) for mine in pieces]


def shards(records: Records, clients: int, seed: int, shards_per_client: int = 2) -> Parts:
    """Pathological label skew: each client holds about ``shards_per_client`` classes."""
    if shards_per_client < 1:
        raise DataError(f"shards_per_client is {shards_per_client}, but must be at least 1: try 2.")
    total = clients * shards_per_client
    _check_clients(clients, len(records), "records")
    _check_clients(total, len(records), "records", what="shards")
    rng = np.random.default_rng(seed)
    order = np.concatenate([rng.permutation(members) for members in _by_class(records)])
    pieces = np.array_split(order, total)
    deal = rng.permutation(total).reshape(clients, shards_per_client)
    return _tensors([np.concatenate([pieces[j] for j in hand]) for hand in deal])


def natural(records: Records, clients: int | None = None, seed: int = 0) -> Parts:
    """One client per group id (in the order of the ids); a group is never split.

    With ``clients``, whole groups are pooled: the largest group goes first, each to the silo that
    is smallest so far, so that silos are about equal. ``seed`` decides among groups of one size.
    """
    if records.groups is None:
        raise DataError(
            "The natural partition needs a group id per record, but these records have none: name "
            "the group column when loading, or use iid, dirichlet or shards."
        )
    ids = records.groups.numpy()
    members = [np.flatnonzero(ids == group) for group in np.unique(ids)]
    if clients is None:
        return _tensors(members)
    _check_clients(clients, len(members), "groups")
    return _pool(members, clients, np.random.default_rng(seed))


def _pool(members: list[NDArray[np.int64]], clients: int, rng: np.random.Generator) -> Parts:
    silos: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    sizes = np.zeros(clients, dtype=np.int64)
    shuffled = [members[i] for i in rng.permutation(len(members))]
    for group in sorted(shuffled, key=len, reverse=True):
        smallest = int(sizes.argmin())
        silos[smallest].append(group)
        sizes[smallest] += len(group)
    return _tensors([np.concatenate(silo) for silo in silos])


PARTITIONS: dict[str, Callable[..., Parts]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "shards": shards,
    "natural": natural,
}


def partition(name: str, records: Records, clients: int | None, seed: int, **options: Any) -> Parts:
    """The partition called ``name``; ``clients=None`` is for ``natural`` only."""
    if name not in PARTITIONS:
        known = ", ".join(sorted(PARTITIONS))
        raise DataError(f"There is no partition {name!r}: choose one of {known}.")
    if clients is None and name != "natural":
        raise DataError(
            f"The partition {name!r} needs a number of clients, but none was given: set clients."
        )
    try:
        return PARTITIONS[name](records, clients=clients, seed=seed, **options)
    except TypeError as error:
        raise DataError(f"The partition {name!r} cannot be made as asked: {error}.") from error


# ------------------------------------------------------------------------------------- statistics


@dataclass(frozen=True, eq=False)
class Statistics:
    """How skewed a partition is (Nair et al., Tables 13, 14). Read from the data: not private."""

    counts: torch.Tensor
    """int64 [clients, classes]."""
    kl: torch.Tensor
    """float64 [clients]: KL(class mixture of the client || uniform), natural logarithm."""

    @property
    def mean_kl(self) -> float:
        """The mean over clients; 0 if all clients are balanced."""
        return float(self.kl.mean())

    @property
    def max_kl(self) -> float:
        """The most skewed client; at most log(classes)."""
        return float(self.kl.max())


def statistics(records: Records, parts: Parts, classes: int) -> Statistics:
    """Per-client class counts and their KL divergence from the uniform class mixture."""
    labels = _labels(records)
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise DataError(
            f"Labels run from {labels.min()} to {labels.max()}, but must lie in 0..{classes - 1}: "
            "give the true number of classes."
        )
    if not parts or min(len(part) for part in parts) == 0:
        raise DataError("Each client needs at least one record: leave empty clients out.")
    rows = [torch.bincount(records.y[part], minlength=classes) for part in parts]
    counts = torch.stack(rows)
    mixture = counts.double() / counts.sum(dim=1, keepdim=True)
    return Statistics(counts, torch.special.xlogy(mixture, mixture * classes).sum(dim=1))


# ---------------------------------------------------------------------------------------- helpers


def _labels(records: Records) -> NDArray[np.int64]:
    if records.y.dtype != torch.int64:
        raise DataError(
            f"This partition goes by class labels, but y is {records.y.dtype}: use iid or natural "
            "for regression targets."
        )
    labels: NDArray[np.int64] = records.y.numpy()
    return labels


def _by_class(records: Records) -> list[NDArray[np.int64]]:
    labels = _labels(records)
    return [np.flatnonzero(labels == k) for k in np.unique(labels)]


def _tensors(parts: list[NDArray[np.int64]]) -> Parts:
    return [torch.from_numpy(np.sort(part).astype(np.int64)) for part in parts]


def _check_clients(number: int, most: int, of_what: str, what: str = "clients") -> None:
    if not 1 <= number <= most:
        raise DataError(
            f"{number} {what} were asked for, but there are {most} {of_what}: choose 1 to {most}."
        )
