# SPDX-License-Identifier: Apache-2.0
"""Hostile clients through the real strategy: none is accepted, none stops a round, and what one
valid vote can do is bounded by the sum's range alone.

tests/soak/replies.py sends 10^5 such replies; results/hostile/replies.json has the table.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message

from dpfed.audit.client_laws import MODEL
from dpfed.core.sum_protocol import SumContext
from dpfed.core.types import UPDATE, Weights
from dpfed.flower import DPStrategy, client_app
from dpfed.sums.plain import plain
from dpfed.sums.secagg import messages as secagg
from dpfed.sums.secure import secure
from dpfed.training.plan import Plan
from dpfed.training.reply import client_reply
from dpfed.training.round import publish, run_round, start
from tests.helpers.rounds import SIZES, client_states, make_plan
from tests.training.flower import hostile
from tests.training.flower.hostile import (
    LIARS,
    RATE,
    SIZE,
    Rng,
    Tally,
    Truth,
    soak,
)
from tests.training.flower.local_grid import LocalGrid, become_a_server, nodes

INITIAL = ArrayRecord(MODEL.layout.unflatten(torch.zeros(SIZE)))


@pytest.fixture(autouse=True)
def _state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        monkeypatch.setenv("DPFED_STATE", folder)
        monkeypatch.setenv("DPFED_IDENTITY", "simulated")
        become_a_server(monkeypatch)
        yield


def app_for(plan: Plan, sizes: list[int]) -> Any:
    people = client_states(sizes)
    return client_app(lambda context: people[context.node_config["partition-id"]].problem, plan)


# -------------------------------------------------------------------------------- fuzzed replies


@pytest.mark.slow
@pytest.mark.parametrize(
    ("secure", "replies", "kinds"), [(False, 2200, 30), (True, 800, 54)], ids=["plain", "secure"]
)
def test_no_hostile_reply_is_accepted_and_each_round_has_the_honest_sum(
    secure: bool, replies: int, kinds: int
) -> None:
    """A third of the clients lie in every round, 25 times each."""
    tally = Tally()
    soak(replies, seed=7, secure=secure, tally=tally)
    assert (tally.count("accepted"), tally.count("crashed")) == (0, 0)
    assert tally.count("refused") == tally.count("tried") >= replies
    assert len(tally.lies()) >= kinds * 0.9  # a rare kind may not have been drawn
    assert (tally.inexact, tally.honest_missing, tally.rude) == (0, 0, 0)


def test_the_count_sees_a_reply_that_is_accepted() -> None:
    tally = Tally()
    soak(60, 0, secure=False, tally=tally, lies={"honest": lambda t, _: t.record()})
    assert tally.accepted["honest"] == LIARS * (tally.tried["honest"] // (25 * LIARS))


def test_the_count_sees_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def fragile(self: Any, session: Any, client: int, messages: Any) -> Any:
        return messages["update"][10**9] and session

    monkeypatch.setattr(hostile.WatchedPlain, "add", fragile)
    tally = Tally()
    soak(1, 0, secure=False, tally=tally)
    assert tally.crashed.total() == 1


def test_the_table_in_results_is_of_a_hundred_thousand_replies(repository: Path) -> None:
    found = json.loads((repository / "results/hostile/replies.json").read_text())
    assert found["replies"] >= 10**5
    assert len(found["by_kind"]) >= 15
    for kind, row in found["by_kind"].items():
        assert (row["accepted"], row["crashed"]) == (0, 0), kind
        assert row["tried"] == row["refused"] > 0, kind
    assert sum(row["tried"] for row in found["by_kind"].values()) == found["replies"]
    assert found["rounds_not_exact"] == found["honest_clients_missing"] == 0


# ------------------------------------------------------------------ what is valid by form is a vote


def round_with(plan: Plan, client: int, data: bytes | None) -> Any:
    """A round in which one client sends these bytes, or nothing."""
    people = client_states(SIZES)
    state = start(plan, torch.zeros(SIZE))

    def transport(broadcast: Any, stage: str, requests: Any) -> Iterator[tuple[int, Any]]:
        for index, kept in people.items():
            messages, _ = client_reply(plan, broadcast, stage, dict.fromkeys(requests, b""), kept)
            if index != client:
                yield index, messages
            elif data is not None:
                yield index, {UPDATE: data}

    return run_round(plan, state, transport)


def largest(plan: Plan) -> int:
    """The most that ``plain`` takes from one client on one coordinate."""
    return int(2.0**62 / len(plan.nominal))


@pytest.mark.parametrize("weights", list(Weights))
@pytest.mark.parametrize("sign", [1, -1])
def test_one_vote_moves_a_coordinate_by_at_most_its_range_over_the_public_divisor(
    weights: Weights, sign: int
) -> None:
    """Clipping is the client's own: nothing but the range check bounds a vote on the server."""
    plan = make_plan(rounds=1, weights=weights)
    biggest = sign * largest(plan)
    voted, result = round_with(plan, 1, np.full(SIZE, biggest, "<i8").tobytes())
    without, _ = round_with(plan, 1, None)
    assert result.clients == (0, 1, 2)
    bound = RATE * largest(plan) * plan.step(UPDATE) / plan.denominator(UPDATE)
    moved = (voted.params - without.params).double().abs()
    assert torch.isfinite(voted.params).all()
    assert float(moved.max()) <= bound * (1 + 1e-6)
    if weights is Weights.SUM:
        assert float(moved.min()) >= bound * (1 - 1e-6)  # and the bound is attained


def test_one_step_beyond_the_range_is_refused() -> None:
    plan = make_plan(rounds=1)
    vector = np.zeros(SIZE, "<i8")
    vector[0] = largest(plan) + 2**10
    _, result = round_with(plan, 1, vector.tobytes())
    assert result.clients == (0, 2)
    assert "so that no sum can wrap, got" in result.refused[1]


def test_a_vote_far_beyond_the_clip_is_a_vote() -> None:
    """What is stated, not what is wished for: a thousand clips are within the range."""
    plan = make_plan(rounds=1)
    steps = int(1000 * SIZES[1] * plan.update.clip / plan.step(UPDATE))
    _, result = round_with(plan, 1, np.full(SIZE, steps, "<i8").tobytes())
    assert result.clients == (0, 1, 2)


@dataclass
class Facts:
    """All of a round that one client's vote must not touch."""

    release_counts: Any
    cohort: Any
    clients: Any
    mechanisms: Any
    std: float
    spent: float


def facts(plan: Plan, data: bytes | None) -> Facts:
    after, result = round_with(plan, 1, data)
    spent = plan.guarantee(after.release_counts, 1).claims[-1].epsilon
    seen = result.aggregate.std, spent
    return Facts(after.release_counts, after.cohort, result.clients, after.mechanisms, *seen)


@pytest.mark.parametrize("vote", [0, 1, -(2**31), 2**31 - 1, 2**60, -(2**60)])
def test_a_vote_touches_neither_counts_nor_divisor_nor_noise_level(vote: int) -> None:
    plan = make_plan(rounds=2)
    people = client_states(SIZES)
    at = publish(plan, start(plan, torch.zeros(SIZE)))
    true, _ = client_reply(plan, at, "reply", {UPDATE: b""}, people[1])
    kind = "<i4" if abs(vote) < 2**31 else "<i8"
    assert facts(plan, np.full(SIZE, vote, kind).tobytes()) == facts(plan, true[UPDATE])  # type: ignore[index]
    assert plan.denominator(UPDATE) == math.fsum(SIZES)


def test_a_vote_leaves_the_other_terms_as_they_are() -> None:
    """The total less the vote is the honest total, to the bit."""
    plan = make_plan(rounds=1)
    vote = np.arange(SIZE, dtype="<i8") * 2**50
    context = SumContext(0, 3, 0, 0, 0, "run")
    totals = []
    for data in (None, vote.tobytes(), np.zeros(SIZE, "<i4").tobytes()):
        session, _ = plain().begin(
            None, {UPDATE: dict.fromkeys(range(3), 1.0)}, {UPDATE: SIZE}, context
        )
        for client in (0, 1, 2):
            honest = (np.arange(SIZE) * 7 + client).astype("<i4").tobytes()
            if client != 1 or data is not None:
                plan.sum.add(session, client, {UPDATE: data if client == 1 else honest})  # type: ignore[dict-item]
        totals.append(session.channels[UPDATE].total)
    assert np.array_equal(totals[0], totals[2])
    assert np.array_equal(totals[0], totals[1] - vote)


@pytest.mark.parametrize("kind", hostile.VALID)
def test_what_is_valid_by_form_is_one_vote_and_no_more(kind: str) -> None:
    """It is inside once; config, metrics and number types beside the integers change nothing."""
    plan = make_plan(rounds=1)

    def tamper(node: int, message: Message, reply: Message) -> Message:
        if node != 101:
            return reply
        data = {n: a.data for n, a in reply.content.array_records["reply"].items()}
        control = dict(reply.content.config_records["dpfed"])
        truth = Truth("reply", 1, control, data, data, control, data)
        return Message(hostile.VALID[kind](truth, Rng(5)), reply_to=message)

    result = DPStrategy(plan).start(LocalGrid(app_for(plan, SIZES), nodes(3), tamper), INITIAL)
    expected = DPStrategy(plan).start(LocalGrid(app_for(plan, SIZES), nodes(3)), INITIAL)
    row, due = result.history[0], expected.history[0]
    assert (row["clients"], row["epsilon"], row["missing"]) == (3, due["epsilon"], 0)
    states = [r.arrays.to_torch_state_dict() for r in (result, expected)]
    same = all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert same is (kind in ("control numbers as equal floats", "extra config and metrics"))


# ------------------------------------------------- the secure sum: lies that fit, found at the end


def lying(change: Any) -> Any:
    def tamper(node: int, message: Message, reply: Message) -> Message:
        control = dict(reply.content.config_records["dpfed"])
        if node == 104 and control["stage"] == "input":
            sent = reply.content.array_records["reply"]["sum"].data
            said, words = secagg.unpack_masked(sent)
            data = secagg.pack_masked(change(said), words)
            truth = Truth("input", 4, control, {"sum": data}, {}, {}, {})
            return Message(truth.record(), reply_to=message)
        return reply

    return tamper


def wrong_pairs(said: secagg.Masked) -> secagg.Masked:
    return secagg.Masked(said.sealed, said.shares, dict.fromkeys(said.pairs, bytes(32)), said.own)


def wrong_own(said: secagg.Masked) -> secagg.Masked:
    return secagg.Masked(said.sealed, said.shares, said.pairs, bytes(32))


@pytest.mark.parametrize(
    ("change", "says"), [(wrong_pairs, "disagree on their seed"), (wrong_own, "clients [4]")]
)
def test_a_false_commitment_stops_the_round_names_its_sender_and_opens_nothing(
    change: Any, says: str
) -> None:
    """Known and open: in a secure sum one liar can stop rounds, and each attempt is spent."""
    sizes = [5] * 5
    plan = make_plan(sum=secure(), nominal=sizes, rounds=2)
    grid = LocalGrid(app_for(plan, sizes), nodes(5), lying(change))
    result = DPStrategy(plan).start(grid, INITIAL)
    assert result.stopped == "the next round would exceed the plan's guarantee"
    for row in result.history:
        assert says in row["aborted"]
        assert "4" in row["aborted"]
    zeros = MODEL.layout.flatten(result.arrays.to_torch_state_dict())
    assert torch.equal(zeros, torch.zeros(SIZE))
