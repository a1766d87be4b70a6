# SPDX-License-Identifier: Apache-2.0
"""What a simulated client does while it answers, by part: seconds, added up in a file.

Clients are processes of Flower's simulation, and the server is another one: each answer leaves a
line in the folder of clients' states, and the server reads them.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from dpfed.core.environment import state_folder
from dpfed.training.account import Account
from dpfed.training.reply import PricedReleaser
from dpfed.training.wire import responder
from dpfed.training.wire import state as states
from dpfed.training.wire.stored_replies import StoredReply

PARTS: dict[str, tuple[tuple[Any, str], ...]] = {
    "clip, noise, grid": ((PricedReleaser, "_release"),),
    "ledger": ((Account, "begin"), (Account, "confirm"), (responder, "_count_of")),
    "reply on the disk": ((StoredReply, "read"), (StoredReply, "write")),
    "hashing": ((responder, "order_digest"),),
    "reading the order": ((responder, "read_order"),),
    "lock, plan of the folder": ((states, "bind"),),
}
REST = "the rest of a client"
_FILE = "parts.jsonl"


@contextmanager
def timed() -> Iterator[None]:
    """Time an answer and its parts, and leave a line with them."""
    seconds: dict[str, float] = defaultdict(float)
    with ExitStack() as stack:
        for part, places in PARTS.items():
            for owner, name in places:
                made = _noted(getattr(owner, name), part, seconds)
                stack.enter_context(patch.object(owner, name, made))
        began = time.perf_counter()
        yield
        whole = time.perf_counter() - began
    seconds[REST] = whole - sum(seconds.values())
    with _path().open("a", encoding="utf-8") as file:
        file.write(json.dumps(seconds) + "\n")


def _noted(
    function: Callable[..., Any], part: str, seconds: dict[str, float]
) -> Callable[..., Any]:
    def run(*values: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*values, **named)
        finally:
            seconds[part] += time.perf_counter() - began

    return run


def taken() -> dict[str, float]:
    """The seconds of all answers since the last look, by part."""
    found: dict[str, float] = defaultdict(float)
    if _path().exists():
        for line in _path().read_text(encoding="utf-8").splitlines():
            for part, seconds in json.loads(line).items():
                found[part] += seconds
        _path().unlink()
    return found


def _path() -> Path:
    return state_folder() / _FILE
