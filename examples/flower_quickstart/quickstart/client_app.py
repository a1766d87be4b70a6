# SPDX-License-Identifier: Apache-2.0
"""The client: train and evaluate the model on the node's own data."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.task import load_data, loss_of, make_model, train

app = ClientApp()


@app.train()
def fit(message: Message, context: Context) -> Message:
    model = make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    data = load_data(context.node_config["partition-id"])
    loss = train(model, data, message.content["config"]["lr"])
    arrays = ArrayRecord(model.state_dict())
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(data[0])})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def check(message: Message, context: Context) -> Message:
    model = make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    data = load_data(context.node_config["partition-id"])
    metrics = MetricRecord({"eval_loss": loss_of(model, data), "num-examples": len(data[0])})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
