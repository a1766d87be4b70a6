# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  sentences are quoted whole, as they stand on the page
"""lab/studies/theory/results: the papers' bounds are what is written down here again, and the page says what was measured."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Callable
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpfed.core.types import Aggregate
from dpfed.recipes.federation import federation
from dpfed.recipes.schema import load_recipe
from dpfed.recipes.session import prepare
from dpfed.server.sofim_printed import sofim_printed
from dpfed_lab.theory import bounds, figure, page, quadratics, runs, second_order
from dpfed_lab.theory.curvature import largest_eigenvalue
from dpfed_lab.theory.finding import AT_LEAST, AT_MOST, EQUAL, SEEN, Finding, read_findings

FOLDER = Path(__file__).parents[2] / "lab/studies/theory/results"
needs_results = pytest.mark.skipif(not FOLDER.exists(), reason="an sdist has no results")

CASE = bounds.Constants(
    L=2.0, mu=0.1, rho=0.5, beta=0.9, eta=0.2, clip=3.0, G=1.5, zeta=0.4, noise=0.7
)


# ----------------------------------------------------------------------------- bounds, once more


def moving(beta: float, t: int) -> np.ndarray:
    """The weights of the last t + 1 aggregates in M_t."""
    return (1 - beta) * beta ** np.arange(t + 1)


@pytest.mark.parametrize("beta", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("t", [0, 9, 500])
def test_lemma_c1(beta: float, t: int) -> None:
    assert bounds.ema_factor(beta, t) == pytest.approx((moving(beta, t) ** 2).sum())


@pytest.mark.parametrize("a", [0.999, 0.9, 0.5, 0.0, -0.9])
def test_the_variance_in_a_loop_is_that_of_its_filter(a: float) -> None:
    """The response of M to one draw of noise, by the recursion itself."""
    beta, theta, M, total = 0.9, 0.0, 0.0, 0.0
    for t in range(20_000):
        G = theta + (t == 0)  # lambda = 1, so that the rate is 1 - a
        M = beta * M + (1 - beta) * G
        theta -= (1 - a) * G
        total += M * M
    assert bounds.looped_factor(beta, a) == pytest.approx(total)


def test_h_is_the_inverse_and_what_the_library_applies() -> None:
    rho, beta = 0.3, 0.8
    made = torch.Generator().manual_seed(0)
    G, M = (torch.randn(7, generator=made, dtype=torch.float64) for _ in range(2))
    optimizer = sofim_printed(rho, beta)
    state = optimizer.init(M)._replace(M=M)
    step, after = optimizer.update(G, state, Aggregate(0, M, G, 0.0, 1))
    dense = torch.linalg.solve(torch.outer(after.M, after.M) + rho * torch.eye(7, dtype=G.dtype), G)
    for found in (step, bounds.preconditioned(after.M, G, rho)):
        assert torch.allclose(found, dense, rtol=1e-12)


def test_the_bounds_of_the_momentum() -> None:
    """(11) is where (9) stands still; (15) is H's smallest eigenvalue; 4.15 is Markov's, T times."""
    c = CASE
    top = bounds.momentum_bound(c.clip, c.beta, c.noise)
    assert bounds.momentum_step(top, c.clip, c.beta, c.noise) == pytest.approx(top)
    none = bounds.momentum_step(0.0, c.clip, c.beta, c.noise)
    assert none == pytest.approx(0.1 * c.clip**2 + 0.01 * c.noise)
    assert bounds.aggregate_bound(c.clip, c.noise) == pytest.approx(c.clip**2 + c.noise)
    assert 70 * top / bounds.momentum_event(top, 70, 0.05) == pytest.approx(0.05)
    M = torch.arange(4, dtype=torch.float64)
    dense = torch.linalg.inv(torch.outer(M, M) + 0.3 * torch.eye(4, dtype=torch.float64))
    least = float(torch.linalg.eigvalsh(dense)[0])
    assert bounds.least_curvature(float(M @ M), 0.3) == pytest.approx(least)


def test_draws_of_clients() -> None:
    """Lemma 2 over all samples of three, and its Poisson counterpart over all subsets."""
    v = torch.from_numpy(np.random.default_rng(3).normal(size=(6, 2)))
    fixed = [float(v[list(each)].mean(0).square().sum()) for each in combinations(range(6), 3)]
    assert bounds.sampled_square(v, 3) == pytest.approx(statistics.fmean(fixed))
    rate, total = 0.3, 0.0
    for size in range(7):
        for each in combinations(range(6), size):
            chance = rate**size * (1 - rate) ** (6 - size)
            total += chance * float((v[list(each)].sum(0) / (6 * rate)).square().sum())
    assert bounds.poisson_square(v, rate) == pytest.approx(total)


def test_lemma_23_by_hand() -> None:
    """H of trace 3 in two dimensions, alpha 0.5, rho 2, a variance of 0.1, |ytilde - y*|^2 = 4."""
    found = bounds.inner_bound(4.0, 0.5, 2.0, 0.1, 3.0, 2)
    assert found == pytest.approx(-0.5 * 4 + 0.1 * 3 + 0.1 * 2.5 * 2)


def test_gamma_is_20_term_by_term() -> None:
    young = bounds.Young(0.8, 1.1)
    c, squared = CASE, CASE.rho**2
    M = c.clip**2 + (1 - c.beta) * c.noise
    terms = (
        c.eta * c.G**2 / squared * M,
        c.eta * c.zeta**2 / (2 * 0.8 * squared),
        c.eta * c.noise / (2 * 1.1 * squared),
        c.L * c.eta**2 / (2 * squared) * (c.clip**2 + c.noise),
    )
    assert bounds.gamma(c, young) == pytest.approx(math.fsum(terms))
    assert bounds.descent(c, young) == pytest.approx(1 / c.rho - (0.8 + 1.1) / 2)


@pytest.mark.parametrize("more", [0.0, 0.05])
@pytest.mark.parametrize("c", [CASE, CASE._replace(zeta=0.0), CASE._replace(rho=20.0)])
def test_no_other_young_makes_the_bound_smaller(c: bounds.Constants, more: float) -> None:
    def value(young: bounds.Young) -> float:
        return (more + bounds.gamma(c, young)) / bounds.descent(c, young)

    best = value(bounds.best_young(c, more))
    grid = np.linspace(1e-4, 2 / c.rho, 300)
    others = [value(bounds.Young(a, b)) for a in grid for b in grid if a + b < 2 / c.rho - 1e-9]
    assert best <= min(others) * (1 + 1e-12)
    assert best >= min(others) * 0.97, "nor is it below what any of them gives"
    if not more:
        assert bounds.strong_floor(c) == pytest.approx(best / (2 * c.mu * c.eta))
    assert bounds.stationary_bound(c, 10 * more, 10) == pytest.approx(best / c.eta)


def test_the_floor_of_gradient_descent() -> None:
    """Theorem 4.26 at tau -> 0, and where one coordinate ends by its own recursion."""
    c = CASE._replace(zeta=0.0)
    bound = c.L * c.eta**2 / 2 * (c.clip**2 + c.noise) / (2 * c.mu * c.eta)
    assert bounds.gd_floor(c) == pytest.approx(bound)
    variance, eta, nu, curve = 0.0, 0.3, 0.7, 1.9
    for _ in range(1000):
        variance = (1 - eta * curve) ** 2 * variance + eta**2 * nu**2
    found = bounds.gd_reached(torch.tensor([curve], dtype=torch.float64), eta, nu)
    assert found == pytest.approx(curve * variance / 2)
    with pytest.raises(ValueError, match="nothing is clipped"):
        bounds.gd_floor(CASE)


# ------------------------------------------------------------------------- errata of the analyses


@pytest.mark.parametrize("clients", [1, 4, 64])
def test_lemma_20_admits_no_beta_above_zero(clients: int) -> None:
    """2.5 rho + 8 n L_q^2 / rho is at least 2 sqrt(20 n) L_q, and L_q at least alpha."""
    for alpha in (0.01, 1.0, 100.0):
        found = [
            bounds.largest_beta(alpha, rho, alpha, clients) for rho in np.logspace(-6, 6, 4001)
        ]
        assert max(found) == pytest.approx(alpha * (1 - 2 * math.sqrt(20 * clients)), rel=1e-4)
        assert max(found) < 0


def test_condition_f1_fails_for_linear_regression() -> None:
    """One y at two theta: the right-hand side is 0, the left one is not."""
    rng = np.random.default_rng(0)
    X, target, alpha = rng.normal(size=(20, 3)), rng.normal(size=20), 0.5
    H = X.T @ X / 20

    def gradient_of_q(theta: np.ndarray, y: np.ndarray) -> np.ndarray:
        return (H + alpha * np.eye(3)) @ y - X.T @ (X @ theta - target) / 20

    y, one, other = rng.normal(size=(3, 3))
    assert np.linalg.norm(gradient_of_q(one, y) - gradient_of_q(other, y)) > 0.1
    apart = np.linalg.norm(gradient_of_q(one, y) - gradient_of_q(one, 2 * y)) / np.linalg.norm(y)
    assert apart >= alpha, "at one theta it holds, with an L_q of at least alpha"


def test_f14_counts_the_noise_of_one_client() -> None:
    """From the optimum one round of the library's fednew adds rho s^2 d (n + 2) to V."""
    found = list(second_order._from_the_optimum(4, seeds=6))
    exact = [each for each in found if each.statement.startswith("ours")]
    assert all(each.holds for each in exact)
    broken = [each for each in found if each.statement == second_order.NARROW and not each.holds]
    assert [each.case for each in broken] == ["n 4, rho 1, from the optimum"]
    assert broken[0].loose < 0.4
    assert all(each.holds for each in found if each.statement == second_order.WIDE)


# ------------------------------------------------------------------------- measured again, in small


def by_line(found: list[Finding]) -> dict[tuple[str, str, str], Finding]:
    return {(each.statement, each.case, each.quantity): each for each in found}


@pytest.mark.long
@needs_results
@pytest.mark.slow
def test_the_floors_are_measured_again() -> None:
    kept = by_line(read_findings(FOLDER / "theory.csv"))
    for each in quadratics.floors(conditions=(1,)):
        there = kept[each.statement, each.case, each.quantity]
        assert there.measured == pytest.approx(each.measured, rel=1e-4)
        assert there.predicted == pytest.approx(each.predicted, rel=1e-4)
        assert there.over == each.over


@needs_results
@pytest.mark.slow
def test_the_momentum_in_a_loop_is_measured_again() -> None:
    kept = by_line(read_findings(FOLDER / "theory.csv"))
    found = list(quadratics.closed_loop(rates=(0.5,)))
    for each in found:
        there = kept[each.statement, each.case, each.quantity]
        assert there.measured == pytest.approx(each.measured, rel=1e-4)
    assert [each.holds for each in found] == [False, True]


@pytest.mark.long
@needs_results
@pytest.mark.slow
def test_fednew_is_measured_again() -> None:
    """The lines without noise, and Lemma 23 with it, at four clients."""
    kept = by_line(read_findings(FOLDER / "theory.csv"))
    problems = second_order.clients(4)
    found = [
        *second_order._in_clear(problems, 1.0, 80),
        *second_order._with_noise(problems, 1.0, 80),
    ]
    for each in found:
        there = kept[each.statement, each.case, each.quantity]
        assert there.measured == pytest.approx(each.measured, rel=1e-3, abs=1e-9)
        assert there.predicted == pytest.approx(each.predicted, rel=1e-3, abs=1e-9, nan_ok=True)


def small_run() -> runs.Trace:
    recipe = load_recipe(
        {
            "data": {"source": "synthetic", "partition": {"name": "iid", "clients": 4}},
            "privacy": {"epsilon": 2.0, "clip": 1.0, "weights": "average", "noise": "keyed"},
            "method": "dp-fedsofim-printed",
            "rounds": 6,
        },
        ["server.0.rho=0.05", "server.0.beta=0.8", "server.1.rate=0.02"],
    )
    return runs.trace("small", prepare(recipe, None, federation(recipe)), 0.05, 0.8, 0.02)


def test_the_largest_eigenvalue_is_that_of_the_hessian() -> None:
    """At zero every class has one probability: (I - 11^T / K) / K times the second moment."""
    recipe = load_recipe(
        {
            "data": {"source": "synthetic", "partition": {"name": "iid", "clients": 3}},
            "model": {"name": "softmax"},
            "privacy": {"epsilon": 2.0, "clip": 1.0, "weights": "average", "noise": "keyed"},
        }
    )
    problems = federation(recipe).problems
    moments = [each.x.double().T @ each.x.double() / len(each.x) for each in runs.linear(problems)]
    classes = prepare(recipe).initial.numel() // len(moments[0])
    exact = float(torch.linalg.eigvalsh(sum(moments) / len(moments))[-1]) / classes
    found = largest_eigenvalue(
        partial(runs.mean_gradient, problems), torch.zeros(classes * len(moments[0]))
    )
    assert found == pytest.approx(exact, rel=1e-2)


@pytest.mark.slow
def test_a_run_is_looked_at_from_both_sides() -> None:
    made = small_run()
    assert made.rows[0]["cos MG"] == pytest.approx(1.0), "M_0 is a part of G_0"
    for row in made.rows:
        assert bounds.least_curvature(row["MM"], 0.05) * 0.05 <= row["along F"] <= 1
        HG = row["along G"]
        assert row["off"] >= 1 - HG - 1e-5, "the library's own step is as far off as H says"
        assert row["gg"] <= 1.0
    found = runs.findings([made])
    equal = [each for each in found if each.quantity.startswith("E |G|^2 =")]
    assert equal[0].measured == pytest.approx(equal[0].predicted, rel=0.5)
    assert all(each.holds for each in found if each.relation in (AT_MOST, AT_LEAST))


# -------------------------------------------------------------------------------- planted errors


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("ema_factor", lambda beta, t: (1 - beta) * (1 - beta ** (2 * (t + 1))) / (1 - beta**2)),
        ("ema_factor", lambda beta, t: (1 - beta) / (1 + beta)),
    ],
)
def test_a_wrong_factor_of_the_variance_is_noticed(
    monkeypatch: pytest.MonkeyPatch, name: str, wrong: Callable[..., float]
) -> None:
    def broken() -> list[Finding]:
        made = quadratics.open_loop(betas=(0.9,), size=5000, rounds=70)
        return [each for each in made if not each.holds]

    assert broken() == []
    monkeypatch.setattr(bounds, name, wrong)
    assert broken()


@pytest.mark.long
def test_a_wrong_factor_of_a_floor_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of what DP-FedGD ends at is neither what it ends at, nor in theory.csv."""
    exact = bounds.gd_reached
    monkeypatch.setattr(bounds, "gd_reached", lambda *args: exact(*args) / 2)
    found = quadratics.floors(conditions=(1,), seeds=range(2))
    ours = [each for each in found if each.statement.startswith("ours")]
    assert len(ours) == 4
    assert not any(each.holds for each in ours)


@pytest.mark.long
def test_a_bound_that_is_too_small_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "gd_floor", lambda c: c.eta * c.noise / (100 * c.mu))
    found = list(quadratics.floors(conditions=(1,), seeds=range(2)))
    broken = {each.statement for each in found if each.holds is False}
    assert broken == {"Theorem 4.26"}


def test_findings_know_what_holds() -> None:
    def line(relation: str, predicted: float, measured: float, tolerance: float = 0.0) -> Finding:
        return Finding("a", "b", "c", relation, predicted, measured, "d", tolerance)

    assert line(AT_MOST, 2.0, 1.0).holds
    assert line(AT_MOST, 2.0, 1.0).loose == 2
    assert line(AT_MOST, 1.0, 2.0).holds is False
    assert line(AT_LEAST, 1.0, 2.0).holds
    assert line(AT_LEAST, 1.0, 2.0).loose == 2
    assert line(EQUAL, 1.0, 1.04, 0.05).holds
    assert line(EQUAL, 1.0, 1.06, 0.05).holds is False
    assert line(SEEN, math.nan, 1.0).holds is None


# ------------------------------------------------------------------------------------- the page


@needs_results
def test_the_page_follows_from_the_figures() -> None:
    said = (FOLDER / "README.md").read_text(encoding="utf-8")
    found = read_findings(FOLDER / "theory.csv")
    assert page.text(found, page.stamp_of(said)) == said, "run python -m dpfed_lab.theory --page"


@needs_results
def test_a_figure_that_changes_changes_the_page() -> None:
    said = (FOLDER / "README.md").read_text(encoding="utf-8")
    found = read_findings(FOLDER / "theory.csv")
    moved = [
        each._replace(measured=1.2 * each.measured) if each.statement == "Theorem 4.31" else each
        for each in found
    ]
    assert page.text(moved, page.stamp_of(said)) != said


def rows(statement: str, **parts: str) -> list[dict[str, Any]]:
    """Lines of theory.csv, read without the code that wrote the page."""
    with (FOLDER / "theory.csv").open(newline="", encoding="utf-8") as file:
        found = [row for row in csv.DictReader(file) if row["statement"] == statement]
    kept = [row for row in found if all(part in row[key] for key, part in parts.items())]
    assert kept, (statement, parts)
    return kept


def measured(statement: str, **parts: str) -> list[float]:
    return [float(row["measured"]) for row in rows(statement, **parts)]


def loose(statement: str, **parts: str) -> list[float]:
    return [float(row["predicted"]) / float(row["measured"]) for row in rows(statement, **parts)]


ALPHA = {"statement": "alpha_H (4.7)", "case": "searched"}


@needs_results
def test_the_sentences_of_the_answer() -> None:
    """Figures that others cite, from the CSV by another way."""
    said = " ".join((FOLDER / "README.md").read_text(encoding="utf-8").split())
    along = {**ALPHA, "quantity": "rho alpha_H, along the gradient"}
    low, high = min(measured(**along)), max(measured(**along))
    assert f"rho alpha_H is between {low:.3f} and {high:.3f}" in said
    off = max(measured(**ALPHA, quantity="|rho H G - G|"))
    assert f"at the rate eta / rho by at most {100 * off:.1f} %" in said
    vacuous = loose("Theorem 4.31", case="searched", quantity="beside")
    assert f"{min(vacuous):,.0f} to {max(vacuous):,.0f} times G_max^2" in said
    floors = [loose("Theorem 4.26", case=f"kappa {k}, noise 1, from 0")[0] for k in (10, 100, 1000)]
    assert f"{floors[0]:.0f}, {floors[1]:.0f} and {floors[2]:,.0f} times what is reached" in said
    few, many = (
        statistics.fmean(
            measured("growth in m", case=f"FedNewton, mu = 1, m {m}", quantity="squared")
        )
        / statistics.fmean(
            measured("growth in m", case=f"FedSGD, mu = 1, m {m}", quantity="squared")
        )
        for m in (20, 80)
    )
    assert few < 1 < many
    assert f"{few:.2f}, " in said
    assert f"{many:.1f} and " in said


@needs_results
def test_f2_holds_but_for_one_round() -> None:
    assert set(measured("(F.2)", case="rho 0.1")) == {1 - 1 / 80}
    assert set(measured("(F.2)", case="rho 1")) == {1.0}


@needs_results
def test_what_is_broken_is_what_the_errata_say() -> None:
    found = read_findings(FOLDER / "theory.csv")
    broken = {each.statement for each in found if each.holds is False}
    assert broken == {"Lemma C.1, of M itself", "Lemma 20", "(F.2)", second_order.NARROW}
    assert all(each.holds for each in found if each.statement.startswith(page.OURS))
    assert set(page.WHAT) <= {each.statement for each in found}


@needs_results
@pytest.mark.slow
def test_the_figure_is_drawn_from_the_file(tmp_path: Path) -> None:
    figure.draw(read_findings(FOLDER / "theory.csv"), tmp_path)
    assert (tmp_path / "theory.svg").stat().st_size > 10_000
    assert (FOLDER / "theory.png").exists()
