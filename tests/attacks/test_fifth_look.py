# SPDX-License-Identifier: Apache-2.0
"""What a reader found after the fixes of the third attack: small things, each of its own kind."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import dpfed
from dpfed.accounting.calibrate import calibrate
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.cli.explain import gather_statement
from dpfed.core.adaptive_rows import ClipIndicator
from dpfed.core.database import writing
from dpfed.core.errors import BadReply, DataError, RecipeError
from dpfed.core.rows import Outer
from dpfed.mechanisms.gaussian import gaussian
from dpfed.parts import NoisySum, SumServer
from dpfed.parts.secure_total import SUM, _Member
from dpfed.recipes.schema import load_recipe
from dpfed.silo import gate
from dpfed.silo.frames import ask
from dpfed.silo.gate import only_gate
from dpfed.silo.handler import RequestHandler
from dpfed.silo.policy import load_policy
from tests.helpers.handlers import _own_environment, handler, order, said  # noqa: F401
from tests.laws.test_drawn_number import Shapes
from tests.silo.gates import Silo, read, terms_for

# ---------------------------------------------------------------------------- forks and databases


def ends(work: Callable[[], object], seconds: int = 20) -> bool:
    """Whether a process that does this ends by itself, in order."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def add(path: Path) -> None:
    with writing(path) as db:
        db.execute("CREATE TABLE IF NOT EXISTS items (at INTEGER)")
        db.execute("INSERT INTO items VALUES (1)")


def count(path: Path) -> int:
    with writing(path) as db:
        return int(db.execute("SELECT count(*) FROM items").fetchone()[0])


def test_a_fork_and_a_block_in_a_block_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """The fork held the lock that the second block needs, and waited for the first one to end."""
    outer, inner = tmp_path / "outer.sqlite", tmp_path / "inner.sqlite"

    def work() -> None:
        inside = threading.Event()

        def nest() -> None:
            with writing(outer):
                inside.set()
                time.sleep(0.3)
                add(inner)

        thread = threading.Thread(target=nest)
        thread.start()
        inside.wait()
        assert ends(lambda: add(outer))
        thread.join()
        assert (count(outer), count(inner)) == (1, 1)

    assert ends(work)


def test_two_forks_in_blocks_do_not_wait_for_each_other(tmp_path: Path) -> None:
    paths = [tmp_path / f"{at}.sqlite" for at in range(2)]

    def work() -> None:
        both = threading.Barrier(2)

        def forks(path: Path) -> None:
            with writing(path):
                both.wait()
                assert ends(lambda: add(tmp_path / f"{path.name}.other"))

        threads = [threading.Thread(target=forks, args=(path,)) for path in paths]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert all(count(tmp_path / f"{path.name}.other") == 1 for path in paths)

    assert ends(work)


# --------------------------------------------------------------------------------- files of others


def test_a_recipe_without_end_is_read_up_to_a_bound(tmp_path: Path) -> None:
    data = {"options": {"records": 60, "features": 3, "classes": 2}, "partition": {"clients": 2}}
    folder = tmp_path / "run"
    dpfed.run(data=data, method="dp-fedgd", rounds=1, privacy={"epsilon": 1.0}, out=folder)
    with (folder / "recipe.toml").open("ab") as file:
        file.truncate(1 << 25)
    with pytest.raises(RecipeError, match="at most"):
        gather_statement(folder)
    with pytest.raises(RecipeError, match="at most"):
        load_recipe(folder / "recipe.toml")
    (folder / "recipe.toml").unlink()
    (folder / "recipe.toml").symlink_to("/dev/zero")
    with pytest.raises(RecipeError, match="plain file"):
        gather_statement(folder)


# ------------------------------------------------------------------------------ the gate's folder


def test_a_gate_ends_once_a_copy_is_in_the_place_of_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second gate could lock the copy, while the first one went on."""
    monkeypatch.setattr(gate, "_LOCK_TIMEOUT_S", 0.1)
    state = tmp_path / "state"
    with only_gate(state) as in_place:
        in_place()
        shutil.copytree(state, tmp_path / "copy")
        shutil.rmtree(state)
        with pytest.raises(DataError, match="stay in its place"):
            in_place()
        (tmp_path / "copy").rename(state)
        with only_gate(state) as second:
            with pytest.raises(DataError, match="stay in its place"):
                in_place()
            second()


@pytest.mark.slow
def test_it_answers_no_order_after_that(tmp_path: Path) -> None:
    first = Silo(tmp_path / "silo", 0)
    first.write()
    path, state = terms_for(tmp_path, 3), tmp_path / "silo" / "state"
    first.approve(path)
    first.start()
    try:
        assert "error" not in said(ask(str(first.socket), order(read(path)), 60))
        shutil.copytree(state, tmp_path / "copy")
        state.rename(tmp_path / "old")
        (tmp_path / "copy").rename(state)
        with pytest.raises(OSError):  # noqa: PT011  refused, closed or reset, by when it is asked
            ask(str(first.socket), order(read(path), 1), 60)
        assert first.process is not None
        assert first.process.wait(60) == 2
        assert "gate.state must stay in its place" in (first.folder / "gate.log").read_text()
        rounds = [row.body.get("round") for row in Ledger(state / "ledger.sqlite").rows()]
        assert [each for each in rounds if each is not None] == [0]
    finally:
        first.kill()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_a_state_that_others_may_write_to_starts_no_gate(tmp_path: Path, mode: int) -> None:
    held = handler(tmp_path)
    held.state.chmod(mode)
    os.chown(held.state, os.geteuid(), os.getegid() + 1)
    with pytest.raises(DataError, match=r"gate\.state must be writable by the gate's user alone"):
        RequestHandler(held.policy).open()
    with (
        pytest.raises(DataError, match=r"gate\.state must be writable"),
        only_gate(held.state),
    ):
        pass
    held.state.chmod(0o700)
    RequestHandler(load_policy(tmp_path / "silo" / "silo.toml")).open()


# ------------------------------------------------------------------------------------------- parts


@pytest.mark.parametrize("releases", [2.5, 2.0, True, float("nan"), "2"])
def test_a_number_of_releases_is_whole(releases: Any) -> None:
    """2.5 releases were three, with the noise of two and a half."""
    with pytest.raises(RecipeError, match="a whole number, at least 1"):
        NoisySum(clip=1.0, epsilon=1.0, delta=1e-5, releases=releases)
    with pytest.raises(RecipeError, match="a whole number, at least 1"):
        calibrate(gaussian(), epsilon=1.0, delta=1e-5, releases=releases)


@pytest.mark.parametrize("name", ["parties", "colluders"])
def test_a_number_of_parties_is_whole(name: str) -> None:
    with pytest.raises(RecipeError, match="a whole number"):
        NoisySum(clip=1.0, epsilon=1.0, delta=1e-5, **{"parties": 4, name: 3.5})
    with pytest.raises(RecipeError, match="parties"):
        SumServer(parties=3.5, size=2, name="poll")  # type: ignore[arg-type]


def test_of_many_threads_with_one_party_one_has_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of them could both find that it was not used yet, and sum it twice."""
    member, found = _Member(_TERMS, Any), list[str]()  # type: ignore[arg-type]
    begin, process = threading.Barrier(8), os.getpid()

    def slowly() -> int:
        time.sleep(0.05)  # between the question and its answer
        return process

    monkeypatch.setattr("dpfed.parts.secure_total.os.getpid", slowly)

    def ask() -> None:
        begin.wait()
        try:
            member.reply("release", b"")
            found.append("answered")
        except BadReply:
            found.append("refused")

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(found) == ["answered", *["refused"] * 7]


class _Sum:
    release_stage = "release"

    def reply(self, *_: Any) -> Any:
        return {SUM: b""}, b""


_TERMS: Any = SimpleNamespace(sum=_Sum(), release=None)


# -------------------------------------------------------------------------------- the drawn number


@pytest.mark.parametrize("times", [1.0, 2.0])
def test_counts_of_an_adaptive_clip_take_the_same_work_whoever_is_drawn(times: float) -> None:
    """Rows of zeros, and rows at the clip, were copied out and computed again: work and memory
    said how many were drawn."""
    generator = torch.Generator().manual_seed(1)
    residual, feature = (torch.randn(1, n, generator=generator).expand(500, -1) for n in (3, 7))
    by = times * float(residual[0].double().norm() * feature[0].double().norm())
    made = []
    for drawn in (0, 1, 250, 500):
        kept = torch.arange(500) < drawn
        rows = Outer(residual, feature, feature_norms=feature.double().norm(dim=1)).select(kept)
        with Shapes() as shapes:
            ClipIndicator(rows, by).clipped_sum(0.5)
        made.append(shapes.made)
    assert made[0] == made[1] == made[2] == made[3]
