# SPDX-License-Identifier: Apache-2.0
"""The secure sum across real processes: TLS, node keys, the identities that ``deploy.init`` wrote.

Silos are killed at a stage, not at a time: a silo that is asked for the stage says so in a file and
waits, and then its SuperNode gets SIGKILL. One SuperLink serves all tests; who was killed is
started again.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from dpfed.accounting.guarantee import SHIPPED
from dpfed.cli.deploy import deploy
from dpfed.recipes import result as result_files
from dpfed.recipes import schema as recipes
from dpfed.recipes.session import Session, prepare
from dpfed.sums.plain import Plain
from tests.helpers.deployments import SILOS, environment, replay, write_app
from tests.training.flower.network import Net, miss_heartbeats

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("secure-deployment"),
]

# As dpfed's own client_app, but it writes down what it is asked for, and never answers at ``cut``.
CLIENT = """
import time
from pathlib import Path

from dpfed.recipes.flower_app import client_app
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    asked, config = message.content.config_records["dpfed"], context.run_config
    words = (asked.get("round", 0), asked["stage"], context.node_config["partition-id"])
    line = " ".join(map(str, words))
    with Path(config["notes"]).open("a") as file:
        file.write(line + "\\n")
    if line == config["cut"]:
        time.sleep(600)
    return client_app(message, context)
"""


@dataclass(frozen=True)
class Cut:
    """Where the power fails: as this client is asked for this stage of the first round."""

    client: int
    stage: str

    def __str__(self) -> str:
        return f"0 {self.stage} {self.client}"


@dataclass(frozen=True)
class CommittedRound:
    """What a run left, and what its clients were asked for: (round, stage) -> clients."""

    left: result_files.ResultFiles
    asked: dict[tuple[int, str], list[int]]
    recipe: Path
    said: str

    @property
    def absences(self) -> list[tuple[int, set[int]]]:
        """For each round, how many were in the total, and who was not."""
        rows = self.left.history
        return [(row["clients"], set(map(int, row["absent"].split()))) for row in rows]


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    work = tmp_path_factory.mktemp("secure")
    deploy.init(work / "fed", server_names=["127.0.0.1"], nodes=SILOS)
    with Net(work, SILOS, folder=work / "fed", env=environment(work)) as net:
        yield net


def write_recipe(folder: Path, rounds: int) -> Path:
    tables = {
        "rounds": rounds,
        "seed": 7,
        "data": {
            "source": "synthetic",
            "options": {"records": 600, "features": 8, "classes": 4},
            "partition": {"name": "dirichlet", "clients": 5, "options": {"alpha": 0.5}},
        },
        "privacy": {
            "epsilon": 4.0,
            "mechanism": "discrete_gaussian",
            "trust": "distributed",
            "noise": "keyed",
        },
        "sum": {"name": "secure", "survivors": 0.8},
        "server": [{"name": "sofim", "rho": 1.0, "beta": 0.9}, {"name": "scale", "rate": 0.3}],
    }
    path = folder / "recipe.toml"
    path.write_text(recipes.dump_recipe(recipes.load_recipe(tables)), encoding="utf-8")
    return path


def run(net: Net, folder: Path, rounds: int, cut: Cut | None = None) -> CommittedRound:
    """A run to its end; at the cut, the client's SuperNode is killed with all its children."""
    recipe, notes, out = write_recipe(folder, rounds), folder / "notes", folder / "out"
    place = write_app(folder / "app", client="cuts.client:app", config={"notes": "", "cut": ""})
    (place / "cuts").mkdir()
    (place / "cuts/__init__.py").touch()
    (place / "cuts/client.py").write_text(CLIENT)
    config = {"recipe": str(recipe), "out": str(out), "notes": str(notes), "cut": str(cut or "")}
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(net.run, place, config, timeout=280)
        if cut:
            while str(cut) not in lines(notes):
                assert not running.done(), running.result()
                time.sleep(0.05)
            net.kill(SILOS[cut.client])
            miss_heartbeats(net, SILOS[cut.client])
        ended = running.result()
    assert ended.completed, (ended, net.tail("superlink"))
    left = result_files.read_result(out)
    assert left is not None
    return CommittedRound(left, asked_for(lines(notes)), recipe, ended.log)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def asked_for(notes: list[str]) -> dict[tuple[int, str], list[int]]:
    found: dict[tuple[int, str], list[int]] = {}
    for line in notes:
        round, stage, client = line.split()
        found.setdefault((int(round), stage), []).append(int(client))
    return {at: sorted(clients) for at, clients in found.items()}


# ------------------------------------------------------------------------------- the same in clear


@dataclass(frozen=True)
class InClear(Plain):
    """A plain sum that passes for a hidden one, so that a plan can be had with it."""

    hides_terms: bool = True
    shares: int = 3

    def min_honest(self, clients: int, colluders: int) -> int:
        return self.shares


def in_clear(prepared: Session) -> Session:
    """The same run without any masks."""
    return replace(prepared, plan=replace(prepared.plan, sum=InClear()))


def check(committed: CommittedRound, absent: list[set[int]]) -> None:
    """All rounds, the right sum of the right clients, and the guarantee that was planned."""
    left = committed.left
    assert left.stopped is None
    assert [row["aborted"] for row in left.history] == [""] * len(absent)
    assert committed.absences == [(5 - len(who), who) for who in absent]

    prepared = prepare(recipes.load_recipe(committed.recipe))
    layout, state = prepared.federation.model.layout, replay(in_clear(prepared), absent)
    assert torch.equal(layout.flatten(left.params), state.params)
    everyone = replay(in_clear(prepared), [set()] * len(absent))
    assert not torch.equal(state.params, everyone.params)

    plan = prepared.plan
    spent = plan.guarantee(state.release_counts, state.round)
    assert left.guarantee == replace(spent, enforced=SHIPPED)
    assert (
        left.guarantee.claims == plan.guarantee().claims
    )  # a dropout costs nothing: it is planned
    assert "only sums with at least 3 honest shares of noise" in left.guarantee.sentence


# ---------------------------------------------------------------------------------------- dropouts


@pytest.mark.long
def test_a_silo_killed_after_the_key_stage_is_repaired(net: Net, tmp_path: Path) -> None:
    gone = 2
    committed = run(net, tmp_path, rounds=2, cut=Cut(gone, "input"))
    check(committed, [{gone}, {gone}])
    others = [0, 1, 3, 4]
    assert committed.asked == {
        (0, "enrol"): [0, 1, 2, 3, 4],
        (0, "keys"): [0, 1, 2, 3, 4],
        (0, "input"): [0, 1, 2, 3, 4],
        **{(0, stage): others for stage in ("repair", "unmask")},
        **{(1, stage): others for stage in ("input", "repair", "unmask")},
    }
    net.start_node(SILOS[gone])


@pytest.mark.long  # one minute; tests/sums/test_secure.py has dropouts at every stage
def test_a_silo_killed_after_its_masked_input_is_in_that_sum(net: Net, tmp_path: Path) -> None:
    gone = 4
    committed = run(net, tmp_path, rounds=2, cut=Cut(gone, "unmask"))
    check(committed, [set(), {gone}])
    everyone, others = [0, 1, 2, 3, 4], [0, 1, 2, 3]
    assert committed.asked == {
        **{(0, stage): everyone for stage in ("enrol", "keys", "input", "unmask")},
        **{(1, stage): others for stage in ("input", "repair", "unmask")},
    }
    net.start_node(SILOS[gone])


# -------------------------------------------------------------------------------------- identities


@pytest.mark.long  # two minutes; tests/sums/secagg/test_identity.py has the refusal itself
def test_a_silo_with_the_identity_of_another_is_in_no_sum(net: Net, tmp_path: Path) -> None:
    """Its node key lets it in, and it enrols; whom it could sign as is not who it is."""
    thief, other = 1, 3
    assert net.folder is not None
    key = net.folder / "nodes" / SILOS[thief] / "identity.key"
    own = key.rename(key.with_suffix(".own"))
    shutil.copy(net.folder / "nodes" / SILOS[other] / "identity.key", key)
    try:
        committed = run(net, tmp_path, rounds=1)
    finally:
        own.replace(key)
    check(committed, [{thief}])
    everyone, others = [0, 1, 2, 3, 4], [0, 2, 3, 4]
    assert committed.asked == {
        **{(0, stage): everyone for stage in ("enrol", "keys")},
        **{(0, stage): others for stage in ("input", "unmask")},
    }
    why = f"is the folder of client {other} ({SILOS[other]}), but this is client {thief}"
    assert why in net.log(SILOS[thief])  # in full where the silo's owner reads it
    out = f"client {thief} is left out of this round: DataError; its own log says why\n"
    assert out in committed.said  # and by its name elsewhere
