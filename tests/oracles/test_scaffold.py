# SPDX-License-Identifier: Apache-2.0
"""DP-SCAFFOLD against Noble et al. 2022, Algorithm 1, and Krouka et al., Algorithm 4, in NumPy.

The oracle sends two vectors as the papers do, and shares with the package the data, the noise draws
and who is present. Other tests of local steps use this file's small logistic federation.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpfed.core.registry import build
from dpfed.core.sampling import Poisson
from dpfed.core.types import UPDATE, Facts, Unit, Weights
from dpfed.mechanisms.clear import clear
from dpfed.mechanisms.gaussian import gaussian
from tests.helpers.scaffold_oracle import (
    SIZE,
    Data,
    federation,
    make_plan,
    private,
    unit_rows,
    walk,
)

# -------------------------------------------------------------------------- a small federation


# ------------------------------------------------------------------------------------ the oracle


class Noble:
    """Algorithm 1 with the two vectors that it sends."""

    def __init__(self, data: Data, K: int, eta: float, C: float, std: float, unit: Unit) -> None:
        self.data, self.K, self.eta, self.C, self.std, self.unit = data, K, eta, C, std, unit
        self.x, self.c = np.zeros(SIZE), np.zeros(SIZE)
        self.ci = [np.zeros(SIZE) for _ in data]

    def release(self, rows: np.ndarray, t: int, i: int, call: int) -> np.ndarray:
        return private(rows, self.C, self.std, t, i, call)

    def warm(self, t: int, present: list[int]) -> None:
        for i in present:
            self.ci[i] = self.release(unit_rows(self.x, self.data[i], self.unit), t, i, 0)
        self.c = np.mean(self.ci, axis=0)

    def local(self, t: int, i: int) -> tuple[np.ndarray, np.ndarray]:
        y = self.x.copy()
        for k in range(self.K):
            rows = unit_rows(y, self.data[i], self.unit)
            g = rows[0] if self.unit is Unit.CLIENT else self.release(rows, t, i, k)
            y = y - self.eta * (g - self.ci[i] + self.c)
        moved = self.x - y
        if self.unit is Unit.CLIENT:
            moved = self.release(moved[None], t, i, 0)
        new = self.ci[i] - self.c + moved / (self.K * self.eta)
        change, self.ci[i] = new - self.ci[i], new
        return -moved, change

    def round(self, t: int, present: list[int], q: float = 1.0) -> None:
        sent = [self.local(t, i) for i in present]
        n = len(self.data)
        if sent:
            self.x = self.x + sum(dy for dy, _ in sent) / (q * n)
            self.c = self.c + sum(dc for _, dc in sent) / n


@pytest.mark.sample(4)
@pytest.mark.parametrize("weights", list(Weights))
@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("unit", list(Unit))
@pytest.mark.parametrize("std", [0.0, 0.5])
def test_the_path_is_nobles_algorithm(std: float, unit: Unit, warm: bool, weights: Weights) -> None:
    """Four clients, six rounds, one absent in rounds 0 and 3; clipping is active."""
    data = federation(4, 20)
    K, eta, C = 3, 0.3, 0.4 if unit is Unit.CLIENT else 0.9
    client = build("client", "scaffold", {"steps": K, "rate": eta, "warm": warm}, unit=unit)
    mechanism = gaussian(Facts(C, unit=unit), std) if std else clear(Facts(C, unit=unit))
    plan = make_plan(client, data, 6, mechanism, weights=weights)

    def absent(t: int, i: int) -> bool:
        return i == 2 and t in (0, 3)

    oracle = Noble(data, K, eta, C, std, unit)
    for state, _, clients in walk(plan, data, absent):
        t = state.round - 1
        present = [i for i in range(4) if not absent(t, i)]
        oracle.warm(t, present) if warm and t == 0 else oracle.round(t, present)
        tolerance = 1e-5 if std else 1e-9
        assert np.abs(state.params.numpy() - oracle.x).max() < tolerance
        assert np.abs(state.optimizer[0].c.numpy() - oracle.c).max() < tolerance
        for i in range(4):
            c = clients[i].state.c.numpy() if clients[i].state else np.zeros(SIZE)
            assert np.abs(c - oracle.ci[i]).max() < tolerance
    assert np.abs(oracle.x).max() > 0.1


@pytest.mark.parametrize("warm", [True, False])
def test_clients_that_are_drawn_at_random_keep_the_mean(warm: bool) -> None:
    """The server's c is the mean of all c_i after each round, and the step is that of q n."""
    data = federation(6, 16)
    client = build("client", "scaffold", {"steps": 2, "rate": 0.2, "warm": warm})
    plan = make_plan(client, data, 8, clear(Facts(50.0)), client_sampling=Poisson(0.5))
    oracle = Noble(data, 2, 0.2, 50.0, 0.0, Unit.RECORD)
    sizes = set()
    for t, (state, _, clients) in enumerate(walk(plan, data)):
        present = list(plan.draw(t, 0))
        sizes.add(len(present))
        oracle.warm(t, present) if warm and t == 0 else oracle.round(t, present, q=0.5)
        kept = [m.state.c.numpy() if m.state else np.zeros(SIZE) for m in clients.values()]
        c = state.optimizer[0].c.numpy()
        assert np.abs(c - np.mean(kept, axis=0)).max() < 1e-8
        assert np.abs(c - oracle.c).max() < 1e-8
        assert np.abs(state.params.numpy() - oracle.x).max() < 1e-8
    assert len(sizes) > 2


def test_one_vector_is_sent_where_the_papers_send_two() -> None:
    plan = make_plan(build("client", "scaffold", {}), federation(2, 9), 3, gaussian())
    assert [plan.due(t) for t in range(3)] == [[UPDATE]] * 3
    assert replace(plan, rounds=7).planned(UPDATE) == 1 + 6 * 5
