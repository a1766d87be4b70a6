# SPDX-License-Identifier: Apache-2.0
"""Features written once are those of the images, and are read like any other data set."""

import stat

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from dpfed.cli.main import app
from dpfed.core.errors import DataError
from dpfed.data import datasets, featurize
from dpfed.data.backbones import features, resnet
from dpfed.data.featurize import write_features
from dpfed.recipes.federation import federation
from dpfed.recipes.schema import parse


@pytest.fixture
def weights(tmp_path):
    torch.manual_seed(0)
    state = resnet(14).state_dict()
    kept = {k: v.numpy() for k, v in state.items() if not k.endswith("num_batches_tracked")}
    np.savez(tmp_path / "w.npz", **kept)
    return tmp_path / "w.npz"


@pytest.fixture
def images(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.integers(0, 256, (9, 12, 12), dtype=np.uint8),
        "y_train": np.arange(9) % 3,
        "group_train": np.arange(9) // 2,
        "x_test": rng.integers(0, 256, (4, 12, 12), dtype=np.uint8),
        "y_test": np.arange(4) % 3,
        "group_test": np.arange(4) + 9,
    }
    np.savez(tmp_path / "images.npz", **arrays)
    return tmp_path / "images.npz"


def test_a_recipe_fits_images_to_its_backbone(images, weights) -> None:
    whole = datasets.load(images)
    for fit in ("pad", "resize"):
        data = {
            "source": str(images),
            "backbone": "resnet14-cifar100",
            "backbone_size": 16,
            "backbone_fit": fit,
            "backbone_weights": str(weights),
            "partition": {"clients": 1},
        }
        made = federation(parse({"data": data}))
        again = features("resnet14-cifar100", whole.train.x, size=16, fit=fit, weights=weights)
        assert torch.equal(made.clients[0].x, again)
        assert made.test is not None
        assert made.test.x.shape == (4, 64)


def test_written_features_are_read_like_any_data_set(images, weights, tmp_path) -> None:
    out = tmp_path / "deep" / "features.npz"
    options = ["--backbone", "resnet14-cifar100", "--size", "16", "--fit", "resize", "--quiet"]
    command = ["features", str(images), *options, "--weights", str(weights), "--out", str(out)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "13 x 64 features" in done.output
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert [p.name for p in out.parent.iterdir()] == ["features.npz"], "no partial file is left"
    there, here = datasets.load(out), datasets.load(images)
    for part in ("train", "test"):
        stored, given = getattr(there, part), getattr(here, part)
        exact = features("resnet14-cifar100", given.x, size=16, fit="resize", weights=weights)
        torch.testing.assert_close(stored.x, exact, rtol=2**-11, atol=1e-7)
        assert torch.equal(stored.y, given.y)
        assert torch.equal(stored.groups, given.groups)
    with np.load(out) as archive:
        assert str(archive["about"]).endswith("images.npz, resnet14-cifar100 size 16 fit resize")


def test_what_cannot_be_written_is_refused(images, weights, tmp_path, monkeypatch) -> None:
    dataset = datasets.load(images)
    with pytest.raises(DataError, match=r"got 'x\.csv'; use x\.npz"):
        write_features(dataset, tmp_path / "x.csv", "resnet14-cifar100", weights=weights)
    monkeypatch.setattr(featurize, "features", lambda *_, **__: torch.full((9, 2), 1e5))
    with pytest.raises(DataError, match="most 65504 for float16, got 100000"):
        write_features(datasets.Dataset(dataset.train, None, 3, ""), tmp_path / "x.npz", "any")
    assert not (tmp_path / "x.npz").exists()
