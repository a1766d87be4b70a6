# SPDX-License-Identifier: Apache-2.0
"""A recipe's run before its first round: data loaded, noise calibrated, plan checked, judge ready.

Every engine begins here, on the server and on clients, so that all of them run the same plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from dpfed.accounting.guarantee import Guarantee
from dpfed.client.questions.answers import Answer, answers
from dpfed.client.questions.model import Statistics
from dpfed.core.log import log
from dpfed.core.randomness import public_seed
from dpfed.core.types import UPDATE, Aggregate, Vector
from dpfed.data.contract import Contract
from dpfed.data.models import Evaluation, evaluate
from dpfed.data.modules import NetworkProblem
from dpfed.mechanisms.discrete_gaussian import DiscreteGaussian
from dpfed.recipes.build import plan_for_clients, trained_model
from dpfed.recipes.federation import Federation, evaluation_words, federation, with_model
from dpfed.recipes.result import Result
from dpfed.recipes.row_norm import clip_warning
from dpfed.recipes.schema import EvaluationKind, Recipe, settings, with_contract
from dpfed.recipes.sinks._open import About
from dpfed.recipes.terms import Terms
from dpfed.training.account import Account, open_account
from dpfed.training.checkpoint import Checkpoint
from dpfed.training.history import Row, columns_of
from dpfed.training.plan import Plan
from dpfed.training.signal import noise_warning, warn_of_noise
from dpfed.training.soundness import small_delta

if TYPE_CHECKING:
    from dpfed.bundle.description import Description


@dataclass(frozen=True, eq=False)
class Session:
    """A run that is sound, calibrated, and able to state its guarantee."""

    recipe: Recipe
    federation: Federation
    plan: Plan
    warnings: tuple[str, ...] = ()
    terms: str = ""
    """The text of the terms that silos were asked to approve, if their gates hold the data."""

    @property
    def initial(self) -> Vector:
        """The parameters that training begins with: a public function of the seed."""
        return self.federation.model.initial(public_seed(self.recipe.seed, "model"))

    @property
    def evaluation(self) -> str:
        """How accuracy is measured, in words."""
        return evaluation_words(self.recipe, self.federation)

    @property
    def rows(self) -> str:
        """How rows of a network are clipped, in words; empty if there is only one way."""
        problem = next(iter(self.federation.problems), None)
        if not isinstance(problem, NetworkProblem):
            return ""
        integers = isinstance(self.plan.update, DiscreteGaussian)
        return problem.rows_in_words(self.plan.update.unit, exact=integers)

    def show_screen(self) -> None:
        """Log what looks wrong in the records. The log stays on this machine."""
        found = self.federation.screen
        if isinstance(self.federation.model, Statistics):  # it is about what a model is fitted to
            return
        if found is not None and self.recipe.data.source != "synthetic":
            if self.recipe.model.name == "transformers":  # tokens are names: they have no scale
                found = replace(found, columns=())
            for sentence in found.findings():
                log.warning("data: %s", sentence)

    def warn_of_noise(self) -> None:
        """Log, before anything is spent, that the noise leaves little hope, or the clip less."""
        warn_of_noise(self.plan, self.federation.model.layout)
        if said := _clip_warning(self.recipe, self.federation):
            log.warning("%s", said)

    @property
    def steps(self) -> Mapping[str, float]:
        """What the server steps by, by name, if everyone takes part: its rule's numbers, too."""
        plan, nothing = self.plan, torch.zeros(0)
        seen = Aggregate(
            round=0,
            params=nothing,
            mean=nothing,
            std=plan.noise_std(UPDATE) * plan.declared[UPDATE].noise,
            clients=len(plan.nominal),
            rounds=plan.rounds,
            clip=plan.update.clip,
        )
        found = plan.optimizer.settings(seen)
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def about(self, out: Path) -> About:
        """What sinks are told of the run."""
        sentence = self.plan.guarantee().sentence
        return About(
            name=self.recipe.name,
            folder=out,
            guarantee=sentence,
            settings=settings(self.recipe),
            columns=columns_of(self.plan),
        )

    def account(self, *, environment: bool = False) -> Account | None:
        """Where releases are entered; with ``environment``, a node's owner overrides the recipe."""
        section = self.recipe.ledger
        if section is None:
            return open_account(None, environment=environment)
        return open_account(
            section.dataset,
            path=section.path,
            epsilon=section.epsilon,
            delta=section.delta,
            environment=environment,
        )

    def judge(self, round: int, params: Vector) -> Mapping[str, float | None]:
        """What the server measures of the model after a round, by the recipe's evaluation."""
        kind, silos = self.recipe.evaluation.kind, self.federation
        if not self.plan.evaluates(round - 1):
            return {}
        if silos.goal is not None:
            return {"loss": float((params.double() - silos.goal).square().sum())}
        if kind is EvaluationKind.EXACT:
            held = [each for each in silos.held if len(each)]
            return _per_silo([evaluate(silos.model, params, each) for each in held])
        if kind is not EvaluationKind.TEST or silos.test is None or not len(silos.test):
            return {}
        judged = evaluate(silos.model, params, silos.test)
        return {"accuracy": judged.accuracy, "loss": judged.loss}

    def result(
        self,
        params: Vector,
        guarantee: Guarantee,
        history: Sequence[Row],
        stopped: str | None,
        answered: Mapping[str, Any],
    ) -> Result:
        """The result of the finished run.

        Args:
            params: the trained parameters.
            guarantee: what was spent.
            history: one row per attempt at a round.
            stopped: why training ended early, if it did.
            answered: who is in the totals of which rounds.
        """
        warnings, plan = self.warnings, self.plan
        if stopped:
            done = max((row["round"] for row in history), default=0)
            warnings = (*warnings, f"stopped after {done} of {plan.rounds} rounds: {stopped}")
        return Result(
            recipe=self.recipe,
            model=self.federation.model,
            params=params,
            history=list(history),
            guarantee=guarantee,
            evaluation=self.evaluation,
            source=self.federation.source,
            warnings=warnings,
            stopped=stopped,
            divided=self.federation.divided,
            nominal=() if plan.open else tuple(plan.nominal),  # an open population lists nobody
            rows=self.rows,
            steps=self.steps,
            answered=answered,
            answers=self._answers(params, history),
            description=self.described(guarantee, history, stopped, params),
        )

    def _answers(self, params: Vector, history: Sequence[Row]) -> tuple[Answer, ...]:
        """What came back for each question; nothing where a model was trained."""
        model, plan = self.federation.model, self.plan
        if not isinstance(model, Statistics):
            return ()
        rounds = max(1, max((row["round"] for row in history), default=1))
        units = plan.denominator(UPDATE)
        std = plan.noise_std(UPDATE) * units / math.sqrt(rounds)
        return answers(model.questions, model.columns, params * units, std)

    def keep_description(self, checkpoint: Checkpoint, enforced: str = "") -> None:
        """Leave in a checkpoint what a bundle of its model says; a run is not lost for it.

        Args:
            checkpoint: where the run keeps itself.
            enforced: who enforces the guarantee, in words; "" where all is one process.
        """
        from dpfed.bundle.description import encode
        from dpfed.recipes.describe import describe

        if not self.plan.client.trains:  # answers to questions are no model
            return
        try:
            made = describe(self.recipe, self.federation, self.plan, enforced)
            checkpoint.describe_model(encode(made))
        except Exception:
            log.exception("%s can be exported without a bundle only", checkpoint.folder)

    def described(
        self, guarantee: Guarantee, history: Sequence[Row], stopped: str | None, params: Vector
    ) -> Description | None:
        """What model.json says of the finished run; None if that fails: no model is lost for it.

        Args:
            guarantee: what was spent.
            history: one row per attempt at a round.
            stopped: why training ended early, if it did.
            params: the trained parameters.
        """
        from dpfed.recipes.describe import describe, finished

        if not self.plan.client.trains:
            return None
        try:
            made = describe(self.recipe, self.federation, self.plan)
            test, model = self.federation.test, self.federation.model
            judged = None
            if (
                self.recipe.evaluation.kind is EvaluationKind.TEST
                and test is not None
                and len(test)
            ):
                judged = evaluate(model, params, test)
            return finished(made, self.recipe, self.plan, guarantee, history, stopped, judged)
        except Exception:
            log.exception("the result has no bundle (model/): it cannot be described")
            return None


def prepare(recipe: Recipe, root: Path | None = None, silos: Federation | None = None) -> Session:
    """Load the data, calibrate the noise and check the plan.

    Args:
        recipe: the run's configuration.
        root: the folder that relative data paths refer to; None means the working folder.
        silos: data that was loaded before, for many runs on the same records.
    """
    recipe = msgspec.structs.replace(recipe, data=with_contract(recipe.data, root))
    silos = federation(recipe, root) if silos is None else silos
    plan = plan_for_clients(recipe, silos.clients, silos.model)
    silos = with_model(silos, trained_model(recipe, plan, silos.model, silos.spread))
    found = _warnings(recipe, plan, silos)
    return Session(recipe=recipe, federation=silos, plan=plan, warnings=found)


def prepare_terms(terms: Terms) -> Session:
    """The server's side of a training whose data is behind gates: all but the data.

    Args:
        terms: what the silos were asked to approve.
    """
    words = f"{terms.pins.dataset}, behind the gates of {len(terms.pins.sizes)} silos"
    silos = Federation(
        model=terms.model,
        clients=(),
        problems=(),
        test=None,
        held=(),
        source=words,
        classes=terms.pins.classes if terms.pins.classes > 1 else None,
        contract=terms.pins.contract or None,
        shape=tuple(terms.pins.shape),
    )
    found = _warnings(terms.recipe, terms.plan, silos)
    return Session(
        recipe=terms.recipe, federation=silos, plan=terms.plan, warnings=found, terms=terms.text
    )


def _warnings(recipe: Recipe, plan: Plan, silos: Federation) -> tuple[str, ...]:
    noise = noise_warning(plan, silos.model.layout)
    clip = _clip_warning(recipe, silos)
    found = (small_delta(plan), noise, clip, _no_test(recipe, silos), _drafted(recipe))
    return tuple(each for each in found if each)


def _clip_warning(recipe: Recipe, silos: Federation) -> str | None:
    return clip_warning(recipe, getattr(silos.model, "features", None))


def _drafted(recipe: Recipe) -> str | None:
    """A warning that the guarantee does not cover what was read off records."""
    contract = recipe.data.contract
    if not isinstance(contract, Contract) or not contract.drafted:
        return None
    return (
        f"the contract's {', '.join(contract.drafted)} were read off private records, which the "
        f"guarantee does not cover; replace them by public knowledge"
    )


def _no_test(recipe: Recipe, silos: Federation) -> str | None:
    """A warning, before the budget is spent, that accuracy will not be measured."""
    judged = bool(silos.test is not None and len(silos.test)) or silos.goal is not None
    if recipe.evaluation.kind is not EvaluationKind.TEST or judged:
        return None
    way_out = "set data.holdout = 0.2 to keep a fifth of the records for that"
    if not silos.clients:
        way_out = "set evaluation.kind = 'federated' (at the silos, with noise), or 'off'"
    return f"{silos.source} has no test records, so accuracy will not be measured; {way_out}"


def _per_silo(judged: list[Evaluation]) -> Mapping[str, float]:
    total = sum(each.records for each in judged)
    return {
        "accuracy": sum(each.accuracy * each.records for each in judged) / total,
        "loss": sum(each.loss * each.records for each in judged) / total,
        "worst_silo": min(each.accuracy for each in judged),
    }
