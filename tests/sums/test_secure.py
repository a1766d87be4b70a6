# SPDX-License-Identifier: Apache-2.0
"""The secure sum opens the plain integer sum, to the bit, whoever drops out when."""

from __future__ import annotations

import gc
import time
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfed.core.errors import RecipeError, UnsoundPlan
from dpfed.core.sum_protocol import Aborted, Opened
from dpfed.core.types import METRICS, UPDATE
from dpfed.sums.secure import Against, Secure, secure
from tests.sums.table import Table, total

RNG = np.random.default_rng(0)
STAGES = ("keys", "input", "repair", "unmask")
MILLION = 10**6
INT64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1, -1, 2**31])


def vectors(clients: int, size: int) -> dict[int, np.ndarray]:
    return {i: RNG.integers(-(2**40), 2**40, size) for i in range(clients)}


def check(result: Opened | Aborted, made: Mapping[int, Any], inside: Collection[int]) -> None:
    assert isinstance(result, Opened), result
    opened = result.totals[UPDATE]
    assert opened.clients == tuple(sorted(inside))
    expected = np.sum([made[i] for i in inside], axis=0)
    assert np.array_equal(opened.vector.numpy(), expected)


def drawn(rng: np.random.Generator, clients: int, each: int) -> dict[str, list[int]]:
    """So many others drop out before each stage."""
    gone = rng.permutation(clients)[: each * len(STAGES)].reshape(len(STAGES), each)
    return {stage: part.tolist() for stage, part in zip(STAGES, gone, strict=True)}


def inside(clients: int, least: int, silent: Mapping[str, Collection[int]]) -> set[int] | None:
    """By the protocol's rules, who is in the total; None if too few are left to open it."""
    keys, input, repair, unmask = (set(silent[stage]) for stage in STAGES)
    cohort = set(range(clients)) - keys
    alive = cohort - input
    if alive != cohort:  # then there is a repair, and who is silent in it is out
        alive -= repair
    answering = alive - repair - unmask
    return alive if len(answering) >= least else None


def all_in(clients: int) -> Secure:
    return secure(survivors=0.8 if clients > 2 else 1.0)


# -------------------------------------------------------------------------------- nobody drops out


@pytest.mark.parametrize(
    "clients",
    [
        2,
        5,
        20,
        pytest.param(100, marks=pytest.mark.slow),
        pytest.param(500, marks=pytest.mark.long),
    ],
)
def test_the_opened_sum_is_the_plain_one(clients: int) -> None:
    table = Table(all_in(clients), clients)
    made = vectors(clients, 650)
    check(table.run_round(made), made, range(clients))
    assert table.stages == ["keys", "input", "unmask"]
    made = vectors(clients, 1)
    check(table.run_round(made, round=1), made, range(clients))
    assert table.stages == ["input", "unmask"]  # two exchanges, once the keys are known


@pytest.mark.parametrize("clients", [2, 5])
def test_a_million_numbers_are_summed(clients: int) -> None:
    made = vectors(clients, MILLION)
    check(Table(all_in(clients), clients).run_round(made), made, range(clients))


@pytest.mark.long
@pytest.mark.slow
def test_twenty_clients_sum_a_million_numbers_in_seconds_with_and_without_dropouts() -> None:
    made = vectors(20, MILLION)
    table = Table(secure(), 20)
    began = time.process_time()
    check(table.run_round(made), made, range(20))
    silent = {"input": [3], "repair": [7], "unmask": [11, 19]}
    check(table.run_round(made, round=1, silent=silent), made, set(range(20)) - {3, 7})
    assert time.process_time() - began < 30


# ------------------------------------------------------------------------------- someone drops out


@st.composite
def rounds(draw: st.DrawFn) -> tuple[dict[int, list[int]], dict[str, set[int]]]:
    clients, size = draw(st.integers(3, 8)), draw(st.integers(1, 4))
    made = {i: draw(st.lists(INT64, min_size=size, max_size=size)) for i in range(clients)}
    leaves = draw(st.lists(st.sampled_from((None, *STAGES)), min_size=clients, max_size=clients))
    return made, {stage: {i for i, at in enumerate(leaves) if at == stage} for stage in STAGES}


@pytest.mark.slow
@pytest.mark.parametrize("bits", [32, 64])
@given(case=rounds())
@settings(max_examples=100)
def test_whoever_is_silent_when_the_sum_is_of_those_inside_or_of_nobody(bits: int, case) -> None:
    made, silent = case
    table = Table(secure(survivors=0.6, bits=bits), len(made))
    result = table.run_round({i: np.array(v, np.int64) for i, v in made.items()}, silent=silent)
    expected = inside(len(made), table.sum.least(len(made)), silent)
    assert isinstance(result, Opened) == (expected is not None)
    if isinstance(result, Opened) and expected:
        opened = result.totals[UPDATE]
        half = 2 ** (bits - 1)
        wrapped = [(value + half) % (2 * half) - half for value in total(made, expected)]
        assert opened.vector.tolist() == wrapped
        assert opened.clients == tuple(sorted(expected))
        assert opened.weights == (1.0,) * len(expected)


@pytest.mark.sample(4)
@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_fifth_of_a_hundred_may_drop_out_at_any_stage_of_a_sparse_graph(stage: str) -> None:
    table = Table(secure(), 100)
    assert table.sum._graph(100, 0).degree < 99
    made = vectors(100, 5)
    gone = np.random.default_rng(STAGES.index(stage)).permutation(100)[:20].tolist()
    silent = {"input": gone[:1], stage: gone}  # without the first there is no repair
    lost = gone if stage != "unmask" else gone[:1]
    check(table.run_round(made, silent=silent), made, set(range(100)) - set(lost))


@pytest.mark.slow
def test_a_fifth_may_drop_out_a_few_at_each_stage_of_a_sparse_graph() -> None:
    made = vectors(100, 5)
    silent = drawn(np.random.default_rng(5), 100, each=5)
    lost = {i for stage in STAGES[:3] for i in silent[stage]}
    check(Table(secure(), 100).run_round(made, silent=silent), made, set(range(100)) - lost)


def test_each_new_silence_costs_one_more_repair() -> None:
    made = vectors(6, 3)
    table = Table(secure(survivors=0.5), 6)
    check(table.run_round(made, silent={"input": [0], "repair": [1]}), made, [2, 3, 4, 5])
    assert table.stages == ["keys", "input", "repair", "repair", "unmask"]


def test_a_chain_of_silences_in_repair_is_followed_to_its_end() -> None:
    made, asked = vectors(7, 3), []

    def one_more_fails(stage: str, client: int, message: bytes) -> bytes:
        """In the first repair client 1 sends nonsense, in the second client 2, then client 3."""
        asked.append((stage, client))
        turn = 1 + asked.count(("repair", 6))
        return b"" if stage == "repair" and client == turn <= 3 else message

    table = Table(secure(survivors=0.4), 7)
    check(table.run_round(made, silent={"input": [0]}, to_server=one_more_fails), made, [4, 5, 6])
    assert table.stages.count("repair") == 4


def test_too_few_are_refused_and_the_reason_counts_them() -> None:
    made = vectors(5, 3)
    table = Table(secure(survivors=0.8), 5)
    assert table.run_round(made, silent={"keys": [0, 1]}) == Aborted(
        "3 clients have sent keys, and 4 are agreed on"
    )
    assert table.run_round(made, silent={"input": [0, 1]}) == Aborted(
        "3 clients are in the total, and 4 are agreed on"
    )


# ------------------------------------------------------------------------------------- many rounds


def test_rounds_in_a_row_lose_different_clients() -> None:
    table, rng = Table(secure(survivors=0.5), 8), np.random.default_rng(1)
    check(table.run_round(first := vectors(8, 9)), first, range(8))
    for round in range(1, 12):
        made = vectors(8, 9)
        silent = drawn(rng, 8, each=1)
        expected = inside(8, 4, {**silent, "keys": []})  # the keys are known, and none is asked for
        silent["input"] += silent.pop("keys")
        check(
            table.run_round(made, round=round, silent=silent), made, expected - set(silent["input"])
        )


def test_a_late_joiner_costs_one_more_exchange_of_its_key_alone() -> None:
    table = Table(secure(survivors=0.6), 5)
    for round in range(2):
        made = vectors(5, 4)
        check(table.run_round(made, round=round, silent={"keys": [4]}), made, range(4))
    made = vectors(5, 4)
    check(table.run_round(made, round=2), made, range(5))
    assert table.stages == ["keys", "input", "unmask"]
    assert [client for stage, client in table.sent if stage == "keys"] == [4]
    check(table.run_round(made, round=3), made, range(5))
    assert table.stages == ["input", "unmask"]


def test_a_client_that_is_not_asked_at_first_joins_as_late_as_it_likes() -> None:
    table = Table(secure(survivors=0.6), 5)
    for round, cohort in enumerate([range(4), range(1, 5), range(5)]):
        made = {i: vector for i, vector in vectors(5, 4).items() if i in cohort}
        check(table.run_round(made, round=round), made, cohort)


def test_a_round_that_was_aborted_is_tried_again_under_fresh_masks() -> None:
    table, made = Table(secure(survivors=0.8), 5), vectors(5, 650)
    assert isinstance(table.run_round(made, silent={"unmask": [0, 1]}), Aborted)
    before = dict(table.sent)
    check(table.run_round(made, attempt=1), made, range(5))
    assert all(table.sent["input", i] != before["input", i] for i in range(5))


def test_a_server_that_lost_its_directory_gets_the_same_keys_again() -> None:
    table, made = Table(secure(), 5), vectors(5, 4)
    table.run_round(made)
    table.directory = table.sum.directory()
    check(table.run_round(made, round=1), made, range(5))
    assert table.stages == ["keys", "input", "unmask"]


# ------------------------------------------------------------------------------ channels and terms


@pytest.mark.parametrize("bits", [32, 64])
def test_channels_of_different_sizes_are_opened_in_one_sum(bits: int) -> None:
    table = Table(secure(survivors=0.6, bits=bits), 5, channels={UPDATE: 7, METRICS: 2})
    made = {i: vector % 2**20 for i, vector in vectors(5, 9).items()}
    result = table.run_round(made, silent={"input": [1], "unmask": [2]})
    assert isinstance(result, Opened)
    expected = np.sum([made[i] for i in (0, 2, 3, 4)], axis=0)
    assert np.array_equal(result.totals[UPDATE].vector.numpy(), expected[:7])
    assert np.array_equal(result.totals[METRICS].vector.numpy(), expected[7:])
    assert result.totals[METRICS].clients == (0, 2, 3, 4)


@pytest.mark.parametrize(
    "cohorts",
    [
        {UPDATE: {0: 1.0, 1: 0.5}},
        {UPDATE: {0: 2.0, 1: 2.0}},
        {UPDATE: {0: 1.0, 1: 1.0}, METRICS: {0: 1.0}},
    ],
)
def test_terms_that_do_not_count_alike_are_refused(cohorts: dict[str, dict[int, float]]) -> None:
    sum = secure(survivors=1.0)
    with pytest.raises(UnsoundPlan, match="weights = 'sum'"):
        sum.begin(sum.directory(), cohorts, dict.fromkeys(cohorts, 3), Table(sum, 2).context(-1))


def test_a_client_masks_a_copy_of_its_release() -> None:
    made = vectors(3, 50)
    before = {i: vector.copy() for i, vector in made.items()}
    Table(secure(), 3).run_round(made)
    assert all(np.array_equal(made[i], before[i]) for i in made)


def test_a_word_of_32_bits_halves_the_message() -> None:
    sent = {}
    for bits in (32, 64):
        table = Table(secure(bits=bits), 3)
        table.run_round(vectors(3, 1000))
        sent[bits] = len(table.sent["input", 0])
    assert sent[64] - sent[32] == 4000
    assert (secure(bits=32).capacity(), secure().capacity()) == (2.0**31, 2.0**63)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"survivors": 0.0}, "sum.survivors must be above 0 and at most 1, got 0.0;"),
        ({"survivors": 1.1}, "sum.survivors must be above 0 and at most 1, got 1.1;"),
        ({"survivors": float("nan")}, "sum.survivors must be above 0 and at most 1, got nan;"),
        ({"bits": 16}, "sum.bits must be 32 or 64, got 16; leave it out"),
        ({"degree": 5}, "sum.degree must be even, .*, got 5; leave it out"),
        ({"against": Against.MALICIOUS, "degree": 4}, "left out against a malicious .*, got 4;"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        secure(**options)


@pytest.mark.parametrize(("clients", "least"), [(2, 2), (5, 4), (10, 8), (11, 9), (100, 80)])
def test_the_least_number_of_terms_is_the_survivors_rounded_up(clients: int, least: int) -> None:
    assert secure(survivors=0.8).least(clients) == least
    assert secure(survivors=0.01).least(clients) == 2  # one term alone is never opened


def test_a_sum_that_is_given_up_leaves_no_open_file() -> None:
    sum = all_in(3)
    cohorts = {UPDATE: dict.fromkeys(range(3), 1.0)}
    session, _ = sum.begin(sum.directory(), cohorts, {UPDATE: 4}, Table(sum, 3).context(0))
    spool = session.spool
    assert not spool.closed
    del session
    gc.collect()
    assert spool.closed
