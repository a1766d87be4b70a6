# SPDX-License-Identifier: Apache-2.0
"""A query behind three gates and a secure sum: the bits of one process, and its answers."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from flwr.app import Context, RecordDict, UserConfig
from safetensors.torch import load_file

from dpfed.cli.deploy import deploy
from dpfed.client.questions.answers import Answer, answers
from dpfed.core.types import UPDATE
from dpfed.data.contract import contract_of
from dpfed.recipes.flower_app import run_server
from dpfed.recipes.ranges import (
    answers_in,
    proposed,
    ranges_options,
    ranges_query,
    with_ranges,
)
from dpfed.recipes.records import load_dataset
from dpfed.recipes.schema import load_recipe, to_toml
from dpfed.recipes.terms import Terms, write_terms
from dpfed.training.inprocess import rounds
from tests.silo.gates import RECORDS, Silo, gates, grid_of, read, records
from tests.training.flower.local_grid import become_a_server

pytestmark = pytest.mark.slow

SILOS = 3
CONTRACT: dict[str, Any] = {
    "columns": [
        {"name": "age", "kind": "number", "range": [-1, 1]},
        {"name": "days", "kind": "number", "range": [0, 1]},
        {"name": "died", "kind": "flag"},
    ],
    "label": {"column": "ward", "words": ["0", "1", "2"]},
}
QUERY: dict[str, Any] = {
    "name": "ward-numbers",
    "sum": {"name": "secure"},
    "data": {"contract": CONTRACT},
    "privacy": {"epsilon": 2.0, "noise": "keyed", "trust": "distributed"},
    "ask": [
        {"name": "positive", "kind": "count", "where": {"age": [0, 1], "ward": "1"}},
        {"name": "age", "kind": "mean", "column": "age"},
        {"name": "wards", "kind": "histogram", "column": "ward"},
        {"name": "quartiles", "kind": "quantiles", "column": "age", "cells": 16},
        {"name": "curve", "kind": "survival", "time": "days", "event": "died", "times": [0.2, 0.5]},
    ],
}


def write_table(path: Path, silo: int) -> None:
    """A table of an owner's, whose columns come in an order of their own."""
    x, y = records(silo)
    columns = [
        ("days", x[:, 1].abs()),
        ("ward", y),
        ("age", x[:, 0]),
        ("died", (x[:, 2] > 0).int()),
    ]
    columns = columns[silo:] + columns[:silo]
    rows = zip(*(values.tolist() for _, values in columns), strict=True)
    lines = [",".join(name for name, _ in columns), *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")


def in_one_process(terms: Terms, tables: list[Path]) -> torch.Tensor:
    problems = []
    for path in tables:
        recipe = load_recipe({"data": {"source": str(path), "contract": CONTRACT}})
        problems.append(terms.model.problem(load_dataset(recipe, None).train))
    *_, (step, _) = rounds(terms.plan, problems, terms.initial)
    return step.params


@pytest.fixture(autouse=True)
def _server(monkeypatch: pytest.MonkeyPatch) -> None:
    become_a_server(monkeypatch)


def terms_of(folder: Path, roster: Path) -> Path:
    query, path = folder / "query.toml", folder / "terms.toml"
    query.write_text(to_toml(QUERY))
    sizes = [float(RECORDS)] * SILOS
    path.write_text(write_terms(query, dataset="sepsis", sizes=sizes, roster=roster))
    return path


@pytest.mark.long  # test_gate.py has shorter federations
def test_three_gates_and_a_secure_sum_give_the_bits_of_one_process(tmp_path: Path) -> None:
    names = [f"silo-{i}" for i in range(SILOS)]
    deploy.init(tmp_path / "fed", server_names=["127.0.0.1"], nodes=names)
    path = terms_of(tmp_path, tmp_path / "fed" / "nodes" / names[0] / "roster.json")
    terms, tables = read(path), [tmp_path / f"table-{silo}.csv" for silo in range(SILOS)]
    config: UserConfig = {"terms": str(path), "out": str(tmp_path / "out")}
    with gates(tmp_path, SILOS) as owners:
        for name, each in zip(names, owners, strict=True):
            write_table(tables[each.number], each.number)
            each.write(
                {"identity": str(tmp_path / "fed" / "nodes" / name)},
                trust=["distributed"],
                methods=["dp-fedgd", "statistics"],
                load={"source": str(tables[each.number]), "contract": CONTRACT},
                shape=[3],
            )
        assert "accepted: data sepsis" in owners[0].command("accept", "--yes")
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
    alone = in_one_process(terms, tables)
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
    write_table(tmp_path / "table.csv", 0)
    with gates(tmp_path, 1) as (owner,):
        owner.write(
            {"identity": str(tmp_path / "fed" / "nodes" / "a")},
            trust=["distributed"],
            methods=["dp-fedgd"],
            load={"source": str(tmp_path / "table.csv"), "contract": CONTRACT},
            shape=[3],
        )
        assert "methods" in owner.command("approve", str(path), "--yes")


DRAFT = contract_of(
    {
        "columns": [
            {"name": name, "kind": "number", "range": [0, 1], "from_records": ["range"]}
            for name in ("age", "days")
        ],
        "label": {"column": "ward", "words": ["0", "1", "2"]},
    }
)


def policy_for_ranges(owner: Silo, identity: Path, table: Path, x: list[str]) -> None:
    owner.write(
        {"identity": str(identity)},
        trust=["distributed"],
        methods=["dp-fedgd", "statistics"],
        load={"source": str(table), "options": {"x": x, "y": "ward"}},
        shape=[2],
        classes=1,
    )


@pytest.mark.long  # the parts are in tests/recipes/test_ranges.py
def test_ranges_are_bought_at_three_gates_and_are_in_the_trainings_total(tmp_path: Path) -> None:
    names = [f"silo-{i}" for i in range(SILOS)]
    deploy.init(tmp_path / "fed", server_names=["127.0.0.1"], nodes=names)
    nodes, tables = tmp_path / "fed" / "nodes", [tmp_path / f"{i}.csv" for i in range(SILOS)]
    privacy = {"epsilon": 1.5, "noise": "keyed", "trust": "distributed"}
    query = ranges_query(DRAFT, privacy, "ranges-1") | {"sum": {"name": "secure"}}
    terms = _terms(tmp_path, "ranges", query, nodes / names[0] / "roster.json", [2])
    with gates(tmp_path, SILOS) as owners:
        for each, table in zip(owners, tables, strict=True):
            write_table(table, each.number)
            policy_for_ranges(each, nodes / names[each.number], table, ["days", "age"])
        said = owners[0].command("approve", str(terms), "--yes")
        assert "load.options.x" in said, "columns in another order than the terms'"
        for each, table in zip(owners, tables, strict=True):
            policy_for_ranges(each, nodes / names[each.number], table, ["age", "days"])
        said = owners[0].command("approve", str(terms), "--yes")
        assert "by the terms, age is feature 0 of this silo's records, a number as it is" in said
        for each in owners:
            each.approve(terms)
            each.start()
        config: UserConfig = {"terms": str(terms), "out": str(tmp_path / "out")}
        run_server(grid_of(owners), Context(1, 0, {}, RecordDict(), config))

        found = answers_in(tmp_path / "out" / "answers.csv", DRAFT)
        assert found == _ranges_in_one_process(read(terms), tables)
        agreed = with_ranges(DRAFT, proposed(found))
        assert agreed.drafted == ()
        made = {
            "name": "train-1",
            "method": "dp-fedgd",
            "rounds": 1,
            "sum": {"name": "secure"},
            "evaluation": {"kind": "off"},
            "data": {"contract": msgspec.to_builtins(agreed)},
            "privacy": {**privacy, "epsilon": 1.0},
        }
        training = _terms(tmp_path, "training", made, nodes / names[0] / "roster.json", None)
        for each, table in zip(owners, tables, strict=True):
            each.kill()
            each.write(
                {"identity": str(nodes / names[each.number])},
                trust=["distributed"],
                methods=["dp-fedgd"],
                load={"source": str(table), "contract": msgspec.to_builtins(agreed)},
                shape=[2],
            )
        assert "accepted" in owners[0].command("accept", "--yes")
        assert "epsilon 1.5 is spent so far" in owners[0].command("approve", str(training), "--yes")
        for each in owners:
            each.approve(training)
            each.start()
        config = {"terms": str(training), "out": str(tmp_path / "trained")}
        run_server(grid_of(owners), Context(2, 0, {}, RecordDict(), config))
        status = owners[0].command("status")
    spent = float(status.split("epsilon ")[1].split()[0])
    assert 1.5 < spent < 2.5, "both together, composed"


def _terms(folder: Path, name: str, tree: dict[str, Any], roster: Path, shape: Any) -> Path:
    (folder / f"{name}-query.toml").write_text(to_toml(tree))
    path, sizes = folder / f"{name}.toml", [float(RECORDS)] * SILOS
    path.write_text(
        write_terms(
            folder / f"{name}-query.toml", dataset="sepsis", sizes=sizes, shape=shape, roster=roster
        )
    )
    return path


def _ranges_in_one_process(terms: Terms, tables: list[Path]) -> tuple[Answer, ...]:
    """What is released without any gate: the same bits."""
    problems = []
    for path in tables:
        data = {"source": str(path), "options": ranges_options(DRAFT)}
        problems.append(terms.model.problem(load_dataset(load_recipe({"data": data}), None).train))
    *_, (step, _) = rounds(terms.plan, problems, terms.initial)
    units, std = terms.plan.denominator(UPDATE), terms.plan.noise_std(UPDATE)
    made = answers(terms.model.questions, terms.model.columns, step.params * units, std * units)
    return tuple(each._replace(said=f"quantiles of {each.name}") for each in made)
