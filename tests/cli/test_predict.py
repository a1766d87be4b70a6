# SPDX-License-Identifier: Apache-2.0
"""``dpfed predict``: what it prints and writes."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from dpfed.cli.main import app
from tests.helpers.bundles import train, write_table


def test_predict_prints_the_accuracy_and_writes_the_file(tmp_path: Path) -> None:
    train(tmp_path)
    new = write_table(tmp_path / "new.csv", 40, seed=2)
    words = ["predict", str(tmp_path / "out/model"), str(new), "--keep", "note", "--quiet"]
    done = CliRunner().invoke(
        app, [*words, "--out", str(tmp_path / "scored.csv")], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    assert "on 40 labelled records" in done.output
    assert "40 predictions in" in done.output
    assert len((tmp_path / "scored.csv").read_text().splitlines()) == 41


def test_a_map_is_read_from_its_file(tmp_path: Path) -> None:
    train(tmp_path)
    new, own = write_table(tmp_path / "new.csv", 40, seed=2), tmp_path / "mapping.toml"
    own.write_text('rename = {alter = "age"}\n')
    words = ["predict", str(tmp_path / "out/model"), str(new), "--map", str(own), "--quiet"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code != 0, "this model has a schema, and no contract"
    assert "needs a model with a contract" in str(done.exception)


def test_its_help_teaches() -> None:
    said = CliRunner().invoke(app, ["predict", "--help"]).output
    assert "dpfed predict out/model new.csv" in " ".join(said.split())
    assert "names it" in " ".join(said.split())
