# SPDX-License-Identifier: Apache-2.0
"""Jobs as `dpfed new --gated --engine nvflare` writes them, and NVFlare's simulator."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from dpfed.cli.new import fill, templates
from dpfed.recipes.terms import Terms

CLASSES = ["dpfed.nvflare.controller.TermsController", "dpfed.nvflare.relay.GateRelay"]
RESOURCES = {"format_version": 2, "class_allow_list": CLASSES, "allow_log_streaming": False}
SIMULATOR = "nvflare.private.fed.app.simulator.simulator"


def write_job(folder: Path, terms: list[Path], sites: int, **arguments: Any) -> Path:
    """The template's job, with a workflow for each of these terms: result-0, result-1, ..."""
    source = resources.files("dpfed.cli") / "templates" / "nvflare" / "job"
    for name, text in templates(source):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(fill(text, {"project": "gated"}))
    config = folder / "app" / "config"
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, "min_clients": sites}))
    server = json.loads((config / "config_fed_server.json").read_text())
    (workflow,) = server.pop("workflows")
    server["workflows"] = []
    for number, path in enumerate(terms):
        shutil.copy(path, config / f"terms-{number}.toml")
        given = {"terms": f"terms-{number}.toml", "out": f"result-{number}"}
        kept = {"checkpoint": f"{workflow['args']['checkpoint']}-{number}"}
        args = {**workflow["args"], **given, **kept, **arguments}
        server["workflows"].append({**workflow, "id": f"train-{number}", "args": args})
    (config / "config_fed_server.json").write_text(json.dumps(server))
    return folder


def link_sockets(folder: Path, sockets: list[Path]) -> str:
    """What $DPFED_GATE is for sites site-1, site-2, ... with these gates."""
    folder.mkdir(exist_ok=True)
    for number, path in enumerate(sockets, 1):
        (folder / f"site-{number}.sock").symlink_to(path)
    return str(folder / "{site}.sock")


def simulate(job: Path, workspace: Path, sites: int, gate: str, timeout: float = 240.0) -> str:
    """Run a job in NVFlare's simulator; returns what it has logged."""
    (workspace / "local").mkdir(parents=True)
    (workspace / "local" / "resources.json").write_text(json.dumps(RESOURCES))
    names = ",".join(f"site-{number}" for number in range(1, sites + 1))
    command = [sys.executable, "-m", SIMULATOR, job, "-w", workspace, "-c", names, "-t", sites]
    log = workspace.with_suffix(".log")
    with log.open("w") as file:
        process = subprocess.Popen(
            list(map(str, command)),
            env=os.environ | {"DPFED_GATE": gate},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(timeout)
        finally:
            end_session(process)
    return log.read_text()


def end_session(process: subprocess.Popen[Any]) -> None:
    """End a process that began a session, and what it has started there."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def result_of(workspace: Path, number: int = 0) -> Path:
    """Where the simulator's server left the result of these terms."""
    return workspace / "server" / "simulate_job" / f"result-{number}"


def params_in(out: Path, terms: Terms) -> torch.Tensor:
    """The parameters of a result, flat."""
    return terms.model.layout.flatten(load_file(out / "model.safetensors"))
