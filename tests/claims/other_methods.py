# SPDX-License-Identifier: Apache-2.0
"""DP-FedAuto, clips that adapt, and real silos."""

from __future__ import annotations

import statistics

import pytest

from dpfed_lab.jobs import diverged
from tests.claims.files import (
    TUNED,
    at_edges,
    by_holm,
    cells_of,
    ends,
    gap,
    lead,
    mean,
    methods_of,
    rows,
    seeds,
    significant,
)


def auto(
    method: str, others: tuple[str, ...] = TUNED, folder: str = "auto-unseen"
) -> dict[str, float]:
    """By data set: the mean over trusts and epsilons of a line less the best of others."""
    found: dict[str, list[float]] = {}
    for cell in {(row["records"], row["trust"], row["epsilon"]): row for row in rows(folder)}:
        at = dict(zip(("records", "trust", "epsilon"), cell, strict=True))
        best = max(mean(folder, other, **at) for other in others)
        found.setdefault(cell[0], []).append(mean(folder, method, **at) - best)
    return {records: statistics.fmean(leads) for records, leads in found.items()}


def auto_ten() -> tuple[float, ...]:
    found = auto("DP-FedAuto, 10 rounds")
    order = (
        "activity",
        "pneumonia",
        "credit default",
        "heart disease",
        "SST-2",
        "Medical Abstracts",
    )
    return tuple(found[records] for records in order)


def above_each() -> tuple[float, ...]:
    """DP-FedAuto in 10 rounds less each tuned method, on average over sets."""
    return tuple(
        statistics.fmean(auto("DP-FedAuto, 10 rounds", (each,)).values()) for each in TUNED
    )


def against_lent() -> float:
    found = [
        statistics.fmean(auto("DP-FedAuto, 10 rounds", (other,)).values())
        for other in ("DP-FedGD, lent", "DP-FedAdam, lent")
    ]
    assert found[0] == pytest.approx(found[1], abs=0.05)
    return found[0]


def auto_parts() -> tuple[float, ...]:
    """The most that each part is worth over cells; of the damping also the least."""
    average, second, both, damping, momentum = (
        ends(
            lead("auto-parts", "DP-FedAuto", f"without {part}", **cell)
            for cell in cells_of("auto-parts")
        )
        for part in ("the mean", "the second moment", "both", "damping", "momentum")
    )
    return average[1], second[1], both[1], *damping, momentum[1]


def silo(method: str, epsilon: str, silos: str) -> float:
    pair = gap("silos", method, epsilon=epsilon, silos=silos)
    significant(pair)
    return pair.mean


def silos_go_both_ways() -> tuple[float, ...]:
    sites = ends(silo("DP-FedAdam", e, "X-rays, 8 sites") for e in ("1", "5"))
    return (
        -silo("DP-FedAdam", "5", "heart, 4 hospitals"),
        -silo("DP-FedAdam", "1", "malaria, whole patients, 5 silos"),
        silo("DP-FedAdam", "5", "activity, whole subjects, 5 silos"),
        *sites,
        -silo("EMA-only", "5", "activity, 30 subjects"),
    )


def hidden(word: str) -> float:
    """The most that a mean hides of the worst silo, over methods and epsilons."""
    found = []
    for row in {(r["epsilon"], r["silos"], r["method"]): r for r in rows("silos")}:
        epsilon, silos, method = row
        runs = [r for r in rows("silos") if (r["epsilon"], r["silos"], r["method"]) == row]
        if silos == word and not any(map(diverged, runs)):
            worst = mean("silos", method, "worst_silo", epsilon=epsilon, silos=silos)
            found.append(mean("silos", method, epsilon=epsilon, silos=silos) - worst)
    return max(found)


def hidden_all() -> tuple[float, float, float]:
    hospitals, sites, patients = map(
        hidden, ("heart, 4 hospitals", "X-rays, 8 sites", "malaria, 200 patients")
    )
    return hospitals, sites, patients


def persons() -> tuple[float, float]:
    by = [
        mean("silos", "DP-FedGD", epsilon="5", silos=silos)
        for silos in ("malaria, 200 patients", "malaria, whole patients, 5 silos")
    ]
    return by[0], by[1]


def subjects() -> tuple[float, float, float]:
    at = ["activity, 30 subjects", "activity, whole subjects, 5 silos"]
    gd = [mean("silos", "DP-FedGD", epsilon="5", silos=each) for each in at]
    others = [m for m in methods_of("silos") if m != "DP-FedSOFIM"]  # which diverged
    best = max(mean("silos", m, epsilon="5", silos=at[1]) for m in others)
    return gd[0], gd[1], best


def it_diverged() -> tuple[()]:
    """DP-FedSOFIM on whole subjects, in every run, and DP-FedGD at epsilon 1."""
    for epsilon, method in (("5", "DP-FedSOFIM"), ("1", "DP-FedSOFIM"), ("1", "DP-FedGD")):
        cell = (epsilon, "activity, whole subjects, 5 silos", method)
        runs = [r for r in rows("silos") if (r["epsilon"], r["silos"], r["method"]) == cell]
        assert len(runs) == 5
        assert all(map(diverged, runs))
    return ()


def dev() -> tuple[float, ...]:
    found = auto("DP-FedAuto, 30 rounds", TUNED, "auto-development")
    return tuple(
        found[each] for each in ("CIFAR-10", "Fashion-MNIST", "malaria", "X-rays", "Adult")
    )


CLIPS = "lab/studies/adaptive-clip/results/README.md"


CLIP_LINES = (
    "best fixed clip",
    "adapts from 3",
    "adapts from 30",
    "adapts from 0.3",
    "fixed at 30",
    "fixed at 0.3",
)


def clips_row(records: str, epsilon: str) -> tuple[float, ...]:
    return tuple(mean("adaptive-clip", m, records=records, epsilon=epsilon) for m in CLIP_LINES)


def clip_gaps(method: str, other: str = CLIP_LINES[0]) -> tuple[float, float]:
    """The least and the largest difference over data sets and epsilons."""
    return ends(
        lead("adaptive-clip", method, other, records=r, epsilon=e)
        for r in ("CIFAR-10", "Fashion-MNIST")
        for e in ("1", "5")
    )


def clips_by_holm(method: str) -> list[float]:
    """Its differences that are significant after Holm's correction."""
    assert len(rows("adaptive-clip", "tables/paired.csv")) == 30
    known = [row for row in by_holm("adaptive-clip") if row["method"] == method]
    return [float(row["difference (points)"]) for row in known]


def clip_good() -> tuple[float, ...]:
    (only,) = clips_by_holm("adapts from 3")
    return (*clip_gaps("adapts from 3"), only)


def clip_large() -> tuple[float, ...]:
    lost = clips_by_holm("adapts from 30")
    assert len(lost) == 2
    assert max(lost) < 0
    low, high = clip_gaps("fixed at 30")
    return (*clip_gaps("adapts from 30"), -high, -low)


def clip_small() -> tuple[float, ...]:
    low, high = clip_gaps("adapts from 0.3")
    return (-high, -low, *clip_gaps("adapts from 0.3", "fixed at 0.3"))


def clip_spread(*methods: str) -> list[float]:
    return [
        statistics.stdev(seeds("adaptive-clip", m, records="X-rays", epsilon="5").values())
        for m in methods
    ]


def clip_edges() -> tuple[int, ...]:
    """Entries, those at an edge, and cells in which a kept clip has the last rate of the grid."""
    every = rows("adaptive-clip", "tables/settings.csv")
    kept = [at_edges("adaptive-clip", method=method) for method in CLIP_LINES[-2:]]
    assert all(row["setting"] == "server.0.rate = 0.3" for row in kept[0])
    assert all(row["setting"] == "server.0.rate = 10" for row in kept[1])
    return len(every), len(at_edges("adaptive-clip")), len(kept[0]), len(kept[1])


def clip_rays() -> tuple[float, ...]:
    better = [
        lead("adaptive-clip", m, CLIP_LINES[0], records="X-rays", epsilon="5")
        for m in CLIP_LINES[1:]
    ]
    assert not any(row["records"] == "X-rays" for row in by_holm("adaptive-clip"))
    return (*clip_spread(CLIP_LINES[0]), *ends(each for each in better if each > 0))


def auto_headline() -> tuple[float, int, int]:
    """DP-FedAuto in 10 untuned rounds less the best tuned: the mean over cells, and cells ahead."""
    found, columns = [], ("records", "trust", "epsilon")
    for cell in {tuple(row[each] for each in columns) for row in rows("auto-unseen")}:
        at = dict(zip(columns, cell, strict=True))
        best = max(mean("auto-unseen", other, **at) for other in TUNED)
        found.append(mean("auto-unseen", "DP-FedAuto, 10 rounds", **at) - best)
    return statistics.fmean(found), sum(each > 0 for each in found), len(found)
