# SPDX-License-Identifier: Apache-2.0
"""DP-FedSOFIM: precondition the private aggregate by a rank-one Fisher proxy, in O(d).

Nair et al. 2026, sections 3.4 and 5.1, Algorithm 1, lines 12 and 13. With G_t the aggregate:

    M_t = beta M_{t-1} + (1 - beta) G_t,                M_{-1} = 0
    H_t = (M_t M_t^T + rho I)^{-1}                                          (Sherman-Morrison)

    direction "gradient"   H_t G_t = G_t / rho - M_t (M_t . G_t) / (rho^2 + rho |M_t|^2)
    direction "momentum"   H_t M_t = M_t / (rho + |M_t|^2)

"gradient" is the line that the paper prints. "momentum" is what its tables fit: they describe the
method without Sherman-Morrison as EMA-only, that is M_t, and their accuracy by rho is that of
H_t M_t (docs/dp-fedsofim.md). That is inferred: the paper's code was not at hand.

**Untuned.** With ``rho = "auto"``, as method dp-fedsofim has it, everything follows from public
numbers: T rounds, K classes, the clip C and the noise level std of a coordinate of G_t:

    momentum   beta = 1 - 1 / sqrt T    r = min(1 / (C std sqrt T), (1 + beta) / (1 - beta) K / C^2)
    gradient   beta = 0.9               r = min(1 / (C std sqrt T), 2 K / C^2)
    both       eta = ln K,  rho = eta / r;   momentum: corrected

r is the rate of a small step: the noise of T such steps moves the score of a row of length C by
about 1, and momentum on a softmax stays stable. docs/dp-fedsofim.md derives each factor. The rule
is for models that end in K scores; C has to be near the length of a row's gradient.

``corrected`` (the paper: for epsilon <= 1) uses M_hat_t = M_t / (1 - beta^(t+1)) instead of
M_t.

``warmup`` is its delayed start (20 rounds at epsilon = 0.5): EMA-only steps before the first
preconditioned one. The paper does not give their size. Here the direction is M_hat_t / rho, so that
no jump in scale follows.

All of it is a function of released quantities: post-processing, at no privacy cost.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch

from dpfed.core import Aggregate, ServerOptimizer, Vector
from dpfed.core.checks import check_at_least, check_decay, check_positive, refuse
from dpfed.core.log import log
from dpfed.core.vector import Layout, blocks, dot

PAPER = "Nair et al. 2026 (DP-FedSOFIM)"

AUTO: Literal["auto"] = "auto"
Direction = Literal["gradient", "momentum"]


class SofimState(NamedTuple):
    """The momentum buffer M and the number of updates so far."""

    M: Vector
    t: int


class _Options(NamedTuple):
    """Checked options; None means that the untuned rule decides, from the round's T, C and std."""

    momentum: bool
    rho: float | None
    beta: float | None
    rate: float | None
    corrected: bool
    classes: int
    warmup: int


class _Step(NamedTuple):
    """The numbers of one step."""

    rho: float
    beta: float
    rate: float


def sofim(
    rho: float | Literal["auto"] | None = None,
    beta: float | None = None,
    corrected: bool | None = None,
    warmup: int | None = None,
    direction: Direction | None = None,
    rate: float | None = None,
    classes: int | None = None,
    preset: Literal["paper"] | None = None,
    layout: Layout | None = None,
    epsilon: float | None = None,
) -> ServerOptimizer:
    """Rank-one natural-gradient preconditioning of the private aggregate, tuned or by a rule.

    Args:
        rho: added to the proxy's diagonal, above 0: a small step is the direction over rho. With
            "auto", the untuned rule, it follows from the noise, the clip, and the number of rounds
            and classes. Left out, it is 1, or the preset's.
        beta: how much of the momentum buffer is kept per round, in [0, 1). Left out, it is
            1 - 1 / sqrt(rounds) for the untuned momentum reading, and 0.9 otherwise.
        corrected: divide the buffer by the weight that it has gathered so far. Left out, it is
            true for the untuned momentum reading only.
        warmup: rounds of EMA-only steps before the first preconditioned one; none if left out.
        direction: what is preconditioned: "momentum", or "gradient" as the paper prints it. Left
            out, it is "momentum" for the untuned rule and "gradient" otherwise.
        rate: the paper's eta. Left out, it is ln(classes) for the untuned rule, and 1 otherwise: a
            link ``scale`` may follow.
        classes: the number of scores that the model gives. Left out, it is read off the model's
            last layer, and 2 where a plan was made without the model's layout.
        preset: "paper" takes rho, beta, corrected and warmup from the paper, by epsilon, where
            they are left out.
        layout: the model's parameters; the plan gives it.
        epsilon: the plan's epsilon; the plan gives it.

    Returns:
        a server optimizer that keeps one vector of the model's size.

    >>> import torch
    >>> from dpfed.core import Aggregate
    >>> G, optimizer = torch.tensor([3.0, 4.0]), sofim(rho=1.0)
    >>> seen = Aggregate(round=0, params=torch.zeros(2), mean=G, std=0.1, clients=10)
    >>> optimizer.update(G, optimizer.init(seen.params), seen)[0]
    tensor([2.4000, 3.2000])
    """
    if preset is not None:
        if epsilon is None:
            raise refuse(
                "sofim.preset",
                "left out where no epsilon is given",
                preset,
                "set privacy.epsilon, or rho, beta, corrected and warmup",
            )
        theirs = paper_settings(epsilon)
        rho = theirs.rho if rho in (None, AUTO) else rho  # dp-fedsofim itself says auto
        beta = theirs.beta if beta is None else beta
        corrected = theirs.corrected if corrected is None else corrected
        warmup = theirs.warmup if warmup is None else warmup
    untuned = rho == AUTO
    if untuned and classes is None and layout is None:
        log.warning(
            "sofim: the model's layout is not known, so the untuned rule counts 2 classes; set "
            "server.classes, or give the plan the model's layout"
        )
    momentum = direction == "momentum" if direction else untuned
    options = _Options(
        momentum=momentum,
        rho=None if rho == AUTO else 1.0 if rho is None else rho,
        beta=beta if beta is not None or (untuned and momentum) else 0.9,
        rate=1.0 if rate is None and not untuned else rate,
        corrected=untuned and momentum if corrected is None else corrected,
        classes=_classes(layout) if classes is None else classes,
        warmup=warmup or 0,
    )
    _check(options)

    def init(params: Vector) -> SofimState:
        return SofimState(torch.zeros_like(params), 0)

    def update(G: Vector, state: SofimState, seen: Aggregate) -> tuple[Vector, SofimState]:
        step = _settled(options, seen)
        M = torch.lerp(state.M, G, 1 - step.beta)
        a, b = _coefficients(options, step, state.t, dot(M, G), dot(M, M))
        return (G * a).add_(M, alpha=b), SofimState(M, state.t + 1)

    def update_(G: Vector, state: SofimState, seen: Aggregate) -> tuple[Vector, SofimState]:
        """``update`` in two passes over memory: each block is read and written once a pass."""
        step = _settled(options, seen)
        parts = list(blocks(G.numel()))
        products = [_accumulate(state.M[part], G[part], 1 - step.beta) for part in parts]
        MG, MM = (math.fsum(column) for column in zip(*products, strict=True))
        a, b = _coefficients(options, step, state.t, MG, MM)
        for part in parts:
            G[part].mul_(a).add_(state.M[part], alpha=b)
        return G, SofimState(state.M, state.t + 1)

    return ServerOptimizer(init=init, update=update, update_=update_)


class PaperSettings(NamedTuple):
    """What the paper describes for an epsilon: sections 5.1, 5.3.1 and H.2."""

    rho: float
    beta: float
    corrected: bool
    warmup: int


def paper_settings(epsilon: float) -> PaperSettings:
    """The settings that the paper describes for an epsilon; it gives no rate by epsilon.

    rho is 1 for epsilon >= 5 and 10 below (H.2), beta 0.9, and 0.95 at 0.5 (5.3.1); the buffer is
    corrected for epsilon <= 1, and 20 EMA-only rounds come first at 0.5 (5.1). What it says of 0.5
    holds here for anything up to it.

    Args:
        epsilon: that of the whole training.

    >>> paper_settings(0.5)
    PaperSettings(rho=10.0, beta=0.95, corrected=True, warmup=20)
    >>> paper_settings(10.0)
    PaperSettings(rho=1.0, beta=0.9, corrected=False, warmup=0)
    """
    tightest = epsilon <= 0.5
    return PaperSettings(
        rho=1.0 if epsilon >= 5 else 10.0,
        beta=0.95 if tightest else 0.9,
        corrected=epsilon <= 1,
        warmup=20 if tightest else 0,
    )


def _check(options: _Options) -> None:
    if options.rho is not None:
        check_positive("sofim", rho=options.rho)
    if options.beta is not None:
        check_decay("sofim", beta=options.beta)
    if options.rate is not None:
        check_positive("sofim", rate=options.rate)
    check_at_least(0, "sofim", warmup=options.warmup)
    check_at_least(2, "sofim", classes=options.classes)


def _classes(layout: Layout | None) -> int:
    """The number of rows of the model's last tensor; a single score stands for two classes."""
    shapes = list(layout.shapes.values()) if layout else []
    return max(2, shapes[-1][0]) if shapes and shapes[-1] else 2


def _settled(o: _Options, seen: Aggregate) -> _Step:
    """The options of this step: as given, or by the untuned rule."""
    T, K = max(1, seen.rounds), o.classes
    beta = 1 - 1 / math.sqrt(T) if o.beta is None else o.beta
    rate = math.log(K) if o.rate is None else o.rate
    if o.rho is not None:
        return _Step(o.rho, beta, rate)
    C = seen.clip if seen.clip > 0 else 1.0
    stable = (1 + beta) / (1 - beta) if o.momentum else 2.0
    r = stable * K / (C * C)
    if seen.std > 0:
        r = min(r, 1 / (C * seen.std * math.sqrt(T)))
    return _Step(rate / r, beta, rate)


def _coefficients(o: _Options, step: _Step, t: int, MG: float, MM: float) -> tuple[float, float]:
    """The direction is a G + b M, with these a and b."""
    rho, c = step.rho, 1 / (1 - step.beta ** (t + 1)) if o.corrected else 1.0
    if t < o.warmup:
        return 0.0, step.rate * (c / rho)
    if o.momentum:
        return 0.0, step.rate * c * (1 / (rho + c * c * MM))
    damped = -c * c * MG / (rho * rho + rho * c * c * MM)
    return step.rate / rho, step.rate * damped


def _accumulate(M: Vector, G: Vector, weight: float) -> tuple[float, float]:
    M.lerp_(G, weight)
    return float(torch.dot(M, G)), float(torch.dot(M, M))
