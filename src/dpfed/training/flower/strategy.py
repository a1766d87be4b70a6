# SPDX-License-Identifier: Apache-2.0
"""DPStrategy: the server's side of a Flower app.

    strategy = dpfed.flower.DPStrategy(plan)
    result = strategy.start(grid, initial_arrays=ArrayRecord(model.state_dict()))
    result.arrays, result.guarantee, result.history

It is a Flower Strategy with a ``start`` of its own, since Flower's loop can neither stop, nor
stream replies, nor ask a second stage. loop.py is the loop, and says what ends a training;
transport.py exchanges its bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from dpfed.accounting.guarantee import Guarantee
from dpfed.core.errors import UnsoundPlan
from dpfed.core.log import log
from dpfed.core.types import Vector
from dpfed.core.vector import Layout, layout_of
from dpfed.training.checkpoint import Checkpoint
from dpfed.training.flower.codec import named_arrays
from dpfed.training.flower.transport import GridTransport
from dpfed.training.loop import Judge, Step, train
from dpfed.training.metrics import measured
from dpfed.training.plan import Plan
from dpfed.training.soundness import small_delta

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
        watch: called after each round with its row of the history, and of a resumed training with
            the earlier rows first; ``dpfed.flower.open_sinks`` makes one for TensorBoard, MLflow
            or CSV.
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
        self.step: Step | None = None
        """Where the training stands: also if ``start`` raised."""

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
        """Train, and return all there is: model, guarantee, history, and why it stopped.

        Args:
            grid: Flower's way to its nodes.
            initial_arrays: the model to begin with.
            num_rounds: end after so many rounds; None is all of the plan's.
            timeout: how many seconds a stage waits for replies; asked for is spent.
            train_config: goes out to the clients as it is.
            evaluate_config: not used: a client's metrics have a channel with noise, or stay there.
            evaluate_fn: called after each round with its number and the model; its accuracy and
                loss are in the history.
        """
        del evaluate_config
        log_through_flower()
        tensors = initial_arrays.to_torch_state_dict()
        layout = layout_of(tensors)
        self.summary()
        transport = GridTransport(
            self.plan, grid, layout, config=train_config, timeout=timeout, wait=self.wait
        )
        result = DPResult(arrays=initial_arrays)
        steps = train(
            self.plan, layout.flatten(tensors), transport,
            training=self.training, checkpoint=self.checkpoint,
            judge=_judge(layout, evaluate_fn, result), until=num_rounds,
        )  # fmt: skip
        for step in steps:
            self.step = step
            self._note(step, result)
            self.step = replace(step, result=None)  # its vectors are not needed while a round runs
            del step
        self._finish(result, layout)
        return result

    def _note(self, step: Step, result: DPResult) -> None:
        if self.watch:
            for row in step.history[len(result.history) :]:
                self.watch(row)
        result.history, result.stopped = list(step.history), step.stopped
        if step.result is None:
            return
        row = result.history[-1]
        log.info(
            "round %d/%d: %d clients, epsilon spent %.3g%s",
            row["round"], self.plan.rounds, row["clients"], row["epsilon"],
            f", missing {row['absent']}" if row["missing"] else "",
        )  # fmt: skip
        spent = {name: row[name] for name in ("epsilon", "epsilon_others", "clients")}
        result.train_metrics_clientapp[row["round"]] = MetricRecord(spent)
        judged = measured(step.result.aggregate, self.plan.loss_bound)
        if judged:
            result.evaluate_metrics_clientapp[row["round"]] = MetricRecord(dict(judged))

    def _finish(self, result: DPResult, layout: Layout) -> None:
        if self.step is None:
            return
        state = self.step.state
        result.arrays = named_arrays(layout, state.params)
        result.guarantee = self.plan.guarantee(state.release_counts, state.round)
        log.info("%s", result.guarantee)

    def summary(self) -> None:
        """Log the guarantee before the first round."""
        log.info("DPStrategy: %s", self.plan.guarantee())
        warning = small_delta(self.plan)
        if warning:
            log.warning("%s", warning)

    # ------------------------------------------------------------------- Flower's own loop

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Not offered: Flower's own loop cannot stop, stream, or ask a second stage."""
        del server_round, arrays, config, grid
        _refuse_flowers_loop()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Not offered: see configure_train."""
        del server_round, replies
        _refuse_flowers_loop()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing: a metric that leaves a client is a release, and has a channel of its own."""
        del server_round, arrays, config, grid
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Nothing: see configure_evaluate."""
        del server_round, replies
        return None


def _refuse_flowers_loop() -> NoReturn:
    raise UnsoundPlan(
        "DPStrategy has a loop of its own, which stops before the budget is exceeded; call "
        "DPStrategy.start"
    )


def _judge(layout: Layout, evaluate_fn: EvaluateFn | None, result: DPResult) -> Judge | None:
    """The user's evaluate_fn as the loop calls it; all that it measures is in Flower's result."""
    if evaluate_fn is None:
        return None

    def judge(round: int, params: Vector) -> Mapping[str, float | None]:
        measured = evaluate_fn(round, named_arrays(layout, params))
        if measured is None:
            return {}
        result.evaluate_metrics_serverapp[round] = measured
        figures = {name: measured.get(name) for name in ("accuracy", "loss")}
        return {name: float(v) for name, v in figures.items() if isinstance(v, int | float)}

    return judge


def log_through_flower() -> None:
    """Let dpfed's log appear where Flower's does, unless the application has set it up itself."""
    ours, flower = logging.getLogger("dpfed"), logging.getLogger("flwr")
    if not ours.hasHandlers():
        ours.handlers = list(flower.handlers)
        ours.setLevel(flower.level)
