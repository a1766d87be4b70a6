# SPDX-License-Identifier: Apache-2.0
"""The server: a private strategy, and an evaluation on test records that it holds."""

import json
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from dpfed.flower import DPStrategy, evaluate
from private_cnn.task import images, network, plan

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, print the guarantee, and leave the model."""
    dataset = images(context)
    model = network(dataset)

    def judge(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        params = model.layout.flatten(arrays.to_torch_state_dict())
        judged = evaluate(model, params, dataset.test)
        return MetricRecord({"accuracy": judged.accuracy, "loss": judged.loss})

    initial = ArrayRecord(model.layout.unflatten(model.initial(seed=0)))
    result = DPStrategy(plan(context)).start(grid, initial, evaluate_fn=judge)
    accuracy = result.evaluate_metrics_serverapp[len(result.history)]["accuracy"]
    print(f"accuracy {accuracy:.3f}; {result.guarantee}")
    if context.run_config["out"]:
        out = Path(str(context.run_config["out"]))
        out.mkdir(parents=True, exist_ok=True)
        report = {"accuracy": accuracy, "guarantee": str(result.guarantee)}
        (out / "result.json").write_text(json.dumps(report))
