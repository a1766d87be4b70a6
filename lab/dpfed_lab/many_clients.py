# SPDX-License-Identifier: Apache-2.0
"""Very many small clients of one linear model, computed together: for studies of 10^4 devices.

    records of all that are asked -> residuals -> clip -> one product + noise -> total
                                                                the library's own server -> params

The library asks its clients one after the other, each through its door. Here the rows of all are
clipped and added up at once; cohorts, the server's noise, weights and the step are the library's,
by ``run_round`` with a sum that takes one message. With keyed noise a client's share is the one
that it draws there, so that a test holds both to the same parameters within rounding.

No guarantee: clients keep no ledger and no count, and float sums are not bounded here. So there is
none to ask for; what a study says of privacy, it says of the same plan under the library.

| edge case                                            | what happens                            |
|------------------------------------------------------|-----------------------------------------|
| another algorithm than gradient, metrics, groups,    | RecipeError: run it through the library |
| drawn records, turns, hidden terms                   |                                         |
| clients that add noise which is not independent      | the same                                |
| a row that is not finite                             | zero, as there                          |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from dpfed.client import gradient
from dpfed.core.errors import RecipeError
from dpfed.core.rows import Outer, linear_vector
from dpfed.core.sampling import EVERYONE
from dpfed.core.sum_protocol import Messages
from dpfed.core.types import UPDATE, Broadcast, Trust, Unit, Vector
from dpfed.core.vector import one_thread
from dpfed.data.datasets import Records
from dpfed.data.models import Linear
from dpfed.mechanisms.gaussian import Gaussian
from dpfed.sums.plain import Adder, Plain
from dpfed.training.plan import Plan
from dpfed.training.round import run_round, start

BLOCK_NUMBERS = 1 << 21
"""Numbers of rows that are made at a time."""


class Asked(NamedTuple):
    """The records of some clients, one client after the other."""

    x: torch.Tensor
    y: torch.Tensor
    counts: torch.Tensor
    """How many records each client has."""


Take = Callable[[Sequence[int]], Asked]
"""The records of these clients: held, or made when they are asked."""


def held(clients: Sequence[Records]) -> Take:
    """Clients' records that lie in memory.

    Args:
        clients: the records of each, by its index.
    """
    x = torch.cat([records.x for records in clients])
    y = torch.cat([records.y for records in clients])
    counts = torch.tensor([len(records) for records in clients])
    ends = counts.cumsum(0)

    def take(asked: Sequence[int]) -> Asked:
        if len(asked) == len(clients):
            return Asked(x, y, counts)
        parts = [torch.arange(int(ends[i] - counts[i]), int(ends[i])) for i in asked]
        index = torch.cat(parts)
        return Asked(x[index], y[index], counts[list(asked)])

    return take


def parameters(plan: Plan, model: Linear, take: Take) -> Iterator[Vector]:
    """The parameters after each of the plan's rounds, from the model's own start on.

    Args:
        plan: one gradient a client and round, in clear or under Gaussian noise; its sum is not
            used.
        model: what is trained.
        take: the clients' records.
    """
    _refuse(plan)
    plan = replace(plan, sum=_OneTotal())

    def exchange(
        broadcast: Broadcast, stage: str, requests: Mapping[str, Mapping[int, bytes]]
    ) -> Iterator[tuple[int, Messages]]:
        del stage
        clients = sorted(requests[UPDATE])
        with one_thread():
            total = _total(plan, model, broadcast, clients, take(clients))
        yield clients[0], {UPDATE: np.rint(total / plan.update.step).astype("<i8").tobytes()}

    state = start(plan, model.initial(0))
    for _ in range(plan.rounds):
        state, _ = run_round(plan, state, exchange)
        yield state.params


def _refuse(plan: Plan) -> None:
    """Refuse what is not one gradient of each client, with independent noise or the server's."""
    mechanism = plan.update
    alike = plan.client.work.__module__ == gradient.__name__ and list(plan.channels) == [UPDATE]
    whole = mechanism.unit is not Unit.GROUP and mechanism.sampling == EVERYONE
    fits = mechanism.trust is Trust.CENTRAL or type(mechanism) is Gaussian
    if not (alike and whole and fits) or plan.participation or plan.sum.hides_terms:
        raise RecipeError(
            "many clients at once must each send one gradient, of all their records, without "
            "metrics, groups, turns, a secure sum or correlated noise of their own; run this plan "
            "through dpfed.training.inprocess"
        )


@dataclass(frozen=True)
class _OneTotal(Plain):
    """A sum whose one message is the total of all who were asked."""

    def add(self, session: Adder, client: int, messages: Messages) -> Adder:
        """Take the total; whose message it is says nothing."""
        del client
        adding = session.channels[UPDATE]
        adding.total += np.frombuffer(messages[UPDATE], "<i8")
        session.clients |= set(adding.cohort)
        return session


def _total(
    plan: Plan, model: Linear, broadcast: Broadcast, clients: Sequence[int], asked: Asked
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The weighted sum of the clients' clipped rows, with their noise if they add it."""
    mechanism, cohort = plan.update, plan.cohort(UPDATE, clients)
    weights = torch.tensor([cohort[client] for client in clients], dtype=torch.float64)
    owner = torch.repeat_interleave(torch.arange(len(clients)), asked.counts)
    rows = model.problem(Records(asked.x, asked.y)).rows(broadcast.params, Unit.RECORD)
    assert isinstance(rows, Outer)  # noqa: S101
    of_records = mechanism.unit is Unit.RECORD
    summed = _records_sum if of_records else _clients_sum
    total = summed(rows, weights, owner, mechanism.clip).numpy()
    if mechanism.trust is Trust.CENTRAL:  # there the library's server adds the noise
        return total
    for client, weight in zip(clients, weights.tolist(), strict=True):
        rng = plan.noise.stream("release", broadcast.round, client, broadcast.attempt, UPDATE, 0)
        total += weight * rng.draws(total.size, mechanism.std, mechanism.step).values
    return total


def _records_sum(
    rows: Outer, weights: torch.Tensor, owner: torch.Tensor, clip: float
) -> torch.Tensor:
    """Each record's row clipped; one product adds all of them up."""
    residual = rows.residual.double()
    norms = residual.norm(dim=1) * rows.feature.double().norm(dim=1)
    residual = torch.nan_to_num(residual) * (_factors(norms, clip) * weights[owner])[:, None]
    total = residual.T @ torch.nan_to_num(rows.feature.double())
    return linear_vector(total, rows.bias)


def _clients_sum(
    rows: Outer, weights: torch.Tensor, owner: torch.Tensor, clip: float
) -> torch.Tensor:
    """Each client's mean as one row, some records at a time; then clipped and added up."""
    width = rows.residual.shape[1] * rows.feature.shape[1]
    means = torch.zeros(len(weights), width, dtype=torch.float64)
    for part in torch.split(torch.arange(len(owner)), max(1, BLOCK_NUMBERS // width)):
        products = rows.residual[part, :, None] * rows.feature[part, None, :]
        means.index_add_(0, owner[part], products.flatten(1).double())
    means /= torch.bincount(owner, minlength=len(weights)).clamp(min=1)[:, None]
    factors = _factors(means.norm(dim=1), clip) * weights
    total = (factors @ torch.nan_to_num(means)).view(-1, rows.feature.shape[1])
    return linear_vector(total, rows.bias)


def _factors(norms: torch.Tensor, clip: float) -> torch.Tensor:
    """What clips rows of these norms; 0 of a row that is not finite."""
    factors = (clip / norms).clamp(max=1.0)
    return torch.where(norms < math.inf, factors, 0.0)
