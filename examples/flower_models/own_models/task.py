# SPDX-License-Identifier: Apache-2.0
"""The model, the records and the plan of the task that the run_config names."""

from typing import Any

import torch
from flwr.app import Context

from dpfed import Plan
from dpfed.flower import Network, make_plan
from own_models.tasks import SIZE, TASKS


def network(context: Context) -> Network:
    """Built under a seed, so that all nodes begin alike."""
    torch.manual_seed(0)
    return TASKS[str(context.run_config["task"])][0](str(context.run_config["folder"]))


def records(context: Context, partition: int) -> Any:
    """The records of one partition; those of -1 are the server's own, for tests."""
    return TASKS[str(context.run_config["task"])][1](partition % 1000)


def plan(context: Context) -> Plan:
    """The guarantee: each record, over all rounds."""
    config = context.run_config
    return make_plan(
        nominal=[SIZE] * int(config["num-clients"]),
        rounds=config["num-server-rounds"],
        privacy={key: config[key] for key in ("epsilon", "delta", "clip")},
        server=[{"name": "ema"}, {"name": "scale", "rate": config["rate"]}],
    )
