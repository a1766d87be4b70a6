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
    """Train, and leave the model."""
    model, test = network(context), records(context, -1)

    def judge(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        params = model.layout.flatten(arrays.to_torch_state_dict())
        return MetricRecord({"loss": evaluate(model, params, test).loss})

    initial = ArrayRecord(model.layout.unflatten(model.initial(seed=0)))
    result = DPStrategy(plan(context)).start(grid, initial, evaluate_fn=judge)
    trained = result.arrays.to_torch_state_dict()
    first, last = judge(0, initial)["loss"], judge(0, result.arrays)["loss"]
    print(f"loss {first:.3f} -> {last:.3f}")
    if context.run_config["out"]:
        out = Path(str(context.run_config["out"]))
        out.mkdir(parents=True, exist_ok=True)
        report = {"before": first, "loss": last, "guarantee": str(result.guarantee)}
        (out / "result.json").write_text(json.dumps(report))
        if context.run_config["task"] == "text":
            save_adapter(model, model.layout.flatten(trained), out / "adapter")
