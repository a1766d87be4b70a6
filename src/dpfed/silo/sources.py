# SPDX-License-Identifier: Apache-2.0
"""Which tables of a policy hold the same records: a data set is its files, whatever it is called.

Guarantee: two tables with a file in common have one account, with one budget, or are refused before
a budget is declared, and so is a new name for files that were counted under another one. Files are
compared by device and inode, so that links, hard links, bind mounts, ``..`` and other spellings do
not hide them, and by real path, so that a folder counts with all that may come to lie in it.

| edge case                                       | what happens                                 |
|-------------------------------------------------|----------------------------------------------|
| a folder, and a file or folder inside of it     | in common                                    |
| a pattern, or a list of files                   | in common with each file that it has now     |
| other columns or another split of one file      | in common: they are the same persons         |
| ``hf:NAME``                                     | by the name, without its configuration; a    |
|                                                 | folder, if there is one of that name         |
| ``synthetic``                                   | in common with nothing: nobody's records     |
| public data (``center``, ``backbone_weights``)  | refused, if a table holds it                 |
| a file that was counted, moved or linked to     | refused under a new name, by its inode       |
| another path                                    |                                              |
| a new file that got the inode of a deleted one  | refused, too: copy it, a copy has another    |
| a second policy with another state folder       | not noticed: it has a ledger of its own      |
| a *copy* of a file, or a network drive that is  | not noticed: another file, another device    |
| mounted twice                                   |                                              |
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from dpfed.core.errors import DataError
from dpfed.data.places import find_file, find_files

if TYPE_CHECKING:
    from dpfed.recipes.schema import DataRecipe
    from dpfed.silo.policy import Policy

_HUB = "hf:"


@dataclass
class Files:
    """What a table names: real paths, all files and folders in them, and names on the hub."""

    paths: set[Path] = field(default_factory=set)
    nodes: dict[tuple[int, int], Path] = field(default_factory=dict)
    """Device and inode of a file -> one of its paths."""
    hub: set[str] = field(default_factory=set)

    def add(self, path: Path) -> None:
        """A file; or a folder, with all that is in it, links followed."""
        real = Path(os.path.realpath(path))
        self.paths.add(real)
        for each in _within(real):
            facts = each.stat()
            self.nodes.setdefault((facts.st_dev, facts.st_ino), each)

    def marks(self) -> Iterator[str]:
        """What the gate stores about the files: real paths, and device and inode if it exists."""
        for path in self.paths:
            yield str(path)
            with suppress(OSError):
                facts = path.stat()
                yield f"{facts.st_dev}:{facts.st_ino}"

    def holds(self, mark: str) -> str:
        """A path of these files that one of the marks names or contains; "" if there is none."""
        if not mark.startswith("/"):
            device, _, inode = mark.partition(":")
            return str(self.nodes.get((int(device), int(inode)), ""))
        return next((str(path) for path in self.paths if nested(path, Path(mark))), "")

    def common(self, other: Files) -> str:
        """A file or name that both sources have; "" if there is none."""
        for node in self.nodes.keys() & other.nodes.keys():
            return str(self.nodes[node])
        for mine in self.paths:
            for its in other.paths:
                if nested(mine, its):
                    return str(max(mine, its, key=lambda path: len(path.parts)))
        both = (name for name in sorted(self.hub) for its in other.hub if _same_name(name, its))
        return next(both, "")


def _same_name(one: str, other: str) -> bool:
    """Whether two names on the hub are one: 'mnist' stands for 'owner/mnist', too."""
    short = "/" not in one or "/" not in other
    return one == other or (short and one.rpartition("/")[2] == other.rpartition("/")[2])


def nested(one: Path, other: Path) -> bool:
    """Whether two real paths are the same, or one is a folder above the other."""
    return one.is_relative_to(other) or other.is_relative_to(one)


def _within(top: Path) -> Iterator[Path]:
    """A path that is there, and all files and folders below it; each folder once."""
    seen: set[tuple[int, int]] = set()
    todo = [top]
    while todo:
        path = todo.pop()
        with suppress(OSError):  # a link that leads nowhere, or what this user cannot read
            facts = path.stat()
            yield path
            if path.is_dir() and (facts.st_dev, facts.st_ino) not in seen:
                seen.add((facts.st_dev, facts.st_ino))
                todo += path.iterdir()


def files_of(source: str | list[str]) -> Files:
    """What a source names, as ``data.load.source`` takes it; what is not there has no files."""
    found = Files()
    for each in [source] if isinstance(source, str) else source:
        local = each.removeprefix(_HUB).partition(":")[0] if each.startswith(_HUB) else each
        if each == "synthetic":
            continue
        if each.startswith(_HUB) and not Path(local).expanduser().exists():
            found.hub.add(local.strip("/").casefold())
            continue
        for path in _named(local):
            found.add(path)
    return found


def _named(source: str) -> list[Path]:
    """The file or folder that is named, and the files that are read of it."""
    try:
        paths = find_files(source)
    except (DataError, OSError):
        return [Path(source).expanduser()]
    try:
        return [find_file(source), *paths]
    except DataError:
        return paths  # of a pattern


def check_accounts(
    policy: Policy, account: Callable[[str], str], counted: Mapping[str, str]
) -> dict[str, str]:
    """Refuse two budgets of one account, and two accounts of one file; what is to be remembered.

    Args:
        policy: the owner's.
        account: the first name of a data set in the ledger, where it has several.
        counted: by real path, and by device and inode: the name under which its records were
            counted before.

    Returns:
        the same for today's files, with the name of their account.
    """
    held = {name: files_of(data.load.source) for name, data in policy.data.items()}
    for first, second in combinations(policy.data, 2):
        if account(first) == account(second):
            _refuse_two_budgets(policy, first, second)
        elif where := held[first].common(held[second]):
            raise DataError(
                f"data.{first} and data.{second} must have one account, as both hold {where!r}, "
                f"got two; take one of them out, or before the second is used for the first time: "
                f"'dpfed ledger rename {first} {second}', with equal budgets"
            )
    for name, data in policy.data.items():
        _refuse_private(name, data.load, held)
        for known, before in counted.items():
            where = held[name].holds(known)
            if where and account(before) != account(name):
                raise DataError(
                    f"data.{name} must not begin a new account for {where!r}, which was "
                    f"counted as {before!r}: what was spent stays spent; 'dpfed ledger rename "
                    f"{before} {name}', or put other records into a new file at another path"
                )
    return {mark: account(name) for name, files in held.items() for mark in files.marks()}


def _refuse_two_budgets(policy: Policy, first: str, second: str) -> None:
    one, other = policy.data[first], policy.data[second]
    if one.block_rule != other.block_rule:
        raise DataError(
            f"data.{first} and data.{second} are two names of one account and must have the same "
            f"blocks, got {one.block_rule} and {other.block_rule}; make blocks and the column of "
            f"ids equal"
        )
    if one.key("") != other.key("") or one.budget != other.budget:
        raise DataError(
            f"data.{first} and data.{second} are two names of one account and must have the same "
            f"budget, got {one.budget} for {one.key(first)} and {other.budget} for "
            f"{other.key(second)}; make epsilon, delta, unit, adjacency, against and colluders "
            f"equal"
        )


def _refuse_private(name: str, load: DataRecipe, held: Mapping[str, Files]) -> None:
    """What is called public must be nobody's records; what is kept of records is no new data."""
    for key in ("center", "backbone_weights", "backbone_cache"):
        given = getattr(load, key)
        for other, files in held.items():
            if key == "backbone_cache" and other == name:
                continue  # of its own records
            if given and (where := files_of(given).common(files)):
                raise DataError(
                    f"data.{name}.load.{key} must hold no records of data.{other}, got {where!r}; "
                    f"name another file"
                )
