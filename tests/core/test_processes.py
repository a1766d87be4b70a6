# SPDX-License-Identifier: Apache-2.0
"""Processes that are started and ended: none is left, whatever happens to who started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dpfed.core import processes

CHILD = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"


def alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


def wait_until_gone(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


def first_line(log: Path) -> int:
    deadline = time.monotonic() + 20
    while not log.exists() or "\n" not in log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return int(log.read_text().split()[0])


@pytest.mark.slow
def test_a_process_ends_with_its_block_and_takes_its_children_along(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = ["sh", "-c", f"{sys.executable} -c '{CHILD}'; true"]
    with processes.started(command, os.environ, log) as parent:
        child = first_line(log)
        assert alive(child)
    assert parent.poll() is not None
    assert wait_until_gone(child)


@pytest.mark.slow
def test_a_process_that_will_not_end_is_ended(tmp_path: Path) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + CHILD
    log = tmp_path / "log"
    with processes.started([sys.executable, "-c", deaf], os.environ, log, grace=0.2) as process:
        first_line(log)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_a_signal_to_the_command_ends_what_it_started(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = f"""
import os, sys, time
from pathlib import Path
from dpfed.core.processes import started, tidy
with tidy(), started([sys.executable, "-c", {CHILD!r}], os.environ, Path({str(log)!r})):
    time.sleep(60)
"""
    command = subprocess.Popen([sys.executable, "-c", code])
    child = first_line(log)
    command.terminate()
    assert command.wait(20) == 128 + signal.SIGTERM
    assert wait_until_gone(child)


@pytest.mark.slow
def test_a_daemon_that_left_its_group_is_ended_by_its_mark(tmp_path: Path) -> None:
    logs = [tmp_path / "ours", tmp_path / "other"]
    for log, mark in zip(logs, ("mine", "other"), strict=True):
        with log.open("wb") as sink:
            subprocess.Popen(
                ["setsid", "--fork", sys.executable, "-c", CHILD],
                stdout=sink,
                env={**os.environ, "TEST_MARK": mark},
            ).wait(20)
    ours, other = map(first_line, logs)
    processes.end_marked("TEST_MARK", "mine")
    assert wait_until_gone(ours)
    assert alive(other)
    os.kill(other, signal.SIGKILL)


def test_a_server_that_ended_does_not_answer(tmp_path: Path) -> None:
    with processes.started(["true"], os.environ, tmp_path / "log") as process:
        process.wait(10)
        address = f"127.0.0.1:{processes.free_port()}"
        assert not processes.comes_up(address, process, seconds=30.0)


def test_commands_of_this_python_are_found_first(monkeypatch: pytest.MonkeyPatch) -> None:
    own = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", "/nowhere")
    assert processes.search_path() == f"{own}{os.pathsep}/nowhere"
    monkeypatch.setenv("PATH", f"/mine{os.pathsep}{own}")
    assert processes.search_path() == f"/mine{os.pathsep}{own}", "activated: as its owner wants it"
    assert processes.find_command(Path(sys.executable).name) == sys.executable
