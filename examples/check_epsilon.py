# SPDX-License-Identifier: Apache-2.0
"""Compute epsilon again, without dpfed: python check_epsilon.py < OUT/guarantee.json."""

import json
import math
import sys

import dp_accounting as dp
import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.optimize import brentq
from scipy.special import log_ndtr


def releases(event, count=1):  # (noise multiplier, sampling rate, how often)
    if event["kind"] == "Composed":
        return [each for part in event["events"] for each in releases(part, count)]
    if event["kind"] == "SelfComposed":
        return releases(event["event"], count * event["count"])
    if event["kind"] == "NoOp":
        return []
    if event["kind"] == "PoissonSampled" and event["event"]["kind"] == "Gaussian":
        return [(event["event"]["noise_multiplier"], event["rate"], count)]
    assert event["kind"] == "Gaussian", "an event that this script does not know"
    return [(event["noise_multiplier"], 1.0, count)]


def through_zero(made, delta):  # replace-one with a draw: a unit is zeroed, then replaced
    relation, total = dp.NeighboringRelation.REPLACE_SPECIAL, pld.identity()
    for z, rate, count in made:
        one = pld.from_gaussian_mechanism(z, sampling_prob=rate, neighboring_relation=relation)
        total = total.compose(one.self_compose(count))

    def excess(e):
        ascending = np.linspace(0, min(e, math.log(delta * 1e10)), 2001)
        remove = total._pmf_remove.get_delta_for_epsilon(ascending)
        add = total._pmf_add.get_delta_for_epsilon((e - ascending)[::-1])[::-1]
        return np.min(remove + np.exp(ascending) * add) - delta

    return brentq(excess, 0, 500, xtol=1e-7)


def epsilon(event, delta, adjacency):
    if event["kind"] == "ThroughZero":
        assert adjacency == "replace-one"
        return through_zero(releases(event["event"]), delta)
    made = releases(event)
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
    again = epsilon(claim["event"], left, told["adjacency"])
    print(f"{claim['adversary']}: printed {claim['epsilon']:.9g}, computed again {again:.9g}")
    slack = 1e-4 if claim["event"]["kind"] == "ThroughZero" else 0.0
    assert again * (1 - slack) <= claim["epsilon"] <= again * (1 + slack + 1e-6), (
        "not the epsilon of these events"
    )
