# SPDX-License-Identifier: Apache-2.0
"""What the papers predict: each function is one numbered statement as a formula.

Nair et al. 2026 (DP-FedSOFIM), Krouka et al. 2025 (DP-FedNew), DP-FedAdamW 2026. Young's parameters
tau_1 and tau_2 are free in the theorems: ``best_young`` chooses those with the smallest bound.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from dpfed.core import Vector


class Constants(NamedTuple):
    """What Theorems 4.21 to 4.31 of Nair et al. depend on."""

    L: float
    mu: float
    rho: float
    beta: float
    eta: float
    clip: float
    """C_g."""
    G: float
    """The largest norm of the gradient along the run (Assumption 4.8)."""
    zeta: float
    """The largest clipping bias along the run (Assumption 4.5)."""
    noise: float
    """d nu^2, what E |xi|^2 is at most (Assumption 4.6)."""


class Young(NamedTuple):
    """The parameters of Young's inequality; 0 is the limit where their term is absent."""

    tau1: float
    tau2: float


# ----------------------------------------------------------------------- the momentum (Nair et al.)


def ema_factor(beta: float, t: int) -> float:
    """Lemma C.1: the part of white noise's variance that M_t keeps."""
    return (1 - beta) ** 2 * (1 - beta ** (2 * (t + 1))) / (1 - beta**2)


def looped_factor(beta: float, a: float) -> float:
    """Ours, not the paper's: ``ema_factor`` if the steps by M also move theta; a = 1 - rate lambda.

    Along an eigenvector with eigenvalue lambda, theta has moved by earlier noise, so
    G_t = lambda theta_t + xi_t is white noise filtered by (1 - z) / (1 - a z). M filters G by
    (1 - beta) / (1 - beta z). At a = 1 the result is the limit of Lemma C.1 for many rounds.
    """
    return 2 * (1 - beta) ** 2 / ((1 - a * beta) * (1 + a) * (1 + beta))


def aggregate_bound(clip: float, noise: float) -> float:
    """Lemma 4.11: E |G_t|^2 is at most this."""
    return clip**2 + noise


def momentum_bound(clip: float, beta: float, noise: float) -> float:
    """Lemma 4.12, (11): E |M_t|^2 is at most this."""
    return clip**2 + (1 - beta) * noise


def momentum_step(before: float, clip: float, beta: float, noise: float) -> float:
    """Lemma 4.12, (9): E |M_t|^2 is at most this if |M|^2 was ``before`` one round earlier."""
    return beta * before + (1 - beta) * clip**2 + (1 - beta) ** 2 * noise


def preconditioned(M: Vector, v: Vector, rho: float) -> Vector:
    """Lemma 4.14, (12): H v."""
    return v / rho - M * (M @ v) / (rho * (rho + M @ M))


def least_curvature(MM: float, rho: float) -> float:
    """Lemma 4.14, (15): v^T H v / |v|^2 is at least this, and at most 1 / rho."""
    return 1 / (rho + MM)


def momentum_event(bound: float, rounds: int, risk: float) -> float:
    """Corollary 4.15: with probability 1 - ``risk`` no |M_t|^2 of a run is above this."""
    return rounds * bound / risk


# ------------------------------------------------------------------------- the floors (Nair et al.)


def gamma(c: Constants, young: Young) -> float:
    """(20): what a step may lose to noise, bias and coupling."""
    squared = c.rho**2
    coupling = c.eta * c.G**2 / squared * momentum_bound(c.clip, c.beta, c.noise)
    bias = c.eta * c.zeta**2 / (2 * young.tau1 * squared) if c.zeta else 0.0
    noise = c.eta * c.noise / (2 * young.tau2 * squared) if c.noise else 0.0
    return coupling + bias + noise + c.L * c.eta**2 / (2 * squared) * (c.clip**2 + c.noise)


def descent(c: Constants, young: Young) -> float:
    """(17): c_nabla."""
    return 1 / c.rho - (young.tau1 + young.tau2) / 2


def best_young(c: Constants, more: float = 0.0) -> Young:
    """Young's parameters that make (more + Gamma) / c_nabla smallest.

    With tau_i = 2 s_i / rho and s = s_1 + s_2 that is (K + b / s) / (1 - s), b = (zeta + sqrt(d)
    nu)^2 / 4 once s_1 : s_2 = zeta : sqrt(d) nu; K is what depends on neither.
    """
    parts = c.zeta, math.sqrt(c.noise)
    if not sum(parts):
        return Young(0.0, 0.0)
    b = sum(parts) ** 2 / 4
    rest = more + gamma(c._replace(zeta=0.0, noise=0.0), Young(0.0, 0.0))
    rest += c.eta / c.rho**2 * c.noise * (c.G**2 * (1 - c.beta) + c.L * c.eta / 2)
    K = rest * c.rho / c.eta
    s = (math.sqrt(b * b + K * b) - b) / K
    return Young(*(2 * s / c.rho * each / sum(parts) for each in parts))


def strong_floor(c: Constants) -> float:
    """Theorem 4.21, (22): the bound on E F - F* after many rounds, without the start's term."""
    young = best_young(c)
    return gamma(c, young) / (2 * c.mu * c.eta * descent(c, young))


def stationary_bound(c: Constants, above: float, rounds: int) -> float:
    """Theorem 4.31: the mean of E |grad F|^2 over the rounds; ``above`` is F(theta_0) - F_inf."""
    young = best_young(c, above / rounds)
    return (above / rounds + gamma(c, young)) / (c.eta * descent(c, young))


def gd_floor(c: Constants) -> float:
    """Theorem 4.26, of DP-FedGD at the rate eta; without bias tau goes to 0."""
    if c.zeta:
        raise ValueError("this floor is only for runs in which nothing is clipped (zeta = 0)")
    return c.L * c.eta / 2 * (c.clip**2 + c.noise) / (2 * c.mu)


def gd_reached(eigenvalues: Vector, eta: float, nu: float) -> float:
    """Ours, not the paper's: where E F of DP-FedGD on a quadratic does end up."""
    return float((eta * nu**2 / (2 * (2 - eta * eigenvalues))).sum())


# -------------------------------------------------------------------------- FedNew (Krouka et al.)


def largest_beta(alpha: float, rho: float, smooth: float, clients: int) -> float:
    """Lemmas 20 and 25: beta is at most this; ``smooth`` is L_q, at least alpha by (F.1)."""
    return alpha - 2.5 * rho - 8 * smooth**2 * clients / rho


def inner_bound(
    apart: float, alpha: float, rho: float, variance: float, trace: float, size: int
) -> float:
    """Lemma 23, the right-hand side; ``apart`` is E |ytilde_i - y*|^2."""
    return -alpha * apart + variance * trace + variance * (alpha + rho) * size


def lyapunov_noise(alpha: float, rho: float, variance: float, size: int) -> float:
    """Lemma 26, (F.14): what a round's noise may add to V; sigma^2 (alpha + rho) d."""
    return variance * (alpha + rho) * size


def lyapunov(duals: torch.Tensor, y: Vector, moved: Vector, rho: float) -> float:
    """The Lyapunov function V of (F.3) at beta_1 = 0, the smallest value of beta_1.

    Args:
        duals: one row per client: its dual variable minus its optimum.
        y: the direction minus its optimum.
        moved: the direction minus that of the round before.
        rho: the weight of the agreement.
    """
    n = len(duals)
    return float(duals.square().sum() / rho + rho * n * (y.square() + 2 * moved.square()).sum())


# ------------------------------------------------------------------------------------ DP-FedAdamW


def sampled_square(v: torch.Tensor, drawn: int) -> float:
    """Lemma 2: E |mean of ``drawn`` of the rows of v|^2, drawn without replacement."""
    total, centre = len(v), v.mean(0)
    share = (total - drawn) / (drawn * (total - 1))
    return float(centre @ centre + share * (v - centre).square().sum(1).mean())


def poisson_square(v: torch.Tensor, rate: float) -> float:
    """Ours: Lemma 2 for Poisson draws, each row by itself; the sum is over rate times all rows."""
    centre = v.mean(0)
    return float(centre @ centre + (1 - rate) / (rate * len(v)) * v.square().sum(1).mean())
