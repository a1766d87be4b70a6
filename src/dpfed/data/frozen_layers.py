# SPDX-License-Identifier: Apache-2.0
"""The frozen lower layers of an encoder, run once; training sees the layers above them.

    x = hidden_states("FOLDER", ids, layers=1)       what the layers below the last one make of ids
    model = Network(top_layers("FOLDER", layers=1, classes=2, lora={"r": 8}))

An adapter in the last layers leaves all below them as they are, for every round: their output is
computed once per record, and stays with the record's owner, who keeps it as privately as the text.
A recipe trains on a file of such records:

    model = {name = "network", factory = "dpfed.data.frozen_layers:top_layers",
             options = {source = "FOLDER", layers = 1, classes = 2, ...}}

| edge case                                     | what happens                                    |
|-----------------------------------------------|-------------------------------------------------|
| padding                                       | its state is all zeros: it is not attended to   |
| a model without embeddings and encoder.layer  | RecipeError: BERT and its like have them        |
| fewer layers in the model than asked for      | RecipeError                                     |
| a result with an adapter                      | no adapter folder: its layers are numbered from |
|                                               | the first kept one; the model's file has all    |
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dpfed.core.checks import refuse
from dpfed.core.errors import RecipeError
from dpfed.core.vector import side_by_side
from dpfed.data.models import whole_blocks
from dpfed.data.pretrained import adapted, text_model

_BATCH_RECORDS = 64


class _ComputedEmbeddings(nn.Module):
    """Takes the place of a model's embeddings, and passes on what was computed before."""

    def forward(self, inputs_embeds: torch.Tensor, **_: Any) -> torch.Tensor:
        return inputs_embeds


class TopLayers(nn.Module):
    """Scores from the hidden states of tokens, by an encoder's last layers and a head.

    Args:
        model: a ``Pooled`` (perhaps with an adapter) whose encoder takes hidden states.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The scores of records [tokens, width]."""
        mask = (x != 0).any(dim=-1).long()
        out: torch.Tensor = self.model(inputs_embeds=x, attention_mask=mask)
        return out


def top_layers(
    source: str | Path,
    *,
    layers: int = 1,
    classes: int = 2,
    lora: Mapping[str, Any] | None = None,
) -> nn.Module:
    """An encoder's last layers and a linear head on the mean over tokens, in eval().

    Args:
        source: a folder, or a name on the hub, of an encoder like BERT.
        layers: how many of its last layers, at least 1.
        classes: how many scores come out.
        lora: options of peft's LoraConfig; the head is trained along. None trains all parameters
            of these layers.
    """
    model: Any = text_model(source, task="pool", classes=classes)
    stack, body = _stack(model.encoder, layers), model.encoder
    body.embeddings = _ComputedEmbeddings()
    body.encoder.layer = nn.ModuleList(stack[len(stack) - layers :])
    return TopLayers(model if lora is None else adapted(model, lora, None)).eval()


@torch.no_grad()
def hidden_states(
    source: str | Path, ids: torch.Tensor, *, layers: int = 1, padding: int = 0
) -> torch.Tensor:
    """What the layers below the last ones make of token numbers: [records, tokens, width].

    A record's states depend on no other record, to the last bit: records are computed in whole
    blocks, each in one thread, several blocks at a time.

    Args:
        source: as ``top_layers`` has it.
        ids: token numbers [records, tokens].
        layers: how many of the last layers are left out, at least 1.
        padding: the number of the token that is not attended to; its state is zeros.
    """
    model: Any = text_model(source, task="pool", classes=1)
    stack = _stack(model.encoder, layers)
    model.encoder.encoder.layer = nn.ModuleList(stack[: len(stack) - layers])
    model.eval()

    def states(part: torch.Tensor) -> torch.Tensor:
        mask = part != padding
        found = model.encoder(input_ids=part, attention_mask=mask.long()).last_hidden_state
        return torch.where(mask[:, :, None], found, 0.0)

    # the last of a block is made up and has padding: without any, transformers leaves out the mask,
    # and one record with padding would change the bits of others
    last = ids.new_full((1, ids.shape[1]), padding).long()
    parts = torch.split(whole_blocks(ids.long(), _BATCH_RECORDS - 1), _BATCH_RECORDS - 1)
    made: list[torch.Tensor] = []
    side_by_side(lambda part: states(torch.cat([part, last]))[:-1], parts, made.append)
    return torch.cat(made)[: len(ids)]


def _stack(encoder: Any, layers: int) -> list[nn.Module]:
    inner: Any = getattr(encoder, "encoder", None)
    if not hasattr(encoder, "embeddings") or not hasattr(inner, "layer"):
        raise RecipeError(
            f"top_layers needs a model with embeddings and encoder.layer, such as BERT, got a "
            f"{type(encoder).__name__}; train the whole model by text_model"
        )
    stack = list(inner.layer)
    if not 1 <= layers <= len(stack):
        raise refuse("layers", f"from 1 to the model's {len(stack)}", layers)
    return stack
