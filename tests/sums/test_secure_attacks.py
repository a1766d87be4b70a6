# SPDX-License-Identifier: Apache-2.0
"""Whatever a server or a client does against the secure sum's rules is refused, or of no use."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfed.core.errors import BadReply, DataError, Untrusted
from dpfed.core.sum_protocol import Aborted, Opened
from dpfed.core.types import UPDATE
from dpfed.sums.secagg import keys, messages, shamir
from dpfed.sums.secagg.client import Vault
from dpfed.sums.secagg.identity import simulated
from dpfed.sums.secagg.server import SUM, Directory
from dpfed.sums.secure import Secure, secure
from tests.helpers.secure_requests import ALL, LOOSE, VECTORS, N, alive, answered, ask, masked, out
from tests.sums.table import Table, Tamper

ASK = "ask who runs that client what happened"
STRICT = secure(survivors=0.8)  # 4 of 5


def opened(result: Opened | Aborted, inside: Collection[int]) -> bool:
    """Whether the round was opened, over exactly these clients."""
    expected = np.sum([VECTORS[i] for i in inside], axis=0).tolist()
    total = result.totals[UPDATE] if isinstance(result, Opened) else None
    return total is not None and (total.clients, total.vector.tolist()) == (
        tuple(sorted(inside)),
        expected,
    )


def keyed(sum: Secure = LOOSE, run: str = "run/plan") -> Table:
    """A table whose clients have sent their keys, and nothing else."""
    table = Table(sum, N, run=run)
    table.run_round(VECTORS, silent={"input": ALL})
    return table


def refused(
    table: Table, client: int, stage: str, message: msgspec.Struct, match: str, **at: int
) -> None:
    """The client refuses, and its vault is as it was."""
    with pytest.raises(Untrusted, match=match):
        ask(table, client, stage, message, **at)


def cohort(table: Table, clients: Collection[int] = ALL, **changed: Any) -> messages.Cohort:
    """A request for inputs, with all keys."""
    message = messages.Cohort(list(clients), dict(table.directory.keys))
    return msgspec.structs.replace(message, **changed)


def unread(
    table: Table, client: int, message: messages.Alive, senders: set[int], **at: int
) -> None:
    """Sealed shares that do not fit are left out, and not handed over."""
    shares = messages.unpack(ask(table, client, "unmask", message, **at), messages.Shares).shares
    assert set(shares) == set(message.sealed) - senders


def flipped(data: bytes, bit: int = 0) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def at_stage(wanted: str, client: int, change: Callable[[bytes], bytes]) -> Tamper:
    """Change one client's message of one stage."""
    return lambda stage, who, message: (
        change(message) if (stage, who) == (wanted, client) else message
    )


def rewritten(kind: type[msgspec.Struct], field: str, change: Callable) -> Callable:
    """Change one field of a message."""

    def edit(data: bytes) -> bytes:
        if kind is messages.Masked:
            message, words = messages.unpack_masked(data)
            new = change(dict(getattr(message, field)))
            return messages.pack_masked(msgspec.structs.replace(message, **{field: new}), words)
        message = messages.unpack(data, kind)
        new = change(getattr(message, field))
        return messages.pack_message(msgspec.structs.replace(message, **{field: new}))

    return edit


# ----------------------------------------------------------------------------------- the own mask


def test_own_masks_are_new_for_each_client_and_attempt() -> None:
    """A seed that others know, or that comes again, hides nothing once seeds are revealed."""
    tables = [answered(), answered()]
    tables[1].run_round(VECTORS, attempt=1, silent={"repair": ALL, "unmask": ALL})
    marks = {masked(table, client).own for table in tables for client in ALL}
    assert len(marks) == 2 * N
    assert keys.digest(bytes(32)) not in marks


def test_one_share_fewer_than_the_threshold_does_not_open_an_own_mask() -> None:
    table = answered(STRICT)  # 4 of 5 must be in a total, so 3 of the others open a seed
    answers = {i: ask(table, i, "unmask", alive(table, i)) for i in (1, 2, 3)}
    shares = {i: messages.unpack(data, messages.Shares).shares[0] for i, data in answers.items()}
    mark = masked(table, 0).own
    assert keys.digest(shamir.join(shares)) == mark
    for some in ([1], [1, 2], [1, 3], [2, 3]):
        assert keys.digest(shamir.join({i: shares[i] for i in some})) != mark


# --------------------------------------------------------------- both kinds of share for one client


def test_who_is_said_to_be_out_cannot_be_in_afterwards() -> None:
    table = answered()
    ask(table, 0, "repair", out(4))
    refused(table, 0, "unmask", alive(table, 0), "must be the cohort without those that are out")


def test_who_was_opened_cannot_be_said_to_be_out_afterwards() -> None:
    table = answered()
    ask(table, 0, "unmask", alive(table, 0))
    refused(table, 0, "repair", out(4), "was opened before")


def test_who_is_out_is_out_for_good() -> None:
    table = answered()
    ask(table, 0, "repair", out(3))
    for back in (out(), out(4)):
        refused(table, 0, "repair", back, "of this cohort, and stay out, got .* after 1;")
    ask(table, 0, "repair", out(3, 4))  # more may follow


def test_who_is_neither_in_nor_out_is_missed() -> None:
    table = answered()
    refused(table, 0, "unmask", alive(table, 0, [0, 1, 2, 3]), "must be the cohort without")


def test_who_is_named_twice_does_not_count_twice() -> None:
    table = answered()
    twice = alive(table, 0, clients=[0, 1, 2, 3, 4, 4])
    refused(table, 0, "unmask", twice, "must be the cohort without")


def test_no_client_gives_both_kinds_for_any_lie_about_another() -> None:
    """Over all orders of two requests: never a share of a client's own seed and its pair seed."""
    for first, second in (("repair", "unmask"), ("unmask", "repair")):
        table = answered()
        lie = {"repair": out(4), "unmask": alive(table, 0)}
        ask(table, 0, first, lie[first])
        refused(table, 0, second, lie[second], "must be the cohort without|opened before")


def test_the_round_is_opened_once() -> None:
    table = answered()
    ask(table, 0, "unmask", alive(table, 0))
    refused(table, 0, "unmask", alive(table, 0), "was opened before")


def test_a_client_cannot_be_declared_out_to_itself() -> None:
    refused(answered(), 0, "repair", out(0), "must be others of this cohort")


def test_a_stranger_cannot_be_declared_out() -> None:
    for stranger in (N, -1):
        refused(answered(), 0, "repair", out(stranger), "must be others of this cohort")


# ---------------------------------------------------------------------------------- replaced keys


def signed_by(signer: int, client: int, key: bytes, run: str = "run/plan") -> messages.Key:
    signature = simulated(N)[signer].sign(keys.signed_text(run, client, key))
    return messages.Key(key, signature)


def forgeries(table: Table) -> dict[str, messages.Key]:
    """Keys for client 1 that client 0 must not believe."""
    own = keys.new_key()[1]
    true = table.directory.keys[1]
    other_run = keyed(run="run/another").directory.keys[1]
    return {
        "no signature": messages.Key(own, b""),
        "zeros": messages.Key(own, bytes(64)),
        "the server's own signature": signed_by(4, 1, own),
        "another client's key": table.directory.keys[2],
        "another client's key, signed by the victim for itself": signed_by(1, 2, own),
        "the victim's of another run": other_run,
        "the victim's signature under another key": messages.Key(own, true.signature),
        "the victim's key, signature flipped": messages.Key(true.key, flipped(true.signature, 7)),
        "the victim's key, key flipped": messages.Key(flipped(true.key), true.signature),
        "a longer key": messages.Key(true.key + b"\0", true.signature),
        "an empty key": signed_by(1, 1, b""),
    }


@pytest.mark.parametrize("forgery", list(forgeries(keyed())))
def test_a_replaced_key_is_refused(forgery: str) -> None:
    table = keyed()
    offers = {**table.directory.keys, 1: forgeries(table)[forgery]}
    refused(table, 0, "input", cohort(table, keys=offers), "client 1 has no key that it has signed")
    ask(table, 0, "input", cohort(table))


def test_a_missing_key_is_refused() -> None:
    table = keyed()
    offers = {i: key for i, key in table.directory.keys.items() if i != 3}
    refused(table, 0, "input", cohort(table, keys=offers), "client 3 has no key")


def test_a_changed_key_in_a_later_round_is_refused_though_it_is_signed() -> None:
    table = answered()
    offers = {1: signed_by(1, 1, keys.new_key()[1])}
    refused(
        table, 0, "input", cohort(table, keys=offers), "client 1 must not change in a run", round=1
    )


def test_a_signed_key_of_small_order_is_refused() -> None:
    table = keyed()
    offers = {**table.directory.keys, 1: signed_by(1, 1, bytes(32))}
    refused(
        table, 0, "input", cohort(table, keys=offers), "clients .0, 1. .* key is of small order"
    )


def test_another_run_has_other_keys() -> None:
    """Whoever learns one run's key learns nothing of the next, and a round 0 there is a new one."""
    table = keyed()
    before = {client: offer.key for client, offer in table.directory.keys.items()}
    table.run, table.directory = "another run/plan", Directory()
    assert opened(table.run_round(VECTORS), ALL)
    assert all(table.directory.keys[client].key != before[client] for client in ALL)


def test_the_keys_that_are_asked_for_twice_are_the_same() -> None:
    table = answered()
    again = table.ask(0, "keys", b"whatever", None, table.context(0, 7))
    assert messages.unpack(again, messages.Key) == table.directory.keys[0]


# -------------------------------------------------------------------------------- replayed rounds


@pytest.mark.parametrize("at", [(3, 1), (3, 0), (2, 5), (0, 0), (-1, 9)])
def test_a_round_or_an_attempt_that_is_not_new_is_refused(at: tuple[int, int]) -> None:
    table = answered(round=3, attempt=1)
    round, attempt = at
    refused(table, 0, "input", cohort(table), "a mask is used once", round=round, attempt=attempt)
    for later in ((3, 2), (4, 0)):
        ask(table, 0, "input", cohort(table), round=later[0], attempt=later[1])


@pytest.mark.parametrize("at", [(0, 0), (3, 0), (3, 2), (4, 1)])
def test_a_round_that_was_not_answered_is_neither_repaired_nor_opened(at: tuple[int, int]) -> None:
    table = answered(round=3, attempt=1)
    round, attempt = at
    for stage, message in (("repair", out(4)), ("unmask", alive(table, 0))):
        refused(table, 0, stage, message, "nothing was sent", round=round, attempt=attempt)


def test_a_client_without_a_vault_repairs_and_opens_nothing() -> None:
    table = answered()
    table.secrets[0] = b""
    refused(table, 0, "repair", out(4), "nothing was sent")
    refused(table, 0, "unmask", alive(table, 0), "nothing was sent")


def test_a_round_is_left_behind_when_the_next_one_is_answered() -> None:
    table = answered()
    ask(table, 0, "input", cohort(table), round=1)
    refused(table, 0, "unmask", alive(table, 0), "nothing was sent")


# ------------------------------------------------------------------------------ cohorts and totals


@pytest.mark.parametrize(
    ("clients", "match"),
    [
        ([0], "a total must be of at least 4 clients, got 1;"),
        ([0, 1, 2], "a total must be of at least 4 clients, got 3;"),
        ([0, 0, 1, 2], "a cohort must be of the plan's 5 clients, each once, .*, got 4;"),
        ([0, 1, 2, 3, 4, 4], "a cohort must be .*, got 6;"),
        ([0, 1, 2, 5], "a cohort must be .*, got 4;"),
        ([0, 1, 2, -1], "a cohort must be .*, got 4;"),
        ([1, 2, 3, 4], "a cohort must be .*, got 4;"),
        ([], "a cohort must be .*, got 0;"),
    ],
)
def test_a_cohort_that_is_too_small_or_not_of_the_plan_is_refused(
    clients: list[int], match: str
) -> None:
    table = keyed(STRICT)
    refused(table, 0, "input", cohort(table, clients), match)


def test_too_many_who_are_out_are_refused_whatever_came_before() -> None:
    table = answered(STRICT)
    refused(table, 0, "repair", out(3, 4), "a total must be of at least 4 clients, got 3;")
    ask(table, 0, "repair", out(3))
    refused(table, 0, "repair", out(3, 4), "a total must be of at least 4 clients, got 3;")
    refused(table, 0, "unmask", alive(table, 0, [0, 1, 2]), "must be the cohort without")


def test_clients_whose_channels_lie_elsewhere_share_no_mask() -> None:
    """Else a client's words on one channel would be added to the others' on another one."""
    layouts = {"a": 1, "b": 2}, {"a": 2, "b": 1}
    table = Table(LOOSE, N, channels=layouts[0])

    def lie(stage: str, client: int, message: bytes) -> bytes:
        table.channels = layouts[stage == "input" and client == 2]
        return message

    result = table.run_round(VECTORS, to_client=lie)
    assert isinstance(result, Aborted)
    assert "2 disagree on their seed" in result.reason


def test_no_message_has_a_field_for_the_threshold() -> None:
    fields = {
        name
        for kind in (messages.Cohort, messages.Dropped, messages.Alive)
        for name in kind.__struct_fields__
    }
    assert fields == {"clients", "keys", "sealed", "marks"}


# ----------------------------------------------------------------------------------- sealed shares


def test_sealed_shares_exchanged_between_senders_are_not_read() -> None:
    table = answered()
    true = alive(table, 0).sealed
    exchanged = {**true, 1: true[2], 2: true[1]}
    unread(table, 0, alive(table, 0, sealed=exchanged), {1, 2})


def test_a_sealed_share_for_another_is_not_read() -> None:
    table = answered()
    sealed = {**alive(table, 0).sealed, 1: masked(table, 1).sealed[2]}
    unread(table, 0, alive(table, 0, sealed=sealed), {1})


def test_a_sealed_share_of_another_round_is_not_read() -> None:
    table = answered()
    old = alive(table, 0).sealed
    table.run_round(VECTORS, round=1, silent={"unmask": ALL})
    unread(table, 0, alive(table, 0, sealed=old), {1, 2, 3, 4}, round=1)


@pytest.mark.parametrize("bit", [0, 100, 263, 264, 391])
def test_a_sealed_share_with_one_bit_flipped_is_not_read(bit: int) -> None:
    table = answered()
    true = alive(table, 0).sealed
    sealed = {**true, 3: flipped(true[3], bit)}
    unread(table, 0, alive(table, 0, sealed=sealed), {3})
    refused(table, 0, "unmask", alive(table, 0), "opened before")  # there is no second try


def test_a_share_other_than_the_one_committed_to_is_not_handed_over() -> None:
    table = answered()
    marks = {**alive(table, 0).marks, 2: bytes(32)}
    unread(table, 0, alive(table, 0, marks=marks), {2})


def test_sealed_shares_too_few_or_too_many_are_refused() -> None:
    table = answered()
    true = alive(table, 0).sealed
    fewer = {i: share for i, share in true.items() if i != 2}
    for sealed in (fewer, {}, {**true, 0: true[1]}, {**true, 9: true[1]}):
        for field in ("sealed", "marks"):
            changed = alive(table, 0, **{field: sealed})
            refused(
                table, 0, "unmask", changed, "must be those of the 4 neighbours that are in, got"
            )


def test_a_server_that_changes_a_sealed_share_loses_it_and_no_more() -> None:
    def flip(sealed: dict[int, bytes]) -> dict[int, bytes]:
        return {**sealed, 2: flipped(sealed[2])}

    table = Table(LOOSE, N)
    result = table.run_round(
        VECTORS, to_client=at_stage("unmask", 0, rewritten(messages.Alive, "sealed", flip))
    )
    assert opened(result, ALL)
    assert not table.refused


# --------------------------------------------------------------------------------- lying clients


def forged(values: dict[int, bytes]) -> dict[int, bytes]:
    first = min(values)
    return {**values, first: flipped(values[first])}


def test_a_forged_share_is_named_and_done_without() -> None:
    table = Table(LOOSE, N)
    result = table.run_round(
        VECTORS, to_server=at_stage("unmask", 3, rewritten(messages.Shares, "shares", forged))
    )
    assert opened(result, ALL)
    assert set(table.refused) == {3}
    assert table.refused[3] == f"BadReply: client 3 forged its share of client 0's mask; {ASK}"


def test_too_many_forged_shares_abort_and_all_forgers_are_named() -> None:
    table = Table(LOOSE, N)
    forge = rewritten(messages.Shares, "shares", forged)
    result = table.run_round(
        VECTORS, to_server=lambda stage, i, m: forge(m) if stage == "unmask" and i > 1 else m
    )
    assert isinstance(result, Aborted)
    assert "fewer than 2 true shares" in result.reason
    assert set(table.refused) == {2, 3, 4}
    assert all("forged its share" in why for why in table.refused.values())


def test_a_forged_seed_is_named_and_its_sender_is_out() -> None:
    table = Table(LOOSE, N)
    forge = at_stage("repair", 2, rewritten(messages.Seeds, "seeds", forged))
    assert opened(table.run_round(VECTORS, silent={"input": [4]}, to_server=forge), [0, 1, 3])
    assert set(table.refused) == {2}
    assert table.refused[2] == f"BadReply: client 2 forged its seed with client 4; {ASK}"


@pytest.mark.parametrize(
    ("stage", "kind", "field", "match"),
    [
        ("repair", messages.Seeds, "seeds", "client 2 must reveal the seeds that it was asked for"),
        (
            "unmask",
            messages.Shares,
            "shares",
            "client 2 handed over shares that it was not asked for",
        ),
    ],
)
def test_values_too_few_or_too_many_are_named(
    stage: str, kind: type[msgspec.Struct], field: str, match: str
) -> None:
    for change in (lambda v: {}, lambda v: {**v, 99: bytes(33)})[stage == "unmask" :]:
        table = Table(LOOSE, N)
        tamper = at_stage(stage, 2, rewritten(kind, field, change))
        result = table.run_round(VECTORS, silent={"input": [4]}, to_server=tamper)
        assert opened(result, {0, 1, 3} if stage == "repair" else {0, 1, 2, 3})
        assert match in table.refused[2]


def test_clients_that_commit_to_different_seeds_are_both_named() -> None:
    table = Table(LOOSE, N)
    tamper = at_stage("input", 3, rewritten(messages.Masked, "pairs", forged))
    result = table.run_round(VECTORS, to_server=tamper)
    assert result == Aborted("clients 0 and 3 disagree on their seed")


@pytest.mark.parametrize("field", ["sealed", "shares", "pairs"])
@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda v: {}, "client 2 must seal a share for each of its neighbours"),
        (lambda v: {**v, 2: bytes(49)}, "client 2 must seal a share for each of its neighbours"),
        (lambda v: {**v, 99: bytes(49)}, "client 2 must seal a share for each of its neighbours"),
        (lambda v: {**v, 0: b"short"}, "client 2 sent shares or commitments of the wrong length"),
    ],
)
def test_shares_and_commitments_that_do_not_fit_put_their_sender_out(
    field: str, change: Callable, match: str
) -> None:
    table = Table(LOOSE, N)
    tamper = at_stage("input", 2, rewritten(messages.Masked, field, change))
    assert opened(table.run_round(VECTORS, to_server=tamper), [0, 1, 3, 4])
    assert match in table.refused[2]


@pytest.mark.parametrize("change", [lambda m: m[:-1], lambda m: m + b"\0", lambda m: m[:-8]])
def test_a_vector_of_another_length_puts_its_sender_out(change: Callable) -> None:
    table = Table(LOOSE, N)
    result = table.run_round(VECTORS, to_server=at_stage("input", 2, change))
    assert opened(result, [0, 1, 3, 4])
    assert "a vector must have 24 bytes, got" in table.refused[2]


@pytest.mark.parametrize("stage", ["keys", "input", "repair", "unmask"])
def test_a_reply_twice_or_from_a_stranger_is_refused_and_changes_nothing(stage: str) -> None:
    table = Table(LOOSE, N)
    heard: list[str] = []

    def echo(at: str, client: int, message: bytes) -> bytes:
        for late in (1, 99, -1) if (at, client) == (stage, 2) else ():
            with pytest.raises(BadReply, match=f"client {late} is not expected in '{stage}'"):
                table.sum.add(table.session, late, {SUM: table.sent.get((at, late), message)})
            heard.append(at)
        return message

    assert opened(table.run_round(VECTORS, silent={"input": [4]}, to_server=echo), [0, 1, 2, 3])
    assert heard == [stage] * 3


def test_a_late_vector_of_who_is_out_is_refused() -> None:
    table = Table(LOOSE, N)
    table.run_round(
        VECTORS, silent={"input": ALL}
    )  # client 4 will have a vector, and be late with it
    late = ask(table, 4, "input", cohort(table), round=1)

    def too_late(stage: str, client: int, message: bytes) -> bytes:
        if stage in ("repair", "unmask"):
            with pytest.raises(BadReply, match="client 4 is not expected"):
                table.sum.add(table.session, 4, {SUM: late})
        return message

    result = table.run_round(VECTORS, round=1, silent={"input": [4]}, to_server=too_late)
    assert opened(result, [0, 1, 2, 3])


def test_replies_under_another_name_are_refused() -> None:
    table = keyed()
    for replies in ({}, {UPDATE: b""}, {SUM: b"", UPDATE: b""}):
        with pytest.raises(BadReply, match=r"a reply must be on \['sum'\], got"):
            table.sum.add(table.session, 0, replies)
        with pytest.raises(BadReply, match="has no stage"):
            table.sum.reply("input", replies, None, b"", table.context(0))
    with pytest.raises(BadReply, match="has no stage 'reveal the key'"):
        table.sum.reply("reveal the key", {SUM: b""}, None, b"", table.context(0))


# ------------------------------------------------------------------------------- malformed bytes

NUMBERS = st.integers(-2, 6) | st.integers(-(2**63), 2**63 - 1)
TEXTS = st.binary(max_size=40) | st.sampled_from([bytes(32), bytes(33), bytes(49), bytes(64)])
BY_CLIENT = st.dictionaries(NUMBERS, TEXTS, max_size=5)
CLIENTS = st.lists(NUMBERS, max_size=7) | st.permutations(ALL) | st.just([4])
KEYS = st.dictionaries(NUMBERS, st.builds(messages.Key, TEXTS, TEXTS), max_size=5)
REQUESTS = st.one_of(
    st.builds(messages.Cohort, CLIENTS, KEYS),
    st.builds(messages.Dropped, CLIENTS),
    st.builds(messages.Alive, CLIENTS, BY_CLIENT, BY_CLIENT),
).map(messages.pack_message)
REPLIES = st.one_of(
    st.builds(messages.Key, TEXTS, TEXTS).map(messages.pack_message),
    st.builds(messages.Seeds, BY_CLIENT).map(messages.pack_message),
    st.builds(messages.Shares, BY_CLIENT).map(messages.pack_message),
    st.builds(
        messages.pack_masked,
        st.builds(messages.Masked, BY_CLIENT, BY_CLIENT, BY_CLIENT, TEXTS),
        st.binary(),
    ),
)


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("stage", ["keys", "input", "repair", "unmask"])
@given(data=st.binary(max_size=200) | REPLIES)
@settings(max_examples=60)
def test_a_malformed_reply_puts_its_sender_out_and_nobody_else(stage: str, data: bytes) -> None:
    table = Table(LOOSE, N)
    result = table.run_round(
        VECTORS, silent={"input": [4]}, to_server=at_stage(stage, 2, lambda _: data)
    )
    assert opened(result, {0, 1, 3} | ({2} if stage == "unmask" else set()))
    silent = stage == "unmask" and data == messages.pack_message(
        messages.Shares({})
    )  # it could unseal no share
    assert silent or table.refused[2].startswith("BadReply")


def says_what_is_true(data: bytes) -> bool:
    try:
        return set(messages.unpack(data, messages.Dropped).clients) == {4}
    except BadReply:
        return False


@pytest.mark.sample(3)
@pytest.mark.slow
@pytest.mark.parametrize("stage", ["input", "repair", "unmask"])
@given(data=st.binary(max_size=200) | REQUESTS)
@settings(max_examples=60)
def test_a_malformed_request_is_refused_by_its_receiver_alone(stage: str, data: bytes) -> None:
    table = Table(LOOSE, N)
    harmless = stage == "repair" and says_what_is_true(data)
    result = table.run_round(
        VECTORS, silent={"input": [4]}, to_client=at_stage(stage, 2, lambda _: data)
    )
    assert opened(result, {0, 1, 3} | ({2} if stage == "unmask" or harmless else set()))
    assert harmless or table.refused[2].startswith(("BadReply", "Untrusted"))


@given(cut=st.integers(0, 10**6))
def test_a_masked_vector_cut_off_anywhere_is_refused(cut: int) -> None:
    table = Table(LOOSE, N)
    result = table.run_round(VECTORS, to_server=at_stage("input", 2, lambda m: m[: cut % len(m)]))
    assert opened(result, [0, 1, 3, 4])
    assert table.refused[2].startswith("BadReply")


def test_an_aborted_round_closes_its_spool() -> None:
    table = Table(LOOSE, N)
    assert isinstance(table.run_round(VECTORS, silent={"input": ALL}), Aborted)
    assert not table.left_open


# ------------------------------------------------------- attacks that an earlier form fell to


def test_a_client_with_another_layout_shares_no_mask() -> None:
    """A server that sends one client a longer model would shift its release on to other words."""
    table = Table(secure(survivors=1.0, against="malicious"), N)
    _, vaults = table.run_round(VECTORS, silent={"unmask": ALL}), dict(table.secrets)
    assert len({msgspec.msgpack.decode(v, type=Vault).layout for v in vaults.values()}) == 1
    pair, at = bytes(32), (0, 0)
    layouts = [{"a": 2, "b": 2}, {"a": 3, "b": 1}, {"a": 2, "c": 2}, {"a": 2}, {"a": 22}]
    seeds = {keys.round_seed(pair, at, keys.layout_digest(each)) for each in layouts}
    assert len(seeds) == len(layouts)
    reordered = keys.layout_digest({"b": 2, "a": 2})  # the order of a mapping means nothing
    assert reordered == keys.layout_digest({"a": 2, "b": 2})


def test_a_client_with_an_unsigned_key_is_named_and_does_not_stop_the_others() -> None:
    table = Table(LOOSE, N)
    unsigned = messages.pack_message(messages.Key(keys.new_key()[1], bytes(64)))
    result = table.run_round(VECTORS, to_server=at_stage("keys", 2, lambda _: unsigned))
    assert opened(result, [0, 1, 3, 4])
    assert set(table.refused) == {2}


def test_a_key_from_a_client_that_was_not_asked_for_one_is_refused() -> None:
    table = Table(LOOSE, N)
    assert opened(table.run_round(VECTORS, silent={"keys": [4]}), [0, 1, 2, 3])
    before = table.directory.keys[1]

    def meddle(stage: str, client: int, message: bytes) -> bytes:
        if (stage, client) == ("keys", 4):
            another = messages.pack_message(signed_by(1, 1, keys.new_key()[1]))
            with pytest.raises(BadReply, match="client 1 is not expected"):
                table.sum.add(table.session, 1, {SUM: another})
        return message

    assert opened(table.run_round(VECTORS, round=1, to_server=meddle), ALL)
    assert table.directory.keys[1] == before


def test_a_short_seed_that_fits_its_own_commitment_is_refused() -> None:
    commit = rewritten(messages.Masked, "pairs", lambda v: {**v, 4: keys.digest(b"short")})
    reveal = rewritten(messages.Seeds, "seeds", lambda v: {4: b"short"})
    change = {"input": commit, "repair": reveal}

    def lie(stage: str, client: int, message: bytes) -> bytes:
        return change[stage](message) if client == 2 and stage in change else message

    table = Table(LOOSE, N)
    assert opened(table.run_round(VECTORS, silent={"input": [4]}, to_server=lie), [0, 1, 3])
    assert set(table.refused) == {2}


def dealt(table: Table, share: bytes, sealed: Callable[[bytes], bytes] = bytes) -> Tamper:
    """Client 2 deals out such shares of its own mask, each with a commitment that fits."""

    def deal(data: bytes) -> bytes:
        message, words = messages.unpack_masked(data)
        pairs = msgspec.msgpack.decode(table.secrets[2], type=Vault).pairs
        new = msgspec.structs.replace(
            message,
            sealed={i: sealed(keys.seal(pairs[i], (0, 0), 2, i, share)) for i in pairs},
            shares={i: keys.digest(share) for i in pairs},
        )
        return messages.pack_masked(new, words)

    return at_stage("input", 2, deal)


def test_a_share_outside_of_the_field_ends_in_a_named_abort_and_no_exception() -> None:
    table = Table(LOOSE, N)
    result = table.run_round(VECTORS, to_server=dealt(table, b"\xff" * shamir.SHARE_BYTES))
    assert isinstance(result, Aborted)
    assert "2" in result.reason


def test_a_dealer_of_wrong_commitments_is_blamed_and_not_the_receivers() -> None:
    table = Table(LOOSE, N)
    tamper = at_stage(
        "input", 2, rewritten(messages.Masked, "shares", lambda v: dict.fromkeys(v, bytes(32)))
    )
    table.run_round(VECTORS, to_server=tamper)
    assert not set(table.refused) - {2}


def test_a_dealer_of_unreadable_shares_cannot_stop_the_round_unnamed() -> None:
    table = Table(LOOSE, N)
    tamper = dealt(table, bytes(shamir.SHARE_BYTES), flipped)
    result = table.run_round(VECTORS, to_server=tamper)
    assert isinstance(result, Opened) or "2" in result.reason.replace("fewer than 2", "")
    assert len(table.refused) < N - 1


def test_a_message_of_another_kind_is_refused() -> None:
    with pytest.raises(BadReply):
        messages.unpack(messages.pack_message(messages.Alive([4], {}, {})), messages.Dropped)


def test_a_vault_of_another_version_is_refused_before_anything_is_spent() -> None:
    table = answered()
    vault = msgspec.msgpack.decode(table.secrets[0], type=Vault)
    vault.version += 1
    for other in (vault.lock(), b"\x01", table.secrets[0][:-3]):
        table.secrets[0] = other
        with pytest.raises(DataError, match="another version of dpfed"):
            ask(table, 0, "keys", messages.Dropped([]))
