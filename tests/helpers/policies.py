# SPDX-License-Identifier: Apache-2.0
"""A policy and the terms that it allows."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

from dpfed.recipes.terms import Terms, read_terms
from dpfed.silo.policy import Policy, load_policy
from tests.silo.gates import Silo, terms_for

TODAY = dt.date(2026, 11, 16)


def policy(folder: Path, gate: dict[str, Any] | None = None, **data: Any) -> Policy:
    silo = Silo(folder, 0)
    silo.write(gate, **data)
    return load_policy(silo.policy)


def terms(folder: Path, silos: int = 3, **changes: Any) -> Terms:
    return read_terms(terms_for(folder, silos, **changes).read_bytes())


PRIVACY = {"epsilon": 2.0, "noise": "keyed"}
