# SPDX-License-Identifier: Apache-2.0
"""The smallest recipe that trains."""

from __future__ import annotations

from typing import Any

TINY: dict[str, Any] = {
    "rounds": 6,
    "data": {
        "source": "synthetic",
        "options": {"records": 600, "features": 5, "classes": 3},
        "partition": {"clients": 4},
    },
    "privacy": {"epsilon": 5.0, "noise": "keyed"},
    "server": [{"name": "sofim"}, {"name": "scale", "rate": 1.0}],
}
