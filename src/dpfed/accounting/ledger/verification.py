# SPDX-License-Identifier: Apache-2.0
"""Whether the ledger's rows are true: each row's cost from its event, and against earlier rows.

| edge case                                        | what happens                                  |
|--------------------------------------------------|-----------------------------------------------|
| a row whose cost is not that of its event        | ``wrong_sums`` says so                        |
| releases entered at another cost than reserved   | ``wrong_sums`` says so                        |
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dpfed.accounting import events, gdp
from dpfed.accounting.ledger.balance import Balance, key_of
from dpfed.accounting.ledger.journal import Row
from dpfed.core.dsse import Json
from dpfed.core.errors import DataError
from dpfed.core.types import Adjacency


def wrong_sums(rows: Iterable[Row]) -> Iterator[str]:
    """Rows whose cost is not that of their event, or that contradict earlier rows."""
    balance, entered = Balance(), set[int]()
    for row in rows:
        try:
            balance.add_row(row)
            wrong = list(_wrong_row(row, entered))
        except (DataError, KeyError, TypeError, ValueError, AttributeError) as error:
            yield f"row {row.number} cannot be added up: {error}"
            return
        yield from (*wrong, *_wrong_cost(row, balance))
    for (key, training, client), reserve in balance.reserves.items():
        if min(reserve.left.values(), default=0) < 0:
            yield f"training {training!r} of {key}, client {client}, entered more than it reserved"


def _wrong_row(row: Row, entered: set[int]) -> Iterator[str]:
    """What is wrong with one row, given the numbers of the releases' rows before it."""
    body, number = row.body, row.number
    if body["kind"] in {"entry", "reserve", "claim", "lost"} and body["mu_squared"] is not None:
        stated, true = float(body["mu_squared"]), _mu_squared(body)
        if not math.isclose(stated, true, rel_tol=1e-9) and stated != true:
            yield f"row {number} states mu^2 = {stated:g}, and its event costs {true:g}"
    if body["kind"] == "confirm" and not entered >= set(body["rows"]):
        yield f"row {number} confirms rows that were never entered"
    if body["kind"] == "entry":
        entered.add(number)


def _wrong_cost(row: Row, balance: Balance) -> Iterator[str]:
    """Whether a row's releases cost what was reserved for them."""
    body = row.body
    if body["kind"] != "entry" or body["reserve"] is None:
        return
    kept = balance.reserves[key_of(body), body["training"], body["client"]].body
    if kept["plan"] != body["plan"]:
        yield f"row {row.number} is of another plan than the releases that were reserved"
    inner = events.below_mark(kept["event"])
    rounds = (kept["event"] if inner is None else inner).get("events", [])
    drawn = [events.once(part) for part in rounds if events.once(part)["kind"] == "PoissonSampled"]
    drawn = drawn if inner is None else [events.through_zero(one) for one in drawn]
    if drawn and body["event"] not in [*drawn, {"kind": "NoOp"}]:
        yield f"row {row.number} has another cost than a round that was reserved"
    one = kept["each"].get(body["channel"])
    if one is not None and body["event"] != events.repeated(one, body["releases"]):
        yield f"row {row.number} has another cost than the releases that were reserved"


def _mu_squared(body: Mapping[str, Any]) -> float:
    """The squared mu of a Gaussian row's event: a second count, which shares no fold on purpose."""
    adjacency = Adjacency(body["adjacency"])

    def cost(event: Json, count: int) -> float:
        match event:
            case {"kind": "Gaussian", "noise_multiplier": multiplier}:
                return gdp.mu_squared(multiplier, count, adjacency)
            case {"kind": "SelfComposed", "count": more, "event": one}:
                return cost(one, count * more)
            case {"kind": "Composed", "events": parts}:
                return math.fsum(cost(part, count) for part in parts)
            case {"kind": "NoOp"}:
                return 0.0
        return math.inf

    return cost(events.checked(body["event"]), 1)
