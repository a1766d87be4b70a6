# SPDX-License-Identifier: Apache-2.0
"""A run that dies where one says, and the exchange that goes on from its checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dpfed.audit.client_laws import MODEL
from dpfed.core.types import Broadcast
from dpfed.sums.secagg.identity import simulated
from dpfed.training.checkpoint import Checkpoint, CommittedRound
from dpfed.training.plan import Plan
from dpfed.training.reply import client_reply
from dpfed.training.round import Exchange, ServerState, run_round, start
from tests.helpers.rounds import SIZES, client_states


class Died(Exception):
    """The process is gone."""


def exchange_of(plan: Plan) -> Exchange:
    people = {
        i: replace(m, signer=simulated(len(SIZES))[i]) for i, m in client_states(SIZES).items()
    }

    def exchange(broadcast: Broadcast, stage: str, requests):  # type: ignore[no-untyped-def]
        for client in sorted(set().union(*requests.values())):
            asked = {name: to[client] for name, to in requests.items()}
            reply, people[client] = client_reply(plan, broadcast, stage, asked, people[client])
            yield client, reply

    return exchange


def run(
    plan: Plan,
    folder: Path,
    exchange: Exchange,
    die: Callable[[int, str], bool] = lambda at, when: False,
) -> tuple[ServerState, tuple[CommittedRound, ...]]:
    """Rounds with a checkpoint; ``die(round, when)`` says where the process ends."""
    checkpoint = Checkpoint(folder)
    fresh = start(plan, MODEL.initial(0))
    saved = checkpoint.load(plan, fresh)
    now, done = (saved.state, list(saved.committed)) if saved else (fresh, [])
    while now.round < plan.rounds:
        at = now.round
        if die(at, "before"):
            raise Died
        checkpoint.ask(now)
        if die(at, "asked"):
            raise Died
        after, result = run_round(plan, now, exchange)
        if die(at, "completed"):
            raise Died
        if not result.aborted:
            done.append(CommittedRound(now.round, now.attempt, result.clients))
        now = after
        checkpoint.commit(plan, now, done, [{"round": each.round} for each in done])
        if die(at, "committed"):
            raise Died
    return now, tuple(done)
