# SPDX-License-Identifier: Apache-2.0
"""The reference engine: all clients in this process, one after the other.

It carries the same bytes as any other engine, so that a run gives the same bits everywhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from dpfed.core.errors import BudgetSpent, ClientRefused, DpfedError, RoundAborted, wire_name
from dpfed.core.types import Broadcast, Problem, State, Vector
from dpfed.core.vector import one_thread
from dpfed.sums.secagg.identity import simulated
from dpfed.training.account import Account
from dpfed.training.checkpoint import Checkpoint, Played, played
from dpfed.training.plan import Plan
from dpfed.training.round import (
    Answer,
    Carry,
    Member,
    Outcome,
    Progress,
    affords,
    answer,
    play,
    start,
)

log = logging.getLogger("dpfed")

Reply = Callable[[int], Answer]


def rounds(
    plan: Plan,
    problems: Sequence[Problem],
    params: Vector,
    ledger: Account | None = None,
    training: str = "run",
    checkpoint: Checkpoint | None = None,
    history: Sequence[Mapping[str, Any]] = (),
) -> Iterator[tuple[Progress, Outcome]]:
    """Play the plan's rounds, one per iteration; stop iterating to stop the run.

    With a ledger, all clients of a round are booked in one commit, under the training's name. When
    nobody's budget suffices for a further round, the rounds end, and what was trained stays.

    With a checkpoint, all that the round knows (of the clients, too) is on the disk before the next
    one begins, with the rows of ``history`` that the caller has made by then; a run that died goes
    on after the last of them. Attempts that died with it are spent: if the next round would exceed
    what the plan promises, the rounds end there.
    """
    with checkpoint.held() if checkpoint else nullcontext():
        yield from _rounds(plan, problems, params, ledger, training, checkpoint, history)


def _rounds(
    plan: Plan,
    problems: Sequence[Problem],
    params: Vector,
    ledger: Account | None,
    training: str,
    checkpoint: Checkpoint | None,
    history: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[Progress, Outcome]]:
    members, progress = _seated(plan, problems, params, training)
    done: list[Played] = []
    saved = checkpoint and checkpoint.load(plan, progress, _kept(plan, members, params))
    if saved:
        progress, done = saved.progress, list(saved.played)
        members.update(_restored(members, saved.clients))
    refused: list[DpfedError] = []
    carry = _carrier(plan, members, ledger, refused)
    while progress.round < plan.rounds:
        before = progress
        if checkpoint:
            if not affords(plan, before):
                log.warning("the next round would exceed what the plan promises")
                return
            checkpoint.ask(before)
        with one_thread():
            progress, outcome = play(plan, before, carry)
        if outcome.exhausted:
            _refuse_without(progress, refused)
            return
        if outcome.aborted:
            raise RoundAborted(
                f"round {outcome.round} cannot be opened: {outcome.aborted}; the log says why "
                f"clients are missing"
            )
        yield progress, outcome
        done.append(played(before, outcome))
        if checkpoint:
            kept = _kept(plan, members, params)
            checkpoint.commit(plan, progress, done, history, kept)


def _seated(
    plan: Plan, problems: Sequence[Problem], params: Vector, training: str
) -> tuple[dict[int, Member], Progress]:
    """The clients and the server before the first round; one machine is everyone."""
    signers = simulated(len(problems)) if plan.sum.hides_terms else [None] * len(problems)
    members = {i: Member(i, problem, signer=signers[i]) for i, problem in enumerate(problems)}
    return members, start(plan, params, training, roster=signers[0])


def _carrier(
    plan: Plan,
    members: dict[int, Member],
    ledger: Account | None = None,
    refused: list[DpfedError] | None = None,
) -> Carry:
    """Asks those who are here, and keeps what they keep; others are silent.

    Why clients were not booked is added to ``refused``.
    """

    def carry(
        broadcast: Broadcast, stage: str, requests: Mapping[str, Mapping[int, bytes]]
    ) -> Iterable[tuple[int, Answer]]:
        def reply(client: int) -> Answer:
            asked = {name: to[client] for name, to in requests.items() if client in to}
            found, members[client] = answer(plan, broadcast, stage, asked, members[client])
            return found

        clients = sorted(set().union(*requests.values()) & set(members))
        if ledger and stage == plan.sum.release_stage:
            asked = [members[client] for client in clients]
            booked = ledger.begin_all(plan, broadcast, asked)
            if refused is not None:
                refused.extend(r for r in booked.values() if isinstance(r, DpfedError))
            return _booked(ledger, booked, reply)
        return ((client, reply(client)) for client in clients)

    return carry


def _kept(plan: Plan, members: Mapping[int, Member], params: Vector) -> State:
    """What clients keep between rounds, as a checkpoint takes it."""
    fresh = plan.mechanism_states(params.numel())
    return {
        f"{client:09d}": (
            plan.client.init(params) if member.state is None else member.state,
            {**fresh, **member.mechanisms},
            torch.tensor(list(member.secret), dtype=torch.uint8),
        )
        for client, member in members.items()
    }


def _restored(members: Mapping[int, Member], kept: State) -> dict[int, Member]:
    found = {}
    for client, member in members.items():
        state, mechanisms, secret = kept[f"{client:09d}"]
        private = bytes(secret.tolist())
        found[client] = replace(member, state=state, mechanisms=mechanisms, secret=private)
    return found


def replay(
    plan: Plan, problems: Sequence[Problem], params: Vector, done: Iterable[Played]
) -> Progress:
    """The committed rounds of a run once more: the same attempts, and the same clients in each.

    With keyed noise the result is the run's own, bit for bit, whatever crashes it went through.
    """
    members, progress = _seated(plan, problems, params, "replay")
    for each in done:
        taking_part = {client: members[client] for client in each.clients}
        at = replace(progress, round=each.round, attempt=each.attempt)
        with one_thread():
            progress, outcome = play(plan, at, _carrier(plan, taking_part))
        if outcome.clients != each.clients:
            raise RoundAborted(f"round {each.round} was not replayed: {outcome.aborted}")
        members.update(taking_part)
    return progress


def _booked(
    ledger: Account, booked: Mapping[int, tuple[int, ...] | DpfedError], reply: Reply
) -> Iterator[tuple[int, Answer]]:
    """The answers of those whose round is booked; confirmed in one commit at the end."""
    made: list[int] = []
    refused = {client: rows for client, rows in booked.items() if isinstance(rows, DpfedError)}
    for client, error in list(refused.items())[:1]:
        log.warning(
            "%d of %d clients are not booked; client %d: %s",
            len(refused), len(booked), client, error,
        )  # fmt: skip
    for client, rows in booked.items():
        if isinstance(rows, DpfedError):
            yield client, ClientRefused(wire_name(rows))
            continue
        found = reply(client)
        made += () if isinstance(found, ClientRefused) else rows
        yield client, found
    ledger.confirm(made)


def _refuse_without(progress: Progress, refused: Sequence[DpfedError]) -> None:
    """The budget is spent: that ends a run that has begun, and refuses one that has not."""
    if not progress.round:
        why = refused[0] if refused else "see 'dpfed ledger show'"
        raise BudgetSpent(f"no round could be played, since no client's budget suffices: {why}")
