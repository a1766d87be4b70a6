# SPDX-License-Identifier: Apache-2.0
"""Rows whose units share records, and the same one by one."""

from __future__ import annotations

import torch
from torch import nn

from dpfed.data.datasets import Records
from dpfed.data.modules import Network


def one_by_one(network: Network, params: torch.Tensor, records: Records) -> torch.Tensor:
    rows = []
    for x, y in zip(records.x, records.y, strict=True):
        here = params.clone().requires_grad_()
        loss = network.loss(network.score(here, x[None]), y[None]).sum()
        rows.append(torch.autograd.grad(loss, here)[0])
    return torch.stack(rows)


class Tied(nn.Module):
    """One weight, used twice: its per-record gradient is the sum over both uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
        self.second.weight = self.first.weight
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))
