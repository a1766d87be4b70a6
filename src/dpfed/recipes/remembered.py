# SPDX-License-Identifier: Apache-2.0
"""Noise that a search has found before: a number on the disk, priced again by whoever reads it.

A search under a draw prices dozens of noise levels, and takes seconds. Its result is kept in
$DPFED_STATE/noise, under a digest of all that decides it. Never an epsilon is kept: whoever reads a
factor computes the epsilon at it, and searches where that is above the target, or well below it.
Terms read nothing here, so that a silo's figures come from its own search.

| edge case                                        | what happens                                  |
|--------------------------------------------------|-----------------------------------------------|
| no file, or one that cannot be read or written   | a search                                      |
| a file that says anything but one finite number  | a search, which writes it anew                |
| a number with too little noise, or with too much | the same                                      |
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from typing import Any

from dpfed._version import VERSION
from dpfed.core.dsse import canonical_json
from dpfed.core.environment import state_folder
from dpfed.core.errors import DpfedError
from dpfed.core.files import replace_file
from dpfed.core.log import log

NEAR = 1e-3
"""How far below the target an epsilon may be: a search ends within a tenth of it."""
_MOST_BYTES = 100


def remembered(
    facts: dict[str, Any],
    epsilon: float,
    epsilon_at: Callable[[float], float],
    search: Callable[[], float],
    *,
    remember: bool,
) -> float:
    """The factor on the noise that ``search`` finds, or has found before.

    Args:
        facts: all that decides it, as plain numbers and words.
        epsilon: the target.
        epsilon_at: the epsilon at a factor; every factor that is read is priced by it.
        search: finds a factor at which the target was confirmed.
        remember: False searches, and neither reads nor writes.
    """
    if not remember:
        return search()
    text = canonical_json({**facts, "epsilon": epsilon, "version": VERSION})
    path = state_folder() / "noise" / f"{hashlib.sha256(text).hexdigest()}.json"
    try:
        with path.open("rb") as file:
            factor = json.loads(file.read(_MOST_BYTES))
        likely = isinstance(factor, float) and math.isfinite(factor) and factor > 0
        if likely and epsilon * (1 - NEAR) <= epsilon_at(factor) <= epsilon:
            return float(factor)
    except (OSError, ValueError, RecursionError, DpfedError):
        pass
    log.info("searching for the noise of a draw, which takes some seconds of the processor")
    factor = search()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, json.dumps(factor).encode())
    except OSError as error:
        log.info("the noise that was found is not kept (%s)", type(error).__name__)
    return factor
