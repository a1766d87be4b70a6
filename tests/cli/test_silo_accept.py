# SPDX-License-Identifier: Apache-2.0
"""``dpfed silo accept``: an officer names what they accept, and no other number is trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dpfed.cli.main import app
from dpfed.cli.silo_accept import look
from dpfed.core.errors import DataError, RecipeError
from dpfed.silo.policy import DataPolicy, load_policy
from tests.helpers.wards import data_of, records, write_ward
from tests.silo.gates import Silo


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DPFED_STATE", "DPFED_LEDGER", "DPFED_IDENTITY"):
        monkeypatch.setenv(name, "")


def silo_with(folder: Path, change: Any = None, part: float = 1.0, **load: Any) -> Silo:
    """A silo with a file of which so large a part is changed."""
    found = records(0)
    for record in found[: round(part * len(found))]:
        record.update(change(record) if change else {})
    silo = Silo(folder / "silo", 0)
    silo.write(**data_of(write_ward(folder / "ward.csv", found), **load))
    return silo


def data(silo: Silo) -> DataPolicy:
    return load_policy(silo.policy).data["sepsis"]


def in_pounds(record: dict[str, str]) -> dict[str, str]:
    return {"weight": str(int(record["weight"]) * 1000)}


def coded(record: dict[str, str]) -> dict[str, str]:
    return {"sex": {"f": "1", "m": "2"}[record["sex"]]}


def test_numbers_that_would_be_cut_are_never_accepted(tmp_path: Path) -> None:
    silo = silo_with(tmp_path, in_pounds)
    for named in ([], ["weight"], ["age", "weight", "sex", "smoker", "outcome", "patient"]):
        with pytest.raises(DataError, match=r"column 'weight'.*mapping\.missing"):
            look("sepsis", data(silo), named).check()
    look("sepsis", data(silo_with(tmp_path, in_pounds, mapping={"missing": ["weight"]}))).check()
    factor = {"factor": {"weight": 0.001}}
    look("sepsis", data(silo_with(tmp_path, in_pounds, mapping=factor))).check()


def test_half_of_a_column_is_the_line(tmp_path: Path) -> None:
    look("sepsis", data(silo_with(tmp_path, in_pounds, part=0.5))).check()
    with pytest.raises(DataError, match="nothing accepts"):
        look("sepsis", data(silo_with(tmp_path, in_pounds, part=0.52))).check()


def test_what_becomes_missing_is_accepted_by_name_alone(tmp_path: Path) -> None:
    silo = silo_with(tmp_path, lambda r: coded(r) | {"outcome": "1"})
    for named in ([], ["outcome"], ["age"]):
        with pytest.raises(DataError, match="--column 'sex'"):
            look("sepsis", data(silo), named).check()
    with pytest.raises(DataError, match="--column 'outcome'"):
        look("sepsis", data(silo), ["sex"]).check()
    seen = look("sepsis", data(silo), ["sex", "outcome", "age"])
    seen.check()
    assert seen.named == ("sex", "outcome"), "what did not have to be named is not noted"


def test_a_name_that_the_contract_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="--column must be one of age, weight"):
        look("sepsis", data(silo_with(tmp_path)), ["height"])


def test_a_missing_column_is_mapped_or_left_out(tmp_path: Path) -> None:
    silo = silo_with(tmp_path)
    whole = tmp_path / "ward.csv"
    whole.write_text(whole.read_text().replace("age,", "Alter,", 1))
    with pytest.raises(DataError, match=r"has no 'age'.*correct data\.sepsis\.load"):
        look("sepsis", data(silo), ["age"]).check()
    for mapping in ({"rename": {"Alter": "age"}}, {"missing": ["age"]}):
        silo.write(**data_of(whole, mapping=mapping))
        look("sepsis", data(silo)).check()


def test_the_command_shows_says_whose_decision_it_is_and_notes_it(tmp_path: Path) -> None:
    silo = silo_with(tmp_path, coded)

    def run(*words: str, **more: Any) -> Any:
        return CliRunner().invoke(app, ["silo", *words, "--policy", str(silo.policy)], **more)

    assert "NOT accepted as it is read" in run("status").output
    refused = run("accept", "--yes")
    assert "WRONG" in refused.output
    assert "--column 'sex'" in str(refused.exception)
    assert run("accept", "--column", "sex", input="n\n").exit_code == 1
    assert "NOT accepted" in run("status").output
    done = run("accept", "--column", "sex", input="y\n")
    assert done.exit_code == 0, done.output
    assert "decision  yours" in done.output
    assert "reads     contract" not in done.output.split("accepted:")[1]
    assert "columns sex although most of each is not as agreed" in run("status").output
    assert "columns sex" in run("log").output


def test_terms_of_a_secure_sum_name_its_roster(tmp_path: Path) -> None:
    """No gate would take them without: said where they are written, not at each silo."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'method = "dp-fedgd"\nrounds = 2\nsum = {name = "secure"}\nevaluation = {kind = "off"}\n'
        '[privacy]\nepsilon = 1.0\ntrust = "distributed"\n'
    )
    words = ["silo", "terms", str(recipe), "--dataset", "x", "--sizes", "50,60,70", "--shape", "3"]
    without = CliRunner().invoke(app, words)
    assert "--roster" in str(without.exception)
    assert not without.output
    (tmp_path / "roster.json").write_text("{}")
    assert (
        'roster = "'
        in CliRunner().invoke(app, [*words, "--roster", f"{tmp_path}/roster.json"]).output
    )
