# SPDX-License-Identifier: Apache-2.0
"""A loss or a layer that reduces over the batch: one record scaled the gradients of all others.

Before: sampler "opacus" took ``nn.CrossEntropyLoss(weight=...)``. Its mean divides by the weights
of the whole batch, so that one label moved the clipped sum by 38 clips where 2 are accounted for.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from dpfed.core.errors import RecipeError
from dpfed.core.types import Unit
from dpfed.data.datasets import Records
from dpfed.data.modules import Loss, Network, seeded

WEIGHTS = torch.tensor([1.0, 1.0, 1e4])


def layers() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), 0)


def records_of(size: int = 64) -> Records:
    x = 20 * torch.randn(size, 4, generator=torch.Generator().manual_seed(1)).abs()
    return Records(x, torch.zeros(size, dtype=torch.int64))


def moved_by_one_label(loss: Loss) -> float:
    """How far one label moves the clipped sum at most, in clips: 2 are accounted for."""
    network, base = Network(layers(), loss, chunk=64, sampler="opacus"), records_of()
    other = Records(base.x, base.y.clone())
    other.y[0] = 2
    one, two = (network.problem(r).rows(network.initial(0), Unit.RECORD) for r in (base, other))
    return max(
        float((one.clipped_sum(clip).vector - two.clipped_sum(clip).vector).norm()) / clip
        for clip in (0.01, 1.0)
    )


def weighted_mean(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores, y, weight=WEIGHTS)


def weights_over_their_sum(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One value per record, and yet each depends on all labels."""
    losses = functional.cross_entropy(scores, y, weight=WEIGHTS, reduction="none")
    return losses / WEIGHTS[y].sum() * len(y)


REDUCING: dict[str, Loss] = {
    "mean": nn.CrossEntropyLoss(),
    "weighted mean": nn.CrossEntropyLoss(weight=WEIGHTS),
    "sum": nn.CrossEntropyLoss(reduction="sum"),
    "function": functional.cross_entropy,
    "partial": partial(functional.cross_entropy, reduction="sum"),
    "lambda": lambda scores, y: functional.cross_entropy(scores, y),
    "numbers": functional.mse_loss,
    "several labels": functional.binary_cross_entropy_with_logits,
    "one label": lambda scores, y: functional.binary_cross_entropy(scores.sigmoid()[:, 0], y[:, 0]),
    "tokens": lambda scores, y: functional.cross_entropy(scores.flatten(0, 1), y.flatten()),
}


@pytest.mark.parametrize("sampler", ["func", "opacus"])
@pytest.mark.parametrize("name", REDUCING)
def test_a_loss_that_reduces_is_refused_when_the_network_is_made(name: str, sampler: str) -> None:
    with pytest.raises(RecipeError, match=r"per record.*reduction='none'"):
        Network(layers(), REDUCING[name], sampler=sampler)


def test_a_loss_with_one_value_per_record_is_taken_whatever_its_targets_are() -> None:
    for loss in (
        nn.CrossEntropyLoss(reduction="none"),
        lambda scores, y: functional.mse_loss(scores, y, reduction="none").sum(-1),
        lambda scores, y: functional.cross_entropy(scores.mT, y, reduction="none").sum(-1),
    ):
        assert Network(layers(), loss).loss is loss


@pytest.mark.parametrize("loss", [weighted_mean, weights_over_their_sum], ids=lambda f: f.__name__)
def test_class_weights_cannot_scale_the_others(loss: Any) -> None:
    """Made-up scores of two classes do not fit these: they are found at the first records."""
    pytest.importorskip("opacus")
    with pytest.raises(RecipeError, match=r"one value per record|depend on that record alone"):
        moved_by_one_label(loss)


def test_class_weights_per_record_are_sound() -> None:
    pytest.importorskip("opacus")
    assert moved_by_one_label(nn.CrossEntropyLoss(weight=WEIGHTS, reduction="none")) <= 2 * 1.00001


class Centred(nn.Module):
    """Subtracts the batch's mean, as BatchNorm does, under a name that no list has."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(dim=0)


class Neighbour(nn.Module):
    """Each record's output has a bit of the record before it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * x.roll(1, dims=0)


@pytest.mark.parametrize("sampler", ["func", "opacus"])
@pytest.mark.parametrize("layer", [Centred, Neighbour])
def test_a_layer_that_mixes_records_is_found_on_made_up_ones(layer: Any, sampler: str) -> None:
    """With sampler "func" rows are made one by one; the metrics of others moved all the same."""
    module = nn.Sequential(nn.Linear(4, 8), layer(), nn.Linear(8, 3))
    with pytest.raises(RecipeError, match="depend on that record"):
        Network(module, sampler=sampler).problem(records_of())


def sound(layer: nn.Module) -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(4, 8), layer, nn.Linear(8, 3)), 0)


@pytest.mark.parametrize("sampler", ["func", "opacus"])
@pytest.mark.parametrize(
    "layer",
    [nn.Dropout(0.5), nn.LayerNorm(8), nn.GroupNorm(2, 8), nn.ReLU(), nn.Softmax(dim=1)],
    ids=lambda each: type(each).__name__,
)
def test_sound_layers_pass_and_the_callers_random_numbers_stay(layer: Any, sampler: str) -> None:
    if sampler == "opacus":
        pytest.importorskip("opacus")
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    network = Network(sound(layer), sampler=sampler)
    problem = network.problem(records_of(8))
    assert torch.equal(torch.random.get_rng_state(), before)
    problem.rows(network.initial(0), Unit.RECORD).clipped_sum(1.0)


def test_numbers_as_targets_and_a_single_output_pass() -> None:
    def squared(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (scores[:, 0] - y) ** 2

    generator = torch.Generator().manual_seed(0)
    for y in (torch.randn(6, generator=generator), torch.zeros(6, dtype=torch.int64)):
        records = Records(torch.randn(6, 4, generator=generator), y)
        for sampler in ("func", "opacus"):
            if sampler == "opacus":
                pytest.importorskip("opacus")
            network = Network(nn.Linear(4, 1), squared, sampler=sampler)
            rows = network.problem(records).rows(network.initial(0), Unit.RECORD)
            assert rows.clipped_sum(1.0).vector.shape == (5,)
