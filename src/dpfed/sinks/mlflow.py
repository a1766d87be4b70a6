# SPDX-License-Identifier: Apache-2.0
"""MLflow: the server that MLFLOW_TRACKING_URI names, or mlflow.db in the run's folder.

One MLflow run per run; a resumed one is a new MLflow run with all of its rounds. MLflow's own
telemetry is turned off: a library that promises privacy calls nobody.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dpfed.history import About, Add, Row, needs, numbers

EXPERIMENT = "dpfed"
LONGEST = 500  # characters of a parameter's value, by MLflow's own limit


@contextmanager
def mlflow(about: About) -> Iterator[Add]:
    """Metrics by round, the recipe as parameters, the promise as a tag."""
    client, run = _begin(about)

    def add(row: Row) -> None:
        for name, value in numbers(row).items():
            client.log_metric(run, name, value, step=row["round"])

    status = "FAILED"
    try:
        yield add
        status = "FINISHED"
    finally:
        client.set_terminated(run, status)


def _begin(about: About) -> tuple[Any, str]:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    logging.getLogger("mlflow.store").setLevel(logging.WARNING)  # it tells of its own tables
    with needs("mlflow"):
        from mlflow.tracking import MlflowClient
    own = f"sqlite:///{(about.folder / 'mlflow.db').resolve()}"
    client = MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or own)
    run = client.create_run(
        _experiment(client), run_name=about.name, tags={"promise": about.promise}
    )
    for key, value in about.settings.items():
        client.log_param(run.info.run_id, key, str(value)[:LONGEST])
    return client, run.info.run_id


def _experiment(client: Any) -> str:
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
    known = client.get_experiment_by_name(name)
    return str(known.experiment_id if known else client.create_experiment(name))
