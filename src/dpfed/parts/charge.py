# SPDX-License-Identifier: Apache-2.0
"""An owner's ledger around somebody else's mechanism: entered before it runs, or it does not run.

What it costs is an event of dp_accounting, which its author states; dpfed cannot check that the
code does what the event says. The cost is on the disk before the block begins, and stays there
whatever happens in it. Gaussian events add up with those of trainings, by mu^2.

| edge case                               | what happens                                           |
|-----------------------------------------|--------------------------------------------------------|
| the owner's budget does not suffice     | BudgetSpent; the block does not run                    |
| a name that is in the ledger            | UnsoundPlan: each use has a name of its own            |
| the block raises                        | the cost stays: something may have been released       |
| replace-one, under a zero-out budget    | UnsoundPlan: no bound of a row alone is known          |
| an event without a bound, or without    | Unpriceable; the block does not run                    |
| privacy                                 |                                                        |
| no budget was declared for the data     | entered only                                           |
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfed.accounting import events
from dpfed.accounting.event_tree import gaussian_mu_squared
from dpfed.accounting.gdp import SENSITIVITY
from dpfed.accounting.guarantee import epsilon_of
from dpfed.accounting.ledger.conversions import LedgerKey
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.accounting.ledger.request import ChannelRequest, Request
from dpfed.core.checks import refuse
from dpfed.core.dsse import Json, canonical_json
from dpfed.core.errors import Unpriceable
from dpfed.core.sampling import EVERYONE
from dpfed.core.types import Adjacency, Facts, Sampling, Unit
from dpfed.mechanisms.gaussian import gaussian

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_CHANNEL = "update"


@contextmanager
def charged(
    event: DpEvent,
    *,
    dataset: str,
    name: str,
    adjacency: Adjacency | str = Adjacency.REPLACE_ONE,
    unit: Unit | str = Unit.RECORD,
    delta: float = 1e-5,
    ledger: str | Path | None = None,
) -> Iterator[float]:
    """Enter the cost of a block of code in the owner's ledger, before the block runs.

    Args:
        event: what the block releases, as dp_accounting has it: a noise multiplier is the noise
            over the norm of what one unit adds, which dp_accounting doubles for replace-one.
        dataset: the owner's name for the data, as ``dpfed ledger budget`` has it.
        name: what the releases are called; a name is used once.
        adjacency: which data sets are neighbours for the event.
        unit: whose data is protected: record, group (a person) or client.
        delta: of the epsilon that the block is told; the budget has its own.
        ledger: the ledger's file; None is DPFED_LEDGER, or the default place.

    Returns:
        a context with the epsilon of the event at ``delta``.

    >>> import tempfile
    >>> from dp_accounting import LaplaceDpEvent
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ledger = Path(folder) / "ledger.sqlite"
    ...     where = {"dataset": "ward", "adjacency": "add-remove", "ledger": ledger}
    ...     with charged(LaplaceDpEvent(2.0), name="mean age", **where) as epsilon:
    ...         round(epsilon, 2)  # here the mechanism of another library runs
    0.5
    """
    key = LedgerKey(dataset, Unit(unit), Adjacency(adjacency))
    with charged_tree(events.to_json(event), key, name=name, delta=delta, ledger=ledger) as epsilon:
        yield epsilon


@contextmanager
def charged_tree(
    tree: Json,
    key: LedgerKey,
    *,
    name: str,
    delta: float,
    ledger: str | Path | None,
    part: ChannelRequest | None = None,
) -> Iterator[float]:
    """As ``charged``, of a tree, and of the releases that cost it, if dpfed's mechanism makes them.

    Args:
        tree: the cost, which may have the mark of draws under replace-one.
        key: the data, and against whom the cost holds: it is entered so.
        name: what the releases are called.
        delta: of the epsilon that the block is told.
        ledger: the ledger's file.
        part: the releases; None if only their cost is known.
    """
    if not key.dataset or "/" in key.dataset:
        raise refuse("dataset", "a name without a '/'", key.dataset, "use one such as 'adult'")
    if not name:
        raise refuse("name", "a text", name, "say what is released, such as 'mean-age-2026'")
    epsilon, _ = epsilon_of(tree, delta, key.adjacency)
    if not math.isfinite(epsilon):
        raise Unpriceable(
            f"{str(tree)[:80]} has no finite epsilon; add noise before anything is released"
        )
    request = _request(tree, key, name)
    if part is not None:
        request = replace(request, parts={_CHANNEL: part}, whole=tree)
    opened = Ledger(None if ledger is None else Path(ledger))
    rows = opened.begin(request)
    yield epsilon
    opened.confirm(rows)


def _request(tree: Json, key: LedgerKey, name: str) -> Request:
    """One release that costs what the event says, as a training of one round."""
    square = gaussian_mu_squared(tree, key.adjacency)
    mechanism: Any = _Stated(tree, key.adjacency)
    if square:
        multiplier = SENSITIVITY[key.adjacency] / math.sqrt(square)
        mechanism = gaussian(Facts(unit=key.unit, adjacency=key.adjacency), std=multiplier)
        tree = events.gaussian_event(multiplier)
    text = canonical_json({"event": tree, "unit": key.unit, "adjacency": key.adjacency})
    return Request(
        key=key,
        training=name,
        client=0,
        round=0,
        attempt=0,
        parts={_CHANNEL: ChannelRequest(mechanism, releases=1, planned=1)},
        # only its author knows whether a row is within half of the distance that was accounted for
        covered=key.adjacency is not Adjacency.REPLACE_ONE,
        plan=hashlib.sha256(text).hexdigest(),
        whole=tree,
    )


@dataclass(frozen=True)
class _Stated:
    """A mechanism of which only the cost of its one release is known."""

    tree: Json
    adjacency: Adjacency
    shares: float = 1.0
    participation: None = None
    sampling: Sampling = EVERYONE
    independent: bool = True

    def event(self, releases: int, shares: float | None = None) -> DpEvent:
        """What its author states."""
        del releases, shares
        return events.from_json(self.tree)
