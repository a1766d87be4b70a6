# SPDX-License-Identifier: Apache-2.0
"""MLflow: the server that MLFLOW_TRACKING_URI names, or mlflow.db in the run's folder.

One MLflow run per run; a resumed one is a new MLflow run with all of its rounds. MLflow's own
telemetry is turned off: a library for privacy sends nothing to third parties.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dpfed.core.extras import require_extra
from dpfed.recipes.sinks._open import About, Add
from dpfed.training.history import Row, numbers

EXPERIMENT = "dpfed"
LONGEST, MOST = 500, 100  # characters of a parameter's value, parameters at once: MLflow's limits
CALM = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # 7 of 120 s would hold a round up for minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
"""Settings of MLflow, used unless the user has set them."""


@contextmanager
def mlflow(about: About) -> Iterator[Add]:
    """Metrics by round, the recipe as parameters, the guarantee as a tag once it is known."""
    client, run = _begin(about)
    from mlflow.entities import Metric

    def add(row: Row) -> None:
        now, at = round(1000 * time.time()), row["round"]
        client.log_batch(
            run, [Metric(_metric(name), value, now, at) for name, value in numbers(row).items()]
        )

    status = "FAILED"
    try:
        yield add
        status = "FINISHED"
    finally:
        if about.finished:
            client.set_tag(run, "guarantee", about.finished)
        client.set_terminated(run, status)


def _begin(about: About) -> tuple[Any, str]:
    for name, value in CALM.items():
        os.environ.setdefault(name, value)
    logging.getLogger("mlflow.store").setLevel(logging.WARNING)  # it logs its own tables
    with require_extra("mlflow", "sink 'mlflow'"):
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient
    own = f"sqlite:///{(about.folder / 'mlflow.db').resolve()}"
    client = MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or own)
    run = client.create_run(
        _experiment(client), run_name=about.name, tags={"planned_guarantee": about.guarantee}
    )
    params = [Param(key, str(value)[:LONGEST]) for key, value in about.settings.items()]
    for start in range(0, len(params), MOST):
        client.log_batch(run.info.run_id, params=params[start : start + MOST])
    return client, run.info.run_id


def _metric(name: str) -> str:
    """A name with the signs that MLflow allows: ``evaluate_fn`` may choose any."""
    return re.sub(r"[^\w. /-]", "_", name)


def _experiment(client: Any) -> str:
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
    known = client.get_experiment_by_name(name)
    return str(known.experiment_id if known else client.create_experiment(name))
