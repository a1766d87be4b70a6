# SPDX-License-Identifier: Apache-2.0
"""A small network's apps on a grid, and what is trained with them."""

from __future__ import annotations

from typing import Any

import torch
from flwr.app import (
    ArrayRecord,
)
from flwr.clientapp import ClientApp

from dpfed.audit.client_laws import MODEL
from dpfed.flower import client_app
from dpfed.training.inprocess import rounds
from dpfed.training.plan import Plan
from tests.helpers.rounds import SIZES, client_states
from tests.training.flower.local_grid import LocalGrid, Tamper, nodes

INITIAL = ArrayRecord(MODEL.layout.unflatten(torch.zeros(MODEL.layout.size)))


def app_for(plan: Plan, sizes: list[int] = SIZES) -> ClientApp:
    people = client_states(sizes)
    return client_app(lambda context: people[context.node_config["partition-id"]].problem, plan)


def grid_for(plan: Plan, tamper: Tamper | None = None, sizes: list[int] = SIZES) -> LocalGrid:
    return LocalGrid(app_for(plan, sizes), nodes(len(sizes)), tamper)


def final(plan: Plan, sizes: list[int] = SIZES) -> torch.Tensor:
    *_, (last, _) = rounds(
        plan, [m.problem for m in client_states(sizes).values()], MODEL.initial(0)
    )
    return last.params


def params(result: Any) -> torch.Tensor:
    return MODEL.layout.flatten(result.arrays.to_torch_state_dict())
