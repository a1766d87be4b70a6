# SPDX-License-Identifier: Apache-2.0
"""FedNew's Lyapunov bound, FedNewton's growth in clients, DP-FedAdamW's Lemma 2, beside runs.

FedNew (Krouka et al. 2025, section 5, Appendix F) is looked at as its analysis does: theta is held
(a rate of 0), so that y* and lambda* stay where they are, and nothing is clipped. Clients have
logistic losses at theta = 0, whose Hessians are X^T X / 4m. All steps are the library's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch

from dpfed.core import Vector
from dpfed.core.randomness import Noise
from dpfed.core.registry import build
from dpfed.core.sampling import Poisson
from dpfed.core.types import UPDATE, Facts, Unit
from dpfed.data.datasets import Records
from dpfed.data.models import Linear, LinearProblem
from dpfed.mechanisms.clear import clear
from dpfed.mechanisms.gaussian import gaussian
from dpfed.recipes.federation import federation
from dpfed.recipes.run import run_session
from dpfed.recipes.session import prepare
from dpfed.sums.plain import plain
from dpfed.training.inprocess import InProcess
from dpfed.training.loop import train
from dpfed.training.plan import Plan
from dpfed_lab import study as studies
from dpfed_lab.jobs import make_job
from dpfed_lab.theory import bounds
from dpfed_lab.theory.finding import AT_LEAST, AT_MOST, BESIDE, EQUAL, SEEN, Finding

SIZE, RECORDS, CLIP = 10, 200, 50.0
ALPHA, STD = 0.5, 0.05
"""FedNew's damping, and the noise of each coordinate of a client's direction."""
NARROW, WIDE = "(F.14), sigma^2 = s^2", "(F.14), sigma^2 = n s^2"
"""A client's noise s^2 as in Lemma 23's proof, and as in (5.2), whose E_i has sigma^2 / n."""


# ----------------------------------------------------------------------------------------- FedNew


class Round(NamedTuple):
    """One round of ADMM: one row per client, all minus the optimum."""

    duals: torch.Tensor
    primals: torch.Tensor
    y: Vector
    moved: Vector
    """y minus that of the round before."""
    residual: torch.Tensor
    """lambda_i + s - lambda_i*, of Lemma 19."""

    def lyapunov(self, rho: float) -> float:
        """V of (F.3), with beta_1 = 0."""
        return bounds.lyapunov(self.duals, self.y, self.moved, rho)


def clients(count: int, balanced: bool = False, seed: int = 0) -> list[LinearProblem]:
    """Logistic problems that differ in scale; balanced ones have their optimum at theta = 0."""
    rng = np.random.default_rng(seed)
    model, made = Linear("logistic", SIZE, bias=False), []
    for _ in range(count):
        x = rng.normal(size=(RECORDS // 2, SIZE)) * rng.uniform(0.5, 2.0, SIZE)
        y = rng.integers(0, 2, RECORDS // 2)
        x, y = np.r_[x, x], np.r_[y, 1 - y if balanced else rng.integers(0, 2, RECORDS // 2)]
        made.append(model.problem(Records(torch.from_numpy(x).float(), torch.from_numpy(y))))
    return made


def admm(
    problems: list[LinearProblem], rho: float, rounds: int, std: float, seed: int = 0
) -> list[Round]:
    """The library's fednew with theta held at 0.

    Args:
        problems: the clients.
        rho: the weight of the agreement.
        rounds: how many.
        std: the noise of each coordinate of a client's direction; 0 is none.
        seed: of the noise.
    """
    unit, options = Unit.CLIENT, {"rho": rho, "alpha": ALPHA}
    layout = problems[0].model.layout
    plan = Plan(
        client=build("client", "fednew", options, unit=unit, layout=layout),
        channels={
            UPDATE: gaussian(Facts(CLIP, unit=unit), std) if std else clear(Facts(CLIP, unit=unit))
        },
        sum=plain(),
        server=build("server", "scale", {"rate": 1e-300}),  # no step: it is 0 in single precision
        nominal=[1] * len(problems),
        rounds=rounds,
        noise=Noise(seed),
    )
    theta, transport = torch.zeros(SIZE), InProcess(plan, problems)
    goal, duals_goal = optimum(problems)
    y = torch.zeros(SIZE, dtype=torch.float64)
    duals, made = torch.zeros(len(problems), SIZE, dtype=torch.float64), []
    for step in train(plan, theta, transport):
        if step.result is None or step.result.aggregate is None:
            continue
        states: list[Any] = [each.state for each in transport.clients.values()]
        sums = torch.stack([state.vector.double() for state in states])
        primals, before = (sums - duals) / rho, y
        y = step.result.aggregate.mean.double()
        duals = sums - rho * y
        made.append(
            Round(
                duals=duals - duals_goal,
                primals=primals - goal,
                y=y - goal,
                moved=y - before,
                residual=duals + rho * (y - before) - duals_goal,
            )
        )
    return made


def hessians(problems: list[LinearProblem]) -> torch.Tensor:
    """Of every client, at theta = 0."""
    theta = torch.zeros(SIZE)
    found = [each.hessian_rows(theta, Unit.CLIENT).clipped_matrix(1e30) for each in problems]
    return torch.stack([each.double() for each in found])


def optimum(problems: list[LinearProblem]) -> tuple[Vector, torch.Tensor]:
    """What the inner iteration goes to: y*, and lambda_i* = g_i - (H_i + alpha I) y*."""
    theta, eye = torch.zeros(SIZE), torch.eye(SIZE, dtype=torch.float64)
    g = torch.stack([each.gradient(theta).double() for each in problems])
    A = hessians(problems) + ALPHA * eye
    y = torch.linalg.solve(A.mean(0), g.mean(0))
    return y, g - A @ y


def fednew(counts: Iterable[int] = (4, 16, 64), rounds: int = 80) -> Iterator[Finding]:
    """Lemmas 19 to 27 of Krouka et al."""
    for count in counts:
        yield from _unreachable(count)
        yield from _from_the_optimum(count)
        for rho in (0.1, 1.0):
            problems = clients(count)
            yield from _in_clear(problems, rho, rounds)
            yield from _with_noise(problems, rho, rounds)


def _unreachable(count: int) -> Iterator[Finding]:
    """Lemma 20 asks for a beta above 0 that no rho gives, as L_q is at least alpha."""
    best = max(
        bounds.largest_beta(ALPHA, rho, ALPHA, count)
        for rho in torch.logspace(-4, 4, 8001, dtype=torch.float64).tolist()
    )
    yield Finding(
        "Lemma 20",
        f"n {count}",
        "the largest beta / alpha that it admits; V needs one above 0",
        AT_LEAST,
        0.0,
        best / ALPHA,
        "best of 8001 values of rho, L_q = alpha",
    )


def _in_clear(problems: list[LinearProblem], rho: float, rounds: int) -> Iterator[Finding]:
    """Lemma 19, (F.2) and (F.4) without noise."""
    made, case = admm(problems, rho, rounds, 0.0), f"n {len(problems)}, rho {rho:g}"
    made = [each for each in made if float(each.y.norm()) > 1e-4 * float(made[0].y.norm())]
    worst = max(
        float((each.residual * each.primals).sum(1).add(ALPHA * each.primals.square().sum(1)).max())
        for each in made
    )
    over = f"largest of {len(made)} rounds x {len(problems)} clients"
    yield Finding("Lemma 19", case, "left side + alpha |y* - y_i|^2", AT_MOST, 0.0, worst, over)
    near = fmean(float(each.moved.norm() <= each.y.norm()) for each in made)
    text = f"{len(made)} rounds"
    yield Finding("(F.2)", case, "part of the rounds in which it holds", EQUAL, 1.0, near, text)
    values = [each.lyapunov(rho) for each in made]
    falls = [
        (before - after) / float(each.primals.square().sum())
        for before, after, each in zip(values, values[1:], made[1:], strict=False)
    ]
    yield Finding(
        "(F.4)",
        case,
        "(V_k-1 - V_k) / sum |y_i - y*|^2, which is beta_2",
        AT_LEAST,
        0.0,
        min(falls),
        f"smallest of {len(falls)} rounds",
    )


def _with_noise(problems: list[LinearProblem], rho: float, rounds: int) -> Iterator[Finding]:
    """Lemma 23, and where E |y - y*|^2 ends: Theorem 8's floor, whose beta_2 is not known."""
    n, case = len(problems), f"n {len(problems)}, rho {rho:g}"
    last = admm(problems, rho, rounds, STD)[rounds // 2 :]
    traces = hessians(problems).diagonal(dim1=1, dim2=2).sum(1)
    left = fmean(float((each.residual * each.primals).sum(1).mean()) for each in last)
    apart = fmean(float(each.primals.square().sum(1).mean()) for each in last)
    right = bounds.inner_bound(apart, ALPHA, rho, STD**2, float(traces.mean()), SIZE)
    over = f"mean of {len(last)} rounds x {n} clients"
    yield Finding("Lemma 23", case, "left side", AT_MOST, right, left, over)
    reached = fmean(float(each.y.square().sum()) for each in last)
    unit = STD**2 * SIZE / n
    yield Finding(
        "Theorem 8",
        case,
        "E |y - y*|^2 / (s^2 d / n)",
        SEEN,
        math.nan,
        reached / unit,
        f"mean of {len(last)} rounds",
    )
    for name, variance in ((NARROW, STD**2), (WIDE, n * STD**2)):
        allowed = bounds.lyapunov_noise(ALPHA, rho, variance, SIZE) / (n * apart)
        yield Finding(
            name,
            case,
            "the largest beta_2 with which V stays where it is",
            SEEN,
            math.nan,
            allowed,
            f"from the mean of {len(last)} rounds",
        )


def _from_the_optimum(count: int, seeds: int = 10) -> Iterator[Finding]:
    """(F.14) from V = 0: one round adds what noise adds, whatever beta_2 is."""
    problems = clients(count, balanced=True)
    for rho in (0.1, 1.0):
        made = [admm(problems, rho, 1, STD, seed)[0].lyapunov(rho) for seed in range(seeds)]
        case, over = f"n {count}, rho {rho:g}, from the optimum", f"mean of {seeds} runs"
        text = "E V after a round"
        for name, variance in ((NARROW, STD**2), (WIDE, count * STD**2)):
            bound = bounds.lyapunov_noise(ALPHA, rho, variance, SIZE)
            yield Finding(name, case, text, AT_MOST, bound, fmean(made), over)
        ours = rho * STD**2 * SIZE * (count + 2)
        yield Finding("ours, rho s^2 d (n + 2)", case, text, EQUAL, ours, fmean(made), over, 0.15)


# -------------------------------------------------------------------------------------- FedNewton

TOTAL = 20_000
"""Records in all, as in Auddy et al.'s section 4.5."""


METHODS: dict[str, tuple[dict[str, Any], ...]] = {
    "FedNewton, no noise": ({"client.damping": 0.0},),
    "FedNewton, mu = 1": ({"client.damping": 0.1}, {"client.damping": 0.3}),
    "FedSGD, mu = 1": ({"server.0.rate": 0.5}, {"server.0.rate": 1.5}),
}
"""Method -> what is tried; the best by the squared error itself is shown, at every m."""


def fednewton(
    counts: Iterable[int] = (10, 20, 40, 80, 160), seeds: Iterable[int] = range(2)
) -> Iterator[Finding]:
    """Squared distance to the estimate of all records by the number of clients, and its slope."""
    counts, seeds = list(counts), list(seeds)
    for name, settings in METHODS.items():
        errors = [
            min(fmean(distance(name, count, seed, each) for seed in seeds) for each in settings)
            for count in counts
        ]
        over = f"mean of {len(seeds)} runs, best of {len(settings)} settings"
        for count, error in zip(counts, errors, strict=True):
            case = f"{name}, m {count}"
            yield Finding("growth in m", case, "squared error", SEEN, math.nan, error, over)
        slope = float(np.polyfit(np.log(counts), np.log(errors), 1)[0])
        text = f"fit over m = {counts[0]} to {counts[-1]}"
        yield Finding("growth in m", name, "exponent of m", SEEN, math.nan, slope, text)


def distance(name: str, count: int, seed: int, setting: Mapping[str, Any]) -> float:
    """One run's squared error; records are drawn again for every seed.

    Args:
        name: of METHODS.
        count: how many clients.
        seed: of records and noise.
        setting: what is tried.
    """
    base = studies.load_study("fednewton-mse").base
    changes: dict[str, Any] = {
        "model.name": "logistic",
        "data.options.link": "logistic",
        "data.options.norm": 1.0,
        "data.options.clients": count,
        "data.options.records": TOTAL,
        "data.options.seed": seed,
        "data.options.sizes": "equal",
        "seed": seed,
        "privacy.clip": 4.0,
    }
    if name.startswith("FedSGD"):
        changes |= {"method": "dp-fedgd", "rounds": 30}
    else:
        changes |= {
            "method": "fednewton",
            "rounds": 2,
            "client.start": 1,
            "client.steps": 20,
            "client.rate": 2.0,
            "client.hessian": 3.0,
        }
    if name.endswith("no noise"):
        kept = {key: value for key, value in base["privacy"].items() if key == "noise"}
        base = {**base, "privacy": {**kept, "mechanism": "clear"}}
        changes |= {"privacy.clip": 1000.0, "client.hessian": 1000.0}
    recipe = make_job(base, {}, {**changes, **setting}).recipe
    last = run_session(prepare(recipe, None, federation(recipe))).history[-1]
    return float(last["loss"])


# ------------------------------------------------------------------------------------ DP-FedAdamW


def lemma_2(v: torch.Tensor, what: str, draws: int = 4000) -> Iterator[Finding]:
    """The mean square of a mean over some of the rows.

    Args:
        v: one row per client.
        what: what the rows are.
        draws: how many samples are drawn.
    """
    rng, total = np.random.default_rng(0), len(v)
    stream = Noise(0).stream("theory", 0)
    for drawn in (total // 10, total // 4, total // 2):
        some = [rng.permutation(total)[:drawn] for _ in range(draws)]
        seen = fmean(float(v[each].mean(0).square().sum()) for each in some)
        case, over = f"{what}, {drawn} of {total}", f"mean of {draws} draws"
        expected = bounds.sampled_square(v, drawn)
        text = "E |mean of the drawn|^2"
        yield Finding("Lemma 2", case, text, EQUAL, expected, seen, over, 0.03)
        rate = drawn / total
        masks = (Poisson(rate).draw(total, stream) for _ in range(draws))
        sums = [(v[mask].sum(0) / (rate * total)).square().sum() for mask in masks]
        seen = fmean(map(float, sums))
        text = "E |sum of the drawn / expected number|^2, as drawn here"
        yield Finding("Lemma 2", case, text, BESIDE, expected, seen, over)
        ours = bounds.poisson_square(v, rate)
        yield Finding("ours, Poisson draws", case, text, EQUAL, ours, seen, over, 0.03)


def sampled_clients() -> Iterator[Finding]:
    """Lemma 2 on the clients' gradients of the study sofim-cifar10 at the start."""
    recipe = make_job(
        studies.load_study("sofim-cifar10").base,
        {},
        {
            "method": "dp-fedgd",
            "privacy.epsilon": 1.0,
            "seed": 0,
        },
    ).recipe
    silos = federation(recipe)
    theta = silos.model.initial(0)
    rows = [each.gradient(theta).double() for each in silos.problems]
    yield from lemma_2(torch.stack(rows), "CIFAR-10, 20 clients")


def findings() -> list[Finding]:
    """All of it, about a minute."""
    return [*fednew(), *fednewton(), *sampled_clients()]
