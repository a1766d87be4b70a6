# SPDX-License-Identifier: Apache-2.0
"""Nair et al. 2026 on quadratics, where every constant is known: floors, the momentum, speed.

    F(theta) = 1/2 sum_j lambda_j theta_j^2,   G_t = grad F(theta_t) + xi_t,   xi_t ~ N(0, nu^2 I)

with eigenvalues from 1 / kappa to 1, evenly on a log scale, so L = 1 and mu = 1 / kappa. Nothing is
clipped: zeta = 0, and C_g is the largest gradient that was met, which favours the bounds. The steps
are made by the library's server optimizers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import product
from statistics import fmean
from typing import NamedTuple

import torch

from dpfed.core import Aggregate, ServerOptimizer, Vector
from dpfed.core.chain import chain
from dpfed.server._rank_one import RankOneState
from dpfed.server.ema import ema
from dpfed.server.scale import scale
from dpfed.server.sofim_printed import sofim_printed
from dpfed_lab.theory import bounds
from dpfed_lab.theory.finding import AT_MOST, BESIDE, EQUAL, SEEN, Finding

SIZE, BETA, RATE = 50, 0.9, 0.5
"""Coordinates, decay, and the effective rate eta / rho, half of 1 / L."""
STARTS = (3.0, 0.0)
"""|theta_0|; from the minimum itself, where the bounds have nothing but noise to bound."""
CONDITIONS = (1, 10, 100, 1000)
NOISES = (0.1, 1.0)
"""sqrt(d) nu: the length of a round's noise, beside a first gradient of length 0.7 to 3."""
RHOS = (10.0, 1.0, 0.1)
SEEDS = range(5)


class Path(NamedTuple):
    """What a run on a quadratic came by."""

    losses: list[float]
    squares: list[float]
    """|grad F|^2."""


def eigenvalues(condition: float, size: int = SIZE) -> Vector:
    """From 1 / condition to 1."""
    return torch.logspace(-math.log10(condition), 0, size, dtype=torch.float64)


def descend(
    optimizer: ServerOptimizer,
    curve: Vector,
    rounds: int,
    nu: float,
    start: float = STARTS[0],
    seed: int = 0,
) -> Path:
    """Steps on noised gradients.

    Args:
        optimizer: the server's, rate included.
        curve: the eigenvalues.
        rounds: how many steps.
        nu: the noise of each coordinate.
        start: |theta_0|.
        seed: of the noise.
    """
    draw = torch.Generator().manual_seed(seed)
    theta = torch.full_like(curve, start / math.sqrt(len(curve)))
    state, path = optimizer.init(theta), Path([], [])
    for t in range(rounds):
        true = curve * theta
        path.losses.append(float(true @ theta) / 2)
        path.squares.append(float(true @ true))
        G = true + nu * torch.randn(len(curve), generator=draw, dtype=torch.float64)
        step, state = optimizer.update(G, state, Aggregate(t, theta, G, nu, 1))
        theta = theta - step
    return path


def rounds_for(condition: int) -> int:
    """Until what is left of the start is below the floor."""
    return min(4000, max(400, 10 * condition))


# ------------------------------------------------------------------------------------- the floors


def floors(
    conditions: Iterable[int] = CONDITIONS, seeds: Iterable[int] = SEEDS
) -> Iterator[Finding]:
    """Theorems 4.21, 4.26 and 4.31 by condition number."""
    for condition, length, start in product(conditions, NOISES, STARTS):
        curve, nu = eigenvalues(condition), length / math.sqrt(SIZE)
        case = f"kappa {condition}, noise {length:g}, from {start:g}"

        def make(
            optimizer: ServerOptimizer, curve: Vector = curve, nu: float = nu, start: float = start
        ) -> list[Path]:
            rounds = rounds_for(round(1 / float(curve[0])))
            return [descend(optimizer, curve, rounds, nu, start, seed) for seed in seeds]

        yield from _gd(case, curve, nu, make(scale(RATE)))
        for rho in RHOS:
            made = make(chain(sofim_printed(rho, BETA), scale(RATE * rho)))
            yield from _sofim(f"{case}, rho {rho:g}", curve, nu, rho, made)


def constants(
    curve: Vector, nu: float, rho: float, eta: float, made: list[Path]
) -> bounds.Constants:
    """The constants: all are known except the largest gradient, which is measured.

    Args:
        curve: the eigenvalues.
        nu: the noise of each coordinate.
        rho: the regulariser.
        eta: the rate.
        made: the runs.
    """
    largest = math.sqrt(max(value for path in made for value in path.squares))
    return bounds.Constants(
        L=float(curve[-1]),
        mu=float(curve[0]),
        rho=rho,
        beta=BETA,
        eta=eta,
        clip=largest,
        G=largest,
        zeta=0.0,
        noise=len(curve) * nu**2,
    )


def reached(made: list[Path]) -> float:
    """The mean of F over the last quarter of the rounds."""
    last = len(made[0].losses) // 4
    return fmean(value for path in made for value in path.losses[-last:])


def _gd(case: str, curve: Vector, nu: float, made: list[Path]) -> Iterator[Finding]:
    c, seen = constants(curve, nu, 1.0, RATE, made), reached(made)
    over = f"mean of {len(made)} runs, last quarter of {len(made[0].losses)} rounds"
    yield Finding("Theorem 4.26", case, "E F - F*", AT_MOST, bounds.gd_floor(c), seen, over)
    exact = bounds.gd_reached(curve, RATE, nu)
    yield Finding("ours, of DP-FedGD", case, "E F - F*", EQUAL, exact, seen, over, 0.1)


def _sofim(case: str, curve: Vector, nu: float, rho: float, made: list[Path]) -> Iterator[Finding]:
    c, rounds = constants(curve, nu, rho, RATE * rho, made), len(made[0].losses)
    over = f"mean of {len(made)} runs, last quarter of {rounds} rounds"
    yield Finding(
        "Theorem 4.21", case, "E F - F*", AT_MOST, bounds.strong_floor(c), reached(made), over
    )
    first = made[0].losses[0]
    if first:
        yield Finding(
            "Theorem 4.21",
            case,
            "the floor, beside F(theta_0) - F*",
            BESIDE,
            bounds.strong_floor(c),
            first,
            "the start",
        )
    seen = fmean(value for path in made for value in path.squares)
    bound = bounds.stationary_bound(c, first, rounds)
    over = f"mean of {len(made)} runs x {rounds} rounds"
    yield Finding("Theorem 4.31", case, "mean of |grad F|^2", AT_MOST, bound, seen, over)
    yield Finding(
        "Theorem 4.31",
        case,
        "the bound, beside G_max^2, which it assumes",
        BESIDE,
        bound,
        c.G**2,
        f"largest |grad F|^2 of {len(made)} runs x {rounds} rounds",
    )


# ----------------------------------------------------------------------------------- the momentum


def open_loop(
    betas: Iterable[float] = (0.8, 0.9, 0.99), size: int = 20_000, rounds: int = 400
) -> Iterator[Finding]:
    """Lemma C.1 on white noise, through the library's moving average."""
    draw = torch.Generator().manual_seed(0)
    noise = torch.randn(rounds, size, generator=draw, dtype=torch.float64)
    for beta in betas:
        average = ema(beta)
        state = average.init(noise[0])
        for t, xi in enumerate(noise):
            M, state = average.update(xi, state, Aggregate(t, xi, xi, 1.0, 1))
            if t in (0, 9, 69, rounds - 1):
                yield Finding(
                    "Lemma C.1",
                    f"white noise, beta {beta:g}",
                    f"Var M / nu^2, round {t + 1}",
                    EQUAL,
                    bounds.ema_factor(beta, t),
                    float(M.square().mean()),
                    f"mean of {size} coordinates",
                    0.05,
                )


def closed_loop(
    rates: Iterable[float] = (0.001, 0.01, 0.1, 0.5, 1.0, 1.9), size: int = 5000, rounds: int = 800
) -> Iterator[Finding]:
    """Cov M where theta moves by the noise, too: along eigenvalues with rate lambda as given."""
    beta, rho = BETA, 1e9  # so large that the preconditioner is off
    for each in rates:
        draw = torch.Generator().manual_seed(1)
        optimizer = chain(sofim_printed(rho, beta), scale(each * rho))
        theta = torch.zeros(size, dtype=torch.float64)
        state, squares = optimizer.init(theta), []
        for t in range(rounds):
            G = theta + torch.randn(size, generator=draw, dtype=torch.float64)
            step, state = optimizer.update(G, state, Aggregate(t, theta, G, 1.0, 1))
            theta = theta - step
            if t >= rounds // 2:
                kept: RankOneState = state[0]
                squares.append(float(kept.M.square().mean()))
        case, over = f"in a loop, eta lambda / rho {each:g}", f"mean of {size} coordinates"
        limit, ours = bounds.ema_factor(beta, rounds), bounds.looped_factor(beta, 1 - each)
        quantity = "Var M / nu^2, stationary"
        yield Finding(
            "Lemma C.1, of M itself", case, quantity, EQUAL, limit, fmean(squares), over, 0.05
        )
        yield Finding("ours, in a loop", case, quantity, EQUAL, ours, fmean(squares), over, 0.05)


# ---------------------------------------------------------------------------------------- speed


def speed(
    conditions: Iterable[int] = CONDITIONS[1:], rounds: int = 100, tries: int = 41
) -> Iterator[Finding]:
    """F after some rounds without noise, at the best of many rates: what preconditioning buys."""
    rates = torch.logspace(-2, 3, tries, base=2).tolist()
    for condition in conditions:
        curve = eigenvalues(condition)
        first = descend(scale(0.0), curve, 1, 0.0).losses[0]
        best: dict[str, float] = {"DP-FedGD": min(_last(scale(r), curve, rounds) for r in rates)}
        for rho in (1.0, 0.1, 0.01):
            made = (
                _last(chain(sofim_printed(rho, BETA), scale(r * rho)), curve, rounds) for r in rates
            )
            best[f"DP-FedSOFIM, rho {rho:g}"] = min(made)
        for name, value in best.items():
            yield Finding(
                "speed",
                f"kappa {condition}, {name}",
                "F after 100 rounds / F at the start",
                SEEN,
                math.nan,
                value / first,
                f"best of {tries} rates eta / rho from 1/4 to 8",
            )


def _last(optimizer: ServerOptimizer, curve: Vector, rounds: int) -> float:
    value = descend(optimizer, curve, rounds + 1, 0.0).losses[-1]
    return value if math.isfinite(value) else math.inf


def findings() -> list[Finding]:
    """All of it, about two minutes."""
    return [*open_loop(), *closed_loop(), *floors(), *speed()]
