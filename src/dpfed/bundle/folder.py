# SPDX-License-Identifier: Apache-2.0
"""A bundle on the disk: written file by file and whole, read as what a stranger has sent.

    model.json          description.py; written last, so where it is, the others are complete
    model.safetensors   the trained parameters, by name
    README.md           the model card (card.py)

Guarantee of reading: no pickle, no code and no other file than the two named ones; nothing larger
than the files themselves is made of what they say.

| edge case                                         | what happens                            |
|---------------------------------------------------|-----------------------------------------|
| a file that is missing                            | DataError                               |
| a pipe, a device or a folder in a file's place    | DataError; it is not waited for         |
| parameters of other names, shapes or types than   | DataError                               |
| model.json lists, or of another digest            |                                         |
| a parameter that is not finite                    | DataError                               |
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch

from dpfed.bundle.card import model_card
from dpfed.bundle.description import MAX_BYTES, Description, check, decode, encode
from dpfed.core.errors import DataError
from dpfed.core.files import replace_file
from dpfed.core.log import shown

DESCRIPTION_FILE, PARAMETERS_FILE, CARD_FILE = "model.json", "model.safetensors", "README.md"
_MAX_HEADER = 1 << 24
"""Bytes of names and shapes in a .safetensors."""


def write_bundle(
    folder: Path, description: Description, tensors: Mapping[str, torch.Tensor]
) -> Path:
    """Write a bundle; one that is there is replaced.

    Args:
        folder: is made if need be.
        description: of the model; parameters and digest are filled in here.
        tensors: the trained parameters, by name.

    Returns:
        the folder.
    """
    from safetensors.torch import save

    folder.mkdir(parents=True, exist_ok=True)
    plain = {name: each.detach().cpu().float().contiguous() for name, each in tensors.items()}
    # one entry: safetensors writes several in an order that changes from file to file
    content = save(plain, {"guarantee": str(description.guarantee["sentence"])})
    whole = msgspec.structs.replace(
        description,
        parameters=[(name, list(each.shape)) for name, each in plain.items()],
        sha256=hashlib.sha256(content).hexdigest(),
    )
    check(whole)
    (folder / DESCRIPTION_FILE).unlink(missing_ok=True)
    replace_file(folder / PARAMETERS_FILE, content, 0o644)
    replace_file(folder / CARD_FILE, model_card(whole).encode(), 0o644)
    replace_file(folder / DESCRIPTION_FILE, encode(whole), 0o644)
    return folder


def read_description(folder: Path) -> Description:
    """What model.json says, without the parameters."""
    return decode(read_bounded(_file(folder, DESCRIPTION_FILE), MAX_BYTES))


def read_bundle(folder: Path) -> tuple[Description, dict[str, torch.Tensor]]:
    """A bundle's description and its parameters, which are those that it lists."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    description = read_description(folder)
    path = _file(folder, PARAMETERS_FILE)
    raw = read_bounded(path, 4 * description.size + _MAX_HEADER)
    if description.sha256 and hashlib.sha256(raw).hexdigest() != description.sha256:
        raise DataError(
            f"{path} must have the SHA-256 {shown(description.sha256, 16)} of model.json, got "
            f"another; get both files of one bundle"
        )
    try:
        tensors = load(raw)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise DataError(f"{path} is not a .safetensors file; get the bundle again") from error
    _check_tensors(path, description, tensors)
    return description, {name: tensors[name] for name, _ in description.parameters}


def _check_tensors(
    path: Path, description: Description, tensors: Mapping[str, torch.Tensor]
) -> None:
    listed = {name: tuple(shape) for name, shape in description.parameters}
    found = {name: tuple(each.shape) for name, each in tensors.items()}
    if found != listed:
        odd = sorted(listed.items() ^ found.items())[0][0]
        raise DataError(
            f"{path} must have the parameters that model.json lists, and {odd[:80]!r} is not one "
            f"of both, or of another shape; get the bundle again"
        )
    for name, each in tensors.items():
        if each.dtype != torch.float32 or not bool(each.isfinite().all()):
            raise DataError(
                f"{path} must have finite float32 parameters, got {name[:80]!r} of {each.dtype}, "
                f"or one that is not finite; get the bundle again"
            )


def _file(folder: Path, name: str) -> Path:
    if not folder.is_dir():
        raise DataError(
            f"{str(folder)!r} is not a folder; give the model's folder, such as out/model"
        )
    path = folder / name
    if not path.exists():
        inside = folder / "model" / name
        hint = f"{str(inside.parent)!r}" if inside.exists() else "the folder with model.json"
        raise DataError(f"{str(folder)!r} has no {name}; give {hint}")
    return path


def read_bounded(path: Path, most: int) -> bytes:
    """A regular file's content, of so many bytes at most.

    Args:
        path: the file; a link is followed, since caches of downloads have them.
        most: how many bytes are read.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(handle, "rb") as file:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise DataError(f"{path} must be a file, got something else; get the bundle again")
        if facts.st_size > most:
            raise DataError(
                f"{path} must have at most {most} bytes, as its sizes say, got {facts.st_size}; "
                f"get the bundle again"
            )
        return file.read(most + 1)[:most]
