# SPDX-License-Identifier: Apache-2.0
"""The client's side of a Flower app: a ClientApp, or a mod on the user's own ``@app.train()``.

    app = dpfed.flower.client_app(problem, plan)          # problem(context), plan(context)

    @app.train(mods=[dpfed.flower.private(plan)])         # client level: whatever train does
    def train(message, context): ...

The client builds the plan by itself, from what its owner agreed to: clip and noise never come from
the server. A message of a server that runs another plan is refused. Whatever goes wrong here leaves
as a class name only; the whole sentence is in the local log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from dpfed.core.errors import ClientRefused, DataError, UnsoundPlan, wire_name
from dpfed.core.log import log
from dpfed.core.rows import Dense
from dpfed.core.sum_protocol import Answer
from dpfed.core.types import Problem, Rows, State, Unit, Vector
from dpfed.core.vector import one_thread
from dpfed.sums.secagg.identity import from_environment
from dpfed.training.account import Account, account
from dpfed.training.answer import ClientState, answer
from dpfed.training.flower import state as states
from dpfed.training.flower.codec import CONTROL, Envelope, Order, read_order, write_answer
from dpfed.training.plan import Plan

MakeProblem = Callable[[Context], Problem]
MakePlan = Callable[[Context], Plan]
MakeAccount = Callable[[Context], "Account | None"]
Train = Callable[[Message, Context], Message]

ENROL = "enrol"
_MECHANISMS = "mechanisms"

_ROOM = 64  # things that a cache keeps, since simulated clients share a process
_CACHES: dict[str, dict[Any, Any]] = {}


def client_app(
    problem: MakeProblem, plan: Plan | MakePlan, ledger: str | MakeAccount | None = None
) -> ClientApp:
    """A ClientApp that answers a DPStrategy from this problem, under this plan.

    Args:
        problem: makes the node's data and model from its Context.
        plan: what the node's owner has agreed to, or a function that makes it from the Context.
        ledger: the name of the data, under which releases are entered before they are made, or a
            function that opens the account; $DPFED_DATASET, the owner's name, overrides a name.
            None keeps no ledger unless the owner sets that variable.
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
    and all else that the function returns stay here.

    Args:
        plan: what the node's owner has agreed to, or a function that makes it from the Context.
        ledger: as for ``client_app``.
    """
    responder = _Responder(plan, None, ledger)

    def mod(message: Message, context: Context, call_next: Train) -> Message:
        trained = _Trained(message, context, call_next)
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

    def problem_of(self, context: Context) -> Callable[[], Problem]:
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

    def work(
        self, message: Message, context: Context, problem: Callable[[], Problem]
    ) -> RecordDict:
        """One stage of one round, or the enrolment before the first."""
        envelope = Envelope(-1, -1, "", -1)
        try:
            if message.content.config_records[CONTROL].get("stage") == ENROL:
                return self.enrol(context)
            order = read_order(message.content)
            at = order.broadcast
            envelope = Envelope(at.round, at.attempt, order.stage, client_index(context))
            with one_thread():
                reply = self._answer(order, envelope.client, context, problem)
        except Exception as error:
            log.exception("this client could not answer")
            reply = ClientRefused(wire_name(error))
        return write_answer(envelope, reply)

    def _answer(
        self, order: Order, client: int, context: Context, problem: Callable[[], Problem]
    ) -> Answer:
        plan = self.plan_of(context)
        if order.fingerprint != plan.fingerprint():
            raise UnsoundPlan(
                "the server runs another plan than this client has agreed to; give both sides the "
                "same run_config and the same versions"
            )
        if not 0 <= order.broadcast.round < plan.rounds:
            raise UnsoundPlan(
                f"the round must be from 0 to {plan.rounds - 1}, as the plan accounts for, got "
                f"{order.broadcast.round}; start the server with num_rounds up to {plan.rounds}"
            )
        folder = states.folder_for(order.broadcast.training, client)
        with states.locked(folder):
            state = ClientState(client, ledger=self.account_of(context))
            return self._answer_in(folder, plan, order, state, problem)

    def _answer_in(
        self,
        folder: Path,
        plan: Plan,
        order: Order,
        client: ClientState,
        problem: Callable[[], Problem],
    ) -> Answer:
        """What the client keeps goes in, and is on its disk again before the answer leaves."""
        if plan.sum.hides_terms:
            signer = from_environment(client.client, len(plan.nominal))
            client = replace(client, signer=signer, secret=states.read_secret(folder))
        if order.stage == plan.sum.release_stage:  # other stages need no data
            client = _remember(plan, order, replace(client, problem=problem()), folder)
        reply, after = answer(plan, order.broadcast, order.stage, order.requests, client)
        if not isinstance(reply, ClientRefused):
            if after.secret != client.secret:
                states.write_secret(folder, after.secret)
            if order.stage == plan.sum.release_stage:
                states.save_state(folder / _MECHANISMS, 0, dict(after.mechanisms))
                at = order.broadcast.round, order.broadcast.attempt
                states.save_state(folder, at[0], after.state, at[1], order.since)
        return reply


def _remember(plan: Plan, order: Order, client: ClientState, folder: Path) -> ClientState:
    """The client with the state that it kept after the last round whose total it is in.

    The algorithm's state goes back if a round was not committed. The mechanisms' states never do:
    two releases from one state of correlated noise would cost more than is accounted for.
    """
    params = order.broadcast.params
    fresh = plan.client.init(params)
    state = fresh if order.since is None else states.load_at(folder, order.since, fresh)
    mechanisms: dict[str, State] = {}
    if order.broadcast.round > 0:  # in round 0 all noise is new, which is always enough
        new = plan.mechanism_states(params.numel())
        kept = states.load_before(folder / _MECHANISMS, 1, new)
        mechanisms = {} if kept is new else kept  # none: the ledger counts new noise from its start
    return replace(client, state=state, mechanisms=mechanisms)


def client_index(context: Context) -> int:
    """Which client of the plan this node is: its partition-id, set by the node's owner."""
    value = context.node_config.get("partition-id")
    if not isinstance(value, int):
        raise DataError(
            f"partition-id must be a whole number, got {value!r}; start the node with "
            f"--node-config partition-id=N"
        )
    return value


@dataclass(frozen=True, eq=False)
class _Trained:
    """A problem whose one row is what the user's train function did to the parameters."""

    message: Message
    context: Context
    train: Train

    @property
    def dimension(self) -> int:
        return read_order(self.message.content).broadcast.params.numel()

    def rows(self, params: Vector, unit: Unit) -> Rows:
        if unit is not Unit.CLIENT:
            raise UnsoundPlan(
                f"privacy.unit must be client for a train function, which is one row, got {unit}; "
                f"set it in the plan"
            )
        names = [str(n) for n in self.message.content.config_records[CONTROL]["names"]]  # type: ignore[union-attr]
        trained = self.train(self.message, self.context)
        return Dense((params - _flat(trained, names))[None])

    def gradient(self, params: Vector) -> Vector:
        del params
        raise UnsoundPlan("a train function has no gradient; use client 'gradient' with it")

    def metric_rows(self, params: Vector, unit: Unit, loss_bound: float) -> Rows:
        del params, unit, loss_bound
        raise UnsoundPlan("a train function has no metrics to release; turn evaluation off")


def _flat(reply: Message, names: list[str]) -> Vector:
    import torch

    records = list(reply.content.array_records.values())
    if len(records) != 1 or any(name not in records[0] for name in names):
        found = [list(record) for record in records]
        raise DataError(
            f"the train function must return one ArrayRecord with {names}, got {found}; return the "
            f"model's parameters under the names that came in"
        )
    return torch.cat([torch.from_numpy(records[0][n].numpy().copy()).reshape(-1) for n in names])
