# SPDX-License-Identifier: Apache-2.0
"""A bundle's files, as a stranger may have left them."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dpfed.bundle.folder import read_bounded, read_bundle
from dpfed.core.errors import DataError


def test_the_parameters_are_those_of_the_run(trained, bundle: Path) -> None:  # type: ignore[no-untyped-def]
    folder, result = trained
    description, tensors = read_bundle(bundle)
    assert torch.equal(result.model.layout.flatten(tensors), result.params)
    assert (
        description.sha256
        == hashlib.sha256((bundle / "model.safetensors").read_bytes()).hexdigest()
    )
    before = load_file(folder / "out/model.safetensors")
    assert all(torch.equal(before[name], tensors[name]) for name in before)


def rewrite(bundle: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Other parameters with a digest that fits."""
    save_file(tensors, bundle / "model.safetensors")
    told = json.loads((bundle / "model.json").read_bytes())
    told["sha256"] = hashlib.sha256((bundle / "model.safetensors").read_bytes()).hexdigest()
    (bundle / "model.json").write_text(json.dumps(told))


def test_parameters_that_are_not_those_listed_are_refused(bundle: Path) -> None:
    tensors = read_bundle(bundle)[1]
    for odd in (
        {**tensors, "more": torch.zeros(1)},
        {n: t for n, t in tensors.items() if n != "bias"},
        {**tensors, "bias": torch.zeros(9)},
        {**tensors, "bias": tensors["bias"].double()},
        {**tensors, "bias": tensors["bias"] * torch.nan},
    ):
        rewrite(bundle, odd)
        with pytest.raises(DataError, match="model"):
            read_bundle(bundle)


def test_another_bundles_parameters_are_refused(bundle: Path) -> None:
    tensors = read_bundle(bundle)[1]
    save_file({n: t + 1 for n, t in tensors.items()}, bundle / "model.safetensors")
    with pytest.raises(DataError, match="SHA-256"):
        read_bundle(bundle)


def test_a_pickle_in_the_parameters_place_is_not_loaded(bundle: Path) -> None:
    torch.save({"weight": torch.zeros(2)}, bundle / "model.safetensors")
    told = json.loads((bundle / "model.json").read_bytes())
    (bundle / "model.json").write_text(json.dumps({**told, "sha256": ""}))
    with pytest.raises(DataError, match=r"is not a \.safetensors file"):
        read_bundle(bundle)


def test_a_pipe_is_not_waited_for_and_a_large_file_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="must be a file"):
        read_bounded(tmp_path / "pipe", 10)
    (tmp_path / "long").write_bytes(b"x" * 11)
    with pytest.raises(DataError, match="at most 10 bytes"):
        read_bounded(tmp_path / "long", 10)


def test_a_sparse_file_of_parameters_takes_no_memory(bundle: Path) -> None:
    with (bundle / "model.safetensors").open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(DataError, match="must have at most"):
        read_bundle(bundle)


def test_the_folder_above_is_pointed_out(bundle: Path) -> None:
    with pytest.raises(DataError, match=r"give '.*/model'"):
        read_bundle(bundle.parent)
    with pytest.raises(DataError, match="is not a folder"):
        read_bundle(bundle / "model.json")
