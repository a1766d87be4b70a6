# SPDX-License-Identifier: Apache-2.0
"""What tests of many rooms share of the clients' laws: a small model, its records, a plan."""

from __future__ import annotations

from dpfed.audit.client_laws import (
    MODEL,
    NOMINAL,
    ConstantReleaser,
    _equal,
    breaches,
    law_plan,
    model_for,
    records,
    shared_at,
    watch,
)

plan_for = law_plan

__all__ = [
    "MODEL",
    "NOMINAL",
    "ConstantReleaser",
    "_equal",
    "breaches",
    "model_for",
    "plan_for",
    "records",
    "shared_at",
    "watch",
]
