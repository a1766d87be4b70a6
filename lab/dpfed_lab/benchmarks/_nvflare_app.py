# SPDX-License-Identifier: Apache-2.0
"""Tasks without work, for nvflare_round.py: sites send back what they got."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

from nvflare.apis.controller_spec import Task
from nvflare.apis.executor import Executor
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

TASK = "empty"


class EmptyTasks(Controller):  # type: ignore[misc]
    """Rounds of one task for each site, and the seconds of each as JSON."""

    def __init__(self, rounds: int, size: int, sites: int, notes: str) -> None:
        super().__init__()
        self.rounds, self.size, self.sites, self.notes = rounds, size, sites, notes

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Send, and wait until the last result is here: not until NVFlare has noticed."""
        del abort_signal
        seconds = []
        for _ in range(self.rounds):
            came = threading.Semaphore(0)
            began = time.perf_counter()
            data = Shareable({"order": bytes(self.size)})
            task = Task(TASK, data, result_received_cb=lambda came=came, **_: came.release())
            self.broadcast(task, fl_ctx, min_responses=self.sites)
            for _ in range(self.sites):
                came.acquire(timeout=60)
            seconds.append(time.perf_counter() - began)
        Path(self.notes).write_text(json.dumps(seconds), encoding="utf-8")

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to prepare."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to clear away."""

    def process_result_of_unknown_task(self, *_: Any) -> None:
        """None is."""


class Echo(Executor):  # type: ignore[misc]
    """Sends back what it got."""

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """The order as the reply."""
        del task_name, fl_ctx, abort_signal
        return Shareable({"reply": shareable["order"]})
