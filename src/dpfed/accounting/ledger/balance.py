# SPDX-License-Identifier: Apache-2.0
"""What the ledger's rows add up to: costs, budgets, names and reservations, one row at a time.

Guarantee: ``Balance`` is a function of the rows and their order alone, so every process that reads
the file has the same one; ``Cost.epsilon`` is an upper bound. "server" counts local and distributed
releases; "outsiders" counts these and central ones, since outsiders see less than the server.

| edge case                                        | what happens                                  |
|--------------------------------------------------|-----------------------------------------------|
| a row of an unknown kind                         | DataError: it was written by a newer version  |
| a budget for another guarantee on the same name  | UnsoundPlan: declare one for this one, too    |
| secure sums have reserved all of delta           | the cost is infinite                          |
| a row whose cost is not that of its event        | ``wrong_sums`` says so                        |
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from dpfed.accounting import gdp
from dpfed.accounting.guarantee import price
from dpfed.accounting.ledger import events
from dpfed.accounting.ledger.events import Json, canonical
from dpfed.accounting.ledger.journal import Row
from dpfed.core.errors import DataError, UnsoundPlan
from dpfed.core.files import from_word
from dpfed.core.types import Adjacency, Trust, Unit

SERVER, OUTSIDERS = "server", "outsiders"


class LedgerKey(NamedTuple):
    """What a budget is for: data under its owner's name, and what is guaranteed against whom."""

    dataset: str
    unit: Unit = Unit.RECORD
    adjacency: Adjacency = Adjacency.REPLACE_ONE
    adversary: str = SERVER

    @property
    def base(self) -> str:
        """The name without the client: simulated clients divide one name."""
        return self.dataset.partition("/")[0]

    def command(self, epsilon: str, delta: str) -> str:
        """The command that declares a budget for this key."""
        others = [
            f" --{name} {value}"
            for name, value in self._asdict().items()
            if value != self._field_defaults.get(name, value)
        ]
        options = f"--epsilon {epsilon} --delta {delta}{''.join(others)}"
        return f"dpfed ledger budget {self.dataset} {options}"

    def __str__(self) -> str:
        return f"{self.dataset!r} ({self.unit}, {self.adjacency}, against {self.adversary})"


def adversary_for(trust: Trust) -> str:
    """The adversary of a release: a trusted server is none."""
    return OUTSIDERS if trust is Trust.CENTRAL else SERVER


class Budget(NamedTuple):
    """What a data set may cost in all."""

    epsilon: float
    delta: float

    def __str__(self) -> str:
        return f"({self.epsilon:g}, {self.delta:g})"


@dataclass
class Cost:
    """The joint cost of some releases: mu^2 of Gaussian ones, and counts of other events."""

    mu_squared: float = 0.0
    events: Counter[str] = field(default_factory=Counter)
    delta_reserved: dict[tuple[str, int], float] = field(default_factory=dict)

    def __add__(self, other: Cost) -> Cost:
        delta_reserved = {**self.delta_reserved, **other.delta_reserved}
        return Cost(self.mu_squared + other.mu_squared, self.events + other.events, delta_reserved)

    def add(self, body: Mapping[str, Any], sign: int = 1) -> None:
        """Add a row's cost, or subtract it (sign -1) where a reservation is returned."""
        if body["mu_squared"] is None:
            self.events[canonical(body["event"])] += sign
        else:
            self.mu_squared += sign * float(body["mu_squared"])
        if body["lost"]:
            self.delta_reserved[body["training"], body["client"]] = float(body["lost"])

    def event(self, adjacency: Adjacency) -> Json:
        """The whole cost as one event."""
        others = [
            {"kind": "SelfComposed", "count": count, "event": json.loads(text)}
            for text, count in sorted(self.events.items())
            if count
        ]
        return events.composed([events.worth_of(self.mu_squared, adjacency), *others])

    def epsilon(self, delta: float, adjacency: Adjacency) -> float:
        """An upper bound at this delta, of which secure sums have reserved a part."""
        left = delta - math.fsum(self.delta_reserved.values())
        if left <= 0:
            return math.inf
        if not +self.events:
            return gdp.epsilon_for(left, math.sqrt(self.mu_squared))
        return price(events.from_json(self.event(adjacency)), left, adjacency)[0]

    def within(self, budget: Budget, adjacency: Adjacency) -> bool:
        """Whether the budget suffices; the bounds' own caution covers the tolerance of 10^-9."""
        left = budget.delta - math.fsum(self.delta_reserved.values())
        if left <= 0:
            return False
        if not +self.events:
            return self.mu_squared <= _limit(budget.epsilon, left) * (1 + gdp.CAUTION)
        return self.epsilon(budget.delta, adjacency) <= budget.epsilon * (1 + gdp.CAUTION)

    def left(self, budget: Budget) -> float:
        """The epsilon left for a further Gaussian run; NaN where the cost is not Gaussian."""
        delta = budget.delta - math.fsum(self.delta_reserved.values())
        if +self.events or delta <= 0:
            return math.nan if delta > 0 else 0.0
        mu = math.sqrt(max(0.0, _limit(budget.epsilon, delta) - self.mu_squared))
        return gdp.epsilon_for(delta, mu)


@lru_cache(maxsize=256)
def _limit(epsilon: float, delta: float) -> float:
    """B^2: the largest mu^2 that a budget allows."""
    return gdp.mu_for(epsilon, delta) ** 2


# ------------------------------------------------------------------------ what the rows add up to


@dataclass
class Usage:
    """What a run has entered on a channel."""

    cost: Cost = field(default_factory=Cost)
    releases: int = 0
    rows: int = 0
    open: int = 0
    """Rows that were not confirmed; they count as spent."""


@dataclass
class Reserve:
    """A run's reservation, and how many releases of it are left by channel."""

    number: int
    left: dict[str, int]
    body: Mapping[str, Any]
    used: bool = False


@dataclass
class Balance:
    """All rows, added up one by one in their order."""

    budgets: dict[LedgerKey, Budget] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    costs: dict[LedgerKey, Cost] = field(default_factory=dict)
    trainings: dict[tuple[LedgerKey, str, int], float] = field(default_factory=dict)
    reserves: dict[tuple[LedgerKey, str, int], Reserve] = field(default_factory=dict)
    usage: dict[tuple[LedgerKey, str, int, str], Usage] = field(default_factory=dict)
    places: dict[tuple[str, str, int, str], int] = field(default_factory=dict)
    seen: set[tuple[str, str, int, int, int, str]] = field(default_factory=set)
    open: dict[int, Usage] = field(default_factory=dict)

    def take(self, row: Row) -> None:
        """Add one more row."""
        kind = row.body.get("kind")
        if not isinstance(kind, str) or kind not in _TAKES:
            raise DataError(
                f"row {row.number} of the ledger is of kind {kind!r}, which this version does not "
                f"know; update dpfed"
            )
        try:
            _TAKES[kind](self, row)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"row {row.number} of the ledger is of kind {kind!r} and has a wrong part "
                f"({error}); put back the newest backup of the ledger and its head"
            ) from error

    def resolve(self, key: LedgerKey) -> LedgerKey:
        """The key under the first name of its data, which the rows have."""
        base, slash, client = key.dataset.partition("/")
        return key._replace(dataset=f"{self.names.get(base, base)}{slash}{client}")

    def budget(self, key: LedgerKey) -> Budget | None:
        """The data set's own budget, or the budget of the name that its clients divide."""
        return self.budgets.get(key) or self.budgets.get(key._replace(dataset=key.base))

    def spent(self, key: LedgerKey) -> Cost:
        """What counts against a key; for outsiders, what the server saw counts too."""
        own = self.costs.get(key, Cost())
        if key.adversary == OUTSIDERS:
            return own + self.costs.get(key._replace(adversary=SERVER), Cost())
        return own + Cost()

    def limits(self, key: LedgerKey) -> dict[LedgerKey, Budget]:
        """The budgets that a release under this key must keep."""
        keys = {key, key._replace(adversary=OUTSIDERS)}
        found = {each: budget for each in keys if (budget := self.budget(each))}
        named = [each for each in self.budgets if each.dataset in {key.dataset, key.base}]
        if named and not found:
            raise UnsoundPlan(
                f"data set {key.dataset!r} has a budget for {named[0]}, none for {key}; declare "
                f"one: {key._replace(dataset=key.base).command('EPSILON', 'DELTA')}"
            )
        return found


def key_of(body: Mapping[str, Any]) -> LedgerKey:
    """The key of a row."""
    unit, adjacency = Unit(body["unit"]), Adjacency(body["adjacency"])
    return LedgerKey(body["dataset"], unit, adjacency, body["adversary"])


def _take_budget(balance: Balance, row: Row) -> None:
    balance.budgets[key_of(row.body)] = Budget(float(row.body["epsilon"]), float(row.body["delta"]))


def _take_name(balance: Balance, row: Row) -> None:
    balance.names[row.body["name"]] = row.body["dataset"]


def _take_reserve(balance: Balance, row: Row) -> None:
    key, body = key_of(row.body), row.body
    run = (key, body["training"], body["client"])
    balance.costs.setdefault(key, Cost()).add(finite(body))
    balance.reserves[run] = Reserve(row.number, dict(body["releases"]), body)


def _take_return(balance: Balance, row: Row) -> None:
    for run, reserve in list(balance.reserves.items()):
        if reserve.number == row.body["row"]:
            balance.costs[run[0]].add(finite(reserve.body), sign=-1)
            del balance.reserves[run]


def _take_book(balance: Balance, row: Row) -> None:
    key, body = key_of(row.body), finite(row.body)
    training, client, channel = body["training"], body["client"], body["channel"]
    balance.seen.add((key.dataset, training, client, body["round"], body["attempt"], channel))
    balance.places[key.dataset, training, client, channel] = body["place"] + body["releases"]
    usage = balance.usage.setdefault((key, training, client, channel), Usage())
    usage.cost.add(body)
    usage.releases += body["releases"]
    usage.rows += 1
    usage.open += 1
    balance.open[row.number] = usage
    if body["reserve"] is not None:
        reserve = balance.reserves[key, training, client]
        reserve.left[channel] -= body["releases"]
        reserve.used = True
        return
    balance.costs.setdefault(key, Cost()).add(body)
    run = (key, training, client)
    balance.trainings[run] = balance.trainings.get(run, 0.0) + (body["mu_squared"] or 0.0)


def _take_confirm(balance: Balance, row: Row) -> None:
    for number in row.body["rows"]:
        usage = balance.open.pop(number, None)
        if usage is not None:
            usage.open -= 1


def finite(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The body with its mu^2 as a number: JSON has no infinity, so rows have a word for it."""
    return {**body, "mu_squared": from_word(body["mu_squared"])}


_TAKES = {
    "budget": _take_budget,
    "name": _take_name,
    "reserve": _take_reserve,
    "return": _take_return,
    "book": _take_book,
    "confirm": _take_confirm,
}


# ------------------------------------------------------------------------------------- verification


def wrong_sums(rows: Iterable[Row]) -> Iterator[str]:
    """Rows whose cost is not that of their event, or that contradict earlier rows."""
    balance, entered = Balance(), set[int]()
    for row in rows:
        try:
            balance.take(row)
            wrong = list(_wrong_row(row, entered))
        except (DataError, KeyError, TypeError, ValueError, AttributeError) as error:
            yield f"row {row.number} cannot be added up: {error}"
            return
        yield from wrong
    for (key, training, client), reserve in balance.reserves.items():
        if min(reserve.left.values(), default=0) < 0:
            yield f"training {training!r} of {key}, client {client}, entered more than it reserved"


def _wrong_row(row: Row, entered: set[int]) -> Iterator[str]:
    """What is wrong with one row, given the numbers of the releases' rows before it."""
    body, number = row.body, row.number
    if body["kind"] in {"book", "reserve"} and body["mu_squared"] is not None:
        stated, true = float(body["mu_squared"]), _mu_squared(body)
        if not math.isclose(stated, true, rel_tol=1e-9) and stated != true:
            yield f"row {number} states mu^2 = {stated:g}, and its event costs {true:g}"
    if body["kind"] == "confirm" and not entered >= set(body["rows"]):
        yield f"row {number} confirms rows that were never entered"
    if body["kind"] == "book":
        entered.add(number)


def _mu_squared(body: Mapping[str, Any]) -> float:
    """The squared mu of a Gaussian row's event, from the event alone."""
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

    return cost(body["event"], 1)
