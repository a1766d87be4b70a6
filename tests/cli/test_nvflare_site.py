# SPDX-License-Identifier: Apache-2.0
"""The settings of an NVFlare site: each that opens a way is named, and the page's own are quiet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpfed.cli.nvflare_site import RELAY, check_site, running_sites

Files = dict[str, Any]


def hardened() -> Files:
    """As the page for a site's admin says."""
    lead = {"submit_job": "any", "byoc": "none", "shell_commands": "none"}
    return {
        "resources.json": {
            "class_allow_list": ["nvflare.app_common.np.np_trainer.NPTrainer", RELAY],
            "allow_log_streaming": False,
        },
        "authorization.json": {"permissions": {"lead": lead, "member": {"view": "any"}}},
    }


def kit(folder: Path, files: Files) -> Path:
    (folder / "local").mkdir(parents=True)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / "local" / name).write_text(text)
    return folder


def warnings(folder: Path) -> list[str]:
    found = list(check_site(folder))
    assert "were looked at" in found[-1]
    assert all(said.startswith("warning: ") for said in found[:-1])
    return found[:-1]


def test_what_the_page_says_is_quiet(tmp_path: Path) -> None:
    assert warnings(kit(tmp_path, hardened())) == []


def allow(*classes: str) -> Callable[[Files], None]:
    return lambda files: files["resources.json"]["class_allow_list"].extend(classes)


def give(role: str, rights: Any) -> Callable[[Files], None]:
    return lambda files: files["authorization.json"]["permissions"].update({role: rights})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (allow("dpfed."), "more than the relay"),
        (allow("dpfed.nvflare"), "more than the relay"),
        (allow("*"), "more than the relay"),
        (lambda files: files["resources.json"].pop("class_allow_list"), "jobs are refused"),
        (
            lambda files: files["resources.json"].update(class_list_enforcement_mode="warn"),
            "must be",
        ),
        (lambda files: files["resources.json"].pop("allow_log_streaming"), "error log"),
        (lambda files: files["resources.json"].update(allow_log_streaming="false"), "error log"),
        (give("lead", {"byoc": "o:site"}), "'lead' may send any Python"),
        (give("lead", {"byoc": ["not o:x"]}), "'lead' may send any Python"),
        (give("lead", {"cat": "any"}), "'lead' may read logs"),
        (lambda files: files.update({"privacy.json": {}}), "filters"),
        (lambda files: files.update({"resources.json": "no JSON"}), "resources.json cannot"),
        (lambda files: files.update({"authorization.json": "[]"}), "authorization.json cannot"),
        (lambda files: files.pop("authorization.json"), "authorization.json cannot"),
    ],
)
def test_each_open_way_is_named(
    change: Callable[[Files], object], said: str, tmp_path: Path
) -> None:
    files = hardened()
    change(files)
    (found,) = warnings(kit(tmp_path, files))
    assert said in found


def test_a_role_with_all_rights_has_these_too(tmp_path: Path) -> None:
    files = hardened()
    give("project_admin", "any")(files)
    assert [said.count("'project_admin'") for said in warnings(kit(tmp_path, files))] == [1, 1]
    give("project_admin", "none")(files)
    assert warnings(kit(tmp_path / "none", files)) == []


def test_nvflares_own_defaults_are_open(tmp_path: Path) -> None:
    """The files that NVFlare 2.9 provisions, read where an admin has written none."""
    template = pytest.importorskip("nvflare.lighter.tplt_utils").Template.__module__
    home = Path(sys.modules[template].__file__ or "").parent / "templates" / "master_template.yml"
    import yaml

    texts = yaml.safe_load(home.read_text())
    resources = json.loads(
        texts["local_client_resources"]
        .replace("{~~class_allow_list~~}", "[]")
        .replace("{~~allow_log_streaming~~}", "true")
        .replace("{~~num_gpus~~}", "0")
        .replace("{~~gpu_mem~~}", "0")
    )
    files = {
        "resources.json.default": resources,
        "authorization.json.default": texts["default_authz"],
    }
    found = warnings(kit(tmp_path, files))
    assert [said.partition(f"{tmp_path}: ")[2].partition(" ")[0] for said in found] == [
        "class_allow_list",
        "it",
        "role",
        "role",
        "role",
        "role",
        "role",
    ]
    kit(tmp_path / "mine", {**files, **hardened()})  # the admin's come first
    assert warnings(tmp_path / "mine") == []


@pytest.mark.slow
def test_a_client_that_runs_is_found_and_so_is_its_user(tmp_path: Path) -> None:
    words = ["nvflare.private.fed.app.client.client_train", "-m", str(tmp_path)]
    wait = "import time; time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", wait, *words])
    try:
        deadline = time.monotonic() + 20
        while tmp_path not in running_sites(())[0]:
            assert time.monotonic() < deadline
        mine = f"(process {process.pid}) runs as"
        assert any(mine in said for said in running_sites(())[1])
        assert not any(mine in said for said in running_sites({os.geteuid()})[1])
    finally:
        process.kill()
        process.wait()
