# SPDX-License-Identifier: Apache-2.0
"""SCAFFOLD once more, in plain NumPy, and the small federations that it is compared on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize

from dpfed.core.grid import SHORTFALL
from dpfed.core.randomness import Noise
from dpfed.core.registry import build
from dpfed.core.sum_protocol import StageReply
from dpfed.core.types import UPDATE, Aggregate, Broadcast, Mechanism, Problem, Unit
from dpfed.data.models import Linear, LinearProblem
from dpfed.sums.plain import plain
from dpfed.sums.secure import secure
from dpfed.training.plan import Plan
from dpfed.training.reply import ClientState, client_reply
from dpfed.training.round import ServerState, run_round, start

FEATURES, SIZE = 4, 5


MODEL = Linear("logistic", FEATURES)


Data = list[tuple[np.ndarray, np.ndarray]]


SEED = 5


HIDING = secure(survivors=1.0)


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
    ) -> Iterable[tuple[int, StageReply]]:
        heard.append(broadcast)
        for i in sorted(set().union(*requests.values())):
            if not absent(broadcast.round, i):
                asked = {name: to[i] for name, to in requests.items()}
                reply, clients[i] = client_reply(plan, broadcast, stage, asked, clients[i])
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
