# SPDX-License-Identifier: Apache-2.0
"""Blocks of a model's parameters that share one number: per tensor, output channel or head.

A block is made of pieces, runs of neighbours in the flat vector: the weight's slice of an attention
head and its part of the bias lie apart and are one block.

    tensors    each tensor
    channels   each output channel of a tensor with more than one axis; each other tensor
    heads      for transformers, by DP-FedAdamW's appendix E: each head's slice of a query, key or
               value layer; what else is in a layer's attention; its other layers (the MLP); all
               before the first layer (embeddings); all after the last (the head of the model)

``heads`` gives the counts of its Table 13: 458 for ViT-Base and RoBERTa-base, 1,178 for Swin-Base.

| edge case                                    | what happens                                   |
|----------------------------------------------|------------------------------------------------|
| queries, keys and values in one fused tensor | slices of ``head_size`` rows, three per head   |
| a LoRA pair on a query                       | its B is sliced by head, its A is one block    |
| a norm, a scale, a down-sampling             | belongs to the block before it                 |
| a fused tensor that is stored inputs first   | (GPT-2's c_attn) is one block                  |
| head_size does not divide the rows           | refused                                        |
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterator
from typing import NamedTuple

import torch

from dpfed.core import Vector
from dpfed.core.checks import refuse
from dpfed.core.vector import Layout

KINDS = ("tensors", "channels", "heads")

_LAYER = re.compile(r"^((?:.*\.)?(?:layers?|h|blocks?|resblocks)\.\d+)\.(.*)$")
_QUERY = re.compile(r"(^|[._])(q|k|v|query|key|value|[qkv]_(proj|lin)|qkv|in_proj)([._]|$)")
_ATTENTION = re.compile(r"attn|attention")
_FOLLOWS = re.compile(r"norm|ln_|downsample|scale|gamma", re.IGNORECASE)


class Blocks(NamedTuple):
    """The sizes of the pieces in their order, and the block that each is of."""

    sizes: list[int]
    owners: list[int]

    @property
    def number(self) -> int:
        """How many blocks there are: as many numbers are sent."""
        return max(self.owners, default=-1) + 1

    def spread(self, values: Vector) -> Vector:
        """Each block's number at each of its parameters.

        Args:
            values: one per block.
        """
        return torch.repeat_interleave(values[self.owners], torch.tensor(self.sizes))

    def means(self, vector: Vector) -> Vector:
        """The mean of each block's parameters; 0 for one without any.

        Args:
            vector: as long as the model.
        """
        sums = torch.stack([piece.sum() for piece in torch.split(vector, self.sizes)])
        found = vector.new_zeros(self.number).index_add_(0, torch.tensor(self.owners), sums)
        counts = torch.zeros(self.number).index_add_(
            0, torch.tensor(self.owners), torch.tensor(self.sizes, dtype=torch.float32)
        )
        return found / counts.clamp(min=1).to(vector.dtype)


def of_sizes(sizes: list[int]) -> Blocks:
    """Blocks of one piece each."""
    return Blocks(sizes, list(range(len(sizes))))


def check_kind(kind: str, head_size: int | None) -> None:
    """Refuse a kind that there is not, and a head's size without heads, whatever the model.

    Args:
        kind: tensors, channels or heads.
        head_size: outputs of one attention head; for heads, and only for it.
    """
    if kind not in KINDS:
        raise refuse("fedadamw.blocks", f"sizes, or one of {', '.join(KINDS)}", kind)
    if (kind == "heads") != (head_size is not None):
        raise refuse("fedadamw.head_size", "given with blocks = 'heads', and only then", head_size)


def blocks_of(layout: Layout, kind: str, head_size: int | None) -> Blocks:
    """A model's blocks.

    Args:
        layout: the names and shapes of its parameters.
        kind: tensors, channels or heads.
        head_size: outputs of one attention head; for heads, and only for it.
    """
    numbers: dict[Hashable, int] = {}
    sizes, owners = [], []
    for size, key in _pieces(layout, kind, head_size or 1):
        sizes.append(size)
        owners.append(numbers.setdefault(key, len(numbers)))
    return Blocks(sizes, owners)


def _pieces(layout: Layout, kind: str, head_size: int) -> Iterator[tuple[int, Hashable]]:
    """Sizes of pieces, each with a name for its block."""
    if kind == "heads":
        yield from _by_head(layout, head_size)
        return
    for name, shape in layout.shapes.items():
        rows = shape[0] if kind == "channels" and len(shape) > 1 else 1
        yield from ((math.prod(shape) // max(1, rows), (name, row)) for row in range(rows))


def _by_head(layout: Layout, head_size: int) -> Iterator[tuple[int, Hashable]]:
    before: Hashable = "embeddings"
    last = max((i for i, name in enumerate(layout.shapes) if _LAYER.match(name)), default=-1)
    for at, (name, shape) in enumerate(layout.shapes.items()):
        layer = _LAYER.match(name)
        if layer is None:
            key: Hashable = "output" if at > last >= 0 else "embeddings"
        elif _QUERY.search(layer[2]) and "lora_A" not in name:
            yield from _heads(name, shape, head_size)
            before = (layer[1], "attention")
            continue
        elif "lora_A" in name:
            key = name
        else:
            key = (layer[1], "attention" if _ATTENTION.search(layer[2]) else "mlp")
        before = before if _FOLLOWS.search(name) else key
        yield math.prod(shape), before


def _heads(name: str, shape: tuple[int, ...], head_size: int) -> Iterator[tuple[int, Hashable]]:
    """Slices of ``head_size`` rows; a weight and a bias of one layer share their blocks."""
    rows = shape[0] if shape else 0
    if rows % head_size:
        raise refuse("fedadamw.head_size", f"a divisor of the {rows} rows of {name}", head_size)
    layer = name.rpartition(".")[0]
    each = math.prod(shape) // max(1, rows // head_size)
    yield from ((each, (layer, head)) for head in range(rows // head_size))
