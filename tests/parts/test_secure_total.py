# SPDX-License-Identifier: Apache-2.0
"""A secure sum alone: the exact total, no term in sight, and parties that watch their server."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from multiprocessing import Pipe
from typing import Any

import msgspec
import pytest
import torch

from dpfed.core.errors import BadReply, RecipeError, RoundAborted, Untrusted
from dpfed.parts import NoisySum, NoisyValue, SumParty, SumServer, secure_sum
from dpfed.sums.secagg.identity import SigningKey, own_key

TERMS = [torch.tensor([n, -n, 2**40]) for n in (1, 2, 4)]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> list[SigningKey]:
    return [own_key(tmp_path_factory.mktemp("key"), make=True) for _ in range(4)]


def door(**changes: Any) -> NoisySum:
    return NoisySum(**{"clip": 1.0, "epsilon": 2.0, "delta": 1e-5, "parties": 3, **changes})


def parties(keys: Sequence[SigningKey], terms: Sequence[Any], **how: Any) -> list[SumParty]:
    public = [each.public for each in keys[: len(terms)]]
    return [SumParty(i, term, keys[i], public, name="poll", **how) for i, term in enumerate(terms)]


class Tap:
    """A connection that notes what a party sends, and may change what it gets."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.sent = inner, list[bytes]()

    def send_bytes(self, frame: bytes) -> None:
        self.sent.append(frame)
        self.inner.send_bytes(frame)

    def recv_bytes(self) -> bytes:
        return bytes(self.inner.recv_bytes())


def run(server: SumServer, members: Sequence[SumParty]) -> tuple[NoisyValue, list[Tap], list[Any]]:
    ends = [Pipe() for _ in members]
    taps, failed = [Tap(theirs) for _, theirs in ends], list[Any]()

    def answer(member: SumParty, tap: Tap) -> None:
        try:
            member.run(tap)
        except Exception as error:
            failed.append(error)
            tap.inner.close()

    threads = [
        threading.Thread(target=answer, args=pair) for pair in zip(members, taps, strict=True)
    ]
    for each in threads:
        each.start()
    try:
        return server.run([mine for mine, _ in ends]), taps, failed
    finally:
        for each in threads:
            each.join(10)
        for mine, theirs in ends:
            mine.close()
            theirs.close()


def test_integers_are_summed_exactly_in_one_process() -> None:
    assert secure_sum(TERMS, exact_total=True).value.tolist() == [7, -7, 3 * 2**40]


def test_between_processes_the_total_is_the_same_and_no_term_is_sent(
    keys: list[SigningKey],
) -> None:
    server = SumServer(parties=3, size=3, name="poll")
    total, taps, failed = run(server, parties(keys, TERMS, exact_total=True))
    assert total.value.tolist() == [7, -7, 3 * 2**40]
    assert not failed
    for tap, term in zip(taps, TERMS, strict=True):
        assert not any(term.numpy().tobytes() in frame for frame in tap.sent)


def test_shares_of_noise_give_a_total_with_the_noise_that_was_planned() -> None:
    rows = torch.tensor([[0.6, 0.0]]).repeat(5, 1)
    doors = [door(epsilon=1e6) for _ in range(3)]
    total = secure_sum([each(rows) for each in doors])
    assert total.value.tolist() == pytest.approx([9.0, 0.0], abs=0.1)
    wide = torch.zeros(0, 20_000)
    total = secure_sum([door()(wide) for _ in range(3)])
    # 2 clips of distance, of 3 shares one is a colluder's: what the honest two add is the promise
    alone = NoisySum(clip=1.0, epsilon=2.0, delta=1e-5)
    assert total.std == pytest.approx(alone.std * (3 / 2) ** 0.5, rel=1e-6)
    assert float(total.value.std()) == pytest.approx(total.std, rel=0.03)


def test_shares_between_processes_and_one_party_that_drops_out(keys: list[SigningKey]) -> None:
    how = {"parties": 4, "survivors": 0.75, "colluders": 1}
    doors = [door(**how) for _ in range(4)]
    members = parties(keys, [each(torch.ones(1, 2)) for each in doors])
    server = SumServer(4, 2, "poll", door(**how), timeout=10.0)
    members[2].run = lambda tap: tap.inner.close()  # type: ignore[method-assign,assignment]
    total, _, failed = run(server, members)
    assert not failed
    assert total.value.shape == (2,)
    assert total.std == pytest.approx(doors[0].std * 3**0.5)


def test_too_few_open_nothing(keys: list[SigningKey]) -> None:
    members = parties(keys, TERMS, exact_total=True)
    members[0].run = lambda tap: tap.inner.close()  # type: ignore[method-assign,assignment]
    with pytest.raises(RoundAborted, match="the sum was not opened"):
        run(SumServer(3, 3, "poll", timeout=5.0), members)


def test_a_server_that_swaps_a_key_gets_no_vector(keys: list[SigningKey]) -> None:
    """It could read that party's pairwise masks."""
    members = parties(keys, TERMS, exact_total=True)
    strangers = parties([keys[3], *keys[1:3]], TERMS, exact_total=True)
    with pytest.raises(RoundAborted):
        run(SumServer(3, 3, "poll", timeout=5.0), [strangers[0], *members[1:]])
    ours, theirs = Pipe()
    lied = threading.Thread(target=lambda: _lie(ours))
    lied.start()
    tap = Tap(theirs)
    with pytest.raises((Untrusted, BadReply)):
        members[0].run(tap)
    lied.join(10)
    assert len(tap.sent) == 1  # its own signed key, and nothing after


def _lie(server: Any) -> None:
    """Ask for the key, then name a cohort with keys that nobody signed."""
    from dpfed.sums.secagg import messages

    server.send_bytes(msgspec.msgpack.encode(("keys", b"")))
    own = server.recv_bytes()
    cohort = messages.Cohort([0, 1, 2], {1: own, 2: own})
    packed = messages.pack_message(cohort)
    server.send_bytes(msgspec.msgpack.encode(("input", packed)))


@pytest.mark.parametrize(
    ("terms", "how", "said"),
    [
        (TERMS, {}, "exact_total=True"),
        ([term.float() for term in TERMS], {"exact_total": True}, "flat tensors of integers"),
        ([term[None] for term in TERMS], {"exact_total": True}, "flat tensors of integers"),
        (TERMS[:2], {"exact_total": True}, "terms must be from 3 to 64"),
        ([*TERMS[:2], torch.arange(2)], {"exact_total": True}, "of one length"),
        ([torch.tensor([2**62])] * 3, {"exact_total": True}, "no total wraps"),
    ],
)
def test_terms_that_should_not_be_summed_are_refused(
    terms: list[torch.Tensor], how: dict[str, Any], said: str
) -> None:
    with pytest.raises(RecipeError, match=said):
        secure_sum(terms, **how)


def test_doors_of_another_kind_are_refused() -> None:
    rows = torch.ones(2, 2)
    with pytest.raises(RecipeError, match="parties must be 3, as the noise was made for, got 4"):
        secure_sum([door()(rows) for _ in range(4)])
    with pytest.raises(RecipeError, match="from doors of one kind"):
        secure_sum([door()(rows), door()(rows), door(epsilon=20.0)(rows)])


def test_a_party_answers_one_sum(keys: list[SigningKey]) -> None:
    members = parties(keys, TERMS, exact_total=True)
    run(SumServer(3, 3, "poll"), members)
    with pytest.raises(RoundAborted):
        run(SumServer(3, 3, "poll", timeout=5.0), members)
    with pytest.raises(RecipeError, match="this one's at 1"):
        SumParty(
            1, TERMS[0], keys[0], [each.public for each in keys[:3]], name="poll", exact_total=True
        )
    with pytest.raises(RecipeError, match="name must be"):
        SumServer(3, 3, "")
