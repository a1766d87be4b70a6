# SPDX-License-Identifier: Apache-2.0
"""What a TaskGrid uses of NVFlare, here: tasks go to functions, and results come back."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.shareable import Shareable

Site = Callable[[Shareable], Shareable | None]


class FakeController:
    """Runs a task at once; a site that returns None has not replied yet."""

    def __init__(self, sites: dict[str, Site]) -> None:
        self.sites, self.gone, self.tasks = sites, set[str](), list[tuple[str, Task]]()

    @property
    def context(self) -> Any:
        """An FLContext, as far as it is used."""
        clients = [Client(name, "") for name in self.sites]
        return SimpleNamespace(get_engine=lambda: SimpleNamespace(get_clients=lambda: clients))

    def get_client_disconnect_time(self, name: str) -> float | None:
        return 1.0 if name in self.gone else None

    def broadcast(self, task: Task, fl_ctx: object, targets: list[str]) -> None:
        del fl_ctx
        (site,) = targets
        self.tasks.append((site, task))
        result = self.sites[site](task.data)
        if result is not None:
            self.submit(site, task, result)

    def submit(self, site: str, task: Task, result: Shareable) -> None:
        submitted = ClientTask(Client(site, ""), task)
        submitted.result = result
        task.result_received_cb(client_task=submitted, fl_ctx=None)
        assert submitted.result is None  # a model would stay in memory
