# SPDX-License-Identifier: Apache-2.0
"""Rounds of pfl-research on the records of devices.py: run with a Python that has pfl, not dpfed.

    python benchmarks/_pfl_round.py 1000 10      prints the seconds of each of 10 rounds

One full-batch step of SGD at each user, the difference clipped in the l2 norm, noise by the server.
"""

from __future__ import annotations

import itertools
import json
import logging
import sys
import time
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

FEATURES, CLASSES, EACH, CLIP, NOISE = 64, 10, 5, 7.0, 1.0  # as devices.py


class Softmax(torch.nn.Linear):
    """The linear model, as pfl asks for it."""

    def loss(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:
        """The mean cross-entropy."""
        self.eval() if eval else self.train()
        return torch.nn.functional.cross_entropy(self(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        """Only where rounds are evaluated; these are not."""
        return {"loss": Weighted(len(y) * self.loss(x, y, eval=True).item(), len(y))}


class Clock(TrainingProcessCallback):  # type: ignore[misc]
    """When each round ended."""

    def __init__(self) -> None:
        self.times = [time.perf_counter()]

    def after_central_iteration(self, *args: Any, **kwargs: Any) -> tuple[bool, Metrics]:
        """Note it."""
        del args, kwargs
        self.times.append(time.perf_counter())
        return False, Metrics()


def users(count: int) -> FederatedDataset:
    """The same random records, five for each user; users one after the other."""
    made = torch.Generator().manual_seed(0)
    x = torch.randn(count * EACH, FEATURES, generator=made)
    y = torch.randint(CLASSES, (count * EACH,), generator=made)
    sets = [Dataset((x[i : i + EACH], y[i : i + EACH])) for i in range(0, count * EACH, EACH)]
    return FederatedDataset(lambda user: sets[user], itertools.cycle(range(count)).__next__)


def seconds(count: int, rounds: int) -> list[float]:
    """Of each round after the first two, which load what is lazy."""
    torch.set_num_threads(1)
    np.random.seed(0)
    model = Softmax(FEATURES, CLASSES)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    wrapped = PyTorchModel(
        model, torch.optim.SGD, central_optimizer=torch.optim.SGD(model.parameters(), 0.1)
    )
    privacy = CentrallyAppliedPrivacyMechanism(GaussianMechanism(CLIP, NOISE))
    backend = SimulatedBackend(users(count), None, postprocessors=[privacy])
    plan = NNAlgorithmParams(
        central_num_iterations=rounds + 2,
        evaluation_frequency=10**9,
        train_cohort_size=count,
        val_cohort_size=None,
    )
    steps = NNTrainHyperParams(local_batch_size=None, local_num_epochs=1, local_learning_rate=1.0)
    clock = Clock()
    FederatedAveraging().run(plan, backend, wrapped, steps, callbacks=[clock])
    return [after - before for before, after in zip(clock.times, clock.times[1:], strict=False)][2:]


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    sys.stdout.write(json.dumps(seconds(int(sys.argv[1]), int(sys.argv[2]))) + "\n")
