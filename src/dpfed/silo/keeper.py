# SPDX-License-Identifier: Apache-2.0
"""The gate's inside: from an order's bytes to the bytes that may leave, by approved terms alone.

It has the data loaded, and everything else it answers from is the owner's: policy, approvals,
ledger, identity. The same ``respond`` answers as in a Flower app's own process.

| edge case                                        | what happens                               |
|--------------------------------------------------|--------------------------------------------|
| data that cannot be loaded                       | the gate does not start: its owner reads   |
|                                                  | why, and nobody else                       |
| records of another shape than the policy says    | the gate does not start, either            |
| a training that is not approved                  | UnsoundPlan, counted; nothing is spent     |
| new terms in an enrolment, mode "within-policy"  | held against the policy, then approved;    |
|                                                  | nothing of their model is loaded before    |
| two budgets of one account, one file under two   | the gate does not start (sources.py)       |
| accounts, a new name for a file that was counted |                                            |
| an order whose child died, or took too long      | zero rows, if nothing of it has left       |
"""

from __future__ import annotations

import datetime as dt
import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, Metadata, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as Bytes

from dpfed.accounting.ledger.conversions import LedgerKey
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.core.environment import IDENTITY, LEDGER, STATE
from dpfed.core.errors import ClientRefused, DataError, DpfedError, UnsoundPlan
from dpfed.core.log import log
from dpfed.core.types import Broadcast, Problem
from dpfed.data.datasets import Records
from dpfed.recipes.federation import PRETRAINED, installed, load_dataset
from dpfed.recipes.schema import Recipe
from dpfed.recipes.terms import Terms, read_terms
from dpfed.silo.approvals import LEDGER_FILE, Approvals, Price
from dpfed.silo.policy import DataPolicy, Mode, Policy, permit
from dpfed.silo.sources import check_accounts
from dpfed.training.account import Account, Bookable
from dpfed.training.flower.codec import CONTROL, Envelope, write_answer
from dpfed.training.flower.responder import ENROL, TERMS, respond
from dpfed.training.flower.trained import Trained
from dpfed.training.plan import Plan

BY_RULE = "the policy"
ZERO_ROWS = "zero rows"
"""The kind of event that is counted where an order was answered without the data."""
_LEAST = 0.01  # of a week's epsilon, for each training: terms that cost nothing fill a disk, too
_MOST_BUILT = 8  # trainings whose problems are kept; others are built again when they are asked
_SHORT = 1 << 16  # bytes of an order that is looked at before a child is made for it


@dataclass(eq=False)
class Keeper:
    """What the gate answers from, loaded once."""

    policy: Policy
    records: dict[str, Records] = field(default_factory=dict)
    _trainings: dict[str, tuple[Terms, Problem]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        gate = self.policy.gate
        self.state = Path(gate.state)
        self.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.environ[STATE] = str(self.state / "trainings")
        os.environ[LEDGER] = str(self.state / LEDGER_FILE)
        os.environ[IDENTITY] = gate.identity
        self.approvals = Approvals(self.state)

    def open(self) -> None:
        """Load the data, declare the owner's budgets, and build what is approved."""
        self.approvals.count_sources(self.check_accounts())
        ledger = self.ledger()
        for name, data in self.policy.data.items():
            first = ledger.balance().resolve(data.key(name))
            if ledger.account(name) != {first: data.budget}:
                ledger.declare(first, data.budget)
            self.records[name] = load_records(name, data)
        ledger.close()
        now = self.approvals.now()
        standing = [each for each in self.approvals.all() if each.state(now) == "approved"]
        for approval in reversed(standing[:_MOST_BUILT]):  # the latest last
            try:
                self.training(approval.name)
            except DpfedError as error:  # the others go on
                log.warning("training %s is not answered: %s", approval.name, error)

    @property
    def has_rules(self) -> bool:
        """Whether any training can be approved by rule."""
        return any(each.approve is Mode.WITHIN_POLICY for each in self.policy.data.values())

    def check_accounts(self) -> dict[str, str]:
        """Refuse a policy with two budgets of one account, or two accounts of one file.

        Returns:
            by real path, and by device and inode: the account of its records.
        """
        ledger, counted = self.ledger(), self.approvals.sources()
        names = ledger.balance()
        ledger.close()
        return check_accounts(
            self.policy, lambda name: names.resolve(LedgerKey(name)).dataset, counted
        )

    def training(self, name: str) -> tuple[Terms, Problem]:
        """The terms of an approved training, and the problem that they make of the data."""
        approval = self.approvals.standing(name)  # each time: it may be revoked
        built = self._trainings.pop(name, None)  # a name has one set of terms for ever
        if built is not None and built[0].text != approval.terms:  # but if the approvals were lost
            built = None
        terms = self._located(read_terms(approval.terms)) if built is None else built[0]
        self.permitted(terms, approved=True)
        if built is None:
            self._make_room()
            built = terms, self._problem(terms)
        self._trainings[name] = built  # at the end: the last one that was used
        return built

    def _make_room(self) -> None:
        """Forget what no longer stands, and what was not used for longest: each has its memory."""
        now = self.approvals.now()
        standing = {each.name for each in self.approvals.all() if each.state(now) == "approved"}
        kept = [name for name in self._trainings if name in standing][-(_MOST_BUILT - 1) :]
        self._trainings = {name: self._trainings[name] for name in kept}

    def _located(self, terms: Terms) -> Terms:
        """The terms with the folder where the owner keeps their pretrained model."""
        data, model = self.policy.data.get(terms.pins.dataset), terms.recipe.model
        source = model.options.get("source") if model.name in PRETRAINED else None
        if data is None or not isinstance(source, str) or source not in data.pretrained:
            return terms
        folder = data.pretrained[source].folder
        local = f"local-dir:{folder}" if folder and model.name == "timm" else folder
        return replace(terms, folder=local)

    def permitted(self, terms: Terms, *, approved: bool = False) -> DataPolicy:
        """The policy of the terms' data set, if it lets them through today."""
        return permit(self.policy, terms, self.approvals.now().date(), approved=approved)

    def _problem(self, terms: Terms) -> Problem:
        if terms.pins.train:
            installed("terms.train", terms.pins.train)  # imported once, for all children
        problem: Problem = terms.model.problem(self.records[terms.pins.dataset])
        return problem

    def ledger(self) -> Ledger:
        """The owner's, opened anew: a connection does not outlive a fork."""
        return Ledger(self.state / LEDGER_FILE)

    def answer(self, order: bytes, nothing: bool = False) -> bytes:
        """What may leave for an order: an answer, an enrolment, or the name of an error.

        ``nothing`` makes an answer of zero rows, for an order that could not be answered before.
        """
        content = _read(order)
        reply = respond(content, _Asked(self, content, nothing))
        if nothing and not reply.config_records[CONTROL].get("error"):
            self.approvals.note(ZERO_ROWS, _named(content), "a child died, or took too long")
        return self._noted(content, reply)

    def turned_away(self, order: bytes) -> bytes | None:
        """The refusal of what nobody has approved, without any work; None for all else.

        A long one is not looked at here: a few bytes of it may stand for many objects.
        """
        content = _read(order) if len(order) <= _SHORT else None
        if content is None:
            return None
        control: Any = content.config_records.get(CONTROL, {})
        if self.approvals.known(_named(content)):
            self._prepare(_named(content))
            return None
        if control.get(TERMS) and self.has_rules:
            return None
        enrolling = control.get("stage") == ENROL
        at = Envelope(0, 0, ENROL, -1) if enrolling else Envelope(-1, -1, "", -1)
        return self._noted(content, write_answer(at, ClientRefused("UnsoundPlan")))

    def _prepare(self, name: str) -> None:
        """Build what was approved since the gate began, once, for all children after."""
        if name not in self._trainings:
            with suppress(DpfedError):  # a child says why
                self.training(name)
        elif next(reversed(self._trainings)) != name:
            self._trainings[name] = self._trainings.pop(name)

    def _noted(self, content: RecordDict, reply: RecordDict) -> bytes:
        error = reply.config_records[CONTROL].get("error")
        kind = "refused" if error else "answered"
        self.approvals.note(kind, _named(content), str(error or ""))
        sent: bytes = recorddict_to_proto(reply).SerializeToString()
        return sent


@dataclass(eq=False)
class _Asked:
    """A node for one order; what it answers from is fixed by the training's name."""

    keeper: Keeper
    content: RecordDict
    zero_rows: bool = False
    gated: bool = True
    _found: tuple[Terms, Problem] | None = None

    @property
    def client(self) -> int:
        """The owner's number for this silo; 0 while no approved training is named."""
        return self._data(self._look(_named(self.content))[0]).client

    def _data(self, terms: Terms) -> DataPolicy:
        return self.keeper.policy.data[terms.pins.dataset]

    def _look(self, training: str) -> tuple[Terms, Problem]:
        if self._found is None:
            self._approve_by_rule()
            self._found = self.keeper.training(training)
        return self._found

    def plan(self, training: str) -> Plan:
        """Of approved terms alone."""
        return self._look(training)[0].plan

    def account(self) -> Account:
        """The owner's ledger, under the owner's name for the data."""
        terms = self._look(_named(self.content))[0]
        kind = _Entered if self.zero_rows else _Booked
        return kind(self.keeper.ledger(), terms.pins.dataset, divided=False)

    def problem(self) -> Problem:
        """The data, as approved terms see it."""
        terms, problem = self._look(_named(self.content))
        return self._trained(terms) if terms.pins.train else problem

    def _trained(self, terms: Terms) -> Problem:
        """An installed train function as a problem; it is told where the owner's data is."""
        data = self._data(terms)
        about: Any = {"partition-id": data.client, "data": data.load.source}
        context = Context(0, 0, about, RecordDict(), {})
        told = Metadata(
            run_id=0, message_id="", src_node_id=0, dst_node_id=0, reply_to_message_id="",
            group_id="", created_at=time.time(), ttl=3600.0, message_type="train",
        )  # fmt: skip
        message: Message = Message(self.content, metadata=told)  # type: ignore[call-overload]
        return Trained(message, context, installed("terms.train", terms.pins.train))

    def _approve_by_rule(self) -> None:
        """Terms that came with an enrolment, if the policy lets them be approved by rule."""
        control: Any = self.content.config_records.get(CONTROL, {})
        text = control.get(TERMS)
        if control.get("stage") != ENROL or not isinstance(text, str) or not text:
            return
        approvals = self.keeper.approvals
        if not self.keeper.has_rules or approvals.known(_named(self.content)):
            return  # before the text is looked at: nothing could follow from it
        terms = read_terms(text)
        if terms.name != _named(self.content):
            return
        data = self.keeper.policy.data.get(terms.pins.dataset)
        if data is not None and data.approve is Mode.WITHIN_POLICY:  # else no work is done for it
            price = self._keep_to_the_week(self.keeper.permitted(terms), terms)
            approvals.approve(terms, text, days=data.approval_days, by=BY_RULE)
            approvals.remember_price(terms.name, price)

    def _keep_to_the_week(self, data: DataPolicy, terms: Terms) -> Price:
        """What the training costs, if the week has it left; each one is computed once."""
        approvals, dataset = self.keeper.approvals, terms.pins.dataset
        measure = f"{data.key(dataset)} {data.budget}"  # a policy may change
        week = (approvals.now() - dt.timedelta(days=7)).isoformat()
        prices, own = approvals.prices(), [Price(dataset, measure, data.cost(terms))]
        for each in approvals.all():
            if each.at < week or each.by != BY_RULE:
                continue
            price = prices.get(each.name)
            if price is None or (price.dataset == dataset and price.measure != measure):
                made = read_terms(each.terms)
                cost = data.cost(made) if made.pins.dataset == dataset else 0.0
                price = Price(made.pins.dataset, measure, cost)
                approvals.remember_price(each.name, price)
            own += [price] if price.dataset == dataset else []
        most = data.week_epsilon or 0.0
        asked, *before = [max(each.epsilon, most * _LEAST) for each in own]
        spent = sum(before)
        if not spent + asked <= most:
            raise UnsoundPlan(
                f"the silo's policy has week_epsilon: at most {data.week_epsilon}, got "
                f"{spent:.4g} in seven days, and {asked:.4g} more; wait, or ask the owner"
            )
        return own[0]


class _Booked(Account):
    """The owner's account; an answer that is confirmed is not stopped any more."""

    def confirm(self, rows: Iterable[int]) -> None:
        """The releases were made: past this the gate's alarm would leave them spent, and unsent."""
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        super().confirm(rows)


class _Entered(_Booked):
    """An account for an order that was entered, and of which nothing has left."""

    def begin(self, plan: Plan, broadcast: Broadcast, member: Bookable) -> tuple[int, ...]:
        try:
            return super().begin(plan, broadcast, member)
        except UnsoundPlan:
            at = (broadcast.training, member.client, broadcast.round, broadcast.attempt)
            left = self.ledger.balance().open  # what was confirmed may have left
            rows = [each for each in self.ledger.rows() if each.number in left]
            names = ("training", "client", "round", "attempt")
            found = [row.number for row in rows if tuple(row.body[n] for n in names) == at]
            if not found:
                raise
            return tuple(found)


def load_records(name: str, data: DataPolicy) -> Records:
    """The data, if it has the shape that the policy makes public.

    Labels and persons are read cell by cell, by what the policy says: none decides about others.
    """
    found = load_dataset(Recipe(data=data.load), None, data.public).train
    shape = list(found.x.shape[1:])
    if shape != data.shape:
        raise DataError(
            f"data.{name}.shape must be {shape}, as its records have it, got {data.shape}; correct "
            f"the policy, or name a table's feature columns in load.options.x or load.schema"
        )
    return found


def _read(order: bytes) -> RecordDict:
    """An order's records; none of a frame that Flower did not make."""
    try:
        return recorddict_from_proto(Bytes.FromString(order))
    except Exception:
        return RecordDict()


def _named(content: RecordDict) -> str:
    """The training that an order names; "" if it names none."""
    control: Any = content.config_records.get(CONTROL, {})
    name = control.get("training", "")
    return name if isinstance(name, str) else ""
