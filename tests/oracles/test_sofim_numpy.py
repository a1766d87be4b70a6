# SPDX-License-Identifier: Apache-2.0
"""dpfed trains DP-FedSOFIM as sofim_numpy.py does: two implementations, one from the paper alone.

They share the records and the standard normals that noise is made of, and nothing else.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from dpfed.core.clipping import SHORTFALL
from dpfed.core.randomness import Noise
from dpfed.core.types import UPDATE
from dpfed.data.models import Linear, LinearProblem
from dpfed.recipes.build import plan_for
from dpfed.recipes.schema import load_recipe
from dpfed.training.inprocess import rounds
from dpfed.training.plan import Plan
from tests.oracles import sofim_numpy as paper

ROUNDS, FEATURES, CLASSES, SEED = 30, 6, 4, 5
METHODS = {"dp-fedsofim": False, "dp-fedsofim-printed": True}
"""Whether the oracle takes the printed step."""
Array = np.ndarray[Any, Any]


def plan_of(method: str, sizes: list[float], model: Linear, epsilon: float) -> Plan:
    """A plan at the authors' settings for this epsilon."""
    privacy = {"epsilon": epsilon, "clip": paper.CLIP, "weights": "average", "noise": "keyed"}
    tables = {"method": method, "rounds": ROUNDS, "seed": SEED, "privacy": privacy}
    return plan_for(load_recipe(tables, ["server.0.preset=paper"]), sizes, model.layout)


def as_theta(flat: Array) -> Array:
    """A flat vector of ours, W by class and then b, as the oracle has it: a row per feature."""
    weights, bias = np.split(flat, [CLASSES * FEATURES])
    return np.vstack([weights.reshape(CLASSES, FEATURES).T, bias])


def made_up_clients() -> list[tuple[Array, Array]]:
    """20 unequal clients whose rows are about 1.5 clips long, as the paper's features are."""
    made = np.random.default_rng(2)
    centres = 5.0 * made.normal(size=(CLASSES, FEATURES))
    labels = [made.integers(0, CLASSES, size) for size in made.integers(25, 46, paper.CLIENTS)]
    return [(centres[y] + 3.0 * made.normal(size=(len(y), FEATURES)), y) for y in labels]


@pytest.mark.parametrize("start", ["zero", "random"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("theirs", paper.AUTHORS, ids=lambda each: f"epsilon {each.epsilon:g}")
def test_a_whole_training_is_the_papers(
    theirs: paper.Settings, method: str, start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calibration, clip, noise, the mean over clients, preset and step: to 1e-6 of the model.

    Two things of ours are not in the paper: releases lie on a grid, here a finer one than usual,
    and rows are cut a millionth below the clip. The printed step triples either in 30 rounds.
    """
    monkeypatch.setattr("dpfed.mechanisms.gaussian.NOISY_BITS", 30)
    clients, model = made_up_clients(), Linear("softmax", FEATURES, CLASSES)
    plan = plan_of(method, [float(len(y)) for _, y in clients], model, theirs.epsilon)
    flat = Linear("softmax", FEATURES, CLASSES, start=start).initial(SEED).double()
    theta = as_theta(flat.numpy())
    problems = [
        LinearProblem(model, torch.from_numpy(np.c_[x, np.ones(len(x))]), torch.from_numpy(y), None)
        for x, y in clients
    ]
    path = [as_theta(state.params.numpy()) for state, _ in rounds(plan, problems, flat)]

    def normals(t: int, i: int) -> Array:
        stream = Noise(SEED).stream("release", t, i, 0, UPDATE, 0)
        return as_theta(stream.normal(model.layout.size))

    noise = [[normals(t, i) for i in range(paper.CLIENTS)] for t in range(ROUNDS)]
    std = paper.client_std(theirs.epsilon, paper.DELTA, ROUNDS, paper.CLIENTS, paper.CLIP)
    cut = paper.CLIP * (1 - SHORTFALL)
    expected = paper.train(theta, clients, theirs, cut, std, noise, METHODS[method])
    assert len(path) == ROUNDS
    for ours, other in zip(path, expected, strict=True):
        assert np.abs(ours - other).max() <= 1e-6 * np.abs(other).max()


def test_a_random_start_has_the_authors_law() -> None:
    """Its standard deviation is half of Glorot's, with the bias as a feature more: 0.082 of 64."""
    model = Linear("softmax", 64, 10, start="random")
    drawn = torch.stack([model.initial(seed) for seed in range(300)]).numpy()
    expected = paper.start(np.ones((65, 10)))[0, 0]
    assert expected == pytest.approx(0.082, abs=5e-4)
    assert drawn.std() == pytest.approx(expected, rel=0.01)
    assert abs(drawn.mean()) < 4 * expected / drawn.size**0.5
    assert torch.equal(model.initial(7), model.initial(7))
    assert not torch.equal(model.initial(7), model.initial(8))


@pytest.mark.parametrize("rounds", [1, 10, 50, 70])
@pytest.mark.parametrize("clients", [1, 5, 20])
def test_noise_is_calibrated_as_in_the_paper(clients: int, rounds: int) -> None:
    """252 settings: seven epsilons and three deltas for each of these."""
    model = Linear("softmax", FEATURES, CLASSES)
    for epsilon, delta in product((0.1, 0.5, 1.0, 2.0, 5.0, 8.0, 10.0), (1e-6, 1e-5, 1e-4)):
        recipe = load_recipe(
            {
                "method": "dp-fedsofim",
                "rounds": rounds,
                "privacy": {"epsilon": epsilon, "delta": delta, "clip": paper.CLIP},
            }
        )
        plan = plan_for(recipe, [100.0] * clients, model.layout)
        expected = paper.client_std(epsilon, delta, rounds, clients, paper.CLIP)
        assert plan.update.std == pytest.approx(expected, rel=1e-6)


def test_the_noise_of_the_authors_own_runs() -> None:
    """The std of one client's sum at 70 rounds, as the research on their code has it."""
    stds = [paper.client_std(e.epsilon, 1e-5, 70, 20, 10.0) for e in paper.AUTHORS]
    assert stds == pytest.approx([1176.6, 624.3, 149.2, 83.6], abs=0.06)
