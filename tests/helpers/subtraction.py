# SPDX-License-Identifier: Apache-2.0
"""A server that drops clients so as to subtract one sum from another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from dpfed.core.errors import ClientRefused
from dpfed.core.randomness import Noise
from dpfed.core.registry import build
from dpfed.core.sum_protocol import StageReply
from dpfed.core.types import UPDATE, Facts, Trust
from dpfed.mechanisms.gaussian import gaussian
from dpfed.sums.secure import secure
from dpfed.training.plan import Plan
from dpfed.training.round import RoundResult, run_round, start
from tests.attacks.asking import app_of, exchange_with

SIZE, CLIENTS, STD = 3000, 5, 20.0


EVERYONE, FEWER = (0, 1, 2, 3, 4), (0, 1, 2, 3)


Drop = Callable[[str, int], bool]


class Server:
    """Asks for round 0 again and again, as it likes, and keeps what it hears."""

    def __init__(self) -> None:
        noise = gaussian(Facts(1.0, trust=Trust.DISTRIBUTED), STD, shares=2)
        self.plan = Plan(
            client=build("client", "gradient", {}),
            channels={UPDATE: noise},
            sum=secure(),
            server=build("server", "scale", {}),
            nominal=[4.0] * CLIENTS,
            rounds=9,
            noise=Noise(),
        )
        self.app = app_of(self.plan, size=SIZE)
        self.state = start(self.plan, torch.zeros(SIZE))
        self.heard: list[tuple[str, int, StageReply]] = []

    def round(
        self,
        attempt: int,
        cohort: tuple[int, ...] = EVERYONE,
        drop: Drop = lambda *_: False,
        before: str = "",
    ) -> RoundResult:
        """Stages until the one that it dies before; answers that it drops are as if not there."""
        self.heard = []
        inner = exchange_with(self.app, self.plan, lambda *what: self.heard.append(what))

        def exchange(at: Any, stage: str, requests: Any) -> Iterator[tuple[int, StageReply]]:
            for client, found in inner(at, stage, requests) if stage != before else ():
                if not drop(stage, client):
                    yield client, found

        state = replace(self.state, attempt=attempt, cohort=cohort)
        return run_round(self.plan, state, exchange)[1]

    def words(self, stage: str = "input") -> dict[int, Any]:
        """What each client said in a stage: bytes, or the name of a refusal."""
        return {
            client: str(found) if isinstance(found, ClientRefused) else found["sum"]
            for asked, client, found in self.heard
            if asked == stage
        }
