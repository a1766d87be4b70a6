# SPDX-License-Identifier: Apache-2.0
"""A record that stops its silo's work, or makes code raise, cannot be told by the answer.

Before: where a plan named metrics, a record that was slow or killed its process was answered by
"OutOfMemory", for all 22 methods: one bit about one record, at no cost. And a metric's own code
that raised on a record emptied the rows of the whole silo, of the model's update too.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dpfed.accounting.guarantee import GATED, SHIPPED, UNDISTURBED
from dpfed.core.errors import ClientRefused
from dpfed.core.metric import Metric, ScoredRecords
from dpfed.core.registry import build
from dpfed.core.types import METRICS, UPDATE, Broadcast, Facts, Unit
from dpfed.data.batches import Batches, dataset_batches
from dpfed.data.datasets import Records
from dpfed.data.models import Linear
from dpfed.data.modules import Network, seeded
from dpfed.mechanisms.gaussian import gaussian
from dpfed.recipes.terms import read_terms
from dpfed.silo import gate
from dpfed.silo.frames import LENGTH, receive
from dpfed.training.metrics import metrics_channel
from dpfed.training.plan import Plan
from dpfed.training.reply import ClientState, client_reply
from tests.helpers.gate_parts import kept
from tests.helpers.handlers import handler, order, said
from tests.helpers.record_values import plan_for
from tests.silo.gates import CLASSES, FEATURES, records, terms_for

KILLS, WAITS, RAISES = 1e6, 2e6, 3e6
MANY = 70


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DPFED_STATE", "DPFED_LEDGER", "DPFED_IDENTITY"):
        monkeypatch.setenv(name, "")


class Hostage(nn.Module):
    """A linear layer; some records kill its process, some take their time, some raise."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x == KILLS).any()):
            os.kill(os.getpid(), signal.SIGKILL)
        if bool((x == WAITS).any()):
            time.sleep(60)
        if bool((x == RAISES).any()):
            sys.exit(1)
        out: torch.Tensor = self.head(x)
        return out


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "metrics", [None, pytest.param(["accuracy"], marks=pytest.mark.long)], ids=["plain", "named"]
)
def test_through_the_gate_all_records_have_answers_of_one_form_and_time(
    tmp_path: Path, metrics: list[str] | None
) -> None:
    heard = {
        value: through_the_gate(tmp_path, value, metrics) for value in (0.5, KILLS, WAITS, RAISES)
    }
    forms = {value: form_of(reply) for value, (reply, _) in heard.items()}
    assert all(form == forms[0.5] for form in forms.values())
    assert "error" not in forms[0.5][0]
    assert all(4.0 <= taken < 5.0 for _, taken in heard.values()), heard


def form_of(reply: bytes) -> tuple[dict[str, object], int]:
    """All but the bytes of the receipt, which have another key and another salt in each folder."""
    return {k: v for k, v in said(reply).items() if k not in ("receipt", "salt")}, len(reply)


def through_the_gate(folder: Path, value: float, metrics: list[str] | None) -> tuple[bytes, float]:
    """A real handler behind ``gate._serve_request``, the first record with this value."""
    home = folder / f"{value}"
    home.mkdir()
    held = handler(home, {"answer_after": 4.0}, epsilon=100.0)
    evaluation = {"kind": "federated", **({"metrics": metrics} if metrics else {})}
    text = terms_for(home, 3, evaluation=evaluation).read_text()
    terms = read_terms(text)
    held.approvals.approve(terms, text, days=1, by="root")
    x, y = records(0)
    x[0] = value
    problem = Network(seeded(Hostage, 0)).problem(Records(x, y))
    held._trainings[terms.name] = (terms, problem)
    relay, other = socket.socketpair(socket.AF_UNIX)
    other.settimeout(30.0)
    with relay, other, kept(held) as keeper:
        serving = threading.Thread(target=gate._serve_request, args=(relay, keeper, {os.geteuid()}))
        serving.start()
        raw = order(terms)
        began = time.monotonic()
        other.sendall(LENGTH.pack(len(raw)) + raw)
        (size,) = LENGTH.unpack(receive(other, LENGTH.size))
        reply = receive(other, size)
        taken = time.monotonic() - began
        serving.join()
    return reply, taken


def test_a_confirmed_answer_is_not_stopped_by_the_gates_alarm(tmp_path: Path) -> None:
    """Else a record that takes just so long is refused: spent, and nothing is stored to send."""
    text = terms_for(tmp_path, 3).read_text()
    held, terms = handler(tmp_path), read_terms(text)
    held.approvals.approve(terms, text, days=1, by="root")
    for nothing, round in ((False, 0), (True, 1)):
        signal.setitimer(signal.ITIMER_REAL, 1000.0)
        try:
            assert "error" not in said(held.reply(order(terms, round), zero_rows=nothing))
            assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)


# ----------------------------------------------------------------------- a metric of one's own


def touchy(scored: ScoredRecords) -> torch.Tensor:
    """A user's code: it raises on some label, as an index out of range does."""
    if bool((scored.labels == 2).any()):
        raise IndexError("patient 4711")
    return ((1 - scored.right.double()) * (scored.labels >= 0))[:, None]  # who is wrong


TOUCHY = Metric(1, touchy, lambda mean, std: {"touchy": float(mean)}, ("touchy",))


def with_metric(metric: Metric, unit: Unit, size: float) -> Plan:
    channel = metrics_channel(2, 1, metrics=(metric,))
    assert channel.clip is not None
    noise = {
        UPDATE: gaussian(Facts(1.0, unit=unit), 2.0),
        METRICS: gaussian(Facts(channel.clip, unit=unit), 2.0),
    }
    return plan_for(
        unit,
        False,
        client=build("client", "gradient", {}),
        channels=noise,
        nominal=[size],
        metrics=(metric,),
    )


@pytest.mark.parametrize("kind", ["linear", "network"])
@pytest.mark.parametrize("unit", [Unit.RECORD, Unit.GROUP])
def test_a_metric_that_raises_on_a_record_takes_no_other_row_with_it(kind: str, unit: Unit) -> None:
    x, y = torch.rand(MANY, 5), torch.arange(MANY) % 2
    model: Any = Linear("softmax", 5, 3)
    if kind == "network":
        model = Network(seeded(lambda: nn.Linear(5, 3), 0))
    plan, heard = with_metric(TOUCHY, unit, float(MANY)), []
    for label in (2, 3):  # the metric raises; or no class of the model: a zero metric
        problem = model.problem(
            Records(x, torch.where(torch.arange(MANY) == 7, label, y), torch.arange(MANY))
        )
        broadcast = Broadcast(0, torch.full((18,), 0.1))
        asked = {UPDATE: b"", METRICS: b""}
        reply, after = client_reply(plan, broadcast, "reply", asked, ClientState(0, problem))
        assert not isinstance(reply, ClientRefused)
        assert after.zeroed == 0  # the silo's rows are there
        heard.append(reply[METRICS])
    assert heard[0] == heard[1]


def test_a_metric_that_raises_on_made_up_records_is_refused() -> None:
    """A fault of its code, which no record decides: it is said, and nothing is spent."""

    def broken(scored: ScoredRecords) -> torch.Tensor:
        if scored.scores.any():
            raise IndexError("of every record, and not of empty entries")
        return scored.right.double()[:, None]

    plan = with_metric(replace_row(broken), Unit.RECORD, 9.0)
    problem = Linear("softmax", 5, 3).problem(Records(torch.rand(9, 5), torch.zeros(9).long()))
    asked = {UPDATE: b"", METRICS: b""}
    reply, _ = client_reply(
        plan, Broadcast(0, torch.full((18,), 0.1)), "reply", asked, ClientState(0, problem)
    )
    assert isinstance(reply, ClientRefused)


def replace_row(row: Any) -> Metric:
    return TOUCHY._replace(row=row)


# ------------------------------------------------------------------ a record that ends the program


class Exiting:
    """A data set whose fourth record calls ``sys.exit``."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, at: int) -> tuple[torch.Tensor, torch.Tensor]:
        if at == 3:
            sys.exit(1)
        return torch.ones(5), torch.tensor(1)


def test_a_record_that_exits_when_it_is_read_is_not_usable_and_the_others_are() -> None:
    made: Batches = dataset_batches(Exiting(), (torch.zeros(5), torch.tensor(0)))
    batch = made.read(torch.arange(6))
    assert batch.usable is not None
    assert batch.usable.tolist() == [True, True, True, False, True, True]


@pytest.mark.parametrize("sampler", ["ghost", "alone", "opacus"])
def test_a_record_that_exits_in_the_module_has_a_zero_row_by_every_sampler(sampler: str) -> None:
    if sampler == "opacus":
        pytest.importorskip("opacus")
    model = Network(seeded(Hostage, 0), chunk=4, sampler=sampler)
    x, y = torch.rand(9, FEATURES), torch.zeros(9).long()
    rows = []
    for value in (RAISES, math.nan):
        x[2] = value
        found = model.problem(Records(x, y)).rows(model.initial(0), Unit.RECORD)
        rows.append(found.clipped_sum(1.0).vector)
    assert rows[0].any()
    assert float((rows[0] - rows[1]).norm()) < 1e-12  # another path of the same arithmetic


# ---------------------------------------------------------------------------------- the sentence


@pytest.mark.parametrize("unit", Unit)
def test_the_sentence_says_what_a_record_could_still_do(unit: Unit) -> None:
    """What ends or delays the process is not contained; a client's one row is its own matter."""
    stated = plan_for(unit, False).guarantee()
    for enforced in (GATED, SHIPPED):
        said = replace(stated, enforced=enforced).sentence
        assert (f"{enforced}, {UNDISTURBED}" in said) == (unit is not Unit.CLIENT)
    assert UNDISTURBED not in stated.sentence  # one process: nobody looks at it
