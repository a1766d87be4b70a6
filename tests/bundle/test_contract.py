# SPDX-License-Identifier: Apache-2.0
"""A bundle whose table was read through a contract: five messy files in, predictions out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dpfed
from dpfed.bundle.scoring import score_file
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
