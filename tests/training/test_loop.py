# SPDX-License-Identifier: Apache-2.0
"""The table of training/loop.py, cell by cell: in one process, and over Flower's messages.

Simulation and deployment share one transport, so its column is both; what they do otherwise (a
simulation is not resumed) has a test of its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save

from dpfed._version import VERSION
from dpfed.accounting import gdp
from dpfed.accounting.ledger.balance import Budget
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.audit.client_laws import MODEL
from dpfed.client.fedavg import fedavg
from dpfed.client.gradient import gradient
from dpfed.core.errors import BudgetSpent, RecipeError, RoundAborted
from dpfed.core.types import METRICS, UPDATE, Adjacency, Broadcast, ClientAlgorithm, Facts, Trust
from dpfed.flower import client_app
from dpfed.mechanisms.gaussian import gaussian
from dpfed.recipes.result import require_a_round
from dpfed.recipes.run import run as run_recipe
from dpfed.sums.secure import secure
from dpfed.training.account import Account
from dpfed.training.checkpoint import Checkpoint
from dpfed.training.flower.transport import GridTransport
from dpfed.training.inprocess import InProcess
from dpfed.training.loop import Step, Transport, train
from dpfed.training.plan import Plan
from dpfed.training.stopping import EXHAUSTED, MAX_FAILED_ATTEMPTS, UNAFFORDABLE
from tests.helpers.one_door import watched
from tests.helpers.quiet import Died, Quiet, Silent
from tests.helpers.round_counts import updates
from tests.helpers.rounds import SIZES, client_states, make_plan
from tests.training.flower.local_grid import LocalGrid, become_a_server, nodes

NUMBERS = count()
EXCEEDS = "the next round would exceed the plan's guarantee"


class Broken:
    """A client whose code raises, on made-up records too."""

    dimension = MODEL.layout.size

    def made_up(self) -> Broken:
        return self

    def rows(self, *_: object) -> None:
        raise RuntimeError("disk on fire")


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFED_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("DPFED_IDENTITY", "simulated")
    become_a_server(monkeypatch)


def in_process(plan: Plan, problems: list[Any], ledger: Account | None) -> Transport:
    return InProcess(plan, problems, ledger)


def over_flower(plan: Plan, problems: list[Any], ledger: Account | None) -> Transport:
    app = client_app(
        lambda context: problems[context.node_config["partition-id"]], plan, lambda _: ledger
    )
    grid = LocalGrid(app, nodes(len(problems)))
    return GridTransport(plan, grid, MODEL.layout, timeout=30.0, wait=0.0)


ENGINES = {"in-process": in_process, "flower": over_flower}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Any:
    return ENGINES[request.param]


def trained(
    engine: Any,
    plan: Plan | None = None,
    *,
    problems: Iterable[Any] | None = None,
    silent: Silent = lambda *_: False,
    ledger: Account | None = None,
    **options: Any,
) -> Step:
    """The last step of a training."""
    plan = plan or make_plan()
    found = [m.problem for m in client_states().values()] if problems is None else list(problems)
    transport = Quiet(engine(plan, found, ledger), silent)
    named = {"training": f"training-{next(NUMBERS)}", **options}  # clients answer each name once
    *_, last = train(plan, torch.zeros(MODEL.layout.size), transport, **named)
    return last


@pytest.mark.parametrize(
    ("client", "trust", "each"), [(gradient(), Trust.CENTRAL, 1), (fedavg(steps=3), Trust.LOCAL, 3)]
)
def test_every_release_passes_the_one_door(
    engine: Any, client: ClientAlgorithm, trust: Trust, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four rounds of three clients: an algorithm's own releases, and one of metrics."""
    clips = {UPDATE: 1.0, METRICS: 1.5}
    channels = {name: gaussian(Facts(clip, trust=trust), 2.0) for name, clip in clips.items()}
    door = watched(monkeypatch)
    last = trained(engine, make_plan(client=client, channels=channels))
    assert last.state.round == 4
    assert door.passed == door.released == 4 * 3 * (each + 1)


def releases(step: Step) -> int:
    return updates(step.state.release_counts)


def whole(engine: Any) -> Step:
    return trained(engine)


# ------------------------------------------------------------ a round aborts before any release


def test_an_attempt_without_keys_is_free_and_made_again(engine: Any) -> None:
    plan = make_plan(sum=secure(survivors=1.0))
    last = trained(engine, plan, silent=lambda b, stage, _: stage == "keys" and b.attempt < 2)
    assert (last.state.round, last.stopped, releases(last)) == (4, None, 4)
    assert [row["aborted"] != "" for row in last.history] == [
        True,
        True,
        False,
        False,
        False,
        False,
    ]
    assert [row["epsilon"] for row in last.history[:2]] == [0.0, 0.0]


def test_keys_that_never_come_end_the_training_and_nothing_is_spent(engine: Any) -> None:
    plan = make_plan(sum=secure(survivors=1.0))
    last = trained(engine, plan, silent=lambda b, stage, _: stage == "keys")
    assert (
        last.stopped
        == f"{MAX_FAILED_ATTEMPTS} attempts in a row failed before any release was asked for"
    )
    assert (last.state.round, releases(last), len(last.history)) == (0, 0, MAX_FAILED_ATTEMPTS)


# ------------------------------------------------------------------- nobody answers, or too few


def test_an_attempt_that_nobody_answers_is_spent_and_made_again(engine: Any) -> None:
    last = trained(engine, silent=lambda b, *_: b.round == 1 and b.attempt == 0)
    rows = [(row["round"], row["aborted"], row["clients"]) for row in last.history]
    nobody = [(1, "no client answered", 0)]
    twice = engine is not ENGINES["in-process"]  # the same attempt first: answers are stored
    assert rows == [(1, "", 3), *nobody * (1 + twice), (2, "", 3), (3, "", 3)]
    assert (last.stopped, releases(last)) == (EXCEEDS, 4)  # what was planned, and no more
    assert not torch.equal(last.state.params, torch.zeros(MODEL.layout.size))


@pytest.mark.parametrize("died_at", ["input", "unmask"])
def test_the_same_attempt_is_asked_for_again_and_costs_nothing_more(died_at: str) -> None:
    """Clients send what they stored, those who were silent answer now, and all rounds are done."""
    lost: list[int] = []

    def once(broadcast: Broadcast, stage: str, client: int) -> bool:
        gone = stage == died_at and (broadcast.round, client) == (1, 1) and not lost
        lost.extend([client] if gone else [])
        return gone

    plan = make_plan(sum=secure(survivors=1.0))
    last = trained(ENGINES["flower"], plan, silent=once)
    rows = [(row["round"], bool(row["aborted"]), row["clients"]) for row in last.history]
    assert rows == [(1, False, 3), (1, True, 0), (2, False, 3), (3, False, 3), (4, False, 3)]
    assert (last.stopped, releases(last)) == (None, 4), "no attempt was wasted"
    clean = trained(ENGINES["flower"], plan)
    assert torch.equal(last.state.params, clean.state.params), "with the very noise of the first"


def test_after_the_same_attempt_one_of_the_plans_spare_ones_is_made() -> None:
    """First the same bytes once more, which cost nothing; then a new attempt, which was priced."""
    asked: list[tuple[int, int]] = []

    def silent(broadcast: Broadcast, stage: str, client: int) -> bool:
        if stage == "input" and client == 1:
            asked.append((broadcast.round, broadcast.attempt))
        return stage == "input" and (broadcast.round, broadcast.attempt, client) == (1, 0, 1)

    plan = make_plan(sum=secure(survivors=1.0), spare=1)
    last = trained(ENGINES["flower"], plan, silent=silent)
    assert asked == [(0, 0), (1, 0), (1, 0), (1, 1), (2, 0), (3, 0)]
    assert (last.state.round, last.stopped, releases(last)) == (4, None, 5)
    without = trained(ENGINES["flower"], make_plan(sum=secure(survivors=1.0)), silent=silent)
    assert (without.state.round, without.stopped) == (3, EXCEEDS), "none to spare: a round less"


def test_where_the_server_adds_the_noise_an_attempt_is_always_made_anew(tmp_path: Path) -> None:
    """The same sums with other noise would be a second release of what was counted once."""
    plan = make_plan(channels={UPDATE: gaussian(Facts(1.0, trust=Trust.CENTRAL), 2.0)})
    problems = [m.problem for m in client_states().values()]
    begin, checkpoint = torch.zeros(MODEL.layout.size), Checkpoint(tmp_path / "run")
    asked: list[tuple[int, int]] = []

    def nobody(broadcast: Broadcast, stage: str, client: int) -> bool:
        asked.extend([(broadcast.round, broadcast.attempt)] if not client else [])
        return (broadcast.round, broadcast.attempt) == (1, 0)

    last = trained(ENGINES["flower"], plan, silent=nobody)
    assert asked == [(0, 0), (1, 0), (1, 1), (2, 0)]
    assert (last.state.round, releases(last)) == (3, 4)
    dying = Quiet(ENGINES["flower"](plan, problems, None), lambda b, *_: b.round == 1, die=True)
    with pytest.raises(Died):
        list(train(plan, begin, dying, training="died", checkpoint=checkpoint))
    living = ENGINES["flower"](plan, problems, None)
    first, *_ = train(plan, begin, living, training="died", checkpoint=checkpoint)
    assert (first.state.round, first.state.attempt, releases(first)) == (1, 1, 2)


def test_an_attempt_that_is_asked_for_again_counts_once_after_a_crash(tmp_path: Path) -> None:
    """The server dies after the attempt without a total: whoever goes on has counted it once."""
    plan, checkpoint = make_plan(sum=secure(survivors=1.0)), Checkpoint(tmp_path / "kept")
    problems = [m.problem for m in client_states().values()]
    begin = torch.zeros(MODEL.layout.size)
    lost = Quiet(
        ENGINES["flower"](plan, problems, None),
        lambda b, stage, i: stage == "input" and b.round == 1 and i == 1,
    )
    for step in train(plan, begin, lost, training="once", checkpoint=checkpoint):
        if step.history and step.history[-1]["aborted"]:
            assert releases(step) == 2
            break
    del step
    whole = ENGINES["flower"](plan, problems, None)
    *_, last = train(plan, begin, whole, training="once", checkpoint=checkpoint)
    assert (last.state.round, last.stopped, releases(last)) == (4, None, 4)


def test_attempts_that_nobody_answers_end_the_training(engine: Any) -> None:
    last = trained(engine, make_plan(rounds=20), silent=lambda b, *_: b.round == 2)
    assert last.stopped is not None
    assert last.stopped.startswith(f"{MAX_FAILED_ATTEMPTS} attempts in a row got no total")
    assert "no client answered" in last.stopped
    assert (last.state.round, releases(last)) == (2, 2 + MAX_FAILED_ATTEMPTS)


def test_too_few_for_a_secure_sum_is_the_same(engine: Any) -> None:
    plan = make_plan(rounds=9, sum=secure(survivors=1.0))
    last = trained(engine, plan, silent=lambda b, stage, i: stage == "input" and i == 1)
    assert last.stopped is not None
    assert "2 clients are in the total, and 3 are agreed on" in last.stopped
    assert (last.state.round, releases(last)) == (0, MAX_FAILED_ATTEMPTS)


def test_failures_count_only_in_a_row(engine: Any) -> None:
    odd = make_plan(rounds=12)
    last = trained(engine, odd, silent=lambda b, *_: b.attempt < 2 and b.round in (0, 1, 2))
    assert (last.state.round, last.stopped, releases(last)) == (6, EXCEEDS, 12)


# ------------------------------------------------------------- the plan's guarantee affords no more


def test_training_ends_before_the_guarantee_is_exceeded(engine: Any) -> None:
    last = trained(engine, until=50)
    assert (last.state.round, last.stopped, releases(last)) == (4, EXCEEDS, 4)
    assert torch.equal(last.state.params, whole(engine).state.params)


# ------------------------------------------------------------------ every client's own budget ends


def account_for(rounds: float, tmp_path: Path) -> Account:
    one = gdp.mu_squared(2.0, 1, Adjacency.REPLACE_ONE)
    budget = Budget(gdp.epsilon_for(1e-5, math.sqrt(rounds * one)), 1e-5)
    return Account(Ledger(tmp_path / "ledger.sqlite"), "adult", budget=budget)


def test_a_training_that_the_budget_cannot_pay_for_is_refused_whole(
    engine: Any, tmp_path: Path
) -> None:
    """Not in its middle: nothing is asked for, and nothing is spent."""
    account = account_for(3.5, tmp_path)
    last = trained(engine, ledger=account)
    assert (last.state.round, last.stopped, last.history) == (0, UNAFFORDABLE, ())
    assert [row.body["kind"] for row in account.ledger.rows()] == ["budget"]
    with pytest.raises(BudgetSpent, match="completed: no client's budget"):
        require_a_round(last)


def test_a_training_that_fits_exactly_is_not_refused(engine: Any, tmp_path: Path) -> None:
    last = trained(engine, ledger=account_for(4.0, tmp_path))
    assert (last.state.round, last.stopped) == (4, None)


@pytest.fixture
def spent_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the whole training had fitted when it began, and others had spent since."""
    monkeypatch.setattr(Ledger, "refusals", lambda *_: {})


@pytest.mark.usefixtures("spent_meanwhile")
def test_training_ends_when_no_budget_suffices_and_the_model_is_kept(
    engine: Any, tmp_path: Path
) -> None:
    last = trained(engine, ledger=account_for(2.5, tmp_path))
    assert (last.state.round, last.stopped) == (2, EXHAUSTED)
    assert len(last.history) == 3  # the attempt that all refused is a row, too
    assert last.history[-1]["refused"] == "0: BudgetSpent | 1: BudgetSpent | 2: BudgetSpent"
    two = trained(engine, training="two", until=2)
    assert torch.equal(last.state.params, two.state.params)


@pytest.mark.usefixtures("spent_meanwhile")
def test_a_budget_that_allows_no_round_is_refused_by_whoever_reports(
    engine: Any, tmp_path: Path
) -> None:
    last = trained(engine, ledger=account_for(0.5, tmp_path))
    assert (last.state.round, last.stopped) == (0, EXHAUSTED)
    with pytest.raises(BudgetSpent, match="completed: no client's budget"):
        require_a_round(last)


# --------------------------------------------------------------------------- clients' code raises


def test_clients_whose_code_raises_are_left_out(engine: Any) -> None:
    plan = make_plan(nominal=[5, *SIZES])
    last = trained(
        engine, plan, problems=[Broken(), *(m.problem for m in client_states().values())]
    )
    assert (last.state.round, last.stopped) == (4, None)
    for row in last.history:
        assert (row["clients"], row["absent"], row["refused"]) == (3, "0", "0: ClientError")


def test_if_the_code_of_all_raises_it_is_as_if_nobody_answered(engine: Any) -> None:
    last = trained(engine, make_plan(nominal=[5, 5]), problems=[Broken(), Broken()])
    assert last.stopped is not None
    assert last.stopped.startswith(f"{MAX_FAILED_ATTEMPTS} attempts in a row got no total")
    assert (last.state.round, releases(last)) == (0, MAX_FAILED_ATTEMPTS)
    with pytest.raises(RoundAborted, match=r"completed \(no client answered\).*logs"):
        require_a_round(last)


# ---------------------------------------------------------------------------- nobody is connected


def test_nobody_is_connected() -> None:
    """In one process everyone always is; over Flower training ends, and nothing is spent."""
    plan = make_plan()
    problems = [m.problem for m in client_states().values()]
    assert InProcess(plan, problems).ready(Step(state=whole(in_process).state)) is None
    transport: Any = over_flower(plan, problems, None)
    transport.grid.offline = set(nodes(3))
    *_, last = train(plan, torch.zeros(MODEL.layout.size), transport)
    assert last.stopped is not None
    assert last.stopped.startswith("no client was connected within 0 s; start 3 SuperNodes")
    assert (releases(last), last.history) == (0, ())


# --------------------------------------------------------------------------------- the process dies


@pytest.mark.parametrize("round", [0, 2])
def test_a_process_that_dies_goes_on_and_what_it_asked_for_is_spent(
    engine: Any, round: int, tmp_path: Path
) -> None:
    """Clients that store their answers are asked again; others make the attempt anew."""
    plan, checkpoint = make_plan(), Checkpoint(tmp_path / "run")
    problems = [m.problem for m in client_states().values()]
    start = torch.zeros(MODEL.layout.size)
    dying = Quiet(engine(plan, problems, None), lambda b, *_: b.round == round, die=True)
    with pytest.raises(Died):
        list(train(plan, start, dying, checkpoint=checkpoint))
    living = engine(plan, problems, None)
    first, *_, last = train(plan, start, living, checkpoint=checkpoint)
    anew = int(not living.stores_replies)
    assert (first.state.round, first.state.attempt, releases(first)) == (round, anew, round + 1)
    assert [row["round"] for row in first.history] == list(range(1, round + 1))
    assert (last.state.round, releases(last)) == (4 - anew, 4)
    assert last.stopped == (EXCEEDS if anew else None)


def test_a_step_is_on_the_disk_before_anyone_sees_it(engine: Any, tmp_path: Path) -> None:
    """A caller that dies while it looks at a round finds it again."""
    plan, checkpoint = make_plan(), Checkpoint(tmp_path / "run")
    problems = [m.problem for m in client_states().values()]
    start = torch.zeros(MODEL.layout.size)
    steps = train(plan, start, engine(plan, problems, None), checkpoint=checkpoint)
    seen = [next(steps), next(steps), next(steps)][-1]
    steps.close()  # type: ignore[attr-defined]
    first, *_, last = train(plan, start, engine(plan, problems, None), checkpoint=checkpoint)
    assert (first.state.round, first.state.attempt) == (2, 0)
    assert first.history == seen.history
    assert (last.state.round, last.stopped, releases(last)) == (4, None, 4)
    assert torch.equal(last.state.params, whole(engine).state.params)


@pytest.mark.parametrize(
    ("made_by", "said"),
    [
        (VERSION, None),
        ("0.2.9", "dpfed 0.2.9"),
        ("\x1b[2J", "dpfed \N{REPLACEMENT CHARACTER}[2J"),
    ],
)
def test_a_resume_says_that_another_version_made_the_rounds_so_far(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, made_by: str, said: str | None
) -> None:
    plan, checkpoint = make_plan(), Checkpoint(tmp_path / "run")
    problems = [m.problem for m in client_states().values()]

    def resumed() -> Iterator[Step]:
        begin = torch.zeros(MODEL.layout.size)
        return train(plan, begin, in_process(plan, problems, None), checkpoint=checkpoint)

    list(islice(resumed(), 2))
    path = checkpoint.folder / "progress.safetensors"
    with safe_open(path, framework="pt") as file:
        facts = json.loads(file.metadata()["facts"])
        tensors = {each: file.get_tensor(each) for each in file.keys()}  # noqa: SIM118
    assert facts.pop("dpfed") == VERSION
    path.write_bytes(save(tensors, {"facts": json.dumps(facts | {"dpfed": made_by})}))
    *_, last = resumed()
    warned = [text for text in caplog.messages if "another version" in text]
    assert last.state.round == 4, "it goes on all the same"
    assert len(warned) == bool(said)
    assert all(f"{said}, and this is {VERSION}" in text for text in warned)


def test_a_simulation_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="a simulation is not resumed"):
        run_recipe(
            {"method": "dp-fedgd", "rounds": 1, "privacy": {"epsilon": 1.0}},
            engine="flower-simulation",
            resume=tmp_path / "run",
        )


# ------------------------------------------------------------------------------------ the same bits


def test_both_engines_end_with_the_same_bits_whatever_went_wrong() -> None:
    def late(b: Broadcast, stage: str, client: int) -> bool:
        return (b.round, client) in {(0, 1), (2, 0)} or (b.round == 1 and b.attempt == 0)

    ends = [trained(each, make_plan(rounds=6), silent=late) for each in ENGINES.values()]
    assert torch.equal(ends[0].state.params, ends[1].state.params)
    timeless = [[{**row, "seconds": 0} for row in end.history] for end in ends]
    over_flower = timeless[1 - list(ENGINES).index("in-process")]
    del over_flower[2]  # where answers are stored, the attempt without a total is asked for twice
    assert timeless[0] == timeless[1]
    assert ends[0].committed == ends[1].committed
