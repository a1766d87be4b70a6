# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: D301  click cuts the help at \f
"""``dpfed calibrate``: the noise that a guarantee needs, of silos or devices that take turns."""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeVar

import typer

from dpfed.core.checks import refuse
from dpfed.core.errors import RecipeError
from dpfed.core.types import Adjacency, Trust, Unit

Number = TypeVar("Number", int, float)
Clients = Annotated[
    int | None, typer.Option(help="How many clients take part, in every round.", min=1)
]
Neighbours = Annotated[
    Adjacency | None,
    typer.Option(help="What neighbouring data sets differ in: replace-one; of devices zero-out."),
]
Survivors = Annotated[
    int | None,
    typer.Option(help="distributed: the fewest clients in an opened sum. Default: all.", min=1),
]
Colluders = Annotated[
    int | None,
    typer.Option(help="Clients who pool what they know. Default: 1 local, 0 distributed."),
]
Units = Annotated[
    int | None,
    typer.Option(help="How many units there are in all, to judge delta and signal by.", min=1),
]
Parameters = Annotated[
    int | None,
    typer.Option(help="How many the model has: says whether it can learn through the noise."),
]
Population = Annotated[
    int | None,
    typer.Option(help="Devices in all, in the place of --clients: compares kinds of noise."),
]
Cohort = Annotated[int | None, typer.Option(help="population: how many are asked in a round.")]
Separation = Annotated[
    int | None, typer.Option(help="population: the least rounds between two participations.")
]
Monthly = Annotated[
    int | None,
    typer.Option(help="Plan budgets by month: how many months' trainings use a record.", min=1),
]
Lifetime = Annotated[
    float | None, typer.Option(help="monthly: the epsilon of a record's whole life.")
]
Times = Annotated[
    int | None, typer.Option(help="population: how often a device takes part at most.")
]


def calibrate_command(
    epsilon: Annotated[float | None, typer.Option(help="The guarantee's epsilon.")] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds; each client releases once a round.", min=1)
    ] = None,
    clients: Clients = None,
    delta: Annotated[float, typer.Option(help="The guarantee's delta.")] = 1e-5,
    unit: Annotated[Unit, typer.Option(help="What is protected.")] = Unit.RECORD,
    adjacency: Neighbours = None,
    trust: Annotated[
        Trust, typer.Option(help="Does the server read each reply, or only the sum?")
    ] = Trust.LOCAL,
    survivors: Survivors = None,
    colluders: Colluders = None,
    units: Units = None,
    parameters: Parameters = None,
    population: Population = None,
    cohort: Cohort = None,
    min_separation: Separation = None,
    at_most: Times = None,
    monthly: Monthly = None,
    lifetime_epsilon: Lifetime = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Compute the noise that a guarantee needs.

    sigma_g is the paper's noise multiplier: each of n clients adds N(0, (C sigma_g)^2 / n) to its
    clipped sum. std_over_clip is the same per client: sigma_g / sqrt(n).

    With --population and --cohort: which noise is least for devices that take part now and then,
    under central trust, where the server adds it.

    With --monthly and --lifetime-epsilon, and nothing else but --delta: what each month's training
    may cost where each uses the last so many months of data, so that no month of it runs dry.

    Example: dpfed calibrate --epsilon 1 --rounds 70 --clients 20 --trust local --json

    \f

    Args:
        epsilon: of the guarantee, above 0; None with ``monthly``.
        rounds: the number of rounds, at least 1; each client releases once a round.
        clients: how many take part, at least 1; None with a population.
        delta: of the guarantee, above 0 and below 1.
        unit: whose presence is hidden.
        adjacency: what neighbouring data sets differ in; None is replace-one, of devices zero-out.
        trust: whether the server reads each reply, or only the sum.
        survivors: the fewest clients in a sum that is opened, at least 1; None means all.
        colluders: how many clients pool what they know; None means 1 under local trust, else 0.
        units: how many units there are, to warn of a large delta; None means the clients if they
            are the units, and no warning otherwise.
        parameters: how many the model has, to print the ratio of signal to noise and to warn where
            it leaves little hope; None says nothing of it, nor is it for a population.
        population: how many devices there are; None with clients.
        cohort: how many of them are asked in a round.
        min_separation: minimum gap in rounds between two participations of a device; None means
            the largest feasible.
        at_most: how often a device takes part at most; None means as often as the rounds allow.
        monthly: how many trainings use a record where each month's uses the last months of data;
            None plans one training.
        lifetime_epsilon: with ``monthly``, of all that a record ever loses.
        as_json: print one JSON object instead of words.
    """
    if monthly is not None or lifetime_epsilon is not None:
        _plan_months(monthly, lifetime_epsilon, epsilon, delta, as_json=as_json)
        return
    epsilon, rounds = _given("--epsilon", epsilon), _given("--rounds", rounds)
    if (clients is None) == (population is None) or (cohort is None) != (population is None):
        raise RecipeError(
            f"--clients must be given, or --population with --cohort, got {clients}, {population} "
            f"and {cohort}; give one of them"
        )
    if population is not None and parameters is not None:
        raise refuse("--parameters", "left out with --population", parameters)
    if population is not None and cohort is not None:
        from dpfed.recipes.compare_mechanisms import compare_mechanisms

        found = compare_mechanisms(
            epsilon=epsilon,
            delta=delta,
            rounds=rounds,
            population=population,
            cohort=cohort,
            min_separation=min_separation,
            at_most=at_most,
            adjacency=adjacency or Adjacency.ZERO_OUT,
        )
        words = _compared
    else:
        from dpfed.recipes.noise_for import noise_for

        found = noise_for(
            epsilon=epsilon,
            delta=delta,
            rounds=rounds,
            clients=clients or 0,
            unit=unit,
            adjacency=adjacency or Adjacency.REPLACE_ONE,
            trust=trust,
            survivors=survivors,
            colluders=colluders,
            units=units,
            parameters=parameters,
        )
        words = _in_words
    for warning in found["warnings"]:
        typer.secho(f"warning: {warning}", err=True, fg=typer.colors.YELLOW)
    typer.echo(json.dumps(found) if as_json else words(found))


def _given(option: str, value: Number | None) -> Number:
    if value is None:
        raise typer.BadParameter(
            f"missing option '{option}', or --monthly with --lifetime-epsilon in its place"
        )
    return value


def _plan_months(
    monthly: int | None, lifetime: float | None, epsilon: float | None, delta: float, as_json: bool
) -> None:
    """What a training may cost if each record is in so many of them in its life."""
    if monthly is None or lifetime is None or epsilon is not None:
        raise RecipeError(
            f"--monthly and --lifetime-epsilon must be given together, without --epsilon, got "
            f"{monthly}, {lifetime} and {epsilon}; give both"
        )
    from dpfed.recipes.noise_for import monthly_epsilon

    each = monthly_epsilon(monthly, lifetime, delta)
    found = {"epsilon": each, "delta": delta, "trainings": monthly, "lifetime_epsilon": lifetime}
    said = (
        f"epsilon {each:g} for each training (delta {delta:g}): a record is in {monthly} of them, "
        f"and {monthly} of them cost it at most epsilon {lifetime:g}"
    )
    typer.echo(json.dumps(found) if as_json else said)


def _in_words(found: dict[str, Any]) -> str:
    figures = "\n".join(
        f"{name:14} {found[name]:.6g}" for name in ("sigma_g", "std_over_clip", "mu")
    )
    signal = f"\n{found['signal']}" if "signal" in found else ""
    return f"{figures}{signal}\n{found['guarantee']}"


def _compared(found: dict[str, Any]) -> str:
    """A line for each kind of noise, which is least, and what all of them guarantee."""
    limits = found["participation"]
    lines = [
        f"{'noise':12} {'std / clip':>10} {'RMSE':>10} {'last':>10} {'vectors':>8}",
        *(
            f"{row['noise']:12} {row['std_over_clip']:10.4g} {row['rmse']:10.4g} "
            f"{row['last']:10.4g} {row['vectors']:8d}"
            for row in found["rows"]
        ),
        "RMSE and last: noise in sums of rounds over the clip, the mean one and that of all rounds",
        f"least: {found['least']} (of the last sum: {found['least_last']})",
        f"participation = {{min_separation = {limits['min_separation']}, at_most = "
        f"{limits['at_most']}}}; amplified instead needs a Poisson draw over a known population",
        *(f"left out: {each}" for each in found["left_out"]),
        found["guarantee"],
    ]
    return "\n".join(lines)
