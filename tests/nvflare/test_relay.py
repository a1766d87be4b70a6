# SPDX-License-Identifier: Apache-2.0
"""The relay of an NVFlare site: bytes to the gate and back, and nothing that a job chooses."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from dpfed.nvflare.relay import ORDER, REPLY, TASK, GateRelay
from dpfed.silo.frames import LENGTH, receive


def context(site: str = "site-1") -> FLContext:
    made = FLContext()
    made.set_prop(ReservedKey.IDENTITY_NAME, site, private=False, sticky=False)
    return made


def execute(data: dict[str, object], task: str = TASK) -> Shareable:
    return GateRelay().execute(task, Shareable(data), context(), Signal())


def test_it_asks_the_gate_of_the_sites_own_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPFED_GATE", str(tmp_path / "{site}.sock"))
    with socket.socket(socket.AF_UNIX) as gate:
        gate.bind(str(tmp_path / "site-1.sock"))
        gate.listen()

        def answer() -> None:
            relay, _ = gate.accept()
            with relay:
                (size,) = LENGTH.unpack(receive(relay, LENGTH.size))
                order = receive(relay, size)
                relay.sendall(LENGTH.pack(size) + order[::-1])

        thread = threading.Thread(target=answer)
        thread.start()
        # what else a job might put into a task is not looked at
        found = execute({ORDER: b"order", "socket": "/somewhere", "gate": "/somewhere"})
        thread.join()
    assert found[REPLY] == b"redro"
    assert found.get_return_code() == ReturnCode.OK


def test_without_a_gate_there_is_a_code_and_no_sentence_of_the_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> bytes:
        raise RuntimeError("record 17 of Jane Doe")

    monkeypatch.setenv("DPFED_GATE", str(tmp_path / "none.sock"))
    assert execute({ORDER: b"x"}).get_return_code() == ReturnCode.EXECUTION_EXCEPTION
    monkeypatch.setattr("dpfed.nvflare.relay.ask", fail)
    with caplog.at_level(logging.DEBUG):
        assert execute({ORDER: b"x"}).get_return_code() == ReturnCode.EXECUTION_EXCEPTION
    assert "did not reply: RuntimeError" in caplog.text
    assert "Jane" not in caplog.text  # NVFlare may stream this log to the server


@pytest.mark.parametrize(
    ("data", "task"), [({}, TASK), ({ORDER: "text"}, TASK), ({ORDER: b"x"}, "train")]
)
def test_other_tasks_never_reach_the_gate(
    data: dict[str, object], task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpfed.nvflare.relay.ask", lambda *_: pytest.fail("asked"))
    assert execute(data, task).get_return_code() == ReturnCode.BAD_TASK_DATA


def test_a_job_can_give_it_no_argument() -> None:
    with pytest.raises(TypeError):
        GateRelay(socket="/somewhere")  # type: ignore[call-arg]


CODE = """
import sys
from dpfed.nvflare.relay import GateRelay
GateRelay()
heavy = [n for n in ("flwr", "torch", "scipy", "dpfed.data", "dpfed.training") if n in sys.modules]
assert not heavy, heavy
"""


@pytest.mark.slow
def test_a_site_loads_neither_flower_nor_torch_nor_data_code() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True)
