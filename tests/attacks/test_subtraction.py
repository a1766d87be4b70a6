# SPDX-License-Identifier: Apache-2.0
"""The subtraction attack: one release in two totals, whose difference has one share of noise.

A client that sent the same release under another mask, cohort or attempt would give a server two
totals that differ by one client: its release, with its own share of the noise alone, which is far
less than the total's. The server here goes through the real ClientApps and the real secure sum.
Before, an attempt that had died was always made anew; now it is asked for again, and what clients
have stored must not become that attack.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dpfed.core.types import Broadcast
from dpfed.sums.secagg.messages import Cohort, pack_message
from dpfed.training.round import RoundResult
from tests.attacks.asking import ask, at_home
from tests.helpers.subtraction import CLIENTS, EVERYONE, FEWER, STD, Server


@pytest.fixture(autouse=True)
def _node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_home(tmp_path, monkeypatch)


def total(result: RoundResult) -> torch.Tensor:
    assert result.aggregate is not None, result.aborted
    return result.aggregate.mean.double() * 4.0 * CLIENTS


def test_the_same_order_opens_the_same_total() -> None:
    """All of an attempt once more, as after a crash of the server: not one bit is new."""
    server = Server()
    first, said = total(server.round(0)), server.heard
    again, repeated = total(server.round(0)), server.heard
    assert torch.equal(first, again)
    assert repeated == said
    assert {stage for stage, _, _ in said} == {"keys", "input", "unmask"}


@pytest.mark.parametrize("opened", [True, False])
def test_one_attempt_is_answered_under_one_cohort(opened: bool) -> None:
    """Without client 4, before or after the first total was opened: everyone refuses."""
    server = Server()
    first = server.round(0, before="" if opened else "unmask")
    assert bool(first.aborted) is not opened
    assert server.round(0, FEWER).aborted == "0 clients are in the total, and 4 are agreed on"
    assert server.words() == dict.fromkeys(FEWER, "Untrusted")


@pytest.mark.parametrize("opened", [True, False])
def test_a_client_that_was_in_is_not_taken_out(opened: bool) -> None:
    """The same masked words, and then one of them is said to be missing."""
    server = Server()
    server.round(0, before="" if opened else "unmask")
    second = server.round(0, drop=lambda stage, client: (stage, client) == ("input", 4))
    assert bool(second.aborted) is opened
    if opened:
        assert server.words("repair") == dict.fromkeys(FEWER, "Untrusted")
        return
    # nothing was opened before, so the others went on without 4: then never with it
    assert second.clients == FEWER
    assert server.round(0).aborted
    assert {server.words("unmask")[client] for client in FEWER} == {"Untrusted"}


def test_who_was_out_does_not_come_back_in() -> None:
    """4 is out in the first total; its answer, which the server has, is then said to be in time."""
    server = Server()
    without = server.round(0, drop=lambda stage, client: (stage, client) == ("input", 4))
    assert without.clients == FEWER
    again = server.round(0)
    assert again.aborted
    said = server.words("unmask")
    assert {said[client] for client in FEWER} == {"Untrusted"}


def test_another_attempt_has_other_noise() -> None:
    """The difference of two totals that differ by one client has all shares of both, not one."""
    server = Server()
    with_four = total(server.round(0))
    without = total(server.round(1, FEWER))
    shares = float((with_four - without).std()) ** 2 / STD**2
    assert shares == pytest.approx(len(EVERYONE) + len(FEWER), rel=0.15)


def test_another_model_gets_nothing_from_a_stored_answer() -> None:
    server = Server()
    server.round(0)
    server.state = replace(server.state, params=server.state.params + 1)
    assert server.round(0).aborted
    assert server.words() == dict.fromkeys(EVERYONE, "Untrusted")


def test_a_request_that_the_sum_refuses_costs_nothing() -> None:
    """Before, the release was entered first: each wrong cohort took an attempt away."""
    server = Server()
    for cohort in ([0], [0, 0, 1, 2, 3], [0, 1, 2, 3, 9], [1, 2, 3, 4]):
        request = {"sum": pack_message(Cohort(cohort, {}))}
        at = Broadcast(0, server.state.params)
        assert str(ask(server.app, server.plan, at, 0, "input", request)) == "Untrusted"
    assert server.round(0).clients == EVERYONE
