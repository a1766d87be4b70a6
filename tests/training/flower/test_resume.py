# SPDX-License-Identifier: Apache-2.0
"""Servers, SuperLinks and silos die and come back: the training goes on, and nothing is made twice.

First over a Grid in this process, which dies by an exception at every moment of a round in turn;
then with Flower's own processes, which get SIGKILL.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Message

from dpfed.accounting.guarantee import certified
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.audit.client_laws import MODEL
from dpfed.cli.deploy import deploy
from dpfed.core.errors import DataError
from dpfed.core.registry import build
from dpfed.core.types import UPDATE, Facts, Trust
from dpfed.flower import client_app
from dpfed.mechanisms.gaussian import gaussian
from dpfed.recipes import result as result_files
from dpfed.recipes import schema as recipes
from dpfed.training.checkpoint import Checkpoint, CommittedRound
from dpfed.training.flower.strategy import DPResult, DPStrategy
from dpfed.training.inprocess import replay
from dpfed.training.plan import Plan
from dpfed.training.wire import state as states
from tests.helpers.deployments import environment
from tests.helpers.round_counts import only_updates, updates
from tests.helpers.rounds import client_states, make_plan
from tests.training.flower.local_grid import LocalGrid, become_a_server, nodes
from tests.training.flower.network import Net
from tests.training.flower.restart import Training

# a server that dies by an exception leaves a secure sum's scratch file to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore:Unclosed file <tempfile.Spooled:ResourceWarning")

SIZES = [3, 4, 5, 6, 7]
START = torch.zeros(MODEL.layout.size)
INITIAL = ArrayRecord(MODEL.layout.unflatten(START))
WANTED = 6
MOMENTS = ["asked", "pushed", "first reply", "last reply", "completed", "committed"]


class Died(Exception):
    """The server is gone."""


class Clients(LocalGrid):
    """Clients that outlive servers, with disks of their own, and who know what they were asked."""

    def __init__(self, plan: Plan) -> None:
        self.people = client_states(SIZES)
        made = client_app(
            lambda c: self.people[c.node_config["partition-id"]].problem, plan, "ward"
        )
        super().__init__(made, nodes(len(SIZES)))
        self.plan = plan
        self.asked: Counter[tuple[int, int, int]] = Counter()  # (round, attempt, client)
        self.said: dict[tuple[int, int, int], set[bytes]] = {}
        self.lose: tuple[int, int] | None = None  # (round, client) whose reply is damaged
        self.death: tuple[int, str] | None = None
        self.undelivered: list[Message] = []

    def here(self, round: int, moment: str) -> None:
        """The end of the server, if it is due here."""
        if self.death == (round, moment):
            self.death = None
            self.undelivered += self.sent.values()
            self.sent.clear()
            raise Died

    def push_messages(self, messages: Any) -> Any:
        orders = list(messages)
        ids = super().push_messages(orders)
        control = orders[0].content.config_records["dpfed"] if orders else {}
        if control.get("stage") == self.plan.sum.release_stage:
            self.left = len(orders)
            self.here(int(control["round"]), "pushed")
        return ids

    def _handle(self, message: Message) -> Message | None:
        reply = super()._handle(message)
        control = message.content.config_records["dpfed"]
        if control["stage"] == self.plan.sum.release_stage:
            at, client = int(control["round"]), message.metadata.dst_node_id - 100
            self.asked[at, int(control["attempt"]), client] += 1
            self.listen((at, int(control["attempt"]), client), reply)
            if self.lose == (at, client) and reply is not None:
                reply.content.array_records.clear()
            self.left -= 1
            moment = "first reply" if self.left == len(SIZES) - 1 else "last reply"
            if moment == "first reply" or not self.left:
                self.here(at, moment)
        return reply

    def listen(self, at: tuple[int, int, int], reply: Message | None) -> None:
        """Keep the bytes of all releases: an attempt has one, however often it is asked for."""
        arrays = reply.content.array_records.get("reply", {}) if reply else {}
        if arrays:
            said = b"".join(array.data for array in arrays.values())
            self.said.setdefault(at, set()).add(said)

    def deliver_late(self) -> None:
        """Orders of servers that are dead: Flower delivers them until they expire."""
        for message in self.undelivered:
            reply = LocalGrid._handle(self, message)
            control = message.content.config_records["dpfed"]
            at = int(control["round"]), int(control["attempt"]), message.metadata.dst_node_id - 100
            self.asked[at] += control["stage"] == self.plan.sum.release_stage
            self.listen(at, reply)
        self.undelivered.clear()


class Mortal(Checkpoint):
    """A checkpoint that ends the server right after it wrote."""

    clients: Clients

    def ask(self, state: Any, gated: bool = False) -> None:
        super().ask(state, gated)
        self.clients.here(state.round, "asked")

    def commit(self, plan: Any, state: Any, *rest: Any) -> None:
        self.clients.here(state.round - 1, "completed")
        super().commit(plan, state, *rest)
        self.clients.here(state.round - 1, "committed")


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFED_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("DPFED_LEDGER", str(tmp_path / "ledger.sqlite"))
    monkeypatch.setenv("DPFED_IDENTITY", "simulated")
    monkeypatch.delenv("DPFED_DATASET", raising=False)
    become_a_server(monkeypatch)


def plan_with(client: str, sum: str, rounds: int = 20) -> Plan:
    return make_plan(
        client=build("client", client, {}, unit="record"),
        sum=build("sums", sum, {}),
        server=build("server", "sofim", {}),
        nominal=SIZES,
        rounds=rounds,
    )


def serve(clients: Clients, folder: Path, wanted: int = WANTED) -> tuple[DPStrategy, DPResult]:
    """A new server in the folder, until the rounds are there, or it dies."""
    strategy = DPStrategy(clients.plan, training="t", checkpoint=folder)
    strategy.checkpoint = Mortal(folder)
    object.__setattr__(strategy.checkpoint, "clients", clients)
    return strategy, strategy.start(clients, INITIAL, num_rounds=wanted)


def outlive(
    clients: Clients, folder: Path, deaths: list[tuple[int, str]], wanted: int = WANTED
) -> tuple[DPStrategy, DPResult]:
    for death in deaths:
        clients.death = death
        with pytest.raises(Died):
            serve(clients, folder, wanted)
    return serve(clients, folder, wanted)


def check(clients: Clients, strategy: DPStrategy, result: DPResult, ledger: Path) -> None:
    """The model of the committed rounds, and each attempt in each client's ledger, once."""
    assert result.stopped is None
    committed = strategy.step.committed
    assert [each.round for each in committed] == list(range(len(committed)))
    problems = [client.problem for client in clients.people.values()]
    again = replay(clients.plan, problems, START, committed)
    assert torch.equal(MODEL.layout.flatten(result.arrays.to_torch_state_dict()), again.params)
    assert {len(each) for each in clients.said.values()} == {1}
    entries = Ledger(ledger)
    assert entries.verify() == []
    rows = [row.body for row in entries.rows() if row.body["kind"] == "entry"]
    entered = Counter((row["round"], row["attempt"], int(row["client"])) for row in rows)
    assert set(entered.values()) == {1}
    assert set(entered) == set(clients.asked)
    attempts = {(round, attempt) for round, attempt, _ in clients.asked}
    assert {(each.round, each.attempt) for each in committed} <= attempts
    assert len([row for row in result.history if not row["aborted"]]) == len(committed)


@pytest.mark.slow
@pytest.mark.parametrize("client", ["gradient", "scaffold"])
@pytest.mark.parametrize("sum", ["plain", "secure"])
def test_a_server_that_dies_at_every_moment_in_turn(tmp_path: Path, client: str, sum: str) -> None:
    clients = Clients(plan_with(client, sum))
    deaths = sorted((at % (WANTED - 1), moment) for at, moment in enumerate(MOMENTS))
    strategy, result = outlive(clients, tmp_path / "run", deaths)
    check(clients, strategy, result, tmp_path / "ledger.sqlite")
    assert [each.attempt for each in strategy.step.committed] == [0] * WANTED  # nothing is wasted


@pytest.mark.slow
@pytest.mark.parametrize("sum", ["plain", "secure"])
def test_dying_in_the_first_round_again_and_again(tmp_path: Path, sum: str) -> None:
    clients = Clients(plan_with("scaffold", sum))
    strategy, result = outlive(clients, tmp_path / "run", [(0, moment) for moment in MOMENTS], 3)
    check(clients, strategy, result, tmp_path / "ledger.sqlite")
    assert strategy.step.committed[0] == CommittedRound(0, 0, (0, 1, 2, 3, 4))
    assert max(clients.asked.values()) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("sum", ["plain", "secure"])
def test_a_reply_that_was_made_and_not_counted_leaves_no_trace(tmp_path: Path, sum: str) -> None:
    """Client 1 answers round 2, and its answer is lost the second time; c_i stays that of round 1.

    A secure sum that was opened with client 1 is not opened without it: that takes a new attempt.
    """
    clients = Clients(plan_with("scaffold", sum))
    clients.death = (2, "completed")
    with pytest.raises(Died):
        serve(clients, tmp_path / "run")
    clients.lose = (2, 1)
    strategy, result = serve(clients, tmp_path / "run")
    assert strategy.step.committed[2] == CommittedRound(2, int(sum == "secure"), (0, 2, 3, 4))
    check(clients, strategy, result, tmp_path / "ledger.sqlite")


def test_an_order_of_a_dead_server_that_comes_late_does_no_harm(tmp_path: Path) -> None:
    """It is entered, since it was asked for, and the states of the living training stay."""
    clients = Clients(plan_with("scaffold", "plain"))
    for at in (1, 3):
        clients.death = (at, "pushed")
        with pytest.raises(Died):
            serve(clients, tmp_path / "run")
        clients.death = (at + 1, "asked")
        with pytest.raises(Died):
            serve(clients, tmp_path / "run")
        clients.deliver_late()
    strategy, result = serve(clients, tmp_path / "run")
    check(clients, strategy, result, tmp_path / "ledger.sqlite")


@pytest.mark.sample(4)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_deaths_with_replies_lost(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    clients = Clients(plan_with("scaffold", rng.choice(["plain", "secure"]), rounds=40))
    folder = tmp_path / "run"
    for _ in range(12):
        done = Checkpoint(folder).history()
        at = min(WANTED - 1, len(done) + rng.randrange(2))
        clients.death = (at, rng.choice(MOMENTS))
        clients.lose = rng.choice([None, (at, rng.randrange(5))])
        try:
            serve(clients, folder)
        except Died:
            continue
        break
    clients.death = clients.lose = None
    strategy, result = serve(clients, folder)
    check(clients, strategy, result, tmp_path / "ledger.sqlite")


def test_the_guarantee_ends_a_training_that_died_too_often(tmp_path: Path) -> None:
    """Where the server adds the noise, an attempt that died has to be made anew."""
    central = {UPDATE: gaussian(Facts(clip=1.0, trust=Trust.CENTRAL), std=2.0)}
    clients = Clients(replace(plan_with("gradient", "plain", rounds=4), channels=central))
    deaths = [(0, "completed"), (1, "last reply")]
    strategy, result = outlive(clients, tmp_path / "run", deaths, wanted=4)
    assert len(strategy.step.committed) == 2
    assert result.stopped == "the next round would exceed the plan's guarantee"
    assert result.guarantee is not None
    planned = clients.plan.guarantee().claims[0].epsilon
    assert result.guarantee.claims[0].epsilon == pytest.approx(planned)


def test_an_attempt_that_died_counts_before_it_is_asked_for_again(tmp_path: Path) -> None:
    """The clients are away when the server comes back: what it states has the attempt in it."""
    clients = Clients(plan_with("gradient", "plain"))
    clients.death = (1, "last reply")
    with pytest.raises(Died):
        serve(clients, tmp_path / "run")
    clients.offline = set(clients.contexts)
    strategy = DPStrategy(clients.plan, training="t", checkpoint=tmp_path / "run", wait=0.0)
    result = strategy.start(clients, INITIAL)
    assert result.stopped is not None
    spent = clients.plan.guarantee(only_updates({4.0: 1, 1.0: 1}), 1)
    assert result.guarantee == certified(clients.plan.guarantee(), spent)
    assert result.guarantee.realised == tuple(claim.epsilon for claim in spent.claims)
    clients.offline = set()
    strategy, result = serve(clients, tmp_path / "run")
    check(clients, strategy, result, tmp_path / "ledger.sqlite")
    assert updates(strategy.step.state.release_counts) == WANTED


def test_one_server_at_a_time(tmp_path: Path) -> None:
    clients = Clients(plan_with("gradient", "plain"))
    with (
        Checkpoint(tmp_path / "run").held(),
        pytest.raises(DataError, match="another process continues"),
    ):
        serve(clients, tmp_path / "run")


def test_the_state_that_a_client_goes_on_from_is_kept(tmp_path: Path) -> None:
    """However many of its later replies are not counted."""
    since = None
    for at in [(0, 0), (1, 0), (2, 0), (3, 0), (3, 1), (4, 0)]:
        states.save_state(tmp_path, at[0], (torch.ones(2), at[0]), at[1], since)
        since = max(since or at, min(at, (1, 0)))
    kept = sorted(path.stem for path in tmp_path.glob("*.safetensors"))
    assert kept == ["1", "3-1", "4"]
    assert states.load_at(tmp_path, (1, 0), (torch.zeros(2), 0))[1] == 1
    assert states.load_at(tmp_path, (2, 0), (torch.zeros(2), 7))[1] == 7  # missing: as a new client


def test_the_rows_of_committed_rounds_are_never_away(tmp_path: Path) -> None:
    """A process that dies while it loads its data leaves the history of those before."""
    rows = [{"round": at, "accuracy": 0.5} for at in (1, 2, 3)]
    result_files.clear_result(tmp_path, rows)
    (tmp_path / "guarantee.json").touch()
    result_files.clear_result(tmp_path, rows[:2])
    assert result_files.read_history(tmp_path) == rows[:2]
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["guarantee.json", "metrics.jsonl"], "what a training has left stays its own"


# -------------------------------------------------------------------------- Flower's own processes

SILOS = ["north", "south", "west"]


def write_recipe(folder: Path, rounds: int) -> Path:
    tables = {
        "rounds": rounds,
        "seed": 7,
        "data": {
            "source": "synthetic",
            "options": {"records": 300, "features": 8, "classes": 4},
            "partition": {"name": "dirichlet", "clients": 3, "options": {"alpha": 0.5}},
        },
        "privacy": {"epsilon": 20.0, "noise": "keyed"},
        "client": {"name": "scaffold", "steps": 2},
    }
    path = folder / "recipe.toml"
    path.write_text(recipes.dump_recipe(recipes.load_recipe(tables)), encoding="utf-8")
    return path


@contextmanager
def begun(folder: Path, monkeypatch: pytest.MonkeyPatch, wanted: int) -> Iterator[Training]:
    """TLS, node keys, ledgers, DP-SCAFFOLD; the first round is done, the second is asked for."""
    deploy.init(folder / "fed", server_names=["127.0.0.1"], nodes=SILOS)
    for name in ("DPFED_STATE", "DPFED_LEDGER", "DPFED_IDENTITY"):
        monkeypatch.delenv(name)  # each silo has its own, in its folder
    env = environment(folder)
    del env["DPFED_STATE"]
    with Net(folder, SILOS, folder=folder / "fed", env=env) as net:
        training = Training(net, folder / "run", write_recipe(folder, 20), wanted, timeout=12)
        training.start()
        training.wait_asked((0, 0))
        yield training


def check_found(training: Training, left: result_files.ResultFiles) -> None:
    found = training.look()
    assert found.problems == []
    assert found.same_bits
    assert left.stopped is None
    rounds = [row["round"] for row in left.history if not row["aborted"]]
    assert rounds == list(range(1, training.wanted + 1))
    assert training.runs >= 2


@pytest.mark.slow
@pytest.mark.long  # CI has the same over a LocalGrid, above, and kills of gates in tests/silo
def test_a_real_training_outlives_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ServerApp gets SIGKILL in a round; a further ``flwr run`` goes on."""
    with begun(tmp_path, monkeypatch, wanted=3) as training:
        assert training.kill_serverapp()
        training.start()
        left = training.wait()
    check_found(training, left)


@pytest.mark.long  # three minutes
def test_a_real_training_outlives_its_server_its_superlink_and_a_silo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is killed, a further ``flwr run`` goes on."""
    with begun(tmp_path, monkeypatch, wanted=5) as training:
        assert training.kill_serverapp()
        at = training.asked()
        training.start()
        training.wait_asked(at)
        training.restart_superlink()
        at = training.asked()
        training.start()
        training.wait_asked(at)
        training.restart_node(SILOS[1])
        left = training.wait()
    check_found(training, left)
