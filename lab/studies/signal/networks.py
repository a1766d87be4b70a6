#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""At which ratio of signal to noise small models begin to learn: results/networks.csv.

    DPFED_DATA=FOLDER lab/studies/signal/networks.py

Noisy gradient descent with momentum by hand, on 1,000 records: rows are clipped to the clip, their
sum gets Gaussian noise of a size that makes the longest possible signal over all rounds so many
times as long as the noise (dpfed.accounting.signal). Of five rates the one with the best *test*
accuracy is kept, which flatters small ratios: a threshold below them errs towards silence. Needs
scikit-learn (its digits are the images here).
"""

from __future__ import annotations

import csv
import math
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.func import functional_call, grad, vmap

RECORDS, ROUNDS, CLIP, BETA = 1000, 20, 0.3, 0.8
RATES, SEEDS = (0.1, 0.3, 1.0, 3.0, 10.0), (0, 1)
RATIOS = (0.05, 0.1, 0.15, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, math.inf)
OUT = Path(__file__).parent / "results/networks.csv"
Data = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def features(name: str) -> Data:
    """Frozen features, centred by public ones, and shortened to a norm of about 1."""
    folder = Path(os.environ["DPFED_DATA"]) / "features"
    found = np.load(folder / f"{name}.npz")
    center = np.load(folder / "cifar100-test.npz")["x"].astype("float32").mean(0)
    chosen = np.random.default_rng(0)
    parts: list[torch.Tensor] = []
    for part, count in (("train", RECORDS), ("test", 4000)):
        index = chosen.permutation(len(found[f"y_{part}"]))[:count]
        x = (found[f"x_{part}"][index].astype("float32") - center) / 8
        parts += [torch.from_numpy(x), torch.from_numpy(found[f"y_{part}"][index]).long()]
    return parts[0], parts[1], parts[2], parts[3]


def digits() -> Data:
    """8 x 8 images of digits (UCI, with scikit-learn)."""
    found = load_digits()
    index = np.random.default_rng(0).permutation(len(found.target))
    x = torch.tensor(found.images[index] / 8 - 1, dtype=torch.float32)[:, None]
    y = torch.tensor(found.target[index])
    return x[:RECORDS], y[:RECORDS], x[RECORDS:], y[RECORDS:]


def perceptron(inputs: int, width: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, 10))


CASES: dict[str, tuple[Callable[[], Data], Callable[[], nn.Module]]] = {
    "CIFAR-10's features, softmax": (lambda: features("cifar10"), lambda: nn.Linear(64, 10)),
    "CIFAR-10's features, 64 tanh": (lambda: features("cifar10"), lambda: perceptron(64, 64)),
    "Fashion-MNIST's features, 64 tanh": (
        lambda: features("fashion-mnist"),
        lambda: perceptron(64, 64),
    ),
    "digits, 128 tanh": (digits, lambda: perceptron(64, 128)),
}


def accuracy(
    data: Data, make: Callable[[], nn.Module], ratio: float, rate: float, seed: int
) -> float:
    """Of one training, on the test records."""
    x, y, x_test, y_test = data
    torch.manual_seed(seed)
    module = make()
    params = {name: value.detach().clone() for name, value in module.named_parameters()}
    size = sum(value.numel() for value in params.values())
    std = CLIP * RECORDS * math.sqrt(ROUNDS / size) / ratio

    def loss(params: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(functional_call(module, params, (x[None],)), y[None])

    rows = vmap(grad(loss), (None, 0, 0))
    momentum = {name: torch.zeros_like(value) for name, value in params.items()}
    for _ in range(ROUNDS):
        made = rows(params, x, y)
        squares = [row.flatten(1).square().sum(1) for row in made.values()]
        norms = torch.stack(squares).sum(0).sqrt()
        scales = CLIP / norms.clamp(min=CLIP)
        for name, row in made.items():
            total = torch.tensordot(scales, row, 1) + std * torch.randn_like(params[name])
            momentum[name] = BETA * momentum[name] + (1 - BETA) * total / (RECORDS * CLIP)
            params[name] = params[name] - rate * momentum[name]
    scores = functional_call(module, params, (x_test,))
    return float((scores.argmax(1) == y_test).float().mean())


def main() -> None:
    torch.set_num_threads(1)
    writer = csv.writer(sys.stdout)
    lines: list[tuple[object, ...]] = [("model", "parameters", "ratio", "rate", "accuracy")]
    for label, (load, make) in CASES.items():
        data, size = load(), sum(value.numel() for value in make().parameters())
        for ratio in RATIOS:
            found = {
                rate: statistics.fmean(accuracy(data, make, ratio, rate, s) for s in SEEDS)
                for rate in RATES
            }
            best = max(found, key=lambda rate: found[rate])
            lines.append((label, size, ratio, best, round(found[best], 4)))
            writer.writerow(lines[-1])
            sys.stdout.flush()
    with OUT.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)


if __name__ == "__main__":
    main()
