# SPDX-License-Identifier: Apache-2.0
"""What a run guarantees: an upper bound per adversary, and the text that states it.

Each claim is the cost of one tree of events (event_tree.py), and carries that tree, so that anyone
can compute it again. The exact closed form accounts for Gaussian releases, and dp_accounting's PLD
(a pessimistic discretisation, so an upper bound) for the rest. RDP is the last resort, and never
for replace-one: dp_accounting 0.6.0 leaves out the factor 2 there (google/differential-privacy
issue 378). Draws under replace-one are priced by way of a zeroed unit (triangle.py). An event that
none of them bounds is refused. Once per run a second accountant
checks the figure (second_opinion.py).

Under LOCAL trust there are two figures. The server reads each release, so one share of noise hides
a unit from it. Everyone else sees only the broadcasts, so the noise of all other honest clients
protects a unit as well, but only where each client sends its release unmodified, so that the
noise of all clients adds up in the sum. Clients who pool what they know subtract their own noise
from it: the second figure is for the plan's number of colluders, and the text names it.

Against a server that is not trusted, a guarantee is about one training. It states the assumption
that the server starts no other training on the data, unless an owner's budget enforces that
(``budgeted``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from decimal import ROUND_CEILING, Context, Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dpfed.accounting import events, gdp
from dpfed.accounting.event_tree import (
    ChannelUse,
    Facing,
    GaussianRelease,
    TrainingReleases,
    gaussian_mu_squared,
)
from dpfed.core.checks import refuse
from dpfed.core.dsse import Json
from dpfed.core.errors import Unpriceable
from dpfed.core.files import jsonable
from dpfed.core.sampling import Everyone
from dpfed.core.types import Adjacency, Mechanism, NoiseSource, Trust, Unit

if TYPE_CHECKING:
    from dp_accounting import DpEvent

EXACT = "exact Gaussian accounting"
PLD = "PLD accounting (dp_accounting)"
RDP = "RDP accounting (dp_accounting)"
TRIANGLE = f"{PLD}, by way of the data in which the unit is zeroed"
NONE = "no accounting, since nothing is hidden"

SERVER = "the server"
READER = "whoever gets the model"
MOST_DRAWN_EPSILON = 50.0
"""The largest epsilon for which delta covers the chance that the number of drawn units shows."""
OTHERS = f"all other clients and {READER}"
"""The adversaries who all face the same noise: one share of it, or the server's."""


@dataclass(frozen=True)
class Claim:
    """One adversary, one upper bound."""

    adversary: str
    epsilon: float
    delta: float
    accounting: str
    event: Json
    """The releases as a tree of dp_accounting's events."""
    delta_reserved: float = 0.0
    """The part of delta for a secure sum's own chance of failure, and for the chance that a release
    shows how many units were drawn: epsilon is at the rest."""


@dataclass(frozen=True)
class SecondOpinion:
    """What another accountant says about a claim's epsilon: it lies between these two."""

    at_least: float | None
    """An optimistic PLD; None if that says nothing (0 at small rates, or infinite)."""
    at_most: float | None
    """RDP; None if it is infinite, or knows no bound."""


@dataclass(frozen=True)
class Guarantee:
    """All claims of a run, with their assumptions. ``str()`` states them in one sentence.

    Its fields are what that sentence says: the claims against each adversary, the unit, the
    adjacency, the trust, the rounds, and the assumptions. ``to_json`` has all of them.

    >>> from dpfed.flower import make_plan
    >>> plan = make_plan(clients=4, rounds=3, privacy={"epsilon": 2.0, "unit": "client"})
    >>> stated = plan.guarantee()
    >>> round(stated.epsilon, 3), stated.delta, str(stated) == stated.sentence
    (2.0, 1e-05, True)
    """

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
    Empty if each is always there."""
    colluders: int = 1
    """How many clients may pool what they know, if the noise of others hides a unit."""
    budgeted: bool = False
    """Whether an owner's budget limits what further trainings on the data may cost."""
    correlated: bool = False
    """Whether noise is stored for later releases: whoever reads the store can subtract it."""
    enforced: str = ""
    """Who enforces it, in words: ``GATED`` or ``SHIPPED``; empty if all is one process."""
    realised: tuple[float, ...] = field(default=(), compare=False)
    """The epsilon of what was released, by claim: it holds if the end was fixed beforehand."""
    blocks: tuple[str, ...] = ()
    """The blocks of arriving data that were used: units are protected inside of them."""
    opinions: tuple[SecondOpinion, ...] = field(default=(), compare=False)
    """A second accountant's bounds for each claim; empty if it was not used."""

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

    @property
    def summary(self) -> str:
        """The claims and the rounds in one short line; ``assumptions`` belong below it."""
        if math.isinf(self.epsilon):
            return self.sentence
        return f"{self._claims()}, over {self._rounds()}"

    @property
    def assumptions(self) -> list[str]:
        """What the claims rest on, point by point, in the words of the guarantee's text."""
        if math.isinf(self.epsilon):
            return []
        return [*self._counting_on(), self.claims[0].accounting, *self._footing()]

    def __str__(self) -> str:
        return self.sentence

    def _repr_html_(self) -> str:
        """As a notebook shows it: a line per adversary, with the sentence below."""
        from dpfed.core.html import html_table  # a gate has no notebook

        rows = [
            (claim.adversary, round_up(claim.epsilon), round_up(claim.delta))
            for claim in self.claims
        ]
        return html_table("", ("against", "epsilon", "delta"), rows, self.sentence)

    def epsilon_at(self, delta: float, claim: int = 0) -> float:
        """The epsilon of the same releases at another delta.

        Args:
            delta: at least 1e-300 and below 1; above what a secure sum reserves of it.
            claim: which of the claims, by its place; 0 is the first one.
        """
        stated = self.claims[claim]
        left = delta - stated.delta_reserved
        return epsilon_of(stated.event, left, self.adjacency)[0] if left > 0 else math.inf

    def delta_at(self, epsilon: float, claim: int = 0) -> float:
        """The delta of the same releases at another epsilon.

        Args:
            epsilon: a number, at least 0.
            claim: which of the claims, by its place; 0 is the first one.
        """
        stated = self.claims[claim]
        found = delta_of(stated.event, epsilon, self.adjacency)
        return min(1.0, found + stated.delta_reserved)

    def rho(self, claim: int = 0) -> float | None:
        """The rho of zero-concentrated DP: mu^2 / 2 of Gaussian releases, None for any other.

        A secure sum's chance of failure is not in it: that has no rho.
        """
        stated = self.claims[claim]
        found = gaussian_mu_squared(stated.event, self.adjacency)
        return None if found is None or stated.delta_reserved else found / 2

    def trade_off(self, false_alarms: float, claim: int = 0) -> float:
        """The least part of units that an attacker misses at a rate of false alarms.

        It is the f of f-DP: exact for Gaussian releases (Dong et al. 2022, eq. 6), and for others
        the bound that 200 points of the curve (epsilon, delta) give (their Proposition 2.12).

        Args:
            false_alarms: from 0 to 1.
            claim: which of the claims, by its place; 0 is the first one.
        """
        if not 0 <= false_alarms <= 1:
            raise refuse("false_alarms", "from 0 to 1", false_alarms)
        stated = self.claims[claim]
        return _missed(stated.event, stated.delta_reserved, self.adjacency, false_alarms)

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and strings, the sentence included."""
        facts = {"sentence": self.sentence, "epsilon": self.epsilon, **asdict(self)}
        for claim in facts["claims"]:
            square = gaussian_mu_squared(claim["event"], self.adjacency)
            claim["mu"] = None if square is None else math.sqrt(square)
        if not self.blocks:
            del facts["blocks"]
        plain: dict[str, Any] = jsonable(facts)
        return plain

    def _rounds(self) -> str:
        return f"{self.rounds} round{'' if self.rounds == 1 else 's'}"

    def _claims(self) -> str:
        first, *rest = self.claims
        unit = _UNITS[self.unit]
        kind = f"{self.adjacency}{' inside its block' if self.blocks else ''}"
        text = f"{_pair(first)} for each {unit} ({kind}), against {first.adversary}"
        more = [f"{_pair(claim)} against {claim.adversary}" for claim in rest]
        return ", and ".join([text, *more])

    def _counting_on(self) -> list[str]:
        """What the claims assume of an untrusted server, if no budget enforces it."""
        enforced = [self.enforced] if self.enforced else []
        trusted = self.trust is Trust.CENTRAL or self.budgeted
        more = [] if trusted else ["if the server starts no other training on the data"]
        alone = self.enforced and self.unit is not Unit.CLIENT  # else it is the unit's own row
        given = []
        if self.blocks:
            unit = "person" if self.unit is Unit.GROUP else str(self.unit)
            given.append(NOT_ACROSS.format(many=len(self.blocks), unit=unit))
        return [*enforced, *given, *([UNDISTURBED] if alone else []), *more]

    def _footing(self) -> list[str]:
        arithmetic = "idealized arithmetic" if self.idealized else "exact integer arithmetic"
        return [*([self.draws] if self.draws else []), arithmetic, self._noise()]

    def _noise(self) -> str:
        if self.noise is NoiseSource.KEYED:
            return "noise keyed by a seed (research only)"
        return "noise from the operating system"


NOT_ACROSS = (
    "with {many} of the data's blocks (in which block a {unit} is, as by the month of arrival, is "
    "not protected, and no figure holds for the whole data set)"
)
"""What a guarantee inside blocks does not say (accounting/ledger/blocks.py)."""
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
    exact = Decimal(value * (1 - gdp.CAUTION))  # undo the safety margin, which would cost a digit
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(exact)
    return f"{float(rounded):.{max(6, digits)}g}"


def guarantee(
    made: TrainingReleases,
    delta: float,
    noise: NoiseSource,
    rounds: int,
    delta_reserved: float = 0.0,
    server: str = SERVER,
    colluders: int = 1,
) -> Guarantee:
    """What these releases guarantee against each adversary that the trust model names.

    Args:
        made: the releases of all rounds; all channels have one unit, adjacency and trust.
        delta: the delta of all claims, at least 1e-300 and below 1.
        noise: where the noise comes from; the guarantee's text states it.
        rounds: the number of rounds, used in the guarantee's text.
        delta_reserved: the part of delta that epsilon is not stated at, at least 0 and below delta:
            for a secure sum's own chance of failure, and for units that are drawn.
        server: under DISTRIBUTED trust, the kind of server that the sum withstands, in words, with
            the clients on its side.
        colluders: how many clients pool what they know, at least 0; the caller has left out their
            shares of noise in the figures for LOCAL outsiders.
    """
    mechanisms = list(made.channels.values())
    kinds = {(m.unit, m.adjacency, m.trust) for m in mechanisms}
    if len(kinds) != 1:
        raise Unpriceable(
            f"a guarantee must have one (unit, adjacency, trust), got {sorted(kinds)}; account for "
            f"each of them on its own"
        )
    first = mechanisms[0]
    if first.trust is Trust.LOCAL:
        claims = _local(made, delta, colluders, delta_reserved)
    else:
        claims = _pooled(made, delta, delta_reserved, server)
    return Guarantee(
        claims=claims,
        unit=first.unit,
        adjacency=first.adjacency,
        trust=first.trust,
        rounds=rounds,
        noise=noise,
        idealized=not all(m.exact for m in mechanisms),
        shares=first.shares,
        draws=_draws(made),
        colluders=colluders,
        correlated=not all(m.independent for m in mechanisms),
    )


def certified(planned: Guarantee, spent: Guarantee) -> Guarantee:
    """The guarantee that is stated of a run that has ended: no figure is below its plan's.

    When a run ends, whether an attempt is made again and who drops out may be chosen by what was
    released: by a server, by clients that pool what they know, or by a user who watches. The figure
    of the releases alone is a bound only if all of that was fixed beforehand; the plan's is one in
    any case, as long as the releases stay within it (a filter).

    Args:
        planned: of all that the plan makes.
        spent: of what was released.
    """
    claims = []
    for at in (0, -1):
        now = spent.claims[at]
        larger = now if now.epsilon > planned.claims[at].epsilon else planned.claims[at]
        claims.append(replace(larger, adversary=planned.claims[at].adversary))
    first, last = claims
    if len(planned.claims) == 1:
        stated: tuple[Claim, ...] = (first,)
    elif last.epsilon < first.epsilon:
        stated = (first, last)
    else:
        stated = (replace(first, adversary=f"{SERVER}, {OTHERS}"),)
    return replace(spent, claims=stated, realised=tuple(each.epsilon for each in spent.claims))


def _draws(made: TrainingReleases) -> str:
    """The random draws that must stay secret for the figures to hold, in words."""
    mechanisms = list(made.channels.values())
    rates = {m.sampling.rate for m in mechanisms} - {1.0}
    said = [
        f"each {mechanisms[0].unit} is drawn for a release with probability {rate:g}, known to its "
        f"client only (how long a release takes is not covered)"
        for rate in sorted(rates)
    ]
    if made.draw.rate != 1:
        said.append(
            f"each client is asked with probability {made.draw.rate:g}, known to the server only "
            f"(how long a round takes is not covered)"
        )
    return "; ".join([*said, *_limits(made)])


def _limits(made: TrainingReleases) -> list[str]:
    """How often a client takes part, if the accounting relies on it, and who enforces it."""
    found = {m.participation for m in made.channels.values()} - {None}
    return [
        f"each client takes part {limits} (its own ledger refuses more; what is protected is an "
        f"installation whose state is kept)"
        for limits in found
    ]


def _local(
    made: TrainingReleases, delta: float, colluders: int, delta_reserved: float
) -> tuple[Claim, ...]:
    def outside(use: ChannelUse) -> float:
        """Correlated noise of others does not count: it depends on their earlier rounds."""
        return use.shares if made.pooled and made.channels[use.channel].independent else 1.0

    server = _claim(SERVER, made, delta, lambda _: 1.0, delta_reserved)
    others = _claim(_pooling(colluders), made, delta, outside, delta_reserved)
    if others.epsilon < server.epsilon:
        return server, others
    return (replace(server, adversary=f"{SERVER}, {OTHERS}"),)


def _pooling(colluders: int) -> str:
    """The adversaries who see only broadcasts, where ``colluders`` clients pool what they know."""
    if not colluders:
        return READER
    some = "1 other client" if colluders == 1 else f"{colluders} other clients together"
    return f"{some} (the rest add their noise) and {READER}"


def _pooled(
    made: TrainingReleases, delta: float, delta_reserved: float, server: str
) -> tuple[Claim, ...]:
    first = next(iter(made.channels.values()))
    if first.trust is Trust.CENTRAL:
        trusted = "with the sums"
        if not isinstance(made.draw, Everyone):
            trusted = "with the sums, and alone knows who takes part"
        if _limits(made):
            trusted = "with the sums, and adds the noise"
        adversary = f"{OTHERS} (the server is trusted {trusted})"
    else:
        adversary = (
            f"{server}, and {READER}, who see only sums with at least "
            f"{first.shares:g} honest shares of noise"
        )
    return (_claim(adversary, made, delta, strongest(made), delta_reserved),)


def strongest(made: TrainingReleases) -> Facing:
    """The shares of noise that hide a unit from the strongest adversary of the trust model."""
    return lambda use: made.channels[use.channel].shares


def _claim(
    adversary: str,
    made: TrainingReleases,
    delta: float,
    facing: Facing,
    delta_reserved: float = 0.0,
) -> Claim:
    event = made.event(facing)
    adjacency = next(iter(made.channels.values())).adjacency
    epsilon, accounting = epsilon_of(event, delta - delta_reserved, adjacency)
    drawn = any(mechanism.sampling.rate != 1 for mechanism in made.channels.values())
    if drawn and MOST_DRAWN_EPSILON < epsilon < math.inf:
        raise Unpriceable(
            f"epsilon must be at most {MOST_DRAWN_EPSILON:g} where units are drawn, got "
            f"{epsilon:.4g}: with less noise their number may show; use more, or a rate of 1"
        )
    return Claim(
        adversary=adversary,
        epsilon=epsilon,
        delta=delta,
        accounting=accounting,
        delta_reserved=delta_reserved,
        event=event,
    )


def epsilon_of(event: Json, delta: float, adjacency: Adjacency) -> tuple[float, str]:
    """(epsilon, how it was computed) of a tree of events: an upper bound.

    Args:
        event: the tree.
        delta: the delta at which epsilon is wanted, at least 1e-300 and below 1.
        adjacency: what neighbouring data sets are.
    """
    by_zeroing = _by_zeroing(event, adjacency)
    if by_zeroing is not None:
        gdp.check_delta(delta)
        from dpfed.accounting import triangle  # it takes NumPy to load

        epsilon = triangle.epsilon_of(by_zeroing, delta)
        return epsilon, NONE if math.isinf(epsilon) else TRIANGLE
    gaussian = gaussian_mu_squared(event, adjacency)
    if gaussian is None:
        return epsilon_of_event(events.from_json(event), delta, adjacency)
    return gdp.epsilon_for(delta, math.sqrt(gaussian)), EXACT if math.isfinite(gaussian) else NONE


def _by_zeroing(event: Json, adjacency: Adjacency) -> Json | None:
    """The tree below the mark of draws under replace-one; None if the event has no mark."""
    inner = events.below_mark(event)
    if inner is not None and adjacency is not Adjacency.REPLACE_ONE:
        raise Unpriceable(
            f"events that are priced by way of a zeroed unit hold for replace-one, got "
            f"{adjacency}; account for the run under its own adjacency"
        )
    return inner


def rough_epsilon_of(event: Json, delta: float, adjacency: Adjacency) -> float:
    """A rough epsilon of a tree with draws, ten times faster: for a search, never to be stated.

    Args:
        event: the tree, which has a draw.
        delta: the delta at which epsilon is wanted.
        adjacency: what neighbouring data sets are.
    """
    gdp.check_delta(delta)
    by_zeroing = _by_zeroing(event, adjacency)
    if by_zeroing is not None:
        from dpfed.accounting import triangle

        return triangle.epsilon_of(by_zeroing, delta, _ROUGH_INTERVAL)
    made = _fixed(events.from_json(event))
    if not _is_known(made, adjacency):
        raise _no_bound(made, adjacency)
    return _rough(made, delta, adjacency)


@lru_cache(maxsize=1024)  # a server, its simulated clients and the next trial ask for the same
def _rough(event: DpEvent, delta: float, adjacency: Adjacency) -> float:
    from dpfed.accounting.accountant import RELATIONS, DrawnPLDAccountant

    accountant = DrawnPLDAccountant(RELATIONS[adjacency], _ROUGH_INTERVAL)
    return float(accountant.compose(event).get_epsilon(delta))


_ROUGH_INTERVAL = 1e-3  # ten times dp_accounting's own


def delta_of(event: Json, epsilon: float, adjacency: Adjacency) -> float:
    """An upper bound of the delta of a tree of events.

    Args:
        event: the tree.
        epsilon: at which delta is wanted, at least 0.
        adjacency: what neighbouring data sets are.
    """
    if not epsilon >= 0:
        raise refuse("epsilon", "a number, at least 0", epsilon)
    return _curve(event, adjacency)(epsilon)


def _curve(event: Json, adjacency: Adjacency) -> Callable[[float], float]:
    """An upper bound of delta, by epsilon."""
    by_zeroing = _by_zeroing(event, adjacency)
    if by_zeroing is not None:
        from dpfed.accounting import triangle

        return lambda epsilon: triangle.delta_of(by_zeroing, epsilon)
    gaussian = gaussian_mu_squared(event, adjacency)
    if gaussian is not None:
        mu = math.sqrt(gaussian)
        return lambda epsilon: min(1.0, gdp.delta_for(epsilon, mu) * (1 + gdp.CAUTION))
    made = events.from_json(event)
    accountant, _ = _composed(_fixed(made), adjacency) if _is_known(made, adjacency) else (None, "")
    if accountant is None:
        raise _no_bound(made, adjacency)
    return lambda epsilon: min(1.0, float(accountant.get_delta(epsilon)) * (1 + gdp.CAUTION))


def _missed(event: Json, reserved: float, adjacency: Adjacency, false_alarms: float) -> float:
    from scipy.special import ndtr, ndtri

    gaussian = gaussian_mu_squared(event, adjacency)
    if gaussian is not None:
        if math.isinf(gaussian):
            return 0.0
        missed = float(ndtr(ndtri(1 - false_alarms) - math.sqrt(gaussian)))
        return max(0.0, missed - reserved)
    tails = (epsilon_of(event, tail, adjacency)[0] for tail in (1e-12, 1e-8, 1e-5, 1e-3))
    most = next(filter(math.isfinite, tails), math.inf)
    if math.isinf(most):
        return 0.0
    bounds, curve = [0.0], _curve(event, adjacency)
    for epsilon in (most * k / 200 for k in range(201)):
        delta = min(1.0, curve(epsilon) + reserved)
        bounds += [
            1 - delta - math.exp(epsilon) * false_alarms,
            math.exp(-epsilon) * (1 - delta - false_alarms),
        ]
    return max(bounds)


def is_gaussian(mechanism: Mechanism) -> bool:
    """Whether the closed form applies: Gaussian noise, and every unit takes part."""
    return isinstance(mechanism.sampling, Everyone) and isinstance(mechanism, GaussianRelease)


def mechanism_mu_squared(mechanism: Mechanism, releases: int, shares: float | None = None) -> float:
    """The squared mu of a Gaussian mechanism's first releases.

    Args:
        mechanism: a mechanism of which ``is_gaussian`` is true.
        releases: how many releases, from its first one on; at least 0.
        shares: how many shares of noise hide a unit; None means the mechanism's own number.
    """
    assert isinstance(mechanism, GaussianRelease)  # noqa: S101 (tells mypy what is_gaussian saw)
    multiplier = mechanism.noise_multiplier(shares)
    return gdp.mu_squared(multiplier, mechanism.squared_sensitivity(releases), mechanism.adjacency)


def epsilon_of_event(event: DpEvent, delta: float, adjacency: Adjacency | str) -> tuple[float, str]:
    """(epsilon, how it was computed) of an event: exact, else PLD, else RDP if it is sound.

    Results are cached, since a run asks for the same event before a round, after it and at its end.

    Args:
        event: the releases to account for, as dp_accounting has them.
        delta: the delta at which epsilon is wanted, at least 1e-300 and below 1.
        adjacency: what neighbouring data sets are: replace-one, zero-out or add-remove.

    >>> from dp_accounting import GaussianDpEvent
    >>> epsilon, how = epsilon_of_event(GaussianDpEvent(2.0), 1e-5, "replace-one")
    >>> round(epsilon, 2), how
    (4.38, 'exact Gaussian accounting')
    """
    gdp.check_delta(delta)
    adjacency = Adjacency(adjacency)
    known = _is_known(event, adjacency)
    if known:
        events.checked(events.to_json(event))
    found = _accounted(_fixed(event), delta, adjacency) if known else None
    if found is None:
        raise _no_bound(event, adjacency)
    return found


def _no_bound(event: DpEvent, adjacency: Adjacency) -> Unpriceable:
    return Unpriceable(
        f"no accountant here gives an upper bound for {event} under {adjacency}; "
        f"use Gaussian releases with everyone taking part, or another adjacency"
    )


@lru_cache(maxsize=1024)
def _accounted(event: DpEvent, delta: float, adjacency: Adjacency) -> tuple[float, str] | None:
    """The figure of the first accountant that accepts the event."""
    accountant, name = _composed(event, adjacency)
    if accountant is None:
        return None
    # a composition's transforms lose up to so much of delta: 1.1e-16 a release is the most that was
    # measured, against an inversion of the loss's moments (tests/attacks/test_fourth_look.py)
    missed = 0.0 if name == EXACT else 4e-16 * _releases(event)
    if missed > delta / 2:
        return math.inf, NONE
    epsilon = float(accountant.get_epsilon(delta - missed if missed > 1e-6 * delta else delta))
    caution = 1.0 if name == EXACT else 1 + gdp.CAUTION
    return epsilon * caution, NONE if math.isinf(epsilon) else name


def _releases(event: Any) -> int:
    """How many events of one release are composed."""
    import dp_accounting as dp

    match event:
        case dp.ComposedDpEvent():
            return sum(map(_releases, event.events))
        case dp.SelfComposedDpEvent():
            return int(event.count) * _releases(event.event)
    return 1


def _composed(event: DpEvent, adjacency: Adjacency) -> tuple[Any, str]:
    """The first accountant that accepts the event, and its name; None if there is none."""
    from dp_accounting import UnsupportedEventError

    for accountant, name in _accountants(adjacency):
        try:
            accountant.compose(event)
        except (UnsupportedEventError, NotImplementedError):
            continue
        return accountant, name
    return None, ""


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
    whether its figure for Poisson sampling under replace-one is still a bound after composition:
    that is priced from a marked tree alone, whose multipliers are those of a zeroed unit.
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
    """A warning if delta is 1 / units or more, which allows publishing a random unit."""
    if delta * units < 1:
        return None
    return (
        f"delta = {delta:g} is at least 1 / {units:g} (the number of units): the guarantee would "
        f"allow a unit to be published; use a delta well below {1 / units:.2g}"
    )
