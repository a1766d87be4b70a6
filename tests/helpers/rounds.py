# SPDX-License-Identifier: Apache-2.0
"""A plan of three clients, their states, and a wire that carries one round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dpfed.audit.client_laws import MODEL
from dpfed.core.randomness import Noise
from dpfed.core.registry import build
from dpfed.core.sum_protocol import StageReply
from dpfed.core.types import (
    UPDATE,
    Broadcast,
    Facts,
)
from dpfed.mechanisms.gaussian import gaussian
from dpfed.sums.plain import plain
from dpfed.training.plan import Plan
from dpfed.training.reply import ClientState, client_reply
from tests.helpers.records import make_records

SIZES = [12, 30, 21]


def make_plan(**changes: Any) -> Plan:
    options: dict[str, Any] = {
        "client": build("client", "gradient", {}),
        "channels": {UPDATE: gaussian(Facts(clip=1.0), std=2.0)},
        "sum": plain(),
        "server": build("server", "scale", {"rate": 0.5}),
        "nominal": SIZES,
        "rounds": 4,
        "noise": Noise(0),
    }
    return Plan(**{**options, **changes})


def client_states(sizes: list[int] = SIZES) -> dict[int, ClientState]:
    return {
        i: ClientState(i, MODEL.problem(make_records(m, 4, 3, seed=i))) for i, m in enumerate(sizes)
    }


class Wire:
    """Exchanges messages; tests tamper with them on the way."""

    def __init__(self, plan: Plan, people: dict[int, ClientState], order: int = 1) -> None:
        self.plan, self.people, self.order = plan, people, order

    def __call__(
        self, broadcast: Broadcast, stage: str, requests: Mapping[str, Mapping[int, bytes]]
    ) -> Iterable[tuple[int, StageReply]]:
        for client in sorted(self.people)[:: self.order]:
            asked = dict.fromkeys(requests, b"")
            reply, self.people[client] = client_reply(
                self.plan, broadcast, stage, asked, self.people[client]
            )
            yield from self.tamper(client, reply)

    def tamper(self, client: int, reply: StageReply) -> Iterable[tuple[int, StageReply]]:
        yield client, reply
