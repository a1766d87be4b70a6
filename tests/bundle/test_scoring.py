# SPDX-License-Identifier: Apache-2.0
"""From a file of records to a file of predictions."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import dpfed
from dpfed.bundle import scoring
from dpfed.bundle.scoring import harmless, score_file
from dpfed.core.errors import DataError
from tests.helpers.bundles import train, write_table

Trained = tuple[Path, dpfed.Result]


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def model(trained: Trained) -> dpfed.TrainedModel:
    return dpfed.load(trained[0] / "out/model")


def held_out(folder: Path, to: Path) -> Path:
    """The test records of the training's file, as a file."""
    rows = [row for row in read(folder / "ward.csv") if row["split"] == "test"]
    with to.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return to


def test_its_accuracy_is_the_runs_own_to_the_last_record(
    trained: Trained, model: dpfed.TrainedModel, tmp_path: Path
) -> None:
    folder, result = trained
    new = held_out(folder, tmp_path / "new.csv")
    tally = score_file(model, new, tmp_path / "scored.csv", keep=["note"])
    assert tally.records == tally.labelled == 150
    assert np.float32(tally.right / 150) == np.float32(result.accuracy)
    rows, scored = read(new), read(tmp_path / "scored.csv")
    assert list(scored[0]) == ["note", "prediction", "p_alive", "p_dead"]
    assert [each["note"] for each in scored] == [each["note"] for each in rows]
    assert [each["prediction"] for each in scored] == model.predict(rows).tolist()
    chances = [[float(each["p_alive"]), float(each["p_dead"])] for each in scored]
    assert np.allclose(chances, model.predict_proba(rows), atol=1e-6)


def test_parts_of_a_file_give_what_the_whole_gives(
    model: dpfed.TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, seen = write_table(tmp_path / "new.csv", 400, seed=3), []
    score_file(model, new, tmp_path / "whole.csv")
    monkeypatch.setattr(scoring, "_BLOCK_BYTES", 2000)
    score_file(
        model, new, tmp_path / "parts.csv", watch=lambda done, total: seen.append((done, total))
    )
    assert (tmp_path / "parts.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert len(seen) > 3
    assert seen[-1] == (400, 400)


def test_parquet_and_csv_give_the_same(model: dpfed.TrainedModel, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from pyarrow import csv as arrow
    from pyarrow import parquet

    new = write_table(tmp_path / "new.csv", 60, seed=5)
    parquet.write_table(arrow.read_csv(new), tmp_path / "new.parquet")
    for name in ("new.csv", "new.parquet"):
        score_file(model, tmp_path / name, tmp_path / f"{name}.out")
    assert (tmp_path / "new.csv.out").read_bytes() == (tmp_path / "new.parquet.out").read_bytes()


def test_a_column_that_is_missing_is_named_and_nothing_is_written(
    model: dpfed.TrainedModel, tmp_path: Path
) -> None:
    new = write_table(tmp_path / "new.csv", 9)
    new.write_text(new.read_text().replace("dose", "amount", 1))
    with pytest.raises(DataError, match=r"'new\.csv' must have the model's column 'dose'"):
        score_file(model, new, tmp_path / "scored.csv")
    with pytest.raises(DataError, match="column 'id'"):
        score_file(model, write_table(new, 9), tmp_path / "scored.csv", keep=["id"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv"]


def test_a_broken_file_leaves_no_half_result(model: dpfed.TrainedModel, tmp_path: Path) -> None:
    new = write_table(tmp_path / "new.csv", 9)
    new.write_text(new.read_text() + "f,one cell too few\n")
    with pytest.raises(DataError, match=r"'new\.csv' is not readable|cannot be read|is not"):
        score_file(model, new, tmp_path / "scored.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv"]


def test_labels_that_are_no_classes_give_no_accuracy(
    model: dpfed.TrainedModel, tmp_path: Path
) -> None:
    new = write_table(tmp_path / "new.csv", 9)
    new.write_text(new.read_text().replace("dead", "gone"))
    tally = score_file(model, new, tmp_path / "scored.csv")
    assert tally.strange
    assert tally.accuracy is None


def test_a_record_that_lacks_a_value_has_a_line_and_no_prediction(tmp_path: Path) -> None:
    train(tmp_path, data=_dropped(tmp_path))
    model = dpfed.load(tmp_path / "out/model")
    new = tmp_path / "new.csv"
    new.write_text("age,dose,sex\n50,1,f\n,1,f\n60,2,m\n")
    tally = score_file(model, new, tmp_path / "scored.csv")
    assert (tally.records, tally.empty) == (3, 1)
    said = [row["prediction"] for row in read(tmp_path / "scored.csv")]
    assert said[1] == ""
    assert all(said[::2])


def _dropped(folder: Path) -> dict[str, object]:
    from tests.helpers.bundles import SCHEMA, WORDS

    return {
        "source": str(folder / "ward.csv"),
        "options": {"y": "outcome", "labels": WORDS},
        "schema": SCHEMA,
        "missing": "drop",
        "partition": {"clients": 3},
    }


def test_words_of_others_are_no_formulas_and_no_lines(bundle: Path, tmp_path: Path) -> None:
    told = json.loads((bundle / "model.json").read_bytes())
    told["classes"] = ["=HYPERLINK(1)", "b\r\nc\x1b[31m"]
    (bundle / "model.json").write_text(json.dumps(told))
    new = write_table(tmp_path / "new.csv", 30)
    new.write_text(new.read_text().replace("note 1,", "=cmd|x!A1,"))
    score_file(dpfed.load(bundle), new, tmp_path / "scored.csv", keep=["note"])
    text = (tmp_path / "scored.csv").read_text(encoding="utf-8")
    assert len(text.splitlines()) == 31
    assert "\x1b" not in text
    cells = [cell for row in csv.reader(text.splitlines()) for cell in row]
    assert not [cell for cell in cells if cell.startswith(("=", "@"))]
    assert "'=cmd|x!A1" in cells


@pytest.mark.parametrize("word", ["alive", "-1", "+", "-", "1e-5", ">50K"])
def test_plain_words_stay_as_they_are(word: str) -> None:
    assert harmless(word) == word


def test_arrays_come_from_an_npz(tmp_path: Path) -> None:
    made_up = {"records": 80, "features": 4, "classes": 3}
    data = {"options": made_up, "partition": {"clients": 2}}
    dpfed.run(
        data=data, privacy={"epsilon": 5.0}, rounds=2, method="dp-fedgd", out=tmp_path / "out"
    )
    model = dpfed.load(tmp_path / "out/model")
    x = np.random.default_rng(0).normal(size=(11, 4))
    np.savez(tmp_path / "new.npz", x=x, y=model.predict(x))
    tally = score_file(model, tmp_path / "new.npz", tmp_path / "scored.csv")
    assert (tally.records, tally.accuracy) == (11, 1.0)
    for source, why in (("none.csv", "there is no file"), ("new.csv", "takes arrays")):
        if source == "new.csv":
            write_table(tmp_path / source, 3)
        with pytest.raises(DataError, match=why):
            score_file(model, tmp_path / source, tmp_path / "scored.csv")
