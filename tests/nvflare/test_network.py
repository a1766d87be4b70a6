# SPDX-License-Identifier: Apache-2.0
"""A provisioned NVFlare network of real processes, with TLS: what fails, and what that costs."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Error, Message, RecordDict, UserConfig

from dpfed.accounting.ledger.ledger import Ledger
from dpfed.recipes.flower_app import run_server
from tests.helpers.gate_training import in_one_process
from tests.nvflare.jobs import params_in, write_job
from tests.nvflare.proxy import Act, Proxy
from tests.silo.gates import Silo, gates, grid_of, read, terms_for
from tests.training.flower.local_grid import become_a_server

pytest.importorskip("nvflare")
from tests.nvflare.network import Net, harden, set_resources

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("nvflare")]
SILOS = 3


@contextmanager
def started(folder: Path, path: Path, **gate: Any) -> Iterator[list[Silo]]:
    """Three gates whose owners have approved the terms."""
    folder.mkdir(exist_ok=True)
    with gates(folder, SILOS) as owners:
        for each in owners:
            each.write(gate)
            each.approve(path)
            each.spawn()
        for each in owners:
            each.wait()
        yield owners


def sockets(owners: list[Silo]) -> dict[str, Path]:
    return {f"site-{owner.number + 1}": owner.socket for owner in owners}


def entered(owner: Silo) -> list[tuple[int, int]]:
    """Which rounds and attempts the owner's ledger has."""
    path = owner.folder / "state" / "ledger.sqlite"
    rows = Ledger(path).rows() if path.exists() else []
    return [(r.body["round"], r.body["attempt"]) for r in rows if r.body["kind"] == "entry"]


def wait_for(what: Callable[[], bool], timeout: float = 120.0) -> None:
    deadline = time.monotonic() + timeout
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_site_refuses_a_job_until_its_admin_adds_the_class(tmp_path: Path) -> None:
    path = terms_for(tmp_path, SILOS)
    with started(tmp_path, path) as owners:
        net = Net(tmp_path / "net", sockets(owners))
        harden(net.kits / "site-2")
        harden(net.kits / "site-3")
        set_resources(net.kits / "site-1", lambda _: None)
        job = write_job(tmp_path / "job", [path], SILOS)
        with net:
            assert net.ended(net.submit(job)) != "FINISHED:COMPLETED"
            assert [entered(owner) for owner in owners] == [[], [], []]
            harden(net.kits / "site-1")
            again = net.submit(job)
            assert net.ended(again) == "FINISHED:COMPLETED"
            out = net.result(again, tmp_path / "got")
        assert torch.equal(params_in(out, read(path)), in_one_process(path, SILOS))


def test_aborts_and_a_killed_client_cost_nothing_and_the_bits_are_the_same(tmp_path: Path) -> None:
    path = terms_for(tmp_path, SILOS, rounds=6)
    with started(tmp_path, path, answer_after=2.0) as owners:
        net = Net(tmp_path / "net", sockets(owners))
        for name in sockets(owners):
            harden(net.kits / name)
        job = write_job(tmp_path / "job", [path], SILOS)
        with net:
            first = net.submit(job)
            wait_for(lambda: len(entered(owners[0])) >= 2)
            net.admin("abort_job", first)
            second = net.submit(job)
            wait_for(lambda: len(entered(owners[0])) >= 4)
            net.kill("site-2")
            net.admin("abort_job", second)
            net.start("site-2")
            done = net.submit(job)
            assert net.ended(done) == "FINISHED:COMPLETED"
            out = net.result(done, tmp_path / "got")
        for owner in owners:
            assert sorted(entered(owner)) == [(k, 0) for k in range(6)]
            assert "epsilon 2 is spent of" in owner.command("status")
    assert torch.equal(params_in(out, read(path)), in_one_process(path, SILOS))


def test_garbage_and_a_killed_gate_cost_a_round_each_as_over_flower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = terms_for(tmp_path, SILOS, rounds=4, sum={"name": "plain", "least_clients": 1})
    with started(tmp_path, path) as owners, ExitStack() as stack:

        def die(order: bytes) -> None:
            del order
            owners[1].kill()
            owners[1].start()

        faults: list[dict[int, Act]] = [{2: lambda _: b"\xffgarbage"}, {3: die}, {}]
        (tmp_path / "p").mkdir()
        before = {}
        for (name, gate), acts in zip(sockets(owners).items(), faults, strict=True):
            before[name] = tmp_path / "p" / f"{name}.sock"
            stack.enter_context(Proxy(before[name], gate, acts))
        net = Net(tmp_path / "net", before)
        for name in before:
            harden(net.kits / name)
        with net:
            job = write_job(tmp_path / "job", [path], SILOS)
            done = net.submit(job)
            assert net.ended(done) == "FINISHED:COMPLETED"
            out = net.result(done, tmp_path / "got")
        assert sorted(entered(owners[0])) == [(0, 0), (2, 0), (3, 0)]  # its reply was garbage
        assert sorted(entered(owners[1])) == [(0, 0), (1, 0), (3, 0)]
        assert sorted(entered(owners[2])) == [(k, 0) for k in range(4)]
    with (out / "metrics.csv").open() as file:
        assert [int(row["clients"]) for row in csv.DictReader(file)] == [3, 2, 2, 3]
    found = params_in(out, read(path))
    assert torch.equal(found, over_flower(tmp_path / "flower", path, monkeypatch))


def over_flower(folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """The same faults over Flower's relays."""
    become_a_server(monkeypatch)
    absent = {(100, 1), (101, 2)}

    def tamper(node: int, order: Message, reply: Message) -> Message:
        at = order.content.config_records["dpfed"].get("round")  # a statement has none
        return Message(Error(2), reply_to=order) if (node, at) in absent else reply

    with started(folder, path) as owners:
        grid = grid_of(owners)
        grid.tamper = tamper
        config: UserConfig = {"terms": str(path), "out": str(folder / "out")}
        run_server(grid, Context(1, 0, {}, RecordDict(), config))
    return params_in(folder / "out", read(path))
