# SPDX-License-Identifier: Apache-2.0
"""A transport over Flower's Grid: nodes enrol once, replies are pulled a few at a time.

Replies are checked, handed on and dropped one by one, so that the server's memory is O(d) whatever
the number of clients.

| edge case                                     | what happens                               |
|-----------------------------------------------|--------------------------------------------|
| a node drops out                              | it adds zero; the divisor is public        |
| a late, forged, doubled or malformed reply    | refused, logged; the round continues       |
| a node that the plan does not know, or twice  | not enrolled, with a logged reason         |
| a node takes longer than a minute to enrol    | it is asked again, and any reply counts    |
| a node reconnected without our noticing, or   | the order is re-sent after 5 minutes; a    |
| is slow                                       | node that has replied re-sends its reply   |
| an open population                            | slots.py says who is asked in a round      |
| no node connects within ``wait`` seconds      | training ends, and nothing is spent        |
| every node refuses at its enrolment, or too   | the same, with the reason's class          |
| many for the secure sum to be opened          |                                            |
| fewer have enrolled than sum.least_clients    | training ends before releases are asked    |
|                                               | for                                        |
| a node whose ledger is an older copy than a   | refused: what heads are kept is brought to |
| head that is kept here, or at another silo    | all who enrol (wire/heads.py)              |
| few clients drawn, where the accounting       | training continues: stopping would reveal  |
| relies on a secret draw (amplification)       | who was drawn                              |
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from dpfed.core.errors import BadReply, ClientRefused
from dpfed.core.log import log
from dpfed.core.sum_protocol import StageReply, Verifier
from dpfed.core.types import Broadcast, State, Vector
from dpfed.core.vector import Layout
from dpfed.sums.secagg.identity import roster_from_environment
from dpfed.training.flower.evidence import EvidenceFolder
from dpfed.training.flower.replies import enrolment_of, flower_error, replies
from dpfed.training.flower.slots import Slots
from dpfed.training.loop import Step
from dpfed.training.plan import Plan
from dpfed.training.round import ServerState
from dpfed.training.stopping import (
    least_clients,
    nobody_takes_part,
    set_back,
    too_few_enrolled,
    too_few_take_part,
)
from dpfed.training.wire.codec import CONTROL, At, Envelope, Sender, read_reply
from dpfed.training.wire.enrolment import Refusal, enrolled, enrolment
from dpfed.training.wire.evidence import cohort_digest, gives_receipts
from dpfed.training.wire.heads import Kept, brought
from dpfed.training.wire.responder import CLOSE, HEAD, HEADS, KEY, LAST, LEAVE, STATEMENT

_MAX_PULLED_BYTES = 4 << 20  # of replies pulled at once: keeps memory flat for large models
_ENROL_AGAIN_AFTER_S = 60.0  # a node that did not say who it is may be asked once more
_MIN_LOOK_S, _MAX_LOOK_S = 0.05, 0.5  # between two looks for nodes that are new, at first and later
_SAY_AFTER_S = 3.0  # how many clients are here, while others are waited for

Requests = Mapping[str, Mapping[int, bytes]]


class GridTransport:
    """Flower's nodes as the clients of a plan.

    Args:
        plan: what is done, and what it costs.
        grid: Flower's way to its nodes.
        layout: the names and shapes of the model's parameters that are trained.
        config: the user's train_config, which goes out with every order.
        timeout: how many seconds a stage waits for replies.
        wait: how many seconds to wait for all clients of the plan before the first round.
        around: the model's other arrays, which go out as they are; None if there are none.
        terms: the text of the training's terms, for silos that approve by rule; or "".
        wait_lost: how many seconds to wait for clients that were lost, where no total came out.
        evidence: where what clients sign is kept; None keeps nothing.
        heads: where heads of clients' ledgers are kept, over all trainings; None keeps none.
    """

    def __init__(
        self,
        plan: Plan,
        grid: Grid,
        layout: Layout,
        *,
        config: ConfigRecord | None = None,
        timeout: float = 3600.0,
        wait: float = 60.0,
        around: Mapping[str, torch.Tensor] | None = None,
        terms: str = "",
        wait_lost: float = 300.0,
        evidence: EvidenceFolder | None = None,
        heads: Kept | None = None,
    ) -> None:
        self.evidence, self.heads = evidence, heads
        self.wait_lost = wait_lost
        self.plan, self.grid, self.layout, self.around = plan, grid, layout, around or {}
        self.config, self.timeout, self.wait = config or ConfigRecord(), timeout, wait
        self.terms = terms
        self.stores_replies = True
        hides = plan.sum.hides_terms
        self.roster: Verifier | None = roster_from_environment(len(plan.nominal)) if hides else None
        self.nodes: dict[int, int] = {}
        """Client -> node."""
        self.shipped: dict[int, bool] = {}
        """Client -> whether it answers by an app that the server ships, not by its owner's process:
        by the word of the node that has enrolled for it last."""
        self._asked: set[int] = set()  # nodes that have answered to their enrolment
        self._enrolling: dict[str, int] = {}  # messages that ask for one -> node
        self.refused: dict[int, str] = {}
        """Node -> why it did not enrol, for those who are connected."""
        self._had: set[int] = set()  # clients that were enrolled when releases were asked for
        self._since: dict[int, At] = {}  # client -> the last total that it is in
        self._seen = 0  # committed rounds that _since knows
        self._last: dict[int, int] = {}  # client -> the last round that it says it has answered
        self._slots = Slots(plan, grid, terms=terms, wait=wait) if plan.open else None

    # ------------------------------------------------------------------------------ the nodes

    def ready(self, step: Step) -> str | None:
        """Enrol nodes that are new; a reason to stop if nobody is connected."""
        if self._slots is not None:
            return self._fill(self._slots, step.state)
        for each in step.committed[self._seen :]:
            self._since.update(dict.fromkeys(each.clients, (each.round, each.attempt)))
        self._seen = len(step.committed)
        self._enrol(step.state.training, wait=0.0 if self.nodes else self.wait)
        if step.history and step.history[-1]["aborted"]:
            self._wait_for_lost(step.state.training)
        if not self.nodes:
            return self._nobody()
        return set_back(self.plan, step.state.round, self._last.values()) or self._too_few(step)

    def _too_few(self, step: Step) -> str | None:
        """Why to stop: too few have enrolled. This depends on who is connected, not on a draw."""
        planned, least = len(self.plan.nominal), least_clients(self.plan)
        if step.state.round == step.state.attempt == 0:
            if len(self.nodes) >= least:
                self._count_clients()
            opens = self.plan.sum.least(planned) if self.plan.sum.hides_terms else least
            if self.refused and planned - len(self.refused) < opens:
                return too_few_take_part(self.refused.values(), planned)
        if len(self.nodes) < least:
            self._wait_for_lost(step.state.training)
        return too_few_enrolled(self.plan, step.state, len(self.nodes))

    @property
    def gated(self) -> bool:
        """Whether all who have enrolled say that they are behind gates: no draw is looked at."""
        here = [0] if self.plan.open else list(self.nodes)
        return bool(self.nodes) and not any(self.shipped.get(client, True) for client in here)

    def _fill(self, slots: Slots, state: ServerState) -> str | None:
        """Fill the slots of an open population: who takes part is found anew each time."""
        reason = slots.fill(state)
        self.nodes = slots.nodes
        if slots.shipped is not None:
            self.shipped[0] = slots.shipped
        return reason

    def _wait_for_lost(self, training: str) -> None:
        """After an attempt without a total: wait for lost clients before asking again."""
        lost, deadline = self._had - set(self.nodes), time.monotonic() + self.wait_lost
        if lost:
            log.warning(
                "waiting up to %g s for clients that were lost: %s; start their SuperNodes again",
                self.wait_lost,
                ", ".join(map(str, sorted(lost))),
            )
        while self._had - set(self.nodes) and time.monotonic() < deadline:
            time.sleep(min(0.5, self.wait_lost))
            self._enrol(training, wait=0.0)

    def _nobody(self) -> str:
        """Why no client can be asked: how they refused, that none answers, or none is connected."""
        if self.refused:
            return nobody_takes_part(self.refused.values())
        silent = len(set(self._enrolling.values()))
        if silent:
            return (
                f"none of the {silent} nodes that are connected has said within {self.wait:g} s "
                f"who it is; look at their logs, or, if they are slow to start the app and to "
                f"compute the plan's noise, give DPStrategy(plan, wait={max(10 * self.wait, 1):g})"
            )
        return (
            f"no client was connected within {self.wait:g} s; start {len(self.plan.nominal)} "
            f"SuperNodes, and look at their logs"
        )

    def _count_clients(self) -> None:
        """Warn before the first round if fewer clients are connected than the plan has."""
        here, planned = len(self.nodes), len(self.plan.nominal)
        if here < planned:
            log.warning(
                "%d of the plan's %d clients are connected, and the full privacy budget is still "
                "spent; in a simulation give --federation-config 'num-supernodes=%d'",
                here,
                planned,
                planned,
            )

    def _enrol(self, training: str, wait: float) -> None:
        """Ask nodes not seen before who they are; wait for the plan's clients at the beginning."""
        began = time.monotonic()
        deadline, tell = began + wait, began + _SAY_AFTER_S
        while True:
            online = set(self.grid.get_node_ids())
            self.nodes = {client: node for client, node in self.nodes.items() if node in online}
            self._asked &= online
            self._enrolling = {i: node for i, node in self._enrolling.items() if node in online}
            self.refused = {node: why for node, why in self.refused.items() if node in online}
            fresh = sorted(online - self._asked)
            if fresh:
                self._ask_who(fresh, training)
            known = len(self.nodes) + len(self.refused)
            now = time.monotonic()
            if known >= len(self.plan.nominal) or now >= deadline:
                return
            if now > tell:
                log.info(
                    "waiting for clients: %d of %d are here, after %.0f of at most %.0f s",
                    known,
                    len(self.plan.nominal),
                    now - began,
                    wait,
                )
                tell = now + (now - began)  # rarer, the longer it takes
            time.sleep(min(_MAX_LOOK_S, max(_MIN_LOOK_S, (now - began) / 20)))

    def _ask_who(self, nodes: list[int], training: str) -> None:
        log.info("asking %d nodes who they are; each starts a process for it", len(nodes))
        kept = [] if self.heads is None else self.heads.newest()
        content = enrolment({"training": training}, self.terms, kept)
        messages = [Message(content, node, "train", ttl=600) for node in nodes]
        self._enrolling.update(zip(self.grid.push_messages(messages), nodes, strict=True))
        asked = dict(self._enrolling)  # some may answer what was asked before
        told: dict[int, Message] = {}
        for reply in replies(self.grid, asked, _ENROL_AGAIN_AFTER_S, batch=len(asked)):
            node = asked[reply.metadata.reply_to_message_id]
            self._asked.add(node)
            told[node] = reply
        self._enrolling = {i: node for i, node in asked.items() if node not in self._asked}
        given = {head for reply in told.values() for head in _heads_in(reply, HEAD)}
        told.update(self._bring_others(told, training, {*kept, *given}))
        for node, reply in told.items():
            self._admit(node, reply)

    def _bring_others(
        self, told: Mapping[int, Message], training: str, known: Collection[bytes]
    ) -> dict[int, Message]:
        """Bring nodes those heads of theirs that they were not brought, and ask once more.

        Silos have just brought them, or there were too many for one message.

        Args:
            told: what nodes have replied.
            training: the training's name.
            known: heads that they have been brought, or have just given.
        """
        if self.heads is None:
            return {}
        for reply in told.values():
            self.heads.keep([*_heads_in(reply, HEADS), *_heads_in(reply, HEAD)])
        messages = []
        for node, reply in told.items():
            more = [head for head in self.heads.of(_key_in(reply)) if head not in known]
            if more:
                content = enrolment({"training": training}, self.terms, more)
                messages.append(Message(content, node, "train", ttl=_ENROL_AGAIN_AFTER_S))
        if not messages:
            return {}
        nodes = [message.metadata.dst_node_id for message in messages]
        sent = dict(zip(self.grid.push_messages(messages), nodes, strict=True))
        found: dict[int, Message] = {}
        for reply in replies(self.grid, sent, _ENROL_AGAIN_AFTER_S, batch=len(sent)):
            found[sent[reply.metadata.reply_to_message_id]] = reply
            self.heads.keep(_heads_in(reply, HEAD))
        return found

    def leave(self, training: str, patience: float = 30.0) -> None:
        """Tell those who have enrolled that the training has ended: they keep no budget for it.

        Args:
            training: its name.
            patience: how many seconds to wait for their word; without it the claim lapses in a day.
        """
        content = enrolment({"training": training, LEAVE: True})
        nodes = sorted(self.nodes.values())
        messages = [Message(content, node, "train", ttl=patience) for node in nodes]
        sent = dict(zip(self.grid.push_messages(messages), nodes, strict=True))
        for reply in replies(self.grid, sent, patience, batch=max(1, len(sent))):
            if self.heads is not None:
                self.heads.keep(_heads_in(reply, HEAD))

    def statements(self, training: str, model: str, *, close: bool, patience: float = 60.0) -> None:
        """Ask those who have enrolled for a signed statement of the training, and keep what comes.

        Args:
            training: its name.
            model: the digest of the model that it ended with.
            close: whether it has ended for good, so that they answer no further order.
            patience: how many seconds to wait.
        """
        if self.evidence is None:
            return
        told: dict[str, Any] = {"stage": STATEMENT, "training": training, "model": model}
        told |= {CLOSE: True} if close else {}
        content = RecordDict({CONTROL: ConfigRecord(told)})
        messages = [
            Message(content, node, "train", ttl=patience) for node in sorted(self.nodes.values())
        ]
        clients = {node: client for client, node in self.nodes.items()}
        sent = dict(
            zip(
                self.grid.push_messages(messages),
                (message.metadata.dst_node_id for message in messages),
                strict=True,
            )
        )
        found: dict[int, RecordDict] = {}
        for reply in replies(self.grid, sent, patience, batch=max(1, len(sent))):
            if not reply.has_error():
                found[clients[sent[reply.metadata.reply_to_message_id]]] = reply.content
                if self.heads is not None:
                    self.heads.keep(_heads_in(reply, HEAD))
        self.evidence.stated(found)

    def _admit(self, node: int, reply: Message) -> None:
        try:
            client, gated = enrolled(enrolment_of(reply), self.plan)
            if client in self.nodes:
                raise BadReply(
                    f"client {client} is enrolled by another node; give each its own partition-id"
                )
            self.nodes[client] = node
            last = reply.content.config_records[CONTROL].get(LAST)
            if self.plan.participation is not None and type(last) is int:
                self._last[client] = last
            self.shipped[client] = not gated
            if self.evidence is not None:
                self.evidence.enrolled(client, reply.content)
        except BadReply as error:
            log.warning("node %d is not enrolled: %s", node, error)
            if isinstance(error, Refusal):
                self.refused[node] = error.reason

    # ----------------------------------------------------------------------------- the bytes

    def exchange(
        self, broadcast: Broadcast, stage: str, requests: Requests
    ) -> Iterator[tuple[int, StageReply]]:
        """Send orders, yield replies as they come."""
        sender = Sender(
            layout=self.layout,
            fingerprint=self.plan.fingerprint(),
            config=self.config,
            broadcast=broadcast,
            around=self.around,
        )
        cohort = ""
        if stage == self.plan.sum.release_stage:
            self._had |= set(self.nodes)
            cohort = self._named_cohort(broadcast, requests)
        clients: dict[str, int] = {}

        def ask(silent: Collection[int]) -> dict[str, int]:
            orders = self._orders(sender, stage, requests, silent, cohort)
            ids = self.grid.push_messages(list(orders.values()))
            clients.update({i: client for i, client in zip(ids, orders, strict=True) if i})
            return {i: orders[c].metadata.dst_node_id for i, c in clients.items() if c in orders}

        batch = max(1, _MAX_PULLED_BYTES // (4 * broadcast.params.numel()))
        for reply in replies(self.grid, ask(set(self.nodes.values())), self.timeout, batch, ask):
            client = clients[reply.metadata.reply_to_message_id]
            known = None if self.plan.open else client
            if cohort and self.evidence is not None and not reply.has_error():
                self.evidence.replied(reply.content)
            answer = _read_reply(reply, Envelope(broadcast.round, broadcast.attempt, stage, known))
            del reply  # so that one message is alive at a time
            yield client, answer
            del answer
        sender.forget()

    def _named_cohort(self, broadcast: Broadcast, requests: Requests) -> str:
        """The digest of who is asked for a release, for their receipts; "" if that is secret."""
        if not gives_receipts(self.plan):
            return ""
        cohort = {client for to in requests.values() for client in to}
        if self.evidence is not None:
            self.evidence.asked(broadcast.round, broadcast.attempt, cohort)
        return cohort_digest(cohort)

    def _orders(
        self,
        sender: Sender,
        stage: str,
        requests: Requests,
        wanted: Collection[int],
        cohort: str,
    ) -> dict[int, Message]:
        """A message for each enrolled client that the stage asks, if its node is wanted."""
        orders: dict[int, Message] = {}
        contents: dict[tuple[Any, ...], RecordDict] = {}
        for client, node in sorted(self.nodes.items()):
            asked = {name: to[client] for name, to in requests.items() if client in to}
            if not asked or node not in wanted:
                continue
            bare, since = stage != self.plan.sum.release_stage, self._since.get(client)
            slot = client if self.plan.open else None
            key = (since, slot, *asked.items())
            if key not in contents:
                contents[key] = sender.order(stage, asked, bare, since, slot, cohort)
            group = str(sender.broadcast.round + 1)
            orders[client] = Message(contents[key], node, "train", ttl=self.timeout, group_id=group)
        return orders

    # --------------------------------------------------------------- what clients keep themselves

    def client_states(self, params: Vector) -> State:
        """Nothing: each client keeps its own state on its own disk."""
        del params
        return ()

    def restore(self, states: State) -> None:
        """Nothing to restore."""
        del states


def _heads_in(reply: Message, field: str) -> list[bytes]:
    """The heads in a field of a node's reply: its own, or those that it keeps of others."""
    if reply.has_error():
        return []
    found = reply.content.config_records.get(CONTROL, ConfigRecord()).get(field)
    return brought([found] if field == HEAD else found)


def _key_in(reply: Message) -> bytes:
    """The public key that a node says; empty if it says none."""
    control = ConfigRecord() if reply.has_error() else reply.content.config_records.get(CONTROL)
    said = (control or ConfigRecord()).get(KEY)
    try:
        return bytes.fromhex(said) if isinstance(said, str) else b""
    except ValueError:
        return b""


def _read_reply(reply: Message, due: Envelope) -> StageReply:
    """The content of a Flower message; what is wrong with it is a refusal of this one client."""
    if reply.has_error():
        return ClientRefused(flower_error(reply))
    try:
        return read_reply(reply.content, due)
    except BadReply as error:
        return ClientRefused(str(error))
