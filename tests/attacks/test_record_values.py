# SPDX-License-Identifier: Apache-2.0
"""No value in a record changes whether, at which stage, or with how many bytes a client answers.

Before: a label outside of the classes raised, a token outside of the vocabulary raised, a user's
train function raised, and the refusal crossed the wire: one bit about one record, at no cost.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.nn import functional

from dpfed.core.errors import ClientRefused, DpfedError, RecipeError
from dpfed.core.registry import build
from dpfed.core.types import METRICS, UPDATE, Broadcast, Facts, Problem, Unit
from dpfed.data.datasets import Records
from dpfed.data.models import Linear, Model
from dpfed.data.modules import Network, seeded
from dpfed.flower import DPStrategy, private
from dpfed.mechanisms.discrete_gaussian import discrete_gaussian
from dpfed.mechanisms.gaussian import gaussian
from dpfed.training.inprocess import InProcess
from dpfed.training.plan import Plan
from dpfed.training.reply import ClientState, client_reply
from dpfed.training.round import run_round, start
from tests.helpers.record_values import CLASSES, CLIP, FEATURES, SIZES, plan_for
from tests.training.flower.local_grid import LocalGrid, become_a_server, nodes, refused


class Tokens(nn.Module):
    """Reads its inputs as token numbers: one outside of the vocabulary raises."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(4, 6), nn.Linear(6, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.table(x.long()).mean(dim=1))
        return out


def raising_loss(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A loss of the user's own: torch's, which raises on a label outside of the classes."""
    return functional.cross_entropy(scores, y, reduction="none")


def layers() -> nn.Module:
    return seeded(
        lambda: nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, CLASSES)), 0
    )


MODELS: dict[str, Callable[[], Model]] = {
    "softmax": lambda: Linear("softmax", FEATURES, CLASSES),
    "logistic": lambda: Linear("logistic", FEATURES),
    "poisson": lambda: Linear("poisson", FEATURES),
    "network": lambda: Network(layers(), chunk=4),
    "own loss": lambda: Network(layers(), raising_loss, chunk=4),
    "tokens": lambda: Network(seeded(Tokens, 0), chunk=4),
    "opacus": lambda: Network(layers(), raising_loss, chunk=4, sampler="opacus"),
}
LABELS = [-1, -100, CLASSES, 10**6, -(2**63), 2**63 - 1]
TARGETS = [math.nan, math.inf, -math.inf, 3e38, -1.0, 1e-45]
FEATURE_VALUES = [math.nan, math.inf, -math.inf, 3e38, -3e38, 1e-45, 0.0, 1e4]


def records_for(name: str, size: int, seed: int) -> Records:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(size, FEATURES, generator=generator)
    y = torch.randint(0, 2, (size,), generator=generator)
    groups = torch.arange(size) // 2
    return Records(x * 3 if name == "tokens" else x, y.float() if name == "poisson" else y, groups)


def hostile(name: str, base: Records) -> list[Records]:
    """The same records, the first one with every value that it might have."""
    found = []
    for value in TARGETS if name == "poisson" else LABELS:
        y = base.y.clone()
        y[0] = value
        found.append(replace(base, y=y))
    for value in FEATURE_VALUES:
        x = base.x.clone()
        x[0] = value
        found.append(replace(base, x=x))
        x = base.x.clone()
        x[0, 1] = value  # one feature only: a record of mixed magnitudes
        found.append(replace(base, x=x))
    return found


def conversation(plan: Plan, model: Model, mine: Records, name: str) -> list[Any]:
    """All that the server gets of a round: who answered at which stage, with how many bytes."""
    others = [records_for(name, size, seed) for seed, size in enumerate(SIZES)][1:]
    transport = InProcess(plan, [model.problem(each) for each in (mine, *others)])
    heard: list[Any] = []

    def exchange(broadcast: Broadcast, stage: str, requests: Any) -> Any:
        for client, reply in transport.exchange(broadcast, stage, requests):
            sizes = (
                reply if isinstance(reply, ClientRefused) else {n: len(m) for n, m in reply.items()}
            )
            heard.append((stage, client, sizes))
            yield client, reply

    before = start(plan, model.initial(0), roster=transport.roster)
    run_round(plan, before, exchange)
    return heard


# ------------------------------------------------------------------------- values of a record


@pytest.mark.parametrize("hides", [False, True], ids=["plain", "secure"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.sample(3)
def test_no_value_of_a_record_changes_what_the_server_hears(name: str, hides: bool) -> None:
    """Before: a label of 3 among 3 classes was refused as ClientError, at the release stage."""
    if name == "opacus":
        pytest.importorskip("opacus")
    model, base = MODELS[name](), records_for(name, SIZES[0], 0)
    plan = plan_for(Unit.RECORD, hides)
    expected = conversation(plan, model, base, name)
    assert not any(isinstance(sizes, ClientRefused) for _, _, sizes in expected)
    for changed in hostile(name, base):
        assert conversation(plan, model, changed, name) == expected


@pytest.mark.parametrize("unit", [Unit.GROUP, Unit.CLIENT])
@pytest.mark.parametrize("name", ["softmax", "own loss"])
def test_nor_where_a_person_or_the_client_is_protected(name: str, unit: Unit) -> None:
    model, base = MODELS[name](), records_for(name, SIZES[0], 0)
    plan = plan_for(unit, False)
    expected = conversation(plan, model, base, name)
    for changed in hostile(name, base):
        assert conversation(plan, model, changed, name) == expected


@pytest.mark.parametrize("name", MODELS)
def test_a_record_that_cannot_be_used_takes_none_of_the_others_with_it(name: str) -> None:
    """Zero rows for the whole client would move a record-level sum by many clips."""
    if name == "opacus":
        pytest.importorskip("opacus")
    model, base = MODELS[name](), records_for(name, SIZES[0], 0)
    params = model.initial(0) + 0.1
    for unit, bound in ((Unit.RECORD, 2.0), (Unit.GROUP, 2.0)):
        at = model.problem(base).rows(params, unit).clipped_sum(CLIP).vector
        judged = model.problem(base).metric_rows(params, unit, 5.0).clipped_sum(math.sqrt(2)).vector
        for changed in hostile(name, base):
            problem = model.problem(changed)
            moved = problem.rows(params, unit).clipped_sum(CLIP).vector - at
            assert float(moved.norm()) <= bound * CLIP * (1 + 1e-5)
            metrics = problem.metric_rows(params, unit, 5.0).clipped_sum(math.sqrt(2)).vector
            assert float((metrics - judged).norm()) <= math.sqrt(2) * (1 + 1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_the_rows_of_the_others_stay_as_they_are_to_the_last_bit(name: str) -> None:
    """What exact integer sums rest on: a record that fails changes nobody else's row."""
    if name == "opacus":
        pytest.importorskip("opacus")
    model, base = MODELS[name](), records_for(name, SIZES[0], 0)
    params = model.initial(0) + 0.1
    rows = torch.cat(list(model.problem(base).rows(params, Unit.RECORD).clipped_rows(CLIP)))  # type: ignore[attr-defined]
    for changed in hostile(name, base):
        made = model.problem(changed).rows(params, Unit.RECORD).clipped_rows(CLIP)  # type: ignore[attr-defined]
        assert torch.equal(torch.cat(list(made))[1:], rows[1:])


@pytest.mark.parametrize("name", ["softmax", "network", "own loss", "tokens"])
def test_a_label_outside_of_the_classes_is_a_zero_row_and_a_zero_metric(name: str) -> None:
    model, base = MODELS[name](), records_for(name, 1, 0)
    for label in LABELS:
        problem = model.problem(replace(base, y=torch.tensor([label])))
        params = model.initial(0) + 0.1
        assert not problem.rows(params, Unit.RECORD).clipped_sum(CLIP).vector.any()
        assert not problem.metric_rows(params, Unit.RECORD, 5.0).clipped_sum(2.0).vector.any()


# ------------------------------------------------------- what goes wrong once data was touched


class Failing:
    """A problem of one's own, whose records raise; it counts how often they were touched."""

    dimension = 4

    def __init__(self, error: BaseException) -> None:
        self.error, self.touched = error, 0

    def rows(self, *_: Any) -> Any:
        self.touched += 1
        raise self.error

    gradient = metric_rows = rows


ERRORS = [
    ValueError("4711"),
    MemoryError(),
    RuntimeError("DefaultCPUAllocator: out of memory"),
    RecipeError("4711"),
    SystemExit(3),
    RecursionError(),
]


@pytest.mark.parametrize("mechanism", [gaussian, discrete_gaussian])
@pytest.mark.parametrize("client", ["gradient", "fedavg", "fedsam", "scaffold", "localadamw"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_an_exception_becomes_zero_rows_with_full_noise(
    error: BaseException, client: str, mechanism: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Before: ClientError or OutOfMemory left, and said that this client's data is special."""
    plan = plan_for(
        Unit.RECORD,
        False,
        client=build("client", client, {}, unit=Unit.RECORD),
        channels={UPDATE: mechanism(Facts(CLIP), 2.0)},
        nominal=[9.0],
    )
    state = ClientState(0, Failing(error))  # type: ignore[arg-type]
    broadcast = Broadcast(0, torch.zeros(4), {"control": torch.zeros(4)})
    reply, after = client_reply(plan, broadcast, "reply", {UPDATE: b""}, state)
    assert not isinstance(reply, ClientRefused)
    assert len(reply[UPDATE]) == 4 * 4
    assert any(reply[UPDATE])  # full noise: never silence
    assert after.zeroed == 1
    assert "all-zero update" in caplog.text
    assert b"4711" not in reply[UPDATE]


def test_an_algorithm_that_fails_on_the_data_keeps_its_state_and_answers_like_the_others() -> None:
    """A Newton step on features of 1e15 has a singular matrix, and torch raises."""
    model = Linear("softmax", 4, 3)
    algorithm = build("client", "fednew", {}, unit=Unit.CLIENT, layout=model.layout)
    plan = plan_for(
        Unit.CLIENT,
        False,
        client=algorithm,
        nominal=[1.0],
        channels={UPDATE: gaussian(Facts(CLIP, unit=Unit.CLIENT), 2.0)},
    )
    shared = {"primal": torch.zeros(model.layout.size)}
    broadcast = Broadcast(0, torch.zeros(model.layout.size), shared)
    y = torch.zeros(6, dtype=torch.int64)
    lengths = set()
    for x in (torch.rand(6, 4), torch.full((6, 4), 1e15), torch.full((6, 4), 1e19)):
        state = ClientState(0, model.problem(Records(x, y)))
        reply, _ = client_reply(plan, broadcast, "reply", {UPDATE: b""}, state)
        assert not isinstance(reply, ClientRefused)
        lengths.add(len(reply[UPDATE]))
    assert len(lengths) == 1


@pytest.mark.parametrize("client", ["fednewton", "fedadamw", "fedhybrid", "adafedprox", "fedfc"])
def test_every_channel_that_is_due_is_answered(client: str, monkeypatch: Any) -> None:
    """A failure in a later round: as many releases as planned, derived channels included."""
    from dpfed.audit.client_laws import MODEL, records, shared_at
    from dpfed.audit.client_laws import law_plan as lawful

    algorithm = build("client", client, {}, unit=Unit.RECORD, layout=MODEL.layout)
    plan = lawful(algorithm, Unit.RECORD)
    for round in range(3):
        broadcast = Broadcast(round, torch.zeros(MODEL.layout.size), shared_at(plan, round))
        asked = dict.fromkeys(plan.due(round), b"")
        healthy, _ = client_reply(
            plan, broadcast, "reply", asked, ClientState(0, MODEL.problem(records(9, 0)))
        )
        failing = Broken(MODEL.problem(records(9, 0)))
        ill, _ = client_reply(plan, broadcast, "reply", asked, ClientState(0, failing))  # type: ignore[arg-type]
        assert not isinstance(healthy, ClientRefused)
        assert not isinstance(ill, ClientRefused)
        assert {n: len(m) for n, m in ill.items()} == {n: len(m) for n, m in healthy.items()}


class Broken:
    """A linear problem that is sound on made-up records, and raises on its own."""

    def __init__(self, sound: Problem) -> None:
        self.sound, self.dimension = sound, sound.dimension

    def made_up(self) -> Problem:
        return self.sound.made_up()  # type: ignore[attr-defined,no-any-return]

    def rows(self, *_: Any) -> Any:
        raise ValueError("record 4711")

    gradient = metric_rows = gram_rows = hessian_rows = rows


@pytest.mark.parametrize("how", ["raises", "exits", "nan", "names", "shape", "empty"])
def test_a_train_function_answers_whatever_its_data_did_to_it(
    how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """Before: a train function that raised on a record was refused, by name, over the wire."""
    monkeypatch.setenv("DPFED_STATE", str(tmp_path))
    become_a_server(monkeypatch)
    mechanism = gaussian(Facts(1.0, unit=Unit.CLIENT), 2.0)
    plan = plan_for(Unit.CLIENT, False, channels={UPDATE: mechanism}, nominal=[1, 1, 1], rounds=1)
    app = ClientApp()

    @app.train(mods=[private(plan)])
    def train(message: Message, context: Context) -> Message:
        arrays = message.content["arrays"].to_torch_state_dict()
        if context.node_config["partition-id"] == 1:
            if how == "raises":
                raise ValueError("patient 4711")
            if how == "exits":
                sys.exit(1)
            arrays = {
                "nan": {"w": torch.full((3,), math.nan)},
                "names": {"v": torch.zeros(3)},
                "shape": {"w": torch.zeros(2)},
                "empty": {},
            }[how]
        return Message(RecordDict({"arrays": ArrayRecord(arrays)}), reply_to=message)

    sizes: dict[int, int] = {}

    def listen(node: int, message: Message, reply: Message) -> Message:
        sizes[node] = len(reply.content["reply"][UPDATE].data)
        return reply

    initial = ArrayRecord({"w": torch.zeros(3)})
    result = DPStrategy(plan).start(LocalGrid(app, nodes(3), listen), initial)
    assert refused(result.history[0]) == {}
    assert sizes == {100: 12, 101: 12, 102: 12}


# ------------------------------------------------------ what is broken is found before data is


class Watched:
    """A problem that notes whether its records were touched."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.dimension, self.touched = problem, problem.dimension, False

    def made_up(self) -> Problem:
        return self.problem.made_up()  # type: ignore[attr-defined,no-any-return]

    def rows(self, *given: Any) -> Any:
        self.touched = True
        return self.problem.rows(*given)

    gradient = metric_rows = rows


@pytest.mark.parametrize(
    ("params", "shared"),
    [
        (torch.zeros(7), {"scale": torch.ones(18)}),
        (torch.zeros(18, dtype=torch.int64), {"scale": torch.ones(18)}),
        (torch.zeros(18), {}),
        (torch.zeros(18), {"scale": torch.ones(5)}),
    ],
    ids=["size", "type", "missing", "shape"],
)
def test_an_order_that_does_not_fit_is_refused_before_data_is_touched(
    params: torch.Tensor, shared: dict[str, torch.Tensor]
) -> None:
    plan = plan_for(Unit.RECORD, False, client=build("client", "adadps", {}), nominal=[9.0])
    problem = Watched(Linear("softmax", FEATURES, CLASSES).problem(records_for("softmax", 9, 0)))
    state = ClientState(0, problem)  # type: ignore[arg-type]
    asked = {UPDATE: b"", METRICS: b""}
    reply, _ = client_reply(plan, Broadcast(0, params, shared), "reply", asked, state)
    assert isinstance(reply, ClientRefused)
    assert not problem.touched
    fine = Broadcast(0, torch.zeros(18), {"scale": torch.ones(18)})
    reply, _ = client_reply(plan, fine, "reply", asked, state)
    assert not isinstance(reply, ClientRefused)


def test_a_module_or_a_loss_that_cannot_work_is_refused_with_a_sentence() -> None:
    records = records_for("softmax", 9, 0)
    with pytest.raises(RecipeError, match=r"shape \(5,\).*correct"):
        Network(nn.Linear(4, 3)).problem(records)
    with pytest.raises(RecipeError, match="made-up records"):
        Network(layers(), lambda scores, y: scores.nowhere).problem(records)  # type: ignore[attr-defined]
    with pytest.raises(DpfedError, match="class labels"):
        Linear("softmax", FEATURES, CLASSES).problem(replace(records, y=records.y.float()))


# -------------------------------------------------------------------------------------- time


@pytest.mark.slow
def test_denormal_values_take_no_longer_than_others() -> None:
    """Before: a client whose records are denormal took 10 to 40 times as long to answer."""
    model, plan = Linear("softmax", 4000, 10), plan_for(Unit.RECORD, False, nominal=[40.0])
    y = torch.zeros(40, dtype=torch.int64)
    broadcast = Broadcast(0, torch.full((model.layout.size,), 0.01))
    asked = {UPDATE: b"", METRICS: b""}

    def seconds(x: torch.Tensor) -> float:
        state, taken = ClientState(0, model.problem(Records(x, y))), []
        for _ in range(7):
            began = time.perf_counter()
            client_reply(plan, broadcast, "reply", asked, state)
            taken.append(time.perf_counter() - began)
        return min(taken)

    usual = seconds(torch.full((40, 4000), 0.5))
    assert seconds(torch.full((40, 4000), 1e-41)) < 2.5 * usual
    assert float(torch.tensor(1e-41)) > 0  # and the caller's arithmetic is as it was
