# SPDX-License-Identifier: Apache-2.0
"""The server of a job: it trains what the terms say over the job's sites, and leaves the result.

    {"path": "dpfed.nvflare.controller.TermsController",
     "args": {"terms": "terms.toml", "out": "result", "checkpoint": "ward-7"}}

It is the server of a Flower app (recipes/flower_app.py) on another Grid, so files, checkpoint and
bits are the same. A job that was aborted, or died, is submitted again as it is: with a checkpoint
it resumes after the last committed round.

A job's arguments are its lead's, and the server's files are not. So each is a path in a folder:

| argument     | is in                                        | so that                            |
|--------------|----------------------------------------------|------------------------------------|
| terms        | the job's own app, beside its configuration  | a job carries its terms            |
| out          | the job's folder on the server               | ``download_job`` brings the result |
| checkpoint   | ``dpfed-checkpoints`` in the server's        | it outlives the job                |
|              | workspace                                    |                                    |

| edge case                                     | what happens                             |
|-----------------------------------------------|------------------------------------------|
| a path from the root, with .., or whose links | RecipeError, before anything is read or  |
| lead out of the folder                        | written                                  |
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from dpfed.core.checks import refuse


class TermsController(Controller):  # type: ignore[misc]
    """A private training by terms that the sites' owners have approved.

    Args:
        terms: the file of the terms.
        out: the folder for the model, the guarantee and the metrics.
        checkpoint: a folder that outlives the job; "" is none, and an aborted job begins anew.
        timeout: how many seconds a stage of a round waits for replies; asked for is spent.
        sinks: where each round's row goes at once: csv, tensorboard, mlflow, wandb.

    >>> TermsController("terms.toml", checkpoint="ward-7").arguments["out"]
    'result'
    """

    def __init__(
        self,
        terms: str,
        out: str = "result",
        checkpoint: str = "",
        timeout: float = 3600.0,
        sinks: str = "",
    ) -> None:
        super().__init__()
        words = {"terms": terms, "out": out, "checkpoint": checkpoint, "sinks": sinks}
        for name, value in words.items():
            if not isinstance(value, str) or (name in ("terms", "out") and not value):
                raise refuse(name, "a path" if name != "sinks" else "words", value)
        self.arguments: dict[str, Any] = {**words, "timeout": float(timeout)}

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Train; NVFlare calls this once the sites have the job.

        Args:
            abort_signal: triggered when the job is aborted.
            fl_ctx: knows the job's folders and its sites.
        """
        from flwr.app import Context, RecordDict

        from dpfed.core.flower_private import become_node
        from dpfed.nvflare.grid import JobAborted, TaskGrid
        from dpfed.recipes.flower_app import run_server

        become_node()
        context = Context(1, 1, {}, RecordDict(), self._config(fl_ctx))
        try:
            run_server(TaskGrid(self, fl_ctx, abort_signal), context)
        except JobAborted as error:
            self.log_info(fl_ctx, str(error))

    def _config(self, fl_ctx: FLContext) -> dict[str, Any]:
        """The arguments, with paths from the root; RecipeError if one leads out of its folder."""
        workspace, job = fl_ctx.get_engine().get_workspace(), fl_ctx.get_job_id()
        homes = {
            "terms": workspace.get_app_config_dir(job),
            "out": workspace.get_run_dir(job),
            "checkpoint": Path(workspace.get_root_dir()) / "dpfed-checkpoints",
        }
        paths = {
            name: str(_confined(name, Path(home).resolve(), self.arguments[name]))
            for name, home in homes.items()
            if self.arguments[name]
        }
        return {**self.arguments, **paths}

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to prepare."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to clear away."""

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: Any
    ) -> None:
        """A reply to a task that is over: dropped."""


def _confined(name: str, home: Path, value: str) -> Path:
    """A path below a folder, its links followed; RecipeError for any other."""
    path = (home / value).resolve()
    if path == home or not path.is_relative_to(home) or ".." in Path(value).parts:
        raise refuse(name, f"a path below {home.name!r}, without ..", value)
    return path
