# SPDX-License-Identifier: Apache-2.0
"""Laplacian smoothing of the private aggregate: the server of DP-FedAvg-LS.

Osher et al. 2018; Wang et al. 2020 (DP-LSSGD); a baseline of DP-FedAdamW supplement 2026, Tables 10
and 11, which give neither equations nor sigma. With the direction as d points on a ring:

    direction  (I + sigma L)^{-1} G,     (L x)_j = 2 x_j - x_{j-1} - x_{j+1},  indices modulo d

L is circulant, so the Fourier basis makes it diagonal, and the solve is a product there:

    F[direction]_k = F[G]_k / (1 + 4 sigma sin^2(pi k / d)),     k = 0, ..., d - 1

The factor is 1 at k = 0 and in (0, 1] elsewhere: the sum of the coordinates is kept, and the norm
never grows. Independent noise has all frequencies alike, and loses most of the high ones.

    d = 1         both neighbours are the point itself: L = 0
    d = 2         both neighbours are the other point: L = [[2, -2], [-2, 2]], as the formula has it
    sigma = 0     the direction as it came, to the bit

It is a function of released quantities: post-processing, at no privacy cost.
"""

from __future__ import annotations

import math

import torch

from dpfed.core import Aggregate, ServerOptimizer, State, Vector, stateless
from dpfed.core.checks import check_not_negative

PAPER = "Osher et al. 2018; Wang et al. 2020 (DP-LSSGD)"


def laplacian(smoothing: float = 1.0) -> ServerOptimizer:
    """Smooth the direction along its coordinates by the inverse of I + sigma L.

    Args:
        smoothing: the sigma, at least 0; 0 smooths nothing.

    Returns:
        a server optimizer without state, to be put first in a chain.

    >>> import torch
    >>> from dpfed.core import Aggregate
    >>> G, optimizer = torch.tensor([3.0, 4.0]), laplacian(smoothing=1.0)
    >>> seen = Aggregate(round=0, params=torch.zeros(2), mean=G, std=0.1, clients=10)
    >>> optimizer.update(G, optimizer.init(seen.params), seen)[0]
    tensor([3.4000, 3.6000])
    """
    check_not_negative("laplacian", smoothing=smoothing)

    def update(direction: Vector, state: State, _: Aggregate) -> tuple[Vector, State]:
        return (_smoothed(direction, smoothing) if smoothing else direction), state

    return ServerOptimizer(init=stateless, update=update, update_=update)


def _smoothed(G: Vector, sigma: float) -> Vector:
    spectrum: Vector = torch.fft.rfft(G)
    result: Vector = torch.fft.irfft(spectrum.mul_(_gains(G, sigma)), n=G.numel())
    return result


def _gains(G: Vector, sigma: float) -> Vector:
    """1 / (1 + 4 sigma sin^2(pi k / d)) for k = 0, ..., d // 2: the rest is its mirror image.

    In double precision, as a float32 k is inexact from 2^24 on. The 4 comes before sigma, so that
    no sigma overflows if the sine is 0.
    """
    size = G.numel()
    k = torch.arange(size // 2 + 1, dtype=torch.float64, device=G.device)
    waves = k.mul_(math.pi / size).sin_().square_().mul_(4)
    return waves.mul_(sigma).add_(1).reciprocal_().to(G.dtype)
