# SPDX-License-Identifier: Apache-2.0
"""Timings that a ServerApp takes in Flower's simulation, as ``flwr run`` starts it.

The ServerApp is another process: what it found comes back in a file.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from dpfed.recipes.simulation import run_apps
from dpfed_lab.benchmarks._measure import Timing

Timings = dict[int, dict[str, Timing]]
"""By size of the model and name of the task."""
FILE = "timings.json"


def timing_app(measure: Callable[[Grid], Timings]) -> ServerApp:
    """A ServerApp that takes timings, and leaves them for ``simulated``."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        logging.getLogger("flwr").setLevel(logging.ERROR)
        found = {
            size: {name: asdict(timing) for name, timing in timings.items()}
            for size, timings in measure(grid).items()
        }
        part = Path(str(context.run_config["out"])) / f"{FILE}.part"
        part.write_text(json.dumps(found), encoding="utf-8")
        part.rename(part.with_name(FILE))

    return app


def simulated(module: str, clients: int) -> Timings:
    """What a module's ``server`` measures with as many of its ``nodes``, a ClientApp."""
    with tempfile.TemporaryDirectory() as folder:
        run_apps(
            f"{module}:server",
            f"{module}:nodes",
            Path(folder),
            clients=clients,
            finished=lambda out: (out / FILE).exists(),
        )
        found = json.loads((Path(folder) / FILE).read_text(encoding="utf-8"))
    return {
        int(size): {name: Timing(**timing) for name, timing in timings.items()}
        for size, timings in found.items()
    }
