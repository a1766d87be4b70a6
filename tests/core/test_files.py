# SPDX-License-Identifier: Apache-2.0
"""Files that are whole or not there, and JSON with infinities."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpfed.core.files import (
    from_word,
    json_line,
    jsonable,
    locked_file,
    read_json_lines,
    replace_file,
    write_over,
)


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    replace_file(path, b"old")

    def broken(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="no space"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_file_of_the_same_size_is_written_over_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    write_over(path, b"one", b"two")
    assert path.stat().st_mode & 0o777 == 0o600
    place, flushed = path.stat().st_ino, []
    true = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda handle: (flushed.append(1), true(handle)))
    write_over(path, b"six", b"", b"ten")
    assert (path.read_bytes(), path.stat().st_ino, len(flushed)) == (b"sixten", place, 1)
    write_over(path, b"longer than that")
    assert (path.read_bytes(), len(flushed)) == (b"longer than that", 1)
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_a_file_is_for_its_owner_unless_told_otherwise(tmp_path: Path) -> None:
    replace_file(tmp_path / "a", b"secret")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    replace_file(tmp_path / "b", b"public", 0o644)
    assert (tmp_path / "b").stat().st_mode & 0o077 == 0o044


def test_floats_that_json_lacks_come_back() -> None:
    row = {"a": math.inf, "b": -math.inf, "c": 1.5, "d": None, "e": "text", "f": 3}
    text = json_line(row)
    assert json.loads(text, parse_constant=pytest.fail) == jsonable(row)
    assert {key: from_word(value) for key, value in json.loads(text).items()} == row
    assert math.isnan(from_word(jsonable(math.nan)))
    assert jsonable((1, [math.inf, {"x": math.nan}])) == [1, ["inf", {"x": "nan"}]]


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert read_json_lines(path) == []
    path.write_text(json_line({"round": 1, "snr": math.inf}) + '{"round": 2, "sn')
    assert read_json_lines(path) == [{"round": 1, "snr": math.inf}]


@pytest.mark.slow
def test_one_process_holds_a_lock_and_a_dead_one_none(tmp_path: Path) -> None:
    path, said = tmp_path / "lock", "held"
    code = (
        "import sys, time; from pathlib import Path; from dpfed.core.files import locked_file\n"
        f"with locked_file(Path(sys.argv[1])): print({said!r}, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == said
        with pytest.raises(BlockingIOError, match="is held by another process"):
            locked_file(path, wait=False).__enter__()
        other.kill()
        other.wait()
    with locked_file(path, wait=False):
        assert path.stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_a_system_without_unix_modules_can_import_all_but_the_gate() -> None:
    """Windows, as far as it can be tried elsewhere."""
    missing = ("fcntl", "pwd", "grp", "resource", "termios")
    code = f"""
import sys
for name in {missing!r}: sys.modules[name] = None
import dpfed, dpfed.flower, dpfed.cli.main
for name in dpfed.flower.__all__: getattr(dpfed.flower, name)
import dpfed.recipes.run, dpfed.recipes.simulation
from dpfed.accounting.ledger.ledger import Ledger
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
