# SPDX-License-Identifier: Apache-2.0
"""The ledger: it enters what a release costs on the owner's disk before the release is made.

Guarantee: no noise is drawn for a release that is not on the disk (fsync), and no row is written
that would take the data set over its declared budget, even if a process is killed at any moment:

    one turn: no entry repeated, budget checked, rows appended, committed  ->  noise drawn
    -> sent -> confirmed by one more row.      A row without confirmation counts as spent.

A data set has one account. The owner names the data and declares one budget for it, for one unit,
adjacency and adversary; data that changes keeps its name and its budget. Whatever is released on it
is converted into the budget's terms before it is added (conversions.py). A training is bound to its
plan: every row has the plan's fingerprint. Gaussian releases: sum mu^2 <= B^2, which holds for
adaptive choices and early stopping, with B = mu_for(epsilon, delta). A run that is not Gaussian (a
draw of records or clients) is reserved as a whole before its first release, and so is every later
run on its data; such runs add up by basic composition, since no theorem covers privacy loss
distributions of runs that were chosen after earlier ones were seen. While a budget stands, no such
run is added to Gaussian releases. A reservation stays spent. balance.py adds the rows up.

| edge case                                         | what happens                                 |
|---------------------------------------------------|----------------------------------------------|
| a round, attempt and channel that was entered     | UnsoundPlan: a retry is a new attempt        |
| the budget does not suffice                       | BudgetSpent, nothing is written              |
| a training asks for more than its plan            | BudgetSpent, with or without a budget        |
| a client is asked too often, or too early         | BudgetSpent, UnsoundPlan: limits.py          |
| another training has enrolled, and not ended      | what it may still release counts, too        |
| no budget was declared for the data set           | recorded only                                |
| a release that cannot be converted into a budget  | UnsoundPlan, nothing is written              |
| a draw after Gaussian releases, under a budget    | UnsoundPlan, nothing is written              |
| another plan under the name of a training         | UnsoundPlan: give it another name            |
| a recipe states another budget than was declared  | RecipeError: only the command changes it     |
| a killed process                                  | what was committed counts, confirmed or not  |
| a file that was tampered with                     | DataError (journal.py)                       |
| data that has blocks (blocks.py)                  | an account for each; all of them, or none    |
| correlated noise whose state was lost             | its cost starts again, too; refused in a run |
|                                                   | that is reserved as a whole                  |
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from dpfed.accounting import gdp
from dpfed.accounting.guarantee import round_up
from dpfed.accounting.ledger.balance import (
    CLAIM_LIFETIME_S,
    Balance,
    Budget,
    Cost,
    DeclaredBudget,
    Reservation,
    converted,
)
from dpfed.accounting.ledger.blocks import (
    BlockBinding,
    refuse_other_blocks,
    refuse_unblocked,
    refuse_unproven,
)
from dpfed.accounting.ledger.conversions import LedgerKey, factor
from dpfed.accounting.ledger.journal import Journal, Row
from dpfed.accounting.ledger.limits import (
    check_left,
    refuse_beyond,
    refuse_repeats,
    refuse_restarted_noise,
)
from dpfed.accounting.ledger.request import Request, plan_cost, release_events, round_costs
from dpfed.accounting.ledger.verification import wrong_sums
from dpfed.core.environment import ledger_path
from dpfed.core.errors import BudgetSpent, DataError, DpfedError, RecipeError, UnsoundPlan

_Made = TypeVar("_Made")

# -------------------------------------------------------------------------------------- the ledger


class Forecast(NamedTuple):
    """The data's cost in a budget's terms before and after a training, claims included."""

    before: Cost
    after: Cost
    refused: DpfedError | None
    """Why the training could not enrol; None if it could."""


class Ledger:
    """Records what releases on data sets cost, and refuses what exceeds a declared budget.

    Threads may share it. Its file is open only while it is read or written (core/database.py).

    Args:
        path: the journal's file; None is DPFED_LEDGER, or the default place.
        create: whether there may be no file yet: the first entry makes it.
    """

    def __init__(self, path: Path | None = None, *, create: bool = True) -> None:
        self._journal = Journal(path or ledger_path(), create=create)
        self._balance, self._lock = Balance(), threading.RLock()

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self._journal.path

    def close(self) -> None:
        """Nothing: the file is open only while it is read or written."""

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

    def refusals(self, requests: Sequence[Request]) -> dict[int, DpfedError]:
        """Clients whose whole plan does not fit into what is left, and why; enters nothing.

        What a training has released before is part of its plan, and counts once.
        """
        found: dict[int, DpfedError] = {}
        with self._turn():
            for request in requests:
                try:
                    self._refuse_whole(request)
                except DpfedError as error:
                    found[request.client] = error
        return found

    def claim(self, request: Request) -> None:
        """A training enrols: refuse it as a whole, or set aside what its plan costs.

        For all others that amount counts as spent, until the training has released all of it, is
        waived, or has neither enrolled nor released for CLAIM_LIFETIME_S. All of this is one
        transaction: if two trainings enrol at once, both are admitted only if both fit.
        """
        with self._turn():
            self._claim(request)

    def _claim(self, request: Request) -> None:
        key = self._balance.resolve(request.key)
        left, kept = self._refuse_whole(request), self._balance.claims.get((key, *request.run))
        known = (
            kept and kept.plan == request.plan and time.time() - kept.time < CLAIM_LIFETIME_S / 2
        )
        if left is None or known or not self._balance.budget_of(key.dataset):
            return
        self._append(
            kind="claim",
            **key.row(),
            **plan_cost(request),
            training=request.training,
            client=request.client,
            lost=request.delta_reserved,
            plan=request.plan,
            covered=request.covered,
        )

    # -------------------------------------------------------------------- blocks: all or none

    def begin_together(self, requests: Sequence[Request]) -> tuple[int, ...]:
        """Enter one client's round in the account of each block, or in none of them."""
        with self._turn():  # an error takes back all that was appended
            return tuple(row for request in requests for row in self._enter(request))

    def claim_together(self, requests: Sequence[Request]) -> None:
        """A training enrols in the account of each block, or in none of them."""
        with self._turn():
            for request in requests:
                self._claim(request)

    def bind_blocks(self, dataset: str, asked: BlockBinding) -> BlockBinding:
        """Bind a data set to what its blocks are made by; what stands, if it is bound already.

        Args:
            dataset: the name of the data.
            asked: what the owner's policy says; ``begun`` counts if there were releases before.
        """
        with self._turn():
            name = self._balance.resolve(LedgerKey(dataset)).dataset
            known = self._balance.blocks.get(name)
            if known is None:
                used = name in self._balance.guarantees
                known = asked if used else asked._replace(begun="")
                self._append(kind="blocks", dataset=name, **known._asdict())
        refuse_other_blocks(known, asked, dataset)
        return known

    def waive(self, dataset: str, training: str) -> int:
        """A training has ended: what it claimed and did not release is free; how many claims."""
        with self._turn():
            name = self._balance.resolve(LedgerKey(dataset)).dataset
            runs = [
                run for run in self._balance.claims if (run[0].dataset, run[1]) == (name, training)
            ]
            for key, _, client in runs:
                self._append(kind="waive", **key.row(), training=training, client=client)
        return len(runs)

    def forecast(self, request: Request, target: LedgerKey, budget: Budget) -> Forecast:
        """The data's cost before and after a training, as an enrolment decides. Enters nothing.

        Args:
            request: the training; what it has released before counts once.
            target: what the budget is stated for.
            budget: it need not be the one that was declared.
        """
        with self._turn():
            key, target = self._balance.resolve(request.key), self._balance.resolve(target)
            more, refused = self._rest(request, key) or Cost(), None
            try:
                self._keep_within(key, request, more, DeclaredBudget(target, budget))
            except DpfedError as error:
                refused = error
            keeps, now = budget.keeps_person, time.time()
            before = self._balance.spent(target, keeps_person=keeps)
            before += self._balance.claimed(target, request.run, now, keeps_person=keeps)
            covered = request.covered and key not in self._balance.uncovered
            times = factor(key, target, covered=covered, keeps_person=keeps)
            return Forecast(before, before + converted(more, times, key, target), refused)

    def _refuse_whole(self, request: Request) -> Cost | None:
        """What a training would still cost, if the budget allows it; None if nothing."""
        refuse_unblocked(self._balance, request)
        key = self._balance.resolve(request.key)
        rest = self._rest(request, key)
        if rest is not None:
            self._keep_within(key, request, rest, self._balance.budget_of(key.dataset))
        return rest

    def _rest(self, request: Request, key: LedgerKey) -> Cost | None:
        """What a training would still cost; None if it has nothing to spend."""
        refuse_unproven(request)
        self._refuse_another_plan(key, request)
        run, rest = (key, *request.run), Cost()
        if not self._must_reserve(key, request):
            planned = float(plan_cost(request)["mu_squared"])
            left = planned - self._balance.trainings.get(run, 0.0)
            if left <= planned * gdp.CAUTION:
                return None
            reserved = {run: request.delta_reserved} if request.delta_reserved else {}
            return Cost(left, delta_reserved=reserved)
        if run in self._balance.reserves:
            return None
        rest.add_whole(key, _row_of(request))
        return rest

    def confirm(self, numbers: Iterable[int]) -> None:
        """Confirm that the releases of these rows were made."""
        with self._turn():
            if rows := sorted(numbers):
                self._append(kind="confirm", rows=rows)

    def _enter(self, request: Request) -> tuple[int, ...]:
        key = self._balance.resolve(request.key)
        parts = {name: part for name, part in request.parts.items() if part.releases}
        refuse_unblocked(self._balance, request)
        refuse_unproven(request)
        refuse_repeats(self._balance, key, request, parts)
        refuse_beyond(self._balance, key, request)
        self._refuse_another_plan(key, request)
        limit = self._balance.budget_of(key.dataset)
        where = {
            "kind": "entry",
            **key.row(),
            "training": request.training,
            "client": request.client,
            "round": request.round,
            "attempt": request.attempt,
            "lost": request.delta_reserved,
            "plan": request.plan,
            "covered": request.covered,
        }
        places = {name: self._place(key, request, name) for name in parts}
        costs = round_costs(request, places) if places else {}
        reserve = None
        if self._must_reserve(key, request):
            refuse_restarted_noise(self._balance, key, request)
            check_left(self._balance.reserves.get((key, *request.run)), request, parts)
            reserve = self._reserved(key, request, limit)
        else:
            self._refuse_left(key, request)
            self._afford(key, request, costs, limit)
        return tuple(
            self._append(
                **where,
                channel=name,
                releases=part.releases,
                place=places[name],
                reserve=reserve and reserve.number,
                **costs[name],
            ).number
            for name, part in parts.items()
        )

    def _refuse_left(self, key: LedgerKey, request: Request) -> None:
        """Refuse a training that has left: no head that others keep has what it may cost."""
        if (key, *request.run) in self._balance.left:
            raise UnsoundPlan(
                f"training {request.training!r} has left data set {key.dataset!r}, which keeps no "
                f"budget for it; let it enrol again"
            )

    def _refuse_another_plan(self, key: LedgerKey, request: Request) -> None:
        """Refuse a training whose plan is not the one that its earlier entries were made under."""
        if self._balance.plans.get((key.dataset, *request.run), request.plan) != request.plan:
            raise UnsoundPlan(
                f"another plan has releases under training {request.training!r} of data set "
                f"{key.dataset!r}; give this one another name"
            )

    def _place(self, key: LedgerKey, request: Request, channel: str) -> int:
        """How many earlier releases used the channel's noise."""
        if request.fresh and request.participation is None:
            return 0
        return self._balance.places.get((key.dataset, *request.run, channel), 0)

    def _must_reserve(self, key: LedgerKey, request: Request) -> bool:
        """Whether the training, or an earlier one on the data set, is not Gaussian."""
        known = self._balance.guarantees.get(key.dataset, ())
        return request.gaussian is None or any(self._balance.costs[each].runs for each in known)

    def _reserved(
        self, key: LedgerKey, request: Request, limit: DeclaredBudget | None
    ) -> Reservation:
        """The run's reservation, made now if there is none."""
        run = (key, *request.run)
        if run in self._balance.reserves:
            self._keep_within(key, request, Cost(), limit)  # the budget may be lower now
            return self._balance.reserves[run]
        body, more = _row_of(request), Cost()
        more.add_whole(key, body)
        self._keep_within(key, request, more, limit)
        planned = {name: part.planned for name, part in request.parts.items()}
        each = release_events(request)
        self._append(kind="reserve", **key.row(), **body, releases=planned, each=each)
        return self._balance.reserves[run]

    def _afford(
        self,
        key: LedgerKey,
        request: Request,
        costs: Mapping[str, Any],
        limit: DeclaredBudget | None,
    ) -> None:
        """Refuse Gaussian releases that exceed the run's plan or the budget."""
        run = (key, *request.run)
        more = math.fsum(float(cost["mu_squared"]) for cost in costs.values())
        before = self._balance.trainings.get(run, 0.0)
        planned = float(plan_cost(request)["mu_squared"])
        if before + more > planned * (1 + gdp.CAUTION):
            raise BudgetSpent(
                f"training {request.training!r} has spent mu^2 = {before:.6g}, and round "
                f"{request.round} would take it to {before + more:.6g}, over the {planned:.6g} "
                f"of its plan; start another training"
            )
        delta_reserved = {run: request.delta_reserved} if request.delta_reserved else {}
        self._keep_within(key, request, Cost(more, delta_reserved=delta_reserved), limit)

    def _keep_within(
        self, key: LedgerKey, request: Request, more: Cost, limit: DeclaredBudget | None
    ) -> None:
        """Refuse a cost that exceeds the budget, in the budget's own terms.

        Args:
            key: the data, and the guarantee that the costs are stated in.
            request: what is about to be released.
            more: its cost.
            limit: the data set's budget, if it has one.
        """
        if limit is None:
            return
        target, budget = limit
        keeps = budget.keeps_person
        before = self._balance.spent(target, keeps_person=keeps)
        if more != Cost():  # else it is entered already, whoever has enrolled since
            now = time.time()
            before += self._balance.claimed(target, request.run, now, keeps_person=keeps)
        covered = request.covered and key not in self._balance.uncovered
        times = factor(key, target, covered=covered, keeps_person=keeps)
        after = before + converted(more, times, key, target)
        if after.unbounded:
            raise UnsoundPlan(
                f"the budget of data set {target} bounds no releases for {after.unbounded}; "
                f"train for what the budget is stated for, or let the owner declare another one"
            )
        if after.mixed:
            raise UnsoundPlan(
                f"data set {target} has Gaussian releases, whose costs add up by mu^2, and "
                f"training {request.training!r} draws units: no rule is proven that adds both "
                f"where one was chosen after the other was seen; train without a draw, or "
                f"give trainings with draws data of their own"
            )
        if not after.within(budget, target.adjacency):
            raise self._overspent(request, target, before, after, budget)

    def _overspent(
        self, request: Request, target: LedgerKey, before: Cost, after: Cost, budget: Budget
    ) -> BudgetSpent:
        owner = target if target.dataset in self._balance.budgets else _undivided(target)
        one = any(part.releases for part in request.parts.values())
        what = f"round {request.round} of" if one else "the whole training"
        spent, needed = (
            round_up(cost.epsilon(budget.delta, target.adjacency)) for cost in (before, after)
        )
        kept = self._balance.claimed(target, request.run, time.time()) != Cost()
        others = " (with what enrolled trainings may still spend)" if kept else ""
        stop = f"leave block {request.block!r} out" if request.block else "stop here"
        return BudgetSpent(
            f"data set {target} has spent epsilon {spent} of its budget {budget}{others}, and "
            f"{what} {request.training!r} needs {needed}; {stop}, or raise it: "
            f"{owner.command(needed, f'{budget.delta:g}')}"
        )

    # --------------------------------------------------------------------- budgets and names

    def declare(self, key: LedgerKey, budget: Budget, *, anew: bool = False) -> None:
        """Set the data set's budget, or change it: the owner's own command, kept as a row.

        Args:
            key: the data, and what the budget is stated for.
            budget: what it may cost.
            anew: count nothing that was released before; only after a loss that exhausted it.
        """
        gdp.check_epsilon(budget.epsilon)
        gdp.check_delta(budget.delta)
        with self._turn():
            key = self._balance.resolve(key)
            if anew and not self._balance.is_exhausted(key.base):
                raise DataError(
                    f"the account of {key.base!r} must be exhausted by a declared loss before its "
                    f"budget can begin anew, and is not; leave --anew out"
                )
            body = {**key.row(), **budget._asdict(), "by": "command"}
            self._append(kind="budget", **body, **({"anew": True} if anew else {}))

    def declare_policy(self, key: LedgerKey, budget: Budget) -> Budget:
        """Let a policy's budget stand, or the owner's last command where that allows less.

        Args:
            key: the data, and what the budget is stated for.
            budget: the policy's.

        Returns:
            what stands now.
        """
        gdp.check_epsilon(budget.epsilon)
        gdp.check_delta(budget.delta)
        with self._turn():
            stands = self._balance.allowed(key, budget)
            if self._balance.budget_of(stands.key.dataset) != stands:
                body = {**stands.key.row(), **stands.budget._asdict(), "by": "policy"}
                self._append(kind="budget", **body)
        return stands.budget

    def agree(self, key: LedgerKey, budget: Budget) -> None:
        """The budget that a recipe states: it declares the first one, and never changes one."""
        gdp.check_epsilon(budget.epsilon)
        gdp.check_delta(budget.delta)
        with self._turn():
            key = self._balance.resolve(key)
            declared = self._balance.budget_of(key.dataset)
            if declared is None:
                self._append(kind="budget", **key.row(), **budget._asdict(), by="recipe")
                return
        if declared.budget[:2] != budget[:2]:
            raise RecipeError(
                f"the budget of data set {key.dataset!r} is {declared.budget} for {declared.key}, "
                f"and the recipe states {budget}; change the recipe, or the budget: "
                f"{_undivided(key).command(f'{budget.epsilon:g}', f'{budget.delta:g}')}"
            )

    def rename(self, old: str, new: str) -> None:
        """Let a new name stand for the same data: both share one budget from now on."""
        with self._turn():
            datasets = (*self._balance.guarantees, *self._balance.budgets)
            names = {name.partition("/")[0] for name in datasets}
            old = self._balance.names.get(old, old)
            if old not in names:
                raise DataError(f"the ledger has no data set {old!r}; use one of {sorted(names)}")
            if new in names or new in self._balance.names or "/" in new or not new:
                raise DataError(
                    f"a new name must be unused, not empty and without '/', got {new!r}; choose "
                    f"another one"
                )
            self._append(kind="name", name=new, dataset=old)

    def change(self, work: Callable[[Balance, Callable[..., Row]], _Made]) -> _Made:
        """Let ``work`` read the balance and append rows, in one turn: all of them or none.

        Args:
            work: gets the balance, and a function that appends a row by its keywords.
        """
        with self._turn():
            return work(self._balance, self._append)

    def budget_of(self, dataset: str) -> DeclaredBudget | None:
        """The budget that stands for a data set, with what it is stated for; None without one."""
        self._look()
        return self._balance.budget_of(self._balance.resolve(LedgerKey(dataset)).dataset)

    # ------------------------------------------------------------------------------ reading

    def spent(self, key: LedgerKey) -> Cost:
        """The cost of all entries on the data, confirmed or not, in the terms of a guarantee."""
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
                    self._balance.add_row(row)
            except BaseException:
                self._forget()
                raise

    @contextmanager
    def _turn(self) -> Iterator[None]:
        with self._lock:
            try:
                with self._journal.turn() as news:
                    for row in news:
                        self._balance.add_row(row)
                    yield
            except BaseException:
                self._forget()
                raise

    def _forget(self) -> None:
        self._journal.forget()
        self._balance = Balance()

    def _append(self, **body: Any) -> Row:
        row = self._journal.append(**body)
        self._balance.add_row(row)
        return row


def _undivided(key: LedgerKey) -> LedgerKey:
    """The key with the name that clients divide: the name that the owner's command takes."""
    return key._replace(dataset=key.base)


def _row_of(request: Request) -> dict[str, Any]:
    """What a row says of a whole run."""
    return {
        **plan_cost(request),
        "training": request.training,
        "client": request.client,
        "lost": request.delta_reserved,
        "plan": request.plan,
        "covered": request.covered,
    }
