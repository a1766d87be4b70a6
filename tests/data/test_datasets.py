# SPDX-License-Identifier: Apache-2.0
import gzip
import sys
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pyarrow import parquet

from dpfed.data.datasets import (
    Dataset,
    Records,
    binary,
    center,
    fill_missing,
    find,
    holdout,
    load,
    scale_rows,
    synthetic,
)
from dpfed.errors import DataError


def records_of(size: int = 10, groups: int | None = None) -> Records:
    ids = None if groups is None else torch.arange(size) % groups
    return Records(torch.arange(2.0 * size).view(size, 2), torch.arange(size) % 3, ids)


# ------------------------------------------------------------------------------------------ Records


def test_take_keeps_rows_together() -> None:
    part = records_of(10, groups=4).take(torch.tensor([7, 2]))
    assert len(part) == 2
    assert part.x.tolist() == [[14, 15], [4, 5]]
    assert part.y.tolist() == [1, 2]
    assert part.groups is not None
    assert part.groups.tolist() == [3, 2]
    assert records_of().take(torch.tensor([0])).groups is None


def test_records_refuse_unequal_lengths_and_wrong_types() -> None:
    with pytest.raises(DataError, match=r"lengths \[2, 3\]"):
        Records(torch.zeros(3, 1), torch.zeros(2))
    with pytest.raises(DataError, match="lengths"):
        Records(torch.zeros(3, 1), torch.zeros(3), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(DataError, match="x must be float32"):
        Records(torch.zeros(3, 1, dtype=torch.float64), torch.zeros(3))
    with pytest.raises(DataError, match="int32"):
        Records(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int32))


# -------------------------------------------------------------------------------------------- paths


def test_paths_are_looked_up_in_order(tmp_path, monkeypatch) -> None:
    for folder in ("here", "root", "environment"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("DPFED_DATA", str(tmp_path / "environment"))
    (tmp_path / "environment" / "a.npz").touch()
    assert find("a.npz", tmp_path / "root") == tmp_path / "environment" / "a.npz"
    (tmp_path / "root" / "a.npz").touch()
    assert find("a.npz", tmp_path / "root") == tmp_path / "root" / "a.npz"
    (tmp_path / "here" / "a.npz").touch()
    assert find("a.npz", tmp_path / "root").resolve() == tmp_path / "here" / "a.npz"


def test_the_error_names_all_places(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("DPFED_DATA", str(tmp_path / "env"))
    with pytest.raises(DataError) as caught:
        load("no/such.npz", root=tmp_path / "root")
    text = str(caught.value)
    for place in ("no/such.npz", str(tmp_path / "root/no/such.npz"), str(tmp_path / "env/no")):
        assert place in text
    monkeypatch.delenv("DPFED_DATA")
    with pytest.raises(DataError, match="set DPFED_DATA"):
        load("no/such.npz")


def test_unknown_types_and_options_are_refused(tmp_path) -> None:
    (tmp_path / "a.xlsx").touch()
    with pytest.raises(DataError, match=r"use \.csv, \.npz, \.parquet"):
        load(tmp_path / "a.xlsx")
    with pytest.raises(DataError, match="takes no option separation"):
        load(tmp_path / "a.xlsx", separation=2)


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


def test_a_split_that_cuts_groups_can_be_left_out(shared_data) -> None:
    # The split in this file has all 30 subjects in both parts: useless for group privacy.
    file = shared_data / "tables" / "har.npz"
    data = load(file)
    assert data.test is not None
    assert torch.equal(data.train.groups.unique(), data.test.groups.unique())
    whole = load(file, split=None)
    assert whole.test is None
    kept, held = holdout(whole.train, 0.3, 0, by_group=True)
    assert len(kept) + len(held) == 10_299
    assert not set(kept.groups.tolist()) & set(held.groups.tolist())


def test_npz_arrays_by_name(tmp_path) -> None:
    path = tmp_path / "d.npz"
    np.savez(path, features=np.ones((2, 3)), target=[0.5, 1.5], site=["b", "a"])
    data = load(path, x="features", y="target", groups="site")
    assert data.classes is None
    assert data.train.y.tolist() == [0.5, 1.5]
    assert data.train.groups is not None
    assert data.train.groups.tolist() == [1, 0]
    with pytest.raises(DataError, match="has no 'x', only features, target, site"):
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
        ({"x": np.ones((2, 1)), "y": [-2, 1]}, {}, "smallest label is -2"),
        ({"x": np.ones((2, 1)), "y": [0, 3]}, {"classes": 3}, "largest label is 3"),
        ({"x": np.ones((2, 1)), "y": [0.5, 1]}, {"classes": 3}, "whole numbers"),
        ({"x": np.ones((2, 1)), "y": [0.5, np.nan]}, {}, "1 targets are missing"),
        ({"x": np.ones((2, 1)), "y": np.ones((2, 2))}, {}, "one number per record"),
        ({"x": np.ones((3, 1)), "y": [0, 1]}, {}, "lengths"),
        ({"x": np.ones((2, 1)), "y": [0, 1], "split": [0, 2]}, {}, "split says '2'"),
        ({"x": np.ones((2, 1)), "y": [0, 1], "split": [0]}, {}, "split has 1 entries"),
        ({"x": np.ones((2, 1)), "y": [0, 1], "split": [1, 1]}, {}, "no training part"),
        ({"x": np.ones((0, 1)), "y": np.ones(0, int)}, {}, "no training records"),
        ({"x": np.array([["a"], ["b"]]), "y": [0, 1]}, {}, "must be numbers"),
        ({"x": np.ones((2, 1)), "y": [0, 1]}, {"x": ["a", "b"]}, "one feature array"),
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
    with pytest.raises(DataError, match="holds string"):
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
    with pytest.raises(DataError, match="2 sizes: give size"):
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


def idx(array: np.ndarray) -> bytes:
    sizes = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


@pytest.mark.parametrize("packed", [True, False])
def test_idx_files(tmp_path, packed: bool) -> None:
    images = np.arange(3 * 4 * 5).reshape(3, 4, 5)
    for stem in ("train", "t10k"):
        for kind, array in (("images-idx3", images), ("labels-idx1", np.array([1, 0, 2]))):
            name = f"{stem}-{kind}-ubyte"
            if packed:
                (tmp_path / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
            else:
                (tmp_path / name).write_bytes(idx(array))
    data = load(tmp_path)
    expected = torch.arange(60.0).view(3, 1, 4, 5) / 255
    torch.testing.assert_close(data.train.x, expected)
    assert data.test is not None
    assert torch.equal(data.test.y, torch.tensor([1, 0, 2]))
    assert data.classes == 3


def test_idx_files_refuse_damage_and_doubt(tmp_path) -> None:
    images, labels = idx(np.zeros((2, 3, 3))), idx(np.zeros(2))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(labels)
    path = tmp_path / "train-images-idx3-ubyte"
    for damaged in (b"", b"\0\0\x08", images[:-1], images + b"\0", b"\0\0\x0d" + images[3:]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="no whole IDX file"):
            load(tmp_path)
    path.write_bytes(images)
    assert len(load(tmp_path).train) == 2
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
    assert len(load(tmp_path).train) == 2, "packed and unpacked side by side are one file"
    path.unlink()
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(images)[:-12])
    with pytest.raises(DataError, match="cannot be unpacked"):
        load(tmp_path)
    for name in ("digits", "letters"):
        (tmp_path / f"emnist-{name}-train-images-idx3-ubyte").write_bytes(images)
    with pytest.raises(DataError, match="all look like train images"):
        load(tmp_path)


# ------------------------------------------------------------------------------------- Hugging Face


class Split(dict):
    @property
    def column_names(self) -> list[str]:
        return list(self)


def test_without_the_hub_extra_the_error_names_it(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"'hf:mnist' needs.*pip install 'dpfed\[hub\]'"):
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
    with pytest.raises(DataError, match="has no 'label' or 'y', only image, character, writer_id"):
        load("hf:flwrlabs/femnist")


# ---------------------------------------------------------------------------------------- synthetic


def test_synthetic_is_decided_by_its_seed() -> None:
    first, again, other = (load("synthetic", records=100, seed=s) for s in (1, 1, 2))
    assert torch.equal(first.train.x, again.train.x)
    assert not torch.equal(first.train.x, other.train.x)
    assert first.test is not None
    assert (len(first.train), len(first.test)) == (100, 25)
    assert first.train.x.shape == (100, 20)
    assert (first.train.x.dtype, first.train.y.dtype) == (torch.float32, torch.int64)
    assert "seed 1" in first.source


def test_synthetic_is_learnable_but_not_trivial() -> None:
    data = synthetic()
    assert data.test is not None
    assert data.classes == 10
    centres = torch.stack([data.train.x[data.train.y == k].mean(0) for k in range(10)])
    guess = torch.cdist(data.test.x, centres).argmin(dim=1)
    accuracy = (guess == data.test.y).double().mean().item()
    assert 0.8 < accuracy < 0.95


def test_synthetic_options() -> None:
    data = load("synthetic", records=30, features=4, classes=3, separation=9.0, name="toy")
    assert data.train.x.shape == (30, 4)
    assert data.train.y.unique().tolist() == [0, 1, 2]
    assert data.source == "toy"
    with pytest.raises(DataError, match="no option sepration: it takes features, records, seed"):
        load("synthetic", sepration=1)
    with pytest.raises(DataError, match="records is 0"):
        load("synthetic", records=0)


# -------------------------------------------------------------------------------------- preparation


def test_fill_missing_uses_the_constant_only() -> None:
    x = torch.tensor([[1.0, torch.nan], [torch.nan, 4.0]])
    records = Records(x, torch.zeros(2))
    assert fill_missing(records).x.tolist() == [[1, 0], [0, 4]]
    assert fill_missing(records, -1).x.tolist() == [[1, -1], [-1, 4]]
    assert records.x.isnan().sum() == 2, "the records given are left alone"
    with pytest.raises(DataError, match="finite"):
        fill_missing(records, torch.nan)


def test_binary() -> None:
    part = Records(torch.zeros(3, 1), torch.tensor([0, 4, 1]))
    made = binary(Dataset(part, part, 5, "s"))
    assert made.test is not None
    assert made.train.y.tolist() == made.test.y.tolist() == [0, 1, 1]
    assert made.classes == 2
    assert made.source == "s (class 1: label > 0)"


@settings(deadline=None, max_examples=40)
@given(
    size=st.integers(8, 200),
    groups=st.integers(2, 8),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**32 - 1),
    by_group=st.booleans(),
)
def test_holdout_divides(size, groups, fraction, seed, by_group) -> None:
    records = records_of(size, groups)
    kept, held = holdout(records, fraction, seed, by_group)
    assert sorted(kept.x[:, 0].tolist() + held.x[:, 0].tolist()) == records.x[:, 0].tolist()
    assert len(kept) > 0
    assert len(held) > 0
    if by_group:
        assert not set(kept.groups.tolist()) & set(held.groups.tolist())
    slack = -(-size // groups) if by_group else 1
    assert abs(len(held) - fraction * size) <= slack
    again = holdout(records, fraction, seed, by_group)[1]
    assert torch.equal(held.x, again.x)


def test_holdout_refuses_what_it_cannot_do() -> None:
    for fraction in (0.0, 1.0, -0.1):
        with pytest.raises(DataError, match="between 0 and 1"):
            holdout(records_of(), fraction, 0)
    with pytest.raises(DataError, match="have none"):
        holdout(records_of(), 0.5, 0, by_group=True)
    with pytest.raises(DataError, match="1 group or record"):
        holdout(records_of(10, groups=1), 0.5, 0, by_group=True)


def test_center_uses_the_public_mean_only(tmp_path) -> None:
    private = records_of(4)
    public = Records(torch.tensor([[1.0, 10.0], [3.0, torch.nan]]), torch.zeros(2))
    made = center(Dataset(private, private, 3, "s"), public)
    assert torch.equal(made.train.x, private.x - torch.tensor([2.0, 10.0]))
    assert made.test is not None
    assert torch.equal(made.test.x, made.train.x)
    assert made.source == "s, centred by the mean of public records"
    np.savez(tmp_path / "p.npz", x=public.x.numpy(), y=[0, 0])
    by_path = center(Dataset(private, None, 3, "s"), "p.npz", root=tmp_path)
    assert torch.equal(by_path.train.x, made.train.x)
    assert by_path.test is None
    assert by_path.source.endswith("p.npz")


def test_center_refuses_another_shape() -> None:
    other = Records(torch.zeros(2, 5), torch.zeros(2))
    with pytest.raises(DataError, match=r"shape \(5,\), private ones \(2,\)"):
        center(Dataset(records_of(), None, 3, "s"), other)


@settings(deadline=None, max_examples=50)
@given(radius=st.floats(1e-3, 1e3), scale=st.floats(0, 1e15), seed=st.integers(0, 1000))
def test_scaled_rows_stay_in_the_ball(radius: float, scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.standard_normal((20, 3, 4)) * scale).float()
    x[0] = 0
    made = scale_rows(Records(x, torch.zeros(20)), radius)
    assert made.x.shape == x.shape
    norms = made.x.flatten(1).double().norm(dim=1)
    assert norms.max().item() <= radius
    inside = x.flatten(1).double().norm(dim=1) <= radius * (1 - 1e-6)
    assert torch.equal(made.x[inside], x[inside]), "short rows are left as they are"
    assert bool((norms[~inside] >= radius * (1 - 1e-5)).all())


def test_scale_rows_maps_each_record_on_its_own() -> None:
    records = records_of(6)
    alone = torch.cat([scale_rows(records.take(torch.tensor([i])), 2.0).x for i in range(6)])
    torch.testing.assert_close(scale_rows(records, 2.0).x, alone)


def test_scale_rows_refuses_missing_values_and_bad_radii() -> None:
    for bad in (torch.nan, torch.inf):
        with pytest.raises(DataError, match="fill_missing first"):
            scale_rows(Records(torch.full((1, 2), bad), torch.zeros(1)), 1.0)
    for radius in (0.0, -1.0, torch.inf, torch.nan):
        with pytest.raises(DataError, match="radius"):
            scale_rows(records_of(), radius)


# --------------------------------------------------------------------------------------- real files


@pytest.mark.parametrize(
    ("file", "train", "test", "classes", "groups"),
    [
        ("features/cifar10.npz", (50_000, 64), (10_000, 64), 10, 0),
        ("features/malaria.npz", (27_558, 64), None, 2, 200),
        ("features/covid-radiography.npz", (21_165, 64), None, 4, 8),
        ("pneumoniamnist.npz", (5232, 1, 28, 28), (624, 1, 28, 28), 2, 0),
        ("tables/heart-disease.npz", (920, 13), None, 5, 4),
        ("tables/har.npz", (7715, 9, 128), (2584, 9, 128), 6, 30),
        ("tables/a9a.npz", (32_561, 123), (16_281, 123), 2, 0),
        ("tables/credit-default.npz", (30_000, 23), None, 2, 0),
    ],
)
def test_real_files(shared_data, file, train, test, classes, groups) -> None:
    data = load(file, root=shared_data)
    assert tuple(data.train.x.shape) == train
    assert (None if data.test is None else tuple(data.test.x.shape)) == test
    assert data.classes == classes
    assert groups == (0 if data.train.groups is None else len(data.train.groups.unique()))
    assert set(data.train.y.unique().tolist()) == set(range(classes))


def test_missing_values_of_heart_disease(shared_data) -> None:
    records = load("tables/heart-disease.npz", root=shared_data).train
    missing = records.x.isnan()
    assert missing.any()
    filled = fill_missing(records, -1.0)
    assert torch.equal(filled.x[~missing], records.x[~missing])
    assert bool((filled.x[missing] == -1).all())


def test_a_survival_table(shared_data) -> None:
    columns = ["age_at_index", "primary_diagnosis_Lobular carcinoma, NOS"]
    data = load("tables/tcga-brca.csv", root=shared_data, x=columns, y="T", groups="pid")
    assert tuple(data.train.x.shape) == (1096, 2)
    assert data.classes is None
    assert data.train.y.dtype == torch.float32


def test_public_centring_of_real_features(shared_data) -> None:
    data = load("features/cifar10.npz", root=shared_data)
    centred = center(data, shared_data / "features" / "cifar100-test.npz")
    assert centred.train.x.norm(dim=1).mean() < data.train.x.norm(dim=1).mean()
    assert "cifar100-test.npz" in centred.source


def test_real_idx_files(fashion_mnist) -> None:
    data = load(fashion_mnist, name="Fashion-MNIST (Xiao et al., 2017)")
    assert data.train.x.shape == (60_000, 1, 28, 28)
    assert data.train.y.bincount().tolist() == [6000] * 10
    assert 0 <= data.train.x.min() < data.train.x.max() == 1
