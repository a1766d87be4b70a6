# SPDX-License-Identifier: Apache-2.0
"""What goes to the hub, byte by byte, against a stand-in for it: and that nothing else does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpfed.bundle.folder import read_bundle
from dpfed.bundle.hub import files_to_push, push
from dpfed.cli.main import app
from dpfed.core.errors import DataError, DpfedError, RecipeError
from tests.helpers import bundles
from tests.helpers.stand_in_hub import Hub, hub

pytest.importorskip("huggingface_hub")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", "hf_stand_in")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)  # read once
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield server


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder whose every other file has something that must stay."""
    folder = tmp_path_factory.mktemp("run")
    bundles.train(folder)
    out = folder / "out"
    (out / "model" / "ledger.sqlite").write_text("SECRET ledger")
    (out / "model" / "notes.txt").write_text("SECRET notes")
    return out


def test_only_three_files_go_and_they_load_again(
    finished: Path, stand_in: Hub, tmp_path: Path
) -> None:
    done = CliRunner().invoke(app, ["push", str(finished), "ward/model"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert f"{stand_in.url}/ward/model/commit/" in done.output
    kept = stand_in.kept
    assert kept.repos == {"ward/model": True}  # private
    assert kept.commits == 1
    assert kept.tokens == {"Bearer hf_stand_in"}
    assert set(kept.files) == {"model.json", "model.safetensors", "README.md"}
    assert kept.files["model.safetensors"] == (finished / "model/model.safetensors").read_bytes()
    for name, content in kept.files.items():
        (tmp_path / name).write_bytes(content)
        assert b"SECRET" not in content
        assert str(finished.parent).encode() not in content, name
    read_bundle(tmp_path)
    told = json.loads(kept.files["model.json"])
    assert not {"history", "rounds_of", "answered", "ledger"} & set(told)


def test_a_public_one_is_asked_for(finished: Path, stand_in: Hub) -> None:
    push(files_to_push(finished / "model"), "ward/open", public=True)
    assert stand_in.kept.repos == {"ward/open": False}


def test_a_dry_run_sends_nothing(finished: Path, stand_in: Hub) -> None:
    done = CliRunner().invoke(app, ["push", str(finished), "ward/model", "--dry-run"])
    assert "model.safetensors" in done.output
    assert stand_in.kept.asked == []


def test_what_the_hub_refuses_is_one_sentence(finished: Path, stand_in: Hub) -> None:
    stand_in.kept.refuse = 403
    with pytest.raises(DpfedError, match=r"'ward/model' was not pushed \(.*403.*hf auth login"):
        push(files_to_push(finished), "ward/model")
    with pytest.raises(DpfedError, match=r"'a/b/c' was not pushed"):
        push(files_to_push(finished), "a/b/c")


def test_a_changed_bundle_is_not_pushed(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished / "model", tmp_path / "model")
    raw = bytearray((folder / "model.safetensors").read_bytes())
    raw[-1] ^= 1
    (folder / "model.safetensors").write_bytes(raw)
    with pytest.raises(DataError, match="SHA-256"):
        files_to_push(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"has no model\.json"):
        files_to_push(tmp_path / "empty")


def test_a_model_trained_in_clear_is_not_pushed(tmp_path: Path) -> None:
    bundles.train(tmp_path, privacy={"mechanism": "clear"}, rounds=1, method="dp-fedgd")
    with pytest.raises(RecipeError, match="trained in clear is not pushed"):
        files_to_push(tmp_path / "out")


def test_paths_of_this_machine_become_names(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished / "model", tmp_path / "model")
    told = json.loads((folder / "model.json").read_text())
    told["data"] = "table /home/ann/wards/north.csv (500 records), and ~/south.csv, 1/2 of it"
    (folder / "model.json").write_text(json.dumps(told))
    files = files_to_push(folder)
    plain = json.loads(files["model.json"])["data"]
    assert plain == "table north.csv (500 records), and south.csv, 1/2 of it"
    assert b"/home/ann" not in files["README.md"]


def write_adapter(run: Path, value: float = 0.5) -> Path:
    import torch
    from safetensors.torch import save_file

    folder = run / "adapter"
    folder.mkdir(parents=True)
    save_file({"lora_A": torch.full((2, 2), value)}, folder / "adapter_model.safetensors")
    config = {"base_model_name_or_path": "/home/ann/minilm", "peft_type": "LORA", "r": 2}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "README.md").write_text("SECRET: base_model: /home/ann/minilm")
    return folder


@pytest.mark.parametrize("inside", [True, False])
def test_an_adapter_goes_with_the_guarantee_of_its_run(
    inside: bool, finished: Path, stand_in: Hub, tmp_path: Path
) -> None:
    folder = write_adapter(tmp_path)
    shutil.copy(finished / "guarantee.json", tmp_path)
    files = files_to_push(folder) if inside else files_to_push(tmp_path, adapter=True)
    push(files, "ward/adapter")
    kept = stand_in.kept.files
    assert set(kept) == {"adapter_config.json", "adapter_model.safetensors", "README.md"}
    told = json.loads(kept["adapter_config.json"])
    assert told == {"base_model_name_or_path": "minilm", "peft_type": "LORA", "r": 2}
    assert b"DP for each record" in kept["README.md"]
    assert not any(b"/home/ann" in content for content in kept.values())


def test_an_adapter_without_a_guarantee_or_with_a_nan_is_not_pushed(
    finished: Path, tmp_path: Path
) -> None:
    folder = write_adapter(tmp_path, value=float("nan"))
    with pytest.raises(DataError, match=r"has no guarantee\.json"):
        files_to_push(folder)
    shutil.copy(finished / "guarantee.json", tmp_path)
    with pytest.raises(DataError, match="not finite"):
        files_to_push(folder)
