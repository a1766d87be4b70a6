# SPDX-License-Identifier: Apache-2.0
"""What Adam and Yogi share: two moments by coordinate, and the step that is made of them.

    m_t = beta1 m_{t-1} + (1 - beta1) G_t,   v_t the optimizer's own,   m_{-1} = v_{-1} = 0
    direction  rate m_hat_t / (sqrt(v_hat_t) + eps)

``corrected`` divides m_t by 1 - beta1^(t+1) and v_t by 1 - beta2^(t+1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

import torch

from dpfed.core import Aggregate, ServerOptimizer, Vector
from dpfed.core.checks import check_decay, check_positive, check_stabilizer
from dpfed.core.vector import blocks

Second = Callable[[Vector, Vector], None]
"""Moves a block of v, in its place, by a block of G."""
Adjust = Callable[[Vector, int, Aggregate], None]
"""Changes a block of v_hat, in its place, before its root is taken."""


class MomentState(NamedTuple):
    """The two moments and the number of updates so far."""

    m: Vector
    v: Vector
    t: int


@dataclass(frozen=True)
class Moments:
    """The options of an optimizer with two moments; refuses what it cannot work with."""

    name: str
    rate: float
    _: KW_ONLY
    beta1: float
    beta2: float
    eps: float
    corrected: bool

    def __post_init__(self) -> None:
        check_positive(self.name, rate=self.rate)
        check_decay(self.name, beta1=self.beta1, beta2=self.beta2)
        check_stabilizer(self.name, eps=self.eps)

    def scale(self, beta: float, t: int) -> float:
        """What turns a moment into its corrected form."""
        return 1 / (1 - beta ** (t + 1)) if self.corrected else 1.0

    def optimizer(self, second: Second, adjust: Adjust | None = None) -> ServerOptimizer:
        """The optimizer with this second moment; temporaries are a block long."""

        def init(params: Vector) -> MomentState:
            return MomentState(torch.zeros_like(params), torch.zeros_like(params), 0)

        def update(G: Vector, state: MomentState, seen: Aggregate) -> tuple[Vector, MomentState]:
            m, v, t = state
            return update_(G.clone(), MomentState(m.clone(), v.clone(), t), seen)

        def update_(G: Vector, state: MomentState, seen: Aggregate) -> tuple[Vector, MomentState]:
            """``update`` in one pass over memory: the direction takes the place of G."""
            m, v, t = state
            scale1, scale2 = self.scale(self.beta1, t), self.scale(self.beta2, t)
            for part in blocks(G.numel()):
                m[part].lerp_(G[part], 1 - self.beta1)
                second(v[part], G[part])
                root = torch.mul(v[part], scale2, out=G[part])
                if adjust:
                    adjust(root, t, seen)
                torch.div(m[part], root.sqrt_().add_(self.eps), out=root).mul_(self.rate * scale1)
            return G, MomentState(m, v, t + 1)

        return ServerOptimizer(init=init, update=update, update_=update_)
