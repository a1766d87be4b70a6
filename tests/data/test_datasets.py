# SPDX-License-Identifier: Apache-2.0
"""Records, finding and loading, synthetic data, and what may be done to features."""

import os
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfed.core.errors import DataError
from dpfed.data.datasets import (
    Dataset,
    Records,
    binary,
    center,
    fill_missing,
    holdout,
    load,
    scale_rows,
    set_norms,
    synthetic,
)
from dpfed.data.places import find_file


def records_of(size: int = 10, groups: int | None = None) -> Records:
    ids = None if groups is None else torch.arange(size) % groups
    return Records(torch.arange(2.0 * size).view(size, 2), torch.arange(size) % 3, ids)


def plain(x: torch.Tensor) -> Records:
    return Records(x, torch.zeros(len(x)))


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


def test_map_changes_both_parts_and_keeps_the_rest() -> None:
    def doubled(records: Records) -> Records:
        return Records(2 * records.x, records.y, records.groups)

    truth = torch.tensor([3.0])
    whole = Dataset(records_of(4, groups=2), records_of(3), 3, "s", truth)
    made = whole.map(doubled)
    assert torch.equal(made.train.x, 2 * whole.train.x)
    assert made.train.groups is whole.train.groups
    assert made.test is not None
    assert made.test.x.tolist() == [[0, 2], [4, 6], [8, 10]]
    assert (made.classes, made.source, made.truth) == (3, "s", truth)
    assert whole.train.x[1, 0] == 2
    assert Dataset(records_of(), None, 3, "s").map(doubled).test is None


# -------------------------------------------------------------------------------------------- paths


def test_paths_are_looked_up_in_order(tmp_path, monkeypatch) -> None:
    for folder in ("here", "root", "environment"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("DPFED_DATA", str(tmp_path / "environment"))
    (tmp_path / "environment" / "a.npz").touch()
    assert find_file("a.npz", tmp_path / "root") == tmp_path / "environment" / "a.npz"
    (tmp_path / "root" / "a.npz").touch()
    assert find_file("a.npz", tmp_path / "root") == tmp_path / "root" / "a.npz"
    (tmp_path / "here" / "a.npz").touch()
    assert find_file("a.npz", tmp_path / "root").resolve() == tmp_path / "here" / "a.npz"


def test_the_environment_names_several_places(tmp_path, monkeypatch) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    places = ["", str(tmp_path / "one"), str(tmp_path / "two"), ""]
    monkeypatch.setenv("DPFED_DATA", os.pathsep.join(places))
    (tmp_path / "two" / "a.npz").touch()
    assert find_file("a.npz") == tmp_path / "two" / "a.npz"
    (tmp_path / "one" / "a.npz").touch()
    assert find_file("a.npz") == tmp_path / "one" / "a.npz", "the first one wins"
    with pytest.raises(DataError) as caught:
        find_file("b.npz")
    assert all(str(tmp_path / folder / "b.npz") in str(caught.value) for folder in ("one", "two"))
    monkeypatch.setenv("DPFED_DATA", "")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    last = re.escape(str(tmp_path / "dpfed" / "b.npz"))
    with pytest.raises(DataError, match=rf"not found at b\.npz, {last}; set"):
        find_file("b.npz")


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
    with pytest.raises(DataError, match="no option sepration"):
        load("synthetic", sepration=1)
    with pytest.raises(DataError, match=r"records.*least 1, got 0"):
        load("synthetic", records=0)


# -------------------------------------------------------------------------------------- preparation


def test_fill_missing_uses_the_constant_only() -> None:
    x = torch.tensor([[1.0, torch.nan], [torch.nan, 4.0]])
    records = Records(x, torch.zeros(2))
    assert fill_missing(records).x.tolist() == [[1, 0], [0, 4]]
    assert fill_missing(records, -1).x.tolist() == [[1, -1], [-1, 4]]
    assert records.x.isnan().sum() == 2, "the records given are left alone"
    with pytest.raises(DataError, match=r"fill_missing must be a finite.*; 0 is usual"):
        fill_missing(records, torch.nan)


def test_binary() -> None:
    part = Records(torch.zeros(3, 1), torch.tensor([0, 4, 1]))
    made = binary(Dataset(part, part, 5, "s"))
    assert made.test is not None
    assert made.train.y.tolist() == made.test.y.tolist() == [0, 1, 1]
    assert made.classes == 2
    assert made.source == "s (class 1: label > 0)"


def test_classes_of_a_threshold_were_not_made_from_the_truth_of_the_numbers() -> None:
    part = records_of()
    assert binary(Dataset(part, None, None, "s", torch.ones(3))).truth is None


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
        with pytest.raises(DataError, match=r"above 0 and below 1, got .*; 0\.2 is usual"):
            holdout(records_of(), fraction, 0)
    with pytest.raises(DataError, match="have none"):
        holdout(records_of(), 0.5, 0, by_group=True)
    with pytest.raises(DataError, match=r"groups.*least 2 to hold.*got 1"):
        holdout(records_of(10, groups=1), 0.5, 0, by_group=True)


def test_center_uses_the_public_mean_only(tmp_path) -> None:
    private = records_of(4)
    public = Records(torch.tensor([[1.0, 10.0], [3.0, torch.nan]]), torch.zeros(2))
    made = center(Dataset(private, private, 3, "s"), public)
    assert torch.equal(made.train.x, private.x - torch.tensor([2.0, 10.0]))
    assert made.test is not None
    assert torch.equal(made.test.x, made.train.x)
    assert made.source == "s, centred by the mean of public records"
    assert made.spread == pytest.approx(1.0)  # a missing value has no distance
    np.savez(tmp_path / "p.npz", x=public.x.numpy(), y=[0, 0])
    by_path = center(Dataset(private, None, 3, "s"), "p.npz", root=tmp_path)
    assert torch.equal(by_path.train.x, made.train.x)
    assert by_path.test is None
    assert by_path.source.endswith("p.npz")


def test_center_refuses_another_shape() -> None:
    other = Records(torch.zeros(2, 5), torch.zeros(2))
    with pytest.raises(DataError, match=r"shape \(2,\), got \(5,\); use the same"):
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


def test_every_row_gets_the_norm_and_keeps_its_direction() -> None:
    records = plain(torch.tensor([[3.0, 4.0], [30.0, -40.0], [0.0, 0.0]]))
    made = set_norms(records, 10.0)
    torch.testing.assert_close(made.x, torch.tensor([[6.0, 8.0], [6.0, -8.0], [0.0, 0.0]]))
    alone = set_norms(plain(records.x[1:2]), 10.0)
    assert torch.equal(alone.x, made.x[1:2]), "each record on its own"
    with pytest.raises(DataError, match=r"norm must be .*, got 0"):
        set_norms(records, 0.0)
    with pytest.raises(DataError, match=r"features.*got 1"):
        set_norms(plain(torch.tensor([[1.0, torch.nan]])), 1.0)


def test_what_comes_with_the_package_is_found_without_a_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPFED_DATA", raising=False)
    data = load("dpfed:fashion-mnist")
    assert (len(data.train), len(data.test), data.classes) == (60_000, 10_000, 10)
    for part, each in ((data.train, 6_000), (data.test, 1_000)):
        assert torch.bincount(part.y).tolist() == [each] * 10
        # What shipped/README.md says of the numbers.
        assert part.x.shape[1] == 64
        assert -8 <= float(part.x.min()) < float(part.x.max()) <= 7.9375
        assert torch.equal(part.x * 16, (part.x * 16).round())
        norms = part.x.norm(dim=1)
        assert 9.0 < float(norms.min()) < float(norms.max()) < 10.5
    with pytest.raises(DataError, match=r"data\.source must be dpfed:fashion-mnist, got .*x'"):
        load("dpfed:x")


def test_scale_rows_refuses_missing_values_and_bad_radii() -> None:
    for bad in (torch.nan, torch.inf):
        with pytest.raises(DataError, match="fill_missing first"):
            scale_rows(Records(torch.full((1, 2), bad), torch.zeros(1)), 1.0)
    for radius in (0.0, -1.0, torch.inf, torch.nan):
        with pytest.raises(DataError, match=r"radius.*above 0, got.*; 1 is usual"):
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


def test_public_centring_of_real_features(shared_data) -> None:
    data = load("features/cifar10.npz", root=shared_data)
    centred = center(data, shared_data / "features" / "cifar100-test.npz")
    assert centred.train.x.norm(dim=1).mean() < data.train.x.norm(dim=1).mean()
    assert "cifar100-test.npz" in centred.source


def test_arrays_are_refused_with_the_way_out() -> None:
    with pytest.raises(DataError, match=r"x.*give torch\.as_tensor\(x\)"):
        Records(np.zeros((3, 2), "f4"), torch.zeros(3, dtype=torch.int64))  # type: ignore[arg-type]
