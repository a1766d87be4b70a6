# SPDX-License-Identifier: Apache-2.0
"""The reference engine: all clients in this process, one after the other.

It carries the same bytes as any other engine, so that a run gives the same bits everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from dpfed.errors import RoundAborted
from dpfed.round import Answer, Member, Outcome, Progress, answer, play, start
from dpfed.terms import Plan
from dpfed.types import Broadcast, Problem, Vector


def rounds(
    plan: Plan, problems: Sequence[Problem], params: Vector
) -> Iterator[tuple[Progress, Outcome]]:
    """Play the plan's rounds, one per iteration; stop iterating to stop the run."""
    members = {client: Member(client, problem) for client, problem in enumerate(problems)}

    def carry(
        broadcast: Broadcast, stage: str, requests: Mapping[str, Mapping[int, bytes]]
    ) -> Iterable[tuple[int, Answer]]:
        for client in sorted(set().union(*requests.values())):
            asked = {name: to[client] for name, to in requests.items() if client in to}
            reply, members[client] = answer(plan, broadcast, stage, asked, members[client])
            yield client, reply

    progress = start(plan, params)
    while progress.round < plan.rounds:
        with one_thread():
            progress, outcome = play(plan, progress, carry)
        if outcome.aborted:
            raise RoundAborted(f"round {outcome.round} cannot be opened: {outcome.aborted}")
        yield progress, outcome


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread in client work: sums then round the same way on every run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
