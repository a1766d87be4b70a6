# SPDX-License-Identifier: Apache-2.0
"""The model, its data and its training: plain PyTorch."""

import torch
from torch import nn


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 2))


def load_data(partition):
    generator = torch.Generator().manual_seed(partition)
    x = torch.randn(200, 20, generator=generator)
    return x, (x[:, 0] + x[:, 1] > 0).long()


def train(model, data, lr, epochs=5):
    x, y = data
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()


def loss_of(model, data):
    x, y = data
    with torch.no_grad():
        return nn.functional.cross_entropy(model(x), y).item()
