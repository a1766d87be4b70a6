# SPDX-License-Identifier: Apache-2.0
"""Work on a stranger's files, in a child with limits of memory and time (on Linux).

    lines = in_limits(lambda: read(folder))

| edge case                                   | what happens                                     |
|---------------------------------------------|--------------------------------------------------|
| more memory or time than allowed, a crash   | ``OverLimits``, in one sentence                  |
| an error of dpfed's                         | is raised here, too                              |
| any other error                             | DataError, in one sentence: the files are at     |
|                                             | fault until somebody shows that we are           |
| Ctrl-C                                      | the child ends, too                              |
| a system without Linux's limits             | the work is done in this process                 |
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from dpfed.core import errors
from dpfed.core.errors import DataError, DpfedError, as_sentence, first_sentence

SECONDS, MEMORY = 300.0, 4 << 30
"""For a page or a verdict: seconds, and bytes of address space that may be added."""
DAY = 86_400.0


class OverLimits(DataError):
    """Work on a stranger's files ended without a result."""


def in_limits(work: Callable[[], Any], seconds: float = SECONDS, memory: int = MEMORY) -> Any:
    """What ``work`` returns, as JSON has it.

    Args:
        work: what is done in the child.
        seconds: how long it may take.
        memory: bytes of address space that it may add.
    """
    if not sys.platform.startswith("linux"):
        return work()
    from dpfed.core.jail import ChildEnded, run_in_child

    try:
        told = json.loads(run_in_child(lambda: _answer(work), seconds, memory))
    except ChildEnded as error:
        raise OverLimits(
            f"these files need more than {seconds:.0f} s or {memory / (1 << 30):.0f} GiB, or end "
            f"the process ({error}); do not trust them, and ask for them again"
        ) from error
    if "error" not in told:
        return told["done"]
    kind = getattr(errors, told["error"], DpfedError)
    raise (OverLimits if told["error"] == "MemoryError" else kind)(told["sentence"])


def _answer(work: Callable[[], Any]) -> bytes:
    """In the child: the result, or the error by its class and its sentence."""
    try:
        answer = {"done": work()}
    except MemoryError:
        sentence = "these files need more memory than they may have; ask for them again"
        answer = {"error": "MemoryError", "sentence": sentence}
    except (DpfedError, OSError) as error:
        kind = type(error).__name__ if isinstance(error, DpfedError) else "DpfedError"
        answer = {"error": kind, "sentence": as_sentence(error)}
    except Exception as error:
        sentence = f"these files cannot be read ({first_sentence(error)}); ask for them again"
        answer = {"error": "DataError", "sentence": sentence}
    sys.stdout.flush()
    sys.stderr.flush()
    return json.dumps(answer).encode()


def all_memory() -> int:
    """Bytes of memory that this machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
