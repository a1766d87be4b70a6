# SPDX-License-Identifier: Apache-2.0
"""The reference engine: all clients in this process, one after the other.

It exchanges the same bytes as any other engine, so that a run gives the same bits everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from dpfed.core.errors import ClientRefused, DpfedError, RoundAborted, UnsoundPlan, wire_name
from dpfed.core.log import log
from dpfed.core.sum_protocol import StageReply, Verifier
from dpfed.core.types import Broadcast, Problem, State, Vector
from dpfed.core.vector import one_thread
from dpfed.sums.secagg.identity import simulated
from dpfed.training.account import Account
from dpfed.training.checkpoint import Checkpoint, CommittedRound
from dpfed.training.loop import Step, train
from dpfed.training.plan import Plan
from dpfed.training.reply import ClientState, client_reply
from dpfed.training.round import RoundResult, ServerState, run_round, start
from dpfed.training.stopping import least_clients, nobody_takes_part, too_few_take_part

_Replies = Callable[[Iterable[int]], Iterator[tuple[int, StageReply]]]


class Count:
    """A client's count in memory: each attempt once, and no more of them than the plan has.

    Args:
        entered: the attempts of an earlier process; none if it begins.
    """

    def __init__(self, entered: Iterable[tuple[int, int]] = ()) -> None:
        self.entered = set(entered)

    def begin(self, plan: Plan, broadcast: Broadcast, client: ClientState) -> tuple[int, ...]:
        """Enter an attempt; there are no rows to confirm."""
        del client
        at = broadcast.round, broadcast.attempt
        if at in self.entered or len(self.entered) >= plan.attempts:
            raise UnsoundPlan(
                f"attempts must be new, and at most {plan.attempts}, as the plan accounts for, got "
                f"{at} after {len(self.entered)}; make a new engine for a new training"
            )
        if plan.participation is not None:
            taken = [entered[0] for entered in self.entered]
            plan.participation.refuse_beyond(broadcast.round, taken)
        self.entered.add(at)
        return ()

    def confirm(self, rows: Iterable[int]) -> None:
        """Nothing to do: an attempt counts as made when it is entered."""


class InProcess:
    """A transport to clients of this process: it keeps what they keep.

    Args:
        plan: what is done, and what it costs.
        problems: the clients' data, by client index.
        ledger: where releases are entered; all clients of a round in one commit.
    """

    def __init__(
        self, plan: Plan, problems: Sequence[Problem], ledger: Account | None = None
    ) -> None:
        self.stores_replies = self.gated = False
        count = len(problems)
        signers = simulated(count) if plan.sum.hides_terms else [None] * count
        self.plan, self.ledger = plan, ledger
        self.roster: Verifier | None = signers[0] if signers else None
        self.clients = {
            i: ClientState(i, problem, signer=signers[i], ledger=Count())
            for i, problem in enumerate(problems)
        }
        self.refusals: list[DpfedError] = []
        """The errors by which the ledger refused clients; they stay in this process."""
        self._out: dict[int, DpfedError] | None = None  # those who cannot pay for all of it

    def ready(self, step: Step) -> str | None:
        """Leave out clients that cannot pay for the whole training; a reason to stop, or None."""
        if self._out is None:
            name, known = step.state.training, self.ledger
            self._out = known.refusals(self.plan, name, self.clients) if known else {}
            self._say_refusals(self._out, len(self.clients))
        planned, here = len(self.clients), len(self.clients) - len(self._out)
        if not self._out or here >= least_clients(self.plan):
            return None
        if here:
            return too_few_take_part(map(wire_name, self._out.values()), planned)
        return nobody_takes_part(wire_name(error) for error in self._out.values())

    def exchange(
        self, broadcast: Broadcast, stage: str, requests: Mapping[str, Mapping[int, bytes]]
    ) -> Iterable[tuple[int, StageReply]]:
        """Ask the clients of this process one after the other; any others stay silent."""

        def replies(clients: Iterable[int]) -> Iterator[tuple[int, StageReply]]:
            for client in clients:
                asked = {name: to[client] for name, to in requests.items() if client in to}
                found, self.clients[client] = client_reply(
                    self.plan, broadcast, stage, asked, self.clients[client]
                )
                yield client, found

        asked = set().union(*requests.values()) - set(self._out or ())
        clients = sorted(client for client in asked if client in self.clients)
        if self.ledger and stage == self.plan.sum.release_stage:
            states = [self.clients[client] for client in clients]
            entered = self.ledger.begin_all(self.plan, broadcast, states)
            return self._entered_replies(self.ledger, entered, replies)
        return replies(clients)

    def _entered_replies(
        self,
        ledger: Account,
        entered: Mapping[int, tuple[int, ...] | DpfedError],
        replies: _Replies,
    ) -> Iterator[tuple[int, StageReply]]:
        """The replies of clients whose round is entered; confirmed in one commit at the end."""
        made: list[int] = []
        refused = {client: e for client, e in entered.items() if isinstance(e, DpfedError)}
        self._say_refusals(refused, len(entered))
        for client, error in refused.items():
            yield client, ClientRefused(wire_name(error))
        for client, found in replies(client for client in entered if client not in refused):
            rows = entered[client]
            if not isinstance(found, ClientRefused) and not isinstance(rows, DpfedError):
                made += rows
            yield client, found
        ledger.confirm(made)

    def _say_refusals(self, refused: Mapping[int, DpfedError], asked: int) -> None:
        self.refusals += refused.values()
        for client, error in list(refused.items())[:1]:
            log.warning(
                "%d of %d clients are not entered in the ledger; client %d: %s",
                len(refused),
                asked,
                client,
                error,
            )

    def client_states(self, params: Vector) -> State:
        """All that clients keep between rounds."""
        fresh = self.plan.mechanism_states(params.numel())
        return {
            f"{client:09d}": (
                self.plan.client.init(params) if kept.state is None else kept.state,
                {**fresh, **kept.mechanisms},
                torch.tensor(list(kept.secret), dtype=torch.uint8),
            )
            for client, kept in self.clients.items()
        }

    def restore(self, states: State) -> None:
        """Restore the clients' states from a checkpoint."""
        for client, kept in self.clients.items():
            state, mechanisms, secret = states[f"{client:09d}"]
            self.clients[client] = replace(
                kept, state=state, mechanisms=mechanisms, secret=bytes(secret.tolist())
            )


def rounds(
    plan: Plan,
    problems: Sequence[Problem],
    params: Vector,
    ledger: Account | None = None,
    training: str = "run",
    checkpoint: Checkpoint | None = None,
) -> Iterator[tuple[ServerState, RoundResult]]:
    """The state and the result after each attempt at a round: ``train`` in this process.

    Args:
        plan: what is done, and what it costs.
        problems: the clients' data, by client index.
        params: the model's flat parameters to begin with.
        ledger: where releases are entered before they are made.
        training: the name of this training.
        checkpoint: where the training keeps itself.
    """
    transport = InProcess(plan, problems, ledger)
    for step in train(plan, params, transport, training=training, checkpoint=checkpoint):
        if step.result:
            yield step.state, step.result


def replay(
    plan: Plan, problems: Sequence[Problem], params: Vector, done: Iterable[CommittedRound]
) -> ServerState:
    """The committed rounds of a run once more: the same attempts, and the same clients in each.

    With keyed noise the result is the run's own, bit for bit, whatever crashes it went through.

    Args:
        plan: the run's plan.
        problems: the clients' data, by client index.
        params: the parameters that the run began with.
        done: the rounds that were committed, in their order.
    """
    whole = InProcess(plan, problems)
    everyone = whole.clients
    state = start(plan, params, "replay", whole.roster)
    for each in done:
        whole.clients = {client: everyone[client] for client in each.clients}
        at = replace(state, round=each.round, attempt=each.attempt)
        with one_thread():
            state, result = run_round(plan, at, whole.exchange)
        if result.clients != each.clients:
            raise RoundAborted(
                f"round {each.round} must be replayed with clients {each.clients}, got "
                f"{result.clients} ({result.aborted}); use the run's own plan, data and seed"
            )
        everyone.update(whole.clients)
    return state
