# SPDX-License-Identifier: Apache-2.0
"""A silo's request handler with an approved training, and what it says to an order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, RecordDict

from dpfed.core.flower_private import from_bytes, to_bytes
from dpfed.core.types import Broadcast
from dpfed.recipes.terms import Terms, read_terms
from dpfed.silo.handler import RequestHandler
from dpfed.silo.policy import load_policy
from dpfed.training.wire.codec import CONTROL, Sender
from tests.silo.gates import Silo, terms_for


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DPFED_STATE", "DPFED_LEDGER", "DPFED_IDENTITY"):
        monkeypatch.setenv(name, "")  # the handler sets them, and they are put back


def handler(folder: Path, gate: dict[str, Any] | None = None, **data: Any) -> RequestHandler:
    silo = Silo(folder / "silo", 0)
    silo.write(gate, **data)
    made = RequestHandler(load_policy(silo.policy))
    made.open()
    return made


def approved(folder: Path, **changes: Any) -> tuple[RequestHandler, Terms]:
    text = terms_for(folder, 3, **changes).read_text()
    held, terms = handler(folder), read_terms(text)
    held.approvals.approve(terms, text, days=1, by="root")
    return held, terms


def looked_at(held: RequestHandler, raw: bytes) -> bytes | None:
    """As a gate and its keeper do before a child is made: an early refusal, or None."""
    peek = held.peek(raw)
    if peek.training:
        held.prepare(peek.training)
    return peek.refusal


def sent(content: RecordDict) -> bytes:
    return to_bytes(content)


def said(reply: bytes) -> dict[str, Any]:
    return dict(from_bytes(reply).config_records[CONTROL])


def enrolment(name: str, terms: str = "") -> bytes:
    control = ConfigRecord({"stage": "enrol", "training": name, "terms": terms})
    return sent(RecordDict({CONTROL: control}))


def order(terms: Terms, round: int = 0, attempt: int = 0) -> bytes:
    broadcast = Broadcast(round, terms.initial, attempt=attempt, training=terms.name)
    plan = terms.plan
    sender = Sender(terms.model.layout, plan.fingerprint(), ConfigRecord(), broadcast)
    return sent(sender.order(plan.sum.release_stage, dict.fromkeys(plan.channels, b"")))
