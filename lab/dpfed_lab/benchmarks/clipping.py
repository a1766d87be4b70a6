# SPDX-License-Identifier: Apache-2.0
"""(b) The clipped gradient sum of a linear head against Opacus, on the same head and batch.

The limits are the two ways of the library that the field uses: hooks (every record's gradient is
built, measured, clipped, summed) and ghost clipping (norms without gradients, then a second
backward pass). A row of a linear layer is residual x feature, so that `Outer` needs neither. All
three must give the same sum before anything is timed. One torch thread for all.

Features stay the same from round to round, and `Outer` is handed their norms; the "first round"
line pays for them as well.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from dpfed.core.types import Unit, Vector
from dpfed.data.datasets import Records
from dpfed.data.models import Linear, LinearProblem
from dpfed_lab.benchmarks._measure import Result, Task, Timing, compare, interleaved, threads
from dpfed_lab.benchmarks.round_time import CLASSES, CLIP, FEATURES, random_records

MEASURES = (
    "dpfed.core.clipping",
    "dpfed.core.rows",
    "dpfed.data.models",
)

BATCH = 2_500
CALLS = 10  # in each time, so that all ways run from a warm cache
HOOKS, GHOST = 0.1, 1.0
TOLERANCE = 1e-4

Clipped = Callable[[], Vector]


def run() -> list[Result]:
    """Outer against hooks and against ghost clipping, with and without the norms at hand."""
    with threads(1), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Full backward hook is firing")  # Opacus' way
        records = random_records(BATCH)
        head = _head()
        kept = Linear("softmax", FEATURES, CLASSES).problem(records)
        ways: dict[str, Clipped] = {
            "outer": lambda: _outer(kept, head),
            "first": lambda: _outer(LinearProblem(kept.model, kept.x, kept.y), head),
            "hooks": _hooks(records, head),
            "ghost": _ghost(records, head),
        }
        _must_agree(ways)
        timings = interleaved({name: Task(way, calls=CALLS) for name, way in ways.items()})
    return [
        _line("outer", "hooks", HOOKS, timings),
        _line("outer", "ghost", GHOST, timings),
        _line("first", "hooks", HOOKS, timings),
        _line("first", "ghost", GHOST, timings),
    ]


def _line(ours: str, theirs: str, target: float, timings: dict[str, Timing]) -> Result:
    name = f"clipping vs {theirs}" + (", first round" if ours == "first" else "")
    against = f"Opacus {theirs}, {BATCH} records, Linear({FEATURES}, {CLASSES})"
    faster = timings[theirs].median / timings[ours].median
    return compare(name, timings[ours], timings[theirs], target, against, times_faster=faster)


def _head() -> Vector:
    """Weight, then bias, as they lie in a flat vector."""
    made = torch.Generator().manual_seed(1)
    return 0.1 * torch.randn(CLASSES * (FEATURES + 1), generator=made)


def _outer(problem: LinearProblem, head: Vector) -> Vector:
    return problem.rows(head, Unit.RECORD).clipped_sum(CLIP).vector


def _layer(head: Vector) -> nn.Linear:
    layer = nn.Linear(FEATURES, CLASSES)
    parts = Linear("softmax", FEATURES, CLASSES).layout.unflatten(head)
    layer.load_state_dict(parts)
    return layer


def _flat(layer: nn.Module, attribute: str) -> Vector:
    return torch.cat([getattr(p, attribute).reshape(-1) for p in layer.parameters()])


def _options() -> dict[str, Any]:
    return {
        "noise_multiplier": 0.0,
        "max_grad_norm": CLIP,
        "expected_batch_size": None,
        "loss_reduction": "sum",
    }


def _hooks(records: Records, head: Vector) -> Clipped:
    """Per-record gradients by hooks; Opacus' own optimizer then clips and sums them."""
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    layer = _layer(head)
    module = GradSampleModule(layer, loss_reduction="sum")
    optimizer = DPOptimizer(torch.optim.SGD(module.parameters(), lr=0.0), **_options())
    loss = nn.CrossEntropyLoss(reduction="sum")

    def clipped() -> Vector:
        optimizer.zero_grad(set_to_none=True)
        loss(module(records.x), records.y).backward()
        optimizer.clip_and_accumulate()
        return _flat(layer, "summed_grad")

    return clipped


def _ghost(records: Records, head: Vector) -> Clipped:
    """Norms from activations and backprops, then a second backward pass over scaled losses."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    layer = _layer(head)
    module = GradSampleModuleFastGradientClipping(
        layer, loss_reduction="sum", max_grad_norm=CLIP, use_ghost_clipping=True
    )
    sgd = torch.optim.SGD(module.parameters(), lr=0.0)
    optimizer = DPOptimizerFastGradientClipping(sgd, **_options())
    criterion = nn.CrossEntropyLoss(reduction="sum")
    loss = DPLossFastGradientClipping(module, optimizer, criterion, loss_reduction="sum")

    def clipped() -> Vector:
        optimizer.zero_grad(set_to_none=True)
        loss(module(records.x), records.y).backward()
        return _flat(layer, "grad")

    return clipped


def _must_agree(ways: dict[str, Clipped]) -> None:
    """No way is timed that gives another sum."""
    sums = {name: way().detach().clone() for name, way in ways.items()}
    scale = float(sums["outer"].norm())
    for name, vector in sums.items():
        apart = float((vector - sums["outer"]).norm()) / scale
        assert apart < TOLERANCE, f"{name} is {apart:.2g} from outer, above {TOLERANCE}"
