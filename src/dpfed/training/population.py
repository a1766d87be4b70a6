# SPDX-License-Identifier: Apache-2.0
"""An open population in this process: devices that come and go, without a list of them.

    there = lambda round: range(round, round + 500)         # who is there in a round
    train(plan, params, Population(plan, problems, there))

Connected devices take the plan's slots in a random order, unless participation forbids it: each
device counts for itself, as its ledger would (core/participation.py). The bits of a result depend
only on who takes part.

| edge case                               | what happens                                           |
|-----------------------------------------|--------------------------------------------------------|
| more are there than slots               | the others are not asked                               |
| fewer, or many within min_separation    | their slots stay empty, and add zero                   |
| nobody may take part                    | training ends, and nothing is spent                    |
| the process dies                        | the devices' counts resume from the checkpoint         |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
import torch

from dpfed.core.errors import DpfedError
from dpfed.core.sum_protocol import StageReply
from dpfed.core.types import Broadcast, Problem, State, Vector
from dpfed.training.account import Account
from dpfed.training.inprocess import Count, InProcess
from dpfed.training.loop import Step
from dpfed.training.plan import Plan
from dpfed.training.reply import ClientState
from dpfed.training.round import ServerState

There = Callable[[int], Iterable[int]]
"""From a round to the devices that are there."""


class Population:
    """A transport to an open population of this process.

    Args:
        plan: what is done, and what it costs; its population is open.
        problems: the devices' data, by number; an item is looked up when its device takes part.
        there: who is there in a round; None means everyone.
        ledger: where releases are entered; all devices of a round in one commit.
    """

    def __init__(
        self,
        plan: Plan,
        problems: Sequence[Problem],
        there: There | None = None,
        ledger: Account | None = None,
    ) -> None:
        self.stores_replies = self.gated = False
        self.roster = None
        self.plan, self.problems, self.ledger = plan, problems, ledger
        self.there = there or (lambda _: range(len(problems)))
        self._inside = InProcess(plan, [], ledger)
        self._counts: dict[int, Count] = {}  # each is its device's own, which took part before
        self._slots: dict[int, int] = {}

    @property
    def refusals(self) -> list[DpfedError]:
        """The errors by which the ledger refused devices; they stay in this process."""
        return self._inside.refusals

    def ready(self, step: Step) -> str | None:
        """Give the slots to connected devices; a reason to stop if none may take part."""
        state, most = step.state, len(self.plan.nominal)
        found = (device for device in self._shuffled(state) if self._may_take_part(device, state))
        self._slots = {device: slot for slot, device in zip(range(most), found, strict=False)}
        self._inside.clients = {
            device: ClientState(
                device, self.problems[device], ledger=self._counts.setdefault(device, Count())
            )
            for device in self._slots
        }
        if self._slots:
            return None
        return (
            f"nobody who is there in round {state.round} may take part "
            f"({self.plan.participation}), and nothing was spent"
        )

    def _shuffled(self, state: ServerState) -> Iterator[int]:
        here = sorted(set(self.there(state.round)))
        drawn = self.plan.noise.stream("slots", state.round, state.attempt).words(len(here))
        return (here[at] for at in drawn.argsort(kind="stable").tolist())

    def _may_take_part(self, device: int, state: ServerState) -> bool:
        """Decided from the device's own count only, never from a record."""
        count = self._counts.get(device)
        taken = [at for at, _ in count.entered] if count else []
        if self.ledger:
            taken += self.ledger.attended(self.plan, state.training, device)
        return self.plan.participation is None or self.plan.participation.allows(state.round, taken)

    def exchange(
        self, broadcast: Broadcast, stage: str, requests: Mapping[str, Mapping[int, bytes]]
    ) -> Iterator[tuple[int, StageReply]]:
        """Ask the devices that have the slots; nothing of them is kept but their counts."""
        devices = {
            name: {device: to[slot] for device, slot in self._slots.items() if slot in to}
            for name, to in requests.items()
        }
        for device, found in self._inside.exchange(broadcast, stage, devices):
            self._inside.clients.pop(device)
            yield self._slots[device], found

    def client_states(self, params: Vector) -> State:
        """When each device took part, as bytes."""
        del params
        entered = {device: sorted(count.entered) for device, count in self._counts.items()}
        kept = msgspec.json.encode({device: each for device, each in entered.items() if each})
        return torch.frombuffer(bytearray(kept), dtype=torch.uint8)

    def restore(self, states: State) -> None:
        """Restore the devices' counts from a checkpoint."""
        kept = bytes(states.tolist())
        found = msgspec.json.decode(kept, type=dict[int, set[tuple[int, int]]])
        self._counts = {device: Count(entered) for device, entered in found.items()}
