# SPDX-License-Identifier: Apache-2.0
"""Linear regression over a few silos, and its exact minimiser."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize

from dpfed.core.types import Unit
from dpfed.data.datasets import Records
from dpfed.data.models import Linear
from dpfed.recipes.build import plan_for
from dpfed.recipes.schema import parse
from dpfed.training.inprocess import rounds
from dpfed.training.plan import Plan

MODEL = Linear("logistic", 3)


SIZES = [40, 60, 50]


def silos(
    link: str = "logistic", apart: float = 0.0, twins: bool = False
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Three clients whose labels no model explains in full; ``apart`` moves their features."""
    made = []
    for i, m in enumerate(SIZES):
        rng = np.random.default_rng(0 if twins else i)
        X = (rng.normal(size=(m, 3)) * 0.7 + apart * (i - 1)).astype(np.float32)
        score = X @ [1.0, -0.7, 0.4] + 0.3 * apart * (i - 1)
        chance = 1 / (1 + np.exp(-score))
        y = rng.poisson(np.exp(score * 0.5)) if link == "poisson" else rng.random(m) < chance
        made.append((torch.from_numpy(X), torch.from_numpy(y.astype(np.float32))))
    return [made[0]] * 3 if twins else made


def minimiser(link: str, data: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
    """Of the mean loss over all records, by scipy."""
    X = np.concatenate([np.c_[x.double().numpy(), np.ones(len(x))] for x, _ in data])
    y = np.concatenate([y.double().numpy() for _, y in data])

    def loss(theta: Any) -> Any:
        z = X @ theta
        top, slope = (
            (np.exp(z),) * 2 if link == "poisson" else (np.logaddexp(0, z), 1 / (1 + np.exp(-z)))
        )
        return np.mean(top - y * z), X.T @ (slope - y) / len(y)

    found = minimize(loss, np.zeros(4), jac=True, method="BFGS", options={"gtol": 1e-9})
    assert np.abs(found.jac).max() < 1e-6
    return found.x


def clear_run(
    link: str, data: list[tuple[torch.Tensor, torch.Tensor]], client: dict[str, Any], **changes: Any
) -> Any:
    """Where a recipe without noise ends; no clip bites unless the client says so."""
    model = Linear(link, 3)
    problems = [model.problem(Records(x, y)) for x, y in data]
    unit, stop = changes.pop("unit", Unit.RECORD), changes.pop("stop", None)
    privacy = {"mechanism": "clear", "unit": unit, "noise": "keyed"}
    privacy |= {} if client["name"] == "fednew" else {"clip": 1e3}  # which has its own
    recipe = parse({"client": client, "privacy": privacy, **changes})
    nominal = [float(len(x)) if unit is Unit.RECORD else 1.0 for x, _ in data]
    run = rounds(plan_for(recipe, nominal, model.layout), problems, model.initial(0))
    *_, (last, _) = islice(run, stop)
    return last.params


def plan_of(client: dict[str, Any], model: Linear = MODEL, **privacy: Any) -> Plan:
    tables = {"client": client, "rounds": 12, "privacy": {"noise": "keyed", **privacy}}
    return plan_for(parse(tables), [40.0, 60.0, 50.0], model.layout)


def distance(found: torch.Tensor, expected: Any) -> float:
    return float(np.abs(found.double().numpy() - expected).max())
