# SPDX-License-Identifier: Apache-2.0
"""Single parts, for those who use nothing else of dpfed: docs/parts.md has five lines of each.

    server_step, ServerStepper          a server optimizer on plain tensors
    NoisySum                            a mechanism on a tensor: clips, counts, states its cost
    secure_sum, SumParty, SumServer     a sum whose terms nobody sees, in and between processes;
    own_key                             a party's signing key
    charged                             an owner's ledger around somebody else's mechanism
    noisy_metrics                       federated metrics of scores and labels that are at hand

Guarantee: what these release is clipped, has noise, and is counted here; ``charged`` counts what
others release. Names load on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpfed.parts.charge import charged as charged
    from dpfed.parts.metric_release import NoisyMetrics as NoisyMetrics
    from dpfed.parts.metric_release import noisy_metrics as noisy_metrics
    from dpfed.parts.noisy_sum import NoiseShare as NoiseShare
    from dpfed.parts.noisy_sum import NoisySum as NoisySum
    from dpfed.parts.noisy_sum import NoisyValue as NoisyValue
    from dpfed.parts.secure_total import SumParty as SumParty
    from dpfed.parts.secure_total import SumServer as SumServer
    from dpfed.parts.secure_total import secure_sum as secure_sum
    from dpfed.parts.stepper import ServerStepper as ServerStepper
    from dpfed.parts.stepper import server_step as server_step
    from dpfed.sums.secagg.identity import own_key as own_key

_HOMES = {
    "NoiseShare": "dpfed.parts.noisy_sum",
    "NoisyMetrics": "dpfed.parts.metric_release",
    "NoisySum": "dpfed.parts.noisy_sum",
    "NoisyValue": "dpfed.parts.noisy_sum",
    "ServerStepper": "dpfed.parts.stepper",
    "SumParty": "dpfed.parts.secure_total",
    "SumServer": "dpfed.parts.secure_total",
    "charged": "dpfed.parts.charge",
    "noisy_metrics": "dpfed.parts.metric_release",
    "own_key": "dpfed.sums.secagg.identity",
    "secure_sum": "dpfed.parts.secure_total",
    "server_step": "dpfed.parts.stepper",
}

__all__ = [
    "NoiseShare",
    "NoisyMetrics",
    "NoisySum",
    "NoisyValue",
    "ServerStepper",
    "SumParty",
    "SumServer",
    "charged",
    "noisy_metrics",
    "own_key",
    "secure_sum",
    "server_step",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dpfed.parts' has no attribute {name!r}; it has {__all__}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
