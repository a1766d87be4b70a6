# SPDX-License-Identifier: Apache-2.0
"""The ledger: what the releases of a data set have cost, on its owner's disk, before they are made.

Guarantee: no noise is drawn for a release that is not on the disk (fsync), and no row is written
that would take the data set over its declared budget, even if a process is killed at any moment:

    one turn: no entry repeated, budget checked, rows appended, committed  ->  noise drawn
    -> sent -> confirmed by one more row.      A row without confirmation counts as spent.

The key is a name that the owner declares, with (unit, adjacency, adversary): data that changes
keeps its name and its budget. Gaussian releases: sum mu^2 <= B^2, B = mu_for(epsilon, delta), which
holds for adaptive choices and early stopping. Where any event of the data set is not Gaussian, a
run's whole plan is reserved before its first release, and its cost is computed together with all
other costs; the reservation stays spent. balance.py adds the rows up.

| edge case                                         | what happens                                 |
|---------------------------------------------------|----------------------------------------------|
| a round, attempt and channel that was entered     | UnsoundPlan: a retry is a new attempt        |
| the budget does not suffice                       | BudgetSpent, nothing is written              |
| a training asks for more than its plan            | BudgetSpent, with or without a budget        |
| no budget was declared for the data set           | recorded only                                |
| a budget for another unit, adjacency or adversary | UnsoundPlan: declare one for this one, too   |
| a recipe states another budget than was declared  | RecipeError: only the command changes it     |
| a killed process                                  | what was committed counts, confirmed or not  |
| a file that was tampered with                     | DataError (journal.py)                       |
| correlated noise whose state began anew           | its cost begins anew, too                    |
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfed.accounting import gdp
from dpfed.accounting.guarantee import Spent, event_of, is_gaussian, mechanism_mu_squared, round_up
from dpfed.accounting.ledger import events
from dpfed.accounting.ledger.balance import (
    OUTSIDERS,
    SERVER,
    Balance,
    Budget,
    Cost,
    LedgerKey,
    Reserve,
    finite,
    wrong_sums,
)
from dpfed.accounting.ledger.journal import Journal, Row
from dpfed.core.environment import ledger_path
from dpfed.core.errors import BudgetSpent, DataError, DpfedError, RecipeError, UnsoundPlan
from dpfed.core.files import jsonable
from dpfed.core.sampling import EVERYONE, Sampling
from dpfed.core.types import Mechanism


@dataclass(frozen=True)
class Part:
    """One channel's releases in the next round, and in the whole run (``planned``)."""

    mechanism: Mechanism
    releases: int
    planned: int
    participation: Sampling = EVERYONE


@dataclass(frozen=True)
class Request:
    """All that one client is about to release in a round: entered as a whole, or not at all."""

    key: LedgerKey
    training: str
    client: int
    round: int
    attempt: int
    parts: Mapping[str, Part]
    fresh: bool = True
    """Whether correlated noise begins anew with this round; its cost then does so, too."""
    delta_reserved: float = 0.0
    """The part of delta that the run's secure sum reserves."""

    @property
    def run(self) -> tuple[str, int]:
        """The training, and the client."""
        return self.training, self.client


# -------------------------------------------------------------------------------- what a part costs


def cost_of(part: Part, releases: int, place: int = 0) -> dict[str, Any]:
    """The cost of some releases: "mu_squared" (None if not Gaussian) and "event", as in a row.

    Args:
        part: the channel: its mechanism, and its draw of clients.
        releases: how many releases, at least 0.
        place: how many releases the same correlated noise has made before, at least 0.
    """
    mechanism, adjacency = part.mechanism, part.mechanism.adjacency
    if not is_gaussian(mechanism, part.participation):
        spent = Spent(mechanism, releases, {}, part.participation)
        event = events.to_json(event_of(spent, releases, mechanism.shares))
        return {"mu_squared": None, "event": event}
    if mechanism.independent:
        multiplier = mechanism.noise_multiplier()  # type: ignore[attr-defined]  # is_gaussian saw it
        cost = mechanism_mu_squared(mechanism, releases)
        return {"mu_squared": cost, "event": events.gaussian_event(multiplier, releases)}
    ahead = mechanism_mu_squared(mechanism, place + releases)
    cost = (
        math.inf if math.isinf(ahead) else max(0.0, ahead - mechanism_mu_squared(mechanism, place))
    )
    return {"mu_squared": jsonable(cost), "event": events.worth_of(cost, adjacency)}


def _plan_cost(request: Request) -> dict[str, Any]:
    """The cost of the whole run."""
    costs = [cost_of(part, part.planned) for part in request.parts.values() if part.planned]
    known = [cost["mu_squared"] for cost in costs]
    total = None if None in known else math.fsum(map(float, known))
    event = events.composed([cost["event"] for cost in costs])
    return {"mu_squared": jsonable(total), "event": event}


# -------------------------------------------------------------------------------------- the ledger


class Ledger:
    """See the module's docstring. One object per process and file; threads may share it."""

    def __init__(self, path: Path | None = None, *, create: bool = True) -> None:
        self._journal = Journal(path or ledger_path(), create=create)
        self._balance, self._lock = Balance(), threading.RLock()

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self._journal.path

    def close(self) -> None:
        """Close the file."""
        self._journal.close()

    # ------------------------------------------------------------------------------- entries

    def begin(self, request: Request) -> tuple[int, ...]:
        """Enter a round of one client, or refuse it. On the disk when it returns."""
        (found,) = self.begin_all([request])
        if isinstance(found, DpfedError):
            raise found
        return found

    def begin_all(self, requests: Sequence[Request]) -> list[tuple[int, ...] | DpfedError]:
        """Enter several clients' rounds in one commit; each is entered as a whole, or refused."""
        found: list[tuple[int, ...] | DpfedError] = []
        with self._turn():
            for request in requests:
                try:
                    found.append(self._enter(request))
                except DpfedError as error:  # nothing of this one was appended
                    found.append(error)
        return found

    def confirm(self, numbers: Iterable[int]) -> None:
        """The releases of these rows were made."""
        with self._turn():
            if rows := sorted(numbers):
                self._append(kind="confirm", rows=rows)

    def _enter(self, request: Request) -> tuple[int, ...]:
        key = self._balance.resolve(request.key)
        parts = {name: part for name, part in request.parts.items() if part.releases}
        self._refuse_repeats(key, request, parts)
        limits = self._balance.limits(key)
        where = {
            "kind": "book", **_plain(key), "training": request.training, "client": request.client,
            "round": request.round, "attempt": request.attempt, "lost": request.delta_reserved,
        }  # fmt: skip
        places = {name: self._place(key, request, name) for name in parts}
        costs = {name: cost_of(part, part.releases, places[name]) for name, part in parts.items()}
        reserve = None
        if self._must_reserve(key, request):
            _check_left(self._balance.reserves.get((key, *request.run)), request, parts)
            reserve = self._reserved(key, request, limits)
        else:
            self._afford(key, request, costs, limits)
        return tuple(
            self._append(
                **where, channel=name, releases=part.releases, place=places[name],
                reserve=reserve and reserve.number, **costs[name],
            ).number
            for name, part in parts.items()
        )  # fmt: skip

    def _refuse_repeats(self, key: LedgerKey, request: Request, parts: Iterable[str]) -> None:
        for channel in parts:
            at = request.round, request.attempt
            if (key.dataset, *request.run, *at, channel) in self._balance.seen:
                raise UnsoundPlan(
                    f"round {at[0]}, attempt {at[1]} of training {request.training!r} is in the "
                    f"ledger already, on {channel!r}; retry it as a new attempt, at full cost"
                )

    def _place(self, key: LedgerKey, request: Request, channel: str) -> int:
        """How many releases the noise of a channel has made before."""
        if request.fresh:
            return 0
        return self._balance.places.get((key.dataset, *request.run, channel), 0)

    def _must_reserve(self, key: LedgerKey, request: Request) -> bool:
        """Whether the request, or an earlier cost of the data set, is not Gaussian."""
        parts = request.parts.values()
        if not all(is_gaussian(part.mechanism, part.participation) for part in parts):
            return True
        keys = (key, key._replace(adversary=SERVER), key._replace(adversary=OUTSIDERS))
        return any(
            +self._balance.costs[each].events for each in keys if each in self._balance.costs
        )

    def _reserved(
        self, key: LedgerKey, request: Request, limits: Mapping[LedgerKey, Budget]
    ) -> Reserve:
        """The run's reservation, made now if there is none."""
        run = (key, *request.run)
        if run not in self._balance.reserves:
            cost = _plan_cost(request)
            body = {**cost, "training": request.training, "client": request.client,
                    "lost": request.delta_reserved}  # fmt: skip
            more = Cost()
            more.add(finite(body))
            self._keep_within(request, more, limits)
            planned = {name: part.planned for name, part in request.parts.items()}
            self._append(kind="reserve", **_plain(key), **body, releases=planned)
        else:
            self._keep_within(request, Cost(), limits)  # the budget may be lower now
        return self._balance.reserves[run]

    def _afford(
        self,
        key: LedgerKey,
        request: Request,
        costs: Mapping[str, Any],
        limits: Mapping[LedgerKey, Budget],
    ) -> None:
        """Refuse Gaussian releases that exceed the run's plan or any budget."""
        run = (key, *request.run)
        more = math.fsum(float(cost["mu_squared"]) for cost in costs.values())
        before = self._balance.trainings.get(run, 0.0)
        planned = float(_plan_cost(request)["mu_squared"])
        if before + more > planned * (1 + gdp.CAUTION):
            raise BudgetSpent(
                f"training {request.training!r} has spent mu^2 = {before:.6g}, and round "
                f"{request.round} would take it to {before + more:.6g}, over the {planned:.6g} "
                f"of its plan; start another training"
            )
        delta_reserved = {request.run: request.delta_reserved} if request.delta_reserved else {}
        self._keep_within(request, Cost(more, delta_reserved=delta_reserved), limits)

    def _keep_within(
        self, request: Request, more: Cost, limits: Mapping[LedgerKey, Budget]
    ) -> None:
        for key, budget in limits.items():
            before = self._balance.spent(key)
            if not (before + more).within(budget, key.adjacency):
                base = key._replace(dataset=key.base)
                owner = key if key in self._balance.budgets else base
                spent, needed = (
                    round_up(cost.epsilon(budget.delta, key.adjacency))
                    for cost in (before, before + more)
                )
                raise BudgetSpent(
                    f"data set {key} has spent epsilon {spent} of its budget {budget}, and round "
                    f"{request.round} of {request.training!r} needs {needed}; stop here, or raise "
                    f"it: {owner.command(needed, f'{budget.delta:g}')}"
                )

    # --------------------------------------------------------------------- budgets and names

    def declare(self, key: LedgerKey, budget: Budget) -> None:
        """Set a budget, or change it: the owner's explicit command, kept as a row."""
        gdp.check_epsilon(budget.epsilon)
        gdp.check_delta(budget.delta)
        with self._turn():
            key = self._balance.resolve(key)
            self._append(kind="budget", **_plain(key), **budget._asdict(), by="command")

    def agree(self, key: LedgerKey, budget: Budget) -> None:
        """The budget that a recipe states: it declares the first one, and never changes one."""
        gdp.check_epsilon(budget.epsilon)
        gdp.check_delta(budget.delta)
        known = self.budget(key)
        if known is None:
            with self._turn():
                key = self._balance.resolve(key)
                if (known := self._balance.budgets.get(key)) is None:
                    self._append(kind="budget", **_plain(key), **budget._asdict(), by="recipe")
        if known is not None and known != budget:
            base = key._replace(dataset=key.base)
            raise RecipeError(
                f"data set {key} has the budget {known}, and the recipe states {budget}; change "
                f"the recipe, or the budget: "
                f"{base.command(f'{budget.epsilon:g}', f'{budget.delta:g}')}"
            )

    def rename(self, old: str, new: str) -> None:
        """Let a new name stand for the same data: both share one budget from now on."""
        with self._turn():
            names = {each.base for each in (*self._balance.costs, *self._balance.budgets)}
            old = self._balance.names.get(old, old)
            if old not in names:
                raise DataError(f"the ledger has no data set {old!r}; use one of {sorted(names)}")
            if new in names or new in self._balance.names or "/" in new or not new:
                raise DataError(
                    f"a new name must be unused, not empty and without '/', got {new!r}; choose "
                    f"another one"
                )
            self._append(kind="name", name=new, dataset=old)

    def budget(self, key: LedgerKey) -> Budget | None:
        """The budget that was declared for a key, if there is one."""
        self._look()
        return self._balance.budget(self._balance.resolve(key))

    # ------------------------------------------------------------------------------ reading

    def spent(self, key: LedgerKey) -> Cost:
        """The cost of all entries under a key, confirmed or not."""
        self._look()
        return self._balance.spent(self._balance.resolve(key))

    def balance(self) -> Balance:
        """All rows added up."""
        self._look()
        return self._balance

    def rows(self) -> list[Row]:
        """All rows as they were written; a file that was tampered with is refused."""
        found, wrong = self._journal.verify()
        self._balance = Balance()
        if wrong:
            raise DataError(wrong[0])
        return found

    def verify(self) -> list[str]:
        """What is wrong, in sentences: chain, head, costs and sums. Empty if nothing is."""
        found, wrong = self._journal.verify()
        self._balance = Balance()
        if not wrong:
            wrong = list(wrong_sums(found))
        return wrong

    def export(self) -> dict[str, Any]:
        """All rows as JSON objects; events.from_json reads their events back."""
        rows = [{"number": row.number, "hash": row.hash, **row.body} for row in self.rows()]
        return {"format": "dpfed ledger", "version": 1, "rows": rows}

    # ------------------------------------------------------------------------------- helpers

    def _look(self) -> None:
        with self._lock:
            try:
                for row in self._journal.news():
                    self._balance.take(row)
            except BaseException:
                self._forget()
                raise

    @contextmanager
    def _turn(self) -> Iterator[None]:
        with self._lock:
            try:
                with self._journal.turn() as news:
                    for row in news:
                        self._balance.take(row)
                    yield
            except BaseException:
                self._forget()
                raise

    def _forget(self) -> None:
        self._journal.forget()
        self._balance = Balance()

    def _append(self, **body: Any) -> Row:
        row = self._journal.append(**body)
        self._balance.take(row)
        return row


def _check_left(reserve: Reserve | None, request: Request, parts: Mapping[str, Part]) -> None:
    for name, part in parts.items():
        left = reserve.left.get(name, 0) if reserve else part.planned
        if part.releases > left:
            raise BudgetSpent(
                f"training {request.training!r} has {left} releases on {name!r} left of what was "
                f"reserved, and round {request.round} needs {part.releases}; start another training"
            )


def _plain(key: LedgerKey) -> dict[str, str]:
    return {name: str(value) for name, value in key._asdict().items()}
