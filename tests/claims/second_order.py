# SPDX-License-Identifier: Apache-2.0
"""Krouka et al. 2025 and Auddy et al. 2026: DP-FedNew, DP-FedFC, FedNewton, FedHybrid."""

from __future__ import annotations

from tests.claims.files import gap, lead, mean, significant


def momentum_or_curvature() -> tuple[float, ...]:
    """EMA-only, then DP-FedFC, by epsilon; no difference between the two is significant."""
    folder, both = "fednew-synthetic", ("EMA-only", "DP-FedFC")
    for e in ("0.3", "1", "10"):
        assert not gap(folder, "DP-FedFC", "EMA-only", epsilon=e).significant
    return tuple(mean(folder, method, epsilon=e) for method in both for e in ("0.3", "1", "10"))


def on_adult(method: str, other: str, epsilon: str, of: str = "records") -> tuple[float, ...]:
    """A method less another one with 10 and 100 clients; with 100 where whole clients count."""
    counts = ("10", "100") if of == "records" else ("100",)
    return tuple(lead("fednew-adult", method, other, epsilon=epsilon, setting=f"{n} clients, {of}")
                 for n in counts)  # fmt: skip


def fednew_behind() -> tuple[float, float]:
    """How far DP-FedNew is below DP-FedGD at epsilon 0.3 and 1."""
    pairs = [gap("fednew-synthetic", "DP-FedNew, 15 rounds", epsilon=e) for e in ("0.3", "1")]
    significant(*pairs)
    return -pairs[0].mean, -pairs[1].mean


def newton() -> tuple[float, float, float]:
    binary, classes = (gap("fednewton-mnist", "FedNewton", "FedSGD", epsilon="8", task=task)
                       for task in ("binary", "multiclass"))  # fmt: skip
    significant(binary, classes)
    hybrid = [gap("fednewton-mnist", "FedHybrid", "FedSGD", epsilon=e, task=task)
              for e in ("0.5", "1", "4", "8") for task in ("binary", "multiclass")]  # fmt: skip
    assert not any(each.significant and each.mean < 0 for each in hybrid)
    behind = -lead("fednewton-mnist", "FedNewton", "FedSGD", epsilon="0.5", task="multiclass")
    return binary.mean, classes.mean, behind
