# SPDX-License-Identifier: Apache-2.0
"""Statements about runs that were false: who took part, who held the door, and whose ledger.

A run in which one of five hospitals took part was stated as one of five; a gated run was said to
have kept no ledger; a resumed one lost "enforced by each silo's own process". What is said now is
made of who answered, round by round. Where a draw of clients is priced nothing of it may be: the
law at the end runs the same training with other answers, and compares all that it leaves, bit by
bit.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Message

from dpfed.accounting.guarantee import GATED, SHIPPED
from dpfed.audit.client_laws import MODEL
from dpfed.cli.deploy import deploy
from dpfed.cli.explain import gather_statement, markdown, write_statement
from dpfed.core.errors import ClientRefused
from dpfed.flower import DPResult, DPStrategy, client_app
from dpfed.recipes.run import run
from dpfed.sums.plain import plain
from dpfed.training.draft import Draft
from dpfed.training.flower.transport import GridTransport
from dpfed.training.inprocess import InProcess
from dpfed.training.plan import Plan
from tests.helpers.one_of_five import secret
from tests.helpers.rounds import client_states, make_plan
from tests.training.flower.local_grid import LocalGrid, become_a_server

INITIAL = ArrayRecord(MODEL.layout.unflatten(torch.zeros(MODEL.layout.size)))
HOSPITALS = ("north", "south", "east", "west", "children")
NEVER = "kept no ledger"


@pytest.fixture(autouse=True)
def _server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFED_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("DPFED_IDENTITY", raising=False)
    become_a_server(monkeypatch)


class Gates(LocalGrid):
    """Nodes, of which some say that they are behind a gate of their owner's."""

    def __init__(self, plan: Plan, here: Collection[int], gated: Collection[int]) -> None:
        problems = [each.problem for each in client_states([20] * len(plan.nominal)).values()]
        app = client_app(lambda context: problems[int(context.node_config["partition-id"])], plan)
        super().__init__(app, {100 + i: i for i in here})
        self.gated = {100 + i for i in gated}

    def _handle(self, message: Message) -> Message | None:
        reply = super()._handle(message)
        control = message.content.config_records["dpfed"]
        if reply is not None and control.get("stage") == "enrol":
            said = reply.content.config_records["dpfed"]
            said["gate"] = message.metadata.dst_node_id in self.gated
        return reply


def trained(
    folder: Path | None,
    here: Collection[int],
    gated: Collection[int],
    until: int = 4,
    **changes: Any,
) -> DPResult:
    plan = make_plan(nominal=[20] * 5, sum=plain(least_clients=1), **changes)
    strategy = DPStrategy(plan, training="t", checkpoint=folder, wait=0.1, wait_lost=0.0)
    return strategy.start(Gates(plan, here, gated), INITIAL, num_rounds=until, timeout=1.0)


def held_by(result: DPResult) -> str:
    assert result.guarantee is not None
    assert result.guarantee.budgeted == (result.guarantee.enforced == GATED)
    return result.guarantee.enforced


# ------------------------------------------------------------------------------ who holds the door


def test_a_resumed_run_keeps_that_gates_held_it(tmp_path: Path) -> None:
    assert held_by(trained(tmp_path, range(5), range(5), until=2)) == GATED
    result = trained(tmp_path, range(5), range(5))
    assert (held_by(result), len(result.history)) == (GATED, 4)


def test_one_node_without_a_gate_is_enough_in_any_round_of_any_process(tmp_path: Path) -> None:
    assert held_by(trained(tmp_path, range(5), (0, 1, 2, 3), until=1)) == SHIPPED
    assert held_by(trained(tmp_path, range(5), range(5), until=2)) == SHIPPED  # its round counts
    assert held_by(trained(tmp_path, (0, 1, 2, 3), range(5))) == SHIPPED


def test_one_that_comes_later_without_a_gate_ends_the_word(tmp_path: Path) -> None:
    assert held_by(trained(tmp_path, (0, 1, 2), range(5), until=2)) == GATED
    assert held_by(trained(tmp_path, range(5), (0, 1, 2, 3))) == SHIPPED


def test_a_note_without_the_word_does_not_know_and_the_weaker_is_said(tmp_path: Path) -> None:
    trained(tmp_path, range(5), range(5), until=2)
    path = tmp_path / "asked.json"
    facts = json.loads(path.read_text())
    assert facts.pop("gated") is True
    path.write_text(json.dumps(facts))
    assert held_by(trained(tmp_path, range(5), range(5))) == SHIPPED


def test_a_folder_without_the_note_does_not_know_either(tmp_path: Path) -> None:
    trained(tmp_path, range(5), range(5), until=2)
    (tmp_path / "asked.json").unlink()
    assert held_by(trained(tmp_path, range(5), range(5))) == SHIPPED


def test_an_attempt_that_died_counts_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node without a gate was asked, and the server died before it committed the round."""

    def dies(*_: Any) -> Iterator[Any]:
        raise KeyboardInterrupt
        yield

    with monkeypatch.context() as patch:
        patch.setattr(GridTransport, "exchange", dies)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path, range(5), (0, 1, 2, 3))
    assert held_by(trained(tmp_path, range(5), range(5))) == SHIPPED


# --------------------------------------------------------------------------------- who took part


@pytest.fixture
def roster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deploy.init(tmp_path / "fed", server_names=["127.0.0.1"], nodes=list(HOSPITALS))
    monkeypatch.setenv("DPFED_IDENTITY", str(tmp_path / "fed" / "server"))


def page_of(result: DPResult, folder: Path, recipe: str = "") -> str:
    """What ``dpfed explain`` makes of guarantee.json as an app writes it."""
    assert result.guarantee is not None
    folder.mkdir(exist_ok=True)
    facts = {"participants": 5, "units": 100, "rounds_asked": 4, "answered": result.answered}
    (folder / "guarantee.json").write_text(json.dumps({**result.guarantee.to_json(), **facts}))
    if recipe:
        (folder / "recipe.toml").write_text(recipe)
    write_statement(folder, folder)
    return (folder / "statement.md").read_text()


def test_one_of_five_hospitals_is_said_and_named(tmp_path: Path, roster: None) -> None:
    result = trained(None, (2,), range(5))
    assert result.answered["rounds_of"] == {
        "north": 0,
        "south": 0,
        "east": 4,
        "west": 0,
        "children": 0,
    }
    assert result.answered["rounds"] == [{"from": 1, "to": 4, "clients": ["east"]}]
    assert (result.answered["took_part"], result.answered["units"]) == (1, 20)
    page = page_of(result, tmp_path / "out")
    assert "One participant of 5 took part, with 20 records: the model is made of its data" in page
    assert "Names are the roster's" in page
    assert "is the word of its node when it enrolled" in page  # who says that gates held it
    assert "| east | 4 |" in page
    assert "| north | 0 |" in page
    assert "Participants: 1 took part, of 5, with 100 records in all" in page


def test_round_by_round_over_processes(tmp_path: Path, roster: None) -> None:
    trained(tmp_path / "kept", range(5), range(5), until=2)
    result = trained(tmp_path / "kept", (0, 4), range(5))
    assert result.answered["rounds"] == [
        {"from": 1, "to": 2, "clients": list(HOSPITALS)},
        {"from": 3, "to": 4, "clients": ["north", "children"]},
    ]
    page = page_of(result, tmp_path / "out")
    assert "5 of 5 participants took part, with 100 records; between 2 and 5 of them" in page
    assert "- Rounds 1 to 2: all." in page
    assert "- Rounds 3 to 4: north, children." in page


def test_if_all_answered_it_is_one_sentence(tmp_path: Path) -> None:
    result = trained(None, range(5), ())
    page = page_of(result, tmp_path / "out")
    assert "All 5 participants answered in every round." in page
    assert "| client 3 | 4 |" in page  # no roster: by their numbers
    assert "roster's" not in page
    assert "Participants: 5, with 100 records in all" in page


def test_a_roster_of_others_names_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    deploy.init(tmp_path / "fed", server_names=["127.0.0.1"], nodes=["a", "b"])
    monkeypatch.setenv("DPFED_IDENTITY", str(tmp_path / "fed" / "server"))
    with caplog.at_level(logging.WARNING, logger="dpfed"):
        assert "client 0" in trained(None, range(5), ()).answered["rounds_of"]
    assert "names clients by number" in caplog.text


@pytest.mark.slow
def test_every_engine_writes_it(tmp_path: Path) -> None:
    data = {
        "source": "synthetic",
        "options": {"records": 90, "features": 4, "classes": 2},
        "partition": {"clients": 3},
    }
    run(data=data, method="dp-fedgd", rounds=2, privacy={"epsilon": 1.0}, out=tmp_path)
    told = json.loads((tmp_path / "guarantee.json").read_text())["answered"]
    assert (told["planned"], told["took_part"], told["fewest"]) == (3, 3, 3)
    assert told["rounds_of"] == {"client 0": 2, "client 1": 2, "client 2": 2}


def test_a_page_says_nothing_of_who_took_part_where_nobody_is_counted(tmp_path: Path) -> None:
    result = trained(None, range(5), ())
    result.answered = {}
    page = page_of(result, tmp_path / "out")
    assert "Who took part" not in page
    assert "Participants: 5, with" in page


# ----------------------------------------------------------------------------------- whose ledger

RECIPE = 'name = "t"\nmethod = "dp-fedgd"\n[privacy]\nepsilon = 1.0\n'


@pytest.mark.parametrize("recipe", ["", RECIPE])
def test_a_gated_run_is_never_said_to_have_kept_no_ledger(tmp_path: Path, recipe: str) -> None:
    gated = page_of(trained(None, range(5), range(5)), tmp_path / "gated", recipe)
    assert NEVER not in gated
    assert "entered its releases in its own ledger before they left" in gated
    shipped = page_of(trained(None, range(5), (0, 1)), tmp_path / "shipped", recipe)
    assert NEVER not in shipped
    assert "Whether participants keep a ledger, this folder does not say" in shipped


def test_a_run_of_one_process_without_a_ledger_still_says_so(tmp_path: Path) -> None:
    data = {
        "source": "synthetic",
        "options": {"records": 90, "features": 4, "classes": 2},
        "partition": {"clients": 3},
    }
    run(data=data, method="dp-fedgd", rounds=2, privacy={"epsilon": 1.0}, out=tmp_path)
    assert NEVER in markdown(gather_statement(tmp_path))


# ------------------------------------------------------------------ the law: a draw that is priced

Silent = Callable[[int, int], str | None]
"""(round, client) -> "" if its answer is lost, the class of its refusal, or None if it answers."""
ANSWERS: dict[str, Silent] = {
    "all": lambda at, client: None,
    "none": lambda at, client: "",
    "one": lambda at, client: None if client == 1 else "",
    "each is lost by turns": lambda at, client: "" if (at + client) % 2 else None,
    "all refuse": lambda at, client: "BudgetSpent",
    "one refuses": lambda at, client: "UnsoundPlan" if client == 0 else None,
    "from the second round on none": lambda at, client: "" if at else None,
}
DRAWS: dict[str, tuple[int, ...]] = {"nobody": (), "one": (3,), "everyone": (0, 1, 2, 3, 4)}


def answering(kind: type, silent: Silent, patch: pytest.MonkeyPatch) -> None:
    """Let a transport lose or refuse answers; those that come are zero, whoever sends them.

    The server's noise, keyed here, is then all that a model is made of.
    """
    usual = kind.exchange  # type: ignore[attr-defined]

    def exchange(self: Any, broadcast: Any, stage: str, requests: Any) -> Iterator[Any]:
        for client, answer in usual(self, broadcast, stage, requests):
            fate = silent(broadcast.round, client)
            if fate is None and not isinstance(answer, ClientRefused):
                yield client, {name: bytes(len(each)) for name, each in answer.items()}
            elif fate:
                yield client, ClientRefused(fate)

    patch.setattr(kind, "exchange", exchange)


def drawing(who: tuple[int, ...] | None, patch: pytest.MonkeyPatch) -> None:
    if who is not None:
        patch.setattr(Draft, "draw", lambda *_: who)


def left_in_one_process(folder: Path, silent: Silent, who: tuple[int, ...] | None) -> Any:
    """All files of a run, and its statement; without the clock's."""
    privacy = {
        "epsilon": 2.0,
        "delta": 1e-3,
        "unit": "client",
        "trust": "central",
        "adjacency": "zero-out",
        "client_rate": 0.4,
        "noise": "keyed",
    }
    data = {
        "source": "synthetic",
        "options": {"records": 90, "features": 4, "classes": 2},
        "holdout": 0.2,
        "partition": {"clients": 5},
    }
    with pytest.MonkeyPatch.context() as patch:
        answering(InProcess, silent, patch)
        drawing(who, patch)
        run(name="t", data=data, method="dp-fedgd", rounds=4, privacy=privacy, out=folder)
    write_statement(folder, folder)
    return {path.name: clockless(path) for path in sorted(folder.iterdir())}


def clockless(path: Path) -> Any:
    if path.is_dir():  # the model's bundle
        return {each.name: clockless(each) for each in sorted(path.iterdir())}
    if path.suffix == ".json":
        facts = json.loads(path.read_text())
        return {key: value for key, value in facts.items() if key not in ("finished", "started")}
    if path.suffix in (".md", ".html"):
        return [line.partition("Ended: ")[0] for line in path.read_text().splitlines()]
    return path.read_bytes()


def left_over_flower(folder: Path, silent: Silent, who: tuple[int, ...] | None) -> Any:
    """Result and log of a strategy; one node of five has no gate."""
    plan, seen = secret(), list[str]()
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: seen.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("dpfed.server.law")
    strategy = DPStrategy(plan, training="t", checkpoint=folder, wait=0.1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPFED_STATE", str(folder / "state"))
        answering(GridTransport, silent, patch)
        drawing(who, patch)
        for module in ("strategy", "transport"):
            patch.setattr(f"dpfed.training.flower.{module}.log", logger)
        for module in ("loop", "round"):
            patch.setattr(f"dpfed.training.{module}.log", logger)
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
        result = strategy.start(Gates(plan, range(5), (0, 1, 2, 4)), INITIAL, timeout=5.0)
    logger.removeHandler(handler)
    assert result.guarantee is not None
    page_of(result, folder / "out")
    model = {name: each.numpy().tobytes() for name, each in result.arrays.items()}
    files = {path.name: clockless(path) for path in sorted((folder / "out").iterdir())}
    rounds = [str(each) for each in result.train_metrics_clientapp.values()]
    return files, result.history, result.stopped, result.answered, model, rounds, seen


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    "left", [pytest.param(left_in_one_process, marks=pytest.mark.long), left_over_flower]
)
def test_under_a_secret_draw_all_that_is_said_is_the_same_whoever_answered(
    left: Any, tmp_path: Path
) -> None:
    usual = left(tmp_path / "usual", ANSWERS["all"], None)
    for name, silent in ANSWERS.items():
        assert left(tmp_path / name, silent, None) == usual, name
    for name, who in DRAWS.items():
        assert left(tmp_path / f"draw {name}", ANSWERS["all"], who) == usual, name


def test_the_law_sees_what_a_run_without_a_secret_draw_says(tmp_path: Path) -> None:
    """The control: where it may be said, other answers give another page."""
    plan = make_plan(nominal=[20] * 5, sum=plain(least_clients=1))
    told = []
    for name in ("all", "one"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DPFED_STATE", str(tmp_path / name))
            answering(GridTransport, ANSWERS[name], patch)
            grid = Gates(plan, range(5), ())
            told.append(DPStrategy(plan, wait=0.1).start(grid, INITIAL, timeout=5.0).answered)
    assert told[0] != told[1]


@pytest.mark.long
def test_under_a_secret_draw_the_page_has_the_expected_number(tmp_path: Path) -> None:
    plan = secret()
    result = DPStrategy(plan, wait=0.1).start(Gates(plan, range(5), range(5)), INITIAL)
    assert result.answered == {"planned": 5, "expected": 2.0}
    page = page_of(result, tmp_path / "out")
    assert "2 of 5 are expected in it, and nobody but the server knows who was" in page
    assert "client 0" not in page


def test_more_clients_than_a_page_can_name_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpfed.training.history.MAX_NAMED_CLIENTS", 3)
    found = trained(None, range(4), ()).answered
    assert found == {"planned": 5, "took_part": 4, "units": 80.0, "fewest": 4, "most": 4}
