# SPDX-License-Identifier: Apache-2.0
"""DP-FedSOFIM: momentum under the inverse of its own rank-one Fisher proxy, in O(d).

Nair et al. 2026, sections 3.4 and 5.1. With M_t the moving average of the aggregates:

    H_t M_t = M_t / (rho + |M_t|^2)                 W_{t+1} = W_t - eta H_t M_t

This is the step of the authors' code (github.com/sid0nair/DP-FedSOFIM_V2 at 356fb0df, train.py,
class DPFedGDServerSOFIM), and the one that made the paper's tables. No option changes it. The line
that the paper prints, H_t G_t, is ``sofim_printed``.

**Untuned.** With ``rho = "auto"``, the default, everything follows from public numbers: T rounds,
K classes, the clip C and the noise level std of a coordinate of G_t:

    beta = 1 - 1 / sqrt T,  corrected
    r    = min(1 / (C std sqrt T), (1 + beta) / (1 - beta) K / C^2)
    eta  = ln K,  rho = eta / r

r is the rate of a small step: the noise of T such steps moves the score of a row of length C by
about 1, and momentum on a softmax stays stable. docs/dp-fedsofim.md derives each factor. The rule
is for models that end in K scores; C has to be near the length of a row's gradient.
"""

from __future__ import annotations

from typing import Literal

from dpfed.core import ServerOptimizer
from dpfed.core.vector import Layout
from dpfed.server._rank_one import AUTO, Options, rank_one

PAPER = "Nair et al. 2026 (DP-FedSOFIM)"


def sofim(
    rho: float | Literal["auto"] = AUTO,
    beta: float | None = None,
    corrected: bool | None = None,
    warmup: int | None = None,
    rate: float | None = None,
    classes: int | None = None,
    preset: Literal["paper"] | None = None,
    layout: Layout | None = None,
    epsilon: float | None = None,
) -> ServerOptimizer:
    """Momentum under a rank-one natural-gradient preconditioner, tuned or by a rule.

    Args:
        rho: added to the proxy's diagonal, above 0: a small step is rate M / rho. With "auto" it
            follows from the noise, the clip, and the number of rounds and classes.
        beta: how much of the momentum is kept per round, in [0, 1). Left out, it is
            1 - 1 / sqrt(rounds) where rho is "auto", and 0.9 otherwise.
        corrected: divide the momentum by the weight that it has gathered so far. Left out, it is
            true where rho is "auto".
        warmup: rounds that step by rate M, undivided, before the first preconditioned one; none if
            left out.
        rate: the paper's eta. Left out, it is ln(classes) where rho is "auto", and 1 otherwise: a
            link ``scale`` may follow.
        classes: the number of scores that the model gives. Left out, it is read off the model's
            last layer, and 2 where a plan was made without the model's layout.
        preset: "paper" takes what is left out from the authors' runner, at epsilon 0.5, 1, 5 or 10.
        layout: the model's parameters; the plan gives it.
        epsilon: the plan's epsilon; the plan gives it.

    Returns:
        a server optimizer that keeps one vector of the model's size.

    >>> import torch
    >>> from dpfed.core import Aggregate
    >>> G, optimizer = torch.tensor([3.0, 4.0]), sofim(rho=75.0, beta=0.0)
    >>> seen = Aggregate(round=0, params=torch.zeros(2), mean=G, std=0.1, clients=10)
    >>> optimizer.update(G, optimizer.init(seen.params), seen)[0]
    tensor([0.0300, 0.0400])
    """
    return rank_one(
        "sofim",
        Options(
            rho=rho,
            beta=beta,
            corrected=corrected,
            warmup=warmup,
            rate=rate,
            classes=classes,
        ),
        momentum=True,
        preset=preset,
        layout=layout,
        epsilon=epsilon,
    )
