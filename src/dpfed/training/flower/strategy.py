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
import os
import secrets
import tempfile
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from dpfed.accounting.guarantee import GATED, SHIPPED, Guarantee, certified
from dpfed.accounting.second_opinion import checked
from dpfed.core.checks import refuse
from dpfed.core.environment import IDENTITY, state_folder, variable
from dpfed.core.errors import DataError, DpfedError, RecipeError, UnsoundPlan
from dpfed.core.files import replace_file
from dpfed.core.log import log
from dpfed.core.types import Unit, Vector
from dpfed.core.vector import Layout, layout_of
from dpfed.sums.secagg.identity import SIMULATED, roster_from_environment
from dpfed.training.checkpoint import Checkpoint
from dpfed.training.flower.evidence import EvidenceFolder
from dpfed.training.flower.transport import GridTransport
from dpfed.training.history import JUDGED, columns_of, participants, to_frame, wasted_attempts
from dpfed.training.loop import Judge, Step, train
from dpfed.training.metrics import measured
from dpfed.training.plan import Plan
from dpfed.training.signal import warn_of_noise
from dpfed.training.soundness import small_delta
from dpfed.training.stopping import EXHAUSTED, UNAFFORDABLE, is_unspent, nothing_trained
from dpfed.training.wire.codec import named_arrays
from dpfed.training.wire.evidence import vector_digest
from dpfed.training.wire.heads import Kept

if TYPE_CHECKING:
    from pandas import DataFrame

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
Tensors = Mapping[str, torch.Tensor]

_STATISTICS = ("running_mean", "running_var")  # as torch names them in every layer that has them


@dataclass
class DPResult(Result):
    """Flower's result with what a private run adds.

    Args:
        guarantee: what was spent.
        history: one row per attempt at a round.
        stopped: why training ended before the plan's last round, if it did.
        answered: who is in the totals of which rounds.

    >>> DPResult(stopped="too few clients").stopped
    'too few clients'
    """

    guarantee: Guarantee | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    stopped: str | None = None
    """Why training ended before the rounds that were asked for, if it did."""
    answered: dict[str, Any] = field(default_factory=dict)
    """Who is in the totals of which rounds (``history.participants``), for guarantee.json."""

    @property
    def wasted_attempts(self) -> int:
        """How many attempts brought no total and were paid for."""
        return wasted_attempts(self.history)

    def to_frame(self) -> DataFrame:
        """The history as a pandas DataFrame: a line per attempt at a round (extra ``pandas``)."""
        return to_frame(self.history)


class DPStrategy(Strategy):
    """A private strategy: a Plan over Flower.

    Args:
        plan: what is done, and what it costs.
        training: the name of this training, stable across Flower runs; clients keep state under it,
            and answer what its plan has, once. None is a new name, or that of the checkpoint.
        wait: how many seconds to wait for all clients of the plan before the first round.
        watch: called after each round with its row of the history, and of a resumed training with
            the earlier rows first; ``dpfed.flower.open_sinks`` makes one for TensorBoard, MLflow,
            Weights & Biases or CSV.
        checkpoint: a folder on the server's disk; a training that died there resumes from the
            last committed round, under the same name.
        keep: patterns of names, such as ("*running_mean", "*running_var"): arrays that each node
            keeps for itself, and no row has; at client level only. Integers are in no row anyway:
            the server's value stays.
        terms: the text of the training's terms, for silos whose gates approve by rule; "" if all
            of them were approved by hand, or there are none.
        wait_lost: how many seconds to wait for clients that were lost in an attempt without a
            total, before it is asked for again; stored answers cost nothing.
        evidence: a folder in which what clients sign is kept (docs/evidence.md); None keeps
            nothing.
        heads: a folder in which heads of silos' ledgers are kept, the same for all trainings of
            this server; None is $DPFED_STATE, or .dpfed in the home folder.

    >>> from dpfed.flower import make_plan
    >>> plan = make_plan(clients=4, rounds=3, privacy={"epsilon": 2.0, "unit": "client"})
    >>> DPStrategy(plan, training="ward-7").plan.rounds
    3
    """

    def __init__(
        self,
        plan: Plan,
        *,
        training: str | None = None,
        wait: float = 60.0,
        watch: Callable[[dict[str, Any]], None] | None = None,
        checkpoint: str | Path | None = None,
        keep: Sequence[str] = (),
        terms: str = "",
        wait_lost: float = 300.0,
        evidence: str | Path | None = None,
        heads: str | Path | None = None,
    ) -> None:
        self.heads = None if heads is None else Path(heads).expanduser()
        self.evidence = None if evidence is None else EvidenceFolder(Path(evidence))
        if keep and plan.update.unit is not Unit.CLIENT:
            raise RecipeError(
                f"keep must be empty where a {plan.update.unit} is protected, got {tuple(keep)}: a "
                f"layer with such buffers mixes records; use GroupNorm or LayerNorm instead"
            )
        self.keep, self.terms, self.wait_lost = tuple(keep), terms, wait_lost
        self.plan, self.training, self.wait, self.watch = plan, training, wait, watch
        self.checkpoint = None if checkpoint is None else Checkpoint(Path(checkpoint).expanduser())
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

        A training for which nothing was released, since no client or too few enrolled, raises
        RoundAborted, or BudgetSpent: there is no model, and no guarantee to state.

        Args:
            grid: Flower's way to its nodes.
            initial_arrays: the model to begin with.
            num_rounds: end after this many rounds; None means all of the plan's.
            timeout: how many seconds a stage waits for replies; asked for is spent.
            train_config: goes out to the clients as it is.
            evaluate_config: not used: a client's metrics have a channel with noise, or stay there.
            evaluate_fn: called after each round with its number and the model; every number that
                it returns is in the history, and goes to sinks. A name that a row has already,
                such as epsilon, stays the row's own.
        """
        del evaluate_config
        log_through_flower()
        errors_in_one_sentence()
        tensors, around = _trained(initial_arrays.to_torch_state_dict(), self.keep)
        layout = layout_of(tensors)
        if self.checkpoint:
            self.checkpoint.describe(layout)
        checked(self.plan.guarantee())  # before anything is spent
        self.summary()
        warn_of_noise(self.plan, layout)
        transport = GridTransport(
            self.plan,
            grid,
            layout,
            config=train_config,
            timeout=timeout,
            wait=self.wait,
            around=around,
            terms=self.terms,
            wait_lost=self.wait_lost,
            evidence=self.evidence,
            heads=self._kept_heads(),
        )
        result = DPResult(arrays=initial_arrays)
        steps = train(
            self.plan,
            layout.flatten(tensors),
            transport,
            training=self._name(),
            checkpoint=self.checkpoint,
            judge=_judge(self.plan, layout, around, evaluate_fn, result),
            until=num_rounds,
        )
        for step in steps:
            self.step = step
            self._note(step, result)
            self.step = replace(step, result=None)  # its vectors are not needed while a round runs
            del step
        self._ask_statements(transport, layout)
        self._leave(transport)
        self._finish(result, layout, around)
        return result

    def _kept_heads(self) -> Kept | None:
        """Where this server keeps heads; None for a user without a home."""
        try:
            return Kept(self.heads or state_folder())
        except RuntimeError:
            log.warning("heads of ledgers are not kept: give DPStrategy heads=FOLDER")
            return None

    def _leave(self, transport: GridTransport) -> None:
        """Free the budget that clients keep for this training, if it ends before its plan does."""
        if self.step is None or not transport.nodes:
            return
        state = self.step.state
        if state.round < self.plan.rounds or self.plan.spare:
            transport.leave(state.training)

    def _ask_statements(self, transport: GridTransport, layout: Layout) -> None:
        """At the end: each client states what it has answered, and is told which model it is."""
        if self.evidence is None or self.step is None or not transport.nodes or self.plan.open:
            return
        state = self.step.state
        done = state.round >= self.plan.rounds or self.step.stopped in (EXHAUSTED, UNAFFORDABLE)
        model = vector_digest(layout.shapes, state.params)
        transport.statements(state.training, model, close=done or not self.checkpoint)

    @property
    def _enforced(self) -> str:
        """Who sees to the guarantee: the silos' own processes, or the app that runs on them.

        That of the silos is said if it was so in each attempt, also of earlier processes: each node
        says so itself when it enrols, and one without a gate is enough not to say it.
        """
        if variable(IDENTITY) == SIMULATED:  # all clients are this machine's own
            return ""
        return GATED if self.step is not None and self.step.gated else SHIPPED

    def _name(self) -> str:
        """Clients refuse a name under which they have answered a whole training."""
        if self.training is not None:
            return self.training
        if self.checkpoint:
            return self.checkpoint.training("run")
        return f"run-{secrets.token_hex(8)}"

    def _names(self) -> tuple[str, ...] | None:
        """The clients' names in the server's own roster, if it has one."""
        if variable(IDENTITY) in (None, "", SIMULATED):
            return None
        try:
            found = roster_from_environment(len(self.plan.nominal))
        except DataError as error:
            log.warning("the result names clients by number, since there is no roster: %s", error)
            return None
        return found.names if found else None

    def _note(self, step: Step, result: DPResult) -> None:
        if self.watch:
            for row in step.history[len(result.history) :]:
                self.watch(row)
        result.history, result.stopped = list(step.history), step.stopped
        if step.result is None:
            return
        row = result.history[-1]
        log.info(
            "round %d/%d: %d clients, epsilon spent %.3g%s%s%s",
            row["round"],
            self.plan.rounds,
            row["clients"],
            row["epsilon"],
            "" if row["accuracy"] is None else f", accuracy {row['accuracy']:.3f}",
            f", missing {row['absent']}" if row["missing"] else "",
            f", no total: {row['aborted']}" if row["aborted"] else "",
        )
        spent = {name: row[name] for name in ("epsilon", "epsilon_others", "clients")}
        result.train_metrics_clientapp[row["round"]] = MetricRecord(spent)
        judged = measured(step.result.aggregate, self.plan.loss_bound, self.plan.metrics)
        if judged:
            result.evaluate_metrics_clientapp[row["round"]] = MetricRecord(dict(judged))

    def _finish(self, result: DPResult, layout: Layout, around: Tensors) -> None:
        if self.step is None:
            return
        state = self.step.state
        if self.step.stopped and not state.round and is_unspent(state):
            raise nothing_trained(self.step.stopped)  # no model, and no guarantee of nothing
        result.arrays = named_arrays(layout, state.params, around)
        made = self.plan.guarantee(state.release_counts, state.round)
        spent = checked(certified(self.plan.guarantee(), made))
        enforced = self._enforced
        result.answered = participants(self.plan, self.step.committed, self._names())
        # a gate has a budget of its owner's, always
        result.guarantee = replace(spent, enforced=enforced, budgeted=enforced == GATED)
        log.info("%s", result.guarantee)

    def summary(self) -> None:
        """Log the guarantee before the first round; that gates enforce it shows in the rounds."""
        enforced = "" if variable(IDENTITY) == SIMULATED else SHIPPED
        log.info("DPStrategy: %s", replace(self.plan.guarantee(), enforced=enforced))
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
        """Asks nothing: a metric that leaves a client is a release, on a channel of its own."""
        del server_round, arrays, config, grid
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Nothing, and a warning: a reply that has anything in it came in clear.

        Whoever asks nodes by themselves, or overrides ``configure_evaluate``, meets this.
        """
        told = {m.metadata.src_node_id for m in replies if not m.has_error() and len(m.content)}
        if told:
            log.warning(
                "evaluate replies of %d nodes in round %d came in clear: their exact metrics are "
                "outside the guarantee, and are dropped here; let the app be "
                "ClientApp(mods=[dpfed.flower.private(plan)]), which answers nothing, and use "
                "evaluation.kind = 'federated' for metrics with noise",
                len(told),
                server_round,
            )
        return None


def _refuse_flowers_loop() -> NoReturn:
    raise UnsoundPlan(
        "DPStrategy has a loop of its own, which stops before the budget is exceeded; call "
        "DPStrategy.start"
    )


def _trained(tensors: Tensors, keep: Sequence[str]) -> tuple[Tensors, Tensors]:
    """The arrays that a row has, and all names with the values of the others.

    An integer, such as a count of batches, is no parameter: in a row it would take up the clip.
    Running statistics of a layer come back with noise, and a variance below zero is none.
    """
    kept = {name for name in tensors if any(fnmatchcase(name, pattern) for pattern in keep)}
    idle = [pattern for pattern in keep if not any(fnmatchcase(name, pattern) for name in tensors)]
    found = {n: t for n, t in tensors.items() if t.is_floating_point() and n not in kept}
    if idle or not found:
        bound = f"patterns of names of the model, which leave some to be trained: {list(tensors)}"
        raise refuse("keep", bound, tuple(idle or keep), "correct it")
    noisy = [name for name in found if name.rpartition(".")[2] in _STATISTICS]
    if noisy:
        raise RecipeError(
            f"array {noisy[0]!r} is a running statistic of a BatchNorm, which would come back with "
            f"noise; give DPStrategy keep=('*running_mean', '*running_var'), by which it stays on "
            f"the nodes, or use GroupNorm or LayerNorm instead"
        )
    place = torch.empty(0)  # taken by the parameters, and no second model in memory
    return found, {name: place if name in found else t for name, t in tensors.items()}


def _judge(
    plan: Plan, layout: Layout, around: Tensors, evaluate_fn: EvaluateFn | None, result: DPResult
) -> Judge | None:
    """The user's evaluate_fn as the loop calls it; all that it measures is in Flower's result.

    Numbers are in the history too; lists are in Flower's result alone.
    """
    if evaluate_fn is None:
        return None
    taken = {*columns_of(plan)} - {*JUDGED}
    said = set[str]()

    def judge(round: int, params: Vector) -> Mapping[str, float | None]:
        measured = evaluate_fn(round, named_arrays(layout, params, around))
        if measured is None:
            return {}
        result.evaluate_metrics_serverapp[round] = measured
        found = {name: float(v) for name, v in measured.items() if isinstance(v, int | float)}
        if twice := (found.keys() & taken) - said:
            said.update(twice)
            log.warning(
                "evaluate_fn returns %s, which the history has of its own and keeps; give those "
                "numbers other names to see them there",
                sorted(twice),
            )
        return found

    return judge


def log_through_flower() -> None:
    """Let dpfed's log appear where Flower's does, unless the application has set it up itself."""
    ours, flower = logging.getLogger("dpfed"), logging.getLogger("flwr")
    if not ours.hasHandlers():
        ours.handlers = list(flower.handlers)
        ours.setLevel(flower.level)


class ShortErrors(logging.Filter):
    """A filter of Flower's logger: dpfed's own errors become one line, their tracebacks a file.

    Flower logs the traceback of whatever a ServerApp raises. An error of dpfed says in one sentence
    what is wrong and what to do; its traceback is for whoever looks into dpfed itself.

    Args:
        folder: where the file ``error.txt`` is written; None means the system's temporary folder.
    """

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__("")
        self.folder = folder

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass, changed where it carries one of dpfed's errors."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, DpfedError):
            place = self._keep(error)
            where = f" (traceback in {place})" if place else ""
            record.msg = f"{record.getMessage()}: {type(error).__name__}: {error}{where}"
            record.args, record.exc_info, record.exc_text = (), None, None
        return True

    def _keep(self, error: DpfedError) -> Path | None:
        """The traceback's file; None if it cannot be written."""
        path = Path(tempfile.gettempdir()) / f"dpfed-error-{os.getpid()}.txt"
        if self.folder is not None:
            path = self.folder / "error.txt"
        try:
            replace_file(path, "".join(traceback.format_exception(error)).encode())
        except OSError:
            return None
        return path


def errors_in_one_sentence(folder: Path | None = None) -> None:
    """Let Flower's log have dpfed's errors in one sentence; the last folder that is named counts.

    Args:
        folder: for the tracebacks; None means the system's temporary folder.

    >>> import tempfile
    >>> errors_in_one_sentence(Path(tempfile.gettempdir()))
    """
    flower = logging.getLogger("flwr")
    earlier = [each for each in flower.filters if isinstance(each, ShortErrors)]
    if not earlier:
        flower.addFilter(ShortErrors(folder))
    elif folder is not None:
        earlier[0].folder = folder
