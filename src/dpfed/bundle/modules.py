# SPDX-License-Identifier: Apache-2.0
"""From a description and its parameters to a plain torch module, and from scores to predictions.

Guarantee: a description chooses among the modules of this package, by numbers; no name in it is
imported, loaded or looked up. A module of other code is the caller's: ``module`` or ``base``.

| edge case                                           | what happens                             |
|-----------------------------------------------------|------------------------------------------|
| a factory of other code, an own module              | DataError: give module=                  |
| a pretrained model                                  | DataError: give base=, its folder        |
| base is another folder than the one trained on      | DataError, by its digest                 |
| an option of a pretrained model that could name     | DataError: give module=                  |
| code, files or devices, or a size beyond 4,096      |                                          |
| sizes that make another module than the parameters  | DataError, before memory is taken        |
| are for                                             |                                          |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dpfed.bundle.description import (
    EXP,
    FACTORIES,
    IDENTITY,
    SIGMOID,
    SOFTMAX,
    ArrayInput,
    Description,
    FactoryModel,
    LinearModel,
    PretrainedModel,
    StandardisedModel,
)
from dpfed.client._standardised import Standardised, StandardisedModule
from dpfed.core.errors import DataError
from dpfed.core.log import shown
from dpfed.core.vector import Layout
from dpfed.data import networks
from dpfed.data.losses import CrossEntropy, cross_entropy
from dpfed.data.models import Linear, Model
from dpfed.data.modules import Network

_PRETRAINED_OPTIONS = {
    "transformers": {"task", "classes", "padding", "lora"},
    "timm": {"classes", "padding", "lora", "pretrained", "in_chans", "img_size", "drop_rate"},
}
"""What a bundle may choose of a pretrained model. Others of the libraries' options load files that
are no tensors (checkpoint_path), fetch code (attn_implementation), or name modules to import."""
_LORA_OPTIONS = {
    "r",
    "lora_alpha",
    "lora_dropout",
    "fan_in_fan_out",
    "target_modules",
    "modules_to_save",
    "bias",
    "use_rslora",
    "layers_to_transform",
}
_MAX_OPTION = 4096
"""Of a number: a rank, a side of an image; classes have a limit of their own."""

_NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "groupnorm_cnn": networks.groupnorm_cnn,
    "mlp": networks.mlp,
}


def model_of(
    description: Description, module: nn.Module | None = None, base: str | Path | None = None
) -> Model:
    """The model as training knew it: its layout is that of the description's parameters.

    Args:
        description: of the bundle.
        module: the caller's own module, for a model that is one.
        base: the folder of the pretrained model, or its name on the hub, as the caller trusts it.
    """
    made = _model_of(description, module, base)
    listed = {name: tuple(shape) for name, shape in description.parameters}
    if dict(made.layout.shapes) != listed:
        odd = sorted(set(listed.items()) ^ set(made.layout.shapes.items()))[0][0]
        raise DataError(
            f"the module must have the {len(listed)} trained parameters of model.json, and "
            f"{shown(odd)!r} is not one of both, or of another shape; give the module that was "
            f"trained"
        )
    return made


def _model_of(description: Description, module: nn.Module | None, base: str | Path | None) -> Model:
    given = description.architecture
    if module is not None:
        return Network(module.eval())
    if isinstance(given, LinearModel):
        return Linear(given.link, given.features, given.outputs, given.bias)
    if isinstance(given, StandardisedModel):
        _check_size(description, given.features**2 if given.full else given.features)
        return Standardised(given.link, given.features, given.outputs, given.bias, full=given.full)
    if isinstance(given, FactoryModel) and given.factory in FACTORIES:
        return Network(_built(description, given))
    if isinstance(given, PretrainedModel):
        _check_pretrained(description, given)
        return Network(_pretrained(given, base).eval())
    named = shown(getattr(given, "factory", "") or getattr(given, "name", "") or "its author's")
    raise DataError(
        f"this model is a module of other code ({named}), which a bundle never loads; give it: "
        f"dpfed.load(folder, module=make_module())"
    )


def _check_size(description: Description, least: int) -> None:
    if description.size < least:
        raise DataError(
            f"the model must have the {description.size} parameters of model.json, and its sizes "
            f"make at least {least}; get the bundle again"
        )


def _built(description: Description, given: FactoryModel) -> nn.Module:
    """A network of this package: without memory first, so that no size is made before it fits."""
    factory = _NETWORKS[given.factory.partition(":")[2]]
    try:
        with torch.device("meta"):
            outline = factory(**given.options)
        _check_size(description, sum(each.numel() for each in outline.parameters()))
        return factory(**given.options).eval()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"architecture.options of a bundle must be those of {given.factory}, got "
            f"{sorted(given.options)[:5]}; get the bundle again"
        ) from error


def _check_pretrained(description: Description, given: PretrainedModel) -> None:
    """Refuse what could run or fetch something, or take memory that no trained parameter needs."""
    given_lora = given.options.get("lora") or {}
    lora = given_lora if isinstance(given_lora, Mapping) else {"lora": None}
    if given.library not in _PRETRAINED_OPTIONS:
        raise DataError(
            f"architecture.library of a bundle must be {' or '.join(_PRETRAINED_OPTIONS)}, got "
            f"{shown(given.library)!r}; get the bundle again"
        )
    known = _PRETRAINED_OPTIONS[given.library]
    odd = [*(set(given.options) - known), *(set(lora) - _LORA_OPTIONS)]
    odd += [*_large(lora), *_large(given.options)]
    targets = lora.get("target_modules", [])
    if isinstance(targets, str) and targets != "all-linear":  # peft takes it for a pattern
        odd.append("target_modules")
    classes = given.options.get("classes")
    if classes is not None and classes not in (1, len(description.classes or ())):
        odd.append("classes")
    if odd:
        raise DataError(
            f"architecture.options of a bundle must be few and plain "
            f"({', '.join(sorted(known))}), got {shown(', '.join(map(str, odd[:5])))}; build the "
            f"model yourself: dpfed.load(folder, module=make_module())"
        )


def _large(options: Mapping[str, Any]) -> list[str]:
    """Options that are no word, no list of words, and no number up to the limit."""
    found: list[str] = []
    for name, value in options.items():
        values = value if isinstance(value, list) else [value]
        fine = name in ("lora", "classes") or all(
            isinstance(each, str | bool)
            or (isinstance(each, int | float) and 0 <= each <= _MAX_OPTION)
            for each in values
        )
        found += [] if fine else [name]
    return found


def _pretrained(given: PretrainedModel, base: str | Path | None) -> nn.Module:
    """The caller's base with the adapter or head that was trained, at its first values."""
    if base is None:
        raise DataError(
            f"this model was trained on top of {shown(given.source)!r} ({given.library}), which is "
            f"not in the bundle; give it: dpfed.load(folder, base=FOLDER)"
        )
    from dpfed.data.folder_digest import folder_digest
    from dpfed.data.pretrained import TokenIds, image_model, text_model

    folder = Path(str(base).removeprefix("local-dir:"))
    if given.digest and folder.is_dir() and folder_digest(folder) != given.digest:
        raise DataError(
            f"base must be the folder that this model was trained on, got {str(base)!r}, whose "
            f"files have another digest than {given.digest[:16]}...; give that version"
        )
    options = dict(given.options)
    padding, classes = int(options.pop("padding", 0)), options.pop("classes", None)
    if given.library == "transformers":
        options |= {"trust_remote_code": False, "use_safetensors": True}
        return TokenIds(text_model(base, classes=classes, **options), padding)
    return image_model(str(base), classes=1 if classes is None else int(classes), **options)


def plain_module(model: Model, params: torch.Tensor, description: Description) -> nn.Module:
    """The trained model as a torch module in eval(), from prepared features to scores.

    Args:
        model: as ``model_of`` makes it.
        params: the flat parameters.
        description: of the bundle.
    """
    if isinstance(model, Standardised):
        return StandardisedModule(model.layout.unflatten(params)).eval()
    if isinstance(model, Linear):
        layer = nn.Linear(model.features, model.outputs, bias=model.bias)
        layer.load_state_dict(model.layout.unflatten(params))
        given = description.input
        flat = not isinstance(given, ArrayInput) or len(given.shape) < 2
        return layer.eval() if flat else nn.Sequential(nn.Flatten(), layer).eval()
    if not isinstance(model, Network):
        raise TypeError(f"no plain module for a {type(model).__name__}")
    _fill(model.module, model.layout, params)
    return model.module.eval()


def _fill(module: nn.Module, layout: Layout, params: torch.Tensor) -> None:
    named = dict(module.named_parameters())
    with torch.no_grad():
        for name, value in layout.unflatten(params).items():
            named[name].copy_(value)


def probabilities(output: str, scores: torch.Tensor) -> torch.Tensor:
    """Probabilities of all classes, or the predicted numbers, [records, classes or 1].

    Args:
        output: softmax, sigmoid, exp or identity.
        scores: of the module.
    """
    if output == SOFTMAX:
        return torch.softmax(scores, dim=1)
    if output == SIGMOID:
        second = torch.sigmoid(scores[:, :1])
        return torch.cat([1 - second, second], dim=1)
    return scores.exp() if output == EXP else scores


def chosen(output: str, scores: torch.Tensor) -> torch.Tensor:
    """The class of each record by its scores, as training counted what is right.

    Args:
        output: softmax or sigmoid.
        scores: of the module.
    """
    return (scores[:, 0] > 0).long() if output == SIGMOID else scores.argmax(dim=1)


def architecture_of(model: object) -> Any:
    """How a description names a model of this package; None for any other.

    Args:
        model: as it was trained.
    """
    if isinstance(model, Linear):
        return LinearModel(
            link=model.link, features=model.features, outputs=model.outputs, bias=model.bias
        )
    if isinstance(model, Standardised):
        return StandardisedModel(
            link=model.link,
            features=model.features,
            outputs=model.outputs,
            bias=model.bias,
            full=model.shape.full,
        )
    return None


def output_of(model: object, classes: int | None) -> str:
    """How a description names the way from a model's scores to predictions.

    Args:
        model: as it was trained.
        classes: how many there are; None if labels are numbers.
    """
    if isinstance(model, Linear | Standardised):
        return {"softmax": SOFTMAX, "logistic": SIGMOID, "poisson": EXP}[model.link]
    told = isinstance(model, Network) and isinstance(model.loss, CrossEntropy)
    told = told or getattr(model, "loss", cross_entropy) is cross_entropy
    return SOFTMAX if told and classes is not None else IDENTITY
