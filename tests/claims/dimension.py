# SPDX-License-Identifier: Apache-2.0
"""The size of a model: lab/studies/dimension/results and lab/studies/dimension-newton/results."""

from __future__ import annotations

import json

from dpfed_lab.significance import Gap
from tests.claims.files import by_holm, gap, lead, mean, results_of, rows

SIZE = "lab/studies/dimension/results/README.md"
SIZES = ("650", "1,290", "2,570", "5,130", "12,810", "20,010")


def sizes(method: str) -> tuple[float, ...]:
    """The accuracies of a method from the smallest to the largest model."""
    return tuple(mean("dimension", method, parameters=p) for p in SIZES)


def size_leads(method: str, other: str = "DP-FedGD") -> list[Gap]:
    return [gap("dimension", method, other, parameters=p) for p in SIZES]


def sure_by_size(method: str) -> tuple[int, int]:
    """Sizes at which a method is ahead of and behind DP-FedGD after Holm's correction."""
    sure = [
        float(row["difference (points)"]) for row in by_holm("dimension") if row["method"] == method
    ]
    return sum(each > 0 for each in sure), sum(each < 0 for each in sure)


def cost(method: str, parameters: str, column: str) -> float:
    (row,) = (
        row
        for row in rows("dimension", "tables/cost.csv")
        if row["method"] == method and row["parameters"] == parameters.replace(",", "")
    )
    return float(row[column])


def newton_at(method: str, parameters: str = "650") -> float:
    return mean("dimension-newton", method, parameters=parameters)


def without_a_matrix() -> tuple[float, float]:
    """DP-FedAuto's lead over DP-FedGD at the two sizes at which it sends no matrix."""
    leads = [lead("dimension", "DP-FedAuto", parameters=p) for p in SIZES[-2:]]
    for parameters in SIZES[-2:]:  # 30 rounds of updates, but for the mean's: no f x f numbers
        assert cost("DP-FedAuto", parameters, "sent") < cost("DP-FedGD", parameters, "sent")
    return leads[0], leads[1]


def beside_gd() -> tuple[float, float]:
    """DP-FedSOFIM from DP-FedGD where both have one rate, and where the search gave it another."""
    chosen = json.loads((results_of("dimension") / "settings.json").read_text(encoding="utf-8"))
    rates = {
        (p, m): next(iter(chosen[f"parameters {p} | {m}"]["set"].values()))
        for p in SIZES
        for m in ("DP-FedGD", "DP-FedSOFIM")
    }
    leads = {p: lead("dimension", "DP-FedSOFIM", parameters=p) for p in SIZES}
    other = [p for p in SIZES if rates[p, "DP-FedGD"] != rates[p, "DP-FedSOFIM"]]
    assert other == ["2,570"]
    assert (rates["2,570", "DP-FedGD"], rates["2,570", "DP-FedSOFIM"]) == (30.0, 10.0)
    return max(abs(leads[p]) for p in SIZES if p not in other), leads["2,570"]
