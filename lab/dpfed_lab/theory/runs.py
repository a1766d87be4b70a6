# SPDX-License-Identifier: Apache-2.0
"""DP-FedSOFIM along its own runs: Nair et al. 2026, section 4 and Appendix C, on CIFAR-10.

The runs are those of the study sofim-cifar10 at the settings that its search chose, made by the
library. What a server never sees (the gradient in clear, the clipped one without noise) is computed
for each round as well, from the same records. F is the mean over clients of their mean losses, as
the study weighs them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

import torch

from dpfed.core import Vector
from dpfed.core.types import UPDATE, Problem, Unit
from dpfed.data.models import LinearProblem
from dpfed.recipes.federation import Federation, federation
from dpfed.recipes.session import Session, prepare
from dpfed.training.inprocess import InProcess
from dpfed.training.loop import train
from dpfed_lab import study as studies
from dpfed_lab.jobs import make_job
from dpfed_lab.sweep import settings_for, stored_settings
from dpfed_lab.theory import bounds
from dpfed_lab.theory.curvature import largest_eigenvalue
from dpfed_lab.theory.finding import AT_LEAST, AT_MOST, BESIDE, EQUAL, SEEN, Finding

STUDY, METHOD = "sofim-cifar10", "DP-FedSOFIM"
SEEDS = (0, 1, 2)
RISK = 0.05
"""delta_M of Corollary 4.15."""
ON = 100.0
"""By how much rho is smaller in the runs whose preconditioner is not switched off."""

Row = Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Trace:
    """One run: its constants, and a row of figures per round."""

    case: str
    rho: float
    beta: float
    eta: float
    clip: float
    size: int
    level: float
    """nu_t of (5): the noise of each coordinate of the mean."""
    worst: float
    """nu of Lemma 4.10, from the smallest client."""
    smooth: float
    """L: half of the largest eigenvalue of any client's second moment, for a softmax."""
    start: float
    """F(theta_0); F is nowhere below 0."""
    curved: tuple[float, float]
    """The largest eigenvalue of F's Hessian, at the start and at the end."""
    accuracy: float
    rows: tuple[Row, ...]

    def of(self, name: str) -> list[float]:
        """A figure, round by round."""
        return [row[name] for row in self.rows]


# ----------------------------------------------------------------------------------- one run


def trace(case: str, session: Session, rho: float, beta: float, eta: float) -> Trace:
    """Run it, and look at every round from both sides of the boundary.

    Args:
        case: what the run is called.
        session: the run.
        rho: its regulariser.
        beta: its decay.
        eta: its rate.
    """
    plan, problems = session.plan, session.federation.problems
    clip, level = plan.update.clip, plan.noise_std(UPDATE)
    params, smoothed = session.initial, torch.zeros_like(session.initial).double()
    M, rows = torch.zeros_like(smoothed), []
    start = fmean(each.loss(params) for each in linear(problems))
    curved = largest_eigenvalue(partial(mean_gradient, problems), params)
    for step in train(plan, params, InProcess(plan, problems)):
        if step.result is None or step.result.aggregate is None:
            continue
        true = mean_gradient(problems, params)
        clipped = mean_of(clipped_mean(each, params, clip) for each in problems)
        G, before = step.result.aggregate.mean.double(), M
        M = step.state.optimizer[0].M.double().clone()  # the next round overwrites it
        taken = (params.double() - step.state.params.double()) * rho / eta
        smoothed = torch.lerp(smoothed, clipped, 1 - beta)
        kept = (beta * before + (1 - beta) * clipped).square().sum()
        rows.append(
            {
                **alignment(M, G, true, rho),
                "off": float((taken - G).norm() / G.norm()),
                "MM": float(M @ M),
                "GG": float(G @ G),
                "gg": float(clipped @ clipped),
                "FF": float(true @ true),
                "zeta": float((clipped - true).norm()),
                "before": float(before @ before),
                "expected": float(kept) + (1 - beta) ** 2 * len(M) * level**2,
                "smoothed": float((M - smoothed).square().mean()),
            }
        )
        params = step.state.params
    judged = session.judge(plan.rounds, params)
    least = min(plan.nominal)
    return Trace(
        case=case,
        rho=rho,
        beta=beta,
        eta=eta,
        clip=clip,
        size=len(M),
        level=level,
        worst=plan.update.std / math.sqrt(len(plan.nominal)) / least,
        smooth=max(map(smoothness, linear(problems))),
        start=start,
        curved=(curved, largest_eigenvalue(partial(mean_gradient, problems), params)),
        accuracy=float(judged["accuracy"] or math.nan),
        rows=tuple(rows),
    )


def alignment(M: Vector, G: Vector, true: Vector, rho: float) -> dict[str, float]:
    """Cosines, and rho times the curvature of H along the gradient and along the aggregate."""
    HF, HG = (bounds.preconditioned(M, v, rho) for v in (true, G))
    return {
        "cos MG": cosine(M, G),
        "cos MF": cosine(M, true),
        "cos GF": cosine(G, true),
        "along F": float(rho * (true @ HF) / (true @ true)),
        "along G": float(rho * (G @ HG) / (G @ G)),
    }


def cosine(u: Vector, v: Vector) -> float:
    """Between two vectors."""
    return float(u @ v / (u.norm() * v.norm()))


def mean_of(vectors: Iterable[Vector]) -> Vector:
    """The mean over clients, each counted once."""
    return torch.stack([each.double() for each in vectors]).mean(0)


def mean_gradient(problems: Iterable[Problem], params: Vector) -> Vector:
    """The gradient of F, in clear."""
    return mean_of(each.gradient(params) for each in problems)


def clipped_mean(problem: Problem, params: Vector, clip: float) -> Vector:
    """A client's part of g_clip."""
    rows = problem.rows(params, Unit.RECORD)
    return rows.clipped_sum(clip).vector.double() / next(linear([problem])).x.shape[0]


def linear(problems: Iterable[Problem]) -> Iterator[LinearProblem]:
    """The same problems, whose records can be read here."""
    for each in problems:
        if not isinstance(each, LinearProblem):
            raise TypeError(f"a linear model's problem is needed, got {type(each).__name__}")
        yield each


def smoothness(problem: LinearProblem) -> float:
    """Of a softmax loss: diag(p) - p p^T is at most 1/2."""
    x = problem.x.double()
    return 0.5 * float(torch.linalg.eigvalsh(x.T @ x / len(x))[-1])


# --------------------------------------------------------------------------------- all runs


def traces(seeds: Iterable[int] = SEEDS, rounds: int | None = None) -> list[Trace]:
    """Every epsilon at its searched setting, and two at a hundredth of its rho and eta."""
    study = studies.load_study(STUDY)
    settings = stored_settings(STUDY, study)
    method = next(each for each in study.methods if each.label == METHOD)
    shorter = {} if rounds is None else {"rounds": rounds}
    found = []
    for seed in seeds:
        silos: Federation | None = None
        for cell, changes in studies.cells(study):
            chosen = settings_for(study, settings, cell, METHOD)
            for part, word in ((1.0, "searched"), (ON, "rho / 100")):
                if part != 1.0 and cell["epsilon"] not in ("1", "5"):
                    continue  # the others borrow these
                setting = {**changes, **method.set, **_scaled(chosen, part), **shorter}
                recipe = make_job(study.base, {}, {**setting, "seed": seed}).recipe
                silos = silos or federation(recipe)
                rho, eta = (_scaled(chosen, part)[key] for key in ("server.0.rho", "server.1.rate"))
                case = f"epsilon {cell['epsilon']}, {word}"
                beta = chosen["server.0.beta"]
                found.append(trace(case, prepare(recipe, None, silos), rho, beta, eta))
    return found


def _scaled(chosen: Mapping[str, Any], part: float) -> dict[str, Any]:
    """The setting with eta and rho both ``part`` times smaller: eta / rho stays the same."""
    return {key: value if key.endswith("beta") else value / part for key, value in chosen.items()}


def findings(made: Iterable[Trace]) -> list[Finding]:
    """What the statements say of the runs, case by case."""
    cases: dict[str, list[Trace]] = {}
    for each in made:
        cases.setdefault(each.case, []).append(each)
    parts = (_aligned, _curved, _variance, _norms, _operators, _stationary)
    return [line for runs in cases.values() for part in parts for line in part(runs)]


def _aligned(runs: list[Trace]) -> Iterator[Finding]:
    """Section 4.7's alpha_H, and how the three vectors lie."""
    case = runs[0].case
    names = {
        "cos MG": "cosine of M and G",
        "cos MF": "cosine of M and the gradient",
        "cos GF": "cosine of G and the gradient",
        "along F": "rho alpha_H, along the gradient",
        "along G": "rho alpha_H, along G",
        "off": "|rho H G - G| / |G|",
    }
    for key, words in names.items():
        every = [value for run in runs for value in run.of(key)]
        for how, over in ((min, "smallest"), (fmean, "mean"), (max, "largest")):
            text = f"{over} of {len(every)} rounds"
            yield Finding("alpha_H (4.7)", case, words, SEEN, math.nan, how(every), text)
    text = f"mean of {len(runs)} runs"
    accuracy = 100 * fmean(run.accuracy for run in runs)
    yield Finding("alpha_H (4.7)", case, "test accuracy, %", SEEN, math.nan, accuracy, text)


def _curved(runs: list[Trace]) -> Iterator[Finding]:
    """The curvature that rho stands for, and what M adds to it."""
    case, name = runs[0].case, "ours: curvature"
    bound = max(run.smooth for run in runs)
    for place, words in enumerate(("start", "end")):
        most = max(run.curved[place] for run in runs)
        yield Finding(
            name,
            case,
            f"largest eigenvalue of F's Hessian, at the {words}",
            AT_MOST,
            bound,
            most,
            f"largest of {len(runs)} runs",
            1e-3,
        )
    most = max(value for run in runs for value in run.of("MM"))
    yield Finding(
        "curvature",
        case,
        "|M|^2, beside rho",
        BESIDE,
        runs[0].rho,
        most,
        f"largest of {len(runs)} runs x {len(runs[0].rows)} rounds",
    )


def _variance(runs: list[Trace]) -> Iterator[Finding]:
    """Lemma C.1 on what noise a run's own M has."""
    last, first = len(runs[0].rows), runs[0]
    for t in sorted({0, 9, last - 1} & set(range(last))):
        measured = fmean(run.of("smoothed")[t] / run.level**2 for run in runs)
        yield Finding(
            "Lemma C.1",
            first.case,
            f"Var M / nu^2, round {t + 1}",
            EQUAL,
            bounds.ema_factor(first.beta, t),
            measured,
            f"mean of {len(runs)} runs x {first.size} coordinates",
            0.1,
        )


def _worst(runs: list[Trace]) -> float:
    """D nu^2 of Lemma 4.10; sizes of clients differ by seed, so the largest."""
    return max(run.size * run.worst**2 for run in runs)


def _norms(runs: list[Trace]) -> Iterator[Finding]:
    """Lemmas 4.11 and 4.12, Corollary 4.15's event."""
    one, rounds = runs[0], len(runs[0].rows)
    many = f"of {len(runs)} runs x {rounds} rounds"
    worst = _worst(runs)
    largest = max(math.sqrt(v) for run in runs for v in run.of("gg"))
    yield Finding(
        "Lemma 4.11 (8)", one.case, "|g_clip|", AT_MOST, one.clip, largest, f"largest {many}"
    )
    squares = [fmean(run.of("GG")) for run in runs]
    exact = fmean(fmean(run.of("gg")) + run.size * run.level**2 for run in runs)
    yield Finding(
        "Lemma 4.11",
        one.case,
        "E |G|^2 = |g_clip|^2 + d nu_t^2",
        EQUAL,
        exact,
        fmean(squares),
        f"mean {many}",
        0.02,
    )
    by_round = [fmean(run.of("GG")[t] for run in runs) for t in range(rounds)]
    yield Finding(
        "Lemma 4.11",
        one.case,
        "E |G|^2",
        AT_MOST,
        bounds.aggregate_bound(one.clip, worst),
        max(by_round),
        f"largest of {rounds} means over {len(runs)} runs",
    )
    steps = [
        bounds.momentum_step(row["before"], run.clip, run.beta, _worst([run])) / row["expected"]
        for run in runs
        for row in run.rows
    ]
    yield Finding(
        "Lemma 4.12 (9)",
        one.case,
        "E |M|^2 over its bound, given the round before",
        AT_MOST,
        1.0,
        1 / min(steps),
        f"largest {many}",
    )
    bound = bounds.momentum_bound(one.clip, one.beta, worst)
    by_round = [fmean(run.of("MM")[t] for run in runs) for t in range(rounds)]
    yield Finding(
        "Lemma 4.12 (11)",
        one.case,
        "E |M|^2",
        AT_MOST,
        bound,
        max(by_round),
        f"largest of {rounds} means over {len(runs)} runs",
    )
    yield Finding(
        "Corollary 4.15",
        one.case,
        "|M|^2, but for a chance of 0.05",
        AT_MOST,
        bounds.momentum_event(bound, rounds, RISK),
        max(v for run in runs for v in run.of("MM")),
        f"largest {many}",
    )


def _operators(runs: list[Trace]) -> Iterator[Finding]:
    """Lemma 4.14's bounds on H along the gradient, and Corollary 4.15's."""
    one = runs[0]
    many = f"of {len(runs)} runs x {len(one.rows)} rounds"
    every = [row for run in runs for row in run.rows]
    yield Finding(
        "Lemma 4.14 (15)",
        one.case,
        "rho v^T H v / |v|^2, v the gradient",
        AT_MOST,
        1.0,
        max(row["along F"] for row in every),
        f"largest {many}",
        1e-9,
    )
    nearest = min(
        every, key=lambda row: row["along F"] / bounds.least_curvature(row["MM"], one.rho)
    )
    yield Finding(
        "Lemma 4.14 (16)",
        one.case,
        "rho v^T H v / |v|^2, v the gradient",
        AT_LEAST,
        one.rho * bounds.least_curvature(nearest["MM"], one.rho),
        nearest["along F"],
        f"where they are nearest, {many}",
        1e-9,
    )
    bound = bounds.momentum_bound(one.clip, one.beta, _worst(runs))
    event = bounds.momentum_event(bound, len(one.rows), RISK)
    yield Finding(
        "Corollary 4.15",
        one.case,
        "rho v^T H v / |v|^2, v the gradient",
        AT_LEAST,
        one.rho * bounds.least_curvature(event, one.rho),
        min(row["along F"] for row in every),
        f"smallest {many}",
    )


def _stationary(runs: list[Trace]) -> Iterator[Finding]:
    """Theorem 4.31 with the constants of the runs themselves."""
    one, rounds = runs[0], len(runs[0].rows)
    c = bounds.Constants(
        L=max(run.smooth for run in runs),
        mu=math.nan,
        rho=one.rho,
        beta=one.beta,
        eta=one.eta,
        clip=one.clip,
        G=max(math.sqrt(v) for run in runs for v in run.of("FF")),
        zeta=max(v for run in runs for v in run.of("zeta")),
        noise=max(run.size * run.level**2 for run in runs),
    )
    bound = bounds.stationary_bound(c, one.start, rounds)
    many = f"of {len(runs)} runs x {rounds} rounds"
    seen = fmean(v for run in runs for v in run.of("FF"))
    yield Finding(
        "Theorem 4.31", one.case, "mean of |grad F|^2", AT_MOST, bound, seen, f"mean {many}"
    )
    yield Finding(
        "Theorem 4.31",
        one.case,
        "the bound, beside G_max^2, which it assumes",
        BESIDE,
        bound,
        c.G**2,
        f"largest |grad F|^2 {many}",
    )
