# SPDX-License-Identifier: Apache-2.0
"""(k) A draw of noise against the random bits that it is made of, in nanoseconds.

Each draw takes 64 bits of ChaCha20, so nothing can make it in less than they take; the limit is
`cryptography` writing them into memory that is in cache. ``gaussian``'s normals are made as for its
grid, in whole blocks; ``discrete_gaussian``'s are exact, at its usual 24 bits, what mpmath decides
among them. The third line is the second against the first. "as floats": the same normals to double
precision, by the formula, as noise that is kept has them; and a whole release of zeros: noise
added, rounded, checked. One thread, and its own time on the processor.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict

import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from dpfed.core.grid import NOISY_BITS, pack, step_below
from dpfed.core.normals import AT_ONCE
from dpfed.core.randomness import KeyStream
from dpfed.mechanisms._rounded import rounded_normal
from dpfed_lab.benchmarks._measure import Result, Task, Timing, interleaved, threads

MEASURES = (
    "dpfed.core.randomness",
    "dpfed.core.normals",
    "dpfed.core.grid",
    "dpfed.mechanisms._rounded",
)

SIZE = 1 << 18
STD, SCALE = 1.5, 1.5 * 2.0**24
BITS, TWICE, THRICE = "ChaCha20: 64 bits, into memory in cache", 2.0, 3.0


def run() -> list[Result]:
    """All in turns, in one thread."""
    with threads(1):
        timings = interleaved(_tasks(), clock=time.thread_time)
    bits, normal, exact = (timings[name] for name in ("bits", "normal", "exact"))
    return [
        _line("a normal", normal, bits, TWICE, BITS),
        _line("a draw of discrete_gaussian", exact, bits, TWICE, BITS),
        _line("a draw of discrete_gaussian", exact, normal, THRICE, "a normal"),
        _line("a normal, as floats", timings["floats"], bits, None, BITS),
        _line("a coordinate of a release", timings["release"], bits, None, BITS),
    ]


def _line(name: str, measured: Timing, limit: Timing, target: float | None, against: str) -> Result:
    taken, least = (1e9 * timing.median / SIZE for timing in (measured, limit))
    detail = {"measured": asdict(measured), "limit": asdict(limit), "limit_counts": 1.0}
    return Result(name, taken, least, "ns", target, against, detail)


def _tasks() -> dict[str, Task]:
    stream, step = KeyStream(bytes(32)), step_below(STD, NOISY_BITS)
    zeros = torch.zeros(SIZE)

    def normals() -> None:
        for _ in range(SIZE // AT_ONCE):
            stream.draws(AT_ONCE, STD, step)

    return {
        "bits": Task(_bits()),
        "normal": Task(normals),
        "exact": Task(lambda: rounded_normal(SCALE, SIZE, stream.words)),
        "floats": Task(lambda: stream.normal(SIZE)),
        "release": Task(lambda: pack(zeros, step, lambda size: stream.draws(size, STD, step))),
    }


def _bits() -> Callable[[], None]:
    encrypt = Cipher(ChaCha20(bytes(32), bytes(16)), mode=None).encryptor()
    nothing, held = bytes(8 * AT_ONCE), bytearray(8 * AT_ONCE)

    def run() -> None:
        for _ in range(SIZE // AT_ONCE):
            encrypt.update_into(nothing, held)

    return run
