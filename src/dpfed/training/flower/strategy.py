# SPDX-License-Identifier: Apache-2.0
"""DPStrategy: the server's side of a Flower app.

    strategy = dpfed.flower.DPStrategy(plan)
    result = strategy.start(grid, initial_arrays=ArrayRecord(model.state_dict()))
    result.arrays, result.guarantee, result.history

It is a Flower Strategy with a ``start`` of its own, since Flower's loop can neither stop, nor
stream replies, nor ask a second stage. ``round.play`` is the round; here is only what carries its
bytes: nodes enrol once with their client index, replies are pulled a few at a time, checked, added
and dropped, so that the server's memory is O(d) whatever the number of clients.

| edge case                                     | what happens                               |
|-----------------------------------------------|--------------------------------------------|
| a node drops out                              | it contributes zero, the divisor is public |
| a late, forged, doubled or malformed reply    | refused, logged; the round goes on         |
| the next round would exceed the promise       | training stops, and nothing is lost        |
| nobody answers                                | booked as spent, tried again; three times  |
|                                               | in a row end the training                  |
| a secure sum lacks keys, three times in a row | training stops, and nothing is spent       |
| nobody is connected                           | training stops, and nothing is spent       |
| the process dies                              | it goes on from its checkpoint, if any     |
| all who answer say that their budget is spent | training stops, and the model is kept      |
| a node that the plan does not know, or twice  | not enrolled, with a logged reason         |
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from dpfed.accounting.guarantee import Guarantee
from dpfed.core.errors import BadReply, ClientRefused, UnsoundPlan
from dpfed.core.types import Broadcast
from dpfed.core.vector import Layout, layout_of, one_thread
from dpfed.sums.secagg.identity import roster_from_environment
from dpfed.training.checkpoint import Checkpoint, Played, played
from dpfed.training.flower.client import ENROL
from dpfed.training.flower.codec import CONTROL, At, Envelope, Sender, named_arrays, read_answer
from dpfed.training.plan import Plan, small_delta
from dpfed.training.round import Answer, Outcome, Progress, affords, play, publish, start

log = logging.getLogger("flwr")

_IN_FLIGHT = 4 << 20  # bytes of replies that are pulled at once: keeps memory flat at large d
_POLL, _SLOWEST = 0.01, 0.25  # seconds between two looks for replies: rarer, the longer it takes

PATIENCE = 3
"""Rounds in a row that may fail: for want of clients' keys, or since every client's code raises."""

Requests = Mapping[str, Mapping[int, bytes]]
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass
class DPResult(Result):
    """Flower's result with what a private run adds."""

    guarantee: Guarantee | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    stopped: str | None = None
    """Why training ended before the rounds that were asked for, if it did."""


class DPStrategy(Strategy):
    """A private strategy: a Plan over Flower.

    Args:
        plan: what is done, and what it costs.
        training: the name of this training, stable across Flower runs; clients keep state under it.
        wait: how many seconds to wait for all clients of the plan before the first round.
        watch: called after each round with its row of the history; ``dpfed.flower.open_sinks``
            makes one for TensorBoard, MLflow or CSV.
        checkpoint: a folder on the server's disk; a training that died there goes on from the
            last committed round, under the same name.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        training: str = "run",
        wait: float = 60.0,
        watch: Callable[[dict[str, Any]], None] | None = None,
        checkpoint: str | Path | None = None,
    ) -> None:
        self.plan, self.training, self.wait, self.watch = plan, training, wait, watch
        self.checkpoint = None if checkpoint is None else Checkpoint(Path(checkpoint))
        self.played: list[Played] = []
        self.progress: Progress | None = None
        self.layout: Layout | None = None
        self._nodes: dict[int, int] = {}  # client -> node
        self._asked: set[int] = set()  # nodes that were asked to enrol
        self._failed = 0  # rounds in a row: free ones would never end, others waste the budget
        self._in_vain = False  # whether releases of the last round were asked for: spent
        self._exhausted = False  # nobody could pay for the last round

    # ------------------------------------------------------------------------------ the run

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> DPResult:
        """Play the plan's rounds (or the first ``num_rounds`` of them) and return all there is."""
        del evaluate_config  # a client's metrics have a priced channel of their own, or stay there
        with self.checkpoint.held() if self.checkpoint else nullcontext():
            self._begin(initial_arrays)
            config = train_config or ConfigRecord()
            return self._play(grid, initial_arrays, num_rounds, timeout, config, evaluate_fn)

    def _play(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None,
        timeout: float,
        config: ConfigRecord,
        evaluate_fn: EvaluateFn | None,
    ) -> DPResult:
        self.summary()
        result = DPResult(arrays=initial_arrays, history=self._past)
        wanted = self.plan.rounds if num_rounds is None else num_rounds
        while self._now.round < wanted:
            result.stopped = self._reason_to_stop(grid)
            if result.stopped:
                log.warning("stopping after %d rounds: %s", self._now.round, result.stopped)
                break
            self._one_round(grid, timeout, config, result, evaluate_fn)
            result.stopped = self._reason_to_end()
            if result.stopped:
                log.warning("stopping: %s", result.stopped)
                break
        result.arrays = self._arrays()
        result.guarantee = self.plan.guarantee(self._now.books, self._now.round)
        log.info("%s", result.guarantee)
        return result

    def _one_round(
        self,
        grid: Grid,
        timeout: float,
        config: ConfigRecord,
        result: DPResult,
        evaluate_fn: EvaluateFn | None,
    ) -> None:
        began = time.perf_counter()
        carry = _Carrier(self, grid, config, timeout)
        before = self._now
        if self.checkpoint:
            self.checkpoint.ask(before)
        with one_thread():
            self.progress, outcome = play(self.plan, before, carry)
        self._failed = self._failed + 1 if outcome.aborted else 0
        self._in_vain = outcome.spent
        self._exhausted = outcome.exhausted
        row = self._row(outcome, time.perf_counter() - began)
        result.history.append(row)
        _add_metrics(row, result)
        if evaluate_fn and not outcome.aborted:
            measured = evaluate_fn(self._now.round, self._arrays())
            if measured is not None:
                result.evaluate_metrics_serverapp[self._now.round] = measured
                _add_judged(row, measured)
        if self.watch:
            self.watch(row)
        self.played += [] if outcome.aborted else [played(before, outcome)]
        if self.checkpoint:
            self.checkpoint.commit(self.plan, self._now, self.played, result.history)

    def _reason_to_stop(self, grid: Grid) -> str | None:
        if not affords(self.plan, self._now):
            return "the next round would exceed what the plan promises"
        self._enrol(grid, wait=0.0 if self._nodes else self.wait)
        if self._nodes:
            self._count_clients()
            return None
        return (
            f"no client was connected within {self.wait:g} s; start {len(self.plan.nominal)} "
            f"SuperNodes, and look at their logs"
        )

    def _count_clients(self) -> None:
        """Say before the first round that the plan counts on more clients than there are."""
        here, planned = len(self._nodes), len(self.plan.nominal)
        if self._now.round == 0 and self._now.attempt == 0 and here < planned:
            log.warning(
                "%d of the plan's %d clients are connected, and the budget is spent all the same; "
                "in a simulation give --federation-config 'num-supernodes=%d'",
                here, planned, planned,
            )  # fmt: skip

    def _reason_to_end(self) -> str | None:
        if self._exhausted:
            return "no client's budget suffices for a further round"
        if self._failed < PATIENCE:
            return None
        if self._in_vain:
            return f"{PATIENCE} rounds in a row got no release; the clients' logs say why"
        return f"{PATIENCE} rounds in a row failed before any release was asked for"

    def _begin(self, arrays: ArrayRecord) -> None:
        tensors = arrays.to_torch_state_dict()
        self.layout = layout_of(tensors)
        roster = (
            roster_from_environment(len(self.plan.nominal)) if self.plan.sum.hides_terms else None
        )
        params = self.layout.flatten(tensors)
        self.progress, self.played = start(self.plan, params, self.training, roster), []
        self._past: list[dict[str, Any]] = []
        saved = self.checkpoint and self.checkpoint.load(self.plan, self.progress)
        if saved:
            self.progress, self.played = saved.progress, list(saved.played)
            self._past = saved.history
            log.info("going on after round %d", saved.progress.round)

    @property
    def _now(self) -> Progress:
        if self.progress is None:
            raise BadReply("the strategy has not been started; call start(grid, initial_arrays)")
        return self.progress

    def _arrays(self) -> ArrayRecord:
        return named_arrays(self.layout or Layout({}), self._now.params)

    def _row(self, outcome: Outcome, seconds: float) -> dict[str, Any]:
        spent = self.plan.guarantee(self._now.books, self._now.round)
        row = {
            "round": self._now.round,
            "epsilon": spent.claims[0].epsilon,
            "epsilon_others": spent.claims[-1].epsilon,
            "surplus": self.plan.surplus(len(outcome.clients)),
            "clients": len(outcome.clients),
            "missing": list(outcome.missing),
            "refused": dict(outcome.refused),
            **outcome.measured(self.plan.loss_bound),
            "snr": outcome.snr,
            "aborted": outcome.aborted,
            "seconds": seconds,
        }
        log.info(
            "round %d/%d: %d clients, epsilon spent %.3g%s",
            self._now.round, self.plan.rounds, row["clients"], row["epsilon"],
            f", missing {row['missing']}" if row["missing"] else "",
        )  # fmt: skip
        return row

    # ------------------------------------------------------------------------------ the nodes

    def _enrol(self, grid: Grid, wait: float) -> None:
        """Ask nodes not seen before who they are; wait for the plan's clients at the beginning."""
        deadline = time.monotonic() + wait
        while True:
            online = set(grid.get_node_ids())
            self._nodes = {client: node for client, node in self._nodes.items() if node in online}
            self._asked &= online
            fresh = sorted(online - self._asked)
            if fresh:
                self._ask(grid, fresh)
            if len(self._nodes) == len(self.plan.nominal) or time.monotonic() >= deadline:
                return
            time.sleep(0.5)

    def _ask(self, grid: Grid, nodes: list[int]) -> None:
        content = RecordDict({CONTROL: ConfigRecord({"stage": ENROL})})
        messages = [Message(content, node, "train", ttl=600) for node in nodes]
        sent = dict(zip(grid.push_messages(messages), nodes, strict=True))
        for reply in _replies(grid, sent, 60.0, batch=len(sent)):
            node = sent[reply.metadata.reply_to_message_id]
            self._asked.add(node)
            self._admit(node, reply)

    def _admit(self, node: int, reply: Message) -> None:
        try:
            client = _enrolled(reply, self.plan)
            if client in self._nodes:
                raise BadReply(
                    f"client {client} is enrolled by another node; give each its own partition-id"
                )
            self._nodes[client] = node
        except BadReply as error:
            log.warning("node %d is not enrolled: %s", node, error)

    def _orders(
        self, sender: Sender, stage: str, requests: Requests, ttl: float
    ) -> dict[int, Message]:
        """A message for each enrolled client that the stage asks."""
        orders: dict[int, Message] = {}
        contents: dict[tuple[Any, ...], RecordDict] = {}
        for client, node in sorted(self._nodes.items()):
            asked = {name: to[client] for name, to in requests.items() if client in to}
            if not asked:
                continue
            bare, since = stage != self.plan.sum.release_stage, self._since(client)
            key = (since, *asked.items())
            if key not in contents:
                contents[key] = sender.order(stage, asked, bare, since)
            group = str(sender.broadcast.round + 1)
            orders[client] = Message(contents[key], node, "train", ttl=ttl, group_id=group)
        return orders

    def _since(self, client: int) -> At | None:
        """From where a client's state goes on: the last total that it is in, committed and all."""
        counted = (each for each in reversed(self.played) if client in each.clients)
        return next(((each.round, each.attempt) for each in counted), None)

    def _sender(self, broadcast: Broadcast, config: ConfigRecord) -> Sender:
        layout, mark = self.layout or Layout({}), self.plan.fingerprint()
        return Sender(layout, mark, config, broadcast)

    # ------------------------------------------------------- Flower's own loop, for one stage

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of a round, for those who drive Flower's own loop."""
        if self.progress is None:
            self._begin(arrays)
        if not affords(self.plan, self._now):
            log.warning("round %d is not asked for: it would exceed the promise", server_round)
            return []
        self._enrol(grid, wait=self.wait if server_round == 1 else 0.0)
        if len(self.plan.sum.stages) > 1:
            raise UnsoundPlan(
                f"Flower's own loop has one exchange per round, and this sum needs "
                f"{len(self.plan.sum.stages)}; call DPStrategy.start"
            )
        if self.checkpoint:
            raise UnsoundPlan("Flower's own loop keeps no checkpoint; call DPStrategy.start")
        due = self.plan.due(self._now.round)
        asked = {name: self.plan.cohort(name, self._now.cohort) for name in due}
        requests = {name: dict.fromkeys(clients, b"") for name, clients in asked.items()}
        sender = self._sender(publish(self.plan, self._now), config)
        return list(self._orders(sender, self.plan.sum.stages[0], requests, 3600).values())

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The step from a round's replies, for those who drive Flower's own loop."""
        del server_round
        if not affords(self.plan, self._now):
            return None, None
        clients = {node: client for client, node in self._nodes.items()}

        def carry(broadcast: Broadcast, stage: str, _: Requests) -> Iterator[tuple[int, Answer]]:
            for reply in replies:
                client = clients.get(reply.metadata.src_node_id)
                if client is not None:
                    due = Envelope(broadcast.round, broadcast.attempt, stage, client)
                    yield client, _answer(reply, due)

        before = self._now
        self.progress, outcome = play(self.plan, before, carry)
        self.played += [] if outcome.aborted else [played(before, outcome)]
        return self._arrays(), _spent(self._row(outcome, 0.0))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing: a metric that leaves a client is a release, and has its own priced channel."""
        del server_round, arrays, config, grid
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Nothing: see configure_evaluate."""
        del server_round, replies
        return None

    def summary(self) -> None:
        """Log the promise before the first round."""
        log.info("DPStrategy: %s", self.plan.promise())
        warning = small_delta(self.plan)
        if warning:
            log.warning("%s", warning)


# -------------------------------------------------------------------------------- carrying bytes


@dataclass(frozen=True, eq=False)
class _Carrier:
    """round.play's ``carry`` over a Grid."""

    strategy: DPStrategy
    grid: Grid
    config: ConfigRecord
    timeout: float

    def __call__(
        self, broadcast: Broadcast, stage: str, requests: Requests
    ) -> Iterator[tuple[int, Answer]]:
        sender = self.strategy._sender(broadcast, self.config)
        orders = self.strategy._orders(sender, stage, requests, self.timeout)
        ids = self.grid.push_messages(list(orders.values()))
        clients = {i: client for i, client in zip(ids, orders, strict=True) if i}
        nodes = {i: orders[client].metadata.dst_node_id for i, client in clients.items()}
        del orders
        batch = max(1, _IN_FLIGHT // (4 * broadcast.params.numel()))
        for reply in _replies(self.grid, nodes, self.timeout, batch):
            client = clients[reply.metadata.reply_to_message_id]
            answer = _answer(reply, Envelope(broadcast.round, broadcast.attempt, stage, client))
            del reply  # so that one message is alive at a time
            yield client, answer
            del answer
        sender.forget()


def _replies(grid: Grid, sent: Mapping[str, int], timeout: float, batch: int) -> Iterator[Message]:
    """Replies as they come, ``batch`` at a time, until all are here, gone, or too late."""
    pending = list(sent)
    began = time.monotonic()
    deadline = began + timeout
    look = time.monotonic() + 2.0
    while pending and time.monotonic() < deadline:
        found = False
        for at in range(0, len(pending), batch):
            pulled = list(grid.pull_messages(pending[at : at + batch]))
            arrived = {reply.metadata.reply_to_message_id for reply in pulled}
            pending = [i for i in pending if i not in arrived]
            found = found or bool(pulled)
            pulled.reverse()
            while pulled:
                yield pulled.pop()
            if found:
                break
        if not found:
            if time.monotonic() > look:  # those who went offline will not answer
                online = set(grid.get_node_ids())
                pending = [i for i in pending if sent[i] in online]
                look = time.monotonic() + 2.0
            waited = time.monotonic() - began
            time.sleep(min(_SLOWEST, max(_POLL, waited / 20)))


def _answer(reply: Message, due: Envelope) -> Answer:
    """A reply's answer; what is wrong with it is a refusal of this one client."""
    if reply.has_error():
        return ClientRefused(_reason(reply))
    try:
        return read_answer(reply.content, due)
    except BadReply as error:
        return ClientRefused(str(error))


def _reason(reply: Message) -> str:
    """Flower's error by its code only: its text may quote what a client raised."""
    words = {
        1: "that the ClientApp did not load",
        2: "that the ClientApp raised",
        3: "no reply in time",
        5: "that the node is offline",
        8: "that the ClientApp crashed",
    }
    return f"Flower reports {words.get(reply.error.code, 'an error')} (code {reply.error.code})"


def _enrolled(reply: Message, plan: Plan) -> int:
    if reply.has_error():
        raise BadReply(f"{_reason(reply)}; is the ClientApp a dpfed one?")
    control = reply.content.config_records.get(CONTROL, ConfigRecord())
    client = control.get("client")
    if "error" in control or not isinstance(client, int):
        raise BadReply(f"it could not say who it is ({control.get('error')!r}); its log says why")
    if not 0 <= client < len(plan.nominal):
        raise BadReply(
            f"its client index {client} is not one of the plan's {len(plan.nominal)}; give it a "
            f"partition-id from 0 to {len(plan.nominal) - 1}"
        )
    if control.get("fingerprint") != plan.fingerprint():
        raise BadReply("it has agreed to another plan; give both sides the same run_config")
    return client


def _spent(row: dict[str, Any]) -> MetricRecord:
    return MetricRecord({name: row[name] for name in ("epsilon", "epsilon_others", "clients")})


def _add_judged(row: dict[str, Any], measured: MetricRecord) -> None:
    """The server's own figures in the row, where no priced ones are."""
    for name in ("accuracy", "loss"):
        if name in measured:
            row.setdefault(name, measured[name])


def _add_metrics(row: dict[str, Any], result: DPResult) -> None:
    """The row in Flower's own result."""
    result.train_metrics_clientapp[row["round"]] = _spent(row)
    if "accuracy" in row:
        judged = MetricRecord({"accuracy": row["accuracy"], "loss": row["loss"]})
        result.evaluate_metrics_clientapp[row["round"]] = judged
