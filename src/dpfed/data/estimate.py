# SPDX-License-Identifier: Apache-2.0
"""The non-private estimate from all records together, for studies of estimation error.

It is not private and never part of a training: ``evaluation.kind = "estimate"`` compares with it.
"""

from __future__ import annotations

import numpy as np
import torch

from dpfed.core.errors import RecipeError
from dpfed.core.types import Vector
from dpfed.data.datasets import Records
from dpfed.data.models import Linear, Model


def estimate(model: Model, records: Records) -> Vector:
    """The minimiser of the mean loss, in double precision."""
    if not isinstance(model, Linear) or model.link == "softmax":
        raise RecipeError(
            "an estimate needs one minimiser, and this model has many or none; "
            "use model 'logistic' or 'poisson'"
        )
    from scipy.optimize import minimize

    exact = model.problem(records).doubled()

    def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
        at = torch.from_numpy(values)
        return exact.loss(at), exact.gradient(at).numpy()

    start = np.zeros(model.layout.size)
    found = minimize(loss, start, jac=True, method="BFGS", options={"gtol": 1e-9})
    gradient = float(np.abs(loss(found.x)[1]).max())
    if not gradient < 1e-5:
        raise RecipeError(
            f"the non-private estimate was not found (gradient {gradient:.1g} after "
            f"{found.nit} steps); the records may be separable: use more of them"
        )
    return torch.from_numpy(found.x)
