# SPDX-License-Identifier: Apache-2.0
"""What a gate writes for others: each event once, whoever writes it, and nothing of a record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dpfed.core.log import log
from dpfed.recipes.terms import Terms, read_terms
from dpfed.silo.handler import RequestHandler
from dpfed.silo.publish import OWNERS_KINDS, Publisher, running
from tests.helpers.handlers import (
    _own_environment,  # noqa: F401
    enrolment,
    handler,
    looked_at,
    order,
)
from tests.silo.gates import terms_for


def watched(folder: Path) -> tuple[RequestHandler, Terms, Publisher]:
    """A handler with one approved training, whose policy has all three files."""
    gate = {
        "events": str(folder / "events.jsonl"),
        "metrics": str(folder / "dpfed.prom"),
        "page": str(folder / "page.html"),
    }
    text = terms_for(folder, 3).read_text()
    held, terms = handler(folder, gate), read_terms(text)
    held.approvals.approve(terms, text, days=1, by="root")
    return held, terms, Publisher(held)


def lines(folder: Path) -> list[dict[str, Any]]:
    path = folder / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def kinds(folder: Path) -> list[str]:
    return [line["kind"] for line in lines(folder)]


def test_each_event_is_one_line_once(tmp_path: Path) -> None:
    held, terms, publisher = watched(tmp_path)
    publisher.publish()
    assert kinds(tmp_path) == ["approved"]
    held.reply(order(terms))
    publisher.publish()
    publisher.publish()
    Publisher(held).publish()  # another process
    assert kinds(tmp_path) == ["approved", "answered"]
    held.reply(order(terms, round=1))
    held.reply(order(terms, round=2))
    publisher.publish()
    last = lines(tmp_path)[-1]
    assert (last["kind"], last["times"], last["terms"]) == ("answered", 2, terms.fingerprint)
    assert (tmp_path / "page.html").stat().st_mode & 0o777 == 0o600
    assert (
        f'dpfed_answers_total{{training="{terms.name}"}} 3' in (tmp_path / "dpfed.prom").read_text()
    )


def test_what_was_written_is_the_same_whether_a_record_stops_its_process(tmp_path: Path) -> None:
    """Zero rows depend on records: in the log and the metrics they are answers like any other."""
    seen = []
    for name, zero in (("one", False), ("other", True)):
        held, terms, publisher = watched(tmp_path / name)
        looked_at(held, order(terms))
        held.came = held.approvals.now().replace(year=2031)
        held.reply(order(terms), zero_rows=zero)
        publisher.publish()
        rows = [{**line, "time": ""} for line in lines(tmp_path / name)]
        text = (tmp_path / name / "dpfed.prom").read_text()
        seen.append((rows, [each for each in text.splitlines() if "timestamp" not in each]))
        assert "zero rows" in {event.kind for event in held.approvals.events()} or not zero
    assert seen[0] == seen[1]


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()


def test_the_owners_command_writes_its_own_events_only(tmp_path: Path) -> None:
    """What the gate has counted waits until its reply has left."""
    held, terms, publisher = watched(tmp_path)
    held.reply(order(terms))
    publisher.publish(OWNERS_KINDS)
    assert kinds(tmp_path) == ["approved"]
    held.approvals.revoke(terms.name)
    publisher.publish(OWNERS_KINDS)
    assert kinds(tmp_path) == ["approved", "revoked"]
    publisher.publish()
    assert kinds(tmp_path) == ["approved", "revoked", "answered"]


@pytest.mark.long
def test_asking_often_under_unknown_names_fills_no_disk(tmp_path: Path) -> None:
    held, _, publisher = watched(tmp_path)
    for at in range(100):
        held.reply(enrolment(f"unknown-{at}"))
        publisher.publish()
    written = [line["times"] for line in lines(tmp_path) if line["kind"] == "refused"]
    assert written == [1, 1, 2, 4, 8, 16, 32]  # whenever their number has doubled


def test_a_start_says_which_policy_was_read_and_if_it_is_another(tmp_path: Path) -> None:
    held, _, publisher = watched(tmp_path)
    publisher.begin("ab" * 32)
    publisher.begin("ab" * 32)
    assert kinds(tmp_path).count("policy") == 0
    publisher.begin("cd" * 32)
    assert kinds(tmp_path).count("policy") == 1
    assert kinds(tmp_path).count("started") == 3
    assert running(held.state)["policy"] == "cd" * 32


def test_a_file_that_cannot_be_written_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "propagate", True)
    held, terms, publisher = watched(tmp_path)
    (tmp_path / "events.jsonl").mkdir()
    held.reply(order(terms))
    publisher.publish()
    assert "could not be published" in caplog.text
    (tmp_path / "events.jsonl").rmdir()
    publisher.publish()
    assert kinds(tmp_path) == ["approved", "answered"]  # nothing is lost
