# SPDX-License-Identifier: Apache-2.0
"""How a client handles a message: from its bytes to a reply that may leave.

A ``Node`` says who answers, and from what; nothing of it comes from the message. A Flower app's own
process is one (client.py), and so is the process of a data owner's, behind a socket (dpfed.silo).

Guarantee: a client counts its releases, always: in the ledger of its owner's or the app's name for
the data, or else in one of its own beside the training's state. Whatever a server asks, a training
releases what its plan accounts for, and a reply leaves after it is on the disk (stored_replies.py).
Whatever goes wrong here leaves as a class name only; the whole sentence is in the local log.

| edge case                                           | what happens                            |
|-----------------------------------------------------|-----------------------------------------|
| the byte-identical order once more, crash or not    | the same bytes: nothing new is released |
| the same attempt with anything changed              | UnsoundPlan; by a secure sum Untrusted  |
| an attempt that was entered, its reply is missing   | UnsoundPlan: it is spent                |
| more attempts than the plan's rounds and spare ones | BudgetSpent                             |
| a plan that the budget cannot pay for as a whole,   | BudgetSpent, at enrolment               |
| with what other enrolled trainings may still spend  |                                         |
| another plan, or another name of the data, under    | UnsoundPlan                             |
| the name of a training                              |                                         |
| correlated noise whose state or count is lost       | UnsoundPlan: it never begins anew       |
| any order after a statement that closed the        | UnsoundPlan                             |
| training                                            |                                         |
| a second time in one round, under any node id       | UnsoundPlan: the count is the device's  |
| too early after the last time, an older round       | UnsoundPlan (core/participation.py)     |
| a head of this client's ledger that it does not     | LedgerRolledBack: nothing is answered   |
| have (wire/heads.py)                                | any more, until its owner has decided   |
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from flwr.app import RecordDict

from dpfed.accounting.ledger.ledger import Ledger
from dpfed.core.environment import IDENTITY
from dpfed.core.errors import BudgetSpent, ClientRefused, DataError, UnsoundPlan, wire_name
from dpfed.core.log import log
from dpfed.core.sum_protocol import Messages, NamesCohort, StageReply
from dpfed.core.types import Problem, Trust
from dpfed.core.vector import Layout, one_thread
from dpfed.sums.secagg.identity import SigningKey, from_environment
from dpfed.training.account import Account
from dpfed.training.plan import Plan
from dpfed.training.reply import ClientState, client_reply
from dpfed.training.wire import state as states
from dpfed.training.wire.codec import CONTROL, Envelope, Order, read_order, text_of, write_reply
from dpfed.training.wire.evidence import (
    Asked,
    Facts,
    checked_digest,
    cohort_digest,
    gives_receipts,
    receipt_for,
    shared_digest,
    statement_of,
    vector_digest,
)
from dpfed.training.wire.heads import brought
from dpfed.training.wire.stored_replies import StoredReply, order_digest

ENROL = "enrol"
TERMS = "terms"
"""The field of an enrolment with the text of the terms, for silos that approve by rule."""
STATEMENT = "statement"
"""The stage, and the field of its reply, in which a client states what it has answered."""
CLOSE = "close"
"""The field of a statement's order by which no other order of the training will come."""
RECEIPT, SALT = "receipt", "salt"
"""The fields of a reply with a client's signed receipt, and what opens its commitment."""
LEAVE = "leave"
"""The field of an enrolment by which a training has ended, and claims no budget any more."""
LAST = "last"
"""The field in which a node that enrols names the last round that it entered (participation)."""
KEY = "key"
"""The field of a gate's enrolment with its public key, as 64 hexadecimal digits."""
HEADS, HEAD = "heads", "head"
"""The field of an enrolment, and of its reply, with heads that others keep; and of a reply with the
gate's own, as it is after what was asked."""
ROUND, READY = "round", "ready"
"""In an open population: the round for which a device is asked, and whether it may take part."""
_UNNAMED, _COUNT, _MAX_OPEN_LEDGERS = "unnamed", "releases.sqlite", 64
_COUNTS: dict[tuple[Path, int], Ledger] = {}


class Node(Protocol):
    """The client that answers, with its own plan, account and data. Each may raise to refuse."""

    @property
    def client(self) -> int:
        """The client's index in the plan."""

    @property
    def gated(self) -> bool:
        """Whether this is a process of the data owner, not of the app that a server ships."""

    @property
    def key(self) -> SigningKey | None:
        """What it signs with; None if it has no key of its own."""

    def facts(self, training: str) -> Facts:
        """What its owner's files say of a training, for a statement."""

    def meet(self, heads: Sequence[bytes]) -> None:
        """Look at heads that others bring; refuse if its own ledger is not the one of them."""

    def keep(self, heads: Iterable[bytes]) -> list[bytes]:
        """Keep heads of others, and return those that it has kept so far."""

    def head(self) -> bytes:
        """Its own ledger's signed head as it is now; empty if it gives none."""

    @property
    def zero_rows(self) -> bool:
        """Whether to release zero rows, since an earlier attempt to reply from the data failed."""

    def plan(self, training: str) -> Plan:
        """The plan that its owner has agreed to for the training ``training``; "" names none."""

    def account(self) -> Account | None:
        """The account in which its releases are entered; None counts each training by itself."""

    def problem(self) -> Problem:
        """Its data and model."""


def respond(content: RecordDict, node: Node) -> RecordDict:
    """The reply to one stage of one round, or to an enrolment."""
    envelope, said = Envelope(-1, -1, "", -1), dict[str, bytes]()
    try:
        stage = content.config_records[CONTROL].get("stage")
        if stage == ENROL:
            return _enrol(content, node)
        if stage == STATEMENT:
            envelope = Envelope(0, 0, STATEMENT, -1)
            return _state(content, node)
        order = read_order(content)
        at = order.broadcast
        envelope = Envelope(at.round, at.attempt, order.stage, node.client)
        with one_thread():
            reply, said = _reply(order, order_digest(content), node)
    except Exception as error:
        log.exception("this client could not answer")
        reply = ClientRefused(wire_name(error))
    return write_reply(envelope, reply, said)


def _state(content: RecordDict, node: Node) -> RecordDict:
    """What this client states of a training, signed; it reads no data."""
    control = content.config_records[CONTROL]
    training, model = text_of(control, "training"), text_of(control, "model")
    plan, client, key = node.plan(training), node.client, node.key
    if key is None:
        raise DataError(
            f"{IDENTITY} must name the folder of this client's key before it can sign a statement, "
            f"got none; run 'dpfed deploy init'"
        )
    folder = states.folder_for(training, client)
    with states.locked(folder):
        named = node.account()
        states.bind(folder, plan.fingerprint(), named.dataset if named else "")
        book = named or _count_of(plan, folder)
        closed_for = book.closed_for(plan, training, client)
        if closed_for is None and control.get(CLOSE) is True:
            closed_for = checked_digest(model)
            book.close(plan, training, client, model)
        if closed_for not in (None, model):
            raise UnsoundPlan(
                f"training {training!r} was closed by a statement about another model; a client "
                f"signs for one"
            )
        made = statement_of(
            key=key,
            plan=plan,
            facts=node.facts(training),
            training=training,
            client=client,
            gated=node.gated,
            folder=folder,
            model=model,
            open=closed_for is None,
        )
    head = node.head()
    said = {STATEMENT: made, **({HEAD: head} if head else {})}
    return write_reply(Envelope(0, 0, STATEMENT, client), {}, said)


def _enrol(content: RecordDict, node: Node) -> RecordDict:
    """Who this node is, and which plan it has agreed to."""
    try:
        heads = brought(content.config_records[CONTROL].get(HEADS))
        node.meet(heads)  # before anything is approved or entered
        training = text_of(content.config_records[CONTROL], "training")
        client, plan = node.client, node.plan(training)
        taken = _attended(plan, training, node)
        said: dict[str, str | bool | int | bytes | list[bytes]] = {
            "fingerprint": plan.fingerprint(),
            "gate": node.gated,
        }
        if node.key is not None:
            said[KEY] = node.key.public.hex()
        if plan.participation is not None and training:
            said[LAST] = max(taken, default=-1)
        if plan.open:
            said[READY] = _may_take_part(plan, content.config_records[CONTROL].get(ROUND), taken)
        named = node.account() if training else None
        if named is not None and content.config_records[CONTROL].get(LEAVE) is True:
            named.leave(training)
        elif named is not None and not (plan.open and (taken or not said[READY])):
            # one that the budget cannot pay for is refused whole, and now; a device, at first
            named.admit(plan, training, client)
        kept, head = node.keep(heads), node.head()  # after the reservation, which is in the head
        said.update({HEADS: kept} if kept else {})
        said.update({HEAD: head} if head else {})
        record = write_reply(Envelope(0, 0, ENROL, client), {})
        record.config_records[CONTROL].update(said)
    except Exception as error:
        log.exception("this node cannot enrol")
        return write_reply(Envelope(0, 0, ENROL, -1), ClientRefused(wire_name(error)))
    return record


def _attended(plan: Plan, training: str, node: Node) -> tuple[int, ...]:
    """The rounds of a training that this client has entered, if participation is limited.

    A server under central trust knows them anyway, unless it was set back to an older checkpoint.
    """
    if plan.participation is None or not training:
        return ()
    folder, named = states.folder_for(training, node.client), node.account()
    if named is None and not (folder / _COUNT).exists():
        return ()
    book = named or Account(_count_in(folder), _UNNAMED, divided=False)
    return book.attended(plan, training, node.client)


def _may_take_part(plan: Plan, round: object, taken: tuple[int, ...]) -> bool:
    """Whether this device would answer a round: decided only from its ledger, no record."""
    if type(round) is not int or plan.participation is None:
        return False
    return plan.participation.allows(round, taken)


def _reply(order: Order, digest: str, node: Node) -> tuple[StageReply, dict[str, bytes]]:
    """The stored reply to this very order; otherwise a new one, stored before it leaves.

    With it what goes beside it: the receipt.
    """
    plan = node.plan(order.broadcast.training)
    _check_order(plan, order)
    key = node.key  # one that cannot be read is a refusal, and those come before the data
    folder = states.folder_for(order.broadcast.training, node.client)
    with states.locked(folder):
        named = node.account()
        states.bind(folder, plan.fingerprint(), named.dataset if named else "")
        book = named or _count_of(plan, folder)
        if book.closed_for(plan, order.broadcast.training, node.client) is not None:
            raise UnsoundPlan(
                f"training {order.broadcast.training!r} has ended: this client has signed what it "
                f"answered, and answers no more; give another training another name"
            )
        stored = StoredReply(folder, plan.sum.stages.index(order.stage), digest)
        found = stored.read()
        if found is not None:
            return found, _receipt(order, digest, node, key, found)
        task = _Task(plan=plan, order=order, node=node, folder=folder, book=book)
        reply = task.reply()
        if isinstance(reply, ClientRefused):
            return reply, {}
        stored.write(reply)
        return reply, _receipt(order, digest, node, key, reply)


def _receipt(
    order: Order, digest: str, node: Node, key: SigningKey | None, reply: Messages
) -> dict[str, bytes]:
    """The receipt of a release, which is on the disk; its length depends on no record."""
    at, plan = order.broadcast, node.plan(order.broadcast.training)
    if key is None or order.stage != plan.sum.release_stage or not gives_receipts(plan):
        return {}
    cohort = order.cohort
    if isinstance(plan.sum, NamesCohort):  # it was told, and has checked that it is among them
        cohort = cohort_digest(plan.sum.cohort_in(order.requests))
    asked = Asked(
        training=at.training,
        client=node.client,
        round=at.round,
        attempt=at.attempt,
        model=vector_digest(dict(zip(order.names, order.shapes, strict=True)), at.params),
        shared=shared_digest(at.shared),
        cohort=cohort,
        order=digest,
    )
    folder = states.folder_for(at.training, node.client)
    found = receipt_for(folder, key, plan, asked, reply)
    return {RECEIPT: found.envelope, SALT: found.salt}


@dataclass(frozen=True, eq=False)
class _Count(Account):
    """The count of a training whose data has no name: nobody looks at what it has confirmed.

    Its entries are confirmed only where noise is correlated, whose state goes on from those that
    are (``_Task._made``). Confirmed or not, an entry counts as spent.
    """

    confirms: bool = True

    def confirm(self, rows: Iterable[int]) -> None:
        """Confirm that the releases of these rows were made, if that is ever asked."""
        if self.confirms:
            super().confirm(rows)


def _count_of(plan: Plan, folder: Path) -> Account:
    correlated = not all(mechanism.independent for mechanism in plan.channels.values())
    return _Count(_count_in(folder), _UNNAMED, divided=False, confirms=correlated)


def _count_in(folder: Path) -> Ledger:
    """The ledger of one training whose data has no name; open ones are kept, as they are slow."""
    key = folder / _COUNT, os.getpid()
    if key not in _COUNTS:
        while len(_COUNTS) >= _MAX_OPEN_LEDGERS:
            _COUNTS.pop(next(iter(_COUNTS))).close()
        _COUNTS[key] = Ledger(key[0])
    return _COUNTS[key]


def _check_order(plan: Plan, order: Order) -> None:
    """Refuse an order that the plan does not have, whatever was released before."""
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


def _check_arrays(order: Order, problem: object) -> None:
    """Refuse the model's arrays in another order: parameters are one vector, read by position.

    Names may differ (those of an adapter do, as peft writes it), and so may shapes.
    """
    layout = getattr(getattr(problem, "model", None), "layout", None)
    if not isinstance(layout, Layout):
        return
    here = layout.shapes
    same_names = sorted(order.names) == sorted(here) and order.names != tuple(here)
    shapes = tuple(map(tuple, here.values()))
    if same_names or (sorted(order.shapes) == sorted(shapes) and order.shapes != shapes):
        raise DataError(
            f"the model's arrays must come in the order of this client's model, {', '.join(here)}, "
            f"got {', '.join(order.names)}; begin the server with ArrayRecord(model.state_dict()), "
            f"or with arrays in the order of model.named_parameters()"
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class _Task:
    """An order without a stored reply, and what this client needs to reply to it."""

    plan: Plan
    order: Order
    node: Node
    folder: Path
    book: Account

    def reply(self) -> StageReply:
        """Load the client's state and reply; the new state is on disk before the reply leaves."""
        plan, order, folder, index = self.plan, self.order, self.folder, self.node.client
        client = ClientState(index, ledger=self.book)
        if plan.sum.hides_terms:
            signer = from_environment(index, len(plan.nominal))
            client = replace(client, signer=signer, secret=states.read_secret(folder))
        made: dict[str, int] = {}
        releases = order.stage == plan.sum.release_stage  # other stages need no data
        if releases:
            made = self._made()
            problem, zero_rows = self.node.problem(), self.node.zero_rows
            _check_arrays(order, problem)
            client = replace(client, problem=problem, zero_rows=zero_rows)
            client = self._remember(client, made)
        reply, after = client_reply(plan, order.broadcast, order.stage, order.requests, client)
        if isinstance(reply, ClientRefused):
            return reply
        if after.secret != client.secret:
            states.write_secret(folder, after.secret)
        if releases:
            self._keep(after, made)
        return reply

    def _made(self) -> dict[str, int]:
        """By channel of correlated noise, the number of attempts in the client's own ledger.

        Entries that were not confirmed are not among them: nothing leaves before that.
        """
        plan, balance = self.plan, self.book.ledger.balance()
        key = balance.resolve(self.book.entered(plan, self.node.client))
        run = (self.order.broadcast.training, self.node.client)
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
        usage = {name: balance.entries.get((key, *run, name)) for name in names}
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
