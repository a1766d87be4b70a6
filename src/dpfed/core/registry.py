# SPDX-License-Identifier: Apache-2.0
"""The file name is the plug-in's name: a new algorithm is one file, and nothing else is edited.

``find("server", "sofim")`` imports ``dpfed/server/sofim.py`` and returns its function ``sofim``.
Other packages add theirs by an entry point of the group ``dpfed.server`` (or client, mechanisms,
sums) that names such a function.
"""

from __future__ import annotations

import difflib
import inspect
import pkgutil
import typing
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import msgspec

from dpfed.core.errors import RecipeError

KINDS = ("client", "mechanisms", "sums", "server")
FACTS = ("unit", "layout")
"""Parameters of a factory that are facts of the plan, not options of a recipe."""


@cache  # reading the entry points of all installed packages takes 10 ms
def _foreign(kind: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=f"dpfed.{kind}")}


def _package(kind: str) -> str:
    return "dpfed.recipes.sinks" if kind == "sinks" else f"dpfed.{kind}"


@cache
def names(kind: str) -> tuple[str, ...]:
    """All plug-ins of a kind: our own files, and other packages' entry points."""
    package = import_module(_package(kind))
    ours = [
        module.name
        for module in pkgutil.iter_modules(package.__path__)
        if not module.ispkg and not module.name.startswith("_")
    ]
    return tuple(sorted({*ours, *_foreign(kind)}))


def find(kind: str, name: str) -> Callable[..., Any]:
    """The factory of a plug-in."""
    if name not in names(kind):
        raise RecipeError(f"{kind} has no plug-in {name!r}; {suggest(name, list(names(kind)))}")
    if name in _foreign(kind):
        return _loaded(_foreign(kind)[name])
    return typing.cast(
        "Callable[..., Any]", getattr(import_module(f"{_package(kind)}.{name}"), name)
    )


def _loaded(point: EntryPoint) -> Callable[..., Any]:
    """Another package's plug-in; what is wrong with it is that package's to mend."""
    try:
        return typing.cast("Callable[..., Any]", point.load())
    except (ImportError, AttributeError) as error:
        package = point.dist.name if point.dist else "an installed package"
        raise RecipeError(
            f"plug-in {point.name!r} of {package} cannot be loaded ({error}); mend its entry point "
            f"{point.value!r}, or uninstall it"
        ) from error


def build(kind: str, name: str, options: Mapping[str, Any], **facts: Any) -> Any:
    """The plug-in with these options, each checked against the factory's signature.

    ``facts`` are what the plan knows (FACTS); a factory that has such a parameter is given it.
    """
    check_names(kind, name, options)
    factory = find(kind, name)
    known = inspect.signature(factory).parameters
    hints = typing.get_type_hints(factory)
    checked = {
        key: _convert(f"{name}.{key}", value, hints.get(key, Any)) for key, value in options.items()
    }
    return factory(**{**{key: facts[key] for key in facts if key in known}, **checked})


def check_names(kind: str, name: str, options: Iterable[str]) -> None:
    """Refuse an option that the plug-in does not have, whatever its value."""
    known = inspect.signature(find(kind, name)).parameters
    for key in options:
        if key not in known or (key in FACTS and kind == "client"):
            mine = [option for option in known if option not in FACTS]
            raise RecipeError(f"{kind} {name!r} has no option {key!r}; {suggest(key, mine)}")


def _convert(label: str, value: Any, hint: Any) -> Any:
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        raise RecipeError(f"{label} is {value!r}: {error}") from error


def suggest(word: str, known: list[str]) -> str:
    """The nearest known word, or all of them."""
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known) or 'none'}"


def catalogue() -> list[dict[str, Any]]:
    """Every plug-in with what its file says about itself."""
    return [_describe(kind, name) for kind in KINDS for name in names(kind)]


def _describe(kind: str, name: str) -> dict[str, Any]:
    factory = find(kind, name)
    parameters = inspect.signature(factory).parameters.values()
    hidden = FACTS if kind == "client" else ()
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
        "paper": paper(kind, name),
    }


def paper(kind: str, name: str) -> str:
    """Where a plug-in comes from."""
    return str(getattr(inspect.getmodule(find(kind, name)), "PAPER", ""))


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, StrEnum) else value
