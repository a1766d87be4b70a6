# SPDX-License-Identifier: Apache-2.0
"""A small study on generated records, for the tests of sweeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomli_w

STUDY: dict[str, Any] = {
    "title": "small",
    "source": "generated",
    "base": {
        "rounds": 4,
        "data": {
            "source": "synthetic",
            "options": {"records": 240, "features": 4, "classes": 3},
            "partition": {"clients": 3},
        },
        "privacy": {"noise": "keyed"},
    },
    "axes": [
        {"label": "epsilon", "key": "privacy.epsilon", "values": [1.0, 8.0]},
        {
            "label": "split",
            "tuned": False,
            "choices": {
                "iid": {"data.partition.name": "iid"},
                "skewed": {
                    "data.partition.name": "dirichlet",
                    "data.partition.options": {"alpha": 0.5},
                },
            },
        },
    ],
    "methods": [
        {
            "label": "DP-FedGD",
            "set": {"method": "dp-fedgd"},
            "coarse": {"server.0.rate": [0.01, 1.0]},
            "fine": {"server.0.rate": [0.3, 3.0]},
            "space": {"server.0.rate": {"low": 0.01, "high": 10.0, "log": True}},
        },
        {
            "label": "DP-FedAvg",
            "set": {"method": "dp-fedavg"},
            "coarse": {"server.0.rate": [1.0], "client.steps": [1, 2]},
            "space": {
                "client.steps": {"low": 1, "high": 3, "integer": True},
                "server.0.rate": {"choices": [0.5, 1.0]},
            },
        },
    ],
    "tune": {"rounds": 3, "seed": 7, "validation": 0.2},
    "final": {"seeds": [0, 1], "every": 2, "keep": ["correct"]},
}


def write(folder: Path, **changes: Any) -> Path:
    path = folder / "small.toml"
    path.write_text(tomli_w.dumps({**STUDY, **changes}), encoding="utf-8")
    return path
