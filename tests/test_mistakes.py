# SPDX-License-Identifier: Apache-2.0
"""The likeliest mistakes, each answered in one sentence: the value, the bound and the way out.

Every class of errors.py is shown here with a message that a user meets.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import dpfed
from dpfed import errors
from dpfed.cli import app, main
from dpfed.types import Adjacency

DATA = {
    "source": "synthetic",
    "options": {"records": 300, "features": 4, "classes": 3},
    "partition": {"name": "dirichlet", "clients": 3, "options": {"alpha": 0.5}},
}
SECURE = ("privacy.trust=distributed", "sum.name=secure")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    from dpfed.recipe import dump, parse

    path = tmp_path / "small.toml"
    path.write_text(dump(parse({"rounds": 3, "data": DATA, "privacy": {"epsilon": 2.0}})))
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
    return last.removeprefix("error: ")


MISTAKES = {
    "an epsilon below 0": (
        ["privacy.epsilon=-1"],
        ["epsilon is -1.0", "a finite number above 0", "1 is usual"],
    ),
    "an epsilon in words": (
        ["privacy.epsilon=one"],
        ["privacy.epsilon is 'one'", "must be a number", "correct it, or leave it out"],
    ),
    "a clip of 0": (
        ["privacy.clip=0"],
        ["clip is 0.0", "a finite number above 0", "1 is usual"],
    ),
    "the average of unequal silos under the secure sum": (
        [*SECURE, "privacy.weights=average"],
        ["silos have", "units", "exposes the smallest", "use weights = 'sum'"],
    ),
    "draws under replace-one": (
        ["privacy.record_rate=0.5"],
        ["rate 0.5", "not priced under replace-one", "use adjacency = 'zero-out' or 'add-remove'"],
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
        ["1 colluders among 2 survivors", "3 survivors are the least", "have more clients"],
    ),
    "a misspelt field": (
        ["privacy.epsilonn=1"],
        ["privacy has no field 'epsilonn'", "did you mean 'epsilon'?"],
    ),
    "a misspelt choice": (
        ["privacy.adjacency=replace"],
        ["privacy.adjacency is 'replace'", "use one of replace-one, add-remove, zero-out"],
    ),
    "a misspelt method": (
        ["method=dp-fedadm"],
        ["no method 'dp-fedadm'", "did you mean 'dp-fedadam'"],
    ),
    "a fraction of a round": (
        ["rounds=2.5"],
        ["rounds is 2.5", "must be a whole number", "correct it"],
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
    for word in ("'adult/0'", "has spent epsilon 0 of its budget (1, 1e-05)", "needs 1.089",
                 "dpfed ledger budget adult --epsilon 1.089"):  # fmt: skip
        assert word in said


def test_an_option_that_is_no_number_is_refused_before_anything_runs() -> None:
    arguments = ["calibrate", "--epsilon", "one", "--rounds", "3", "--clients", "3"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert "Invalid value for '--epsilon': 'one' is not a valid float" in done.output


def test_a_port_in_use_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from dpfed.first import doctor

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        monkeypatch.setattr(doctor, "answers", lambda port: False)
        monkeypatch.setenv("FLWR_LOCAL_CONTROL_API_PORT", port)
        done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 1
    (said,) = [line for line in done.output.splitlines() if f"127.0.0.1:{port}" in line]
    for word in ("problem", "is in use", "export FLWR_LOCAL_CONTROL_API_PORT=PORT", "1024"):
        assert word in said


def test_rdp_never_prices_replace_one() -> None:
    """Nor does anything else price draws there: the sentence names the event and the ways out."""
    import dp_accounting as dp

    from dpfed.accounting.guarantee import price

    drawn = dp.PoissonSampledDpEvent(0.5, dp.GaussianDpEvent(1.0))
    with pytest.raises(errors.Unpriceable, match=r"=0\.5.*under replace-one; use"):
        price(drawn, 1e-5, Adjacency.REPLACE_ONE)


# -------------------------------------------------------------------------------- one of each class


class Broken:
    """A client's side that fails, with a record in the text of its error."""

    dimension = 2

    def rows(self, params: Any, unit: Any) -> Any:
        raise ValueError("record 17 is broken")


def played(problem: Any, privacy: dict[str, Any], **sections: Any) -> None:
    """One round of three clients."""
    from dpfed.engines import inprocess
    from dpfed.flower import make_plan

    plan = make_plan([10] * 3, rounds=1, privacy={"epsilon": 1.0, **privacy}, **sections)
    list(inprocess.rounds(plan, [problem] * 3, torch.zeros(2)))


def _unpriceable() -> None:
    import dp_accounting as dp

    from dpfed.accounting.guarantee import price

    price(dp.RandomizedResponseDpEvent(0.5, 2), 1e-5, Adjacency.ADD_REMOVE)


def _budget_spent() -> None:
    from dpfed.accounting.books import Budget, Key
    from dpfed.accounting.ledger import Ledger, Part, Request
    from dpfed.mechanisms.gaussian import gaussian

    ledger, key = Ledger(Path("ledger.sqlite")), Key("adult")
    ledger.declare(key, Budget(1.0, 1e-5))
    part = Part(gaussian(clip=1.0, std=1.0), releases=1, planned=1)
    ledger.begin(Request(key, "first", 0, 0, 0, {"update": part}))


def _bad_release() -> None:
    from dpfed.rows import Dense

    Dense(torch.ones(1, 2)).clipped_sum(0.0)


def _bad_reply() -> None:
    from dpfed.sums.secure import secure

    secure().add(None, 1, {})  # type: ignore[arg-type]


def _untrusted() -> None:
    from dpfed.masking import letters

    letters.unseal(bytes(32), (0, 0), 1, 2, bytes(48))


def _client_refused() -> None:
    raise errors.ClientRefused(errors.wire_name(ValueError("record 17 is broken")))


SHOWN = {
    errors.RecipeError: (
        lambda: dpfed.run(rounds=3, data=DATA, privacy={"epsilon": 0}),
        "epsilon is 0.0, and must be a finite number above 0; 1 is usual",
    ),
    errors.UnsoundPlan: (
        lambda: played(Broken(), {"colluders": 0}),
        "colluders is 0, but a reader always knows its own noise: at least 1",
    ),
    errors.Unpriceable: (_unpriceable, "no accountant here gives an upper bound for Randomized"),
    errors.BudgetSpent: (_budget_spent, "has spent epsilon 0 of its budget (1, 1e-05)"),
    errors.DataError: (
        lambda: dpfed.run(data={"source": "absent.npz"}, privacy={"epsilon": 1.0}),
        "'absent.npz' was not found at absent.npz: set DPFED_DATA or give a path",
    ),
    errors.BadRelease: (_bad_release, "clip is 0.0, and must be a finite number above 0; set"),
    errors.BadReply: (_bad_reply, "a reply on [], where 'sum' is due"),
    errors.Untrusted: (_untrusted, "the letter of client 1 was changed on its way"),
    errors.RoundAborted: (
        lambda: played(Broken(), {"trust": "distributed"}, sum={"name": "secure"}),
        "0 clients are in the total, and 3 are agreed on; the log says why",
    ),
    errors.ClientRefused: (_client_refused, "ClientError"),
}


def test_every_class_of_errors_is_shown() -> None:
    assert set(SHOWN) == set(errors.DpfedError.__subclasses__())


@pytest.mark.parametrize("kind", SHOWN, ids=lambda kind: kind.__name__)
def test_a_class_of_errors_speaks_in_one_sentence(
    kind: type[errors.DpfedError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPFED_DATA", raising=False)
    cause, message = SHOWN[kind]
    with pytest.raises(kind) as caught:
        cause()
    said = str(caught.value)
    assert message in said
    assert "\n" not in said
    assert "record 17" not in said
