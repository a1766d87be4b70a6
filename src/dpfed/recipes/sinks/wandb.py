# SPDX-License-Identifier: Apache-2.0
"""Weights & Biases: offline, in the run's folder ``wandb``, unless WANDB_MODE says online.

wandb sends rows to its own servers, so nothing leaves until somebody says so: WANDB_MODE=online, or
later ``wandb sync FOLDER``. A resumed run is a new W&B run with all of its rounds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dpfed.core.extras import require_extra
from dpfed.recipes.sinks._open import About, Add
from dpfed.training.history import Row, numbers

PROJECT = "dpfed"
"""The project, unless WANDB_PROJECT names another."""
QUIET = {
    "console": "off",  # a ServerApp's log is its owner's
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "host": "a server",  # or it would be this machine's name
    "save_code": False,
    "silent": True,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}
"""What W&B would send of the machine beside the rows: nothing."""


@contextmanager
def wandb(about: About) -> Iterator[Add]:
    """Numbers by round, the recipe as config, the guarantee in the summary once it is known."""
    run = _begin(about)
    run.summary["planned_guarantee"] = about.guarantee

    def add(row: Row) -> None:
        run.log(numbers(row), step=row["round"])

    status = 1
    try:
        yield add
        status = 0
    finally:
        if about.finished:
            run.summary["guarantee"] = about.finished
        run.finish(exit_code=status)


def _begin(about: About) -> Any:
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when wandb is imported
    with require_extra("wandb", "sink 'wandb'"):
        import wandb as client
    mode = os.environ.get("WANDB_MODE") or "offline"
    return client.init(
        project=os.environ.get("WANDB_PROJECT") or PROJECT,
        name=about.name,
        dir=str(about.folder),
        config=dict(about.settings),
        mode=mode,
        reinit="create_new",
        settings=client.Settings(**QUIET),
    )
