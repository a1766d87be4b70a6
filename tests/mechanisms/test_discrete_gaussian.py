# SPDX-License-Identifier: Apache-2.0
"""One test per line of the edge-case table of discrete_gaussian.py, its bounds, and an attack."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from dpfed.accounting.event_tree import ChannelUse, TrainingReleases
from dpfed.accounting.guarantee import guarantee
from dpfed.core.clipping import covered
from dpfed.core.errors import BadRelease, RecipeError
from dpfed.core.grid import SLACK, squared_limit, truncated, truncated_sum
from dpfed.core.randomness import KeyStream, Noise
from dpfed.core.rows import Dense, Outer
from dpfed.core.sampling import Poisson
from dpfed.core.types import (
    UPDATE,
    Adjacency,
    BoundedSum,
    Facts,
    NoiseSource,
    Rows,
    Stream,
    Total,
    Trust,
    Weights,
)
from dpfed.mechanisms._rounded import rounded_normal
from dpfed.mechanisms.discrete_gaussian import DiscreteGaussian, discrete_gaussian
from dpfed.mechanisms.gaussian import gaussian
from tests.helpers.rounds import make_plan

SIZE = 45_500

ROWS = 1 << 10
"""A public number of rows, more than any test has."""


def released(mechanism: DiscreteGaussian, rows: Rows, size: int, seed: int = 0) -> torch.Tensor:
    return mechanism.release(rows, mechanism.init(size), Noise(seed).stream("r"))[0].vector.long()


def outer(count: int, seed: int = 0, scale: float = 1.0) -> Outer:
    generator = torch.Generator().manual_seed(seed)
    residual = torch.randn(count, 3, generator=generator) * scale
    return Outer(residual, torch.randn(count, 5, generator=generator), bias=False)


# ------------------------------------------------------------------------------ the edge-case table


@pytest.mark.parametrize("name", ["clip", "std"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_numbers_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(RecipeError, match=f"{name} must be a .*, got {value};"):
        discrete_gaussian(Facts(clip=value)) if name == "clip" else discrete_gaussian(
            **{name: value}
        )
    with pytest.raises(RecipeError, match=r"shares.*least 1, got 0"):
        discrete_gaussian(shares=0)


@pytest.mark.parametrize("bits", [0, 9, 31, -24])
def test_a_grid_too_coarse_or_too_fine_is_refused(bits: int) -> None:
    with pytest.raises(RecipeError, match=f"bits must be between 10 and 30, got {bits};"):
        discrete_gaussian(bits=bits)


def test_a_replace_bound_of_its_own_is_refused() -> None:
    with pytest.raises(RecipeError, match="use mechanism 'gaussian'"):
        discrete_gaussian(Facts(clip=2.0, replace_bound=2 * math.sqrt(2)))
    assert discrete_gaussian(Facts(clip=2.0, replace_bound=4.0)).replace_bound == 4.0


@pytest.mark.parametrize(("clip", "std"), [(1.0, 1e-3), (1e300, 1e300), (1e-300, 1e-300)])
def test_numbers_beyond_exact_squares_are_refused(clip: float, std: float) -> None:
    with pytest.raises(RecipeError, match="summed exactly, got a clip of"):
        discrete_gaussian(Facts(clip=clip), std=std)


@pytest.mark.parametrize("trust", [Trust.LOCAL, Trust.CENTRAL])
def test_others_noise_is_not_counted_where_the_server_sees_one_share(trust: Trust) -> None:
    with pytest.raises(RecipeError, match=f"1 under {trust} trust, .* one share of noise, got 20;"):
        discrete_gaussian(Facts(trust=trust), shares=20)


class Whole:
    """Rows that give nothing but their sum."""

    def clipped_sum(self, clip: float) -> BoundedSum:
        return BoundedSum(torch.zeros(3), clip, 2 * clip)


def test_rows_that_are_not_made_one_by_one_are_refused() -> None:
    with pytest.raises(BadRelease, match="use mechanism 'gaussian'"):
        released(discrete_gaussian(), Whole(), 3)


def test_rows_of_another_size_are_refused() -> None:
    for rows in (Dense(torch.ones(2, 4)), Dense(torch.ones(2, 1)), outer(2)):
        with pytest.raises(BadRelease, match=r"rows.*length 3, got"):
            released(discrete_gaussian(), rows, 3)


def test_no_rows_at_all_give_noise_alone() -> None:
    noise = rounded_normal(1.0 / discrete_gaussian().step, 15, Noise(0).stream("r").words)
    for rows in (Dense(torch.zeros(0, 15)), outer(0)):
        for adjacency in Adjacency:
            got = released(discrete_gaussian(Facts(adjacency=adjacency)), rows, 15)
            assert torch.equal(got, torch.from_numpy(noise))


def test_rows_that_cannot_be_drawn_from_are_refused() -> None:
    class Made(Whole):
        def clipped_rows(self, clip: float) -> object:
            return iter(())

    mechanism = discrete_gaussian(Facts(adjacency=Adjacency.ZERO_OUT)).with_sampling(Poisson(0.5))
    with pytest.raises(BadRelease, match="cannot be drawn from"):
        released(mechanism, Made(), 3)


def test_terms_rounded_after_a_weight_are_refused_where_that_is_not_covered() -> None:
    mechanism = discrete_gaussian(Facts(trust=Trust.CENTRAL))
    for weight, fits in ((0.5, True), (1.0, True), (1 - 1e-9, False)):
        total = Total(torch.zeros(100, dtype=torch.int64), (0, 1), (1.0, weight))
        if fits:
            mechanism.finish(total, 100, Noise(0).stream("finish"))
            continue
        with pytest.raises(BadRelease, match="rounded once more"):
            mechanism.finish(total, 100, Noise(0).stream("finish"))


# --------------------------------------------------------------------------------- what is released


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_the_release_is_the_integer_sum_plus_its_draw(adjacency: Adjacency) -> None:
    mechanism = discrete_gaussian(Facts(clip=10.0, adjacency=adjacency), std=3.0)
    matrix = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    got = released(mechanism, Dense(matrix), 8, seed=5)
    noise = rounded_normal(3.0 / mechanism.step, 8, Noise(5).stream("r").words)
    steps = (matrix.double() / mechanism.step).trunc().long()
    assert torch.equal(got, steps.sum(0) + torch.from_numpy(noise))


def test_the_grid_has_the_bits_that_were_asked_for() -> None:
    for bits in (10, 24, 30):
        for std in (1.0, math.nextafter(2.0, 0.0), 62.4, 2.0**31):
            mechanism = discrete_gaussian(Facts(clip=std / 4), std=std, bits=bits)
            assert 2**bits <= std / mechanism.step < 2 ** (bits + 1)
            assert Fraction(std / mechanism.step) == Fraction(std) / Fraction(mechanism.step)


def test_a_release_is_narrow_where_it_fits() -> None:
    quiet, _ = discrete_gaussian().release(Dense(torch.zeros(1, 9)), 9, Noise(0).stream("r"))
    loud, _ = discrete_gaussian(bits=30).release(Dense(torch.ones(9, 9)), 9, Noise(0).stream("r"))
    assert (quiet.vector.dtype, loud.vector.dtype) == (torch.int32, torch.int64)
    assert (quiet.std, loud.std) == (1.0, 1.0)


class Watched:
    """A stream that notes when it is used, and rows that note when they are touched."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self._stream = KeyStream(bytes(32))

    def words(self, count: int) -> np.ndarray:
        self.log.append("noise")
        return self._stream.words(count)

    def clipped_sum(self, clip: float) -> BoundedSum:
        raise AssertionError("floats")

    def clipped_rows(self, clip: float) -> object:
        self.log.append("rows")
        return iter([torch.zeros(1, 5000, dtype=torch.float64)])


def test_noise_is_drawn_before_rows_are_touched() -> None:
    watched = Watched()
    stream: Stream = watched  # type: ignore[assignment]
    discrete_gaussian().release(watched, 5000, stream)
    assert watched.log[0] == "noise"
    assert watched.log.index("rows") == len(watched.log) - 1


def test_central_sums_are_silent_and_on_the_grid_of_the_noise() -> None:
    silent = discrete_gaussian(Facts(clip=10.0, trust=Trust.CENTRAL))
    private = discrete_gaussian(Facts(clip=10.0))
    matrix = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
    sums, _ = silent.release(Dense(matrix), 6, Noise(3).stream("r"))
    assert (sums.std, sums.step) == (0.0, private.step)
    total = Total(sums.vector.long(), (0,), (1.0,))
    finished, _ = silent.finish(total, 6, Noise(3).stream("r"))
    assert torch.equal(finished.vector, released(private, Dense(matrix), 6, seed=3))


def test_the_noise_of_each_trust_is_what_is_stated() -> None:
    zeros = Dense(torch.zeros(1, SIZE))
    local = discrete_gaussian(std=3.0)
    release, _ = local.release(zeros, SIZE, Noise(0).stream("r"))
    assert float(release.vector.double().std()) * release.step == pytest.approx(3.0, rel=0.01)
    shared = discrete_gaussian(Facts(trust=Trust.DISTRIBUTED), std=3.0, shares=4)
    terms = sum(released(shared, zeros, SIZE, seed) for seed in range(5))
    opened, _ = shared.finish(Total(terms, tuple(range(5)), (1.0,) * 5), SIZE, Noise(9).stream("f"))
    assert opened.std == pytest.approx(3.0 * math.sqrt(5))
    assert float(opened.vector.double().std()) * opened.step == pytest.approx(opened.std, rel=0.01)
    central = discrete_gaussian(Facts(trust=Trust.CENTRAL), std=3.0)
    empty = Total(torch.zeros(SIZE, dtype=torch.int64), (0, 1), (1.0, 1.0))
    added, _ = central.finish(empty, SIZE, Noise(0).stream("f"))
    assert float(added.vector.double().std()) * added.step == pytest.approx(3.0, rel=0.01)


def test_a_draw_of_records_is_made_at_the_door() -> None:
    mechanism = discrete_gaussian(Facts(clip=100.0, adjacency=Adjacency.ZERO_OUT), bits=10)
    rows = Dense(torch.full((10_000, 1), 64.0))
    sums = released(mechanism.with_sampling(Poisson(0.25)), rows, 1)
    assert float(sums[0]) * mechanism.step == pytest.approx(64.0 * 2500, rel=0.1)


# ---------------------------------------------------------------------------------------- the cost


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_the_enlarged_clip_is_accounted_for(adjacency: Adjacency) -> None:
    exact = discrete_gaussian(Facts(clip=2.0, adjacency=adjacency), std=6.0)
    plain = gaussian(Facts(clip=2.0, adjacency=adjacency), std=6.0)
    assert exact.noise_multiplier() * (1 + SLACK) == pytest.approx(plain.noise_multiplier())
    assert exact.event(5, 4).event.noise_multiplier == exact.noise_multiplier(4)
    assert exact.with_std(12.0).noise_multiplier() == pytest.approx(2 * exact.noise_multiplier())


def test_the_sentence_says_exact_only_where_all_channels_are() -> None:
    exact, plain = discrete_gaussian(std=50.0), gaussian(std=50.0)
    for mechanisms, idealized in (([exact], False), ([exact, plain], True), ([plain], True)):
        channels = {str(number): mechanism for number, mechanism in enumerate(mechanisms)}
        kind = tuple(ChannelUse(name, 1) for name in channels)
        made = TrainingReleases(channels, {kind: 70})
        found = guarantee(made, 1e-5, NoiseSource.OPERATING_SYSTEM, 70)
        assert found.idealized is idealized
        words = "idealized arithmetic" if idealized else "exact integer arithmetic"
        assert f"; {words};" in found.sentence


# -------------------------------------------------------------------------------------- sensitivity


def adversarial(count: int, size: int) -> torch.Tensor:
    """Rows of every kind that has ever broken a clip, in a random order of magnitudes."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(count, size, generator=generator, dtype=torch.float64)
    rows *= 10.0 ** torch.randint(-12, 13, (count, 1), generator=generator)
    special = torch.tensor(
        [math.nan, math.inf, -math.inf, 1e300, -1e300, 1.7e308, 1e-300, 5e-324, 0.0, -0.0],
        dtype=torch.float64,
    )
    kind = torch.randint(0, len(special), (count, size), generator=generator)
    hit = torch.rand(count, size, generator=generator) < 0.1
    rows[::2] = torch.where(hit, special[kind], rows)[::2]
    rows[1::20] = special[kind[1::20, :1]]
    return rows


@pytest.mark.parametrize(("clip", "std"), [(1.0, 3.0), (0.7, 2e-2), (1e-5, 1e-3), (3e9, 1e11)])
def test_adversarial_rows_each_add_at_most_the_clip(clip: float, std: float) -> None:
    """A million of them over the four cases, in integers, on both sides of 2^53."""
    mechanism = discrete_gaussian(Facts(clip=clip), std=std)
    limit = squared_limit(clip, mechanism.step)
    assert limit <= (Fraction(clip) / Fraction(mechanism.step)) ** 2 < limit + 1
    matrix, longest, nothing = adversarial(250_000, 4), 0, 0
    total = torch.zeros(4, dtype=torch.int64)
    for block in Dense(matrix).clipped_rows(clip):
        integers = truncated(block, limit, mechanism.step).long()
        squares = (integers * integers).sum(dim=1)  # below 2^61 each: cannot wrap
        assert int(integers.abs().max()) <= 2**30
        longest = max(longest, int(squares.max()))
        nothing += int((squares == 0).sum())
        total += integers.sum(dim=0)
    assert 0.98 * limit - 8 * math.sqrt(limit) <= longest <= limit
    assert torch.equal(
        total, truncated_sum(Dense(matrix).clipped_rows(clip), 4, clip, mechanism.step)
    )
    honest = torch.isfinite(matrix).all(dim=1) & (matrix.abs().amax(dim=1) > clip)
    assert nothing <= len(matrix) - int(honest.sum())  # no row that could be clipped was lost


def test_a_row_that_is_too_long_all_the_same_counts_for_nothing() -> None:
    """Whatever clipping did: the integers are checked."""
    for limit in (25, 2**58):
        side = math.isqrt(limit)
        long = [[side, 1.0], [side + 1.0, 0.0], [0.0, -side], [math.nan, 0.0]]
        kept = truncated(torch.tensor(long, dtype=torch.float64), limit, 1.0)
        assert kept.tolist() == [[0, 0], [0, 0], [0, -side], [0, 0]]
    huge = torch.tensor([[1e300, 0.0], [2.0**31, 2.0**31], [math.inf, 1.0]]).double()
    assert not truncated(huge, 2**60, 1.0).any()


@pytest.mark.parametrize("adjacency", [Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT])
@pytest.mark.parametrize("kind", ["dense", "outer", "materialised"])
def test_neighbours_move_the_sum_by_at_most_what_is_accounted_for(
    kind: str, adjacency: Adjacency
) -> None:
    std = 1e5 if kind == "materialised" else 3.0  # a grid so coarse that rounding is not covered
    mechanism = discrete_gaussian(Facts(clip=0.8, adjacency=adjacency), std=std)
    base = outer(50, scale=5.0)
    for hostile in (1.0, -1.0, 1e20, 1e-20, 0.0, math.nan, math.inf):
        moved = base.residual.clone()
        moved[7] = 0.0 if adjacency is Adjacency.ZERO_OUT else -hostile * moved[7]
        worlds = [base, Outer(moved, base.feature, bias=False)]
        if kind == "dense":
            worlds = [Dense(torch.cat(list(w.unit_rows()))) for w in worlds]
        else:
            fast = base.rounded_sum(mechanism.clip, mechanism.step, ROWS)
            assert (fast is None) == (kind == "materialised")
        first, second = (released(mechanism, rows, 15) for rows in worlds)
        squared = sum(int(v) ** 2 for v in (first - second).tolist())
        units = 1 if adjacency is Adjacency.ZERO_OUT else 2
        reach = units * Fraction(mechanism.clip) / Fraction(mechanism.step)
        if kind == "outer":
            reach *= 1 + Fraction(SLACK)
        assert squared <= reach**2


def test_under_add_remove_the_path_does_not_depend_on_the_number_of_rows() -> None:
    """That number is private there: rows are always made one by one."""
    mechanism = discrete_gaussian(Facts(clip=0.8, adjacency=Adjacency.ADD_REMOVE))
    rows = outer(50, scale=5.0)
    noise = rounded_normal(1.0 / mechanism.step, 15, Noise(0).stream("r").words)
    one_by_one = truncated_sum(rows.clipped_rows(0.8), 15, 0.8, mechanism.step)
    whole = rows.rounded_sum(0.8, mechanism.step, ROWS)
    got = released(mechanism, rows, 15) - torch.from_numpy(noise)
    assert torch.equal(got, one_by_one)
    assert whole is not None
    assert not torch.equal(whole, one_by_one)


# -------------------------------------------------------------------------------------- the attack


def float_noise(count: int, key: int) -> np.ndarray:
    """Box and Muller in plain floats, as any library draws it: the control."""
    words = KeyStream(key.to_bytes(32, "big")).words
    uniform = [(words(count) >> np.uint64(11)) * 2.0**-53 + 2.0**-54 for _ in range(2)]
    return np.sqrt(-2 * np.log(uniform[0])) * np.cos(2 * np.pi * uniform[1])


def surely_world_zero(outputs: np.ndarray) -> np.ndarray:
    """Outputs near 0 that 1 + noise cannot be: there the noise is near -1, a multiple of 2^-53.

    The sum of 1 and such a multiple is one, and is exact. What is not a multiple came from 0.
    """
    scaled = outputs * 2.0**53
    return (np.abs(outputs) < 0.5) & (scaled != np.rint(scaled))


def test_low_bits_give_float_noise_away_and_not_the_grid() -> None:
    """Two neighbouring worlds, 0 and 1, each coordinate a try: 2 x 10^6 on either side."""
    tries = 1_000_000
    zero, one = 0.0 + float_noise(tries, 1), 1.0 + float_noise(tries, 2)
    assert surely_world_zero(zero).mean() > 0.2  # certain, in every fourth try
    assert not surely_world_zero(one).any()  # and never wrong

    mechanism = discrete_gaussian(Facts(clip=1000.0), bits=20)
    ones = [torch.full((1, tries), value, dtype=torch.float64) for value in (0.0, 1.0)]
    worlds = [released(mechanism, Dense(row), tries, seed=s) for s, row in enumerate(ones)]
    for world in worlds:
        assert not surely_world_zero(world.numpy() * mechanism.step).any()
    other = Dense(torch.full((1, tries), 1 / 3, dtype=torch.float64))
    pair = worlds[0], released(mechanism, other, tries, seed=2)
    low = np.stack([np.bincount(world.numpy() & 255, minlength=256) for world in pair])
    assert stats.chi2_contingency(low).pvalue > 1e-3  # nor do low bits lean either way


# --------------------------------------------------------------------- products, never materialised


def exact_sum(rows: Outer, clip: float) -> list[Fraction]:
    """The sum of the shortened rows as real numbers: what the float product stands for."""
    residual, feature = rows._shortened(clip)
    wide = [[Fraction(v) for v in row] for row in residual.tolist()]
    long = [[Fraction(v) for v in row] for row in feature.tolist()]
    return [
        sum((r[a] * f[b] for r, f in zip(wide, long, strict=True)), Fraction(0))
        for a in range(residual.shape[1])
        for b in range(feature.shape[1])
    ]


@pytest.mark.parametrize("scale", [0.1, 5.0, 1e15])
def test_products_are_within_the_proven_error(scale: float) -> None:
    rows, clip = outer(60, scale=scale), 0.9
    residual, feature = rows._shortened(clip)
    for r, f in zip(residual.tolist(), feature.tolist(), strict=True):
        squared = sum(Fraction(a) ** 2 for a in r) * sum(Fraction(b) ** 2 for b in f)
        assert squared <= Fraction(clip) ** 2  # as real numbers
    for step in (2.0**-20, 2.0**-50):
        whole = rows.rounded_sum(clip, step, ROWS)
        assert whole is not None
        off = [
            Fraction(int(k)) * Fraction(step) - s
            for k, s in zip(whole, exact_sum(rows, clip), strict=True)
        ]
        gamma = 60 * 2.0**-53 / (1 - 60 * 2.0**-53)
        proven = 60 * clip * (gamma + 24 * 2.0**-52) + step * math.sqrt(15) / 2
        assert float(sum(o * o for o in off)) <= proven**2
        assert 2 * proven <= SLACK * clip
        made = truncated_sum(rows.clipped_rows(clip), 15, clip, step) if step > 1e-9 else whole
        apart = (made - whole).double() * step
        truncation = 60 * step * math.sqrt(15) + 60 * clip * 2.0**-39
        assert float(torch.linalg.vector_norm(apart)) <= proven + truncation


def test_single_precision_norms_are_not_used() -> None:
    rows = outer(30, scale=5.0)
    wrong = Outer(rows.residual, rows.feature, bias=False, feature_norms=torch.full((30,), 1e-9))
    assert torch.equal(
        rows.rounded_sum(1.0, 2.0**-20, ROWS), wrong.rounded_sum(1.0, 2.0**-20, ROWS)
    )


def test_hostile_products_count_for_nothing() -> None:
    rows = outer(8)
    residual, feature = rows.residual.double(), rows.feature.double()
    expected = Outer(residual[4:], feature[4:], bias=False).rounded_sum(1.0, 2.0**-20, ROWS)
    for bad in (math.nan, math.inf, 1e300, 1e-300):
        hostile = residual.clone()
        hostile[:2] = bad
        other = feature.clone()
        other[2:4] = bad
        found = Outer(hostile, other, bias=False).rounded_sum(1.0, 2.0**-20, ROWS)
        assert torch.equal(found, expected)


def test_where_the_error_is_not_covered_rows_are_made() -> None:
    assert covered(2500, (10, 65), 1.0, 2.0**-19)
    assert not covered(2500, (10, 65), 1.0, 2.0**-14)  # the grid is too coarse
    assert not covered(2**22, (10, 65), 1.0, 2.0**-40)  # too many rows
    assert not covered(10, (2, 5), 1e-200, 1e-220)  # underflow is not accounted for
    assert not covered(10, (2, 5), 1.0, 2.0**-62)  # does not fit int64
    assert outer(4).rounded_sum(1.0, 2.0**-10, ROWS) is None
    grouped = Outer(torch.ones(4, 3), torch.ones(4, 5), groups=torch.tensor([0, 0, 1, 1]))
    assert grouped.rounded_sum(1.0, 2.0**-20, ROWS) is None


def test_what_is_not_covered_is_called_idealized() -> None:
    assert discrete_gaussian().exact
    assert not discrete_gaussian(Facts(adjacency=Adjacency.ADD_REMOVE)).exact
    plan = make_plan(channels={UPDATE: discrete_gaussian(Facts(1.0), 2.0)})
    assert "exact integer arithmetic" in str(plan.guarantee())
    averaged = replace(plan, weights=Weights.AVERAGE)
    assert "idealized arithmetic" in str(averaged.guarantee())
    alike = replace(averaged, nominal=[3.0] * 3)
    assert "exact integer arithmetic" in str(alike.guarantee())
