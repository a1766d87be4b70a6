# SPDX-License-Identifier: Apache-2.0
"""Accountants with dp_accounting's interface: an exact Gaussian one, and a PLD one with a cache.

The first accounts for any composition of Gaussian releases without slack, and refuses every other
event. The second gives the same figures as dp_accounting's PLD, bit for bit.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import dp_accounting
from dp_accounting import NeighboringRelation, PrivacyAccountant
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution

from dpfed.accounting import gdp
from dpfed.accounting.composition import Release, epsilon_for
from dpfed.core.types import Adjacency

RELATIONS = {
    Adjacency.REPLACE_ONE: NeighboringRelation.REPLACE_ONE,
    Adjacency.ADD_REMOVE: NeighboringRelation.ADD_OR_REMOVE_ONE,
    Adjacency.ZERO_OUT: NeighboringRelation.REPLACE_SPECIAL,
}
_ADJACENCIES = {relation: adjacency for adjacency, relation in RELATIONS.items()}


class GaussianAccountant(PrivacyAccountant):  # type: ignore[misc]  # dp_accounting has no types
    """Adds mu^2 of Gaussian releases: exact, and refuses every other event.

    Dong et al. 2022, Corollary 3.3.

    Args:
        relation: the neighbouring relation of dp_accounting; it doubles for replace-one.

    >>> made = GaussianAccountant().compose(dp_accounting.GaussianDpEvent(20.0), 100)
    >>> made.mu, round(made.get_epsilon(1e-5), 2)
    (1.0, 4.38)
    """

    def __init__(self, relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE) -> None:
        super().__init__(relation)
        self._adjacency = _ADJACENCIES[relation]
        self._mu_squared = 0.0

    @property
    def mu(self) -> float:
        """The mu of everything that was composed."""
        return math.sqrt(self._mu_squared)

    def _maybe_compose(self, event: Any, count: int, do_compose: bool) -> Any:
        cost = self._cost(event, count)
        if isinstance(cost, PrivacyAccountant.CompositionErrorDetails):
            return cost
        if do_compose:
            self._mu_squared += cost
        return None

    def _cost(self, event: Any, count: int) -> Any:
        """mu^2 of ``count`` times the event, or the reason why there is none."""
        match event:
            case dp_accounting.NoOpDpEvent():
                return 0.0
            case dp_accounting.NonPrivateDpEvent():
                return math.inf if count else 0.0
            case dp_accounting.GaussianDpEvent(noise_multiplier=multiplier) if multiplier >= 0:
                return gdp.mu_squared(multiplier, count, self._adjacency)
            case dp_accounting.SelfComposedDpEvent():
                return self._cost(event.event, count * event.count)
            case dp_accounting.ComposedDpEvent():
                return self._cost_of_all(event.events, count)
        return PrivacyAccountant.CompositionErrorDetails(
            invalid_event=event,
            error_message="only Gaussian releases have this closed form; use PLD for others",
        )

    def _cost_of_all(self, events: Any, count: int) -> Any:
        total = 0.0
        for event in events:
            cost = self._cost(event, count)
            if isinstance(cost, PrivacyAccountant.CompositionErrorDetails):
                return cost
            total += cost
        return total

    def get_epsilon(self, target_delta: float) -> float:
        """The epsilon at this delta, rounded towards caution by a part in 10^9."""
        if self._mu_squared == 0 or math.isinf(self._mu_squared):  # at any delta, 0 and 1 included
            return self._mu_squared
        return gdp.epsilon_for(target_delta, self.mu)

    def get_delta(self, target_epsilon: float) -> float:
        """The delta at this epsilon, rounded towards caution by a part in 10^9."""
        return min(1.0, gdp.delta_for(target_epsilon, self.mu) * (1 + gdp.CAUTION))


class DrawnPLDAccountant(PLDAccountant):  # type: ignore[misc]  # dp_accounting has no types
    """PLD with a cache of the loss distributions of Poisson-sampled Gaussian releases.

    A run's account grows by one round's releases at a time, and discretising one release takes
    longer than composing hundreds of them (composition.py). Events are composed in the same order
    as in the parent.
    """

    _pld: Any

    def _maybe_compose(self, event: Any, count: int, do_compose: bool) -> Any:
        if not do_compose or not _is_drawn_gaussian(event):
            return super()._maybe_compose(event, count, do_compose)
        grid = (self._neighboring_relation, self._value_discretization_interval)
        self._pld = self._pld.compose(_releases(event, *grid, count))
        return None

    def get_epsilon(self, target_delta: float) -> float:
        """The parent's figure, to the last bit, without its loop in Python over all losses."""
        if self._contains_non_dp_event:
            return math.inf
        return epsilon_for(self._pld, target_delta)


def _is_drawn_gaussian(event: Any) -> bool:
    """Whether this is a sampled Gaussian release with noise: only such releases are cached."""
    match event:
        case dp_accounting.PoissonSampledDpEvent(event=dp_accounting.GaussianDpEvent() as inner):
            return bool(event.sampling_probability != 0 and inner.noise_multiplier != 0)
    return False


# A run asks for its own kinds of rounds again and again: few of them, since each kept one is some
# megabytes, and a server keeps them for as long as it runs.
_KINDS = 4


@lru_cache(maxsize=_KINDS)
def _releases(event: Any, relation: NeighboringRelation, interval: float, count: int) -> Any:
    """The privacy loss of ``count`` releases; composing makes a copy, so it can be shared."""
    return _release(event, relation, interval).composed(count)


@lru_cache(maxsize=_KINDS)
def _release(event: Any, relation: NeighboringRelation, interval: float) -> Release:
    """The privacy loss of one release."""
    return Release(
        privacy_loss_distribution.from_gaussian_mechanism(
            standard_deviation=event.event.noise_multiplier,
            value_discretization_interval=interval,
            sampling_prob=event.sampling_probability,
            neighboring_relation=relation,
        )
    )
