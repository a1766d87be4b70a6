# SPDX-License-Identifier: Apache-2.0
"""A Flower app whose train function runs in shards: each one's process imports this module."""

from __future__ import annotations

from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch.utils.data import DataLoader, TensorDataset

from dpfed.flower import Shards, make_plan, private, shard
from dpfed.training.plan import Plan
from tests.helpers.records import make_records
from tests.helpers.train_functions import _torch_loop, head

NODES, RECORDS, SHARDS = 2, 60, 6


def plan(context: Context | None = None) -> Plan:
    del context
    privacy = {"epsilon": 2.0, "noise": "keyed", "clip": 0.5}
    return make_plan([RECORDS] * NODES, train={"shards": SHARDS}, rounds=2, privacy=privacy)


def load(context: Context) -> Any:
    records = make_records(RECORDS, 4, 3, seed=int(context.node_config["partition-id"]))
    return DataLoader(TensorDataset(records.x, records.y), batch_size=8, shuffle=True)


def fit(message: Message, context: Context) -> Message:
    """As an app has it, but for the line that gets the data."""
    del context
    net = head()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    _torch_loop(net, shard(), epochs=1, lr=0.1, device="cpu")
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict())}), reply_to=message)


def fills_its_state(message: Message, context: Context) -> Message:
    context.state["seen"] = ConfigRecord({"rounds": 1})
    return fit(message, context)


def app_of(train: Any, plan: Any = plan) -> ClientApp:
    made = ClientApp(mods=[private(plan, shards=Shards(load, seconds=5.0))])
    made.train()(train)
    return made


def start() -> ArrayRecord:
    return ArrayRecord({"weight": torch.zeros(3, 4), "bias": torch.zeros(3)})
