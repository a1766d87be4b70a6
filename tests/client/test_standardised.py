# SPDX-License-Identifier: Apache-2.0
"""A model that standardises its inputs: its rows under any broadcast, and what it is elsewhere."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import dpfed
from dpfed.client._standardised import Standardised, StandardisedModule
from dpfed.core.errors import DataError, RecipeError
from dpfed.core.testing import HOSTILE, exchange_keeps_its_bound, unit_keeps_its_bound
from dpfed.core.types import Unit
from dpfed.data.datasets import Records
from dpfed.data.models import BLOCK_RECORDS
from dpfed.flower import evaluate

MODEL = Standardised("softmax", 4, 3)
NONE = Standardised("softmax", 4, 3, full=False)


def records(count: int, seed: int = 0, features: int = 4) -> Records:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, features, generator=generator)
    y = torch.randint(0, 3, (count,), generator=generator)
    return Records(x, y, torch.arange(count) // 3)


def sent(model: Standardised, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return model.initial(0) + 0.3 * torch.randn(model.layout.size, generator=generator)


# -------------------------------------------------------------------------------------------- rows


def servers(model: Standardised) -> list[torch.Tensor]:
    """Each hostile number throughout, in one tensor, and at one place of it; a rank of one."""
    made = []
    for value, name in itertools.product(HOSTILE, model.layout.shapes):
        for everywhere in (True, False):
            parts = model.layout.unflatten(sent(model).double())
            parts[name].view(-1)[: None if everywhere else 1] = value
            made.append(model.layout.flatten(parts))
    made += [torch.full((model.layout.size,), value, dtype=torch.float64) for value in HOSTILE]
    parts = model.layout.unflatten(sent(model).double())
    parts["transform"].view(-1)[:] = 1.0
    return [*made, model.layout.flatten(parts)]


def sent_in(both: bool, made: list[torch.Tensor]) -> Iterable[tuple[torch.Tensor, bool]]:
    """Each with whether it is in double precision: by turns of number, tensor and place."""
    if both:
        return itertools.product(made, (True, False))
    return ((params, (at + at // 2 + at // 8) % 2 == 0) for at, params in enumerate(made))


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.parametrize("both", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("unit", list(Unit))
@pytest.mark.parametrize("model", [MODEL, NONE], ids=["full", "none"])
@pytest.mark.long
def test_whatever_a_server_sends_rows_keep_their_bounds(
    model: Standardised, unit: Unit, both: bool
) -> None:
    generator = torch.Generator().manual_seed(3)
    large = 10.0 ** torch.randint(-30, 30, (3, 4), generator=generator)
    one, other = records(3), replace(records(3, seed=7), x=records(3, seed=7).x * large)
    one, other = (replace(r, groups=torch.zeros(3, dtype=torch.int64)) for r in (one, other))
    if unit is Unit.RECORD:
        one, other = one.take(torch.tensor([0])), other.take(torch.tensor([0]))
    reached = 0.0
    for params, double in sent_in(both, servers(model)):
        first, second = (model.problem(r) for r in (one, other))
        if double:
            first, second = first.doubled(), second.doubled()
        params = params if double else params.float()
        for kind, clip in (("mean_rows", 1.0), ("moment_rows", 1.0), ("rows", 0.5)):
            rows = [getattr(each, kind)(params, unit) for each in (first, second)]
            reached = max(reached, *(unit_keeps_its_bound(each, clip) for each in rows))
            exchange_keeps_its_bound(*rows, clip)
    assert reached > 0.99


def test_a_row_without_a_length_is_zero_the_bias_included() -> None:
    params = sent(MODEL)
    center = MODEL.layout.unflatten(params)["center"]
    x = torch.stack([center, torch.full((4,), math.nan), torch.full((4,), 3e38), center + 1])
    problem = MODEL.problem(Records(x, torch.zeros(4, dtype=torch.int64)))
    inner = problem._inner(params)
    assert torch.equal(inner.x[:2], torch.zeros(2, 5))
    assert inner.x[2:, -1].tolist() == [pytest.approx(float(params[20]))] * 2
    assert inner.x[2:, :-1].norm(dim=1) == pytest.approx(torch.ones(2))
    assert bool((problem.rows(params, Unit.RECORD).clipped_sum(0.5).vector != 0).any())


@pytest.mark.parametrize("unit", [Unit.GROUP, Unit.CLIENT])
def test_a_unit_has_the_mean_over_its_own_records(unit: Unit) -> None:
    """A person with the same record three times counts as one with it once."""
    once, params = records(1), sent(MODEL)
    thrice = Records(once.x.repeat(3, 1), once.y.repeat(3), torch.zeros(3, dtype=torch.int64))
    for kind in ("mean_rows", "moment_rows", "rows"):
        sums = [
            getattr(MODEL.problem(each), kind)(params, unit).clipped_sum(10.0).vector
            for each in (once, thrice)
        ]
        assert torch.allclose(sums[0].double(), sums[1].double(), atol=1e-6)


@pytest.mark.parametrize("features", [4, 64, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_record_moves_anothers_row_to_the_bit(features: int, dtype: torch.dtype) -> None:
    """Others come and go, across blocks, under a transform whose sums cancel."""
    model = Standardised("softmax", features, 3)
    parts = model.layout.unflatten(sent(model))
    parts["center"][:] = 0.0
    parts["transform"][:, 0], parts["transform"][:, 1] = 1e18, -1e18
    params = model.layout.flatten(parts)
    all_of_them = records(2 * BLOCK_RECORDS + 7, features=features)
    all_of_them.x[:, 1] = all_of_them.x[:, 0]
    whole = replace(model.problem(all_of_them), x=all_of_them.x.to(dtype))._directions(params)
    for kept in (
        slice(0, 1),
        slice(0, 6),
        slice(1, BLOCK_RECORDS + 2),
        slice(3, None),
        slice(7, 2 * BLOCK_RECORDS + 1),
    ):
        part = replace(model.problem(all_of_them), x=all_of_them.x[kept].to(dtype))
        assert torch.equal(part._directions(params), whole[kept])


def test_what_is_kept_follows_the_standardiser() -> None:
    problem, params = MODEL.problem(records(9)), sent(MODEL)
    for change in ("center", "transform", "bias_input", "weight"):
        before = problem._inner(params)
        other = params.clone()
        MODEL.layout.unflatten(other)[change].view(-1)[:1] += 0.5
        after = problem._inner(other)
        assert (after is before) == (change == "weight")
        fresh = MODEL.problem(records(9)).judge(other)
        assert all(map(torch.equal, problem.judge(other), fresh))
    assert replace(problem, x=problem.x + 1)._kept == []


def test_unknown_labels_count_for_nothing_in_any_kind_of_row() -> None:
    params, known = sent(MODEL), records(4)
    more = Records(torch.cat([known.x, known.x]), torch.cat([known.y, known.y * 0 + 99]))
    for kind in ("mean_rows", "moment_rows", "rows"):
        sums = [
            getattr(MODEL.problem(each), kind)(params, Unit.RECORD).clipped_sum(1.0).vector
            for each in (replace(known, groups=None), more)
        ]
        assert torch.equal(*sums)


def test_a_client_without_records_has_rows_of_zeros() -> None:
    problem = MODEL.problem(records(0))
    for unit, kind in itertools.product(Unit, ("mean_rows", "moment_rows", "rows")):
        vector = getattr(problem, kind)(sent(MODEL), unit).clipped_sum(1.0).vector
        assert not bool(vector.any())


# ------------------------------------------------------------------------------------- the module


@pytest.mark.parametrize("model", [MODEL, NONE, replace(MODEL, bias=False)])
def test_the_module_scores_as_the_model_does(model: Standardised) -> None:
    params, some = sent(model), records(50)
    module = model.module(params)
    assert list(module.state_dict()) == list(model.layout.shapes) or set(
        module.state_dict()
    ) == set(model.layout.shapes)
    right, loss = model.judge(params, some)
    scores = module(some.x)
    assert torch.equal((scores.argmax(dim=1) == some.y).float(), right)
    expected = torch.nn.functional.cross_entropy(scores, some.y, reduction="none")
    assert torch.allclose(expected, loss, atol=1e-5)


def test_a_run_leaves_a_model_that_plain_torch_loads(tmp_path: Path) -> None:
    data = {"options": {"records": 600, "features": 6, "classes": 3}, "partition": {"clients": 3}}
    result = dpfed.run(method="dp-fedauto", rounds=6, data=data, privacy={"epsilon": 5.0})
    tensors = load_file(result.save(tmp_path) / "model.safetensors")
    assert set(tensors) == {"center", "transform", "bias_input", "weight", "bias"}
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert "takes 6 features as they are" in file.metadata()["needs"]
    x = torch.randn(20, 6)
    z = (x - tensors["center"]) @ tensors["transform"].T
    v = z / z.norm(dim=1, keepdim=True)
    scores = v @ tensors["weight"].T + tensors["bias"] * tensors["bias_input"]
    module = StandardisedModule(tensors)
    assert torch.allclose(module(x), scores, atol=1e-5)
    shape: Any = result.model
    module.load_state_dict(tensors)
    judged = evaluate(shape, shape.layout.flatten(tensors), Records(x, scores.argmax(dim=1)))
    assert judged.accuracy == 1.0


# --------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "wrong",
    [{"center": (1.0, 2.0)}, {"center": math.nan}, {"radius": 0.0}, {"radius": math.inf}],
)
def test_guesses_that_are_none_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=next(iter(wrong))):
        Standardised("softmax", 4, 3, **wrong)


def test_records_of_another_width_are_refused() -> None:
    with pytest.raises(DataError, match="4 features"):
        MODEL.problem(records(3, features=5))


def test_by_default_a_matrix_is_for_few_features_only() -> None:
    assert Standardised("softmax", 723, 2).shape.full
    wide = Standardised("softmax", 10_000, 2)
    assert wide.layout.size == 10_000 + 1 + 1 + 2 * 10_001


def test_the_guesses_are_where_it_begins() -> None:
    parts = MODEL.layout.unflatten(replace(MODEL, center=0.5, radius=4.0).initial(0))
    assert parts["center"].tolist() == [0.5] * 4
    assert torch.equal(parts["transform"], torch.eye(4) / 4)
    assert MODEL.initial(3)[4] == pytest.approx(1 / 2)  # 1 / sqrt(features)
