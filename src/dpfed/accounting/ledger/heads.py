# SPDX-License-Identifier: Apache-2.0
"""Heads: where a ledger stands, for others to keep, so that an older copy put in its place is seen.

A head names a row of the chain by its hash, with rows before it, and says what was spent up to it
and what those who had enrolled could still spend. Whoever keeps it brings it back later. A ledger
that has no such row is not the one that made the head: an older copy was put back, and may have
grown again since, so its number of rows says nothing. Then nothing is released (``Conflict``) until
the owner has declared the loss (``declare_lost``).

    ledger.sqlite.conflict     beside the ledger: the heads that are not in its chain

An epoch is a row of the chain. Each start of a gate begins one, and so does a head after the
``MOST_HEADS`` that one epoch has. So a head names all earlier heads of its epoch: two heads of one
epoch lie on one branch if and only if the later one names the earlier one. Two branches of one
epoch mean that files, or a whole machine with its memory, were put back under a gate that ran. Then
random numbers may have come twice, and no cost is a bound.

Guarantee: let H be a head that was declared. What was released in rows up to H that this ledger
does not have, and afterwards by trainings that were enrolled at H, is at most what is booked for H
and for the declared heads that it names; or the account is exhausted. It holds if nothing was
released without an enrolment. A branch of which nobody brings a head is not seen.

| edge case                                        | what happens                                  |
|--------------------------------------------------|-----------------------------------------------|
| an old head of this ledger, from the chain       | known: nothing happens                        |
| an older copy that has grown past the head       | unknown: chains are compared, and not counts  |
| a head of another ledger under the same key      | unknown: a ledger that was made anew is the   |
|                                                  | oldest copy                                   |
| a lost head that another lost one names, at once | counts with it, once                          |
| or later, of its epoch or of an earlier one      |                                               |
| one that no other names, of another epoch        | booked by itself: an upper bound, since rows  |
|                                                  | that both have count twice                    |
| one that no other names, of the same epoch, or   | every account is exhausted                    |
| of the epoch that this chain is in               |                                               |
| runs with draws, before the loss or after it     | their account is exhausted                    |
| a loss without a head, costs that do not fit     | every account is exhausted                    |
| into a head's bytes                              |                                               |
| an account that this ledger does not know yet    | is exhausted, too, if every account is        |
| killed while a loss is declared                  | rows are written at once; then known heads    |
|                                                  | are not booked again                          |
| approvals and revocations in the lost part       | unknown: no approval stands any more          |
| an account that was exhausted                    | the owner may declare a budget anew, which    |
|                                                  | counts nothing before it; statements say so   |
| a budget that was declared anew in the lost part | every account is exhausted                    |
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from dpfed.accounting import events, gdp
from dpfed.accounting.ledger.balance import SHORT, Balance, Cost
from dpfed.accounting.ledger.conversions import LedgerKey
from dpfed.accounting.ledger.journal import Row
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.core.errors import DataError, LedgerRolledBack
from dpfed.core.files import jsonable, replace_file

MOST_HEADS = 64
"""How many heads an epoch has at most, so that each can name all before it."""
MOST_CONFLICTS = 32
"""How many heads a conflict's file keeps."""
_MOST_BYTES = 1 << 16  # of a head's content, unpacked


class _Part(msgspec.Struct, frozen=True, array_like=True, kw_only=True, forbid_unknown_fields=True):
    """A closed list of values, as short JSON has them."""


class HeldCost(_Part, frozen=True):
    """What a data set has cost in one guarantee, with what its claims may still cost."""

    key: LedgerKey
    mu_squared: Annotated[float, msgspec.Meta(ge=0)] | None
    """None where runs count as a whole, or an account is exhausted: one number is no bound."""
    delta_reserved: Annotated[float, msgspec.Meta(ge=0, le=1)]
    covered: bool


class Head(_Part, frozen=True):
    """A row of a ledger's chain, and what the ledger says there."""

    epoch: str
    """The epoch that the row is in."""
    row: int
    hash: str
    """The first ``SHORT`` digits of the row's hash."""
    time: int
    """Microseconds since 1970: when it was asked for, or one more than the last head's."""
    earlier: str
    """As many digits of each of the ``MOST_HEADS`` epochs and heads before it, and of the rows at
    the distances 1, 2, 4, ..., so that it is known where chains part."""
    resets: int
    """How often the costs had been set aside: an account was begun anew, or all were exhausted."""
    costs: tuple[HeldCost, ...] | None
    """None if they do not fit."""

    @property
    def names(self) -> set[str]:
        """The rows that it names, its own among them."""
        digits = self.hash + self.earlier
        return {digits[at : at + SHORT] for at in range(0, len(digits), SHORT)}


def pack(head: Head, most: int) -> bytes:
    """A head in at most so many bytes; costs that do not fit count as without bound.

    Args:
        head: what is packed.
        most: how many bytes there may be.
    """
    for each in (head, msgspec.structs.replace(head, costs=None)):
        packed = zlib.compress(msgspec.json.encode(each), 9)
        if len(packed) <= most:
            return packed
    raise DataError(f"a head must fit into {most} bytes, got {len(packed)}; raise the limit")


def unpack(content: bytes) -> Head:
    """The head that ``pack`` wrote; DataError if it is of another form, or has no true costs."""
    reader = zlib.decompressobj()
    try:
        text = reader.decompress(content, _MOST_BYTES)
        if not reader.eof:
            raise ValueError("too long")
        return msgspec.json.decode(text, type=Head)
    except (zlib.error, ValueError) as error:  # msgspec's errors are ValueErrors
        raise DataError(f"a head must be whole, and is not ({error}); update dpfed") from error


# --------------------------------------------------------------------------------- making a head


def begin_epoch(ledger: Ledger) -> None:
    """Begin an epoch: a gate does, when it starts.

    Args:
        ledger: the gate's.
    """
    ledger.change(lambda _, append: _append_epoch(append))


def _append_epoch(append: Any) -> Row:
    row: Row = append(kind="epoch", nonce=os.urandom(16).hex())
    return row


def take_head(ledger: Ledger, now: int = 0) -> Head:
    """The head of a ledger as it is now; each is a row, so two never show that nothing happened.

    Args:
        ledger: take it after a training has enrolled, so that what is reserved is in the head.
        now: microseconds since 1970.
    """

    def take(balance: Balance, append: Any) -> Head:
        if balance.epoch_heads == MOST_HEADS:
            _append_epoch(append)
        time = max(now, balance.head_time + 1)
        row: Row = append(kind="head", at=time)
        named = set(balance.marks[-1 - MOST_HEADS : -1])  # its epoch's row, and all heads since
        named |= {row.number - (1 << power) for power in range((row.number - 1).bit_length())}
        return Head(
            epoch=balance.epoch,
            row=row.number,
            hash=row.hash[:SHORT],
            time=time,
            earlier="".join(balance.hashes[number - 1] for number in sorted(named)),
            resets=balance.resets,
            costs=tuple(_costs(balance)),
        )

    return ledger.change(take)


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
        bounded = not total.runs and total.mu_squared < math.inf
        yield HeldCost(
            key=key,
            mu_squared=total.mu_squared if bounded else None,
            delta_reserved=min(1.0, math.fsum(total.delta_reserved.values())),
            covered=covered,
        )


# ------------------------------------------------------------------------------ meeting a head


def knows(ledger: Ledger, head: Head) -> bool:
    """Whether a head's row is in the ledger's own chain, or its loss was declared.

    Args:
        ledger: the ledger as it is.
        head: one that was made under the same key.
    """
    return _is_known(ledger.balance(), head)


def _is_known(balance: Balance, head: Head) -> bool:
    own = balance.hashes[head.row - 1 : head.row]
    return own == [head.hash] or head.hash in balance.named


def _last_of_each(heads: Iterable[Head]) -> list[Head]:
    """The heads that no other one names: the last of each branch."""
    by_hash = {head.hash: head for head in heads}
    named = [(head.hash, name) for head in by_hash.values() for name in head.names]
    earlier = {name for by, name in named if by != name}
    return [head for head in by_hash.values() if head.hash not in earlier]


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
            return msgspec.json.decode(self.path.read_bytes(), type=list[Head])
        except (OSError, ValueError) as error:
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
            met = sorted(_last_of_each([*self.heads(), *unknown]), key=lambda head: -head.row)
            replace_file(self.path, msgspec.json.encode(met[:MOST_CONFLICTS]))
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
    ledger: Ledger, heads: Iterable[Head], *, by: str, everything: bool = False
) -> list[Row]:
    """Book what heads say was spent and this ledger does not have; then they are in its chain.

    Args:
        ledger: the older copy.
        heads: those that are not in its chain; others are left out.
        by: who declares it.
        everything: exhaust every account, since there is no head that says what was lost.

    Returns:
        the rows that were added; those of kind "lost" have the costs.
    """
    rows, heads = ledger.rows(), list(heads)

    def declare(balance: Balance, append: Any) -> list[Row]:
        last = _last_of_each(head for head in heads if not _is_known(balance, head))
        bodies = [body for head in last for body in _head_rows(head, last, rows, balance)]
        if everything:
            bodies.append({"head": "", "epoch": "", "names": "", "at": 0, "exhausts": True})
        added = [append(**{"kind": "declared", "by": by, **body}) for body in bodies]
        return [*added, _append_epoch(append)] if added else []

    return ledger.change(declare)


def _head_rows(
    head: Head, last: Sequence[Head], rows: Sequence[Row], now: Balance
) -> list[dict[str, Any]]:
    """The rows that book a head's loss, less what is booked for heads that it names."""
    common = _common(rows, head)
    exhausts = head.costs is None or head.resets != common.resets or _is_forked(head, last, now)
    lost = [] if exhausts else list(_lost_rows(head, common, now))
    names = head.hash + head.earlier
    told = {"head": head.hash, "epoch": head.epoch, "names": names, "at": head.time}
    return [*lost, {**told, "exhausts": exhausts}]


def _is_forked(head: Head, last: Sequence[Head], now: Balance) -> bool:
    """Whether there is another branch of its epoch: a later head of one names all before it."""
    same = {other.hash for other in last if other.epoch == head.epoch}
    same |= {declared for declared, epoch in now.declared.items() if epoch == head.epoch}
    return head.epoch == now.epoch or not same <= head.names


def _common(rows: Sequence[Row], head: Head) -> Balance:
    """What was spent at the newest row that is known to be in both chains."""
    names, balance = head.names, Balance()
    both = [row.number for row in rows if row.hash[:SHORT] in names]
    for row in rows[: max(both, default=0)]:
        balance.add_row(row)
    return balance


def _lost_rows(head: Head, common: Balance, now: Balance) -> Iterator[dict[str, Any]]:
    for held in head.costs or ():
        key = now.resolve(held.key)
        booked = [now.lost[each] for each in now.lost if each[0] in head.names and each[1] == key]
        mu_squared, reserved = _excess(held, common.costs.get(held.key, Cost()))
        if mu_squared and any(now.costs[one].runs for one in now.guarantees.get(key.dataset, ())):
            mu_squared = math.inf
        if math.inf in [each.mu_squared for each in booked]:
            continue
        mu_squared = max(0.0, mu_squared - math.fsum(each.mu_squared for each in booked))
        before = math.fsum(sum(each.delta_reserved.values()) for each in booked)
        reserved = max(0.0, reserved - before)
        if mu_squared or reserved:
            mu_squared *= 1 + gdp.CAUTION
            yield {
                "kind": "lost",
                **key.row(),
                "head": head.hash,
                "training": f"lost:{head.hash}",
                "client": 0,
                "mu_squared": jsonable(mu_squared),
                "event": events.gaussian_with_mu_squared(mu_squared, key.adjacency),
                "lost": reserved,
                "covered": held.covered,
            }


def _excess(held: HeldCost, before: Cost) -> tuple[float, float]:
    """The squared mu, and the delta of secure sums, that are not in both chains."""
    if held.mu_squared is None:
        return (0.0 if math.isinf(before.mu_squared) else math.inf), 0.0
    more = held.mu_squared - before.mu_squared
    # each of the two sums was rounded: 2^-52 of them for each of up to 10^4 terms
    more = max(0.0, more + 1e-12 * held.mu_squared) if more else 0.0
    return more, max(0.0, held.delta_reserved - math.fsum(before.delta_reserved.values()))
