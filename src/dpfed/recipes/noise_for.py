# SPDX-License-Identifier: Apache-2.0
"""The answer of ``dpfed calibrate``: noise for a guarantee, in the main paper's terms and in ours.

The paper's sigma_g (Nair et al. 2026, eq. (2)): each of n clients adds N(0, (C sigma_g)^2 / n) to
its clipped sum, so std = C sigma_g / sqrt(n). Under replace-one, LOCAL trust then has
mu = 2 sqrt(n T) / sigma_g and DISTRIBUTED mu = 2 sqrt(T) / sigma_g: sqrt(n) less noise for the same
guarantee. Under CENTRAL trust the server itself adds C sigma_g.

Neither torch nor dp_accounting is imported: it answers at once.

| edge case                                     | what happens                             |
|-----------------------------------------------|------------------------------------------|
| unit, adjacency or trust as a plain word      | taken as the choice of that name         |
| a word that is no choice                      | RecipeError, which lists those that are  |
| rounds, clients or survivors below 1, or half | RecipeError                              |
| more survivors than clients, colluders < 0    | RecipeError                              |
| no honest noise in an opened sum              | RecipeError                              |
| clients under add-remove                      | RecipeError: it shows who was there      |
| parameters of which the units are not known   | RecipeError: there is no signal to state |
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any, TypeVar

from dpfed.accounting import gdp
from dpfed.accounting.calibrate import calibrate
from dpfed.accounting.event_tree import ChannelUse, TrainingReleases
from dpfed.accounting.guarantee import SERVER, delta_warning, guarantee
from dpfed.accounting.signal import Signal
from dpfed.core.checks import is_count, refuse
from dpfed.core.errors import RecipeError
from dpfed.core.types import Adjacency, Facts, NoiseSource, Trust, Unit
from dpfed.mechanisms.gaussian import Gaussian, gaussian

Choice = TypeVar("Choice", bound=StrEnum)


def monthly_epsilon(trainings: int, lifetime_epsilon: float, delta: float) -> float:
    """What each training may cost so that so many on the same records keep their budget.

    Where data arrives and has a budget by month (docs/blocks.md), and each month's training uses
    the last 12 months, every block is used 12 times in its life.

    Args:
        trainings: how many use the same records, at least 1.
        lifetime_epsilon: the epsilon of their budget, above 0.
        delta: its delta, above 0 and below 1; each training has the same.

    Returns:
        an epsilon, rounded down to four digits.

    >>> monthly_epsilon(12, 3.0, 1e-5)
    0.7556
    """
    _check_whole(monthly=trainings)
    whole = gdp.mu_for(lifetime_epsilon, delta)
    found = gdp.epsilon_for(delta, whole / math.sqrt(trainings))
    digits = 3 - math.floor(math.log10(found))
    rounded = math.floor(found * 10**digits * (1 + 1e-6)) / 10**digits
    while trainings * gdp.mu_for(rounded, delta) ** 2 > whole**2:  # by the ledger's own figures
        rounded -= 10.0**-digits
    return float(round(rounded, digits))


def noise_for(
    *,
    epsilon: float,
    delta: float,
    rounds: int,
    clients: int,
    unit: Unit | str = Unit.RECORD,
    adjacency: Adjacency | str = Adjacency.REPLACE_ONE,
    trust: Trust | str = Trust.LOCAL,
    survivors: int | None = None,
    colluders: int | None = None,
    units: int | None = None,
    parameters: int | None = None,
) -> dict[str, Any]:
    """The least noise that keeps the guarantee, and the sentence that states it.

    Args:
        epsilon: the guarantee's epsilon, above 0.
        delta: the guarantee's delta, above 0 and below 1.
        rounds: how many rounds there are, at least 1; each client releases once a round.
        clients: how many clients take part, at least 1.
        unit: what is protected: a record, a group of records or a whole client.
        adjacency: what neighbouring data sets differ in.
        trust: whether the server sees each reply, only the sum, or adds the noise itself.
        survivors: the fewest clients in an opened sum, at most ``clients``; None means all of them.
        colluders: clients that pool what they know; None means 1 under local trust, 0 otherwise.
        units: how many units there are, for a warning about delta; None is ``clients`` where they
            are the unit, and no warning otherwise.
        parameters: how many the model has, for the ratio of signal to noise; None leaves it out.
    """
    unit, adjacency = _choice(Unit, unit), _choice(Adjacency, adjacency)
    trust = _choice(Trust, trust)
    _check_whole(rounds=rounds, clients=clients, survivors=survivors, parameters=parameters)
    if unit is Unit.CLIENT:
        refuse_presence(adjacency)
    apart = (1 if trust is Trust.LOCAL else 0) if colluders is None else colluders
    shares = _honest(trust, clients, survivors, apart)
    facts = Facts(unit=unit, adjacency=adjacency, trust=trust)
    start = gaussian(facts, shares=shares if trust is Trust.DISTRIBUTED else 1)
    mechanism = calibrate(start, epsilon=epsilon, delta=delta, releases=rounds)
    kind = (ChannelUse("update", 1, shares if trust is Trust.LOCAL else 1.0),)
    made = TrainingReleases({"update": mechanism}, {kind: rounds})
    side = f", with up to {apart} client{'' if apart == 1 else 's'} on its side" if apart else ""
    stated = guarantee(
        made, delta, NoiseSource.OPERATING_SYSTEM, rounds, server=SERVER + side, colluders=apart
    )
    count = clients if unit is Unit.CLIENT and units is None else units
    warning = None if count is None else delta_warning(delta, count)
    signal = _signal(mechanism, rounds, clients, count, parameters)
    warnings = [warning, None if signal is None else signal.warning]
    return {
        "sigma_g": mechanism.std * (1 if trust is Trust.CENTRAL else math.sqrt(clients)),
        "mu": _mu(mechanism, rounds),
        "std_over_clip": mechanism.std,
        "guarantee": stated.sentence,
        "claims": [{"adversary": c.adversary, "epsilon": c.epsilon} for c in stated.claims],
        "warnings": [each for each in warnings if each is not None],
        **({} if signal is None else {"signal_to_noise": signal.ratio, "signal": str(signal)}),
    }


def _signal(
    mechanism: Gaussian, rounds: int, clients: int, units: int | None, parameters: int | None
) -> Signal | None:
    """The longest possible signal beside the noise of all terms in a round's sum."""
    if parameters is None:
        return None
    if units is None:
        bound = f"given with --parameters where the unit is a {mechanism.unit}"
        raise refuse("units", bound, units, "say how many there are in all")
    terms = 1 if mechanism.trust is Trust.CENTRAL else clients
    return Signal(
        parameters=parameters,
        rows=units,
        noise_std=mechanism.std / mechanism.clip * math.sqrt(terms),
        averaged=rounds,
        clients=clients,
        unit=mechanism.unit,
        trust=mechanism.trust,
    )


def refuse_presence(adjacency: Adjacency) -> None:
    """Refuse add-remove for clients: without a secret draw it shows who was there."""
    if adjacency is Adjacency.ADD_REMOVE:
        bound = "zero-out or replace-one where a client is the unit"
        raise refuse("adjacency", bound, adjacency.value, "who takes part shows; use zero-out")


def _choice(kind: type[Choice], word: str) -> Choice:
    """The choice itself: a plain word equals it, but code compares choices with ``is``."""
    try:
        return kind(word)
    except ValueError:
        raise refuse(kind.__name__.lower(), f"one of {', '.join(kind)}", word) from None


def _check_whole(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and not is_count(count, 1):
            raise refuse(name, "a whole number, at least 1", count, "give a count such as 20")


def _mu(mechanism: Gaussian, rounds: int) -> float:
    return math.sqrt(gdp.mu_squared(mechanism.noise_multiplier(), rounds, mechanism.adjacency))


def _honest(trust: Trust, clients: int, survivors: int | None, apart: int) -> int:
    """The shares of noise in an opened sum that no adversary can subtract."""
    present = clients if survivors is None else survivors
    if present > clients:
        bound = f"at most {clients}, the number of clients"
        raise refuse("survivors", bound, present, "lower it, or leave it out for all of them")
    if apart < 0:
        raise refuse("colluders", "a whole number, at least 0", apart)
    if trust is Trust.LOCAL:
        return max(1, present - apart)
    if present - apart < 1:
        raise RecipeError(
            f"{present} survivors less {apart} colluders leave no honest noise; "
            f"lower --colluders or raise --survivors"
        )
    return present - apart
