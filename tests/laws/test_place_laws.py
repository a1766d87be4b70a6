# SPDX-License-Identifier: Apache-2.0
"""A law: no record's place, and no other record, decides a bit of a record's row.

Whatever length of a block is asked for, whatever the module, the sampler and the parameters are: a
record is taken out, so that all others lie elsewhere, and their rows are compared bit by bit.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import nn

from dpfed.core.rows import Chunks
from dpfed.core.types import Unit
from dpfed.core.vector import Vector
from dpfed.data.modules import Network, NetworkProblem, seeded
from dpfed.data.networks import groupnorm_cnn

RECORDS = 150
CHUNKS = range(1, 257)


class Recurrent(nn.Module):
    """A frozen recurrent layer and a trained head."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__()
        self.layer, self.head = kind(5, 7, batch_first=True), nn.Linear(7, 3)
        self.layer.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.layer(x)[0][:, -1])
        return out


class Attention(nn.Module):
    """Self-attention between two linear layers."""

    def __init__(self, attention: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.first, self.mix, self.head = nn.Linear(5, 12), attention(), nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        if isinstance(self.mix, nn.MultiheadAttention):
            h = self.mix(h, h, h, need_weights=False)[0]
        elif isinstance(self.mix, nn.Identity):
            h = nn.functional.scaled_dot_product_attention(h, h.roll(1, 2), h.flip(2))
        else:
            h = self.mix(h)
        out: torch.Tensor = self.head(h.mean(dim=1))
        return out


def mlp(between: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(
        nn.Linear(9, 13), between(), nn.Linear(13, 11), between(), nn.Linear(11, 3)
    )


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(12, 3, 17, batch_first=True, dropout=0.0, activation="gelu")


ELEMENTWISE: dict[str, Callable[[], nn.Module]] = {
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
    "elu": nn.ELU,
    "mish": nn.Mish,
    "relu": nn.ReLU,
}
KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    **{name: (lambda each=each: mlp(each), (9,)) for name, each in ELEMENTWISE.items()},  # type: ignore[misc]
    "layer norm": (
        lambda: nn.Sequential(
            nn.Linear(9, 13), nn.LayerNorm(13), nn.Linear(13, 13), nn.GELU(), nn.Linear(13, 3)
        ),
        (9,),
    ),
    "conv1d": (
        lambda: nn.Sequential(
            nn.Conv1d(3, 5, 3, padding="same"),
            nn.GELU(),
            nn.Conv1d(5, 5, 3, dilation=2),
            nn.Flatten(),
            nn.Linear(65, 3),
        ),
        (3, 17),
    ),
    "conv2d": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 5, 3, padding=1),
            nn.GroupNorm(5, 5),
            nn.Tanh(),
            nn.Conv2d(5, 7, 3, stride=2, dilation=2),
            nn.AdaptiveAvgPool2d(3),
            nn.Flatten(),
            nn.Linear(63, 3),
        ),
        (3, 11, 11),
    ),
    "conv2d, groups": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 8, 3, padding=1, groups=2),
            nn.SiLU(),
            nn.Conv2d(8, 8, 3, groups=8),
            nn.Flatten(),
            nn.Linear(392, 3),
        ),
        (4, 9, 9),
    ),
    "conv3d": (
        lambda: nn.Sequential(
            nn.Conv3d(2, 3, 3), nn.Tanh(), nn.AdaptiveAvgPool3d(2), nn.Flatten(), nn.Linear(24, 3)
        ),
        (2, 5, 5, 5),
    ),
    "transposed": (
        lambda: nn.Sequential(
            nn.ConvTranspose2d(2, 3, 3, stride=2), nn.SiLU(), nn.Flatten(), nn.Linear(363, 3)
        ),
        (2, 5, 5),
    ),
    "upsampled": (
        lambda: nn.Sequential(
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.Conv2d(2, 3, 3),
            nn.Tanh(),
            nn.AdaptiveMaxPool2d(2),
            nn.Flatten(),
            nn.Linear(12, 3),
        ),
        (2, 5, 5),
    ),
    "group norm": (lambda: groupnorm_cnn(3, inputs=3), (3, 8, 8)),
    "lstm": (lambda: Recurrent(nn.LSTM), (6, 5)),
    "gru": (lambda: Recurrent(nn.GRU), (6, 5)),
    "attention": (
        lambda: Attention(lambda: nn.MultiheadAttention(12, 3, batch_first=True)),
        (6, 5),
    ),
    "dot product": (lambda: Attention(nn.Identity), (6, 5)),
    "encoder": (lambda: Attention(encoder), (6, 5)),
}


def rows_of(problem: NetworkProblem, params: Vector) -> torch.Tensor:
    """All rows as the sum uses them: of ghost clipping, from its factors."""
    rows = problem.rows(params, Unit.RECORD)
    if isinstance(rows, Chunks):
        return torch.cat(list(rows.unit_rows()))
    made = []
    for index in torch.split(torch.arange(rows.units), rows.alone.chunk):  # type: ignore[attr-defined]
        layers, _ = rows.factors(index)  # type: ignore[attr-defined]
        made += [torch.cat([layer.row(i) for layer in layers]) for i in range(len(index))]
    return torch.stack(made)


def hostile(model: Network, how: str) -> Vector:
    """Parameters that a server may send."""
    params = model.initial(0)
    if how == "large":
        return params * 3
    head = [n for n in model.layout.shapes if n.endswith("weight")][-1]
    named = {n: t.clone() for n, t in model.layout.unflatten(params * 2).items()}
    signs = 1 - 2 * (torch.arange(named[head].numel()) % 2).view_as(named[head])
    named[head] = (named[head].abs().mean() * signs).to(named[head]) * 2.0**20  # it cancels
    return model.layout.flatten(named)


def test_there_are_at_least_20_kinds() -> None:
    assert len(KINDS) >= 20


@pytest.mark.parametrize("sampler", ["auto", "func", "alone"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_record_moves_a_bit_of_anothers_row(kind: str, sampler: str) -> None:
    make, shape = KINDS[kind]
    if (kind, sampler) == ("gru", "func"):
        pytest.skip("torch.func has no rule for a GRU, which is refused")
    drawn = random.Random(f"{kind} {sampler}")
    records = 30 if sampler == "alone" else RECORDS
    x = torch.randn(records, *shape, generator=torch.Generator().manual_seed(1)) * 3
    y = torch.arange(records) % 3
    for chunk in [drawn.choice(CHUNKS)] if sampler == "alone" else drawn.sample(CHUNKS, 3):
        model = Network(seeded(make, 1), chunk=chunk, sampler=sampler)
        for how in ("large", "cancelling"):
            params = hostile(model, how)
            before = rows_of(model.problem((x, y)), params)
            assert bool(before.any()), "the law sees no rows"
            gone = drawn.choice((0, 1, 5, drawn.randrange(records)))
            left = torch.arange(records) != gone
            after = rows_of(model.problem((x[left], y[left])), params)
            moved = ((before[left] != after) & ~(before[left].isnan() & after.isnan())).any(dim=1)
            assert not bool(moved.any()), f"{int(moved.sum())} rows moved: chunk {chunk}, {how}"


@pytest.mark.parametrize("chunk", [*random.Random(0).sample(CHUNKS, 12), 1, 7, 256])
def test_every_block_that_a_module_sees_has_one_length(chunk: int) -> None:
    """Of a multiple of 64 records, so that no number is in a tensor's tail."""
    seen: list[int] = []

    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(len(x))
            out: torch.Tensor = self.layer(x)
            return out

    model = Network(seeded(Watched, 0), chunk=chunk)
    for records in (1, 63, 64, 65, 300):
        x, y = torch.randn(records, 4), torch.arange(records) % 3
        rows = model.problem((x, y)).rows(model.initial(0), Unit.RECORD)
        seen.clear()
        rows.clipped_sum(1.0)
        assert len(set(seen)) == 1
        assert seen[0] % 64 == 0
        assert seen[0] - 64 < max(chunk, 64) <= seen[0]
        assert len(seen) == -(-records // seen[0])
