# SPDX-License-Identifier: Apache-2.0
"""The model, the records and the plan of the task that the run_config names."""

from typing import Any

import torch
from flwr.app import Context

from dpfed.flower import make_plan
from own_models import tasks


def network(context: Context) -> Any:
    """Built under a seed, so that all nodes begin alike."""
    torch.manual_seed(0)
    return tasks.MODELS[str(context.run_config["task"])](str(context.run_config["folder"]))


def records(context: Context, partition: int) -> Any:
    """The records of one partition; those of -1 are the server's own, for tests."""
    return tasks.RECORDS[str(context.run_config["task"])](partition % 1000)


def plan(context: Context) -> Any:
    """The guarantee: each record, over all rounds."""
    config = context.run_config
    sizes, rounds = [tasks.SIZE] * int(config["num-clients"]), config["num-server-rounds"]
    privacy = {key: config[key] for key in ("epsilon", "delta", "clip")}
    server = [{"name": "ema"}, {"name": "scale", "rate": config["rate"]}]
    return make_plan(sizes, rounds=rounds, privacy=privacy, server=server)
