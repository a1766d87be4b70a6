# SPDX-License-Identifier: Apache-2.0
"""The algorithms and mechanisms that the law of sensitivity runs on."""

from __future__ import annotations

from dpfed.core.types import Adjacency, Unit

CHANGING = [
    (Unit.RECORD, Adjacency.ADD_REMOVE),
    (Unit.GROUP, Adjacency.ADD_REMOVE),
    (Unit.GROUP, Adjacency.REPLACE_ONE),
]
