# SPDX-License-Identifier: Apache-2.0
"""Atomic file writes, file locks, and strict JSON (infinities and NaN become words)."""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock

_WORDS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


DRAFT = ".draft"
"""How the name of a file ends that ``replace_file`` has not finished."""


def replace_file(path: Path, content: bytes, mode: int = 0o600, *, readable: bool = False) -> None:
    """Write a file whole or not at all; it is on the disk when the call returns.

    Others may be able to write in the folder: nobody can place a link where the draft will be.

    Args:
        path: the file; one of the same name is replaced, also if it is a link.
        content: all that it will hold.
        mode: its permissions, less the umask; the default is for the owner only.
        readable: let every user read it, whatever the umask is.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}{DRAFT}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    handle = os.open(draft, flags | getattr(os, "O_BINARY", 0), mode)
    try:
        with os.fdopen(handle, "wb") as file:
            if readable and os.name != "nt":
                os.fchmod(handle, 0o644)
            file.write(content)
            file.flush()
            os.fsync(handle)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_over(path: Path, *parts: bytes) -> None:
    """Write over a file of the same size, with one flush; it is on the disk when the call returns.

    A crash can leave old and new mixed: only for files whose reader finds that. Where there is no
    file of this size, it is made as a whole (``replace_file``), which takes two flushes and more.

    Args:
        path: the file.
        parts: all that it will hold, one after the other.
    """
    size = sum(map(len, parts))
    try:
        handle = os.open(path, os.O_WRONLY | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        return replace_file(path, b"".join(parts))
    with os.fdopen(handle, "wb", buffering=0) as file:
        same = os.fstat(handle).st_size == size
        if same:
            for part in parts:
                left = memoryview(part)
                while left:
                    left = left[file.write(left) :]
            getattr(os, "fdatasync", os.fsync)(handle)
    return None if same else replace_file(path, b"".join(parts))


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, if the system offers it."""
    if os.name == "nt":  # folders cannot be opened there
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked_file(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock on a file, on every system; a process that has died holds none.

    Args:
        path: the file, which stays.
        wait: until it is free; if not, BlockingIOError where somebody holds it.
    """
    lock = filelock.FileLock(path, timeout=-1 if wait else 0, mode=0o600)
    try:
        lock.acquire(poll_interval=0.005)
    except filelock.Timeout as error:
        raise BlockingIOError(f"{path} is held by another process") from error
    try:
        yield
    finally:
        lock.release()


def jsonable(tree: Any) -> Any:
    """The tree as strict JSON allows it: floats that are not finite become words."""
    if isinstance(tree, dict):
        return {key: jsonable(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [jsonable(value) for value in tree]
    return str(tree) if isinstance(tree, float) and not math.isfinite(tree) else tree


def from_word(value: Any) -> Any:
    """The inverse of ``jsonable`` for one value: the words of floats become floats again."""
    return _WORDS.get(value, value) if isinstance(value, str) else value


def json_line(row: dict[str, Any]) -> str:
    """A row as one line of a .jsonl file."""
    return json.dumps(jsonable(row), allow_nan=False) + "\n"


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a .jsonl file that may still grow: a line without an end is left out."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    return [{key: from_word(value) for key, value in row.items()} for row in rows]
