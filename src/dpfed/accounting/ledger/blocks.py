# SPDX-License-Identifier: Apache-2.0
"""Block budgets: data that arrives, one account for each month (or quarter, or year) of it.

    sepsis/2026-03      the account of those who first came in March 2026, with the whole budget
    sepsis              what was released before the data had blocks: the block "before"

A unit is in one block for good, so a release moves only the accounts of the blocks that it names.
It is entered in each of them, or in none: docs/privacy.md has the proof.

| edge case                                      | what happens                                    |
|------------------------------------------------|-------------------------------------------------|
| one of the named blocks is spent               | BudgetSpent with its name, nothing is written   |
| another column, period or id than was bound    | DataError                                       |
| a release on all of the data, once it is bound | UnsoundPlan                                     |
| a training with a draw                         | UnsoundPlan: its cost does not add up by mu^2   |
| rows that may be longer than the replace bound | UnsoundPlan: a unit may come later than another |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from dpfed.core.errors import DataError, UnsoundPlan

if TYPE_CHECKING:
    from dpfed.accounting.ledger.balance import Balance
    from dpfed.accounting.ledger.request import Request

BEFORE = "before"
"""The block of everyone who was in the data before it had blocks."""


class BlockBinding(NamedTuple):
    """What a data set's blocks are made by, once and for all."""

    column: str
    """The column of arrival dates."""
    every: str
    """month, quarter or year."""
    ids: str
    """The column of ids: each keeps its first block."""
    begun: str
    """The day on which blocks began, if there were releases before; else ""."""
    mark: str
    """What the gate's file of ids begins with: another file, or none, is refused."""


def account_of(dataset: str, block: str) -> str:
    """The name of a block's account.

    >>> account_of("sepsis", "2026-03"), account_of("sepsis", BEFORE)
    ('sepsis/2026-03', 'sepsis')
    """
    return dataset if block == BEFORE else f"{dataset}/{block}"


def by_block(request: Request, blocks: Sequence[str]) -> list[Request]:
    """The request once for each block's account; as it is, if there are none.

    Args:
        request: what is about to be released, on the whole data set.
        blocks: the names of the blocks whose units it is made of.
    """
    if not blocks:
        return [request]
    dataset = request.key.dataset
    keys = [request.key._replace(dataset=account_of(dataset, block)) for block in blocks]
    return [replace(request, key=key, block=name) for key, name in zip(keys, blocks, strict=True)]


def add_binding(blocks: dict[str, BlockBinding], body: Mapping[str, Any]) -> None:
    """Add a row of kind "blocks".

    Args:
        blocks: by data set, what its blocks are made by.
        body: the row.
    """
    if body["dataset"] in blocks:
        raise ValueError("blocks are bound once")
    blocks[body["dataset"]] = BlockBinding(*(str(body[name]) for name in BlockBinding._fields))


def refuse_other_blocks(known: BlockBinding, asked: BlockBinding, dataset: str) -> None:
    """Refuse blocks that are made otherwise than those that were charged.

    Args:
        known: what was bound first.
        asked: what the owner's policy says now; its ``begun`` and ``mark`` are not compared.
        dataset: the name of the data, for the message.
    """
    if known[:3] != asked[:3]:
        raise DataError(
            f"data.{dataset}.blocks must stay column {known.column!r}, every {known.every!r}, with "
            f"the ids of {known.ids!r}, got {asked[:3]}: units would move between accounts; put it "
            f"back, or put new records into a file and data set of their own"
        )


def refuse_unblocked(balance: Balance, request: Request) -> None:
    """Refuse a release on all of a data set that has blocks, or on a block that does not exist.

    Args:
        balance: what was entered before.
        request: what is about to be released.
    """
    base = balance.resolve(request.key).base
    if base in balance.blocks and not request.block:
        raise UnsoundPlan(
            f"data set {base!r} has blocks, and training {request.training!r} names none; name "
            f"those that it uses: 'dpfed silo terms --blocks'"
        )
    if request.block and base not in balance.blocks:
        raise UnsoundPlan(
            f"data set {base!r} has no blocks, and training {request.training!r} names "
            f"{request.block!r}; add blocks to the owner's policy"
        )


def refuse_unproven(request: Request) -> None:
    """Refuse what no proof covers in blocks (docs/privacy.md): rows without a bound, and draws.

    Args:
        request: what is about to be released.
    """
    if request.block and not request.covered:  # a unit may be seen earlier than its neighbour
        raise UnsoundPlan(
            f"training {request.training!r} must account for a row that is missing to be charged "
            f"to blocks, got a replace bound below its clip; use another method"
        )
    if request.block and request.gaussian is None:
        raise UnsoundPlan(
            f"training {request.training!r} must have a Gaussian cost to be charged to blocks, got "
            f"one with a draw: no rule is proven that adds it up there; train without a draw"
        )
