# SPDX-License-Identifier: Apache-2.0
"""A train function in torch, in the shape of Flower's quickstart, for shards.py."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks._shard_faults import counted
from dpfed.data.train_functions import torch_train


def loop(net: nn.Module, trainloader: Any, epochs: int) -> None:
    """Epochs of plain SGD."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(epochs):
        for x, y in trainloader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()


train = torch_train(loop, lambda: nn.Linear(64, 10), epochs=1)
faults = counted(train)
