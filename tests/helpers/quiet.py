# SPDX-License-Identifier: Apache-2.0
"""A transport that is silent, or dies, when it is asked to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dpfed.core.sum_protocol import StageReply
from dpfed.core.types import Broadcast
from dpfed.training.loop import Transport

Silent = Callable[[Broadcast, str, int], bool]


class Died(Exception):
    """The server's process is gone."""


class Quiet:
    """A transport some of whose answers never arrive; ``die`` ends the process instead."""

    def __init__(self, inner: Transport, silent: Silent, die: bool = False) -> None:
        self.inner, self.silent, self.die = inner, silent, die
        self.roster = inner.roster

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def exchange(
        self, broadcast: Broadcast, stage: str, requests: Any
    ) -> Iterator[tuple[int, StageReply]]:
        for client, answer in self.inner.exchange(broadcast, stage, requests):
            if self.silent(broadcast, stage, client):
                if self.die:
                    raise Died
                continue
            yield client, answer
