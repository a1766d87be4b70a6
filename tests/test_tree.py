# SPDX-License-Identifier: Apache-2.0
"""A tree of aggregators, of the lab's benchmarks: the bits of one server, mistakes that show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfed.core.errors import BadReply
from dpfed.core.sum_protocol import Aborted, Opened, SumContext
from dpfed.core.types import UPDATE, Total
from dpfed.sums.plain import Adder, plain
from dpfed.training.loop import train
from dpfed.training.plan import Plan
from dpfed.training.population import Population
from dpfed.training.round import Exchange, run_round, start
from dpfed_lab.benchmarks._tree import (
    WHO,
    Partials,
    Shards,
    begin,
    even_shards,
    gather,
    partial_total,
    through,
)
from tests.helpers.populations import START, Device, come_and_go, plan_with

SIZE, LONGEST = 5, 1000.0
SIZES = {UPDATE: SIZE}
Replies = list[tuple[int, dict[str, bytes]]]
Handed = Callable[[Adder, Sequence[int]], dict[str, bytes]]


def context(everyone: int, longest: float | None = LONGEST) -> SumContext:
    bounds = {} if longest is None else {UPDATE: longest}
    return SumContext(-1, everyone, 1, 0, 0, "run", longest=bounds)


def reply(values: Sequence[int], kind: str = "<i8") -> dict[str, bytes]:
    return {UPDATE: np.array(values, kind).tobytes()}


def flat_total(cohort: Mapping[int, float], replies: Replies, **more: Any) -> Total | None:
    session, _ = plain().begin(None, {UPDATE: cohort}, SIZES, context(len(cohort), **more))
    return opened(gather(session, replies))


def opened(session: Adder) -> Total | None:
    found = plain().close(session)
    assert isinstance(found, Opened | Aborted)
    return found.totals[UPDATE] if isinstance(found, Opened) else None


def tree_total(
    cohort: Mapping[int, float],
    shards: Shards,
    replies: Replies,
    handed: Handed = partial_total,
    **more: Any,
) -> Total | None:
    """What the root has: each aggregator hears its own devices, in the order that they come."""
    about = context(len(cohort), **more)
    root, _ = plain().begin(None, {UPDATE: cohort}, SIZES, about)
    for number, slots in enumerate(shards):
        mine = {UPDATE: {slot: cohort[slot] for slot in slots}}
        session = begin(mine, SIZES, about, len(cohort))
        gather(session, [each for each in replies if each[0] in slots])
        root = Partials(shards=shards).add(root, number, handed(session, slots))
    return opened(root)


def same(one: Total | None, other: Total | None) -> bool:
    if one is None or other is None:
        return one is other
    alike = (one.clients, one.weights) == (other.clients, other.weights)
    return alike and torch.equal(one.vector, other.vector)


# ------------------------------------------------------------------------------------ the same bits

BAD = [reply([900, 900, 0, 0, 0]), reply([2**61] * SIZE), reply([1] * (SIZE + 1)), {"x": b""}]


@st.composite
def rounds(draw: st.DrawFn) -> tuple[dict[int, float], Shards, Replies]:
    """A cohort, its devices in any groups, and their replies in any order: a few bad, or twice."""
    count = draw(st.integers(1, 12))
    weight = st.sampled_from([1.0, 1 / 3, 0.1])
    cohort = {slot: draw(weight) for slot in range(count)}
    groups = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    shards = tuple(tuple(s for s in cohort if groups[s] == at) for at in range(4))
    values = st.lists(st.integers(-440, 440), min_size=SIZE, max_size=SIZE)
    answer = st.one_of(
        st.builds(reply, values, st.sampled_from(["<i4", "<i8"])), st.sampled_from(BAD)
    )
    sent = draw(st.lists(st.tuples(st.integers(0, count - 1), answer), max_size=2 * count))
    return cohort, shards, sent


@given(rounds())
@settings(max_examples=150, deadline=None)
def test_the_total_has_the_bits_of_one_server_whatever_the_groups_and_the_order(case: Any) -> None:
    cohort, shards, sent = case
    assert same(tree_total(cohort, shards, sent), flat_total(cohort, sent))
    firsts = list({slot: (slot, each) for slot, each in reversed(sent)}.values())
    total = tree_total(cohort, shards, firsts)  # each device's first, in another order
    assert same(total, tree_total(cohort, shards[::-1], firsts[::-1]))


def some(count: int, seed: int = 0) -> tuple[dict[int, float], Replies]:
    values = np.random.default_rng(seed).integers(-440, 440, (count, SIZE))
    return dict.fromkeys(range(count), 1.0), [(s, reply(values[s].tolist())) for s in range(count)]


def test_totals_of_totals_have_the_same_bits() -> None:
    cohort, sent = some(8)
    low, high = even_shards(8, 4), even_shards(8, 2)
    about, root = context(8), plain().begin(None, {UPDATE: cohort}, SIZES, context(8))[0]
    for number, slots in enumerate(high):
        middle = begin({UPDATE: dict.fromkeys(slots, 1.0)}, SIZES, about, 8)
        for at in (2 * number, 2 * number + 1):
            leaf = begin({UPDATE: dict.fromkeys(low[at], 1.0)}, SIZES, about, 8)
            gather(leaf, sent)  # those of others are refused
            middle = Partials(shards=low).add(middle, at, partial_total(leaf, low[at]))
        root = Partials(shards=high).add(root, number, partial_total(middle, slots))
    assert same(opened(root), flat_total(cohort, sent))


@pytest.mark.parametrize(("count", "most"), [(10, 3), (3, 3), (2, 5), (1000, 7)])
def test_shards_are_even_and_whole(count: int, most: int) -> None:
    shards = even_shards(count, most)
    assert [slot for slots in shards for slot in slots] == list(range(count))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


# ------------------------------------------------------------------------------- whole trainings


class Grouped(Population):
    """Devices behind aggregators."""

    shards: Shards = ()

    def exchange(self, broadcast: Any, stage: Any, requests: Any) -> Iterator[Any]:
        yield from through(self.plan, self.shards, super().exchange)(broadcast, stage, requests)


def trained(plan: Plan, shards: Shards | None = None) -> list[Any]:
    devices = [Device(number) for number in range(60)]
    there = Population if shards is None else Grouped
    transport = there(plan, devices, come_and_go)  # type: ignore[arg-type]
    if isinstance(transport, Grouped):
        transport.shards, plan = shards or (), replace(plan, sum=Partials(shards=shards or ()))
    return list(train(plan, START, transport))


@pytest.mark.parametrize("mechanism", ["gaussian", "tree"])
def test_a_training_ends_in_the_same_bits_so_noise_is_added_once(mechanism: str) -> None:
    plan = plan_with(mechanism)
    flat, grouped = trained(plan), trained(plan, ((2, 0), (3,), (1,)))
    assert len(flat) == len(grouped) > 3
    for one, other in zip(flat, grouped, strict=True):
        assert torch.equal(one.state.params, other.state.params)
        if one.result is not None:
            assert one.result.clients == other.result.clients
        assert one.state.release_counts == other.state.release_counts
    assert flat[-1].state.params.abs().sum() > 0


def test_what_an_aggregator_hands_up_has_no_noise() -> None:
    cohort, sent = some(4)
    session = gather(begin({UPDATE: cohort}, SIZES, context(4), 4), sent)
    bare = sum(np.frombuffer(each[UPDATE], "<i8") for _, each in sent)
    assert np.array_equal(np.frombuffer(partial_total(session, range(4))[UPDATE], "<i8"), bare)


def over(replies: Replies) -> Exchange:
    def exchange(broadcast: Any, stage: Any, requests: Any) -> Iterable[Any]:
        return (each for each in replies if each[0] in requests[UPDATE])

    return exchange


def test_a_lost_aggregator_is_as_if_its_devices_were_silent() -> None:
    plan, shards = plan_with("gaussian"), even_shards(4, 2)
    sent: Replies = [(slot, {UPDATE: np.full(8, 7 + slot).tobytes()}) for slot in range(4)]
    whole = through(plan, shards, over(sent))

    def lossy(*asked: Any) -> Iterable[Any]:
        return (each for each in whole(*asked) if each[0] != 1)

    tree = replace(plan, sum=Partials(shards=shards))
    after, found = run_round(tree, start(tree, START), lossy)
    beside, _ = run_round(plan, start(plan, START), over(sent[:2]))
    assert (found.clients, found.missing) == ((0, 1), (2, 3))
    assert torch.equal(after.params, beside.params)


def test_nobody_at_all_is_an_aborted_round() -> None:
    assert tree_total(dict.fromkeys(range(3), 1.0), even_shards(3, 2), []) is None


# ------------------------------------------------------------------------------- planted mistakes


def adds_one_twice(session: Adder, slots: Sequence[int]) -> dict[str, bytes]:
    if 0 in session.clients:
        session.clients.discard(0)
        gather(session, some(6)[1][:1])
    return partial_total(session, slots)


def drops_one(session: Adder, slots: Sequence[int]) -> dict[str, bytes]:
    """It is named, and not in the total."""
    session.channels[UPDATE].total[:] -= np.frombuffer(some(6)[1][0][1][UPDATE], "<i8") * (
        0 in slots
    )
    return partial_total(session, slots)


def forgets_who(session: Adder, slots: Sequence[int]) -> dict[str, bytes]:
    session.clients.discard(0)
    return partial_total(session, slots)


def adds_noise(session: Adder, slots: Sequence[int]) -> dict[str, bytes]:
    session.channels[UPDATE].total[:] += 1
    return partial_total(session, slots)


def overflows(session: Adder, slots: Sequence[int]) -> dict[str, bytes]:
    total = session.channels[UPDATE].total
    total[:] = total.astype(np.int8)
    return partial_total(session, slots)


MISTAKES = [adds_one_twice, drops_one, forgets_who, adds_noise, overflows]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: each.__name__)
def test_an_aggregators_mistake_shows_in_the_bits(mistake: Handed) -> None:
    """The comparison above has eyes; the root itself cannot tell, which is why it must trust."""
    cohort, sent = some(6)
    shards, flat = even_shards(6, 2), flat_total(cohort, sent)
    assert same(tree_total(cohort, shards, sent), flat)
    assert not same(tree_total(cohort, shards, sent, mistake), flat)


def test_a_limit_of_the_shards_own_would_let_the_roots_sum_wrap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of four aggregators of one device could then hand up 2^62."""
    cohort, shards = dict.fromkeys(range(4), 1.0), even_shards(4, 4)
    sent: Replies = [(slot, reply([2**61] * SIZE)) for slot in cohort]
    assert flat_total(cohort, sent, longest=None) is None  # refused one by one
    assert tree_total(cohort, shards, sent, longest=None) is None
    fits: Replies = [(slot, reply([2**60] * SIZE)) for slot in cohort]
    total = tree_total(cohort, shards, fits, longest=None)
    assert same(total, flat_total(cohort, fits, longest=None))
    assert total is not None
    assert total.vector.tolist() == [2**62] * SIZE
    own = begin
    monkeypatch.setattr(f"{__name__}.begin", lambda *a: own(*a[:3], everyone=1))
    with pytest.raises(BadReply, match=r"most 1\.15e\+18, so that no sum.*got 2305843009"):
        tree_total(cohort, shards, sent, longest=None)


# ---------------------------------------------------------------------------- what the root refuses

SHARDS = ((0, 1, 2), (3, 4))


def handed(number: int = 0) -> dict[str, bytes]:
    session = begin({UPDATE: dict.fromkeys(SHARDS[number], 1.0)}, SIZES, context(5), 5)
    return partial_total(gather(session, some(5)[1]), SHARDS[number])


def root() -> Adder:
    return plain().begin(None, {UPDATE: dict.fromkeys(range(5), 1.0)}, SIZES, context(5))[0]


REFUSED: dict[str, tuple[int, dict[str, bytes], str]] = {
    "no such aggregator": (2, {}, "there is no aggregator 2"),
    "a negative one": (-1, {}, "there is no aggregator -1"),
    "no total": (0, {UPDATE: b""}, "must name 3 devices|must be 5 integers of 8 bytes"),
    "four bytes each": (0, {UPDATE: bytes(4 * SIZE)}, "must be 5 integers of 8 bytes"),
    "nobody is named": (0, {WHO: b""}, "must name 3 devices by a bit each"),
    "a device beyond the shard": (0, {WHO: b"\xf0"}, "must name 3 devices by a bit each"),
    "too many": (0, {WHO: b"\xe0\x00"}, "must name 3 devices by a bit each"),
    "longer than three replies": (0, reply([3100, 0, 0, 0, 0]), "at most as long as the clip"),
    "something of nobody": (0, {WHO: b"\x00"}, "at most 0, so that no sum can wrap"),
    "a channel more": (0, {"metrics": b""}, r"must be on \['update'\] and 'who'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_total_that_cannot_be_is_left_out_whole(name: str) -> None:
    number, changed, words = REFUSED[name]
    session, tree = root(), Partials(shards=SHARDS)
    tree.add(session, 1, handed(1))
    before = session.channels[UPDATE].total.copy()
    with pytest.raises(BadReply, match=words):
        tree.add(session, number, {**handed(), **changed})
    assert session.clients == {3, 4}
    assert np.array_equal(session.channels[UPDATE].total, before)
    tree.add(session, 0, handed())  # the right one still may come
    with pytest.raises(BadReply, match="aggregator 0 has answered"):
        tree.add(session, 0, handed())


def test_a_reply_beyond_the_clip_is_refused_by_the_aggregator_in_the_servers_words() -> None:
    too_long = reply([900, 900, 0, 0, 0])
    shard = begin({UPDATE: {0: 1.0}}, SIZES, context(2), 2)
    server = plain().begin(None, {UPDATE: {0: 1.0, 1: 1.0}}, SIZES, context(2))[0]
    said = []
    for session in (shard, server):
        with pytest.raises(BadReply, match="at most as long as the clip") as error:
            plain().add(session, 0, too_long)
        said.append(str(error.value))
    assert said[0] == said[1]
    with pytest.raises(BadReply, match="client 1 is not expected"):  # another shard's
        plain().add(shard, 1, reply([1] * SIZE))


# --------------------------------------------------------------------------------- real processes


@pytest.mark.slow
def test_a_real_aggregator_hands_up_the_same_bytes() -> None:
    from dpfed_lab.benchmarks._tree_nodes import KINDS, nodes, plan_for, replies, shard_session

    size, slots = 1000, range(5, 45)
    made = replies(plan_for(50), size)
    with nodes(size) as real:
        for hostile in ((), (7, 44)):
            partial, figures = real.ask(50, slots[0], len(slots), hostile)
            sent = [(s, {UPDATE: made[s % KINDS]}) for s in slots if s not in hostile]
            beside = gather(shard_session(50, size, slots), sent)
            assert partial == partial_total(beside, slots)
            assert figures["refused"] == len(hostile)
