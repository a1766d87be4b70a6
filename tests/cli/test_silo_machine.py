# SPDX-License-Identifier: Apache-2.0
"""What ``dpfed silo check`` sees of a machine that is to run shipped code."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from dpfed.cli import silo_machine
from dpfed.cli.silo_machine import Process, check_machine, processes, refuse_servers, try_seal
from dpfed.core.errors import DataError
from dpfed.data import seal

RELAY, OTHER = 990, 1000


@pytest.mark.parametrize(
    "found",
    [
        Process(7, RELAY, "python3", ("python3", "app.py")),
        Process(7, OTHER, "flower-supernod", ("/usr/bin/python3", "/opt/bin/flower-supernode")),
        Process(7, 0, "flwr-clientapp", ("flwr-clientapp",)),
        Process(7, RELAY, "python3", ("python3", "-m", "dpfed.silo.relay", "dpfed.silo.tunnel")),
        Process(7, OTHER, "python3", ("python3", "-u", "/opt/bin/flower-superexec")),
    ],
)
def test_a_process_that_works_for_the_server_is_refused(found: Process) -> None:
    with pytest.raises(DataError, match="process 7"):
        refuse_servers([found], {RELAY})


@pytest.mark.parametrize(
    "found",
    [
        Process(7, RELAY, "sshd", ("sshd: relay",)),
        Process(7, RELAY, "python3", ("python3", "-P", "-m", "dpfed.silo.tunnel", "10.0.0.5:7443")),
        Process(7, OTHER, "bash", ("bash",)),
        Process(7, 0, "systemd", ("/sbin/init",)),
    ],
)
def test_others_are_not(found: Process) -> None:
    refuse_servers([found], {RELAY})


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="no /proc")
def test_this_process_is_among_those_that_run() -> None:
    mine = [each for each in processes() if each.number == os.getpid()]
    assert [each.user for each in mine] == [os.geteuid()]
    assert mine[0].words


def test_what_is_said_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    me = pwd.getpwuid(os.geteuid())
    others = [Process(7, 60_001, "bash", ("bash",))]
    monkeypatch.setattr(silo_machine, "try_seal", lambda user: None)
    monkeypatch.setattr(silo_machine, "processes", lambda: others)
    lines = list(check_machine(me, []))
    assert any(line.startswith("warning: user 60001") for line in lines)
    assert "is for you to know" in lines[-1]
    others.append(Process(8, 60_001, "flower-supernod", ("flower-supernode",)))
    with pytest.raises(DataError, match="process 8"):
        list(check_machine(me, []))


@pytest.mark.slow
def test_a_seal_is_made_to_see_that_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        seal.refuse_other_machines()
    except DataError as error:
        pytest.skip(f"THE SEAL IS NOT TESTED HERE: {error}")
    try_seal(None)
    monkeypatch.setattr(seal, "NO_RSEQ", {"PYTHONPATH": "/nowhere", "PYTHONHOME": "/nowhere"})
    with pytest.raises(DataError, match="cannot be on this machine"):
        try_seal(None)
