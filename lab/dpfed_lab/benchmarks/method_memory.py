# SPDX-License-Identifier: Apache-2.0
"""(g) The memory of a client in flight: every first-order method, 100,000 parameters, 100 clients.

The limit is 4 float32 vectors of the model's size for each client that is at work: its point, its
gradient, the release and the reply. Measured is the high-water mark of a fresh process (see
`_measure.peak_above`) while one client answers, the median over all rounds but the first, above
what was there before: the data, the broadcast, and what the client keeps between rounds (a control
variate, moments), which is stated beside it. Second-order methods hold matrices, and are left out.

"100 clients" plays whole rounds in one process, where clients work one after the other: all that
all of them keep, the server, and the one at work, over the number of clients.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from dpfed.core.sum_protocol import StageReply
from dpfed.core.types import Broadcast
from dpfed.core.vector import one_thread
from dpfed.data.datasets import Records
from dpfed.data.models import Linear, LinearProblem
from dpfed.recipes.build import plan_for
from dpfed.recipes.methods import methods_table
from dpfed.recipes.schema import parse
from dpfed.training.inprocess import rounds
from dpfed.training.plan import Plan
from dpfed.training.reply import ClientState, client_reply
from dpfed.training.round import run_round, start
from dpfed_lab.benchmarks._measure import RETURN_FREED, Result, peak_above

MEASURES = (
    "dpfed.training.inprocess",
    "dpfed.training.reply",
    "dpfed.training.round",
    "dpfed.training.loop",
    "dpfed.mechanisms.gaussian",
    "dpfed.mechanisms.tree",
)

FEATURES, CLASSES = 10_000, 10
VECTOR = 4 * FEATURES * CLASSES
CLIENTS, ROUNDS, RECORDS = 100, 6, 2
ALLOWED = 4


def first_order() -> list[str]:
    """The methods whose clients hold vectors only."""
    return [row["method"] for row in methods_table() if row["client memory"] == "d"]


def run() -> list[Result]:
    """Two lines per method."""
    lines = []
    for method in first_order():
        found = _in_child(method)
        against = f"{ALLOWED} float32 vectors of {FEATURES * CLASSES} parameters"
        kept = {"kept_between_rounds": found["kept"]}
        lines.append(
            Result(f"{method}, in flight", found["alone"], ALLOWED, "vectors", 1.0, against, kept)
        )
        name = f"{method}, {CLIENTS} clients, each"
        lines.append(Result(name, found["all"], ALLOWED, "vectors", 1.0, against))
    return lines


def _in_child(method: str) -> dict[str, float]:
    command = [sys.executable, "-m", "dpfed_lab.benchmarks.method_memory", method]
    root = Path(__file__).parents[3]
    done = subprocess.run(
        command, cwd=root, env=os.environ | RETURN_FREED, capture_output=True, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


# --------------------------------------------------------------------------------- in the child


def measure(method: str) -> dict[str, float]:
    """Vectors: of one client in flight, kept between rounds, and per client of a whole run."""
    model = Linear("softmax", FEATURES, CLASSES, bias=False)
    small = Linear("softmax", 10, CLASSES, bias=False)
    list(
        rounds(_plan(method, small, 2), _problems(small, 2), small.initial(0))
    )  # loads what is lazy
    with one_thread():
        alone, kept = _alone(_plan(method, model, 1), _problems(model, 1), model)
    plan, problems = _plan(method, model, CLIENTS), _problems(model, CLIENTS)
    peak, _ = peak_above(lambda: _last(plan, problems, model))
    return {"alone": alone, "kept": kept, "all": peak / VECTOR / CLIENTS}


def _plan(method: str, model: Linear, clients: int) -> Plan:
    privacy = {"epsilon": 5.0, "noise": "keyed"}
    recipe = parse({"method": method, "rounds": ROUNDS, "privacy": privacy})
    return plan_for(recipe, [float(RECORDS)] * clients, model.layout)


def _problems(model: Linear, clients: int) -> list[LinearProblem]:
    """All clients have the same records: data is not what is measured."""
    torch.manual_seed(0)
    records = Records(torch.randn(RECORDS, model.features), torch.arange(RECORDS) % CLASSES)
    return [model.problem(records)] * clients


def _alone(plan: Plan, problems: list[LinearProblem], model: Linear) -> tuple[float, float]:
    """The peak of a client's answer, the median over all rounds but the first; what it keeps."""
    progress, desk = start(plan, model.initial(0)), _Desk(plan, ClientState(0, problems[0]))
    for _ in range(plan.rounds):
        progress, _ = run_round(plan, progress, desk.transport)
    return statistics.median(desk.peaks[1:]) / VECTOR, _kept(desk.member) / VECTOR


@dataclass
class _Desk:
    """One client, measured while it answers."""

    plan: Plan
    member: ClientState
    peaks: list[int] = field(default_factory=list)

    def transport(
        self, broadcast: Broadcast, stage: str, requests: Mapping[str, Mapping[int, bytes]]
    ) -> Iterator[tuple[int, StageReply]]:
        asked = {name: to[0] for name, to in requests.items()}
        made: list[StageReply] = []

        def work() -> None:
            reply, self.member = client_reply(self.plan, broadcast, stage, asked, self.member)
            made.append(reply)

        peak, _ = peak_above(work)
        self.peaks.append(peak)
        yield 0, made.pop()


def _kept(member: ClientState) -> float:
    from dpfed.training.state_tree import leaves

    found = leaves((member.state, dict(member.mechanisms)))
    return sum(leaf.numel() * leaf.element_size() for leaf in found if torch.is_tensor(leaf))


def _last(plan: Plan, problems: list[LinearProblem], model: Linear) -> None:
    for _ in rounds(plan, problems, model.initial(0)):
        pass


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(sys.argv[1])))
