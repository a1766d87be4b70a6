# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  sentences stand whole, as on the page
"""The page, from theory.csv alone: every number in a sentence is looked up there."""

from __future__ import annotations

import math
import os
import platform
import re
from collections.abc import Iterable
from datetime import UTC, datetime

from dpfed_lab.theory.finding import AT_LEAST, AT_MOST, EQUAL, Finding
from dpfed_lab.theory.second_order import NARROW, WIDE

Found = list[Finding]
OURS = "ours"
"""How statements begin that no paper makes."""

WHAT = {
    "Lemma C.1": "variance of the moving average's noise",
    "Lemma C.1, of M itself": "the same read as Cov M, where theta moves by that noise",
    "Lemma 4.11 (8)": "norm of the clipped mean",
    "Lemma 4.11": "second moment of the aggregate: the equality, and its bound",
    "Lemma 4.12 (9)": "second moment of the momentum, given the round before",
    "Lemma 4.12 (11)": "second moment of the momentum",
    "Lemma 4.14 (15)": "H is at most I / rho",
    "Lemma 4.14 (16)": "H along the gradient is at least 1 / (rho + M^T M)",
    "Corollary 4.15": "the same for a whole run, by Markov's inequality",
    "Theorem 4.21": "floor of DP-FedSOFIM under strong convexity",
    "Theorem 4.26": "floor of DP-FedGD under strong convexity",
    "Theorem 4.31": "mean squared gradient of DP-FedSOFIM",
    "Lemma 19": "FedNew: the inner product falls, no noise",
    "(F.2)": "FedNew: y moves by less than it is off",
    "(F.4)": "FedNew: V falls, no noise, beta_1 = 0",
    "Lemma 20": "FedNew: there is a beta above 0",
    "Lemma 23": "DP-FedNew: the inner product, with noise",
    NARROW: "DP-FedNew: what noise adds to V, by Lemma 23's sigma",
    WIDE: "DP-FedNew: what noise adds to V, by (5.2)'s sigma",
    "Lemma 2": "DP-FedAdamW: mean square of a sampled mean",
}
"""Statement -> what it is about, in the order of the table."""


# ------------------------------------------------------------------------------------ looking up


def pick(found: Found, statement: str, quantity: str = "", case: str = "", over: str = "") -> Found:
    """The lines of a statement whose texts have these parts.

    Args:
        found: all lines.
        statement: its whole name.
        quantity: a part of what is measured.
        case: a part of where.
        over: how the text of what it is taken over begins.
    """
    kept = [
        each
        for each in found
        if each.statement == statement
        and quantity in each.quantity
        and case in each.case
        and each.over.startswith(over)
    ]
    if not kept:
        raise LookupError(f"no line of {statement!r} with {quantity!r}, {case!r}, {over!r}")
    return kept


def one(found: Found, statement: str, quantity: str, case: str, over: str = "") -> float:
    """The measured figure of exactly one line, whose case is given whole.

    Args:
        found: all lines.
        statement: its whole name.
        quantity: a part of what is measured.
        case: where, whole.
        over: how the text of what it is taken over begins.
    """
    kept = [each for each in pick(found, statement, quantity, case, over) if each.case == case]
    if len(kept) != 1:
        raise LookupError(f"{len(kept)} lines of {statement!r} with {quantity!r}, {case!r}")
    return kept[0].measured


def times(value: float) -> str:
    """A factor, in words that can be read."""
    if value >= 1e6:
        return f"{value / 1e6:.1f} million"
    return f"{value:,.0f}" if value >= 100 else f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def ends(values: Iterable[float]) -> str:
    """From the smallest to the largest factor."""
    kept = sorted(value for value in values if not math.isnan(value))
    low, high = (times(each) for each in (kept[0], kept[-1]))
    return low if low == high else f"{low} to {high}"


def figure(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def bounds_of(found: Found) -> Found:
    """Lines that can be broken, of the papers' statements."""
    binding = (AT_MOST, AT_LEAST, EQUAL)
    return [e for e in found if e.relation in binding and not e.statement.startswith(OURS)]


# ------------------------------------------------------------------------------------- sentences


def answers(found: Found) -> list[str]:
    """What follows, each with its figures."""
    return [
        _switched_off(found),
        _curvature(found),
        _speed(found),
        _loose(found),
        _floors(found),
        _exact(found),
        *_broken(found),
        _growth(found),
    ]


def _switched_off(found: Found) -> str:
    name, along = "alpha_H (4.7)", "rho alpha_H, along the gradient"
    least = min(e.measured for e in pick(found, name, along, "searched", "smallest"))
    most = max(e.measured for e in pick(found, name, along, "searched", "largest"))
    off = max(e.measured for e in pick(found, name, "|rho H G - G|", "searched", "largest"))
    rounds = sum(int(e.over.split()[-2]) for e in pick(found, name, along, "searched", "mean"))
    cosines = [e.measured for e in pick(found, name, "M and the gradient", "searched", "mean")]
    weaker = [e.measured for e in pick(found, name, along, "rho / 100", "smallest")]
    apart = [
        one(found, name, "accuracy", f"epsilon {e}, rho / 100")
        - one(found, name, "accuracy", f"epsilon {e}, searched")
        for e in (1, 5)
    ]
    return (
        f"**The search switches the preconditioner off.** In {rounds} rounds at the searched settings "
        f"(CIFAR-10's features, epsilon 0.5 to 10) rho alpha_H is between {least:.3f} and {most:.3f}, and a "
        f"step is off DP-FedGD's at the rate eta / rho by at most {100 * off:.1f} %. The cosine of M and "
        f"the gradient is {min(cosines):.2f} to {max(cosines):.2f} on average. With rho a hundredth of "
        f"that, and the same eta / rho, rho alpha_H falls to {min(weaker):.2f}, and accuracy changes by "
        f"{apart[0]:+.2f} points at epsilon 1 and {apart[1]:+.2f} at epsilon 5 (means of 3 seeds; nothing was searched there)."
    )


def _curvature(found: Found) -> str:
    name, cases = "ours: curvature", [f"epsilon {e}, searched" for e in ("0.5", "1", "5", "10")]
    largest = [
        one(found, name, "at the start", cases[0]),
        *(one(found, name, "at the end", case) for case in cases),
    ]
    beside = [each for case in cases for each in pick(found, "curvature", "beside rho", case)]
    rhos = sorted({each.predicted for each in beside})
    return (
        "**H is no picture of the curvature.** The largest eigenvalue of F's Hessian is "
        f"{largest[0]:.1f} at the start and {min(largest[1:]):.1f} to {max(largest[1:]):.1f} at the end; the "
        f"rho that was searched is {' and '.join(f'{rho:g}' for rho in rhos)}, and |M|^2, all that is added to it, "
        f"in one direction, is at most {max(each.measured for each in beside):.2g}."
    )


def _speed(found: Found) -> str:
    ratios = [
        one(found, "speed", "F after", f"kappa {k}, DP-FedSOFIM, rho {rho}")
        / one(found, "speed", "F after", f"kappa {k}, DP-FedGD")
        for k in (100, 1000)
        for rho in ("1", "0.1", "0.01")
    ]
    return (
        "**On quadratics it does not help against the condition number.** Without noise, each at its best of "
        f"41 rates, F of DP-FedSOFIM after 100 rounds is {min(ratios):.2f} to {max(ratios):.2f} times that of "
        "DP-FedGD at kappa 100 and 1000, rho 1 to 0.01."
    )


def _loose(found: Found) -> str:
    real = [e for e in pick(found, "Theorem 4.31", "mean of") if e.case.startswith("epsilon")]
    vacuous = [e for e in pick(found, "Theorem 4.31", "beside") if e.case.startswith("epsilon")]
    searched = [e.loose for e in vacuous if "searched" in e.case]
    ours = [e for e in bounds_of(found) if e.relation != EQUAL and _of_nair(e)]
    held = sum(e.holds is True for e in ours)
    return (
        f"**The bounds of Nair et al. hold; those on convergence say nothing about these runs.** {held} of {len(ours)} "
        f"lines hold. Theorem 4.31 is {ends(e.loose for e in real if 'searched' in e.case)} times what is "
        f"seen along the searched runs, and {ends(searched)} times G_max^2, the largest squared gradient, "
        "which it assumes to be known: vacuous."
    )


def _of_nair(each: Finding) -> bool:
    return each.statement.startswith(("Lemma 4", "Corollary 4", "Theorem 4"))


def _floors(found: Found) -> str:
    kappas = (1, 10, 100, 1000)
    rows = {
        "Theorem 4.26": [f"kappa {k}, noise 1, from 0" for k in kappas],
        "Theorem 4.21": [f"kappa {k}, noise 1, from 0, rho 1" for k in kappas],
    }
    loose, seen = {}, {}
    for name, cases in rows.items():
        kept = [one(found, name, "E F - F*", case) for case in cases]
        ratios = [one_bound(found, name, c) / v for c, v in zip(cases, kept, strict=True)]
        loose[name] = f"{', '.join(map(times, ratios[:-1]))} and {times(ratios[-1])}"
        seen[name] = f"{figure(kept[0])} to {figure(kept[-1])}"
    most = [max(e.loose for e in pick(found, name, "E F - F*", "from 3")) for name in rows]
    return (
        "**The floors follow the condition number and the start; what is reached follows neither.** From the "
        f"minimum itself, which favours them, Theorem 4.26's (DP-FedGD) is {loose['Theorem 4.26']} times what "
        f"is reached at kappa 1, 10, 100 and 1000 (noise 1), Theorem 4.21's (DP-FedSOFIM, rho 1) "
        f"{loose['Theorem 4.21']} times; what is reached goes from {seen['Theorem 4.26']} and from "
        f"{seen['Theorem 4.21']}. From |theta_0| = 3, whose gradient sets C_g and G_max for all rounds, they are "
        f"up to {times(most[0])} and {times(most[1])} times above. On a quadratic E F - F* of DP-FedGD ends at the "
        "sum over j of eta nu^2 / (2 (2 - eta lambda_j)), which has no 1 / mu in it."
    )


def one_bound(found: Found, statement: str, case: str) -> float:
    """The predicted figure of the line that binds E F - F*."""
    kept = pick(found, statement, "E F - F*", case)
    return next(e.predicted for e in kept if e.case == case and e.relation == AT_MOST)


def _exact(found: Found) -> str:
    names = ("Lemma C.1", "Lemma 4.11", "Lemma 2")
    exact = [e for e in found if e.statement in names and e.relation == EQUAL]
    worst = max(abs(1 / e.loose - 1) for e in exact)
    held = sum(e.holds is True for e in exact)
    return (
        "**The equalities hold**: Lemma C.1 for the noise alone, the first half of Lemma 4.11, and Lemma 2 "
        f"of DP-FedAdamW, {held} of {len(exact)} lines, at most {100 * worst:.0f} % off by chance. Lemma 2 "
        "is of samples of a fixed size; draws here are Poisson, whose variance is another one (theory.csv)."
    )


def _broken(found: Found) -> list[str]:
    loop = pick(found, "Lemma C.1, of M itself")
    low, high = (f(e.loose for e in loop) for f in (min, max))
    betas = [e.measured for e in pick(found, "Lemma 20")]
    worst = min(e.loose for e in pick(found, NARROW, "E V"))
    broken = [e for e in pick(found, NARROW, "E V") if e.holds is False]
    fall = [e.measured for e in pick(found, "(F.4)")]
    kept = [e.measured for e in pick(found, WIDE, "beta_2")]
    off = [e.measured for e in pick(found, "Theorem 8")]
    return [
        "**Lemma C.1 is not the covariance of M**, as its display and its proof say, but of M's noise: "
        "the gradient is random, too, since theta has moved by the noise before. Along an eigenvalue "
        f"lambda the formula is {high:.1f} times too large to {1 / low:.2f} times too small (eta lambda / "
        "rho 0.001 to 1.9, beta 0.9). What is right there: 2 (1 - beta)^2 / ((1 - a beta)(1 + a)(1 + "
        "beta)), a = 1 - eta lambda / rho.",
        "**FedNew's Lyapunov analysis has no admissible constant.** Lemmas 20 and 25 ask for beta at most "
        "alpha - 2.5 rho - 8 n L_q^2 / rho with L_q at least alpha by (F.1): at its best rho that is "
        f"{max(betas):.0f} alpha (n = 4) to {min(betas):.0f} alpha (n = 64), never above 0. (F.1) itself "
        "fails for linear regression, which the text names: two theta with one y give two gradients. V "
        f"does fall, all the same: without noise by {ends(fall)} times the sum of |y_i - y*|^2 a round.",
        "**(F.14) counts the noise of one client, not of n.** From the optimum, where V is 0, one round "
        f"adds rho s^2 d (n + 2) to it: up to {times(1 / worst)} times what (F.14) allows with Lemma 23's "
        f"sigma ({len(broken)} of {len(pick(found, NARROW, 'E V'))} cases broken); with (5.2)'s, sigma^2 "
        f"= n s^2, it holds. Theorem 8's floor has an unknown beta_2; with the largest that keeps (F.14) "
        f"true at the end ({ends(kept)}) it does not fall with n, while |y - y*|^2 is {ends(off)} times "
        "s^2 d / n.",
    ]


def _growth(found: Found) -> str:
    name = "growth in m"
    ratio = {
        m: one(found, name, "squared error", f"FedNewton, mu = 1, m {m}")
        / one(found, name, "squared error", f"FedSGD, mu = 1, m {m}")
        for m in (10, 20, 40, 80, 160)
    }
    errors = [
        one(found, name, "squared error", f"FedNewton, mu = 1, m {m}")
        / one(found, name, "squared error", f"FedNewton, no noise, m {m}")
        for m in ratio
    ]
    slopes = [
        one(found, name, "exponent", each)
        for each in ("FedNewton, no noise", "FedNewton, mu = 1", "FedSGD, mu = 1")
    ]
    return (
        "**Whether FedNewton is ahead of FedSGD while clients are few**, as Auddy et al. say, **depends on the settings.** 20,000 records in all, "
        f"squared error over FedSGD's {ratio[10]:.2f}, {ratio[20]:.2f}, {ratio[40]:.2f}, {ratio[80]:.1f} and "
        f"{ratio[160]:.0f} at m = 10, 20, 40, 80 and 160, in 2 rounds against 30 (each the better of two settings by "
        f"that error itself, 2 seeds). It grows as m to the {slopes[1]:.1f}, FedSGD's as m to the {slopes[2]:.1f}. "
        f"Without noise FedNewton's is {ends(errors)} times smaller and grows as m to the {slopes[0]:.1f}: noise, "
        "not the bias of federation, is what limits it. With searched settings, 100 steps and five seeds FedSGD is ahead at "
        "20 to 60 clients: [fednewton-mse](../../fednewton-mse/results/tables/final.md)."
    )


# ---------------------------------------------------------------------------------------- tables


def summary_table(found: Found) -> list[str]:
    """One line per statement."""
    lines = ["| statement | about | holds | bound over seen |", "|---|---|---:|---:|"]
    for name, words in WHAT.items():
        kept = [e for e in bounds_of(found) if e.statement == name]
        held = sum(e.holds is True for e in kept)
        loose = [e.loose for e in kept if not math.isnan(e.loose)]
        text = ends(loose) if loose else "-"
        lines.append(f"| {name} | {words} | {held} of {len(kept)} | {text} |")
    return lines


def alignment_table(found: Found) -> list[str]:
    """Section 4.7's quantities by run."""
    names = ("cosine of M and G", "cosine of M and the gradient", "cosine of G and the gradient")
    lines = [
        "| epsilon, rho | "
        + " | ".join(names)
        + " | rho alpha_H | step off DP-FedGD's | accuracy, % |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    cases = dict.fromkeys(e.case for e in pick(found, "alpha_H (4.7)"))
    for case in cases:
        cosines = " | ".join(f"{_aligned(found, case, name, 'mean'):.2f}" for name in names)
        along = "rho alpha_H, along the gradient"
        low, high = (_aligned(found, case, along, over) for over in ("smallest", "largest"))
        off = _aligned(found, case, "|rho H G - G|", "largest")
        accuracy = _aligned(found, case, "accuracy", "mean")
        lines.append(
            f"| {case.removeprefix('epsilon ')} | {cosines} | {low:.3f} to {high:.3f} | "
            f"at most {100 * off:.1f} % | {accuracy:.1f} |"
        )
    return lines


def _aligned(found: Found, case: str, quantity: str, over: str) -> float:
    return one(found, "alpha_H (4.7)", quantity, case, over)


def floor_table(found: Found) -> list[str]:
    """What is reached, and the floors, by condition number."""
    lines = [
        "| kappa | noise | from | DP-FedGD reaches | Theorem 4.26 | DP-FedSOFIM, rho 1, reaches | "
        "Theorem 4.21 | rho 0.1 reaches | Theorem 4.21 | F at the start |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for each in pick(found, "Theorem 4.26"):
        cells = [figure(each.measured), figure(each.predicted)]
        for rho in ("1", "0.1"):
            case = f"{each.case}, rho {rho}"
            seen = one(found, "Theorem 4.21", "E F - F*", case)
            cells += [figure(seen), figure(one_bound(found, "Theorem 4.21", case))]
        kappa, noise, start = (part.split()[1] for part in each.case.split(", "))
        first = (
            "0"
            if start == "0"
            else figure(one(found, "Theorem 4.21", "beside", f"{each.case}, rho 1"))
        )
        lines.append(f"| {kappa} | {noise} | {start} | {' | '.join(cells)} | {first} |")
    return lines


OPEN = [
    "| statement | why no figure stands beside it |",
    "|---|---|",
    "| Krouka et al., Theorems 8 and 27 | beta_2 is some constant above 0, of which nothing else is said; "
    "no beta of Lemmas 20 and 25 leads to one |",
    "| Krouka et al., Lemma 22 | rho_0 is not given; (F.2) holds in all rounds at rho 1, in all but one "
    "of 80 at 0.1 |",
    "| Auddy et al., the rates of FedNewton and FedHybrid | of the paper only a summary was at hand: no "
    "exponent, no constant; the growth in m is measured without one |",
    "| DP-FedAdamW, Lemmas 3 to 6 and Theorem 3 | in the text at hand one letter stands for two rates (gamma L at most "
    "gamma / 6), and Theorem 3 holds up to a constant that is not given |",
    "| Nair et al., the floor with alpha_H and sigma_H (4.7) | B_H is named, not written out |",
]


# ------------------------------------------------------------------------------------ the page


def stamp(seconds: float) -> str:
    """When, on what, for how long."""
    return (
        f"{datetime.now(UTC):%d %B %Y}, {platform.machine()}, {os.cpu_count()} cores, "
        f"{seconds / 60:.0f} minutes of one"
    )


def stamp_of(text: str) -> str:
    """What a page says of its run."""
    found = re.search(r"^Made by `[^`]+`, (.*); seeds", text, re.MULTILINE)
    if not found:
        raise LookupError("the page does not say when it was made")
    return found[1]


def text(found: Found, made: str) -> str:
    """The whole page."""
    lines = [
        "# Theory beside measurement",
        "",
        "What the papers' bounds predict, and what runs of this library do. Equations are cited by number; "
        "[the papers, line by line](../../../../docs/papers.md) says which paper is which.",
        "",
        "![Bound over what is seen, by statement; floors by condition number](theory.png)",
        "",
        *(f"- {each}" for each in answers(found)),
        "",
        f"Made by `DPFED_DATA=data python -m dpfed_lab.theory --out lab/studies/theory/results`, {made}; seeds 0, 1, 2 of the runs "
        "on CIFAR-10's features (the study sofim-cifar10 at its settings.json, 70 rounds), 0 to 4 on "
        "quadratics, 0 and 1 for the growth in m. [theory.csv](theory.csv) has every figure, with what it "
        "is a mean, a maximum or a minimum over.",
        "",
        "## By statement",
        "",
        '"Bound over seen" is 1 where a statement is exact, above 1 where it is loose, and below 1 where '
        "it is broken (an equality: on either side). Young's parameters are those that make a bound smallest. G_max and the clipping bias "
        "are the largest that were met; L of a softmax is half of the largest eigenvalue of any client's "
        "second moment; nu is Lemma 4.10's, of the smallest client, where a lemma says nu, not nu_t.",
        "",
        *summary_table(found),
        "",
        "## Alignment, and rho alpha_H",
        "",
        "alpha_H is section 4.7's: the gradient's H-norm over its norm, squared. Means over all rounds and "
        'seeds; of rho alpha_H the range. "rho / 100": eta and rho both a hundredth of what was searched.',
        "",
        *alignment_table(found),
        "",
        "## Floors on quadratics",
        "",
        "50 eigenvalues from 1 / kappa to 1, effective rate eta / rho = 0.5, beta 0.9, nothing clipped, C_g = "
        'G_max; "noise" is sqrt(d) nu, "from" is |theta_0|. Reached: the mean of F over the last quarter '
        "of the rounds.",
        "",
        *floor_table(found),
        "",
        "At rho 0.1 and noise 1 DP-FedSOFIM ends lower since H makes its steps shorter, as a smaller rate "
        "would; the bound says the opposite.",
        "",
        "## What has no figure",
        "",
        *OPEN,
    ]
    return "\n".join(lines) + "\n"
