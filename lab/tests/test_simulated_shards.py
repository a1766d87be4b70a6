# SPDX-License-Identifier: Apache-2.0
"""The vectorised shards of the study are what real train functions do, shard by shard."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from dpfed.core.types import Unit
from dpfed.core.vector import Layout
from dpfed.data.datasets import Records
from dpfed.data.shard_process import CleanProcess, Limits
from dpfed.data.shards import Cut, ShardedProblem, parameters_of
from dpfed.data.train_functions import CALL
from dpfed.flower import make_plan

STUDY = Path(__file__).parent.parent / "studies" / "shards"


def study_module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, STUDY / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


simulated = study_module("simulated_shards")
functions = study_module("train_functions")


def records(count: int, columns: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(count, columns, generator=generator)
    return x, torch.randint(0, classes, (count,), generator=generator)


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_updates_are_those_of_sgd_in_torch(epochs: int, momentum: float) -> None:
    x, y = records(23, 4, 3)
    shards = simulated.cut([(x, y)], [3], 3)
    W = torch.randn(5, 3, generator=torch.Generator().manual_seed(4))
    function = simulated.Function(epochs, batch=4, rate=0.1, momentum=momentum)
    A, norms = simulated.trained(W, shards, function)
    for shard in range(3):
        net = torch.nn.Linear(4, 3)
        net.load_state_dict({"weight": W[:-1].T, "bias": W[-1]})
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=momentum)
        mine = [(x[shard::3][i : i + 4], y[shard::3][i : i + 4]) for i in range(0, 8, 4)]
        for features, classes in mine * epochs:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(features), classes).backward()
            optimizer.step()
        update = torch.cat([net.weight.detach().T, net.bias.detach()[None]]) - W
        alone = torch.zeros(3)
        alone[shard] = 1.0
        torch.testing.assert_close(simulated.weighted_sum(shards, A, alone), update)
        torch.testing.assert_close(norms[shard], update.norm())


def test_updates_of_single_records_are_those_of_scikit_learn() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    x, y = records(9, 4, 2)
    shards = simulated.cut([(x, y)], [2], 1)
    W = torch.randn(5, 1, generator=torch.Generator().manual_seed(4))
    function = simulated.Function(epochs=1, batch=1, rate=0.01, loss="logistic")
    A, _ = simulated.trained(W, shards, function)
    for shard in range(2):
        model = linear_model.SGDClassifier(
            loss="log_loss", learning_rate="constant", eta0=0.01, alpha=0.0, shuffle=False
        )
        model.coef_, model.intercept_ = W[:-1].T.double().numpy(), W[-1].double().numpy()
        functions.fit(model, x[shard::2].double().numpy(), y[shard::2].numpy(), 2)
        after = [*model.coef_.reshape(-1).tolist(), *model.intercept_.tolist()]
        update = torch.tensor(after) - W[:, 0]
        alone = torch.zeros(2)
        alone[shard] = 1.0
        made = simulated.weighted_sum(shards, A, alone)[:, 0]
        torch.testing.assert_close(made, update, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("trust", ["local", "distributed"])
def test_noise_is_that_of_the_plan(trust: str) -> None:
    shards = simulated.cut([records(20, 4, 2)] * 10, [4] * 10, 2)
    setting = simulated.Setting(epsilon=3.0, trust=trust, clip=1.0)
    total = {"name": "plain" if trust == "local" else "secure"}
    privacy = {"epsilon": 3.0, "delta": 1e-5, "trust": trust, "clip": 1.0}
    layout = Layout({"weight": (2, 4), "bias": (2,)})
    how = {"train": {"shards": 4}, "rounds": 10, "sum": total, "privacy": privacy}
    plan = make_plan([20] * 10, layout, **how)
    assert simulated.noise_of_mean(setting, shards) == pytest.approx(plan.noise_std("update"))


def test_a_clip_that_adapts_finds_the_norms_from_a_small_one() -> None:
    """Without noise worth speaking of, ten rounds from 0.02 end near those from the right clip."""
    shards = simulated.cut([records(400, 4, 2)] * 5, [80] * 5, 2)
    function = simulated.Function(epochs=5, batch=32, rate=0.1)
    found = []
    for first in (0.02, 0.2):
        setting = simulated.Setting(200.0, "local", first, quantile=0.5)
        generator = torch.Generator().manual_seed(0)
        found.append(simulated.train(shards, function, setting, generator))
    assert float(found[0].norm()) > 0.3 * float(found[1].norm()) > 0


MODULE = """
import sys
sys.path.insert(0, {study!r})
import torch
from sklearn.linear_model import SGDClassifier
import train_functions
from dpfed.data.train_functions import sklearn_train, torch_train

head = torch_train(
    train_functions.train, lambda: torch.nn.Linear(4, 3), 3, 0.1, torch.device("cpu")
)

def estimator():
    return SGDClassifier(
        loss="log_loss", learning_rate="constant", eta0=0.01, alpha=0.0, shuffle=False
    )

passes = sklearn_train(estimator, classes=2, passes=2)
"""
CASES = [
    ("head", 3, simulated.Function(epochs=3, rate=0.1, momentum=0.9)),
    ("passes", 1, simulated.Function(2, batch=1, rate=0.01, loss="logistic")),
]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("name", "outputs", "function"), CASES)
def test_rows_are_the_librarys_own(
    name: str, outputs: int, function: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """The app's function by the library, one process for each shard, and all at once here."""
    pytest.importorskip("sklearn")
    (tmp_path / "made_functions.py").write_text(MODULE.format(study=str(STUDY)))
    monkeypatch.syspath_prepend(str(tmp_path))
    x, y = records(20, 4, max(2, outputs))
    layout = Layout({"weight": (outputs, 4), "bias": (outputs,)})
    process = CleanProcess(CALL, f"made_functions:{name}")
    problem = ShardedProblem(
        data=Records(x, y),
        cut=Cut(4, seed=1),
        dimension=layout.size,
        pack=parameters_of(layout),
        process=process,
        limits=Limits(seconds=30.0),
        classes=max(2, outputs),
    )
    W = 0.3 * torch.randn(5, outputs, generator=torch.Generator().manual_seed(4))
    params = torch.cat([W[:-1].T.reshape(-1), W[-1]])
    try:
        made = torch.cat(list(problem.rows(params, Unit.RECORD).unit_rows()))
        members = problem.members(Unit.RECORD)
    finally:
        process.close()
    for shard, index in enumerate(members):
        here = simulated.cut([(x[index], y[index])], [1], outputs)
        A, _ = simulated.trained(W, here, function)
        update = simulated.weighted_sum(here, A, torch.ones(1))
        expected = -torch.cat([update[:-1].T.reshape(-1), update[-1]])
        torch.testing.assert_close(made[shard].float(), expected, rtol=1e-4, atol=1e-6)


def test_silos_trained_at_once_are_those_trained_one_by_one(monkeypatch: Any) -> None:
    """Each silo has one batch, whose order does not matter; momentum does, over the epochs."""
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(str(STUDY))
    study = study_module("shards")
    W = torch.randn(5, 3, generator=torch.Generator().manual_seed(4))
    x, y = records(40, 4, 3)
    silos = [(x[:20], y[:20]), (x[20:], y[20:])]
    at_once = study.heads_after(W, silos, study.HEAD._replace(epochs=3))
    for made, silo in zip(at_once, silos, strict=True):
        alone = study.after_training("PyTorch head", W, silo, 0, epochs=3)
        torch.testing.assert_close(made, alone)
