# SPDX-License-Identifier: Apache-2.0
"""The thresholds of ``dpfed.accounting.signal``, held to the runs that are kept: both sides."""

import csv
from pathlib import Path

import pytest

from dpfed.accounting.signal import LEAST, LEAST_LINEAR, LEAST_NETWORK

RESULTS = Path(__file__).parents[1] / "studies/signal/results"
REACH = {
    "fednew-fashion": (0.10, 0.80),
    "fednew-adult": (0.76, 0.85),
    "silos": (0.19, 0.90),
}
"""By study: the accuracy of the most frequent class, and about what is reached without noise."""
LITTLE = 0.05
"""The part of what lies between them that is next to nothing."""

pytestmark = pytest.mark.skipif(not RESULTS.exists(), reason="an sdist has no results")


def read(name: str) -> list[dict[str, str]]:
    with (RESULTS / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def warned() -> list[dict[str, str]]:
    """The kept runs, all of linear models, that would be warned about."""
    return [row for row in read("runs.csv") if float(row["ratio"]) < LEAST_LINEAR]


def test_the_committed_runs_that_are_warned_about_learned_next_to_nothing():
    for row in warned():
        chance, reach = REACH[row["study"]]
        assert (float(row["accuracy"]) - chance) / (reach - chance) < LITTLE, row


def test_only_these_cells_are_warned_about():
    assert {(row["study"], row["cell"]) for row in warned()} == {
        ("fednew-adult", "0.1 / 100 clients, clients"),
        ("fednew-fashion", "0.1 / 100 clients, clients"),
        ("fednew-fashion", "1 / 100 clients, clients"),
        ("silos", "1 / activity, whole subjects, 5 silos"),
    }


def test_above_the_threshold_something_is_learned():
    """The same data and models, without a warning: half of the way, or more."""
    reached = {
        (row["study"], row["cell"], row["method"]): float(row["accuracy"])
        for row in read("runs.csv")
        if float(row["ratio"]) > 4 * LEAST_LINEAR
    }
    fashion = reached["fednew-fashion", "10 / 100 clients, clients", "DP-FedGD"]
    assert fashion > 0.45


def test_networks_lose_a_good_part_below_their_threshold_and_learn_above_it():
    by_model: dict[str, dict[float, float]] = {}
    for row in read("networks.csv"):
        by_model.setdefault(row["model"], {})[float(row["ratio"])] = float(row["accuracy"])
    networks = {name: found for name, found in by_model.items() if "tanh" in name}
    assert len(networks) >= 2
    for found in networks.values():
        without = found[float("inf")] - 0.1
        gained = {ratio: (accuracy - 0.1) / without for ratio, accuracy in found.items()}
        assert all(gain < LITTLE for ratio, gain in gained.items() if ratio <= LEAST)
        assert all(gain < 0.9 for ratio, gain in gained.items() if ratio < LEAST_NETWORK)
        assert all(gain > 0.6 for ratio, gain in gained.items() if ratio > LEAST_NETWORK)


def test_linear_models_on_records_learn_next_to_nothing_below_theirs():
    found = {
        float(row["ratio"]): float(row["accuracy"])
        for row in read("networks.csv")
        if "softmax" in row["model"]
    }
    assert found[0.15] < 0.12
    assert found[float("inf")] > 0.6
