"""The server: a private strategy, and an evaluation on test records that it holds."""

import json
from datetime import UTC, datetime
from pathlib import Path

from dpfed.core.errors import DpfedError
from dpfed.flower import (
    About,
    DPResult,
    DPStrategy,
    began_at,
    claim_folder,
    errors_in_one_sentence,
    evaluate,
    open_sinks,
    save_model,
)
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from safetensors.torch import save_file

from private_tables.task import ABOUT, MODEL, load_test, plan

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, print the guarantee, and leave the model with it."""
    errors_in_one_sentence()
    test = load_test()

    def judge(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        judged = evaluate(MODEL, MODEL.layout.flatten(arrays.to_torch_state_dict()), test)
        return MetricRecord({"accuracy": judged.accuracy, "loss": judged.loss})

    initial = ArrayRecord(MODEL.layout.unflatten(MODEL.initial(seed=0)))
    config, agreed = context.run_config, plan(context)
    kept = str(config["checkpoint"]) or None
    name = str(config["training"]) or (None if kept else f"private-tables-{context.run_id}")
    out = claim_folder(Path(str(config["out"])).expanduser(), str(name or kept))  # its own, always
    about = About("private-tables", out, agreed.guarantee().sentence)
    with open_sinks(str(config["sinks"]).split(), about) as add:
        strategy = DPStrategy(agreed, training=name, checkpoint=kept, watch=add, wait=300.0)
        result = strategy.start(grid, initial, evaluate_fn=judge)
        about.finished = str(result.guarantee)
    if not any(row["round"] for row in result.history):
        raise DpfedError(f"nothing was trained: {result.stopped}")
    known = [row["accuracy"] for row in result.history if row["accuracy"] is not None]
    accuracy = known[-1] if known else None
    print(f"accuracy {accuracy}; {result.guarantee}\nmodel and guarantee in {out}")
    save_model(
        out / "model",
        result,
        MODEL,
        name="private-tables",
        tested=len(test),
        data=str(config["data"]),
        **ABOUT,
    )
    leave(out, result, {
        "training": strategy.step.state.training,
        "accuracy": accuracy,
        "data": str(config["data"]),
        "participants": len(agreed.nominal),
        "units": sum(agreed.nominal),
        "answered": result.answered,
        "rounds_asked": agreed.rounds,
        "wasted_attempts": result.wasted_attempts,
        "started": began_at(out),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    })


def leave(out: Path, result: DPResult, facts: dict[str, object]) -> None:
    """What 'dpfed explain' reads, and the model."""
    params = result.arrays.to_torch_state_dict()
    tensors = {name: each.contiguous() for name, each in params.items()}
    save_file(tensors, out / "model.safetensors", metadata={"guarantee": str(result.guarantee)})
    about = {
        **facts,
        "evaluation": "on test records that the server holds",
        "stopped": result.stopped,
    }
    guarantee = {**result.guarantee.to_json(), **about}
    (out / "guarantee.json").write_text(json.dumps(guarantee, indent=2), encoding="utf-8")
