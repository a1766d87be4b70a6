# SPDX-License-Identifier: Apache-2.0
"""``dpfed stats``: a query by its file alone, or ``ranges`` for a drafted contract."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dpfed
from dpfed.cli import main
from dpfed.data.contract import read_contract

CONTRACT = """
columns = [{name = "age", kind = "number", range = [18, 98]%s}]
label = {column = "ill", words = ["no", "yes"]}
"""
QUERY = """
[data]
source = "table.csv"
contract = "contract.toml"
partition = {clients = 1}
[privacy]
epsilon = 1.0
[[ask]]
name = "age"
kind = "mean"
column = "age"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lines = [f"{20 + i % 70},{('no', 'yes')[i % 2]}" for i in range(300)]
    (tmp_path / "table.csv").write_text("\n".join(["age,ill", *lines]) + "\n")
    (tmp_path / "contract.toml").write_text(CONTRACT % "")
    (tmp_path / "query.toml").write_text(QUERY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(*arguments: str) -> str:
    done = CliRunner().invoke(main.app, ["stats", *arguments])
    assert done.exception is None, done.exception
    return done.stdout


def test_the_cost_alone_asks_nothing(folder: Path) -> None:
    assert "mean +- " in said("query.toml", "--cost")
    assert not (folder / "runs").exists()


def test_a_query_is_answered_into_a_folder_of_its_own(folder: Path) -> None:
    for name in ("query", "query-2"):
        assert f"results in runs/{name}/" in said("query.toml")
        assert (folder / "runs" / name / "answers.csv").exists()


def test_ranges_replace_what_was_read_off_records(folder: Path) -> None:
    (folder / "draft.toml").write_text(CONTRACT % ', from_records = ["range"]')
    told = said("ranges", "draft.toml", "table.csv", "--epsilon", "4", "--out", "made.toml")
    assert "age: " in told
    assert "(4, 1e-05)-DP" in told
    assert read_contract(folder / "made.toml").drafted == ()


def test_ranges_are_entered_in_the_ledger(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFED_LEDGER", str(folder / "ledger.sqlite"))
    (folder / "draft.toml").write_text(CONTRACT % ', from_records = ["range"]')
    told = ("ranges", "draft.toml", "table.csv", "--epsilon", "1", "--out", "made.toml")
    said(*told, "--dataset", "ward", "--budget", "1.2")
    refused = CliRunner().invoke(main.app, ["stats", *told, "--dataset", "ward"])
    assert "BudgetSpent" in type(refused.exception).__name__


def test_gates_are_asked_by_a_query_and_their_answers_make_the_contract(folder: Path) -> None:
    (folder / "draft.toml").write_text(CONTRACT % ', from_records = ["range"]')
    told = CliRunner().invoke(
        main.app,
        ["stats", "ranges-query", "draft.toml", "--epsilon", "4", "--name", "r", "--secure"],
    )
    assert "--shape 1" in told.stderr
    assert 'trust = "distributed"' in told.stdout
    assert 'name = "secure"' in told.stdout
    made = dpfed.run(
        tomllib.loads(told.stdout)
        | {
            "data": {
                "source": "table.csv",
                "options": {"x": ["age"], "y": "ill"},
                "partition": {"name": "iid", "clients": 3},
            }
        },
        out=folder / "out",
    )
    assert made.answers
    arguments = ("ranges", "draft.toml", "--answers", "out/answers.csv", "--out", "made.toml")
    assert "nothing more is spent" in said(*arguments)
    assert read_contract(folder / "made.toml").drafted == ()
    wrong = CliRunner().invoke(main.app, ["stats", *arguments, "--epsilon", "1"])
    assert "or --answers alone" in str(wrong.exception)
