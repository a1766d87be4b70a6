# SPDX-License-Identifier: Apache-2.0
"""A recipe as a Flower app: ``server_app`` and ``client_app``, for ``flwr run``.

    [tool.flwr.app.components]
    serverapp = "dpfed.recipes.flower_app:server_app"
    clientapp = "dpfed.recipes.flower_app:client_app"

    [tool.flwr.app.config]
    recipe = "~/ward/recipe.toml"     # or, where gates hold the data, terms = "~/ward/terms.toml"
    root = "~/ward"         # where data paths of the recipe begin
    out = "~/ward/out"      # the result
    timeout = 3600.0       # seconds that a stage of a round waits for replies
    training = ""          # the name under which clients keep state; a resumed run has the same
    sinks = ""             # where rows go at once: csv, tensorboard, mlflow, wandb
    checkpoint = ""        # a folder on the server's disk: a run that died resumes from there

Both sides build the federation and the plan from the recipe, as the in-process engine does, and
each client takes its own part. Flower pickles the ClientApp object anew for each message to a
simulated client, so what is kept between messages is kept by this module, once per process.

The files in ``out`` are those of every run: result.py lists them.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from dpfed.accounting.guarantee import SHIPPED
from dpfed.core.environment import IDENTITY, variable
from dpfed.core.errors import RecipeError
from dpfed.core.log import log
from dpfed.core.types import Problem
from dpfed.recipes import schema as recipes
from dpfed.recipes.evidence import FOLDER as EVIDENCE
from dpfed.recipes.evidence import Trained, write_evidence
from dpfed.recipes.result import (
    Result,
    add_row,
    claim_folder,
    clear_result,
    require_a_round,
    write_error,
)
from dpfed.recipes.schema import Recipe
from dpfed.recipes.session import Session, prepare, prepare_terms
from dpfed.recipes.sinks._open import Add, open_sinks
from dpfed.recipes.terms import read_terms
from dpfed.sums.secagg.identity import SIMULATED
from dpfed.training.account import Account
from dpfed.training.checkpoint import Checkpoint
from dpfed.training.flower import client
from dpfed.training.flower.strategy import DPStrategy, EvaluateFn, errors_in_one_sentence
from dpfed.training.history import Row
from dpfed.training.plan import Plan
from dpfed.training.wire.codec import named_arrays

REPLY_TIMEOUT_S = 3600.0
"""How long a stage waits for replies. Too short wastes budget: clients pay before they reply."""

ENROL_TIMEOUT_S = 300.0
"""How long all clients may take to enrol: each process loads the data first."""


def recipe_for_flower(path: str | Path) -> Recipe:
    """The recipe; one that cannot be run over Flower is refused."""
    recipe = recipes.load_recipe(path)
    if recipe.evaluation.kind.in_clear:
        raise RecipeError(
            f"evaluation.kind must be 'test', 'federated' or 'off' over Flower, got "
            f"{str(recipe.evaluation.kind)!r}, which reads clients' records in clear; choose one "
            f"of these, or run in one process"
        )
    return recipe


def session_for(context: Context) -> Session:
    """The session of the recipe that the run's configuration names."""
    config = context.run_config
    asked = config.get("recipe") or config.get("terms")
    if not asked or not config.get("out"):
        raise RecipeError(
            f"run_config must have recipe (or terms) and out, got {sorted(config)}; set both in "
            f"[tool.flwr.app.config]"
        )
    path = Path(str(asked)).expanduser()
    if not config.get("recipe"):
        return prepare_terms(read_terms(_read(path)))
    text = path.read_bytes() if path.is_file() else b""
    return _session(str(path), str(config.get("root", "")), text)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RecipeError(
            f"terms must be a file, got {str(path)!r} ({error.strerror}); write one with 'dpfed "
            f"silo terms', and give its path from the root"
        ) from error


@lru_cache(maxsize=1)
def _session(path: str, root: str, text: bytes) -> Session:
    """Built once per process, and again if the recipe's text has changed."""
    del text
    return prepare(recipe_for_flower(path), Path(root).expanduser() if root else None)


# ------------------------------------------------------------------------------------- the client


def problem_for(context: Context) -> Problem:
    """A client's own part of the federation; what to look at in its records is logged here."""
    session = session_for(context)
    _show_once(session)
    return session.federation.problems[client.client_index(context)]


@lru_cache(maxsize=1)
def _show_once(session: Session) -> None:
    session.show_screen()


def plan_for_context(context: Context) -> Plan:
    """The plan that a client has agreed to: it comes from its own copy of the recipe."""
    return session_for(context).plan


def ledger_for(context: Context) -> Account | None:
    """Where a client's releases are entered.

    A node's owner did not write the recipe: there it names no file and opens no budget. The clients
    of a simulation are its own.
    """
    return session_for(context).account(environment=variable(IDENTITY) != SIMULATED)


client_app = client.client_app(problem_for, plan_for_context, ledger_for)


# ------------------------------------------------------------------------------------- the server

server_app = ServerApp()


@server_app.main()
def run_server(grid: Grid, context: Context) -> None:
    """Train as the recipe says; leave the result, or the reason why there is none."""
    named = Path(str(context.run_config.get("out", "."))).expanduser()
    out = named
    out.mkdir(parents=True, exist_ok=True)
    errors_in_one_sentence(out)
    try:
        session, kept = session_for(context), _kept(context)
        out = claim_folder(named, _training(session, context))
        if out != named:
            log.warning("%s holds another run's result: this one goes to %s", named, out)
        errors_in_one_sentence(out)
        clear_result(out, kept)
        about = session.about(out)
        with open_sinks(_sinks(context), about) as add:
            result, trained = _train(grid, session, context, _writer(out, add, len(kept)), out)
            about.finished = result.guarantee.sentence
        result.save(out)
        _leave_evidence(out, trained)
    except Exception as error:
        write_error(out, error)
        raise


def _leave_evidence(out: Path, trained: Trained) -> None:
    """Complete the evidence; without it a result is a result, and no model is lost for it."""
    try:
        write_evidence(out, trained)
    except Exception:
        log.exception("the evidence in %s could not be completed", out)


def _sinks(context: Context) -> list[str]:
    return str(context.run_config.get("sinks") or "").replace(",", " ").split()


def _kept(context: Context) -> list[Row]:
    """The rows of an earlier process that died, from its checkpoint."""
    folder = _checkpoint(context)
    return folder.history() if folder else []


def _checkpoint(context: Context) -> Checkpoint | None:
    """The folder that a run resumes from, if the run's configuration names one."""
    folder = context.run_config.get("checkpoint")
    return Checkpoint(Path(str(folder)).expanduser()) if folder else None


def _writer(out: Path, add: Add, kept: int) -> Add:
    """All rows go to the sinks, which begin anew; the file has the first ``kept`` rows already."""
    seen = 0

    def write(row: Row) -> None:
        nonlocal seen
        seen += 1
        if seen > kept:
            add_row(out, row)
        add(row)

    return write


def _train(
    grid: Grid, session: Session, context: Context, watch: Add, out: Path
) -> tuple[Result, Trained]:
    config, layout = context.run_config, session.federation.model.layout
    checkpoint = _checkpoint(context)
    strategy = DPStrategy(
        session.plan,
        training=_training(session, context),
        wait=ENROL_TIMEOUT_S,
        watch=watch,
        checkpoint=checkpoint.folder if checkpoint else None,
        terms=session.terms,
        evidence=None if variable(IDENTITY) == SIMULATED else out / EVIDENCE,
    )
    if checkpoint is not None:
        enforced = "" if variable(IDENTITY) == SIMULATED else SHIPPED  # gates are known at the end
        session.keep_description(checkpoint, enforced)
    found = strategy.start(
        grid,
        named_arrays(layout, session.initial),
        timeout=float(config.get("timeout") or REPLY_TIMEOUT_S),
        evaluate_fn=_evaluate_fn(session),
    )
    if strategy.step is None or found.guarantee is None:
        raise RecipeError("the strategy ended without a guarantee; see the server's log for why")
    require_a_round(strategy.step)
    params = strategy.step.state.params
    trained = Trained(
        plan=session.plan,
        training=strategy.step.state.training,
        terms=session.terms,
        layout=list(layout.shapes),
        committed=strategy.step.committed,
    )
    result = session.result(params, found.guarantee, found.history, found.stopped, found.answered)
    return result, trained


def _evaluate_fn(session: Session) -> EvaluateFn:
    layout = session.federation.model.layout

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord | None:
        judged = session.judge(round, layout.flatten(arrays.to_torch_state_dict()))
        figures = {n: v for n, v in judged.items() if v is not None and not math.isnan(v)}
        return MetricRecord(dict(figures)) if figures else None

    return evaluate


def _training(session: Session, context: Context) -> str:
    """The training's name: the terms', as configured, a checkpoint's, or a new one for this run."""
    if session.terms:
        return session.recipe.name
    name, checkpoint = context.run_config.get("training"), _checkpoint(context)
    if not name and checkpoint:
        name = checkpoint.training(session.recipe.name)
    name = str(name or f"{session.recipe.name}-{context.run_id}")
    return re.sub(r"[^\w.-]", "-", name).lstrip(".")[-100:]
