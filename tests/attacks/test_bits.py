# SPDX-License-Identifier: Apache-2.0
"""With two threads, one record more changed the bits of others; a server can make bits matter.

Before: records were computed in one thread only inside of the engines. Who called ``problem.rows``
with two threads, 10 classes and 3,072 features, moved a clipped sum by 43.7 clips with one record
more (weights of 1e8 that cancel, so that scores are rounding alone). ``hidden_states`` and the
backbones also computed the last records in a smaller batch than the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from dpfed.client._standardised import Standardised
from dpfed.core.types import Unit
from dpfed.data import frozen_layers
from dpfed.data.architectures import resnet
from dpfed.data.backbones import _extract, _LoadedBackbone, _Preparation
from dpfed.data.convolutions import convolve
from dpfed.data.datasets import Records
from dpfed.data.frozen_layers import hidden_states
from dpfed.data.models import Linear
from dpfed.data.modules import Network


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """As many as a user may have; handed back as they were."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


def pairs(count: int, features: int) -> torch.Tensor:
    """Features that come twice."""
    half = torch.rand(count, features // 2, generator=torch.Generator().manual_seed(count))
    return torch.cat([half, half], dim=1)


def cancelling(classes: int, features: int) -> torch.Tensor:
    """Weights of 1e8 that cancel on such features."""
    half = torch.randn(classes, features // 2, generator=torch.Generator().manual_seed(1))
    return torch.cat([half, -half], dim=1) * 1e8


@pytest.mark.slow
@pytest.mark.parametrize("count", [383, 575, 2111])
def test_one_record_more_moves_a_linear_models_sum_by_one_clip(count: int) -> None:
    classes, features = 10, 3072
    model = Linear("softmax", features, classes)
    x, y = pairs(count + 1, features), torch.zeros(count + 1, dtype=torch.int64)
    params = torch.cat([cancelling(classes, features).flatten(), torch.zeros(classes)])
    problems = [model.problem(Records(x[:n], y[:n])) for n in (count, count + 1)]
    less, more = (p.rows(params, Unit.RECORD).clipped_sum(1.0).vector for p in problems)
    assert float((less - more).norm()) <= 1.0
    losses = [problem.judge(params)[1][:count] for problem in problems]
    assert torch.equal(*losses)


THREADED: dict[str, Callable[[Records], Any]] = {
    "rows": lambda r: Linear("softmax", 8, 3).problem(r).rows(torch.ones(27), Unit.RECORD),
    "gradient": lambda r: Linear("softmax", 8, 3).problem(r).gradient(torch.ones(27)),
    "hessian_rows": lambda r: (
        Linear("softmax", 8, 3).problem(r).hessian_rows(torch.ones(27), Unit.RECORD)
    ),
    "judge": lambda r: Linear("softmax", 8, 3).problem(r).judge(torch.ones(27)),
    "standardised": lambda r: (
        Standardised("softmax", 8, 3, full=True)
        .problem(r)
        .rows(Standardised("softmax", 8, 3, full=True).initial(0), Unit.RECORD)
    ),
    "moments": lambda r: (
        Standardised("softmax", 8, 3, full=True)
        .problem(r)
        .moment_rows(Standardised("softmax", 8, 3, full=True).initial(0), Unit.RECORD)
    ),
}


class Products(torch.overrides.TorchFunctionMode):
    """Notes how many threads matrix products are made by."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in {"mm", "matmul", "__matmul__", "softmax"}:
            self.threads.add(torch.get_num_threads())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", THREADED)
def test_a_problem_computes_in_one_thread_whoever_asks(name: str) -> None:
    records = Records(torch.rand(30, 8), torch.arange(30) % 3)
    with Products() as seen:
        THREADED[name](records)
    assert seen.threads == {1}


@pytest.mark.parametrize("sampler", ["ghost", "func", "alone"])
def test_networks_compute_in_one_thread_whoever_asks(sampler: str) -> None:
    seen = []

    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(torch.get_num_threads())
            out: torch.Tensor = self.layer(x)
            return out

    model = Network(Watched(), sampler=sampler)
    problem = model.problem(Records(torch.rand(9, 8), torch.arange(9) % 3))
    rows = problem.rows(model.initial(0), Unit.RECORD)
    seen.clear()
    rows.clipped_sum(1.0)
    model.judge(model.initial(0), problem.records)
    problem.gradient(model.initial(0))
    assert seen
    assert set(seen) == {1}


# ---------------------------------------------------------------------------------- public features


@pytest.mark.long
@pytest.mark.slow
def test_hidden_states_of_a_record_depend_on_no_other(tmp_path: Path) -> None:
    """Of equal records, whatever their number; and beside one that is padded."""
    library = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = library.BertConfig(
        vocab_size=100,
        hidden_size=96,
        num_hidden_layers=2,
        num_attention_heads=6,
        intermediate_size=384,
    )
    library.BertModel(config).save_pretrained(tmp_path)
    ids = torch.randint(1, 100, (1, 19)).repeat(130, 1)
    found = {n: hidden_states(tmp_path, ids[:n]) for n in (1, 62, 63, 64, 66, 67, 127)}
    for states in found.values():
        assert torch.equal(states, found[127][:1].expand_as(states))
    padded = ids[:63].clone()
    padded[5, 10:] = 0
    beside = hidden_states(tmp_path, padded)
    others = torch.arange(63) != 5
    assert torch.equal(beside[others], found[63][others])
    assert not bool(beside[5, 10:].any())


class Encoder(nn.Module):
    """Notes what it is called with: shapes, and whether there is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings, self.encoder = nn.Identity(), nn.Module()
        self.encoder.layer = nn.ModuleList([nn.Identity(), nn.Identity()])
        self.calls: list[tuple[tuple[int, ...], bool, int]] = []

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        threads = torch.get_num_threads()
        self.calls.append((tuple(input_ids.shape), bool(attention_mask.all()), threads))
        return SimpleNamespace(last_hidden_state=input_ids[:, :, None].float())


@pytest.mark.parametrize("count", [1, 62, 63, 64, 130])
def test_an_encoder_sees_blocks_of_one_shape_with_padding(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any padding transformers leaves out the mask: another kernel, for all of a block."""
    encoder = Encoder()
    monkeypatch.setattr(frozen_layers, "text_model", lambda *_, **__: Outer(encoder))
    ids = torch.arange(1, count * 5 + 1).view(count, 5)
    assert torch.equal(hidden_states("nowhere", ids)[:, :, 0], ids.float())
    assert set(encoder.calls) == {((64, 5), False, 1)}


class Outer(nn.Module):
    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder


def test_images_are_seen_in_batches_of_one_size() -> None:
    seen = []

    class Mean(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append((len(x), torch.get_num_threads()))
            return x.mean(dim=(2, 3))

    ready = _LoadedBackbone(Mean(), (0.5,) * 3, (0.25,) * 3)
    assert len(_extract(ready, torch.rand(21, 3, 8, 8), _Preparation(), 8, None)) == 21
    assert set(seen) == {(8, 1)}


def test_features_of_an_image_depend_on_no_other() -> None:
    torch.manual_seed(0)
    ready = _LoadedBackbone(resnet(14), (0.5,) * 3, (0.25,) * 3)
    images, told = torch.rand(21, 3, 32, 32), []
    whole = _extract(ready, images, _Preparation(), 8, told.append)
    assert sum(told) == 21
    for count in (1, 7, 8, 9, 20):
        assert torch.equal(_extract(ready, images[:count], _Preparation(), 8, None), whole[:count])


def test_convolutions_of_a_record_depend_on_no_other() -> None:
    x = torch.randn(150, 3, 40, generator=torch.Generator().manual_seed(0))
    whole = convolve(x, 16)
    for count in (1, 63, 64, 65, 149):
        assert torch.equal(convolve(x[:count], 16), whole[:count])


def test_every_core_is_used_and_the_callers_threads_are_handed_back() -> None:
    """Batches side by side, each in one thread; an error comes through, and so do the threads."""
    from dpfed.core.vector import side_by_side

    seen: list[int] = []
    made: list[int] = []
    side_by_side(lambda n: seen.append(torch.get_num_threads()) or n * n, range(9), made.append)  # type: ignore[func-returns-value]
    assert made == [n * n for n in range(9)]
    assert set(seen) == {1}
    assert torch.get_num_threads() == 2
    with pytest.raises(ZeroDivisionError):
        side_by_side(lambda n: 1 // n, range(2), made.append)
    assert torch.get_num_threads() == 2
