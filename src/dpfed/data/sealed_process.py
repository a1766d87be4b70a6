# SPDX-License-Identifier: Apache-2.0
"""The node's half of shipped code: it gives each shard to a sealed process, and takes d numbers.

    sealed = sealed_process(code)
    answer = sealed.run(job, size, limits)       # the row of one shard, or that there is none

As shard_process.py, with another clean process (sealed_child.py). An answer is ``8 * size`` bytes
and the end of the process: fewer, more, or none in time is no row, and this is all that is seen.

| edge case                                            | what happens                            |
|------------------------------------------------------|-----------------------------------------|
| a byte too few or too many, a number that is not     | no row                                  |
| finite                                               |                                         |
| an answer of more bytes than that, for ever          | no row; not more than that is read      |
| the answer is there, and the process goes on         | the row, once its processor time is     |
|                                                      | over; none if that of the clock is      |
| another system than Linux on x86-64                  | DataError, before data is touched       |
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpfed.data import seal
from dpfed.data.sealed_child import packed
from dpfed.data.shard_process import Answer, CleanProcess, Limits, finite_row, one_for_each


class SealedProcess(CleanProcess):
    """A process without data that forks a sealed one for each shard.

    Args:
        code: a module's text, which defines ``train(parameters, data)``.
    """

    module = "dpfed.data.sealed_child"

    def __init__(self, code: str) -> None:
        super().__init__("sealed", hashlib.sha256(code.encode()).hexdigest())
        self._code = code

    def start(self) -> None:
        """Start it, unless it runs; a machine that cannot make the seal raises here."""
        seal.refuse_other_machines()
        super().start()

    def environment(self, folder: Path) -> dict[str, str]:
        """What the clean process knows of this one's."""
        return {**super().environment(folder), **seal.NO_RSEQ}

    def try_out(self, job: Mapping[str, Any], size: int, limits: Limits) -> Answer:
        """As any other job: what is imported while code runs cannot be.

        Args:
            job: on made-up records.
            size: how many numbers a row has.
            limits: what the shard may use.
        """
        return self.run(job, size, limits)

    def packed(self, job: Mapping[str, Any]) -> bytes:
        """The code, and one shard."""
        return packed({**job, "code": self._code})

    def answered(
        self, found: bytearray, size: int, *, ended: bool, tried: bool = False
    ) -> Answer | None:
        """The row, once the process has ended behind its last number."""
        del tried
        if len(found) > 8 * size:
            return Answer(None, "it answered with more than a row")
        if not ended:
            return None
        if len(found) < 8 * size:
            return Answer(None, "it ended without a row; nobody is told why: run the code yourself")
        return finite_row(bytes(found), size)


def sealed_process(code: str) -> CleanProcess:
    """The clean process of shipped code: one for all problems of this process.

    Args:
        code: a module's text.
    """
    return one_for_each(("sealed", code), lambda: SealedProcess(code))
