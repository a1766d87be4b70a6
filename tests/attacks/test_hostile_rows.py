# SPDX-License-Identifier: Apache-2.0
"""A server that chooses a scale, a point or a shared vector makes no row longer than its bound.

Before: rows were scaled in single precision, where a factor of 1e-45 has no digits left, and came
out at 3.1 clips (``adadps``). In double precision a square that underflowed gave a norm of 0, and a
row of 1e30 clips. Every kind of rows: tests/laws/test_row_laws.py.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from dpfed.core.rows import Dense, Outer, Scaled
from dpfed.core.testing import HOSTILE, exchange_keeps_its_bound, unit_keeps_its_bound
from dpfed.core.types import Unit
from dpfed.data.datasets import Records
from dpfed.data.modules import Network, seeded
from tests.helpers.fednew_oracle import Chosen, released


def test_a_scale_with_denormal_factors() -> None:
    """1e37 from the server, 1e8 in the record: 3.13 clips before."""
    residual = torch.tensor([[0.50304574, 0.70340645, 0.77502304, 0.59317416, 0.55320942]])
    outer = Outer(residual, torch.full((1, 1), 1e8), bias=False)
    assert unit_keeps_its_bound(Scaled(outer, torch.full((5,), 1e37)), 1.0) > 0.99


@pytest.mark.parametrize("small", [1e-170, 1e-155])
def test_a_norm_that_underflows(small: float) -> None:
    """Its square is 0, or has few digits: 1e30 clips before."""
    factors = [torch.full((1, 1), value, dtype=torch.float64) for value in (small, 1e100)]
    scale = torch.full((1,), 1e100, dtype=torch.float64)
    unit_keeps_its_bound(Scaled(Outer(*factors, bias=False), scale), 1.0)


def test_a_norm_that_underflows_below_a_small_clip() -> None:
    """All numbers but one of moderate size: its square is 0, the product 1e11 clips."""
    factors = [torch.full((1, 1), value, dtype=torch.float64) for value in (1e-165, 1e48)]
    scale = torch.full((1,), 1e48, dtype=torch.float64)
    unit_keeps_its_bound(Scaled(Outer(*factors, bias=False), scale), 1e-80)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_scale_that_is_not_finite_leaves_nothing_of_the_rows(value: float) -> None:
    """Before, the sum was not finite either: a refusal in the place of a release."""
    scale = torch.tensor([1.0, 1.0, 1.0, value])
    for rows in (Dense(torch.ones(5, 4)), Outer(torch.ones(5, 2), torch.ones(5, 2), bias=False)):
        made = Scaled(rows, scale).clipped_sum(1.0).vector
        assert torch.equal(made, torch.zeros_like(made))


def test_a_clip_that_single_precision_cannot_hold() -> None:
    """Before: a row of 1e-30 had 1.0003 clips, and a clip of 1e-45 or 1e39 gave NaN."""
    for clip in (1e-60, 1e-45, 1e-30, 1e39, 1e60):
        assert unit_keeps_its_bound(Dense(torch.full((1, 3), 3e38)), clip) > 0
        assert unit_keeps_its_bound(Dense(torch.full((1, 3), 1e-30)), clip) > 0


# ------------------------------------------------------------------------------- norms that cancel


class Tokens(nn.Module):
    """Reads a record as two tokens: one layer, used at both places."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x.view(-1, 2, 3)).sum(dim=1)
        return out


@pytest.mark.parametrize("sampler", ["ghost", "func", "opacus"])
def test_two_tokens_do_not_cancel_in_a_norm(sampler: str) -> None:
    """Opacus' Gram norms gave 116 clips at activations of 1e5; here rows are made and measured."""
    network = Network(seeded(Tokens, 0), sampler=sampler)
    one = torch.tensor([1e5, -1e5, 1e5])
    for apart in (0.0, 1e-3, 1.0, 100.0):
        x = torch.stack([torch.cat([one, -one + apart])])
        problem = network.problem(Records(x, torch.tensor([0])))
        for params in (network.initial(0), network.initial(0) * 1e6):
            unit_keeps_its_bound(problem.rows(params, Unit.RECORD), 1.0)


# ----------------------------------------------------------------------------- FedNew's direction


def problem_of(first: float) -> Chosen:
    """Three records, of which the first one is exchanged."""
    gradients = torch.tensor([[first, 2.0], [0.3, -1.0], [-5.0, 4.0]], dtype=torch.float64)
    x = torch.tensor([[first, 1.0], [1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
    return Chosen(gradients, torch.ones(3, 1, 1, dtype=torch.float64), x)


class _Made:
    """Rows whose sum is known."""

    def __init__(self, made: object) -> None:
        self.made = made

    def clipped_sum(self, clip: float) -> object:
        return self.made


@pytest.mark.parametrize("value", HOSTILE)
def test_a_shared_vector_of_any_size_moves_a_direction_within_its_bound(value: float) -> None:
    """Before, what is not finite made the release fail: the server's to choose, as is the rest."""
    options = {"rho": 0.5, "alpha": 0.5, "c1": 1.0, "c2": 1.0, "hessian": 1.0}
    for offset in ([value, 0.0], [value, value], [1.0, value]):
        shared = torch.tensor(offset, dtype=torch.float64)
        one, other = (_Made(released(options, problem_of(k), shared, 3.0)) for k in (1e9, -3.0))
        exchange_keeps_its_bound(one, other, 1.0)  # type: ignore[arg-type]
