# SPDX-License-Identifier: Apache-2.0
"""Accountants for Flower's own fixed-clipping strategies, by dpfed's curve.

Flower's accounted mode draws k clients of those that are connected (``random.sample``), stops a
round unless exactly k answer, and adds noise of standard deviation z C / k to the mean of k clipped
updates: z C to their sum. Take any draw as fixed, since it does not depend on data. Then

    zero-out       one client's update becomes zero           the sum moves by at most  C
    replace-one    one client's data becomes any other data   the sum moves by at most 2C

in each round that draws this client, and not at all in the others. So T releases are Gaussian with
mu at most sqrt(T) / z and 2 sqrt(T) / z, whoever knows the draws: a mixture of draws is no worse
than its worst one. No draw is credited.

Add-remove, as Flower's configuration calls it, is neither: one client more in the population takes
the place of another in the draw, which moves the sum by up to 2C. Where the draw is everyone, the
number of places changes, too, and the strategy stops. So no figure here is called add-remove, and
``replace-one`` is a bound for a population that grows by one while k stays as it is.

| edge case                                        | what happens                                  |
|--------------------------------------------------|-----------------------------------------------|
| a configuration that credits a draw              | UnsoundPlan: no strategy of Flower's draws by |
|                                                  | Poisson, and a fixed size is not bounded here |
| adjacency "add-remove"                           | RecipeError                                   |
| an event for another population, without noise,  | RecipeError; nothing is composed              |
| with noise above 1e100 clips (it would underflow)|                                               |
| state of other settings, or of other fields      | RecipeError; nothing is loaded                |
| state for an accountant that has composed        | UnsoundPlan: it would forget releases         |
| more than an epsilon of 500, by PLD              | infinite: its grid of losses would be endless |
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from flwr.serverapp import GaussianPrivacyEvent, PrivacyConfig, PrivacySpent, SamplingMethod

from dpfed.accounting import gdp
from dpfed.accounting.guarantee import round_up
from dpfed.core.checks import refuse
from dpfed.core.errors import RecipeError, UnsoundPlan
from dpfed.core.log import log
from dpfed.core.types import Adjacency

STATED = (Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE)
"""What a fixed number of places bounds; the first moves a sum by a clip, the second by two."""
_SCHEMA = 1
_MOST_RELEASES = 2**53
_MOST_NOISE = 1e100  # its square is a float
_MOST_PLD_EPSILON = 500.0
_MOST_PLD_MU = 25.0
_FINEST_INTERVAL = 1e-4  # dp_accounting's own
_PLD_STEPS = 4_000  # of the grid of losses up to epsilon; rounded pessimistically
_Count = Annotated[int, msgspec.Meta(ge=1, le=_MOST_RELEASES)]


@dataclass(frozen=True)
class _Composition:
    """Identical releases: the form in which Flower's accountant writes them, too."""

    event: GaussianPrivacyEvent
    count: _Count


class _Accountant(ABC):
    """All of Flower's protocol but for the curve."""

    method: str
    """Which curve it is, in words."""

    def __init__(self, config: PrivacyConfig, adjacency: str = "zero-out") -> None:
        if config.sampling_method is not SamplingMethod.NO_AMPLIFICATION:
            raise UnsoundPlan(
                f"sampling_method must be no-amplification, got {config.sampling_method.value}: "
                f"Flower's strategies fill a fixed number of places, for which no draw is credited "
                f"here; for Poisson draws use dpfed's DPStrategy with privacy.client_rate"
            )
        if adjacency not in STATED:
            way_out = "a fixed number of places hides no client's presence"
            raise refuse("adjacency", "zero-out or replace-one", adjacency, way_out)
        gdp.check_delta(config.target_delta)
        self._config = config
        self._adjacency = Adjacency(adjacency)
        self._releases: Counter[GaussianPrivacyEvent] = Counter()

    @property
    def config(self) -> PrivacyConfig:
        """The configuration; its ``max_epsilon`` is for this accountant's adjacency."""
        return self._config

    @property
    def num_releases(self) -> int:
        """How many releases were composed."""
        return self._releases.total()

    @property
    def sentence(self) -> str:
        """What the releases cost for both adjacencies, and what that rests on."""
        delta = round_up(self._config.target_delta)
        zeroed, replaced = (round_up(each) for each in self.epsilons().values())
        most = self._config.max_epsilon
        kept = most is not None and self.get_epsilon(self._config.target_delta) <= most
        limit = f" (or else, at most epsilon {most:g} for {self._adjacency})" if kept else ""
        return (
            f"({zeroed}, {delta})-DP for each client (zero-out), and ({replaced}, {delta})-DP "
            f"(replace-one), against whoever sees only the models, over {self.num_releases} "
            f"releases, if nobody chose by what was released when to end{limit}; {self.method}, "
            f"no draw credited; idealized arithmetic, noise of NumPy's generator; {ASSUMED}."
        )

    def __str__(self) -> str:
        return self.sentence

    def epsilons(self, delta: float | None = None) -> dict[str, float]:
        """The epsilon for zero-out and for replace-one, by these names.

        Args:
            delta: at least 1e-300 and below 1; None is the configuration's.
        """
        at = self._config.target_delta if delta is None else delta
        gdp.check_delta(at)
        return {str(each): self._epsilon(self._mu(each), at) for each in STATED}

    def compose(self, event: GaussianPrivacyEvent, count: int = 1) -> None:
        """Count releases, and log both figures.

        Args:
            event: one release, as the strategy made it.
            count: how many of them, at least 1.
        """
        self._check(event, count)
        self._releases[event] += count
        log.info("%s", self.sentence)

    def get_epsilon(self, delta: float) -> float:
        """An upper bound of epsilon for this accountant's adjacency.

        Args:
            delta: at least 1e-300 and below 1.
        """
        return self.epsilons(delta)[self._adjacency]

    def get_delta(self, epsilon: float) -> float:
        """An upper bound of delta for this accountant's adjacency.

        Args:
            epsilon: a finite number, at least 0.
        """
        if not 0 <= epsilon < math.inf:
            raise refuse("epsilon", "a finite number, at least 0", epsilon)
        return self._delta(self._mu(self._adjacency), epsilon)

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        """What was spent, for this accountant's adjacency; the method's text has the other figure.

        Args:
            delta: at least 1e-300 and below 1; None is the configuration's.
        """
        at = self._config.target_delta if delta is None else delta
        found = self.epsilons(at)
        own = found.pop(str(self._adjacency))
        ((other, epsilon),) = found.items()
        return PrivacySpent(
            epsilon=own,
            delta=at,
            num_releases=self.num_releases,
            accounting_method=f"{self.method}, {self._adjacency} ({other}: {round_up(epsilon)})",
        )

    def would_exceed(
        self, event: GaussianPrivacyEvent, max_epsilon: float | None = None, count: int = 1
    ) -> bool:
        """Whether these releases would take epsilon above a limit; nothing is composed.

        Args:
            event: one release.
            max_epsilon: the limit for this accountant's adjacency; None is the configuration's.
            count: how many releases, at least 1.
        """
        most = self._config.max_epsilon if max_epsilon is None else max_epsilon
        if most is None:
            raise refuse("max_epsilon", "in the configuration, or given", None, "give it here")
        gdp.check_epsilon(most)
        self._check(event, count)
        mu = self._mu(self._adjacency, Counter({event: count}))
        return not self._epsilon(mu, self._config.target_delta) <= most

    def state_dict(self) -> dict[str, object]:
        """The settings and all releases, as plain values for JSON."""
        made = [asdict(_Composition(event, count)) for event, count in self._releases.items()]
        return {**self._settings(), "compositions": made}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Go on from what ``state_dict`` wrote under the same settings.

        Args:
            state: read from JSON, for example.
        """
        if self._releases:
            raise UnsoundPlan(
                f"state must be loaded before anything is composed, got {self.num_releases} "
                f"releases, which it would forget; load it into a new accountant"
            )
        given = dict(state)
        compositions = given.pop("compositions", None)
        if given != self._settings():
            way_out = "make the accountant with the settings under which it was written"
            raise refuse("state", f"of {self._settings()}", given, way_out)
        self._releases = self._read(compositions)

    def _read(self, compositions: Any) -> Counter[GaussianPrivacyEvent]:
        try:
            made = msgspec.convert(compositions, list[_Composition])
        except msgspec.ValidationError as error:
            raise RecipeError(
                f"state's compositions must be a list of releases: {error}; write them by "
                f"state_dict"
            ) from error
        found: Counter[GaussianPrivacyEvent] = Counter()
        for each in made:
            self._check(each.event, each.count)
            found[each.event] += each.count
        return found

    def _settings(self) -> dict[str, object]:
        config = {
            "target_delta": self._config.target_delta,
            "population_size": self._config.population_size,
            "neighboring_relation": self._config.neighboring_relation.value,
            "sampling_method": self._config.sampling_method.value,
            "max_epsilon": self._config.max_epsilon,
        }
        return {
            "schema_version": _SCHEMA,
            "backend": f"dpfed {self.method}",
            "adjacency": str(self._adjacency),
            "config": config,
        }

    def _check(self, event: GaussianPrivacyEvent, count: int) -> None:
        if event.population_size != self._config.population_size:
            way_out = "one accountant is for one population"
            size = self._config.population_size
            raise refuse("population_size", f"{size}", event.population_size, way_out)
        if not event.noise_multiplier <= _MOST_NOISE:
            bound = f"at most {_MOST_NOISE:g}"
            raise refuse("noise_multiplier", bound, event.noise_multiplier, "give less noise")
        if isinstance(count, bool) or not isinstance(count, int):
            raise refuse("count", "a whole number", count, "count releases")
        if not 1 <= count <= _MOST_RELEASES:
            raise refuse("count", f"from 1 to {_MOST_RELEASES}", count, "count releases")

    def _mu(self, adjacency: Adjacency, more: Counter[GaussianPrivacyEvent] | None = None) -> float:
        """The mu of all releases, and of some more."""
        counted = self._releases + (more or Counter())
        terms = (
            gdp.mu_squared(event.noise_multiplier, count, adjacency)
            for event, count in counted.items()
        )
        return math.sqrt(math.fsum(terms))

    @abstractmethod
    def _epsilon(self, mu: float, delta: float) -> float:
        """An upper bound of the epsilon of mu-GDP."""

    @abstractmethod
    def _delta(self, mu: float, epsilon: float) -> float:
        """An upper bound of the delta of mu-GDP."""


ASSUMED = (
    "if each client's update is finite and not all zero, in arrays of floats that have dimensions; "
    "if who replies, and with which weight, does not depend on data; if no metric is shown; and if "
    "the server is trusted with each client's model"
)
"""What Flower's strategies leave open, and no accountant can see: docs/flower-accountant.md."""


class ExactAccountant(_Accountant):
    """Counts what Flower's fixed-clipping strategies release, by the exact Gaussian curve.

    Give it to ``DifferentialPrivacyServerSideFixedClipping(..., accountant=...)`` in the place of
    Flower's ``RdpAccountant``: it satisfies ``flwr.serverapp.PrivacyAccountant``. At the same noise
    its epsilon is smaller, and it is stated twice: for a client whose update becomes zero (the sum
    moves by one clip), and for a client who is replaced by any other (two clips). Never for
    add-remove, which Flower's configuration says: Flower fills a fixed number of places, so a
    client more takes the place of another.

    Args:
        config: Flower's own; its ``sampling_method`` must be no-amplification.
        adjacency: "zero-out" or "replace-one": the figure that ``max_epsilon`` limits and that
            Flower logs.

    Returns:
        an accountant; ``epsilons()`` has both figures, ``sentence`` says what they rest on.

    Raises:
        UnsoundPlan: if the configuration credits a draw.

    >>> from flwr.serverapp import GaussianPrivacyEvent, NeighboringRelation, PrivacyConfig
    >>> from flwr.serverapp import SamplingMethod
    >>> relation = NeighboringRelation.ADD_OR_REMOVE_ONE  # Flower takes no other here
    >>> config = PrivacyConfig(1e-5, 20, relation, SamplingMethod.NO_AMPLIFICATION)
    >>> accountant = ExactAccountant(config)
    >>> accountant.compose(GaussianPrivacyEvent(5.0, sample_size=10, population_size=20), 21)
    >>> {name: round(epsilon, 2) for name, epsilon in accountant.epsilons().items()}
    {'zero-out': 3.96, 'replace-one': 8.98}
    """

    method = "exact Gaussian accounting"

    def _epsilon(self, mu: float, delta: float) -> float:
        return gdp.epsilon_for(delta, mu)

    def _delta(self, mu: float, epsilon: float) -> float:
        return min(1.0, gdp.delta_for(epsilon, mu) * (1 + gdp.CAUTION))


class PLDAccountant(_Accountant):
    """The same by dp_accounting's privacy loss distributions: a figure by other people's code.

    It is for whoever wants a figure that does not rest on dpfed's curve: an upper bound, close to
    the exact epsilon, and infinite where that is above 500. All else is as in ``ExactAccountant``.

    Args:
        config: Flower's own; its ``sampling_method`` must be no-amplification.
        adjacency: "zero-out" or "replace-one": the figure that ``max_epsilon`` limits and that
            Flower logs.

    Returns:
        an accountant; ``epsilons()`` has both figures, ``sentence`` says what they rest on.

    Raises:
        UnsoundPlan: if the configuration credits a draw.

    >>> from flwr.serverapp import GaussianPrivacyEvent, NeighboringRelation, PrivacyConfig
    >>> from flwr.serverapp import SamplingMethod
    >>> relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    >>> config = PrivacyConfig(1e-5, 20, relation, SamplingMethod.NO_AMPLIFICATION)
    >>> accountant = PLDAccountant(config, adjacency="replace-one")
    >>> accountant.compose(GaussianPrivacyEvent(5.0, sample_size=10, population_size=20), 21)
    >>> round(accountant.get_epsilon(1e-5), 2)
    8.98
    """

    method = "PLD accounting (dp_accounting)"

    def _epsilon(self, mu: float, delta: float) -> float:
        if mu == 0:
            return 0.0
        exact = gdp.epsilon_for(delta, mu)
        if exact > _MOST_PLD_EPSILON:
            return math.inf
        return float(_losses(mu, exact).get_epsilon(delta)) * (1 + gdp.CAUTION)

    def _delta(self, mu: float, epsilon: float) -> float:
        if mu == 0:
            return 0.0
        if epsilon > _MOST_PLD_EPSILON or mu > _MOST_PLD_MU:
            return 1.0
        return min(1.0, float(_losses(mu, max(epsilon, mu)).get_delta(epsilon)) * (1 + gdp.CAUTION))


if TYPE_CHECKING:
    from flwr.serverapp import PrivacyAccountant

    _PROTOCOL: tuple[type[PrivacyAccountant], ...] = (ExactAccountant, PLDAccountant)


@lru_cache(maxsize=16)  # some megabytes each; a round asks for the same ones several times
def _losses(mu: float, epsilon: float) -> Any:
    """The privacy loss of one Gaussian release with this mu, which is that of all of them.

    Args:
        mu: of all releases.
        epsilon: about the figure that is wanted: the grid of losses has steps in proportion.
    """
    import dp_accounting

    from dpfed.accounting.accountant import RELATIONS, DrawnPLDAccountant

    interval = max(_FINEST_INTERVAL, epsilon / _PLD_STEPS)
    losses = DrawnPLDAccountant(RELATIONS[Adjacency.ZERO_OUT], interval)
    return losses.compose(dp_accounting.GaussianDpEvent(1 / mu))
