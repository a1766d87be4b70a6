# SPDX-License-Identifier: Apache-2.0
"""From a recipe to what a run needs: the federation (clients with their problems) and the Plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import torch

from dpfed.accounting import gdp
from dpfed.accounting.calibrate import closed_form, least_factor
from dpfed.accounting.guarantee import delta_warning
from dpfed.compose import chain
from dpfed.data import backbones, datasets, partitions
from dpfed.data.datasets import Dataset, Records
from dpfed.data.problems import Linear, Model, Network, seeded
from dpfed.errors import RecipeError
from dpfed.randomness import Noise, derive
from dpfed.recipe import DataRecipe, ModelRecipe, PrivacyRecipe, Recipe
from dpfed.registry import build
from dpfed.sampling import EVERYONE, Everyone, Fixed, Poisson
from dpfed.terms import Plan
from dpfed.types import (
    METRICS,
    Adjacency,
    ClientAlgorithm,
    Mechanism,
    NoiseSource,
    Problem,
    Sampling,
    Unit,
)
from dpfed.vector import Layout

EVALUATIONS = {
    "test": "on test records that the server holds",
    "federated": "on the clients' records, through the priced metrics channel",
    "exact": "on records held out at the clients, in clear: not covered by the guarantee",
    "off": "not measured",
}


@dataclass(frozen=True, eq=False)
class Federation:
    """All clients of a simulated run, with the model and the records that judge it."""

    model: Model
    clients: Sequence[Records]
    problems: Sequence[Problem]
    test: Records | None
    held: Sequence[Records]
    source: str


def evaluation_words(recipe: Recipe, silos: Federation) -> str:
    """How the report says that accuracy was measured."""
    kind = recipe.evaluation.kind
    return EVALUATIONS["off" if kind == "test" and silos.test is None else kind]


# ------------------------------------------------------------------------------- the federation


def federation(recipe: Recipe, root: Path | None = None) -> Federation:
    """Load, divide, and give each client its problem."""
    dataset = load_dataset(recipe.data, recipe.seed, root)
    clients = divide(recipe, dataset)
    held: list[Records] = []
    if recipe.evaluation.kind == "exact":
        fraction = recipe.evaluation.holdout
        pairs = [datasets.holdout(c, fraction, recipe.seed, by_group=False) for c in clients]
        clients, held = [kept for kept, _ in pairs], [away for _, away in pairs]
    model = build_model(recipe.model, dataset, recipe.seed)
    problems = [model.problem(records) for records in clients]
    return Federation(model, clients, problems, dataset.test, held, dataset.source)


def load_dataset(recipe: DataRecipe, seed: int, root: Path | None) -> Dataset:
    """The data set, with every per-record step that the recipe asks for."""
    dataset = datasets.load(recipe.source, root=root, **recipe.options)
    if recipe.backbone:
        dataset = _featurize(recipe, dataset, root)
    if recipe.center:
        dataset = datasets.center(dataset, recipe.center, root=root)
    if recipe.positive_above is not None:
        dataset = datasets.binary(dataset, recipe.positive_above)
    if recipe.validation:
        train, held = datasets.holdout(dataset.train, recipe.validation, seed, by_group=False)
        dataset = replace(dataset, train=train, test=held)
    test = None if dataset.test is None else _clean(recipe, dataset.test)
    return replace(dataset, train=_clean(recipe, dataset.train), test=test)


def _clean(recipe: DataRecipe, records: Records) -> Records:
    if recipe.fill_missing is not None:
        records = datasets.fill_missing(records, recipe.fill_missing)
    return records if recipe.radius is None else datasets.scale_rows(records, recipe.radius)


def _featurize(recipe: DataRecipe, dataset: Dataset, root: Path | None) -> Dataset:
    """Images become features of a public backbone: a map of each record on its own."""
    weights = recipe.backbone_weights
    where = None if weights is None else datasets.find(weights, root)
    cache = None if recipe.backbone_cache is None else Path(recipe.backbone_cache)

    def featurize(records: Records) -> Records:
        images = backbones.to_rgb(records.x, recipe.backbone_size)
        made = backbones.features(str(recipe.backbone), images, weights=where, cache=cache)
        return replace(records, x=made)

    test = None if dataset.test is None else featurize(dataset.test)
    return replace(dataset, train=featurize(dataset.train), test=test)


def divide(recipe: Recipe, dataset: Dataset) -> list[Records]:
    """One part of the training records per client."""
    how = recipe.data.partition
    clients = 20 if how.clients is None and how.name != "natural" else how.clients
    parts = partitions.partition(how.name, dataset.train, clients, recipe.seed, **how.options)
    return [dataset.train.take(index) for index in parts]


def build_model(recipe: ModelRecipe, dataset: Dataset, seed: int = 0) -> Model:
    """The model that the recipe names, sized for the data set."""
    features = math.prod(dataset.train.x.shape[1:])
    if recipe.name == "network":
        return Network(_module(recipe, seed), chunk=recipe.chunk, sampler=recipe.sampler)
    if recipe.name == "softmax":
        if dataset.classes is None:
            raise RecipeError("model 'softmax' needs class labels, and these are numbers")
        return Linear("softmax", features, dataset.classes, recipe.bias)
    if recipe.name in {"logistic", "poisson"}:
        return Linear(recipe.name, features, 1, recipe.bias)
    raise RecipeError(f"model is {recipe.name!r}; use softmax, logistic, poisson or network")


def _module(recipe: ModelRecipe, seed: int) -> torch.nn.Module:
    where, colon, name = (recipe.factory or "").partition(":")
    if not colon:
        raise RecipeError(
            f"model 'network' needs factory = 'package.module:function', not {recipe.factory!r}"
        )
    try:
        factory: Any = getattr(import_module(where), name)
    except (ImportError, AttributeError) as error:
        raise RecipeError(
            f"model factory {recipe.factory!r} cannot be imported: {error}"
        ) from error
    return seeded(lambda: factory(**recipe.options), public_seed(seed, "module"))


# ------------------------------------------------------------------------------------- the plan


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


def plan_for(recipe: Recipe, nominal: Sequence[float], layout: Layout | None = None) -> Plan:
    """The Plan of a recipe for clients of these public sizes: calibrated, refused if unsound."""
    links = [_plug_in("server", table) for table in recipe.server]
    privacy = recipe.privacy
    seed = recipe.seed if privacy.noise is NoiseSource.KEYED else None
    client = _plug_in("client", recipe.client, unit=privacy.unit, layout=layout)
    draft = Plan(
        client=client,
        channels=_channels(recipe, client, nominal),
        sum=_plug_in("sums", recipe.sum),
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


def _plug_in(kind: str, table: dict[str, Any], **facts: Any) -> Any:
    if not isinstance(table.get("name"), str):
        raise RecipeError(f"a {kind} table has no name: {table}; see 'dpfed methods'")
    options = {key: value for key, value in table.items() if key != "name"}
    return build(kind, table["name"], options, **facts)


def _channels(
    recipe: Recipe, client: ClientAlgorithm, nominal: Sequence[float]
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
        )
        for name, channel in client.channels.items()
        if not channel.derived
    }
    if recipe.evaluation.kind == "federated":  # a point of the unit square, of every unit
        fresh = "clear" if privacy.mechanism == "clear" else "gaussian"  # nothing sums them up
        plain = msgspec.structs.replace(privacy, mechanism=fresh, options={})
        made[METRICS] = _mechanism(plain, math.sqrt(2), None, EVERYONE, recipe.rounds)
    return made


def _sampling(privacy: PrivacyRecipe, nominal: Sequence[float]) -> Sampling:
    if privacy.batch_size is not None:
        if privacy.record_rate != 1:
            raise RecipeError("record_rate and batch_size are two draws; give one of them")
        return Fixed(privacy.batch_size, math.floor(min(nominal)))
    return EVERYONE if privacy.record_rate == 1 else Poisson(privacy.record_rate)


def _mechanism(
    privacy: PrivacyRecipe, clip: float, swap: float | None, sampling: Sampling, releases: int
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
        "mechanisms", privacy.mechanism, options, horizon=ahead, rounds=ahead
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
    mu = gdp.mu_for(epsilon, draft.delta)

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


def small_delta(plan: Plan) -> str | None:
    """A warning where delta allows to give away a whole unit."""
    units = math.fsum(plan.nominal)
    return delta_warning(plan.delta, units)


def public_seed(seed: int, purpose: str) -> int:
    """A seed for what is public (model start, partitions), apart from the noise's keys."""
    return int.from_bytes(derive(seed, purpose)[:4], "big")
