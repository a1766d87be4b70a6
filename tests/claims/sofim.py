# SPDX-License-Identifier: Apache-2.0
"""Nair et al. 2026: the main tables, trust, weights, rates, and the control of DP-FedSOFIM."""

from __future__ import annotations

import statistics

import pytest

from dpfed_lab.significance import Gap
from tests.claims.files import (
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
    spread,
)

RAW, CENTRED = ({"features": kind, "weights": "sum"} for kind in ("raw", "centred"))


def secure_sum(method: str = "DP-FedGD") -> tuple[float, ...]:
    """What distributed trust adds, by epsilon."""
    folder = "secure-sum"
    return tuple(
        mean(folder, method, epsilon=e, trust="distributed")
        - mean(folder, method, epsilon=e, trust="local")
        for e in ("0.5", "1", "5", "10")
    )


def central(epsilon: str) -> float:
    folder = "sofim-trust"
    at = {
        trust: mean(folder, "DP-FedGD", epsilon=epsilon, trust=trust)
        for trust in ("central", "local")
    }
    return at["central"] - at["local"]


def rate(epsilon: str) -> float:
    """The best rate's lead over one ten times smaller."""
    folder = "sofim-rate"
    at = {
        row["rate"]: mean(folder, "DP-FedGD", epsilon=epsilon, rate=row["rate"])
        for row in rows(folder)
    }
    top = max(at, key=lambda each: at[each])
    smaller = next(each for each in at if float(each) == pytest.approx(float(top) / 10))
    return at[top] - at[smaller]


def weights(epsilon: str) -> float:
    by = [
        mean("sofim-wide", "DP-FedGD", epsilon=epsilon, features="raw", weights=kind)
        for kind in ("sum", "average")
    ]
    return by[0] - by[1]


def centring(epsilon: str, column: str = "accuracy") -> float:
    by = [
        mean("sofim-wide", "DP-FedGD", column, epsilon=epsilon, **kind) for kind in (CENTRED, RAW)
    ]
    return by[0] - by[1]


def control(column: str, *studies: str) -> list[float]:
    """DP-FedSOFIM less its control by cell, in studies with these words in their names."""
    cells: dict[tuple[str, str], list[float]] = {}
    for row in rows("sofim-control", "control.csv"):
        if any(word in row["study"] for word in studies):
            apart = float(row[f"sofim_{column}"]) - float(row[f"control_{column}"])
            cells.setdefault((row["study"], row["cell"]), []).append(apart)
    return [statistics.fmean(each) for each in cells.values()]


FEATURES = ("cifar10", "wide", "trust", "ablation", "fashion")


def apart(column: str) -> float:
    return max(map(abs, control(column, *FEATURES)))


def against_gd(method: str) -> list[Gap]:
    """A method's differences to DP-FedGD on CIFAR-10 and Fashion-MNIST, in every folder."""
    both = ("CIFAR-10", "Fashion-MNIST")
    folders: dict[str, dict[str, tuple[str, ...]]] = {
        "sofim-cifar10": {},
        "sofim-cifar10-iid": {},
        "sofim-fashion": {},
        "sofim-wide": {},
        "sofim-backbone": {},
        "heterogeneity": {},
        "sofim-fair": {"records": both},
        "auto-development": {"records": both},
    }
    return [
        gap(folder, method, **cell)
        for folder, only in folders.items()
        for cell in cells_of(folder, **only)
    ]


def worse() -> tuple[float, ...]:
    """By how much DP-FedAdam, then EMA-only, are significantly worse by more than 0.1."""
    adam, ema = (
        sorted(-each.mean for each in against_gd(method) if each.significant and each.mean < -0.1)[
            ::-1
        ]
        for method in ("DP-FedAdam", "EMA-only")
    )
    secure = {"records": "CIFAR-10", "trust": "distributed", "epsilon": "0.5"}
    assert [f"{each:.4f}" for each in adam] == [
        f"{-lead('auto-development', 'DP-FedAdam', **secure):.4f}"
    ]
    borrowed = (
        lead("sofim-backbone", "EMA-only", epsilon="0.5"),
        lead("sofim-cifar10", "EMA-only", epsilon="0.5"),
        lead("heterogeneity", "EMA-only", setting="1,000 clients"),
    )
    assert ema[:3] == [-each for each in borrowed]
    assert len(ema) == 6
    return (*adam, *ema)


def own_searches() -> tuple[float, float, float]:
    """DP-FedSOFIM less DP-FedGD in sofim-trust, where Holm leaves all four, and at epsilon 0.5."""
    sure = [row for row in by_holm("sofim-trust") if row["method"] == "DP-FedSOFIM"]
    assert len(sure) == len(cells_of("sofim-trust")) == 4
    leads = [lead("sofim-trust", "DP-FedSOFIM", **cell) for cell in cells_of("sofim-trust")]
    small = gap("sofim-cifar10", "DP-FedSOFIM", epsilon="0.5")
    significant(small)
    return (*ends(leads), small.mean)


def within() -> tuple[float, float]:
    """How far the methods but DP-FTRL are apart in sofim-wide: the sum, then the average."""
    by_sum, by_average = (
        max(spread("sofim-wide", **cell) for cell in cells_of("sofim-wide", weights=(kind,)))
        for kind in ("sum", "average")
    )
    return by_sum, by_average


def wide_gains() -> tuple[int, float]:
    """Of sofim-wide's differences to DP-FedGD, but DP-FTRL's, what Holm's correction leaves."""
    others = [r for r in by_holm("sofim-wide") if r["method"] != "DP-FTRL"]
    at = {"epsilon": "5", "weights": "sum", "features": "raw"}
    assert [(r["method"], {key: r[key] for key in at}) for r in others] == [("EMA-only", at)]
    return len(rows("sofim-wide", "tables/paired.csv")), lead("sofim-wide", "EMA-only", **at)


def raw_leads(*folders: str) -> tuple[float, float]:
    both = ("EMA-only", "DP-FedAdam")
    found = [lead(folder, m, epsilon=e) for folder in folders for m in both for e in ("5", "10")]
    return ends(found + [lead("sofim-wide", m, epsilon="5", **RAW) for m in both])


def at_ten(records: str) -> tuple[float, float]:
    """EMA-only's and DP-FedAdam's leads, searched for the set itself."""
    return ends(
        lead("auto-development", m, records=records, trust="local", epsilon="10")
        for m in ("EMA-only", "DP-FedAdam")
    )


def medical(images: str) -> tuple[float, float]:
    """The better of DP-FedAdam and DP-FedYogi, which is best of all, less DP-FedGD."""
    leads = []
    for e in ("0.5", "1", "5", "10"):
        found = {
            m: seeds("sofim-medical", m, epsilon=e, images=images)
            for m in methods_of("sofim-medical")
        }
        most = max(map(len, found.values()))  # a method of which a run diverged is not best
        at = {m: statistics.fmean(by.values()) for m, by in found.items() if len(by) == most}
        best = max(at, key=lambda m: at[m])
        assert best in ("DP-FedAdam", "DP-FedYogi")
        leads.append(at[best] - at["DP-FedGD"])
    sure = {
        (row["epsilon"], row["images"], row["method"])
        for row in by_holm("sofim-medical")
        if row["method"] in ("DP-FedAdam", "DP-FedYogi")
    }
    assert sure == {("0.5", "X-rays", "DP-FedAdam")}
    return ends(leads)


def averaging() -> tuple[float, float]:
    raw, centred = (
        gap("sofim-wide", "DP-FedAvg", epsilon="0.5", **kind) for kind in (RAW, CENTRED)
    )
    assert not raw.significant
    assert not centred.significant
    return raw.mean, centred.mean


def correlated(folder: str) -> tuple[float, float]:
    return ends(-lead(folder, "DP-FTRL", epsilon=e) for e in ("0.5", "1", "5", "10"))


def paper(method: str, epsilon: str, round: str = "70", name: str = "sofim-cifar10") -> float:
    """A figure of Nair et al.'s tables, less DP-FedGD's there."""
    at = {
        row["method"]: float(row["accuracy"])
        for row in rows(name, "paper.csv")
        if (row["epsilon"], row["round"]) == (epsilon, round)
    }
    return at[method] - at["DP-FedGD"]


def not_reproduced() -> tuple[float, ...]:
    ours = [lead("sofim-cifar10", "DP-FedSOFIM", epsilon=e) for e in ("5", "10")]
    theirs = [paper("DP-FedSOFIM", e) for e in ("5", "10")]
    small = ("DP-SCAFFOLD", "DP-FedFC")
    return (
        *theirs,
        *ours,
        *(paper(m, "0.5") for m in small),
        *(lead("sofim-cifar10", m, epsilon="0.5") for m in small),
    )


def soon() -> tuple[int]:
    """Rounds until DP-FedAdam has 95 % of DP-FedGD's end, at epsilon 5."""
    goal = 0.95 * mean("sofim-cifar10", "DP-FedGD", epsilon="5")
    rounds = (10, 20, 30, 40, 50, 60, 70)
    return (
        next(
            r
            for r in rounds
            if mean("sofim-cifar10", "DP-FedAdam", f"round_{r}", epsilon="5") >= goal
        ),
    )


def few_rounds() -> tuple[float, ...]:
    at = [
        mean("sofim-cifar10", m, "round_10", epsilon="5")
        for m in ("DP-FedAdam", "EMA-only", "DP-FedGD")
    ]
    same = statistics.fmean(
        float(row["control_10"])
        for row in rows("sofim-control", "control.csv")
        if (row["study"], row["cell"]) == ("sofim-cifar10", "epsilon 5")
    )
    return at[0], at[1], same, at[2]


def trusts() -> tuple[float, ...]:
    gd, sofim = secure_sum(), secure_sum("DP-FedSOFIM")
    clear = mean("secure-sum", "DP-FedGD", epsilon="inf", trust="local")
    between = max(
        abs(
            mean("secure-sum", "DP-FedSOFIM", epsilon=e, trust=trust)
            - mean("secure-sum", "DP-FedGD", epsilon=e, trust=trust)
        )
        for e in ("0.5", "1", "5", "10")
        for trust in ("local", "distributed")
    )
    return (*gd, clear, *sofim, between)


def at_ends(folder: str, names: tuple[str, ...], epsilons: tuple[str, ...]) -> tuple[float, float]:
    return ends(lead(folder, m, epsilon=e) for m in names for e in epsilons)


def round_costs() -> tuple[float, ...]:
    """What the server's step of two methods adds to a round, and two whole rounds."""
    found = {row["method"]: row for row in rows("runtime", "tables/runtime.csv")}
    steps = [
        float(found[m]["step over DP-FedGD's (% of a round)"])
        for m in ("DP-FedSOFIM", "DP-FedAdam")
    ]
    assert int(float(found["DP-FedAvg"]["releases"])) == 5
    return (*steps, *(float(found[m]["of DP-FedGD's round"]) for m in ("DP-FedFC", "DP-FedAvg")))


def backbone() -> tuple[float, ...]:
    """DP-FedSOFIM's leads, those of three others at epsilon 5 and 10, and what DP-FTRL loses."""
    ours = [lead("sofim-backbone", "DP-FedSOFIM", **cell) for cell in cells_of("sofim-backbone")]
    ahead = at_ends("sofim-backbone", ("DP-FedAdam", "DP-FedYogi", "EMA-only"), ("5", "10"))
    return (*ends(ours), *ahead, *correlated("sofim-backbone"))


def cifar10() -> tuple[float, ...]:
    ahead = at_ends("sofim-cifar10", ("DP-FedAdam", "DP-FedYogi", "EMA-only"), ("5", "10"))
    level = [lead("sofim-cifar10", "DP-FedSOFIM", epsilon=e) for e in ("1", "5", "10")]
    assert max(map(abs, level)) < 0.2
    return (*ahead, -own_searches()[2], *correlated("sofim-cifar10"))


def iid() -> tuple[float, ...]:
    sofim = [lead("sofim-cifar10-iid", "DP-FedSOFIM", epsilon=e) for e in ("5", "10")]
    assert f"{sofim[0]:.1f}" == f"{sofim[1]:.1f}"
    others = [
        m
        for m in methods_of("sofim-cifar10-iid")
        if m not in ("DP-FedGD", "DP-FedSOFIM", "DP-FTRL")
    ]
    return (sofim[0], *at_ends("sofim-cifar10-iid", tuple(others), ("5", "10")))


def fashion() -> tuple[float, ...]:
    names = ("DP-FedYogi", "EMA-only", "DP-FedAdam")
    sofim = [gap("sofim-fashion", "DP-FedSOFIM", epsilon=e) for e in ("1", "5", "10")]
    significant(*sofim)
    assert f"{sofim[1].mean:.1f}" == f"{sofim[2].mean:.1f}"
    return (
        *at_ends("sofim-fashion", names, ("5", "10")),
        *at_ends("sofim-fashion", names, ("1",)),
        sofim[0].mean,
        sofim[1].mean,
    )


def ablation() -> tuple[float, ...]:
    """EMA-only's leads at epsilon 5 and 10, then both methods at 0.5."""
    folder, ours = "sofim-ablation", "DP-FedSOFIM"
    assert all(abs(lead(folder, ours, epsilon=e)) < 0.2 for e in ("1", "5", "10"))
    small = [gap(folder, method, epsilon="0.5") for method in ("EMA-only", ours)]
    significant(*small)
    return (*at_ends(folder, ("EMA-only",), ("5", "10")), *(each.mean for each in small))


def shared_cells() -> tuple[int, int]:
    """All cells of the control, and those that are not the runs of another study once more."""
    cells: dict[tuple[str, str], list[str]] = {}
    for row in rows("sofim-control", "control.csv"):
        cells.setdefault((row["study"], row["cell"]), []).append(row["sofim_last"])
    return len(cells), len(set(map(tuple, cells.values())))


def at_rho_one() -> tuple[float, float]:
    """How far DP-FedSOFIM is below DP-FedGD at rho 1 and one rate, in heterogeneity."""
    return ends(-lead("heterogeneity", "DP-FedSOFIM", **cell) for cell in cells_of("heterogeneity"))


def medical_all() -> tuple[float, ...]:
    both = [medical(images) for images in ("X-rays", "malaria")]
    for images in ("X-rays", "malaria"):
        for e in ("0.5", "1", "5", "10"):
            assert not gap("sofim-medical", "DP-FedSOFIM", epsilon=e, images=images).significant
    return tuple(each for pair in both for each in pair)


def ten_times_too_small() -> tuple[float, float]:
    return ends(rate(e) for e in ("1", "5", "10"))


def preconditioner(weighing: str, kind: str) -> tuple[float, ...]:
    return tuple(
        lead("sofim-wide", "DP-FedSOFIM", epsilon=e, features=kind, weights=weighing)
        for e in ("0.5", "5")
    )


def own_intervals() -> tuple[int, float, float]:
    """Of DP-FedSOFIM's eight differences, those whose own interval excludes 0."""
    found = {
        (kind, weighing, e): gap(
            "sofim-wide", "DP-FedSOFIM", epsilon=e, features=kind, weights=weighing
        )
        for kind in ("raw", "centred")
        for weighing in ("sum", "average")
        for e in ("0.5", "5")
    }
    sure = {at: each.mean for at, each in found.items() if each.significant}
    low, high = ("raw", "average", "5"), ("centred", "average", "0.5")
    assert set(sure) == {low, high}
    return len(found), sure[low], sure[high]


def fewer_trials() -> tuple[float, ...]:
    return tuple(
        mean("sofim-wide", "DP-FedGD", epsilon=e, **CENTRED)
        - mean("sofim-trust", "DP-FedGD", epsilon=e, trust="local")
        for e in ("0.5", "5")
    )


def printed(method: str, epsilon: str, round: str = "70", name: str = "sofim-cifar10") -> float:
    """A figure of the paper's."""
    cell = (method, epsilon, round)
    (found,) = (
        float(row["accuracy"])
        for row in rows(name, "paper.csv")
        if (row["method"], row["epsilon"], row["round"]) == cell
    )
    return found


def at_rate(rate: str, epsilon: str) -> float:
    return mean("sofim-rate", "DP-FedGD", epsilon=epsilon, rate=rate)


def sofim_seeds(epsilon: str) -> tuple[float, float]:
    pair = gap("sofim-cifar10", "DP-FedSOFIM", epsilon=epsilon)
    assert pair.std is not None
    return pair.mean, pair.std


def start() -> tuple[float, float]:
    ours = mean("sofim-cifar10", "DP-FedSOFIM", "round_10", epsilon="5") - mean(
        "sofim-cifar10", "DP-FedGD", "round_10", epsilon="5"
    )
    return ours, paper("DP-FedSOFIM", "5", "10")


def medical_control() -> tuple[float, ...]:
    found = control("last", "medical")
    assert sum(each > 0 for each in found) == 2
    return (*ends(found), statistics.fmean(found))


def small_rho() -> tuple[float, ...]:
    """The printed step at epsilon 1 and a small rho, each with its own rate."""
    return tuple(mean("sofim-rho", m, epsilon="1") for m in ("rho 0.01", "rho 0.1"))
