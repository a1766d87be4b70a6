# SPDX-License-Identifier: Apache-2.0
"""``dpfed data check``, the same screen where a training is approved or run; ``dpfed data get``."""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import dpfed
from dpfed.cli.data import screen_lines
from dpfed.cli.main import app
from dpfed.core.errors import DataError, RecipeError
from dpfed.data import catalogue
from dpfed.data.catalogue import PublicSet, read_idx
from dpfed.data.contract import Contract, contract_of, read_contract
from dpfed.data.download import RemoteFile
from dpfed.data.places import find_file
from dpfed.recipes.federation import federation
from dpfed.recipes.schema import (
    CONTRACT_SAYS,
    DataRecipe,
    load_recipe,
    parse,
    to_toml,
    with_contract,
)
from dpfed.silo.policy import load_policy
from tests.helpers.file_server import serving
from tests.helpers.wards import CONTRACT, NAMES, data_of, write_ward
from tests.helpers.wards import records as wards
from tests.silo.gates import Silo, terms_for

WARD = [
    "age,chol,sex,patient,ill",
    *(
        f"{30 + 3 * i % 50},{'' if i % 3 else 150 + 7 * i % 90},{'fm'[i % 2]},{i // 2},{i % 2}"
        for i in range(60)
    ),
]


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DPFED_STATE", "DPFED_LEDGER", "DPFED_IDENTITY"):
        monkeypatch.setenv(name, "")  # a keeper sets them, and they are put back


@pytest.fixture
def ward(tmp_path: Path) -> Path:
    path = tmp_path / "ward.csv"
    path.write_text("\n".join(WARD) + "\n")
    return path


def check(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["data", "check", *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def recipe(ward: Path, **data: Any) -> dict[str, Any]:
    table = {"source": str(ward), "options": {"y": "ill", "groups": "patient"}, **data}
    return {
        "method": "dp-fedgd",
        "rounds": 2,
        "data": {"partition": {"clients": 2}, **table},
        "privacy": {"epsilon": 5.0, "delta": 1e-3, "noise": "keyed"},
        "evaluation": {"kind": "off"},
    }


def test_the_owner_sees_each_column_and_the_way_out(ward: Path) -> None:
    code, said = check(str(ward), "--y", "ill", "--groups", "patient")
    assert code == 1, "there is something to decide"
    assert "60 records of 2 features, labels: 2 classes" in said
    assert "30 persons in the training records" in said
    rows = [line.split()[:4] for line in said.splitlines()]
    assert ["chol", "40", "0", "150"] in rows
    assert "40 of 60 records (67 %) are ignored, since a value is missing (chol 40)" in said
    assert "data.missing = 'fill'" in said
    assert "left out: sex (text)" in said
    assert "times the smallest (chol and the model's constant 1)" in said


def test_nothing_is_left_to_say_once_it_is_decided(ward: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text(
        f'[data]\nsource = "{ward}"\noptions = {{ y = "ill" }}\nmissing = "drop"\n'
        '[data.schema]\nage = [18, 100]\nchol = [100, 400]\nsex = ["f", "m"]\n'
    )
    code, said = check(str(path))
    assert code == 0
    assert "look at" not in said
    assert "are ignored, as data.missing = 'drop' says" in said
    path.write_text(path.read_text().replace('"drop"', '"fill"'))
    assert "40 records have a missing value, which is filled" in check(str(path))[1]


def test_the_skeleton_of_a_schema_has_no_figure_of_the_data(ward: Path) -> None:
    code, said = check(str(ward), "--y", "ill", "--groups", "patient", "--skeleton")
    assert code == 0
    assert tomllib.loads(said) == {"data": {"schema": {"age": [], "chol": [], "sex": []}}}


def test_a_policy_s_data_sets_are_each_looked_at(ward: Path, tmp_path: Path) -> None:
    silo = Silo(tmp_path / "silo", 0)
    silo.write(load={"source": str(ward), "options": {"y": "ill", "x": ["age", "chol"]}}, shape=[2])
    code, said = check(str(silo.policy))
    assert code == 1
    (name,) = tomllib.loads(silo.policy.read_text())["data"]
    assert said.startswith(f"[data.{name}]\n")
    assert "(chol 40)" in said


def test_the_officer_sees_it_before_approving(ward: Path, tmp_path: Path) -> None:
    terms = terms_for(tmp_path, 3)
    silo = Silo(tmp_path / "silo", 0)
    silo.write()
    silo.write(load={"source": str(ward), "options": {"y": "ill", "x": ["age", "chol"]}})
    arguments = ["silo", "approve", str(terms), "--policy", str(silo.policy)]
    done = CliRunner().invoke(app, arguments, input="n\n")
    assert "look at   40 of 60 records (67 %) are ignored" in done.output
    assert done.output.index("look at") < done.output.index("verdict   it CANNOT run")
    assert "data.sepsis.shape must be [2]" in str(done.exception)
    gone = screen_lines(DataRecipe(source=str(tmp_path / "gone.csv")))
    assert gone[0].startswith("the records cannot be read here: ")
    whole = screen_lines(DataRecipe(source=str(ward), options={"y": "ill", "x": "patient"}))
    assert "smallest (patient" in whole[0]


# --------------------------------------------------------------------------- where it is trained on


def test_a_run_says_it_here_and_in_no_file(
    ward: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "dpfed"):
        result = dpfed.run(recipe(ward), out=tmp_path / "out")
    assert "are ignored" in caplog.text
    assert not any("are ignored" in each for each in result.warnings)
    for path in (tmp_path / "out").rglob("*"):
        assert path.is_dir() or b"are ignored" not in path.read_bytes()
    caplog.clear()
    dpfed.run(recipe(ward, missing="drop", options={"y": "ill", "x": ["age", "chol"]}))
    assert "are ignored" not in caplog.text


def test_drop_changes_no_bit_and_fill_does(ward: Path) -> None:
    before = dpfed.run(recipe(ward))
    dropped = dpfed.run(recipe(ward, missing="drop"))
    filled = dpfed.run(recipe(ward, missing="fill"))
    assert torch.equal(before.params, dropped.params)
    assert before.guarantee == dropped.guarantee == filled.guarantee
    assert not torch.equal(before.params, filled.params)
    constant = dpfed.run(recipe(ward, fill_missing=0.0))
    assert torch.equal(filled.params, constant.params), "fill is fill_missing = 0"


def test_a_client_without_one_complete_record_trains_all_the_same(ward: Path) -> None:
    """A refusal would tell the server of its records."""
    lines = [each.replace(each.split(",")[1], "", 1) for each in WARD[1:]]
    ward.write_text("\n".join([WARD[0], "40,200,f,0,1", *lines]) + "\n")
    result = dpfed.run(recipe(ward, schema={"age": [0, 100], "chol": [100, 400]}))
    assert len(result.history) == 2
    assert result.stopped is None
    assert result.guarantee.epsilon == pytest.approx(5.0, rel=1e-6)


def test_drop_and_a_constant_cannot_both_be(ward: Path) -> None:
    with pytest.raises(RecipeError, match=r"'drop' and data\.fill_missing = 0 contradict"):
        dpfed.run(recipe(ward, missing="drop", fill_missing=0.0))
    with pytest.raises(RecipeError, match=r"data\.missing must be one of drop,.*got 'mean'"):
        dpfed.run(recipe(ward, missing="mean"))


# ------------------------------------------------------------------------------- silos and persons


def hospitals(tmp_path: Path) -> dict[str, Any]:
    folder = tmp_path / "hospitals"
    folder.mkdir()
    for place in ("north", "south", "west"):
        lines = [f"{line},{place}" for line in WARD[1 : 30 if place == "west" else 61]]
        (folder / f"{place}.csv").write_text("\n".join([f"{WARD[0]},place", *lines]) + "\n")
    made = recipe(folder, missing="fill")
    made["data"]["partition"] = {}
    return made


def test_files_are_silos_and_a_column_may_be(tmp_path: Path) -> None:
    made = hospitals(tmp_path)
    by_file = federation(load_recipe(made))
    assert by_file.divided == "3 clients, by files, each a silo"
    assert [len(each) for each in by_file.clients] == [60, 60, 29]
    made["data"]["options"] = {"y": "ill", "groups": "patient", "silo": "place"}
    by_column = federation(load_recipe(made))
    assert by_column.divided == "3 clients, by silos (the column 'place')"
    assert [len(each) for each in by_column.clients] == [60, 60, 29]
    assert by_column.clients[0].groups is not None
    assert len(by_column.clients[0].groups.unique()) == 30, "and persons inside of them"


def test_natural_says_which_column_it_used(ward: Path, tmp_path: Path) -> None:
    made = recipe(ward, partition={"name": "natural", "clients": 3})
    result = dpfed.run(made, out=tmp_path / "out")
    assert result.divided == "3 clients, by groups (the column 'patient'), not split"
    told = json.loads((tmp_path / "out" / "guarantee.json").read_text())
    assert told["clients"] == result.divided
    made["data"]["partition"] = {"name": "iid", "clients": 3}
    assert dpfed.run(made).divided == ""


def test_a_partition_that_is_asked_for_divides_silos_anew(tmp_path: Path) -> None:
    made = hospitals(tmp_path)
    made["data"]["partition"] = {"name": "iid", "clients": 7}
    assert len(federation(load_recipe(made)).clients) == 7


def test_the_owner_sees_how_words_become_classes(tmp_path: Path) -> None:
    path = tmp_path / "ward.csv"
    path.write_text("a,y\n1,no\n0,yes\n1,yes\n")
    code, said = check(str(path))
    assert code == 0, "a pooled file may have words"
    assert "numbered by what is in here: no is 0, yes is 1. Where each silo reads a file" in said
    path.write_text("a,y\n" + "".join(f"{i % 2},class {i}\n" for i in range(8)))
    assert "class 5 is 5 and 2 more" in check(str(path))[1]
    path.write_text("a,y\n1,0\n0,1\n")
    assert "numbered" not in check(str(path))[1]


# ---------------------------------------------------------------------------------------- data get


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the file of a made-up set, which stands in the catalogue as ``tiny``."""
    path = tmp_path / "files" / "labels.gz"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 4, 0, 1, 0, 1])))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    file = RemoteFile("https://data.example/labels.gz", path.stat().st_size, f"sha256:{digest}")
    entry = PublicSet(
        "tiny",
        "four labels",
        "images/tiny.npz",
        (file,),
        read=read_idx,
        layout={"y": ("u1", (4,))},
        classes=2,
        rarest=0.4,
        licence="CC0",
        citation="Nobody 2020",
        checked="SHA-256 as this test computes it",
    )
    monkeypatch.setattr(catalogue, "CATALOGUE", {"tiny": entry})
    monkeypatch.setenv("DPFED_DATA", "")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return path


def get(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["data", "get", *arguments])
    if done.exception is not None:
        raise done.exception
    return done.output


def test_the_list_says_what_each_set_is() -> None:
    shown = get()
    for entry in catalogue.CATALOGUE.values():
        for word in (f"{entry.name}: ", entry.about, entry.licence, entry.citation, entry.checked):
            assert word in shown
    assert "170.1 MB from www.cs.toronto.edu" in shown


def test_a_set_is_fetched_into_the_users_folder_and_found(tiny: Path, tmp_path: Path) -> None:
    shown = get("tiny", "--from", str(tiny))
    written = tmp_path / "home" / "dpfed" / "images" / "tiny.npz"
    assert f"wrote {written}" in shown
    assert "CC0" in shown
    assert "Nobody 2020" in shown
    assert "DPFED_DATA" not in shown  # it is found without
    assert find_file("images/tiny.npz") == written
    assert "is there already" in get("tiny", "--from", "/absent")


def test_a_set_goes_where_it_is_told(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = get("tiny", "--from", str(tiny.parent), "--to", str(tmp_path / "other"))
    assert (tmp_path / "other/images/tiny.npz").exists()
    assert f"set DPFED_DATA={tmp_path / 'other'}" in shown
    monkeypatch.setenv("DPFED_DATA", f"{tmp_path / 'first'}{os.pathsep}{tmp_path / 'second'}")
    get("tiny", "--from", str(tiny))
    assert (tmp_path / "first/images/tiny.npz").exists()


def test_a_set_comes_from_a_server(tiny: Path, tmp_path: Path) -> None:
    with serving() as server:
        server.content = tiny.read_bytes()
        get("tiny", "--from", server.url.removesuffix("set.bin"), "--to", str(tmp_path / "there"))
    assert (tmp_path / "there/images/tiny.npz").exists()


def test_what_is_not_there_is_refused(tiny: Path) -> None:
    with pytest.raises(DataError, match="set 'cifar'"):
        get("cifar")
    with pytest.raises(DataError, match="is no file; give --from a file"):
        get("tiny", "--from", "absent")
    with pytest.raises(DataError, match="must begin with https"):
        get("tiny", "--from", "http://data.example/labels.gz")


# ------------------------------------------------------------------------------------ a contract


def contract_file(folder: Path) -> Path:
    path = folder / "contract.toml"
    path.write_text(to_toml(CONTRACT))
    return path


def test_check_compares_a_file_with_a_contract(tmp_path: Path) -> None:
    north = write_ward(tmp_path / "north.csv", wards(0), NAMES[::-1], ";")
    code, said = check(str(north), "--contract", str(contract_file(tmp_path)))
    assert code == 1
    assert "look at: north.csv: columns are divided by ';'" in said
    assert "60 records of 5 features, labels: 2 classes" in said
    south = write_ward(tmp_path / "south.csv", [{**each, "sex": "w"} for each in wards(1)])
    code, said = check(str(tmp_path / "*th.csv"), "--contract", str(contract_file(tmp_path)))
    assert "WRONG: south.csv, column 'sex'" in said
    assert "line 2: 'w'" in said
    assert south.read_text().startswith("age")


def test_check_takes_the_contract_of_a_recipe_or_policy(tmp_path: Path) -> None:
    path = write_ward(tmp_path / "north.csv", wards(0))
    made = tmp_path / "recipe.toml"
    contract_file(tmp_path)
    made.write_text(to_toml({"data": {"source": str(path), "contract": "contract.toml"}}))
    assert "north.csv: 30 of 30 persons" in check(str(made))[1]
    silo = Silo(tmp_path / "silo", 0)
    silo.write(**data_of(path))
    assert "north.csv: 30 of 30 persons" in check(str(silo.policy))[1]
    assert "north.csv: 30 of 30 persons" in str(
        screen_lines(load_policy(silo.policy).data["sepsis"].load)
    )


def test_describe_drafts_a_contract(tmp_path: Path) -> None:
    path = write_ward(tmp_path / "north.csv", wards(0))
    arguments = ["data", "describe", str(path), "--y", "outcome", "--person", "patient"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0
    (tmp_path / "draft.toml").write_text(done.output)
    assert len(read_contract(tmp_path / "draft.toml").drafted) == 5


def test_a_run_with_a_contract_keeps_it_whole(tmp_path: Path) -> None:
    """What a run leaves says by which contract its data was read, though it named a file."""
    paths = [write_ward(tmp_path / f"{i}.csv", wards(i)) for i in range(2)]
    contract_file(tmp_path)
    made = tmp_path / "recipe.toml"
    data = {"source": [str(path) for path in paths], "contract": str(tmp_path / "contract.toml")}
    tree = recipe(paths[0]) | {"data": data}
    made.write_text(to_toml(tree))
    result = dpfed.run(made, out=tmp_path / "out")
    kept = load_recipe(tmp_path / "out" / "recipe.toml").data.contract
    assert kept == result.recipe.data.contract
    assert isinstance(kept, Contract)
    assert kept == contract_of(CONTRACT)
    assert not result.warnings or "read off" not in str(result.warnings)
    drafted = {**CONTRACT, "label": {**CONTRACT["label"], "from_records": ["words"]}}
    warned = dpfed.run(tree | {"data": {**data, "contract": drafted}})
    assert "label.words were read off private records" in str(warned.warnings)


@pytest.mark.parametrize("key", CONTRACT_SAYS)
def test_what_a_contract_says_is_said_once(tmp_path: Path, key: str) -> None:
    value: dict[str, Any] = {
        "schema": {"age": [0, 1]},
        "missing": "drop",
        "center": "x",
        "backbone": "x",
        "shift": [1.0],
        "scale": [1.0],
        "convolutions": 3,
    }
    data = {"source": "x.csv", "contract": CONTRACT, key: value.get(key, 1.0)}
    with pytest.raises(RecipeError, match=key):
        with_contract(parse({"data": data}).data, None)


def test_check_of_a_recipe_that_is_not_toml_says_where(tmp_path: Path) -> None:
    path = tmp_path / "sepsis.toml"
    path.write_text('[data.mapping]\nwords = {sex = {männlich = "m"}}\n', encoding="utf-8")
    found = CliRunner().invoke(app, ["data", "check", str(path)])
    assert "is not TOML" in str(found.exception)
    assert "line 2" in str(found.exception)
