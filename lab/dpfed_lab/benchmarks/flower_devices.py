# SPDX-License-Identifier: Apache-2.0
"""A round of 100 small clients in one process, against the same in Flower's simulation.

The same model (650 parameters), five records for each client, one full-batch step, clipped to 7,
Gaussian noise of the server: there by FedAvg in Flower's own wrapper for central DP, on nodes that
Flower's simulation starts; here in one process (devices.py). Rounds take turns in one ServerApp.
Not alike: Flower moves messages between processes and adds floats up; it is made to be the same on
many machines, which the one process is not.
"""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from dpfed.training.flower.client import client_index
from dpfed_lab.benchmarks import devices, round_time
from dpfed_lab.benchmarks._measure import Result, Task, compare, interleaved, threads
from dpfed_lab.benchmarks._simulated import Timings, simulated, timing_app

MEASURES = (
    "dpfed.training.inprocess",
    "dpfed.training.round",
)

CLIENTS = 100
REPEATS = 5


def _app() -> ClientApp:
    """One step of size 1 along the mean gradient, by autograd."""
    made = ClientApp()
    records = round_time.random_records(CLIENTS * devices.EACH)

    @made.train()
    def train(message: Message, context: Context) -> Message:
        first = client_index(context) * devices.EACH
        mine = records.take(torch.arange(first, first + devices.EACH))
        model = torch.nn.Linear(round_time.FEATURES, round_time.CLASSES)
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        torch.nn.functional.cross_entropy(model(mine.x), mine.y).backward()  # type: ignore[no-untyped-call]
        torch.optim.SGD(model.parameters(), lr=1.0).step()
        metrics = MetricRecord({"num-examples": devices.EACH})
        reply = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(reply, reply_to=message)

    return made


def measure(grid: Grid) -> Timings:
    """Both by turns, in the ServerApp."""
    model = torch.nn.Linear(round_time.FEATURES, round_time.CLASSES)
    arrays = ArrayRecord(model.state_dict())
    fedavg = FedAvg(
        fraction_train=1.0,
        fraction_evaluate=0.0,
        min_train_nodes=CLIENTS,
        min_available_nodes=CLIENTS,
    )
    private = DifferentialPrivacyServerSideFixedClipping(fedavg, 1.0, round_time.CLIP, CLIENTS)
    with threads(1):
        problems = round_time.split(round_time.random_records(CLIENTS * devices.EACH), CLIENTS)
        turn = round_time.player(devices.plan_for("central", CLIENTS), problems)
        tasks = {
            "here": Task(turn),
            "flower": Task(lambda: private.start(grid, arrays, num_rounds=1)),
        }
        return {devices.COHORT: interleaved(tasks, REPEATS, warmup=1)}


def run() -> list[Result]:
    """Start one simulation, and compare what it took."""
    found = simulated("dpfed_lab.benchmarks.flower_devices", CLIENTS)[devices.COHORT]
    against = f"a round of Flower's simulation, {CLIENTS} nodes, its own central DP"
    name = f"round, {CLIENTS} clients, central"
    return [compare(name, found["here"], found["flower"], 1.0, against)]


server = timing_app(measure)  # Flower finds them by these two lines
nodes = _app()
