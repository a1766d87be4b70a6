# SPDX-License-Identifier: Apache-2.0
"""Toeplitz matrices C for noise C^-1 z: their sensitivity under participation, and the best ones.

**Cost.** A unit that takes part in the steps p has the squared sensitivity |sum of +-C[:,p]|^2. Two
cases are known, and mechanisms refuse every other C:

- columns that do not overlap (at most b coefficients): the squared norms add up, whatever the
  signs, and the first columns are the longest ones (Choquette-Choo et al. 2023, 2306.08153);
- coefficients that are nowhere negative and never rise: the worst unit always adds the same, in
  the first steps, exactly b apart (Kalinin and Lampert 2024, 2405.13763, Theorem 2).

In both, the worst pattern is 0, b, 2b, ...; ``separated_squared`` is its squared sensitivity.

**Best matrices**, for prefix sums of n steps: mean or last squared error times squared sensitivity.

- ``best_bands``: free coefficients, the sensitivity of one participation (McKenna 2024, 2405.15913;
  jax_privacy's ``optimize_banded_toeplitz`` has the same loss);
- ``best_buffers``: coefficients sum_i scale_i decay_i^(j-1), the sensitivity of the participation
  asked for (McMahan et al. 2024, 2408.08868). The search runs over the decays of C and of C^-1, one
  between two of the other: all scales are then positive and sum to less than 1 (2504.21413), so the
  coefficients fall.

A search ends at slightly other numbers on another machine. Results are rounded, and a plan can name
them: both sides of a training must have the same ones, or their fingerprints differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TypeAlias

from dpfed.core.participation import Participation

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Column: TypeAlias = NDArray[np.float64]

Error: TypeAlias = Literal["mean", "last"]
"""Which squared error of the prefix sums is made small: their mean, or that of the last one."""

_MAX_LOG_MEMORY = 13.5  # largest -log(1 - decay): a buffer that keeps all but 10^-6 of itself
_MIN_GAIN = 1.01  # one more buffer must make the loss smaller by this factor


def separated_squared(column: Column, releases: int, participation: Participation) -> float:
    """The squared sensitivity of the first releases, for one unit of length 1.

    Args:
        column: the coefficients of C, the first column; those that are left out are 0.
        releases: how many releases there are, at least 0.
        participation: how often a unit takes part.
    """
    moved = _moved(column, releases, participation)
    return math.fsum(moved * moved)  # rounded once: the same on every machine


def _moved(column: Column, releases: int, participation: Participation) -> Column:
    """What a unit adds to C S if it adds 1 at the earliest steps that participation allows."""
    import numpy as np

    moved, column = np.zeros(releases), column[:releases]
    for time in range(participation.times(releases)):
        begin = time * participation.min_separation
        length = min(len(column), releases - begin)
        moved[begin : begin + length] += column[:length]
    return moved


def prefix_errors(column: Column, releases: int) -> Column:
    """The squared error of each prefix sum under noise C^-1 z, z standard normal.

    Args:
        column: the coefficients of C, the first column; those that are left out are 0.
        releases: how many prefix sums there are.
    """
    import numpy as np

    return np.cumsum(np.square(_solved(column, np.ones(releases))))


@lru_cache(maxsize=64)
def inverse_column(column: tuple[float, ...], releases: int) -> tuple[float, ...]:
    """The first column of C^-1.

    Args:
        column: the coefficients of C, the first column; those that are left out are 0.
        releases: how many entries are wanted, at least 1.
    """
    import numpy as np

    one = np.zeros(releases)
    one[0] = 1.0
    return tuple(map(float, _solved(np.array(column), one)))


def _solved(column: Column, right: Column) -> Column:
    """C^-1 right."""
    import numpy as np
    from scipy.signal import lfilter

    return np.asarray(lfilter([1.0], column, right))


# ------------------------------------------------------------------------------------ free bands


@lru_cache(maxsize=64)
def best_bands(releases: int, bands: int, error: Error = "mean") -> tuple[float, ...]:
    """The coefficients of the best C with ``bands`` bands, the first of them 1.

    Args:
        releases: how many prefix sums there are, at least 1.
        bands: how many coefficients, at least 1.
        error: which error is made small.
    """
    import numpy as np
    from scipy.optimize import minimize

    bands = min(bands, releases)
    start = np.cumprod([1.0, *(1 - 0.5 / k for k in range(1, bands))])[1:]
    weight = _weights(releases, error)
    found = minimize(
        _bands_loss,
        start,
        (weight,),
        "L-BFGS-B",
        jac=True,
        options={"maxiter": 2000, "maxfun": 20_000, "ftol": 1e-15, "gtol": 1e-11},
    ).x
    return (1.0, *(round(float(value), 3) for value in found))


def _weights(releases: int, error: Error) -> Column:
    """How often an entry of C^-1 1 is in the error."""
    import numpy as np

    return np.ones(releases) if error == "last" else np.arange(releases, 0, -1) / releases


def _bands_loss(free: Column, weight: Column) -> tuple[float, Column]:
    """log(error x squared sensitivity), and its gradient."""
    import numpy as np

    column = np.concatenate([[1.0], free])
    made = _solved(column, np.ones(len(weight)))
    error, squared = float(weight @ (made * made)), float(column @ column)
    back = _solved(column, (weight * made)[::-1])[::-1]
    slopes = [-2 * float(back[j:] @ made[: len(made) - j]) for j in range(1, len(column))]
    return math.log(error * squared), np.array(slopes) / error + 2 * free / squared


# --------------------------------------------------------------------------------------- buffers


def buffered(
    decays: Sequence[float] | Column, scales: Sequence[float] | Column, releases: int
) -> Column:
    """The coefficients of a C of buffers: 1, then sum_i scale_i decay_i^(j-1).

    Args:
        decays: what a buffer keeps from one step to the next.
        scales: how much of it is in the noise.
        releases: how many coefficients are wanted.
    """
    import numpy as np

    column = np.zeros(releases)
    column[:1] = 1.0
    for decay, scale in zip(decays, scales, strict=True):
        powers = np.full(max(0, releases - 1), decay)
        powers[:1] = scale
        column[1:] += np.cumprod(powers)  # products only: the same on every machine
    return column


@lru_cache(maxsize=64)
def buffered_inverse(
    decays: tuple[float, ...], scales: tuple[float, ...], releases: int
) -> tuple[float, ...]:
    """The first column of C^-1, step by step as noise is made.

    Args:
        decays: what a buffer of C keeps from one step to the next.
        scales: how much of it is in the noise.
        releases: how many entries are wanted, at least 1.
    """
    made, buffers = [1.0], [1.0] * len(decays)
    while len(made) < releases:
        made.append(-math.fsum(s * kept for s, kept in zip(scales, buffers, strict=True)))
        buffers = [d * kept + made[-1] for d, kept in zip(decays, buffers, strict=True)]
    return tuple(made)


@lru_cache(maxsize=64)
def best_buffers(
    releases: int, participation: Participation, error: Error = "mean", most: int = 5
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The decays and scales of a C with few buffers: one more only if that gains one per cent.

    Args:
        releases: how many prefix sums there are, at least 1.
        participation: how often a unit takes part.
        error: which error is made small.
        most: how many buffers at most, at least 1.
    """
    best: tuple[float, ...] = ()
    least = math.inf
    for buffers in range(1, most + 1):
        made, loss = _search_buffers(releases, participation, error, buffers, best)
        if not loss * _MIN_GAIN < least:
            break
        best, least = made, loss
    return _rounded(*_from_free(best))


def _search_buffers(
    releases: int,
    participation: Participation,
    error: Error,
    buffers: int,
    before: tuple[float, ...],
) -> tuple[tuple[float, ...], float]:
    """The best of a few searches, and its loss: squared error times squared sensitivity.

    Args:
        releases: how many prefix sums there are.
        participation: how often a unit takes part.
        error: which error is made small.
        buffers: how many.
        before: what was found for one buffer less; empty if there was none.
    """
    import numpy as np
    from scipy.optimize import minimize

    weight = _weights(releases, error)

    def loss(free: Column) -> float:
        with np.errstate(all="ignore"):  # decays that run together are no matrix
            scales = _from_free(free)[1]
            made = np.cumsum(buffered(*_inverse(free), releases))
            moved = _moved(buffered(*_from_free(free), releases), releases, participation)
            found = float(weight @ (made * made)) * float(moved @ moved)
        return math.log(found) if math.isfinite(found) and (scales > 0).all() else 1e3

    # distances to 1 from about 1 / releases, or 1 / separation, to 1: even on a logarithmic scale
    spans = {2.0 + releases, 2.0 + participation.min_separation}
    starts = [np.full(2 * buffers, math.log(math.log(span) / (2 * buffers))) for span in spans]
    if before:  # and what was found, with one more buffer that forgets soon
        starts.append(np.array([-0.5, -0.5, *before]))
    options = {"maxiter": 200, "gtol": 1e-6}
    found = [minimize(loss, start, method="BFGS", options=options) for start in starts]
    least = min(found, key=lambda each: float(each.fun))
    return tuple(map(float, least.x)), math.exp(float(least.fun))


def _rounded(decays: Column, scales: Column) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Downwards, so that decays stay below 1 and scales sum to less than 1."""
    kept = [(_below(d), math.floor(s * 1e4) / 1e4) for d, s in zip(decays, scales, strict=True)]
    found = [pair for pair in kept if min(pair) > 0]
    return tuple(decay for decay, _ in found), tuple(scale for _, scale in found)


def _below(decay: float) -> float:
    """A decay with three digits of its distance to 1."""
    unit = 10.0 ** (math.floor(math.log10(1 - decay)) - 2)
    return round(1 - math.ceil((1 - decay) / unit) * unit, 9)


def _both_decays(free: Sequence[float] | Column) -> tuple[Column, Column]:
    """The decays of C and of C^-1, from the largest one on: one between two of the other."""
    import numpy as np

    distances = np.cumsum(np.exp(np.clip(free, -30.0, 5.0)))[::-1]  # -log(1 - decay), falling
    decays = -np.expm1(-np.minimum(distances, _MAX_LOG_MEMORY))
    return decays[::2], decays[1::2]


def _from_free(free: Sequence[float] | Column) -> tuple[Column, Column]:
    decays, others = _both_decays(free)
    return decays, _scales(decays, others)


def _inverse(free: Sequence[float] | Column) -> tuple[Column, Column]:
    decays, others = _both_decays(free)
    return others, _scales(others, decays)


def _scales(decays: Column, others: Column) -> Column:
    """The scales of the C with these decays whose inverse has the others (2504.21413)."""
    import numpy as np

    apart = decays[:, None] - decays[None, :]
    np.fill_diagonal(apart, 1.0)
    return np.asarray((decays[:, None] - others[None, :]).prod(axis=1) / apart.prod(axis=1))
