# SPDX-License-Identifier: Apache-2.0
"""The client's side of a Flower app: a ClientApp, or a mod on the user's own ``@app.train()``.

    app = dpfed.flower.client_app(problem, plan)          # problem(context), plan(context)

    @app.train(mods=[dpfed.flower.private(plan)])         # client level: whatever train does
    def train(message, context): ...

The client builds the plan by itself, from what its owner agreed to: clip and noise never come from
the server. A message of a server that runs another plan is refused. Whatever goes wrong here leaves
as a class name only; the whole sentence is in the local log.

Guarantee: a client counts its releases, always: in the ledger of its owner's or the app's name for
the data, or else in one of its own beside the training's state. However a server asks, a training
releases what its plan has priced, and an answer leaves after it is on the disk (answers.py).

| edge case                                           | what happens                            |
|-----------------------------------------------------|-----------------------------------------|
| the byte-identical order once more, crash or not    | the same bytes: nothing new is released |
| the same attempt with anything changed              | UnsoundPlan                             |
| an attempt that was entered, its answer is missing  | UnsoundPlan: it is spent                |
| more attempts than the plan's rounds and spare ones | BudgetSpent                             |
| another plan, or another name of the data, under    | UnsoundPlan                             |
| the name of a training                              |                                         |
| correlated noise whose state or count is lost       | UnsoundPlan: it never begins anew       |
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from dpfed.accounting.ledger.ledger import Ledger
from dpfed.core.errors import BudgetSpent, ClientRefused, DataError, UnsoundPlan, wire_name
from dpfed.core.log import log
from dpfed.core.sum_protocol import Answer
from dpfed.core.types import Problem, Trust
from dpfed.core.vector import one_thread
from dpfed.sums.secagg.identity import from_environment
from dpfed.training.account import Account, account
from dpfed.training.answer import ClientState, answer
from dpfed.training.flower import state as states
from dpfed.training.flower.answers import StoredAnswer, order_digest
from dpfed.training.flower.codec import CONTROL, Envelope, Order, read_order, write_answer
from dpfed.training.flower.trained import Train, Trained
from dpfed.training.plan import Plan

MakeProblem = Callable[[Context], Problem]
MakePlan = Callable[[Context], Plan]
MakeAccount = Callable[[Context], "Account | None"]
MakeOwn = Callable[[], Problem]

ENROL = "enrol"
_UNNAMED, _COUNT = "unnamed", "releases.sqlite"

_ROOM = 64  # things that a cache keeps, since simulated clients share a process
_CACHES: dict[str, dict[Any, Any]] = {}
_COUNTS: dict[tuple[Path, int], Ledger] = {}


def client_app(
    problem: MakeProblem, plan: Plan | MakePlan, ledger: str | MakeAccount | None = None
) -> ClientApp:
    """A ClientApp that answers a DPStrategy from this problem, under this plan.

    Args:
        problem: makes the node's data and model from its Context.
        plan: what the node's owner has agreed to, or a function that makes it from the Context.
        ledger: the name of the data, under which releases are entered before they are made, or a
            function that opens the account; $DPFED_DATASET, the owner's name, overrides a name.
            None, if the owner sets none, counts each training by itself, beside its state.
    """
    app = ClientApp()
    responder = _Responder(plan, problem, ledger)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(
            responder.work(message, context, responder.problem_of(context)), reply_to=message
        )

    return app


def private(
    plan: Plan | MakePlan, ledger: str | MakeAccount | None = None
) -> Callable[[Message, Context, Train], Message]:
    """A mod: the user's train function runs as it is, and only its private update leaves.

    The update (parameters before minus after) is one row: the guarantee is for each client. Metrics
    and all else that the function returns stay here; so do arrays that the server's strategy keeps
    out of a row (``DPStrategy(keep=...)``), which the function finds again in the next round.

    Args:
        plan: what the node's owner has agreed to, or a function that makes it from the Context.
        ledger: as for ``client_app``.
    """
    responder = _Responder(plan, None, ledger)

    def mod(message: Message, context: Context, call_next: Train) -> Message:
        trained = Trained(message, context, call_next)
        return Message(responder.work(message, context, lambda: trained), reply_to=message)

    return mod


@dataclass(eq=False)
class _Responder:
    """Answers messages; problems are built once per process and client."""

    plan: Plan | MakePlan
    problem: MakeProblem | None
    ledger: str | MakeAccount | None = None
    own: dict[str, dict[Any, Any]] = field(default_factory=dict)

    def plan_of(self, context: Context) -> Plan:
        """The plan of a run; it may depend on the run's configuration only."""
        if isinstance(self.plan, Plan):
            return self.plan
        run = (context.run_id, repr(sorted(context.run_config.items())))
        plan: Plan = self._once(self.plan, run, context)
        return plan

    def account_of(self, context: Context) -> Account | None:
        """Where this node's releases are entered, if its owner or the app names the data."""
        if self.ledger is None or isinstance(self.ledger, str):
            return account(self.ledger, environment=True)
        return self.ledger(context)

    def problem_of(self, context: Context) -> MakeOwn:
        def get() -> Problem:
            run = (context.run_id, repr(sorted(context.run_config.items())))
            key = (*run, client_index(context))
            problem: Problem = self._once(self.problem, key, context)
            return problem

        return get

    def _once(self, make: Any, key: tuple[Any, ...], context: Context) -> Any:
        """What ``make`` gives for a key, made once per process.

        Simulation pickles the app for each message: a named function's cache outlives it.
        """
        name = f"{getattr(make, '__module__', '')}.{getattr(make, '__qualname__', '<unnamed>')}"
        cache = (self.own if "<" in name else _CACHES).setdefault(name, {})
        if key not in cache:
            while len(cache) >= _ROOM:
                cache.pop(next(iter(cache)))
            cache[key] = make(context)
        return cache[key]

    def enrol(self, context: Context) -> RecordDict:
        """Who this node is, and which plan it has agreed to."""
        try:
            client, plan = client_index(context), self.plan_of(context)
            envelope = Envelope(0, 0, ENROL, client)
            record = write_answer(envelope, {})
            record.config_records[CONTROL]["fingerprint"] = plan.fingerprint()
        except Exception as error:
            log.exception("this node cannot enrol")
            return write_answer(Envelope(0, 0, ENROL, -1), ClientRefused(wire_name(error)))
        return record

    def work(self, message: Message, context: Context, problem: MakeOwn) -> RecordDict:
        """One stage of one round, or the enrolment before the first."""
        envelope = Envelope(-1, -1, "", -1)
        try:
            if message.content.config_records[CONTROL].get("stage") == ENROL:
                return self.enrol(context)
            order = read_order(message.content)
            at = order.broadcast
            envelope = Envelope(at.round, at.attempt, order.stage, client_index(context))
            digest = order_digest(message.content)
            with one_thread():
                reply = self._answer(order, digest, envelope.client, context, problem)
        except Exception as error:
            log.exception("this client could not answer")
            reply = ClientRefused(wire_name(error))
        return write_answer(envelope, reply)

    def _answer(
        self, order: Order, digest: str, client: int, context: Context, problem: MakeOwn
    ) -> Answer:
        """What was stored for this very order; or else a new answer, stored before it leaves."""
        plan = self.plan_of(context)
        _check_order(plan, order)
        folder = states.folder_for(order.broadcast.training, client)
        with states.locked(folder):
            named = self.account_of(context)
            states.bind(folder, plan.fingerprint(), named.dataset if named else "")
            book = named or Account(_count_in(folder), _UNNAMED, divided=False)
            at = f"{order.broadcast.round}-{order.broadcast.attempt}"
            stored = StoredAnswer(folder, at, plan.sum.stages.index(order.stage), digest)
            found = stored.read()
            if found is not None:
                return found
            task = _Task(plan=plan, order=order, client=client, folder=folder, book=book)
            reply = task.answer(problem)
            if not isinstance(reply, ClientRefused):
                stored.write(reply)
            return reply


def _count_in(folder: Path) -> Ledger:
    """The ledger of one training whose data has no name; open ones are kept, as they are slow."""
    key = folder / _COUNT, os.getpid()
    if key not in _COUNTS:
        while len(_COUNTS) >= _ROOM:
            _COUNTS.pop(next(iter(_COUNTS))).close()
        _COUNTS[key] = Ledger(key[0])
    return _COUNTS[key]


def _check_order(plan: Plan, order: Order) -> None:
    """Refuse what the plan does not have, whatever was released before."""
    if order.fingerprint != plan.fingerprint():
        raise UnsoundPlan(
            "the server runs another plan than this client has agreed to; give both sides the "
            "same run_config and the same versions"
        )
    at = order.broadcast
    if not 0 <= at.round < plan.rounds or at.attempt < 0:
        raise UnsoundPlan(
            f"the round must be from 0 to {plan.rounds - 1}, as the plan accounts for, and its "
            f"attempt at least 0, got {at.round} and {at.attempt}; start the server with "
            f"num_rounds up to {plan.rounds}"
        )
    if order.stage not in plan.sum.stages:
        raise UnsoundPlan(
            f"the stage must be one of {plan.sum.stages}, as the plan's sum has them, got another; "
            f"use the same version of dpfed on all machines"
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class _Task:
    """An order that nothing is stored for, and what this client answers it from."""

    plan: Plan
    order: Order
    client: int
    folder: Path
    book: Account

    def answer(self, problem: MakeOwn) -> Answer:
        """What the client keeps goes in, and is on its disk again before the answer leaves."""
        plan, order, folder = self.plan, self.order, self.folder
        client = ClientState(self.client, ledger=self.book)
        if plan.sum.hides_terms:
            signer = from_environment(self.client, len(plan.nominal))
            client = replace(client, signer=signer, secret=states.read_secret(folder))
        made: dict[str, int] = {}
        releases = order.stage == plan.sum.release_stage  # other stages need no data
        if releases:
            made = self._made()
            client = self._remember(replace(client, problem=problem()), made)
        reply, after = answer(plan, order.broadcast, order.stage, order.requests, client)
        if isinstance(reply, ClientRefused):
            return reply
        if after.secret != client.secret:
            states.write_secret(folder, after.secret)
        if releases:
            self._keep(after, made)
        return reply

    def _made(self) -> dict[str, int]:
        """In how many attempts each channel of correlated noise was used, by the own ledger.

        Entries that were not confirmed are not among them: nothing leaves before that.
        """
        plan, balance = self.plan, self.book.ledger.balance()
        key = balance.resolve(self.book.key(plan, self.client))
        run = (self.order.broadcast.training, self.client)
        entered = {seen[3:5] for seen in balance.seen if seen[:3] == (key.dataset, *run)}
        self._refuse_more(entered)
        if plan.update.trust is Trust.CENTRAL:  # there the noise is the server's
            return {}
        names = [name for name, mechanism in plan.channels.items() if not mechanism.independent]
        if names and self.order.since and not entered:
            raise UnsoundPlan(
                f"the count must have the attempt {self.order.since} that the server has a release "
                f"of, got none; bring back the state of training {run[0]!r}, or begin another one, "
                f"since correlated noise cannot begin anew"
            )
        usage = {name: balance.usage.get((key, *run, name)) for name in names}
        return {name: used.rows - used.open if used else 0 for name, used in usage.items()}

    def _refuse_more(self, entered: set[tuple[int, int]]) -> None:
        """Refuse a new attempt if the plan has no more of them, whatever it would cost."""
        at, most = self.order.broadcast, self.plan.attempts
        if len(entered - {(at.round, at.attempt)}) >= most:
            raise BudgetSpent(
                f"attempts of training {at.training!r} must be at most {most}, as the plan "
                f"accounts for, got one more; plan privacy.spare_attempts in the next one"
            )

    def _remember(self, client: ClientState, made: Mapping[str, int]) -> ClientState:
        """The client with the state that it kept after the last round whose total it is in.

        The algorithm's state goes back if a round was not committed, the mechanisms' never do.
        """
        params, since = self.order.broadcast.params, self.order.since
        fresh, noise = self.plan.client.init(params), self.plan.mechanism_states(params.numel())
        state = fresh if since is None else states.load_at(self.folder, since, fresh)
        kept = states.load_noise(self.folder, made, noise)
        return replace(client, state=state, mechanisms={**noise, **kept})

    def _keep(self, client: ClientState, made: Mapping[str, int]) -> None:
        at = self.order.broadcast
        used = {
            name: count + bool(self.plan.releases(name, at.round)) for name, count in made.items()
        }
        states.save_noise(self.folder, used, client.mechanisms)
        states.save_state(self.folder, at.round, client.state, at.attempt, self.order.since)


def client_index(context: Context) -> int:
    """Which client of the plan this node is: its partition-id, set by the node's owner."""
    value = context.node_config.get("partition-id")
    if not isinstance(value, int):
        raise DataError(
            f"partition-id must be a whole number, got {value!r}; start the node with "
            f"--node-config partition-id=N"
        )
    return value
