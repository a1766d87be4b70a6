# SPDX-License-Identifier: Apache-2.0
"""The study's two apps as Flower runs them: functions unchanged, in shards by the defaults.

``shards.py flower`` runs it in Flower's simulation, and says in the environment which. Each shard
has a process of its own, with this module and one shard's records: the modules that load data are
imported in the node's process, and not there.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import train_functions
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch.utils.data import DataLoader, TensorDataset

from dpfed.flower import DPStrategy, Shards, make_plan, private, shard

SETTING, ANSWER = "DPFED_SHARDS_STUDY", "found.json"
ROUNDS = 10
SETS: dict[str, tuple[str, list[float], tuple[int, int]]] = {
    "PyTorch head": ("CIFAR-10", [5000.0] * 10, (10, 64)),
    "scikit-learn": ("Adult", [3257.0, *[3256.0] * 9], (1, 123)),
}
"""The records, how many each silo has, and the shape of the weights."""


def setting() -> dict[str, Any]:
    """App, trust, epsilon, epochs and seed."""
    found: dict[str, Any] = json.loads(os.environ[SETTING])
    return found


def start() -> ArrayRecord:
    *_, shape = SETS[setting()["app"]]
    return ArrayRecord({"weight": torch.zeros(shape), "bias": torch.zeros(shape[0])})


def plan(context: Context) -> Any:
    """Shards, clip, adaptive clip and server: nothing is said, so all are the defaults."""
    del context
    told = setting()
    privacy = {"epsilon": told["epsilon"], "delta": 1e-5, "trust": told["trust"]}
    sums: dict[str, Any] = {"sum": {"name": "secure"}} if told["trust"] == "distributed" else {}
    model, sizes = start().to_torch_state_dict(), SETS[told["app"]][1]
    return make_plan(sizes, model, train={}, rounds=ROUNDS, privacy=privacy, **sums)


def records() -> Any:
    import shards

    return shards.load(SETS[setting()["app"]][0], setting()["seed"])


def load(context: Context) -> Any:
    x, y = records().silos[context.node_config["partition-id"]]
    if setting()["app"] == "scikit-learn":
        return x.double().numpy(), y.numpy()
    return DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)


client = ClientApp(mods=[private(plan, shards=Shards(load, seconds=5.0))])


@client.train()
def fit(message: Message, context: Context) -> Message:
    del context  # and the environment says nothing here: a shard's process has none of its node's
    state = message.content.array_records["arrays"].to_torch_state_dict()
    told = message.content.config_records["config"]
    after = (_sklearn if told["app"] == "scikit-learn" else _torch)(state, int(str(told["epochs"])))
    return Message(RecordDict({"arrays": ArrayRecord(after)}), reply_to=message)


def _torch(state: dict[str, torch.Tensor], epochs: int) -> dict[str, torch.Tensor]:
    outputs, features = state["weight"].shape
    net = torch.nn.Linear(features, outputs)
    net.load_state_dict(state)
    train_functions.train(net, shard(), epochs, 0.1, torch.device("cpu"))
    return net.state_dict()


def _sklearn(state: dict[str, torch.Tensor], epochs: int) -> dict[str, torch.Tensor]:
    from sklearn.linear_model import SGDClassifier

    model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.01)
    model.coef_, model.intercept_ = (state[n].double().numpy() for n in ("weight", "bias"))
    for _ in range(epochs):
        x, y = shard()
        train_functions.fit(model, x, y, classes=2)
    found = {"weight": model.coef_, "bias": model.intercept_}
    return {name: torch.from_numpy(np.asarray(each)).float() for name, each in found.items()}


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    from simulated_shards import accuracy  # now: what is amiss here ends the run at its start

    made, began = plan(context), time.monotonic()
    told = ConfigRecord({name: setting()[name] for name in ("app", "epochs")})
    result = DPStrategy(made, wait=600.0).start(grid, start(), train_config=told)
    seconds = (time.monotonic() - began) / ROUNDS
    model = result.arrays.to_torch_state_dict()
    head = torch.cat([model["weight"].T, model["bias"][None]])
    found = {
        "shards": made.shards[0],
        "rounds": len(result.history) if result.stopped is None else result.stopped,
        "epsilon": round(result.guarantee.epsilon, 4) if result.guarantee else None,
        "seconds": round(seconds, 1),
        "accuracy": accuracy(head, *records().test),
        "history": [{name: str(value) for name, value in row.items()} for row in result.history],
    }
    path = Path(str(context.run_config["out"])) / ANSWER
    path.with_suffix(".tmp").write_text(json.dumps(found), encoding="utf-8")
    path.with_suffix(".tmp").rename(path)
