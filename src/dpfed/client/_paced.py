# SPDX-License-Identifier: Apache-2.0
"""The server half of DP-FedAuto: releases in, center, transform and paced steps out.

With s the known noise level of a mean, d features, K classes, T' rounds of gradients, tau their
noise level by the plan, and lam = min(kappa K tau / sqrt(T'), 3 / d):

    mean      m = m0 + R0 k ubar,                                            shrunk by its noise
              k = min(max(0, 1 - d s^2 / |ubar|^2), 1 / (1 + d s^2))
              b = 0.15 where 3 / d is the smaller one in lam, else 0.3
    second    S = Q diag(l) Q^T, n = s sqrt(d / 2)
              xi_i = l_i - (2 n^2 / d) sum_j (l_i - l_j) / ((l_i - l_j)^2 + n^2 / d)
              xi in order, at least 0.01 / d, over their sum: the trace is 1, and public
              A = Q diag((xi + lam)^(-1/2)) Q^T,   a = xi / (xi + lam),   ell = max a / sum a
    update    E = beta E + (1 - beta) G,   W -= rate E / (1 - beta^t)
              rate = min(pace / (s sqrt(T')), cap K / ell)

A mean of rows in the unit ball has a norm of at most 1. So the second bound of k keeps a release
that is only noise from moving the center; with the first one alone (James and Stein's) it would
move it half the time.
After T' steps at that rate the noise in a score of a row of norm 1 is ``pace``. cap = 2 is a
third of where such steps stop being stable at W = 0 (measured: 4 is worse if there is little
noise). Without a second moment ell is not known, and there is no cap (measured: an assumed one is
worse than none). The exception: if there is no noise either, ell counts as 1.

All of it is a function of releases and of public numbers: post-processing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from dpfed.client._standardised import MEAN, SECOND, Standardiser
from dpfed.core import Aggregate, ServerOptimizer, Vector
from dpfed.core.matrices import from_triangle

_MIN_EIGENVALUE_TIMES_D, _MAX_DAMPING_TIMES_D = 0.01, 3.0  # d is the number of features
_SMALL_BIAS_INPUT = 0.15


class PacedState(NamedTuple):
    """E, how many gradients are in it, and ell: 0 if it is not known."""

    E: Vector
    t: int
    ell: float


def paced(
    shape: Standardiser, *, beta: float, pace: float, damping: float, cap: float
) -> ServerOptimizer:
    """The standardiser from the statistics, then steps at the rate that the noise allows.

    Args:
        shape: the sizes of standardiser and head.
        beta: how much of the average is kept per round, in [0, 1).
        pace: the noise in a score after all steps, above 0.
        damping: the kappa above, at least 0.
        cap: the largest rate in units of K / ell, above 0.
    """
    classes = max(2, shape.outputs)

    def init(params: Vector) -> PacedState:
        return PacedState(params.new_zeros(shape.head), 0, 0.0)

    def steps(seen: Aggregate) -> int:
        return max(1, seen.rounds - (2 if shape.full else 1))

    def damped(seen: Aggregate) -> tuple[float, bool]:
        """The damping lam, and whether it is at its upper bound."""
        wanted, most = damping * classes * seen.planned_std, _MAX_DAMPING_TIMES_D / shape.features
        wanted /= math.sqrt(steps(seen))
        return (wanted, False) if wanted <= most else (most, True)

    def update(g: Vector, state: PacedState, seen: Aggregate) -> tuple[Vector, PacedState]:
        if seen.lead == MEAN:
            small = shape.bias and damped(seen)[1]
            return _centred(shape, g, seen, small), state
        if seen.lead == SECOND:
            direction, ell = _transformed(shape, g, seen, damped(seen)[0])
            return direction, state._replace(ell=ell)
        E, t = torch.lerp(state.E, g, 1 - beta), state.t + 1
        rate = _rate(pace / math.sqrt(steps(seen)), seen.std, cap * classes, state.ell)
        step = E * (rate / (1 - beta**t))
        return _padded(shape, step), PacedState(E, t, state.ell)

    return ServerOptimizer(init, update)


def _rate(wanted: float, std: float, cap: float, ell: float) -> float:
    """The wanted rate over the noise, at most cap / ell where ell is known."""
    if not std > 0:
        return cap / (ell or 1.0)
    return min(wanted / std, cap / ell) if ell else wanted / std


def _padded(shape: Standardiser, step: Vector) -> Vector:
    """A step of the head, with zeros for the standardiser's parameters."""
    before = shape.layout.size - shape.head
    return torch.cat([step.new_zeros(before), step])


def _towards(shape: Standardiser, params: Vector, **tensors: torch.Tensor) -> Vector:
    """The direction that takes some of the model's tensors to other values."""
    parts = shape.layout.unflatten(params)
    away = {name: torch.zeros_like(part) for name, part in parts.items()}
    for name, value in tensors.items():
        away[name] = (parts[name].double() - value).to(params.dtype)
    return shape.layout.flatten(away)


def _centred(shape: Standardiser, ubar: Vector, seen: Aggregate, small: bool) -> Vector:
    """The step to the released mean, shrunk by how much of it is noise."""
    parts, u = shape.layout.unflatten(seen.params), ubar.double()
    radius = 1 / float(parts["transform"].view(-1)[0])
    size, noise = float(u.square().sum()), shape.features * seen.std**2
    kept = min(max(0.0, 1 - noise / size), 1 / (1 + noise)) if size > 0 else 0.0
    moved = {"center": parts["center"].double() + radius * kept * u}
    if small:
        moved["bias_input"] = torch.tensor([_SMALL_BIAS_INPUT], dtype=torch.float64)
    return _towards(shape, seen.params, **moved)


def _transformed(
    shape: Standardiser, second: Vector, seen: Aggregate, damping: float
) -> tuple[Vector, float]:
    """The step to the damped inverse root of the second moment; and ell."""
    values, Q = torch.linalg.eigh(from_triangle(second.double()))
    xi = cleaned(values, seen.std)
    root = (Q * (xi + damping).rsqrt()) @ Q.T
    a = xi / (xi + damping)
    return _towards(shape, seen.params, transform=root), float(a.max() / a.sum())


def cleaned(values: torch.Tensor, std: float) -> torch.Tensor:
    """Eigenvalues of a matrix of trace 1 that were seen through symmetric Gaussian noise.

    The rotation-invariant estimator of Bun, Allez, Bouchaud and Potters 2016.

    Args:
        values: the eigenvalues that were seen, in ascending order, in double precision.
        std: the noise level of a number of the upper triangle.
    """
    d = len(values)
    if std > 0:
        noise = std**2 / 2 * d  # the square of n
        apart = values[:, None] - values[None, :]
        pull = (apart / (apart.square() + noise / d)).sum(dim=1)
        values = values - 2 * noise / d * pull
    kept = values.sort().values.clamp(min=_MIN_EIGENVALUE_TIMES_D / d)
    return kept / kept.sum()
