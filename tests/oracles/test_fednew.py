# SPDX-License-Identifier: Apache-2.0
"""fednew against Krouka et al.'s Algorithms 1 and 2 in NumPy, one dense matrix per record.

The oracle shares nothing with the package but the data and the noise draws. It has the projection
in the place of Lemma 4's xi; why, the tests further down show.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dpfed.core.randomness import Noise
from dpfed.core.registry import build
from dpfed.core.types import UPDATE, Facts, Unit, Weights
from dpfed.data.datasets import Records
from dpfed.data.models import Linear
from dpfed.mechanisms.gaussian import gaussian
from dpfed.sums.plain import plain
from dpfed.training.inprocess import rounds
from dpfed.training.plan import Plan
from tests.helpers.fednew_oracle import Chosen, released

CLASSES, FEATURES, SEED = 3, 4, 5
SIZE = CLASSES * (FEATURES + 1)
RHO, ALPHA, C1, C2, DH = 0.4, 0.2, 0.6, 0.8, 0.5


def order() -> Any:
    """Where nn.Linear keeps what lies at [output, input] of [W b]."""
    index = np.arange(SIZE).reshape(CLASSES, FEATURES + 1)
    return np.concatenate([index[:, :-1].ravel(), index[:, -1]])


def clip(v: Any, bound: float) -> Any:
    return v / max(1.0, np.linalg.norm(v) / bound)


def derivatives(theta, X, y, curvature):  # type: ignore[no-untyped-def]
    """Per record: gradient, Hessian (or I_c (x) x x^T), and the norm that the latter is cut by."""
    W = np.empty(SIZE)
    W[order()] = theta
    for x, label in zip(np.c_[X, np.ones(len(X))], y, strict=True):
        scores = W.reshape(CLASSES, -1) @ x
        p = np.exp(scores - scores.max())
        p /= p.sum()
        S = np.eye(CLASSES) if curvature == "covariance" else np.diag(p) - np.outer(p, p)
        norm = 1.0 if curvature == "covariance" else np.linalg.norm(S)  # spectral, or Frobenius
        g = np.outer(p - np.eye(CLASSES)[label], x).ravel()
        H = np.kron(S, np.outer(x, x))
        yield g[order()], H[np.ix_(order(), order())], norm * (x @ x)


def algorithm2(clients, noise, s, eta, T, curvature, weights):  # type: ignore[no-untyped-def]
    """Record level: clipped means, a projection, a solve, noise of std s on m y_i."""
    theta, y = np.zeros(SIZE), np.zeros(SIZE)
    duals = [np.zeros(SIZE) for _ in clients]
    for k in range(T):
        sent = []
        for i, (X, labels) in enumerate(clients):
            H, g, m = np.zeros((SIZE, SIZE)), np.zeros(SIZE), len(X)
            for gradient, hessian, norm in derivatives(theta, X, labels, curvature):
                H += hessian / max(1.0, norm / DH) / m
                g += clip(gradient, C1) / m
            b = clip(g - duals[i] + RHO * y, C2)
            primal = np.linalg.solve(H + (ALPHA + RHO) * np.eye(SIZE), b)
            sent.append(primal + s * noise(k, i) / m)
        y = np.average(sent, axis=0, weights=weights)
        theta = theta - eta * y
        duals = [d + RHO * (own - y) for d, own in zip(duals, sent, strict=True)]
    return theta


def algorithm1(clients, noise, C, s, eta, T, curvature):  # type: ignore[no-untyped-def]
    """Client level: the whole direction is clipped."""
    theta, y = np.zeros(SIZE), np.zeros(SIZE)
    duals = [np.zeros(SIZE) for _ in clients]
    for k in range(T):
        sent = []
        for i, (X, labels) in enumerate(clients):
            rows = list(derivatives(theta, X, labels, curvature))
            g, H = np.mean([r[0] for r in rows], axis=0), np.mean([r[1] for r in rows], axis=0)
            A = H + (ALPHA + RHO) * np.eye(SIZE)
            primal = clip(np.linalg.solve(A, g - duals[i] + RHO * y), C)
            sent.append(primal + s * noise(k, i))
        y = np.mean(sent, axis=0)
        theta = theta - eta * y
        duals = [d + RHO * (own - y) for d, own in zip(duals, sent, strict=True)]
    return theta


def clients_of(sizes: list[int]) -> list[tuple[Any, Any]]:
    """Features of single precision, since that is what records hold."""
    rng = np.random.default_rng(1)
    made = [(rng.normal(size=(m, FEATURES)), rng.integers(0, CLASSES, m)) for m in sizes]
    return [(X.astype(np.float32).astype(float), y) for X, y in made]


def draws(k: int, i: int) -> Any:
    return Noise(SEED).stream("release", k, i, 0, UPDATE, 0).normal(SIZE)


def run(data: Any, unit: Unit, mechanism: Any, curvature: str, **changes: Any) -> Any:
    model = Linear("softmax", FEATURES, CLASSES)
    options = {"rho": RHO, "alpha": ALPHA, "c1": C1, "c2": C2, "hessian": DH}
    client = build(
        "client", "fednew", {**options, "curvature": curvature}, unit=unit, layout=model.layout
    )
    bounds = client.channels[UPDATE]
    sizes = [len(X) for X, _ in data] if unit is Unit.RECORD else [1] * len(data)
    plan = Plan(
        client=client,
        channels={UPDATE: mechanism(bounds)},
        sum=plain(),
        server=build("server", "scale", {"rate": 0.7}),
        nominal=sizes,
        rounds=6,
        noise=Noise(SEED),
        **changes,
    )
    problems = [
        model.problem(Records(torch.from_numpy(X).float(), torch.from_numpy(y))) for X, y in data
    ]
    *_, (last, _) = rounds(plan, problems, model.initial(0))
    return last.params.numpy()


@pytest.mark.parametrize("curvature", ["hessian", "covariance"])
@pytest.mark.parametrize("weights", list(Weights))
@pytest.mark.parametrize("s", [1e-9, 0.8])
def test_the_path_is_algorithm_2(curvature: str, weights: Weights, s: float) -> None:
    """6 rounds, 4 clients of unequal size, without noise to speak of and with noise."""
    data = clients_of([15, 30, 22, 9])

    def mechanism(bounds: Any) -> Any:
        return gaussian(Facts(bounds.clip, replace_bound=bounds.replace_bound), s)

    found = run(data, Unit.RECORD, mechanism, curvature, weights=weights)
    shares = [len(X) for X, _ in data] if weights is Weights.SUM else [1] * 4
    expected = algorithm2(data, draws, s, 0.7, 6, curvature, shares)
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("curvature", ["hessian", "covariance"])
@pytest.mark.parametrize("s", [1e-9, 0.05])
def test_the_path_is_algorithm_1(curvature: str, s: float) -> None:
    data = clients_of([15, 30, 22, 9])
    found = run(data, Unit.CLIENT, lambda _: gaussian(Facts(0.4, unit=Unit.CLIENT), s), curvature)
    expected = algorithm1(data, draws, 0.4, s, 0.7, 6, curvature)
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


# ------------------------------------------------------------------- the sensitivity, attacked


def lemma4(a: Any, b: Any, C: float) -> Any:
    """a + xi b of norm C, the paper's line 8."""
    along = a @ b / np.linalg.norm(b)
    xi = (-2 * along + np.sqrt(4 * along**2 + 4 * (C**2 - a @ a))) / (2 * np.linalg.norm(b))
    return a + xi * b if np.linalg.norm(a + b) > C else a + b


@pytest.mark.parametrize(("m", "times"), [(50, 4.9), (1000, 22), (2500, 35)])
def test_lemma_4_breaks_lemma_3_and_the_projection_does_not(m: int, times: float) -> None:
    """C1 = C2 = gamma = Delta_H = 1, H = 0: PRIVACY section 1's figures, by one record more.

    All gradients are e_1, and -lambda + rho y is along e_2: with a = (1 - 1/m) e_1 the paper's
    vector of norm 1 has sqrt(1 - (1 - 1/m)^2) along e_2, with a = e_1 it has nothing there.
    """
    e, b = np.eye(2), np.array([0.0, 3.0])
    with_it, without = lemma4(e[0], b, 1.0), lemma4((1 - 1 / m) * e[0], b, 1.0)
    lemma3 = 1 / m + 1 / (m - 1)
    assert np.linalg.norm(with_it - without) == pytest.approx(np.sqrt(2 / m))
    digit = 10.0 if times < 10 else 1.0
    assert np.floor(np.linalg.norm(with_it - without) / lemma3 * digit) / digit == times

    options = {"rho": 0.5, "alpha": 0.5, "c1": 1.0, "c2": 1.0, "hessian": 1.0}
    offset = torch.tensor([0.0, 3.0], dtype=torch.float64)
    made = []
    for count in (m, m - 1):
        gradients = torch.tensor([[1.0, 0.0]], dtype=torch.float64).repeat(count, 1)
        flat = Chosen(gradients, torch.zeros(count, 1, 1), torch.zeros(count, 2))
        made.append(released(options, flat, offset, float(m)))
    moved = float((made[0].vector - made[1].vector).norm())
    assert moved <= made[0].bound == pytest.approx(2.0, rel=1e-4)
    assert moved / m < lemma3


def chosen(rng: Any, count: int) -> Chosen:
    """Gradients and Hessians of all lengths, many along one axis."""

    def wild(*shape: int) -> torch.Tensor:
        values = rng.normal(size=shape) * 10.0 ** rng.integers(
            -2, 3, (shape[0], *[1] * len(shape[1:]))
        )
        return torch.from_numpy(values * (rng.random(shape) < rng.choice([0.3, 1.0])))

    half = wild(count, 2, 2)
    return Chosen(wild(count, 4), half @ half.transpose(1, 2), wild(count, 2))


def part(problem: Chosen, kept: list[int]) -> Chosen:
    return Chosen(problem.gradients[kept], problem.curvature[kept], problem.x[kept])


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_no_search_finds_a_unit_that_moves_more_than_the_bounds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    worst = {"bound": 0.0, "replace": 0.0}
    for _ in range(150):
        names = ("rho", "alpha", "c1", "c2", "hessian")
        options = {name: float(10.0 ** rng.uniform(-1.5, 1)) for name in names}
        count = int(rng.integers(2, 6))
        m = max(1.0, count * float(rng.choice([0.2, 1.0, 5.0])))
        everyone = chosen(rng, count + 1)
        offset = torch.from_numpy(rng.normal(size=4) * 10.0 ** rng.uniform(-2, 2))
        kept = list(range(count - 1))
        base, more, other = (
            released(options, part(everyone, index), offset, m)
            for index in (kept, [*kept, count - 1], [*kept, count])
        )
        added = float((more.vector - base.vector).norm()) / base.bound
        replaced = float((more.vector - other.vector).norm()) / base.replace_bound
        worst = {"bound": max(worst["bound"], added), "replace": max(worst["replace"], replaced)}
    assert 0.1 < worst["bound"] <= 1 + 1e-9
    assert 0.1 < worst["replace"] <= 1 + 1e-9


def test_the_bounds_are_attained_in_the_limit() -> None:
    """One dimension, b = c2: a record of gradient -c1 and Hessian Delta_H pulls y down twice."""
    m, options = 1e4, {"rho": 0.3, "alpha": 0.2, "c1": 0.7, "c2": 1.5, "hessian": 0.9}
    offset, one = torch.tensor([1.5], dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)

    def client(gradient: float, hessian: float) -> Chosen:
        return Chosen(gradient * one, hessian * one[None], one)

    nobody = part(client(0.0, 0.0), [])
    base = released(options, nobody, offset, m)
    pulled = released(options, client(-0.7, 0.9), offset, m)
    assert float((base.vector - pulled.vector).abs()) == pytest.approx(base.bound, rel=1e-3)
    at = offset - 0.7 / m  # so that the first record brings b to c2
    before = released(options, client(0.7, 0.0), at, m)
    after = released(options, client(-0.7, 0.9), at, m)
    assert float((before.vector - after.vector).abs()) == pytest.approx(
        base.replace_bound, rel=1e-3
    )
