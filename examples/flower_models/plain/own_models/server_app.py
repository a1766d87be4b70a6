# SPDX-License-Identifier: Apache-2.0
"""The server: average the clients' models, and judge them on test records that it holds."""

import json
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch.utils.data import DataLoader

from own_models.task import loss_of, network, records

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and leave the model."""
    model, (test, collate) = network(context), records(context, -1)
    ((inputs, targets),) = DataLoader(test, batch_size=len(test), collate_fn=collate)

    @torch.no_grad()
    def judge(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"loss": loss_of(context, model, inputs, targets).item()})

    initial = ArrayRecord(model.state_dict())
    rounds = int(context.run_config["num-server-rounds"])
    strategy = FedAvg(fraction_evaluate=0.0)
    result = strategy.start(grid, initial, num_rounds=rounds, evaluate_fn=judge)
    trained = result.arrays.to_torch_state_dict()
    first, last = judge(0, initial)["loss"], judge(0, result.arrays)["loss"]
    print(f"loss {first:.3f} -> {last:.3f}")
    if context.run_config["out"]:
        out = Path(str(context.run_config["out"]))
        out.mkdir(parents=True, exist_ok=True)
        report = {"before": first, "loss": last}
        (out / "result.json").write_text(json.dumps(report))
        if context.run_config["task"] == "text":
            model.load_state_dict(trained)
            model.save_pretrained(out / "adapter")
