# SPDX-License-Identifier: Apache-2.0
"""Heads: where a ledger stands, for others to keep, so that an older copy put in its place is seen.

A head names a row of the chain by number and hash, and says what was spent up to it and what those
who had enrolled could still spend. Whoever keeps it brings it back later. A ledger that has no such
row is not the one that made the head: an older copy was put back, and may have grown again since,
so its number of rows says nothing. Then nothing is released (``Conflict``) until the owner has
declared the loss (``declare_lost``).

    ledger.sqlite.conflict     beside the ledger: the heads that are not in its chain

Each start of a gate begins an epoch, which is a row of the chain. A copy that is put back has
earlier epochs only, so the heads of one epoch lie on one branch: it is lost once.

Guarantee: let H be a head, and nothing have been released without an enrolment. What was released
in the lost part of the ledger, up to H or by trainings that had enrolled by then, is at most what
``declare_lost`` has booked for H's epoch: the largest, over the epoch's heads that were declared,
of the cost that a head states less the cost of those rows that both chains have. Both have the
newest of the head's earlier rows that is in the chain, and all rows before it.

It holds where the lost rows of an epoch lie on one branch. Two branches (a machine put back with
its memory) are seen only if heads name the same row with other hashes, which most pairs do not.

| edge case                                        | what happens                                  |
|--------------------------------------------------|-----------------------------------------------|
| an old head of this ledger, from the chain       | known: nothing happens                        |
| an older copy that has grown past the head       | unknown: chains are compared, and not counts  |
| a head of another ledger under the same key      | unknown: a ledger that was made anew is the   |
|                                                  | oldest copy; the owner may say it is separate |
| several heads of one epoch, at once or later     | the largest is booked, once                   |
| heads of several epochs                          | each epoch is booked                          |
| heads of one epoch that contradict each other,   | the account is exhausted: memory or files     |
| or one of the epoch that this chain is in        | were put back under a gate that ran           |
| runs with draws, before the loss or after it     | the account is exhausted                      |
| a loss without a head, accounts that do not fit  | every account is exhausted                    |
| into a head's bytes                              |                                               |
| killed while a loss is declared                  | rows are written at once; then known heads    |
|                                                  | are not booked again                          |
| approvals and revocations in the lost part       | unknown: no approval stands any more          |
| an account that was exhausted                    | the owner may declare a budget anew, which    |
|                                                  | counts nothing before it; statements say so   |
| a budget that was declared anew in the lost part | every account is exhausted                    |
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from dpfed.accounting import events, gdp
from dpfed.accounting.ledger.balance import SHORT, Balance, Cost, key_of
from dpfed.accounting.ledger.conversions import LedgerKey
from dpfed.accounting.ledger.journal import Row
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.core.dsse import Json, canonical_json
from dpfed.core.errors import DataError, LedgerRolledBack
from dpfed.core.files import from_word, jsonable, replace_file

VERSION = 2
MOST_CONFLICTS = 32
"""How many heads a conflict's file keeps."""
_MOST_BYTES = 1 << 16  # of a head's content, unpacked


class HeldCost(NamedTuple):
    """What a data set has cost in one guarantee, with what its claims may still cost."""

    key: LedgerKey
    mu_squared: float
    """Infinite where runs count as a whole: one number does not bound them."""
    delta_reserved: float
    covered: bool


@dataclass(frozen=True)
class Head:
    """A row of a ledger's chain, and what the ledger says there."""

    ledger: str
    """The hash of the ledger's first row."""
    epoch: str
    """The epoch that the row is in."""
    row: int
    hash: str
    time: int
    """Microseconds since 1970: when it was asked for, or one more than the last head's."""
    earlier: Mapping[int, str]
    """Rows before it, and the first half of their hashes, so that where chains part is known: at
    the distances 1, 2, 4, ..., and at multiples of 1, 2, 4, ..."""
    renewals: int
    """How many budgets had been declared anew: the costs are those since the last of them."""
    costs: tuple[HeldCost, ...]
    bounded: bool = True
    """Whether the costs could be named at all."""

    @property
    def rows(self) -> dict[int, str]:
        """All rows that it names, its own among them."""
        return {**self.earlier, self.row: self.hash[:SHORT]}

    def to_json(self) -> Json:
        """The head as JSON objects."""
        return {
            "version": VERSION,
            "ledger": self.ledger,
            "epoch": self.epoch,
            "row": self.row,
            "hash": self.hash,
            "at": self.time,
            "earlier": [list(each) for each in self.earlier.items()],
            "renewals": self.renewals,
            "bounded": self.bounded,
            "costs": [
                {
                    **each.key.row(),
                    "mu_squared": jsonable(each.mu_squared),
                    "lost": each.delta_reserved,
                    "covered": each.covered,
                }
                for each in self.costs
            ],
        }


def head_from_json(tree: Json) -> Head:
    """The head that ``to_json`` wrote; DataError if it is of another form, or has no true costs."""
    try:
        if tree["version"] != VERSION:
            raise ValueError(tree["version"])
        return Head(
            ledger=str(tree["ledger"]),
            epoch=str(tree["epoch"]),
            row=int(tree["row"]),
            hash=str(tree["hash"]),
            time=int(tree["at"]),
            earlier={int(number): str(digest) for number, digest in tree["earlier"]},
            renewals=int(tree["renewals"]),
            costs=tuple(map(_held_cost, tree["costs"])),
            bounded=bool(tree["bounded"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"a head must be of version {VERSION} and whole, and is not ({error}); update dpfed"
        ) from error


def _held_cost(tree: Json) -> HeldCost:
    mu_squared, lost = float(from_word(tree["mu_squared"])), float(tree["lost"])
    if not (mu_squared >= 0 and 0 <= lost <= 1):  # also where one is not a number
        raise ValueError("a cost below 0")
    return HeldCost(key_of(tree), mu_squared, lost, bool(tree["covered"]))


def pack(head: Head, most: int) -> bytes:
    """A head in at most so many bytes; costs that do not fit count as without bound.

    Args:
        head: what is packed.
        most: how many bytes there may be.
    """
    for each in (head, replace(head, costs=(), bounded=False)):
        packed = zlib.compress(canonical_json(each.to_json()), 9)
        if len(packed) <= most:
            return packed
    raise DataError(f"a head must fit into {most} bytes, got {len(packed)}; raise the limit")


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


def begin_epoch(ledger: Ledger) -> None:
    """Begin an epoch: a gate does, when it starts.

    Args:
        ledger: the gate's.
    """
    ledger.change(lambda _, append: append(kind="epoch", nonce=os.urandom(16).hex()))


def take_head(ledger: Ledger, now: int = 0) -> Head:
    """The head of a ledger as it is now; each is a row, so two never show that nothing happened.

    Args:
        ledger: take it after a training has enrolled, so that what is reserved is in the head.
        now: microseconds since 1970.
    """

    def take(balance: Balance, append: Any) -> Head:
        time = max(now, balance.head_time + 1)
        row: Row = append(kind="head", at=time)
        return Head(
            ledger=balance.first,
            epoch=balance.epoch,
            row=row.number,
            hash=row.hash,
            time=time,
            earlier={},
            renewals=balance.renewals,
            costs=tuple(_costs(balance)),
        )

    head = ledger.change(take)
    powers = [1 << power for power in range(head.row.bit_length())]
    named = {head.row - each for each in powers} | {head.row // each * each for each in powers}
    numbers = sorted(named - {0, head.row})
    return replace(head, earlier={each: ledger.hash_of(each)[:SHORT] for each in numbers})


def _costs(balance: Balance) -> Iterator[HeldCost]:
    """What each guarantee of each data set has cost, with all that is left of its claims."""
    claims: dict[LedgerKey, list[tuple[str, int]]] = {}
    for key, training, client in balance.claims:
        claims.setdefault(key, []).append((training, client))
    for key in sorted({*balance.costs, *claims}, key=str):
        total = balance.costs.get(key, Cost()) + Cost()  # a copy
        covered = key not in balance.uncovered
        for training, client in claims.get(key, ()):
            run = (key, training, client)
            claim = balance.claims[run]
            covered = covered and claim.covered
            if run not in balance.reserves:  # else it counts as a whole already
                spent = balance.trainings.get(run, 0.0)
                total += replace(claim.cost, mu_squared=max(0.0, claim.cost.mu_squared - spent))
        mu_squared = math.inf if total.runs else total.mu_squared
        yield HeldCost(key, mu_squared, sum(total.delta_reserved.values()), covered)


# ------------------------------------------------------------------------------ meeting a head


def knows(ledger: Ledger, head: Head) -> bool:
    """Whether a head's row is in the ledger's own chain, or its loss was declared.

    Args:
        ledger: the ledger as it is.
        head: one that was made under the same key.
    """
    return _is_known(ledger.balance(), ledger.hash_of(head.row), head)


def _is_known(balance: Balance, own: str, head: Head) -> bool:
    declared = balance.declared.get(head.epoch, {})
    earlier = head.row <= max(declared, default=-1)
    return own == head.hash or (earlier and not _contradict(declared, head.rows))


def _contradict(one: Mapping[int, str], other: Mapping[int, str]) -> bool:
    return any(one[row] != other[row] for row in one.keys() & other.keys())


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
        bodies: list[dict[str, Any]] = []
        for epoch in dict.fromkeys(each.epoch for each in lost):
            own = [each for each in lost if each.epoch == epoch]
            booked = [each for each in own if each not in apart]
            bodies += _lost_rows(epoch, booked, rows, balance)
            last = max(own, key=lambda each: each.row)
            bodies.append(
                {
                    "kind": "declared",
                    "ledger": last.ledger,
                    "epoch": epoch,
                    "rows": [list(each) for head in own for each in head.rows.items()],
                    "at": max(each.time for each in own),
                    "by": by,
                    "booked": bool(booked),
                }
            )
        added = [append(**body) for body in bodies]
        return [*added, append(kind="epoch", nonce=os.urandom(16).hex())] if added else []

    return ledger.change(declare)


def declare_all_lost(ledger: Ledger, *, by: str) -> list[Row]:
    """Exhaust every account: rows are lost, and there is no head that says how much they cost.

    Args:
        ledger: the older copy, or a new one in which the budgets are declared.
        by: who declares it.
    """

    def declare(balance: Balance, append: Any) -> list[Row]:
        added = [append(**body) for body in _exhausting("", balance)]
        added.append(append(kind="declared", epoch="", rows=[], at=0, by=by, booked=True))
        return added

    return ledger.change(declare)


def _lost_rows(
    epoch: str, heads: Sequence[Head], rows: Sequence[Row], now: Balance
) -> Iterator[dict[str, Any]]:
    """The rows that book an epoch's heads: the largest loss by key, less what it has booked."""
    named = [now.declared.get(epoch, {}), *(head.rows for head in heads)]
    forked = epoch == now.epoch or any(
        _contradict(one, other) for place, one in enumerate(named) for other in named[:place]
    )
    both = [_common(rows, head) for head in heads]
    whole = all(
        head.bounded and head.renewals == common.renewals
        for head, common in zip(heads, both, strict=True)
    )
    if heads and (forked or not whole):
        yield from _exhausting(epoch, now)
        return
    most: dict[LedgerKey, HeldCost] = {}
    for head, common in zip(heads, both, strict=True):
        for held in head.costs:
            key = now.resolve(held.key)
            mu_squared, lost = _excess(held, common)
            if mu_squared and _has_runs(now, key.dataset):
                mu_squared = math.inf
            other = most.get(key, HeldCost(key, 0.0, 0.0, covered=True))
            most[key] = HeldCost(
                key,
                max(mu_squared, other.mu_squared),
                max(lost, other.delta_reserved),
                held.covered and other.covered,
            )
    for key, held in most.items():
        before = now.lost.get((epoch, key), Cost())
        mu_squared = max(0.0, held.mu_squared - before.mu_squared)
        lost = max(0.0, held.delta_reserved - sum(before.delta_reserved.values()))
        if before.mu_squared < math.inf and (mu_squared or lost):
            more = HeldCost(key, mu_squared, lost, held.covered)
            yield _lost_row(f"{epoch[:16]}:{max(head.row for head in heads)}", epoch, more)


def _exhausting(epoch: str, now: Balance) -> Iterator[dict[str, Any]]:
    for dataset in sorted({*now.budgets, *now.guarantees}):
        for key in now.stated_for(dataset):
            yield _lost_row("all", epoch, HeldCost(key, math.inf, 0.0, covered=False))


def _has_runs(balance: Balance, dataset: str) -> bool:
    return any(balance.costs[key].runs for key in balance.guarantees.get(dataset, ()))


def _common(rows: Sequence[Row], head: Head) -> Balance:
    """What was spent at the newest row that is known to be in both chains."""
    both = [row.number for row in rows if head.earlier.get(row.number) == row.hash[:SHORT]]
    balance = Balance()
    for row in rows[: max(both, default=0)]:
        balance.add_row(row)
    return balance


def _excess(held: HeldCost, common: Balance) -> tuple[float, float]:
    """The squared mu, and the delta of secure sums, that are not in both chains."""
    before = common.costs.get(held.key, Cost())
    if math.isinf(held.mu_squared):
        return (0.0 if math.isinf(before.mu_squared) else math.inf), 0.0
    more = held.mu_squared - before.mu_squared
    # each of the two sums was rounded: 2^-52 of them for each of up to 10^4 terms
    more = max(0.0, more + 1e-12 * held.mu_squared) if more else 0.0
    return more, max(0.0, held.delta_reserved - sum(before.delta_reserved.values()))


def _lost_row(name: str, epoch: str, held: HeldCost) -> dict[str, Any]:
    mu_squared = held.mu_squared * (1 + gdp.CAUTION)
    return {
        "kind": "lost",
        **held.key.row(),
        "epoch": epoch,
        "training": f"lost:{name}",
        "client": 0,
        "mu_squared": jsonable(mu_squared),
        "event": events.gaussian_with_mu_squared(mu_squared, held.key.adjacency),
        "lost": held.delta_reserved,
        "covered": held.covered,
    }
