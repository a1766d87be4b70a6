# SPDX-License-Identifier: Apache-2.0
"""The empty Flower app of start_up.py: one round of numbers to all nodes and back."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

client = ClientApp()
server = ServerApp()
SILOS = 3


@client.train()
def train(message: Message, context: Context) -> Message:
    """What came goes back."""
    del context
    return Message(message.content, reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """One round; its end is a file."""
    while len(nodes := list(grid.get_node_ids())) < SILOS:
        time.sleep(0.01)
    numbers = ArrayRecord({"weight": Array(np.zeros(21, np.float32))})
    content = RecordDict({"arrays": numbers, "config": ConfigRecord()})
    sent = set(grid.push_messages([Message(content, n, "train", ttl=600) for n in nodes]))
    while sent:
        for reply in grid.pull_messages(sent):
            sent.discard(reply.metadata.reply_to_message_id)
        time.sleep(0.01)
    out = Path(str(context.run_config["out"]))
    out.mkdir(parents=True)
    (out / "metrics.jsonl").touch()
