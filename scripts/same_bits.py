#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train nine small plans with keyed noise, and print a digest of each one's final parameters.

    scripts/same_bits.py                  print them
    scripts/same_bits.py --write FILE     keep them in FILE
    scripts/same_bits.py --check FILE     compare with FILE; ends with 1 if a bit has changed

Keyed noise makes a run a function of the code: a change that deletes or moves code leaves the
digests as they are. Three units, each under a plain sum, under the secure sum, and with a network
and a draw. tests/goldens/same_bits.json has the digests of the last change that was meant to change
bits. They hold on processors with the same vector instructions, and for the same torch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import dpfed

UNITS = ("record", "group", "client")
DRAWN: dict[str, dict[str, Any]] = {
    "record": {"record_rate": 0.5},
    "group": {"record_rate": 0.5},
    "client": {"client_rate": 0.5, "trust": "central"},
}


def records() -> dict[str, torch.Tensor]:
    """Made-up records of three classes; every third one is of the same person."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(150, 4, generator=generator)
    y = (x[:, 0] + 0.5 * torch.randn(150, generator=generator) > 0).long() + (x[:, 1] > 1).long()
    return {"x": x, "y": y, "groups": torch.arange(150) // 3}


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))


def plans() -> Iterator[tuple[str, dict[str, Any]]]:
    """By name: what ``dpfed.run`` gets."""
    for unit in UNITS:
        local = {"unit": unit, "noise": "keyed"}
        yield f"{unit}, plain sum", {"method": "dp-fedsofim", "privacy": {**local, "epsilon": 8.0}}
        secure = {**local, "epsilon": 8.0, "trust": "distributed"}
        measured = {"kind": "federated", "every": 2, "share": 0.1}
        yield (
            f"{unit}, secure sum",
            {
                "method": "dp-fedyogi",
                "sum": {"name": "secure"},
                "privacy": secure,
                "evaluation": measured,
            },
        )
        drawn = {**local, "adjacency": "zero-out", "std_over_clip": 2.0, **DRAWN[unit]}
        yield (
            f"{unit}, network, drawn",
            {"method": "dp-fedadam", "model": network, "privacy": drawn},
        )


def digest(recipe: dict[str, Any]) -> str:
    """SHA-256 of the final parameters."""
    data = {
        "source": records(),
        "options": {"groups": "groups"},
        "holdout": 0.2,
        "partition": {"clients": 4},
    }
    made = {"evaluation": {"kind": "off"}, **recipe}
    params = dpfed.run(data=data, rounds=4, seed=11, **made).params
    return hashlib.sha256(params.contiguous().numpy().tobytes()).hexdigest()


def machine() -> dict[str, str]:
    return {"vectors": torch.backends.cpu.get_cpu_capability(), "torch": torch.__version__}


def compare(baseline: dict[str, Any], digests: dict[str, str]) -> str:
    """Nothing if all are equal; otherwise what differs."""
    before = baseline["digests"]
    changed = [name for name in before.keys() | digests if before.get(name) != digests.get(name)]
    if changed and baseline["machine"] != machine():
        return f"the baseline is of another machine, {baseline['machine']}: nothing was compared"
    return "".join(f"changed: {name}\n" for name in sorted(changed))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--check", type=Path, metavar="FILE")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    digests = {}
    for name, recipe in plans():
        digests[name] = digest(recipe)
        print(f"{digests[name]}  {name}", flush=True)
    if options.write:
        text = json.dumps({"machine": machine(), "digests": digests}, indent=1)
        options.write.write_text(text + "\n", encoding="utf-8")
    wrong = compare(json.loads(options.check.read_text()), digests) if options.check else ""
    print(wrong, end="", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
