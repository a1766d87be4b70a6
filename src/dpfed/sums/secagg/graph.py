# SPDX-License-Identifier: Apache-2.0
"""Who shares masks with whom: everyone, or k neighbours on a ring in random order.

Bell et al. 2020 (SecAgg+): a k-regular graph with k = O(log n) is enough against an honest-but-
curious server, and a client's work no longer grows with n. The ring's order comes from a hash of
the run, so it does not depend on who colludes or drops out; the neighbours of a client are the k/2
next ones on either side.

Guarantee: ``design`` returns the smallest even k that is safe when ``least`` of the n clients
survive and ``colluders`` of them work with the server. Two events would break the masks:

    n P[a client has >= threshold colluding neighbours]            Hypergeometric(n-1, c, k)
    n P[k/2 clients in a row on the ring dropped out or collude]   else the honest stay connected

The sum of both union bounds is ``failure``, at most 2^-40. A plan adds it to delta for each
attempt, since other clients may drop out in each. An honest run lacks the shares to open its total
with probability at most 2^-20. If no k below n - 1 is safe, all clients are neighbours, and none of
these failures can happen by chance.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache

from dpfed.core.errors import UnsoundPlan

MAX_FAILURE = 2.0**-40
"""The chance that the graph hides too few honest terms, at most."""
MAX_UNOPENED = 2.0**-20
"""The chance that an honest run has too few shares to open its total, at most."""
COMPLETE_UP_TO = 64
"""Clients up to which all are neighbours: costs a few kB each, and cannot fail by chance."""


@dataclass(frozen=True)
class Design:
    """A graph's degree, how many neighbours open a seed, the chance that it hides too little."""

    degree: int
    threshold: int
    failure: float


@lru_cache(maxsize=64)
def design(clients: int, least: int, colluders: int, degree: int | None = None) -> Design:
    """The complete graph up to COMPLETE_UP_TO clients, then the sparsest that is good enough.

    Args:
        clients: how many the plan has.
        least: the least number of clients in a total.
        colluders: how many of them may be on the server's side.
        degree: the number of neighbours, even; None chooses it, 0 is the complete graph.
    """
    if colluders > max(0, least - 2):
        raise UnsoundPlan(
            f"survivors must be at least {colluders + 2}, or {colluders} colluders could open a "
            f"mask by themselves, got {least}; have more clients, raise sum.survivors, or use "
            f"local trust"
        )
    if degree is None:
        wanted = range(2, clients - 1, 2) if clients > COMPLETE_UP_TO else range(0)
    else:
        wanted = range(degree, min(degree + 1, clients - 1)) if degree else range(0)
    for k in wanted:
        found = _sparse(clients, least, colluders, k)
        if found is not None:
            return found
    if degree is not None and len(wanted):
        raise UnsoundPlan(
            f"sum.degree must be even and large enough for {clients} clients, {least} survivors "
            f"and {colluders} colluders, got {degree}; omit it to have it chosen automatically"
        )
    return Design(clients - 1, max(1, least - 1), 0.0)


def _sparse(clients: int, least: int, colluders: int, k: int) -> Design | None:
    """The highest threshold that survivors reach, if it is out of the colluders' reach."""
    gone = clients - least
    apart = clients * _in_a_row(clients, gone + colluders, k // 2)
    for threshold in range(k, 0, -1) if k % 2 == 0 else ():
        if clients * _tail(clients - 1, gone, k, k - threshold + 1) <= MAX_UNOPENED:
            failure = apart + clients * _tail(clients - 1, colluders, k, threshold)
            return Design(k, threshold, failure) if failure <= MAX_FAILURE else None
    return None


def _in_a_row(clients: int, marked: int, run: int) -> float:
    """The chance that the first ``run`` of a random order are all marked."""
    if marked < run:
        return 0.0
    return math.prod((marked - i) / (clients - i) for i in range(run))


def _tail(population: int, marked: int, draws: int, least: int) -> float:
    """P[at least ``least`` marked ones among ``draws``], without replacement."""
    ways = math.comb(population, draws)
    from_ = max(least, draws - (population - marked), 0)
    return sum(
        math.comb(marked, i) * math.comb(population - marked, draws - i) / ways
        for i in range(from_, min(draws, marked) + 1)
    )


def neighbours(client: int, clients: int, degree: int, run: str) -> tuple[int, ...]:
    """The clients that a client shares masks with; if i is one of j's, j is one of i's.

    Args:
        client: its index.
        clients: how many the plan has.
        degree: the number of neighbours; clients - 1 or more is the complete graph.
        run: the training's name and the plan's fingerprint, which fix the ring's order.
    """
    if degree >= clients - 1:
        return tuple(i for i in range(clients) if i != client)
    order, place = _ring(clients, run)
    at, half = place[client], degree // 2
    steps = (*range(-half, 0), *range(1, half + 1))
    return tuple(sorted(order[(at + step) % clients] for step in steps))


@lru_cache(maxsize=4)
def _ring(clients: int, run: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The clients in the order of a hash, and each one's place in it."""
    order = sorted(range(clients), key=lambda i: hashlib.sha256(f"{run}\n{i}".encode()).digest())
    place = [0] * clients
    for at, client in enumerate(order):
        place[client] = at
    return tuple(order), tuple(place)
