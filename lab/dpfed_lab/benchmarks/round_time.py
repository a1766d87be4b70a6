# SPDX-License-Identifier: Apache-2.0
"""(a) One private round against one bare gradient over the same records.

A full-batch round has to compute the gradient of every record once. The limit is that and nothing
else: one softmax gradient over all 50,000 records as a single matrix computation, without clients,
clipping, noise, grid, messages, sum or server step. What a round takes above it is what privacy
and federation cost. Both run on one torch thread, since client work does (same seed, same bits).

torch takes its time over a softmax along a short last axis: three quarters of that gradient. With
the classes first (W X^T, softmax down the columns) the same gradient is three times as fast. That
tighter limit is stated on a line of its own, without a target.

The breakdown times growing prefixes of the clients' work and takes differences of the medians; the
server's part of the round is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from dpfed.accounting.calibrate import calibrate
from dpfed.client.gradient import gradient
from dpfed.core.chain import chain
from dpfed.core.randomness import Noise
from dpfed.core.types import UPDATE, Broadcast, Facts, Stream, Unit, Vector, Weights
from dpfed.data.datasets import Records
from dpfed.data.models import Linear, LinearProblem
from dpfed.mechanisms.gaussian import gaussian
from dpfed.server.scale import scale
from dpfed.server.sofim import sofim
from dpfed.sums.plain import plain
from dpfed.training.inprocess import rounds
from dpfed.training.plan import Plan
from dpfed.training.reply import ClientState, client_reply
from dpfed_lab.benchmarks._measure import Result, Task, Timing, compare, interleaved, threads

MEASURES = (
    "dpfed.training.inprocess",
    "dpfed.training.round",
    "dpfed.training.reply",
    "dpfed.core.clipping",
    "dpfed.data.models",
    "dpfed.core.randomness",
    "dpfed.core.normals",
    "dpfed.mechanisms.gaussian",
    "dpfed.server._rank_one",
)

RECORDS, CLIENTS, FEATURES, CLASSES = 50_000, 20, 64, 10
CLIP = 7.0  # about the median norm of these gradients, so that half of the records are clipped
TARGET = 1.5


def run() -> list[Result]:
    """The round, then its parts."""
    with threads(1):
        records = random_records(RECORDS)
        problems = split(records, CLIENTS)
        play = player(plan_for(CLIENTS, RECORDS // CLIENTS), problems)
        tasks = {
            "round": Task(play),
            "bare": Task(bare_gradient(records)),
            "tight": Task(class_major_gradient(records)),
        }
        timings = interleaved(tasks | _prefixes(problems))
    name, whole = f"round, {CLIENTS} clients", timings["round"]
    bare = f"one bare gradient over {RECORDS} records, 1 thread"
    parts = _breakdown(timings)
    return [
        compare(name, whole, timings["bare"], TARGET, bare, breakdown_ms=parts),
        compare(name, whole, timings["tight"], None, f"{bare}, classes first"),
    ]


def random_records(count: int) -> Records:
    """Random features and labels: time does not depend on what they say."""
    made = torch.Generator().manual_seed(0)
    x = torch.randn(count, FEATURES, generator=made)
    return Records(x, torch.randint(CLASSES, (count,), generator=made))


def split(records: Records, clients: int) -> list[LinearProblem]:
    """The records in equal shares, one problem for each client."""
    model = Linear("softmax", FEATURES, CLASSES)
    shares = torch.arange(len(records)).tensor_split(clients)
    return [model.problem(records.take(share)) for share in shares]


def plan_for(clients: int, size: int) -> Plan:
    """DP-FedSOFIM as in the paper's tables, at epsilon 1 over 70 rounds."""
    mechanism = calibrate(gaussian(Facts(clip=CLIP)), epsilon=1, delta=1e-5, releases=70)
    server = chain(sofim(rho=1.0), scale(0.1))
    nominal = [float(size)] * clients
    return Plan(
        client=gradient(),
        channels={UPDATE: mechanism},
        sum=plain(),
        server=server,
        nominal=nominal,
        rounds=1_000_000,
        weights=Weights.AVERAGE,
        noise=Noise(0),
    )


def player(plan: Plan, problems: Sequence[LinearProblem]) -> Callable[[], object]:
    """Plays the plan's next round, in process, each time that it is called."""
    played = rounds(plan, problems, Linear("softmax", FEATURES, CLASSES).initial(0))
    return lambda: next(played)


def bare_gradient(records: Records) -> Callable[[], torch.Tensor]:
    """The limit: scores, softmax, minus one-hot, transposed product."""
    x = torch.cat([records.x, torch.ones(len(records), 1)], dim=1)
    one_hot = torch.nn.functional.one_hot(records.y, CLASSES).float()
    weight = torch.zeros(CLASSES, FEATURES + 1)

    def compute() -> torch.Tensor:
        residual = torch.softmax(x @ weight.T, dim=1).sub_(one_hot)
        return residual.T @ x

    return compute


def class_major_gradient(records: Records) -> Callable[[], torch.Tensor]:
    """The tighter limit: the same gradient with the classes first, as torch likes it."""
    x = torch.cat([records.x, torch.ones(len(records), 1)], dim=1)
    one_hot = torch.nn.functional.one_hot(records.y, CLASSES).float().T.contiguous()
    weight = torch.zeros(CLASSES, FEATURES + 1)
    return lambda: torch.softmax(weight @ x.T, dim=0).sub_(one_hot) @ x


def _prefixes(problems: list[LinearProblem]) -> dict[str, Task]:
    """All clients' work up to a point of the path: each prefix contains the one before it."""
    plan = plan_for(CLIENTS, RECORDS // CLIENTS)
    params = torch.zeros(problems[0].dimension)
    broadcast = Broadcast(0, params)

    def stream(client: int) -> Stream:
        return plan.noise.stream("release", 0, client, 0, UPDATE, 0)

    def clipped(problem: LinearProblem) -> Vector:
        return problem.rows(params, Unit.RECORD).clipped_sum(CLIP).vector

    def released(client: int, problem: LinearProblem) -> object:
        return plan.update.release(problem.rows(params, Unit.RECORD), (), stream(client))

    steps: dict[str, Callable[[int, LinearProblem], object]] = {
        "scores": lambda _, p: p.scores(params),
        "rows": lambda _, p: p.rows(params, Unit.RECORD),
        "clipped": lambda _, p: clipped(p),
        "drawn": lambda c, p: stream(c).normal(clipped(p).numel()),
        "released": released,
        "answered": lambda c, p: client_reply(
            plan, broadcast, "reply", {UPDATE: b""}, ClientState(c, p)
        ),
    }
    return {name: Task(_for_all(step, problems)) for name, step in steps.items()}


def _for_all(
    step: Callable[[int, LinearProblem], object], problems: list[LinearProblem]
) -> Callable[[], None]:
    def work() -> None:
        for client, problem in enumerate(problems):
            step(client, problem)

    return work


def _breakdown(timings: dict[str, Timing]) -> dict[str, float]:
    """Milliseconds of each part of all clients' work; they add up to the last."""
    at = {name: timing.median * 1e3 for name, timing in timings.items()}
    return {
        "scores": at["scores"],
        "softmax and one-hot": at["rows"] - at["scores"],
        "norms, factors, clip, product": at["clipped"] - at["rows"],
        "key and normals": at["drawn"] - at["clipped"],
        "adding them, grid": at["released"] - at["drawn"],
        "door and bytes": at["answered"] - at["released"],
        "the clients, one by one": at["answered"],
    }
