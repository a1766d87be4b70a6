# SPDX-License-Identifier: Apache-2.0
"""The file name is the plug-in's name: to add an algorithm, add one file; no other code changes.

``find("server", "sofim")`` imports ``dpfed/server/sofim.py`` and returns its function ``sofim``. In
this repository a plug-in also has ``tests/ROOM/test_NAME.py`` (tests/test_mirror.py asks for it),
and a client or server a line in METHODS (recipes/methods.py; tests/recipes/test_methods.py asks).
Other packages add theirs by an entry point of the group ``dpfed.server`` (or client, mechanisms,
sums, metrics) that names such a function.
"""

from __future__ import annotations

import difflib
import inspect
import pkgutil
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import NoneType, UnionType
from typing import Any

import msgspec

from dpfed.core.checks import refuse
from dpfed.core.errors import RecipeError
from dpfed.core.metric import Metric
from dpfed.core.types import ClientAlgorithm

KINDS = ("client", "mechanisms", "sums", "server", "metrics")
FACTS = ("unit", "layout", "truncates", "epsilon")
"""Parameters of a factory that are facts of the plan, not options of a recipe."""
_GIVEN_FACTS = ("client", "server")
"""The kinds whose factories have facts; a mechanism's are options too."""

_TYPES = {
    float: "a number", int: "a whole number", str: "a text in quotes", bool: "true or false",
}  # fmt: skip


@cache  # reading the entry points of all installed packages takes 10 ms
def _foreign(kind: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=f"dpfed.{kind}")}


def _package(kind: str) -> str:
    return "dpfed.recipes.sinks" if kind == "sinks" else f"dpfed.{kind}"


@cache
def names(kind: str) -> tuple[str, ...]:
    """All plug-ins of a kind: our own files, and other packages' entry points."""
    return tuple(sorted({*own_names(kind), *_foreign(kind)}))


def own_names(kind: str) -> tuple[str, ...]:
    """The plug-ins of a kind that are files here, and that no other package has replaced."""
    package = import_module(_package(kind))
    return tuple(
        module.name
        for module in pkgutil.iter_modules(package.__path__)
        if not module.ispkg
        and not module.name.startswith("_")
        and module.name not in _foreign(kind)
    )


def find(kind: str, name: str) -> Callable[..., Any]:
    """The factory of a plug-in."""
    if name not in names(kind):
        raise RecipeError(f"{kind} has no plug-in {name!r}; {suggest(name, list(names(kind)))}")
    if name in _foreign(kind):
        return _loaded(_foreign(kind)[name])
    factory = getattr(import_module(f"{_package(kind)}.{name}"), name, None)
    if not callable(factory):
        raise RecipeError(f"{kind}/{name}.py must have a function {name!r}; rename one of them")
    return typing.cast("Callable[..., Any]", factory)


def _loaded(point: EntryPoint) -> Callable[..., Any]:
    """Another package's plug-in; only that package can fix what is wrong with it."""
    try:
        return typing.cast("Callable[..., Any]", point.load())
    except (ImportError, AttributeError) as error:
        package = point.dist.name if point.dist else "an installed package"
        raise RecipeError(
            f"plug-in {point.name!r} of {package} cannot be loaded ({error}); fix its entry point "
            f"{point.value!r}, or uninstall it"
        ) from error


def build(kind: str, name: str, options: Mapping[str, Any], **facts: Any) -> Any:
    """The plug-in with these options, each checked against the factory's signature.

    Args:
        kind: client, mechanisms, sums, server, metrics or sinks.
        name: the plug-in's name: its file's, or its entry point's.
        options: the recipe's options; those left out have the factory's defaults.
        **facts: what the plan knows, such as the unit; given to a factory that has the parameter.
    """
    check_names(kind, name, options)
    factory = find(kind, name)
    known = inspect.signature(factory).parameters
    hints = typing.get_type_hints(factory)
    checked = {
        key: _convert(f"{name}.{key}", value, hints.get(key, Any)) for key, value in options.items()
    }
    made = factory(**{**{key: facts[key] for key in facts if key in known}, **checked})
    if isinstance(made, ClientAlgorithm | Metric):
        return made._replace(made_by=_call(factory, name, checked))
    return made


def _call(factory: Callable[..., Any], name: str, options: Mapping[str, Any]) -> str:
    """A plug-in's name with all of its options, defaults too; facts of the plan are not options."""
    parameters = inspect.signature(factory).parameters.values()
    given = {p.name: options.get(p.name, p.default) for p in parameters if p.name not in FACTS}
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})"


def check_names(kind: str, name: str, options: Iterable[str]) -> None:
    """Refuse an option that the plug-in does not have, whatever its value.

    Args:
        kind: client, mechanisms, sums, server, metrics or sinks.
        name: the plug-in's name.
        options: the names of the options.
    """
    known = inspect.signature(find(kind, name)).parameters
    for key in options:
        if key not in known or (key in FACTS and kind in _GIVEN_FACTS):
            mine = [option for option in known if option not in FACTS]
            raise RecipeError(f"{kind} {name!r} has no option {key!r}; {suggest(key, mine)}")


def _convert(label: str, value: Any, hint: Any) -> Any:
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        raise refuse(label, _described(hint), value) from error


def _described(hint: Any) -> str:
    """A type in the words of an error."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if inspect.isclass(hint) and issubclass(hint, StrEnum):
        return f"one of {', '.join(hint)}"
    if origin is typing.Literal:
        return f"one of {', '.join(map(str, parts))}"
    if origin is list:
        return f"a list, each item {_described(parts[0])}"
    if origin in (typing.Union, UnionType):
        return " or ".join(_described(part) for part in parts if part is not NoneType)
    return _TYPES.get(hint, str(hint))


def suggest(word: str, known: list[str]) -> str:
    """The nearest known word, or all of them."""
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known) or 'none'}"


def catalogue() -> list[dict[str, Any]]:
    """Every plug-in with what its file tells about it."""
    return [_describe(kind, name) for kind in KINDS for name in names(kind)]


def _describe(kind: str, name: str) -> dict[str, Any]:
    factory = find(kind, name)
    parameters = inspect.signature(factory).parameters.values()
    hidden = FACTS if kind in _GIVEN_FACTS else ()
    options = {
        p.name: _plain(p.default)
        for p in parameters
        if p.default is not p.empty and p.name not in hidden
    }
    return {
        "kind": kind,
        "name": name,
        "summary": (inspect.getdoc(factory) or "").split("\n")[0],
        "options": options,
        "about": {key: text for key, text in _arguments(factory).items() if key in options},
        "paper": paper(kind, name),
    }


def _arguments(factory: Callable[..., Any]) -> dict[str, str]:
    """What the docstring's section Args says of each parameter."""
    _, _, section = (inspect.getdoc(factory) or "").partition("\nArgs:\n")
    section = re.split(r"\n(?=\S)", section)[0]
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def paper(kind: str, name: str) -> str:
    """Where a plug-in comes from."""
    return str(getattr(inspect.getmodule(find(kind, name)), "PAPER", ""))


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, StrEnum) else value
