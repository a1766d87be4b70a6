# SPDX-License-Identifier: Apache-2.0
"""DP-FedSOFIM as printed: the aggregate under the inverse of the momentum's rank-one proxy.

Nair et al. 2026, Algorithm 1, lines 12 to 14. With M_t the moving average of the aggregates G_t:

    H_t G_t = G_t / rho - M_t (M_t . G_t) / (rho^2 + rho |M_t|^2)    W_{t+1} = W_t - eta H_t G_t

The authors' code does not take this step (``sofim`` is theirs), and at their settings it does not
train. M_t holds a part of the noise of G_t: where rho is far below that noise, the step turns
uphill.

With ``rho = "auto"``, the default, a rule as that of ``sofim``: eta = ln K, rho = eta / r, beta 0.9
and r = min(1 / (C std sqrt T), 2 K / C^2), which is gradient descent's own stability limit.
"""

from __future__ import annotations

from typing import Literal

from dpfed.core import ServerOptimizer
from dpfed.core.vector import Layout
from dpfed.server._rank_one import AUTO, Options, rank_one

PAPER = "Nair et al. 2026 (DP-FedSOFIM), Algorithm 1"


def sofim_printed(
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
    """Algorithm 1 as printed: the aggregate under a rank-one natural-gradient preconditioner.

    Args:
        rho: added to the proxy's diagonal, above 0: a small step is rate G / rho. With "auto" it
            follows from the noise, the clip, and the number of rounds and classes.
        beta: how much of the momentum is kept per round, in [0, 1); 0.9 if left out.
        corrected: divide the momentum by the weight that it has gathered so far.
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
    >>> G, optimizer = torch.tensor([3.0, 4.0]), sofim_printed(rho=1.0)
    >>> seen = Aggregate(round=0, params=torch.zeros(2), mean=G, std=0.1, clients=10)
    >>> optimizer.update(G, optimizer.init(seen.params), seen)[0]
    tensor([2.4000, 3.2000])
    """
    return rank_one(
        "sofim_printed",
        Options(
            rho=rho,
            beta=beta,
            corrected=corrected,
            warmup=warmup,
            rate=rate,
            classes=classes,
        ),
        momentum=False,
        preset=preset,
        layout=layout,
        epsilon=epsilon,
    )
