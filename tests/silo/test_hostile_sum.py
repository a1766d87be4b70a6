# SPDX-License-Identifier: Apache-2.0
"""A hostile SuperLink against real gates: it plays the secure sum's stages as it likes.

Each scenario is played twice: with gate 0's data, and with data that has another first record. What
is refused, and how long answers are, must not differ. Then an honest round completes, with the bits
of one process, and each ledger is what the masked vectors that left cost, counted here from bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpfed.silo.frames import ask
from dpfed.sums.secagg import keys
from dpfed.sums.secagg.messages import Key
from tests.silo.gates import read
from tests.silo.link import (
    EVERYONE,
    FEWER,
    FIRST,
    At,
    Federation,
    Link,
    federation,
)

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("hostile-sum")]

Scenario = Callable[[Link], None]


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation(tmp_path_factory.mktemp("hostile")) as made:
        yield made


def play(fed: Federation, name: str, scenario: Scenario, then: At = (1, 0)) -> None:
    """The scenario with both data sets; then an honest round on the same gates."""
    # a receipt names its training, so the names are equally long
    of_neighbour, of_silos = fed.agreed(f"{name}-1"), fed.agreed(f"{name}-2")
    links = [Link(fed.neighbour, of_neighbour), Link(fed.silos, of_silos)]
    seen = []
    for link in links:
        scenario(link)
        seen.append([(e.client, e.stage, e.at, e.word or len(e.reply)) for e in link.left])
    assert seen[0] == seen[1]
    links[1].check(then)


def until(true: Callable[[], bool], patience: float = 60.0) -> None:
    end = time.monotonic() + patience
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("stage", ["input", "unmask"])
def test_killed_between_disk_and_socket_it_sends_the_same_bytes(
    fed: Federation, stage: str
) -> None:
    """The gate waits before each answer here, and gets SIGKILL when its answer is on the disk."""
    link = Link(fed.silos, fed.agreed(f"killed-{stage}"))
    if stage == "input":
        link.learn_keys()
        request, other = link.cohort(0, EVERYONE), link.cohort(0, FEWER)
    else:
        link.inputs()
        request, other = link.alive(0, EVERYONE), link.alive(0, FEWER)
    order = link.order(stage, request)
    before = link.stored(0)
    fed.restart(fed.silos[0], answer_after=120.0)
    try:
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(ask, str(fed.silos[0].socket), order, 60)
            until(lambda: link.stored(0) != before)
            fed.silos[0].kill()
            assert isinstance(asked.exception(), ConnectionError)
        kept = [each["sum"] for each in link.stored(0) if each not in before]
    finally:  # the other tests use the same gates
        fed.restart(fed.silos[0])
    assert link.ask(0, stage, other) == "Untrusted"
    assert [link.ask(0, stage, request)] == kept
    assert link.ask(0, stage, other) == "Untrusted"
    link.round()  # the same attempt, to its end
    link.check((1, 0))


def test_other_cohorts_are_refused_and_cost_nothing(fed: Federation) -> None:
    def scenario(link: Link) -> None:
        link.learn_keys()
        strangers = [[0, 1, 2, 3, 7], [0, 1, 2, 3, -1], [*EVERYONE, 5]]
        doubles = [[0, 0, 1, 2, 3], [*EVERYONE, 0]]
        too_few = [[0], [0, 1], [0, 1, 2], []]
        for cohort in (*strangers, *doubles, *too_few, [1, 2, 3, 4]):
            assert link.ask(0, "input", link.cohort(0, cohort)) == "Untrusted", cohort

    play(fed, "cohorts", scenario, then=FIRST)  # the attempt itself is still there


def test_other_keys_are_refused_and_cost_nothing(fed: Federation) -> None:
    other = Link(fed.silos, fed.agreed("of-another-training"))
    other.learn_keys()

    def scenario(link: Link) -> None:
        link.learn_keys()
        _, mine = keys.new_key()
        run = f"{link.terms.name}/{link.plan.fingerprint()}"
        signature = Ed25519PrivateKey.generate().sign(keys.signed_text(run, 1, mine))
        forged = [
            Key(mine, link.keys[1].signature),
            Key(mine, signature),
            Key(mine, b""),
            link.keys[2],
            link.keys[0],
            other.keys[1],
            Key(bytes(32), link.keys[1].signature),
        ]
        for key in forged:
            assert link.ask(0, "input", link.cohort(0, EVERYONE, k1=key)) == "Untrusted"
        del link.keys[1]
        assert link.ask(0, "input", link.cohort(0, EVERYONE)) == "Untrusted"
        link.inputs()
        changed = link.cohort(0, EVERYONE, k1=other.keys[1])
        assert link.ask(0, "input", changed, (1, 0)) == "Untrusted"

    play(fed, "keys", scenario)


def test_fewer_than_agreed_are_never_opened(fed: Federation) -> None:
    lower = read(fed.terms("lower", against="curious", survivors=0.6)).plan.fingerprint()

    def scenario(link: Link) -> None:
        link.inputs()
        for client in EVERYONE[:3]:
            assert link.ask(client, "repair", link.dropped(3, 4)) == "Untrusted"
            assert link.ask(client, "repair", link.dropped(*EVERYONE)) == "Untrusted"
            assert link.ask(client, "unmask", link.alive(client, [0, 1, 2])) == "Untrusted"
            assert link.ask(client, "unmask", link.alive(client, FEWER)) == "Untrusted"  # 4 is in
        assert link.ask(0, "unmask", link.alive(0, EVERYONE), fingerprint=lower) == "UnsoundPlan"

    play(fed, "fewer", scenario)


def test_stages_out_of_their_order_give_nothing(fed: Federation) -> None:
    def scenario(link: Link) -> None:
        for stage in ("repair", "unmask"):
            assert link.ask(0, stage, link.dropped(4)) in ("Untrusted", "ClientError")
        link.inputs((0, 1))
        assert link.ask(0, "input", link.cohort(0, EVERYONE), FIRST) == "Untrusted"  # gone by
        for at in (FIRST, (0, 2), (1, 0), (0, -1), (9, 0)):
            for stage, request in (("repair", link.dropped(4)), ("unmask", link.alive(0, FEWER))):
                assert link.ask(0, stage, request, at) in ("Untrusted", "UnsoundPlan")
        assert link.ask(0, "unmask", link.dropped(4), (0, 1)) == "ClientError"
        assert link.ask(0, "reply", b"", (0, 1)) == "UnsoundPlan"
        assert link.ask(0, "input", b"\xff" * 40, (0, 2)) == "ClientError"

    play(fed, "order", scenario)


def test_a_stage_with_other_content_gives_the_first_answer_or_none(fed: Federation) -> None:
    def scenario(link: Link) -> None:
        link.inputs()
        for cohort in (FEWER, [0, 1, 2, 4], EVERYONE[::-1]):
            assert link.ask(0, "input", link.cohort(0, cohort)) == "Untrusted"
        again = link.cohort(0, EVERYONE)
        assert link.ask(0, "input", again, params=link.terms.initial + 1) == "Untrusted"
        assert link.ask(0, "input", again) == link.masked[0]
        assert link.ask(0, "repair", link.dropped(4)) == link.ask(0, "repair", link.dropped(4))
        for out in ((), (3,), (3, 4), (0, 4), (4, 9)):
            assert link.ask(0, "repair", link.dropped(*out)) == "Untrusted", out
        opened = link.ask(0, "unmask", link.alive(0, FEWER))
        assert isinstance(opened, bytes)
        assert link.ask(0, "unmask", link.alive(0, FEWER)) == opened
        assert link.ask(0, "unmask", link.alive(0, FEWER[::-1])) == "Untrusted"
        assert link.ask(0, "repair", link.dropped(4, 3)) == "Untrusted"

    play(fed, "again", scenario)


def test_no_silo_is_both_in_and_out(fed: Federation) -> None:
    """Its own mask and its masks with others: with both, its vector would be open by itself."""

    def scenario(link: Link) -> None:
        link.inputs()
        for client in FEWER:
            assert isinstance(link.ask(client, "repair", link.dropped(4)), bytes)
            for request in (link.alive(client, EVERYONE), link.alive(client, FEWER, also=(4,))):
                assert link.ask(client, "unmask", request) == "Untrusted"
            assert isinstance(link.ask(client, "unmask", link.alive(client, FEWER)), bytes)
        assert isinstance(link.ask(4, "unmask", link.alive(4, EVERYONE)), bytes)
        assert link.ask(4, "repair", link.dropped(0)) == "Untrusted"  # it has opened

    play(fed, "both", scenario)


def test_no_second_total_of_an_attempt(fed: Federation) -> None:
    """All five, then four of them: the difference would be one silo's, with one share of noise."""

    def scenario(link: Link) -> None:
        first = link.round()
        assert first.clients == tuple(EVERYONE)
        vectors = dict(link.masked)
        assert link.round(FIRST, FEWER).aborted
        for client in FEWER:
            assert link.ask(client, "repair", link.dropped(4)) == "Untrusted"
            assert link.ask(client, "unmask", link.alive(client, FEWER)) == "Untrusted"
        assert link.round().clients == tuple(EVERYONE)  # the same orders, the same bytes
        assert link.masked == vectors
        assert link.round((0, 1), FEWER).clients == tuple(FEWER)  # another attempt, at its price
        assert all(link.masked[client] != vectors[client] for client in FEWER)

    play(fed, "two", scenario)
