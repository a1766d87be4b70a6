# SPDX-License-Identifier: Apache-2.0
"""From a recipe to its Plan: plug-ins built, noise calibrated, refused if unsound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from dpfed.accounting import gdp
from dpfed.accounting.calibrate import closed_form, least_factor
from dpfed.core.chain import chain
from dpfed.core.errors import RecipeError
from dpfed.core.randomness import Noise
from dpfed.core.registry import build
from dpfed.core.sampling import EVERYONE, Everyone, Fixed, Poisson
from dpfed.core.types import (
    METRICS,
    Adjacency,
    ClientAlgorithm,
    Mechanism,
    NoiseSource,
    Sampling,
    Sum,
    Trust,
    Unit,
)
from dpfed.core.vector import Layout
from dpfed.data.datasets import Records
from dpfed.data.models import Linear, Model
from dpfed.recipes.federation import EVALUATIONS
from dpfed.recipes.history import About
from dpfed.recipes.schema import PrivacyRecipe, Recipe, settings
from dpfed.training.account import Account, account
from dpfed.training.plan import Plan


def make_plan(recipe: Recipe, clients: Sequence[Records], model: Model | None = None) -> Plan:
    """The Plan of a recipe for these clients, whose sizes the adjacency makes public."""
    nominal = [_nominal(recipe.privacy, records) for records in clients]
    plan = plan_for(recipe, nominal, None if model is None else model.layout)
    if plan.client.linear and model is not None and not isinstance(model, Linear):
        raise RecipeError(
            f"client {recipe.client['name']!r} needs a model of one linear layer; "
            f"use softmax, logistic or poisson"
        )
    return plan


def about_run(recipe: Recipe, plan: Plan, out: Path) -> About:
    """What sinks are told of a run."""
    return About(recipe.name, out, plan.promise().sentence, settings(recipe))


def plan_for(recipe: Recipe, nominal: Sequence[float], layout: Layout | None = None) -> Plan:
    """The Plan of a recipe for clients of these public sizes: calibrated, refused if unsound."""
    links = [_plug_in("server", table) for table in recipe.server]
    privacy = recipe.privacy
    seed = recipe.seed if privacy.noise is NoiseSource.KEYED else None
    client = _plug_in("client", recipe.client, unit=privacy.unit, layout=layout)
    total = _plug_in("sums", recipe.sum)
    draft = Plan(
        client=client,
        channels=_channels(recipe, client, nominal, _honest_shares(recipe, total, nominal)),
        sum=total,
        server=links[0] if len(links) == 1 else chain(*links),
        nominal=[float(size) for size in nominal],
        rounds=recipe.rounds,
        delta=privacy.delta,
        weights=privacy.weights,
        noise=Noise(seed),
        colluders=privacy.colluders,
        metrics_every=recipe.evaluation.every,
        loss_bound=recipe.evaluation.loss_bound,
        participation=EVERYONE if privacy.client_rate == 1 else Poisson(privacy.client_rate),
    )
    if privacy.epsilon is None:
        draft.promise()  # what cannot be priced is refused before the first round
        return draft
    shares = _shares(recipe, draft)
    return replace(draft, channels=_calibrated(draft, privacy.epsilon, shares))


def account_for(recipe: Recipe, *, environment: bool = False) -> Account | None:
    """Where the recipe's releases are booked; on a node, what its owner says stands first."""
    section = recipe.ledger
    if isinstance(section, msgspec.UnsetType):
        return account(None, environment=environment)
    return account(
        section.dataset, path=section.path, epsilon=section.epsilon, delta=section.delta,
        environment=environment,
    )  # fmt: skip


def _plug_in(kind: str, table: dict[str, Any], **facts: Any) -> Any:
    if not isinstance(table.get("name"), str):
        raise RecipeError(f"a {kind} table has no name: {table}; see 'dpfed methods'")
    options = {key: value for key, value in table.items() if key != "name"}
    return build(kind, table["name"], options, **facts)


def _honest_shares(recipe: Recipe, total: Sum, nominal: Sequence[float]) -> dict[str, int]:
    """Under distributed trust noise is sized for the honest terms that every total has."""
    privacy = recipe.privacy
    hiding = privacy.trust is Trust.DISTRIBUTED and total.hides_terms
    if not hiding or privacy.mechanism == "clear":
        return {}
    return {"shares": total.honest(len(nominal), privacy.colluders)}


def _channels(
    recipe: Recipe, client: ClientAlgorithm, nominal: Sequence[float], shares: dict[str, int]
) -> dict[str, Mechanism]:
    """The mechanism of each channel, at the noise level given or to be calibrated."""
    privacy = recipe.privacy
    if recipe.evaluation.kind not in EVALUATIONS:
        raise RecipeError(
            f"evaluation.kind is {recipe.evaluation.kind!r}; use one of {list(EVALUATIONS)}"
        )
    sampling = _sampling(privacy, nominal)
    made = {
        name: _mechanism(
            privacy,
            channel.clip or privacy.clip,
            channel.swap,
            sampling,
            channel.planned(recipe.rounds),
            shares,
        )
        for name, channel in client.channels.items()
        if not channel.derived
    }
    if recipe.evaluation.kind == "federated":  # a point of the unit square, of every unit
        if not all(mechanism.independent for mechanism in made.values()):
            # correlated noise is for what is summed up over rounds, and metrics are not
            privacy = msgspec.structs.replace(privacy, mechanism="gaussian", options={})
        made[METRICS] = _mechanism(privacy, math.sqrt(2), None, EVERYONE, recipe.rounds, shares)
    return made


def _sampling(privacy: PrivacyRecipe, nominal: Sequence[float]) -> Sampling:
    if privacy.batch_size is not None:
        if privacy.record_rate != 1:
            raise RecipeError("record_rate and batch_size are two draws; give one of them")
        return Fixed(privacy.batch_size, math.floor(min(nominal)))
    return EVERYONE if privacy.record_rate == 1 else Poisson(privacy.record_rate)


def _mechanism(
    privacy: PrivacyRecipe,
    clip: float,
    swap: float | None,
    sampling: Sampling,
    releases: int,
    shares: dict[str, int],
) -> Mechanism:
    """Correlated noise is laid out for so many releases."""
    given = privacy.epsilon is not None, privacy.std_over_clip is not None
    options: dict[str, Any] = {
        "clip": clip, "unit": privacy.unit, "adjacency": privacy.adjacency, "trust": privacy.trust,
        **privacy.options,
    }  # fmt: skip
    if privacy.mechanism == "clear":
        if any(given):
            raise RecipeError(
                "mechanism 'clear' adds no noise; leave out epsilon and std_over_clip"
            )
    elif sum(given) != 1:
        raise RecipeError(
            f"privacy.epsilon is {privacy.epsilon} and privacy.std_over_clip "
            f"{privacy.std_over_clip}; give exactly one, or mechanism = 'clear'"
        )
    else:
        options["std"] = clip * (1.0 if privacy.std_over_clip is None else privacy.std_over_clip)
        options["swap"] = 2 * clip if swap is None else swap
    ahead = max(1, releases)
    mechanism: Mechanism = build(
        "mechanisms", privacy.mechanism, options, horizon=ahead, rounds=ahead, **shares
    )
    return mechanism if sampling == EVERYONE else mechanism.with_sampling(sampling)


def _shares(recipe: Recipe, draft: Plan) -> dict[str, float]:
    """The part of the squared mu that each channel may use."""
    shares = {METRICS: recipe.evaluation.share} if METRICS in draft.channels else {}
    for name, channel in draft.client.channels.items():
        if name in draft.channels and channel.share is not None:
            shares[name] = channel.share
    rest = [name for name in draft.channels if name not in shares]
    left = 1 - math.fsum(shares.values())
    if rest and left <= 0:
        raise RecipeError(f"the shares {shares} leave nothing for {rest}; lower one of them")
    return {**shares, **dict.fromkeys(rest, left / max(1, len(rest)))}


def _calibrated(draft: Plan, epsilon: float, shares: dict[str, float]) -> dict[str, Mechanism]:
    """Noise by the closed form; where units are drawn, all of it is then scaled by a search."""
    mu = gdp.mu_for(epsilon, draft.delta - draft.lost)

    made = {
        name: closed_form(mechanism, mu * math.sqrt(shares[name]), max(1, draft.planned(name)))
        for name, mechanism in draft.channels.items()
    }
    drawn = (m.sampling for m in made.values())
    if all(isinstance(sampling, Everyone) for sampling in (*drawn, draft.amplified)):
        return made

    def scaled(factor: float) -> dict[str, Mechanism]:
        return {name: m.with_std(m.std * factor) for name, m in made.items()}

    def keeps(factor: float) -> bool:
        return replace(draft, channels=scaled(factor)).promise().claims[0].epsilon <= epsilon

    return scaled(least_factor(keeps))


def _nominal(privacy: PrivacyRecipe, records: Records) -> float:
    """A client's public size in units.

    Replace-one and zero-out leave the number of units as it is, so it may be public. Add/remove
    does not: there a size must be declared without looking.
    """
    if privacy.nominal is not None:
        return privacy.nominal
    if privacy.unit is Unit.CLIENT:
        return 1.0
    if privacy.adjacency is Adjacency.ADD_REMOVE:
        raise RecipeError(
            "under add-remove a client's size is private; declare privacy.nominal, the same "
            "public number for every client"
        )
    if privacy.unit is Unit.GROUP and records.groups is not None:
        return float(len(torch.unique(records.groups)))
    return float(len(records))
