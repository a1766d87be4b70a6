# SPDX-License-Identifier: Apache-2.0
"""Behind a gate no cell of a table decides how the cells of other records are read.

Before: the type of a whole column followed from its cells. One label 1.5 made labels floats, which
the silo refused over the wire; one label "!" made them texts, numbered anew, so that one record
moved the sum by 22.3 where 2 is priced; a missing one kept the gate from starting.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpfed.cli.data import screen_lines
from dpfed.core.errors import DataError
from dpfed.core.types import Unit
from dpfed.data.datasets import Records
from dpfed.recipes.schema import to_toml
from dpfed.recipes.terms import Terms, read_terms, write_terms
from dpfed.silo.handler import RequestHandler
from dpfed.silo.policy import load_policy
from tests.helpers.handlers import enrolment, order, said
from tests.silo.gates import RECIPE, Silo

MANY, AT = 24, 10
SCHEMA = {name: [0.0, 1.0] for name in "abc"}


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DPFED_STATE", "DPFED_LEDGER", "DPFED_IDENTITY"):
        monkeypatch.setenv(name, "")  # the handler sets them, and they are put back


def table(row: str, names: tuple[str, str] = ("0", "1")) -> str:
    draw = random.Random(0)
    lines = [
        ",".join([*(f"{draw.random():.3f}" for _ in "abc"), names[i % 2], str(i // 3)])
        for i in range(MANY)
    ]
    lines[AT] = row
    return "\n".join(["a,b,c,y,p", *lines]) + "\n"


def handler(
    folder: Path, text: str, load: dict[str, Any] | None = None, **data: Any
) -> RequestHandler:
    silo = Silo(folder / "silo", 0)
    silo.folder.mkdir(parents=True)
    (silo.folder / "d.csv").write_text(text)
    given = dict(load or {})
    options = {"y": "y", "groups": "p", **given.pop("options", {})}
    source = {"source": str(silo.folder / "d.csv"), "options": options, "missing": "drop"}
    silo.write(load={**source, **given}, **{"shape": [3], "classes": 2, **data})
    held = RequestHandler(load_policy(silo.policy))
    held.open()
    return held


def approved(held: RequestHandler, folder: Path, **recipe: Any) -> Terms:
    path = folder / "recipe.toml"
    path.write_text(to_toml({**RECIPE, **recipe}))
    classes = held.policy.data["sepsis"].classes or 1
    text = write_terms(path, dataset="sepsis", shape=[3], sizes=[24.0] * 3, classes=classes)
    terms = read_terms(text)
    held.approvals.approve(terms, text, days=1, by="root")
    return terms


def form(held: RequestHandler, terms: Terms) -> list[Any]:
    """What a server sees of two replies besides noise: errors, keys and lengths."""
    replies = [held.reply(enrolment(terms.name)), held.reply(order(terms))]
    return [(said(each).get("error"), sorted(said(each)), len(each)) for each in replies]


def same_but_one(first: Records, second: Records) -> None:
    """All other records are equal, bit for bit, and so is who is whose."""
    others = torch.arange(MANY) != AT
    assert (first.y.dtype, first.x.shape) == (second.y.dtype, second.x.shape)
    assert torch.equal(first.y[others], second.y[others])
    assert torch.equal(first.x[others], second.x[others])
    assert first.groups is not None
    assert second.groups is not None
    together = [g[others][:, None] == g[others] for g in (first.groups, second.groups)]
    assert torch.equal(*together)


LABELS = ["1.5", "inf", "nan", "", "!", "yes", "2", "-1", "9" * 23, "1e300", "x" * 9000, "9" * 6000]
ROWS = {
    **{f"label {label[:9]}": f"0.1,0.2,0.3,{label},3" for label in LABELS},
    "no person": "0.1,0.2,0.3,1,",
    "person nan": "0.1,0.2,0.3,1,nan",
}
KNOWN = {
    "label 1.0": "0.1,0.2,0.3,1.0,3",
    "person 3.0": "0.1,0.2,0.3,1,3.0",
    "person 03": "0.1,0.2,0.3,1,03",
}
OTHERS = {
    "person x": "0.1,0.2,0.3,1,x",
    "value text": "0.1,hello,0.3,1,3",
    "value huge": "0.1,1e999,0.3,1,3",
    "value empty": "0.1,,0.3,1,3",
}
USUAL = "0.1,0.2,0.3,1,3"


@pytest.mark.parametrize("unit", ["record", "group"])
@pytest.mark.parametrize("named", [True, False], ids=["schema", "plain"])
@pytest.mark.parametrize("row", [*ROWS, *KNOWN, *OTHERS])
@pytest.mark.sample(14)
def test_one_cell_changes_neither_the_form_of_a_reply_nor_other_rows(
    row: str, named: bool, unit: str, tmp_path: Path
) -> None:
    rows = {**ROWS, **KNOWN, **OTHERS}
    found, sums = [], []
    for name, text in (("usual", USUAL), ("other", rows[row])):
        load = {"schema": SCHEMA} if named else {"options": {"classes": 2}}
        policy = {"unit": unit, "adjacency": "zero-out"}
        held = handler(tmp_path / name, table(text), load, **policy)
        privacy = {**RECIPE["privacy"], **policy}
        terms = approved(held, tmp_path / name, privacy=privacy)
        found.append((form(held, terms), held.records["sepsis"]))
        clip = terms.plan.channels["update"].clip
        problem = held.training(terms.name)[1]
        sums.append(problem.rows(terms.initial, Unit(unit)).clipped_sum(clip).vector)
    assert found[0][0] == found[1][0]
    assert found[0][0][1][0] is None
    same_but_one(found[0][1], found[1][1])
    if unit == "record":
        assert float((sums[0] - sums[1]).norm()) <= 2 * clip + 1e-6
    label = int(found[1][1].y[AT])
    assert label == (-1 if row in ROWS else 1)
    assert not (row in KNOWN and not torch.equal(sums[0], sums[1]))


def test_a_record_without_a_person_is_in_no_row(tmp_path: Path) -> None:
    """Two such records share a number, and nothing else: what is in them changes no sum."""
    sums = []
    for name, row in (("one", "0.1,0.2,0.3,1,"), ("two", "0.9,0.8,0.7,0,")):
        held = handler(tmp_path / name, table(row), {"schema": SCHEMA})
        problem = held.training(approved(held, tmp_path / name).name)[1]
        sums.append(problem.rows(torch.zeros(problem.dimension), Unit.GROUP).clipped_sum(1.0))
    assert torch.equal(sums[0].vector, sums[1].vector)


@pytest.mark.parametrize("words", [("alive", "dead"), ("1", "-1")])
def test_words_are_numbered_by_the_declared_list_alone(
    words: tuple[str, str], tmp_path: Path
) -> None:
    declared = {"options": {"labels": [words[1], words[0]]}}
    text = table(f"0.1,0.2,0.3,{words[0]},3", words)
    held = handler(tmp_path / "listed", text, declared)
    assert held.records["sepsis"].y[:3].tolist() == [1, 0, 1]
    odd = handler(tmp_path / "odd", table("0.1,0.2,0.3,!,3", words), declared)
    same_but_one(held.records["sepsis"], odd.records["sepsis"])
    assert odd.records["sepsis"].y[AT] == -1


def test_words_without_a_list_are_unknown_and_the_owner_is_told(tmp_path: Path) -> None:
    text = table("0.1,0.2,0.3,dead,3", ("alive", "dead"))
    held = handler(tmp_path, text)
    data = held.policy.data["sepsis"]
    assert set(held.records["sepsis"].y.tolist()) == {-1}
    assert any("24 of 24 records are ignored" in s for s in screen_lines(data.load, data.public))


@pytest.mark.parametrize("labels", [["0"], ["a", "a"], ["1", "1.0"], ["a", ""], "ab", list("abc")])
def test_a_list_that_does_not_fit_is_refused(labels: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"options\.labels"):
        handler(tmp_path, table(USUAL), {"options": {"labels": labels}})


@pytest.mark.parametrize("label", ["0.7", "", "!", "-1", "inf", "nan"])
def test_targets_are_numbers_one_by_one(label: str, tmp_path: Path) -> None:
    pair = [
        handler(tmp_path / str(i), table(f"0.1,0.2,0.3,{each},3"), classes=1)
        for i, each in enumerate(("1", label))
    ]
    assert pair[1].records["sepsis"].y.dtype == torch.float32
    same_but_one(*(held.records["sepsis"] for held in pair))
    forms = [
        form(held, approved(held, tmp_path, model={"name": "poisson"}, name=f"n{i}"))
        for i, held in enumerate(pair)
    ]
    assert forms[0] == forms[1]


@pytest.mark.parametrize(("label", "made"), [("0.7", 1), ("-3", 0), ("!", -1), ("", -1)])
def test_classes_made_of_numbers_stay_unknown_where_there_is_none(
    label: str, made: int, tmp_path: Path
) -> None:
    text = table(f"0.1,0.2,0.3,{label},3")
    found = handler(tmp_path, text, {"positive_above": 0.5}).records["sepsis"]
    assert found.y[AT] == made
    assert set(found.y.tolist()) <= {0, 1, made}


def test_arrays_are_read_as_tables_are(tmp_path: Path) -> None:
    y = np.arange(MANY) % 2
    floats, texts = y.astype(np.float64), y.astype("U4")
    floats[AT], texts[AT] = 1.5, "!"
    for at, (labels, odd) in enumerate(((y, 0), (floats, -1), (texts, -1))):
        silo = Silo(tmp_path / str(at), 0)
        silo.folder.mkdir()
        np.savez(silo.folder / "data.npz", x=np.ones((MANY, 3)), y=labels)
        silo.write(shape=[3], classes=2)
        held = RequestHandler(load_policy(silo.policy))
        held.open()
        expected = torch.from_numpy(y.copy())
        expected[AT] = odd
        assert torch.equal(held.records["sepsis"].y, expected)


QUOTED = '0.1,0.2,0.3,1,"3"'
BROKEN = ["0.1,0.2,0.3,1,3,7", "0.1,0.2", '0.1,"0.2,0.3,1,3', '0.1,0.2,0.3,1,"3']


@pytest.mark.parametrize("row", BROKEN)
def test_a_file_that_cannot_be_parsed_stops_the_gate_from_starting(
    row: str, tmp_path: Path
) -> None:
    """Also where an open quote ends at another record's quote, and would take in those between."""
    lines = table(row).splitlines()
    lines[AT + 6] = QUOTED
    with pytest.raises(DataError, match=r"cannot be read|several lines"):
        handler(tmp_path, "\n".join(lines) + "\n", {"schema": SCHEMA})
