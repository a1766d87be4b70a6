# SPDX-License-Identifier: Apache-2.0
"""A train function in its own process (shard_child): nothing carries over, each end is its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfed.core.errors import DataError
from dpfed.data.shard_process import Answer, CleanProcess, Limits, _children, clean_process
from dpfed.data.train_functions import CALL
from tests.helpers import train_functions

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("shard-process")]
LIMITS = Limits(seconds=3.0, memory=1 << 28)
SIZE = 15


def job(function: str = "plain", mark: bool = False) -> dict[str, Any]:
    random = np.random.default_rng(0)
    x = random.normal(size=(10, 4)).astype(np.float32)
    if mark:
        x[0, 0] = train_functions.MARK
    parameters = {"weight": np.zeros((3, 4), np.float32), "bias": np.zeros(3, np.float32)}
    data = (x, random.integers(0, 3, 10), np.array([function] * 10))
    return {"parameters": parameters, "data": data, "seed": 1}


@pytest.fixture(scope="module")
def process() -> Iterator[CleanProcess]:
    """One for all: it takes seconds to start, and what a shard did must not be seen by the next."""
    made = CleanProcess(CALL, "tests.helpers.train_functions:by_its_name")
    yield made
    made.close()


@pytest.mark.parametrize("function", ["by_file", "by_global", "by_environment", "by_parent"])
def test_what_a_shard_leaves_the_next_one_does_not_find(
    process: CleanProcess, function: str
) -> None:
    for _ in range(3):
        answer = process.run(job(function), SIZE, LIMITS)
        assert answer.row is not None, answer.said
        assert not answer.row.any()


def test_processes_of_a_shard_end_with_it_in_whatever_session(process: CleanProcess) -> None:
    process.run(job("by_environment"), SIZE, LIMITS)
    assert process._process is not None
    assert not _children(process._process.pid)


def test_an_end_without_an_answer(process: CleanProcess) -> None:
    answer = process.run(job("ends_with_code"), SIZE, LIMITS)
    assert answer.row is None
    assert "ended without an answer" in answer.said


def test_a_shard_that_sleeps(process: CleanProcess) -> None:
    process.start()  # a busy machine takes its time for that
    began = time.monotonic()
    answer = process.run(job("sleeps", mark=True), SIZE, Limits(seconds=0.1))
    assert answer.row is None
    assert "by the clock" in answer.said
    assert time.monotonic() - began < 25
    assert process.run(job("sleeps"), SIZE, Limits(seconds=5.0)).row is not None


def test_a_shard_that_computes_for_ever(process: CleanProcess) -> None:
    answer = process.run(job("spins", mark=True), SIZE, LIMITS)
    assert answer.row is None
    assert process.run(job("spins"), SIZE, LIMITS).row is not None


def test_a_shard_that_takes_all_memory(process: CleanProcess) -> None:
    answer = process.run(job("hungry", mark=True), SIZE, Limits(seconds=5.0, memory=1 << 27))
    assert answer.row is None
    assert "MemoryError" in answer.said
    assert process.run(job("hungry"), SIZE, LIMITS).row is not None


def test_a_traceback_is_for_the_local_log(process: CleanProcess) -> None:
    answer = process.run(job("raises", mark=True), SIZE, LIMITS)
    assert answer.row is None
    assert "a record made this function raise" in answer.said


def test_numbers_that_are_not_finite(process: CleanProcess) -> None:
    assert process.run(job("not_a_number", mark=True), SIZE, LIMITS) == Answer(
        None, "some of its numbers are not finite"
    )


def test_a_row_of_another_length(process: CleanProcess) -> None:
    answer = process.run(job(), SIZE + 1, LIMITS)
    assert answer.row is None
    assert "something else than 16 numbers" in answer.said


def test_a_child_that_ends_the_clean_process(process: CleanProcess) -> None:
    assert process.run(job("kills_its_parent", mark=True), SIZE, LIMITS).row is None
    assert process.run(job("kills_its_parent"), SIZE, Limits(seconds=5.0)).row is not None


def test_the_same_bits_in_each_process_and_as_here(process: CleanProcess) -> None:
    first, second = (process.run(job(), SIZE, LIMITS).row for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.tobytes() == second.tobytes()
    again = CleanProcess(CALL, process.function)
    try:
        third = again.run(job(), SIZE, LIMITS).row
    finally:
        again.close()
    assert third is not None
    assert third.tobytes() == first.tobytes()


def test_a_forked_process_uses_it_in_turn(process: CleanProcess) -> None:
    """As a gate's child does; what it leaves when it is killed is ended first."""
    process.start()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = int(process.run(job(), SIZE, LIMITS).row is None)
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert process.run(job(), SIZE, LIMITS).row is not None


def test_a_function_that_cannot_be_imported() -> None:
    process = CleanProcess(CALL, "tests.helpers.train_functions:nobody_has_written_this")
    try:
        with pytest.raises(DataError, match="nobody_has_written_this"):
            process.start()
    finally:
        process.close()


def is_running(pid: str) -> bool:
    """Whether a process has not ended; one that nobody has waited for has."""
    try:
        state = (Path("/proc") / pid / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.long
def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\n"
        "from dpfed.data.shard_process import clean_process\n"
        "made = clean_process(sys.argv[1], sys.argv[2]); made.start()\n"
        "print(made._process.pid, made._folder, flush=True); os.kill(os.getpid(), 9)\n"
    )
    names = [CALL, "tests.helpers.train_functions:plain"]
    done = subprocess.run(
        [sys.executable, "-c", code, *names], capture_output=True, text=True, check=False
    )
    pid, folder = done.stdout.split()
    deadline = time.monotonic() + 30
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(pid)
    assert not Path(folder).exists()
    assert clean_process(*names) is clean_process(*names)
