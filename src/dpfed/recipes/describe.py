# SPDX-License-Identifier: Apache-2.0
"""A run's bundle: what a recipe and its data make of model.json, before training and after.

Only what is public goes in: the recipe's own words, sizes, the headers of tables, and what a
guarantee covers. Words of labels that were read off the records are left out: that one of them
occurs is a fact of the records. Those that ``data.options.labels`` or a contract declares are in.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from dpfed._version import VERSION
from dpfed.accounting.guarantee import Guarantee
from dpfed.bundle.description import (
    SIGMOID,
    SOFTMAX,
    ArrayInput,
    Backbone,
    ColumnsInput,
    ContractInput,
    Convolutions,
    Description,
    Divide,
    FactoryModel,
    Fill,
    Input,
    LimitNorm,
    Metric,
    OwnModule,
    PretrainedModel,
    SchemaInput,
    SetNorm,
    Step,
    Subtract,
    Training,
)
from dpfed.bundle.modules import architecture_of, output_of
from dpfed.core.errors import DpfedError
from dpfed.core.types import METRICS
from dpfed.data.contract import Contract
from dpfed.data.folder_digest import folder_digest
from dpfed.data.models import Evaluation
from dpfed.data.modules import Network
from dpfed.recipes.federation import Federation
from dpfed.recipes.records import decided_missing
from dpfed.recipes.schema import DataRecipe, EvaluationKind, Missing, ModelRecipe, Recipe
from dpfed.training.history import Row
from dpfed.training.plan import Plan

_Z = 1.959963984540054
"""Standard normal: 95 % of it lies within so many deviations."""
_NORMAL = 30
"""Records whose mean loss is nearly normal; an accuracy's interval needs no such number."""


def describe(recipe: Recipe, silos: Federation, plan: Plan, enforced: str = "") -> Description:
    """What model.json says before the first round: with it, any later parameters are a model.

    Args:
        recipe: the run's.
        silos: its model, and the facts of its data.
        plan: the recipe's; its guarantee is that of all rounds.
        enforced: who enforces it, in words; "" where all is one process.
    """
    classes, contract = silos.classes, silos.contract
    output = output_of(silos.model, classes)
    return Description(
        name=recipe.name,
        output=output,
        classes=_agreed_words(contract)
        or _classes(recipe.data, {SIGMOID: 2, SOFTMAX: classes}.get(output)),
        target=contract.label.column if contract and contract.label else silos.target,
        positive_above=recipe.data.positive_above,
        input=ContractInput(contract=contract) if contract else _input(recipe.data, silos),
        steps=list(_steps(recipe.data, silos)),
        architecture=_architecture(recipe.model, silos.model),
        parameters=[(name, list(shape)) for name, shape in silos.model.layout.shapes.items()],
        guarantee=replace(plan.guarantee(), enforced=enforced).to_json(),
        training=Training(method=recipe.method or "", planned=plan.rounds),
        data=silos.source,
        versions={"dpfed": VERSION, "torch": version("torch")},
    )


def finished(
    description: Description,
    recipe: Recipe,
    plan: Plan,
    guarantee: Guarantee,
    history: Sequence[Row],
    stopped: str | None,
    judged: Evaluation | None = None,
) -> Description:
    """The same after the last round.

    Args:
        description: as ``describe`` made it.
        recipe: the run's.
        plan: the recipe's.
        guarantee: what was spent.
        history: one row per attempt at a round.
        stopped: why training ended early, if it did.
        judged: the trained model on the server's test records, if it has some.
    """
    done = max((row["round"] for row in history), default=0)
    training = msgspec.structs.replace(description.training, rounds=done, stopped=stopped or "")
    return msgspec.structs.replace(
        description,
        guarantee=guarantee.to_json(),
        metrics=list(_metrics(recipe, plan, history, judged)),
        training=training,
        date=dt.datetime.now(dt.UTC).date().isoformat(),
    )


# ------------------------------------------------------------------------------------ what goes in


def _agreed_words(contract: Contract | None) -> list[str | int] | None:
    return list(contract.label.words) or None if contract and contract.label else None


def _classes(data: DataRecipe, classes: int | None) -> list[str | int] | None:
    if classes is None:
        return None
    if data.positive_above is not None:
        return [f"at most {data.positive_above:g}", f"above {data.positive_above:g}"]
    words = data.options.get("labels")
    if isinstance(words, list | tuple) and len(words) == classes:
        return [str(word) for word in words]
    return list(range(classes))


def _input(data: DataRecipe, silos: Federation) -> Input:
    if data.schema is not None:
        return SchemaInput(columns=data.schema)
    if silos.columns:
        return ColumnsInput(columns=list(silos.columns))
    if data.backbone:
        note = "images of bytes, grey or RGB, of any size: they are brought to this one"
        return ArrayInput(shape=[3, data.backbone_size, data.backbone_size], note=note)
    note = "" if silos.clients else "as each silo's own policy prepares them"
    return ArrayInput(shape=list(silos.shape) or [_features(silos)], note=note)


def _features(silos: Federation) -> int:
    """The number of inputs of a linear model; of another one nobody but its own code knows."""
    return int(getattr(silos.model, "features", 1))


def _steps(data: DataRecipe, silos: Federation) -> Iterator[Step]:
    """In the order in which ``records.py`` takes them."""
    if data.backbone:
        yield _backbone(data)
    if data.convolutions:
        yield Convolutions(count=data.convolutions)
    if silos.mean is not None:
        yield Subtract(values=silos.mean.flatten().tolist())
    yield from _standardised(data)
    if decided_missing(data) is Missing.FILL:
        yield Fill(value=data.fill_missing or 0.0)
    if data.norm is not None:
        yield SetNorm(norm=data.norm)
    if data.radius is not None:
        yield LimitNorm(norm=data.radius)


def _standardised(data: DataRecipe) -> Iterator[Step]:
    if data.shift != []:
        yield Subtract(values=_listed(data.shift))
    if data.scale != []:
        yield Divide(values=_listed(data.scale))


def _listed(given: float | list[float]) -> list[float]:
    return given if isinstance(given, list) else [given]


def _backbone(data: DataRecipe) -> Backbone:
    from dpfed.data.backbones import weights_digest
    from dpfed.data.places import find_file

    project = data.backbone_project
    digest = ""
    try:
        given = None if data.backbone_weights is None else find_file(data.backbone_weights)
        digest = weights_digest(str(data.backbone), given)
    except (DpfedError, OSError):  # the file is looked up below the recipe's own folder
        pass
    return Backbone(
        name=str(data.backbone),
        size=data.backbone_size,
        fit=data.backbone_fit,
        project=project or 0,
        weights=digest,
    )


# ---------------------------------------------------------------------------------- what computes


def _architecture(recipe: ModelRecipe, model: object) -> Any:
    own = architecture_of(model)
    if own is not None:
        return own
    if recipe.name == "network" and "@" not in str(recipe.factory):  # a module given as an object
        return FactoryModel(factory=str(recipe.factory), options=_plain(recipe.options))
    if recipe.name in ("transformers", "timm"):
        options = _plain(recipe.options)
        source = str(options.pop("source", ""))
        return PretrainedModel(
            library=recipe.name, source=_last(source), options=options, digest=_digest(source)
        )
    inside = model.module if isinstance(model, Network) else model
    return OwnModule(name=type(inside).__name__)


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as numbers and words: what is neither is left out."""
    return {
        name: value
        for name, value in options.items()
        if isinstance(value, bool | int | float | str | list | dict)
    }


def _last(source: str) -> str:
    """A folder's name without the path of this machine; a name on the hub as it is."""
    return Path(source).name if Path(source).is_absolute() else source


def _digest(source: str) -> str:
    from dpfed.data.pretrained import folder_of

    try:
        return folder_digest(folder_of(source.removeprefix("local-dir:")))
    except (DpfedError, OSError):  # a name on the hub
        return ""


# --------------------------------------------------------------------------------------- how good


def _metrics(
    recipe: Recipe, plan: Plan, history: Sequence[Row], judged: Evaluation | None
) -> Iterator[Metric]:
    """The last figures that a statement may show: of test records, or released with noise."""
    kind = recipe.evaluation.kind
    if kind is EvaluationKind.TEST:
        tested, std = (0, None) if judged is None else (judged.records, judged.loss_std)
        last = _last_row(history, "loss")
        same = judged is not None and last is not None and last["loss"] == judged.loss
        yield from metrics_on_test_records(history, tested, std if same else None)
    elif kind is EvaluationKind.FEDERATED:
        yield from _released(plan, history)


def _last_row(history: Sequence[Row], name: str) -> Row | None:
    return next((row for row in reversed(history) if row.get(name) is not None), None)


def metrics_on_test_records(
    history: Sequence[Row], tested: int, loss_std: float | None = None
) -> Iterator[Metric]:
    """Accuracy and loss of the last round that was judged, with their intervals where known.

    Args:
        history: one row per attempt at a round.
        tested: how many test records there are; 0 if nobody says, and no interval is known.
        loss_std: how far records' losses spread; None: no interval of the mean loss is known.
    """
    on = "on test records that the server holds"
    for name in ("accuracy", "loss"):
        row = _last_row(history, name)
        if row is None or not math.isfinite(row[name]):
            continue
        value, at = float(row[name]), int(row["round"])
        low, high = None, None
        if name == "accuracy" and tested:
            low, high = wilson(value, tested)
        elif name == "loss" and tested >= _NORMAL and loss_std is not None:
            half = _Z * loss_std / math.sqrt(tested)
            low, high = max(0.0, value - half), value + half
        yield Metric(
            name=name,
            value=value,
            on=on,
            round=at,
            low=low,
            high=high,
            records=float(tested) if tested else None,
        )


def _released(plan: Plan, history: Sequence[Row]) -> Iterator[Metric]:
    """Figures of the metrics channel, of the model that the round began with.

    An interval is of two parts: the noise, whose size is known, and the units that happened to be
    there. A loss in [0, bound] spreads at most as a coin does that is 0 or bound, so that its
    interval has the same form, and is too wide rather than too narrow. There is none where clients
    are drawn, since who was drawn is a third part, and none of other metrics: their noise is their
    own matter.
    """
    on = "on the silos' records, released with noise"
    names = [name for metric in plan.metrics for name in metric.names] or ["accuracy", "loss"]
    for name in dict.fromkeys(names):
        row = _last_row(history, name)
        if row is None or not math.isfinite(row[name]):
            continue
        value, low, high, said = float(row[name]), None, None, on
        drawn = plan.open or plan.participation_rate < 1
        if not plan.metrics and not drawn:
            units, largest = max(1.0, math.fsum(plan.nominal)), 1.0
            if name == "loss":
                largest, said = plan.loss_bound, f"{on}, each at most {plan.loss_bound:g}"
            ends = wilson(min(1.0, value / largest), units, plan.noise_std(METRICS))
            low, high = (largest * end for end in ends)
        yield Metric(name=name, value=value, on=said, round=int(row["round"]), low=low, high=high)


def wilson(part: float, count: float, noise: float = 0.0) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion p: |part - p| <= z sqrt(p (1 - p) / count + noise^2).

    Args:
        part: what was observed, from 0 to 1.
        count: of how many, at least 1.
        noise: the standard deviation of noise that was added to it.

    >>> [round(end, 3) for end in wilson(0.9, 100)]
    [0.826, 0.945]
    """
    spread = _Z**2 / count
    middle = (part + spread / 2) / (1 + spread)
    chance = part * (1 - part) / count + noise**2 * (1 + spread)
    half = math.sqrt(chance * _Z**2 + spread**2 / 4) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)
