# SPDX-License-Identifier: Apache-2.0
"""A digest of a pretrained model's folder, by which terms and bundles name what it must hold."""

from __future__ import annotations

import hashlib
import os
import stat
from functools import lru_cache
from pathlib import Path
from typing import Any

from dpfed.core.errors import RecipeError

_NOT_HASHED = (".cache", ".git")
"""Folders that downloads leave behind, with times and addresses in them."""
_DEEPEST = 16
"""Folders in each other that a model has at most."""


def folder_digest(folder: str | Path) -> str:
    """A digest of the names and contents of a model's files; links count as what they lead to."""
    top = Path(folder)
    if not top.is_dir():
        raise RecipeError(
            f"a pretrained model must be a folder on this machine, so that its digest can be "
            f"pinned, got {str(folder)!r}; download it first"
        )
    found: list[tuple[str, os.stat_result]] = []
    for path, folders, files in os.walk(top, followlinks=True):
        here = Path(path).relative_to(top)
        folders[:] = [each for each in folders if each not in _NOT_HASHED]
        found += [(str(here / name), _regular(top / here / name)) for name in files]
        if len(here.parts) > _DEEPEST:
            raise RecipeError(f"the folder {str(top)!r} has no end; take out the link in it")
    facts = tuple(
        (name, s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns)
        for name, s in sorted(found, key=lambda each: each[0])
    )
    return _digest_of(str(top), facts)


def _regular(path: Path) -> os.stat_result:
    """The facts of a file that can be read to its end."""
    try:
        facts = path.stat()
    except OSError as error:
        raise RecipeError(f"{path} cannot be read ({error.strerror}); take it out") from error
    if not stat.S_ISREG(facts.st_mode):
        raise RecipeError(f"{path} must be a file, got something else; take it out")
    return facts


@lru_cache(maxsize=64)  # until a file is written to, or another takes its place
def _digest_of(top: str, facts: tuple[tuple[Any, ...], ...]) -> str:
    found = hashlib.sha256()
    for name, *_ in facts:
        with (Path(top) / name).open("rb") as file:
            content = hashlib.file_digest(file, "sha256").digest()
        found.update(hashlib.sha256(os.fsencode(name)).digest() + content)
    return found.hexdigest()
