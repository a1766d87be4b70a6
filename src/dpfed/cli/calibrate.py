# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: D301  click cuts the help at \f
"""``dpfed calibrate``: the noise that a guarantee needs."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from dpfed.core.types import Adjacency, Trust, Unit

Clients = Annotated[int, typer.Option(help="How many clients take part, in every round.", min=1)]
Neighbours = Annotated[Adjacency, typer.Option(help="What neighbouring data sets differ in.")]
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


def calibrate_command(
    epsilon: Annotated[float, typer.Option(help="The guarantee's epsilon.")],
    rounds: Annotated[int, typer.Option(help="Rounds; each client releases once a round.", min=1)],
    clients: Clients,
    delta: Annotated[float, typer.Option(help="The guarantee's delta.")] = 1e-5,
    unit: Annotated[Unit, typer.Option(help="What is protected.")] = Unit.RECORD,
    adjacency: Neighbours = Adjacency.REPLACE_ONE,
    trust: Annotated[
        Trust, typer.Option(help="Does the server read each reply, or only the sum?")
    ] = Trust.LOCAL,
    survivors: Survivors = None,
    colluders: Colluders = None,
    units: Units = None,
    parameters: Parameters = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Compute the noise that a guarantee needs.

    sigma_g is the paper's noise multiplier: each of n clients adds N(0, (C sigma_g)^2 / n) to its
    clipped sum. std_over_clip is the same per client: sigma_g / sqrt(n).

    Example: dpfed calibrate --epsilon 1 --rounds 70 --clients 20 --trust local --json

    \f

    Args:
        epsilon: of the guarantee, above 0.
        rounds: the number of rounds, at least 1; each client releases once a round.
        clients: how many take part, at least 1.
        delta: of the guarantee, above 0 and below 1.
        unit: whose presence is hidden.
        adjacency: what neighbouring data sets differ in.
        trust: whether the server reads each reply, or only the sum.
        survivors: the fewest clients in a sum that is opened, at least 1; None means all.
        colluders: how many clients pool what they know; None means 1 under local trust, else 0.
        units: how many units there are, to warn of a large delta; None means the clients if they
            are the units, and no warning otherwise.
        parameters: how many the model has, to print the ratio of signal to noise and to warn where
            it leaves little hope; None says nothing of it.
        as_json: print one JSON object instead of words.
    """
    from dpfed.recipes.noise_for import noise_for

    found = noise_for(
        epsilon=epsilon,
        delta=delta,
        rounds=rounds,
        clients=clients,
        unit=unit,
        adjacency=adjacency,
        trust=trust,
        survivors=survivors,
        colluders=colluders,
        units=units,
        parameters=parameters,
    )
    for warning in found["warnings"]:
        typer.secho(f"warning: {warning}", err=True, fg=typer.colors.YELLOW)
    typer.echo(json.dumps(found) if as_json else _in_words(found))


def _in_words(found: dict[str, Any]) -> str:
    figures = "\n".join(
        f"{name:14} {found[name]:.6g}" for name in ("sigma_g", "std_over_clip", "mu")
    )
    signal = f"\n{found['signal']}" if "signal" in found else ""
    return f"{figures}{signal}\n{found['guarantee']}"
