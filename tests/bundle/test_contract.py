# SPDX-License-Identifier: Apache-2.0
"""A bundle whose table was read through a contract: five messy files in, predictions out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import dpfed
from dpfed.bundle.description import decode
from dpfed.bundle.scoring import score_file
from dpfed.cli.main import app
from dpfed.core.errors import DataError
from dpfed.data.contract import contract_of
from tests.helpers.bundles import CONTRACT, WORDS, read_rows, write_messy, write_rows

Wards = tuple[Path, dpfed.Result]


@pytest.fixture(scope="module")
def wards(tmp_path_factory: pytest.TempPathFactory) -> Wards:
    folder = tmp_path_factory.mktemp("wards")
    files = [str(path) for path in write_messy(folder)]
    result = dpfed.run(
        data={"source": files, "contract": contract_of(CONTRACT)},
        privacy={"epsilon": 20.0},
        rounds=5,
        out=folder / "out",
    )
    return folder, result


@pytest.fixture
def model(wards: Wards) -> dpfed.TrainedModel:
    return dpfed.load(wards[0] / "out/model")


def test_the_accuracy_on_what_was_held_out_is_the_runs_to_the_last_record(
    wards: Wards, model: dpfed.TrainedModel, tmp_path: Path
) -> None:
    folder, result = wards
    right = records = 0
    for path in sorted(folder.glob("ward-*.csv")):
        rows, columns, sign = read_rows(path)
        held = [row for row in rows if row["split"] == "test"]
        write_rows(tmp_path / path.name, held, columns, sign)
        tally = score_file(model, tmp_path / path.name, tmp_path / "scored.csv")
        assert tally.records == tally.labelled == len(held)
        right, records = right + tally.right, records + tally.records
    assert records == result.description.metrics[0].records  # type: ignore[union-attr]
    assert np.float32(right / records) == np.float32(result.accuracy)


def test_words_and_columns_are_the_contracts(model: dpfed.TrainedModel) -> None:
    assert model.classes_.tolist() == WORDS
    assert model.feature_names_in_.tolist() == ["age", "dose", "sex"]
    assert model.description.target == "outcome"
    row = {"age": "50", "dose": "1", "sex": "f"}
    other = {"sex": "f", "dose": 1.0, "age": 50}
    assert np.array_equal(model.predict_proba([row]), model.predict_proba([other]))


def test_the_outcome_need_not_be_there(model: dpfed.TrainedModel, tmp_path: Path) -> None:
    new = tmp_path / "new.csv"
    new.write_text("dose;age;sex;id\n1;50;f;a\n;?;m;b\n1;2\n")
    tally = score_file(model, new, tmp_path / "scored.csv", keep=["id"])
    assert (tally.records, tally.empty, tally.accuracy) == (3, 1, None)
    lines = (tmp_path / "scored.csv").read_text().splitlines()
    assert lines[0] == "id,prediction,p_alive,p_dead"
    assert lines[1].startswith("a,")
    assert lines[2].startswith(("b,alive", "b,dead")), "a missing value is the contract's constant"
    assert lines[3] == ",,,", "a line that does not fit the header has no prediction"


def test_a_file_in_another_encoding_is_scored_and_said(wards: Wards, tmp_path: Path) -> None:
    new = tmp_path / "new.csv"
    new.write_bytes(b"dose,age,sex\n1,50,f\n2,60,m\xe4nnlich\n")
    words = ["predict", str(wards[0] / "out/model"), str(new), "--quiet"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "scored.csv")])
    assert "1 lines are not UTF-8 (first: line 3)" in done.output
    assert "2 predictions in" in done.output


STRANGE = {
    "another unit": ("age", lambda cell: str(float(cell) * 365)),
    "other words": ("sex", lambda cell: {"f": "0", "m": "1"}.get(cell, cell)),
    "decimal commas": ("dose", lambda cell: cell.replace(".", ",")),
}


@pytest.mark.parametrize("what", STRANGE)
def test_a_column_that_is_not_the_contracts_is_refused_by_name(
    what: str, model: dpfed.TrainedModel, tmp_path: Path
) -> None:
    column, change = STRANGE[what]
    rows = [{"age": str(30 + at), "dose": "1.5", "sex": "fm"[at % 2]} for at in range(40)]
    write_rows(
        tmp_path / "new.csv",
        [{**row, column: change(row[column])} for row in rows],
        ["age", "dose", "sex"],
        ";",
    )
    with pytest.raises(DataError, match=f"column '{column}' of 'new.csv' must be as"):
        score_file(model, tmp_path / "new.csv", tmp_path / "scored.csv")
    assert not (tmp_path / "scored.csv").exists()
    assert score_file(
        model, tmp_path / "new.csv", tmp_path / "scored.csv", anyway=True
    ).records == len(rows)


OWN = {
    "rename": {"Alter": "age", "Geschlecht": "sex", "tot": "outcome"},
    "factor": {"age": 1 / 12},
    "offset": {"dose": 0.5},
    "words": {"sex": {"w": "f"}, "outcome": {"1": "dead", "0": "alive"}},
    "decimal": ",",
}
"""Of a file in months, decimal commas and German."""


def own_rows(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """The same records, as that file has them."""

    def comma(cell: str, factor: float = 1.0, offset: float = 0.0) -> str:
        return cell if cell in ("", "?") else f"{float(cell) * factor - offset}".replace(".", ",")

    return [
        {
            "id": str(at),
            "Alter": comma(row["age"], factor=12),
            "dose": comma(row["dose"], offset=0.5),
            "Geschlecht": {"f": "w"}.get(row["sex"], row["sex"]),
            "tot": str(int(row["outcome"] == "dead")),
        }
        for at, row in enumerate(rows)
    ]


def test_a_file_that_says_it_otherwise_is_mapped(wards: Wards, tmp_path: Path) -> None:
    folder, _ = wards
    rows, *_ = read_rows(folder / "ward-0.csv")
    plain = dpfed.load(folder / "out/model")
    mapped = dpfed.load(folder / "out/model", mapping=OWN)
    assert mapped.predict(own_rows(rows)).tolist() == plain.predict(rows).tolist()
    assert np.allclose(mapped.predict_proba(own_rows(rows)), plain.predict_proba(rows), atol=1e-6)

    write_rows(tmp_path / "agreed.csv", rows, list(rows[0]), ",")
    theirs = own_rows(rows)
    write_rows(tmp_path / "own.csv", theirs, list(theirs[0]), ";")
    agreed = score_file(plain, tmp_path / "agreed.csv", tmp_path / "agreed.out")
    own = score_file(mapped, tmp_path / "own.csv", tmp_path / "own.out", keep=["id", "Alter"])
    assert (own.records, own.right, own.labelled) == (agreed.records, agreed.right, agreed.labelled)
    made, _, _ = read_rows(tmp_path / "own.out")
    assert [row["Alter"] for row in made] == [row["Alter"] for row in theirs], "as the file has it"
    assert [row["prediction"] for row in made] == plain.predict(rows).tolist()
    with pytest.raises(DataError, match="column 'age'"):
        score_file(plain, tmp_path / "own.csv", tmp_path / "own.out")


def test_a_mapping_that_does_not_suffice_is_refused_by_the_columns_name(
    wards: Wards, tmp_path: Path
) -> None:
    rows, *_ = read_rows(wards[0] / "ward-0.csv")
    theirs = own_rows(rows)
    write_rows(tmp_path / "own.csv", theirs, list(theirs[0]), ";")
    for key, column in (("factor", "age"), ("words", "sex"), ("decimal", "age")):
        some = {name: value for name, value in OWN.items() if name != key}
        model = dpfed.load(wards[0] / "out/model", mapping=some)
        with pytest.raises(DataError, match=f"column '{column}' of 'own.csv' must be as"):
            score_file(model, tmp_path / "own.csv", tmp_path / "own.out")


def test_a_line_that_does_not_fit_has_no_prediction_beside_a_mapping(
    wards: Wards, tmp_path: Path
) -> None:
    numbers = {"factor": {"age": 1.0, "dose": 2.0}, "offset": {"age": 1.0}}
    model = dpfed.load(wards[0] / "out/model", mapping=numbers)
    (tmp_path / "new.csv").write_text("age,dose,sex\n40,1,f\n1,2\n")
    assert score_file(model, tmp_path / "new.csv", tmp_path / "scored.csv").empty == 1


def test_what_no_mapping_can_be_about_is_refused(wards: Wards, tmp_path: Path) -> None:
    from dpfed.core.errors import RecipeError
    from tests.helpers.bundles import train

    with pytest.raises(RecipeError, match="about something of the contract"):
        dpfed.load(wards[0] / "out/model", mapping={"factor": {"weight": 2.0}})
    with pytest.raises(RecipeError, match="mapping cannot be read"):
        dpfed.load(wards[0] / "out/model", mapping={"factors": {"age": 2.0}})
    train(tmp_path)
    with pytest.raises(DataError, match="needs a model with a contract"):
        dpfed.load(tmp_path / "out/model", mapping={"rename": {"Alter": "age"}})


def test_another_unit_is_refused_wherever_in_the_file_it_begins(
    model: dpfed.TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpfed.data.contracted._BATCH", 20)
    cells = [{"age": str(30 + at % 40), "dose": "1", "sex": "f"} for at in range(60)]
    for row in cells[40:]:
        row["age"] = str(int(row["age"]) * 365)
    write_rows(tmp_path / "new.csv", cells, ["age", "dose", "sex"], ",")
    with pytest.raises(DataError, match="column 'age'"):
        score_file(model, tmp_path / "new.csv", tmp_path / "scored.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv"]


@pytest.mark.parametrize(
    "changed", [{"classes": WORDS[::-1]}, {"target": "age"}, {"classes": [0, 1]}]
)
def test_what_the_contract_says_otherwise_is_refused(wards: Wards, changed: dict[str, Any]) -> None:
    """With the class words in the other order, the dead were called alive."""
    told = json.loads((wards[0] / "out/model/model.json").read_bytes())
    with pytest.raises(
        DataError, match=f"{next(iter(changed))} of a bundle must be the contract's"
    ):
        decode(json.dumps({**told, **changed}).encode())


def test_a_missing_column_is_refused_by_name(model: dpfed.TrainedModel, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("age,dose\n50,1\n")
    with pytest.raises(DataError, match="column 'sex'"):
        score_file(model, tmp_path / "new.csv", tmp_path / "scored.csv")


def test_a_training_behind_gates_describes_the_same(wards: Wards) -> None:
    """The server of such a training has the terms, and no record."""
    from dpfed.recipes.describe import describe
    from dpfed.recipes.schema import to_toml
    from dpfed.recipes.session import prepare_terms
    from dpfed.recipes.terms import read_terms

    pins = {"dataset": "w", "shape": [4], "classes": 2, "sizes": [90, 80], "dpfed": "0.2.0"}
    terms = read_terms(
        to_toml(
            {
                "name": "w-1",
                "rounds": 5,
                "method": "dp-fedauto",
                "privacy": {"epsilon": 20.0},
                "terms": {**pins, "contract": CONTRACT},
            }
        )
    )
    session = prepare_terms(terms)
    made = describe(session.recipe, session.federation, session.plan)
    own = wards[1].description
    assert own is not None
    for field in ("input", "classes", "target", "output", "steps", "architecture"):
        assert getattr(made, field) == getattr(own, field)
    assert made.parameters == [(n, list(s)) for n, s in wards[1].model.layout.shapes.items()]
