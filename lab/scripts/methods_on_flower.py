#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every method, in-process and through `flwr run`: are the models the same, bit for bit?

    lab/scripts/methods_on_flower.py [--out results/methods-on-flower.json] [METHOD ...]

Each is a small run of 4 rounds and 3 clients on generated records: with a softmax head, and, where
the method takes any model, with a torch module. Takes about 30 s a run on 2 cores.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import torch

import dpfed
from dpfed.recipes.methods import methods_table

RECIPE: dict[str, Any] = {
    "rounds": 4,
    "seed": 1,
    "data": {
        "source": "synthetic",
        "options": {"records": 300, "features": 4, "classes": 3},
        "partition": {"clients": 3},
    },
    "privacy": {"epsilon": 5.0, "noise": "keyed"},
}
MODELS: dict[str, dict[str, Any]] = {
    "softmax": {"name": "softmax"},
    "network": {
        "name": "network",
        "factory": "torch.nn:Linear",
        "options": {"in_features": 4, "out_features": 3},
    },
}


def compare(method: str, model: str) -> dict[str, Any]:
    tables = {**RECIPE, "method": method, "model": MODELS[model]}
    begun = time.perf_counter()
    here = dpfed.run(tables)
    there = dpfed.run(tables, engine="flower-simulation")
    same = bool(torch.equal(here.params, there.params))
    return {
        "method": method,
        "model": model,
        "same_bits": same,
        "same_guarantee": here.guarantee == there.guarantee,
        "seconds": round(time.perf_counter() - begun, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("method", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("results/methods-on-flower.json"))
    asked = parser.parse_args()
    rows = []
    for row in methods_table():
        if asked.method and row["method"] not in asked.method:
            continue
        for model in ["softmax", "network"] if row["model"] == "any" else ["softmax"]:
            rows.append(compare(row["method"], model))
            sys.stderr.write(f"{rows[-1]}\n")
    found = {
        "command": "lab/scripts/methods_on_flower.py",
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, 2 cores, torch {torch.__version__}",
        "runs": rows,
    }
    asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0 if all(each["same_bits"] and each["same_guarantee"] for each in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
