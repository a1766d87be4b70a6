# SPDX-License-Identifier: Apache-2.0
"""One run: recipe in, result out. ``dpfed.run`` and ``dpfed run`` both end here."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import msgspec

from dpfed.accounting.guarantee import certified
from dpfed.accounting.second_opinion import checked
from dpfed.core.checks import refuse
from dpfed.core.environment import ledger_path
from dpfed.core.errors import RecipeError
from dpfed.recipes import schema as recipes
from dpfed.recipes.result import Result, refuse_taken, require_a_round
from dpfed.recipes.resumed import check_same, with_first_parameters
from dpfed.recipes.schema import Recipe
from dpfed.recipes.sections import Sections
from dpfed.recipes.session import Session, prepare
from dpfed.recipes.sinks._open import About, open_sinks
from dpfed.training.account import Account
from dpfed.training.checkpoint import Checkpoint
from dpfed.training.history import Row, participants
from dpfed.training.inprocess import InProcess
from dpfed.training.loop import Step, train
from dpfed.training.population import Population

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
    overwrite: bool = False,
    **sections: Unpack[Sections],
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
        resume: a folder in which the run keeps itself; one that died there resumes from its last
            committed round, in memory too: give the same arrays, on the same machine.
        sinks: where rows go during the run: csv, tensorboard, mlflow, wandb; they write into
            ``out``.
        overwrite: let ``out`` hold another run's result, and write over it.
        **sections: the recipe's own sections as keywords: data, privacy, server, rounds, ...;
            ``data`` may be (x, y) of arrays, and ``model`` a torch module.

    Returns:
        the model, the history of all rounds, and the guarantee.

    Raises:
        RecipeError: names the field, its bound and the way out.
        UnsoundPlan: if no guarantee could be stated.
        BudgetSpent: if the data's ledger has too little left.

    >>> made_up = {"records": 60, "features": 3, "classes": 2}
    >>> data = {"options": made_up, "partition": {"clients": 2}}
    >>> result = run(data=data, privacy={"epsilon": 1.0}, rounds=2, method="dp-fedgd")
    >>> result.guarantee.epsilon <= 1.0, len(result.history)
    (True, 2)
    """
    if engine not in _ENGINES:
        raise refuse("engine", f"one of {', '.join(_ENGINES)}", engine)
    if out is not None and resume is None and not overwrite:
        refuse_taken(Path(out), "give another folder, or overwrite=True (dpfed run --overwrite)")
    root = Path(recipe).resolve().parent if isinstance(recipe, str | Path) else None
    resolved = resolve(recipe, seed, overrides, sections)
    checkpoint = None if resume is None else Checkpoint(Path(resume))
    resolved = with_first_parameters(checkpoint, resolved)
    session = prepare(resolved, root)
    session.show_screen()
    session.warn_of_noise()
    check_same(checkpoint, resolved, session.federation)
    if sinks and out is None:
        raise RecipeError("sinks write into a folder, and none is given; give out='runs/NAME', too")
    about = session.about(Path(out or "."))
    with _watched(about, watch, sinks) as follow:
        result = _ENGINES[engine](session, root, follow, checkpoint)
        about.finished = result.guarantee.sentence
    if out is not None:
        result.save(out)
    return result


def resolve(
    recipe: Any, seed: int | None, overrides: tuple[str, ...], sections: Sections
) -> Recipe:
    """The recipe with everything that the caller says on top of it.

    Args:
        recipe: as ``run`` takes it.
        seed: overrides the recipe's seed.
        overrides: ``key=value`` texts.
        sections: the recipe's sections, which stand before those of a file.
    """
    if seed is not None and not isinstance(seed, int):
        raise refuse("seed", "a whole number", seed)
    extra = overrides if seed is None else (*overrides, f"seed={seed}")
    if isinstance(recipe, str | Path):
        recipe = recipes.read_toml(Path(recipe))
    elif isinstance(recipe, Recipe):
        recipe = msgspec.to_builtins(recipe)
    elif recipe is not None and not isinstance(recipe, Mapping):
        raise refuse("recipe", "a TOML file or its tables", recipe, "give records as data=")
    return recipes.load_recipe({**(recipe or {}), **sections}, extra)


@contextmanager
def _watched(about: About, watch: Watch | None, sinks: Sequence[str]) -> Iterator[Watch | None]:
    """A ``watch`` that hands each row to the sinks and to the caller's own ``watch``."""
    if not sinks:
        yield watch
        return
    with open_sinks(sinks, about) as add:

        def follow(row: Row, rounds: int) -> None:
            add(row)
            if watch:
                watch(row, rounds)

        yield follow


# ------------------------------------------------------------------------------------- in-process


def _in_process(
    session: Session, root: Path | None, watch: Watch | None, checkpoint: Checkpoint | None
) -> Result:
    del root
    return run_session(session, watch, checkpoint)


def run_session(
    session: Session, watch: Watch | None = None, checkpoint: Checkpoint | None = None
) -> Result:
    """All rounds in this process, or those that an earlier one did not commit.

    Args:
        session: the run.
        watch: called with each round's row, those of an earlier process too.
        checkpoint: where the run keeps itself.
    """
    plan, shown, account = session.plan, 0, session.account()
    checked(plan.guarantee())  # before anything is spent
    if checkpoint:
        checkpoint.describe(session.federation.model.layout)
        session.keep_description(checkpoint)
    problems = session.federation.problems
    transport = (
        Population(plan, problems, ledger=account)
        if plan.open
        else InProcess(plan, problems, account)
    )
    steps = train(
        plan,
        session.initial,
        transport,
        training=_training(session, checkpoint),
        checkpoint=checkpoint,
        judge=session.judge,
    )
    for step in steps:
        if watch:
            for row in step.history[shown:]:
                watch(row, plan.rounds)
        shown, last = len(step.history), step
    require_a_round(last, _first_refusal(transport))
    return _finished(session, last, account)


def _first_refusal(transport: InProcess | Population) -> str:
    return str(transport.refusals[0]) if transport.refusals else ""


def _finished(session: Session, step: Step, account: Account | None) -> Result:
    state = step.state
    plan = session.plan
    spent = certified(plan.guarantee(), plan.guarantee(state.release_counts, state.round))
    spent = checked(spent)
    if account and account.ledger.budget_of(account.dataset):
        spent = replace(spent, budgeted=True)
    took = participants(session.plan, step.committed)
    return session.result(state.params, spent, step.history, step.stopped, took)


def _training(session: Session, checkpoint: Checkpoint | None) -> str:
    """The training's name: a checkpoint's own, or a new one if a ledger will know it."""
    name = session.recipe.name
    if checkpoint:
        return checkpoint.training(name)
    entered = session.recipe.ledger is not None
    return f"{name}-{secrets.token_hex(4)}" if entered else "run"


# --------------------------------------------------------------------------- Flower's simulation


def _simulated(
    session: Session, root: Path | None, watch: Watch | None, checkpoint: Checkpoint | None
) -> Result:
    """The resolved recipe through Flower's simulation; its log stays where errors say it is."""
    if checkpoint:
        raise RecipeError(
            "a simulation is not resumed; use engine 'in-process', which gives the same bits"
        )
    from dpfed.recipes import simulation

    for key, value in recipes.settings(session.recipe).items():
        if key.endswith(("name", "mechanism", "source", "factory")) and "@" in str(value):
            raise RecipeError(
                f"{key} must be a name, a file or 'module:function' in a simulation, got an "
                f"object, {value!r}: its processes do not have it; use engine 'in-process'"
            )
    plan, layout = session.plan, session.federation.model.layout
    devices = len(session.federation.problems) if plan.open else len(plan.nominal)
    scratch = Path(tempfile.mkdtemp(prefix="dpfed-"))
    path = scratch / "recipe.toml"
    path.write_text(recipes.dump_recipe(_with_ledger(session.recipe)), encoding="utf-8")
    follow = None if watch is None else (lambda row: watch(row, plan.rounds))
    done = simulation.run_simulation(
        path, scratch / "out", clients=devices, root=root, watch=follow
    )
    params = layout.flatten(dict(done.params))
    shutil.rmtree(scratch, ignore_errors=True)
    return session.result(params, done.guarantee, done.history, done.stopped, done.answered)


def _with_ledger(recipe: Recipe) -> Recipe:
    """The recipe with the ledger's path spelt out: a simulation's own folder is deleted."""
    if recipe.ledger is None:
        return recipe
    where = ledger_path() if recipe.ledger.path is None else Path(recipe.ledger.path)
    ledger = msgspec.structs.replace(recipe.ledger, path=str(where.expanduser().resolve()))
    return msgspec.structs.replace(recipe, ledger=ledger)


_ENGINES = {"in-process": _in_process, "flower-simulation": _simulated}
