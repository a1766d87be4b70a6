# SPDX-License-Identifier: Apache-2.0
"""adadps against dense scaling and clipping in NumPy, with second moments of both kinds."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from dpfed.core.errors import DataError, RecipeError, UnsoundPlan
from dpfed.core.registry import build
from dpfed.core.rows import Chunks, Dense
from dpfed.core.types import (
    UPDATE,
    Aggregate,
    BoundedSum,
    Broadcast,
    Facts,
    Rows,
    Trust,
    Unit,
    Weights,
)
from dpfed.mechanisms.clear import clear
from dpfed.mechanisms.gaussian import gaussian
from dpfed.training.reply import ClientState, PricedReleaser, make_reply
from tests.helpers.scaffold_oracle import (
    HIDING,
    SIZE,
    check_pure,
    end,
    federation,
    make_plan,
    minimiser,
    private,
    problems,
    rows_of,
    sigmoid,
    unit_rows,
    walk,
)
from tests.refusals import named

EPS, BETA, RATE = 0.4, 0.8, 0.7


def scale_of(v: np.ndarray, eps: float = EPS) -> np.ndarray:
    """1 / A = (1 + eps) r / (sqrt(v) + eps r)."""
    root = np.sqrt(np.maximum(v, 0))
    r = np.sqrt(np.mean(root**2))
    return (1 + eps) * r / (root + eps * r) if r > 0 else np.ones_like(v)


@pytest.mark.parametrize("weights", list(Weights))
@pytest.mark.parametrize("unit", list(Unit))
@pytest.mark.parametrize("std", [0.0, 0.5])
def test_the_path_scales_each_row_and_then_clips_it(
    std: float, unit: Unit, weights: Weights
) -> None:
    data, C = federation(3, 20), 0.6
    client = build("client", "adadps", {"eps": EPS, "beta": BETA})
    mechanism = gaussian(Facts(C, unit=unit), std) if std else clear(Facts(C, unit=unit))
    server = build("server", "scale", {"rate": RATE})
    plan = make_plan(client, data, 7, mechanism, weights=weights, server=server)
    theta, v = np.zeros(SIZE), np.zeros(SIZE)
    for t, (state, broadcast, _) in enumerate(walk(plan, data)):
        scale = scale_of(v)
        assert np.abs(broadcast.shared["scale"].numpy() - scale).max() < 1e-4
        rows = [unit_rows(theta, one, unit) * scale for one in data]
        mean = np.mean([private(r, C, std, t, i, 0) for i, r in enumerate(rows)], axis=0)
        noise = std * math.sqrt(3) / (3 * len(rows[0]))
        v = BETA * v + (1 - BETA) * (mean**2 - noise**2) / scale**2
        theta = theta - RATE * mean
        assert np.abs(state.params.numpy() - theta).max() < (1e-5 if std else 1e-9)
    assert scale.max() > 1.2
    assert scale.min() < 0.9


def test_the_first_round_is_dp_fedgds() -> None:
    data = federation(3, 20)
    for mechanism in (gaussian(Facts(0.6), 0.5), gaussian(Facts(0.6, trust=Trust.CENTRAL), 0.5)):
        one, other = (
            end(make_plan(build("client", name, {}), data, 1, mechanism), data)
            for name in ("adadps", "gradient")
        )
        assert np.abs(one - other).max() < 1e-7


def test_it_reaches_the_pooled_minimiser_on_unlike_clients() -> None:
    """Without noise and clipping: a positive diagonal moves no stationary point."""
    data = federation(4, 40)
    plan = make_plan(build("client", "adadps", {}), data, 200, clear(Facts(50.0)))
    assert np.abs(end(plan, data) - minimiser(data)).max() < 1e-6


def test_side_information_spends_the_same_noise_better(tmp_path: Path) -> None:
    """Features of size 1 to 0.01, public second moments: a lower loss than DP-FedGD's at any rate.

    DP-FedGD is given the best of five rates, AdaDPS too; clip, noise and rounds are the same.
    """
    rng = np.random.default_rng(2)
    sizes = np.array([1.0, 0.3, 0.1, 0.03])
    data = []
    for _ in range(4):
        Z = rng.normal(size=(200, 4))
        data.append((Z * sizes, (rng.uniform(size=200) < sigmoid(2 * Z.sum(axis=1))).astype(int)))
    public = np.append(sizes, 1.0) ** 2
    save_file({"v": torch.from_numpy(public)}, tmp_path / "side.safetensors")

    def best(name: str, **options: Any) -> float:
        losses = []
        for rate in (0.3, 1.0, 3.0, 10.0, 30.0):
            server = build("server", "scale", {"rate": rate})
            client = build("client", name, options)
            theta = end(make_plan(client, data, 25, gaussian(Facts(1.0), 2.0), server=server), data)
            X, y = (np.concatenate(part) for part in zip(*data, strict=True))
            z = X @ theta[:-1] + theta[-1]
            losses.append(float(np.mean(np.logaddexp(0, z) - y * z)))
        return min(losses)

    plain = best("gradient")
    assert best("adadps", side=str(tmp_path / "side.safetensors"), eps=0.1) < plain - 0.01


# ----------------------------------------------------------------------------------------- moments


def test_side_information_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "side.safetensors"
    v = torch.tensor([4.0, 0.0, 1.0, 9.0, 16.0])
    save_file({"v": v}, path)
    data = federation(2, 10)
    client = build("client", "adadps", {"side": str(path)})
    for _, broadcast, _ in walk(make_plan(client, data, 3, gaussian()), data):
        assert np.allclose(broadcast.shared["scale"].numpy(), scale_of(v.numpy(), eps=1.0))


def test_a_side_file_must_fit_the_model(tmp_path: Path) -> None:
    bad = {
        "size": {"v": torch.ones(3)},
        "sign": {"v": -torch.ones(SIZE)},
        "nan": {"v": torch.full((SIZE,), math.nan)},
        "name": {"w": torch.ones(SIZE)},
    }
    for name, tensors in bad.items():
        save_file(tensors, tmp_path / name)
    (tmp_path / "text").write_text("v = 1")
    for name in (*bad, "text", "missing"):
        client = build("client", "adadps", {"side": str(tmp_path / name)})
        with pytest.raises(DataError, match="'v'"):
            client.companion.init(torch.zeros(SIZE))


def test_no_coordinate_grows_beyond_the_bound_of_eps() -> None:
    server = build("client", "adadps", {"eps": 0.5}).companion
    state, params = server.init(torch.zeros(3)), torch.zeros(3)
    mean = torch.tensor([100.0, 1e-3, 0.0])
    _, state = server.update(mean, state, Aggregate(0, params, mean, math.nan, 2, {}, 2))
    scale = server.share(state)["scale"]
    assert float(scale.max()) == pytest.approx(3.0)
    assert float(scale[0]) == pytest.approx(1.5 / (math.sqrt(3) + 0.5))


def test_the_server_half_is_pure_and_waits_out_an_empty_round() -> None:
    client = build("client", "adadps", {})
    check_pure(client)
    zero = torch.zeros(4)
    state = client.companion.init(zero)
    seen = Aggregate(0, zero, zero, 0.0, 0, {}, 2)
    assert client.companion.update(zero, state, seen)[1] is state


# -------------------------------------------------------------------------------------------- rows


class Held:
    """A problem that gives the rows it holds."""

    dimension = SIZE

    def __init__(self, make: Callable[[], Rows]) -> None:
        self.make = make

    def made_up(self) -> Held:
        return self

    def rows(self, params: torch.Tensor, unit: Unit) -> Rows:
        return self.make()


class Opaque:
    """Rows that cannot be scaled."""

    def clipped_sum(self, clip: float) -> BoundedSum:
        return BoundedSum(torch.zeros(SIZE), clip, 2 * clip)


def reply(make: Callable[[], Rows] | None, data: Any) -> torch.Tensor:
    plan = make_plan(build("client", "adadps", {}), [data], 1, clear(Facts(0.5)))
    problem: Any = problems([data])[0] if make is None else Held(make)
    client = ClientState(0, problem)
    scale = torch.tensor([0.1, 3.0, 1.0, 0.5, 2.0], dtype=torch.float64)
    broadcast = Broadcast(0, torch.zeros(SIZE, dtype=torch.float64), {"scale": scale})
    made, _ = make_reply(plan, broadcast, client, PricedReleaser(plan, broadcast, client))
    return made[UPDATE].vector * made[UPDATE].step


def test_all_kinds_of_rows_give_the_same_sum() -> None:
    (data,) = federation(1, 12)
    matrix = torch.from_numpy(rows_of(np.zeros(SIZE), *data))
    outer = reply(None, data)
    dense = reply(lambda: Dense(matrix), data)
    chunks = reply(lambda: Chunks(lambda i: matrix[i], 12, SIZE, 5), data)
    assert torch.allclose(outer, dense, atol=1e-9)
    assert torch.allclose(chunks, dense, atol=1e-9)


def test_rows_that_cannot_be_scaled_are_refused() -> None:
    (data,) = federation(1, 12)
    with pytest.raises(UnsoundPlan, match="scale Opaque rows"):
        reply(Opaque, data)


# --------------------------------------------------------------------------------------- guarantees


def test_one_release_a_round_for_every_unit_and_trust() -> None:
    client = build("client", "adadps", {})
    assert client.units == set(Unit)
    assert client.sends_unmodified
    assert not client.reuses_own_releases
    for unit in Unit:
        for trust in Trust:
            mechanism = gaussian(Facts(unit=unit, trust=trust))
            plan = make_plan(client, federation(3, 6), 10, mechanism, sum=HIDING)
            assert plan.planned(UPDATE) == 10


@pytest.mark.parametrize("options", [{"eps": 0.0}, {"eps": math.nan}, {"beta": 1.0}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=named("adadps", options)):
        build("client", "adadps", options)


def test_rows_that_are_clipped_unmade_are_made_to_be_scaled() -> None:
    """A network's ghost rows: the scale is of single numbers, which only made rows have."""
    from torch import nn

    from dpfed.core.rows import made_rows
    from dpfed.data.datasets import Records
    from dpfed.data.modules import Network, seeded

    network = Network(seeded(lambda: nn.Linear(3, 2), 0))
    rows = network.problem(Records(torch.rand(5, 3), torch.arange(5) % 2)).rows(
        network.initial(0), Unit.RECORD
    )
    assert not isinstance(rows, Chunks)
    assert isinstance(made_rows(rows), Chunks)
    dense = Dense(torch.ones(2, 2))
    assert made_rows(dense) is dense
