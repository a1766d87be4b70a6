# SPDX-License-Identifier: Apache-2.0
"""The client: train the model on the node's own records."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.utils.data import DataLoader

from own_models.task import loss_of, network, records

app = ClientApp()


@app.train()
def fit(message: Message, context: Context) -> Message:
    """One pass over this client's records."""
    model = network(context)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    data, collate = records(context, context.node_config["partition-id"])
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for inputs, targets in DataLoader(data, batch_size=32, collate_fn=collate):
        optimizer.zero_grad()
        loss_of(context, model, inputs, targets).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(data)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)
