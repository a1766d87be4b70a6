# SPDX-License-Identifier: Apache-2.0
"""What both forms of DP-FedSOFIM share: the memory M, the options, the untuned rule, the preset.

With G_t the aggregate, and corrected: M_hat_t = M_t / (1 - beta^(t+1)), else M_hat_t = M_t,

    M_t = beta M_{t-1} + (1 - beta) G_t,                M_{-1} = 0
    H_t = (M_hat_t M_hat_t^T + rho I)^{-1}
        = 1 / rho - M_hat_t M_hat_t^T / (rho^2 + rho |M_hat_t|^2)            (Sherman-Morrison)

    sofim.py           eta H_t M_hat_t = eta M_hat_t / (rho + |M_hat_t|^2)
    sofim_printed.py   eta H_t G_t     = eta (G_t / rho
                                         - M_hat_t (M_hat_t . G_t) / (rho^2 + rho |M_hat_t|^2))
    warm-up            eta M_hat_t, in both: not divided by rho, as the authors' code has it

All of it is a function of released quantities: post-processing, at no privacy cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from dpfed.core import Aggregate, ServerOptimizer, Vector
from dpfed.core.checks import check_at_least, check_decay, check_positive, refuse
from dpfed.core.log import log
from dpfed.core.vector import Layout, blocks, dot

AUTO: Literal["auto"] = "auto"
BETA = 0.9


class RankOneState(NamedTuple):
    """The momentum buffer M and the number of updates so far."""

    M: Vector
    t: int


class AuthorsSettings(NamedTuple):
    """What the authors' runner sets for an epsilon."""

    rate: float
    rho: float
    beta: float
    corrected: bool
    warmup: int


AUTHORS = {
    0.5: AuthorsSettings(rate=0.2, rho=0.5, beta=0.95, corrected=True, warmup=10),
    1.0: AuthorsSettings(rate=3.0, rho=10.0, beta=0.8, corrected=True, warmup=0),
    5.0: AuthorsSettings(rate=0.8, rho=0.5, beta=0.9, corrected=False, warmup=0),
    10.0: AuthorsSettings(rate=0.8, rho=0.5, beta=0.9, corrected=False, warmup=0),
}
"""By epsilon: github.com/sid0nair/DP-FedSOFIM_V2 at 356fb0df, run_dp_fedgd_experiments.py."""


class Step(NamedTuple):
    """The numbers of one step."""

    eta: float
    rho: float
    beta: float


class Options(NamedTuple):
    """A form's options; None is left out."""

    rho: float | Literal["auto"]
    beta: float | None
    corrected: bool | None
    warmup: int | None
    rate: float | None
    classes: int | None

    def under(self, theirs: AuthorsSettings) -> Options:
        """These options, and the authors' where one is left out."""
        return self._replace(
            rho=theirs.rho if self.rho == AUTO else self.rho,
            beta=theirs.beta if self.beta is None else self.beta,
            corrected=theirs.corrected if self.corrected is None else self.corrected,
            warmup=theirs.warmup if self.warmup is None else self.warmup,
            rate=theirs.rate if self.rate is None else self.rate,
        )


def rank_one(
    name: str,
    options: Options,
    *,
    momentum: bool,
    preset: Literal["paper"] | None,
    layout: Layout | None,
    epsilon: float | None,
) -> ServerOptimizer:
    """A form of the method: its options are checked, and taken from a preset if it is named.

    Args:
        name: the plug-in's.
        options: as a recipe gives them.
        momentum: whether H is applied to the momentum, or to the aggregate.
        preset: whose settings stand in for options that are left out.
        layout: the model's parameters, if they are known.
        epsilon: the plan's.
    """
    if preset is not None:
        options = options.under(_authors(name, preset, epsilon))
    _check(name, options)
    classes = options.classes
    if classes is None:
        if layout is None and options.rho == AUTO:
            log.warning(
                "%s: the model's layout is not known, so the untuned rule counts 2 classes; set "
                "server.classes, or give the plan the model's layout",
                name,
            )
        classes = _classes(layout)
    return _RankOne(options, classes, momentum).optimizer()


def _check(name: str, options: Options) -> None:
    if options.rho != AUTO:
        check_positive(name, rho=options.rho)
    if options.beta is not None:
        check_decay(name, beta=options.beta)
    if options.rate is not None:
        check_positive(name, rate=options.rate)
    if options.classes is not None:
        check_at_least(2, name, classes=options.classes)
    check_at_least(0, name, warmup=options.warmup or 0)
    if options.rho == AUTO and options.warmup:
        raise refuse(
            f"{name}.warmup",
            "0 where rho is 'auto', whose rate is meant to be divided by rho",
            options.warmup,
            "leave it out, or set rho and rate",
        )


@dataclass(frozen=True)
class _RankOne:
    """A form with its options; where they are None, the untuned rule or a constant decides."""

    options: Options
    classes: int
    momentum: bool

    @property
    def _ruled(self) -> bool:
        """Whether beta and the correction are the untuned rule's, where they are left out."""
        return self.options.rho == AUTO and self.momentum

    def step(self, seen: Aggregate) -> Step:
        """This round's numbers: as given, or by the untuned rule."""
        T, K, (rho, beta, _, _, eta, _) = max(1, seen.rounds), self.classes, self.options
        if beta is None:
            beta = 1 - 1 / math.sqrt(T) if self._ruled else BETA
        if rho != AUTO:
            return Step(1.0 if eta is None else eta, rho, beta)
        eta = math.log(K) if eta is None else eta
        C = seen.clip if seen.clip > 0 else 1.0
        stable = (1 + beta) / (1 - beta) if self.momentum else 2.0
        r = stable * K / (C * C)
        if seen.std > 0:
            r = min(r, 1 / (C * seen.std * math.sqrt(T)))
        return Step(eta, eta / r, beta)

    def settings(self, seen: Aggregate) -> Mapping[str, float]:
        """This round's numbers by name, as a run prints them."""
        eta, rho, beta = self.step(seen)
        return {"eta": eta, "rho": rho, "beta": beta, "eta / rho": eta / rho}

    def coefficients(self, step: Step, t: int, MG: float, MM: float) -> tuple[float, float]:
        """The direction is a G + b M, with these a and b."""
        corrected = self._ruled if self.options.corrected is None else self.options.corrected
        rho, c = step.rho, 1 / (1 - step.beta ** (t + 1)) if corrected else 1.0
        if t < (self.options.warmup or 0):
            return 0.0, step.eta * c
        if self.momentum:
            return 0.0, step.eta * c * (1 / (rho + c * c * MM))
        damped = -c * c * MG / (rho * rho + rho * c * c * MM)
        return step.eta / rho, step.eta * damped

    def optimizer(self) -> ServerOptimizer:
        """The server optimizer."""

        def init(params: Vector) -> RankOneState:
            return RankOneState(torch.zeros_like(params), 0)

        def update(G: Vector, state: RankOneState, seen: Aggregate) -> tuple[Vector, RankOneState]:
            step = self.step(seen)
            M = torch.lerp(state.M, G, 1 - step.beta)
            a, b = self.coefficients(step, state.t, dot(M, G), dot(M, M))
            return (G * a).add_(M, alpha=b), RankOneState(M, state.t + 1)

        def update_(G: Vector, state: RankOneState, seen: Aggregate) -> tuple[Vector, RankOneState]:
            """``update`` in two passes over memory: each block is read and written once a pass."""
            step = self.step(seen)
            parts = list(blocks(G.numel()))
            products = [_accumulate(state.M[part], G[part], 1 - step.beta) for part in parts]
            MG, MM = (math.fsum(column) for column in zip(*products, strict=True))
            a, b = self.coefficients(step, state.t, MG, MM)
            for part in parts:
                G[part].mul_(a).add_(state.M[part], alpha=b)
            return G, RankOneState(state.M, state.t + 1)

        return ServerOptimizer(init=init, update=update, update_=update_, settings=self.settings)


def _authors(name: str, preset: str, epsilon: float | None) -> AuthorsSettings:
    if epsilon not in AUTHORS:
        raise refuse(
            f"{name}.preset",
            f"left out unless privacy.epsilon is one of {', '.join(f'{e:g}' for e in AUTHORS)}, "
            f"which the authors ran",
            f"{preset} at epsilon {epsilon}",
            "set that epsilon, or rate, rho, beta, corrected and warmup",
        )
    return AUTHORS[epsilon]


def _classes(layout: Layout | None) -> int:
    """The number of rows of the model's last tensor; a single score stands for two classes."""
    shapes = list(layout.shapes.values()) if layout else []
    return max(2, shapes[-1][0]) if shapes and shapes[-1] else 2


def _accumulate(M: Vector, G: Vector, weight: float) -> tuple[float, float]:
    M.lerp_(G, weight)
    return float(torch.dot(M, G)), float(torch.dot(M, M))
