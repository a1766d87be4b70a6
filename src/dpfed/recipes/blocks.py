# SPDX-License-Identifier: Apache-2.0
"""Which blocks of arriving data terms list: a rule such as "last 12", once, when they are written.

    "2026-01" = [90, 80, 100]        each block's public size at every silo
    "2026-02" = [95, 85, 90]

| edge case                                   | what happens                                       |
|---------------------------------------------|----------------------------------------------------|
| "last 12", and fewer blocks are in the file | all of them                                        |
| "last 12", and some are left out            | those of the last 12 that remain                   |
| the block "before"                          | comes before all others                            |
| a name that is not in the file, or nothing  | RecipeError                                        |
| remains                                     |                                                    |
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from dpfed.accounting.ledger.blocks import BEFORE
from dpfed.core.checks import refuse
from dpfed.core.errors import RecipeError

_LAST = re.compile(r"last ([1-9][0-9]{0,3})")
Sizes = Mapping[str, Sequence[float]]


def choose_blocks(rule: str | None, file: Path | None, without: str = "") -> Sizes | None:
    """The blocks that a rule names, with their sizes; None without a rule.

    Args:
        rule: "last 12", "all", or names with commas.
        file: TOML with the sizes of all blocks.
        without: names with commas.
    """
    if (rule is None) != (file is None) or (without and rule is None):
        raise RecipeError(
            "--blocks and --block-sizes must be given together, got one of them; give both, or "
            "neither for data without blocks"
        )
    if rule is None or file is None:
        return None
    try:
        sizes = msgspec.toml.decode(file.read_bytes(), type=dict[str, list[float]])
    except (OSError, msgspec.DecodeError, ValueError) as error:
        raise RecipeError(
            f"the sizes of blocks, {file.name!r}, cannot be read ({error}); write each block as "
            f'"2026-03" = [90, 80]'
        ) from error
    return chosen(rule, sizes, tuple(filter(None, map(str.strip, without.split(",")))))


def chosen(rule: str, sizes: Sizes, without: Sequence[str] = ()) -> Sizes:
    """The blocks that a rule names, in their order.

    Args:
        rule: "last 12", "all", or names with commas.
        sizes: of all blocks.
        without: blocks to be left out.

    >>> sizes = {"2026-02": [80.0], "2026-03": [90.0], "before": [500.0]}
    >>> chosen("last 2", sizes), chosen("last 2", sizes, ["2026-02"])
    ({'2026-02': [80.0], '2026-03': [90.0]}, {'2026-03': [90.0]})
    """
    ordered = sorted(sizes, key=lambda name: (name != BEFORE, name))
    if last := _LAST.fullmatch(rule):
        names = ordered[-int(last[1]) :]
    else:
        names = ordered if rule == "all" else [name.strip() for name in rule.split(",")]
    for name in (*names, *without):
        if name not in sizes:
            raise refuse("a block", f"one of {ordered}", name, "declare its sizes")
    found = {name: list(sizes[name]) for name in names if name not in without}
    if not found:
        raise refuse("--blocks", "at least one that is not left out", rule, "name others")
    return found
