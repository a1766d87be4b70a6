# SPDX-License-Identifier: Apache-2.0
"""Gradients and judgements of every model against autograd and plain formulas."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from dpfed.core.errors import DataError, RecipeError
from dpfed.core.metric import ScoredRecords
from dpfed.core.registry import build
from dpfed.core.types import Unit
from dpfed.data.batches import tensor_batches
from dpfed.data.datasets import Records
from dpfed.data.losses import loss_by_name
from dpfed.data.models import Linear, evaluate
from dpfed.data.modules import Network, seeded
from tests.helpers.records import make_records


def records_for(link: str) -> Records:
    records = make_records(20)
    if link == "softmax":
        return records
    targets = {"logistic": records.y % 2, "poisson": records.y.float()}[link]
    return Records(records.x * 0.3, targets, records.groups)


def losses(link: str, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if link == "softmax":
        return functional.cross_entropy(scores, y, reduction="none")
    target = y.to(scores.dtype)
    if link == "logistic":
        return torch.log1p(torch.exp(scores[:, 0])) - target * scores[:, 0]
    return torch.exp(scores[:, 0]) - target * scores[:, 0]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("link", ["softmax", "logistic", "poisson"])
def test_linear_gradients_are_those_of_autograd(link: str, bias: bool) -> None:
    records = records_for(link)
    model = Linear(link, 5, 3 if link == "softmax" else 1, bias)
    params = torch.randn(model.layout.size) * 0.3
    rows = []
    for i in range(len(records)):
        here = params.clone().requires_grad_()
        parts = model.layout.unflatten(here)
        scores = records.x[i : i + 1] @ parts["weight"].T + parts.get("bias", 0.0)
        loss = losses(link, scores, records.y[i : i + 1]).sum()
        rows.append(torch.autograd.grad(loss, here)[0])
    problem = model.problem(records)
    huge = problem.rows(params, Unit.RECORD).clipped_sum(1e6).vector.float()
    assert torch.allclose(huge, torch.stack(rows).sum(0), atol=1e-5)
    mean = problem.rows(params, Unit.CLIENT).clipped_sum(1e6).vector.float()
    assert torch.allclose(mean, torch.stack(rows).mean(0), atol=1e-5)
    _, judged = model.judge(params, records)
    parts = model.layout.unflatten(params)
    scores = records.x @ parts["weight"].T + parts.get("bias", 0.0)
    assert torch.allclose(judged, losses(link, scores, records.y), atol=1e-5)


def test_accuracy_is_counted_for_classes_and_absent_for_numbers() -> None:
    records = records_for("softmax")
    model = Linear("softmax", 5, 3)
    params = model.initial(0)
    judged = evaluate(model, params, records)
    assert judged.accuracy == pytest.approx(float((records.y == 0).float().mean()))
    assert judged.loss == pytest.approx(math.log(3), rel=1e-5)
    counts = evaluate(Linear("poisson", 5), torch.zeros(6), records_for("poisson"))
    assert math.isnan(counts.accuracy)


@pytest.mark.parametrize("unit", list(Unit))
def test_metric_rows_lie_in_the_unit_square_and_mean_per_unit(unit: Unit) -> None:
    records = make_records(20)
    for model in (Linear("softmax", 5, 3), Network(nn.Linear(5, 3))):
        params = torch.randn(18) * 5
        correct, loss = model.judge(params, records)
        rows = model.problem(records).metric_rows(params, unit, loss_bound=2.0)
        got = rows.clipped_sum(math.sqrt(2)).vector.float()
        table = torch.stack([correct, loss.clamp(0, 2) / 2], 1)
        groups = {
            Unit.RECORD: torch.arange(20),
            Unit.GROUP: records.groups,
            Unit.CLIENT: torch.zeros(20),
        }[unit]
        assert groups is not None
        means = [table[groups == g].mean(0) for g in groups.unique()]
        assert torch.allclose(got, torch.stack(means).sum(0), atol=1e-4)


def test_group_level_without_groups_is_refused_with_the_way_out() -> None:
    records = Records(torch.randn(4, 5), torch.zeros(4).long())
    for model in (Linear("softmax", 5, 3), Network(nn.Linear(5, 3))):
        with pytest.raises(DataError, match=r"column in data\.options\.groups"):
            model.problem(records).rows(torch.zeros(18), Unit.GROUP)


def test_an_empty_client_gives_zero_rows_at_every_unit() -> None:
    empty = Records(torch.zeros(0, 5), torch.zeros(0).long(), torch.zeros(0).long())
    for model in (Linear("softmax", 5, 3), Network(nn.Linear(5, 3))):
        for unit in Unit:
            got = model.problem(empty).rows(torch.ones(18), unit).clipped_sum(1.0)
            assert torch.equal(got.vector, torch.zeros(18))


@pytest.mark.parametrize("link", ["softmax", "logistic", "poisson"])
def test_made_up_records_say_nothing_of_the_data(link: str) -> None:
    model, records = Linear(link, 5, 3 if link == "softmax" else 1), records_for(link)
    other = Records(records.x * 7, records.y * 0, records.groups)
    one, instead = (model.problem(each).made_up() for each in (records, other))
    assert torch.equal(one.x, instead.x)
    assert torch.equal(one.y, instead.y)


def test_a_networks_person_is_one_unit_whatever_the_number_of_records() -> None:
    network = Network(nn.Linear(5, 3))
    records = Records(torch.ones(4, 5), torch.zeros(4, dtype=torch.int64), torch.tensor([7] * 4))
    made = network.problem(records).rows(network.initial(0), Unit.GROUP).clipped_sum(0.1)
    assert float(torch.linalg.vector_norm(made.vector.double())) <= 0.1


@pytest.mark.parametrize("width", [33, 64, 100])
def test_a_records_metric_depends_on_no_other_to_the_last_bit(width: int) -> None:
    """Weights of 1e18: where terms cancel, a loss is what a library rounds."""
    network = Network(seeded(lambda: nn.Linear(width, 3), 0))
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(70, width, generator=generator)
    y = torch.randint(0, 3, (70,), generator=generator)
    params = torch.randn(network.layout.size, generator=generator) * 1e18
    _, whole = network.judge(params, Records(x, y))
    for count in range(1, 70):
        _, part = network.judge(params, Records(x[:count], y[:count]))
        assert torch.equal(part, whole[:count])


@pytest.mark.parametrize("unit", list(Unit))
def test_a_network_and_a_linear_model_are_judged_alike(unit: Unit) -> None:
    linear, network = Linear("softmax", 5, 3), Network(seeded(lambda: nn.Linear(5, 3), 0))
    records = replace(make_records(70), groups=torch.arange(70) // 3)
    params = torch.linspace(-1, 1, linear.layout.size)
    for name in ("accuracy", "loss", "recall", "auc", "perplexity"):
        options = {"classes": 3} if name in ("recall", "auc") else {}
        row = build("metrics", name, options).row
        one, other = (m.problem(records).judged(params, unit, row) for m in (linear, network))
        assert torch.allclose(one.double(), other.double(), atol=1e-6), name


def test_tokens_are_judged_by_the_scores_that_are_for_them() -> None:
    """A language model's scores at a token are for the next one: the first has none."""
    network = Network(
        seeded(lambda: nn.Embedding(4, 4), 0), loss=loss_by_name("tokens", shift=True)
    )
    x = torch.tensor([[0, 1, 2, 3], [3, 3, 1, 0]])
    y = torch.tensor([[0, 1, 2, -100], [3, 3, 1, 0]])
    params = network.initial(0)
    made = network.problem(tensor_batches(x, y)).judged(
        params, Unit.RECORD, build("metrics", "perplexity", {"tokens": 3, "bound": 10.0}).row
    )
    scores = network.score(params, x)[:, :-1]
    losses = nn.functional.cross_entropy(scores.mT, y[:, 1:], reduction="none").sum(dim=1)
    assert made[:, 0].tolist() == pytest.approx((losses / 30).tolist(), rel=1e-5)
    assert made[:, 1].tolist() == pytest.approx([2 / 3, 1.0])


def test_nobodys_metrics_are_no_rows_of_the_right_length() -> None:
    row = build("metrics", "recall", {"classes": 3}).row
    nobody = Records(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64))
    for model in (Linear("softmax", 5, 3), Network(seeded(lambda: nn.Linear(5, 3), 0))):
        made = model.problem(nobody).judged(torch.zeros(18), Unit.RECORD, row)
        assert made.shape == (0, 6)


def test_a_record_that_a_metric_fails_on_has_a_zero_row() -> None:
    def row(scored: ScoredRecords) -> torch.Tensor:
        if bool((scored.labels == 2).any()):
            raise ValueError("a label of 2")
        return torch.ones(len(scored.labels), 1)

    network, records = Network(seeded(lambda: nn.Linear(5, 3), 0)), make_records(20)
    made = network.problem(records).judged(network.initial(0), Unit.RECORD, row)
    assert torch.equal(made[:, 0] == 0, records.y == 2)


def test_a_random_start_has_a_generator_of_its_own() -> None:
    """It neither reads nor moves torch's global one."""
    model = Linear("softmax", features=4, outputs=3, start="random")
    torch.manual_seed(1)
    first, after = model.initial(5), torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(3))
    assert torch.equal(first, model.initial(5))
    assert not Linear("softmax", features=4, outputs=3).initial(5).any()
    with pytest.raises(RecipeError, match=r"start must be one of zero, random, got 'xavier'"):
        Linear("softmax", features=4, outputs=3, start="xavier")


def test_a_model_of_another_width_is_refused() -> None:
    with pytest.raises(DataError, match="the model's 4 features, got 5"):
        Linear("softmax", 4, 3).problem(make_records(3))


def test_frozen_layers_are_not_trained() -> None:
    module = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    module[0].requires_grad_(False)
    network = Network(module)
    assert list(network.layout.shapes) == ["2.weight", "2.bias"]
    rows = network.problem(make_records(6)).rows(network.initial(0), Unit.RECORD)
    assert rows.clipped_sum(1.0).vector.shape == (15,)


def test_opacus_is_refused_for_tied_parameters() -> None:
    module = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5))
    module[2].weight = module[0].weight
    problem = Network(module, sampler="opacus").problem(make_records(4))
    with pytest.raises(RecipeError, match="use sampler 'func'"):
        problem.rows(problem.model.initial(0), Unit.RECORD)
