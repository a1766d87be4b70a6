# SPDX-License-Identifier: Apache-2.0
"""The model, the records and the loss of the task that the run_config names."""

from typing import Any

import torch
from flwr.app import Context

from own_models import tasks


def network(context: Context) -> Any:
    """Built under a seed, so that all nodes begin alike."""
    torch.manual_seed(0)
    return tasks.MODELS[str(context.run_config["task"])](str(context.run_config["folder"]))


def records(context: Context, partition: int) -> Any:
    """The records of one partition; those of -1 are the server's own, for tests."""
    return tasks.RECORDS[str(context.run_config["task"])](partition % 1000)


def loss_of(context: Context, model: Any, inputs: Any, targets: Any) -> torch.Tensor:
    """The mean loss of a batch."""
    scores = model(**inputs).logits if isinstance(inputs, dict) else model(inputs)
    return tasks.LOSSES[str(context.run_config["task"])](scores, targets)
