# SPDX-License-Identifier: Apache-2.0
"""One grid of effective rates, unlike clients, rho, patients: the study sofim-fair and its like."""

from __future__ import annotations

import gzip
import json
from typing import Any

from dpfed_lab.jobs import diverged
from tests.claims.files import at_edges, by_holm, ends, gap, lead, mean, results_of, rows

FAIR, LARGE = "lab/studies/sofim-fair/results/README.md", ("CIFAR-10", "Fashion-MNIST")


FAIR_LINES = ("EMA-only", "DP-FedAdam", *(f"DP-FedSOFIM, rho {rho}" for rho in ("0.1", "1", "10")))


def holm_marks() -> tuple[int, ...]:
    """Lines ahead and behind after Holm's correction: momentum and Adam, then DP-FedSOFIM's."""
    known = [row for row in rows("sofim-fair", "tables/paired.csv") if row["p (Holm)"]]
    sure = by_holm("sofim-fair")
    signs = [("SOFIM" in row["method"], float(row["difference (points)"]) > 0) for row in sure]
    behind = [row["method"] for row in sure if float(row["difference (points)"]) < 0]
    assert set(behind) == {"DP-FedSOFIM, rho 0.1", "DP-FedSOFIM, rho 1"}
    ahead = {(r["records"], r["epsilon"]) for r in sure if float(r["difference (points)"]) > 0}
    assert ahead == {("Fashion-MNIST", "5"), ("Fashion-MNIST", "10")}
    kinds = ((False, True), (False, False), (True, True), (True, False))
    return (len(known), *(signs.count(kind) for kind in kinds))


def fair_rate(method: str, records: str, epsilon: str) -> float:
    """The rate that was chosen in a cell."""
    chosen = json.loads((results_of("sofim-fair") / "settings.json").read_text(encoding="utf-8"))
    (rate,) = chosen[f"records {records} | epsilon {epsilon} | {method}"]["set"].values()
    return float(rate)


def same_rate() -> tuple[int, float, float]:
    """Cells where rho 10 and DP-FedGD have one effective rate; how far apart, end and round 10."""
    line = "DP-FedSOFIM, rho 10"
    cells = [
        {"records": d, "epsilon": e}
        for d in LARGE
        for e in ("0.5", "1", "5", "10")
        if abs(fair_rate(line, d, e) / 10 - fair_rate("DP-FedGD", d, e)) < 1e-9
    ]
    last, early = (
        [
            mean("sofim-fair", line, c, **cell) - mean("sofim-fair", "DP-FedGD", c, **cell)
            for cell in cells
        ]
        for c in ("accuracy", "round_10")
    )
    assert max(last) < 0
    return len(cells), -min(last), max(map(abs, early))


def fair_diverged() -> tuple[int, int]:
    lost = [row for row in rows("sofim-fair") if diverged(row)]
    assert all(row["records"] not in LARGE or row["method"].endswith("rho 0.1") for row in lost)
    gone = ["SOFIM" in row["method"] for row in lost]
    return gone.count(True), gone.count(False)


def chosen_diverged() -> tuple[int]:
    """Entries of the search of which every trial diverged."""
    trials: dict[str, list[dict[str, Any]]] = {}
    with gzip.open(results_of("sofim-fair") / "runs.jsonl.gz", "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            if row["stage"] == "tuning":
                trials.setdefault(row["entry"], []).append(row)
    gone = [entry for entry, found in trials.items() if all(map(diverged, found))]
    assert all("SOFIM" in entry for entry in gone)
    return (len(gone),)


def fair_edges() -> tuple[int, ...]:
    """Entries at an edge, and all; those at the smallest rate: all, on small sets, by method."""
    found = at_edges("sofim-fair")
    largest = [row for row in found if row["setting"] == "server.1.rate = 3"]
    assert [(r["records"], r["epsilon"], r["method"]) for r in largest] == [
        ("Fashion-MNIST", "5", "EMA-only"),
        ("Fashion-MNIST", "10", "EMA-only"),
    ]
    low = [row for row in found if row not in largest]
    small = [row for row in low if row["records"] not in LARGE]
    ours = [row for row in low if "SOFIM" in row["method"]]
    plain = [row for row in low if row["method"] == "DP-FedGD"]
    every = rows("sofim-fair", "tables/settings.csv")
    return len(found), len(every), *(len(each) for each in (low, small, ours, plain))


def diverged_by_rho() -> tuple[int, ...]:
    """Diverged runs at rho 0.1, 1 and 10, and with the warm-up; none on the large sets."""
    found = [row for row in rows("sofim-fair") if diverged(row)]
    assert not any(row["records"] in LARGE for row in found)
    lines = (*FAIR_LINES[2:], "DP-FedSOFIM, corrected, warm-up")
    return tuple(sum(row["method"] == line for row in found) for line in lines)


UNLIKE = "lab/studies/heterogeneity/results/README.md"


def unlike(method: str, *settings: str) -> tuple[float, ...]:
    return tuple(mean("heterogeneity", method, setting=each) for each in settings)


def unlike_leads(method: str, *settings: str) -> tuple[float, ...]:
    return tuple(lead("heterogeneity", method, setting=each) for each in settings)


def unlike_cells() -> tuple[float, ...]:
    """Cells; DP-FedSOFIM is below in all, after Holm in some; where both others are ahead."""
    cells = list(dict.fromkeys(row["setting"] for row in rows("heterogeneity")))
    assert max(unlike_leads("DP-FedSOFIM", *cells)) < 0
    sure = {(row["setting"], row["method"]): row for row in by_holm("heterogeneity")}
    below = [at for at in sure if at[1] == "DP-FedSOFIM"]
    both = [cell for cell in cells if {(cell, "EMA-only"), (cell, "DP-FedAdam")} <= set(sure)]
    assert not {
        "alpha 0.1",
        "1,000 clients",
        "100 clients, 30 % a round",
        "100 clients, 10 % a round",
    } & set(both)
    leads = [v for m in ("EMA-only", "DP-FedAdam") for v in unlike_leads(m, *both)]
    return len(cells), len(below), len(both), *ends(leads)


def few_at_a_time() -> tuple[float, ...]:
    few = ("100 clients, 30 % a round", "100 clients, 10 % a round")
    for method in ("EMA-only", "DP-FedAdam"):
        assert not any(gap("heterogeneity", method, setting=each).significant for each in few)
    return unlike("DP-FedGD", "100 clients", *few)


def unlike_runs() -> tuple[int, int]:
    return len(rows("heterogeneity", "tuning.csv")), len(rows("heterogeneity"))


def beta_rho() -> tuple[float, ...]:
    """sofim-beta: the level pairs' largest distance, the worst pair, then the average alone."""
    study, both = "sofim-beta", ("2", "10")
    pairs = [f"beta {b}, rho {r}" for b in ("0.5", "0.9", "0.99") for r in ("0.1", "1", "10")]
    level = [p for p in pairs if p.endswith("rho 10") or p == "beta 0.99, rho 1"]
    assert not any(gap(study, p, epsilon=e).low > 0 for p in pairs[1:] for e in both)
    far = max(abs(lead(study, p, epsilon=e)) for p in level for e in both)
    wild = sum(diverged(r) for r in rows(study) if (r["method"], r["epsilon"]) == (pairs[0], "2"))
    alone = "EMA-only, beta 0.5"
    return (
        far,
        wild,
        -lead(study, pairs[0], epsilon="10"),
        lead(study, alone, epsilon="10"),
        lead(study, alone, epsilon="2"),
    )


def rho() -> tuple[float, ...]:
    """The spread from rho 0.5 on, and what is below."""
    kept = ("rho 0.5", "rho 1", "rho 2", "rho 5", "rho 10")
    by = [[mean("sofim-rho", m, epsilon=e) for m in kept] for e in ("1", "5")]
    assert not any(map(diverged, rows("sofim-rho")))
    low = [mean("sofim-rho", m, epsilon=e) for e in ("1", "5") for m in ("rho 0.01", "rho 0.1")]
    return (max(max(each) - min(each) for each in by), *low, by[1][1])


PATIENTS = "sofim-patients"


def patients() -> tuple[float, ...]:
    names = ("DP-FedAdam", "EMA-only", "DP-FedGD")
    lost = [row for row in rows(PATIENTS) if diverged(row)]
    assert {(row["epsilon"], row["method"]) for row in lost} == {("10", "DP-FedSOFIM, rho 1")}
    found = [mean(PATIENTS, name, epsilon=e) for name in names for e in ("1", "10")]
    ours = [mean(PATIENTS, "DP-FedSOFIM, rho 1", epsilon=e) for e in ("1", "10")]
    assert {row["method"] for row in by_holm(PATIENTS)} == {"DP-FedSOFIM, rho 1"}
    return (*found, ours[0], -lead(PATIENTS, "DP-FedSOFIM, rho 1", epsilon="1"), ours[1], len(lost))
