# SPDX-License-Identifier: Apache-2.0
"""One run: recipe in, result out. ``dpfed.run`` and ``dpfed run`` both end here."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from dpfed.accounting.guarantee import Guarantee
from dpfed.accounting.ledger.ledger import default_path
from dpfed.core.errors import DataError, RecipeError
from dpfed.core.types import Vector
from dpfed.data.models import Evaluation, evaluate
from dpfed.recipes import schema as recipes
from dpfed.recipes.build import about_run, account_for, make_plan
from dpfed.recipes.federation import Federation, evaluation_words, federation, public_seed
from dpfed.recipes.history import Row, plain
from dpfed.recipes.result import Result, known
from dpfed.recipes.schema import Recipe
from dpfed.recipes.sinks._open import open_sinks
from dpfed.training import inprocess
from dpfed.training.checkpoint import Checkpoint
from dpfed.training.plan import Plan, small_delta
from dpfed.training.round import Outcome, Progress, start


@dataclass(frozen=True, eq=False)
class Prepared:
    """A run before its first round: sound, calibrated, and able to state its promise."""

    recipe: Recipe
    federation: Federation
    plan: Plan
    warnings: tuple[str, ...]


Watch = Callable[[Row, int], None]
"""Called after each round with its row and the number of rounds planned."""


def run(
    recipe: str | Path | Mapping[str, Any] | Recipe | None = None,
    *,
    seed: int | None = None,
    out: str | Path | None = None,
    overrides: tuple[str, ...] = (),
    watch: Watch | None = None,
    engine: str = "in-process",
    resume: str | Path | None = None,
    sinks: Sequence[str] = (),
    **sections: Any,
) -> Result:
    """Train as a recipe says.

    Args:
        recipe: a TOML file, tables, or nothing: then ``sections`` are the recipe.
        seed: overrides the recipe's seed.
        out: a folder for the result's files.
        overrides: ``key=value`` texts, as ``--set`` takes them.
        watch: called with each round's row and the number of rounds; of a resumed run with the
            earlier rows, too. ``dpfed.recipes.display.View`` is one.
        engine: ``in-process``, or ``flower-simulation``: the same bits, through ``flwr run``.
        resume: a folder in which the run keeps itself; one that died there goes on from its last
            committed round.
        sinks: where rows go while the run goes on: csv, tensorboard, mlflow; they write into
            ``out``.
        **sections: the recipe's own sections as keywords: data, privacy, server, rounds, ...
    """
    if engine not in _ENGINES:
        raise RecipeError(f"engine is {engine!r}; use one of {list(_ENGINES)}")
    root = _root(recipe)
    prepared = prepare(resolve(recipe, seed, overrides, sections), root)
    checkpoint = None if resume is None else Checkpoint(Path(resume))
    if checkpoint:
        _same_recipe(checkpoint, prepared.recipe)
    with _watched(prepared, watch, sinks, out) as follow:
        result = _ENGINES[engine](prepared, root, follow, checkpoint)
    if out is not None:
        result.save(out)
    return result


def _same_recipe(checkpoint: Checkpoint, recipe: Recipe) -> None:
    """A run goes on with the recipe that it began with: also data and optimizer, unlike a plan."""
    path = checkpoint.folder / "recipe.toml"
    if checkpoint.begun and path.exists():
        before, now = recipes.settings(recipes.load(path)), recipes.settings(recipe)
        for key in sorted(before | now):
            if before.get(key) != now.get(key):
                raise DataError(
                    f"{str(checkpoint.folder)!r} holds a run with {key} = {before.get(key)!r}, and "
                    f"not {now.get(key)!r}; resume with the recipe that it began with, or give "
                    f"another folder"
                )
        return
    checkpoint.folder.mkdir(parents=True, exist_ok=True)
    path.write_text(recipes.dump(recipe), encoding="utf-8")


@contextmanager
def _watched(
    prepared: Prepared, watch: Watch | None, sinks: Sequence[str], out: str | Path | None
) -> Iterator[Watch | None]:
    """The caller's own eyes, and sinks."""
    if not sinks:
        yield watch
        return
    if out is None:
        raise RecipeError(f"sinks {list(sinks)} write into a folder; give out='runs/NAME' as well")
    with open_sinks(sinks, about_run(prepared.recipe, prepared.plan, Path(out))) as add:

        def follow(row: Row, rounds: int) -> None:
            add(row)
            if watch:
                watch(row, rounds)

        yield follow


def _in_process(
    prepared: Prepared, root: Path | None, watch: Watch | None, checkpoint: Checkpoint | None
) -> Result:
    del root
    return run_prepared(prepared, watch, checkpoint)


def run_prepared(
    prepared: Prepared, watch: Watch | None = None, checkpoint: Checkpoint | None = None
) -> Result:
    """All rounds in this process, or those that an earlier one did not commit."""
    history: list[Row] = checkpoint.history() if checkpoint else []
    last = _begun(prepared, checkpoint)
    watch = watch or _unseen
    for row in history:
        watch(row, prepared.plan.rounds)
    for progress, row in _rounds(prepared, checkpoint, history):
        history.append(row)
        last = progress
        watch(row, prepared.plan.rounds)
    spent = prepared.plan.guarantee(last.books, last.round)
    result = _result(prepared, last.params, spent, history)
    if last.round == prepared.plan.rounds:
        return result
    short = f"stopped after {last.round} of {prepared.plan.rounds} rounds: the budget is spent"
    return replace(result, warnings=(*result.warnings, short))


def _unseen(row: Row, rounds: int) -> None:
    """Nobody watches."""
    del row, rounds


def _begun(prepared: Prepared, checkpoint: Checkpoint | None) -> Progress:
    """Where the run stands before this process plays a round: all there is, if it plays none."""
    fresh = start(prepared.plan, _initial(prepared), _training(prepared, checkpoint))
    saved = checkpoint and checkpoint.load(prepared.plan, fresh)
    return saved.progress if saved else fresh


def _simulated(
    prepared: Prepared, root: Path | None, watch: Watch | None, checkpoint: Checkpoint | None
) -> Result:
    """The resolved recipe through Flower's simulation; its log stays where errors say it is."""
    if checkpoint:
        raise RecipeError(
            "a simulation is not resumed; use the in-process engine, which gives the same bits"
        )
    from dpfed.recipes import simulation

    plan, layout = prepared.plan, prepared.federation.model.layout
    scratch = Path(tempfile.mkdtemp(prefix="dpfed-"))
    path = scratch / "recipe.toml"
    path.write_text(recipes.dump(_with_ledger(prepared.recipe)), encoding="utf-8")
    follow = None if watch is None else (lambda row: watch(row, plan.rounds))
    done = simulation.run(path, scratch / "out", clients=len(plan.nominal), root=root, watch=follow)
    result = _result(prepared, layout.flatten(dict(done.params)), done.guarantee, done.history)
    shutil.rmtree(scratch, ignore_errors=True)
    return replace(result, warnings=(*result.warnings, done.stopped)) if done.stopped else result


def _with_ledger(recipe: Recipe) -> Recipe:
    """The recipe with the ledger's file spelt out: a simulation's own folder is thrown away."""
    if isinstance(recipe.ledger, msgspec.UnsetType):
        return recipe
    where = default_path() if recipe.ledger.path is None else Path(recipe.ledger.path)
    ledger = msgspec.structs.replace(recipe.ledger, path=str(where.expanduser().resolve()))
    return msgspec.structs.replace(recipe, ledger=ledger)


_ENGINES = {"in-process": _in_process, "flower-simulation": _simulated}


def _root(recipe: Any) -> Path | None:
    return Path(recipe).resolve().parent if isinstance(recipe, str | Path) else None


def resolve(
    recipe: Any, seed: int | None, overrides: tuple[str, ...], sections: dict[str, Any]
) -> Recipe:
    """The recipe with everything that the caller says on top of it."""
    extra = overrides if seed is None else (*overrides, f"seed={seed}")
    if isinstance(recipe, Recipe):
        recipe = msgspec.to_builtins(recipe)
    if recipe is None:
        return recipes.load(sections, extra)
    if not sections:
        return recipes.load(recipe, extra)
    tree = recipe if isinstance(recipe, Mapping) else recipes.read(Path(recipe))
    return recipes.load({**tree, **sections}, extra)


def prepare(recipe: Recipe, root: Path | None = None, silos: Federation | None = None) -> Prepared:
    """Load the data (unless it is given), calibrate the noise, check the plan, before round 1."""
    silos = federation(recipe, root) if silos is None else silos
    plan = make_plan(recipe, silos.clients, silos.model)
    warnings = (small_delta(plan), _no_test(recipe, silos))
    return Prepared(recipe, silos, plan, tuple(each for each in warnings if each))


def _no_test(recipe: Recipe, silos: Federation) -> str | None:
    """Accuracy that will be missing is said before the budget is spent."""
    if recipe.evaluation.kind != "test" or silos.test is not None or silos.goal is not None:
        return None
    return (
        f"{silos.source} has no test records, so accuracy will not be measured; set "
        f"data.holdout = 0.2 to keep a fifth of the records for that"
    )


def _initial(prepared: Prepared) -> Vector:
    return prepared.federation.model.initial(public_seed(prepared.recipe.seed, "model"))


def _training(prepared: Prepared, checkpoint: Checkpoint | None) -> str:
    """The training's name: a checkpoint's own, or a new one where a ledger will know it."""
    name = prepared.recipe.name
    if checkpoint:
        return checkpoint.training(name)
    booked = not isinstance(prepared.recipe.ledger, msgspec.UnsetType)
    return f"{name}-{secrets.token_hex(4)}" if booked else "run"


def _rounds(
    prepared: Prepared, checkpoint: Checkpoint | None, history: list[Row]
) -> Iterator[tuple[Progress, Row]]:
    silos, plan = prepared.federation, prepared.plan
    began = time.perf_counter()
    found = inprocess.rounds(
        plan, silos.problems, _initial(prepared), account_for(prepared.recipe),
        _training(prepared, checkpoint), checkpoint, history,
    )  # fmt: skip
    for progress, outcome in found:
        seconds = time.perf_counter() - began
        yield progress, _row(prepared, progress, outcome, seconds)
        began = time.perf_counter()


def _row(prepared: Prepared, progress: Progress, outcome: Outcome, seconds: float) -> Row:
    plan = prepared.plan
    spent = plan.guarantee(progress.books, progress.round)
    return plain(
        {
            "round": progress.round,
            **_accuracy(prepared, progress, outcome),
            "epsilon": spent.claims[0].epsilon,
            "epsilon_others": spent.claims[-1].epsilon,
            "surplus": plan.surplus(len(outcome.clients)),
            "snr": outcome.snr,
            "clients": len(outcome.clients),
            "missing": outcome.missing,
            "aborted": outcome.aborted,
            "seconds": seconds,
        }
    )


def _accuracy(prepared: Prepared, progress: Progress, outcome: Outcome) -> Row:
    """Accuracy by the one kind of evaluation that the recipe turned on."""
    kind = prepared.recipe.evaluation.kind
    if kind == "off" or not prepared.plan.evaluates(outcome.round):
        return {}
    if kind == "federated":
        return {**outcome.measured(prepared.plan.loss_bound)}
    silos = prepared.federation
    if silos.goal is not None:
        return {"loss": float((progress.params.double() - silos.goal).square().sum())}
    if kind == "exact":
        return _per_silo([evaluate(silos.model, progress.params, held) for held in silos.held])
    if silos.test is None:
        return {}
    judged = evaluate(silos.model, progress.params, silos.test)
    return {"accuracy": known(judged.accuracy), "loss": judged.loss}


def _per_silo(judged: list[Evaluation]) -> Row:
    full = [each for each in judged if each.records]
    total = sum(each.records for each in full)
    mean = sum(each.accuracy * each.records for each in full) / total
    loss = sum(each.loss * each.records for each in full) / total
    worst = min(each.accuracy for each in full)
    return {"accuracy": known(mean), "loss": loss, "worst_silo": known(worst)}


def _result(prepared: Prepared, params: Vector, guarantee: Guarantee, history: list[Row]) -> Result:
    silos = prepared.federation
    return Result(
        recipe=prepared.recipe,
        model=silos.model,
        params=params,
        history=history,
        guarantee=guarantee,
        evaluation=evaluation_words(prepared.recipe, silos),
        source=silos.source,
        warnings=prepared.warnings,
    )
