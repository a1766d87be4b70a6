# SPDX-License-Identifier: Apache-2.0
"""DP-SCAFFOLD against Noble et al. 2022, Algorithm 1, and Krouka et al., Algorithm 4, in NumPy.

The oracle sends two vectors as the papers do, and shares with the package the data, the noise draws
and who is present. Other tests of local steps use this file's small logistic federation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from dpfed.core.clipping import SHORTFALL
from dpfed.core.randomness import Noise
from dpfed.core.registry import build
from dpfed.core.sampling import Poisson
from dpfed.core.sum_protocol import Answer
from dpfed.core.types import UPDATE, Aggregate, Broadcast, Mechanism, Problem, Unit, Weights
from dpfed.data.models import Linear, LinearProblem
from dpfed.mechanisms.clear import clear
from dpfed.mechanisms.gaussian import gaussian
from dpfed.sums.plain import plain
from dpfed.sums.secure import secure
from dpfed.training.answer import ClientState, answer
from dpfed.training.plan import Plan
from dpfed.training.round import ServerState, run_round, start

FEATURES, SIZE = 4, 5
MODEL = Linear("logistic", FEATURES)
Data = list[tuple[np.ndarray, np.ndarray]]
SEED = 5
HIDING = secure(survivors=1.0)


# -------------------------------------------------------------------------- a small federation


def federation(clients: int, records: int, alike: bool = False) -> Data:
    """Logistic data that no plane separates; unless alike, each client has its own law."""
    rng = np.random.default_rng(7)
    data = []
    for _ in range(clients):
        shift = 0.0 if alike else 1.5 * rng.normal(size=FEATURES)
        X = rng.normal(size=(records, FEATURES)) + shift
        truth = np.ones(FEATURES) if alike else rng.normal(size=FEATURES)
        data.append((X, (rng.uniform(size=records) < sigmoid(X @ truth / 2)).astype(np.int64)))
    return [data[0]] * clients if alike else data


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def rows_of(theta: np.ndarray, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Per-record gradients of the logistic loss, weight then bias."""
    r = sigmoid(X @ theta[:-1] + theta[-1]) - y
    return np.concatenate([r[:, None] * X, r[:, None]], axis=1)


def mean_of(theta: np.ndarray, data: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    return rows_of(theta, *data).mean(axis=0)


def clipped(rows: np.ndarray, C: float) -> np.ndarray:
    """Each row at most C long, less what pays for the rounding of sums."""
    return rows / np.maximum(1, np.linalg.norm(rows, axis=1, keepdims=True) / C / (1 - SHORTFALL))


def minimiser(data: Data) -> np.ndarray:
    """Of the pooled loss, by scipy, to a gradient of 1e-10."""
    X, y = (np.concatenate(part) for part in zip(*data, strict=True))

    def loss(theta: np.ndarray) -> float:
        z = X @ theta[:-1] + theta[-1]
        return float(np.mean(np.logaddexp(0, z) - y * z))

    found = minimize(loss, np.zeros(SIZE), jac=lambda t: mean_of(t, (X, y)), tol=1e-10)
    assert np.abs(mean_of(found.x, (X, y))).max() < 1e-8
    return found.x


def problems(data: Data, dtype: torch.dtype = torch.float64) -> list[Problem]:
    """In double precision; two records after another are one person's."""
    found: list[Problem] = []
    for X, y in data:
        x = torch.from_numpy(np.c_[X, np.ones(len(y))]).to(dtype)
        found.append(LinearProblem(MODEL, x, torch.from_numpy(y), torch.arange(len(y)) // 2))
    return found


def unit_rows(theta: np.ndarray, data: tuple[np.ndarray, np.ndarray], unit: Unit) -> np.ndarray:
    """One row per record, per person (a sum), or one in all (a mean)."""
    rows = rows_of(theta, *data)
    if unit is Unit.GROUP:
        return rows.reshape(len(rows) // 2, 2, SIZE).sum(axis=1)
    return rows if unit is Unit.RECORD else rows.mean(axis=0)[None]


def make_plan(client: Any, data: Data, rounds: int, mechanism: Mechanism, **changes: Any) -> Plan:
    sizes = [float(len(unit_rows(np.zeros(SIZE), one, mechanism.unit))) for one in data]
    options: dict[str, Any] = {
        "client": client,
        "channels": {UPDATE: mechanism},
        "sum": plain(),
        "server": build("server", "scale", {"rate": 1.0}),
        "nominal": sizes,
        "rounds": rounds,
        "noise": Noise(SEED),
    }
    return Plan(**{**options, **changes})


def walk(
    plan: Plan,
    data: Data,
    absent: Callable[[int, int], bool] = lambda t, i: False,
    dtype: torch.dtype = torch.float64,
) -> Iterator[tuple[ServerState, Broadcast, dict[int, ClientState]]]:
    """The server, the broadcast that the round began with and the clients, after each round."""
    clients = {i: ClientState(i, problem) for i, problem in enumerate(problems(data, dtype))}
    heard: list[Broadcast] = []

    def transport(
        broadcast: Broadcast, stage: str, requests: Mapping[str, Mapping[int, bytes]]
    ) -> Iterable[tuple[int, Answer]]:
        heard.append(broadcast)
        for i in sorted(set().union(*requests.values())):
            if not absent(broadcast.round, i):
                asked = {name: to[i] for name, to in requests.items()}
                reply, clients[i] = answer(plan, broadcast, stage, asked, clients[i])
                yield i, reply

    state = start(plan, torch.zeros(SIZE, dtype=dtype))
    while state.round < plan.rounds:
        state, result = run_round(plan, state, transport)
        assert result.aborted is None
        assert not result.refused
        yield state, heard[-1] if heard else Broadcast(0, state.params), clients


def end(plan: Plan, data: Data) -> np.ndarray:
    *_, (last, _, _) = walk(plan, data)
    return last.params.numpy()


def draw(t: int, i: int, call: int) -> np.ndarray:
    """The standard normals of a release."""
    return Noise(SEED).stream("release", t, i, 0, UPDATE, call).normal(SIZE)


def private(rows: np.ndarray, C: float, std: float, t: int, i: int, call: int) -> np.ndarray:
    """A release over the number of rows."""
    return (clipped(rows, C).sum(axis=0) + std * draw(t, i, call)) / len(rows)


def check_pure(client: Any) -> None:
    """A companion leaves what it is given as it was, and gives the same again."""
    server = client.companion
    params = torch.linspace(-1, 1, SIZE, dtype=torch.float64)
    state = server.init(params)
    for t in range(3):
        mean = torch.linspace(0.1, 1, SIZE, dtype=torch.float64) * (t + 1)
        public = {name: torch.ones(c.size) for name, c in client.channels.items() if c.size}
        seen = Aggregate(t, params, mean, 0.01, 3, public, 4, 0.5)
        kept = [leaf.clone() for leaf in (mean, *state) if isinstance(leaf, torch.Tensor)]
        first, after = server.update(mean, state, seen)
        again, _ = server.update(mean, state, seen)
        assert torch.equal(first, again)
        now = [leaf for leaf in (mean, *state) if isinstance(leaf, torch.Tensor)]
        assert all(map(torch.equal, now, kept))
        state = after


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


@pytest.mark.parametrize("weights", list(Weights))
@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("unit", list(Unit))
@pytest.mark.parametrize("std", [0.0, 0.5])
def test_the_path_is_nobles_algorithm(std: float, unit: Unit, warm: bool, weights: Weights) -> None:
    """Four clients, six rounds, one absent in rounds 0 and 3; clipping is active."""
    data = federation(4, 20)
    K, eta, C = 3, 0.3, 0.4 if unit is Unit.CLIENT else 0.9
    client = build("client", "scaffold", {"steps": K, "rate": eta, "warm": warm}, unit=unit)
    mechanism = gaussian(C, std, unit=unit) if std else clear(C, unit=unit)
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
    plan = make_plan(client, data, 8, clear(50.0), participation=Poisson(0.5))
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
