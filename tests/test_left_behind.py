# SPDX-License-Identifier: Apache-2.0
"""Tests that are ended, or forget a process, leave none behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers import left_behind
from tests.helpers.left_behind import PROCESSES

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parent.parent
MARK = "DPFED_TEST_OF_LEFT_BEHIND"
PATIENCE_S = 60.0

CONFTEST = "from tests.conftest import *\nfrom tests.conftest import _WATCH\n"
WAITS = """
import subprocess, time
from pathlib import Path

import pytest

@pytest.mark.slow
def test_that_waits():
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    {more}
    Path("ready").touch()
    time.sleep(600)
"""
PRELOADED = "from tests.training.flower.preloaded import commands; commands()"
FORGETS = """
import subprocess

FORGOTTEN = []

def test_that_forgets():
    FORGOTTEN.append(subprocess.Popen(["sleep", "600"], start_new_session=True))
"""


def living(mark: str) -> list[str]:
    """What those who carry a mark run: pytest, and all that it has started."""
    found = []
    for entry in PROCESSES.glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return [command for command in found if command]


@contextmanager
def running(text: str, folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """pytest, at work on one file with this text, under the conftest of these tests."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, str(folder)]
    variables = {MARK: folder.name, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path])}
    with subprocess.Popen(
        [*command, "-c", str(REPOSITORY / "pyproject.toml"), "--rootdir", str(folder)],
        cwd=folder,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        yield process


def until_none_lives(mark: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (found := living(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert found == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "more", "workers"),
    [
        pytest.param(signal.SIGTERM, "pass", "1", id="terminated", marks=pytest.mark.long),
        pytest.param(signal.SIGKILL, PRELOADED, "0", id="killed, with preloaded commands"),
    ],
)
def test_tests_that_are_ended_leave_no_process(
    number: signal.Signals, more: str, workers: str, tmp_path: Path
) -> None:
    if not PROCESSES.exists():
        pytest.skip("needs /proc")
    with running(WAITS.format(more=more), tmp_path, "-n", workers) as process:
        deadline = time.monotonic() + PATIENCE_S
        while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert any("sleep 600" in each for each in living(tmp_path.name))
        process.send_signal(number)
        until_none_lives(tmp_path.name)


@pytest.mark.long
def test_a_process_that_a_test_forgets_fails_the_run(tmp_path: Path) -> None:
    if not PROCESSES.exists():
        pytest.skip("needs /proc")
    with running(FORGETS, tmp_path, "-n", "1") as process:
        said = process.communicate()[0]
    assert process.returncode == pytest.ExitCode.TESTS_FAILED, said
    assert "1 passed" in said
    assert "left behind, and ended: 'sleep 600' of test_it.py::test_that_forgets (call)" in said
    until_none_lives(tmp_path.name)


def test_a_helper_that_ends_with_the_tests_is_not_left_behind(tmp_path: Path) -> None:
    """Python starts a resource tracker for a pool, and keeps it until the process ends."""
    if not PROCESSES.exists():
        pytest.skip("needs /proc")
    variables, waits = os.environ | {left_behind.MARK: tmp_path.name}, "; input()"
    helper = "from multiprocessing.resource_tracker import main"
    with (
        subprocess.Popen([sys.executable, "-c", helper + waits], stdin=-1, env=variables) as kept,
        subprocess.Popen([sys.executable, "-c", waits[2:]], stdin=-1, env=variables) as forgotten,
    ):
        assert [each.pid for each in left_behind.marked(tmp_path.name)] == [forgotten.pid]
        for each in (kept, forgotten):
            each.communicate(b"\n")
