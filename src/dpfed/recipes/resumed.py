# SPDX-License-Identifier: Apache-2.0
"""A run that is resumed in a new process must go on with the same recipe, records and module.

A recipe names objects of a process (``data@...``, ``model@...``) by random words, which the next
process does not have. What they are is in the checkpoint's folder, on this machine:

    recipe.toml          the recipe; names of objects are not compared
    data.hmac            of records in memory: the HMAC of their bytes under a key of this machine,
                         bound to the training's name
    first.safetensors    of a module that was given as an object: its first parameters and buffers,
                         which a new process need not draw again

The HMAC says whether arrays have changed, and nothing to those who lack the key: a plain hash of
records would be a release. It names no account of a ledger, since other bytes of the same records
would then have a new budget, and it is in no fingerprint, bundle or exported checkpoint.

| edge case                                    | what happens                                   |
|----------------------------------------------|------------------------------------------------|
| the same arrays, the same machine            | the run goes on                                |
| one value differs, or their order            | DataError, before the first round              |
| another machine, or the key was deleted      | DataError: nothing shows that they are the same |
| a module with other parameters at its start  | it gets those that the run began with          |
| a module of other names or shapes            | DataError                                      |
"""

from __future__ import annotations

import copy
import hmac
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from dpfed.core.environment import state_folder
from dpfed.core.errors import DataError
from dpfed.core.files import locked_file, replace_file
from dpfed.core.registry import keep_object, kept_object
from dpfed.data.modules import Network
from dpfed.recipes import schema as recipes
from dpfed.recipes.federation import Federation
from dpfed.recipes.schema import Recipe
from dpfed.training.checkpoint import Checkpoint

_RECIPE, _HMAC, _FIRST, _KEY = "recipe.toml", "data.hmac", "first.safetensors", "machine.key"
_OBJECTS = {"data.source": "data@", "model.factory": "model@"}


def with_first_parameters(checkpoint: Checkpoint | None, recipe: Recipe) -> Recipe:
    """The recipe with the module that the run began with, where it was given as an object.

    Args:
        checkpoint: where the run keeps itself, if it does; gets a new run's first parameters.
        recipe: the run's recipe; its own module is not changed.
    """
    name = recipe.model.factory or ""
    if checkpoint is None or not _is_object("model.factory", name):
        return recipe
    given = kept_object("model", name)
    if not isinstance(given, torch.nn.Module | Network):
        return recipe  # a function: the recipe's seed decides what it makes
    path = checkpoint.folder / _FIRST
    if not (checkpoint.begun and path.exists()):
        tensors = {key: each.detach().cpu().clone() for key, each in _state(given).items()}
        _write(path, save({key: each.contiguous() for key, each in tensors.items()}))
        return recipe
    mine = copy.deepcopy(given)
    try:
        _inside(mine).load_state_dict(load(path.read_bytes()))
    except (RuntimeError, OSError, SafetensorError) as error:
        raise DataError(
            f"model must be the module that the run in {str(checkpoint.folder)!r} began with, and "
            f"its parameters' names or shapes differ; give that one, or another folder"
        ) from error
    model = msgspec.structs.replace(recipe.model, factory=keep_object("model", mine))
    return msgspec.structs.replace(recipe, model=model)


def _inside(given: torch.nn.Module | Network) -> torch.nn.Module:
    return given.module if isinstance(given, Network) else given


def _state(given: torch.nn.Module | Network) -> dict[str, torch.Tensor]:
    return dict(_inside(given).state_dict())


def check_same(checkpoint: Checkpoint | None, recipe: Recipe, silos: Federation) -> None:
    """Refuse another recipe or other records: a plan does not show changes of either.

    Args:
        checkpoint: where the run keeps itself, if it does; a new one gets what is compared later.
        recipe: the run's recipe.
        silos: its records, as they were read and divided.
    """
    if checkpoint is None:
        return
    path = checkpoint.folder / _RECIPE
    if not (checkpoint.begun and path.exists()):
        _write(path, recipes.dump_recipe(recipe).encode())
        if _is_object("data.source", recipe.data.source):
            _write(checkpoint.folder / _HMAC, _hmac(checkpoint, recipe, silos).encode())
        return
    before, now = recipes.settings(recipes.load_recipe(path)), recipes.settings(recipe)
    for key in sorted(before | now):
        pair = (before.get(key), now.get(key))
        if pair[0] != pair[1] and not all(_is_object(key, value) for value in pair):
            raise DataError(
                f"{key} must be {pair[0]!r}, as in the run that {str(checkpoint.folder)!r} holds, "
                f"got {pair[1]!r}; resume with the recipe that it began with, or give another "
                f"folder"
            )
    if _is_object("data.source", recipe.data.source):
        held = checkpoint.folder / _HMAC
        said = held.read_text(encoding="utf-8") if held.exists() else ""
        if not hmac.compare_digest(said, _hmac(checkpoint, recipe, silos)):
            raise DataError(
                f"data must be the records that the run in {str(checkpoint.folder)!r} began with, "
                f"on the machine where it began, and nothing shows that they are; give the same "
                f"arrays there, or another folder"
            )


def _is_object(key: str, value: Any) -> bool:
    return key in _OBJECTS and str(value).startswith(_OBJECTS[key])


def _hmac(checkpoint: Checkpoint, recipe: Recipe, silos: Federation) -> str:
    """The HMAC of all records, under a key of this machine and the name of this training."""
    made = hmac.new(_machine_key(), checkpoint.training(recipe.name).encode(), "sha256")
    for name, tensor in _tensors(silos):
        made.update(f"\0{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        made.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return made.hexdigest()


def _tensors(silos: Federation) -> Iterator[tuple[str, torch.Tensor]]:
    test = [] if silos.test is None else [silos.test]
    for part, many in (("client", silos.clients), ("test", test), ("held", silos.held)):
        for number, records in enumerate(many):
            for name, value in vars(records).items():
                if isinstance(value, torch.Tensor):
                    yield f"{part} {number} {name}", value


def _machine_key() -> bytes:
    """A random key of this user on this machine; it never leaves it, and is in no message."""
    path = state_folder() / _KEY
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked_file(path.with_suffix(".lock")):
        if not path.exists():
            replace_file(path, secrets.token_bytes(32))
        return path.read_bytes()


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content, 0o666)  # less what the umask takes away
