# SPDX-License-Identifier: Apache-2.0
"""The evidence of a real gated training of three silos, whose handlers answer in this process."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict

from dpfed.core.environment import IDENTITY, LEDGER, STATE
from dpfed.core.flower_private import from_bytes, to_bytes
from dpfed.recipes.flower_app import run_server
from dpfed.silo.approvals import LEDGER_FILE
from dpfed.silo.handler import RequestHandler
from dpfed.silo.policy import load_policy
from tests.silo.gates import Silo, terms_for
from tests.training.flower.local_grid import LocalGrid, become_a_server

SILOS = 3


def gated_training(
    folder: Path,
    silos: int = SILOS,
    out: str = "out",
    data: dict[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """Train over gates' handlers; the folder of the result, with its evidence."""
    terms = terms_for(folder, silos, **changes)
    owners = [Silo(folder / f"silo-{number}", number) for number in range(silos)]
    with pytest.MonkeyPatch.context() as patch:
        for name in (STATE, LEDGER, IDENTITY):
            patch.setenv(name, "")
        handlers: dict[int, RequestHandler] = {}
        for each in owners:
            if not each.policy.exists():
                each.write(**({"methods": [changes.get("method", "dp-fedgd")]} | (data or {})))
            handlers[each.number] = RequestHandler(load_policy(each.policy))
            handlers[each.number].open()
            each.approve(terms)

        def answer(message: Message, context: Context) -> Message:
            held = handlers[int(context.node_config["partition-id"])]
            named = {
                STATE: str(held.state / "trainings"),
                LEDGER: str(held.state / LEDGER_FILE),
                IDENTITY: "",
            }
            before = {name: os.environ.get(name, "") for name in named}
            timer = signal.getitimer(signal.ITIMER_REAL)
            os.environ.update(named)
            try:
                made = from_bytes(held.reply(to_bytes(message.content)))
            finally:
                os.environ.update(before)
                signal.setitimer(signal.ITIMER_REAL, *timer)
            return Message(made, reply_to=message)

        become_a_server(patch)
        grid = LocalGrid(answer, {100 + n: n for n in handlers})  # type: ignore[arg-type]
        config: Any = {"terms": str(terms), "out": str(folder / out)}
        run_server(grid, Context(1, 0, {}, RecordDict(), config))
    return folder / out
