# SPDX-License-Identifier: Apache-2.0
"""What Flower users import: a private strategy, a private ClientApp, a mod, and their arguments.

Names load on first use: a relay (``silo_app``) starts without torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from numbers import Number
from typing import TYPE_CHECKING, Any, Unpack

from dpfed.core.checks import refuse

if TYPE_CHECKING:
    from dpfed.client._standardised import Standardised as Standardised
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
    from dpfed.recipes.app_model import save_model as save_model
    from dpfed.recipes.result import began_at as began_at
    from dpfed.recipes.result import claim_folder as claim_folder
    from dpfed.recipes.schema import Recipe
    from dpfed.recipes.screened import read_records as read_records
    from dpfed.recipes.sections import PlanSections
    from dpfed.recipes.sinks._open import About as About
    from dpfed.recipes.sinks._open import open_sinks as open_sinks
    from dpfed.recipes.terms import Terms as Terms
    from dpfed.recipes.terms import read_terms as read_terms
    from dpfed.silo.relay import silo_app as silo_app
    from dpfed.training.flower.accountants import ExactAccountant as ExactAccountant
    from dpfed.training.flower.accountants import PLDAccountant as PLDAccountant
    from dpfed.training.flower.client import client_app as client_app
    from dpfed.training.flower.client import private as private
    from dpfed.training.flower.strategy import DPResult as DPResult
    from dpfed.training.flower.strategy import DPStrategy as DPStrategy
    from dpfed.training.flower.strategy import errors_in_one_sentence as errors_in_one_sentence
    from dpfed.training.plan import Plan

_HOMES = {
    "About": "dpfed.recipes.sinks._open",
    "DPResult": "dpfed.training.flower.strategy",
    "DPStrategy": "dpfed.training.flower.strategy",
    "ExactAccountant": "dpfed.training.flower.accountants",
    "Linear": "dpfed.data.models",
    "Network": "dpfed.data.modules",
    "PLDAccountant": "dpfed.training.flower.accountants",
    "Records": "dpfed.data.datasets",
    "Standardised": "dpfed.client._standardised",
    "Terms": "dpfed.recipes.terms",
    "augmented": "dpfed.data.augment",
    "began_at": "dpfed.recipes.result",
    "claim_folder": "dpfed.recipes.result",
    "client_app": "dpfed.training.flower.client",
    "dataset_batches": "dpfed.data.batches",
    "errors_in_one_sentence": "dpfed.training.flower.strategy",
    "evaluate": "dpfed.data.models",
    "loss_by_name": "dpfed.data.losses",
    "open_sinks": "dpfed.recipes.sinks._open",
    "private": "dpfed.training.flower.client",
    "read_records": "dpfed.recipes.screened",
    "read_terms": "dpfed.recipes.terms",
    "save_adapter": "dpfed.data.pretrained",
    "save_model": "dpfed.recipes.app_model",
    "silo_app": "dpfed.silo.relay",
    "tensor_batches": "dpfed.data.batches",
    "text_model": "dpfed.data.pretrained",
}

__all__ = [
    "About",
    "DPResult",
    "DPStrategy",
    "ExactAccountant",
    "Linear",
    "Network",
    "PLDAccountant",
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
    "save_model",
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
    clients: int | Sequence[float] = (),
    layout: Layout | Mapping[str, Any] | None = None,
    **sections: Unpack[PlanSections],
) -> Plan:
    """A Plan from a recipe's sections: calibrated, and refused if it is unsound.

    Both sides of an app call it with the same arguments. Without a method, client or server a model
    that a method brings is trained by it (Standardised by dp-fedauto), a network that is given as
    ``model`` by drawn minibatches and Adam, any other by DP-FedGD.

    Args:
        clients: how many clients there are, if a client is the unit; else each client's public
            number of units (records, persons), by partition-id. Left out where privacy.cohort makes
            the population an open one.
        layout: the model's ``layout`` or state dict, for methods that need its shape, and to log a
            warning where the noise leaves little hope; None for all others.
        **sections: rounds, method, privacy, client, server, sum, evaluation, seed, name: a recipe's
            own fields, as ``dpfed.run`` takes them.

    Returns:
        a Plan that states its own guarantee.

    Raises:
        RecipeError: names the field, its bound and the way out.
        UnsoundPlan: if no guarantee could be stated for it.

    >>> from dpfed import Privacy
    >>> privacy = Privacy(epsilon=8, delta=1e-3, unit="client")
    >>> plan = make_plan(clients=10, rounds=5, method="dp-fedavg", privacy=privacy)
    >>> plan.rounds, len(plan.nominal), round(plan.guarantee().epsilon, 3)
    (5, 10, 8.0)
    """
    from dpfed.core.vector import Layout, layout_of
    from dpfed.recipes.build import plan_for, recognised
    from dpfed.recipes.methods import method_of
    from dpfed.recipes.schema import parse, with_default
    from dpfed.training.signal import warn_of_noise

    tables: Mapping[str, Any] = sections
    if "model" in sections:
        layout, tables = _of_model(sections, layout)
    if layout is not None and not isinstance(layout, Layout):
        layout = recognised(layout_of(layout))
    method = None if layout is None else method_of(layout.trained_by)
    if method is not None:
        tables = with_default(tables, method)
    recipe = parse(tables)
    if not isinstance(clients, int) and not all(isinstance(size, Number) for size in clients):
        raise refuse("clients", "how many, or a list of public sizes", clients, "give numbers")
    sizes = [_size(recipe, clients)] * clients if isinstance(clients, int) else clients
    plan = plan_for(recipe, sizes, layout, remember=True)
    if layout is not None:
        warn_of_noise(plan, layout)
    return plan


def _of_model(sections: Mapping[str, Any], layout: Any) -> tuple[Any, Mapping[str, Any]]:
    """The layout of the model among a plan's sections, and the sections with its default."""
    from torch import nn

    from dpfed.core.vector import layout_of
    from dpfed.data.modules import Network
    from dpfed.recipes.schema import with_default

    tables, model = dict(sections), sections["model"]
    del tables["model"]
    if isinstance(model, Network | nn.Module):
        tables = with_default({**tables, "model": {"name": "network"}})
        tables.pop("model", None)
        if layout is None and isinstance(model, nn.Module):
            trained = {n: each for n, each in model.named_parameters() if each.requires_grad}
            return layout_of(trained), tables
    return (getattr(model, "layout", None) if layout is None else layout), tables


def _size(recipe: Recipe, clients: int) -> float:
    """The public size of every client where only their number is given."""
    if recipe.privacy.nominal is not None:
        return recipe.privacy.nominal
    if recipe.privacy.unit != "client":
        raise refuse(
            "clients",
            f"a list of each client's public number of units where the unit is a "
            f"{recipe.privacy.unit}",
            clients,
            f"give one such as [2500] * {clients}",
        )
    return 1.0
