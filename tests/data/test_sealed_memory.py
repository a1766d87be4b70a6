# SPDX-License-Identifier: Apache-2.0
"""What a seal cannot hide: how much memory a shard holds, from whoever runs on the same machine.

This is why shipped code needs a machine of its own (docs/shards.md, "Sealed"): here another process
reads a record's bits off a sealed one. A test that fails means that the condition may be dropped.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dpfed.core.errors import DataError
from dpfed.data import seal
from dpfed.data.sealed_process import SealedProcess
from dpfed.data.shard_process import Limits

pytestmark = pytest.mark.slow
BITS, WORD = 16, 0b1011001110001011
SENDER = f"""
import numpy as np
from dpfed.data.train_functions import Delta

def wait():
    some = np.ones(1000)
    for _ in range(15_000):
        some.sum()

def train(parameters, data):
    word = int(data[0][0, 0])
    for place in range({BITS}):
        held = np.ones(12_000_000 if word >> place & 1 else 6_000_000)  # written: it is there
        wait()
        del held
        wait()
    return Delta(np.zeros(1))
"""
SPY = """
import os, sys, time
parent, seen = sys.argv[1], []
end = time.monotonic() + 60
while time.monotonic() < end:
    children = open(f"/proc/{parent}/task/{parent}/children").read().split()
    if not children:
        if seen:
            break
        continue
    time.sleep(0.001)
    try:
        seen.append(int(open(f"/proc/{children[0]}/statm").read().split()[1]))
    except (OSError, IndexError):
        continue
print(*seen)
"""


def heard(pages: list[int]) -> int:
    """The bits: each hill of memory is a one if it is high, and a zero if it is half as high."""
    height = np.array(pages) - np.quantile(pages, 0.2)
    up = height > 3_000_000 * 8 / 4096
    edges = np.flatnonzero(np.diff(np.r_[0, up.astype(int), 0]))
    tops = [height[a:b].max() for a, b in zip(edges[::2], edges[1::2], strict=True)]
    return sum(int(top > 9_000_000 * 8 / 4096) << place for place, top in enumerate(tops))


@pytest.mark.long
def test_a_process_beside_it_reads_a_record_off_its_memory(tmp_path: Path) -> None:
    try:
        seal.refuse_other_machines()
    except DataError as error:
        pytest.skip(f"THE SEAL IS NOT TESTED HERE: {error}")
    process = SealedProcess(SENDER)
    process.start()
    assert process._process is not None
    try:
        record = np.full((1, 1), WORD, np.float64)
        for _ in range(3):  # a busy machine may hide a hill
            spy = subprocess.Popen(
                [sys.executable, "-S", "-c", SPY, str(process._process.pid)],
                stdout=subprocess.PIPE,
                text=True,
            )
            job = {"parameters": {"w": np.zeros(1)}, "data": (record, np.zeros(1)), "seed": 0}
            answer = process.run(job, 1, Limits(seconds=20.0, memory=1 << 29))
            assert answer.row is not None
            assert not answer.row.any()  # nothing leaves by the door
            if heard([int(each) for each in spy.communicate()[0].split()]) == WORD:
                return  # and the whole record left by the window
    finally:
        process.close()
    pytest.fail("a process beside a sealed one read nothing off its memory")
