# SPDX-License-Identifier: Apache-2.0
"""The training loop: rounds until the plan's end, or until there is a reason to stop.

    for step in train(plan, params, transport):     an engine gives the transport, and nothing else
        step.history[-1], step.state, step.stopped

One policy for every engine (tests/training/test_loop.py has a test per cell):

| when                                     | in one process | simulation   | deployment   |
|------------------------------------------|----------------|--------------|--------------|
| a round aborts before releases are asked | again, free    | again, free  | again, free  |
| no reply, or too few for a total         | again, spent   | same, spent  | same, spent  |
| fewer than sum.least_clients answer      | ends           | ends         | ends         |
| fewer than sum.least_clients enrol       | cannot happen  | ends         | ends         |
| the plan's guarantee affords no more     | ends           | ends         | ends         |
| every client's own budget is spent       | ends           | ends         | ends         |
| the code of some clients raises          | left out       | left out     | left out     |
| the code of every client raises          | again, spent   | again, spent | again, spent |
| no client is connected                   | cannot happen  | ends         | ends         |
| the process dies                         | resumes        | begins anew  | resumes      |

again, free   a new attempt; nothing is spent. MAX_FAILED_ATTEMPTS in a row end the training
again, spent  a new attempt at full cost; MAX_FAILED_ATTEMPTS in a row end the training
same, spent   first the same attempt in the same bytes, once those who were lost are back; then anew
ends          nothing more is asked for
left out      the error's name is in the row, and the round continues with the others
resumes       from its checkpoint, if it has one; an attempt that died counts as spent, once

At the end the model, the history and the guarantee of what was spent are kept. A recipe's run that
completed no round raises BudgetSpent or RoundAborted. ``DPStrategy.start`` does so if nothing was
spent; if something was, it returns and says why training ended (``stopped``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from dpfed._version import VERSION
from dpfed.core.log import log
from dpfed.core.sum_protocol import StageReply, Verifier
from dpfed.core.types import Broadcast, State, Trust, Vector
from dpfed.core.vector import one_thread
from dpfed.training.checkpoint import Checkpoint, CommittedRound, committed_round
from dpfed.training.history import Row, make_row
from dpfed.training.plan import Plan
from dpfed.training.round import RoundResult, ServerState, run_round, start
from dpfed.training.stopping import (
    exceeds,
    least_clients,
    reason_to_stop,
    same_attempt,
    too_few_replied,
)

Judge: TypeAlias = Callable[[int, Vector], Mapping[str, float | None]]
"""What the server itself measures after a round (accuracy, loss), from its number and the model."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Step:
    """The state of a training: as it was found, after an attempt at a round, or at its end."""

    state: ServerState
    result: RoundResult | None = None
    """How the attempt ended; None if none was made."""
    history: tuple[Row, ...] = ()
    committed: tuple[CommittedRound, ...] = ()
    stopped: str | None = None
    """Why training ends before the rounds that were asked for."""
    gated: bool | None = None
    """Whether all enrolled clients said, in each attempt, that they were behind their owners'
    gates; None before the first attempt."""


class Transport(Protocol):
    """How an engine reaches clients."""

    @property
    def roster(self) -> Verifier | None:
        """The clients' public keys, for a sum that asks for signatures; None if there are none."""

    @property
    def stores_replies(self) -> bool:
        """Whether clients keep what they sent, and send it again for the same order."""

    @property
    def gated(self) -> bool:
        """Whether all enrolled clients say that they are behind their owners' gates."""

    def ready(self, step: Step) -> str | None:
        """Before a round: find out who is connected. A reason to stop, or None."""

    def exchange(
        self, broadcast: Broadcast, stage: str, requests: Mapping[str, Mapping[int, bytes]]
    ) -> Iterable[tuple[int, StageReply]]:
        """Take a stage's requests to clients, bring their replies back one by one."""

    def client_states(self, params: Vector) -> State:
        """What a checkpoint keeps for clients that keep nothing themselves."""

    def restore(self, states: State) -> None:
        """Restore the clients' states from a checkpoint."""


def train(
    plan: Plan,
    params: Vector,
    transport: Transport,
    *,
    training: str = "run",
    checkpoint: Checkpoint | None = None,
    judge: Judge | None = None,
    until: int | None = None,
) -> Iterator[Step]:
    """Run the plan's rounds: where the training stands first, then one step per attempt.

    With a checkpoint, a step is on the disk before it is yielded, and a training resumes after it.

    Args:
        plan: what is done, and what it costs.
        params: the model's flat parameters to begin with.
        transport: how clients are reached.
        training: the name of this training, stable when it is resumed.
        checkpoint: where the training keeps itself.
        judge: what the server measures of the model after each completed round.
        until: end after this many rounds; None means all of the plan's.
    """
    last = plan.rounds if until is None else until
    failures = 0
    asked: dict[int, bool] = {}  # client -> whether it answered when it was asked last
    with checkpoint.held() if checkpoint else nullcontext():
        step = _found(plan, start(plan, params, training, transport.roster), transport, checkpoint)
        yield step
        while step.state.round < last and not step.stopped:
            step = replace(step, result=None)  # its vectors are not needed while a round runs
            reason = exceeds(plan, step.state) or transport.ready(step)
            if reason is None:
                step = _attempt(plan, step, transport, checkpoint, judge)
                if step.state.counts_before is None:  # else the same attempt is asked for again
                    failures = failures + 1 if step.result and step.result.aborted else 0
                reason = reason_to_stop(step.result, failures)
                if step.state.round < last:  # after the last round there is nothing to end
                    reason = reason or _too_few(plan, step, asked)
            if reason:
                log.warning("stopping after %d rounds: %s", step.state.round, reason)
            step = replace(step, stopped=reason)
            yield step


def _too_few(plan: Plan, step: Step, asked: dict[int, bool]) -> str | None:
    """Why to stop after a completed round: too few clients reply. Notes who did."""
    result = step.result
    if result is None or result.aborted or least_clients(plan) <= 1:
        return None
    asked.update(dict.fromkeys(result.missing, False))
    asked.update(dict.fromkeys(result.clients, True))
    return too_few_replied(plan, step.state, asked)


def _found(
    plan: Plan, fresh: ServerState, transport: Transport, checkpoint: Checkpoint | None
) -> Step:
    """Where the training stands: at its beginning, or where a checkpoint left it."""
    # an attempt is repeated in the same bytes, except where the server adds the noise and clients
    # would accept a new attempt
    repeats = plan.update.trust is not Trust.CENTRAL or plan.participation is not None
    again = transport.stores_replies and repeats
    form = transport.client_states(fresh.params) if checkpoint else None
    saved = checkpoint and checkpoint.load(plan, fresh, form, again)
    if not saved:
        return Step(state=fresh)
    transport.restore(saved.clients)
    log.info("resuming after round %d", saved.state.round)
    if saved.made_by != VERSION:
        log.warning(
            "another version made the rounds so far: dpfed %s, and this is %s; what was spent "
            "counts on, but the rounds to come may have other bits than those of one version",
            saved.made_by,
            VERSION,
        )
    return Step(
        state=saved.state,
        history=tuple(saved.history),
        committed=saved.committed,
        gated=saved.gated,
    )


def _attempt(
    plan: Plan,
    step: Step,
    transport: Transport,
    checkpoint: Checkpoint | None,
    judge: Judge | None,
) -> Step:
    """One attempt at the coming round; on the disk when it returns."""
    before, began = step.state, time.perf_counter()
    gated = step.gated is not False and transport.gated  # whoever of them is drawn, or answers
    if checkpoint:
        checkpoint.ask(before, gated)
    with one_thread():
        state, result = run_round(plan, before, transport.exchange)
    seconds = time.perf_counter() - began
    state = same_attempt(plan, before, state, result) if transport.stores_replies else state
    judged = judge(state.round, state.params) if judge and not result.aborted else {}
    row = make_row(plan, state, result, judged, seconds)
    done = () if result.aborted else (committed_round(plan, before, result.clients),)
    history, committed = (*step.history, row), (*step.committed, *done)
    after = Step(state=state, result=result, history=history, committed=committed, gated=gated)
    if checkpoint:
        kept = transport.client_states(state.params)
        checkpoint.commit(plan, state, committed, history, kept)
    return after
