# SPDX-License-Identifier: Apache-2.0
"""The relay of a Flower app loads neither torch nor code that reads data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from flwr.app import Context, Message, RecordDict

from dpfed.flower import silo_app
from tests.training.flower.local_grid import become_a_server

CODE = """
import sys
from dpfed.flower import silo_app
silo_app()
heavy = [name for name in ("torch", "scipy", "dpfed.data", "dpfed.training") if name in sys.modules]
assert not heavy, heavy
"""


@pytest.mark.slow
def test_it_imports_neither_torch_nor_data_code() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True)


def test_a_gate_that_is_not_there_is_named_in_the_silos_own_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    become_a_server(monkeypatch)
    where = str(tmp_path / "{partition-id}" / "gate.sock")
    order = Message(RecordDict(), dst_node_id=1, message_type="train")
    context = Context(1, 1, {"partition-id": 3}, RecordDict(), {})
    with pytest.raises(FileNotFoundError):
        silo_app(where)(order, context)
    assert f"no gate answers at '{tmp_path}/3/gate.sock'" in caplog.text
