# SPDX-License-Identifier: Apache-2.0
"""docs/papers.md: the papers' tables as they are kept, errata that follow from them, and lemmas.

A table is checked against what its paper says about it elsewhere: totals, another table with the
same run, the text that quotes a cell or names a winner. Where the two disagree, that is an erratum.
"""

from __future__ import annotations

import csv
import math
import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from dpfed_lab.significance import McNemar
from dpfed_lab.study import PAPERS, STUDIES, load_study

ROOT = Path(__file__).parents[2]
PAGE = " ".join((ROOT / "docs/papers.md").read_text(encoding="utf-8").split())

Rows = list[dict[str, str]]
EPSILONS = ("0.5", "1", "5", "10")


def printed(name: str) -> Rows:
    """A table as it is kept: with a study, or among the papers' own."""
    beside = STUDIES / name / "paper.csv"
    path = beside if beside.exists() else PAPERS / f"{name}.csv"
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def accuracy(name: str, **cell: str) -> float:
    """The one figure of a table that is in this cell."""
    (row,) = (row for row in printed(name) if all(row[key] == cell[key] for key in cell))
    return float(row["accuracy"])


def by_method(name: str, **cell: str) -> dict[str, float]:
    return {
        row["method"]: float(row["accuracy"])
        for row in printed(name)
        if all(row[key] == cell[key] for key in cell)
    }


def best(figures: dict[str, float]) -> str:
    return max(figures, key=lambda method: figures[method])


# --------------------------------------------------------------------- Nair et al.: its partitions


def cells(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts by client and class, the clients' totals, and the line of totals with its own."""
    *lines, last = ([int(row[key]) for key in list(row)[1:]] for row in printed(name))
    table = np.array(lines)
    return table[:, :-1], table[:, -1], np.array(last)


def test_table_13() -> None:
    """Its cells agree with its row totals and not with its column totals."""
    counts, clients, totals = cells("nair-table-13")
    assert counts.shape == (20, 9)
    assert (counts.sum(1) == clients).all()
    assert clients.sum() == 89_996
    assert totals[:-1].sum() == totals[-1] == 96_844
    assert sum(counts.sum(0) != totals[:-1]) == 6
    assert (clients.min(), clients.max(), round(clients.std())) == (1045, 9986, 2526)


def test_table_14_adds_up() -> None:
    """Rows, columns, and the statistics that stand below it."""
    counts, clients, totals = cells("nair-table-14")
    assert counts.shape == (20, 10)
    assert (counts.sum(1) == clients).all()
    assert (counts.sum(0) == totals[:-1]).all()
    assert clients.sum() == totals[-1] == 50_000
    assert (clients.min(), clients.max(), round(clients.std(), 1)) == (891, 3498, 779.6)
    assert sorted(map(int, np.flatnonzero((counts == 0).sum(1) == 2))) == [4, 18]


# ------------------------------------------------------------------- Nair et al.: accuracy by round

MAIN = {
    ("CIFAR-10", "ResNet-20"): "sofim-cifar10",
    ("PathMNIST", "ResNet-20"): "sofim-pathmnist-resnet20",
    ("CIFAR-10", "VGG-16"): "sofim-backbone",
    ("PathMNIST", "VGG-16"): "sofim-pathmnist-vgg16",
}
SOFIM = "DP-FedSOFIM"


def wins(name: str, round: str) -> list[str]:
    """The epsilons at which DP-FedSOFIM is first."""
    return [e for e in EPSILONS if best(by_method(name, epsilon=e, round=round)) == SOFIM]


@pytest.mark.parametrize("name", [*MAIN.values(), "sofim-cifar10-iid", "nair-table-9"])
def test_the_tables_are_whole(name: str) -> None:
    """Every method at four epsilons and seven rounds; the iid tables lack two methods."""
    methods = {row["method"] for row in printed(name)}
    assert len(methods) == (9 if name in MAIN.values() else 7)
    assert len(printed(name)) == 28 * len(methods)


@pytest.mark.parametrize(
    ("name", "epsilon", "round", "method", "said"),
    [
        ("sofim-cifar10", "5", "10", SOFIM, 61.05),
        ("sofim-cifar10", "5", "30", SOFIM, 66.89),
        ("sofim-cifar10", "10", "10", "DP-FTRL", 27.12),
        ("sofim-cifar10", "0.5", "20", "DP-FTRL", 53.91),
        ("sofim-cifar10", "0.5", "70", "DP-SCAFFOLD", 49.78),
        ("sofim-pathmnist-resnet20", "5", "10", "DP-FedAdam", 47.75),
        ("sofim-pathmnist-resnet20", "10", "10", "DP-FTRL", 24.22),
        ("sofim-pathmnist-resnet20", "1", "10", "DP-AdaFedProx", 59.81),
        ("sofim-pathmnist-resnet20", "10", "70", "DP-SCAFFOLD", 70.13),
        ("sofim-backbone", "10", "20", SOFIM, 56.01),
        ("sofim-backbone", "10", "70", "DP-FedGD", 54.71),
        ("sofim-backbone", "0.5", "70", "DP-FTRL", 52.38),
        ("sofim-backbone", "0.5", "70", SOFIM, 51.97),
        ("sofim-pathmnist-vgg16", "1", "70", "DP-FedAdam", 60.80),
        ("sofim-pathmnist-vgg16", "5", "70", "DP-FedYogi", 65.38),
        ("sofim-ablation", "5", "70", "EMA-only", 67.97),
        ("sofim-ablation", "0.5", "70", SOFIM, 58.43),
    ],
)
def test_cells_are_what_the_text_quotes(
    name: str, epsilon: str, round: str, method: str, said: float
) -> None:
    """Sections 5.3.1 to 5.3.4 and Appendix H.1."""
    assert accuracy(name, epsilon=epsilon, round=round, method=method) == said


def test_leads_are_what_the_text_quotes() -> None:
    """Sections 5.3.1 and 6: over DP-FedGD at round 10 and round 70."""
    for name, epsilon, round, lead in (
        ("sofim-pathmnist-resnet20", "0.5", "10", 5.34),
        ("sofim-pathmnist-resnet20", "10", "10", 12.76),
        ("sofim-cifar10", "10", "70", 4.46),
        ("sofim-pathmnist-vgg16", "10", "70", 5.70),
    ):
        found = by_method(name, epsilon=epsilon, round=round)
        assert found[SOFIM] - found["DP-FedGD"] == pytest.approx(lead)


def test_all_eight() -> None:
    won = {where: len(wins(name, "70")) for where, name in MAIN.items()}
    assert won[("PathMNIST", "ResNet-20")] + won[("PathMNIST", "VGG-16")] == 7
    assert wins(MAIN["CIFAR-10", "ResNet-20"], "70") == ["1", "10"]
    assert wins(MAIN["CIFAR-10", "VGG-16"], "70") == ["1", "5", "10"]
    assert sum(won.values()) == 12, "what the paper counts in all"


def test_first_at_round_10() -> None:
    """Section 6: seven of eight with ResNet-20, which holds; 5.3.1: five of eight with VGG-16."""
    early = {where: wins(name, "10") for where, name in MAIN.items()}
    assert sum(len(early[data, "ResNet-20"]) for data in ("CIFAR-10", "PathMNIST")) == 7
    assert early["CIFAR-10", "VGG-16"] == []
    assert early["PathMNIST", "VGG-16"] == ["5", "10"]


def test_the_notes_early_deficit() -> None:
    """The notes: 4 to 6 behind DP-FedGD at round 10 for small epsilon. The tables: once."""
    found = [by_method(name, epsilon=e, round="10") for name in MAIN.values() for e in ("0.5", "1")]
    leads = sorted(at[SOFIM] - at["DP-FedGD"] for at in found)
    assert leads[0] == pytest.approx(-0.42)
    assert leads[1] > 0


def test_overtaken_by_round_20() -> None:
    """Where DP-AdaFedProx leads DP-FedSOFIM at round 10, and still does at round 20."""
    ahead = {}
    for where, name in MAIN.items():
        for e in EPSILONS:
            at = {r: by_method(name, epsilon=e, round=r) for r in ("10", "20")}
            gaps = [at[r]["DP-AdaFedProx"] - at[r][SOFIM] for r in ("10", "20")]
            if gaps[0] > 0:
                ahead[(*where, e)] = round(gaps[1], 2)
    assert len(ahead) == 7
    assert {where: gap for where, gap in ahead.items() if gap > 0} == {
        ("CIFAR-10", "VGG-16", "0.5"): 1.19,
        ("PathMNIST", "VGG-16", "0.5"): 0.07,
    }


def test_led_throughout() -> None:
    """Two of the four configurations that it does not win: who leads, by round."""
    led = {
        name: [best(by_method(name, epsilon="0.5", round=str(r))) for r in range(10, 80, 10)]
        for name in ("sofim-cifar10", "sofim-backbone")
    }
    assert led["sofim-backbone"] == ["DP-FTRL"] * 7
    assert led["sofim-cifar10"][1:3] == ["DP-FTRL"] * 2


def test_the_largest_early_lead() -> None:
    leads = {
        e: accuracy("sofim-cifar10", method=SOFIM, epsilon=e, round="10")
        - accuracy("sofim-cifar10", method="DP-FedGD", epsilon=e, round="10")
        for e in EPSILONS
    }
    assert leads["5"] == pytest.approx(20.31)
    assert leads["10"] == pytest.approx(20.73) == max(leads.values())


def test_the_weakest() -> None:
    """Table 4, round 70: DP-SCAFFOLD at epsilon 0.5, and not at 1."""
    for epsilon, last in (("0.5", "DP-SCAFFOLD"), ("1", "DP-FTRL")):
        at = by_method("sofim-pathmnist-resnet20", epsilon=epsilon, round="70")
        assert min(at, key=lambda method: at[method]) == last


def test_fedavg_is_not_fedgd() -> None:
    """Table 4, at round 10 and epsilon 0.5, at round 70 and epsilon 1."""
    for round, epsilon in (("10", "0.5"), ("70", "1")):
        at = by_method("sofim-pathmnist-resnet20", round=round, epsilon=epsilon)
        assert abs(at["DP-FedAvg"] - at["DP-FedGD"]) > 0.5
        assert f"{at['DP-FedAvg']:.2f} and {at['DP-FedGD']:.2f}" in PAGE


# ------------------------------------------------- Nair et al.: ablation, rho, and which step it is

EMA, PLAIN = "EMA-only", "DP-FedGD"


def test_two_tables_of_one_algorithm() -> None:
    """Table 10 against Table 3: gradient-only is DP-FedGD, and the full method is the method."""
    for epsilon, method, apart in (("5", PLAIN, 6.9), ("10", PLAIN, 9.4), ("1", SOFIM, 2.1)):
        alone = accuracy("sofim-ablation", method=method, epsilon=epsilon, round="70")
        whole = accuracy("sofim-cifar10", method=method, epsilon=epsilon, round="70")
        assert round(whole - alone, 1) == apart


def test_the_rho_of_the_ablation() -> None:
    """Its full row is Table 12's at rho 10 for epsilon 1 and 0.5 for epsilon 5, on both sets."""
    for full, rho in (
        ("sofim-ablation", "sofim-rho"),
        ("nair-table-11", "nair-table-12-pathmnist"),
    ):
        for epsilon, row in (("1", "rho 10"), ("5", "rho 0.5")):
            (ours,) = (r for r in printed(full) if (r["method"], r["epsilon"]) == (SOFIM, epsilon))
            (same,) = (r for r in printed(rho) if (r["method"], r["epsilon"]) == (row, epsilon))
            assert (ours["accuracy"], ours["std"]) == (same["accuracy"], same["std"])


def test_the_best_rho_is_what_the_text_says() -> None:
    for name, at_5 in (("sofim-rho", "rho 1"), ("nair-table-12-pathmnist", "rho 0.5")):
        found = by_method(name, epsilon="1")
        assert list(found.values()) == sorted(found.values()), "rises with rho"
        assert best(by_method(name, epsilon="5")) == at_5


def sherman_morrison(m: np.ndarray, g: np.ndarray, rho: float) -> np.ndarray:
    """(m m^T + rho I)^{-1} g by the dense inverse: no formula of the library."""
    return np.linalg.solve(np.outer(m, m) + rho * np.eye(len(m)), g)


def test_a_step_that_trains_at_any_rho() -> None:
    """Algorithm 1's H G against H M as Tables 10 and 12 have it, for one rate at every rho.

    Across the momentum H G is G / rho: from rho 10 to rho 0.01 it grows a thousandfold, and no one
    rate fits. H M is M / (rho + |M|^2), never longer than 1 / (2 sqrt rho), and follows M at every
    rho; Table 12 has 51 % at rho 0.01.
    """
    random = np.random.default_rng(0)
    m = random.normal(size=40)
    m *= 2.0 / np.linalg.norm(m)
    across = random.normal(size=40)
    across -= across @ m / (m @ m) * m
    across *= 2.0 / np.linalg.norm(across)
    for rho in (0.01, 0.1, 1.0, 10.0):
        printed_step = sherman_morrison(m, across, rho)
        assert np.allclose(printed_step, across / rho), (
            "what momentum has not seen is divided by rho"
        )
        momentum = sherman_morrison(m, m, rho)
        assert np.allclose(momentum, m / (rho + m @ m))
        assert np.linalg.norm(momentum) <= 0.5 / np.sqrt(rho) + 1e-12
    apart = [np.linalg.norm(sherman_morrison(m, across, rho)) for rho in (0.01, 10.0)]
    assert apart[0] / apart[1] == pytest.approx(1000)
    near = [np.linalg.norm(sherman_morrison(m, m, rho)) for rho in (0.01, 10.0)]
    assert near[0] / near[1] < 4


def test_the_ablation_is_a_ladder_of_one_step() -> None:
    """Without Sherman-Morrison the row is momentum, M / rho; H G without it would be G / rho.

    So the rows differ by one part each if the full step is H M; with H G the middle row has
    momentum, which neither of its neighbours applies.
    """
    found = {e: by_method("sofim-ablation", epsilon=e, round="70") for e in EPSILONS}
    near = [e for e in EPSILONS if abs(found[e][SOFIM] - found[e][EMA]) < 1]
    assert near == ["0.5", "5", "10"], "the full row is the momentum row, but at epsilon 1"
    assert all(found[e][SOFIM] - found[e][PLAIN] > 8 for e in ("1", "5", "10"))
    spread = [accuracy("sofim-rho", epsilon="1", method=f"rho {rho}") for rho in ("0.01", "0.1")]
    assert abs(spread[0] - found["1"][PLAIN]) < 2, "a thousandth of rho costs no more than that"
    assert min(spread) > 50


# ------------------------------------------------------------------------------ McNemar's tests


@pytest.mark.parametrize(("name", "tested"), [("nair-table-15", 10_000), ("nair-table-16", 7180)])
def test_the_statistics_follow_from_the_counts(name: str, tested: int) -> None:
    """Each line's chi2, p, accuracy and verdict, from the two counts."""
    assert len(printed(name)) == 64
    for row in printed(name):
        b, c = int(row["n10"]), int(row["n01"])
        pair = McNemar(seeds=1, b=b, c=c)
        assert pair.chi2 == pytest.approx(float(row["chi2"]), abs=6e-4)
        p = row["p"]
        assert pair.p < 1e-4 if p.startswith("<") else abs(pair.p - float(p)) < 6e-5
        assert float(row["sofim"]) - float(row["accuracy"]) == pytest.approx(
            (b - c) / tested, abs=1.1e-4
        )
        said = "" if pair.p >= 0.05 else "better" if b > c else "worse"
        assert row["sofim is"] == said


def not_better(name: str, backbone: str, epsilon: str) -> set[str]:
    return {
        row["method"]
        for row in printed(name)
        if (row["backbone"], row["epsilon"]) == (backbone, epsilon) and row["sofim is"] != "better"
    }


def test_table_15() -> None:
    assert not_better("nair-table-15", "ResNet-20", "1") == {"DP-FedGD", "DP-FedAvg"}
    for epsilon in ("1", "5", "10"):
        assert not_better("nair-table-15", "VGG-16", epsilon) == set(), "as Appendix J says"


def test_table_16() -> None:
    assert not_better("nair-table-16", "VGG-16", "10") == {"DP-FedYogi"}
    assert not_better("nair-table-16", "ResNet-20", "10") == set()


# ------------------------------------------------------------------------- Nair et al.: time


def test_table_7_is_what_the_text_says() -> None:
    """VGG-16 3.5 to 4 times as long, but for lines that print two digits; 6 and 4 to 5 times."""
    columns = [key for key in printed("nair-table-7")[0] if "," in key]
    times = {
        (row["method"], row["epsilon"]): [float(row[key]) for key in columns]
        for row in printed("nair-table-7")
    }
    assert len(times) == 13
    sofim = times[SOFIM, ""]
    assert times["DP-SCAFFOLD", "5"][3] / sofim[3] == pytest.approx(6.5, abs=0.1)
    prox = [a / b for a, b in zip(times["DP-AdaFedProx", "from 1"], sofim, strict=True)]
    assert all(4.4 < each < 5 for each in prox)


# ---------------------------------------------------------------------- Krouka et al.: its tables

KROUKA = {
    "krouka-table-5": (4, 5),
    "krouka-table-8": (5, 4),
    "krouka-table-10": (4, 5),
    "krouka-table-11": (4, 4),
}
"""Methods, and numbers of clients."""


@pytest.mark.parametrize(("name", "shape"), KROUKA.items())
def test_tables_by_clients_are_whole(name: str, shape: tuple[int, int]) -> None:
    found = printed(name)
    assert len({row["method"] for row in found}) == shape[0]
    assert len({row["clients"] for row in found}) == shape[1]
    assert len({row["epsilon"] for row in found}) == 9
    assert len(found) == 9 * shape[0] * shape[1]
    assert max(abs(gap) for gap in products(name)) < (0.02 if name != "krouka-table-8" else 0.1)


def products(name: str) -> list[float]:
    """How far clients times records each is from the largest of a table, as a part of it."""
    sizes = {int(row["clients"]) * int(row["records"]) for row in printed(name)}
    return [size / max(sizes) - 1 for size in sizes]


def test_clients_times_records() -> None:
    """6.4: the product stays the same; in Table 8 10 x 2818 is 8 % short of 250 x 123."""
    assert min(products("krouka-table-8")) == pytest.approx(28_180 / 30_750 - 1)
    assert sorted(products("krouka-table-8"))[1] > -0.01


def test_fewer_records_at_small_epsilon() -> None:
    """6.4 on Table 5: with more clients DP-FedFC falls at epsilon 0.1. It does not."""
    found = {
        int(row["clients"]): float(row["accuracy"])
        for row in printed("krouka-table-5")
        if (row["method"], row["epsilon"]) == ("DP-FedFC", "0.1")
    }
    assert [found[n] for n in sorted(found)] == [39.0, 38.2, 38.4, 40.1, 39.0]


def test_the_study_has_the_papers_line() -> None:
    """fednew-adult-sum's figures are Table 8's for 10 clients."""
    for row in printed("fednew-adult-sum"):
        cell = {key: row[key] for key in ("epsilon", "method")}
        assert float(row["accuracy"]) == accuracy("krouka-table-8", clients="10", **cell)


# ---------------------------------------------------------------- Krouka et al.: noise by shares


def test_variance_of_the_mean() -> None:
    """(4.3): n shares of variance C^2 sigma^2 / n, added and divided by n, as a matrix product.

    The paper prints C^2 sigma^2, what the sum has (4.2).
    """
    n, clip, sigma = 50, 2.0, 3.0
    covariance = clip**2 * sigma**2 / n * np.eye(n)
    mean, total = np.full(n, 1 / n), np.ones(n)
    assert mean @ covariance @ mean == pytest.approx(clip**2 * sigma**2 / n**2)
    assert total @ covariance @ total == pytest.approx(clip**2 * sigma**2)


def test_a_dual_keeps_its_share_of_noise() -> None:
    """Given the first sum, the second client-wise state is not a function of what was released.

    The same first sum from other shares gives the first client another dual: the adaptive
    composition of (4.2) needs each round's function to depend on releases alone. (In the sum over
    clients duals add up to 0; with Hessians that differ they do not.)
    """
    rho, gamma, hessian = 1.0, 2.0, np.array([3.0, 0.0, 0.0])
    x = np.array([1.0, 0.0, 0.0])
    first = np.array([0.5, -0.2, 0.1])
    other = first + np.array([0.4, -0.4, 0.0])
    seconds = []
    for shares in (first, other):
        sent = x / (hessian + gamma) + shares
        y = sent.mean()
        dual = rho * (sent - y)
        seconds.append(float(((x - dual + rho * y) / (hessian + gamma)).sum()))
        assert sent.sum() == pytest.approx(float((x / (hessian + gamma) + first).sum()))
    assert abs(seconds[0] - seconds[1]) > 0.05


def lemma_15(epsilon: float, mu: float) -> float:
    """Its delta, with sqrt(T) Delta / sigma as mu."""
    below, above = -epsilon / mu + mu / 2, -epsilon / mu - mu / 2
    return 0.5 * (
        math.erfc(-below / math.sqrt(2)) - math.exp(epsilon) * math.erfc(-above / math.sqrt(2))
    )


@pytest.mark.parametrize("name", ["fednew-adult-sum", "fednew-fashion-sum"])
def test_the_sums_epsilon_and_the_servers(name: str) -> None:
    """What a study calls epsilon is the sum's; ten shares of its noise are priced one by one."""
    study = load_study(name)
    delta = study.base["privacy"]["delta"]
    assert study.base["data"]["partition"]["clients"] == 10
    (axis,) = study.axes
    for label, changes in axis.choices.items():
        low, high = 1e-3, 10.0
        for _ in range(60):
            mu = (low + high) / 2
            low, high = (mu, high) if lemma_15(float(label), mu) < delta else (low, mu)
        own = lemma_15(changes["privacy.epsilon"], math.sqrt(10) * mu)
        assert own == pytest.approx(delta, rel=1e-4)
        assert f"{changes['privacy.epsilon']:.3g}" in study.about


# ------------------------------------------------------------------------- DP-FedAdamW: its tables

ADAMW = "DP-FedAdamW"


def test_it_is_first_where_the_text_says() -> None:
    """Tables 10, 11, 12: in every column."""
    for name, keys in (
        ("fedadamw-table-10", ("model", "alpha")),
        ("fedadamw-table-11", ("alpha", "sigma")),
        ("fedadamw-table-12", ("data", "alpha")),
    ):
        columns = {tuple(row[key] for key in keys) for row in printed(name)}
        assert len(columns) == (8 if name.endswith("11") else 4)
        for column in columns:
            assert best(by_method(name, **dict(zip(keys, column, strict=True)))) == ADAMW


@pytest.mark.parametrize(
    ("name", "cell", "said"),
    [
        ("fedadamw-table-10", {"model": "Swin-Base", "alpha": "0.1", "method": ADAMW}, 90.68),
        ("fedadamw-table-10", {"model": "Swin-Base", "alpha": "0.1", "method": "DP-FedSAM"}, 89.82),
        ("fedadamw-table-10", {"model": "Swin-Base", "alpha": "0.1", "method": "DP-FedAvg"}, 88.23),
        ("fedadamw-table-12", {"data": "CIFAR-100", "alpha": "0.6", "method": "AdaDPS"}, 44.23),
        ("fedadamw-table-12", {"data": "Tiny-ImageNet", "alpha": "0.1", "method": ADAMW}, 19.19),
    ],
)
def test_cells_are_what_the_supplement_quotes(name: str, cell: dict[str, str], said: float) -> None:
    assert accuracy(name, **cell) == said


def test_more_noise_costs_every_method() -> None:
    """Table 11, by sigma."""
    lines = {(row["alpha"], row["method"]) for row in printed("fedadamw-table-11")}
    assert len(lines) == 12
    for alpha, method in lines:
        found = [
            accuracy("fedadamw-table-11", alpha=alpha, method=method, sigma=sigma)
            for sigma in ("0.5", "1", "1.5", "2")
        ]
        assert found == sorted(found, reverse=True)


def test_two_tables_have_the_default_betas() -> None:
    """Table 14's default line is Table 11's at sigma 1 and alpha 0.1, and its best."""
    for method in ("DP-LocalAdamW", ADAMW):
        default = accuracy("fedadamw-table-14", beta1="0.9", beta2="0.999", method=method)
        assert default == accuracy("fedadamw-table-11", alpha="0.1", sigma="1", method=method)
        assert default == max(
            float(row["accuracy"])
            for row in printed("fedadamw-table-14")
            if row["method"] == method
        )


def test_the_overhead_follows_from_the_blocks() -> None:
    """Table 13: a float32 for each block, and blocks over parameters, to the digits printed."""
    assert len(printed("fedadamw-table-13")) == 3
    for row in printed("fedadamw-table-13"):
        blocks, size = int(row["blocks"]), float(row["parameters (M)"])
        assert 4 * blocks / 1024 == pytest.approx(float(row["payload (KB)"]), abs=0.06)
        assert blocks / size / 1e6 == pytest.approx(float(row["ratio"]), rel=0.05)


# --------------------------------------------------------- Algorithm 2 of DP-FedAdamW's supplement


@pytest.mark.parametrize("clip", [0.1, 1.0, 10.0])
def test_noise_of_a_mean(clip: float) -> None:
    """Line 11's noise over what one record moves the mean by is sigma only for C = 1."""
    sigma, size = 1.3, 50
    moved, printed = clip / size, clip / size * sigma * clip
    assert printed / moved == pytest.approx(sigma * clip)
    assert (printed / moved < sigma) == (clip < 1)


def test_decay() -> None:
    """Without a gradient, line 16 makes weights grow, and AdamW makes them shrink."""
    rate, decay = 0.1, 0.01
    printed = adamw = 1.0
    for _ in range(100):
        printed -= rate * (0.0 - decay * printed)
        adamw -= rate * decay * adamw
    assert printed > 1.1
    assert adamw < 0.91


# ------------------------------------------------------------------------------- what does hold


def test_lemma_c1_of_nair() -> None:
    """White noise through a moving average keeps (1 - beta) / (1 + beta) of its variance."""
    for beta in (0.5, 0.9, 0.95, 0.99):
        weights = (1 - beta) * beta ** np.arange(5000)
        assert (weights**2).sum() == pytest.approx((1 - beta) / (1 + beta))
        early = (weights[:10] ** 2).sum()
        assert early < (1 - beta) / (1 + beta), "an upper bound from the first round on"


@pytest.mark.parametrize(("total", "drawn"), [(5, 1), (6, 3), (7, 6), (4, 4)])
def test_lemma_2_of_fedadamw(total: int, drawn: int) -> None:
    """The mean square of a sampled mean, over all subsets."""
    v = np.random.default_rng(total).normal(size=(total, 3))
    squares = [np.sum(v[list(each)].mean(0) ** 2) for each in combinations(range(total), drawn)]
    centre = v.mean(0)
    spread = np.mean(np.sum((v - centre) ** 2, 1))
    share = (total - drawn) / (drawn * (total - 1))
    assert np.mean(squares) == pytest.approx(centre @ centre + share * spread)


# ------------------------------------------------------------------------------------- the page


def test_every_test_that_the_page_names_is_here() -> None:
    named = set(re.findall(r"\btest_[a-z0-9_]+(?!\.py)\b", PAGE)) - set(
        re.findall(r"(test_\w+)\.py", PAGE)
    )
    assert len(named) > 8
    assert {each for each in named if each not in globals()} == set()
