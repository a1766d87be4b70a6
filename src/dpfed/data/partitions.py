# SPDX-License-Identifier: Apache-2.0
"""Simulated federations: which records of one data set belong to which client.

=========== ==================================================================================
iid         a random permutation, cut into equal pieces
dirichlet   for each class k, proportions p_k ~ Dir(alpha * 1) over the clients; client i gets the
            share p_k[i] of the records of class k
shards      records sorted by class, cut into clients * shards_per_client pieces, dealt at random
            (McMahan et al., 2017)
counts      each class in the proportions of a given table, such as a paper's
natural     one client per silo, where records name theirs, else per group id; or whole silos or
            groups pooled into clients of about equal size
=========== ==================================================================================

The per-class draw is that of Yurochkin et al. (2019); papers cite Hsu et al. (2019) for it, who
draw the class mixture of each client instead. Both are known as "Dirichlet(alpha)".

Each function returns one sorted int64 index tensor per client. The tensors are disjoint, cover
all records, hold at least one record each, and depend on nothing but the arguments. This
randomness protects nothing, so numpy's generator is sufficient. A partition is a simulation: it
reads the labels of all clients in one place, which no real federation could do.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dpfed.core.errors import DataError
from dpfed.data._checks import bad_option, require_groups, require_one, require_positive

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from dpfed.data.datasets import Records

Parts = list[torch.Tensor]

_MAX_DRAWS = 1000
_ALL_TAKE = ("records", "clients", "seed")


def iid(records: Records, clients: int, seed: int) -> Parts:
    """A random permutation of the records, cut into ``clients`` pieces of equal size (or +1).

    Args:
        records: what to divide.
        clients: how many pieces, from 1 to the number of records.
        seed: of the permutation.
    """
    _check_clients(clients, len(records), "records")
    order = np.random.default_rng(seed).permutation(len(records))
    return _tensors(np.array_split(order, clients))


def dirichlet(
    records: Records, clients: int, seed: int, alpha: float = 0.5, minimum: int = 10
) -> Parts:
    """Label skew: small ``alpha`` gives each client few classes, large ``alpha`` tends to iid.

    The draw is repeated until the smallest client has at least ``minimum`` records.

    Args:
        records: what to divide, with class labels.
        clients: how many clients, from 1 to the number of records.
        seed: of the draw.
        alpha: the concentration of the Dirichlet distribution, above 0.
        minimum: the fewest records of a client; below 1 counts as 1.
    """
    _check_clients(clients, len(records), "records")
    minimum = max(minimum, 1)
    require_positive(alpha=alpha)
    if minimum * clients > len(records):
        raise DataError(
            f"{clients} clients with at least {minimum} records each need {minimum * clients} "
            f"records, and there are {len(records)}; lower clients or minimum"
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
    for _ in range(_MAX_DRAWS):
        parts = _dirichlet_once(classes, clients, alpha, rng)
        smallest = min(len(part) for part in parts)
        if smallest >= minimum:
            return _tensors(parts)
        best = max(best, smallest)
    raise DataError(
        f"every client must have at least minimum = {minimum} records, got {best} for the smallest "
        f"in the best of {_MAX_DRAWS} draws; "
        f"raise alpha (now {alpha}), lower minimum, or lower clients (now {clients})"
    )


def _dirichlet_once(
    classes: list[NDArray[np.int64]], clients: int, alpha: float, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    pieces: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    for indices in classes:
        shares = rng.dirichlet(np.full(clients, alpha))
        # The last cut is left out: rounding may put it below the size, and drop records.
        cuts = (np.cumsum(shares)[:-1] * len(indices)).astype(np.int64)
        for mine, piece in zip(pieces, np.split(rng.permutation(indices), cuts), strict=True):
            mine.append(piece)
    return [np.concatenate(mine) for mine in pieces]


def shards(records: Records, clients: int, seed: int, shards_per_client: int = 2) -> Parts:
    """Pathological label skew: each client holds about ``shards_per_client`` classes.

    Args:
        records: what to divide, with class labels.
        clients: how many clients, at least 1.
        seed: of the order within a class, and of which client gets which shards.
        shards_per_client: at least 1; all shards together at most the number of records.
    """
    require_one(shards_per_client=shards_per_client)
    total = clients * shards_per_client
    _check_clients(clients, len(records), "records")
    if total > len(records):
        bound = f"at most {len(records)}, the number of records"
        way_out = "lower clients or shards_per_client"
        raise bad_option("clients * shards_per_client", bound, total, way_out)
    rng = np.random.default_rng(seed)
    order = np.concatenate([rng.permutation(indices) for indices in _by_class(records)])
    pieces = np.array_split(order, total)
    deal = rng.permutation(total).reshape(clients, shards_per_client)
    return _tensors([np.concatenate([pieces[j] for j in hand]) for hand in deal])


def counts(records: Records, clients: int, seed: int, counts: list[list[int]]) -> Parts:
    """A given table of class counts, such as a paper publishes; the seed says which records.

    Of a class that has other than its total of records, such as where some are held out to judge
    settings, everyone gets the same share as in the table.

    Args:
        records: what to divide, with class labels.
        clients: how many clients: as many as the table has rows.
        seed: of the order within a class.
        counts: for each client its records of each class, at least 0.
    """
    classes = _by_class(records)
    fits = len(counts) == clients and all(len(row) == len(classes) for row in counts)
    table = np.array(counts, dtype=np.int64) if fits else np.zeros((1, 1), np.int64)
    if (table < 0).any() or (table.sum(0) == 0).any():
        bound = f"{clients} rows of {len(classes)} numbers, 0 or greater, no column all 0"
        raise bad_option("counts", bound, counts, "give one row for each client")
    rng = np.random.default_rng(seed)
    dealt = [
        np.split(rng.permutation(indices), np.cumsum(column)[:-1] * len(indices) // column.sum())
        for indices, column in zip(classes, table.T, strict=True)
    ]
    parts = [np.concatenate(mine) for mine in zip(*dealt, strict=True)]
    if min(map(len, parts)) == 0:
        raise bad_option("counts", "a record for every client", counts, "raise its row")
    return _tensors(parts)


def natural(records: Records, clients: int | None = None, seed: int = 0) -> Parts:
    """One client per silo, in the order of their ids; where records name none, per group id.

    With ``clients``, whole silos or groups are pooled: the largest goes first, each to the client
    that is smallest so far, so that clients are about equal. None of them is ever split.

    Args:
        records: what to divide, with ids of silos or of groups.
        clients: from 1 to the number of silos or groups; None means one client for each.
        seed: decides among those of equal size where they are pooled.
    """
    otherwise = "name the silos' column in data.options.silo, or use iid, dirichlet or shards"
    found = records.silos
    if found is None:
        found = require_groups(records.groups, "the partition 'natural'", otherwise)
    ids = found.numpy()
    groups = [np.flatnonzero(ids == group) for group in np.unique(ids)]
    if clients is None:
        return _tensors(groups)
    _check_clients(clients, len(groups), "groups" if records.silos is None else "silos")
    return _pool(groups, clients, np.random.default_rng(seed))


def _pool(groups: list[NDArray[np.int64]], clients: int, rng: np.random.Generator) -> Parts:
    silos: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    sizes = np.zeros(clients, dtype=np.int64)
    shuffled = [groups[i] for i in rng.permutation(len(groups))]
    for group in sorted(shuffled, key=len, reverse=True):
        smallest = int(sizes.argmin())
        silos[smallest].append(group)
        sizes[smallest] += len(group)
    return _tensors([np.concatenate(silo) for silo in silos])


PARTITIONS: dict[str, Callable[..., Parts]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "shards": shards,
    "counts": counts,
    "natural": natural,
}


def partition(name: str, records: Records, clients: int | None, seed: int, **options: Any) -> Parts:
    """The partition called ``name``.

    Args:
        name: iid, dirichlet, shards, counts or natural.
        records: what to divide.
        clients: how many clients; None, one client per group, is for ``natural`` only.
        seed: of everything that the partition draws.
        **options: the partition's own: alpha and minimum, shards_per_client, or counts.
    """
    if name not in PARTITIONS:
        known = ", ".join(sorted(PARTITIONS))
        raise DataError(f"there is no partition {name!r}; use one of {known}")
    if clients is None and name != "natural":
        raise DataError(
            f"the partition {name!r} needs a number of clients, and none was given; set clients"
        )
    try:
        return PARTITIONS[name](records, clients=clients, seed=seed, **options)
    except TypeError as error:
        own = [o for o in inspect.signature(PARTITIONS[name]).parameters if o not in _ALL_TAKE]
        raise DataError(
            f"the partition {name!r} cannot be made as asked ({error}); "
            f"correct its options, which are {', '.join(own) or 'none'}"
        ) from error


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
    """Per-client class counts and their KL divergence from the uniform class mixture.

    Args:
        records: all records, with class labels.
        parts: the indices of each client's records; none may be empty.
        classes: how many classes there are; labels are 0 to classes - 1.
    """
    labels = _labels(records)
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise DataError(
            f"labels must lie in 0..{classes - 1}, got {labels.min()} to {labels.max()}; "
            "give the true number of classes"
        )
    if not parts:
        raise DataError("there are no clients; give the parts of at least 1")
    if min(len(part) for part in parts) == 0:
        raise DataError("every client needs a record, and one has none; leave empty clients out")
    rows = [torch.bincount(records.y[part], minlength=classes) for part in parts]
    counts = torch.stack(rows)
    mixture = counts.double() / counts.sum(dim=1, keepdim=True)
    return Statistics(counts, torch.special.xlogy(mixture, mixture * classes).sum(dim=1))


# ---------------------------------------------------------------------------------------- helpers


def _labels(records: Records) -> NDArray[np.int64]:
    if records.y.dtype != torch.int64:
        raise DataError(
            f"class labels must be torch.int64, got {records.y.dtype}; "
            "use the partition iid or natural for regression targets"
        )
    labels: NDArray[np.int64] = records.y.numpy()
    return labels


def _by_class(records: Records) -> list[NDArray[np.int64]]:
    labels = _labels(records)
    return [np.flatnonzero(labels == k) for k in np.unique(labels)]


def _tensors(parts: list[NDArray[np.int64]]) -> Parts:
    return [torch.from_numpy(np.sort(part).astype(np.int64)) for part in parts]


def _check_clients(clients: int, most: int, of_what: str) -> None:
    if not 1 <= clients <= most:
        bound = f"from 1 to {most}, the number of {of_what}"
        raise bad_option("clients", bound, clients, "choose a number in that range")
