# SPDX-License-Identifier: Apache-2.0
"""One test per line of the edge-case table of gaussian.py."""

from __future__ import annotations

import math

import pytest
import torch

from dpfed.core.errors import BadRelease, RecipeError
from dpfed.core.randomness import Noise
from dpfed.core.rows import Dense
from dpfed.core.types import Adjacency, BoundedSum, Facts, Total, Trust
from dpfed.mechanisms.gaussian import Gaussian, gaussian


class Fixed:
    """Rows that claim whatever bound they are told to."""

    def __init__(self, vector: torch.Tensor, bound: float, replace_bound: float) -> None:
        self.sum = BoundedSum(vector, bound, replace_bound)

    def clipped_sum(self, clip: float) -> BoundedSum:
        return self.sum


@pytest.mark.parametrize("name", ["clip", "std"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_numbers_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(RecipeError, match=f"{name} must be a .*, got {value};"):
        gaussian(Facts(clip=value)) if name == "clip" else gaussian(**{name: value})
    with pytest.raises(RecipeError, match=r"shares.*least 1, got 0"):
        gaussian(shares=0)


def test_a_clip_alone_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"facts.*value of Facts, got 1.0; write Facts"):
        gaussian(1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("trust", [Trust.LOCAL, Trust.CENTRAL])
def test_others_noise_is_not_counted_where_the_server_sees_one_share(trust: Trust) -> None:
    with pytest.raises(RecipeError, match=f"1 under {trust} trust, .* one share of noise, got 20;"):
        gaussian(Facts(trust=trust), shares=20)


@pytest.mark.parametrize(("bound", "replace_bound"), [(1.1, 2.0), (1.0, 2.1), (math.nan, 2.0)])
def test_rows_beyond_the_bounds_are_refused(bound: float, replace_bound: float) -> None:
    rows = Fixed(torch.zeros(3), bound, replace_bound)
    with pytest.raises(BadRelease, match="rows must be bounded by"):
        gaussian(Facts(clip=1.0)).release(rows, (), Noise(0).stream("release"))


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_a_sum_that_fits_no_grid_is_not_released(value: float) -> None:
    rows = Fixed(torch.full((3,), value), 1.0, 2.0)
    with pytest.raises(BadRelease, match="does not fit"):
        gaussian(Facts(clip=1.0), std=1e-3).release(rows, (), Noise(0).stream("release"))


def test_the_release_is_the_sum_plus_its_noise_on_the_grid() -> None:
    mechanism = gaussian(Facts(clip=10.0), std=3.0)
    rows = torch.randn(4, 8)
    release, _ = mechanism.release(Dense(rows), (), Noise(5).stream("release"))
    noise = torch.from_numpy(Noise(5).stream("release").normal(8))
    expected = rows.sum(0).double() + 3.0 * noise
    values = release.vector.double() * release.step
    assert float((values - expected).abs().max()) <= release.step / 2 + 1e-6
    assert release.vector.dtype == torch.int32
    assert release.std == 3.0


def test_a_release_does_not_change_the_rows() -> None:
    vector = torch.ones(3, dtype=torch.float64)
    for trust in Trust:
        gaussian(Facts(trust=trust)).release(
            Fixed(vector, 1.0, 2.0), (), Noise(0).stream("release")
        )
        assert vector.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("adjacency", "replace_bound", "expected"),
    [
        (Adjacency.ADD_REMOVE, math.nan, 3.0),
        (Adjacency.ZERO_OUT, math.nan, 3.0),
        (Adjacency.REPLACE_ONE, math.nan, 3.0),  # the accountant doubles, once
        (Adjacency.REPLACE_ONE, math.sqrt(2) * 2, 6.0 / math.sqrt(2)),  # rows xx^T
    ],
)
def test_the_replace_bound_enters_the_cost(
    adjacency: Adjacency, replace_bound: float, expected: float
) -> None:
    mechanism = Gaussian(Facts(clip=2.0, adjacency=adjacency, replace_bound=replace_bound), std=6.0)
    assert mechanism.event(5).event.noise_multiplier == pytest.approx(expected)
    assert mechanism.event(5, shares=4).event.noise_multiplier == pytest.approx(2 * expected)


def test_an_opened_sum_carries_the_noise_of_its_terms() -> None:
    total = Total(torch.zeros(3, dtype=torch.int64), (0, 1, 2), (1.0, 0.5, 0.5))
    release, _ = gaussian(std=4.0).finish(total, (), Noise(0).stream("finish"))
    assert release.std == pytest.approx(4.0 * math.sqrt(1.5))


@pytest.mark.parametrize("trust", Trust)
def test_all_of_a_long_release_has_noise_of_its_own(trust: Trust) -> None:
    size = 50_000  # some blocks, and a part of one
    mechanism, rng = gaussian(Facts(trust=trust), std=3.0), Noise(0).stream("noise")
    release, _ = mechanism.release(Dense(torch.zeros(1, size)), (), rng)
    if trust is Trust.CENTRAL:
        total = Total(release.vector.long(), (0,), (1.0,))
        release, _ = mechanism.finish(total, (), Noise(0).stream("finish"))
    parts = (release.vector.double() * release.step).split(5_000)
    assert all(float(part.std()) == pytest.approx(3.0, rel=0.05) for part in parts)
    assert float(torch.corrcoef(torch.stack(parts)).fill_diagonal_(0).abs().max()) < 0.07
