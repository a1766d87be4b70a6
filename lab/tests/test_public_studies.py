# SPDX-License-Identifier: Apache-2.0
"""Studies that anyone can run: without a network, from images, or on features of their own."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from lab.tests.studies import STUDY, write

from dpfed.core.errors import DataError
from dpfed.data import backbones
from dpfed.recipes.records import load_dataset
from dpfed.recipes.schema import parse
from dpfed_lab import study as studies
from dpfed_lab.published import read_paper
from dpfed_lab.reproduce import reproduce
from dpfed_lab.sweep import check_settings, stored_settings

PUBLIC = ("sofim-cifar10-public", "sofim-fashion-public")
PAPERS = {
    "sofim-cifar10-resnet20": (64, 10),
    "sofim-cifar10-vgg16": (512, 10),
    "sofim-pathmnist-resnet20": (64, 9),
    "sofim-pathmnist-vgg16": (512, 9),
}
FIRST, *OTHERS = PAPERS
GUARD = """
import socket, sys
def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"):
        raise OSError(f"this command asked for the network: {event} {arguments}")
sys.addaudithook(refuse)
from dpfed.cli.main import main
main()
"""


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_study_has_every_setting_and_equal_searches(name: str) -> None:
    study = studies.load_study(name)
    settings = stored_settings(name, study)
    check_settings(study, settings, name)
    searched = [method.label for method in study.methods if method.coarse]
    assert len(searched) == 6
    assert {
        settings[f"epsilon {e} | {label}"]["tried"]
        for e in ("0.5", "1", "5", "10")
        for label in searched
    } == {12}


@pytest.mark.long  # CI has a study on made-up features, below
def test_fashion_runs_without_a_network_and_without_a_data_folder(tmp_path: Path) -> None:
    """As a newcomer does it: an empty folder, an empty home, no DPFED_DATA."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DPFED_")}
    environment |= {"HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    command = ["reproduce", "sofim-fashion-public", "--quick", "--workers", "1", "--out", "out"]
    done = subprocess.run(
        [sys.executable, "-c", GUARD, *command],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "out" / "tables" / "final.md").read_text(encoding="utf-8")
    labels = [method.label for method in studies.load_study("sofim-fashion-public").methods]
    assert len(labels) == 8
    assert all(label in page for label in labels)
    assert (tmp_path / "out" / "report.html").exists()
    assert not (tmp_path / "home" / ".cache" / "dpfed").exists(), "no features are made"


# ----------------------------------------------------------------------- from images by one command


@pytest.fixture
def images(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    sizes = {"train": 60, "test": 12}
    arrays = {f"x_{p}": rng.integers(0, 256, (n, 8, 8), dtype=np.uint8) for p, n in sizes.items()}
    labels = {f"y_{part}": np.arange(n) % 3 for part, n in sizes.items()}
    np.savez(tmp_path / "images.npz", **arrays, **labels)
    torch.manual_seed(0)
    state = backbones.resnet(14).state_dict()
    kept = {k: v.numpy() for k, v in state.items() if not k.endswith("num_batches_tracked")}
    np.savez(tmp_path / "w.npz", **kept)
    return tmp_path / "images.npz"


def small(folder: Path, images: Path) -> Path:
    data = {
        "source": str(images),
        "backbone": "resnet14-cifar100",
        "backbone_weights": str(folder / "w.npz"),
        "backbone_size": 8,
        "backbone_project": 5,
        "backbone_cache": str(folder / "cache"),
        "norm": 10.0,
        "partition": {"clients": 3},
    }
    method = {**STUDY["methods"][0], "label": "DP-FedGD", "coarse": {}, "fine": {}, "space": {}}
    return write(folder, base={**STUDY["base"], "data": data}, methods=[method])


def test_images_become_features_once_before_any_run(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    study = small(tmp_path, images)
    rows = reproduce(
        study,
        tmp_path / "out",
        workers=1,
        watch_images=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(12, 72), (44, 72), (72, 72)]
    assert len(rows) == 8
    assert len(list((tmp_path / "cache").iterdir())) == 2, "training and test images"
    monkeypatch.setattr(backbones, "_extract", lambda *_: pytest.fail("they are there"))
    recipe = parse({"data": studies.load_study(study).base["data"]})
    x = load_dataset(recipe, None).train.x
    assert x.shape == (60, 5)
    torch.testing.assert_close(x.norm(dim=1), torch.full((60,), 10.0))
    again = reproduce(study, tmp_path / "again", workers=1)
    assert [row["accuracy"] for row in again] == [row["accuracy"] for row in rows]


def test_missing_images_and_weights_are_said_before_a_run(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPFED_DATA", str(tmp_path / "data"))
    with pytest.raises(DataError, match="fetch it by 'dpfed data get cifar10'"):
        reproduce("sofim-cifar10-public", tmp_path / "out", workers=1)
    (tmp_path / "data" / "images").mkdir(parents=True)
    images.rename(tmp_path / "data" / "images" / "cifar10.npz")
    monkeypatch.setattr(backbones, "_LITE0_PACKAGE", "no_such_package")
    with pytest.raises(DataError, match=r"install 'dpfed\[features\]'"):
        reproduce("sofim-cifar10-public", tmp_path / "out", workers=1)
    assert not (tmp_path / "out" / "runs.jsonl").exists()


# ----------------------------------------------------------------------------- the paper's own data


@pytest.mark.parametrize("name", PAPERS)
def test_a_study_of_the_papers_own_data_is_ready(name: str) -> None:
    study = studies.load_study(name)
    check_settings(study, stored_settings(name, study), name)
    printed = studies.path_of(name).with_name("paper.csv")
    read_paper(printed, study)  # refuses a method or a cell that the study lacks
    lines = printed.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + 4 * 9 * 7  # epsilon, methods, rounds


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [FIRST, *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)]
)
def test_a_study_of_the_papers_own_data_runs_on_made_up_features(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns, classes = PAPERS[name]
    rng = np.random.default_rng(0)
    centres = rng.random((classes, columns))
    arrays = {}
    for part, size in (("train", 1200), ("test", 300)):
        y = rng.integers(0, classes, size)
        noise = 0.1 * rng.random((size, columns))
        arrays |= {f"x_{part}": (centres[y] + noise).astype(np.float16), f"y_{part}": y}
    (tmp_path / "features").mkdir()
    file = str(studies.load_study(name).base["data"]["source"])
    np.savez(tmp_path / file, **arrays)
    monkeypatch.setenv("DPFED_DATA", str(tmp_path))
    rows = reproduce(name, tmp_path / "out", quick=True, workers=1)
    assert {row["method"] for row in rows} == {m.label for m in studies.load_study(name).methods}
    assert all(row["accuracy"] is not None for row in rows)
    kept = json.loads((tmp_path / "out" / "settings.json").read_text(encoding="utf-8"))
    assert all(each["lent"] == "sofim-cifar10" for each in kept.values())


@pytest.mark.long
@pytest.mark.parametrize("network", ["resnet20", "vgg16"])
def test_a_backbone_is_trained_and_read(
    network: str, tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps on made-up images; what is written is what dpfed.data.backbones reads."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (16, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", x_train=x, y_train=np.arange(16) % 4)
    out = tmp_path / "weights" / "w.npz"
    words = [
        network,
        "--images",
        str(tmp_path / "images.npz"),
        "--out",
        str(out),
        "--epochs",
        "1",
        "--batch",
        "8",
    ]
    monkeypatch.setattr(sys, "argv", ["train-backbone", *words])
    script = runpy.run_path(str(repository / "lab/scripts/train_backbone.py"), run_name="__main__")
    columns = {"resnet20": 64, "vgg16": 512}[network]
    pixels = torch.from_numpy(x).permute(0, 3, 1, 2) / 255
    made = backbones.features(f"{network}-cifar100", pixels, weights=out)
    assert made.shape == (16, columns)
    start = script["NETWORKS"][network]()
    trained = backbones.load_npz_weights(script["NETWORKS"][network](), out)
    assert not torch.equal(trained.fc.bias, start.fc.bias)  # type: ignore[union-attr,operator]
