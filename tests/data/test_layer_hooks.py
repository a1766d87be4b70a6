# SPDX-License-Identifier: Apache-2.0
"""Rows by factors, by torch.func and by Opacus equal record-by-record gradients, layer by layer.

The oracle is autograd on one record at a time. Clips are chosen by the rows' own norms: some
rows are clipped, and some are not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from dpfed.core.errors import RecipeError
from dpfed.core.ghost import Ghost, Made
from dpfed.core.rows import Chunks, Dense
from dpfed.core.types import Unit
from dpfed.data.batches import Batches, tensor_batches
from dpfed.data.layer_hooks import SPLITS, Unsupported, _class_of, factors_of
from dpfed.data.losses import Huber
from dpfed.data.modules import Network, seeded
from dpfed.data.samplers import by_itself
from tests.laws.shapes import (
    ADAPTERS,
    LABELS,
    LAYERS,
    RECORDS,
    SHAPES,
    Shape,
    numbers,
    texts,
    whole,
)


def oracle(model: Network, batches: Batches, params: torch.Tensor) -> torch.Tensor:
    return by_itself(model, params)(batches.read(torch.arange(len(batches))))


def made_rows(rows: Any) -> torch.Tensor:
    """Each record's row before the clip; of rows that are clipped unmade, what they stand for."""
    if not isinstance(rows, Ghost):
        return torch.cat(list(rows.unit_rows()))
    made = []
    for index in torch.split(torch.arange(rows.units), rows.alone.chunk):
        layers, usable = rows.factors(index)
        assert bool(usable.all())
        made += [torch.cat([each.row(i) for each in layers]) for i in range(len(index))]
    return torch.stack(made)


def hold(model: Network, batches: Batches) -> None:
    """Rows as they are, and their clipped sums, against the oracle."""
    params = model.initial(0) + 0.05 * torch.sin(torch.arange(model.layout.size) * 1.7)
    slow = oracle(model, batches, params).double()
    norms = slow.norm(dim=1)
    rows: Any = model.problem(batches).rows(params, Unit.RECORD)
    assert bool(((made_rows(rows) - slow).norm(dim=1) <= 1e-5 * norms).all())
    typical = float(norms.median())
    for clip in (1e6 * typical, typical, 1e-3 * typical):
        found, expected = rows.clipped_sum(clip).vector, Dense(slow).clipped_sum(clip).vector
        scale = 1e-5 * min(clip, float(norms.max()))
        assert float((found - expected).norm()) <= scale * len(slow), clip


NOT_BY_OPACUS = ("conv2d, groups", "conv3d, groups", "linear", "embedding")
"""It takes no circular padding, in-place layer or padding_idx."""

CELLS = [
    pytest.param(shape, sampler, id=f"{shape}-{sampler}")
    for shape in SHAPES
    for sampler in ("ghost", "func", "opacus")
    if not (sampler == "opacus" and shape.name in NOT_BY_OPACUS)
    and not (sampler == "func" and shape.padded)
]


@pytest.mark.parametrize(("shape", "sampler"), CELLS)
@pytest.mark.sample(6)
def test_rows_are_the_gradients_of_single_records(shape: Shape, sampler: str) -> None:
    if sampler == "opacus":
        pytest.importorskip("opacus")
    model, batches = shape.build(sampler)
    hold(model, batches)
    assert isinstance(model.problem(batches).rows(model.initial(0), Unit.RECORD), Ghost) == (
        sampler == "ghost"
    )


@pytest.mark.sample(3)
@pytest.mark.parametrize("shape", [shape for shape in ADAPTERS if shape.padded], ids=str)
def test_what_torch_func_cannot_go_through_is_refused_and_auto_is_ghost(shape: Shape) -> None:
    """A mask is data that a transformer branches on."""
    model, batches = shape.build("func")
    with pytest.raises(RecipeError, match=r"must work for any record.*; use sampler 'auto'$") as e:
        model.problem(batches).rows(model.initial(0), Unit.RECORD)
    assert "\n" not in str(e.value)
    auto, _ = shape.build("auto")
    assert (auto.rows_by(batches), auto.made_by(batches)) == ("ghost", "alone")


@pytest.mark.sample(3)
@pytest.mark.slow
@pytest.mark.parametrize("shape", [s for s in ADAPTERS if not s.padded], ids=str)
def test_a_transformer_that_is_trained_whole_has_rows_that_are_made(shape: Shape) -> None:
    """Its positions belong to no record, and tied weights to two layers: factors say nothing."""
    module, loss = whole(shape.name, shape.tied)
    refused = Network(module, loss, chunk=3, sampler="ghost")
    batches = texts(loss, padded=False)
    with pytest.raises(RecipeError, match=r"cannot be used here \(.*\); use sampler 'auto'$"):
        refused.problem(batches).rows(refused.initial(0), Unit.RECORD)
    auto = Network(module, loss, chunk=3)
    assert auto.rows_by(batches) == "func"
    hold(auto, batches)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_train_and_dropout_are_as_the_module_has_them(training: bool) -> None:
    module = seeded(lambda: nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 3)), 0)
    model = Network(module.train(training), chunk=4, sampler="ghost")
    batches = tensor_batches(numbers(4), LABELS)
    rows = model.problem(batches).rows(model.initial(0), Unit.RECORD)
    first, second = (rows.clipped_sum(1.0).vector for _ in range(2))
    assert torch.equal(first, second)  # masks follow from records and parameters
    plain = Network(module.eval(), chunk=4, sampler="ghost").problem(batches)
    whole = plain.rows(model.initial(0), Unit.RECORD).clipped_sum(1.0).vector
    assert torch.equal(first, whole) != training


PLACED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "conv2d": (lambda: nn.Conv2d(3, 5, 3, padding=1), (3, 6, 8)),
    "conv2d, one to one": (lambda: nn.Conv2d(3, 5, 1), (3, 7, 8)),
    "conv2d, groups": (lambda: nn.Conv2d(4, 6, 1, groups=2), (4, 5, 6)),
    "conv1d": (lambda: nn.Conv1d(3, 7, 1), (3, 26)),
    "linear, tokens": (lambda: nn.Linear(5, 3), (13, 5)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (4, 5, 6)),
    "layer norm": (lambda: nn.LayerNorm(5), (13, 5)),
}


@pytest.mark.parametrize("name", PLACED)
def test_a_made_row_does_not_depend_on_a_records_place(name: str) -> None:
    """To the last bit, also where positions cancel and it is nothing but rounding."""
    make, shape = PLACED[name]
    layer = seeded(make, 0)
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(13, *shape, generator=generator) * 1e9
    b = torch.randn(layer(a).shape, generator=generator)
    axis = 1 if name in ("linear, tokens", "layer norm") else a.dim() - 1
    half = a.shape[axis] // 2
    a.narrow(axis, half, half).copy_(a.narrow(axis, 0, half).clone())
    b.narrow(axis, half, half).copy_(-b.narrow(axis, 0, half).clone())

    def rows(index: torch.Tensor) -> torch.Tensor:
        found = SPLITS[_class_of(layer)](layer, a[index], b[index])
        parts = [part for made in found.values() for part in made]
        assert all(isinstance(part, Made) for part in parts)
        return torch.cat([part.rows for part in parts], dim=1)  # type: ignore[attr-defined]

    whole = rows(torch.arange(13))
    for gone in range(12):
        index = torch.tensor([*(i for i in range(13) if i != gone), gone])  # the block stays full
        assert torch.equal(rows(index), whole[index])


# --------------------------------------------------------------------------------- what is refused


class Twice(nn.Module):
    """A layer at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))))
        return out


class Borrowed(Twice):
    """A layer's weight that other code uses, too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.tanh(self.layer(x)) @ self.layer.weight)
        return out


class Overwritten(Twice):
    """A layer whose input is changed after it was used."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x + 0
        y = self.layer(h)
        h.mul_(2)
        out: torch.Tensor = self.head(y + h)
        return out


class Reshaped(Twice):
    """A layer that is called with all records in one row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.layer(x.reshape(1, -1, 4)).reshape(len(x), -1))
        return out


class Functional(Twice):
    """A parameter that no layer's forward uses."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(nn.functional.linear(x, self.layer.weight, self.layer.bias))
        return out


class Owned(Twice):
    """A parameter that belongs to the module itself."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.layer(x) * self.scale)
        return out


class Tied(Twice):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(4, 4)
        self.other.weight = self.layer.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.other(self.layer(x)))
        return out


REFUSED: dict[str, tuple[type[Twice], str]] = {
    "twice": (Twice, "layer 'layer' is used 2 times"),
    "borrowed": (Borrowed, "parameter 'layer.weight' is used 2 times"),
    "reshaped": (Reshaped, "not called with one entry per record"),
    "functional": (Functional, "do not give the gradients of single records"),
    "owned": (Owned, "whose factors are not known"),
    "tied": (Tied, "a trained parameter belongs to two layers"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_factors_is_refused_and_auto_makes_rows_instead(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, message = REFUSED[name]
    batches = tensor_batches(numbers(4), LABELS)
    model = Network(seeded(make, 0), chunk=3, sampler="ghost")
    with pytest.raises(RecipeError, match=f"{message}.*; use sampler 'auto'"):
        model.problem(batches).rows(model.initial(0), Unit.RECORD)
    auto = Network(seeded(make, 0), chunk=3)
    with caplog.at_level(logging.INFO, logger="dpfed"):
        rows = auto.problem(batches).rows(auto.initial(0), Unit.RECORD)
    assert isinstance(rows, Chunks)
    assert message in caplog.text
    hold(auto, batches)


class Volumes(nn.Module):
    """A small U-Net for volumes, of the layers that MONAI makes one of."""

    def __init__(self, norm: str) -> None:
        super().__init__()

        def layers(before: int, after: int, stride: int) -> list[nn.Module]:
            kinds = {"group": nn.GroupNorm(2, after), "instance": nn.InstanceNorm3d(after)}
            return [nn.Conv3d(before, after, 3, stride, 1), kinds[norm], nn.PReLU()]

        self.down = nn.Sequential(*layers(1, 4, 1))
        self.deep = nn.Sequential(*layers(4, 4, 2), nn.Dropout(0.2))
        self.up = nn.ConvTranspose3d(4, 4, 3, stride=2, padding=1, output_padding=1)
        self.out = nn.Conv3d(8, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        high = self.down(x)
        out: torch.Tensor = self.out(torch.cat([high, self.up(self.deep(high))], dim=1))
        return out


@pytest.mark.parametrize("norm", ["group", "instance"])
def test_a_net_for_volumes_is_fitted_to_a_segmentation_by_ghost_rows(norm: str) -> None:
    """Each record's row is that of itself alone, dropout included; auto chooses them."""
    x = numbers(1, 4, 4, 2)
    labels = (x[:, 0] > 0).long() + (x[:, 0] > 1).long()
    model = Network(seeded(lambda: Volumes(norm), 0), "segmentation", chunk=3)
    batches = tensor_batches(x, labels)
    assert model.rows_by(batches) == "ghost"
    model.module.eval()  # the oracle of the other rows has no seeds
    hold(model, batches)
    accuracy, losses = model.judge(model.initial(0), batches)
    assert bool(((accuracy > 0) & (accuracy < 1) & (losses > 0)).all())


def test_volumes_of_a_layer_that_is_used_twice_have_rows_that_are_made(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The stated fallback: torch.func, which the log names."""

    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.out = nn.Conv3d(1, 1, 3, padding=1), nn.Conv3d(1, 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.layer(torch.tanh(self.layer(x))))  # type: ignore[no-any-return]

    x = numbers(1, 3, 3, 2)
    model = Network(seeded(Again, 0), "segmentation", chunk=3)
    batches = tensor_batches(x, (x[:, 0] > 0).long())
    with caplog.at_level(logging.INFO, logger="dpfed"):
        assert model.rows_by(batches) == "func"
    assert "materialised, by sampler 'func'" in caplog.text
    hold(model, batches)


def test_an_input_that_is_overwritten_is_noticed() -> None:
    model = Network(seeded(Overwritten, 0), chunk=3, sampler="ghost")
    batch = tensor_batches(numbers(4), LABELS).read(torch.arange(3))
    with pytest.raises(Unsupported, match="layer 'layer' is overwritten"):
        factors_of(model, model.initial(0))(batch)


def test_a_parameter_used_twice_by_some_data_only_counts_for_nothing() -> None:
    """What a trial on made-up records cannot see is looked for in every pass."""

    class Sometimes(Twice):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.layer(x)
            return self.head(self.layer(h) if float(x.detach().abs().max()) > 50 else h)  # type: ignore[no-any-return]

    model = Network(seeded(Sometimes, 0), chunk=3, sampler="ghost")
    x = numbers(4)
    small = model.problem(tensor_batches(x[1:], LABELS[1:])).rows(model.initial(0), Unit.RECORD)
    x[0] *= 1000
    rows: Any = model.problem(tensor_batches(x, LABELS)).rows(model.initial(0), Unit.RECORD)
    torch.testing.assert_close(rows.clipped_sum(1.0).vector, small.clipped_sum(1.0).vector)
    with pytest.raises(Unsupported, match="used 2 times"):
        factors_of(model, model.initial(0))(tensor_batches(x, LABELS).read(torch.arange(2)))


def test_a_layer_that_is_not_reached_has_a_zero_gradient() -> None:
    class Idle(Twice):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x)  # type: ignore[no-any-return]

    model = Network(seeded(Idle, 0), chunk=3, sampler="ghost")
    rows = model.problem(tensor_batches(numbers(4), LABELS)).rows(model.initial(0), Unit.RECORD)
    made = model.layout.unflatten(rows.clipped_sum(1.0).vector)
    assert not made["layer.weight"].any()
    assert made["head.weight"].any()


def by_marks(shape: Shape) -> Any:
    """CI has each transformer with and without padding, and with and without tied weights."""
    if shape not in ADAPTERS:
        return pytest.param(shape, id=str(shape))
    mark = pytest.mark.slow if shape.padded == shape.tied else pytest.mark.long
    return pytest.param(shape, marks=mark, id=str(shape))


@pytest.mark.parametrize("shape", map(by_marks, SHAPES))
@pytest.mark.sample(3)
def test_rows_of_persons_are_the_sums_of_their_records(shape: Shape) -> None:
    """One has more records than a chunk, one has a single one."""
    model, batches = shape.build("ghost")
    params = model.initial(0) + 0.05 * torch.sin(torch.arange(model.layout.size) * 1.7)
    people = torch.tensor([4, 1, 4, 4, 2, 4, 2])
    slow = oracle(model, batches, params).double()
    sums = torch.stack([slow[people == each].sum(dim=0) for each in (1, 2, 4)])
    rows = model.problem(replace(batches, groups=people)).rows(params, Unit.GROUP)
    assert isinstance(rows, Ghost)
    assert rows.units == 3
    typical = float(sums.norm(dim=1).median())
    for clip in (1e6 * typical, typical, 1e-3 * typical):
        found, expected = rows.clipped_sum(clip).vector, Dense(sums).clipped_sum(clip).vector
        scale = 1e-5 * min(clip, float(sums.norm(dim=1).max()))
        assert float((found - expected).norm()) <= scale * len(slow), clip
    kept = torch.tensor([False, True, True])
    some = rows.select(kept).clipped_sum(typical).vector
    expected = Dense(sums[kept]).clipped_sum(typical).vector
    assert float((some - expected).norm()) <= 1e-5 * typical * len(slow)


def test_exact_integers_get_rows_that_are_made() -> None:
    model = Network(seeded(LAYERS["linear"][0], 0), chunk=3)
    batches = tensor_batches(numbers(4), LABELS, torch.arange(RECORDS) // 2)
    problem = model.problem(batches)
    for unit, units in ((Unit.RECORD, RECORDS), (Unit.GROUP, 4)):
        rows = problem.rows(model.initial(0), unit)
        assert isinstance(rows, Ghost)
        assert len(torch.cat(list(rows.clipped_rows(1.0)))) == units


def test_numbers_are_fitted_too() -> None:
    model = Network(seeded(LAYERS["linear"][0], 0), Huber(0.5), chunk=3, sampler="ghost")
    hold(model, tensor_batches(numbers(4), numbers(3, seed=4)))
