# SPDX-License-Identifier: Apache-2.0
"""dpfed: the differential-privacy layer for federated learning.

Names load on first use, since torch and dp_accounting take seconds to import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpfed._version import VERSION

if TYPE_CHECKING:
    from dpfed.accounting.calibrate import calibrate as calibrate
    from dpfed.accounting.guarantee import Guarantee as Guarantee
    from dpfed.bundle.trained import TrainedModel as TrainedModel
    from dpfed.bundle.trained import load as load
    from dpfed.recipes.result import Result as Result
    from dpfed.recipes.run import run as run
    from dpfed.recipes.sections import AdaptiveClip as AdaptiveClip
    from dpfed.recipes.sections import Data as Data
    from dpfed.recipes.sections import Evaluation as Evaluation
    from dpfed.recipes.sections import Ledger as Ledger
    from dpfed.recipes.sections import Model as Model
    from dpfed.recipes.sections import Participation as Participation
    from dpfed.recipes.sections import Partition as Partition
    from dpfed.recipes.sections import Privacy as Privacy
    from dpfed.training.plan import Plan as Plan

__version__ = VERSION

_HOMES = {
    "AdaptiveClip": "dpfed.recipes.sections",
    "Data": "dpfed.recipes.sections",
    "Evaluation": "dpfed.recipes.sections",
    "Ledger": "dpfed.recipes.sections",
    "Model": "dpfed.recipes.sections",
    "Participation": "dpfed.recipes.sections",
    "Partition": "dpfed.recipes.sections",
    "Privacy": "dpfed.recipes.sections",
    "Guarantee": "dpfed.accounting.guarantee",
    "Plan": "dpfed.training.plan",
    "Result": "dpfed.recipes.result",
    "TrainedModel": "dpfed.bundle.trained",
    "load": "dpfed.bundle.trained",
    "calibrate": "dpfed.accounting.calibrate",
    "run": "dpfed.recipes.run",
}

__all__ = [
    "AdaptiveClip",
    "Data",
    "Evaluation",
    "Guarantee",
    "Ledger",
    "Model",
    "Participation",
    "Partition",
    "Plan",
    "Privacy",
    "Result",
    "TrainedModel",
    "__version__",
    "calibrate",
    "load",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dpfed' has no attribute {name!r}; it has {sorted(_HOMES)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
