# SPDX-License-Identifier: Apache-2.0
"""What a release costs in another guarantee than its own: a factor on mu, or no bound.

A data set has one account. Its owner states the budget for one unit, adjacency and adversary, and
every release on the data is converted into that before it is added up. docs/privacy.md has a proof
of each line, and a test looks for a worse pair. A person is the unit ``group``:

    released for                         counts for                           mu times
    the same                             the same                             1
    zero-out or add-remove, a unit       replace-one, the same unit           2
    replace-one, a unit                  zero-out, the same unit              1, if clip <= bound
    client, replace-one                  a record of it, replace-one          1
    person, replace-one                  a record of it, replace-one          1, if it stays theirs
    person or client, zero-out           a record of it, zero-out             2
    person or client, add-remove         a record of it, add-remove           2
    against a stronger server,           a weaker server, fewer colluders     1
      or more colluders

Whatever is not here has no bound. mu^2 is multiplied by the factor's square. A run with a draw
counts for its own unit and adjacency; one that is priced under zero-out or add-remove counts for
replace-one of the same unit, too, by the triangle and not by a factor (triangle.py).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

from dpfed.core.types import Adjacency, Trust, Unit


class Server(StrEnum):
    """What the server of a guarantee may do, from the weakest to the strongest."""

    OUTSIDERS = "outsiders"
    """The server is trusted: the adversary is everybody else."""
    CURIOUS = "server"
    """The server follows the protocol, and looks at everything."""
    MALICIOUS = "malicious"
    """The server may do anything."""


_RANK = {server: rank for rank, server in enumerate(Server)}


class LedgerKey(NamedTuple):
    """Data under its owner's name, and what is guaranteed against whom."""

    dataset: str
    unit: Unit = Unit.RECORD
    adjacency: Adjacency = Adjacency.REPLACE_ONE
    adversary: Server = Server.CURIOUS
    colluders: int | None = 1
    """How many clients pool what they know; None is any number."""

    @property
    def base(self) -> str:
        """The name without the client: simulated clients divide one name."""
        return self.dataset.partition("/")[0]

    def row(self) -> dict[str, Any]:
        """As a row of the ledger has it."""
        named = {name: str(value) for name, value in self._asdict().items()}
        return named | {"colluders": self.colluders}

    def command(self, epsilon: str, delta: str) -> str:
        """The command that declares a budget for this key."""
        others = [
            f" --{name} {'all' if value is None else value}"
            for name, value in self._asdict().items()
            if value != self._field_defaults.get(name, value)
        ]
        options = f"--epsilon {epsilon} --delta {delta}{''.join(others)}"
        return f"dpfed ledger budget {self.dataset} {options}"

    def __str__(self) -> str:
        return f"{self.dataset!r} ({self.unit}, {self.adjacency}, against {self.against})"

    @property
    def against(self) -> str:
        """The adversary in words."""
        words = {Server.OUTSIDERS: "outsiders", Server.CURIOUS: "the server"}
        who = words.get(self.adversary, "a malicious server")
        if self.colluders == 1:
            return who
        return f"{who} with {'any number of' if self.colluders is None else self.colluders} clients"


def adversary_of(trust: Trust, against: str, colluders: int) -> tuple[Server, int | None]:
    """The strongest adversary that the accounting of a release covers.

    Args:
        trust: who adds the noise, and what the server sees.
        against: the server that a secure sum withstands, "curious" or "malicious".
        colluders: how many clients the secure sum's noise withstands.
    """
    if trust is Trust.CENTRAL:
        return Server.OUTSIDERS, None
    if trust is Trust.LOCAL:
        return Server.MALICIOUS, None
    return (Server.MALICIOUS if against == "malicious" else Server.CURIOUS), colluders


def factor(
    source: LedgerKey, target: LedgerKey, *, covered: bool = False, keeps_person: bool = False
) -> float | None:
    """What mu is multiplied by when releases for one guarantee count for another; None: no bound.

    Args:
        source: the guarantee that the releases were accounted for in.
        target: what they are to count for, on the same data.
        covered: whether each row's norm is at most the replace bound that was accounted for.
        keeps_person: whether a record that is replaced stays with its person.
    """
    if not _withstands(source, target):
        return None
    units, kinds = (source.unit, target.unit), (source.adjacency, target.adjacency)
    if units[0] == units[1]:
        return _same_unit(kinds, covered=covered)
    if units[1] is not Unit.RECORD:  # a person's records are not counted anywhere
        return None
    if kinds == (Adjacency.REPLACE_ONE, Adjacency.REPLACE_ONE):
        return 1.0 if units[0] is Unit.CLIENT or keeps_person else None
    return 2.0 if kinds[0] == kinds[1] else None


def _same_unit(kinds: tuple[Adjacency, Adjacency], *, covered: bool) -> float | None:
    if kinds[0] == kinds[1]:
        return 1.0
    if kinds[1] is Adjacency.REPLACE_ONE:
        return 2.0
    if kinds == (Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT) and covered:
        return 1.0
    return None


def counts_twice(source: LedgerKey, target: LedgerKey) -> bool:
    """Whether a run with a draw counts as a unit that goes, and then another one that comes.

    Args:
        source: the guarantee that the run is priced in; its adversary is strong enough.
        target: what it is to count for.
    """
    one_goes = source.adjacency in (Adjacency.ZERO_OUT, Adjacency.ADD_REMOVE)
    return one_goes and source.unit == target.unit and target.adjacency is Adjacency.REPLACE_ONE


def _withstands(source: LedgerKey, target: LedgerKey) -> bool:
    """Whether the adversary of the releases is at least as strong as the budget's."""
    enough = source.colluders is None or (
        target.colluders is not None and source.colluders >= target.colluders
    )
    return enough and _RANK[source.adversary] >= _RANK[target.adversary]
