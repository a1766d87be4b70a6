# SPDX-License-Identifier: Apache-2.0
"""fedauto against its equations in NumPy: one record at a time, in loops.

The oracle shares nothing with the package but the data, the noise draws and two facts of the path:
rows are cut to (1 - 2^-20) of the clip (core/clipping.py), and a release lies on a public grid.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from dpfed.client._standardised import Standardised
from dpfed.core.randomness import Noise
from dpfed.core.types import UPDATE, Adjacency, Unit
from dpfed.data.datasets import Records
from dpfed.recipes.build import plan_for
from dpfed.recipes.schema import parse
from dpfed.training.inprocess import rounds
from dpfed.training.plan import Plan

CLASSES, FEATURES, SEED, ROUNDS = 3, 4, 9, 7
C, KAPPA, BETA, CAP = 0.5, 5.0, 0.5, 2.0
SHORT = 1 - 2.0**-20
CENTER, RADIUS, BIAS = (0.5, -0.25, 0.0, 1.0), 2.0, float(np.float32(0.3))


def cut(row: Any, clip: float) -> Any:
    length = np.linalg.norm(row)
    return row if length <= clip * SHORT else row * (clip * SHORT / length)


def unit_vector(z: Any) -> Any:
    length = np.linalg.norm(z)
    return z / length if length > 0 else 0 * z


def svec(M: Any) -> Any:
    places = zip(*np.triu_indices(len(M)), strict=True)
    return np.array([M[i, j] * (1 if i == j else math.sqrt(2)) for i, j in places])


def matrix(v: Any) -> Any:
    M = np.zeros((FEATURES, FEATURES))
    for value, i, j in zip(v, *np.triu_indices(FEATURES), strict=True):
        M[i, j] = M[j, i] = value if i == j else value / math.sqrt(2)
    return M


class Oracle:
    """The equations; ``plan`` gives noise levels and grids, nothing else."""

    def __init__(self, plan: Plan, people: list[list[list[tuple[Any, int]]]], full: bool) -> None:
        self.plan, self.people, self.full = plan, people, full
        self.units = sum(len(client) for client in people)
        self.m, self.A, self.b, self.ell = np.array(CENTER), np.eye(FEATURES) / RADIUS, BIAS, 0.0
        self.W = np.zeros((CLASSES, FEATURES + 1))

    def released(self, at: int, channel: str, row: Any) -> tuple[Any, float]:
        """The mean over units of what ``row`` makes of the mean over a unit's own records."""
        noise, total = self.plan.channels[channel], 0.0
        for i, client in enumerate(self.people):
            S = sum(row(person) for person in client)
            normals = Noise(SEED).stream("release", at, i, 0, channel, 0).normal(S.size)
            total = total + np.rint((S + noise.std * normals) / noise.step) * noise.step
        return total / self.units, noise.std * math.sqrt(len(self.people)) / self.units

    def features(self, x: Any) -> Any:
        z = self.A @ (x - self.m)
        return np.append(unit_vector(z), self.b if np.any(z) else 0.0)

    def mean_row(self, person: Any) -> Any:
        us = [self.A @ (x - self.m) for x, _ in person]
        return cut(np.mean([u / max(1.0, np.linalg.norm(u)) for u in us], axis=0), 1.0)

    def second_row(self, person: Any) -> Any:
        vs = [unit_vector(self.A @ (x - self.m)) for x, _ in person]
        if self.plan.update.unit is Unit.RECORD:  # there the vector is cut, not the matrix
            return svec(np.outer(cut(vs[0], 1.0), cut(vs[0], 1.0)))
        return cut(svec(np.mean([np.outer(v, v) for v in vs], axis=0)), 1.0)

    def gradient_row(self, person: Any) -> Any:
        made = []
        for x, y in person:
            scores = self.W @ self.features(x)
            p = np.exp(scores - scores.max())
            made.append(np.outer(p / p.sum() - np.eye(CLASSES)[y], self.features(x)))
        g = cut(np.mean(made, axis=0), C)
        return np.append(g[:, :-1].ravel(), g[:, -1])

    def run(self) -> dict[str, Any]:
        d, K, first = FEATURES, CLASSES, 2 if self.full else 1
        steps = ROUNDS - first
        level = self.plan.channels[UPDATE].std * math.sqrt(len(self.people)) / self.units
        tau1 = level / math.sqrt(steps)
        lam = min(KAPPA * K * tau1, 3 / d)
        u, s1 = self.released(0, "mean", self.mean_row)
        noise = d * s1**2
        self.m = self.m + RADIUS * min(max(0.0, 1 - noise / (u @ u)), 1 / (1 + noise)) * u
        self.b = 0.15 if KAPPA * K * tau1 > 3 / d else BIAS
        if self.full:
            self.whiten(*self.released(1, "second", self.second_row), lam)
        E = np.zeros_like(self.W)
        for t in range(1, steps + 1):
            M, tau = self.released(first + t - 1, UPDATE, self.gradient_row)
            M = np.c_[M[: K * d].reshape(K, d), M[K * d :]]
            E = BETA * E + (1 - BETA) * M
            rate = 1 / (tau * math.sqrt(steps))
            rate = min(rate, CAP * K / self.ell) if self.full else rate
            self.W = self.W - rate * E / (1 - BETA**t)
        return {
            "center": self.m,
            "transform": self.A,
            "bias_input": np.array([self.b]),
            "weight": self.W[:, :-1],
            "bias": self.W[:, -1],
        }

    def whiten(self, S: Any, s2: float, lam: float) -> None:
        d = FEATURES
        values, Q = np.linalg.eigh(matrix(S))
        s = s2 * math.sqrt(d / 2)
        xi = np.array(
            [
                li - 2 * s**2 / d * sum((li - lj) / ((li - lj) ** 2 + s**2 / d) for lj in values)
                for li in values
            ]
        )
        xi = np.maximum(np.sort(xi), 0.01 / d)
        xi = xi / xi.sum()
        self.A = Q @ np.diag((xi + lam) ** -0.5) @ Q.T
        a = xi / (xi + lam)
        self.ell = a.max() / a.sum()


def clients_of(unit: Unit) -> list[list[list[tuple[Any, int]]]]:
    """Client -> person -> records; a record at the center, and persons of one to four records."""
    rng = np.random.default_rng(2)
    skew, shift = np.diag([1.5, 0.7, 0.3, 0.1]), np.array([1.0, 0.5, 0.0, 2.0])
    made = []
    for size in (25, 40, 31):
        x = (rng.normal(size=(size, FEATURES)) @ skew + shift).astype(np.float32).astype(float)
        records = [(each, int(rng.integers(CLASSES))) for each in x]
        records[3] = (np.array(CENTER), 1)
        if unit is Unit.RECORD:
            made.append([[record] for record in records])
        elif unit is Unit.CLIENT:
            made.append([records])
        else:
            made.append([records[at : at + 1 + at % 4] for at in range(0, size, 4)])
    return made


def problem_of(model: Standardised, client: list[list[tuple[Any, int]]]) -> Any:
    x = torch.from_numpy(np.array([x for person in client for x, _ in person])).float()
    y = torch.tensor([label for person in client for _, label in person])
    groups = torch.tensor([at for at, person in enumerate(client) for _ in person])
    return model.problem(Records(x, y, groups)).doubled()


def run(
    unit: Unit, full: bool, **privacy: Any
) -> tuple[dict[str, Any], dict[str, Any], dict[str, float]]:
    data = clients_of(unit)
    model = Standardised("softmax", FEATURES, CLASSES, full=full, center=CENTER, radius=RADIUS)
    tables = {"noise": "keyed", "unit": unit, **privacy}
    recipe = parse({"method": "dp-fedauto", "rounds": ROUNDS, "seed": SEED, "privacy": tables})
    plan = plan_for(recipe, [float(len(client)) for client in data], model.layout)
    problems = [problem_of(model, client) for client in data]
    *_, (last, _) = rounds(plan, problems, model.initial(0).double())
    found = {name: t.numpy() for name, t in model.layout.unflatten(last.params).items()}
    oracle = Oracle(plan, data, full)
    expected = oracle.run()
    return found, expected, {"ell": oracle.ell, "b": float(expected["bias_input"][0])}


@pytest.mark.sample(3)
@pytest.mark.parametrize("unit", list(Unit))
@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("std", [0.02, 0.6, 30.0])
def test_the_model_is_that_of_the_equations(unit: Unit, full: bool, std: float) -> None:
    """At a noise where the damping is below its bound, and at one where it is not."""
    found, expected, about = run(
        unit, full, std_over_clip=std if unit is not Unit.CLIENT else std / 9
    )
    for name in ("weight", "bias", "center", *(["transform"] if full else [])):
        assert np.abs(found[name] - expected[name]).max() < 1e-9 * max(
            1, np.abs(expected[name]).max()
        )
    assert found["bias_input"] == pytest.approx(about["b"], rel=1e-6)


def test_both_sides_of_the_switch_and_of_the_cap_are_among_them() -> None:
    low, high = (run(Unit.RECORD, True, std_over_clip=std)[2] for std in (0.02, 30.0))
    assert (low["b"], high["b"]) == (pytest.approx(0.3), 0.15)
    assert 1 / FEATURES <= low["ell"] <= 1


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_a_calibrated_run_is_that_of_the_equations_too(adjacency: Adjacency) -> None:
    privacy = {"epsilon": 20.0, "adjacency": adjacency}
    if adjacency is Adjacency.ADD_REMOVE:
        privacy["nominal"] = 32.0
    found, expected, _ = run(Unit.RECORD, True, **privacy)
    assert np.abs(found["weight"] - expected["weight"]).max() < 1e-9
