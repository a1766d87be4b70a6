# SPDX-License-Identifier: Apache-2.0
"""Settings for networks that were tried: lab/studies/networks-untuned/results/development.csv."""

from __future__ import annotations

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
