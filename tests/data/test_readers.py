# SPDX-License-Identifier: Apache-2.0
"""Each format, read through ``load``: what it becomes, and what is refused."""

import sys
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet

from dpfed.core.errors import DataError, MissingExtra, first_sentence
from dpfed.data._checks import bad_option
from dpfed.data.datasets import load

# --------------------------------------------------------------------------------------------- .npz


def test_npz_with_parts(tmp_path) -> None:
    path = tmp_path / "d.npz"
    np.savez(
        path,
        x_train=np.ones((4, 3), np.float16),
        y_train=np.array([-1, 1, 1, -1], np.int8),
        x_test=np.zeros((2, 3)),
        y_test=np.array([1, 1], np.int8),
    )
    data = load(path)
    assert data.train.x.dtype == torch.float32
    assert data.train.y.tolist() == [0, 1, 1, 0]
    assert data.test is not None
    assert data.test.y.tolist() == [1, 1], "mapped by the labels of both parts"
    assert data.classes == 2
    assert data.source == f"{tmp_path.name}/d.npz"
    assert load(path, name="Adult (UCI)").source == "Adult (UCI)"


def test_bytes_with_a_zero_and_a_step_are_numbers(tmp_path) -> None:
    path = tmp_path / "d.npz"
    x = np.array([[0, 128], [255, 130]], dtype=np.uint8)
    np.savez(path, x_train=x, y_train=[0, 1], x_test=x[:1], y_test=[1], x_zero=128.0, x_step=0.5)
    data = load(path)
    assert data.train.x.tolist() == [[-64.0, 0.0], [63.5, 1.0]]
    assert data.test.x.tolist() == [[-64.0, 0.0]]
    np.savez(path, x=x, y=[0, 1], x_zero=128.0, x_step=0.5)
    assert load(path).train.x.tolist() == [[-64.0, 0.0], [63.5, 1.0]]
    np.savez(path, x=x, y=[0, 1], x_zero=128.0)
    assert load(path).train.x.tolist() == x.tolist(), "one of both says nothing"
    np.savez(path, x=x, y=[0, 1], x_zero=[128.0, 0.0], x_step=[[0.5]][0])
    assert load(path).train.x.tolist() == [[-64.0, 64.0], [63.5, 65.0]], "one for each feature"


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("x_zero", np.zeros((3, 1))),  # one for each record
        ("x_step", np.ones((1, 1, 1))),  # would add an axis before the records
        ("x_step", np.ones(3)),
        ("x_zero", np.array("none")),
        ("x_step", np.array(np.nan)),
    ],
)
def test_a_zero_or_step_of_another_shape_is_refused(tmp_path, name: str, given) -> None:
    path, x = tmp_path / "d.npz", np.full((3, 2), 77, dtype=np.uint8)
    np.savez(path, **{"x": x, "y": [0, 1, 1], "x_zero": 0.0, "x_step": 1.0, name: given})
    with pytest.raises(
        DataError, match=rf"{name} must be one finite number.*shape \(2,\)"
    ) as error:
        load(path)
    assert "77" not in str(error.value), "no value of a record is in the sentence"


def test_npz_with_groups_and_split(tmp_path) -> None:
    path = tmp_path / "d.npz"
    group = np.array([5, 5, 6, 7], np.uint8)
    np.savez(path, x=np.arange(8).reshape(4, 2), y=[0, 1, 2, 1], group=group, split=[0, 1, 0, 1])
    data = load(path)
    assert data.test is not None
    assert data.train.groups is not None
    assert data.train.y.tolist() == [0, 2]
    assert data.train.groups.tolist() == [5, 6]
    assert data.test.x.tolist() == [[2, 3], [6, 7]]
    assert data.classes == 3


def test_npz_arrays_by_name(tmp_path) -> None:
    path = tmp_path / "d.npz"
    np.savez(path, features=np.ones((2, 3)), target=[0.5, 1.5], site=["b", "a"])
    data = load(path, x="features", y="target", groups="site")
    assert data.classes is None
    assert data.train.y.tolist() == [0.5, 1.5]
    assert data.train.groups is not None
    assert data.train.groups.tolist() == [1, 0]
    with pytest.raises(DataError, match="'x', only"):
        load(path)
    with pytest.raises(DataError, match="has no 'hospital'"):
        load(path, x="features", y="target", groups="hospital")


@pytest.mark.parametrize("shape", [(6, 4, 5), (6, 4, 5, 1)])
def test_npz_images_are_scaled_and_channels_first(tmp_path, shape) -> None:
    path = tmp_path / "d.npz"
    np.savez(path, x=np.full(shape, 51, np.uint8), y=np.zeros(6, int))
    x = load(path).train.x
    assert x.shape == (6, 1, 4, 5)
    assert torch.equal(x, torch.full_like(x, 0.2))


def test_npz_bytes_in_two_axes_are_no_images(tmp_path) -> None:
    np.savez(tmp_path / "d.npz", x=np.full((2, 3), 7, np.uint8), y=[0, 1])
    assert load(tmp_path / "d.npz").train.x.max() == 7


def test_medmnist_names_and_validation(tmp_path) -> None:
    parts = {"train": 4, "val": 2, "test": 3}
    arrays = {f"{p}_images": np.zeros((m, 8, 8, 3), np.uint8) for p, m in parts.items()}
    arrays |= {f"{p}_labels": np.ones((m, 1), np.uint8) for p, m in parts.items()}
    np.savez(tmp_path / "d.npz", **arrays)
    data = load(tmp_path / "d.npz", classes=9)
    assert data.train.x.shape == (6, 3, 8, 8)
    assert data.test is not None
    assert len(data.test) == 3
    assert data.classes == 9
    assert data.source.endswith("(train + validation)")
    del arrays["test_images"]
    np.savez(tmp_path / "d.npz", **arrays)
    data = load(tmp_path / "d.npz")
    assert data.test is not None
    assert (len(data.train), len(data.test)) == (4, 2)
    assert data.source.endswith("(validation part as test)")


def test_npz_refuses_pickles_and_rubbish(tmp_path) -> None:
    np.savez(tmp_path / "o.npz", x=np.array([object()]), y=np.zeros(1))
    with pytest.raises(DataError, match="without pickle"):
        load(tmp_path / "o.npz")
    (tmp_path / "r.npz").write_bytes(b"rubbish")
    with pytest.raises(DataError, match="cannot be read"):
        load(tmp_path / "r.npz")
    np.savez(tmp_path / "g.npz", x=np.ones((50, 50)), y=np.zeros(50, int))
    (tmp_path / "g.npz").write_bytes((tmp_path / "g.npz").read_bytes()[:500])
    with pytest.raises(DataError, match="cannot be read"):
        load(tmp_path / "g.npz")


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ({"x": np.ones((2, 1)), "y": [-2, 1]}, {}, "labels must be at least 0, and 1 of 2 are not"),
        (
            {"x": np.ones((2, 1)), "y": [0, 3]},
            {"classes": 3},
            "below classes = 3, and 1 of 2 are not; raise classes",
        ),
        (
            {"x": np.ones((2, 1)), "y": [0.5, 1]},
            {"classes": 3},
            "whole numbers, and 1 of 2 are not; leave out",
        ),
        ({"x": np.ones((2, 1)), "y": [0.5, np.nan]}, {}, "1 targets are missing"),
        (
            {"x": np.ones((2, 1)), "y": np.ones((2, 2))},
            {},
            r"one value per record, got shape \(2, 2\)",
        ),
        ({"x": np.ones((3, 1)), "y": [0, 1]}, {}, "lengths"),
        (
            {"x": np.ones((2, 1)), "y": [0, 1], "split": [0, 2]},
            {},
            "split must be .*, and 1 of 2 are not; correct those",
        ),
        (
            {"x": np.ones((2, 1)), "y": [0, 1], "split": [0]},
            {},
            "one entry per record, got 1 for 2 records",
        ),
        (
            {"x": np.ones((2, 1)), "y": [0, 1], "split": [1, 1]},
            {},
            "no training part, only test; name",
        ),
        ({"x": np.ones((0, 1)), "y": np.ones(0, int)}, {}, "no training records; give"),
        ({"x": np.array([["a"], ["b"]]), "y": [0, 1]}, {}, "must be numbers, got <U1; encode"),
        (
            {"x": np.ones((2, 1)), "y": [0, 1]},
            {"x": ["a", "b"]},
            r"one feature array, got \['a', 'b'\]",
        ),
    ],
)
def test_npz_refuses_what_does_not_fit(tmp_path, arrays, options, message) -> None:
    np.savez(tmp_path / "d.npz", **arrays)
    with pytest.raises(DataError, match=message):
        load(tmp_path / "d.npz", **options)


def test_float_labels_are_classes_if_told_so(tmp_path) -> None:
    np.savez(tmp_path / "d.npz", x=np.ones((3, 1)), y=[0.0, 2.0, 1.0])
    data = load(tmp_path / "d.npz", classes=3)
    assert data.train.y.dtype == torch.int64
    assert data.classes == 3


# ------------------------------------------------------------------------------------------- tables


@pytest.fixture
def table():
    return pa.table(
        {
            "age": [50.0, None, 70.0],
            "smokes": [True, False, None],
            "name": ["Ann", "Bob", "Cy"],
            "count": [1, 2, 3],
            "label": ["sick", "well", "sick"],
            "site": ["x", "y", "x"],
        }
    )


def write(table, path):
    if path.suffix == ".parquet":
        parquet.write_table(table, path)
    else:
        from pyarrow import csv

        csv.write_csv(table, path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_tables(tmp_path, table, suffix: str) -> None:
    data = load(write(table, tmp_path / f"t{suffix}"), groups="site")
    expected = torch.tensor([[50, 1, 1], [torch.nan, 0, 2], [70, torch.nan, 3]])
    torch.testing.assert_close(data.train.x, expected, equal_nan=True)
    assert data.train.y.tolist() == [0, 1, 0]
    assert data.train.groups is not None
    assert data.train.groups.tolist() == [0, 1, 0]
    assert data.test is None
    assert data.classes == 2


def test_tables_with_named_columns_and_a_split(tmp_path, table) -> None:
    table = table.append_column("split", pa.array(["train", "train", "test"]))
    data = load(write(table, tmp_path / "t.csv"), x=["count", "age"], y="name")
    assert data.train.x[0].tolist() == [1, 50]
    assert data.train.y.tolist() == [0, 1]
    assert data.test is not None
    assert data.test.y.tolist() == [2]
    assert data.classes == 3
    assert load(tmp_path / "t.csv", x="count").train.x.tolist() == [[1], [2]]
    assert load(tmp_path / "t.csv", x="count", split=None).train.x.tolist() == [[1], [2], [3]]


def test_tables_refuse_what_does_not_fit(tmp_path, table) -> None:
    path = write(table, tmp_path / "t.parquet")
    with pytest.raises(DataError, match="lacks 1 of 3 values"):
        load(path, y="age")
    with pytest.raises(DataError, match="has no 'weight'"):
        load(path, x=["weight"])
    with pytest.raises(DataError, match="'name' must hold"):
        load(path, x="name")
    write(table.select(["name", "label"]), path)
    with pytest.raises(DataError, match="no numeric column"):
        load(path)
    path.write_bytes(b"rubbish")
    with pytest.raises(DataError, match="cannot be read as a table"):
        load(path)


# ------------------------------------------------------------------------------------------- images


def picture(path, colour, mode: str = "RGB", size=(5, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


def test_image_folder_with_parts(tmp_path) -> None:
    picture(tmp_path / "train" / "cat" / "1.png", (255, 0, 51))
    picture(tmp_path / "train" / "dog" / "1.png", (0, 0, 0))
    picture(tmp_path / "test" / "dog" / "1.png", (0, 255, 0))
    (tmp_path / "train" / "cat" / "notes.txt").touch()
    data = load(tmp_path)
    assert data.train.x.shape == (2, 3, 4, 5)
    torch.testing.assert_close(data.train.x[0, :, 0, 0], torch.tensor([1.0, 0.0, 0.2]))
    assert data.train.y.tolist() == [0, 1]
    assert data.test is not None
    assert data.test.y.tolist() == [1], "a class has the same number in both parts"
    assert data.classes == 2


def test_image_folder_of_classes_and_modes(tmp_path) -> None:
    picture(tmp_path / "a" / "1.png", 255, "L")
    picture(tmp_path / "b" / "1.png", 0, "L")
    data = load(tmp_path)
    assert data.train.x.shape == (2, 1, 4, 5)
    assert data.test is None
    picture(tmp_path / "b" / "2.png", (0, 0, 0))
    assert load(tmp_path).train.x.shape == (3, 3, 4, 5), "one colour image makes all RGB"


def test_image_folder_sizes(tmp_path) -> None:
    picture(tmp_path / "a" / "1.png", (1, 1, 1))
    picture(tmp_path / "a" / "2.png", (1, 1, 1), size=(9, 9))
    with pytest.raises(DataError, match="2 sizes; give size"):
        load(tmp_path)
    assert load(tmp_path, size=8).train.x.shape == (2, 3, 8, 8)


def test_image_folder_refuses_rubbish(tmp_path) -> None:
    with pytest.raises(DataError, match="has no images"):
        load(tmp_path)
    picture(tmp_path / "a" / "1.png", 60_000, "I;16")
    with pytest.raises(DataError, match="convert it to 8-bit"):
        load(tmp_path)
    (tmp_path / "a" / "1.png").write_bytes(b"rubbish")
    with pytest.raises(DataError, match=r"'1.png' cannot be read as an image"):
        load(tmp_path)


# ------------------------------------------------------------------------------------- Hugging Face


class Split(dict):
    @property
    def column_names(self) -> list[str]:
        return list(self)


def raising(failure: BaseException):
    def load_dataset(name, configuration):
        raise failure

    return load_dataset


def test_without_the_hub_extra_the_error_names_it(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match=r"'hf:mnist' needs.*pip install 'dpfed\[hub\]'"):
        load("hf:mnist")


def test_hub_images_labels_and_groups(monkeypatch) -> None:
    asked = []
    grey = [Image.new("L", (4, 4), v) for v in (0, 255)]
    split = Split(image=grey, character=[3, 1], writer_id=["f2", "f1"])

    def load_dataset(name, configuration):
        asked.append((name, configuration))
        return {"train": split}

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    data = load("hf:flwrlabs/femnist:plain", y="character", groups="writer_id")
    assert asked == [("flwrlabs/femnist", "plain")]
    assert data.train.x.shape == (2, 1, 4, 4)
    assert data.train.y.tolist() == [3, 1]
    assert data.train.groups is not None
    assert data.train.groups.tolist() == [1, 0]
    assert data.source == "hf:flwrlabs/femnist:plain"
    with pytest.raises(DataError, match=r"'label' or 'y', only.*character, writer_id"):
        load("hf:flwrlabs/femnist")


class UnknownName(Exception):
    """Of no class that is known in advance, as with the errors of requests and httpx."""


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (ConnectionError("Couldn't reach 'a/b' on the Hub."), "Couldn't reach 'a/b' on the Hub"),
        (UnknownName("\n404 Client Error.\n\nRepository Not Found."), "404 Client Error"),
        (ValueError("Config name is missing.\nPick one of: c, d"), "Config name is missing"),
        (TimeoutError(), ""),
    ],
)
def test_a_failure_of_the_hub_is_one_sentence_with_the_way_out(
    monkeypatch, failure, reason
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=raising(failure)))
    with pytest.raises(DataError) as caught:
        load("hf:a/b:c")
    named = type(failure).__name__ + (f": {reason}" if reason else "")
    assert str(caught.value) == (
        f"'hf:a/b:c' could not be loaded from the Hugging Face hub ({named}); check the name "
        "(hf:NAME or hf:NAME:CONFIG) and the network, or give a local path"
    )
    assert caught.value.__cause__ is failure


@pytest.mark.parametrize("failure", [MemoryError(), KeyboardInterrupt()])
def test_what_is_no_failure_of_the_hub_passes(monkeypatch, failure) -> None:
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=raising(failure)))
    with pytest.raises(type(failure)):
        load("hf:a/b")


# -------------------------------------------------------------------------- how errors are worded


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("Bad magic.\nTry again."), "ValueError: Bad magic"),
        (OSError(), "OSError"),
        (RuntimeError("Error(s) for ResNet:\n\tMissing: a.b, c.d."), None),
        (RuntimeError("key " * 1000), None),
    ],
)
def test_an_error_of_another_library_becomes_one_short_phrase(error, words) -> None:
    said = first_sentence(error)
    assert words is None or said == words
    assert "\n" not in said
    assert not said.endswith((".", ":")) or said.endswith(" ...")
    assert len(said) < 220


def test_a_bound_is_told_as_in_the_core() -> None:
    assert str(bad_option("fit", "'pad' or 'resize'", "crop")) == (
        "fit must be 'pad' or 'resize', got 'crop'; leave it out for the default"
    )


# --------------------------------------------------------------------------------------- real files


def test_a_survival_table(shared_data) -> None:
    columns = ["age_at_index", "primary_diagnosis_Lobular carcinoma, NOS"]
    data = load("tables/tcga-brca.csv", root=shared_data, x=columns, y="T", groups="pid")
    assert tuple(data.train.x.shape) == (1096, 2)
    assert data.classes is None
    assert data.train.y.dtype == torch.float32
