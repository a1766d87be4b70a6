# SPDX-License-Identifier: Apache-2.0
"""The live view: what it draws on a terminal, and what it writes into a log file."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dpfed.recipes import display as module
from dpfed.recipes.display import View, curve
from dpfed.training.history import Row, only_columns


def row(round: int, **changes: Any) -> Row:
    seen = {
        "round": round,
        "accuracy": 0.1 * round,
        "loss": 2.0 / round,
        "epsilon": 0.2 * round,
        "epsilon_others": 0.1,
        "surplus": 0.0,
        "snr": 0.5,
        "clients": 9,
        "missing": 0,
        "absent": "",
        "aborted": "",
        "seconds": 0.012,
    }
    return only_columns({**seen, **changes})


def terminal(view: View, width: int = 80) -> str:
    screen = Console(file=StringIO(), width=width, force_terminal=True, color_system=None)
    view.console = screen
    screen.print(view)
    return screen.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("width", [120, 80, 48])
def test_the_panel_says_what_a_user_asks(width: int) -> None:
    view = View("ward", epsilon=2.0, quiet=True)
    for i in range(1, 6):
        view(row(i, missing=2 * (i == 5), absent="3 7" if i == 5 else ""), 10)
    shown = terminal(view, width)
    words = " ".join(shown.replace("│", " ").split())
    for said in ("ward", "5/10", "ETA", "50.0 %", "of 2", "missing: 3 7", "12 ms"):
        assert said in words, said
    assert "█" in shown
    assert "░" in shown
    assert all(len(line) <= width for line in shown.splitlines())


def test_a_run_without_a_guarantee_says_so() -> None:
    view = View("clear", epsilon=None, quiet=True)
    view(row(1, epsilon=float("inf")), 3)
    assert "nothing is guaranteed" in terminal(view)


def test_before_the_first_round_it_loads_data() -> None:
    assert "loading data" in terminal(View("ward", 1.0, quiet=True))


def test_a_log_file_gets_lines_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    with View("ward", 2.0) as view:
        for i in range(1, 11):
            view(row(i), 10)
            clock[0] += 2.0  # so that every third round is due
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "round 1/10",
        "round 4/10",
        "round 7/10",
        "round 10/10",
    ]
    assert "accuracy 10.0 %, epsilon spent 0.2" in lines[0]


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    with View("ward", 2.0, quiet=True) as view:
        view(row(1), 1)
    assert capsys.readouterr().err == ""


def test_a_curve_goes_from_its_least_to_its_greatest() -> None:
    assert curve([0.0, 0.5, 1.0]) == "▁▅█"
    assert curve([3.0, 3.0]) == "▁▁"
    thinned = curve([float(i) for i in range(1000)], width=20)
    assert len(thinned) == 20
    assert (thinned[0], thinned[-1]) == ("▁", "█")


RECIPE = """
name = "ward"
rounds = 30
data = { source = "synthetic", options = { records = 600, features = 5, classes = 3 } }
privacy = { epsilon = 2.0 }
"""


def in_a_terminal(command: list[str], folder: Path, columns: int = 80) -> str:
    """What a terminal of that width is sent, without its control codes."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {**os.environ, "TERM": "xterm-256color", "PYTHONUTF8": "1"}
    for name in ("COLUMNS", "NO_COLOR"):
        env.pop(name, None)
    process = subprocess.Popen(command, cwd=folder, env=env, stdout=theirs, stderr=theirs)
    os.close(theirs)
    sent = b""
    try:
        while chunk := os.read(ours, 1 << 16):
            sent += chunk
    except OSError:  # Linux says so at the end
        pass
    finally:
        os.close(ours)
    assert process.wait(60) == 0, sent.decode()
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", sent.decode())


@pytest.mark.long
@pytest.mark.slow
def test_a_real_terminal_shows_the_panel_and_then_the_guarantee(tmp_path: Path) -> None:
    (tmp_path / "ward.toml").write_text(RECIPE)
    code = "from dpfed.cli.main import main; main()"
    shown = in_a_terminal([sys.executable, "-c", code, "run", "ward.toml"], tmp_path)
    assert "loading data" in shown
    assert "╭─ ward ─" in shown
    last = shown[shown.rindex("╭─ ward ─") :]
    assert "30/30" in last
    assert "█" in last
    assert re.search(r"accuracy +\d+\.\d %", last)
    assert "-DP for each record" in last
    assert "results in runs/ward/" in last
