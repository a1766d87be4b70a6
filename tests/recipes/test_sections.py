# SPDX-License-Identifier: Apache-2.0
"""The typed front door: every field of a recipe, of the recipe's own type, seen by mypy."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import types
import typing
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import pytest

import dpfed
from dpfed.core.errors import RecipeError
from dpfed.core.participation import Participation
from dpfed.flower import make_plan
from dpfed.recipes import schema, sections
from tests.helpers.pages import load_script

TABLES: dict[str, Any] = {
    "Data": schema.DataRecipe,
    "Partition": schema.PartitionRecipe,
    "Model": schema.ModelRecipe,
    "Privacy": schema.PrivacyRecipe,
    "AdaptiveClip": schema.AdaptiveRecipe,
    "Participation": Participation,
    "Evaluation": schema.EvaluationRecipe,
    "Ledger": schema.LedgerRecipe,
    "PlanSections": schema.Recipe,
}


@pytest.mark.parametrize("name", TABLES)
def test_a_type_has_the_fields_of_its_table(name: str) -> None:
    typed, struct = getattr(sections, name), TABLES[name]
    assert set(typing.get_type_hints(typed)) == set(struct.__struct_fields__)
    required = {each.name for each in msgspec.structs.fields(struct) if each.required}
    assert set(typed.__required_keys__) == required


def plain(hint: Any) -> set[Any]:
    """The types of a hint: of choices their words, of tables and lists only that they are some."""
    found: set[Any] = set()
    for each in typing.get_args(hint) if is_union(hint) else [hint]:
        origin = typing.get_origin(each)
        if origin is typing.Required:
            found |= plain(typing.get_args(each)[0])
        elif origin is typing.Literal:
            found |= set(typing.get_args(each))
        elif inspect.isclass(each) and issubclass(each, StrEnum):
            found |= {str(choice) for choice in each}
        elif origin is None and each in (str, int, float, bool, type(None)):
            found.add(each)
        elif inspect.isclass(origin):
            table = issubclass(origin, dict | typing.Mapping)  # type: ignore[arg-type]
            found.add("table" if table else "list")
    return found


def is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


CODE = {"client", "server", "sum", "mechanism", "metrics", "loss", "factory"}
"""Fields that take a name, a table or code."""


@pytest.mark.parametrize("name", [name for name in TABLES if name != "PlanSections"])
def test_and_their_types(name: str) -> None:
    typed = typing.get_type_hints(getattr(sections, name))
    wanted = typing.get_type_hints(TABLES[name])
    for field in typed.keys() - CODE:
        given, asked = plain(typed[field]), plain(wanted[field])
        assert given - {"table"} == asked - {"table"}, field


@pytest.mark.parametrize("name", TABLES)
def test_and_their_words(name: str) -> None:
    fields = load_script("reference").fields
    said = " ".join((inspect.getdoc(getattr(sections, name)) or "").split())
    own = getattr(sections, name).__annotations__
    for field in fields(TABLES[name]):
        if field.name in own and name != "PlanSections":
            assert f"{field.name}: {field.words}" in said.replace("``", "`")


def test_a_table_is_a_plain_dict_with_what_is_written_only() -> None:
    """A default that were filled in would stand before the method's own mechanism."""
    assert dpfed.Privacy(epsilon=1.0) == {"epsilon": 1.0}
    plan = make_plan([9] * 3, method="dp-ftrl", rounds=3, privacy=dpfed.Privacy(epsilon=1.0))
    assert "Tree" in type(plan.update).__name__


def test_the_two_calls_of_the_issue() -> None:
    privacy = dpfed.Privacy(epsilon=8, delta=1e-3, unit="client")
    plan = make_plan(clients=4, rounds=3, method="dp-fedavg", privacy=privacy)
    assert plan.nominal == [1.0] * 4
    assert make_plan([1] * 4, rounds=3, method="dp-fedavg", privacy={**privacy}).fingerprint() == (
        plan.fingerprint()
    )
    options = {"records": 60, "features": 3, "classes": 2}
    partition = dpfed.Partition(clients=2)
    data = dpfed.Data(source="synthetic", options=options, partition=partition)
    result = dpfed.run(data=data, privacy=dpfed.Privacy(epsilon=1.0), rounds=2, method="dp-fedgd")
    assert result.recipe.data.partition.clients == 2


def test_the_old_name_of_clients_stays() -> None:
    privacy = {"epsilon": 1.0}
    assert make_plan([5, 6], rounds=2, privacy=privacy).nominal == [5.0, 6.0]


def test_a_number_of_clients_says_nothing_of_records() -> None:
    with pytest.raises(RecipeError, match=r"clients .* record, got 3"):
        make_plan(clients=3, privacy={"epsilon": 1.0})
    public = {"epsilon": 1.0, "adjacency": "add-remove", "nominal": 40.0}
    assert make_plan(clients=3, rounds=2, privacy=public).nominal == [40.0] * 3


WRONG = {
    "Privacy(epsilom=8)": "epsilom",
    'Privacy(epsilon="8")': "epsilon",
    'Privacy(unit="persons")': "unit",
    "Data(source=3)": "source",
    'Evaluation(kind="exakt")': "kind",
    "run(privcy=Privacy(epsilon=8))": "privcy",
    'run(rounds="ten")': "rounds",
    'make_plan(clients="ten")': "clients",
    'make_plan(clients=3, metod="dp-fedavg")': "metod",
    "Ledger(epsilon=1.0)": "dataset",
}
RIGHT = """
run("first.toml", seed=1)
run({"rounds": 3, "privacy": {"epsilon": 1.0}})
run(data=Data(source="synthetic"), privacy=Privacy(epsilon=8, unit="client"), rounds=3)
run(data={"source": "synthetic"}, privacy={"epsilon": 8}, server=[sofim(), {"name": "scale"}])
make_plan(clients=3, method="dp-fedavg", privacy=Privacy(epsilon=8, delta=1e-3, unit="client"))
make_plan([3, 4], client="my.module:algorithm", privacy=Privacy(epsilon=8, mechanism="tree"))
"""
HEAD = """from dpfed import Data, Evaluation, Ledger, Privacy, run
from dpfed.flower import make_plan
from dpfed.server.sofim import sofim
"""


@pytest.mark.long  # half a minute of mypy
def test_mypy_sees_every_wrong_field_and_no_right_one(tmp_path: Path) -> None:
    lines = [*HEAD.splitlines(), *RIGHT.strip().splitlines(), *WRONG]
    (tmp_path / "app.py").write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "app.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = {int(at): text for at, text in re.findall(r"app\.py:(\d+): error: (.*)", done.stdout)}
    first = len(lines) - len(WRONG) + 1
    assert set(found) == set(range(first, len(lines) + 1)), done.stdout
    for at, word in enumerate(WRONG.values(), first):
        assert word in found[at]
