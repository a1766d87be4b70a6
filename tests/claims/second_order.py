# SPDX-License-Identifier: Apache-2.0
"""Krouka et al. 2025 and Auddy et al. 2026: DP-FedNew, DP-FedFC, FedNewton, FedHybrid."""

from __future__ import annotations

import statistics
from functools import partial

from dpfed_lab.jobs import diverged
from tests.claims.files import by_holm, ends, gap, lead, mean, rows, significant


def momentum_or_curvature() -> tuple[float, ...]:
    """EMA-only, then DP-FedFC, by epsilon; no difference between the two is significant."""
    folder, both = "fednew-synthetic", ("EMA-only", "DP-FedFC")
    for e in ("0.3", "1", "10"):
        assert not gap(folder, "DP-FedFC", "EMA-only", epsilon=e).significant
    return tuple(mean(folder, method, epsilon=e) for method in both for e in ("0.3", "1", "10"))


def on_adult(
    method: str, other: str, epsilon: str, of: str = "records", folder: str = "fednew-adult"
) -> tuple[float, ...]:
    """A method less another one with 10 and 100 clients; with 100 where whole clients count."""
    counts = ("10", "100") if of == "records" else ("100",)
    return tuple(
        lead(folder, method, other, epsilon=epsilon, setting=f"{n} clients, {of}") for n in counts
    )


def on_fashion() -> tuple[float, ...]:
    """DP-FedFC beside DP-FedGD at epsilon 1 and 10, then it and DP-FedNew-FC beside DP-FedAdam."""
    beside = partial(on_adult, folder="fednew-fashion")
    plain = [x for e in ("1", "10") for x in beside("DP-FedFC", "DP-FedGD", e)]
    pairs = [
        x
        for m in ("DP-FedFC", "DP-FedNew-FC")
        for e in ("1", "10")
        for x in beside(m, "DP-FedAdam", e)
    ]
    return (*ends(plain), *pairs)


def with_shares(folder: str, method: str, other: str = "DP-FedGD") -> tuple[float, ...]:
    """A method less another one at the paper's noise, by the sum's epsilon."""
    epsilons = dict.fromkeys(row["epsilon"] for row in rows(folder))
    return tuple(lead(folder, method, other, epsilon=e) for e in epsilons)


def whole_clients() -> tuple[float]:
    """A trusted server's accuracy at epsilon 1; with noise of their own no method is above 15 %."""
    at = {"setting": "100 clients, clients"}
    low = [
        100 * float(row["accuracy"])
        for row in rows("fednew-fashion")
        if not diverged(row)
        and row["setting"] == at["setting"]
        and row["epsilon"] in ("0.1", "1")
        and "trusted" not in row["method"]
    ]
    assert statistics.fmean(low) < 15
    return (mean("fednew-fashion", "DP-FedGD, trusted server", epsilon="1", **at),)


def fednew_behind() -> tuple[float, float]:
    """How far DP-FedNew is below DP-FedGD at epsilon 0.3 and 1."""
    pairs = [gap("fednew-synthetic", "DP-FedNew, 15 rounds", epsilon=e) for e in ("0.3", "1")]
    significant(*pairs)
    return -pairs[0].mean, -pairs[1].mean


def newton() -> tuple[float, float, float]:
    binary, classes = (
        gap("fednewton-mnist", "FedNewton", "FedSGD", epsilon="8", task=task)
        for task in ("binary", "multiclass")
    )
    significant(binary, classes)
    hybrid = [
        gap("fednewton-mnist", "FedHybrid", "FedSGD", epsilon=e, task=task)
        for e in ("0.5", "1", "4", "8")
        for task in ("binary", "multiclass")
    ]
    assert not any(each.significant and each.mean < 0 for each in hybrid)
    behind = -lead("fednewton-mnist", "FedNewton", "FedSGD", epsilon="0.5", task="multiclass")
    return binary.mean, classes.mean, behind


CELL = ("clients", "model", "sizes")


def errors(method: str, model: str = "") -> dict[tuple[str, ...], float]:
    """Cell -> mean squared error, of one model or of both."""
    found: dict[tuple[str, ...], list[float]] = {}
    for row in rows("fednewton-mse"):
        if row["method"] == method and model in ("", row["model"]):
            found.setdefault(tuple(row[key] for key in CELL), []).append(float(row["loss"]))
    return {cell: statistics.fmean(figures) for cell, figures in found.items()}


def of_sgd(method: str, model: str = "") -> list[float]:
    """A method's error over FedSGD's, by cell."""
    baseline = errors("FedSGD", model)
    return [error / baseline[cell] for cell, error in errors(method, model).items()]


def hybrid_errors() -> tuple[float, ...]:
    """Cells in which FedHybrid is first, and all; its error over FedSGD's, and FedNewton's."""
    others = [errors(m) for m in ("FedSGD", "FedSGD, 30 steps", "FedAvg", "FedNewton")]
    ours, newton_of = errors("FedHybrid"), of_sgd("FedNewton")
    first = sum(error < min(other[cell] for other in others) for cell, error in ours.items())
    below = sum(ratio < 1 for ratio in newton_of)
    return (first, len(ours), *ends(of_sgd("FedHybrid")), *ends(newton_of), below)


def fewer_releases() -> tuple[float, ...]:
    """FedSGD with 30 steps over FedSGD with 100: Poisson, then logistic."""
    return tuple(x for m in ("poisson", "logistic") for x in ends(of_sgd("FedSGD, 30 steps", m)))


def errors_by_holm() -> tuple[int, int]:
    """Of how many differences to FedSGD how many survive."""
    return len(rows("fednewton-mse", "tables/paired.csv")), len(by_holm("fednewton-mse"))
