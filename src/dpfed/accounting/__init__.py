# SPDX-License-Identifier: Apache-2.0
"""What a run costs: an upper bound as a number, and the guarantee as a sentence.

Alone, without anything else of dpfed: ``GaussianAccountant``, with dp_accounting's interface, and
``epsilon_of_event``. Both load on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpfed.accounting.accountant import GaussianAccountant as GaussianAccountant
    from dpfed.accounting.guarantee import epsilon_of_event as epsilon_of_event

_HOMES = {"GaussianAccountant": "accountant", "epsilon_of_event": "guarantee"}

__all__ = ["GaussianAccountant", "epsilon_of_event"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dpfed.accounting' has no attribute {name!r}")
    return getattr(import_module(f"dpfed.accounting.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
