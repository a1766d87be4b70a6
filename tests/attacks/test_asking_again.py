# SPDX-License-Identifier: Apache-2.0
"""A server that asks again: the same attempt, other attempts, other bytes, after a crash.

Before: where neither the owner nor the app had named the data, nothing was counted. Under local
trust a server had 20,000 answers to one round and attempt, each with noise of its own, so that
their mean was the gradient in clear; of a secure sum it opened round 0 400 times, by new attempts,
where 10 releases were priced.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from dpfed.accounting.ledger.ledger import Ledger
from dpfed.core.errors import ClientRefused, UnsoundPlan
from dpfed.core.randomness import Noise
from dpfed.core.registry import build
from dpfed.core.types import UPDATE, Broadcast, Channel, ClientAlgorithm, Facts, Phase, Trust, Unit
from dpfed.mechanisms.gaussian import gaussian
from dpfed.sums.secure import secure
from dpfed.training.inprocess import InProcess
from dpfed.training.plan import Plan
from dpfed.training.round import run_round, start
from dpfed.training.wire import responder
from dpfed.training.wire import state as states
from dpfed.training.wire.stored_replies import StoredReply, order_digest
from tests.attacks.asking import SIZE, START, Silent, app_of, ask, at_home, exchange_with, release


@pytest.fixture(autouse=True)
def _node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_home(tmp_path, monkeypatch)


def a_plan(rounds: int = 10, **changes: Any) -> Plan:
    options: dict[str, Any] = {
        "client": build("client", "gradient", {}),
        "channels": {UPDATE: gaussian(Facts(clip=1.0), std=20.0)},
        "sum": build("sums", "plain", {}),
        "server": build("server", "scale", {}),
        "nominal": [4.0] * 5,
        "rounds": rounds,
        "noise": Noise(),
    }
    return Plan(**{**options, **changes})


def hidden(rounds: int, **changes: Any) -> Plan:
    noise = gaussian(Facts(1.0, trust=Trust.DISTRIBUTED), 20.0, shares=2)
    return a_plan(rounds, sum=secure(), channels={UPDATE: noise}, **changes)


def crashed() -> None:
    """The client's process is gone: what it had in memory, too."""
    for ledger in responder._COUNTS.values():
        ledger.close()
    responder._COUNTS.clear()


# -------------------------------------------------------------------------------- local trust


def test_one_attempt_gives_one_release_however_often_it_is_asked_for() -> None:
    """1,000 orders, each with other parameters: before, 1,000 releases; now the first has one."""
    plan = a_plan()
    app = app_of(plan)
    got = Counter(release(app, plan, Broadcast(0, START + i)) for i in range(1000))
    names = {each: count for each, count in got.items() if isinstance(each, str)}
    assert names == {"UnsoundPlan": 999}
    assert len(got) == 2


@pytest.mark.parametrize("spare", [0, 3])
def test_new_attempts_end_with_the_plan(spare: int) -> None:
    plan = a_plan(rounds=4, spare=spare)
    app = app_of(plan)
    got = [release(app, plan, Broadcast(0, START, attempt=i)) for i in range(50)]
    assert [each for each in got if isinstance(each, str)] == ["BudgetSpent"] * (46 - spare)
    assert len({each for each in got if isinstance(each, bytes)}) == 4 + spare


def test_the_count_outlives_the_process_and_the_app() -> None:
    plan = a_plan(rounds=3)
    got = []
    for attempt in range(6):
        got.append(release(app_of(plan), plan, Broadcast(0, START, attempt=attempt)))
        crashed()
    assert [isinstance(each, bytes) for each in got] == [True] * 3 + [False] * 3


def test_attempts_that_cost_next_to_nothing_are_counted_too() -> None:
    """The sum can fail in each of them: delta is reserved for so many, whatever they cost."""
    warm = Channel((Phase(1, 1), Phase(None, 0)))
    late = Channel((Phase(1, 0), Phase(None, 1)))

    def work(at: Broadcast, problem: Any, state: Any, release: Any) -> Any:
        name = UPDATE if at.round else "warm"
        return {name: release(problem.rows(at.params, release.unit), name)}, state

    algorithm = ClientAlgorithm(
        lambda _: (), work, frozenset(Unit), {"warm": warm, UPDATE: late}, sends_unmodified=True
    )
    channels = {UPDATE: gaussian(std=1.0), "warm": gaussian(std=1000.0)}
    plan = a_plan(rounds=4, client=algorithm, channels=channels)
    app = app_of(plan)
    asked = [
        ask(app, plan, Broadcast(0, START, attempt=i), requests={"warm": b""}) for i in range(20)
    ]
    assert sum(not isinstance(each, ClientRefused) for each in asked) == plan.attempts == 4


def test_negative_attempts_and_strange_stages_are_refused() -> None:
    plan = a_plan()
    app = app_of(plan)
    assert release(app, plan, Broadcast(0, START, attempt=-1)) == "UnsoundPlan"
    for stage in ("keys", "", "../../x"):
        assert str(ask(app, plan, Broadcast(0, START), stage=stage)) == "UnsoundPlan"


def test_in_one_process_the_plan_is_the_end_too() -> None:
    plan = a_plan(rounds=2, spare=1)
    engine = InProcess(plan, [Silent()] * 5)
    asked = {UPDATE: {0: b""}}

    def got(at: Broadcast) -> Any:
        ((_, found),) = engine.exchange(at, "reply", asked)
        return found

    assert not isinstance(got(Broadcast(0, START)), ClientRefused)
    assert str(got(Broadcast(0, START))) == "UnsoundPlan"
    rest = [got(Broadcast(0, START, attempt=i)) for i in range(1, 6)]
    assert [isinstance(each, ClientRefused) for each in rest] == [False] * 2 + [True] * 3


def test_two_orders_at_once_wait_for_each_other(tmp_path: Path) -> None:
    """Else both would find that nothing was answered, and go on from one state."""
    done = []

    def second() -> None:
        with states.locked(tmp_path / "client-0"):
            done.append("second")

    thread = Thread(target=second)
    with states.locked(tmp_path / "client-0"):
        thread.start()
        thread.join(0.3)
        done.append("first")
    thread.join(10.0)
    assert done == ["first", "second"]


# ---------------------------------------------------------------------------- the secure sum


def test_a_secure_sum_is_opened_as_often_as_the_plan_has_attempts() -> None:
    """Before, once for each new attempt that the server made up."""
    plan = hidden(rounds=3, spare=1)
    app, opened = app_of(plan), 0
    state = start(plan, START)
    for attempt in range(12):
        _, result = run_round(plan, replace(state, attempt=attempt), exchange_with(app, plan))
        opened += not result.aborted
    assert opened == plan.attempts == 4


# ----------------------------------------------------------------------------- stored answers


def entries(client: int = 0) -> list[Any]:
    ledger = Ledger(states.folder_for("run", client) / "releases.sqlite")
    found = [row.body for row in ledger.rows()]
    assert ledger.verify() == []
    ledger.close()
    return found


def test_the_byte_identical_order_gets_the_same_bytes_and_costs_nothing() -> None:
    plan = a_plan()
    first = release(app_of(plan), plan, Broadcast(0, START))
    before = entries()
    for _ in range(200):
        assert release(app_of(plan), plan, Broadcast(0, START)) == first
    crashed()
    assert release(app_of(plan), plan, Broadcast(0, START)) == first
    assert entries() == before
    assert [row["kind"] for row in before] == ["entry"]


def test_a_count_confirms_what_correlated_noise_goes_on_from() -> None:
    """Of independent noise nobody asks: an entry counts as spent, confirmed or not."""
    from dpfed.flower import make_plan

    for mechanism, kinds in (("gaussian", ["entry"]), ("tree", ["entry", "confirm"])):
        privacy = {"mechanism": mechanism, "epsilon": 1.0}
        plan = make_plan([4.0] * 5, rounds=10, privacy=privacy)
        at = Broadcast(0, START, training=mechanism)
        assert isinstance(release(app_of(plan), plan, at), bytes)
        ledger = Ledger(states.folder_for(mechanism, 0) / "releases.sqlite")
        assert [row.body["kind"] for row in ledger.rows()] == kinds
        ledger.close()


def test_any_other_order_for_the_attempt_is_refused() -> None:
    plan = a_plan()
    app = app_of(plan)
    assert isinstance(release(app, plan, Broadcast(0, START)), bytes)
    shared = Broadcast(0, START, {"m": START})
    assert release(app, plan, shared) == "UnsoundPlan"
    assert release(app, plan, Broadcast(0, START.clone().fill_(-0.0))) == "UnsoundPlan"
    assert release(app, plan, Broadcast(0, START), since=(0, 0)) == "UnsoundPlan"
    assert release(app, plan, Broadcast(0, START), config={"lr": 1.0}) == "UnsoundPlan"
    assert release(app, plan, Broadcast(0, START), requests={UPDATE: b"x"}) == "UnsoundPlan"


def test_no_two_orders_run_together() -> None:
    """A digest of the bare texts would take a longer name and a shorter value for the same."""
    options = [{"a": 11}, {"a1": 1}, {"a": 1, "b": 1}, {"a": "1', 'b"}]
    orders = [RecordDict({"config": ConfigRecord(each)}) for each in options]
    assert len({order_digest(order) for order in orders}) == len(orders)


def test_an_answer_that_left_the_disk_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entered, and then the process died before the answer was stored; or the file is gone."""
    plan = a_plan()
    app = app_of(plan)

    def die(*_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr("dpfed.training.wire.stored_replies.StoredReply.write", die)
        assert release(app, plan, Broadcast(0, START)) == "ClientError"
    assert release(app, plan, Broadcast(0, START)) == "UnsoundPlan"
    assert isinstance(release(app, plan, Broadcast(1, START)), bytes)
    for path in (states.folder_for("run", 0) / "answers").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    assert release(app, plan, Broadcast(1, START)) == "UnsoundPlan"


def test_it_is_on_the_disk_before_it_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = a_plan()
    seen: list[list[str]] = []
    true = responder.write_reply

    def look(envelope: Any, reply: Any, beside: Any = None) -> Any:
        folder = states.folder_for("run", 0) / "answers"
        seen.append(sorted(path.name for path in folder.iterdir()))
        return true(envelope, reply, beside)

    monkeypatch.setattr(responder, "write_reply", look)
    for at in (Broadcast(0, START), Broadcast(0, START, attempt=1), Broadcast(1, START)):
        release(app_of(plan), plan, at)
    assert seen == [["0"]] * 3  # of the latest attempt only


@pytest.mark.skipif(not hasattr(os, "fdatasync"), reason="this system has no fdatasync")
def test_a_release_takes_three_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry's commit, which SQLite flushes itself; the ledger's head; the stored reply."""
    plan = a_plan()
    release(app_of(plan), plan, Broadcast(0, START))
    flushed: list[str] = []
    for name in ("fsync", "fdatasync"):
        true = getattr(os, name)
        monkeypatch.setattr(os, name, lambda h, n=name, f=true: (flushed.append(n), f(h)))
    assert isinstance(release(app_of(plan), plan, Broadcast(1, START)), bytes)
    assert flushed == ["fdatasync", "fdatasync"]


def test_a_reply_of_an_attempt_before_is_not_given_for_the_next() -> None:
    plan = a_plan()
    release(app_of(plan), plan, Broadcast(0, START))
    release(app_of(plan), plan, Broadcast(1, START))
    assert release(app_of(plan), plan, Broadcast(0, START)) == "UnsoundPlan"


@pytest.mark.parametrize("grown", [0, 1, 400])
def test_a_torn_write_is_never_sent(tmp_path: Path, grown: int) -> None:
    """Written over in place, so that a crash may leave any pages of it old: no order gets that."""
    rng = random.Random(0)
    old, new = (StoredReply(tmp_path, 0, digit * 64) for digit in "ab")
    first, then = ({UPDATE: rng.randbytes(3000 + more)} for more in (0, grown))
    old.write(first)
    before = old.path.read_bytes()
    new.write(then)
    after = new.path.read_bytes()
    assert (old.read(), new.read()) == (None, then)
    for _ in range(50):
        low, high = sorted(rng.sample(range(len(before) + 1), 2))
        for torn in (
            after[:low] + before[low:],
            before[:low] + after[low:],
            before[:low] + after[low:high] + before[high:],
            after[:low] + before[low:high] + after[high:],
            after[:low],
            after[:low] + bytes(len(after) - low),
        ):
            new.path.write_bytes(torn)
            found = old.read(), new.read()
            if torn == before:
                assert found == (first, None)
            elif torn == after:
                assert found == (None, then)
            else:
                assert found == (None, None)


def test_a_process_killed_in_the_middle_of_a_reply_has_spent_the_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = a_plan()
    release(app_of(plan), plan, Broadcast(0, START))

    def half(path: Path, *parts: bytes) -> None:
        whole = b"".join(parts)
        with path.open("r+b") as file:
            file.write(whole[: len(whole) // 2])
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("dpfed.training.wire.stored_replies.write_over", half)
        assert release(app_of(plan), plan, Broadcast(1, START)) == "ClientError"
    crashed()
    assert release(app_of(plan), plan, Broadcast(1, START)) == "UnsoundPlan"
    assert release(app_of(plan), plan, Broadcast(0, START)) == "UnsoundPlan"
    assert isinstance(release(app_of(plan), plan, Broadcast(2, START)), bytes)


def test_an_array_is_hashed_once_and_another_anew() -> None:
    """The fault that is feared: the digest of the array before, for one that differs in a bit."""
    size = 1 << 15
    contents = []
    for changed in (None, 0, size - 1, None):
        values = torch.zeros(size)
        if changed is not None:
            values[changed] = -0.0
        contents.append(RecordDict({"arrays": ArrayRecord({"weight": Array(values.numpy())})}))
    digests = [order_digest(content) for content in contents]
    assert digests[0] == digests[3]
    assert len(set(digests)) == 3


def test_a_refusal_is_not_stored_and_the_attempt_is_free() -> None:
    """The order was wrong, nothing was entered; the right one is answered."""
    plan = a_plan()
    app = app_of(plan)
    other = a_plan(rounds=11)
    assert release(app, other, Broadcast(0, START)) == "UnsoundPlan"
    assert not states.folder_for("run", 0).exists()
    assert isinstance(release(app, plan, Broadcast(0, START)), bytes)


# ---------------------------------------------------------------------------- spare attempts


@pytest.mark.parametrize("mechanism", ["gaussian", "tree", "banded"])
def test_noise_is_sized_for_rounds_and_spare_attempts(mechanism: str) -> None:
    from dpfed.flower import make_plan

    privacy = {"mechanism": mechanism, "epsilon": 1.0}
    spare = make_plan([4.0] * 3, rounds=7, privacy={**privacy, "spare_attempts": 3})
    longer = make_plan([4.0] * 3, rounds=10, privacy=privacy)
    assert spare.channels == longer.channels
    assert spare.planned(UPDATE) == 10
    assert spare.guarantee().claims[0].epsilon == longer.guarantee().claims[0].epsilon <= 1.0
    with pytest.raises(UnsoundPlan, match=r"spare_attempts must be a whole.*least 0"):
        make_plan([4.0] * 3, rounds=7, privacy={**privacy, "spare_attempts": -1})


def test_a_spare_attempt_may_be_of_the_costliest_round() -> None:
    channel = Channel((Phase(2, 1), Phase(1, 5), Phase(None, 0)))
    assert channel.planned(3) == 7
    assert channel.planned(3, spare=2) == 17
    assert torch.zeros(SIZE).equal(START)
