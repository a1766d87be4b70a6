# SPDX-License-Identifier: Apache-2.0
"""What a run guarantees: an upper bound per adversary, and the sentence that states it.

The exact closed form accounts for Gaussian releases, and dp_accounting's PLD (a pessimistic
discretisation, so an upper bound) for the rest. RDP is the last resort, and never for replace-one:
dp_accounting 0.6.0 leaves out the factor 2 there (google/differential-privacy issue 378). An event
that none of them bounds is refused.

Under LOCAL trust there are two figures. The server reads each release, so one share of noise hides
a unit from it. Everyone else sees only the broadcasts, so the noise of all other honest clients
protects a unit as well, but only where each client sends its release unmodified, so that the
noise of all clients adds up in the sum. Clients who pool what they know subtract their own noise
from it: the second figure is for the plan's number of them, and the sentence names it.

Against a server that is not trusted, a sentence is about one training. That it starts no other one
on the data is said to be assumed, unless an owner's budget holds it to that (``budgeted``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import ROUND_CEILING, Context, Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from dpfed.accounting import gdp
from dpfed.core.errors import Unpriceable
from dpfed.core.files import jsonable
from dpfed.core.sampling import EVERYONE, Everyone, Sampling
from dpfed.core.types import Adjacency, Mechanism, NoiseSource, Trust, Unit

if TYPE_CHECKING:
    from dp_accounting import DpEvent

EXACT = "exact Gaussian accounting"
PLD = "PLD accounting (dp_accounting)"
RDP = "RDP accounting (dp_accounting)"
NONE = "no accounting, since nothing is hidden"

SERVER = "the server"
READER = "whoever gets the model"
OTHERS = f"all other clients and {READER}"
"""Where one share of noise, or the server's, hides a unit from all of them together."""


@runtime_checkable
class GaussianRelease(Protocol):
    """A mechanism whose releases are plain Gaussian: the closed form holds."""

    def noise_multiplier(self, shares: float | None = None) -> float:
        """The noise's standard deviation over the bound of a row."""

    def worth(self, releases: int) -> float:
        """The squared sensitivity of the first releases together, over that of one release."""


@dataclass(frozen=True)
class Spent:
    """What one channel has released, or is going to release."""

    mechanism: Mechanism
    releases: int
    outside: Mapping[float, int] = field(default_factory=dict)
    """LOCAL: shares of noise that an outsider cannot subtract -> number of such releases.

    Empty where others' noise hides nothing, since releases are not sent unmodified."""
    participation: Sampling = EVERYONE
    """The random draw of units that only a trusted server sees, where there is one."""


@dataclass(frozen=True)
class Claim:
    """One adversary, one upper bound."""

    adversary: str
    epsilon: float
    delta: float
    accounting: str


@dataclass(frozen=True)
class Guarantee:
    """All claims of a run, with their assumptions. ``str()`` is the sentence."""

    claims: tuple[Claim, ...]
    unit: Unit
    adjacency: Adjacency
    trust: Trust
    rounds: int
    noise: NoiseSource
    idealized: bool = True
    shares: float = 1
    draws: str = ""
    """What is drawn at random, how likely, and who knows the draw; or how often a unit takes part.
    Empty where each is always there."""
    colluders: int = 1
    """How many clients may pool what they know, where the noise of others hides a unit."""
    budgeted: bool = False
    """Whether an owner's budget stands, so that another training cannot add to it unnoticed."""
    correlated: bool = False
    """Whether noise is kept for later releases: whoever reads it there can take it off."""
    enforced: str = ""
    """Who sees to it, in words: ``GATED``, ``SHIPPED``, or nobody else where all is one process."""

    @property
    def epsilon(self) -> float:
        """The epsilon against the strongest adversary named."""
        return max(claim.epsilon for claim in self.claims)

    @property
    def delta(self) -> float:
        """The delta of all claims."""
        return self.claims[0].delta

    @property
    def sentence(self) -> str:
        """The guarantee in one sentence."""
        if math.isinf(self.epsilon):
            return f"No privacy: {self._rounds()} in clear, for comparison only."
        stated = ", ".join([self._claims(), f"over {self._rounds()}", *self._counting_on()])
        return "; ".join([stated, self.claims[0].accounting, *self._footing()]) + "."

    def __str__(self) -> str:
        return self.sentence

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and strings, the sentence included."""
        facts = {"sentence": self.sentence, "epsilon": self.epsilon, **asdict(self)}
        plain: dict[str, Any] = jsonable(facts)
        return plain

    def _rounds(self) -> str:
        return f"{self.rounds} round{'' if self.rounds == 1 else 's'}"

    def _claims(self) -> str:
        first, *rest = self.claims
        unit = _UNITS[self.unit]
        text = f"{_pair(first)} for each {unit} ({self.adjacency}), against {first.adversary}"
        more = [f"{_pair(claim)} against {claim.adversary}" for claim in rest]
        return ", and ".join([text, *more])

    def _counting_on(self) -> list[str]:
        """What a server that is not trusted must not do, where no budget keeps it from that."""
        enforced = [self.enforced] if self.enforced else []
        trusted = self.trust is Trust.CENTRAL or self.budgeted
        more = [] if trusted else ["if the server starts no other training on the data"]
        alone = self.enforced and self.unit is not Unit.CLIENT  # else it is the unit's own row
        return [*enforced, *([UNDISTURBED] if alone else []), *more]

    def _footing(self) -> list[str]:
        arithmetic = "idealized arithmetic" if self.idealized else "exact integer arithmetic"
        return [*([self.draws] if self.draws else []), arithmetic, self._noise()]

    def _noise(self) -> str:
        if self.noise is NoiseSource.KEYED:
            return "noise keyed by a seed (research only)"
        return "noise from the operating system"


GATED = "enforced by each silo's own process"
SHIPPED = "if the app that the server ships is the reviewed one"
UNDISTURBED = "if no record stops or delays its silo's work"
"""A record that ends its process, or takes all of its memory or time, empties the silo's rows."""

_UNITS = {
    Unit.RECORD: "record",
    Unit.GROUP: "person, with all of their records at one client",
    Unit.CLIENT: "client",
}


def _pair(claim: Claim) -> str:
    return f"({round_up(claim.epsilon)}, {round_up(claim.delta)})-DP"


def round_up(value: float, digits: int = 4) -> str:
    """A figure as text, rounded up."""
    if math.isinf(value):
        return "inf"
    exact = Decimal(value * (1 - gdp.CAUTION))  # take back the caution, which would cost a digit
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(exact)
    return f"{float(rounded):.{max(6, digits)}g}"


def guarantee(
    spent: Sequence[Spent],
    delta: float,
    noise: NoiseSource,
    rounds: int,
    delta_reserved: float = 0.0,
    server: str = SERVER,
    colluders: int = 1,
) -> Guarantee:
    """What these releases guarantee against each adversary that the trust model names.

    Args:
        spent: the releases of each channel; all channels have one unit, adjacency and trust.
        delta: the delta of all claims, at least 1e-300 and below 1.
        noise: where the noise comes from; the sentence states it.
        rounds: the number of rounds that the sentence states.
        delta_reserved: the part of delta for a secure sum's own chance of failure, at least 0 and
            below delta; LOCAL trust ignores it.
        server: under DISTRIBUTED trust, the kind of server that the sum withstands, in words, with
            the clients on its side.
        colluders: how many clients pool what they know, at least 0; the caller's figures for LOCAL
            outsiders leave out so many shares of noise.
    """
    kinds = {(s.mechanism.unit, s.mechanism.adjacency, s.mechanism.trust) for s in spent}
    if len(kinds) != 1:
        raise Unpriceable(
            f"a guarantee must have one (unit, adjacency, trust), got {sorted(kinds)}; account for "
            f"each of them on its own"
        )
    first = spent[0].mechanism
    if first.trust is Trust.LOCAL:
        found = _local(spent, delta, colluders)
    else:
        found = _pooled(spent, delta - delta_reserved, server)
    claims = tuple(replace(claim, delta=delta) for claim in found)
    return Guarantee(
        claims=claims,
        unit=first.unit,
        adjacency=first.adjacency,
        trust=first.trust,
        rounds=rounds,
        noise=noise,
        idealized=not all(s.mechanism.exact for s in spent),
        shares=first.shares,
        draws=_draws(spent),
        colluders=colluders,
        correlated=not all(s.mechanism.independent for s in spent),
    )


def _draws(spent: Sequence[Spent]) -> str:
    """The draws that the figures assume to be secret, in words."""
    rates = {s.mechanism.sampling.rate for s in spent} - {1.0}
    asked = {s.participation.rate for s in spent} - {1.0}
    inside = [f"each {spent[0].mechanism.unit} is drawn for a release with probability {rate:g}, "
              f"known to its client only" for rate in sorted(rates)]  # fmt: skip
    among = [f"each client is asked with probability {rate:g}, known to the server only (how long "
             f"a round takes is not covered)" for rate in sorted(asked)]  # fmt: skip
    return "; ".join([*inside, *among, *_limits(spent)])


def _limits(spent: Sequence[Spent]) -> list[str]:
    """How often a client takes part, where that is counted on, and who holds it to that."""
    found = {getattr(s.mechanism, "participation", None) for s in spent} - {None}
    return [
        f"each client takes part {limits} (its own ledger refuses more; what is protected is an "
        f"installation whose state is kept)"
        for limits in found
    ]


def _local(spent: Sequence[Spent], delta: float, colluders: int) -> tuple[Claim, ...]:
    server = _claim(SERVER, spent, delta, lambda s: {1: s.releases})
    others = _claim(_pooling(colluders), spent, delta, lambda s: s.outside or {1: s.releases})
    if others.epsilon < server.epsilon:
        return server, others
    return (Claim(f"{SERVER}, {OTHERS}", server.epsilon, delta, server.accounting),)


def _pooling(colluders: int) -> str:
    """The readers from whom the noise of all others hides a unit, if so many of them pool."""
    if not colluders:
        return READER
    some = "1 other client" if colluders == 1 else f"{colluders} other clients together"
    return f"{some} (the rest add their noise) and {READER}"


def _pooled(spent: Sequence[Spent], delta: float, server: str) -> tuple[Claim, ...]:
    first = spent[0].mechanism
    if first.trust is Trust.CENTRAL:
        trusted = "with the sums"
        if any(not isinstance(s.participation, Everyone) for s in spent):
            trusted = "with the sums, and alone knows who takes part"
        if _limits(spent):
            trusted = "with the sums, and adds the noise"
        adversary = f"{OTHERS} (the server is trusted {trusted})"
    else:
        adversary = (
            f"{server}, and {READER}, who see only sums with at least "
            f"{first.shares:g} honest shares of noise"
        )
    return (_claim(adversary, spent, delta, lambda s: {s.mechanism.shares: s.releases}),)


def _claim(
    adversary: str,
    spent: Sequence[Spent],
    delta: float,
    facing: Callable[[Spent], Mapping[float, int]],
) -> Claim:
    epsilon, accounting = _epsilon(spent, delta, facing)
    return Claim(adversary, epsilon, delta, accounting)


def _epsilon(
    spent: Sequence[Spent], delta: float, facing: Callable[[Spent], Mapping[float, int]]
) -> tuple[float, str]:
    terms = [(s, n, h) for s in spent for h, n in facing(s).items()]
    if all(is_gaussian(s.mechanism, s.participation) for s, _, _ in terms):
        mu = math.sqrt(math.fsum(mechanism_mu_squared(s.mechanism, n, h) for s, n, h in terms))
        return gdp.epsilon_for(delta, mu), EXACT
    from dp_accounting import ComposedDpEvent

    events = [event_of(*term) for term in terms]
    return price(ComposedDpEvent(events), delta, terms[0][0].mechanism.adjacency)


def event_of(spent: Spent, releases: int, shares: float) -> DpEvent:
    """The releases as an event, amplified by the draw of clients where there is one.

    Args:
        spent: the channel: its mechanism, and the draw.
        releases: how many releases the event has, at least 0.
        shares: how many shares of noise hide a unit, at least 1.
    """
    from dp_accounting import SelfComposedDpEvent

    mechanism, draw = spent.mechanism, spent.participation
    if isinstance(draw, Everyone) or releases == 0 or mechanism.std == 0:
        return mechanism.event(releases, shares)
    if not mechanism.independent:
        raise Unpriceable(
            f"{type(mechanism).__name__} correlates the noise of its releases, which no accountant "
            f"here bounds under sampling; use mechanism 'gaussian', or ask all clients"
        )
    one = mechanism.event(1, shares)
    inner = one.event if isinstance(one, SelfComposedDpEvent) else one
    return SelfComposedDpEvent(draw.amplify(inner), releases)


def is_gaussian(mechanism: Mechanism, participation: Sampling = EVERYONE) -> bool:
    """Whether the closed form applies: Gaussian noise, and every unit takes part."""
    everyone = isinstance(mechanism.sampling, Everyone) and isinstance(participation, Everyone)
    return everyone and isinstance(mechanism, GaussianRelease)


def mechanism_mu_squared(mechanism: Mechanism, releases: int, shares: float | None = None) -> float:
    """The squared mu of a Gaussian mechanism's first releases.

    Args:
        mechanism: a mechanism of which ``is_gaussian`` is true.
        releases: how many releases, from its first one on; at least 0.
        shares: how many shares of noise hide a unit; None is the mechanism's own number.
    """
    assert isinstance(mechanism, GaussianRelease)  # noqa: S101 (tells mypy what is_gaussian saw)
    multiplier = mechanism.noise_multiplier(shares)
    return gdp.mu_squared(multiplier, mechanism.worth(releases), mechanism.adjacency)


def price(event: DpEvent, delta: float, adjacency: Adjacency) -> tuple[float, str]:
    """(epsilon, how it was computed) of an event: exact, else PLD, else RDP if it is sound.

    Results are cached, since a run asks for the same event before a round, after it and at its end.

    Args:
        event: the releases to account for.
        delta: the delta at which epsilon is wanted, at least 1e-300 and below 1.
        adjacency: what neighbouring data sets are.
    """
    gdp.check_delta(delta)
    known = _is_known(event, adjacency)
    found = _accounted(_fixed(event), delta, adjacency) if known else None
    if found is None:
        raise Unpriceable(
            f"no accountant here gives an upper bound for {event} under {adjacency}; "
            f"use Gaussian releases with everyone taking part, or another adjacency"
        )
    return found


@lru_cache(maxsize=1024)
def _accounted(event: DpEvent, delta: float, adjacency: Adjacency) -> tuple[float, str] | None:
    """The figure of the first accountant that accepts the event."""
    from dp_accounting import UnsupportedEventError

    for accountant, name in _accountants(adjacency):
        try:
            accountant.compose(event)
        except (UnsupportedEventError, NotImplementedError):
            continue
        epsilon = float(accountant.get_epsilon(delta))
        caution = 1.0 if name == EXACT else 1 + gdp.CAUTION
        return epsilon * caution, NONE if math.isinf(epsilon) else name
    return None


def _fixed(event: Any) -> DpEvent:
    """The event with tuples instead of lists, so that it can be a key of the cache."""
    import dp_accounting as dp

    match event:
        case dp.ComposedDpEvent():
            return dp.ComposedDpEvent(tuple(map(_fixed, event.events)))
        case dp.SelfComposedDpEvent():
            return dp.SelfComposedDpEvent(_fixed(event.event), event.count)
        case dp.PoissonSampledDpEvent():
            return dp.PoissonSampledDpEvent(event.sampling_probability, _fixed(event.event))
    return event


def _is_known(event: Any, adjacency: Adjacency) -> bool:
    """Whether the accountants are known to bound an event; every other event is refused.

    In dp_accounting 0.6.0 PLD drops the count of a randomized response, and it is an open question
    whether its figure for Poisson sampling under replace-one is still a bound after composition.
    """
    import dp_accounting as dp

    match event:
        case dp.ComposedDpEvent():
            return all(_is_known(part, adjacency) for part in event.events)
        case dp.SelfComposedDpEvent():
            return _is_known(event.event, adjacency)
        case dp.PoissonSampledDpEvent():
            return adjacency is not Adjacency.REPLACE_ONE and _is_known(event.event, adjacency)
        case dp.GaussianDpEvent():
            return bool(event.noise_multiplier >= 0)
    return isinstance(
        event, dp.NoOpDpEvent | dp.NonPrivateDpEvent | dp.LaplaceDpEvent | dp.ZCDpEvent
    )


def _accountants(adjacency: Adjacency) -> list[tuple[Any, str]]:
    from dp_accounting.rdp import RdpAccountant

    from dpfed.accounting.accountant import RELATIONS, DrawnPLDAccountant, GaussianAccountant

    relation = RELATIONS[adjacency]
    found = [(GaussianAccountant(relation), EXACT), (DrawnPLDAccountant(relation), PLD)]
    if adjacency is Adjacency.ADD_REMOVE:
        found.append((RdpAccountant(neighboring_relation=relation), RDP))
    return found


def delta_warning(delta: float, units: float) -> str | None:
    """A warning where delta is 1 / units or more, which allows publishing a random unit."""
    if delta * units < 1:
        return None
    return (
        f"delta = {delta:g} is at least 1 / {units:g} (the number of units): the guarantee would "
        f"allow a unit to be published; use a delta well below {1 / units:.2g}"
    )
