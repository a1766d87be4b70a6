# SPDX-License-Identifier: Apache-2.0
"""Which mechanism needs the least noise for devices that take turns.

All mechanisms are calibrated to the same guarantee,
under central trust (the server adds the noise) and with a client as the unit. What is compared is
the noise in prefix sums over the rounds, in units of the clip: its root mean square over all
prefixes, and that of the last one.

    independent   a device takes part at_most times: fresh noise for each round
    amplified     fresh noise, and each device is asked with probability cohort / population, by a
                  Poisson draw over a known population that only the server knows
    tree, banded, blt   correlated noise, at_most times, min_separation rounds apart

Only Poisson sampling gives privacy amplification. Cohorts of a fixed size, refusals, and whoever
happens to be online do not.

| edge case                                        | what happens                                  |
|--------------------------------------------------|-----------------------------------------------|
| no min_separation                                | the largest that the cohorts leave room for   |
| no at_most                                       | as often as the rounds allow                  |
| cohorts that so few devices cannot fill          | RecipeError                                   |
| add-remove                                       | RecipeError: who takes part is visible        |
| a tree that takes too long to account for        | no row for it, and why                        |
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from dpfed.accounting.calibrate import calibrate
from dpfed.accounting.event_tree import ChannelUse, TrainingReleases
from dpfed.accounting.guarantee import delta_warning, guarantee
from dpfed.core.checks import refuse
from dpfed.core.errors import RecipeError, Unpriceable
from dpfed.core.participation import Participation
from dpfed.core.sampling import EVERYONE, Poisson
from dpfed.core.types import Adjacency, Facts, Mechanism, NoiseSource, Trust, Unit
from dpfed.mechanisms._toeplitz import buffered, prefix_errors
from dpfed.mechanisms.banded import banded
from dpfed.mechanisms.blt import blt
from dpfed.mechanisms.gaussian import gaussian
from dpfed.mechanisms.tree import tree
from dpfed.recipes.noise_for import refuse_presence


def compare_mechanisms(
    *,
    epsilon: float,
    delta: float,
    rounds: int,
    population: int,
    cohort: int,
    min_separation: int | None = None,
    at_most: int | None = None,
    adjacency: Adjacency | str = Adjacency.ZERO_OUT,
) -> dict[str, Any]:
    """Calibrate each mechanism to one guarantee, and say which has the least noise.

    Args:
        epsilon: the guarantee's epsilon, above 0.
        delta: the guarantee's delta, above 0 and below 1.
        rounds: how many rounds there are, at least 1.
        population: how many devices there are, at least 1.
        cohort: how many of them are asked in a round, up to all.
        min_separation: minimum gap in rounds between two participations; None = population //
            cohort, the largest feasible.
        at_most: how often a device takes part at most; None means as often as the rounds allow.
        adjacency: what neighbouring data sets differ in.
    """
    refuse_presence(Adjacency(adjacency))
    limits = limits_for(rounds, population, cohort, min_separation, at_most)
    facts = Facts(unit=Unit.CLIENT, adjacency=Adjacency(adjacency), trust=Trust.CENTRAL)
    rows, left_out = [], []
    for name, make in _kinds(rounds, cohort / population, limits, facts).items():
        try:
            mechanism = calibrate(make(), epsilon=epsilon, delta=delta, releases=rounds)
        except Unpriceable as error:
            left_out.append(f"{name}: {error}")
            continue
        rows.append({"noise": name, **_figures(mechanism, rounds)})
        if name == "independent":
            made = TrainingReleases({"update": mechanism}, {(ChannelUse("update", 1),): rounds})
            stated = guarantee(made, delta, NoiseSource.OPERATING_SYSTEM, rounds).sentence
    warning = delta_warning(delta, population)
    return {
        "participation": {"min_separation": limits.min_separation, "at_most": limits.at_most},
        "rows": rows,
        "least": min(rows, key=lambda row: float(row["rmse"]))["noise"],
        "least_last": min(rows, key=lambda row: float(row["last"]))["noise"],
        "guarantee": stated,
        "left_out": left_out,
        "warnings": [] if warning is None else [warning],
    }


def limits_for(
    rounds: int, population: int, cohort: int, min_separation: int | None, at_most: int | None
) -> Participation:
    """How often a device takes part; refuses cohorts that so few devices cannot fill.

    Args:
        rounds: how many rounds there are.
        population: how many devices there are.
        cohort: how many of them are asked in a round.
        min_separation: minimum gap in rounds; None = the largest feasible.
        at_most: how often a device takes part at most; None means as often as the rounds allow.
    """
    if not 1 <= cohort <= population:
        raise refuse("cohort", f"from 1 to the population of {population}", cohort, "lower it")
    apart = population // cohort if min_separation is None else min_separation
    most = max(1, -(-rounds // max(1, apart))) if at_most is None else at_most
    limits = Participation(min_separation=apart, at_most=most).within(rounds)
    least = cohort * limits.period(rounds)
    if least > population:
        raise RecipeError(
            f"a population must have at least {least} devices for cohorts of {cohort} that take "
            f"part {limits} in {rounds} rounds, got {population}; ask fewer, or let them take part "
            f"more often"
        )
    return limits


def _kinds(
    rounds: int, sampling_rate: float, limits: Participation, facts: Facts
) -> dict[str, Any]:
    """How to build each mechanism, before it is calibrated."""
    apart = replace(facts, participation=limits)
    return {
        "independent": lambda: gaussian(apart),
        "amplified": lambda: gaussian(facts).with_sampling(Poisson(sampling_rate)),
        "tree": lambda: tree(apart, horizon=rounds),
        "banded": lambda: banded(apart, rounds=rounds),
        "blt": lambda: blt(apart, rounds=rounds),
    }


def _figures(mechanism: Mechanism, rounds: int) -> dict[str, Any]:
    """The noise level, the error of prefix sums, and what the server has to keep."""
    errors, kept, options = unit_errors(mechanism, rounds)
    std_over_clip = mechanism.std / mechanism.clip
    return {
        "std_over_clip": std_over_clip,
        "rmse": std_over_clip * math.sqrt(math.fsum(errors) / rounds),
        "last": std_over_clip * math.sqrt(errors[-1]),
        "vectors": kept,
        "options": options,
        "drawn": mechanism.sampling != EVERYONE,
    }


def unit_errors(mechanism: Any, rounds: int) -> tuple[list[float], int, dict[str, Any]]:
    """The squared error of each prefix sum over that of std; vectors kept; what makes the matrix.

    Args:
        mechanism: one of those that are compared.
        rounds: how many prefix sums there are.
    """
    import numpy as np

    if hasattr(mechanism, "horizon"):  # a prefix has the noise of the nodes that make it up
        errors = [float(t.bit_count()) for t in range(1, rounds + 1)]
        return errors, rounds.bit_length(), {}
    if hasattr(mechanism, "decays"):
        column = buffered(mechanism.decays, mechanism.scales, rounds)
        options = {"decays": list(mechanism.decays), "scales": list(mechanism.scales)}
        return prefix_errors(column, rounds).tolist(), len(mechanism.decays), options
    if getattr(mechanism, "coefficients", None):
        column = np.array(mechanism.coefficients)
        options = {"coefficients": list(mechanism.coefficients)}
        return prefix_errors(column, rounds).tolist(), len(column) - 1, options
    return [float(t) for t in range(1, rounds + 1)], 0, {}
