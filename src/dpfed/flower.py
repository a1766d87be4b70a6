# SPDX-License-Identifier: Apache-2.0
"""What Flower users import: a private strategy, a private ClientApp, a mod, and their arguments.

Names load on first use: a relay (``silo_app``) starts without torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpfed.core.vector import Layout
    from dpfed.data.augment import augmented as augmented
    from dpfed.data.batches import dataset_batches as dataset_batches
    from dpfed.data.batches import tensor_batches as tensor_batches
    from dpfed.data.datasets import Records as Records
    from dpfed.data.losses import loss_by_name as loss_by_name
    from dpfed.data.models import Linear as Linear
    from dpfed.data.models import evaluate as evaluate
    from dpfed.data.modules import Network as Network
    from dpfed.data.pretrained import save_adapter as save_adapter
    from dpfed.data.pretrained import text_model as text_model
    from dpfed.data.standardised import Standardised as Standardised
    from dpfed.recipes.federation import read_records as read_records
    from dpfed.recipes.result import began_at as began_at
    from dpfed.recipes.result import claim_folder as claim_folder
    from dpfed.recipes.sinks._open import About as About
    from dpfed.recipes.sinks._open import open_sinks as open_sinks
    from dpfed.recipes.terms import Terms as Terms
    from dpfed.recipes.terms import read_terms as read_terms
    from dpfed.silo.relay import silo_app as silo_app
    from dpfed.training.flower.client import client_app as client_app
    from dpfed.training.flower.client import private as private
    from dpfed.training.flower.one_sentence import errors_in_one_sentence as errors_in_one_sentence
    from dpfed.training.flower.strategy import DPResult as DPResult
    from dpfed.training.flower.strategy import DPStrategy as DPStrategy
    from dpfed.training.plan import Plan

_HOMES = {
    "About": "dpfed.recipes.sinks._open",
    "DPResult": "dpfed.training.flower.strategy",
    "DPStrategy": "dpfed.training.flower.strategy",
    "Linear": "dpfed.data.models",
    "Network": "dpfed.data.modules",
    "Records": "dpfed.data.datasets",
    "Standardised": "dpfed.data.standardised",
    "Terms": "dpfed.recipes.terms",
    "augmented": "dpfed.data.augment",
    "began_at": "dpfed.recipes.result",
    "claim_folder": "dpfed.recipes.result",
    "client_app": "dpfed.training.flower.client",
    "dataset_batches": "dpfed.data.batches",
    "errors_in_one_sentence": "dpfed.training.flower.one_sentence",
    "evaluate": "dpfed.data.models",
    "loss_by_name": "dpfed.data.losses",
    "open_sinks": "dpfed.recipes.sinks._open",
    "private": "dpfed.training.flower.client",
    "read_records": "dpfed.recipes.federation",
    "read_terms": "dpfed.recipes.terms",
    "save_adapter": "dpfed.data.pretrained",
    "silo_app": "dpfed.silo.relay",
    "tensor_batches": "dpfed.data.batches",
    "text_model": "dpfed.data.pretrained",
}

__all__ = [
    "About",
    "DPResult",
    "DPStrategy",
    "Linear",
    "Network",
    "Records",
    "Standardised",
    "Terms",
    "augmented",
    "began_at",
    "claim_folder",
    "client_app",
    "dataset_batches",
    "errors_in_one_sentence",
    "evaluate",
    "loss_by_name",
    "make_plan",
    "open_sinks",
    "private",
    "read_records",
    "read_terms",
    "save_adapter",
    "silo_app",
    "tensor_batches",
    "text_model",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dpfed.flower' has no attribute {name!r}; it has {__all__}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def make_plan(
    nominal: Sequence[float], layout: Layout | Mapping[str, Any] | None = None, **sections: Any
) -> Plan:
    """A Plan from a recipe's sections: rounds, privacy, server, client, evaluation.

    Both sides of an app call it with the same arguments. Without a method, client or server a model
    that standardises its inputs (Standardised) is trained by dp-fedauto, any other by DP-FedGD.

    Args:
        nominal: the clients' public sizes in units (records, persons; 1 for each client at client
            level), by partition-id; [] where privacy.cohort makes the population an open one.
        layout: the model's ``layout`` or state dict, for methods that need its shape; None for all
            others.
        **sections: the recipe's sections as keywords.
    """
    from dpfed.core.vector import Layout, layout_of, standardises
    from dpfed.recipes.build import plan_for
    from dpfed.recipes.schema import parse, with_default

    if layout is not None and not isinstance(layout, Layout):
        layout = layout_of(layout)
    if standardises(layout):
        sections = with_default(sections)
    return plan_for(parse(sections), nominal, layout)
