# SPDX-License-Identifier: Apache-2.0
"""Pretrained models from a folder or from the hub, adapters on them, and adapters on the disk.

    model = Network(text_model("FOLDER", classes=2, lora={"r": 8}))
    save_adapter(model, params, "ADAPTER")            PeftModel.from_pretrained(base, "ADAPTER")

A peft model is taken as it is: what it trains is agreed on by name and shape (``Network.layout``),
what is frozen never leaves a client. The pretrained weights are public: nothing is guaranteed for
the records that they were trained on.

| edge case                                           | what happens                              |
|-----------------------------------------------------|-------------------------------------------|
| a relative folder that is not in the working folder | looked for in the folders of $DPFED_DATA  |
| transformers, peft or timm is not installed         | MissingExtra that says what to install    |
| a folder or a name that the library cannot load     | RecipeError with the library's sentence   |
| an adapter of a model that peft has not made        | RecipeError                               |
| ``freeze_a``: the factors A stay as they are drawn  | from a constant seed, at all sites alike  |
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dpfed.core.checks import refuse
from dpfed.core.environment import data_folders
from dpfed.core.errors import RecipeError, first_sentence
from dpfed.core.extras import require_extra
from dpfed.core.types import Vector
from dpfed.data.modules import Network, seeded

TASKS: dict[str, tuple[str, str | None]] = {
    "classify": ("AutoModelForSequenceClassification", "SEQ_CLS"),
    "tag": ("AutoModelForTokenClassification", "TOKEN_CLS"),
    "causal": ("AutoModelForCausalLM", "CAUSAL_LM"),
    "pool": ("AutoModel", None),
}
"""What a text model is for: its class in transformers, and the name of the task in peft."""


FROZEN_SEED = 0
"""Of factors that stay as drawn: no message carries them, so all sites must draw the same."""


class TokenIds(nn.Module):
    """A text model that takes one tensor of token numbers, as records of a file have them.

    Args:
        model: called with input_ids and attention_mask.
        padding: the number of the token that is not attended to.
    """

    def __init__(self, model: nn.Module, padding: int) -> None:
        super().__init__()
        self.model, self.padding = model, padding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The scores."""
        ids = x.long()
        made = self.model(input_ids=ids, attention_mask=(ids != self.padding).long())
        out: torch.Tensor = made if isinstance(made, torch.Tensor) else made.logits
        return out


class Pooled(nn.Module):
    """A sentence encoder with a linear head on the mean over its tokens.

    Args:
        encoder: called with input_ids (or inputs_embeds) and attention_mask; its config has
            hidden_size.
        classes: how many scores come out.
    """

    def __init__(self, encoder: nn.Module, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        width: Any = encoder.config
        self.head = nn.Linear(width.hidden_size, classes)

    def forward(self, attention_mask: torch.Tensor, **inputs: torch.Tensor) -> torch.Tensor:
        """The scores; a record without a token has the head's bias."""
        hidden = self.encoder(attention_mask=attention_mask, **inputs).last_hidden_state
        seen = attention_mask[:, :, None].to(hidden)
        mean = (hidden * seen).sum(dim=1) / seen.sum(dim=1).clamp(min=1.0)
        out: torch.Tensor = self.head(mean)
        return out


def text_model(
    source: str | Path,
    *,
    task: str = "classify",
    classes: int | None = None,
    lora: Mapping[str, Any] | None = None,
    **options: Any,
) -> nn.Module:
    """A pretrained transformer, in eval(), with an adapter if ``lora`` is given.

    Args:
        source: a folder, or a name on the hub.
        task: classify, tag or causal; or pool, a sentence encoder with a head on its tokens' mean.
        classes: how many labels there are; None for a causal model.
        lora: options of peft's LoraConfig (r, lora_alpha, target_modules, ...), and ``freeze_a``;
            None trains all parameters that the model has unfrozen.
        **options: handed to ``from_pretrained``.

    Returns:
        a module that ``Network`` takes.

    Raises:
        DpfedError: names the task or the option, or the package that is missing.

    >>> from dpfed.core.errors import DpfedError
    >>> try:
    ...     text_model("a-folder", task="sing")
    ... except DpfedError:
    ...     print("there is no such task")
    there is no such task
    """
    if task not in TASKS:
        raise refuse("task", ", ".join(TASKS), task)
    kind, peft_task = TASKS[task]
    library = _installed("transformers", "text")
    labels = {} if classes is None or task == "pool" else {"num_labels": classes}
    given = {"dtype": torch.float32, **labels, **options}
    model: nn.Module = _loaded(getattr(library, kind).from_pretrained, source, given)
    if task == "pool":
        model = Pooled(model, classes or 1)
    return model.eval() if lora is None else adapted(model, lora, peft_task)


def image_model(
    source: str, *, classes: int, lora: Mapping[str, Any] | None = None, **options: Any
) -> nn.Module:
    """A pretrained model of timm, in eval(), with an adapter if ``lora`` is given.

    Args:
        source: a name that timm knows, or ``local-dir:FOLDER``.
        classes: how many labels there are.
        lora: options of peft's LoraConfig; None trains all parameters.
        **options: handed to ``timm.create_model``, such as ``pretrained``.
    """
    library = _installed("timm", "timm")
    model: nn.Module = _loaded(library.create_model, source, {"num_classes": classes, **options})
    return model.eval() if lora is None else adapted(model, lora, None)


def adapted(model: nn.Module, lora: Mapping[str, Any], task: str | None) -> nn.Module:
    """The model with a new adapter, in eval(); all else of it is frozen.

    Args:
        model: pretrained.
        lora: options of peft's LoraConfig, and ``freeze_a``: whether of each adapter only the
            second factor, B, is trained (FFA-LoRA, Sun et al. 2024). A is then the same at all
            sites: it is drawn from a constant seed.
        task: peft's name of the task, by which it knows the head that is trained along; or None.
    """
    peft = _installed("peft", "text")
    if isinstance(model, Pooled):  # peft knows the heads of its own tasks only
        lora = {"modules_to_save": ["head"], **lora}
    options = dict(lora)
    freeze_a = options.pop("freeze_a", False)
    try:
        config = peft.LoraConfig(**{"task_type": task, **options})
        made: nn.Module = (
            seeded(lambda: peft.get_peft_model(model, config), FROZEN_SEED)
            if freeze_a
            else peft.get_peft_model(model, config)
        )
    except (TypeError, ValueError) as error:
        raise RecipeError(
            f"model.lora must be options of peft's LoraConfig, got {dict(lora)} "
            f"({first_sentence(error)}); give r and target_modules"
        ) from error
    if freeze_a:
        for name, each in made.named_parameters():
            if "lora_A" in name or "lora_embedding_A" in name:
                each.requires_grad = False
    return made.eval()


def has_adapter(model: object) -> bool:
    """Whether ``save_adapter`` can write what a model trains."""
    return isinstance(model, Network) and hasattr(_adapter(model), "peft_config")


def _adapter(model: Network) -> Any:
    return model.module.model if isinstance(model.module, TokenIds) else model.module


def save_adapter(model: Network, params: Vector, folder: str | Path) -> Path:
    """Write trained parameters as a folder that ``PeftModel.from_pretrained`` reads.

    Args:
        model: the network whose module peft has made.
        params: the flat parameters, as a training leaves them.
        folder: is made if it is not there.

    Returns:
        the folder.

    Raises:
        DpfedError: if peft has not made the module, or is not installed.

    >>> import torch
    >>> from dpfed.core.errors import DpfedError
    >>> try:
    ...     save_adapter(Network(torch.nn.Linear(2, 2)), torch.zeros(6), "adapter")
    ... except DpfedError:
    ...     print("a plain layer has no adapter")
    a plain layer has no adapter
    """
    module = _adapter(model)
    if not has_adapter(model):
        raise RecipeError(
            f"an adapter needs a module that peft has made, got a {type(module).__name__}; give "
            f"lora when the model is loaded"
        )
    with torch.no_grad():
        named = dict(model.module.named_parameters())
        for name, value in model.layout.unflatten(params).items():
            named[name].copy_(value)
    module.save_pretrained(str(folder))
    return Path(folder)


def _installed(name: str, extra: str) -> Any:
    with require_extra(extra, "this model", name):
        return import_module(name)


def folder_of(source: str | Path) -> str:
    """A folder that lies under one of $DPFED_DATA's, as data do; else the name as it is."""
    under = [each / source for each in data_folders() if not Path(source).exists()]
    return str(next((path for path in under if path.is_dir()), source))


def _loaded(load: Any, source: str | Path, options: Mapping[str, Any]) -> Any:
    try:
        return load(folder_of(source), **options)
    except Exception as error:
        raise RecipeError(
            f"the model {str(source)!r} cannot be loaded ({first_sentence(error)}); give a folder "
            f"that the library has saved, or a name on the hub"
        ) from error
