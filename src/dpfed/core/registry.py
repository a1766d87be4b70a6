# SPDX-License-Identifier: Apache-2.0
"""The file name is the plug-in's name: to add an algorithm, add one file that has its function.

``find("server", "sofim")`` imports ``dpfed/server/sofim.py`` and returns its function ``sofim``;
that file is enough to use it. To be a part of this repository a plug-in also needs tests: a file
``tests/PACKAGE/test_NAME.py`` such as ``tests/server/test_sofim.py``, or other files that ELSEWHERE
in tests/mirror.py names for it. A client or server needs a method in METHODS that uses it
(recipes/methods.py), and a method its LIMITS (tests/recipes/test_methods.py asks for both).

Other packages add theirs by an entry point that names such a function, of the group
``dpfed.client``, ``dpfed.mechanisms``, ``dpfed.sums``, ``dpfed.server``, ``dpfed.metrics`` or
``dpfed.sinks`` (files in ``dpfed/recipes/sinks``). docs/your-own-optimizer.md shows how to write
one.

Code that is not installed as a plug-in is given as ``module:function`` or, in Python, as an object:
clients, servers, mechanisms and metrics. An object has a name in recipes, made of where its code is
and a digest of it, which only this process can resolve.

| edge case                                         | what happens                                 |
|---------------------------------------------------|----------------------------------------------|
| ``module:function`` where an owner decides        | RecipeError, and nothing is imported         |
|   (``installed_only``: terms)                     |                                              |
| ``module:function`` for a sum or a sink           | RecipeError, and nothing is imported         |
| data or a model given as an object                | a name that says nothing of it; the same     |
|                                                   | rules                                        |
| an object's name in another process               | RecipeError: give ``module:function``        |
| a mechanism as a value, not as its function       | RecipeError: the plan decides clip and noise |
"""

from __future__ import annotations

import difflib
import inspect
import operator
import pkgutil
import re
import secrets
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from functools import cache
from importlib import import_module
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any

import msgspec

from dpfed.core.checks import refuse
from dpfed.core.errors import RecipeError
from dpfed.core.metric import Metric
from dpfed.core.types import ClientAlgorithm, Facts, MadeBy, ServerOptimizer, place_of

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

KINDS = ("client", "mechanisms", "sums", "server", "metrics")
_PLAN_FACTS = ("unit", "layout", "truncates", "epsilon")
FACTS: Mapping[str, tuple[str, ...]] = {
    "client": (*_PLAN_FACTS, "contract"),
    "server": _PLAN_FACTS,
    "mechanisms": ("facts", *Facts.__dataclass_fields__),
}
"""What the plan decides, by kind: a factory gets those facts that it has parameters for, and no
recipe can set them as options. A mechanism gets all of them in one parameter, ``facts``."""

CODE_KINDS: dict[str, tuple[str, str]] = {
    "client": ("ClientAlgorithm", "work"),
    "server": ("ServerOptimizer", "update"),
    "mechanisms": ("Mechanism", "release"),
    "metrics": ("Metric", "row"),
}
"""The kinds that may be given as code: what such a function returns, and what names its code."""
_CODE_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_OBJECTS: dict[tuple[str, str], Any] = {}
"""(kind, name) -> what was given as an object in this process."""
_installed_only: ContextVar[bool] = ContextVar("installed_only", default=False)

_TYPES = {
    float: "a number",
    int: "a whole number",
    str: "a text in quotes",
    bool: "true or false",
}


@cache
def _foreign(kind: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in _installed().select(group=f"dpfed.{kind}")}


@cache  # reading them takes 25 ms, whatever group is asked for
def _installed() -> EntryPoints:
    """The entry points of all installed packages."""
    from importlib.metadata import entry_points

    return typing.cast("EntryPoints", entry_points())  # of Python 3.11, what has the same select


def _package(kind: str) -> str:
    return "dpfed.recipes.sinks" if kind == "sinks" else f"dpfed.{kind}"


@cache
def names(kind: str) -> tuple[str, ...]:
    """The names of all plug-ins of ``kind``: our own files, and other packages' entry points."""
    return tuple(sorted({*own_names(kind), *_foreign(kind)}))


def own_names(kind: str) -> tuple[str, ...]:
    """The names of the plug-ins of ``kind`` that are files here, and that no package replaced."""
    package = import_module(_package(kind))
    return tuple(
        module.name
        for module in pkgutil.iter_modules(package.__path__)
        if not module.ispkg
        and not module.name.startswith("_")
        and module.name not in _foreign(kind)
    )


def find(kind: str, name: str) -> Callable[..., Any]:
    """The factory of a plug-in.

    Args:
        kind: client, mechanisms, sums, server, metrics or sinks.
        name: the plug-in's name, ``module:function``, or an object's name.
    """
    if is_code(name):
        return _given_code(kind, name)
    if name not in names(kind):
        raise RecipeError(f"{kind} has no plug-in {name!r}; {suggest(name, list(names(kind)))}")
    if name in _foreign(kind):
        return _loaded(_foreign(kind)[name])
    factory = getattr(import_module(f"{_package(kind)}.{name}"), name, None)
    if not callable(factory):
        raise RecipeError(f"{kind}/{name}.py must have a function {name!r}; rename one of them")
    return typing.cast("Callable[..., Any]", factory)


@contextmanager
def installed_only() -> Iterator[None]:
    """Resolve installed plug-ins only: for recipes that somebody else wrote.

    >>> with installed_only():
    ...     try:
    ...         find("server", "os:system")
    ...     except RecipeError:
    ...         print("refused, and not imported")
    refused, and not imported
    """
    token = _installed_only.set(True)
    try:
        yield
    finally:
        _installed_only.reset(token)


def is_code(name: str) -> bool:
    """Whether a name stands for code that is not installed as a plug-in.

    >>> is_code("sofim"), is_code("my_package.optimizers:shrink")
    (False, True)
    """
    return ":" in name or "@" in name


def own_code_of(kind: str, made: Any) -> str:
    """Where the code of a value is and a digest of it, if no plug-in's package was installed.

    Args:
        kind: client, server, mechanisms or metrics.
        made: what a plug-in's function returned.

    Returns:
        the empty text for what dpfed or an installed package has: its version tells it.
    """
    installed = {"dpfed", *(point.module.partition(".")[0] for point in _foreign(kind).values())}
    code = type(made)
    if code.__module__.partition(".")[0] in installed:
        return ""
    return _with_digest(code)


def name_of(kind: str, given: Any) -> str:
    """The name in recipes of code that is given as an object.

    Args:
        kind: client, server, mechanisms or metrics.
        given: a plug-in's function; or what such a function returns (not for mechanisms).

    Returns:
        where its code is, and a digest of it: another object has another name.
    """
    wanted, code = CODE_KINDS.get(kind, ("", ""))
    made = isinstance(given, ClientAlgorithm | ServerOptimizer | Metric)
    if not wanted or (made and type(given).__name__ != wanted) or not (made or callable(given)):
        bound = f"a name, or a function that returns a {wanted}" if wanted else "a name"
        way_out = "correct it"
        if kind == "mechanisms":
            way_out = "give the function that makes it: the plan decides clip, unit and noise"
        raise refuse(kind.removesuffix("s"), bound, given, way_out)
    name = _with_digest(given, place=getattr(given, code, None))
    _OBJECTS[kind, name] = given
    return name


def keep_object(kind: str, given: Any) -> str:
    """The name in recipes of data or a model that is given as an object; the same for the same.

    The name says nothing of what is in it, and only this process can resolve it. The object stays
    in memory until the process ends: a recipe may be run again.

    Args:
        kind: data or model.
        given: the object.
    """
    for (known, name), kept in _OBJECTS.items():
        if known == kind and _is_same(kept, given):
            return name
    name = f"{kind}@{secrets.token_hex(6)}"
    _OBJECTS[kind, name] = given
    return name


def _is_same(one: Any, other: Any) -> bool:
    """Whether two are one object, or pairs of the same ones."""
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        return all(map(operator.is_, one, other))
    return one is other


def kept_object(kind: str, name: str) -> Any:
    """What ``keep_object`` has named.

    Args:
        kind: data or model.
        name: as ``keep_object`` returned it.
    """
    if _installed_only.get() or (kind, name) not in _OBJECTS:
        raise RecipeError(
            f"{kind} {name!r} was given as an object, which its own process alone has; give it "
            f"again, or name a file or 'package.module:function'"
        )
    return _OBJECTS[kind, name]


def _with_digest(code: Any, *, name: str = "", place: Any = None) -> str:
    """A name, or where code is written, and a digest of the code."""
    # not at the top: a gate is given no code, so its reviewer need not read how it is told apart
    from dpfed.core.code_digest import code_digest

    return f"{name or place_of(place or code)}@{code_digest(code)[:12]}"


def _given_code(kind: str, name: str) -> Callable[..., Any]:
    """The function behind ``module:function``, or behind the name of an object."""
    if _installed_only.get() or kind not in CODE_KINDS:
        raise refuse(
            kind.removesuffix("s"),
            "the name of an installed plug-in here",
            name,
            "'dpfed methods --plug-ins' lists them",
        )
    if "@" in name:
        if (kind, name) not in _OBJECTS:
            raise RecipeError(
                f"{kind} {name!r} was given as an object, which its own process alone has; give it "
                f"again, or as 'module:function'"
            )
        given = _OBJECTS[kind, name]
        return typing.cast("Callable[..., Any]", given) if callable(given) else lambda: given
    if not _CODE_NAME.fullmatch(name):
        raise refuse(kind.removesuffix("s"), "'module:function'", name, "correct it")
    return typing.cast("Callable[..., Any]", installed_function(kind, name))


def _loaded(point: EntryPoint) -> Callable[..., Any]:
    """Load another package's plug-in; an error says that only that package can fix it."""
    try:
        return typing.cast("Callable[..., Any]", point.load())
    except (ImportError, AttributeError) as error:
        package = point.dist.name if point.dist else "an installed package"
        raise RecipeError(
            f"plug-in {point.name!r} of {package} cannot be loaded ({error}); fix its entry point "
            f"{point.value!r}, or uninstall it"
        ) from error


def installed_function(label: str, function: str) -> Any:
    """A function of this installation, whatever its package; nothing is registered for it.

    Args:
        label: where it is named, for the error.
        function: as package.module:function.
    """
    where, _, name = function.partition(":")
    try:
        return getattr(import_module(where), name)
    except (ImportError, AttributeError) as error:
        raise RecipeError(
            f"{label} {function!r} cannot be imported ({error}); correct it, install its package, "
            f"or put its folder on PYTHONPATH"
        ) from error


def build(kind: str, name: str, options: Mapping[str, Any], **facts: Any) -> Any:
    """The plug-in with these options, each checked against the factory's signature.

    Args:
        kind: client, mechanisms, sums, server, metrics or sinks.
        name: the plug-in's name: its file's, or its entry point's.
        options: the recipe's options; those left out have the factory's defaults.
        **facts: what the plan decides, such as the unit; given to a factory that has the parameter.
    """
    check_names(kind, name, options)
    factory = find(kind, name)
    known = inspect.signature(factory).parameters
    hints = typing.get_type_hints(getattr(factory, "func", factory))  # of a partial, too
    checked = {
        key: _convert(f"{name}.{key}", value, hints.get(key, Any)) for key, value in options.items()
    }
    made = factory(**{**{key: facts[key] for key in facts if key in known}, **checked})
    if isinstance(made, ClientAlgorithm | Metric):
        return made._replace(made_by=_call(kind, name, checked))
    if kind == "mechanisms" and not hasattr(made, "participation"):
        raise RecipeError(
            f"mechanism {name!r} must have an attribute 'participation', got none; set it to None "
            f"if a unit may take part in every round"
        )
    return made


def _call(kind: str, name: str, options: Mapping[str, Any]) -> MadeBy:
    """A plug-in's name with all of its options, defaults too; facts of the plan are not options."""
    given = {p.name: options.get(p.name, p.default) for p in _options(kind, name)}
    if ":" in name:  # both sides must have the same code, and a checkpoint too
        name = _with_digest(find(kind, name), name=name)
    return MadeBy(name, given)


def check_names(kind: str, name: str, options: Iterable[str]) -> None:
    """Refuse an option that the plug-in does not have, whatever its value.

    Args:
        kind: client, mechanisms, sums, server, metrics or sinks.
        name: the plug-in's name.
        options: the names of the options.
    """
    known = [parameter.name for parameter in _options(kind, name)]
    for key in options:
        if key not in known:
            raise RecipeError(f"{kind} {name!r} has no option {key!r}; {suggest(key, known)}")


def _options(kind: str, name: str) -> list[inspect.Parameter]:
    """The parameters of a factory that a recipe may set."""
    parameters = inspect.signature(find(kind, name)).parameters.values()
    return [each for each in parameters if each.name not in FACTS.get(kind, ())]


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
    """The nearest known word as a suggestion, or all known words."""
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known) or 'none'}"


def catalogue() -> list[dict[str, Any]]:
    """Every plug-in with what its file tells about it."""
    return [_describe(kind, name) for kind in KINDS for name in names(kind)]


def _describe(kind: str, name: str) -> dict[str, Any]:
    factory = find(kind, name)
    parameters = _options(kind, name)
    options = {p.name: _plain(p.default) for p in parameters if p.default is not p.empty}
    return {
        "kind": kind,
        "name": name,
        "summary": (inspect.getdoc(factory) or "").split("\n")[0],
        "options": options,
        "about": {key: text for key, text in _arguments(factory).items() if key in options},
        "paper": paper(kind, name),
    }


def _arguments(factory: Callable[..., Any]) -> dict[str, str]:
    """The text of the docstring's section Args, by parameter."""
    _, _, section = (inspect.getdoc(factory) or "").partition("\nArgs:\n")
    section = re.split(r"\n(?=\S)", section)[0]
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def paper(kind: str, name: str) -> str:
    """The paper that a plug-in comes from."""
    return str(getattr(inspect.getmodule(find(kind, name)), "PAPER", ""))


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, StrEnum) else value
