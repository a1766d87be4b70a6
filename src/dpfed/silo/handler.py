# SPDX-License-Identifier: Apache-2.0
"""The gate's request handler: from an order's bytes to the bytes of the reply that may leave.

It replies to trainings that are approved, and decides by what is the owner's: data, policy,
approvals, ledger, identity. An order only names a training. The reply itself is made by ``respond``
(training/wire/responder.py), as in a Flower app without a gate.

| edge case                                        | what happens                               |
|--------------------------------------------------|--------------------------------------------|
| data that cannot be loaded                       | the gate does not start; the reason is in  |
|                                                  | the owner's log only                       |
| records of another shape than the policy says    | the gate does not start, either            |
| a training that is not approved                  | UnsoundPlan, counted; nothing is spent     |
| new terms in an enrolment, mode "within-policy"  | checked by the policy, then approved; no   |
|                                                  | code or file of their model is loaded yet  |
| data under a contract, and its officer has not   | UnsoundPlan, whatever is in the records    |
| accepted what the file becomes by it             |                                            |
| two budgets of one account, one file under two   | the gate does not start (sources.py)       |
| accounts, a new name for a file that was counted |                                            |
| a budget that the owner's last command lowered   | stands, also after a restart               |
| one that it has raised, and the policy has not   | the policy's stands from the next start on |
| data with blocks, and terms that name some       | their records, charged to each of them     |
| an order whose child died, or took too long      | zero rows, if nothing of it has left       |
| a gate without a folder of identity              | it makes a key, once, beside the ledger    |
| a head of its own key that is not in its ledger's| LedgerRolledBack, for every order, until   |
| chain: an older copy was put back                | the owner has declared the loss            |
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import secrets
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from flwr.app import RecordDict

from dpfed.accounting.ledger.heads import begin_epoch, take_head
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.core.errors import (
    ClientRefused,
    DataError,
    DpfedError,
    LedgerRolledBack,
    UnsoundPlan,
)
from dpfed.core.flower_private import from_bytes, to_bytes
from dpfed.core.log import log, say_if_slow
from dpfed.core.types import Broadcast, Problem
from dpfed.data.contract import Contract
from dpfed.data.datasets import Records
from dpfed.recipes.schema import PRETRAINED
from dpfed.recipes.terms import Terms, read_terms
from dpfed.silo.approvals import CONFLICT, ZERO_ROWS, Price, clock_time
from dpfed.silo.blocks import Blocks, open_blocks
from dpfed.silo.owner import Owner, load_records, lower_budget, refuse_shared_state
from dpfed.silo.policy import DataPolicy, Mode
from dpfed.sums.secagg.identity import SigningKey
from dpfed.training.account import Account, AccountHolder
from dpfed.training.plan import Plan
from dpfed.training.wire.codec import CONTROL, Envelope, write_reply
from dpfed.training.wire.evidence import Facts
from dpfed.training.wire.heads import Kept, open_head, sign_head
from dpfed.training.wire.responder import ENROL, TERMS, respond

BY_RULE = "the policy"
_MIN_WEEK_FRACTION = (
    0.01  # each training uses at least this of week_epsilon: even free ones use disk
)
_MAX_TRAININGS_BUILT = 8  # kept in memory; others are built again when an order names them
_MAX_PEEKED_BYTES = 1 << 16  # an order up to this size may be refused without a child process


class Peek(NamedTuple):
    """What is known of an order before its reply is made."""

    refusal: bytes | None
    """The reply, if it is refused already."""
    training: str
    """The approved training that it names; "" if that is not known yet."""


@dataclass(eq=False)
class RequestHandler(Owner):
    """Makes the gate's replies from policy, data and approved trainings, which are loaded once."""

    records: dict[str, Records] = field(default_factory=dict)
    blocks: dict[str, Blocks] = field(default_factory=dict)
    """Of data that arrives: its records by block."""
    _trainings: dict[str, tuple[Terms, Problem]] = field(default_factory=dict)
    came: dt.datetime | None = None
    """When the order that is answered now came in; None means now."""

    def open(self) -> None:
        """Load the data, let the owner's budgets stand, and build what is approved."""
        refuse_shared_state(self.state)
        _ = self.key
        self.approvals.count_sources(self.check_accounts())
        ledger = self.ledger()
        begin_epoch(ledger)
        for name, data in self.policy.data.items():
            stands = ledger.declare_policy(data.key(name), data.budget)
            if stands != data.budget:
                log.warning("%s", lower_budget(name, data, stands))
            with say_if_slow(f"reading data.{name}"):
                self.records[name] = load_records(name, data)
            self._open_blocks(name, data, ledger)
        now = self.approvals.now()
        standing = [each for each in self.approvals.all() if each.state(now) == "approved"]
        for approval in reversed(standing[:_MAX_TRAININGS_BUILT]):  # the latest last
            try:
                with say_if_slow(f"building training {approval.name}"):
                    self.training(approval.name)
            except Exception as error:  # the others continue
                said = error if isinstance(error, DpfedError) else type(error).__name__
                log.warning("training %s cannot run here: %s", approval.name, said)

    def _open_blocks(self, name: str, data: DataPolicy, ledger: Ledger) -> None:
        rule, account = data.block_rule, ledger.balance().base_of(name)
        if rule is None:
            if account in ledger.balance().blocks:
                raise DataError(
                    f"data.{name} must have blocks, as its ledger was bound to some, got none; put "
                    f"data.{name}.blocks back"
                )
            return
        today = self.approvals.now().date()
        self.blocks[name] = open_blocks(self.state, ledger, name, rule, self.records[name], today)

    def training(self, name: str) -> tuple[Terms, Problem]:
        """The terms of an approved training, and the problem that they make of the data."""
        self.conflict.refuse()
        approval = self.approvals.standing(name)  # every time, since it may have been revoked
        built = self._trainings.pop(name, None)
        if built is not None and built[0].text != approval.terms:
            built = None
        terms = self._with_model_folder(read_terms(approval.terms)) if built is None else built[0]
        self.permitted(terms)
        if built is None:
            self._make_room()
            built = terms, self._problem(terms)
        self._trainings[name] = built  # last in the order of use
        return built

    def _make_room(self) -> None:
        """Drop trainings that are no longer approved, then those unused for longest."""
        now = self.approvals.now()
        standing = {each.name for each in self.approvals.all() if each.state(now) == "approved"}
        kept = [name for name in self._trainings if name in standing][-(_MAX_TRAININGS_BUILT - 1) :]
        self._trainings = {name: self._trainings[name] for name in kept}

    def _with_model_folder(self, terms: Terms) -> Terms:
        """The terms with the folder where the owner keeps their pretrained model."""
        data, model = self.policy.data.get(terms.pins.dataset), terms.recipe.model
        source = model.options.get("source") if model.name in PRETRAINED else None
        if data is None or not isinstance(source, str) or source not in data.pretrained:
            return terms
        folder = data.pretrained[source].folder
        local = f"local-dir:{folder}" if folder and model.name == "timm" else folder
        return replace(terms, folder=local)

    def _problem(self, terms: Terms) -> Problem:
        records = self.records[terms.pins.dataset]
        if terms.plan.blocks:
            records = self.blocks[terms.pins.dataset].take(terms.plan.blocks)
        problem: Problem = terms.model.problem(records)
        return problem

    def prepare(self, name: str) -> None:
        """Build a training that was approved after the gate began, so that children inherit it.

        Args:
            name: the training's; one that is not approved is left alone.
        """
        if name not in self._trainings:
            with suppress(Exception):  # the child that comes next refuses, and logs it
                self.training(name)
            return
        if next(reversed(self._trainings)) != name:
            self._trainings[name] = self._trainings.pop(name)

    def reply(self, order: bytes, zero_rows: bool = False) -> bytes:
        """The bytes that may leave for an order: a release, an enrolment, or an error's name.

        Args:
            order: as it came in.
            zero_rows: do not use the data, because the first child for this order died.
        """
        content = _read(order)
        reply = respond(content, _OrderNode(self, content, zero_rows))
        if zero_rows and not reply.config_records[CONTROL].get("error"):
            said = "a child died, or took too long"
            self.approvals.note(ZERO_ROWS, _training_name(content), said, self.came)
        return self._count_reply(content, reply)

    def peek(self, order: bytes) -> Peek:
        """Look at an order without the data, and refuse one that names no approved training.

        A long order is left to a child: parsing a few bytes may make many objects.
        """
        self.came = clock_time()
        content = _read(order) if len(order) <= _MAX_PEEKED_BYTES else None
        if content is None:
            return Peek(None, "")
        control: Any = content.config_records.get(CONTROL, {})
        if self.approvals.known(_training_name(content)):
            return Peek(None, _training_name(content))
        if control.get(TERMS) and self.has_rules:
            return Peek(None, "")
        enrolling = control.get("stage") == ENROL
        at = Envelope(0, 0, ENROL, -1) if enrolling else Envelope(-1, -1, "", -1)
        refused = write_reply(at, ClientRefused("UnsoundPlan"))
        return Peek(self._count_reply(content, refused), "")

    def _count_reply(self, content: RecordDict, reply: RecordDict) -> bytes:
        error = reply.config_records[CONTROL].get("error")
        kind = "refused" if error else "answered"
        self.approvals.note(kind, _training_name(content), str(error or ""), self.came)
        return to_bytes(reply)


@dataclass(eq=False)
class _OrderNode:
    """The node that ``respond`` asks for one order: all follows from the training's name."""

    handler: RequestHandler
    content: RecordDict
    zero_rows: bool = False
    gated: bool = True
    _training: tuple[Terms, Problem] | None = None

    @cached_property
    def ledger(self) -> Ledger:
        """The owner's, whose rows are read once for an order."""
        return self.handler.ledger()

    @property
    def key(self) -> SigningKey | None:
        """What this gate signs with."""
        return self.handler.key

    def facts(self, training: str) -> Facts:
        """What the owner's approval and ledger say of a training."""
        terms, ledger = self._find(training)[0], self.ledger
        contract = terms.pins.contract
        key = ledger.balance().resolve(self._data(terms).key(terms.pins.dataset))
        return Facts(
            terms=terms.fingerprint,
            terms_sha256=hashlib.sha256(terms.text.encode()).hexdigest(),
            contract=contract.digest if isinstance(contract, Contract) else "",
            budgeted=ledger.budget_of(key.dataset) is not None,
            renewed=key.base in ledger.balance().renewed,
            head=_head(ledger, self.handler.key),
        )

    def meet(self, heads: Sequence[bytes]) -> None:
        """Refuse everything from now on if a head of this gate's own is not in its ledger."""
        key = self.handler.key
        own = [head for head in (open_head(each, key) for each in heads) if head is not None]
        known = bool(self.handler.conflict)
        try:
            self.handler.conflict.meet(self.ledger, own)
        except LedgerRolledBack:
            if not known:
                said = "the ledger is an older copy: see 'dpfed ledger declare-lost --help'"
                self.handler.approvals.note(CONFLICT, "", said, self.handler.came)
            raise

    def keep(self, heads: Iterable[bytes]) -> list[bytes]:
        """Keep the heads of other gates, and hand back what is kept."""
        key, kept = self.handler.key.public, Kept(self.handler.state)
        kept.keep(head for head in heads if not head.startswith(key))
        return kept.newest()

    def head(self) -> bytes:
        """The signed head of the ledger as it is now."""
        came = self.handler.came or clock_time()
        found = take_head(self.ledger, int(came.timestamp()) * 1_000_000)
        return sign_head(found, self.handler.key)

    @property
    def client(self) -> int:
        """The owner's number for this silo; 0 while no approved training is named."""
        return self._data(self._find(_training_name(self.content))[0]).client

    def _data(self, terms: Terms) -> DataPolicy:
        return self.handler.policy.data[terms.pins.dataset]

    def _find(self, training: str) -> tuple[Terms, Problem]:
        self.handler.conflict.refuse()
        if self._training is None:
            self._approve_by_rule()
            self._training = self.handler.training(training)
        return self._training

    def plan(self, training: str) -> Plan:
        """The plan of the approved terms, whatever the order says."""
        return self._find(training)[0].plan

    def account(self) -> Account:
        """The owner's account for the data that the terms name."""
        terms = self._find(_training_name(self.content))[0]
        kind = _RepeatedAccount if self.zero_rows else _OwnerAccount
        return kind(self.ledger, terms.pins.dataset, divided=False, blocks=terms.plan.blocks)

    def problem(self) -> Problem:
        """The data, with the model of the approved terms."""
        return self._find(_training_name(self.content))[1]

    def _approve_by_rule(self) -> None:
        """Approve terms that came with an enrolment, if the policy allows that without a person."""
        control: Any = self.content.config_records.get(CONTROL, {})
        text = control.get(TERMS)
        if control.get("stage") != ENROL or not isinstance(text, str) or not text:
            return
        approvals = self.handler.approvals
        if not self.handler.has_rules or approvals.known(_training_name(self.content)):
            return  # before the text is parsed: it could change nothing
        terms = read_terms(text)
        if terms.name != _training_name(self.content):
            return
        data = self.handler.policy.data.get(terms.pins.dataset)
        if data is not None and data.approve is Mode.WITHIN_POLICY:
            price = self._check_week(self.handler.permitted(terms), terms)
            approvals.approve(terms, text, days=data.approval_days, by=BY_RULE)
            approvals.remember_price(terms.name, price)

    def _check_week(self, data: DataPolicy, terms: Terms) -> Price:
        """The training's cost, if it fits into what rules may approve in seven days.

        Costs are stored with the approvals, so that each is computed once.
        """
        approvals, dataset = self.handler.approvals, terms.pins.dataset
        week = (approvals.now() - dt.timedelta(days=7)).isoformat()
        prices, own = approvals.prices(), [data.price(terms)]
        measure = own[0].measure  # if the policy changes, costs do, too
        for each in approvals.all():
            if each.at < week or each.by != BY_RULE:
                continue
            if not each.terms:
                raise UnsoundPlan(
                    f"the silo's policy has week_epsilon, and the terms of {each.name!r}, which "
                    f"were approved this week, are lost; wait, or ask the owner"
                )
            price = prices.get(each.name)
            if price is None or (price.dataset == dataset and price.measure != measure):
                made = read_terms(each.terms)
                cost = data.cost(made) if made.pins.dataset == dataset else 0.0
                price = Price(made.pins.dataset, measure, cost)
                approvals.remember_price(each.name, price)
            own += [price] if price.dataset == dataset else []
        most = data.week_epsilon or 0.0
        asked, *before = [max(each.epsilon, most * _MIN_WEEK_FRACTION) for each in own]
        spent = sum(before)
        if not spent + asked <= most:
            raise UnsoundPlan(
                f"the silo's policy has week_epsilon: at most {data.week_epsilon}, got "
                f"{spent:.4g} in seven days, and {asked:.4g} more; wait, or ask the owner"
            )
        return own[0]


class _OwnerAccount(Account):
    """The owner's account; once its entries are confirmed, the child's alarm is off."""

    def confirm(self, rows: Iterable[int]) -> None:
        """Confirm releases that were made: an alarm after this would spend them without a reply."""
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        super().confirm(rows)


class _RepeatedAccount(_OwnerAccount):
    """The account for an order whose first child entered its releases, and sent none of them."""

    def begin(self, plan: Plan, broadcast: Broadcast, member: AccountHolder) -> tuple[int, ...]:
        try:
            return super().begin(plan, broadcast, member)
        except UnsoundPlan:
            at = (broadcast.training, member.client, broadcast.round, broadcast.attempt)
            left = self.ledger.balance().open  # unconfirmed: a confirmed release may have been sent
            rows = [each for each in self.ledger.rows() if each.number in left]
            names = ("training", "client", "round", "attempt")
            found = [row.number for row in rows if tuple(row.body[n] for n in names) == at]
            if not found:
                raise
            return tuple(found)


def _head(ledger: Ledger, key: SigningKey) -> str:
    """A name for the ledger's last row that only this gate can tell from another."""
    nonce = secrets.token_hex(16)
    last = next(reversed(ledger.rows()), None)
    said = f"{nonce}{last.hash if last else ''}".encode()
    return nonce + hmac.digest(key.secret("ledger head"), said, "sha256").hex()


def _read(order: bytes) -> RecordDict:
    """An order's records; no records if the bytes are not Flower's."""
    try:
        return from_bytes(order)
    except Exception:
        return RecordDict()


def _training_name(content: RecordDict) -> str:
    """The name of the training in an order; "" if there is none."""
    control: Any = content.config_records.get(CONTROL, {})
    name = control.get("training", "")
    return name if isinstance(name, str) else ""
