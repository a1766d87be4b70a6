# SPDX-License-Identifier: Apache-2.0
"""A recipe's Plan: plug-ins are built, noise is calibrated, and an unsound Plan is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import torch

from dpfed.accounting import gdp
from dpfed.accounting.calibrate import closed_form, least_factor
from dpfed.accounting.guarantee import epsilon_of, rough_epsilon_of
from dpfed.core.chain import chain
from dpfed.core.checks import refuse
from dpfed.core.dsse import Json
from dpfed.core.errors import RecipeError, Unpriceable
from dpfed.core.metric import Metric
from dpfed.core.participation import Participation
from dpfed.core.randomness import Noise
from dpfed.core.registry import build, is_code
from dpfed.core.sampling import EVERYONE, Everyone, Poisson
from dpfed.core.sum_protocol import Sum
from dpfed.core.types import (
    METRICS,
    UPDATE,
    Adjacency,
    Channel,
    Channels,
    ClientAlgorithm,
    Facts,
    FeatureRange,
    Mechanism,
    NoiseSource,
    Sampling,
    Trust,
    Unit,
)
from dpfed.core.vector import Layout
from dpfed.data.contract import Contract
from dpfed.data.datasets import Records
from dpfed.data.models import Linear, Model
from dpfed.recipes.methods import DEFAULT, METHODS
from dpfed.recipes.model import refuse_start
from dpfed.recipes.remembered import remembered
from dpfed.recipes.schema import (
    DataRecipe,
    EvaluationKind,
    EvaluationRecipe,
    PrivacyRecipe,
    Recipe,
    with_contract,
)
from dpfed.training.metrics import metrics_channel
from dpfed.training.plan import Plan

MIN_DRAWN_NOISE = 0.05
"""The least noise, in clips, if units are drawn: with less, the accountant's grid has no end."""
MAX_COHORT = 1_000_000
"""The most devices in a round: more than one server serves, and a list of them fits in memory."""


def plan_for_clients(
    recipe: Recipe, clients: Sequence[Records], model: Model | None = None
) -> Plan:
    """The Plan of a recipe for these clients, whose sizes the adjacency makes public.

    Args:
        recipe: the run's configuration.
        clients: each client's training records, of which only the number of units is used.
        model: the model, for methods that need its layout or one linear layer; None has neither.
    """
    listed = not _is_open(recipe.privacy)
    nominal = [_nominal(recipe.privacy, records) for records in clients if listed]
    plan = plan_for(recipe, nominal, None if model is None else model.layout, remember=True)
    if plan.client.linear and model is not None and not _is_linear(plan.client, model):
        raise RecipeError(
            f"client {recipe.client['name']!r} needs a model of one linear layer, got "
            f"{recipe.model.name!r}; set model.name to softmax, logistic or poisson"
        )
    return plan


def _is_linear(client: ClientAlgorithm, model: Model) -> bool:
    """Whether a model is one linear layer, or what the algorithm itself puts in its place."""
    return isinstance(model, Linear) or _owns(client, model.layout)


def _owns(client: ClientAlgorithm, layout: Layout) -> bool:
    return client.model is not None and client.model.owns(layout.shapes)


def plan_for(
    recipe: Recipe,
    nominal: Sequence[float],
    layout: Layout | None = None,
    *,
    remember: bool = False,
) -> Plan:
    """The Plan of a recipe for clients of these public sizes: calibrated, refused if unsound.

    Args:
        recipe: the run's configuration.
        nominal: each client's public size in units; 1 for each client where clients are the unit;
            empty if privacy.cohort makes the population an open one.
        layout: the names and shapes of the model's parameters; None for methods that do not ask.
        remember: whether noise that was found before is read from the disk, and priced again; a
            silo reads none.
    """
    plan = _plan_for(recipe, nominal, layout, remember=remember)
    if plan.client.settle is None:
        return plan
    decided = plan.client.settle({name: plan.noise_std(name) for name in plan.channels})
    client = {**recipe.client, **decided}
    complete = msgspec.structs.replace(recipe, client=client)
    return _plan_for(complete, nominal, layout, remember=remember)


def _plan_for(
    recipe: Recipe, nominal: Sequence[float], layout: Layout | None, *, remember: bool
) -> Plan:
    privacy = recipe.privacy
    shape = {"layout": layout, "epsilon": privacy.epsilon}
    links = [_plug_in("server", table, **shape) for table in recipe.server]
    nominal = _slots(privacy, nominal) if _is_open(privacy) else nominal
    seed = recipe.seed if privacy.noise is NoiseSource.KEYED else None
    noise = _noise_kind(privacy)
    facts: dict[str, Any] = {"unit": privacy.unit, "layout": layout, "truncates": noise.exact}
    contract = _contract(recipe.data)
    facts["contract"] = contract
    client = _plug_in("client", recipe.client, **facts)
    _check_own(recipe, client, layout)
    if privacy.adaptive:
        from dpfed.client._adaptive import adaptive

        client = adaptive(
            client,
            privacy.clip,
            quantile=privacy.adaptive.quantile,
            rate=privacy.adaptive.rate,
            share=privacy.adaptive.share,
        )
    total = _plug_in("sums", recipe.sum)
    metrics = named_metrics(recipe.evaluation)
    declared = _declared(recipe, client, metrics, exact=noise.exact)
    shares = _honest_shares(recipe, total, nominal)
    draft = Plan(
        client=client,
        channels=_channels(recipe, declared, shares, independent=noise.independent),
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
        metrics=metrics,
        client_sampling=EVERYONE if privacy.client_rate == 1 else Poisson(privacy.client_rate),
        spare=privacy.spare_attempts or 0,
        open=_is_open(privacy),
        contract=contract.digest if contract else "",
    )
    _check_least(draft)
    if privacy.epsilon is None:
        draft.guarantee()  # what cannot be accounted for is refused before the first round
        return draft
    return replace(
        draft, channels=_calibrated(draft, privacy.epsilon, _shares(declared), remember=remember)
    )


def _contract(data: DataRecipe) -> Contract | None:
    contract = with_contract(data, None).contract
    return contract if isinstance(contract, Contract) else None


def _check_least(plan: Plan) -> None:
    """Refuse a least number of clients that cannot be met, or would not be used."""
    given = getattr(plan.sum, "least_clients", None)
    if given is None:
        return
    name, most = "sum.least_clients", len(plan.nominal)
    if plan.open or plan.draw_is_secret:
        bound = "left out where clients are drawn in secret, or nobody is listed"
        raise refuse(name, bound, given, "an end would tell who was there; leave it out")
    if given > most:
        raise refuse(name, f"at most {most}, the plan's clients", given, "lower it")


def _check_own(recipe: Recipe, client: ClientAlgorithm, layout: Layout | None) -> None:
    """Refuse a recipe that also names what its algorithm brings, or that model without it."""
    if client.needs.own_steps and recipe.server != [{"name": "scale"}]:
        raise refuse(
            "server",
            f"left out for client {recipe.client['name']!r}, which takes its own steps",
            recipe.server,
            "leave it out, or choose another method",
        )
    if client.channels[UPDATE].clip is not None and recipe.privacy.clip != PrivacyRecipe().clip:
        raise refuse(
            "privacy.clip",
            f"left out for client {recipe.client['name']!r}, which has its own",
            recipe.privacy.clip,
            "set client.clip, or name another method",
        )
    if layout is not None and layout.trained_by and not _owns(client, layout):
        raise refuse(
            "client.name",
            f"{layout.trained_by!r}, which brings this model",
            recipe.client["name"],
            "set it, or use another model, such as Linear",
        )


def recognised(layout: Layout) -> Layout:
    """The layout of a state dict, which the default method may recognise as that of its own model.

    Args:
        layout: names and shapes that do not say yet which algorithm brings the model.
    """
    name = METHODS[DEFAULT].client["name"]
    try:
        client = build("client", name, {}, layout=layout)
    except RecipeError:  # neither its own model nor one that it could take
        return layout
    return replace(layout, trained_by=name) if _owns(client, layout) else layout


def trained_model(recipe: Recipe, plan: Plan, model: Model, spread: float | None = None) -> Model:
    """The model that a plan trains: the one that its algorithm brings, or the recipe's own.

    Args:
        recipe: the run's configuration; its table ``data`` may say what ranges features have.
        plan: the recipe's plan.
        model: the model that the recipe names.
        spread: how far public records lie from the center, if the recipe names some.
    """
    own = plan.client.model
    if own is None or own.owns(model.layout.shapes):
        return model
    refuse_start(recipe.model, f"client {recipe.client['name']!r}, which brings its own model")
    made: Model = own.around(
        model, lambda features: public_range(recipe.data, features, spread), plan.channels
    )
    return made


def public_range(data: DataRecipe, features: int, spread: float | None = None) -> FeatureRange:
    """The middle of the features' ranges and half their diagonal; without any, 0 and data.radius.

    Args:
        data: the recipe's table.
        features: how many features there are.
        spread: how far public records lie from the center, which stands in for the radius.
    """
    if data.low is None or data.high is None:
        if data.radius is not None or data.norm is None:
            return FeatureRange(0.0, spread if data.radius is None else data.radius)
        return FeatureRange(0.0, data.norm)
    low, high = (_for_each(name, getattr(data, name), features) for name in ("low", "high"))
    if not all(a < b for a, b in zip(low, high, strict=True)):
        raise refuse("data.low", "below data.high for each feature", data.low, "correct one")
    pairs = list(zip(low, high, strict=True))
    return FeatureRange(tuple((a + b) / 2 for a, b in pairs), math.dist(low, high) / 2)


def _for_each(name: str, given: float | list[float], features: int) -> list[float]:
    values = given if isinstance(given, list) else [given] * features
    if len(values) != features or not all(map(math.isfinite, values)):
        bound = f"a finite number, or one for each of {features} features"
        raise refuse(f"data.{name}", bound, given, "give the range that a feature may have")
    return values


def _plug_in(kind: str, table: dict[str, Any], **facts: Any) -> Any:
    if not isinstance(table.get("name"), str):
        raise RecipeError(
            f"a {kind.removesuffix('s')} table must have a name, and has none; add one that "
            f"'dpfed methods --plug-ins' lists"
        )
    options = {key: value for key, value in table.items() if key != "name"}
    if is_code(table["name"]):
        _require_laws(kind, table["name"], options, facts.get("unit", Unit.RECORD))
    return build(kind, table["name"], options, **facts)


def _require_laws(kind: str, name: str, options: dict[str, Any], unit: Unit) -> None:
    """Try code that is not installed as a plug-in; a plan without any loads no laws."""
    from dpfed.recipes.laws import require_laws

    require_laws(kind, name, options, unit)


def _noise_kind(privacy: PrivacyRecipe) -> Mechanism:
    """The recipe's mechanism at its defaults: what kind of noise it adds, whatever its size."""
    if is_code(privacy.mechanism):
        _require_laws("mechanisms", privacy.mechanism, privacy.options, privacy.unit)
    made: Mechanism = build("mechanisms", privacy.mechanism, {})
    return made


def _honest_shares(recipe: Recipe, total: Sum, nominal: Sequence[float]) -> dict[str, int]:
    """Under distributed trust, noise is sized for the honest terms that every total has."""
    privacy = recipe.privacy
    hiding = privacy.trust is Trust.DISTRIBUTED and total.hides_terms
    if not hiding or privacy.mechanism == "clear":
        return {}
    return {"shares": total.min_honest(len(nominal), privacy.colluders)}


def _channels(
    recipe: Recipe, declared: Channels, shares: dict[str, int], *, independent: bool
) -> dict[str, Mechanism]:
    """The mechanism of each channel, at the noise level given or to be calibrated.

    Correlated noise is for sums over rounds: what is counted in one round has Gaussian noise.
    """
    privacy, of_counts = recipe.privacy, recipe.privacy
    if not independent:
        of_counts = msgspec.structs.replace(privacy, mechanism="gaussian", options={})
    drawn = EVERYONE if privacy.record_rate == 1 else Poisson(privacy.record_rate)
    return {
        name: _mechanism(
            of_counts if _is_counted(privacy, name, channel) else privacy,
            channel,
            sampling=EVERYONE if channel.census else drawn,
            releases=channel.planned(recipe.rounds, privacy.spare_attempts or 0),
            shares=shares,
            limits=privacy.participation.within(recipe.rounds) if privacy.participation else None,
        )
        for name, channel in declared.items()
        if not channel.derived
    }


def _declared(
    recipe: Recipe, client: ClientAlgorithm, metrics: tuple[Metric, ...], *, exact: bool
) -> Channels:
    """The algorithm's channels, and metrics if the recipe asks for them."""
    judged = recipe.evaluation
    if judged.kind is not EvaluationKind.FEDERATED:
        return client.channels
    every = max(1, judged.every)
    channel = metrics_channel(recipe.rounds, every, judged.share, metrics, truncates=exact)
    return {**client.channels, METRICS: channel}


def named_metrics(judged: EvaluationRecipe) -> tuple[Metric, ...]:
    """The metrics that a recipe names; none are accuracy and loss as they have always been."""
    if judged.metrics is None:
        return ()
    if judged.kind is not EvaluationKind.FEDERATED:
        bound = f"left out for evaluation.kind {str(judged.kind)!r}, which does not use it"
        raise refuse("evaluation.metrics", bound, judged.metrics, "set the kind to 'federated'")
    tables = [{"name": each} if isinstance(each, str) else each for each in judged.metrics]
    made = tuple(_plug_in("metrics", table) for table in tables)
    names = [name for metric in made for name in metric.names]
    if not made or len(set(names)) < len(names):
        bound = "one or more metrics with numbers of different names"
        raise refuse("evaluation.metrics", bound, judged.metrics, "name each of them once")
    return made


def _is_counted(privacy: PrivacyRecipe, name: str, channel: Channel) -> bool:
    """Whether a channel has numbers of one round: metrics, or how many rows a clip holds."""
    return channel.census or (bool(privacy.adaptive) and name != UPDATE)


def _mechanism(
    privacy: PrivacyRecipe,
    channel: Channel,
    *,
    sampling: Sampling,
    releases: int,
    shares: dict[str, int],
    limits: Participation | None,
) -> Mechanism:
    """The mechanism of a channel; correlated noise is laid out for ``releases`` releases."""
    _refuse_repeated(privacy)
    clip = channel.clip or privacy.clip
    given = privacy.epsilon is not None, privacy.std_over_clip is not None
    options: dict[str, Any] = dict(privacy.options)
    if privacy.mechanism == "clear":
        if any(given):
            raise RecipeError(
                "privacy.mechanism 'clear' adds no noise; leave out privacy.epsilon and "
                "privacy.std_over_clip"
            )
    elif sum(given) != 1:
        raise RecipeError(
            f"exactly one of privacy.epsilon and privacy.std_over_clip must be given, got "
            f"{privacy.epsilon} and {privacy.std_over_clip}; give one and leave out the other, or "
            f"set privacy.mechanism = 'clear'"
        )
    else:
        options["std"] = clip * (1.0 if privacy.std_over_clip is None else privacy.std_over_clip)
    facts = Facts(
        clip=clip,
        unit=privacy.unit,
        adjacency=privacy.adjacency,
        trust=privacy.trust,
        replace_bound=2 * clip if channel.replace_bound is None else channel.replace_bound,
        participation=limits,
    )
    ahead = max(1, releases)
    laid_out: dict[str, Any] = {"horizon": ahead, "rounds": ahead, **shares}
    mechanism: Mechanism = build("mechanisms", privacy.mechanism, options, facts=facts, **laid_out)
    if mechanism.participation != limits:
        raise refuse(
            "privacy.mechanism",
            "one with an accounting for privacy.participation",
            privacy.mechanism,
            "use gaussian, tree, banded or blt",
        )
    return mechanism if sampling == EVERYONE else mechanism.with_sampling(sampling)


def _refuse_repeated(privacy: PrivacyRecipe) -> None:
    """Refuse an option that repeats a field: it would come too late for what the field decides."""
    for name in privacy.options:
        if name in PrivacyRecipe.__struct_fields__:
            raise refuse(
                "privacy.options", "options of the mechanism's own", name, f"set privacy.{name}"
            )


def _shares(channels: Channels) -> dict[str, float]:
    """The part of the squared mu that each channel may use."""
    released = {name: channel for name, channel in channels.items() if not channel.derived}
    shares = {
        name: c.budget_fraction for name, c in released.items() if c.budget_fraction is not None
    }
    rest = [name for name in released if name not in shares]
    left = 1 - math.fsum(shares.values())
    if rest and left <= 0:
        raise RecipeError(
            f"the shares of channels must sum to less than 1, got {shares}, which leave nothing "
            f"for {rest}; lower one of them"
        )
    return {**shares, **dict.fromkeys(rest, left / max(1, len(rest)))}


def _calibrated(
    draft: Plan, epsilon: float, shares: dict[str, float], *, remember: bool
) -> dict[str, Mechanism]:
    """Noise by the closed form; if units are sampled, a search then scales all of it."""
    mu = gdp.mu_for(epsilon, draft.delta - draft.delta_reserved)

    made = {
        name: closed_form(mechanism, mu * math.sqrt(shares[name]), max(1, draft.planned(name)))
        for name, mechanism in draft.channels.items()
    }
    drawn = (m.sampling for m in made.values())
    if all(isinstance(sampling, Everyone) for sampling in (*drawn, draft.amplification)):
        return made

    def scaled(factor: float) -> dict[str, Mechanism]:
        return {name: m.with_std(m.std * factor) for name, m in made.items()}

    left = draft.delta - draft.delta_reserved

    def event(factor: float) -> Json:
        channels = scaled(factor)
        least = min(m.std / m.clip for m in channels.values())
        if least < MIN_DRAWN_NOISE:
            raise Unpriceable(
                f"noise must be at least {MIN_DRAWN_NOISE} clips where units are drawn, got "
                f"{least:.2g} for epsilon {epsilon:g}: delta {draft.delta:g} nearly covers the "
                f"draws by itself; lower epsilon or delta, or set privacy.std_over_clip"
            )
        return replace(draft, channels=channels).whole_event

    def epsilon_at(factor: float) -> float:
        return epsilon_of(event(factor), left, draft.update.adjacency)[0]

    def rough(factor: float) -> float:
        return rough_epsilon_of(event(factor), left, draft.update.adjacency)

    facts = {"tree": event(1.0), "delta": left, "adjacency": draft.update.adjacency}
    search = partial(least_factor, epsilon_at, epsilon, rough)
    return scaled(remembered(facts, epsilon, epsilon_at, search, remember=remember))


def _is_open(privacy: PrivacyRecipe) -> bool:
    """Whether the population is open: there is no list of devices."""
    return privacy.cohort is not None


def _slots(privacy: PrivacyRecipe, nominal: Sequence[float]) -> list[float]:
    """One public unit for each device that a round asks, whoever that is."""
    if len(nominal) or privacy.nominal is not None:
        given = len(nominal) or privacy.nominal
        raise refuse(
            "nominal", "left out with privacy.cohort, as nobody is listed", given, "leave it out"
        )
    if privacy.cohort is None or not 1 <= privacy.cohort <= MAX_COHORT:
        raise refuse("privacy.cohort", f"from 1 to {MAX_COHORT:,}", privacy.cohort)
    return [1.0] * privacy.cohort


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
