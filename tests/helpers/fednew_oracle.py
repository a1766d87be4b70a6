# SPDX-License-Identifier: Apache-2.0
"""What FedNew releases, with curvatures that one chooses."""

from __future__ import annotations

from typing import Any

import torch

from dpfed.client.fednew import FedNewState
from dpfed.core.matrices import Hessians
from dpfed.core.registry import build
from dpfed.core.rows import Dense
from dpfed.core.types import UPDATE, Broadcast, Release, Rows, Unit
from dpfed.core.vector import Layout


class Chosen:
    """A client whose gradients and Hessians an adversary chose one by one: [records, ...]."""

    def __init__(self, gradients: torch.Tensor, curvature: torch.Tensor, x: torch.Tensor) -> None:
        self.gradients, self.curvature, self.x = gradients, curvature, x
        self.dimension = gradients.shape[1]

    def rows(self, params: torch.Tensor, unit: Unit) -> Rows:
        return Dense(self.gradients)

    def hessian_rows(self, params: torch.Tensor, unit: Unit) -> Hessians:
        return Hessians(self.curvature, self.x, bias=False)

    def gradient(self, params: torch.Tensor) -> torch.Tensor:
        return self.gradients.mean(0)

    def metric_rows(self, params: torch.Tensor, unit: Unit, loss_bound: float) -> Rows:
        raise NotImplementedError

    def gram_rows(self, unit: Unit) -> Any:
        raise NotImplementedError


class Looking:
    """A releaser that shows what would have been released."""

    unit = Unit.RECORD

    def __init__(self, nominal: float) -> None:
        self.nominal = nominal

    def __call__(self, rows: Rows, channel: str = UPDATE) -> Release:
        self.bounded = rows.clipped_sum(1.0)
        return Release(torch.zeros(len(self.bounded.vector), dtype=torch.int32), 1.0, 1.0)


def released(options: dict[str, float], problem: Chosen, offset: torch.Tensor, m: float) -> Any:
    outputs = problem.curvature.shape[1]
    layout = Layout({"weight": (outputs, problem.dimension // outputs)})
    algorithm = build("client", "fednew", options, unit=Unit.RECORD, layout=layout)
    state = FedNewState(-offset, 0)
    shared = {"primal": torch.zeros_like(offset)}
    releaser = Looking(m)
    algorithm.work(Broadcast(0, torch.zeros_like(offset), shared), problem, state, releaser)
    return releaser.bounded
