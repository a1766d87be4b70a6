# SPDX-License-Identifier: Apache-2.0
"""Drawn minibatches against full batches under replace-one: accuracy, and time of the processor.

    python -m dpfed_lab.benchmarks.minibatches --adult a9a.npz --fashion FOLDER

Both are the default of networks (Adam on noisy gradients of records, paced); one draws a tenth of
the records in each step, the other takes all of them. One silo, so that few records suffice, local
trust, epsilon for each record under replace-one at delta 1e-5. The noise of an epsilon is searched
once. Data: Adult as LIBSVM's a9a, Fashion-MNIST as Debian's dataset-fashion-mnist has it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import dpfed
from dpfed.flower import make_plan

MEASURES = ("dpfed.accounting.triangle", "dpfed.core.rows", "dpfed.data.modules")

SILOS, TEST = 1, 2000
RECORDS = {"adult": 6000, "fashion": 1500}
ROUNDS = {"adult": 40, "fashion": 20}


def adult(path: Path) -> tuple[Any, Any]:
    """Features in [0, 1] and labels 0 and 1, in the file's order: (train, test)."""
    files = np.load(path)
    names = ("x_train", "y_train", "x_test", "y_test")
    x, y, x_test, y_test = (files[name] for name in names)
    return _pair(x, y > 0), _pair(x_test, y_test > 0)


def fashion(folder: Path) -> tuple[Any, Any]:
    """Images [1, 28, 28] in [0, 1] and their classes: (train, test)."""

    def read(kind: str) -> Any:
        images = gzip.decompress((folder / f"{kind}-images-idx3-ubyte.gz").read_bytes())[16:]
        labels = gzip.decompress((folder / f"{kind}-labels-idx1-ubyte.gz").read_bytes())[8:]
        x = np.frombuffer(images, np.uint8).reshape(-1, 1, 28, 28) / 255
        return _pair(x, np.frombuffer(labels, np.uint8))

    return read("train"), read("t10k")


def _pair(x: Any, y: Any) -> Any:
    return torch.tensor(np.asarray(x, np.float32)), torch.tensor(np.asarray(y, np.int64))


def network(name: str, seed: int) -> nn.Module:
    """The CNN of Papernot et al.'s MNIST study, or a perceptron with one hidden layer."""
    torch.manual_seed(seed)
    if name == "adult":
        return nn.Sequential(nn.Linear(123, 32), nn.Tanh(), nn.Linear(32, 2))
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


def noise(name: str, epsilon: float, rate: float) -> float:
    """The noise over the clip that an epsilon needs."""
    privacy = {"epsilon": epsilon, "record_rate": rate}
    size = RECORDS[name] // SILOS
    plan = make_plan([size] * SILOS, rounds=ROUNDS[name], method="dp-fedgd", privacy=privacy)
    return plan.update.std / plan.update.clip


def accuracy(name: str, data: Any, std: float, seed: int, rate: float) -> tuple[float, float]:
    """The test accuracy of one run, and the seconds of the processor that it took."""
    (x, y), (x_test, y_test) = data
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    chosen = chosen[: RECORDS[name]]
    module, began = network(name, seed), time.process_time()
    result = dpfed.run(
        data={"source": (x[chosen], y[chosen]), "partition": {"clients": SILOS}},
        model=module,
        privacy={"std_over_clip": std, "record_rate": rate},
        rounds=ROUNDS[name],
        seed=seed,
        evaluation={"every": ROUNDS[name]},
    )
    spent = time.process_time() - began
    module.load_state_dict(result.model.layout.unflatten(result.params), strict=False)
    with torch.no_grad():
        right = module(x_test[:TEST]).argmax(dim=1) == y_test[:TEST]
    return float(right.float().mean()), spent


def main() -> None:
    """Print a line of JSON for each data set, epsilon and kind of batch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--adult", type=Path)
    parser.add_argument("--fashion", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    print(json.dumps({"date": datetime.now(UTC).date().isoformat(), "cores": os.cpu_count()}))
    for name, read in (("adult", adult), ("fashion", fashion)):
        if getattr(given, name) is None:
            continue
        data = read(getattr(given, name))
        for epsilon in (3.0, 8.0):
            for rate in (0.1, 1.0):
                began = time.process_time()
                std = noise(name, epsilon, rate)
                search = time.process_time() - began
                made = [accuracy(name, data, std, seed, rate) for seed in range(given.seeds)]
                right, seconds = zip(*made, strict=True)
                figures = {
                    "data": name,
                    "records": RECORDS[name],
                    "rounds": ROUNDS[name],
                    "epsilon": epsilon,
                    "rate": rate,
                    "std_over_clip": round(std, 4),
                    "search_cpu_seconds": round(search, 1),
                    "accuracy": round(statistics.mean(right), 4),
                    "spread": round(statistics.stdev(right), 4) if len(right) > 1 else None,
                    "each": [round(one, 4) for one in right],
                    "cpu_seconds": round(statistics.mean(seconds), 1),
                }
                print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
