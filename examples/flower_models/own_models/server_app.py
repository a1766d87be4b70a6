# SPDX-License-Identifier: Apache-2.0
"""The server: a private strategy, and an evaluation on test records that it holds."""

import json
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from dpfed.flower import DPStrategy, evaluate, save_adapter
from own_models.task import network, plan, records

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, print the guarantee, and leave the model."""
    model, test = network(context), records(context, -1)

    def judge(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        judged = evaluate(model, model.layout.flatten(arrays.to_torch_state_dict()), test)
        return MetricRecord({"accuracy": judged.accuracy, "loss": judged.loss})

    initial = ArrayRecord(model.layout.unflatten(model.initial(seed=0)))
    result = DPStrategy(plan(context)).start(grid, initial, evaluate_fn=judge)
    first = evaluate(model, model.initial(seed=0), test).loss
    last = result.evaluate_metrics_serverapp[len(result.history)]["loss"]
    print(f"loss {first:.3f} -> {last:.3f}; {result.guarantee}")
    if context.run_config["out"]:
        out = Path(str(context.run_config["out"]))
        out.mkdir(parents=True, exist_ok=True)
        report = {"before": first, "loss": last, "guarantee": str(result.guarantee)}
        (out / "result.json").write_text(json.dumps(report))
        if context.run_config["task"] == "text":
            params = model.layout.flatten(result.arrays.to_torch_state_dict())
            save_adapter(model, params, out / "adapter")
