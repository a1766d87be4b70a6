# SPDX-License-Identifier: Apache-2.0
"""A mechanism on a tensor: a door that clips each row, adds noise, counts, and states its cost.

    rows [units, size] -> clip each -> sum -> noise -> grid -> NoisyValue

The noise is calibrated once, for all releases that the door will make. So the door counts them, and
refuses the one that is too many. A row is a privacy unit: all that one unit gives must be one row.

| edge case                                       | what happens                                   |
|-------------------------------------------------|------------------------------------------------|
| one release more than was accounted for         | BudgetSpent, before the rows are looked at     |
| a row with a NaN or an infinity                 | the unit is ignored                            |
| no rows                                         | noise alone                                    |
| a mechanism without noise, or correlated noise  | RecipeError: no cost, or a state to be kept    |
| a copy or a pickle of the door                  | TypeError: each would release the whole plan   |
| the process ends and begins again               | a new door: ``dataset`` keeps its cost on disk |
| several threads; a process that was forked      | each release is counted; UnsoundPlan           |
| parties that add noise shares                   | a share has no value of its own: secure_sum    |
| a share that a sum or a party has taken         | UnsoundPlan, whatever became of that sum       |
| ``rate``, and rows that were drawn already      | ``drawn=True``, or they are drawn once more    |
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import torch

from dpfed.accounting.calibrate import calibrate
from dpfed.accounting.event_tree import ChannelUse, TrainingReleases, mechanism_event
from dpfed.accounting.guarantee import Guarantee, guarantee
from dpfed.accounting.ledger.conversions import LedgerKey, adversary_of
from dpfed.accounting.ledger.request import ChannelRequest
from dpfed.core.checks import check_at_least, refuse
from dpfed.core.errors import BudgetSpent, UnsoundPlan
from dpfed.core.randomness import Noise
from dpfed.core.registry import build
from dpfed.core.rows import Dense
from dpfed.core.sampling import EVERYONE, Poisson
from dpfed.core.types import Adjacency, Facts, Mechanism, Release, Trust, Unit, Vector
from dpfed.parts.charge import charged_tree
from dpfed.sums.secure import Secure, secure

FRESH = ("gaussian", "discrete_gaussian")
"""Mechanisms whose releases have noise of their own: no state, which a restart could lose."""
MAX_PARTIES = 64
"""Up to so many, each party shares masks with each other one: the sum never fails to hide."""
_CHANNEL = "update"


@dataclass(frozen=True, eq=False)
class NoisyValue:
    """A released sum: its value, and the known standard deviation of the noise in it.

    >>> NoisyValue(torch.zeros(2), std=0.5).std
    0.5
    """

    value: Vector
    std: float


@dataclass(frozen=True, eq=False, repr=False)
class NoiseShare:
    """One party's rows with its share of the noise: private only in a sum (``secure_sum``).

    Alone it has too little noise, so it has no value that could be read by mistake.

    >>> door = NoisySum(clip=1.0, epsilon=2.0, delta=1e-5, parties=3)
    >>> share = door(torch.ones(5, 2))
    >>> share
    <a share of noise, to be summed by 3 parties>
    """

    release: Release
    sum: Secure
    parties: int
    colluders: int
    unused: threading.Lock = field(default_factory=threading.Lock)
    process: int = field(default_factory=os.getpid)

    def take(self) -> None:
        """Use the share up: two totals with it could be subtracted, and leave it alone."""
        if os.getpid() != self.process:
            raise UnsoundPlan(
                "a share of noise is summed in the process that made it, since a fork has a copy; "
                "make door and share after the fork"
            )
        if not self.unused.acquire(blocking=False):
            raise UnsoundPlan(
                "a share of noise is used once, whatever became of the sum that took it; release "
                "another one from the door, which counts it"
            )

    def __reduce__(self) -> NoReturn:
        """No copies: each could be summed."""
        raise TypeError("a share of noise is not copied or pickled, as each copy could be summed")

    def __repr__(self) -> str:
        return f"<a share of noise, to be summed by {self.parties} parties>"


class NoisySum:
    """A door for the rows of a tensor: clipped, summed, with noise, and each release is counted.

    Args:
        clip: the Euclidean norm that a row is clipped to, above 0.
        epsilon: what all releases together cost at most.
        delta: the delta of that.
        releases: how many releases there will be.
        adjacency: which data sets are neighbours: replace-one, zero-out or add-remove.
        rate: the chance with which each unit is drawn for a release, by a secret draw. Give all
            rows: the door draws. Rows that were drawn already need ``drawn=True`` in the call.
        mechanism: gaussian, or discrete_gaussian for exact integer arithmetic.
        options: the mechanism's own.
        parties: with more than 1, each party has such a door and adds a share of the noise; what it
            releases is for ``secure_sum`` only. At least colluders + 2.
        colluders: how many parties may pool what they know, at least 1: also in the ledger.
        survivors: the fraction of the parties that a total must have.
        dataset: the owner's name for the data: the whole cost is entered in the owner's ledger
            before the first release, and refused beyond the budget. None enters nothing.
        name: what the releases are called there; a name is used once.
        ledger: the ledger's file; None is DPFED_LEDGER, or the default place.

    Raises:
        BudgetSpent: for one release too many, or if the ledger has too little left.

    >>> door = NoisySum(clip=1.0, epsilon=1.0, delta=1e-5, releases=2)
    >>> made = door(torch.full((500, 3), 0.1))
    >>> made.value.shape, round(made.std, 2), door.left
    (torch.Size([3]), 10.55, 1)
    >>> round(door.guarantee.epsilon, 3), round(door.spent.epsilon, 3)
    (1.0, 0.684)
    """

    def __init__(
        self,
        *,
        clip: float,
        epsilon: float,
        delta: float,
        releases: int = 1,
        adjacency: Adjacency | str = Adjacency.REPLACE_ONE,
        rate: float = 1.0,
        mechanism: str = FRESH[0],
        options: Mapping[str, Any] | None = None,
        parties: int = 1,
        colluders: int = 1,
        survivors: float = 1.0,
        dataset: str | None = None,
        name: str = "",
        ledger: str | Path | None = None,
    ) -> None:
        if mechanism not in FRESH:
            raise refuse("mechanism", f"one of {', '.join(FRESH)} here", mechanism)
        check_at_least(1, "NoisySum", releases=releases, parties=parties, colluders=colluders)
        if parties > MAX_PARTIES:
            bound, way = f"from 1 to {MAX_PARTIES}", "for more, make a plan: dpfed.flower.make_plan"
            raise refuse("parties", bound, parties, way)
        self._sum = secure(survivors) if parties > 1 else None
        honest = 1 if self._sum is None else self._sum.min_honest(parties, colluders)
        self._parties, self._colluders = parties, colluders
        trust = Trust.LOCAL if self._sum is None else Trust.DISTRIBUTED
        facts = Facts(clip, Unit.RECORD, Adjacency(adjacency), trust)
        made = build("mechanisms", mechanism, {**(options or {}), "shares": honest}, facts=facts)
        drawn = made if rate == 1 else made.with_sampling(Poisson(rate))
        self._mechanism: Mechanism = calibrate(
            drawn, epsilon=epsilon, delta=delta, releases=releases
        )
        self._rate = rate
        self._delta, self._planned, self._made = delta, releases, 0
        self._lock, self._process = threading.Lock(), os.getpid()
        if dataset is not None:
            event = mechanism_event(self._mechanism, releases, honest)
            against = "curious" if self._sum is None else self._sum.against
            adversary = adversary_of(trust, against, colluders)
            part = ChannelRequest(self._mechanism, releases, releases) if rate != 1 else None
            key = LedgerKey(dataset, facts.unit, facts.adjacency, *adversary)
            with charged_tree(event, key, name=name, delta=delta, ledger=ledger, part=part):
                pass

    def __call__(self, rows: torch.Tensor, *, drawn: bool = False) -> Any:
        """One release of the rows' sum: a NoisyValue, or a NoiseShare if there are parties.

        Args:
            rows: a tensor [units, size]: all that a unit gives is one row. With a ``rate``, give
                the rows of all units, since the door draws among them.
            drawn: the rows are those of units that were drawn already: each on its own with the
                door's ``rate``, anew for each release, by a draw that nobody sees.
        """
        if drawn and self._rate == 1:
            raise refuse("drawn", "False for a door without a rate", drawn, "give it its rate")
        found = Dense(_matrix(rows))
        with self._lock:
            if os.getpid() != self._process:
                raise UnsoundPlan(
                    "a NoisySum releases in the process that made it, since a fork has a count of "
                    "its own; make it after the fork"
                )
            if self._made >= self._planned:
                raise BudgetSpent(
                    f"releases must be at most {self._planned}, as the noise was calibrated for, "
                    f"got number {self._made + 1}; make a door for more, whose noise is larger"
                )
            self._made += 1
        mechanism = self._mechanism.with_sampling(EVERYONE) if drawn else self._mechanism
        release, _ = mechanism.release(found, (), Noise().stream("release"))
        if self._sum is not None:
            return NoiseShare(release, self._sum, self._parties, self._colluders)
        return NoisyValue(release.vector * release.step, release.std)

    @property
    def template(self) -> NoiseShare:
        """What a server of a secure sum must know of the shares: their noise and grid, no rows."""
        if self._sum is None:
            way = "make the door with parties=3 or more"
            raise refuse("parties", "more than 1 for a secure sum", self._parties, way)
        nothing = Release(torch.zeros(0), self._mechanism.std, self._mechanism.step)
        return NoiseShare(nothing, self._sum, self._parties, self._colluders)

    @property
    def std(self) -> float:
        """The noise in each coordinate of a release; with parties, of one share of it."""
        return self._mechanism.std

    @property
    def left(self) -> int:
        """How many releases may still be made."""
        return self._planned - self._made

    @cached_property
    def guarantee(self) -> Guarantee:
        """What all releases together guarantee."""
        return self._of(self._planned)

    @property
    def spent(self) -> Guarantee:
        """What the releases so far would have cost, had their number been fixed beforehand."""
        return self._of(self._made)

    def _of(self, releases: int) -> Guarantee:
        kind = (ChannelUse(_CHANNEL, 1, self._mechanism.shares),)
        made = TrainingReleases({_CHANNEL: self._mechanism}, {kind: releases}, pooled=False)
        server = "the server" if self._sum is None else self._sum.adversary(self._colluders)
        return guarantee(
            made,
            self._delta,
            Noise().source,
            rounds=releases,
            server=server,
            colluders=self._colluders,
        )

    def __repr__(self) -> str:
        draws = "" if self._rate == 1 else f"give all rows, each is drawn with {self._rate:g}; "
        done = f"{self._made} of {self._planned} releases"
        return f"NoisySum({done}; {draws}{self.guarantee.summary})"

    def _repr_html_(self) -> str:
        return self.guarantee._repr_html_()

    def __reduce__(self) -> NoReturn:
        """No copies: each would release the whole plan once more."""
        raise TypeError("a NoisySum is not copied or pickled, as a copy would not share its count")


def _matrix(rows: torch.Tensor) -> torch.Tensor:
    if rows.dim() != 2:
        raise refuse("rows", "[units, size], a row per unit", rows.shape, "reshape them")
    plain = rows.detach().cpu()
    return plain if plain.is_floating_point() else plain.double()
