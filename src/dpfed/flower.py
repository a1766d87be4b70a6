# SPDX-License-Identifier: Apache-2.0
"""What Flower users import: a private strategy, a private ClientApp, a mod, and their arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpfed.core.vector import layout_of
from dpfed.data.datasets import Records
from dpfed.data.models import Linear, evaluate
from dpfed.data.modules import Network
from dpfed.recipes.build import plan_for
from dpfed.recipes.schema import parse
from dpfed.recipes.sinks._open import About, open_sinks
from dpfed.training.flower.client import client_app, private
from dpfed.training.flower.strategy import DPResult, DPStrategy
from dpfed.training.plan import Plan

__all__ = [
    "About",
    "DPResult",
    "DPStrategy",
    "Linear",
    "Network",
    "Records",
    "client_app",
    "evaluate",
    "make_plan",
    "open_sinks",
    "private",
]


def make_plan(
    nominal: Sequence[float], layout: Mapping[str, Any] | None = None, **sections: Any
) -> Plan:
    """A Plan from a recipe's sections: rounds, privacy, server, client, evaluation.

    Both sides of an app call it with the same arguments.

    Args:
        nominal: the clients' public sizes in units (records, persons; 1 for each client at client
            level), by partition-id.
        layout: the model's state dict, for methods that need its shape; None for all others.
        **sections: the recipe's sections as keywords.
    """
    return plan_for(parse(sections), nominal, None if layout is None else layout_of(layout))
