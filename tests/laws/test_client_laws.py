# SPDX-License-Identifier: Apache-2.0
"""Laws of client algorithms, over all that the registry finds."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch

from dpfed.audit.client_laws import (
    CLIENT_LAWS,
    MODEL,
    breaches,
    data_leaves_by_the_mechanism_alone,
    protects_some_unit,
    records,
    releases_are_as_many_as_declared,
)
from dpfed.audit.client_laws import law_plan as plan_for
from dpfed.core import registry
from dpfed.core.chain import stateless
from dpfed.core.errors import WIRE_NAMES, ClientRefused, UnsoundPlan
from dpfed.core.types import (
    METRICS,
    UPDATE,
    Broadcast,
    ClientAlgorithm,
    Problem,
    Release,
    Releaser,
    Reply,
    State,
    Unit,
)
from dpfed.training.reply import ClientState, PricedReleaser, client_reply, make_reply

ALGORITHMS = list(registry.names("client"))


def test_discovery_finds_the_algorithms() -> None:
    assert "gradient" in ALGORITHMS


@pytest.mark.parametrize("law", CLIENT_LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_law(name: str, law: Any) -> None:
    law(name)


# ------------------------------------------------------------------------------- planted leaks


def _raw_gradient(
    broadcast: Broadcast, problem: Problem, state: State, release: Releaser
) -> tuple[Reply, State]:
    rows = problem.rows(broadcast.params, release.unit)
    release(rows)
    raw = rows.clipped_sum(1.0).vector
    return {UPDATE: Release((raw * 1024).to(torch.int32), 1.0, 2.0**-10)}, state


def _true_size(
    broadcast: Broadcast, problem: Problem, state: State, release: Releaser
) -> tuple[Reply, State]:
    made = release(problem.rows(broadcast.params, release.unit))
    size = len(problem.y)  # type: ignore[attr-defined]
    scaled = (made.vector * (1000.0 / size)).to(torch.int32)
    return {UPDATE: Release(scaled, made.std, made.step)}, state


def _unplanned_metric(
    broadcast: Broadcast, problem: Problem, state: State, release: Releaser
) -> tuple[Reply, State]:
    made = release(problem.rows(broadcast.params, release.unit))
    metric = problem.metric_rows(broadcast.params, release.unit, 5.0).clipped_sum(2.0).vector
    return {UPDATE: made, METRICS: Release((metric * 1024).int(), 0.0, 2.0**-10)}, state


def _kept_gradient(
    broadcast: Broadcast, problem: Problem, state: State, release: Releaser
) -> tuple[Reply, State]:
    rows = problem.rows(broadcast.params, release.unit)
    return {UPDATE: release(rows)}, rows.clipped_sum(1.0).vector


LEAKS = [_raw_gradient, _true_size, _unplanned_metric, _kept_gradient]


def planted(work: object) -> ClientAlgorithm:
    return ClientAlgorithm(stateless, work, frozenset(Unit))  # type: ignore[arg-type]


@pytest.mark.parametrize("work", LEAKS, ids=lambda work: work.__name__)
def test_planted_leaks_are_caught_by_the_law(work: object) -> None:
    assert breaches(planted(work), Unit.RECORD)
    with pytest.raises((AssertionError, UnsoundPlan)):
        data_leaves_by_the_mechanism_alone(lambda: planted(work))


@pytest.mark.parametrize("work", LEAKS[:3], ids=lambda work: work.__name__)
def test_planted_leaks_are_stopped_by_the_round_too(work: object) -> None:
    """An algorithm that says that it sends releases unmodified cannot send anything else."""
    plan = plan_for(planted(work)._replace(sends_unmodified=True), Unit.RECORD)
    client = ClientState(0, MODEL.problem(records(20, 1)))
    broadcast = Broadcast(0, torch.zeros(MODEL.layout.size))
    reply, _ = client_reply(plan, broadcast, "reply", {UPDATE: b""}, client)
    assert isinstance(reply, ClientRefused)
    assert str(reply) == "UnsoundPlan"


def test_a_release_too_many_is_refused() -> None:
    def twice(
        broadcast: Broadcast, problem: Problem, state: State, release: Releaser
    ) -> tuple[Reply, State]:
        rows = problem.rows(broadcast.params, release.unit)
        release(rows)
        return {UPDATE: release(rows)}, state

    plan = plan_for(planted(twice), Unit.RECORD)
    client = ClientState(0, MODEL.problem(records(20, 1)))
    broadcast = Broadcast(0, torch.zeros(MODEL.layout.size))
    with pytest.raises(UnsoundPlan, match=r"'update'.*most 1.*got number 2"):
        make_reply(plan, broadcast, client, PricedReleaser(plan, broadcast, client))


def test_a_release_too_few_breaks_the_law() -> None:
    def none(
        broadcast: Broadcast, problem: Problem, state: State, release: Releaser
    ) -> tuple[Reply, State]:
        del broadcast, problem, release
        return {}, state

    with pytest.raises((AssertionError, UnsoundPlan)):
        releases_are_as_many_as_declared(lambda: planted(none))


def test_an_algorithm_for_nobody_breaks_the_law() -> None:
    with pytest.raises(AssertionError, match="protects no unit"):
        protects_some_unit(lambda: planted(_kept_gradient)._replace(units=frozenset()))


# -------------------------------------------------------------------------------- errors leave, too


@pytest.mark.parametrize("error", [ValueError, KeyError, MemoryError, AssertionError, UnsoundPlan])
def test_an_exception_that_quotes_a_record_reaches_no_reply(
    error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    secret = "patient 4711 has HIV"

    def work(
        broadcast: Broadcast, problem: Problem, state: State, release: Releaser
    ) -> tuple[Reply, State]:
        raise error(secret)

    plan = plan_for(planted(work), Unit.RECORD)
    client = ClientState(0, MODEL.problem(records(20, 1)))
    broadcast = Broadcast(0, torch.zeros(MODEL.layout.size))
    with caplog.at_level(logging.ERROR, logger="dpfed"):
        reply, after = client_reply(plan, broadcast, "reply", {UPDATE: b""}, replace(client))
    assert isinstance(reply, ClientRefused)
    assert str(reply) in WIRE_NAMES
    assert secret not in repr(reply)
    assert reply.__cause__ is None
    assert reply.__context__ is None
    assert secret in caplog.text  # the local log has the whole sentence
    assert after.state == client.state


def test_an_error_class_named_after_a_record_crosses_as_a_plain_name() -> None:
    quoting = type("Patient4711HasHiv", (UnsoundPlan,), {})

    def work(
        broadcast: Broadcast, problem: Problem, state: State, release: Releaser
    ) -> tuple[Reply, State]:
        raise quoting

    plan = plan_for(planted(work), Unit.RECORD)
    client = ClientState(0, MODEL.problem(records(20, 1)))
    broadcast = Broadcast(0, torch.zeros(MODEL.layout.size))
    reply, _ = client_reply(plan, broadcast, "reply", {UPDATE: b""}, client)
    assert str(reply) == "ClientError"
