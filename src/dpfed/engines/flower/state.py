# SPDX-License-Identifier: Apache-2.0
"""A client's own state between rounds, on the client's disk: safetensors, never pickle.

Keyed by (training, client, round): round t goes on from the newest state of a round before t, so a
round that was not committed, or that this client missed, leaves no trace. The last two are kept.
What must never go back (the noise that a mechanism still owes) is kept under one number.
Flower's ``context.state`` would be empty in a new run; the training's name is ours and is not.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from dpfed.errors import DataError
from dpfed.trees import leaves, rebuilt
from dpfed.types import State

ENVIRONMENT = "DPFED_STATE"
_KEPT = 2
_SECRET = "sum.vault"  # noqa: S105 (a file name)


def folder_for(training: str, client: int, root: Path | None = None) -> Path:
    """Where a client keeps its state: $DPFED_STATE, or .dpfed in the home folder."""
    if not re.fullmatch(r"[\w.-]{1,100}", training) or training.startswith("."):
        raise DataError(f"training is {training!r}; use up to 100 letters, digits, '-', '_', '.'")
    base = root or Path(os.environ.get(ENVIRONMENT, Path.home() / ".dpfed"))
    return base / training / f"client-{client}"


def load(folder: Path, round: int, template: State) -> State:
    """The newest state of a round before ``round``, in the template's form; else the template."""
    earlier = [number for number in _rounds(folder) if number < round]
    if not leaves(template) or not earlier:
        return template
    path = folder / f"{max(earlier)}.safetensors"
    with safe_open(path, framework="pt") as file:
        numbers = json.loads(file.metadata()["numbers"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return rebuilt(template, _in_order(len(leaves(template)), tensors, numbers))


def save(folder: Path, round: int, state: State) -> None:
    """Write the state after ``round`` atomically, and forget all but the last two."""
    found = leaves(state)
    if not found:
        return
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    tensors = {str(i): leaf for i, leaf in enumerate(found) if isinstance(leaf, torch.Tensor)}
    numbers = {i: leaf for i, leaf in enumerate(found) if not isinstance(leaf, torch.Tensor)}
    path = folder / f"{round}.safetensors"
    draft = path.with_suffix(".draft")
    save_file(tensors, draft, metadata={"numbers": json.dumps(numbers)})
    with draft.open("rb") as file:
        os.fsync(file.fileno())  # noise that went back to an earlier state would cost more
    draft.replace(path)
    known = sorted(_rounds(folder))
    later = [number for number in known if number > round]  # of a run that was rolled back
    past = [number for number in known if number <= round][:-_KEPT]
    for number in (*past, *later):
        (folder / f"{number}.safetensors").unlink(missing_ok=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One message of a client at a time: two at once would both find the state of before."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read_secret(folder: Path) -> bytes:
    """What the sum keeps on this client, if anything."""
    path = folder / _SECRET
    return path.read_bytes() if path.exists() else b""


def write_secret(folder: Path, secret: bytes) -> None:
    """Replace it, so that a crash leaves the old one or the new one; only the owner may read it.

    It is on the disk before the answer leaves: a mask that was sent is never made again.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = folder / f"{_SECRET}.draft"
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(secret)
        file.flush()
        os.fsync(handle)
    draft.replace(folder / _SECRET)


def _rounds(folder: Path) -> list[int]:
    return [int(p.stem) for p in folder.glob("*.safetensors") if p.stem.isdigit()]


def _in_order(count: int, tensors: dict[str, Any], numbers: dict[str, Any]) -> list[Any]:
    try:
        return [tensors[str(i)] if str(i) in tensors else numbers[str(i)] for i in range(count)]
    except KeyError as error:
        raise DataError(
            f"the stored client state has no leaf {error}; was the method changed?"
        ) from error
