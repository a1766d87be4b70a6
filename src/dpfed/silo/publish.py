# SPDX-License-Identifier: Apache-2.0
"""What a gate writes for the machines that watch it: an event log, metrics, and the officer's page.

    [gate]
    events = "/var/log/dpfed/events.jsonl"                    # one JSON object a line, for a SIEM
    metrics = "/var/lib/prometheus/node-exporter/dpfed.prom"  # for node exporter's collector
    page = "/var/lib/dpfed/page.html"                         # for the officer

``Publisher.publish`` runs in the gate after a reply has left, and at the end of the owner's
commands. It compares the counts of events with those that it has written, and writes the rest.

Guarantee: what is written does not depend on a record, and neither does when. The gate writes only
once a reply has left (with ``answer_after``, at a time that no record changes), with its own time;
answers with zero rows are in no file but the page, which is the officer's alone. Names that nobody
has approved are one line whenever their number has doubled, so that asking often fills no disk.

| edge case                                    | what happens                                      |
|----------------------------------------------|---------------------------------------------------|
| a file cannot be written                     | logged; the gate continues, and tries again       |
| the gate was killed before it published      | the events are in the next lines, with their times|
|                                              | counted                                           |
| the record of what was written is lost       | written again: a line too many, and none too few  |
| the policy differs from the last gate's      | a line of kind "policy"                           |
"""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfed._version import VERSION
from dpfed.core.errors import DpfedError
from dpfed.core.files import json_line, locked_file, replace_file
from dpfed.core.log import log
from dpfed.silo.approvals import ZERO_ROWS, Event
from dpfed.silo.owner import Owner

OWNERS_KINDS = frozenset({"accepted", "approved", "revoked", "clock"})
"""Events that the owner's own commands make, and may write at any time."""
_SAYS_VALUES = frozenset({"accepted"})
"""Of these, what was said follows from records: which columns are not as agreed."""
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
"""Whoever else may write in the log's folder can place no link there, and no pipe that blocks."""
_WRITTEN, _RUNNING = "published.json", "running.json"


@dataclass(frozen=True, eq=False)
class Publisher:
    """Writes what the policy's keys ``events``, ``metrics`` and ``page`` ask for."""

    handler: Owner

    def publish(self, kinds: frozenset[str] | None = None) -> None:
        """Write what is new; what cannot be written is logged, and is written the next time.

        Args:
            kinds: of events; None means all. The owner's commands write their own: what the gate
                counts while it makes a reply must wait until that reply has left.
        """
        gate = self.handler.policy.gate
        if gate.events:
            self._try(lambda: self._write_events(Path(gate.events), kinds))
        if gate.metrics and kinds is None:
            self._try(lambda: self._write_metrics(Path(gate.metrics)))
        if gate.page:
            self._try(lambda: self._write_page(Path(gate.page)))

    @staticmethod
    def _try(write: Callable[[], None]) -> None:
        try:
            write()
        except (OSError, DpfedError) as error:
            log.warning("what the gate did could not be published: %s", error)

    def _write_metrics(self, path: Path) -> None:
        from dpfed.silo.figures import gate_figures, metrics_text

        replace_file(path, metrics_text(gate_figures(self.handler)).encode(), readable=True)

    def _write_page(self, path: Path) -> None:
        from dpfed.silo.page import page_html

        replace_file(path, page_html(self.handler).encode())

    def begin(self, digest: str) -> None:
        """Note that a gate has started, by which policy, and if that is another than before.

        Args:
            digest: of the bytes that the policy was parsed from; "" if it was in no file.
        """
        before = running(self.handler.state)
        since = dt.datetime.now(dt.UTC).replace(microsecond=0).isoformat()
        found = {"pid": os.getpid(), "since": since, "policy": digest, "dpfed": VERSION}
        replace_file(self.handler.state / _RUNNING, json.dumps(found).encode())
        if before and before.get("policy") != digest:
            self.handler.approvals.note("policy", "", f"{digest[:16]} in place of another one")
        self.handler.approvals.note("started", "", f"dpfed {VERSION}, policy {digest[:16]}")
        self.publish()

    # --------------------------------------------------------------------------------- the log

    def _write_events(self, path: Path, kinds: frozenset[str] | None) -> None:
        state = self.handler.state
        with locked_file(state / f"{_WRITTEN}.lock"):
            written = _read_object(state / _WRITTEN)
            lines = list(self._new_events(written, kinds))
            if not lines:
                return
            handle = os.open(path, _APPEND, 0o640)
            with os.fdopen(handle, "a", encoding="utf-8") as file:
                file.writelines(lines)
            replace_file(state / _WRITTEN, json.dumps(written).encode())

    def _new_events(self, written: dict[str, Any], kinds: frozenset[str] | None) -> Iterator[str]:
        """A line for each kind and training that has happened since; ``written`` is brought up."""
        approvals = self.handler.approvals
        now = dt.datetime.now(dt.UTC).replace(microsecond=0).isoformat()
        prices, trainings = approvals.prices(), {each.name: each for each in approvals.all()}
        for event in approvals.events():
            place = json.dumps([event.day, event.kind, event.training])
            times = event.times - written.get(place, 0)
            if times <= 0 or event.kind == ZERO_ROWS or (kinds and event.kind not in kinds):
                continue
            if (
                _is_unknown(event)
                and event.times.bit_length() == written.get(place, 0).bit_length()
            ):
                continue  # it has not doubled
            written[place] = event.times
            row = {"time": now, "kind": event.kind, "training": event.training, "times": times}
            row["said"] = "" if event.kind in _SAYS_VALUES else event.said
            if event.training in trainings:
                row["terms"] = trainings[event.training].fingerprint
            if event.training in prices:
                row["epsilon"] = prices[event.training].epsilon
            yield json_line(row)


def _is_unknown(event: Event) -> bool:
    return event.kind == "refused" and not event.training


def running(state: Path) -> dict[str, Any]:
    """What the gate that was started last has read; {} if none has been.

    Args:
        state: the gate's folder.
    """
    return _read_object(state / _RUNNING)


def _read_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
