# SPDX-License-Identifier: Apache-2.0
"""The default of networks: what lab/studies/networks-untuned/results has of it."""

from __future__ import annotations

import statistics

from tests.claims.files import rows


def accuracy(name: str, rate: float, quantile: str = "") -> float:
    """Of one run of 100 rounds with a clip of 1, in percent."""
    (found,) = (
        each
        for each in rows("networks-untuned", "development.csv")
        if each["set"] == name
        and float(each["rate"]) == rate
        and (each["rounds"], each["clip"], each["quantile"]) == ("100", "1.0", quantile)
        and each["debias"] == "False"
    )
    return 100 * float(found["accuracy"])


def normalised() -> tuple[float, ...]:
    """What rows of one length gain on MNIST, at two rates."""
    return tuple(accuracy("mnist", rate, "0.5") - accuracy("mnist", rate) for rate in (0.01, 0.03))


def at_a_quantile() -> tuple[float, ...]:
    """What a clip at the 0.8 quantile gains, set by set."""
    sets = ("adult", "credit", "mnist", "fashion-mnist")
    return tuple(accuracy(name, -3.0, "0.8") - accuracy(name, -3.0) for name in sets)


CELLS = (
    "activity, MLP, 3",
    "activity, MLP, 8",
    "pneumonia, CNN, 3",
    "pneumonia, CNN, 8",
    "CIFAR-10, ResNet, 8",
)
TUNED = ("dp-fedgd", "ema-only", "dp-fedadam")


def judged(cell: str, method: str) -> dict[int, float]:
    """Seed -> percent."""
    return {
        int(each["seed"]): 100 * float(each["accuracy"])
        for each in rows("networks-untuned", "judged.csv")
        if (each["cell"], each["method"]) == (cell, method)
    }


def row(cell: str) -> tuple[float, ...]:
    """Mean and deviation of each method, and the untuned one's mean less the best tuned one's."""
    found = [list(judged(cell, method).values()) for method in ("untuned", *TUNED)]
    means = [statistics.fmean(each) for each in found]
    spreads = [statistics.stdev(each) for each in found]
    both = [figure for pair in zip(means, spreads, strict=True) for figure in pair]
    return (*both, means[0] - max(means[1:]))


def gaps() -> tuple[float, ...]:
    """Untuned less the best tuned method, cell by cell."""
    return tuple(row(cell)[-1] for cell in CELLS)
