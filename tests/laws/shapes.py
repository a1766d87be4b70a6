# SPDX-License-Identifier: Apache-2.0
"""Models of every shape that rows are made of: one per kind of layer, and transformers with LoRA.

Tiny, with random weights; what they are called with lies beside them. The oracle of rows
(tests/data/test_layer_hooks.py) and the law of sensitivity (test_model_laws.py) go over all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from dpfed.data.batches import Batches, tensor_batches
from dpfed.data.losses import Loss, Tokens, cross_entropy
from dpfed.data.modules import Network, seeded

RECORDS, T, WORDS = 7, 6, 13


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(RECORDS, *shape, generator=torch.Generator().manual_seed(seed))


def words(seed: int = 0) -> torch.Tensor:
    return torch.randint(0, WORDS, (RECORDS, T), generator=torch.Generator().manual_seed(seed))


LABELS = torch.arange(RECORDS) % 3


class Attention(nn.Module):
    """Self-attention of linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (layer(x).view(len(x), -1, 2, 4).transpose(1, 2) for layer in self._three())
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        out: torch.Tensor = self.head(self.out(mixed).mean(dim=1))
        return out

    def _three(self) -> tuple[nn.Module, ...]:
        return self.q, self.k, self.v


class Pooled(nn.Module):
    """A linear layer at each token, and their mean: what tokens add can cancel."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(8, 9), nn.Linear(9, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.layer(x).mean(dim=1))
        return out


LAYERS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "linear": (
        lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)),
        numbers(4),
    ),
    "linear, tokens": (
        lambda: nn.Sequential(
            nn.Linear(4, 5, bias=False), nn.GELU(), nn.Flatten(), nn.Linear(5 * T, 3)
        ),
        numbers(T, 4),
    ),
    "linear, pooled": (Pooled, numbers(2, 8)),
    "conv2d": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(36, 3)
        ),
        numbers(2, 6, 6),
    ),
    "conv2d, groups": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 6, (3, 2), groups=2, dilation=2, padding="same", padding_mode="circular"),
            nn.Flatten(),
            nn.Linear(150, 3),
        ),
        numbers(4, 5, 5),
    ),
    "conv1d": (
        lambda: nn.Sequential(
            nn.Conv1d(4, 5, 3, padding=2, bias=False), nn.Flatten(), nn.Linear(40, 3)
        ),
        numbers(4, T),
    ),
    "conv3d": (
        lambda: nn.Sequential(
            nn.Conv3d(2, 3, (3, 2, 3), padding=1, stride=(2, 1, 1)), nn.Flatten(), nn.Linear(120, 3)
        ),
        numbers(2, 3, 4, 4),
    ),
    "conv3d, groups": (
        lambda: nn.Sequential(
            nn.Conv3d(4, 6, 2, groups=2, dilation=2, padding="same", padding_mode="circular"),
            nn.Flatten(),
            nn.Linear(162, 3),
        ),
        numbers(4, 3, 3, 3),
    ),
    "transposed, 1": (
        lambda: nn.Sequential(
            nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
            nn.Flatten(),
            nn.Linear(12 * T, 3),
        ),
        numbers(4, T),
    ),
    "transposed, 2": (
        lambda: nn.Sequential(
            nn.ConvTranspose2d(2, 3, (3, 2), stride=2, dilation=2, bias=False),
            nn.Flatten(),
            nn.Linear(189, 3),
        ),
        numbers(2, 3, 3),
    ),
    "transposed, 3": (
        lambda: nn.Sequential(
            nn.ConvTranspose3d(2, 3, 2, stride=2), nn.Flatten(), nn.Linear(384, 3)
        ),
        numbers(2, 2, 2, 4),
    ),
    "instance norm, prelu": (
        lambda: nn.Sequential(
            nn.Conv3d(2, 4, 2),
            nn.InstanceNorm3d(4, affine=True),
            nn.PReLU(),
            nn.PReLU(4),
            nn.Flatten(),
            nn.Linear(32, 3),
        ),
        numbers(2, 3, 3, 3),
    ),
    "embedding": (
        lambda: nn.Sequential(
            nn.Embedding(WORDS, 4, padding_idx=0), nn.Flatten(), nn.Linear(4 * T, 3)
        ),
        words(),
    ),
    "layer norm": (
        lambda: nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Flatten(), nn.Linear(5 * T, 3)),
        numbers(T, 4),
    ),
    "layer norm, two axes": (
        lambda: nn.Sequential(nn.LayerNorm((T, 4)), nn.Flatten(), nn.Linear(4 * T, 3)),
        numbers(T, 4),
    ),
    "rms norm": (
        lambda: nn.Sequential(nn.RMSNorm(4), nn.Flatten(), nn.Linear(4 * T, 3)),
        numbers(T, 4),
    ),
    "group norm": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
        ),
        numbers(2, 6, 6),
    ),
    "attention": (Attention, numbers(T, 8)),
}


# ------------------------------------------------------------------------------- transformers, LoRA

SMALL = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 20,
}


def lora(module: nn.Module, targets: list[str], task: str) -> nn.Module:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(
        r=2, target_modules=targets, task_type=task, fan_in_fan_out="c_attn" in targets
    )
    return peft.get_peft_model(module, config)  # type: ignore[no-any-return]


def bert(tied: bool) -> tuple[nn.Module, Loss]:
    library = pytest.importorskip("transformers")
    config = library.BertConfig(
        **SMALL, num_labels=3, max_position_embeddings=T, tie_word_embeddings=tied
    )
    if tied:
        return lora(library.BertForMaskedLM(config), ["query", "value"], None), Tokens()  # type: ignore[arg-type]
    module = library.BertForSequenceClassification(config)
    return lora(module, ["query", "value"], "SEQ_CLS"), cross_entropy


def gpt2(tied: bool) -> tuple[nn.Module, Loss]:
    library = pytest.importorskip("transformers")
    config = library.GPT2Config(
        vocab_size=WORDS, n_embd=16, n_layer=2, n_head=2, n_positions=T, tie_word_embeddings=tied
    )
    return lora(library.GPT2LMHeadModel(config), ["c_attn"], "CAUSAL_LM"), Tokens(shift=True)


def llama(tied: bool) -> tuple[nn.Module, Loss]:
    library = pytest.importorskip("transformers")
    config = library.LlamaConfig(
        **SMALL, num_key_value_heads=1, max_position_embeddings=T, tie_word_embeddings=tied
    )
    return lora(library.LlamaForCausalLM(config), ["q_proj", "v_proj"], "CAUSAL_LM"), Tokens(True)


TRANSFORMERS: dict[str, Callable[[bool], tuple[nn.Module, Loss]]] = {
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
}


class Shape(NamedTuple):
    """One cell of the oracle: a kind of layer, or a transformer, padded or not, tied or not."""

    name: str
    padded: bool = False
    tied: bool = False

    def __str__(self) -> str:
        if self.name in LAYERS:
            return self.name
        padded, tied = ("padded" if self.padded else "whole"), ("tied" if self.tied else "untied")
        return f"{self.name}, {padded}, {tied}"

    def build(self, sampler: str, chunk: int = 3) -> tuple[Network, Batches]:
        """The network, in eval(), and its records."""
        if self.name in LAYERS:
            make, x = LAYERS[self.name]
            model = Network(seeded(make, 0), chunk=chunk, sampler=sampler)
            return model, tensor_batches(x, LABELS)
        torch.manual_seed(0)
        module, loss = TRANSFORMERS[self.name](self.tied)
        model = Network(module.eval(), loss, chunk=chunk, sampler=sampler)
        return model, texts(loss, self.padded)


def texts(loss: Loss, padded: bool) -> Batches:
    """Words; where they are padded with a mask, and every second record is shorter."""
    mask, ids = torch.ones(RECORDS, T, dtype=torch.int64), words()
    if padded:
        mask[::2, T - 2 :] = 0
    targets = LABELS if loss is cross_entropy else torch.where(mask.bool(), ids, -100)
    inputs = {"input_ids": ids, **({"attention_mask": mask} if padded else {})}
    return tensor_batches(inputs, targets)


ADAPTERS = [
    Shape(name, padded, tied)
    for name in TRANSFORMERS
    for padded in (False, True)
    for tied in (False, True)
]
SHAPES = [*map(Shape, LAYERS), *ADAPTERS]


def whole(name: str, tied: bool) -> Any:
    """A transformer without an adapter, all of whose parameters are trained, and its loss."""
    torch.manual_seed(0)
    module, loss = TRANSFORMERS[name](tied)
    module = module.unload()  # type: ignore[operator]
    return module.requires_grad_(True).eval(), loss
