# SPDX-License-Identifier: Apache-2.0
"""Chooses which available devices fill a round's slots, anew for each round (open population).

Before a round, connected devices are asked in random order whether they may take part, until all
slots are taken. A device decides only from its own ledger, never from a record. Nothing about a
device is kept between rounds, so the server's memory does not grow with the population.

| edge case                                   | what happens                                       |
|---------------------------------------------|----------------------------------------------------|
| more are there than slots                   | the others are not asked, and spend nothing        |
| fewer, or many still within min_separation  | after ``wait`` seconds the round starts with them  |
| nobody                                      | training ends, and nothing is spent                |
| a device that does not say anything         | others are asked after _REPLY_TIMEOUT_S            |
| one that says it may, and then refuses      | its slot stays empty: it adds zero                 |
| one device under two node ids               | takes two slots, and answers once: its own ledger  |
| another plan: slots, clip, participation    | not asked; if it were, it would refuse             |
| more than ``colluders`` devices report      | training ends: the server was restored from an old |
| later rounds than this one                  | state, and a past round must not get new noise     |
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from dpfed.core.errors import BadReply
from dpfed.core.log import log
from dpfed.training.flower.replies import enrolment_of, replies
from dpfed.training.plan import Plan
from dpfed.training.round import ServerState
from dpfed.training.stopping import nobody_takes_part, set_back
from dpfed.training.wire.codec import CONTROL
from dpfed.training.wire.enrolment import Refusal, enrolled, enrolment
from dpfed.training.wire.responder import LAST, READY, ROUND

_REPLY_TIMEOUT_S = 60.0  # a device that has not said by then whether it takes part is passed over
_QUESTION_TTL_S = 600.0  # then Flower drops the question
_LOOK_INTERVAL_S = 0.5  # between two looks at who is there
_ASKED_PER_FREE_SLOT = 2  # devices: some of them rest, some are gone


class Slots:
    """The slots of a plan with an open population.

    Args:
        plan: what is done, and what it costs.
        grid: Flower's Grid, which sends messages to nodes.
        terms: the text of the training's terms, for owners who approve by rule; or "".
        wait: how many seconds to wait for all slots to be taken.
    """

    def __init__(self, plan: Plan, grid: Grid, *, terms: str = "", wait: float = 60.0) -> None:
        self.plan, self.grid, self.terms, self.wait = plan, grid, terms, wait
        self.nodes: dict[int, int] = {}
        """Slot -> node, for the coming round."""
        self.shipped: bool | None = None
        """Whether any of them answers by an app that the server ships; None before the first."""
        self._refused: Counter[str] = Counter()  # of the coming round, by class
        self._later: list[int] = []  # later rounds that devices have answered, a few of them

    def fill(self, state: ServerState) -> str | None:
        """Find devices for the coming round; a reason to stop, or None.

        Args:
            state: the server before the round.
        """
        self.nodes, self._later = {}, []
        self._refused.clear()
        order = _shuffler(self.plan, state)
        asked: set[int] = set()
        pending: dict[str, int] = {}  # questions without a reply yet -> node
        deadline = time.monotonic() + self.wait
        while True:
            here = order(set(self.grid.get_node_ids()) - asked)
            here = here[: max(0, _ASKED_PER_FREE_SLOT * self._free - len(pending))]
            asked.update(here)
            pending.update(self._ask(here, state))
            self._hear(pending, _REPLY_TIMEOUT_S if here else _LOOK_INTERVAL_S, state.round)
            if reason := set_back(self.plan, state.round, self._later):
                return reason
            if self._free == 0 or time.monotonic() >= deadline:
                return None if self.nodes else self._nobody()
            if not here and not pending:
                time.sleep(min(_LOOK_INTERVAL_S, self.wait))

    @property
    def _free(self) -> int:
        return len(self.plan.nominal) - len(self.nodes)

    def _ask(self, nodes: list[int], state: ServerState) -> dict[str, int]:
        """Ask whether they may take part; the messages, and the node of each."""
        content = enrolment({"training": state.training, ROUND: state.round}, self.terms)
        messages = [Message(content, node, "train", ttl=_QUESTION_TTL_S) for node in nodes]
        pushed = zip(self.grid.push_messages(messages) if nodes else (), nodes, strict=True)
        return {order: node for order, node in pushed if order}

    def _hear(self, pending: dict[str, int], patience: float, round: int) -> None:
        """Read replies until no slot is free; late replies are still accepted in the next call."""
        for reply in replies(self.grid, pending, patience, batch=max(1, len(pending))):
            node = pending.pop(reply.metadata.reply_to_message_id)
            self._admit(node, reply, round)
            if not self._free:
                return

    def _admit(self, node: int, reply: Message, round: int) -> None:
        """Give a device a slot, if it has agreed to this plan and may take part."""
        try:
            _, gated = enrolled(enrolment_of(reply), self.plan)
        except BadReply as error:
            log.debug("node %d takes no part: %s", node, error)
            self._refused[error.reason if isinstance(error, Refusal) else "BadReply"] += 1
            return
        said = reply.content.config_records[CONTROL]
        last = said.get(LAST)
        if type(last) is int and last > round and len(self._later) <= self.plan.colluders:
            self._later.append(last)
        if said.get(READY) is not True:
            self._refused["resting"] += 1
            return
        self.nodes[len(self.nodes)] = node
        self.shipped = bool(self.shipped) or not gated

    def _nobody(self) -> str:
        """Why no device can be asked, from what devices said."""
        resting = self._refused.pop("resting", 0)
        if resting:
            return (
                f"all {resting} devices that are there must rest, or have taken part "
                f"{self.plan.participation}; wait until others come, and resume from the checkpoint"
            )
        if self._refused:
            return nobody_takes_part(self._refused)
        return (
            f"no device was there within {self.wait:g} s, and nothing was spent; start SuperNodes, "
            f"and look at their logs"
        )


def _shuffler(plan: Plan, state: ServerState) -> Callable[[Collection[int]], list[int]]:
    """Puts nodes into a random order, so that the same ones do not come first in each round."""
    stream = plan.noise.stream("slots", state.round, state.attempt)

    def shuffled(nodes: Collection[int]) -> list[int]:
        drawn: Any = stream.words(len(nodes))
        return [node for _, node in sorted(zip(drawn.tolist(), sorted(nodes), strict=True))]

    return shuffled
