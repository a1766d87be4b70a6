# SPDX-License-Identifier: Apache-2.0
"""The study of a model's size: its features, what its costs are measured with, and its table."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpfed.core.vector import one_thread
from dpfed.training.reply import ClientState
from dpfed.training.round import start
from dpfed_lab.benchmarks import dimension

ROOT = Path(__file__).parents[2]


def script(name: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "lab/studies/dimension" / f"{name}.py"), run_name="read")


# ------------------------------------------------------------------------------------ the features


@pytest.mark.parametrize("columns", [8, 20, 40])
def test_a_row_of_features_is_made_from_itself_alone(columns: int) -> None:
    """Other records, and their order, change nothing: no privacy is spent."""
    turned = script("dimension_features")["turned"]
    rng = np.random.default_rng(1)
    x, directions = rng.random((6, 20)), rng.standard_normal((20, columns), dtype=np.float32)
    made = turned(x, None if columns == 20 else directions)
    np.testing.assert_allclose(np.linalg.norm(made.astype(float), axis=1), 1.0, atol=2e-3)
    others = np.concatenate([9.0 * x[3:], x[:3]])
    np.testing.assert_allclose(
        turned(others, None if columns == 20 else directions)[3:], made[:3], atol=1e-3
    )
    assert bool(made.min() >= 0) == (columns == 40)  # positive parts


def test_the_directions_come_from_a_seed() -> None:
    widths = script("dimension_features")["widths"]
    first, again = widths(1280), widths(1280)
    assert list(first) == [64, 128, 256, 512, 1280, 2000]
    assert first[1280] is None
    assert all(np.array_equal(first[k], again[k]) for k in first if k != 1280)


# ----------------------------------------------------------------------------------- the benchmark


def test_memory_is_counted_to_the_byte() -> None:
    """A vector that is there at the peak, one that is gone before, and one of numpy's."""

    def work() -> float:
        torch.zeros(500_000)  # 2 MB, freed
        kept, more = torch.zeros(250_000), np.zeros(250_000)  # 1 + 2 MB
        return float(kept.sum()) + float(more.sum())

    dimension.allocated(work)
    taken, _ = dimension.allocated(work)
    assert taken == pytest.approx(2e6 + 2e6, rel=0.05)  # torch's peak, and numpy's


@pytest.mark.long
def test_a_matrix_of_the_parameters_is_seen() -> None:
    """d grows by 1.9: vectors by less than that, d x d matrices by more than 2.8."""
    with one_thread():
        grown = {
            method: [dimension._played(method, f, 2, dimension.allocated)[-1][0] for f in (16, 31)]
            for method in ("dp-fedgd", "dp-fednew")
        }
    ratios = {method: large / small for method, (small, large) in grown.items()}
    assert ratios["dp-fedgd"] < 1.9
    assert ratios["dp-fednew"] > 2.8


def test_what_is_not_run_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the cap: four times the memory and eight times the seconds of half the size."""
    found = {"memory": 1e9, "seconds": 2.0, "bare": 1e-3}
    monkeypatch.setattr(dimension, "FEATURES", (99, 199, 399))
    monkeypatch.setattr(dimension, "measure", lambda method, features: dict(found))
    monkeypatch.setattr(dimension, "CAP", 3e9)
    lines = list(dimension._grown("dp-fednew"))
    assert ["computed" in line.name for line in lines] == [False, False, True, True, True, True]
    assert [line.measured for line in lines] == pytest.approx([1e3, 2e3, 4e3, 16e3, 16e3, 128e3])
    assert not any("computed" in line.name for line in dimension._grown("dp-fedgd"))


@pytest.mark.parametrize("method", ["DP-FedGD", "DP-FedFC", "FedNewton"])
def test_bytes_are_what_a_client_sends(method: str) -> None:
    """The numbers that are due, at 4 bytes each, against the messages of a training."""
    cost = script("dimension_cost")
    study = "dimension-newton" if method == "FedNewton" else "dimension"
    desk, state, count = played(cost, study, method)
    seen = 0
    for _ in range(count):
        _, reply = desk.answer(state)
        assert isinstance(reply, dict)
        seen += sum(map(len, reply.values()))
        state, _ = desk.round(state)
    assert (count, seen) == cost["sent"](study, method, 16)


def played(cost: dict[str, Any], study: str, method: str) -> tuple[Any, Any, int]:
    """A client of the study before its first round, with fewer features."""
    from dpfed.data.models import Linear
    from dpfed.recipes.build import plan_for
    from dpfed_lab.jobs import make_job
    from dpfed_lab.study import load_study

    source = load_study(study)
    changes = next(each.set for each in source.methods if each.label == method)
    model = Linear("softmax", 16, 10)
    plan = plan_for(make_job(source.base, {}, changes).recipe, [1200.0] * 10, model.layout)
    member = ClientState(0, model.problem(dimension._records(16, 1200)))
    state = start(plan, model.initial(0))
    return dimension._Desk(plan, member, dimension.processor_seconds), state, plan.rounds
