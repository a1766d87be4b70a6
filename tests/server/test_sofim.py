# SPDX-License-Identifier: Apache-2.0
"""Both forms of DP-FedSOFIM against the dense solve that they avoid; options; the untuned rule."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpfed.core import registry
from dpfed.core.chain import chain
from dpfed.core.errors import RecipeError
from dpfed.core.types import Aggregate
from dpfed.core.vector import Layout
from dpfed.recipes.schema import load_recipe
from dpfed.server.sofim import sofim
from dpfed.server.sofim_printed import sofim_printed
from tests.refusals import named

FORMS = {"sofim": sofim, "sofim_printed": sofim_printed}


def seen(round: int, G: torch.Tensor) -> Aggregate:
    return Aggregate(round, torch.zeros_like(G), G, std=0.0, clients=1)


@given(
    st.integers(1, 300),
    st.integers(0, 2**31),
    st.floats(1e-2, 1e2),
    st.floats(0, 0.99),
    st.booleans(),
    st.sampled_from(sorted(FORMS)),
)
def test_a_step_is_the_dense_solve(
    d: int, seed: int, rho: float, beta: float, corrected: bool, form: str
) -> None:
    """(M M^T + rho I) x = M, or = G as printed, by torch.linalg.solve, to 1e-6."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = FORMS[form](rho, beta, corrected)
    state = optimizer.init(torch.zeros(d, dtype=torch.float64))
    M = torch.zeros(d, dtype=torch.float64)
    for t in range(4):
        G = torch.randn(d, generator=generator, dtype=torch.float64)
        got, state = optimizer.update(G, state, seen(t, G))
        M = beta * M + (1 - beta) * G
        proxy = M / (1 - beta ** (t + 1)) if corrected else M
        dense = torch.outer(proxy, proxy) + rho * torch.eye(d, dtype=torch.float64)
        expected = torch.linalg.solve(dense, proxy if form == "sofim" else G)
        assert torch.allclose(got, expected, rtol=1e-6, atol=1e-6 * float(expected.abs().max()))


def run(optimizer: object, G: torch.Tensor, rounds: int) -> list[torch.Tensor]:
    state = optimizer.init(torch.zeros_like(G))  # type: ignore[attr-defined]
    out = []
    for t in range(rounds):
        direction, state = optimizer.update(G, state, seen(t, G))  # type: ignore[attr-defined]
        out.append(direction)
    return out


OPTIONS: Mapping[str, tuple[Any, ...]] = {
    "rho": ("auto", 1e-3, 1.0, 50.0),
    "beta": (None, 0.0, 0.5, 0.95),
    "corrected": (None, True, False),
    "warmup": (None, 0, 2),
    "rate": (None, 0.1, 3.0),
    "classes": (None, 3),
    "preset": (None, "paper"),
    "layout": (Layout({"weight": (4, 2)}),),
    "epsilon": (0.5, 1.0, 5.0),
}


@pytest.mark.parametrize("preset", OPTIONS["preset"])
@pytest.mark.parametrize("rho", OPTIONS["rho"])
@given(st.fixed_dictionaries({name: st.sampled_from(each) for name, each in OPTIONS.items()}))
def test_no_option_of_dp_fedsofim_changes_its_direction(
    rho: Any, preset: Any, options: dict[str, Any]
) -> None:
    """Whatever is set, each step is a positive multiple of the momentum: H M is, and H G is not.

    An option that this does not know fails here first.
    """
    assert set(inspect.signature(sofim).parameters) == set(OPTIONS)
    options |= {"rho": rho, "preset": preset}
    if options["rho"] == "auto":
        options["warmup"] = None if preset is None else 0
    optimizer, printed = sofim(**options), sofim_printed(**options)
    made = torch.Generator().manual_seed(1)
    zeros = torch.zeros(8, dtype=torch.float64)
    state, other = optimizer.init(zeros), printed.init(zeros)
    for t in range(12):  # the authors' longest warm-up has 10
        G = torch.randn(8, generator=made, dtype=torch.float64)
        told = planned(t, G)
        step, state = optimizer.update(G, state, told)
        M = state.M
        assert float(step @ M) == pytest.approx(float(step.norm() * M.norm()), rel=1e-9)
        step, other = printed.update(G, other, told)
    if options["beta"] != 0.0:  # with it M is G, and the two are the same
        assert float(step @ M) < 0.999 * float(step.norm() * M.norm())


@pytest.mark.parametrize("form", FORMS)
def test_warmup_steps_by_the_average_and_is_not_divided_by_rho(form: str) -> None:
    G = torch.randn(6, dtype=torch.float64)
    steps = run(FORMS[form](rho=4.0, beta=0.9, corrected=True, warmup=3, rate=0.5), G, 5)
    for step in steps[:3]:
        assert torch.allclose(step, 0.5 * G)  # M_hat of a constant is the constant
    assert not torch.allclose(steps[3], 0.5 * G)
    plain = run(FORMS[form](rho=2.0, beta=0.5, warmup=2), G, 2)
    assert torch.allclose(plain[0], 0.5 * G)
    assert torch.allclose(plain[1], 0.75 * G)


@pytest.mark.parametrize("form", FORMS)
def test_warmup_of_the_untuned_rule_is_refused(form: str) -> None:
    """Its eta is the whole loss: undivided, a step of it would be far too long."""
    with pytest.raises(RecipeError, match=rf"{form}\.warmup must be 0 .* set rho and rate"):
        FORMS[form](warmup=3)


def test_a_step_is_never_longer_than_g_over_rho() -> None:
    """Nair et al. 2026, Lemma 4.14, eq. (13)."""
    for scale in (1e-6, 1.0, 1e6):
        G = torch.randn(50, dtype=torch.float64) * scale
        for step in run(sofim_printed(rho=0.3), G, 5):
            assert float(step.norm()) <= float(G.norm()) / 0.3 * (1 + 1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {"rho": 0.0},
        {"rho": math.nan},
        {"rho": math.inf},
        {"beta": 1.0},
        {"beta": -0.1},
        {"beta": math.nan},
        {"warmup": -1},
        {"rate": 0.0},
        {"rate": math.nan},
        {"classes": 1},
    ],
)
@pytest.mark.parametrize("form", FORMS)
def test_options_out_of_range_are_refused(form: str, options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=named(form, options)):
        FORMS[form](**options)


def test_noise_far_above_rho_turns_the_step_uphill() -> None:
    """M holds a part of the noise of G, so that more than all of M is taken from G.

    With |noise|^2 = N in d >> 1 coordinates and rho << N, the step keeps of a constant gradient g
    1 - (|g|^2 + (1 - beta) N) / (|g|^2 + N (1 - beta) / (1 + beta)), which tends to -beta.
    """
    size, noise, beta, rho = 40_000, 100.0, 0.9, 1e-3
    gradient = torch.zeros(size, dtype=torch.float64)
    gradient[0] = 1.0
    made = torch.Generator().manual_seed(0)
    optimizer = sofim_printed(beta=beta, rho=rho)
    state, kept = optimizer.init(gradient), []
    for t in range(400):
        drawn = torch.randn(size, generator=made, dtype=torch.float64)
        private = gradient + (noise / size) ** 0.5 * drawn
        step, state = optimizer.update(private, state, seen(t, private))
        kept.append(rho * float(step[0]))
    expected = 1 - (1 + (1 - beta) * noise) / (1 + noise * (1 - beta) / (1 + beta))
    assert expected < -0.7
    assert sum(kept[50:]) / 350 == pytest.approx(expected, abs=0.05)


def test_a_preconditioned_momentum_has_a_bounded_length() -> None:
    """|M| / (rho + |M|^2) is at most 1 / (2 sqrt rho), whatever the gradient."""
    for scale in (1e-6, 0.5, 1.0, 1e6):
        G = torch.randn(50, dtype=torch.float64) * scale
        for step in run(sofim(rho=0.3), G, 5):
            assert float(step.norm()) <= 0.5 / 0.3**0.5 * (1 + 1e-12)


# --------------------------------------------------------------------------------- the untuned rule


def planned(round: int, G: torch.Tensor, **facts: Any) -> Aggregate:
    known = {"std": 0.01, "rounds": 64, "clip": 10.0, **facts}
    return Aggregate(round, torch.zeros_like(G), G, clients=20, **known)


TINY = 1e-9
"""Gradients times this are too small to be normalised: a step is linear in them."""


def small_step_rate(optimizer: Any, **facts: Any) -> float:
    """What a first gradient that is too small to be normalised is multiplied by."""
    G = torch.full((4,), TINY, dtype=torch.float64)
    step, _ = optimizer.update(G, optimizer.init(G), planned(0, G, **facts))
    return float(step[0] / G[0])


def test_the_noise_of_a_training_moves_a_score_by_about_one() -> None:
    """Pure noise through all rounds; a score is the product with a row of the clip's length."""
    T, std, clip = 64, 0.05, 3.0
    optimizer = sofim("auto", classes=10, beta=0.0)  # momentum holds back the last rounds' noise
    made = torch.Generator().manual_seed(1)
    weights = torch.zeros(20_000, dtype=torch.float64)
    state = optimizer.init(weights)
    for t in range(T):
        noise = std * torch.randn(len(weights), generator=made, dtype=torch.float64)
        seen = planned(t, noise, std=std, rounds=T, clip=clip)
        step, state = optimizer.update(noise * TINY, state, seen)
        weights -= step / TINY
    assert float((clip * weights).std()) == pytest.approx(1.0, rel=0.03)


@pytest.mark.parametrize("T", [4, 25, 100])
@pytest.mark.parametrize(("factor", "stable"), [(1.0, True), (1.9, True), (2.1, False)])
def test_the_stability_limit_is_half_of_what_momentum_bears(
    T: int, factor: float, stable: bool
) -> None:
    """Steps of EMA momentum along the largest curvature of a softmax at zero, C^2 / K."""
    K, C = 5, 10.0
    optimizer = sofim("auto", classes=K, corrected=False)
    curvature = factor * C * C / K
    x = torch.ones(1, dtype=torch.float64)
    state = optimizer.init(x)
    for t in range(2000):
        G = curvature * x * TINY
        step, state = optimizer.update(G, state, planned(t, G, std=0.0, rounds=T, clip=C))
        x = x - step / TINY
        if float(x.abs()) > 1e4:
            break
    assert (float(x.abs()) < 1e-3) is stable


def test_the_rule_follows_the_noise_and_stops_at_the_stability_limit() -> None:
    optimizer = sofim("auto", classes=10)
    assert small_step_rate(optimizer, std=1.0) == pytest.approx(1 / 80, rel=1e-6)
    assert small_step_rate(optimizer, std=2.0) == pytest.approx(1 / 160, rel=1e-6)
    for quiet in (0.0, 1e-9, math.nan):
        assert small_step_rate(optimizer, std=quiet) == pytest.approx(1.5, rel=1e-6)
    printed = sofim_printed("auto", classes=10)
    assert small_step_rate(printed, std=0.0) == pytest.approx(0.2, rel=1e-6)


def test_a_long_gradient_is_normalised() -> None:
    """eta / |M| where |M|^2 is far above rho, with eta = ln K."""
    G = torch.tensor([3e6, 4e6], dtype=torch.float64)
    optimizer = sofim("auto", classes=10)
    step, _ = optimizer.update(G, optimizer.init(G), planned(0, G))
    assert float(step.norm()) == pytest.approx(math.log(10) / 5e6, rel=1e-6)


@pytest.mark.parametrize(
    ("shapes", "classes"),
    [
        ({"weight": (10, 64), "bias": (10,)}, 10),
        ({"weight": (1, 64), "bias": (1,)}, 2),
        ({"weight": (7, 64)}, 7),
        ({"conv.weight": (6, 3, 5, 5), "fc.weight": (4, 120), "fc.bias": (4,)}, 4),
    ],
)
def test_the_number_of_classes_is_read_off_the_last_layer(
    shapes: dict[str, tuple[int, ...]], classes: int
) -> None:
    known = registry.build("server", "sofim", {"rho": "auto"}, layout=Layout(shapes))
    assert small_step_rate(known) == small_step_rate(sofim("auto", classes=classes))


def test_a_rate_and_a_beta_of_ones_own_are_used() -> None:
    """The rate of small steps stays: rho follows eta."""
    faster = sofim("auto", classes=10, rate=5.0)
    assert small_step_rate(faster) == pytest.approx(small_step_rate(sofim("auto", classes=10)))
    G = torch.full((4,), 1e6, dtype=torch.float64)
    step, _ = faster.update(G, faster.init(G), planned(0, G))
    assert float(step.norm()) == pytest.approx(5.0 / 2e6, rel=1e-6)


# --------------------------------------------------------------------------- the authors' settings

AUTHORS = {
    0.5: {"rate": 0.2, "rho": 0.5, "beta": 0.95, "corrected": True, "warmup": 10},
    1.0: {"rate": 3.0, "rho": 10.0, "beta": 0.8, "corrected": True, "warmup": 0},
    5.0: {"rate": 0.8, "rho": 0.5, "beta": 0.9, "corrected": False, "warmup": 0},
    10.0: {"rate": 0.8, "rho": 0.5, "beta": 0.9, "corrected": False, "warmup": 0},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("epsilon", AUTHORS)
def test_the_preset_is_the_authors_runner(epsilon: float, form: str) -> None:
    """Eta and the undivided warm-up too; an option that is set stays."""
    made = registry.build("server", form, {"preset": "paper"}, epsilon=epsilon)
    by_hand = FORMS[form](**AUTHORS[epsilon])  # type: ignore[arg-type]
    G = torch.randn(6, dtype=torch.float64)
    assert all(map(torch.equal, run(made, G, 25), run(by_hand, G, 25)))
    own = registry.build("server", form, {"preset": "paper", "rho": 2.0}, epsilon=epsilon)
    other = FORMS[form](**{**AUTHORS[epsilon], "rho": 2.0})  # type: ignore[arg-type]
    assert all(map(torch.equal, run(own, G, 25), run(other, G, 25)))


def test_the_preset_goes_before_the_methods_own_rule() -> None:
    """Method dp-fedsofim says rho = "auto", of which nothing stays."""
    link = load_recipe({"method": "dp-fedsofim"}, ["server.0.preset=paper"]).server[0]
    assert link.pop("name") == "sofim"
    made = registry.build("server", "sofim", link, epsilon=5.0)
    G = torch.randn(6, dtype=torch.float64)
    assert all(map(torch.equal, run(made, G, 5), run(sofim(0.5, 0.9, rate=0.8), G, 5)))


@pytest.mark.parametrize("epsilon", [None, 0.75, 2.0])
def test_the_preset_has_the_four_epsilons_of_the_paper(epsilon: float | None) -> None:
    with pytest.raises(RecipeError, match=r"sofim\.preset .* one of 0\.5, 1, 5, 10, .* rate, rho"):
        registry.build("server", "sofim", {"preset": "paper"}, epsilon=epsilon)


def test_a_recipe_cannot_give_facts() -> None:
    for fact in ("epsilon", "layout"):
        with pytest.raises(RecipeError, match=f"no option '{fact}'"):
            registry.build("server", "sofim", {fact: 1.0})


# --------------------------------------------------------------------------- what a run is told


def test_settings_are_the_numbers_of_the_step() -> None:
    G = torch.full((4,), TINY, dtype=torch.float64)
    told = planned(0, G)
    for optimizer in (sofim("auto", classes=10), sofim(2.0, 0.5, corrected=True, rate=3.0)):
        found = optimizer.settings(told)
        assert list(found) == ["eta", "rho", "beta", "eta / rho"]
        assert found["eta / rho"] == found["eta"] / found["rho"]
        assert small_step_rate(optimizer) == pytest.approx(found["eta / rho"], rel=1e-6)
        long = torch.full((4,), 1e6, dtype=torch.float64)
        step, _ = optimizer.update(long, optimizer.init(long), planned(0, long))
        assert float(step.norm()) == pytest.approx(found["eta"] / 2e6, rel=1e-6)


def test_what_follows_in_a_chain_multiplies_eta() -> None:
    G = torch.ones(4, dtype=torch.float64)
    scaled = chain(sofim(2.0, rate=3.0), build_link("scale", rate=0.5))
    assert scaled.settings(planned(0, G)) == {
        "eta": 1.5,
        "rho": 2.0,
        "beta": 0.9,
        "eta / rho": 0.75,
    }
    unknown = chain(sofim(2.0), build_link("schedule")).settings(planned(0, G))
    assert math.isnan(unknown["eta"])
    assert unknown["rho"] == 2.0


def build_link(name: str, **options: float) -> Any:
    return registry.build("server", name, options)
