# SPDX-License-Identifier: Apache-2.0
"""Makes participation_jax_privacy.json: what jax_privacy 2.0.0 says of the same matrices.

    pip install jax-privacy==2.0.0      # in an environment of its own
    JAX_PLATFORMS=cpu python tests/oracles/participation_jax_privacy.py --long

It prints a line for each of the file's "rows"; its "best" are those of the search at the end, which
takes 4 minutes, for k = 20, and of the banded one alone for k = 5. "root" and "buffers" are ROOT
and BLT below.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
from jax_privacy.matrix_factorization import banded, buffered_toeplitz, sensitivity, toeplitz

jax.config.update("jax_enable_x64", True)

ROOT = [float(c) for c in toeplitz.optimal_max_error_strategy_coefs(64)]
SETTINGS = [  # n, b, k
    (8, 2, 3),
    (8, 8, 1),
    (9, 4, 2),
    (10, 3, 4),
    (16, 5, 2),
    (31, 7, 5),
    (50, 5, 4),
    (64, 16, 4),
    (100, 10, 3),
    (100, 10, 10),
    (200, 20, 5),
    (365, 30, 6),
    (500, 64, 4),
    (1000, 50, 20),
    (2000, 100, 5),
    (2000, 100, 10),
    (2000, 100, 20),
    (2000, 342, 6),
    (2000, 400, 5),
    (2048, 64, 32),
]
BLT = ([0.99, 0.8, 0.3], [0.05, 0.2, 0.25])


def errors(column: Any, n: int) -> dict[str, float]:
    found = toeplitz.per_query_error(strategy_coef=jnp.asarray(column), n=n)
    return {"mean": float(found.mean()), "last": float(found[-1])}


def row(n: int, b: int, k: int) -> dict[str, Any]:
    """The square root's first coefficients, as many as rounds apart; and buffers."""
    column = jnp.array(ROOT[: min(b, 64)])
    blt = buffered_toeplitz.BufferedToeplitz.build(*BLT)
    smooth = blt.toeplitz_coefs(n)
    made: dict[str, Any] = {
        "n": n,
        "b": b,
        "k": k,
        "toeplitz": float(toeplitz.minsep_sensitivity_squared(column, b, k, n)),
        "blt": float(toeplitz.minsep_sensitivity_squared(smooth, b, k, n)),
        "toeplitz_errors": errors(column, n),
        "blt_errors": errors(smooth, n),
    }
    if n <= 16:
        dense = toeplitz.materialize_lower_triangular(column, n)
        made["dense"] = sensitivity.get_sensitivity_banded(dense, b, k) ** 2
        made["dense_blt_bound"] = (
            sensitivity.get_min_sep_sensitivity_upper_bound(blt.materialize(n), b, k) ** 2
        )
    strategy = banded.ColumnNormalizedBanded.from_banded_toeplitz(n, column)
    made["banded"] = float(banded.minsep_sensitivity_squared(strategy, b, k))
    return made


def best(n: int, b: int, k: int) -> dict[str, Any]:
    """Its own optimizers: the root of squared error times squared sensitivity, mean and last."""
    column = toeplitz.optimize_banded_toeplitz(n, b)
    blt = buffered_toeplitz.optimize(
        n=n, min_sep=b, max_participations=k, error="mean", max_buffers=5
    )
    smooth = blt.toeplitz_coefs(n)
    found: dict[str, Any] = {"n": n, "b": b, "k": k}
    for name, each in (("banded", column), ("blt", smooth)):
        squared = float(toeplitz.minsep_sensitivity_squared(each, b, k, n, skip_checks=True))
        found[name] = {e: (v * squared) ** 0.5 for e, v in errors(each, n).items()}
    return {**found, "buffers": len(blt.buf_decay)}


BEST = ((2000, 100, 20),)


if __name__ == "__main__":
    for each in SETTINGS:  # one line each, as they are made
        print(json.dumps(row(*each)), flush=True)
    for each in BEST if "--long" in sys.argv else ():
        print(json.dumps(best(*each)), flush=True)
