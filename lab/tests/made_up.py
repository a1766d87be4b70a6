# SPDX-License-Identifier: Apache-2.0
"""Made-up runs for the tests of tables, figures and reports: three methods, two epsilons."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from dpfed_lab.study import Study
from dpfed_lab.table import Table

ODD = "50%_new|x"
"""A label that means something to Markdown and to LaTeX."""

STUDY = msgspec.convert(
    {
        "title": "made up",
        "base": {"rounds": 6, "privacy": {"delta": 1e-6}},
        "axes": [{"label": "epsilon", "key": "privacy.epsilon", "values": [0.5, 8.0]}],
        "methods": [{"label": "DP-FedGD"}, {"label": "DP-FedSOFIM"}, {"label": ODD}],
        "final": {"seeds": [0, 1, 2], "every": 2},
    },
    Study,
)
LOW, HIGH = {"epsilon": "0.5"}, {"epsilon": "8"}

ACCURACY = {
    ("0.5", "DP-FedGD"): (0.50, 0.52, 0.54),
    ("0.5", "DP-FedSOFIM"): (0.53, 0.56, 0.57),
    ("0.5", ODD): (0.51, 0.51, 0.57),
    ("8", "DP-FedGD"): (0.70, 0.71, 0.72),
    ("8", "DP-FedSOFIM"): (0.70, 0.70, 0.73),
    ("8", ODD): (0.10, 0.10, 0.10),
}
BEHIND = {"DP-FedGD": (0.2, 0.02), "DP-FedSOFIM": (0.02, 0.01), ODD: (0.09, 0.05)}
"""By how much rounds 2 and 4 are behind round 6."""

RIGHT = {
    "DP-FedGD": "1111111100000000",
    "DP-FedSOFIM": "1111111111110000",
    ODD: "0000111111111100",
}
"""Of 16 test records; every seed and cell has the same."""


def packed(bits: str) -> str:
    return np.packbits([int(bit) for bit in bits]).tobytes().hex()


def row(epsilon: str, method: str, seed: int, **changes: Any) -> dict[str, Any]:
    final = ACCURACY[epsilon, method][seed]
    early, late = BEHIND[method]
    values = {
        "key": f"{epsilon} {method} {seed}",
        "stage": "final",
        "epsilon": epsilon,
        "method": method,
        "seed": seed,
        "set": {"server.0.rate": 0.5},
        "accuracy": final,
        "loss": 2 - final,
        "by_round": {"2": final - early, "4": final - late, "6": final},
        "rounds": 6,
        "epsilon_server": float(epsilon),
        "epsilon_others": float(epsilon) / 3,
        "guarantee": f"({epsilon}, 1e-06)-DP for each record.",
        "data": "made-up records",
        "evaluation": "on test records that the server holds",
        "seconds": 1.5,
        "correct": packed(RIGHT[method]),
        "tested": 16,
    }
    return {**values, **changes}


def trial(epsilon: str, method: str, number: int, **point: Any) -> dict[str, Any]:
    return {
        "key": f"t {epsilon} {method} {number}",
        "stage": "tuning",
        "entry": f"epsilon {epsilon} | {method}",
        "point": point,
        "accuracy": 0.4 + number / 100,
        "loss": 1.0,
        "seconds": 1.0,
    }


ROWS = [row(epsilon, method, seed) for (epsilon, method) in ACCURACY for seed in (0, 1, 2)]
SETTINGS = {
    "epsilon 0.5 | DP-FedGD": {"set": {"server.0.rate": 0.5}, "validation": 0.41, "tried": 4},
    "epsilon 8 | DP-FedSOFIM": {"set": {"server.0.rate": 0.5}, "validation": None, "tried": 9},
}


def texts(table: Table) -> list[list[str]]:
    return [[str(value) for value in row] for row in table.rows]


def one_seed() -> Study:
    return msgspec.structs.replace(STUDY, final=msgspec.structs.replace(STUDY.final, seeds=(0,)))


def two_axes() -> tuple[Study, list[dict[str, Any]]]:
    split = {"label": "split", "choices": {"iid": {}, "skewed": {}}, "tuned": False}
    study = msgspec.convert(
        {**msgspec.to_builtins(STUDY), "axes": [*msgspec.to_builtins(STUDY.axes), split]}, Study
    )
    skewed = [{**r, "split": "skewed", "accuracy": r["accuracy"] - 0.05} for r in ROWS]
    return study, [*({**r, "split": "iid"} for r in ROWS), *skewed]


def losses(factor: float = 1.0) -> list[dict[str, Any]]:
    """The same runs without classes; each method's loss falls by a power of ``factor``."""
    lost = []
    for place, r in enumerate(ROWS):
        by = {at: (2 - value) / factor ** (place // 3) for at, value in r["by_round"].items()}
        lost.append({**r, "accuracy": None, "loss": by["6"], "by_round": by, "correct": None})
    return lost
