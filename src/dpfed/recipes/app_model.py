# SPDX-License-Identifier: Apache-2.0
"""A Flower app's own model as a bundle: what ``dpfed predict`` and ``dpfed.load`` take.

A recipe says what its model takes and is (describe.py); an app says it here, at its end.

| edge case                                           | what happens                              |
|-----------------------------------------------------|-------------------------------------------|
| a model of linear layers, of dpfed, or like ``mlp`` | ``dpfed predict`` works by the folder     |
| any other module                                    | ``dpfed.load(folder, module=...)`` does   |
| the model is not what was trained                   | DataError: names or shapes differ         |
| classes or columns that do not fit the model        | RecipeError; nothing is written           |
| labels that are no classes: ``classes`` left out    | it predicts numbers                       |
| a record's shape that nothing says                  | RecipeError: give shape                   |
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch
from torch import nn

from dpfed._version import VERSION
from dpfed.accounting.guarantee import Guarantee
from dpfed.bundle.description import (
    EXP,
    IDENTITY,
    SIGMOID,
    SOFTMAX,
    Architecture,
    ArrayInput,
    ContractInput,
    Description,
    FactoryModel,
    Input,
    LinearModel,
    OwnModule,
    StandardisedModel,
    Training,
)
from dpfed.bundle.folder import write_bundle
from dpfed.bundle.modules import architecture_of, output_of
from dpfed.core.checks import refuse
from dpfed.core.errors import DataError
from dpfed.core.log import shown
from dpfed.core.vector import layout_of
from dpfed.data import networks
from dpfed.data.contract import Contract, contract_of, read_contract
from dpfed.data.models import Model
from dpfed.data.modules import Network
from dpfed.recipes.describe import metrics_on_test_records


class AppResult(Protocol):
    """What a strategy returns: parameters, guarantee, history, and why it stopped."""

    arrays: Any
    guarantee: Guarantee | None
    history: list[dict[str, Any]]
    stopped: str | None


def save_model(
    folder: str | Path,
    result: AppResult,
    model: Model | nn.Module,
    *,
    name: str,
    classes: Sequence[str] | int | None = None,
    contract: Contract | Mapping[str, Any] | str | Path | None = None,
    shape: Sequence[int] | None = None,
    tested: int = 0,
    data: str = "",
) -> Path:
    """Leave an app's trained model as a folder that ``dpfed predict`` and ``dpfed.load`` take.

    What it says is public, or is covered by the guarantee: give class words that were agreed on,
    not words that were read off the records, and figures of the history only from test records that
    may be shown.

    Args:
        folder: it is made if need be; a bundle that is there is replaced.
        result: what ``DPStrategy.start`` returned.
        model: what was trained: a model of dpfed.flower, or your torch module.
        name: the model's name, for its card.
        classes: their words in the order of the labels, or how many there are; None takes the
            contract's words, else as many as a model of dpfed.flower tells apart. A torch module
            without classes predicts numbers.
        contract: what the columns of a table mean, if records are read by one: the contract, its
            tables, or its file. New tables are then read by it.
        shape: of a record's features; None is the width of the model's first linear layer.
        tested: how many test records the history's accuracy is of, for its interval.
        data: what the training data is called.

    Returns:
        the folder.

    Raises:
        RecipeError: if classes, contract or shape do not fit the model.
        DataError: if the model is not what was trained.

    >>> import tempfile
    >>> from types import SimpleNamespace
    >>> import dpfed
    >>> from flwr.app import ArrayRecord
    >>> from dpfed.flower import make_plan
    >>> net, privacy = nn.Linear(3, 2), {"epsilon": 2.0, "unit": "client"}
    >>> result = SimpleNamespace(  # as DPStrategy.start returns it
    ...     arrays=ArrayRecord(net.state_dict()), history=[], stopped=None,
    ...     guarantee=make_plan(clients=4, rounds=3, privacy=privacy).guarantee(),
    ... )
    >>> with tempfile.TemporaryDirectory() as out:
    ...     _ = save_model(out, result, net, name="ward", classes=["alive", "dead"])
    ...     dpfed.load(out).classes_.tolist()
    ['alive', 'dead']
    """
    if result.guarantee is None:
        raise refuse("result", "one with a guarantee", None, "give what DPStrategy.start returned")
    agreed = _contract(contract)
    classify = not isinstance(model, nn.Module) and output_of(model, 2) != IDENTITY
    made = _architecture(model)
    known = _class_words(classes, agreed, _told_apart(made) if classify else None)
    architecture = _of_two_classes(made) if known and len(known) == 2 else made
    tensors = _trained(model, result.arrays.to_torch_state_dict())
    done = max((row["round"] for row in result.history), default=0)
    described = Description(
        name=name,
        output=_output(architecture, known),
        classes=known,
        target=agreed.label.column if agreed and agreed.label else "",
        input=_input(model, agreed, shape),
        architecture=architecture,
        parameters=[(key, list(each.shape)) for key, each in tensors.items()],
        guarantee=result.guarantee.to_json(),
        metrics=list(metrics_on_test_records(result.history, tested)),
        training=Training(rounds=done, planned=done, stopped=result.stopped or ""),
        data=data,
        versions={"dpfed": VERSION, "torch": version("torch")},
        date=dt.datetime.now(dt.UTC).date().isoformat(),
    )
    return write_bundle(Path(folder), described, tensors)


def _contract(given: Contract | Mapping[str, Any] | str | Path | None) -> Contract | None:
    if given is None or isinstance(given, Contract):
        return given
    return contract_of(given) if isinstance(given, Mapping) else read_contract(Path(given))


def _trained(
    model: Model | nn.Module, state: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The trained parameters, in the model's order; integers (counters of layers) are none."""
    layout = (Network(model) if isinstance(model, nn.Module) else model).layout
    numbers = {name: each for name, each in state.items() if each.is_floating_point()}
    odd = sorted({*layout.shapes.items()} ^ {*layout_of(numbers).shapes.items()})
    if odd:
        raise DataError(
            f"model must have the parameters that were trained, and {shown(odd[0][0])!r} is not "
            f"one of both, or of another shape; give the app's own model, with nothing frozen"
        )
    return {name: numbers[name] for name in layout.shapes}


# ----------------------------------------------------------------------------------- what computes


def _architecture(model: Model | nn.Module) -> Architecture:
    """By numbers where this package can make the model from them, else by its class's name."""
    own: Architecture | None = architecture_of(model)
    if own is not None:
        return own
    inside = model.module if isinstance(model, Network) else model
    layers = _linear_layers(inside)
    if isinstance(inside, nn.Linear):
        (features, outputs), bias = layers[0], inside.bias is not None
        return LinearModel(link=SOFTMAX, features=features, outputs=outputs, bias=bias)
    if len(layers) == 2:
        options = {"features": layers[0][0], "width": layers[0][1], "classes": layers[1][1]}
        if repr(networks.mlp(**options)) == repr(inside):
            return FactoryModel(factory="dpfed.data.networks:mlp", options=options)
    return OwnModule(name=type(inside).__name__)


def _of_two_classes(found: Architecture) -> Architecture:
    """A linear layer with one score for two classes is a logistic regression."""
    if isinstance(found, LinearModel) and found.outputs == 1:
        return msgspec.structs.replace(found, link="logistic")
    return found


def _linear_layers(module: object) -> list[tuple[int, int]]:
    """(inputs, outputs) of a module's linear layers, in their order."""
    found = module.modules() if isinstance(module, nn.Module) else ()
    return [(each.in_features, each.out_features) for each in found if isinstance(each, nn.Linear)]


# -------------------------------------------------------------------- what goes in, what comes out


def _input(model: Model | nn.Module, agreed: Contract | None, shape: Sequence[int] | None) -> Input:
    width = _width(model)
    if agreed is not None:
        if width not in (None, agreed.width):
            bound = f"one of {width} features, as the model has"
            way_out = "give the contract that the app reads its records by"
            raise refuse("contract", bound, agreed.width, way_out)
        return ContractInput(contract=agreed)
    if shape is None and width is None:
        raise refuse("shape", "that of a record's features", None, "give it, as shape=[3, 32, 32]")
    return ArrayInput(shape=[width or 1] if shape is None else [int(side) for side in shape])


def _width(model: Model | nn.Module) -> int | None:
    """The features of a linear model, or of a module that begins with a linear layer."""
    inside = model.module if isinstance(model, Network) else model
    layers = _linear_layers(inside)
    width: int | None = layers[0][0] if layers else getattr(inside, "features", None)
    return width


def _told_apart(architecture: Architecture) -> int | None:
    """How many classes the scores tell apart; None if nobody knows, or if they are numbers."""
    if isinstance(architecture, LinearModel | StandardisedModel):
        return {"softmax": architecture.outputs, "logistic": 2}.get(architecture.link)
    return architecture.options["classes"] if isinstance(architecture, FactoryModel) else None


def _class_words(
    given: Sequence[str] | int | None, agreed: Contract | None, own: int | None
) -> list[str | int] | None:
    """The classes in the order of their scores: given, agreed on, or counted."""
    if isinstance(given, int):
        return list(range(given))
    if given is not None:
        return list(given)
    if agreed is not None and agreed.label is not None and agreed.label.words:
        return list(agreed.label.words)
    return None if own is None else list(range(own))


def _output(architecture: Architecture, classes: Sequence[object] | None) -> str:
    """From scores to predictions; classes that are not as many as the scores are refused."""
    link = getattr(architecture, "link", SOFTMAX)
    if classes is None:
        return EXP if link == "poisson" else IDENTITY
    apart = _told_apart(architecture)
    if apart not in (None, len(classes)):
        bound = f"{apart}, as many as the model tells apart"
        raise refuse("classes", bound, len(classes), "give a word for each, or leave them out")
    return SIGMOID if link == "logistic" else SOFTMAX
