# SPDX-License-Identifier: Apache-2.0
"""A digest of code that was given as an object: its source, its defaults and what it closes over.

Two optimizers made by one function with different options have the same source and different
closures, so both count. Source text counts, and not byte code, which another Python would change.

| edge case                                   | what happens                                     |
|---------------------------------------------|--------------------------------------------------|
| a function of a module with a file          | the whole file counts: its helpers are in it     |
| a function of a notebook or a prompt        | its own source; its byte code where there is none |
| an object that shows no value (a lock)      | RecipeError: two of them could not be told apart |
| an object that contains itself              | counted once                                     |
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from dpfed.core.errors import RecipeError
from dpfed.core.types import place_of

_PLAIN_VALUES = (bool, int, float, complex, str, bytes, type(None), Enum, Path)


def code_digest(given: Any) -> str:
    """A digest of a function, a class, or a value that holds functions.

    Args:
        given: what a user gave in the place of a plug-in's name.

    Returns:
        64 hexadecimal digits, the same in every process that has the same code.

    Raises:
        RecipeError: if it holds something whose value cannot be read.

    >>> def step(rate):
    ...     return lambda mean: rate * mean
    >>> code_digest(step(0.1)) == code_digest(step(0.1))
    True
    >>> code_digest(step(0.1)) == code_digest(step(0.2))
    False
    """
    found = hashlib.sha256()
    for part in _parts(given, {}):
        found.update(len(part).to_bytes(8, "big") + part)
    return found.hexdigest()


_INSIDE: tuple[tuple[Any, Callable[[Any], Iterable[Any]]], ...] = (
    (
        FunctionType,
        lambda f: (_source(f), f.__defaults__, f.__kwdefaults__, _closed_over(f), vars(f)),
    ),
    (MethodType, lambda method: (method.__func__, method.__self__)),
    (functools.partial, lambda made: (made.func, made.args, made.keywords)),
    (type, lambda made: (_source(made),)),
    (Mapping, lambda table: (len(table), *table.keys(), *table.values(), _attributes(table))),
    (tuple | list, lambda several: (len(several), *several, _attributes(several))),
    (set | frozenset, lambda several: sorted(map(code_digest, several))),
    (ModuleType | BuiltinFunctionType, lambda _: ()),
)
"""For each type of value, the parts by which one value differs from another."""


def _parts(value: Any, seen: dict[int, Any]) -> Iterator[bytes]:
    """Everything by which a value differs from others, in a fixed order.

    ``seen`` holds the values too, not their ids alone: once a value is freed, the next one may get
    its id, and would not be counted.
    """
    if isinstance(value, _PLAIN_VALUES):
        yield f"{type(value).__name__} {value!r}".encode()
        return
    if id(value) in seen:
        yield b"seen"
        return
    seen[id(value)] = value
    yield place_of(value).encode()
    inside = next((of for kind, of in _INSIDE if isinstance(value, kind)), None)
    if inside is None:
        yield from _object_parts(value, seen)
    else:
        yield from _each(inside(value), seen)


def _attributes(value: Any) -> Any:
    """What an instance of a subclass of a list, a tuple or a table has besides its items."""
    return getattr(value, "__dict__", None)


def _closed_over(function: FunctionType) -> list[Any]:
    return [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]


def _object_parts(value: Any, seen: dict[int, Any]) -> Iterator[bytes]:
    """An instance: its class's source and its fields; of an array its shape and numbers."""
    if hasattr(value, "detach") or hasattr(value, "__array__"):  # a tensor, or an array
        numbers = value.detach().cpu().numpy() if hasattr(value, "detach") else value
        yield f"{numbers.dtype} {numbers.shape}".encode() + numbers.tobytes()
        return
    yield _source(type(value))
    if is_dataclass(value):
        yield from _each([getattr(value, field.name) for field in fields(value)], seen)
    elif hasattr(value, "__dict__"):
        yield from _parts(vars(value), seen)
    elif " at 0x" not in repr(value):
        yield repr(value).encode()
    else:
        raise RecipeError(
            f"a plug-in that is given as an object must hold numbers, texts, tensors or functions, "
            f"got a {place_of(value)}, whose value cannot be read; build it inside of the plug-in, "
            f"or name the plug-in as 'module:function'"
        )


def _each(values: Any, seen: dict[int, Any]) -> Iterator[bytes]:
    for value in values:
        yield from _parts(value, seen)


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 (an empty cell raises)
    except ValueError:
        return False
    return True


def _source(code: Any) -> bytes:
    """The source of the object's module; without a file its own source, or its byte code."""
    module = sys.modules.get(code.__module__)
    path = Path(getattr(module, "__file__", None) or "")
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).digest()
    try:
        return inspect.getsource(code).encode()
    except (OSError, TypeError):
        compiled = getattr(code, "__code__", None)
        if compiled is None:
            return repr(code).encode()
        return bytes(compiled.co_code) + repr((compiled.co_consts, compiled.co_names)).encode()
