# SPDX-License-Identifier: Apache-2.0
"""The likeliest mistakes, each answered in one sentence: the value, the bound and the way out.

Every class of errors.py is shown here with a message that a user meets; a new class needs a line.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import dpfed
from dpfed.cli.main import app, main
from dpfed.core import errors
from dpfed.core.types import Adjacency
from tests.training.flower.local_grid import LocalGrid, become_a_server

DATA = {
    "source": "synthetic",
    "options": {"records": 300, "features": 4, "classes": 3},
    "partition": {"name": "dirichlet", "clients": 3, "options": {"alpha": 0.5}},
}
SECURE = ("privacy.trust=distributed", "sum.name=secure")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    from dpfed.recipes.schema import dump_recipe, parse

    path = tmp_path / "small.toml"
    path.write_text(dump_recipe(parse({"rounds": 3, "data": DATA, "privacy": {"epsilon": 2.0}})))
    return path


def complain(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> str:
    """What ``dpfed`` says on the error stream before it exits with 2, as a person sees it."""
    monkeypatch.setattr("sys.argv", ["dpfed", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    said = capsys.readouterr().err.strip()
    assert "Traceback" not in said
    *_, last = said.splitlines()
    assert last.startswith("error: ")
    assert is_one_sentence(last)
    return last.removeprefix("error: ")


def is_one_sentence(text: str) -> bool:
    return "\n" not in text and not re.search(r"[.!?] [A-Z]", text)


MISTAKES = {
    "an epsilon below 0": (
        ["privacy.epsilon=-1"],
        ["epsilon must be", "a finite number above 0, got -1.0", "1 is usual"],
    ),
    "an epsilon in words": (
        ["privacy.epsilon=one"],
        ["privacy.epsilon must be a number", "got 'one'", "correct it, or leave it out"],
    ),
    "a clip of 0": (
        ["privacy.clip=0"],
        ["clip must be", "a finite number above 0", "got 0.0; 1 is usual"],
    ),
    "distributed trust without the secure sum": (
        ["privacy.trust=distributed"],
        ["must see only the sum", "shows it each reply", "set sum.name = 'secure'"],
    ),
    "the average of unequal silos under the secure sum": (
        [*SECURE, "privacy.weights=average"],
        ["silos have", "units", "exposes the smallest", "use weights = 'sum'"],
    ),
    "draws under replace-one at a tiny delta": (
        ["privacy.record_rate=0.5", "privacy.delta=1e-10"],
        ["privacy.delta must be at least 1e-09", "got 1e-10", "set a rate of 1"],
    ),
    "a data file that is missing": (
        ["data.source=absent.npz"],
        ["'absent.npz' was not found at", "set DPFED_DATA or give a path"],
    ),
    "BatchNorm": (
        ["model.name=network", "model.factory=tests.test_mistakes:with_batch_norm"],
        ["layer '1' is a BatchNorm", "mixes records", "use GroupNorm or LayerNorm"],
    ),
    "too few clients for the secure sum": (
        [*SECURE, "data.partition.clients=2"],
        ["survivors must be at least 3", "1 colluders could open", "got 2; have more clients"],
    ),
    "a misspelt field": (
        ["privacy.epsilonn=1"],
        ["privacy has no field 'epsilonn'", "did you mean 'epsilon'?"],
    ),
    "a field of another table": (
        ["epsilon=1"],
        ["a recipe has no field 'epsilon'", "did you mean 'privacy.epsilon'?"],
    ),
    "a field that is nowhere": (
        ["privacy.accountant=rdp"],
        [
            "privacy has no field 'accountant'",
            "it has adaptive, adjacency, client_rate",
            "unit, weights",
        ],
    ),
    "a table that lacks a field": (
        ["ledger.epsilon=1"],
        ["ledger has no 'dataset'", "set ledger.dataset"],
    ),
    "a misspelt choice": (
        ["privacy.adjacency=replace"],
        ["adjacency must be one of replace-one, add-remove, zero-out", "got 'replace'"],
    ),
    "a misspelt method": (
        ["method=dp-fedadm"],
        ["got 'dp-fedadm'", "a name that 'dpfed methods' lists", "did you mean 'dp-fedadam'?"],
    ),
    "no round": (
        ["rounds=0"],
        ["rounds must be a whole number, at least 1", "got 0", "raise it"],
    ),
    "a fraction of a round": (
        ["rounds=2.5"],
        ["rounds must be a whole number", "got 2.5", "correct it"],
    ),
}


def with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


@pytest.mark.parametrize(("overrides", "words"), MISTAKES.values(), ids=list(MISTAKES))
def test_a_mistake_in_a_recipe_is_answered_in_one_sentence(
    overrides: list[str],
    words: list[str],
    recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sets = [part for each in overrides for part in ("--set", each)]
    out = str(tmp_path / "out")
    said = complain(monkeypatch, capsys, "run", str(recipe), "--quiet", "--out", out, *sets)
    for word in words:
        assert word in said
    assert all(other not in said for other in ("backbone", "shards_per_client"))
    assert not (tmp_path / "out").exists()


def test_a_demo_without_a_promise_is_refused_before_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = complain(monkeypatch, capsys, "demo", "--epsilon", "0", "--out", str(tmp_path / "out"))
    assert "epsilon must be a finite number above 0, got 0.0; 1 is usual" in said
    assert not (tmp_path / "out").exists()


def test_a_recipe_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = complain(monkeypatch, capsys, "run", str(tmp_path / "smal.toml"))
    assert "smal.toml' cannot be read (No such file or directory)" in said
    assert "'dpfed new NAME --recipe' writes" in said


def test_a_spent_budget_says_what_is_spent_and_how_to_raise_it(
    recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ledger = ("ledger.dataset=adult", "ledger.epsilon=1", f"ledger.path={tmp_path / 'l.sqlite'}")
    sets = [part for each in ledger for part in ("--set", each)]
    said = complain(monkeypatch, capsys, "run", str(recipe), "--quiet", *sets)
    for word in (
        "'adult/0'",
        "has spent epsilon 0 of its budget (1, 1e-05)",
        "needs 2",
        "dpfed ledger budget adult --epsilon 2",
    ):
        assert word in said


CALIBRATE = ("calibrate", "--rounds", "3", "--clients", "3")
COMMANDS = {
    "a word for a number": (
        (*CALIBRATE, "--epsilon", "one"),
        ["'--epsilon': 'one' is not a valid float", "'dpfed calibrate --help'"],
    ),
    "no rounds": (
        ("calibrate", "--rounds", "0", "--clients", "3", "--epsilon", "1"),
        ["'--rounds': 0 is not in the range x>=1", "'dpfed calibrate --help'"],
    ),
    "a choice that is none": (
        (*CALIBRATE, "--epsilon", "1", "--trust", "all"),
        ["'all' is not one of 'local', 'distributed', 'central'"],
    ),
    "a missing option": (CALIBRATE, ["missing option '--epsilon'", "'dpfed calibrate --help'"]),
    "a missing argument": (("explain",), ["missing argument 'RUN'", "'dpfed explain --help'"]),
    "nothing to run": (("run",), ["give a recipe, or --method and --epsilon"]),
    "a misspelt option": (("run", "x.toml", "--quite"), ["no such option '--quite'", "'--quiet'"]),
    "a misspelt command": (("runn",), ["no such command 'runn'; did you mean 'run'?"]),
}


@pytest.mark.parametrize(("arguments", "words"), COMMANDS.values(), ids=list(COMMANDS))
def test_a_mistake_on_the_command_line_is_answered_in_one_sentence(
    arguments: tuple[str, ...],
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = complain(monkeypatch, capsys, *arguments)
    for word in words:
        assert word in said


def test_a_group_without_a_command_shows_its_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["dpfed", "ledger"])
    with pytest.raises(SystemExit):
        main()
    shown = "".join(capsys.readouterr())
    assert "budget" in shown
    assert "error" not in shown


def test_a_command_that_ends_by_itself_keeps_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, code in ((["--version"], 0), (["methods", "--json"], 0), (["doctor"], 1)):
        monkeypatch.setattr("sys.argv", ["dpfed", *arguments])
        monkeypatch.setenv("DPFED_DATA", "/no/such")  # a problem to doctor
        with pytest.raises(SystemExit) as left:
            main()
        assert (left.value.code or 0) == code


def test_a_port_in_use_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from dpfed.cli import doctor

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        monkeypatch.setattr(doctor, "is_superlink", lambda port: False)
        monkeypatch.setenv("FLWR_LOCAL_CONTROL_API_PORT", port)
        done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 1
    (said,) = [line for line in done.output.splitlines() if f"127.0.0.1:{port}" in line]
    for word in ("problem", "is in use", "export FLWR_LOCAL_CONTROL_API_PORT=PORT", "1024"):
        assert word in said


def test_flower_nodes_that_do_not_fit_the_plan_are_named_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from flwr.app import ArrayRecord

    from dpfed.flower import DPStrategy, client_app
    from dpfed.training.flower import strategy

    monkeypatch.setenv("DPFED_STATE", str(tmp_path))
    monkeypatch.setattr(strategy.log, "propagate", True)
    become_a_server(monkeypatch)
    plan, arrays = three(), ArrayRecord({"weight": torch.zeros(2)})
    clients = client_app(lambda context: Fine(), plan)
    with pytest.raises(errors.RoundAborted, match="1 of the plan's 3 clients"):
        DPStrategy(plan, wait=0.1).start(LocalGrid(clients, {100: 0, 101: 0, 102: 7}), arrays)
    said = [each.getMessage() for each in caplog.records if "not enrolled" in each.getMessage()]
    assert said == [
        "node 101 is not enrolled: client 0 is enrolled by another node; give each its own "
        "partition-id",
        "node 102 is not enrolled: its partition-id must be from 0 to 2, got 7; correct its "
        "--node-config, or start fewer SuperNodes",
    ]
    why = r"no client was connected within 0\.1 s; start 3 SuperNodes, and look at their logs"
    with pytest.raises(errors.RoundAborted, match=why):
        DPStrategy(plan, wait=0.1).start(LocalGrid(clients, {}), arrays)


def test_rdp_never_prices_replace_one() -> None:
    """Nor does anything else price draws there: the sentence names the event and the ways out."""
    import dp_accounting as dp

    from dpfed.accounting.guarantee import epsilon_of_event

    drawn = dp.PoissonSampledDpEvent(0.5, dp.GaussianDpEvent(1.0))
    with pytest.raises(errors.Unpriceable, match=r"=0\.5.*under replace-one; use"):
        epsilon_of_event(drawn, 1e-5, Adjacency.REPLACE_ONE)


# -------------------------------------------------------------------------------- one of each class


class Broken:
    """A client's side that fails, with a record in the text of its error."""

    dimension = 2

    def made_up(self) -> Broken:
        return self

    def rows(self, params: Any, unit: Any) -> Any:
        raise ValueError("record 17 is broken")


class Fine(Broken):
    """One that does not."""

    def rows(self, params: Any, unit: Any) -> Any:
        from dpfed.core.rows import Dense

        return Dense(torch.ones(10, 2))


SECURELY: dict[str, Any] = {"privacy": {"trust": "distributed"}, "sum": {"name": "secure"}}


def three(**sections: Any) -> Any:
    """A plan of one round for three clients."""
    from dpfed.flower import make_plan

    privacy = {"epsilon": 1.0, **sections.pop("privacy", {})}
    return make_plan([10] * 3, rounds=1, privacy=privacy, **sections)


def played(problem: Any, **sections: Any) -> None:
    from dpfed.recipes.result import require_a_round
    from dpfed.training.inprocess import InProcess
    from dpfed.training.loop import train

    plan = three(**sections)
    *_, last = train(plan, torch.zeros(2), InProcess(plan, [problem] * 3))
    require_a_round(last)


def _unpriceable() -> None:
    import dp_accounting as dp

    from dpfed.accounting.guarantee import epsilon_of_event

    epsilon_of_event(dp.RandomizedResponseDpEvent(0.5, 2), 1e-5, Adjacency.ADD_REMOVE)


def _budget_spent() -> None:
    ledger = {"dataset": "adult", "epsilon": 0.5, "path": "ledger.sqlite"}
    dpfed.run(method="dp-fedgd", rounds=3, data=DATA, privacy={"epsilon": 1.0}, ledger=ledger)


def _bad_release() -> None:
    from dpfed.core.rows import Dense

    Dense(torch.ones(1, 2)).clipped_sum(0.0)


def _bad_reply() -> None:
    """What the server makes of a reply that is cut off: the round goes on without it."""

    def cut(*_: Any) -> Iterable[tuple[int, Mapping[str, bytes]]]:
        return [(0, {"update": b"123"})]

    a_round(three(), cut)


def _untrusted() -> None:
    """What a client makes of a server that asks for the same round once more."""
    from dpfed.sums.secagg.identity import simulated
    from dpfed.training.reply import ClientState, client_reply

    plan, signers = three(**SECURELY), simulated(3)
    members = {i: ClientState(i, Fine(), signer=signers[i]) for i in range(3)}

    def twice(broadcast: Any, stage: str, requests: Any) -> Iterator[tuple[int, Any]]:
        for client in sorted(set().union(*requests.values())):
            asked = {name: to[client] for name, to in requests.items() if client in to}
            for _ in range(2 if stage == plan.sum.release_stage else 1):
                reply, members[client] = client_reply(
                    plan, broadcast, stage, asked, members[client]
                )
            yield client, reply

    a_round(plan, twice, signers[0])


def a_round(plan: Any, transport: Any, roster: Any = None) -> None:
    from dpfed.training.round import run_round, start

    run_round(plan, start(plan, torch.zeros(2), roster=roster), transport)


def _ledger_rolled_back() -> None:
    from dpfed.accounting.ledger.heads import Conflict, take_head
    from dpfed.accounting.ledger.ledger import Ledger

    older, newer = Path("older.sqlite"), Path("newer.sqlite")
    Conflict(older).meet(Ledger(older), [take_head(Ledger(newer))])


def _missing_extra() -> None:
    from dpfed.core.extras import require_extra

    with require_extra("plots", "a figure", "matplotlib"):
        raise ModuleNotFoundError("No module named 'matplotlib'")


class Shown(NamedTuple):
    """How an error is met, and what its sentence says."""

    cause: Callable[[], object]
    value: str
    bound: str
    way_out: str


SHOWN = {
    errors.RecipeError: Shown(
        lambda: dpfed.run(rounds=4, data=DATA, privacy={"epsilon": 0}),
        "got 0.0",
        "a finite number above 0",
        "1 is usual",
    ),
    errors.UnsoundPlan: Shown(
        lambda: played(Fine(), privacy={"record_rate": 0.5, "delta": 1e-10}),
        "got 1e-10",
        "must be at least 1e-09",
        "raise it, or set a rate of 1",
    ),
    errors.Unpriceable: Shown(
        _unpriceable,
        "RandomizedResponseDpEvent",
        "under add-remove",
        "use Gaussian releases",
    ),
    errors.BudgetSpent: Shown(
        _budget_spent,
        "needs 1",
        "budget (0.5, 1e-05)",
        "dpfed ledger budget adult --epsilon 1",
    ),
    errors.LedgerRolledBack: Shown(
        _ledger_rolled_back,
        "has not",
        "all rows that others keep a signed head of",
        "dpfed ledger declare-lost --help",
    ),
    errors.MissingExtra: Shown(
        _missing_extra,
        "matplotlib",
        "cannot be imported",
        "pip install 'dpfed[plots]'",
    ),
    errors.DataError: Shown(
        lambda: dpfed.run(data={"source": "absent.npz"}, privacy={"epsilon": 1.0}),
        "'absent.npz'",
        "was not found at absent.npz",
        "set DPFED_DATA or give a path",
    ),
    errors.BadRelease: Shown(
        _bad_release,
        "got 0.0",
        "clip must be a finite number above 0",
        "set privacy.clip",
    ),
    errors.BadReply: Shown(
        _bad_reply,
        "got 3 bytes",
        "2 integers of 4 or 8 bytes",
        "use the same plan",
    ),
    errors.Untrusted: Shown(
        _untrusted,
        "got (0, 0)",
        "the round must be after (0, 0)",
        "resume from the newest",
    ),
    errors.RoundAborted: Shown(
        lambda: played(Broken(), **SECURELY),
        "0 clients are in the total",
        "3 are agreed on",
        "logs say why",
    ),
    errors.ClientRefused: Shown(
        lambda: played(Broken()),
        "client 0",
        "ClientError",
        "its own log says why",
    ),
}


def all_below(kind: type) -> set[type]:
    return {each for below in kind.__subclasses__() for each in (below, *all_below(below))}


ELSEWHERE = {"Refusal", "ChildEnded", "OverLimits"}
"""A node that refused to enrol: tests/training/flower/test_strategy.py has what is said. A child
process that ended or met its limits: tests/core/test_jail.py."""


def test_every_class_of_errors_is_shown() -> None:
    found = {each for each in all_below(errors.DpfedError) if each.__module__.startswith("dpfed.")}
    ours = {each for each in found if not each.__name__.startswith("_")}
    assert set(SHOWN) == {each for each in ours if each.__name__ not in ELSEWHERE}


LEFT_OUT = (errors.BadReply, errors.ClientRefused)
"""A round goes on without the client: the server's log has the sentence."""


def sentences(
    kind: type[errors.DpfedError], cause: Callable[[], object], caplog: pytest.LogCaptureFixture
) -> list[str]:
    """What a person reads: an error that ended the run, or the one in a log."""
    said = []
    try:
        cause()
    except errors.DpfedError as error:  # a run may end by another one than that of its clients
        said = [str(error)] if isinstance(error, kind) else []
    for record in caplog.records:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, kind):
            said.append(str(error))
        elif kind in LEFT_OUT and "is left out" in record.getMessage():
            said.append(record.getMessage())
    return said


@pytest.mark.parametrize("kind", SHOWN, ids=lambda kind: kind.__name__)
def test_a_class_of_errors_says_value_bound_and_way_out_in_one_sentence(
    kind: type[errors.DpfedError],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPFED_DATA", raising=False)
    cause, *words = SHOWN[kind]
    said = sentences(kind, cause, caplog)
    assert said
    for sentence in said:
        assert is_one_sentence(sentence)
        assert "record 17" not in sentence
    assert [word for word in words if word not in said[0]] == [], said[0]
