# SPDX-License-Identifier: Apache-2.0
"""A second derivative of softmax that was indefinite in floats, under a bound that needs it not to.

Before: ``diag(p) - p p^T`` in single precision has eigenvalues down to -0.58 of its norm where a
class is nearly certain. fednew divides by gamma, the least eigenvalue over the reals: parameters
and a primal that a server chose let one record move a release by 8,960 standard deviations of its
noise (rho = alpha = 0.1, epsilon 1). The law in tests/laws/test_attacked_bounds.py finds it alone.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from dpfed.client.fednew import fednew
from dpfed.core.errors import DpfedError, RecipeError, UnsoundPlan
from dpfed.core.matrices import OFF, Hessians
from dpfed.core.types import BoundedSum, Broadcast, Rows, Unit
from dpfed.data.datasets import Records
from dpfed.data.models import _LINKS, Linear

GAP = 16.965999603271484
"""Between two scores: where the determinant in single precision is the most negative."""


class Door:
    """Shows what would have been released."""

    def __init__(self, unit: Unit, nominal: float) -> None:
        self.unit, self.nominal = unit, nominal

    def __call__(self, rows: Rows, channel: str = "update") -> Any:
        self.made = rows.clipped_sum(1.0)
        raise StopIteration


def handed(
    x: torch.Tensor, y: torch.Tensor, primal: torch.Tensor, unit: Unit = Unit.RECORD, **options: Any
) -> BoundedSum:
    model = Linear("softmax", 2, 2, bias=False)
    params = torch.tensor([GAP / 1e4, 0.0, 0.0, 0.0])
    algorithm = fednew(**options, unit=unit, layout=model.layout)
    problem = model.problem(Records(x, y, torch.arange(len(x))))
    door = Door(unit, float(len(x)))
    with pytest.raises(StopIteration):
        algorithm.work(
            Broadcast(0, params, {"primal": primal}), problem, algorithm.init(params), door
        )
    return door.made


@pytest.mark.sample(3)
@pytest.mark.parametrize("unit", [Unit.RECORD, Unit.GROUP])
@pytest.mark.parametrize(
    ("options", "alike"),
    [
        ({"rho": 0.1, "alpha": 0.1}, 0.5602),
        ({"rho": 0.3, "alpha": 0.06}, 1.0),
        ({"rho": 1.0, "alpha": 0.1, "hessian": 4.0}, 0.771),
    ],
)
def test_one_record_moves_a_direction_by_at_most_the_bound(
    options: dict[str, float], alike: float, unit: Unit
) -> None:
    """The script's own settings: 123,267, 3,026 and 781,157 times what was priced."""
    count = 200
    x, y = torch.zeros(count, 2), torch.zeros(count, dtype=torch.int64)
    x[1 : 1 + int(alike * (count - 1)), 0] = 1e4
    worst = 0.0
    for scale in (-1e6, -3.0, -0.5, 0.5, 3.0, 1e6):
        primal = (scale / options["rho"] * torch.tensor([0.8507, 0.0, 0.5257, 0.0])).float()
        made = []
        for first, label in ((1e4, 0), (1e4, 1), (0.0, 0), (-1e4, 1), (3.0, 0), (-100.0, 1)):
            x[0, 0], y[0] = first, label
            made.append(handed(x, y, primal, unit, **options))
        for one in made:
            worst = max(worst, float((one.vector - made[2].vector).norm()) / one.bound)
            for other in made:
                worst = max(worst, float((one.vector - other.vector).norm()) / one.replace_bound)
    assert 0.01 < worst <= 1


@pytest.mark.parametrize("classes", [2, 3, 10, 40])
def test_softmaxs_second_derivative_is_positive_semidefinite_as_it_stands(classes: int) -> None:
    """Exactly: by the sums of each row, in integers; and by its eigenvalues, up to their rounding.

    The largest gaps leave p_i p_j below the smallest float.
    """
    scores = torch.zeros(2001, classes)
    scores[:, 0] = torch.linspace(-60, 800, 2001)
    scores[:, 1:] = torch.linspace(0, 3, classes - 1)
    made = _LINKS["softmax"].curvature(scores)
    assert made.dtype == torch.float64
    assert torch.equal(made, made.mT)
    off = made - torch.diag_embed(made.diagonal(dim1=1, dim2=2))
    assert bool((off <= 0).all())
    for matrix in made[::97]:
        for at, row in enumerate(matrix.tolist()):
            assert math.fsum(row) >= 0, (at, row)
    norms = made.flatten(1).norm(dim=1)
    least = torch.linalg.eigvalsh(made / norms.clamp(min=1e-300)[:, None, None])[:, 0]
    assert float(least.min()) > -1e-14
    p = torch.softmax(scores[:140].double(), dim=1)
    plain = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    torch.testing.assert_close(made[:140], plain, rtol=1e-6, atol=1e-12)


def test_a_sum_of_many_is_semidefinite_up_to_what_the_bound_pays_for() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(3000, 3, generator=generator) * 20
    x = torch.randn(3000, 4, generator=generator) * 10.0 ** torch.randint(-3, 7, (3000, 1))
    total = Hessians(_LINKS["softmax"].curvature(scores), x).clipped_matrix(1.0)
    assert float(torch.linalg.eigvalsh((total + total.mT) / 2)[0]) > -OFF


def test_bounds_are_divided_by_what_rounding_leaves_of_gamma() -> None:
    layout = Linear("softmax", 2, 2).layout
    channel = fednew(rho=0.3, alpha=0.2, c1=0.7, c2=1.5, hessian=0.9, layout=layout).channels[
        "update"
    ]
    least = 0.5 - OFF * 0.9
    assert channel.clip is not None
    assert channel.replace_bound is not None
    assert channel.clip > 0.7 / least + 0.9 * 1.5 / least**2
    assert channel.replace_bound > 2 * 0.7 / least + 0.9 * 1.5 / least**2


def test_options_that_rounding_would_break_are_refused() -> None:
    layout = Linear("softmax", 2, 2).layout
    with pytest.raises(RecipeError, match=r"fednew\.hessian must be at most"):
        fednew(rho=1e-3, alpha=1e-3, hessian=1e4, layout=layout)
    x, y = torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)
    for nominal, options, error in (
        (0.5, {}, "privacy.nominal must be at least 1"),
        (1e9, {"hessian": 1e-9, "c1": 1e-9}, "fednew's bound must be above"),
    ):
        algorithm = fednew(**options, unit=Unit.RECORD, layout=layout)
        with pytest.raises(DpfedError, match=error) as refused:
            algorithm.work(
                Broadcast(0, torch.zeros(6), {"primal": torch.zeros(6)}),
                Linear("softmax", 2, 2).problem(Records(x, y)),
                algorithm.init(torch.zeros(6)),
                Door(Unit.RECORD, nominal),
            )
        assert refused.type is UnsoundPlan
