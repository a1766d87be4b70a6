# SPDX-License-Identifier: Apache-2.0
"""fedadamw against its equations in NumPy; its second channel; what noise leaves in its moments."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dpfed.audit.client_laws import CLIENT_LAWS
from dpfed.client._blocks import blocks_of
from dpfed.client.fedadamw import fedadamw
from dpfed.core.errors import RecipeError, UnsoundPlan
from dpfed.core.registry import build
from dpfed.core.sampling import Poisson
from dpfed.core.types import UPDATE, Aggregate, ClientAlgorithm, Facts, Trust, Unit, Weights
from dpfed.core.vector import Layout
from dpfed.mechanisms.clear import clear
from dpfed.mechanisms.gaussian import gaussian
from tests.helpers.scaffold_oracle import (
    HIDING,
    MODEL,
    SIZE,
    Data,
    check_pure,
    end,
    federation,
    make_plan,
    minimiser,
    private,
    unit_rows,
    walk,
)
from tests.refusals import named

OPTIONS: dict[str, Any] = {
    "steps": 3,
    "rate": 0.05,
    "beta1": 0.8,
    "beta2": 0.9,
    "eps": 1e-6,
    "decay": 0.2,
    "gamma": 0.6,
    "floor": 0.3,
}
BLOCKS = [slice(0, 2), slice(2, 5)]


class Oracle:
    """The equations of the file, one client and one block at a time."""

    def __init__(self, data: Data, unit: Unit, C: float, std: float, squares: bool = False) -> None:
        self.data, self.unit, self.C, self.std, self.squares = data, unit, C, std, squares
        self.theta, self.delta, self.rms = np.zeros(SIZE), np.zeros(SIZE), np.zeros(len(BLOCKS))

    def client(self, t: int, i: int) -> tuple[np.ndarray, np.ndarray]:
        K, eta, b1, b2, eps, decay, gamma, floor = OPTIONS.values()
        theta, m, v = self.theta.copy(), np.zeros(SIZE), np.zeros(SIZE)
        for b, where in enumerate(BLOCKS):
            v[where] = self.rms[b] ** 2
        for k in range(1, K + 1):
            rows = unit_rows(theta, self.data[i], self.unit)
            g, s = private(rows, self.C, self.std, t, i, k - 1), self.std / len(rows)
            w = np.ones(SIZE)
            for b, where in enumerate(BLOCKS):
                w[where] = 1.0 if self.rms[b] > 0 else 1 - b2**k
            m = b1 * m + (1 - b1) * g
            v = b2 * v + (1 - b2) * (g * g - s * s)
            v_hat = np.maximum(v / w, floor * s * s)
            step = gamma * m / (1 - b1**k) / (np.sqrt(v_hat) + eps) + (1 - gamma) * self.delta
            theta = theta - eta * (step + decay * theta)
        means = [np.mean(v[where] / w[where]) for where in BLOCKS]
        return self.theta - theta, np.maximum(means, floor * s * s)

    def round(self, t: int, present: list[int], q: float = 1.0) -> None:
        if not present:
            return
        moves, seconds = zip(*(self.client(t, i) for i in present), strict=True)
        mean = np.sum(moves, axis=0) / (q * len(self.data))
        self.delta = mean / (OPTIONS["steps"] * OPTIONS["rate"])
        self.theta = self.theta - mean
        if self.squares:  # eq. (18), then the root that a step takes
            self.rms = np.sqrt(np.mean(seconds, axis=0))
        else:
            self.rms = np.mean(np.sqrt(seconds), axis=0)


@pytest.mark.sample(4)
@pytest.mark.parametrize("weights", list(Weights))
@pytest.mark.parametrize("unit", [Unit.RECORD, Unit.GROUP])
@pytest.mark.parametrize("std", [0.0, 0.5])
@pytest.mark.parametrize("moments", ["root", "mean"])
def test_the_path_is_the_equations(moments: str, std: float, unit: Unit, weights: Weights) -> None:
    """Three clients (of unequal size where weights allow), one absent in round 2."""
    data = federation(3, 20)
    if weights is Weights.AVERAGE:
        data[1] = (data[1][0][:12], data[1][1][:12])
    options = {**OPTIONS, "blocks": [2, 3], "moments": moments}
    client = build("client", "fedadamw", options, unit=unit)
    mechanism = gaussian(Facts(0.8, unit=unit), std) if std else clear(Facts(0.8, unit=unit))
    plan = make_plan(client, data, 6, mechanism, weights=weights)
    oracle = Oracle(data, unit, 0.8, std, squares=moments == "mean")
    follow(plan, oracle, lambda t, i: (t, i) == (2, 0), 1.0, std)


@pytest.mark.parametrize("moments", ["root", "mean"])
def test_clients_that_are_drawn_at_random_give_the_mean_of_their_moments(moments: str) -> None:
    data = federation(6, 16)
    client = build("client", "fedadamw", {**OPTIONS, "blocks": [2, 3], "moments": moments})
    plan = make_plan(client, data, 8, gaussian(Facts(0.8), 0.5), client_sampling=Poisson(0.5))
    oracle = Oracle(data, Unit.RECORD, 0.8, 0.5, squares=moments == "mean")
    follow(plan, oracle, lambda t, i: False, 0.5, 0.5)


def follow(
    plan: Any, oracle: Oracle, absent: Callable[[int, int], bool], q: float, std: float
) -> None:
    tolerance = 3e-5 if std else 1e-7
    for state, _, _ in walk(plan, oracle.data, absent):
        t = state.round - 1
        oracle.round(t, [i for i in plan.draw(t, 0) if not absent(t, i)], q)
        delta, rms = state.optimizer[0]
        assert np.abs(state.params.numpy() - oracle.theta).max() < tolerance
        assert np.abs(delta.numpy() - oracle.delta).max() < tolerance / OPTIONS["rate"]
        assert np.abs(rms.numpy() - oracle.rms).max() < tolerance
    assert np.abs(oracle.theta).max() > 0.1
    assert oracle.rms.min() > 0


def test_one_client_with_gamma_1_begins_as_torchs_adamw() -> None:
    """In the first round nothing is known: the corrections are Adam's own."""
    data = federation(1, 30)
    client = build("client", "fedadamw", {**OPTIONS, "gamma": 1.0})
    plan = make_plan(client, data, 1, clear(Facts(50.0)))
    parameter = torch.nn.Parameter(torch.zeros(SIZE, dtype=torch.float64))
    oracle = torch.optim.AdamW([parameter], 0.05, (0.8, 0.9), 1e-6, 0.2)
    for _ in range(OPTIONS["steps"]):
        rows = unit_rows(parameter.detach().numpy(), data[0], Unit.RECORD)
        parameter.grad = torch.from_numpy(rows.mean(axis=0))
        oracle.step()
    assert np.abs(end(plan, data) - parameter.detach().numpy()).max() < 1e-8


@pytest.mark.long
@pytest.mark.slow
def test_clients_that_are_alike_reach_the_minimiser() -> None:
    """Without noise and decay, to 1e-5 in 100 rounds."""
    data = federation(3, 40, alike=True)
    client = build("client", "fedadamw", {"rate": 0.01, "decay": 0.0}, layout=MODEL.layout)
    plan = make_plan(client, data, 100, clear(Facts(50.0)))
    assert np.abs(end(plan, data) - minimiser(data)).max() < 1e-5


def test_noise_leaves_the_moments_as_it_found_them() -> None:
    """Noise as large as a coordinate's gradient, 60 steps: rms is that of the run in clear."""
    data = federation(4, 40)
    options = {"steps": 60, "rate": 1e-6, "beta2": 0.999, "floor": 1e-3, "blocks": [SIZE]}
    found = {}
    for name, mechanism in [("clear", clear(Facts(50.0))), ("noisy", gaussian(Facts(50.0), 20.0))]:
        client = build("client", "fedadamw", options)
        *_, (last, _, _) = walk(make_plan(client, data, 1, mechanism), data)
        found[name] = float(last.optimizer[0].rms)
    with_noise = math.sqrt(found["clear"] ** 2 + (20.0 / 40) ** 2)
    assert with_noise > 1.2 * found["clear"]
    assert found["noisy"] == pytest.approx(found["clear"], rel=0.1)


# -------------------------------------------------------------------------------------- eq. (18)


def shared_after(data: Data, moments: str, rounds: int = 2) -> torch.Tensor:
    options = {**OPTIONS, "blocks": [2, 3], "moments": moments}
    plan = make_plan(build("client", "fedadamw", options), data, rounds, gaussian(Facts(0.8), 0.5))
    *_, (last, _, _) = walk(plan, data)
    return last.optimizer[0].rms


def test_one_client_has_one_mean() -> None:
    """The root of the mean and the mean of the root are the same number, to the grid."""
    data = federation(1, 20)
    assert shared_after(data, "mean") == pytest.approx(shared_after(data, "root"), rel=1e-5)


def test_a_root_of_a_mean_is_never_below_the_mean_of_roots() -> None:
    data = federation(4, 16)
    mean, root = (shared_after(data, moments, 1) for moments in ("mean", "root"))
    assert bool((mean > root).all())


@pytest.mark.parametrize("law", CLIENT_LAWS, ids=lambda law: law.__name__)
def test_law(law: Any) -> None:
    """The laws of every client, for the option: what leaves is a function of releases alone."""

    def by_square() -> ClientAlgorithm:
        return fedadamw(moments="mean")

    law(by_square)


def test_a_client_that_sends_a_negative_square_breaks_nothing() -> None:
    server = build("client", "fedadamw", {"blocks": [4], "moments": "mean"}).companion
    state, zero = server.init(torch.zeros(4)), torch.zeros(4)
    seen = Aggregate(0, zero, zero, 0.0, 1, {"moments": torch.tensor([-1.0])}, 1)
    assert server.update(zero, state, seen)[1].rms.tolist() == [0.0]


def test_a_mean_of_small_squares_is_fine_enough() -> None:
    """Noise of 1e-6 per coordinate: squares of 1e-12 keep four digits on the gradients' grid."""
    data = federation(1, 20)
    options = {**OPTIONS, "blocks": [2, 3], "steps": 1}
    found = {}
    for moments in ("mean", "root"):
        client = build("client", "fedadamw", {**options, "moments": moments})
        plan = make_plan(client, data, 1, gaussian(Facts(1e-6), 2e-5))
        *_, (last, _, _) = walk(plan, data)
        found[moments] = last.optimizer[0].rms.numpy()
    assert found["root"].max() < 1e-5
    assert found["mean"] == pytest.approx(found["root"], rel=1e-3)


# ------------------------------------------------------------------------------------ its channel


@pytest.mark.parametrize("moments", ["root", "mean"])
def test_the_moments_are_derived_and_cost_nothing(moments: str) -> None:
    for unit in (Unit.RECORD, Unit.GROUP):
        options = {"steps": 3, "moments": moments}
        client = build("client", "fedadamw", options, unit=unit, layout=MODEL.layout)
        plan = make_plan(client, federation(2, 6), 10, gaussian(Facts(unit=unit)))
        assert plan.due(4) == [UPDATE, "moments"]
        assert plan.client.channels["moments"].derived
        assert plan.planned(UPDATE) == 30
        assert set(plan.channels) == {UPDATE}


def test_blocks_are_given_or_the_models_tensors_or_sixteen() -> None:
    layout = Layout({"a": (2, 3), "b": (4,), "c": ()})
    sizes = {
        name: build("client", "fedadamw", options, layout=shape).channels["moments"].size
        for name, options, shape in [
            ("given", {"blocks": [5, 5, 1, 0]}, layout),
            ("tensors", {}, layout),
            ("unknown", {}, None),
        ]
    }
    assert sizes == {"given": 4, "tensors": 3, "unknown": 16}


def test_a_model_of_fewer_than_sixteen_parameters_has_empty_blocks() -> None:
    data = federation(2, 10)
    client = build("client", "fedadamw", {})
    *_, (last, _, _) = walk(make_plan(client, data, 3, gaussian(Facts(1.0), 0.5)), data)
    assert bool(torch.isfinite(last.params).all())
    assert last.optimizer[0].rms.shape == (16,)


def test_blocks_of_another_model_are_refused_before_the_first_round() -> None:
    for blocks in ([2, 2], [7, -2]):
        client = build("client", "fedadamw", {"blocks": blocks})
        with pytest.raises(RecipeError, match="add up to the model's 5"):
            client.companion.init(torch.zeros(5))


def test_a_round_without_clients_changes_nothing() -> None:
    server = build("client", "fedadamw", {"blocks": [4]}).companion
    state, zero = server.init(torch.zeros(4)), torch.zeros(4)
    seen = Aggregate(0, zero, zero, 0.0, 0, {"moments": torch.zeros(1)}, 2)
    assert server.update(zero, state, seen)[1] is state


# ------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize("moments", ["root", "mean"])
def test_the_client_level_is_refused_for_its_moments_in_clear(moments: str) -> None:
    with pytest.raises(RecipeError, match="without noise"):
        build("client", "fedadamw", {"moments": moments}, unit=Unit.CLIENT)


@pytest.mark.parametrize("moments", ["root", "mean"])
@pytest.mark.parametrize("trust", [Trust.DISTRIBUTED, Trust.CENTRAL])
def test_only_local_trust_covers_it(trust: Trust, moments: str) -> None:
    client = build("client", "fedadamw", {"moments": moments})
    check_pure(build("client", "fedadamw", {"blocks": [SIZE], "moments": moments}))
    with pytest.raises(UnsoundPlan, match="unmodified releases only"):
        make_plan(client, federation(2, 6), 3, gaussian(Facts(trust=trust)), sum=HIDING)


@pytest.mark.parametrize(
    "options",
    [
        {"steps": 0},
        {"rate": 0.0},
        {"eps": 0.0},
        {"decay": -1.0},
        {"floor": math.nan},
        {"gamma": 1.1},
        {"gamma": -0.1},
        {"beta1": 1.0},
        {"beta2": -0.1},
        {"moments": "squares"},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=named("fedadamw", options)):
        build("client", "fedadamw", options)


# ------------------------------------------------------------------------------------------ blocks


def layout_of(module: torch.nn.Module) -> Layout:
    return Layout({name: tuple(each.shape) for name, each in module.named_parameters()})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "config", "head_size", "count"),
    [
        ("RobertaForSequenceClassification", {}, 64, 458),
        ("ViTForImageClassification", {}, 64, 458),
        (
            "SwinForImageClassification",
            {"embed_dim": 128, "depths": [2, 2, 18, 2], "num_heads": [4, 8, 16, 32]},
            32,
            1178,
        ),
    ],
)
def test_heads_are_as_many_as_the_paper_counts(
    model: str, config: dict[str, Any], head_size: int, count: int
) -> None:
    """Its Table 13, on the libraries' own models; no weight is made."""
    transformers = pytest.importorskip("transformers")
    made = getattr(transformers, model)
    with torch.device("meta"):
        module = made(made.config_class(**config))
    layout = layout_of(module)
    found = blocks_of(layout, "heads", head_size)
    assert found.number == count
    assert sum(found.sizes) == layout.size
    assert len(found.sizes) == len(found.owners)


TRANSFORMER = Layout(
    {
        "embed.weight": (7, 4),
        "layers.0.norm.weight": (4,),
        "layers.0.attn.q.weight": (4, 4),
        "layers.0.attn.q.bias": (4,),
        "layers.0.attn.k.lora_A.weight": (1, 4),
        "layers.0.attn.k.lora_B.weight": (4, 1),
        "layers.0.attn.proj.weight": (4, 4),
        "layers.0.mlp.weight": (3, 4),
        "head.weight": (2, 4),
    }
)


def test_a_head_has_its_slices_of_weight_and_bias() -> None:
    found = blocks_of(TRANSFORMER, "heads", 2)
    #                    embed, norm | q by head | bias | A | B by head | proj | mlp | head
    assert found.sizes == [28, 4, 8, 8, 2, 2, 4, 2, 2, 16, 12, 8]
    assert found.owners == [0, 0, 1, 2, 1, 2, 3, 4, 5, 6, 7, 8]
    values = torch.arange(96.0)
    means = found.means(values)
    assert means[1] == torch.cat([values[32:40], values[48:50]]).mean()
    spread = found.spread(means)
    assert set(spread[32:40].tolist()) == set(spread[48:50].tolist()) == {float(means[1])}


def test_channels_are_rows_and_tensors_are_tensors() -> None:
    layout = Layout({"conv.weight": (3, 2, 2), "conv.bias": (3,), "scale": ()})
    assert blocks_of(layout, "channels", None) == ([4, 4, 4, 3, 1], [0, 1, 2, 3, 4])
    assert blocks_of(layout, "tensors", None) == ([12, 3, 1], [0, 1, 2])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"blocks": "layers"}, "blocks must be sizes, or one of tensors, channels, heads"),
        ({"blocks": "heads"}, "head_size must be given with blocks = 'heads', and only then"),
        ({"head_size": 2}, "head_size must be given with blocks = 'heads', and only then"),
        ({"blocks": "heads", "head_size": 3}, "a divisor of the 4 rows of layers.0.attn.q.weight"),
    ],
)
def test_blocks_that_cannot_be_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        build("client", "fedadamw", options, unit=Unit.RECORD, layout=TRANSFORMER)


def test_a_kind_that_there_is_not_is_refused_whatever_the_model() -> None:
    with pytest.raises(RecipeError, match="got 'head'"):
        build("client", "fedadamw", {"blocks": "head"})


def test_as_many_numbers_are_sent_as_there_are_blocks() -> None:
    options = {"blocks": "heads", "head_size": 2}
    made = build("client", "fedadamw", options, unit=Unit.RECORD, layout=TRANSFORMER)
    assert made.channels["moments"].size == 9
