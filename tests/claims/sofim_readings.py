# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  sentences are quoted whole, as they stand on the page
"""Both readings of DP-FedSOFIM and its untuned rule: results/sofim-readings and its like."""

from __future__ import annotations

import statistics

from tests.claims.files import Claim, by_holm, ends, lead, mean, rows

PRINTED_PAGE = "results/sofim-as-printed/README.md"
FULL = ("DP-FedSOFIM, momentum", "DP-FedSOFIM, printed")
ABLATION = ("Grad-only", "EMA-only", *FULL)


def theirs(method: str, epsilon: str, at: str = "70", setting: str = "rate 4") -> float:
    """What the paper prints."""
    (found,) = [
        float(row["accuracy"])
        for row in rows("sofim-as-printed", "paper.csv")
        if (row["method"], row["epsilon"], row["round"], row["setting"])
        == (method, epsilon, at, setting)
    ]
    return found


def ours(method: str, epsilon: str, column: str = "accuracy", setting: str = "rate 4") -> float:
    return mean("sofim-as-printed", method, column, epsilon=epsilon, setting=setting)


def ablation(epsilon: str) -> tuple[float, ...]:
    """The paper's three rows, then ours, of which the last has two readings."""
    printed = (theirs(method, epsilon) for method in ABLATION[:3])
    return (*printed, *(ours(method, epsilon) for method in ABLATION))


def full_less_gradient() -> tuple[float, ...]:
    paper = theirs(FULL[0], "5") - theirs("Grad-only", "5")
    cell = {"epsilon": "5", "setting": "rate 4"}
    return (paper, *(lead("sofim-as-printed", m, "Grad-only", **cell) for m in FULL))


def early() -> tuple[float, ...]:
    """Round 10 at epsilon 5: the paper and both readings, for both partitions."""
    return tuple(
        figure
        for setting in ("rate 4", "rate 4, iid")
        for figure in (
            theirs(FULL[0], "5", "10", setting),
            *(ours(method, "5", "round_10", setting) for method in FULL),
        )
    )


def behind_at_half(setting: str) -> tuple[float, float]:
    """How far below the paper's rows ours are at epsilon 0.5: the least and the most."""
    return ends(theirs(m, "0.5") - ours(m, "0.5", setting=setting) for m in ABLATION)


def spread_at_one() -> tuple[float]:
    """The largest distance between two rows at the rate 1, at epsilon 5 or 10."""
    found = [[ours(m, e, setting="rate 1") for m in ABLATION] for e in ("5", "10")]
    return (max(max(each) - min(each) for each in found),)


# ----------------------------------------------------------------- searched equally, and untuned

READINGS, READINGS_PAGE = "sofim-readings", "results/sofim-readings/README.md"
SETS, EPSILONS = ("CIFAR-10", "Fashion-MNIST", "X-rays", "malaria"), ("0.5", "1", "5", "10")
UNTUNED = "DP-FedSOFIM, untuned"
CELLS = [{"images": images, "epsilon": epsilon} for images in SETS for epsilon in EPSILONS]


def untuned(images: str) -> tuple[float, ...]:
    return tuple(mean(READINGS, UNTUNED, images=images, epsilon=e) for e in EPSILONS)


def beside_the_better() -> list[float]:
    """Untuned less the better of tuned momentum and DP-FedAdam, by cell."""
    return [
        mean(READINGS, UNTUNED, **cell)
        - max(mean(READINGS, other, **cell) for other in ("EMA-only", "DP-FedAdam"))
        for cell in CELLS
    ]


def beside_the_better_in_short() -> tuple[float, int, int, float, float]:
    found = beside_the_better()
    near = sum(each >= -0.5 for each in found)
    return (statistics.fmean(found), near, len(found), *ends(found))


def leads_at(
    epsilon: str, method: str, other: str = "DP-FedGD", column: str = ""
) -> tuple[float, ...]:
    """A method's lead on each set, at the end or at a round."""
    if not column:
        return tuple(lead(READINGS, method, other, images=i, epsilon=epsilon) for i in SETS)
    return tuple(
        mean(READINGS, method, column, images=i, epsilon=epsilon)
        - mean(READINGS, other, column, images=i, epsilon=epsilon)
        for i in SETS
    )


def holm_counts(method: str) -> tuple[int, int]:
    """Cells where a line is ahead of DP-FedGD, and behind, after Holm's correction."""
    signs = [
        float(row["difference (points)"]) > 0
        for row in by_holm(READINGS)
        if row["method"] == method
    ]
    return signs.count(True), signs.count(False)


def _row(epsilon: str) -> str:
    return (
        f"| {epsilon} | paper | {{:.1f}} | {{:.1f}} | {{:.1f}} | | | here | {{:.1f}} | {{:.1f}} | "
        "H M {:.1f}, H G {:.1f} |"
    )


CLAIMS = [
    *(Claim(PRINTED_PAGE, _row(e), lambda e=e: ablation(e)) for e in ("1", "5", "10")),
    Claim(
        PRINTED_PAGE,
        "is {:+.1f} points above its gradient-only row; H M is {:+.1f} above ours, H G {:+.1f}",
        full_less_gradient,
    ),
    Claim(
        "results/README.md",
        "the full method is {:+.1f} points above the gradient alone in the paper, {:+.1f} here, {:+.1f} with the printed step",
        full_less_gradient,
    ),
    Claim(
        PRINTED_PAGE,
        "the paper has {:.1f} %, H M {:.1f} %, H G {:.1f} %; under the iid partition (Table 8) {:.1f}, {:.1f} and {:.1f} %",
        early,
    ),
    Claim(
        PRINTED_PAGE,
        "all rows are {:.0f} to {:.0f} points below the paper's",
        lambda: behind_at_half("rate 4"),
    ),
    Claim(
        PRINTED_PAGE, "at 1 they are still {:.0f} to {:.0f} below", lambda: behind_at_half("rate 1")
    ),
    Claim(PRINTED_PAGE, "within {:.1f} points of each other at epsilon 5 and 10", spread_at_one),
]
