# SPDX-License-Identifier: Apache-2.0
"""An app's train function in shards, by ``flwr run`` and real SuperNodes: bits of one process."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dpfed.data import shard_process
from dpfed.flower import DPStrategy
from tests.helpers.deployments import SILOS, environment, write_app
from tests.training.flower.local_grid import LocalGrid, become_a_server, nodes
from tests.training.flower.network import Net

pytestmark = [pytest.mark.slow, pytest.mark.long]  # CI has the same on a grid of this process
NODES = 3
TASK = f"""
import torch
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from safetensors.torch import save_file
from torch.utils.data import DataLoader, TensorDataset

from dpfed.flower import DPStrategy, Shards, make_plan, private, shard


def plan(context=None):
    privacy = {{"epsilon": 20.0, "noise": "keyed", "clip": 0.5}}
    return make_plan([60] * {NODES}, train={{"shards": 5}}, rounds=2, privacy=privacy)


def load(context):
    made = torch.Generator().manual_seed(context.node_config["partition-id"])
    x = torch.randn(60, 4, generator=made)
    return DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=8, shuffle=True)


app = ClientApp(mods=[private(plan, shards=Shards(load, seconds=10.0))])


@app.train()
def fit(message, context):
    net = torch.nn.Linear(4, 2)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in shard():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return Message(RecordDict({{"arrays": ArrayRecord(net.state_dict())}}), reply_to=message)


def start():
    return ArrayRecord({{"weight": torch.zeros(2, 4), "bias": torch.zeros(2)}})


server = ServerApp()


@server.main()
def main(grid, context):
    result = DPStrategy(plan(), wait=120).start(grid, start())
    save_file(result.arrays.to_torch_state_dict(), context.run_config["out"])
"""


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    yield
    for each in shard_process._RUNNING.values():
        each.close()
    sys.modules.pop("wardshards.task", None)


def test_supernodes_train_the_model_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "model.safetensors"
    names = {"server": "wardshards.task:server", "client": "wardshards.task:app"}
    folder = write_app(tmp_path / "app", **names, config={"out": str(out)})
    (folder / "wardshards").mkdir()
    (folder / "wardshards/__init__.py").touch()
    (folder / "wardshards/task.py").write_text(TASK)
    with Net(tmp_path, SILOS[:NODES], env=environment(tmp_path)) as net:
        run = net.run(folder, {"out": str(out)}, timeout=300)
        assert run.completed, (run, net.tail("superlink"))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("DPFED_STATE", str(tmp_path / "here"))
    become_a_server(monkeypatch)
    task = importlib.import_module("wardshards.task")
    grid = LocalGrid(task.app, nodes(NODES))
    here = DPStrategy(task.plan(), wait=0.1).start(grid, task.start()).arrays.to_torch_state_dict()
    left = load_file(out)
    assert left.keys() == here.keys()
    assert all(torch.equal(left[name], here[name]) for name in here)
    assert all(each.any() for each in here.values())
