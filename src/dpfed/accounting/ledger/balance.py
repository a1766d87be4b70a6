# SPDX-License-Identifier: Apache-2.0
"""The ledger's rows added up, one at a time: costs, budgets, names and reservations.

Guarantee: ``Balance`` is a function of only the rows and their order, so every process that reads
the file has the same one; ``Cost.epsilon`` is an upper bound. A data set has one account: whatever
was released on it counts towards its budget, converted into the budget's own unit, adjacency and
adversary (conversions.py).

| edge case                                        | what happens                                  |
|--------------------------------------------------|-----------------------------------------------|
| a row of an unknown kind                         | DataError: it was written by a newer version  |
| a release that no conversion covers              | ``Cost.unbounded`` says so: no bound          |
| secure sums have reserved all of delta           | the cost is infinite                          |
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

from dpfed.accounting import events, gdp
from dpfed.accounting.event_tree import gaussian_leaves, gaussian_mu_squared
from dpfed.accounting.guarantee import epsilon_of
from dpfed.accounting.ledger.blocks import BlockBinding, add_binding
from dpfed.accounting.ledger.conversions import LedgerKey, Server, counts_twice, factor
from dpfed.accounting.ledger.journal import Row
from dpfed.core.dsse import Json, canonical_json
from dpfed.core.errors import DataError
from dpfed.core.files import from_word
from dpfed.core.types import Adjacency, Unit

CLAIM_LIFETIME_S = 86_400.0
"""Seconds without an enrolment or a release after which a training's claim lapses."""


class Budget(NamedTuple):
    """What a data set may cost in all."""

    epsilon: float
    delta: float
    keeps_person: bool = False
    """Whether a replaced record still belongs to the same person, as the owner declares."""

    def __str__(self) -> str:
        return f"({self.epsilon:g}, {self.delta:g})"


class DeclaredBudget(NamedTuple):
    """A budget, with the guarantee that it is stated for."""

    key: LedgerKey
    budget: Budget

    def allows_all_of(self, other: DeclaredBudget) -> bool:
        """Whether whatever the other one allows is allowed here, too."""
        one, two = self.budget, other.budget
        return (
            self.key == other.key
            and one.epsilon >= two.epsilon
            and one.delta >= two.delta
            and one.keeps_person >= two.keeps_person
        )

    def __str__(self) -> str:
        return f"{self.budget} for {self.key}"


RunId = tuple[LedgerKey, str, int]
"""A run: the data and guarantee of its releases, its training, and its client."""

SHORT = 16
"""How many of a hash's 64 digits tell the rows of one ledger apart."""

UNORDERED = math.inf
"""The position of a run that is not reserved yet: after all that are."""


@dataclass(frozen=True)
class RunCost:
    """A run that counts as a whole: it is not Gaussian, or another one in its account is not."""

    number: float
    """The row that reserved it; runs count in this order."""
    events: Counter[bytes]
    """Its events as canonical JSON, and how often each: composed by PLD, as planned beforehand."""

    def event(self) -> Json:
        """The whole cost as one event: one mark over all of it, if all of it has a mark."""
        parts = [(json.loads(text), n) for text, n in sorted(self.events.items()) if n]
        inner = [events.below_mark(part) for part, _ in parts]
        if not all(inner) or not parts:
            return events.composed([events.times(part, n) for part, n in parts])
        zeroed = zip(filter(None, inner), (n for _, n in parts), strict=True)
        return events.through_zero(events.composed([events.times(one, n) for one, n in zeroed]))


@dataclass
class Cost:
    """The joint cost of some releases: mu^2 of Gaussian ones, and whole runs that are not.

    Gaussian releases add up by mu^2, which holds for adaptive choices (Smith and Thakurta 2022).
    There is no such theorem for privacy loss distributions of runs that are chosen after earlier
    ones were seen. So runs add up by basic composition, the k-th at the part 1 / (k (k + 1)) of
    delta, which is fixed beforehand: sum of epsilon_k(delta_k), Rogers et al. 2016. A run that is
    alone has all of delta. docs/privacy.md has the proof.
    """

    mu_squared: float = 0.0
    runs: dict[RunId, RunCost] = field(default_factory=dict)
    delta_reserved: dict[RunId, float] = field(default_factory=dict)
    unbounded: str = ""
    """Releases that have no bound in the guarantee asked for, in words; empty if there are none."""

    def __add__(self, other: Cost) -> Cost:
        """The sum of both costs; for a run that is in both, that of ``other``."""
        return Cost(
            self.mu_squared + other.mu_squared,
            {**self.runs, **other.runs},
            {**self.delta_reserved, **other.delta_reserved},
            self.unbounded or other.unbounded,
        )

    def add(self, key: LedgerKey, body: Mapping[str, Any]) -> None:
        """Add a row's releases: by mu^2, or as further events of its run.

        Args:
            key: the data, and the guarantee that their costs are stated in.
            body: the row.
        """
        run = (key, body["training"], body["client"])
        if body["mu_squared"] is None:
            known = self.runs.get(run, RunCost(UNORDERED, Counter()))
            more = Counter({canonical_json(body["event"]): 1})
            self.runs[run] = replace(known, events=known.events + more)
        else:
            self.mu_squared += float(body["mu_squared"])
        self._reserve_delta(run, body)

    def add_whole(self, key: LedgerKey, body: Mapping[str, Any], number: float = UNORDERED) -> None:
        """Add a run as a whole; it replaces what was known of the run.

        Args:
            key: the data, and the guarantee that its cost is stated in.
            body: the row that reserves it, or what such a row would say.
            number: the row's number.
        """
        run = (key, body["training"], body["client"])
        self.runs[run] = RunCost(number, Counter({canonical_json(body["event"]): 1}))
        self._reserve_delta(run, body)

    def _reserve_delta(self, run: RunId, body: Mapping[str, Any]) -> None:
        if body["lost"]:
            self.delta_reserved[run] = float(body["lost"])

    @property
    def mixed(self) -> bool:
        """Whether there are both Gaussian releases, which add up by mu^2, and runs that are not."""
        return bool(self.runs) and self.mu_squared > 0

    def epsilon(self, delta: float, adjacency: Adjacency) -> float:
        """An upper bound at this delta, of which secure sums have reserved a part."""
        if self.unbounded:
            return math.inf
        gaussian = delta - math.fsum(
            part for run, part in self.delta_reserved.items() if run not in self.runs
        )
        if not self.runs:
            return (
                gdp.epsilon_for(gaussian, math.sqrt(self.mu_squared)) if gaussian > 0 else math.inf
            )
        parts = [(events.gaussian_with_mu_squared(self.mu_squared, adjacency), delta - gaussian)]
        parts = parts if self.mu_squared else []
        ordered = sorted(self.runs.items(), key=lambda item: (item[1].number, str(item[0])))
        parts += [(cost.event(), self.delta_reserved.get(run, 0.0)) for run, cost in ordered]
        return math.fsum(
            _epsilon_at(event, _delta_part(delta, place, len(parts)) - reserved, adjacency)
            for place, (event, reserved) in enumerate(parts, start=1)
        )

    def within(self, budget: Budget, adjacency: Adjacency) -> bool:
        """Whether the budget suffices; bounds are rounded up by more than the 10^-9 tolerance."""
        if self.runs or self.unbounded:
            enough = self.epsilon(budget.delta, adjacency) <= budget.epsilon * (1 + gdp.CAUTION)
            return enough and not self.mixed
        reserved = math.fsum(self.delta_reserved.values())
        if reserved > gdp.MAX_RESERVED_FRACTION * budget.delta:
            return False
        if self.mu_squared == 0:  # within any limit, which takes SciPy to find
            return True
        return self.mu_squared <= _limit(budget.epsilon, budget.delta - reserved) * (
            1 + gdp.CAUTION
        )

    def left(self, budget: Budget) -> float:
        """The epsilon left for a further Gaussian run; NaN if the cost is not Gaussian."""
        delta = budget.delta - math.fsum(self.delta_reserved.values())
        if delta <= 0 or self.unbounded:
            return 0.0
        if self.runs:
            return math.nan
        mu = math.sqrt(max(0.0, _limit(budget.epsilon, delta) - self.mu_squared))
        return gdp.epsilon_for(delta, mu)


def _delta_part(delta: float, place: int, parts: int) -> float:
    """The part of delta for the run at this position: all of it if there is only one run."""
    return delta if parts == 1 else delta / (place * (place + 1))


def _epsilon_at(event: Json, delta: float, adjacency: Adjacency) -> float:
    return epsilon_of(event, delta, adjacency)[0] if delta >= _MIN_DELTA else math.inf


_MIN_DELTA = 1e-300  # as gdp.check_delta has it


def converted(cost: Cost, times: float | None, source: LedgerKey, target: LedgerKey) -> Cost:
    """The cost of releases for one guarantee, in another.

    A Gaussian run becomes one release with as much mu, times the factor: its own events are in
    units of its own adjacency's sensitivity. Any other run counts for its own unit and adjacency,
    and for one in the place of another where it is priced for a unit that goes (triangle.py).

    Args:
        cost: what the releases cost in their own guarantee.
        times: what mu is multiplied by; None if there is no bound.
        source: their own guarantee.
        target: the guarantee that they are to count for.
    """
    runs = None if times is None else _converted_runs(cost.runs, times, source, target)
    if times is None or runs is None:
        return Cost(delta_reserved=dict(cost.delta_reserved), unbounded=str(source))
    return replace(cost, mu_squared=cost.mu_squared * times * times, runs=runs)


def _converted_runs(
    runs: Mapping[RunId, RunCost], times: float, source: LedgerKey, target: LedgerKey
) -> dict[RunId, RunCost] | None:
    """The runs in another guarantee; None if one of them has no bound there."""
    if times == 1 and source[1:3] == target[1:3]:
        return dict(runs)
    found: dict[RunId, RunCost] = {}
    for run, cost in runs.items():
        event = _converted_event(cost.event(), times, source, target)
        if event is None:
            return None
        found[run] = replace(cost, events=Counter({canonical_json(event): 1}))
    return found


def _converted_event(
    event: Json, times: float, source: LedgerKey, target: LedgerKey
) -> Json | None:
    square = gaussian_mu_squared(event, source.adjacency)
    if square is not None:
        return events.gaussian_with_mu_squared(times * times * square, target.adjacency)
    if not counts_twice(source, target) or gaussian_leaves(event) is None:
        return None
    return events.through_zero(event)


@lru_cache(maxsize=256)
def _limit(epsilon: float, delta: float) -> float:
    """B^2: the largest mu^2 that a budget allows."""
    return gdp.mu_for(epsilon, delta) ** 2


# ------------------------------------------------------------------------ what the rows add up to


@dataclass
class Entries:
    """The entries of one run on one channel, added up."""

    cost: Cost = field(default_factory=Cost)
    releases: int = 0
    rows: int = 0
    open: int = 0
    """How many of them were not confirmed; they count as spent."""


@dataclass
class Reservation:
    """A run's reservation, and how many releases of it are left by channel."""

    number: int
    left: dict[str, int]
    body: Mapping[str, Any]


@dataclass(frozen=True)
class BudgetClaim:
    """What an enrolled training may still release: set aside for it until the claim lapses."""

    cost: Cost
    """The cost of its whole plan."""
    covered: bool
    plan: str
    """The plan's fingerprint."""
    time: float
    """When it enrolled last, or released: seconds since the epoch."""


@dataclass(frozen=True, kw_only=True)
class AccountTotal:
    """What a data set has cost in all, in the terms of one guarantee."""

    key: LedgerKey
    """The data set, and what the figure is stated for."""
    budget: Budget | None
    delta: float
    epsilon: float
    """Infinite if there is no bound."""
    unbounded: str
    """The releases without a bound, in words."""
    left: float | None
    clients: int
    runs: int
    releases: int
    open: int


@dataclass
class Balance:
    """All rows, added up one by one in their order."""

    budgets: dict[str, DeclaredBudget] = field(default_factory=dict)
    """By data set: its account's budget."""
    commanded: dict[str, DeclaredBudget] = field(default_factory=dict)
    """By data set: the budget that its owner's last command has declared."""
    names: dict[str, str] = field(default_factory=dict)
    costs: dict[LedgerKey, Cost] = field(default_factory=dict)
    guarantees: dict[str, set[LedgerKey]] = field(default_factory=dict)
    """By data set: the keys of ``costs``."""
    uncovered: set[LedgerKey] = field(default_factory=set)
    """Keys with releases whose rows may be longer than the replace bound that was accounted for."""
    plans: dict[tuple[str, str, int], str] = field(default_factory=dict)
    """By data set, training and client: the plan's fingerprint."""
    trainings: dict[tuple[LedgerKey, str, int], float] = field(default_factory=dict)
    reserves: dict[tuple[LedgerKey, str, int], Reservation] = field(default_factory=dict)
    entries: dict[tuple[LedgerKey, str, int, str], Entries] = field(default_factory=dict)
    places: dict[tuple[str, str, int, str], int] = field(default_factory=dict)
    claims: dict[tuple[LedgerKey, str, int], BudgetClaim] = field(default_factory=dict)
    """By guarantee, training and client: those who have enrolled, and neither ended nor lapsed."""
    seen: set[tuple[str, str, int, int, int, str]] = field(default_factory=set)
    attended: dict[tuple[str, str, int], dict[tuple[int, int], int]] = field(default_factory=dict)
    """By data set, training and client: the attempts that were entered -> their round."""
    open: dict[int, Entries] = field(default_factory=dict)
    last: int = 0
    """The last row's number."""
    hashes: list[str] = field(default_factory=list)
    """Of each row, ``SHORT`` digits of its hash."""
    epoch: str = ""
    """The epoch that the last row is in (heads.py): the hash of the row that began it."""
    epoch_heads: int = 0
    """How many heads were given in it."""
    marks: list[int] = field(default_factory=list)
    """The rows that begin epochs or give heads."""
    head_time: int = 0
    """The time of the last head that was given to others, or whose loss was declared."""
    declared: dict[str, str] = field(default_factory=dict)
    """By the hash of a head whose loss was declared: its epoch."""
    named: set[str] = field(default_factory=set)
    """The rows that those heads name, their own among them."""
    lost: dict[tuple[str, LedgerKey], Cost] = field(default_factory=dict)
    """By such a head: what was booked for it."""
    exhausted: set[str] = field(default_factory=set)
    """Data sets whose account a loss has exhausted; without clients and blocks."""
    spared: set[str] | None = None
    """Once a loss has exhausted every account, those not known yet among them: the data sets whose
    budget was declared anew since."""
    renewed: set[str] = field(default_factory=set)
    """Data sets whose budget was declared anew after that, and counts nothing before."""
    resets: int = 0
    """How often an account was begun anew, or all were exhausted."""
    left: set[RunId] = field(default_factory=set)
    """Runs whose claim was waived, and that have not enrolled since."""
    closed: dict[tuple[str, str, int], str] = field(default_factory=dict)
    """By data set, training and client: the model that a closing statement is about."""
    blocks: dict[str, BlockBinding] = field(default_factory=dict)
    """By data set: what its blocks are made by; none of those that have no blocks."""

    def add_row(self, row: Row) -> None:
        """Add one more row."""
        self.last = row.number
        self.hashes.append(row.hash[:SHORT])
        kind = row.body.get("kind")
        if not isinstance(kind, str) or kind not in _ADD_BY_KIND:
            raise DataError(
                f"row {row.number} of the ledger is of kind {kind!r}, which this version does not "
                f"know; update dpfed"
            )
        try:
            _ADD_BY_KIND[kind](self, row)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"row {row.number} of the ledger is of kind {kind!r} and has a wrong part "
                f"({error}); put back the newest backup of the ledger and its head"
            ) from error

    def resolve(self, key: LedgerKey) -> LedgerKey:
        """The key with the first name of its data, which is the name in the rows."""
        base, slash, client = key.dataset.partition("/")
        return key._replace(dataset=f"{self.names.get(base, base)}{slash}{client}")

    def budget_of(self, dataset: str) -> DeclaredBudget | None:
        """The budget in force for a data set: its own, or that of the name which clients divide."""
        base = dataset.partition("/")[0]
        declared = self.budgets.get(dataset) or self.budgets.get(base)
        return declared and declared._replace(key=declared.key._replace(dataset=dataset))

    def allowed(self, key: LedgerKey, budget: Budget) -> DeclaredBudget:
        """What a policy's budget becomes: the owner's last command stands where it allows less.

        Args:
            key: what the policy's budget is stated for.
            budget: the policy's.
        """
        policy = DeclaredBudget(self.resolve(key), budget)
        command = self.commanded.get(policy.key.dataset, policy)
        if policy.allows_all_of(command):
            return command
        if command.allows_all_of(policy):
            return policy
        raise DataError(
            f"the policy's budget {policy} must allow less or more than {command}, which the "
            f"owner's last command declared, and does neither; state both alike, in silo.toml and "
            f"by 'dpfed ledger budget'"
        )

    def base_of(self, dataset: str) -> str:
        """The first name of a data set."""
        return self.resolve(LedgerKey(dataset)).dataset

    def accounts_of(self, dataset: str) -> list[str]:
        """The accounts of a data set: its own, and one for each block that was ever charged.

        Args:
            dataset: any name of it.
        """
        dataset = self.base_of(dataset)
        known = {name for name in self.guarantees if name.startswith(f"{dataset}/")}
        return [dataset, *sorted(known)] if dataset in self.blocks else [dataset]

    def stated_for(self, dataset: str) -> list[LedgerKey]:
        """What the totals of a data set are stated for: its budget, or each guarantee given."""
        declared = self.budget_of(dataset)
        return [declared.key] if declared else sorted(self.guarantees.get(dataset, ()), key=str)

    def is_exhausted(self, base: str) -> bool:
        """Whether a loss has exhausted a data set's account, and its budget did not begin anew."""
        return base in self.exhausted or (self.spared is not None and base not in self.spared)

    def spent(self, key: LedgerKey, *, keeps_person: bool = False) -> Cost:
        """All that was released on the data, in the terms of one guarantee.

        Args:
            key: the data, and the guarantee.
            keeps_person: whether a record that is replaced stays with its person.
        """
        lost_all = self.spared is not None and key.base not in self.spared
        total = Cost(math.inf if lost_all else 0.0)
        for source in sorted(self.guarantees.get(key.dataset, ()), key=str):
            total = total + self.counts(self.costs[source], source, key, keeps_person=keeps_person)
        return total

    def claimed(
        self, target: LedgerKey, run: tuple[str, int], now: float, *, keeps_person: bool = False
    ) -> Cost:
        """What other trainings on the data have enrolled for, and not released yet.

        Args:
            target: the data, and the guarantee that it is to count for.
            run: the training and client that asks: its own claim is not in its way.
            now: seconds since the epoch; a claim lapses after CLAIM_LIFETIME_S without a
                release or an enrolment.
            keeps_person: whether a record that is replaced stays with its person.
        """
        total = Cost()
        others = [
            (key, claim)
            for key, claim in self.claims.items()
            if key[0].dataset == target.dataset
            and key[1:] != run
            and key not in self.reserves
            and now - claim.time <= CLAIM_LIFETIME_S
        ]
        for (key, training, client), claim in sorted(others, key=str):
            left = claim.cost.mu_squared - self.trainings.get((key, training, client), 0.0)
            rest = replace(claim.cost, mu_squared=max(0.0, left))
            covered = claim.covered and key not in self.uncovered
            times = factor(key, target, covered=covered, keeps_person=keeps_person)
            counts = converted(self._as_run(rest, key, training, client), times, key, target)
            if not counts.unbounded:  # else it will be refused itself, under this budget
                total = total + counts
        return total

    def _as_run(self, cost: Cost, key: LedgerKey, training: str, client: int) -> Cost:
        """A claim as it will count: as a whole run if the account has runs with draws."""
        known = self.guarantees.get(key.dataset, ())
        if not cost.mu_squared or not any(self.costs[each].runs for each in known):
            return cost
        event = events.gaussian_with_mu_squared(cost.mu_squared, key.adjacency)
        made = RunCost(UNORDERED, Counter({canonical_json(event): 1}))
        return replace(cost, mu_squared=0.0, runs={(key, training, client): made})

    def totals(self, delta: float, *, every: bool = False) -> list[AccountTotal]:
        """What each data set has cost, in the terms of its budget, or of each guarantee given.

        Args:
            delta: at which epsilon is stated if no budget states a delta.
            every: each client's data on its own; else the most exposed client of a divided name.
        """
        groups: dict[LedgerKey, list[LedgerKey]] = {}
        for dataset in sorted({*self.guarantees, *self.budgets}):
            for key in self.stated_for(dataset):
                shared = key if every else key._replace(dataset=key.base)
                groups.setdefault(shared, []).append(key)
        used: dict[str, list[tuple[str, Entries]]] = {}  # one pass, however many accounts there are
        for (key, training, *_), entries in self.entries.items():
            used.setdefault(key.dataset, []).append((training, entries))
        return [self._total(shared, keys, delta, used) for shared, keys in groups.items()]

    def _total(
        self,
        shared: LedgerKey,
        keys: list[LedgerKey],
        delta: float,
        entered: Mapping[str, list[tuple[str, Entries]]],
    ) -> AccountTotal:
        """The total of some keys, given the training and entries of every run by data set."""
        declared = self.budget_of(keys[0].dataset)
        budget = declared.budget if declared else None
        keeps = bool(budget and budget.keeps_person)
        costs = [self.spent(key, keeps_person=keeps) for key in keys]
        at = budget.delta if budget else delta
        names = [name for name in dict.fromkeys(key.dataset for key in keys) if name in entered]
        used = [each for name in names for each in entered[name]]
        releases = {name: sum(usage.releases for _, usage in entered[name]) for name in names}
        return AccountTotal(
            key=shared,
            budget=budget,
            delta=at,
            clients=len(releases) or len(keys),
            epsilon=max(cost.epsilon(at, shared.adjacency) for cost in costs),
            unbounded=next((cost.unbounded for cost in costs if cost.unbounded), ""),
            left=min(cost.left(budget) for cost in costs) if budget else None,
            runs=len({training for training, _ in used}),
            open=sum(each.open for _, each in used),
            releases=max(releases.values(), default=0),
        )

    def counts(
        self, cost: Cost, source: LedgerKey, target: LedgerKey, *, keeps_person: bool = False
    ) -> Cost:
        """A cost that is stated in one guarantee, in the terms of another.

        Args:
            cost: what the releases cost.
            source: the guarantee that it is stated in.
            target: the guarantee that they are to count for.
            keeps_person: whether a record that is replaced stays with its person.
        """
        covered = source not in self.uncovered
        times = factor(source, target, covered=covered, keeps_person=keeps_person)
        return converted(cost, times, source, target)

    def add_cost(self, key: LedgerKey, body: Mapping[str, Any]) -> None:
        """Add a row's cost to what was released for a guarantee."""
        self.costs.setdefault(key, Cost()).add(key, body)
        self.note_guarantee(key, body)

    def note_guarantee(self, key: LedgerKey, body: Mapping[str, Any]) -> None:
        """Remember that releases were accounted for in this guarantee."""
        self.guarantees.setdefault(key.dataset, set()).add(key)
        if not body["covered"]:
            self.uncovered.add(key)


def key_of(body: Mapping[str, Any]) -> LedgerKey:
    """The key of a row."""
    colluders = body["colluders"]
    if colluders is not None and not isinstance(colluders, int):
        raise TypeError(colluders)
    return LedgerKey(
        dataset=body["dataset"],
        unit=Unit(body["unit"]),
        adjacency=Adjacency(body["adjacency"]),
        adversary=Server(body["adversary"]),
        colluders=colluders,
    )


def _add_budget(balance: Balance, row: Row) -> None:
    key, body = key_of(row.body), row.body
    if body.get("anew"):
        _renew(balance, key.base)
    budget = Budget(float(body["epsilon"]), float(body["delta"]), bool(body["keeps_person"]))
    balance.budgets[key.dataset] = DeclaredBudget(key, budget)
    if body["by"] == "command":
        balance.commanded[key.dataset] = DeclaredBudget(key, budget)


def _renew(balance: Balance, base: str) -> None:
    """Count nothing that was released or reserved on a data set so far."""
    balance.resets += 1
    balance.renewed.add(base)
    balance.exhausted.discard(base)
    if balance.spared is not None:
        balance.spared.add(base)
    for dataset in [name for name in balance.guarantees if name.partition("/")[0] == base]:
        for key in balance.guarantees.pop(dataset):
            balance.costs.pop(key, None)
            balance.uncovered.discard(key)
    balance.claims = {run: each for run, each in balance.claims.items() if run[0].base != base}
    balance.reserves = {run: each for run, each in balance.reserves.items() if run[0].base != base}


def _add_name(balance: Balance, row: Row) -> None:
    balance.names[row.body["name"]] = row.body["dataset"]


def _add_reserve(balance: Balance, row: Row) -> None:
    key, body = key_of(row.body), row.body
    run = (key, body["training"], body["client"])
    if run in balance.reserves:
        raise ValueError("a run is reserved once")
    balance.costs.setdefault(key, Cost()).add_whole(key, body, row.number)
    balance.note_guarantee(key, body)
    balance.plans[key.dataset, body["training"], body["client"]] = body["plan"]
    balance.reserves[run] = Reservation(row.number, dict(body["releases"]), body)


def _add_entry(balance: Balance, row: Row) -> None:
    key, body = key_of(row.body), finite(row.body)
    training, client, channel = body["training"], body["client"], body["channel"]
    balance.seen.add((key.dataset, training, client, body["round"], body["attempt"], channel))
    at = balance.attended.setdefault((key.dataset, training, client), {})
    at[body["round"], body["attempt"]] = body["round"]
    balance.places[key.dataset, training, client, channel] = body["place"] + body["releases"]
    balance.plans[key.dataset, training, client] = body["plan"]
    usage = balance.entries.setdefault((key, training, client, channel), Entries())
    usage.cost.add(key, body)
    usage.releases += body["releases"]
    usage.rows += 1
    usage.open += 1
    balance.open[row.number] = usage
    if body["reserve"] is not None:
        balance.reserves[key, training, client].left[channel] -= body["releases"]
        return
    balance.add_cost(key, body)
    run = (key, training, client)
    balance.trainings[run] = balance.trainings.get(run, 0.0) + (body["mu_squared"] or 0.0)
    if run in balance.claims:
        balance.claims[run] = replace(balance.claims[run], time=float(body["time"]))


def _add_claim(balance: Balance, row: Row) -> None:
    key, body, cost = key_of(row.body), finite(row.body), Cost()
    if body["mu_squared"] is None:
        cost.add_whole(key, body)
    else:
        cost.add(key, body)
    run = (key, body["training"], body["client"])
    balance.left.discard(run)
    balance.claims[run] = BudgetClaim(
        cost, bool(body["covered"]), body["plan"], float(body["time"])
    )


def _add_waive(balance: Balance, row: Row) -> None:
    run = (key_of(row.body), row.body["training"], row.body["client"])
    balance.claims.pop(run, None)
    balance.left.add(run)


def _add_closed(balance: Balance, row: Row) -> None:
    """A client has stated, signed, what it answered: it answers no more orders of the training."""
    body = row.body
    balance.closed[body["dataset"], body["training"], body["client"]] = body["model"]


def _add_blocks(balance: Balance, row: Row) -> None:
    add_binding(balance.blocks, row.body)


def _add_confirm(balance: Balance, row: Row) -> None:
    for number in row.body["rows"]:
        usage = balance.open.pop(number, None)
        if usage is not None:
            usage.open -= 1


def _add_epoch(balance: Balance, row: Row) -> None:
    balance.epoch, balance.epoch_heads = row.hash[:SHORT], 0
    balance.marks.append(row.number)


def _add_head(balance: Balance, row: Row) -> None:
    balance.epoch_heads += 1
    balance.marks.append(row.number)
    balance.head_time = max(balance.head_time, row.body["at"])


def _add_lost(balance: Balance, row: Row) -> None:
    """What was spent in a part of the ledger that is lost, as its owner has declared."""
    key, body = key_of(row.body), finite(row.body)
    balance.add_cost(key, body)
    balance.lost.setdefault((body["head"], key), Cost()).add(key, body)
    if body["mu_squared"] == math.inf:
        balance.exhausted.add(key.base)
    shown = balance.entries.setdefault((key, "declared lost", 0, "all"), Entries())
    shown.cost.add(key, body)
    shown.rows += 1


def _add_declared(balance: Balance, row: Row) -> None:
    body, names = row.body, row.body["names"]
    if body["head"]:
        balance.declared[body["head"]] = body["epoch"]
    balance.named.update(names[at : at + SHORT] for at in range(0, len(names), SHORT))
    balance.head_time = max(balance.head_time, body["at"])
    if body["exhausts"]:
        balance.spared, balance.resets = set(), balance.resets + 1


def _add_approval(balance: Balance, row: Row) -> None:
    """An owner's decision on a training: it costs nothing, and is in the chain (approvals.py)."""
    del balance, row


def finite(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The body with its mu^2 as a number: JSON has no infinity, so rows have a word for it."""
    return {**body, "mu_squared": from_word(body["mu_squared"])}


_ADD_BY_KIND = {
    "budget": _add_budget,
    "name": _add_name,
    "reserve": _add_reserve,
    "claim": _add_claim,
    "waive": _add_waive,
    "entry": _add_entry,
    "confirm": _add_confirm,
    "epoch": _add_epoch,
    "head": _add_head,
    "lost": _add_lost,
    "declared": _add_declared,
    "approval": _add_approval,
    "blocks": _add_blocks,
    "closed": _add_closed,
}
