# SPDX-License-Identifier: Apache-2.0
"""Heads: where a ledger stands, for others to keep, so that an older copy put in its place is seen.

A head names a row of the chain by number and hash, and says what was spent up to it and what those
who had enrolled could still spend. Whoever keeps it brings it back later. A ledger that has no such
row is not the one that made the head: an older copy was put back, and may have grown again since,
so its number of rows says nothing. Then nothing is released (``Conflict``) until the owner has
declared the loss (``declare_lost``).

    ledger.sqlite.conflict     beside the ledger: the heads that are not in its chain

Guarantee: let H be a head, and nothing have been released without an enrolment. What was released
in the lost part of the ledger, up to H or by trainings that had enrolled by then, is at most what
``declare_lost`` books for H: the cost that H states, less the cost of those rows that both have.
Both have the newest of H's earlier rows that is in the chain, and all rows before it.

| edge case                                        | what happens                                  |
|--------------------------------------------------|-----------------------------------------------|
| an old head of this ledger, from the chain       | known: nothing happens                        |
| an older copy that has grown past the head       | unknown: chains are compared, and not counts  |
| a head of another ledger under the same key      | unknown: a ledger that was made anew is the   |
|                                                  | oldest copy; the owner may say it is separate |
| several heads of one lost part                   | the latest that names the others is booked    |
| heads of several lost parts                      | each is booked                                |
| a run with draws that was reserved in both parts | counts once more, unless it was used up       |
| runs that do not fit into a head's bytes         | their data set counts as spent without bound  |
| killed while a loss is declared                  | rows are written at once; then known heads    |
|                                                  | are not booked again                          |
| approvals and revocations in the lost part       | unknown: no approval stands any more          |
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from dpfed.accounting import events, gdp
from dpfed.accounting.events import Json, canonical
from dpfed.accounting.ledger.balance import Balance, Cost, Reservation, key_of
from dpfed.accounting.ledger.conversions import LedgerKey
from dpfed.accounting.ledger.journal import Row
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.core.errors import DataError, LedgerRolledBack
from dpfed.core.files import from_word, jsonable, replace_file

VERSION = 1
MOST_CONFLICTS = 32
"""How many heads a conflict's file keeps."""
_SHORT = 32  # of a hash's 64 digits: enough to tell rows of one ledger apart
_NEWEST, _MOST_EARLIER = 12, 24  # earlier heads that a head names: the newest, and all
_MOST_BYTES = 1 << 16  # of a head's content, unpacked


class HeldRun(NamedTuple):
    """A run that counts as a whole: one with draws, or on data that has such runs."""

    training: str
    client: int
    event: Json
    delta_reserved: float


@dataclass(frozen=True, kw_only=True)
class HeldCost:
    """What a data set has cost in one guarantee, with what its claims may still cost."""

    key: LedgerKey
    mu_squared: float
    delta_reserved: float
    covered: bool
    runs: tuple[HeldRun, ...] | None
    """None if they were too many to be named: then nothing bounds them."""


@dataclass(frozen=True)
class Head:
    """A row of a ledger's chain, and what the ledger says there."""

    ledger: str
    """The hash of the ledger's first row."""
    row: int
    hash: str
    earlier: tuple[tuple[int, str], ...]
    """Rows before it, by number and the first half of their hash: those at which it gave heads, and
    the rows 1, 2, 4, ... before this one, so that where two chains part is known."""
    costs: tuple[HeldCost, ...]
    bounded: bool = True
    """Whether the costs could be named at all."""

    def to_json(self) -> Json:
        """The head as JSON objects."""
        return {
            "version": VERSION,
            "ledger": self.ledger,
            "row": self.row,
            "hash": self.hash,
            "earlier": [list(each) for each in self.earlier],
            "bounded": self.bounded,
            "costs": [
                {
                    **_plain(each.key),
                    "mu_squared": jsonable(each.mu_squared),
                    "lost": each.delta_reserved,
                    "covered": each.covered,
                    "runs": None if each.runs is None else [list(run) for run in each.runs],
                }
                for each in self.costs
            ],
        }


def head_from_json(tree: Json) -> Head:
    """The head that ``to_json`` wrote; DataError if it is of another form, or has no true costs."""
    try:
        if tree["version"] != VERSION:
            raise ValueError(tree["version"])
        found = Head(
            ledger=str(tree["ledger"]),
            row=int(tree["row"]),
            hash=str(tree["hash"]),
            earlier=tuple((int(number), str(digest)) for number, digest in tree["earlier"]),
            costs=tuple(map(_held_cost, tree["costs"])),
            bounded=bool(tree["bounded"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"a head must be of version {VERSION} and whole, and is not ({error}); update dpfed"
        ) from error
    return found


def _held_cost(tree: Json) -> HeldCost:
    mu_squared, lost = float(from_word(tree["mu_squared"])), float(tree["lost"])
    if not (mu_squared >= 0 and 0 <= lost <= 1):  # also where one is not a number
        raise ValueError("a cost below 0")
    runs = tree["runs"]
    named = None if runs is None else tuple(HeldRun(*run) for run in runs)
    return HeldCost(
        key=key_of(tree),
        mu_squared=mu_squared,
        delta_reserved=lost,
        covered=bool(tree["covered"]),
        runs=named,
    )


def pack(head: Head, most: int) -> bytes:
    """A head in at most so many bytes; what does not fit counts as without bound.

    Args:
        head: what is packed.
        most: how many bytes there may be.
    """
    while len(found := zlib.compress(canonical(head.to_json()).encode(), 9)) > most:
        longest = max(head.costs, key=lambda each: len(each.runs or ()), default=None)
        if longest is not None and longest.runs:
            shorter = replace(longest, runs=None)
            costs = tuple(shorter if each is longest else each for each in head.costs)
            head = replace(head, costs=costs)
        elif head.bounded:
            head = replace(head, costs=(), bounded=False)
        else:
            raise DataError(f"a head must fit into {most} bytes, got {len(found)}; raise the limit")
    return found


def unpack(content: bytes) -> Head:
    """The head that ``pack`` wrote."""
    reader = zlib.decompressobj()
    try:
        text = reader.decompress(content, _MOST_BYTES)
        if not reader.eof:
            raise ValueError("too long")
        return head_from_json(json.loads(text))
    except (zlib.error, ValueError) as error:
        raise DataError(f"a head must be whole, and is not ({error}); update dpfed") from error


# --------------------------------------------------------------------------------- making a head


def take_head(ledger: Ledger) -> Head:
    """The head of a ledger as it is now; it marks its own row, unless the last row is such a mark.

    Args:
        ledger: take it after a training has enrolled, so that what is reserved is in the head.
    """

    def take(balance: Balance, append: Any) -> Head:
        if not balance.heads or balance.heads[-1][0] != balance.last:
            append(kind="head")
        *before, (row, digest) = balance.heads
        earlier = tuple((number, each[:_SHORT]) for number, each in _spread(before))
        return Head(balance.first, row, digest, earlier, tuple(_costs(balance)))

    made = ledger.change(take)
    back = [made.row - 2**power for power in range(made.row.bit_length())]
    rows = tuple((number, ledger.hash_of(number)[:_SHORT]) for number in back if number > 0)
    return replace(made, earlier=made.earlier + rows)


def _spread(before: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """The newest earlier heads, and of those before them fewer and fewer; the newest first."""
    places, step = list(range(_NEWEST)), 1
    while len(places) < _MOST_EARLIER:
        places.append(places[-1] + step)
        step *= 2
    return [before[-1 - place] for place in places if place < len(before)]


def _costs(balance: Balance) -> Iterator[HeldCost]:
    """What each guarantee of each data set has cost, with all that is left of its claims."""
    claims: dict[LedgerKey, list[tuple[str, int]]] = {}
    for key, training, client in balance.claims:
        claims.setdefault(key, []).append((training, client))
    for key in sorted({*balance.costs, *claims}, key=str):
        total = replace(balance.costs.get(key, Cost()))
        total.runs, total.delta_reserved = dict(total.runs), dict(total.delta_reserved)
        covered = key not in balance.uncovered
        for training, client in claims.get(key, ()):
            run = (key, training, client)
            claim = balance.claims[run]
            covered = covered and claim.covered
            if run not in balance.reserves:  # else it counts as a whole already
                spent = balance.trainings.get(run, 0.0)
                rest = replace(claim.cost, mu_squared=max(0.0, claim.cost.mu_squared - spent))
                total = total + rest
        runs = tuple(
            HeldRun(run[1], run[2], cost.event(), total.delta_reserved.pop(run, 0.0))
            for run, cost in sorted(total.runs.items(), key=str)
        )
        reserved = sum(total.delta_reserved.values())
        yield HeldCost(
            key=key,
            mu_squared=total.mu_squared,
            delta_reserved=reserved,
            covered=covered,
            runs=runs,
        )


# ------------------------------------------------------------------------------ meeting a head


def knows(ledger: Ledger, head: Head) -> bool:
    """Whether a head's row is in the ledger's own chain, or its loss was declared.

    Args:
        ledger: the ledger as it is.
        head: one that was made under the same key.
    """
    return _is_known(ledger.balance(), ledger.hash_of(head.row), head)


def _is_known(balance: Balance, own: str, head: Head) -> bool:
    return own == head.hash or head.hash[:_SHORT] in balance.declared


class Conflict:
    """The file beside a ledger with the heads that are not in its chain; it stays.

    Args:
        ledger: the ledger's path.
    """

    def __init__(self, ledger: Path) -> None:
        self.path = ledger.with_name(f"{ledger.name}.conflict")

    def __bool__(self) -> bool:
        """Whether there is one: its mere presence counts, readable or not."""
        return self.path.exists()

    def heads(self) -> list[Head]:
        """The heads that were met."""
        if not self:
            return []
        try:
            return [head_from_json(each) for each in json.loads(self.path.read_bytes())]
        except (OSError, ValueError, TypeError) as error:
            raise DataError(
                f"{self.path} must have the heads that were met, and cannot be read ({error}); "
                f"remove it: whoever keeps the heads brings them again"
            ) from error

    def meet(self, ledger: Ledger, heads: Iterable[Head]) -> None:
        """Refuse heads that are not in the chain, and remember them before.

        Args:
            ledger: the ledger as it is.
            heads: made under its owner's key.
        """
        unknown = [head for head in heads if not knows(ledger, head)]
        if unknown:
            met = {head.hash: head for head in [*self.heads(), *unknown]}
            latest = sorted(met.values(), key=lambda head: -head.row)[:MOST_CONFLICTS]
            content = json.dumps([head.to_json() for head in latest]).encode()
            replace_file(self.path, content)
        self.refuse()

    def refuse(self) -> None:
        """Refuse everything while there is a conflict."""
        if self:
            raise LedgerRolledBack(
                "the ledger must have all rows that others keep a signed head of, and has not: an "
                "older copy was put back, so what was spent is not known; see 'dpfed ledger "
                "declare-lost --help'"
            )

    def end(self) -> None:
        """Remove the file: all of its heads are declared."""
        self.path.unlink(missing_ok=True)


# ----------------------------------------------------------------------------- declaring a loss


def declare_lost(
    ledger: Ledger, heads: Iterable[Head], *, by: str, separate: bool = False
) -> list[Row]:
    """Book what heads say was spent and this ledger does not have; then they are in its chain.

    Args:
        ledger: the older copy.
        heads: those that are not in its chain; others are left out.
        by: who declares it.
        separate: heads of another ledger are of one that is not lost: they are not booked.

    Returns:
        the rows that were added; those of kind "lost" have the costs.
    """
    rows, heads = ledger.rows(), list(heads)

    def declare(balance: Balance, append: Any) -> list[Row]:
        hashes = {row.number: row.hash for row in rows}
        lost = [each for each in heads if not _is_known(balance, hashes.get(each.row, ""), each)]
        apart = [each for each in lost if separate and each.ledger != balance.first]
        if separate and not apart:
            raise DataError(
                "a head must be of another ledger to be declared separate, and none is; leave "
                "--separate out"
            )
        added: list[Row] = []
        for head in _latest(each for each in lost if each not in apart):
            bodies = list(_lost_rows(head, _common(rows, head), balance))
            added.extend(append(**body) for body in bodies)
        for head in lost:
            earlier = [digest for _, digest in head.earlier]
            place = {"ledger": head.ledger, "row": head.row, "hash": head.hash}
            booked = head not in apart
            added.append(append(kind="declared", **place, earlier=earlier, by=by, booked=booked))
        return added

    return ledger.change(declare)


def _latest(heads: Iterable[Head]) -> list[Head]:
    """The heads that no other one names among its earlier ones: those count for them, too."""
    found: list[Head] = []
    for head in sorted(heads, key=lambda each: -each.row):
        named = {digest for other in found for _, digest in other.earlier}
        if head.hash[:_SHORT] not in named and all(head.hash != other.hash for other in found):
            found.append(head)
    return found


def _common(rows: Sequence[Row], head: Head) -> Balance:
    """What was spent at the newest row that is known to be in both chains."""
    hashes = {row.number: row.hash[:_SHORT] for row in rows}
    both = [number for number, digest in head.earlier if hashes.get(number) == digest]
    balance = Balance()
    for row in rows[: max(both, default=0)]:
        balance.add_row(row)
    return balance


def _lost_rows(head: Head, common: Balance, now: Balance) -> Iterator[dict[str, Any]]:
    """The rows that book a head: its costs less what is in both chains."""
    if not head.bounded:
        for dataset in sorted({*now.budgets, *now.guarantees}):
            for key in now.stated_for(dataset):
                yield _lost_row(head, key, math.inf, 0.0, covered=False)
    for held in head.costs:
        key = now.resolve(held.key)
        more, lost = _lost_gaussian(held, common)
        runs = [run for run in held.runs or () if not _is_used_up(common, held.key, run)]
        drawn = runs or any(now.costs[each].runs for each in now.guarantees.get(key.dataset, ()))
        if drawn and 0 < more < math.inf:  # it counts as a whole run, as a later one would
            event = events.gaussian_with_mu_squared(more, key.adjacency)
            runs, more, lost = [*runs, HeldRun("", 0, event, lost)], 0.0, 0.0
        if more or lost:
            yield _lost_row(head, key, more, lost, covered=held.covered)
        for place, run in enumerate(runs):
            name = f"lost:{head.hash[:16]}:{place}"
            row = _lost_row(head, key, 0.0, run.delta_reserved, covered=held.covered)
            yield {**row, "training": name, "mu_squared": None, "event": run.event}


def _lost_gaussian(held: HeldCost, common: Balance) -> tuple[float, float]:
    """The squared mu, and the delta of secure sums, that are not in both chains."""
    before = common.costs.get(held.key, Cost())
    alone = {run: part for run, part in before.delta_reserved.items() if run not in before.runs}
    more = held.mu_squared - before.mu_squared
    # each of the two sums was rounded: 2^-52 of them for each of up to 10^4 terms
    more = max(0.0, more + 1e-12 * held.mu_squared) if more else 0.0
    lost = max(0.0, held.delta_reserved - sum(alone.values()))
    return (more, lost) if held.runs is not None else (math.inf, lost)


def _is_used_up(common: Balance, key: LedgerKey, run: HeldRun) -> bool:
    """Whether a run had made all of its releases before the chains part."""
    kept: Reservation | None = common.reserves.get((key, run.training, run.client))
    known = common.costs.get(key, Cost()).runs.get((key, run.training, run.client))
    if kept is None:  # one that an earlier declared loss has booked: it is in both chains
        return known is not None and run.training.startswith("lost:")
    return known is not None and max(kept.left.values(), default=0) <= 0


def _lost_row(
    head: Head, key: LedgerKey, mu_squared: float, lost: float, *, covered: bool
) -> dict[str, Any]:
    return {
        "kind": "lost",
        **_plain(key),
        "training": f"lost:{head.hash[:16]}",
        "client": 0,
        "mu_squared": jsonable(mu_squared * (1 + gdp.CAUTION)),
        "event": events.gaussian_with_mu_squared(mu_squared * (1 + gdp.CAUTION), key.adjacency),
        "lost": lost,
        "covered": covered,
    }


def _plain(key: LedgerKey) -> Mapping[str, Any]:
    named = {name: str(value) for name, value in key._asdict().items()}
    return named | {"colluders": key.colluders}
