# SPDX-License-Identifier: Apache-2.0
"""Compute epsilon again, without dpfed: python check_epsilon.py < OUT/guarantee.json."""

import json
import math
import sys

import dp_accounting as dp
from scipy.optimize import brentq
from scipy.special import log_ndtr


def releases(event, count=1):  # (noise multiplier, sampling rate, how often)
    if event["kind"] == "Composed":
        return [each for part in event["events"] for each in releases(part, count)]
    if event["kind"] == "SelfComposed":
        return releases(event["event"], count * event["count"])
    if event["kind"] == "NoOp":
        return []
    return [(event.get("event", event)["noise_multiplier"], event.get("rate", 1.0), count)]


def epsilon(made, delta, adjacency):
    if any(rate < 1 for _, rate, _ in made):
        relation = {"add-remove": "ADD_OR_REMOVE_ONE", "zero-out": "REPLACE_SPECIAL"}[adjacency]
        accountant = dp.pld.PLDAccountant(dp.NeighboringRelation[relation])
        for z, rate, count in made:
            one = dp.GaussianDpEvent(z)
            accountant.compose(dp.PoissonSampledDpEvent(rate, one) if rate < 1 else one, count)
        return accountant.get_epsilon(delta)
    moved = 2 if adjacency == "replace-one" else 1  # how many clips one unit moves a sum by
    mu = math.sqrt(math.fsum(count * (moved / z) ** 2 for z, _, count in made))

    def excess(e):  # Balle and Wang 2018
        return math.exp(log_ndtr(mu / 2 - e / mu)) - math.exp(e + log_ndtr(-mu / 2 - e / mu))

    if excess(0) <= delta:
        return 0.0
    return brentq(lambda e: excess(e) - delta, 0, mu * (mu / 2 + 40), xtol=1e-15, rtol=1e-14)


told = json.load(sys.stdin)
for claim in told["claims"]:
    left = claim["delta"] - claim["delta_reserved"]
    again = epsilon(releases(claim["event"]), left, told["adjacency"])
    print(f"{claim['adversary']}: printed {claim['epsilon']:.9g}, computed again {again:.9g}")
    assert again <= claim["epsilon"] <= again * (1 + 1e-6), "not the epsilon of these events"
