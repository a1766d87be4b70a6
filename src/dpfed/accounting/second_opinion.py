# SPDX-License-Identifier: Apache-2.0
"""A second accountant looks at a figure once per run: RDP from above, an optimistic PLD from below.

    optimistic PLD  <=  true epsilon  <=  printed epsilon  <=  RDP          to a part in 10^6

Both are dp_accounting's, and read the same tree as the figure: they find a fault of an accountant
(a sensitivity, a count, a conversion), and none of the tree itself, which the audit recounts from
what an engine recorded (audit/recount.py).

Under replace-one both see the same releases with half the multiplier under add-remove: a Gaussian
sum that moves by 2C with noise s is one that moves by C with s/2, and dp_accounting 0.6.0 leaves
that factor out of its RDP.

Draws under replace-one (triangle.py) have other ends. From below, the worst pair that is known: a
row v in the place of -v, a PLD of its own. From above, Mironov's weak triangle inequality (2017,
Proposition 11, at p = q = 2) on the RDP of zeroing a unit, which shares no curve with the figure:

    D_a(P, R) <= (a - 1/2) / (a - 1) D_2a(P, Q) + D_(2a - 1)(Q, R).

| edge case                                        | what happens                                  |
|--------------------------------------------------|-----------------------------------------------|
| the printed figure is below, or exact and above  | Unpriceable: no figure is stated              |
| PLD's figure is above RDP's (tiny epsilon)       | it is stated, with a warning: both are bounds |
| a bound that says nothing (0, infinite)          | None: reported as no check                    |
| many kinds of rounds, or a huge epsilon          | no check from below: it would take too long   |
| events that RDP or PLD do not know               | None                                          |
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from typing import Any

from dpfed.accounting.event_tree import gaussian_leaves
from dpfed.accounting.events import below_mark
from dpfed.accounting.guarantee import EXACT, Claim, Guarantee, SecondOpinion
from dpfed.core.dsse import canonical_json
from dpfed.core.errors import Unpriceable
from dpfed.core.log import log
from dpfed.core.types import Adjacency

TOLERANCE = 1e-6
"""Relative difference between two accountants that is not an error."""
MAX_KINDS = 12
"""Distinct releases that are discretised for the bound from below: each takes up to a second."""
MAX_EPSILON = 500.0
"""Above it the grid of privacy losses is too long for a look from below."""
_GRID_STEPS = 20_000  # steps of the grid of losses up to epsilon
# whole orders: fractional ones of drawn releases need series that do not always converge
_ORDERS = (*range(2, 64), 72, 96, 128, 192, 256, 512, 1024)
_DOUBLED_ORDERS = (*range(3, 130), 144, 192, 256, 384, 512, 1024)
_FINE_ORDERS = (1.05, 1.1, 1.25, 1.5, 1.75)


def checked(found: Guarantee) -> Guarantee:
    """The guarantee with a second accountant's bounds of each claim; refused if one is outside."""
    if math.isinf(found.epsilon):
        return found
    opinions = []
    for claim in found.claims:
        left = claim.delta - claim.delta_reserved
        opinion = _opinion(canonical_json(claim.event), claim.epsilon, left, found.adjacency)
        _refuse_outside(claim, opinion)
        opinions.append(opinion)
    return replace(found, opinions=tuple(opinions))


def _refuse_outside(claim: Claim, opinion: SecondOpinion) -> None:
    """Refuse a figure that is surely wrong; warn of one that is merely larger than it need be."""
    low, high, epsilon = opinion.at_least, opinion.at_most, claim.epsilon
    too_small = low is not None and epsilon < low * (1 - TOLERANCE)
    too_large = high is not None and epsilon > high * (1 + TOLERANCE)
    if too_small or (too_large and claim.accounting == EXACT):
        raise Unpriceable(
            f"epsilon {epsilon:.6g} at delta {claim.delta:g} must lie between {low} (PLD from "
            f"below) and {high} (RDP from above), as a second accountant has it; report this plan "
            f"as a bug"
        )
    if too_large:
        log.warning(
            "epsilon %.6g at delta %g is a bound, but RDP has a smaller one, %.6g: a grid of "
            "losses is coarse for so small a figure",
            epsilon,
            claim.delta,
            high,
        )


@lru_cache(maxsize=256)
def _opinion(event: bytes, epsilon: float, delta: float, adjacency: Adjacency) -> SecondOpinion:
    tree = json.loads(event)
    by_zeroing = below_mark(tree)
    leaves = gaussian_leaves(tree if by_zeroing is None else by_zeroing)
    if leaves is None or not leaves or not all(z for z, _ in leaves):
        return SecondOpinion(None, None)
    if by_zeroing is not None:
        from dp_accounting import NeighboringRelation

        return SecondOpinion(
            _from_below(leaves, epsilon, delta, NeighboringRelation.REPLACE_ONE),
            _twice_from_above(leaves, delta),
        )
    if adjacency is Adjacency.REPLACE_ONE:
        if any(rate != 1 for _, rate in leaves):
            return SecondOpinion(None, None)
        leaves = Counter({(z / 2, rate): count for (z, rate), count in leaves.items()})
    return SecondOpinion(
        _from_below(leaves, epsilon, delta, _relation(adjacency)),
        _from_above(leaves, delta, adjacency),
    )


def _relation(adjacency: Adjacency) -> Any:
    """The relation to ask for: replace-one is add-remove at half the noise multiplier."""
    from dp_accounting import NeighboringRelation

    zeroed = adjacency is Adjacency.ZERO_OUT
    return NeighboringRelation.REPLACE_SPECIAL if zeroed else NeighboringRelation.ADD_OR_REMOVE_ONE


def _from_above(
    leaves: Counter[tuple[float, float]], delta: float, adjacency: Adjacency
) -> float | None:
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    drawn = any(rate != 1 for _, rate in leaves)
    orders = _ORDERS if drawn else (*_FINE_ORDERS, *_ORDERS)
    accountant = RdpAccountant(orders, neighboring_relation=_relation(adjacency))
    for (z, rate), count in leaves.items():
        one: Any = dp.GaussianDpEvent(z)
        accountant.compose(one if rate == 1 else dp.PoissonSampledDpEvent(rate, one), count)
    found = float(accountant.get_epsilon(delta))
    return found if math.isfinite(found) else None


def _twice_from_above(leaves: Counter[tuple[float, float]], delta: float) -> float | None:
    """A unit is zeroed, then another one comes: RDP of both, by the weak triangle inequality."""
    import dp_accounting as dp
    import numpy as np
    from dp_accounting.rdp import RdpAccountant, rdp_privacy_accountant

    twice = np.array(_DOUBLED_ORDERS)
    of_all = sorted({*_DOUBLED_ORDERS, *(order - 1 for order in _DOUBLED_ORDERS)})
    accountant = RdpAccountant(of_all, neighboring_relation=dp.NeighboringRelation.REPLACE_SPECIAL)
    for (z, rate), count in leaves.items():
        one: Any = dp.GaussianDpEvent(z)
        accountant.compose(one if rate == 1 else dp.PoissonSampledDpEvent(rate, one), count)
    at = dict(zip(of_all, accountant.rdp, strict=True))
    orders = twice / 2
    both = [(a - 0.5) / (a - 1) * at[2 * a] + at[2 * a - 1] for a in orders.tolist()]
    bound = float(rdp_privacy_accountant.compute_epsilon(orders, both, delta)[0])
    return bound if math.isfinite(bound) else None


def _from_below(
    leaves: Counter[tuple[float, float]], epsilon: float, delta: float, relation: Any
) -> float | None:
    from dp_accounting.pld import privacy_loss_distribution as pld

    if len(leaves) > MAX_KINDS or epsilon > MAX_EPSILON:
        return None
    total = None
    for (z, rate), count in sorted(leaves.items()):
        one = pld.from_gaussian_mechanism(
            z,
            pessimistic_estimate=False,
            value_discretization_interval=max(1e-4, epsilon / _GRID_STEPS),
            sampling_prob=rate,
            use_connect_dots=False,
            neighboring_relation=relation,
        )
        many = one.self_compose(count)
        total = many if total is None else total.compose(many)
    found = float(total.get_epsilon_for_delta(delta)) if total else 0.0
    return found if math.isfinite(found) and found > 0 else None
