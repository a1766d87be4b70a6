# SPDX-License-Identifier: Apache-2.0
"""Zero rows are never a refusal, and one record never decides about the rows of others.

For every method, unit, kind of evaluation and set of metrics, worlds that differ in one record:

    usual      a record like the others
    unknown    a label that the model does not know: a zero row, by the model's own rules
    nan, part  features that are not numbers: all, or one of them
    raises     the module raises on it
    exits      the module ends the program on it (SystemExit)
    stopped    its process died or took too long, and the gate asks for zero rows

All of them give answers of one form: the same records, keys, sizes, stage, and no error. And the
sums: noise is keyed, so that two answers are equal in all bits if and only if their sums are. A
record that fails has a zero row and moves no other, so all of these have the bits of ``unknown``
(but for dp-fedauto, which takes features' means of a record without a label). Only ``stopped``
empties the rows of the whole silo; the sentence of a gated run says so for every unit that is
smaller than a silo.

What is compared are the bytes that the keeper would let out; the clock is a matter of the gate's
(tests/silo/test_gate_parts.py, tests/attacks/test_gate_children.py).
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, RecordDict
from torch import nn

from dpfed.accounting.guarantee import GATED
from dpfed.core.flower_private import from_bytes
from dpfed.core.log import log
from dpfed.core.registry import own_names
from dpfed.core.types import Broadcast, Problem, Unit
from dpfed.data.datasets import Records
from dpfed.data.models import Model
from dpfed.data.modules import Network, seeded
from dpfed.recipes.methods import METHODS
from dpfed.recipes.terms import Terms, read_terms
from dpfed.silo.handler import RequestHandler
from dpfed.silo.policy import load_policy
from dpfed.training.wire.codec import CONTROL, Sender
from tests.helpers.handlers import sent
from tests.silo.gates import CLASSES, FEATURES, Silo, records, terms_for

pytestmark = pytest.mark.slow

RAISES, EXITS = 1e6, 2e6
MANY = 21  # records: more than one block of the network's 16
BY_CLASS = ("auc", "recall", "balanced_accuracy")


def named(metric: str) -> Any:
    return {"name": metric, "classes": CLASSES} if metric in BY_CLASS else metric


SINGLE = [each for each in own_names("metrics") if each != "mae"]  # of numbers, not of classes
JOINT = [named(each) for each in SINGLE if each != "balanced_accuracy"]  # recall has its number
EVALUATIONS: dict[str, dict[str, Any]] = {
    "off": {"kind": "off"},
    "federated": {"kind": "federated"},
    "metrics": {"kind": "federated", "metrics": JOINT},
}


class Guard(nn.Module):
    """A linear layer behind code that some record makes raise, or end the program."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x == RAISES).any()):
            raise ValueError("patient 4711")
        if bool((x == EXITS).any()):
            sys.exit(3)
        out: torch.Tensor = self.head(x)
        return out


def world(name: str) -> Records:
    """Record 0 is one person; the others are in pairs."""
    x, y = (each[:MANY].clone() for each in records(0))
    feature = {"nan": math.nan, "raises": RAISES, "exits": EXITS}.get(name)
    if feature is not None:
        x[0] = feature
    if name == "part":
        x[0, 1] = math.nan
    if name == "unknown":
        y[0] = CLASSES + 4
    return Records(x, y, (torch.arange(MANY) + 1) // 2)


WORLDS = {
    "network": ("usual", "unknown", "nan", "part", "raises", "exits", "stopped"),
    "linear": ("usual", "unknown", "nan", "part", "stopped"),
}


@functools.cache
def guarded() -> Network:
    return Network(seeded(Guard, 0), chunk=16)


@functools.cache
def problem(model: Model, at: str) -> Problem:
    return model.problem(world(at))


@dataclass
class Silos:
    """One keeper per world, each with its own state; what they know of a training is handed in."""

    keepers: dict[tuple[str, Unit], RequestHandler]

    def answers(self, terms: Terms, problems: dict[str, Problem], round: int) -> dict[str, bytes]:
        order, found = order_of(terms, round), {}
        for name, each in problems.items():
            held = self.keepers[name, terms.plan.update.unit]
            held._trainings[terms.name] = (terms, each)
            found[name] = held.reply(order, zero_rows=name == "stopped")
        return found


@pytest.fixture(scope="module")
def silos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Silos]:
    made = {}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DPFED_STATE", "DPFED_LEDGER", "DPFED_IDENTITY"):
            patch.setenv(name, "")
        patch.setattr(RequestHandler, "training", lambda self, name: self._trainings[name])
        for name, unit in itertools.product(WORLDS["network"], Unit):
            silo = Silo(tmp_path_factory.mktemp(name) / "silo", 0)
            silo.write(epsilon=9e8, unit=unit.value)
            made[name, unit] = RequestHandler(load_policy(silo.policy))
            made[name, unit].open()
        patch.delenv("DPFED_STATE")  # below: each has its own
        patch.setattr(os, "fsync", lambda file: None)  # no power is cut here
        yield Silos(made)


@pytest.fixture(autouse=True)
def _own_state(silos: Silos, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler's folders come by the environment of its process; here several share one."""
    reply = RequestHandler.reply

    def in_its_own(self: RequestHandler, order: bytes, zero_rows: bool = False) -> bytes:
        monkeypatch.setenv("DPFED_STATE", str(self.state / "trainings"))
        return reply(self, order, zero_rows)

    monkeypatch.setattr(RequestHandler, "reply", in_its_own)
    monkeypatch.setattr(log, "disabled", True)  # hundreds of records fail, with a page each


def order_of(terms: Terms, round: int) -> bytes:
    plan, start = terms.plan, terms.initial + 0.1  # where no gradient is zero by symmetry
    shared = plan.optimizer.share(plan.optimizer.init(start))
    broadcast = Broadcast(round, start, dict(shared), training=terms.name)
    sender = Sender(terms.model.layout, plan.fingerprint(), ConfigRecord(), broadcast)
    return sent(sender.order(plan.sum.release_stage, dict.fromkeys(plan.due(round), b"")))


def form(reply: bytes) -> Any:
    """All that can be told of an answer but for the numbers in it."""
    content: RecordDict = from_bytes(reply)
    arrays = {
        record: {name: (a.dtype, a.shape, a.stype, len(a.data)) for name, a in found.items()}
        for record, found in content.array_records.items()
    }
    said = {name: dict(found) for name, found in content.config_records.items()}
    for name in ("receipt", "salt"):  # a commitment to the reply, which looks random, and its salt
        if name in said[CONTROL]:
            said[CONTROL][name] = len(said[CONTROL][name])
    return len(reply), list(content), arrays, said


def numbers(reply: bytes) -> tuple[bytes, ...]:
    """The numbers in an answer; its receipt has another key in each gate."""
    records = from_bytes(reply).array_records.values()
    return tuple(array.data for found in records for array in found.values())


@functools.cache
def supported(method: str, unit: Unit) -> str:
    """The kind of model that a method is tried on for a unit; "" if it cannot protect that."""
    from dpfed.recipes.methods import _build

    built = _build(METHODS[method], unit)
    if built is None:
        return ""
    return "linear" if built.linear or built.model else "network"


COUNT = iter(range(10**6))


def check(
    silos: Silos,
    folder: Path,
    method: str,
    unit: Unit,
    evaluation: dict[str, Any],
    privacy: dict[str, Any] | None = None,
    **changes: Any,
) -> int:
    kind = supported(method, unit)
    if not kind:
        return 0
    privacy = {"std_over_clip": 3.0, "noise": "keyed", "unit": unit.value, **(privacy or {})}
    sizes = {Unit.RECORD: MANY, Unit.GROUP: MANY // 2 + 1, Unit.CLIENT: 1}[unit]
    text = terms_for(
        folder,
        3,
        name=f"t{next(COUNT)}",
        method=method,
        rounds=4,
        privacy=privacy,
        evaluation=evaluation,
        sizes=[float(sizes)] * 3,
    ).read_text()
    terms = read_terms(text)
    model: Model = terms.model if kind == "linear" else guarded()
    few = ("usual", "nan", "raises", "stopped")  # of a client only the form is compared
    names = [each for each in WORLDS[kind] if unit is not Unit.CLIENT or each in few]
    problems = {name: problem(model, name) for name in names}
    made = 0
    for at, _ in terms.plan.round_kinds.values():
        replies = silos.answers(terms, problems, at)
        forms = {name: form(reply) for name, reply in replies.items()}
        assert "error" not in forms["usual"][3][CONTROL], (method, unit, evaluation, forms["usual"])
        assert all(each == forms["usual"] for each in forms.values()), (method, unit, at, forms)
        if unit is not Unit.CLIENT:
            sound = {"usual", "stopped", *(["unknown"] if terms.plan.client.model else [])}
            released = {name: numbers(reply) for name, reply in replies.items()}
            failed = {n: r for n, r in released.items() if n not in sound}
            assert len(set(failed.values())) == 1, (method, unit, at, list(failed))
            emptied = [n for n, r in failed.items() if r == released["stopped"]]
            assert not emptied, (method, unit, at, emptied)
        made += len(replies)
    sentence = replace(terms.plan.guarantee(), enforced=GATED, budgeted=True).sentence
    assert ("no record stops or delays" in sentence) == (unit is not Unit.CLIENT)
    return made


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.sample(12)
def test_no_record_can_be_told_by_the_form_of_an_answer_or_empties_the_rows_of_others(
    silos: Silos, tmp_path: Path, method: str
) -> None:
    """Before: OutOfMemory for a record that stops its process, for all methods, with metrics."""
    made = [
        check(silos, tmp_path, method, unit, each) for unit in Unit for each in EVALUATIONS.values()
    ]
    assert sum(made) >= 12


VARIANTS: dict[str, dict[str, Any]] = {
    "exact": {"mechanism": "discrete_gaussian"},
    "adaptive": {"privacy": {"clip": 5.0, "adaptive": {"quantile": 0.5, "share": 0.1}}},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_nor_where_noise_is_exact_or_the_clip_adapts(
    silos: Silos, tmp_path: Path, variant: str
) -> None:
    for unit in (Unit.RECORD, Unit.GROUP):
        check(silos, tmp_path, "dp-fedgd", unit, EVALUATIONS["metrics"], **VARIANTS[variant])


@pytest.mark.long  # CI has them all in one row, above
@pytest.mark.parametrize("metric", SINGLE)
@pytest.mark.parametrize("method", METHODS)
def test_nor_by_any_single_metric(silos: Silos, tmp_path: Path, method: str, metric: str) -> None:
    for unit in Unit:
        check(silos, tmp_path, method, unit, {"kind": "federated", "metrics": [named(metric)]})
