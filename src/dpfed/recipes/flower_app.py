# SPDX-License-Identifier: Apache-2.0
"""A recipe as a Flower app: ``server_app`` and ``client_app``, for ``flwr run``.

    [tool.flwr.app.components]
    serverapp = "dpfed.recipes.flower_app:server_app"
    clientapp = "dpfed.recipes.flower_app:client_app"

    [tool.flwr.app.config]
    recipe = "/path/of/recipe.toml"
    root = "/folder/that/data/paths/of/the/recipe/refer/to"
    out = "/folder/for/the/result"
    timeout = 3600.0       # seconds that a stage of a round waits for replies
    training = ""          # the name under which clients keep state; a resumed run has the same
    sinks = ""             # where rows go at once: csv, tensorboard, mlflow (of the server)
    checkpoint = ""        # a folder on the server's disk: a run that died goes on from there

Both sides build the federation and the plan from the recipe, as the in-process engine does, and
each client takes its own part. Flower pickles the ClientApp object anew for each message to a
simulated client, so what is kept between messages is kept by this module, once per process.

| file in ``out``     | what                                                                   |
|---------------------|------------------------------------------------------------------------|
| metrics.jsonl       | one row per round; grows as the run goes on                            |
| model.safetensors   | the trained parameters, by name                                        |
| guarantee.json      | the promise; written last, so where it is, the others are complete     |
| error.json          | instead: the class and the sentence of what stopped the run            |
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, NoReturn

import msgspec
import torch
from flwr.app import ArrayRecord, Context, MetricRecord, UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from safetensors.torch import load_file, save_file

from dpfed.accounting.guarantee import Guarantee, jsonable
from dpfed.core import errors
from dpfed.core.files import replace_file
from dpfed.core.types import Problem
from dpfed.data.models import evaluate
from dpfed.recipes import schema as recipes
from dpfed.recipes.build import about_run, account_for, make_plan
from dpfed.recipes.federation import IN_CLEAR, Federation, evaluation_words, federation, public_seed
from dpfed.recipes.history import Add, Row, plain
from dpfed.recipes.schema import Recipe
from dpfed.recipes.sinks._open import open_sinks
from dpfed.training.account import Account
from dpfed.training.checkpoint import Checkpoint
from dpfed.training.flower import client
from dpfed.training.flower.codec import named_arrays
from dpfed.training.flower.strategy import DPResult, DPStrategy
from dpfed.training.plan import Plan

METRICS_FILE, MODEL_FILE = "metrics.jsonl", "model.safetensors"
GUARANTEE_FILE, ERROR_FILE = "guarantee.json", "error.json"

_WORDS = ("inf", "-inf", "nan")  # what JSON knows no numbers for

TIMEOUT = 3600.0
"""Seconds that a stage waits for replies. Too few burn the budget: asked for is spent."""

WAIT = 300.0
"""Seconds until all clients must have enrolled: each process loads the data first."""


class Prepared(NamedTuple):
    """What a process needs of a recipe."""

    recipe: Recipe
    federation: Federation
    plan: Plan


def load_recipe(path: str | Path) -> Recipe:
    """The recipe, or a refusal of what Flower cannot carry."""
    recipe = recipes.load(path)
    if recipe.evaluation.kind in IN_CLEAR:
        raise errors.RecipeError(
            f"evaluation.kind is {recipe.evaluation.kind!r}, which reads clients' records in "
            f"clear; over Flower use 'test', 'federated' or 'off'"
        )
    return recipe


def prepared_for(context: Context) -> Prepared:
    """What the run's configuration names."""
    config = context.run_config
    if not config.get("recipe") or not config.get("out"):
        raise errors.RecipeError(f"run_config has {sorted(config)}; it needs recipe and out")
    path = Path(str(config["recipe"]))
    text = path.read_bytes() if path.is_file() else b""
    return _prepared(str(path), str(config.get("root", "")), text)


@lru_cache(maxsize=1)
def _prepared(path: str, root: str, text: bytes) -> Prepared:
    """Built once per process, and again if the recipe's text is another one by now."""
    del text
    recipe = load_recipe(path)
    silos = federation(recipe, Path(root) if root else None)
    return Prepared(recipe, silos, make_plan(recipe, silos.clients, silos.model))


# ------------------------------------------------------------------------------------- the client


def problem_for(context: Context) -> Problem:
    """A client's own part of the federation."""
    return prepared_for(context).federation.problems[client.client_index(context)]


def plan_for(context: Context) -> Plan:
    """The plan that a client has agreed to: it comes from its own copy of the recipe."""
    return prepared_for(context).plan


def ledger_for(context: Context) -> Account | None:
    """Where a client's releases are booked: what its owner says stands before the recipe."""
    return account_for(prepared_for(context).recipe, environment=True)


client_app = client.client_app(problem_for, plan_for, ledger_for)


# ------------------------------------------------------------------------------------- the server

server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Train as the recipe says; leave the result, or the reason why there is none."""
    out = Path(str(context.run_config.get("out", ".")))
    out.mkdir(parents=True, exist_ok=True)
    folder = context.run_config.get("checkpoint")
    checkpoint = Checkpoint(Path(str(folder))) if folder else None
    kept = read_history(out)[: len(checkpoint.history())] if checkpoint else []
    clear(out, kept)
    try:
        run = prepared_for(context)
        with open_sinks(_sinks(context), about_run(run.recipe, run.plan, out)) as add:
            _train(grid, _Diary(run, out, add, kept), context)
    except Exception as error:
        _leave_error(out, error)
        raise


def _sinks(context: Context) -> list[str]:
    return str(context.run_config.get("sinks") or "").replace(",", " ").split()


def _train(grid: Grid, diary: _Diary, context: Context) -> None:
    run = diary.run
    model = run.federation.model
    config = context.run_config
    folder = config.get("checkpoint") or None
    timeout = float(config.get("timeout") or TIMEOUT)
    name = _training(run, context, folder)
    strategy = DPStrategy(
        run.plan, training=name, wait=WAIT, watch=diary.note,
        checkpoint=None if folder is None else str(folder),
    )  # fmt: skip
    params = model.initial(public_seed(run.recipe.seed, "model"))
    arrays = named_arrays(model.layout, params)
    diary.tell()
    result = strategy.start(grid, arrays, timeout=timeout, evaluate_fn=diary.judge)
    _leave(diary.out, run, result, diary.rows)


def _training(run: Prepared, context: Context, folder: object) -> str:
    """The training's name: as configured, or a checkpoint's own, or one for this run alone."""
    name = context.run_config.get("training")
    if not name and folder:
        name = Checkpoint(Path(str(folder))).training(run.recipe.name)
    return re.sub(r"[^\w.-]", "-", str(name or f"{run.recipe.name}-{context.run_id}")).lstrip(".")[
        -100:
    ]


@dataclass(frozen=True, eq=False)
class _Diary:
    """The history as it is written: the strategy's rows, with accuracy where it is known."""

    run: Prepared
    out: Path
    add: Add
    rows: list[Row]
    """Those that were committed before it died, and from there on all."""

    def tell(self) -> None:
        """Sinks begin anew: they get the rows that were there before."""
        for row in self.rows:
            self.add(row)

    def judge(self, round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Accuracy on the test records that the server holds, if the recipe says so."""
        kind, silos = self.run.recipe.evaluation.kind, self.run.federation
        if kind != "test" or silos.test is None or not self.run.plan.evaluates(round - 1):
            return None
        params = silos.model.layout.flatten(arrays.to_torch_state_dict())
        seen = evaluate(silos.model, params, silos.test)
        known = {} if math.isnan(seen.accuracy) else {"accuracy": seen.accuracy}
        return MetricRecord({**known, "loss": seen.loss})

    def note(self, row: Row) -> None:
        """Add a round, in the form of a Result's history, to the file that is watched."""
        self.rows.append(plain(row))
        with (self.out / METRICS_FILE).open("a", encoding="utf-8") as file:
            file.write(_line(self.rows[-1]))
        self.add(self.rows[-1])


# --------------------------------------------------------------------------- files in and out


class Left(NamedTuple):
    """What a finished run left."""

    params: dict[str, torch.Tensor]
    history: list[Row]
    guarantee: Guarantee
    stopped: str | None


def clear(out: Path, kept: Sequence[Row] = ()) -> None:
    """Remove what an earlier run left but these rows: the rest would be taken for this one's."""
    for name in (GUARANTEE_FILE, ERROR_FILE, MODEL_FILE):
        (out / name).unlink(missing_ok=True)
    if kept:  # in one go: a process that dies here loses none
        _write(out / METRICS_FILE, "".join(_line(row) for row in kept))
    else:
        (out / METRICS_FILE).unlink(missing_ok=True)


def _leave(out: Path, run: Prepared, result: DPResult, history: list[Row]) -> None:
    if result.guarantee is None:
        raise errors.DpfedError("the strategy ended without a guarantee; nothing is reported")
    tensors = {n: t.contiguous() for n, t in result.arrays.to_torch_state_dict().items()}
    promise = {
        **result.guarantee.to_json(),
        "evaluation": evaluation_words(run.recipe, run.federation),
        "data": run.federation.source,
        "stopped": result.stopped,
    }
    _write(out / METRICS_FILE, "".join(_line(row) for row in history))
    draft = out / f"{MODEL_FILE}.draft"
    save_file(tensors, draft, metadata={"guarantee": result.guarantee.sentence})
    draft.replace(out / MODEL_FILE)
    _write(out / GUARANTEE_FILE, json.dumps(jsonable(promise), indent=2) + "\n")


def _leave_error(out: Path, error: Exception) -> None:
    _write(out / ERROR_FILE, json.dumps({"error": type(error).__name__, "sentence": str(error)}))


def _write(path: Path, text: str) -> None:
    replace_file(path, text.encode(), mode=0o644)


def _line(row: Row) -> str:
    return json.dumps(jsonable(row)) + "\n"


def collect(out: Path) -> Left | None:
    """What a run left in ``out``, or nothing; what stopped it is raised again."""
    if (out / ERROR_FILE).exists():
        _raise(json.loads((out / ERROR_FILE).read_text(encoding="utf-8")))
    if not (out / GUARANTEE_FILE).exists():
        return None
    promise = json.loads((out / GUARANTEE_FILE).read_text(encoding="utf-8"))
    guarantee = msgspec.convert(promise, Guarantee, strict=False)
    return Left(load_file(out / MODEL_FILE), read_history(out), guarantee, promise["stopped"])


def read_history(out: Path) -> list[Row]:
    """The rounds that are complete by now."""
    path = out / METRICS_FILE
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    return [{k: float(v) if v in _WORDS else v for k, v in row.items()} for row in rows]


def _raise(left: Mapping[str, str]) -> NoReturn:
    """One of dpfed's own errors keeps its class; any other is named in the sentence."""
    kind = getattr(errors, left["error"], None)
    if isinstance(kind, type) and issubclass(kind, errors.DpfedError):
        raise kind(left["sentence"])
    raise errors.DpfedError(f"the ServerApp failed with {left['error']}: {left['sentence']}")


# ---------------------------------------------------------------------- without run_config


def with_config(config: UserConfig) -> tuple[ServerApp, ClientApp]:
    """Both apps with a fixed configuration, where the caller cannot pass one."""

    def configured(context: Context) -> Context:
        ours = copy(context)  # Flower refuses a context whose own configuration was changed
        ours.run_config = config
        return ours

    server = ServerApp()

    @server.main()
    def fixed(grid: Grid, context: Context) -> None:
        main(grid, configured(context))

    clients = client.client_app(
        lambda context: problem_for(configured(context)),
        lambda context: plan_for(configured(context)),
        lambda context: ledger_for(configured(context)),
    )
    return server, clients
