# SPDX-License-Identifier: Apache-2.0
"""Real gates under NVFlare's simulator: the bits of one process, and those of Flower."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict, UserConfig

from dpfed.accounting.guarantee import GATED
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.cli.deploy import deploy
from dpfed.recipes.flower_app import run_server
from dpfed.silo.owner import load_records
from dpfed.silo.policy import load_policy
from dpfed.training.inprocess import rounds
from tests.nvflare.jobs import link_sockets, params_in, result_of, simulate, write_job
from tests.silo.gates import RECORDS, Silo, gates, grid_of, read, records, terms_for
from tests.training.flower.local_grid import become_a_server

pytest.importorskip("nvflare")
pytestmark = pytest.mark.slow
SILOS, PERSONS = 3, 30
METHODS = ("dp-fedsofim", "dp-fedauto", "dp-scaffold")
SECURE = {"sum": {"name": "secure"}, "privacy": {"trust": "distributed"}}
CORRELATED = {"privacy": {"mechanism": "tree"}}
Cell = tuple[str, dict[str, Any]]
ALL: list[Cell] = [
    *((method, {}) for method in METHODS),
    *((method, SECURE) for method in ("dp-fedsofim", "dp-fedauto")),  # dp-scaffold's is refused
    *((method, CORRELATED) for method in ("dp-fedsofim", "dp-scaffold", "dp-fedgd")),
]
FEW: list[Cell] = [("dp-fedauto", SECURE), ("dp-scaffold", {})]


def write_terms(folder: Path, unit: str, cells: list[Cell]) -> list[Path]:
    """Terms for each cell; those of a secure sum pin the roster."""
    size = {"record": float(RECORDS), "group": float(PERSONS), "client": 1.0}[unit]
    made = []
    for number, (method, more) in enumerate(cells):
        privacy = {"epsilon": 2.0, "noise": "keyed", "unit": unit, **more.get("privacy", {})}
        secure = "sum" in more
        place = folder / f"terms-{number}"
        place.mkdir()
        path = terms_for(
            place,
            SILOS,
            folder / "fed" / "nodes" / "silo-0" / "roster.json" if secure else None,
            [size] * SILOS,
            name=f"cell-{number}",
            rounds=4,
            method=method,
            **{**more, "privacy": privacy},
        )
        made.append(path)
    return made


def write_owner(owner: Silo, fed: Path, unit: str) -> None:
    """A policy that allows all cells of a unit; each record is one of a person's three."""
    keys = fed / "nodes" / f"silo-{owner.number}"
    owner.write(
        {"identity": str(keys)},
        unit=unit,
        epsilon=100.0,
        methods=[*METHODS, "dp-fedgd"],
        mechanisms=["gaussian", "tree"],
        trust=["local", "distributed"],
        against="outsiders",
    )
    x, y = records(owner.number)
    groups = {"group": np.arange(RECORDS) % PERSONS} if unit == "group" else {}
    np.savez(owner.folder / "data.npz", x=x.numpy(), y=y.numpy(), **groups)


def in_one_process(path: Path, owners: list[Silo]) -> torch.Tensor:
    terms = read(path)
    held = [load_policy(owner.policy).data["sepsis"] for owner in owners]
    problems = [terms.model.problem(load_records("sepsis", data)) for data in held]
    *_, (step, _) = rounds(terms.plan, problems, terms.initial)
    return step.params


def over_flower(folder: Path, unit: str, paths: list[Path]) -> list[torch.Tensor]:
    """The same terms over Flower's relays, to gates of their own."""
    folder.mkdir()
    found = []
    with gates(folder, SILOS) as owners:
        start(owners, folder.parent / "fed", unit, paths)
        for number, path in enumerate(paths):
            out = folder / f"out-{number}"
            config: UserConfig = {"terms": str(path), "out": str(out)}
            run_server(grid_of(owners), Context(1, 0, {}, RecordDict(), config))
            found.append(params_in(out, read(path)))
    return found


def start(owners: list[Silo], fed: Path, unit: str, paths: list[Path]) -> None:
    for each in owners:
        write_owner(each, fed, unit)
        for path in paths:
            each.approve(path)
        each.spawn()
    for each in owners:
        each.wait()


def check_cells(
    folder: Path, unit: str, cells: list[Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    become_a_server(monkeypatch)
    deploy.init(
        folder / "fed", server_names=["127.0.0.1"], nodes=[f"silo-{i}" for i in range(SILOS)]
    )
    paths = write_terms(folder, unit, cells)
    with gates(folder, SILOS) as owners:
        start(owners, folder / "fed", unit, paths)
        gate = link_sockets(folder / "s", [owner.socket for owner in owners])
        log = simulate(write_job(folder / "job", paths, SILOS), folder / "ws", SILOS, gate)
        for number, path in enumerate(paths):
            out = result_of(folder / "ws", number)
            assert (out / "model.safetensors").exists(), (cells[number], log[-6000:])
            alone = in_one_process(path, owners)
            assert torch.equal(params_in(out, read(path)), alone), cells[number]
            said = json.loads((out / "guarantee.json").read_text())["sentence"]
            assert GATED in said
    for owner in owners:  # each round was entered once, and nothing else
        rows = Ledger(owner.folder / "state" / "ledger.sqlite").rows()
        seen = [(r.body["training"], r.body["round"]) for r in rows if r.body["kind"] == "entry"]
        planned = {(read(path).name, k) for path in paths for k in range(read(path).plan.rounds)}
        assert set(seen) == planned
    # another server, which keeps no heads of ledgers that these gates do not have
    monkeypatch.setenv("DPFED_STATE", str(folder / "another-server"))
    flower = over_flower(folder / "flower", unit, paths)
    for number, path in enumerate(paths):
        found = params_in(result_of(folder / "ws", number), read(path))
        assert torch.equal(found, flower[number]), cells[number]


@pytest.mark.long
def test_gates_under_nvflare_give_the_bits_of_one_process_and_of_flower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_cells(tmp_path, "record", FEW, monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("unit", ["record", "group", "client"])
def test_so_do_all_methods_units_sums_and_correlated_noise(
    tmp_path: Path, unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_cells(tmp_path, unit, ALL, monkeypatch)
