#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""The development sets of networks-untuned: which clip, rate and rounds Adam needs, by network.

    DPFED_DATA=FOLDER lab/studies/networks-untuned/development.py development.csv
    DPFED_DATA=FOLDER lab/studies/networks-untuned/development.py full-batch.csv adult credit mnist

A loop of its own around dpfed's rows: one site, one record by zero-out, drawn with probability 0.1
in each round, noise by dp-accounting's RDP, seed 0. A rate falls to 0. The frozen rule is the rate
0.05; a negative one is what was tried before it, that strength times the typical size of an initial
parameter over sqrt(rounds). ``full`` takes all records in each round, and is how far one may move
the sum, in clips: 1 under zero-out, 2 under replace-one. ``quantile`` lets the clip follow that quantile of the norms; its counts have
noise of 2, which no budget pays for here. Judged on test records: these sets are for choosing.
Needs images/mnist.npz and images/fashion-mnist.npz (lab/scripts/fetch_images.py) and tables/.
"""

from __future__ import annotations

import csv
import math
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import torch
from torch import nn

from dpfed.data.batches import Batch
from dpfed.data.layer_hooks import factors_of
from dpfed.data.modules import Network
from dpfed.data.networks import groupnorm_cnn, mlp
from dpfed_lab.benchmarks.row_time import lenet

DRAWN, DELTA, BETA1, BETA2 = 0.1, 1e-5, 0.9, 0.99
Split = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@cache
def data(name: str) -> Split:
    root, rng = Path(os.environ["DPFED_DATA"]), np.random.default_rng(100)
    if name in ("fashion-mnist", "mnist"):
        found = np.load(root / f"images/{name}.npz")
        x, y, test, labels = (found[n] for n in ("x_train", "y_train", "x_test", "y_test"))
        kept = rng.permutation(len(x))[:5000]
        return (_image(x[kept]), _long(y[kept]), _image(test[:5000]), _long(labels[:5000]))
    if name == "adult":
        found = np.load(root / "tables/a9a.npz")
        x, y, test, labels = (found[n] for n in ("x_train", "y_train", "x_test", "y_test"))
        kept, size = rng.permutation(len(x))[:10_000], math.sqrt(14)
        return _real(x[kept] / size), _long(y[kept] > 0), _real(test / size), _long(labels > 0)
    found = np.load(root / "tables/credit-default.npz")
    order = np.random.default_rng(5).permutation(len(found["x"]))
    x, y = found["x"][order], found["y"][order] > 0
    x = np.sign(x) * np.log1p(np.abs(x)) / 12
    kept = rng.permutation(24_000)[:10_000]
    return _real(x[kept]), _long(y[kept]), _real(x[24_000:]), _long(y[24_000:])


def _image(x: Any) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float32)[:, None] / 255


def _real(x: Any) -> torch.Tensor:
    return torch.tensor(np.asarray(x, dtype=np.float32))


def _long(y: Any) -> torch.Tensor:
    return torch.tensor(np.asarray(y).astype(np.int64))


def module(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "mnist":
        return groupnorm_cnn(inputs=1, channels=(8, 16), pool=2)
    return lenet() if name == "fashion-mnist" else mlp({"adult": 123, "credit": 23}[name])


@cache
def multiplier(epsilon: float, rounds: int, drawn: float) -> float:
    def event(noise: float) -> dp_accounting.DpEvent:
        one: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(noise)
        if drawn < 1:
            one = dp_accounting.PoissonSampledDpEvent(drawn, one)
        return dp_accounting.SelfComposedDpEvent(one, rounds)

    bracket = dp_accounting.LowerEndpointAndGuess(0.3 if drawn < 1 else 2.0, 4.0)
    found = dp_accounting.calibrate_dp_mechanism(
        dp_accounting.rdp.RdpAccountant, event, epsilon, DELTA, bracket_interval=bracket
    )
    return float(found)


def clipped(
    model: Network, params: torch.Tensor, batch: Batch, clip: float
) -> tuple[torch.Tensor, int]:
    """The clipped sum, and how many rows were within the clip."""
    factors, total, within = factors_of(model, params), torch.zeros(params.numel()).double(), 0
    chunk = 64 if len(batch) <= 2000 else 1000
    for at in range(0, len(batch), chunk):
        layers = factors(batch[at : at + chunk])
        norms = torch.stack([layer.norms().norms for layer in layers]).square().sum(dim=0).sqrt()
        weights = (clip / norms).clamp(max=1.0)
        parts = torch.split(total, [each.size for each in layers])
        for layer, part in zip(layers, parts, strict=True):
            layer.add_to(part, weights)
        within += int((norms <= clip).sum())
    return total.float(), within


def accuracy(
    name: str,
    epsilon: float,
    rounds: int,
    rate: float,
    clip: float = 1.0,
    quantile: float = 0.0,
    debias: bool = False,
    full: float = 0.0,
    adam: bool = True,
) -> float:
    x, y, test, labels = data(name)
    model = Network(module(name), sampler="ghost")
    rate_of_draws = 1.0 if full else DRAWN
    params, expected = model.initial(0), rate_of_draws * len(x)
    if rate < 0:
        rate = -rate * float(params.norm()) / math.sqrt(params.numel() * rounds)
    generator = torch.Generator().manual_seed(777)
    m, v = torch.zeros_like(params), torch.zeros_like(params)
    for t in range(rounds):
        std = (full or 1.0) * multiplier(epsilon, rounds, rate_of_draws) * clip / expected
        drawn = torch.rand(len(x), generator=generator) < rate_of_draws
        total, within = clipped(model, params, Batch(x[drawn], y[drawn]), clip)
        G = total / expected + std * torch.randn(params.numel(), generator=generator)
        if quantile:
            G, std = G / clip, std / clip
            share = (within + 2.0 * float(torch.randn((), generator=generator))) / expected
            clip *= math.exp(-0.2 * (share - quantile))
        if not adam:  # DP-FedGD: what networks had before
            params = params - rate * G
            continue
        m, v = m.lerp(G, 1 - BETA1), v.lerp(G * G, 1 - BETA2)
        second = v / (1 - BETA2 ** (t + 1))
        if debias:
            second = (second - std**2).clamp(min=0.25 * std**2)
        step = m / (1 - BETA1 ** (t + 1)) / (second.sqrt() + 1e-10)
        params = params - rate * (1 - t / rounds) * step
    with torch.no_grad():
        scores = torch.cat([model.score(params, part) for part in torch.split(test, 1000)])
    return float((scores.argmax(1) == labels).double().mean())


CELLS = {"adult": 3.0, "credit": 3.0, "mnist": 3.0, "fashion-mnist": 8.0}
SETTINGS: list[dict[str, Any]] = [
    *({"rounds": 100, "rate": rate} for rate in (0.001, 0.003, 0.01, 0.03, 0.05)),
    *({"rounds": 100, "rate": rate, "quantile": 0.5} for rate in (0.01, 0.03)),
    *({"rounds": 100, "rate": -strength} for strength in (1.5, 3.0, 6.0)),
    {"rounds": 100, "rate": -3.0, "quantile": 0.8},
    {"rounds": 100, "rate": -3.0, "debias": True},
    {"rounds": 200, "rate": -3.0},
]


FULL: list[dict[str, Any]] = [
    {"rounds": 100, "rate": 0.05, "full": 1.0},
    {"rounds": 100, "rate": 0.05, "full": 2.0},
    {"rounds": 70, "rate": 1.0, "full": 2.0, "adam": False},
]


def write_full(path: Path, names: list[str]) -> None:
    """Full batches beside what networks had before, DP-FedGD at rate 1."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["set", "epsilon", "adjacency", "method", "rounds", "rate", "accuracy"])
        for name in names:
            for each in FULL:
                adjacency = "zero-out" if each["full"] == 1 else "replace-one"
                method = "dp-fedgd" if "adam" in each else "adam"
                found = round(accuracy(name, CELLS[name], **each), 4)
                more = (each["rounds"], each["rate"], found)
                writer.writerow([name, CELLS[name], adjacency, method, *more])
                file.flush()


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[2:]:
        write_full(Path(sys.argv[1]), sys.argv[2:])
        return
    with Path(sys.argv[1]).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["set", "epsilon", "rounds", "rate", "clip", "quantile", "debias", "accuracy"]
        )
        for name, epsilon in CELLS.items():
            for each in SETTINGS:
                found = accuracy(name, epsilon, **each)
                more = (1.0, each.get("quantile", ""), each.get("debias", False))
                writer.writerow(
                    [name, epsilon, each["rounds"], each["rate"], *more, round(found, 4)]
                )
                file.flush()


if __name__ == "__main__":
    main()
