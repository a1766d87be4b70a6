# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  sentences are quoted whole, as they stand on the page
"""DP-FedSOFIM, its printed step and its untuned rule: lab/studies/sofim-readings/results and its like."""

from __future__ import annotations

import math
import statistics

from dpfed_lab.jobs import diverged
from tests.claims.files import Claim, by_holm, cells_of, ends, lead, mean, rows

FULL = ("DP-FedSOFIM, momentum", "DP-FedSOFIM, printed")

# ----------------------------------------------------------------- searched equally, and untuned

READINGS, READINGS_PAGE = "sofim-readings", "lab/studies/sofim-readings/results/README.md"
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


# ------------------------------------------------------------------------- the notes' experiments

NOTES, NOTES_PAGE = "sofim-notes", "lab/studies/sofim-notes/results/README.md"
RATES = ("0.01", "0.1", "0.2", "0.5", "1", "5", "10")


def by_rate(method: str, epsilon: str) -> dict[str, float]:
    """Without rates at which a run diverged."""
    lost = {
        row["rate"]
        for row in rows(NOTES)
        if (row["method"], row["epsilon"]) == (method, epsilon) and diverged(row)
    }
    kept = [rate for rate in RATES if rate not in lost]
    return {rate: mean(NOTES, method, epsilon=epsilon, rate=rate) for rate in kept}


def notes_lead(epsilon: str) -> float:
    """The best rate of the momentum reading less DP-FedGD's best."""
    return max(by_rate(FULL[0], epsilon).values()) - max(by_rate("DP-FedGD", epsilon).values())


def notes_in_short() -> tuple[float, ...]:
    momentum, plain = by_rate(FULL[0], "10"), by_rate("DP-FedGD", "10")
    assert (max(momentum, key=momentum.__getitem__), max(plain, key=plain.__getitem__)) == (
        "1",
        "0.2",
    )
    return notes_lead("10"), momentum["1"], plain["0.2"], notes_lead("none"), notes_lead("2")


def notes_printed() -> tuple[float, float]:
    found = by_rate(FULL[1], "10")
    assert max(found, key=found.__getitem__) == "0.1"
    return found["0.5"], found["0.1"]


def notes_table() -> tuple[str, ...]:
    found = [by_rate(method, "10") for method in ("DP-FedGD", *FULL)]
    return tuple(f"{each[r]:.1f}" if r in each else "lost" for each in found for r in RATES)


def rho_and_beta(method: str) -> list[float]:
    """A reading's means at epsilon 2, of the pairs at which no run diverged."""
    cells = cells_of("sofim-notes-rho")
    lost = [
        (row["rho"], row["beta"])
        for row in rows("sofim-notes-rho")
        if row["method"] == method and diverged(row)
    ]
    kept = [cell for cell in cells if (cell["rho"], cell["beta"]) not in lost]
    return [mean("sofim-notes-rho", method, **cell) for cell in kept]


def momentum_pairs() -> tuple[float, float, int]:
    found = rho_and_beta(FULL[0])
    return (*ends(found), len(found))


def printed_pairs() -> tuple[float]:
    found = rho_and_beta(FULL[1])
    assert len(found) < len(rho_and_beta(FULL[0]))
    return (math.ceil(max(found)),)


CLAIMS = [
    Claim(
        READINGS_PAGE,
        "is level with tuned momentum and DP-FedAdam: {:+.1f} points on average beside the better of the two, within half a point or better in {} of {} cells ({:+.1f} to {:+.1f})",
        beside_the_better_in_short,
    ),
    Claim(
        READINGS_PAGE,
        "It has {:.1f}, {:.1f}, {:.1f} and {:.1f} % on CIFAR-10 at epsilon 0.5, 1, 5 and 10, and {:.1f}, {:.1f}, {:.1f} and {:.1f} % on Fashion-MNIST",
        lambda: (*untuned("CIFAR-10"), *untuned("Fashion-MNIST")),
    ),
    Claim(
        READINGS_PAGE,
        "epsilon 10: {:+z.1f}, {:+z.1f}, {:+z.1f} and {:+z.1f} on CIFAR-10, Fashion-MNIST, X-rays and malaria; epsilon 1: {:+z.1f}, {:+z.1f}, {:+z.1f} and {:+z.1f}. Beside tuned EMA-only at epsilon 10: {:+z.1f}, {:+z.1f}, {:+z.1f} and {:+z.1f}",
        lambda: (
            *leads_at("10", FULL[0]),
            *leads_at("1", FULL[0]),
            *leads_at("10", FULL[0], "EMA-only"),
        ),
    ),
    Claim(
        READINGS_PAGE,
        "Printed reading, epsilon 10: {:+z.1f}, {:+z.1f}, {:+z.1f} and {:+z.1f}; epsilon 1: {:+z.1f}, {:+z.1f}, {:+z.1f} and {:+z.1f}",
        lambda: (*leads_at("10", FULL[1]), *leads_at("1", FULL[1])),
    ),
    Claim(
        READINGS_PAGE,
        "momentum reading {:+z.1f}, {:+z.1f}, {:+z.1f} and {:+z.1f}; untuned {:+z.1f}, {:+z.1f}, {:+z.1f} and {:+z.1f}; DP-FedAdam {:+z.1f}, {:+z.1f}, {:+z.1f} and {:+z.1f}",
        lambda: tuple(
            x
            for m in (FULL[0], UNTUNED, "DP-FedAdam")
            for x in leads_at("10", m, column="round_10")
        ),
    ),
    Claim(
        READINGS_PAGE,
        "momentum reading ahead in {} cells and behind in {}, untuned {} and {}, EMA-only {} and {}, DP-FedAdam {} and {}, printed {} and {}",
        lambda: tuple(
            x for m in (FULL[0], UNTUNED, "EMA-only", "DP-FedAdam", FULL[1]) for x in holm_counts(m)
        ),
    ),
    Claim(
        READINGS_PAGE,
        "Fashion-MNIST at epsilon 10, {:+.1f} points beside tuned EMA-only, and malaria at 0.5, {:+.1f} beside DP-FedGD",
        lambda: (leads_at("10", UNTUNED, "EMA-only")[1], leads_at("0.5", UNTUNED)[3]),
    ),
    Claim(
        NOTES_PAGE,
        "with a smaller lead: {:+.1f} points at epsilon 10 ({:.1f} % at the rate 1; DP-FedGD {:.1f} % at 0.2), {:+.1f} without noise, {:+.1f} at epsilon 2",
        notes_in_short,
    ),
    Claim(
        NOTES_PAGE,
        "the method has {:.1f} % at the rate 0.5 and epsilon 10, and needs 0.1: {:.1f} %",
        notes_printed,
    ),
    Claim(
        NOTES_PAGE,
        " | ".join(
            ["| DP-FedGD", *["{}"] * 7, "| H M", *["{}"] * 7, "| H G", *["{}"] * 7, ""]
        ).strip(),
        notes_table,
    ),
    Claim(
        "lab/studies/sofim-notes-rho/results/README.md",
        "ends between {:.1f} and {:.1f} % at all {} pairs",
        momentum_pairs,
    ),
    Claim(
        "lab/studies/sofim-notes-rho/results/README.md",
        "it is below {:.0f} % at every one, and diverges at small rho",
        printed_pairs,
    ),
    Claim(
        "results/README.md",
        "In 70 rounds untuned DP-FedSOFIM is {:+.1f} points on average beside the better of tuned momentum and DP-FedAdam over four sets ({:+.1f} to {:+.1f})",
        lambda: (beside_the_better_in_short()[0], *beside_the_better_in_short()[3:]),
    ),
    Claim(
        "results/README.md",
        "With the step of its authors' code (H M), at epsilon 10: {:+.1f}, {:+.1f}, {:+.1f} and {:+.1f} points on CIFAR-10, Fashion-MNIST, X-rays and malaria; tuned EMA-only is level ({:+.1f}, {:+.1f}, {:+.1f} and {:+.1f})",
        lambda: (*leads_at("10", FULL[0]), *leads_at("10", "EMA-only")),
    ),
    Claim(
        "results/README.md",
        "With the step of the authors' code and equal searches it is {:+.1f} and {:+.1f}",
        lambda: tuple(leads_at(e, FULL[0])[0] for e in ("5", "10")),
    ),
]
