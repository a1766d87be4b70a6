# SPDX-License-Identifier: Apache-2.0
"""Losses by name: torch's own where it has them, one value per record, and nothing raises."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from dpfed.core.errors import RecipeError
from dpfed.core.types import Unit
from dpfed.data.batches import tensor_batches
from dpfed.data.losses import IGNORED, LOSSES, known_labels, loss_by_name
from dpfed.data.modules import Network, seeded

K, CLASSES, T = 6, 4, 5
SCORES = torch.randn(K, CLASSES, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(K) % CLASSES
WIDE = torch.randn(K, T, CLASSES, generator=torch.Generator().manual_seed(1))
TOKENS = (torch.arange(K * T) % CLASSES).view(K, T)


def test_cross_entropy_is_torchs() -> None:
    weights = [1.0, 2.0, 0.5, 3.0]
    loss = loss_by_name("cross-entropy", weights=weights, smoothing=0.1)
    expected = functional.cross_entropy(
        SCORES, LABELS, weight=torch.tensor(weights), label_smoothing=0.1, reduction="none"
    )
    torch.testing.assert_close(loss(SCORES, LABELS), expected)


@pytest.mark.parametrize("shift", [False, True])
def test_tokens_are_summed_per_record_and_ignored_ones_left_out(shift: bool) -> None:
    labels = TOKENS.clone()
    labels[0, 2:], labels[1] = IGNORED, IGNORED
    found = loss_by_name("tokens", shift=shift)(WIDE, labels)
    for at in range(K):
        scores, y = (WIDE[at, :-1], labels[at, 1:]) if shift else (WIDE[at], labels[at])
        alone = functional.cross_entropy(scores, y, reduction="sum")
        torch.testing.assert_close(found[at], alone)
    assert float(found[1]) == 0.0


def test_multi_label_is_torchs_and_summed() -> None:
    y = (SCORES.roll(1) > 0).float()
    weights = (1.0, 2.0, 3.0, 4.0)
    found = loss_by_name("multi-label", weights=weights)(SCORES, y)
    expected = functional.binary_cross_entropy_with_logits(
        SCORES, y, pos_weight=torch.tensor(weights), reduction="none"
    ).sum(dim=1)
    torch.testing.assert_close(found, expected)


def test_squared_and_huber_are_torchs() -> None:
    y = SCORES.roll(1, 0) * 3
    squared = functional.mse_loss(SCORES, y, reduction="none").sum(dim=1) / 2
    torch.testing.assert_close(loss_by_name("squared")(SCORES, y), squared)
    huber = functional.huber_loss(SCORES, y, delta=0.7, reduction="none").sum(dim=1)
    torch.testing.assert_close(loss_by_name("huber", delta=0.7)(SCORES, y), huber)
    one = loss_by_name("huber")(SCORES[:, :1], y[:, 0])  # one target needs no axis of its own
    torch.testing.assert_close(one, functional.huber_loss(SCORES[:, 0], y[:, 0], reduction="none"))


def test_mse_is_torchs_of_each_record_alone() -> None:
    y = SCORES.roll(1, 0) * 3
    alone = torch.stack([functional.mse_loss(SCORES[i], y[i]) for i in range(K)])
    torch.testing.assert_close(loss_by_name("mse")(SCORES, y), alone)
    one = loss_by_name("mse")(SCORES[:, :1], y[:, 0])
    torch.testing.assert_close(one, functional.mse_loss(SCORES[:, 0], y[:, 0], reduction="none"))


TARGETS: dict[str, tuple[torch.Tensor, torch.Tensor, list[Any]]] = {
    "cross-entropy": (SCORES, LABELS, [-1, CLASSES, 2**62, -(2**63)]),
    "tokens": (WIDE, TOKENS, [-1, CLASSES, 2**62]),
    "segmentation": (WIDE[:, :CLASSES], TOKENS[:, :CLASSES], [-1, CLASSES, 2**62]),
    "multi-label": (SCORES, (SCORES > 0).float(), [math.nan, math.inf, -1.0, 3e38]),
    "squared": (SCORES, SCORES * 2, [math.nan, math.inf, -math.inf]),
    "mse": (SCORES, SCORES * 2, [math.nan, math.inf, -math.inf]),
    "huber": (SCORES, SCORES * 2, [math.nan, math.inf, -math.inf]),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_strange_target_is_a_zero_loss_and_a_zero_gradient(name: str) -> None:
    scores, targets, strange = TARGETS[name]
    for value in strange:
        y = targets.clone()
        y[0] = value
        here = scores.clone().requires_grad_()
        losses = loss_by_name(name)(here, y)
        assert losses.shape == (K,)
        assert float(losses.detach()[0]) == 0.0
        gradient = torch.autograd.grad(losses.sum(), here)[0]
        assert not gradient[0].any()
        assert bool(torch.isfinite(gradient).all())
        assert gradient[1:].any()


@pytest.mark.parametrize("name", LOSSES)
def test_each_is_a_loss_of_a_network(name: str) -> None:
    scores, targets, _ = TARGETS[name]
    module = seeded(lambda: nn.Linear(CLASSES, CLASSES), 0)
    model = Network(module, name, chunk=4)
    assert model.loss == loss_by_name(name)
    problem = model.problem(tensor_batches(scores, targets))
    assert model.rows_by(problem.records) == "ghost"
    assert problem.rows(model.initial(0), Unit.RECORD).clipped_sum(1.0).vector.any()
    right, losses = model.judge(model.initial(0), problem.records)
    assert bool(torch.isfinite(losses).all())
    assert bool(right.isnan().all()) == (name in ("squared", "mse", "huber"))
    assert not bool((right > 1).any())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("hinge", {}, "loss.name must be cross-entropy, tokens"),
        ("huber", {"delta": 0}, "loss.delta must be above 0, got 0"),
        ("cross-entropy", {"smoothing": 1.0}, "loss.smoothing must be at least 0 and below 1"),
        ("cross-entropy", {"weights": [1.0, 0.0]}, "loss.weights must be a finite number above 0"),
        ("multi-label", {"weights": [math.nan]}, "loss.weights must be a finite number above 0"),
        ("squared", {"delta": 1.0}, "the options of loss 'squared' must be its own"),
        ("mse", {"delta": 1.0}, "the options of loss 'mse' must be its own"),
    ],
)
def test_what_cannot_be_a_loss_is_refused(name: str, options: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        loss_by_name(name, **options)


def test_a_network_refuses_a_name_that_is_no_loss() -> None:
    with pytest.raises(RecipeError, match=r"loss\.name must be cross-entropy.*got 'hinge'"):
        Network(nn.Linear(2, 2), "hinge")


def test_weights_and_targets_must_fit_the_outputs() -> None:
    with pytest.raises(RecipeError, match=r"loss\.weights must be one number per class, 4 in all"):
        loss_by_name("cross-entropy", weights=[1.0, 2.0])(SCORES, LABELS)
    with pytest.raises(RecipeError, match=r"outputs must be 2, one per.*got 4"):
        loss_by_name("squared")(SCORES, torch.zeros(K, 2))


def test_labels_outside_of_the_classes_are_ignored() -> None:
    assert known_labels(torch.tensor([0, 3, 4, -1]), 4).tolist() == [0, 3, IGNORED, IGNORED]


# --------------------------------------------------------------------------------- frozen BatchNorm


def normed(frozen: bool, training: bool) -> nn.Module:
    layers = (nn.Linear(CLASSES, 3), nn.BatchNorm1d(3), nn.Linear(3, CLASSES))
    module = seeded(lambda: nn.Sequential(*layers), 0)
    module[1].requires_grad_(not frozen)  # type: ignore[index]
    return module.train(training)


def test_a_frozen_batch_norm_in_eval_is_taken_and_no_other() -> None:
    batches = tensor_batches(SCORES, LABELS)
    model = Network(normed(frozen=True, training=False), chunk=4)
    rows = model.problem(batches).rows(model.initial(0), Unit.RECORD)
    assert rows.clipped_sum(1.0).vector.any()
    for frozen, training in ((True, True), (False, False), (False, True)):
        with pytest.raises(RecipeError, match="BatchNorm, which"):
            Network(normed(frozen, training))


# ------------------------------------------------------------------------------------ segmentation


def a_voxel_at_a_time(scores: np.ndarray, labels: np.ndarray, dice: float) -> float:
    """The loss of one record by its definition: no batch, and no vectors."""
    classes, places = len(scores), [at for at in np.ndindex(labels.shape) if labels[at] >= 0]
    parts = {at: np.exp(scores[(slice(None), *at)]) for at in places}
    parts = {at: each / each.sum() for at, each in parts.items()}
    entropy = -np.mean([np.log(parts[at][labels[at]]) for at in places])
    overlaps = []
    for c in range(1, classes):
        both = sum(parts[at][c] for at in places if labels[at] == c)
        total = sum(parts[at][c] for at in places) + sum(labels[at] == c for at in places)
        overlaps.append((2 * both + 1) / (total + 1))
    return float((1 - dice) * entropy + dice * (1 - np.mean(overlaps)))


@pytest.mark.parametrize("dice", [0.0, 0.5, 1.0])
def test_a_segmentation_is_judged_by_each_records_own_voxels(dice: float) -> None:
    random = np.random.default_rng(0)
    scores, labels = random.normal(size=(3, 4, 2, 3, 2)), random.integers(0, 4, (3, 2, 3, 2))
    labels[0, 0, 0, 0] = -100
    found = loss_by_name("segmentation", dice=dice)(torch.tensor(scores), torch.tensor(labels))
    for record in range(3):
        expected = a_voxel_at_a_time(scores[record], labels[record], dice)
        assert float(found[record]) == pytest.approx(expected, rel=1e-6)


def test_a_segmentations_accuracy_is_the_dice_of_what_is_not_background() -> None:
    loss: Any = loss_by_name("segmentation")
    y = torch.zeros(2, 8, dtype=torch.int64)
    y[:, :4] = 1
    perfect = functional.one_hot(y, 2).mT.float()
    assert loss.right(perfect, y).tolist() == [1.0, 1.0]
    nothing = torch.stack([torch.ones(2, 8), torch.zeros(2, 8)], dim=1)  # all is background
    assert loss.right(nothing, y).tolist() == pytest.approx([0.2, 0.2])  # (0 + 1) / (4 + 1)
    odd = torch.tensor([[5, -3, 1, -100, 0, 0, 0, 0]])  # labels that are no class raise nothing
    assert bool(torch.isfinite(loss(perfect[:1], odd)).all())
    assert torch.equal(loss(perfect, y[:, None]), loss(perfect, y))  # a channel of labels


def test_a_segmentation_of_other_shapes_is_refused() -> None:
    loss = loss_by_name("segmentation")
    with pytest.raises(RecipeError, match=r"channels must be 2 or more.*got 1"):
        loss(torch.zeros(2, 1, 3, 3), torch.zeros(2, 3, 3))
    with pytest.raises(RecipeError, match=r"a class for each voxel, \(3, 3\), got \(4, 4\)"):
        loss(torch.zeros(2, 2, 3, 3), torch.zeros(2, 4, 4))
    with pytest.raises(RecipeError, match=r"loss\.dice must be from 0 to 1, got 1\.5"):
        loss_by_name("segmentation", dice=1.5)
