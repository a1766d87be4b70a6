# SPDX-License-Identifier: Apache-2.0
"""A model that was loaded: it predicts as the run did, and as scikit-learn's estimators do."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dpfed
from dpfed.core.errors import DataError
from dpfed.data.datasets import load as load_data
from tests.helpers.bundles import SCHEMA, WORDS

Trained = tuple[Path, dpfed.Result]


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "ward.csv").open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["split"] == "test"]


def test_it_is_right_as_often_as_the_run_was(trained: Trained) -> None:
    folder, result = trained
    rows = rows_of(folder)
    model = dpfed.load(folder / "out/model")
    right = [p == row["outcome"] for p, row in zip(model.predict(rows), rows, strict=True)]
    assert len(rows) == 150
    assert np.float32(np.mean(right)) == np.float32(result.accuracy)


def test_every_form_of_a_table_gives_the_same(trained: Trained) -> None:
    pa = pytest.importorskip("pyarrow")
    folder, _ = trained
    rows, model = rows_of(folder)[:20], dpfed.load(folder / "out/model")
    by_rows = model.predict_proba(rows)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    assert np.array_equal(model.predict_proba(columns), by_rows)
    assert np.array_equal(model.predict_proba(pa.table(columns)), by_rows)
    again = dict(reversed(columns.items()))
    assert np.array_equal(model.predict_proba(again), by_rows), "columns are taken by name"
    assert np.allclose(by_rows.sum(axis=1), 1)


def test_a_record_depends_on_no_other(trained: Trained) -> None:
    folder, _ = trained
    rows, model = rows_of(folder), dpfed.load(folder / "out/model")
    alone = [model.predict_proba([row])[0] for row in rows[:5]]
    assert np.array_equal(np.stack(alone), model.predict_proba(rows)[:5])


def test_a_column_that_is_missing_is_named(trained: Trained) -> None:
    model = dpfed.load(trained[0] / "out/model")
    with pytest.raises(DataError, match="column 'dose'"):
        model.predict([{"age": 1, "sex": "f"}])
    with pytest.raises(DataError, match=r"column 'age' \(and 2 more\)"):
        model.predict([{"Age": 1}])


def test_the_module_is_plain_torch(trained: Trained) -> None:
    folder, _ = trained
    model = dpfed.load(folder / "out/model")
    features = model.features(rows_of(folder))
    with torch.no_grad():
        scores = model.module(features)
    assert not model.module.training
    torch.testing.assert_close(scores, model.scores(features), rtol=1e-5, atol=1e-6)
    source = load_data(folder / "ward.csv", y="outcome", schema=SCHEMA, labels=WORDS, split="split")
    assert source.test is not None
    assert torch.equal(features, torch.where(source.test.x.isnan(), 0.0, source.test.x))


def test_the_guarantee_comes_along(trained: Trained) -> None:
    folder, result = trained
    model = dpfed.load(folder / "out/model")
    assert model.guarantee.sentence == result.guarantee.sentence
    assert model.guarantee.epsilon_at(1e-6) == result.guarantee.epsilon_at(1e-6)


def test_scikit_learn_takes_it_in_a_pipeline(trained: Trained) -> None:
    pytest.importorskip("sklearn")
    from sklearn.base import is_classifier
    from sklearn.metrics import get_scorer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import FunctionTransformer

    folder, result = trained
    rows, model = rows_of(folder), dpfed.load(folder / "out/model")
    whole = Pipeline([("same", FunctionTransformer()), ("model", model)])
    assert whole.predict(rows).tolist() == model.predict(rows).tolist()
    assert np.array_equal(whole.predict_proba(rows), model.predict_proba(rows))
    assert whole.classes_.tolist() == WORDS
    assert is_classifier(model)
    truth = [row["outcome"] for row in rows]
    assert get_scorer("accuracy")(model, rows, truth) == pytest.approx(result.accuracy)
    assert get_scorer("roc_auc")(model, rows, truth) > 0.5
    with pytest.raises(DataError, match="not fitted again"):
        whole.fit(rows, truth)


def test_arrays_have_the_models_own_shape(tmp_path: Path) -> None:
    made_up = {"records": 80, "features": 4, "classes": 3}
    data = {"options": made_up, "shift": 1.0, "scale": 2.0, "norm": 3.0, "fill_missing": 0.5}
    data["partition"] = {"clients": 2}
    dpfed.run(data=data, privacy={"epsilon": 5.0}, rounds=2, method="dp-fedgd", out=tmp_path)
    model = dpfed.load(tmp_path / "model")
    x = torch.randn(6, 4)
    torch.testing.assert_close(
        model.features(x).norm(dim=1), torch.full((6,), 3.0), rtol=1e-5, atol=1e-5
    )
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.n_features_in_ == 4
    assert np.array_equal(model.predict(x), model.predict(x.numpy()))
    with pytest.raises(DataError, match=r"shape \(4,\), got \(5,\)"):
        model.predict(torch.zeros(1, 5))
    with pytest.raises(AttributeError):
        _ = model.feature_names_in_


def test_a_value_that_nothing_fills_is_refused(tmp_path: Path) -> None:
    made_up = {"records": 80, "features": 4, "classes": 3}
    data: dict[str, Any] = {"options": made_up, "partition": {"clients": 2}}
    dpfed.run(data=data, privacy={"epsilon": 5.0}, rounds=2, method="dp-fedgd", out=tmp_path)
    model = dpfed.load(tmp_path / "model")
    with pytest.raises(DataError, match="the first at row 1"):
        model.predict([[0.0] * 4, [float("nan")] * 4])


def test_a_model_of_numbers_has_no_classes(tmp_path: Path) -> None:
    data = {"options": {"kind": "glm", "records": 90, "features": 3, "link": "poisson"}}
    data["partition"] = {"clients": 2}  # type: ignore[assignment]
    dpfed.run(
        data=data,
        model={"name": "poisson"},
        privacy={"epsilon": 5.0},
        rounds=2,
        method="dp-fedgd",
        evaluation={"kind": "off"},
        out=tmp_path,
    )
    model = dpfed.load(tmp_path / "model")
    assert (model.predict(np.zeros((2, 3))) > 0).all()
    assert not hasattr(model, "classes_")
    assert not hasattr(model, "predict_proba")
