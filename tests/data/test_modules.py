# SPDX-License-Identifier: Apache-2.0
"""Where a network computes, and in which precision: nothing mixes devices, no norm is half.

No GPU is here. torch's device without data ("meta") stands for one: what runs on it cannot read the
main memory by accident, and a dispatch mode looks at every single operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpfed.core.clipping import clip_factors
from dpfed.core.errors import RecipeError
from dpfed.core.ghost import Layer, _Total, _whole
from dpfed.core.types import Unit
from dpfed.data import module_checks
from dpfed.data.batches import Batch, tensor_batches
from dpfed.data.datasets import Dataset, Records
from dpfed.data.layer_hooks import factors_of
from dpfed.data.models import Linear
from dpfed.data.modules import Network, seeded
from dpfed.data.samplers import SAMPLERS

LAYERS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "linear": (
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
        torch.rand(6, 4),
    ),
    "tokens": (
        lambda: nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Flatten(), nn.Linear(30, 3)),
        torch.rand(6, 6, 4),
    ),
    "conv": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 3)
        ),
        torch.rand(6, 2, 6, 6),
    ),
}
LABELS = torch.arange(6) % 3


class OneDevice(TorchDispatchMode):
    """Fails on an operation that reads, or makes, a tensor anywhere but on the device."""

    def __init__(self, device: str, moves: bool = False) -> None:
        super().__init__()
        self.device, self.moves, self.seen = torch.device(device), moves, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self.seen += 1
        moved = func is torch.ops.aten._to_copy.default and self.moves
        given = [] if moved else tree_leaves((args, kwargs))
        for each in (*given, *tree_leaves(out)):
            if isinstance(each, torch.Tensor) and each.dim() > 0:
                assert each.device == self.device, f"{func} touches {each.device}"
        return out


def test_the_mode_sees_what_mixes() -> None:
    for wrong in (lambda: torch.zeros(3), lambda: torch.zeros(3, device="meta").new_ones(2).cpu()):
        with pytest.raises((AssertionError, NotImplementedError)), OneDevice("meta"):
            wrong()


@pytest.mark.parametrize("name", LAYERS)
def test_factors_norms_and_sums_stay_on_the_device(name: str) -> None:
    make, x = LAYERS[name]
    model = Network(seeded(make, 0), device="meta", chunk=6)
    params = model.placed(model.initial(0))
    batch = Batch(x.to("meta"), LABELS.to("meta"))
    factors = factors_of(model, params)
    with OneDevice("meta") as watched:
        layers: list[Layer] = factors(batch)
        norms, _ = _whole([layer.norms() for layer in layers])
        weights = clip_factors(norms, 1.0)
        total = _Total(6, model.layout.size)
        total.add(layers, weights, max(layer.positions for layer in layers))
        row = torch.cat([layer.row(2) for layer in layers])
    assert watched.seen > 20
    assert (norms.dtype, weights.dtype, row.dtype) == (torch.float64,) * 3
    assert total._part is not None
    assert (total._part.device.type, total._part.dtype) == ("meta", torch.float64)


def test_parameters_go_over_once_and_inputs_with_each_batch() -> None:
    """Records and targets are read in the main memory: they go over, and nothing comes back."""
    make, x = LAYERS["linear"]
    model = Network(seeded(make, 0), device="meta", chunk=6)
    start = model.initial(0)
    factors = factors_of(model, start)
    with OneDevice("meta", moves=True):
        factors(Batch(x, LABELS))
    assert all(p.device.type == "meta" for p in model.module.parameters())
    assert start.device.type == model.initial(0).device.type == "cpu"
    assert bool(start.any())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_rows_of_another_precision_are_near_and_within_the_clip(
    name: str, dtype: torch.dtype
) -> None:
    make, x = LAYERS[name]
    batches = tensor_batches(x, LABELS)
    whole, other = Network(seeded(make, 0), chunk=4), Network(seeded(make, 0), chunk=4, dtype=dtype)
    params = whole.initial(0)
    assert torch.equal(params, other.initial(0))
    rows: Any = other.problem(batches).rows(params, Unit.RECORD)
    assert other.rows_by(batches) == "ghost"
    expected = whole.problem(batches).rows(params, Unit.RECORD)
    for clip in (1e-3, 1e3):
        made, near = rows.clipped_sum(clip), expected.clipped_sum(clip).vector
        assert made.vector.dtype == torch.float64
        assert float((made.vector - near).norm()) <= 0.1 * float(near.norm())
    layers, _ = rows.factors(torch.arange(4))
    assert {each.norms().norms.dtype for each in layers} == {torch.float64}
    one = rows.select(torch.arange(6) == 3).clipped_sum(1e-3)
    assert float(one.vector.double().norm()) <= 1e-3


@pytest.mark.parametrize("sampler", ["func", "alone"])
def test_made_rows_of_half_precision_are_measured_and_added_in_double(sampler: str) -> None:
    make, x = LAYERS["linear"]
    model = Network(seeded(make, 0), chunk=4, dtype=torch.bfloat16)
    batch = tensor_batches(x, LABELS).read(torch.arange(6))
    rows = SAMPLERS[sampler](model, model.initial(0))(batch)
    assert rows.dtype == torch.bfloat16
    assert bool(torch.isfinite(rows).all())
    made: Any = Network(seeded(make, 0), chunk=4, sampler=sampler, dtype=torch.bfloat16)
    total = made.problem(tensor_batches(x, LABELS)).rows(made.initial(0), Unit.RECORD)
    assert total.clipped_sum(1.0).vector.dtype == torch.float64


# --------------------------------------------------------------- what is refused, and what is shown


def small() -> nn.Module:
    return seeded(lambda: nn.Linear(4, 3), 0)


def test_a_device_that_is_not_here_is_refused_before_a_record_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    read: list[Any] = []

    class Listed:
        def __len__(self) -> int:
            return 6

        def __getitem__(self, at: int) -> Any:
            read.append(at)
            return torch.rand(4), 0

    model = Network(small(), device="cuda")  # a server without one may make it, for its layout
    assert model.layout.size == 15
    way_out = r"torch\.cuda\.is_available\(\) is False; leave out device and dtype"
    with pytest.raises(RecipeError, match=rf"device 'cuda' must be .*; {way_out}") as error:
        model.problem(Listed(), (torch.zeros(4), 0))
    assert "\n" not in str(error.value)
    assert read == []
    with pytest.raises(RecipeError, match="device must be one that torch knows, got 'gpu'"):
        Network(small(), device="gpu")


def test_a_precision_that_a_gpu_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch would emulate bfloat16 there, many times slower."""
    real = torch.ones

    def ones(*shape: int, device: Any, dtype: Any) -> torch.Tensor:
        return real(*shape, dtype=dtype)

    with monkeypatch.context() as here:
        here.setattr(torch, "ones", ones)
        here.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
        with pytest.raises(
            RecipeError, match=r"dtype torch\.bfloat16 must be .*; use torch\.float16"
        ):
            module_checks.check_device("cuda", torch.bfloat16)
        here.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
        module_checks.check_device("cuda", torch.bfloat16)
    for wrong in (torch.int8, "bfloat16"):
        with pytest.raises(RecipeError, match="dtype must be a floating-point type of torch"):
            Network(small(), dtype=wrong)  # type: ignore[arg-type]


def test_statistics_of_the_records_are_refused() -> None:
    """An InstanceNorm that keeps them would hand them on without noise."""
    layer = nn.InstanceNorm1d(3, track_running_stats=True)
    module = nn.Sequential(nn.Conv1d(1, 3, 2), layer, nn.Flatten(), nn.Linear(9, 3))
    with pytest.raises(RecipeError, match="layer '1' is an InstanceNorm that keeps statistics"):
        Network(module)
    before = {n: each.clone() for n, each in module.eval().state_dict().items()}
    problem = Network(module).problem((torch.rand(6, 1, 4), LABELS))
    problem.rows(problem.model.initial(0), Unit.RECORD).clipped_sum(1.0)
    assert all(torch.equal(each, before[n]) for n, each in module.state_dict().items())


def test_what_is_printed_is_one_line_and_no_record() -> None:
    model = Network(small(), loss="huber", sampler="func")
    x, y = torch.full((6, 4), 47.11), torch.full((6, 3), 47.11)
    problem = model.problem((x, y))
    said = "Network(Linear, 15 trained parameters, loss=Huber, sampler=func)"
    assert repr(model) == said
    records = "Batches(6 records of {'x': (4,), 'targets': (3,)})"
    assert repr(problem) == f"NetworkProblem({said}, {records})"
    assert repr(problem.records.read(torch.arange(2))) == "Batch({'x': (2, 4), 'targets': (2, 3)})"
    records_, linear = Records(x, LABELS), Linear("softmax", 4, 3)
    for each in (
        problem,
        problem.records,
        records_,
        linear.problem(records_),
        Dataset(records_, None, 3, "wards"),
    ):
        assert "\n" not in repr(each)
        assert "47" not in repr(each)
