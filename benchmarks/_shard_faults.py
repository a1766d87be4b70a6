# SPDX-License-Identifier: Apache-2.0
"""How many page faults a shard's process has had when its function ends, for shards.py."""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import Any

import numpy as np

from dpfed.data.train_functions import Delta


def counted(train: Callable[[dict[str, Any], Any], Any]) -> Callable[[dict[str, Any], Any], Delta]:
    """A train function whose row is minus that number, in each place."""

    def run(parameters: dict[str, Any], data: Any) -> Delta:
        train(parameters, data)
        seen = float(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
        return Delta({name: np.full(each.shape, seen) for name, each in parameters.items()})

    return run
