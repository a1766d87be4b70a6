# SPDX-License-Identifier: Apache-2.0
"""(l) Memory and seconds of a round against the number of parameters: vectors or matrices.

A softmax layer on 64 to 2,000 features, 650 to 20,010 parameters d, under methods that hold vectors
of d, a matrix of the features (f x f), or one of the parameters (d x d). With one thread, for each
method and size:

- memory: what one client's answer and what the server's part of the round have allocated at their
  peak, the larger of the two in the dearest round. Torch's allocations and Python's (numpy's
  among them) are counted, to the byte, and their peaks added up: the kernel's mark of resident
  memory does not see less than half a megabyte. The client has 2 records: memory for records is
  not what is asked. The limit is 4 float32 vectors of d, or one float64 matrix.
- seconds: processor time of one client's answer with 1,000 records and of the server's part, in
  the dearest round. The limit is one bare gradient over the same records.

What would need more than CAP or SLOWEST is not run: its line is computed from the largest size that
was, memory by the square of d and seconds by its cube, and says so. There is no target: asked is
what grows how.
"""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from dpfed.core.sum_protocol import StageReply
from dpfed.core.types import Broadcast
from dpfed.core.vector import one_thread
from dpfed.data.datasets import Records
from dpfed.data.models import Linear
from dpfed.recipes.build import plan_for, trained_model
from dpfed.recipes.schema import load_recipe
from dpfed.training.plan import Plan
from dpfed.training.reply import ClientState, client_reply
from dpfed.training.round import ServerState, run_round, start
from dpfed_lab.benchmarks._measure import Result

MEASURES = (
    "dpfed.training.reply",
    "dpfed.training.round",
    "dpfed.client.gradient",
    "dpfed.mechanisms.gaussian",
)

FEATURES, CLASSES, RECORDS = (64, 128, 256, 512, 1280, 2000), 10, 1_000
VECTORS = ("dp-fedgd", "ema-only", "dp-fedadam", "dp-fedsofim")
INPUTS = ("dp-fedfc", "dp-fedauto")
PARAMETERS = ("dp-fednew", "fednewton")
METHODS = (*VECTORS, *INPUTS, *PARAMETERS)
CAP = 6 << 30
"""Bytes: nothing is run that would need more."""
SLOWEST = 60.0
"""Processor seconds of a round: nothing is run that would need more."""
ALLOWED = 4
MOST = 512
"""Features up to which DP-FedAuto sends its matrix, as it decides by itself in the study."""


def run() -> list[Result]:
    """Two lines for each method and size: memory and seconds."""
    with one_thread():
        return [line for method in METHODS for line in _grown(method)]


def unit_of(method: str, features: int) -> int:
    """The bytes of what a method holds: a vector of d, or a matrix of f or of d."""
    parameters = CLASSES * (features + 1)
    if method in VECTORS:
        return ALLOWED * 4 * parameters
    return 8 * (features + 1 if method in INPUTS else parameters) ** 2


def _grown(method: str) -> Iterator[Result]:
    """One method at every size, the smallest first."""
    last: dict[str, Any] = {}
    for features in FEATURES:
        found = _computed(method, last, features) if last else {}
        if not found or (found["memory"] < CAP and found["seconds"] < SLOWEST):
            found = measure(method, features)
        if "computed" not in found:
            last = found | {"features": features}
        yield from _lines(method, features, found)


def _computed(method: str, last: Mapping[str, Any], features: int) -> dict[str, Any]:
    """What the largest size that was run says about a larger one."""
    grown = (features + 1) / (last["features"] + 1)
    memory = last["memory"] * unit_of(method, features) / unit_of(method, last["features"])
    power = 1 if method in VECTORS else 3
    return {
        "computed": True,
        "memory": memory,
        "seconds": last["seconds"] * grown**power,
        "bare": last["bare"] * grown,
    }


def _lines(method: str, features: int, found: dict[str, Any]) -> Iterator[Result]:
    parameters, unit = CLASSES * (features + 1), unit_of(method, features)
    name = f"{method}, {parameters:,} parameters" + (", computed" if "computed" in found else "")
    what = {
        VECTORS: f"{ALLOWED} float32 vectors of d",
        INPUTS: "a float64 matrix, f x f",
        PARAMETERS: "a float64 matrix, d x d",
    }
    kind = next(words for group, words in what.items() if method in group)
    facts = {"method": method, "features": features, "parameters": parameters, **found}
    yield Result(f"{name}, memory", found["memory"] / 1e6, unit / 1e6, "MB", None, kind, facts)
    against = f"a bare gradient over {RECORDS:,} records"
    yield Result(
        f"{name}, seconds", 1e3 * found["seconds"], 1e3 * found["bare"], "ms", None, against
    )


# ------------------------------------------------------------------------ one method and size


def measure(method: str, features: int) -> dict[str, Any]:
    """Bytes and processor seconds of a client and of the server, by round."""
    held = _played(method, features, 2, allocated)
    timed = _played(method, features, RECORDS, processor_seconds)
    judged = timed[-1:] if method in PARAMETERS else timed
    found: dict[str, Any] = {
        "memory": max(map(max, held)),
        "seconds": max(map(sum, judged)),
        "bare": _bare(features),
    }
    for kind, taken in (("bytes", held), ("seconds", timed)):
        found |= {
            f"client_{kind}": [client for client, _ in taken],
            f"server_{kind}": [server for _, server in taken],
        }
    return found


Meter = Callable[[Callable[[], Any]], tuple[float, Any]]
"""Runs something, and gives what it took and its result."""


def allocated(work: Callable[[], Any]) -> tuple[float, Any]:
    """Bytes at the peak: torch's, and those of Python and numpy."""
    gc.collect()
    tracemalloc.start()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        result = work()
        python = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    events = [each for each in seen.profiler.kineto_results.events() if each.name() == "[memory]"]
    changes = [each.nbytes() for each in sorted(events, key=lambda each: each.start_ns())]
    return python + max(accumulate(changes), default=0), result


def processor_seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of this thread, however many others wait for the processor."""
    began = time.thread_time()
    result = work()
    return time.thread_time() - began, result


def _played(method: str, features: int, records: int, meter: Meter) -> list[tuple[float, float]]:
    """Some rounds with one client: what it and the server took in each."""
    count = 2 if method in PARAMETERS else 4  # DP-FedAuto has four kinds of rounds
    named = Linear("softmax", features, CLASSES)
    tables = {"method": method, "rounds": 4, "privacy": {"epsilon": 5.0, "noise": "keyed"}}
    second = "full" if features <= MOST else "none"
    recipe = load_recipe(tables, [f'client.second="{second}"'] if method == "dp-fedauto" else [])
    plan = plan_for(recipe, [float(records)], named.layout)
    model = trained_model(recipe, plan, named)
    desk = _Desk(plan, ClientState(0, model.problem(_records(features, records))), meter)
    state, taken = start(plan, model.initial(0)), []
    if method not in PARAMETERS:
        desk.answer(state)  # the first time a plan is tried out; of matrices only the last counts
    for _ in range(count):
        state, took = desk.round(state)
        taken.append(took)
    return taken


@dataclass
class _Desk:
    """One client and the server, each under the meter while it is at work."""

    plan: Plan
    member: ClientState
    meter: Meter

    def round(self, state: ServerState) -> tuple[ServerState, tuple[float, float]]:
        """The client first, then the server, which is handed the answer that was made."""
        took, reply = self.answer(state)
        server, (after, _) = self.meter(
            lambda: run_round(self.plan, state, lambda *_: [(0, reply)])
        )
        return after, (took, server)

    def answer(self, state: ServerState) -> tuple[float, StageReply]:
        """What the client answers, and what that takes; the server does nothing with it."""
        try:
            run_round(self.plan, state, self._ask)
        except _Made as made:
            return made.took, made.reply
        raise AssertionError("the client was not asked")

    def _ask(
        self, broadcast: Broadcast, stage: str, requests: Mapping[str, Mapping[int, bytes]]
    ) -> Iterator[tuple[int, StageReply]]:
        asked = {name: to[0] for name, to in requests.items()}
        took, (reply, self.member) = self.meter(
            lambda: client_reply(self.plan, broadcast, stage, asked, self.member)
        )
        raise _Made(took, reply)


@dataclass
class _Made(Exception):
    took: float
    reply: StageReply


def _records(features: int, count: int) -> Records:
    made = torch.Generator().manual_seed(0)
    x = torch.randn(count, features, generator=made)
    return Records(x / x.norm(dim=1, keepdim=True), torch.arange(count) % CLASSES)


def _bare(features: int) -> float:
    """Seconds of X^T (p - y), the median of some."""
    records, weight = _records(features, RECORDS), torch.zeros(features, CLASSES)
    hot = torch.nn.functional.one_hot(records.y, CLASSES).float()
    taken = []
    for _ in range(20):
        began = time.thread_time()
        ((records.x @ weight).softmax(1) - hot).T @ records.x
        taken.append(time.thread_time() - began)
    return statistics.median(taken)
