# SPDX-License-Identifier: Apache-2.0
"""A query behind three gates and a secure sum: the bits of one process, and its answers."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, RecordDict, UserConfig
from safetensors.torch import load_file

from dpfed.cli.deploy import deploy
from dpfed.client.questions.answers import answers
from dpfed.core.types import UPDATE
from dpfed.recipes.flower_app import run_server
from dpfed.recipes.schema import to_toml
from dpfed.recipes.terms import write_terms
from tests.helpers.gate_training import in_one_process
from tests.silo.gates import CLASSES, FEATURES, RECORDS, gates, grid_of, read
from tests.training.flower.local_grid import become_a_server

pytestmark = pytest.mark.slow

SILOS = 3
QUERY: dict[str, Any] = {
    "name": "ward-numbers",
    "sum": {"name": "secure"},
    "privacy": {"epsilon": 2.0, "noise": "keyed", "trust": "distributed"},
    "columns": {
        "age": {"at": 0},
        "time": {"at": 1, "low": 0.0, "high": 10.0},
        "class": {"at": -1, "words": ["a", "b", "c"]},
        "event": {"at": -1, "words": ["no", "yes"]},
    },
    "ask": [
        {"name": "positive", "kind": "count", "where": {"age": [0, 1], "class": "b"}},
        {"name": "age", "kind": "mean", "column": "age"},
        {"name": "classes", "kind": "histogram", "column": "class"},
        {"name": "quartiles", "kind": "quantiles", "column": "age", "cells": 16},
        {"name": "curve", "kind": "survival", "time": "time", "event": "event", "times": [2, 5]},
    ],
}


@pytest.fixture(autouse=True)
def _server(monkeypatch: pytest.MonkeyPatch) -> None:
    become_a_server(monkeypatch)


def terms_of(folder: Path, roster: Path) -> Path:
    query, path = folder / "query.toml", folder / "terms.toml"
    query.write_text(to_toml(QUERY))
    sizes = [float(RECORDS)] * SILOS
    path.write_text(
        write_terms(
            query, dataset="sepsis", shape=[FEATURES], sizes=sizes, classes=CLASSES, roster=roster
        )
    )
    return path


@pytest.mark.long  # test_gate.py has shorter federations
def test_three_gates_and_a_secure_sum_give_the_bits_of_one_process(tmp_path: Path) -> None:
    names = [f"silo-{i}" for i in range(SILOS)]
    deploy.init(tmp_path / "fed", server_names=["127.0.0.1"], nodes=names)
    path = terms_of(tmp_path, tmp_path / "fed" / "nodes" / names[0] / "roster.json")
    terms = read(path)
    config: UserConfig = {"terms": str(path), "out": str(tmp_path / "out")}
    with gates(tmp_path, SILOS) as owners:
        for name, each in zip(names, owners, strict=True):
            each.write(
                {"identity": str(tmp_path / "fed" / "nodes" / name)},
                trust=["distributed"],
                methods=["dp-fedgd", "statistics"],
            )
        said = owners[0].command("approve", str(path), "--yes")
        for question in terms.model.questions:  # the officer reads each of them
            assert f"- {question.name}: {question.said}; " in said
        assert "approved for 30 days" in said
        for each in owners[1:]:
            each.approve(path)
        for each in owners:
            each.spawn()
        for each in owners:
            each.wait()
        run_server(grid_of(owners), Context(1, 0, {}, RecordDict(), config))
        assert "epsilon 2 is spent of" in owners[0].command("status")
    got = terms.model.layout.flatten(load_file(tmp_path / "out" / "model.safetensors"))
    alone = in_one_process(path, SILOS)
    assert torch.equal(got, alone)
    units, std = terms.plan.denominator(UPDATE), terms.plan.noise_std(UPDATE)
    expected = answers(terms.model.questions, terms.model.columns, alone * units, std * units)
    with (tmp_path / "out" / "answers.csv").open() as file:
        written = [float(row["low"]) for row in csv.DictReader(file)]
    assert written == [value.low for answer in expected for value in answer.values]
    assert (tmp_path / "out" / "answers.png").exists()


def test_a_gate_whose_owner_allows_no_statistics_refuses_them(tmp_path: Path) -> None:
    deploy.init(tmp_path / "fed", server_names=["127.0.0.1"], nodes=["a", "b", "c"])
    path = terms_of(tmp_path, tmp_path / "fed" / "nodes" / "a" / "roster.json")
    with gates(tmp_path, 1) as (owner,):
        owner.write(
            {"identity": str(tmp_path / "fed" / "nodes" / "a")},
            trust=["distributed"],
            methods=["dp-fedgd"],
        )
        assert "methods" in owner.command("approve", str(path), "--yes")
