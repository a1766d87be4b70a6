# SPDX-License-Identifier: Apache-2.0
"""Terms: what a data owner is asked to agree to. A recipe without data, and what it is pinned to.

    name = "sepsis-2026"            # of the training, once and for all
    method = "dp-fedadam"           # ... and all that a recipe has, but data and ledger
    rounds = 40
    [privacy]
    epsilon = 1.0
    [terms]
    dataset = "sepsis"              # which data of the owner's
    shape = [64]                    # of a record's features
    classes = 2
    sizes = [1200, 800, 950]        # each silo's public number of units
    dpfed = "0.3.0"
    roster = "..."                  # the digest of the roster, under distributed trust
    packages = {}                   # package -> digest, if a model comes from one
    low = 0.0                       # the least value of each feature, or one for all; may be left
    high = 1.0                      # out: what dp-fedauto's center begins from
    contract = {columns = [...]}    # what silos read their tables by (data/contract.py), if any
    layout = [["head.weight", [2, 64]]]  # of a model that is loaded: its parameters, in their order
    model = "..."                   # the digest of a pretrained model's folder
    blocks = {"2026-03" = [90, 80, 100]}  # of data that arrives: which are used, with their sizes

Server and silos read the same file: the plan, the model and the start follow from it. Its
fingerprint is that of its meaning, not of its spelling.

| edge case                                       | what happens                              |
|-------------------------------------------------|-------------------------------------------|
| a table ``data`` or ``ledger``, an unknown key  | RecipeError                               |
| more than 64 KiB, not TOML, not text            | RecipeError                               |
| over 16 dots in a key, or brackets in brackets, | RecipeError, before it is parsed          |
| a string of several lines                       |                                           |
| options that are not numbers, switches or words | RecipeError: no path, URL or code         |
| ``module:function`` as a plug-in                | RecipeError, and nothing is imported      |
| numbers beyond ``RANGES``                       | read, and refused by ``check_numbers``    |
| a model that is loaded, and is not as pinned    | RecipeError, when it is built             |
| a contract that is not as shape and classes, or | RecipeError                               |
| with values that were read off private records  |                                           |
"""

from __future__ import annotations

import hashlib
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import msgspec

from dpfed._version import VERSION
from dpfed.core.checks import refuse
from dpfed.core.dsse import canonical_json
from dpfed.core.errors import RecipeError
from dpfed.core.files import jsonable
from dpfed.core.log import shown
from dpfed.core.randomness import public_seed
from dpfed.core.registry import installed_only, is_code
from dpfed.core.types import Vector
from dpfed.core.vector import Layout
from dpfed.data.contract import Contract, contract_of, read_contract
from dpfed.data.folder_digest import folder_digest
from dpfed.data.models import Model
from dpfed.recipes.build import plan_for, trained_model
from dpfed.recipes.methods import DRAWN
from dpfed.recipes.model import is_loaded, sized_model
from dpfed.recipes.query import with_questions
from dpfed.recipes.schema import (
    NAME,
    PRETRAINED,
    Recipe,
    parse,
    read_toml,
    to_toml,
    with_default,
)
from dpfed.training.plan import Plan

MOST_BYTES = 1 << 16
MOST_BLOCKS = 600
_BLOCK = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,31}")
_WORD = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PARAMETER = re.compile(r"[A-Za-z0-9_.:-]{1,256}")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]{0,127}:[A-Za-z_]\w{0,63}", re.ASCII)


class Pins(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The table ``terms``: what a training is bound to."""

    dataset: str
    """The owners' name for the data."""
    shape: list[int]
    """The shape of a record's features."""
    sizes: list[float]
    """Each silo's public number of units."""
    dpfed: str
    """The version that wrote the terms."""
    classes: int = 1
    """The number of classes; 1 if labels are numbers."""
    roster: str = ""
    """The digest of the roster, under distributed trust."""
    packages: dict[str, str] = {}
    """Digests of the packages that a model comes from."""
    low: float | list[float] | None = None
    """The public lower end of each feature, or one for all."""
    high: float | list[float] | None = None
    """The public upper end."""
    layout: list[tuple[str, list[int]]] | None = None
    """Of a model that is loaded: the names and shapes of its parameters, in their order."""
    model: str | None = None
    """The digest of a pretrained model's folder."""
    contract: Contract | None = None
    """What every silo reads its table by."""
    blocks: dict[str, list[float]] | None = None
    """The blocks of arriving data that are used, each with every silo's public number of units."""


@dataclass(frozen=True, eq=False)
class Terms:
    """A training that data owners can agree to: a recipe without data, and what it is pinned to.

    ``read_terms`` makes them; plan, model and first parameters follow from them alone.

    >>> text = '''
    ... name = "sepsis-2026"
    ... rounds = 3
    ... method = "dp-fedgd"
    ... privacy = {epsilon = 1.0}
    ... terms = {dataset = "sepsis", shape = [4], classes = 2, sizes = [90, 80], dpfed = "0.3.0"}
    ... '''
    >>> terms = read_terms(text)
    >>> terms.plan.rounds, terms.pins.sizes, len(terms.fingerprint)
    (3, [90.0, 80.0], 64)
    """

    recipe: Recipe
    pins: Pins
    text: str = ""
    """As they were written."""
    folder: str = ""
    """Where a pretrained model is on this machine; "" looks for the source that they name."""

    @property
    def name(self) -> str:
        """The training's name."""
        return self.recipe.name

    @cached_property
    def fingerprint(self) -> str:
        """A digest of all that the terms say."""
        whole = {"recipe": self.recipe, "terms": self.pins}
        return hashlib.sha256(canonical_json(jsonable(msgspec.to_builtins(whole)))).hexdigest()

    @cached_property
    def model(self) -> Any:
        """The model, sized as the terms say."""
        ranges = msgspec.structs.replace(self.recipe.data, low=self.pins.low, high=self.pins.high)
        recipe = msgspec.structs.replace(self.recipe, data=ranges)
        return trained_model(recipe, self.plan, self._named)

    @cached_property
    def _named(self) -> Model:
        """The model that the recipe names, if its parameters are those that were agreed on."""
        pins, table = self.pins, self.recipe.model
        if table.name in PRETRAINED:
            held: dict[str, Any] = {"source": self.folder} if self.folder else {}
            held |= {"trust_remote_code": False} if table.name == "transformers" else {}
            table = msgspec.structs.replace(table, options={**table.options, **held})
        made = sized_model(table, pins.shape, pins.classes, self.recipe.seed)
        agreed = self._pinned
        if agreed is not None and list(agreed.shapes.items()) != list(made.layout.shapes.items()):
            raise RecipeError(
                f"the model must have the {len(agreed.shapes)} parameters of terms.layout, got "
                f"{len(made.layout.shapes)}, of other names or shapes; use the same model and "
                f"versions as the server, or write the terms anew"
            )
        return made

    @property
    def _pinned(self) -> Layout | None:
        """The parameters that the terms list, in their order."""
        if self.pins.layout is None:
            return None
        return Layout({name: tuple(shape) for name, shape in self.pins.layout})

    @property
    def described(self) -> bool:
        """Whether the terms say how large their model is, so that nothing of it is to be loaded."""
        return self._pinned is not None or not is_loaded(self.recipe.model)

    @property
    def layout(self) -> Layout | None:
        """The parameters, as far as they are known without loading anything of a model."""
        return self._pinned if is_loaded(self.recipe.model) else self.model.layout

    @property
    def initial(self) -> Vector:
        """The parameters that training begins with."""
        start: Vector = self.model.initial(public_seed(self.recipe.seed, "model"))
        return start

    @cached_property
    def plan(self) -> Plan:
        """What the training costs, by every silo's own computation."""
        layout = self._pinned or self._named.layout
        agreed = msgspec.structs.replace(self.recipe.data, contract=self.pins.contract)
        recipe = msgspec.structs.replace(self.recipe, data=agreed)
        with installed_only():  # a second lock behind ``read_terms``: no code of a server's choice
            made = plan_for(recipe, self.pins.sizes, layout)
        return replace(made, blocks=tuple(self.pins.blocks)) if self.pins.blocks else made


def read_terms(text: str | bytes) -> Terms:
    """Read terms from a file's content; what terms may not have is refused by its name.

    Args:
        text: TOML of at most 64 KiB.

    Returns:
        the terms; nothing of a model is loaded.

    Raises:
        RecipeError: if a table, an option or a name is not one that terms may have.

    >>> text = '''
    ... name = "sepsis-2026"
    ... rounds = 3
    ... method = "dp-fedgd"
    ... privacy = {epsilon = 1.0}
    ... terms = {dataset = "sepsis", shape = [4], classes = 2, sizes = [90, 80], dpfed = "0.3.0"}
    ... '''
    >>> read_terms(text).name
    'sepsis-2026'
    """
    raw = text.encode() if isinstance(text, str) else text
    if len(raw) > MOST_BYTES:
        raise refuse("terms", f"at most {MOST_BYTES} bytes", len(raw), "shorten them")
    try:
        written = raw.decode()
        _refuse_deep(written)
        tree = tomllib.loads(written)
    except RecipeError:
        raise
    except (ValueError, RecursionError) as error:
        raise RecipeError("terms must be TOML in UTF-8, and are not; correct the file") from error
    try:
        return _made(tree, written)
    except RecursionError as error:
        raise RecipeError("terms must have few tables in each other; correct the file") from error


_QUIET = re.compile(r""""(?:\\.|[^"\\\n])*"?|'[^'\n]*'?|#[^\n]*""")
_PIECE = re.compile(r"[\[\]{}]|[^\[\]{}=,\n]+")
_DEEPEST_KEY = 16
"""Dots of one key, and brackets in each other, that terms have at most."""


def _refuse_deep(text: str) -> None:
    """Refuse, in one pass, what takes a parser of TOML the square of its length, or its stack."""
    if '"""' in text or "'''" in text:  # then this scan could not tell where a string ends
        raise RecipeError("terms must have strings of one line, got one of several; shorten it")
    depth = 0
    for piece in _PIECE.findall(_QUIET.sub("s", text)):
        depth = max(0, depth + {"[": 1, "{": 1, "]": -1, "}": -1}.get(piece, 0))
        if depth > _DEEPEST_KEY or piece.count(".") > _DEEPEST_KEY:
            got = max(depth, piece.count("."))
            raise refuse("tables, lists and keys in each other", f"at most {_DEEPEST_KEY}", got)


def _made(tree: dict[str, Any], written: str) -> Terms:
    pins = tree.pop("terms", None)
    for name in ("data", "ledger"):
        if name in tree:
            raise RecipeError(f"terms have no table {name!r}, which is the owner's; leave it out")
    try:
        found = Terms(parse(with_default(tree)), msgspec.convert(pins, Pins), written)
    except msgspec.ValidationError as error:
        raise RecipeError(f"the table 'terms' cannot be read ({error}); correct it") from error
    _check(found)
    return found


def _check(terms: Terms) -> None:
    recipe, pins = terms.recipe, terms.pins
    for label, name in (("name", recipe.name), ("terms.dataset", pins.dataset)):
        if not NAME.fullmatch(name):
            raise refuse(label, "1 to 64 of A-Z a-z 0-9 - _ .", name, "choose another")
    if not pins.shape or any(size < 1 for size in pins.shape):
        raise refuse("terms.shape", "one or more whole numbers, at least 1", pins.shape)
    if not 1 <= len(pins.sizes) <= 10_000 or any(not 1 <= size < 1e12 for size in pins.sizes):
        raise refuse("terms.sizes", "1 to 10,000 numbers from 1 to 1e12", len(pins.sizes))
    _check_ranges(pins)
    _check_blocks(pins)
    _check_contract(pins)
    _check_layout(pins, recipe.model.name, is_loaded(recipe.model))
    _refuse_code(recipe)
    tables = (recipe.client, recipe.sum, *recipe.server, recipe.privacy.options)
    loss = recipe.model.loss if isinstance(recipe.model.loss, dict) else {}
    for value in _leaves([*tables, recipe.model.options, loss]):
        plain = isinstance(value, bool | int | float)
        if not plain and not (isinstance(value, str) and _WORD.fullmatch(value)):
            raise refuse("an option in terms", "a number, true, false or one word", value)


def _refuse_code(recipe: Recipe) -> None:
    """Refuse ``module:function`` in the place of a plug-in: a server would choose what is run."""
    metrics = recipe.evaluation.metrics or []
    tables = [recipe.client, recipe.sum, *recipe.server, *metrics]
    named = [each.get("name") if isinstance(each, dict) else each for each in tables]
    for name in (*named, recipe.privacy.mechanism):
        if not isinstance(name, str) or is_code(name):
            bound = "the name of an installed plug-in"
            raise refuse("a plug-in in terms", bound, name, "have each silo install it")


def _check_ranges(pins: Pins) -> None:
    """Both or none, each for all features or one by one; nothing as long as ``shape`` is made."""
    given = {name: getattr(pins, name) for name in ("low", "high")}
    given = {name: value for name, value in given.items() if value is not None}
    if len(given) == 1:
        raise refuse("terms.low and terms.high", "both given or both left out", *given)
    for name, value in given.items():
        values = value if isinstance(value, list) else [value]
        sizes = (1, math.prod(pins.shape))[isinstance(value, list)]
        if len(values) != sizes or not all(map(math.isfinite, values)):
            raise refuse(f"terms.{name}", "a finite number, or one for each feature", value)


def _check_blocks(pins: Pins) -> None:
    """Sizes are those of the blocks together, so that divisors follow from what was declared."""
    if pins.blocks is None:
        return
    if not 1 <= len(pins.blocks) <= MOST_BLOCKS or not all(map(_BLOCK.fullmatch, pins.blocks)):
        bound = f"1 to {MOST_BLOCKS} names such as 2026-03"
        raise refuse("terms.blocks", bound, shown(", ".join(pins.blocks), 80))
    for block, sizes in pins.blocks.items():
        if len(sizes) != len(pins.sizes) or any(not 0 <= size < 1e12 for size in sizes):
            raise refuse(f"terms.blocks.{block}", "a number from 0 on for each silo", len(sizes))
    sums = [math.fsum(sizes) for sizes in zip(*pins.blocks.values(), strict=True)]
    if sums != pins.sizes:
        raise refuse("terms.sizes", f"{sums[:5]}, the sums of terms.blocks", pins.sizes[:5])


def _check_contract(pins: Pins) -> None:
    """It says the shape and the classes, and nothing of anybody's records."""
    contract = pins.contract
    if contract is None:
        return
    if contract.drafted:
        raise refuse(
            "terms.contract",
            "without values that were read off private records (from_records)",
            shown(", ".join(contract.drafted)),
            "replace them by public knowledge, or by private statistics, and take the mark out",
        )
    if contract.label is None:
        raise refuse("terms.contract", "with a label", "none", "say what is predicted")
    if pins.shape != [contract.width]:
        raise refuse("terms.shape", f"[{contract.width}], as the contract has it", pins.shape)
    if pins.classes != (contract.classes or 1):
        bound = f"{contract.classes or 1}, as the contract has it"
        raise refuse("terms.classes", bound, pins.classes)


def _check_layout(pins: Pins, model: str, loaded: bool) -> None:
    """Names and shapes of something that can be a model: nothing is made of them yet."""
    if pins.layout is not None and not loaded:
        raise refuse("terms.layout", "left out for a model of dpfed's own", model)
    given = pins.layout or []
    names = [name for name, _ in given]
    named = pins.layout is None or bool(names)
    if not named or len(set(names)) < len(names) or not all(map(_PARAMETER.fullmatch, names)):
        raise refuse("terms.layout", "parameters of different names, up to 256 letters", names[:3])
    for name, shape in given:
        if len(shape) > 8 or any(not 1 <= size <= 1 << 31 for size in shape):
            raise refuse(f"terms.layout: {name}", "a shape of up to 8 numbers from 1 on", shape[:9])


# -------------------------------------------------------------------------------------- numbers

RANGES: dict[str, tuple[float, float]] = {
    "seed": (0, 2**63 - 1),
    "rounds": (1, 10_000),
    "model.chunk": (1, 65_536),
    "privacy.epsilon": (1e-6, 1e6),
    "privacy.delta": (1e-30, 0.5),
    "privacy.clip": (1e-9, 1e9),
    "privacy.std_over_clip": (1e-6, 1e9),
    "privacy.colluders": (1, 10_000),
    "privacy.nominal": (1e-3, 1e12),
    "privacy.record_rate": (1e-6, 1.0),
    "privacy.client_rate": (1e-6, 1.0),
    "privacy.cohort": (1, 1_000_000),
    "privacy.spare_attempts": (0, 10_000),
    "privacy.participation.min_separation": (1, 10_000),
    "privacy.participation.at_most": (1, 10_000),
    "privacy.adaptive.quantile": (1e-4, 0.9999),
    "privacy.adaptive.rate": (1e-6, 10.0),
    "privacy.adaptive.share": (1e-6, 0.9999),
    "evaluation.every": (1, 10_000),
    "evaluation.share": (1e-6, 0.9999),
    "evaluation.loss_bound": (1e-6, 1e6),
    "evaluation.holdout": (0.0, 1.0),
}
"""Every number of a recipe that terms can choose: the least and the most."""
MOST_OPTION = 1e12
"""How large a number among the options of a plug-in, model or metric may be."""
MOST_WHOLE = 100_000
"""... and a whole one, which may count steps or numbers in memory."""
MOST_CELLS = 10_000
"""... and one of a metric's, which counts classes, bins or names."""


def check_numbers(terms: Terms) -> None:
    """Refuse numbers with which calibration might not end, or that no training needs, by their key.

    Nothing is built or computed here.
    """
    recipe = terms.recipe
    drawn = (recipe.privacy.record_rate, recipe.privacy.client_rate) != (1, 1)
    for key, (least, most) in (RANGES | (DRAWN if drawn else {})).items():
        value: Any = recipe
        for name in key.split("."):
            value = getattr(value, name, None)
        for each in value if isinstance(value, list) else [value]:
            if each is not None and not least <= each <= most:
                raise refuse(f"{key} in terms", f"from {least:g} to {most:g}", each, "change it")
    for value in _leaves([terms.pins.low, terms.pins.high]):
        _check_option("terms.low and terms.high", value, MOST_OPTION)
    metrics, loss = recipe.evaluation.metrics, recipe.model.loss
    tables = [recipe.client, recipe.sum, *recipe.server, recipe.privacy.options]
    for value in _leaves([*tables, loss, recipe.model.options]):
        _check_option("an option in terms", value, MOST_WHOLE)
    for value in _leaves(metrics):
        _check_option("an option of evaluation.metrics in terms", value, MOST_CELLS)


def _check_option(label: str, value: Any, most: float) -> None:
    """A number that is not larger than others need it; whole ones have the smaller bound."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    most = most if isinstance(value, int) else MOST_OPTION
    if not -most <= value <= most:
        raise refuse(label, f"from {-most:g} to {most:g}", value, "change it")


def _leaves(node: Any) -> Iterator[Any]:
    if isinstance(node, dict | list):
        for each in node.values() if isinstance(node, dict) else node:
            yield from _leaves(each)
    else:
        yield node


def write_terms(
    recipe: Path,
    *,
    dataset: str,
    sizes: list[float] | None = None,
    shape: list[int] | None = None,
    classes: int | None = None,
    roster: Path | None = None,
    packages: Sequence[str] = (),
    blocks: Mapping[str, Sequence[float]] | None = None,
) -> str:
    """The text of terms for a recipe's training.

    Args:
        recipe: its file; the tables data (but contract and ranges) and ledger are left out.
        dataset: the owners' name for the data.
        sizes: each silo's public number of units; None is the sum of the blocks'.
        shape: of a record's features; None is as the recipe's contract has it.
        classes: how many classes; None is as the contract has it, or 1: labels are numbers.
        roster: the roster's file, under distributed trust.
        packages: installed packages that the model comes from.
        blocks: the blocks of arriving data, each with every silo's public number of units.
    """
    whole = with_questions(read_toml(recipe))
    tree = {k: v for k, v in whole.items() if k not in ("data", "ledger")}
    ranges = {k: v for k, v in whole.get("data", {}).items() if k in ("low", "high")}
    contract = _contract_in(whole, recipe.resolve().parent)
    if contract is not None:
        ranges["contract"] = contract
        shape = [contract.width] if shape is None else shape
        classes = contract.classes if classes is None else classes
    if shape is None:
        raise refuse("the shape", "given where a recipe has no data.contract", None, "give --shape")
    if (sizes is None) == (blocks is None):
        raise refuse("the sizes", "given, or those of blocks", sizes, "give one of them")
    if blocks is not None:
        ranges["blocks"] = {name: list(each) for name, each in blocks.items()}
        sizes = [math.fsum(each) for each in zip(*blocks.values(), strict=True)]
    pins = Pins(
        dataset=dataset,
        shape=shape,
        sizes=sizes or [],
        dpfed=VERSION,
        classes=1 if classes is None else classes,
        roster=hashlib.sha256(roster.read_bytes()).hexdigest() if roster else "",
        packages={name: package_digest(name) for name in packages},
        **ranges,
    )
    text = to_toml({**tree, "terms": msgspec.to_builtins(pins)})
    read_terms(text)
    return text


def _contract_in(whole: dict[str, Any], folder: Path) -> Contract | None:
    """The contract of a recipe's table ``data``, which may name a file beside the recipe."""
    given = whole.get("data", {}).get("contract")
    if given is None or not isinstance(given, str):
        return None if given is None else contract_of(given)
    return read_contract(folder / given)


def with_pinned_model(text: str) -> str:
    """The terms with the layout and digest of their model, if it is one that is loaded from files.

    Silos load nothing of a model before they have approved it, so they read it here.

    Args:
        text: the terms.
    """
    terms = read_terms(text)
    if not is_loaded(terms.recipe.model):
        return text
    shapes = terms.model.layout.shapes.items()
    pins: dict[str, Any] = {"layout": [(name, list(shape)) for name, shape in shapes]}
    if terms.recipe.model.name in PRETRAINED:
        from dpfed.data.pretrained import folder_of

        source = str(terms.recipe.model.options.get("source"))
        pins["model"] = folder_digest(folder_of(source.removeprefix("local-dir:")))
    tree = tomllib.loads(text)
    made = to_toml({**tree, "terms": {**tree["terms"], **pins}})
    read_terms(made)
    return made


def package_digest(name: str) -> str:
    """What is installed of a package: a digest of its files' names and contents."""
    try:
        files = distribution(name).files or []
    except (PackageNotFoundError, ValueError) as error:
        raise RecipeError(f"package {name!r} is not installed; install it first") from error
    code = [path.name for path in files if path.suffix in (".py", ".so")]
    if all(each.startswith("__editable__") for each in code):
        raise RecipeError(
            f"package {name!r} must be installed with its code, got a link to it, or none, so that "
            f"no digest holds it; install it from a wheel"
        )
    found = hashlib.sha256()
    for path in sorted(files, key=str):
        if path.suffix != ".pyc" and path.locate().is_file():  # type: ignore[attr-defined]
            found.update(f"{path}\n".encode() + hashlib.sha256(path.read_binary()).digest())
    return found.hexdigest()
