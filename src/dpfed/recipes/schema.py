# SPDX-License-Identifier: Apache-2.0
"""A recipe: the whole configuration of a run as one value, read from TOML or keywords.

Every field has a default, an unknown one is refused, and ``dump`` writes back what was resolved, so
that a run can be repeated from its own output. Plug-ins are tables with a ``name`` (the file's
name) and the plug-in's own options.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from difflib import get_close_matches
from enum import StrEnum
from numbers import Number
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from dpfed.core.checks import refuse
from dpfed.core.errors import RecipeError
from dpfed.core.metric import Metric
from dpfed.core.participation import Participation
from dpfed.core.registry import keep_object, name_of, suggest
from dpfed.core.types import (
    Adjacency,
    ClientAlgorithm,
    NoiseSource,
    ServerOptimizer,
    Trust,
    Unit,
    Weights,
)
from dpfed.data.contract import Contract, read_contract
from dpfed.data.mapping import FileMapping
from dpfed.data.places import find_file
from dpfed.recipes.methods import (
    DEFAULT,
    METHODS,
    NETWORK,
    is_able,
    method_tables,
    network_tables,
)
from dpfed.recipes.query import with_questions

PlugIn = dict[str, Any]
_MOST_BYTES = 1 << 22  # of a recipe, which may list many clients
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""What a training and a data set may be called in terms."""
PRETRAINED = ("transformers", "timm")
"""Models whose weights and code come from a folder or a library, by ``options.source``."""


class _Section(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    pass


class PartitionRecipe(_Section, frozen=True):
    """How records are divided into clients."""

    name: str = "iid"
    """iid, dirichlet, shards, counts or natural; see docs/data.md."""
    clients: int | None = None
    """How many clients; by default one per group for natural, otherwise 20."""
    options: dict[str, Any] = {}
    """Options of the partition, such as alpha of dirichlet."""


class Missing(StrEnum):
    """What becomes of a record with a missing value. The owner decides; nothing else shows it."""

    DROP = "drop"
    """The record is ignored; the declared size does not change."""
    FILL = "fill"
    """``fill_missing`` stands in the value's place; 0, after shift, scale and schema."""


class DataRecipe(_Section, frozen=True):
    """Where records come from, and what is done to each on its own."""

    source: str | list[str] = "synthetic"
    """A path, pattern, list of tables, or folder: see docs/data.md; in Python also (x, y)."""
    missing: Missing | None = None
    """drop, or fill. Unset means drop, with a warning."""
    schema: dict[str, list[int | float | str]] | None = None
    """For tables: the public range [low, high] or the categories of each feature column."""
    contract: str | Contract | None = None
    """For tables: what all silos read theirs by, in the place of schema and of columns' names."""
    mapping: FileMapping | None = None
    """How this owner's file says what the contract means: rename, factor, offset, words."""
    center: str | None = None
    """Public data whose mean is subtracted from all features."""
    fill_missing: float | None = None
    """A public constant that replaces missing values; implies fill."""
    shift: float | list[float] = []
    """Public constants to subtract from the features: one for all, or one for each."""
    scale: float | list[float] = []
    """Public constants to divide the features by afterwards, never computed from the data."""
    convolutions: int = 0
    """Number of random convolutions that turn a record [channels, time] into features."""
    norm: float | None = None
    """If given, every feature row is scaled to this norm, shorter ones too."""
    radius: float | None = None
    """Scale longer feature rows to this norm."""
    low: float | list[float] | None = None
    """The public lower end of each feature, or one for all; dp-fedauto starts in the middle."""
    high: float | list[float] | None = None
    """The public upper end."""
    positive_above: float | None = None
    """Labels above this become class 1, others class 0."""
    backbone: str | None = None
    """A public, frozen network that turns images into features."""
    backbone_size: int = 32
    """Height and width that images get first."""
    backbone_fit: str = "pad"
    """How they get it: pad or resize."""
    backbone_project: int | None = None
    """Keep this many columns, along the leading directions of its own classifier. Unset: all."""
    backbone_weights: str | None = None
    """The file with its weights."""
    backbone_cache: str | None = None
    """A folder that keeps features between runs; as private as the images."""
    holdout: float = 0.0
    """The part of the records that becomes the test set, the same for every seed."""
    validation: float = 0.0
    """The part of the training records that replaces the test set, for tuning."""
    by_group: bool = False
    """Hold out whole groups (patients, sites)."""
    options: dict[str, Any] = {}
    """Column names and reader options: x, y, groups, silo, classes and so on."""
    partition: PartitionRecipe = PartitionRecipe()
    """How records are divided into clients."""


class ModelRecipe(_Section, frozen=True):
    """What is trained: softmax, logistic, poisson, network, transformers or timm.

    A network has a factory 'package.module:name'; the options of the last two, which are
    pretrained, are source (a folder, or a name on the hub), lora, and the library's own.
    """

    name: str = "softmax"
    """softmax, logistic, poisson, network, transformers or timm."""
    bias: bool = True
    """Whether a linear model has a bias."""
    start: str = "zero"
    """What a linear model begins with: zero, or random normal numbers by the seed."""
    factory: str | None = None
    """For a network: package.module:name, a function that returns a torch module; or a module."""
    chunk: int = 64
    """How many records' gradients a network holds in memory: up to the next multiple of 64."""
    sampler: str = "auto"
    """How a network's rows are made: see docs/models.md."""
    options: dict[str, Any] = {}
    """Options of the factory or library."""
    loss: PlugIn | None = None
    """Unset means cross-entropy for classes, half the squared error for numbers."""


class AdaptiveRecipe(_Section, frozen=True):
    """The clip adapts: privacy.clip is the first one, later ones follow a quantile of the norms.

    For clients that send one clipped sum a round: gradient, and local steps at client level.
    """

    quantile: float = 0.5
    """The part of the units whose rows should be within the clip."""
    rate: float = 0.2
    """How fast the clip moves: by at most a factor of exp(rate) per round."""
    share: float = 0.01
    """The share of mu^2 spent on counting."""


class PrivacyRecipe(_Section, frozen=True):
    """What is guaranteed. Give epsilon, or std_over_clip, or the mechanism 'clear'."""

    mechanism: str = "gaussian"
    """gaussian, discrete_gaussian (exact integers), tree, banded, blt, or clear for no noise."""
    epsilon: float | None = None
    """What all rounds together may cost; determines the noise."""
    delta: float = 1e-5
    """Delta; should be well below 1 / the number of units."""
    clip: float = 1.0
    """The maximum norm of a unit's row; longer rows are scaled down."""
    adaptive: AdaptiveRecipe | None = None
    """If present (even {}), adaptive clipping is on: see docs/methods.md."""
    std_over_clip: float | None = None
    """Noise per round over the clip, instead of epsilon."""
    unit: Unit = Unit.RECORD
    """What is protected: record, group (a person) or client."""
    adjacency: Adjacency = Adjacency.REPLACE_ONE
    """replace-one, zero-out or add-remove."""
    trust: Trust = Trust.LOCAL
    """local (noise at each client), distributed (secure sum) or central (at the server)."""
    weights: Weights = Weights.SUM
    """How clients' sums are weighted: sum, or average over clients."""
    noise: NoiseSource = NoiseSource.OPERATING_SYSTEM
    """os (the operating system), or keyed by the seed, for repeatable research."""
    colluders: int = 1
    """How many clients may pool what they know; their noise does not count."""
    nominal: float | None = None
    """The public size of every client; required under add-remove."""
    record_rate: float = 1.0
    """The probability with which each unit is drawn for each release (Poisson)."""
    client_rate: float = 1.0
    """The probability with which each client is drawn in each round (Poisson)."""
    participation: Participation | None = None
    """A client takes part at_most times, min_separation rounds apart: docs/scale.md."""
    cohort: int | None = None
    """An open population: this many devices are asked in a round, whoever is there."""
    spare_attempts: int | None = None
    """Extra attempts that the noise is sized for. Without any, a failed attempt costs a round."""
    options: dict[str, Any] = {}
    """Options of the mechanism."""


class EvaluationKind(StrEnum):
    """How accuracy is known."""

    TEST = "test"
    """On test records that the server holds."""
    FEDERATED = "federated"
    """On the clients' records, through the metrics channel, which has noise."""
    EXACT = "exact"
    """On records held out at the clients, in clear: not covered by the guarantee."""
    ESTIMATE = "estimate"
    """Squared distance to the estimate from all records, in clear: not covered either."""
    TRUTH = "truth"
    """Squared distance to the parameters that the records were made from."""
    OFF = "off"
    """Not at all."""

    @property
    def in_clear(self) -> bool:
        """Whether only a run in one process can have it: no server holds the records it reads."""
        return self in {self.EXACT, self.ESTIMATE, self.TRUTH}


class EvaluationRecipe(_Section, frozen=True):
    """How accuracy is known: test, federated, exact, estimate, truth or off."""

    kind: EvaluationKind = EvaluationKind.TEST
    """test, federated, exact, estimate, truth or off."""
    every: int = 1
    """How many rounds lie between two measurements."""
    share: float = 0.05
    """federated: the metrics channel's share of mu^2."""
    loss_bound: float = 5.0
    """federated: the maximum that a record's loss counts for."""
    metrics: list[str | PlugIn] | None = None
    """federated: names, or tables with options; unset means accuracy and loss."""
    holdout: float = 0.2
    """exact: the part of each client's records that is held out."""


class LedgerRecipe(_Section, frozen=True):
    """Where what is spent on the data is kept, and how much may be: see docs/ledger.md."""

    dataset: str
    """The owner's name for the data."""
    epsilon: float | None = None
    """The budget over all runs; without it, costs are only recorded."""
    delta: float = 1e-5
    """The budget's delta."""
    path: str | None = None
    """The file; by default $DPFED_LEDGER, or ledger.sqlite beside the clients' state."""


class Recipe(_Section, frozen=True):
    """A run."""

    name: str = "run"
    """The run's name in its results."""
    method: str | None = None
    """A name from 'dpfed methods'; sets client, server and mechanism."""
    seed: int = 0
    """The seed of partition and model, and of keyed noise."""
    rounds: int = 70
    """The number of rounds; by default 20 for dp-fedauto, 100 for a network."""
    data: DataRecipe = DataRecipe()
    """Where records come from."""
    model: ModelRecipe = ModelRecipe()
    """What is trained."""
    privacy: PrivacyRecipe = PrivacyRecipe()
    """What is guaranteed."""
    client: PlugIn = msgspec.field(default_factory=lambda: {"name": "gradient"})
    """The client's algorithm and its options."""
    sum: PlugIn = msgspec.field(default_factory=lambda: {"name": "plain"})
    """How releases are added: plain or secure, with options."""
    server: list[PlugIn] = msgspec.field(default_factory=lambda: [{"name": "scale"}])
    """The server's optimizers, one after the other."""
    evaluation: EvaluationRecipe = EvaluationRecipe()
    """How accuracy is known."""
    ledger: LedgerRecipe | None = None
    """The data's budget, and where costs are recorded."""


def load_recipe(source: str | Path | Mapping[str, Any], overrides: Iterable[str] = ()) -> Recipe:
    """A recipe from a TOML file or a mapping, with ``key=value`` overrides on top."""
    given = source if isinstance(source, Mapping) else read_toml(Path(source))
    tree = with_named_code(with_questions(given))
    # the method first: other overrides may set options of the tables that it stands for
    for override in sorted(overrides, key=lambda text: not _names_method(text)):
        # before another method's tables are filled in, which would stay
        tree = assign(tree if _names_method(override) else _with_method(tree), override)
    return parse(with_default(tree))


def _names_method(override: str) -> bool:
    return override.partition("=")[0].strip() == "method"


def with_default(tree: Mapping[str, Any], method: str = DEFAULT) -> dict[str, Any]:
    """The tables with a method, if they name none and it can do what they ask for.

    A network gets plug-ins of its own (methods.NETWORK). All others are left as they are, and stand
    for DP-FedGD.

    Args:
        tree: the tables of a recipe.
        method: the name of the method.
    """
    if tree.keys() & {"method", "client", "server"}:
        return dict(tree)
    if is_able(METHODS[method], tree):
        return {**tree, "method": method}
    model = tree.get("model")
    network = isinstance(model, Mapping) and model.get("name") == "network"
    return network_tables(tree) if network and is_able(NETWORK, tree) else dict(tree)


def with_named_code(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tables with a name in the place of each plug-in that was given as an object.

    A plug-in that is only a name becomes a table with that name.

    Args:
        tree: a recipe's tables, as a caller wrote them.

    >>> with_named_code({"client": "fedavg", "server": ["sofim", {"name": "scale", "rate": 0.3}]})
    {'client': {'name': 'fedavg'}, 'server': [{'name': 'sofim'}, {'name': 'scale', 'rate': 0.3}]}
    """
    made = dict(tree)
    for key, kind in (("client", "client"), ("sum", "sums")):
        if key in made:
            made[key] = _plug_in_table(kind, made[key])
    for key, tabled in (("data", _data_table), ("model", _model_table), ("server", _server_tables)):
        if key in made:
            made[key] = tabled(made[key])
    privacy, evaluation = made.get("privacy"), made.get("evaluation")
    if isinstance(privacy, Mapping) and callable(privacy.get("mechanism")):
        name = name_of("mechanisms", privacy["mechanism"])
        made["privacy"] = {**privacy, "mechanism": name}
    if isinstance(evaluation, Mapping) and isinstance(evaluation.get("metrics"), list | tuple):
        named = [_plug_in_table("metrics", each) for each in evaluation["metrics"]]
        made["evaluation"] = {**evaluation, "metrics": named}
    _refuse_objects(made)
    return made


def _refuse_objects(tree: Mapping[str, Any]) -> None:
    """Refuse what no recipe is made of, such as an array: the parser would read its attributes."""
    server = tree.get("server")
    many = server if isinstance(server, list | tuple) else ()
    for key, value in (*tree.items(), *((f"server.{at}", one) for at, one in enumerate(many))):
        plain = isinstance(value, Mapping | str | Number | list | tuple | msgspec.Struct | None)
        if not plain and not is_dataclass(value):
            raise refuse(str(key), "a value or a table, as in a recipe", value, "correct it")


def _plug_in_table(kind: str, given: Any) -> Any:
    """A plug-in's table; what cannot be one is left as it is, for the parser to name."""
    if isinstance(given, str):
        return given if kind == "metrics" else {"name": given}
    if isinstance(given, Mapping):
        name = given.get("name")
        return {**given, "name": name_of(kind, name)} if _is_given_code(name) else given
    return {"name": name_of(kind, given)} if _is_given_code(given) else given


def _server_tables(given: Any) -> Any:
    """A list of the server's plug-ins; what cannot be one is left as it is, for the parser."""
    many = isinstance(given, list | tuple) and not _is_given_code(given)  # an object may be a tuple
    each = given if many else [given]
    for one in filter(_is_torch_optimizer, each):
        raise _no_torch_optimizer(one)
    if many or isinstance(given, str) or _is_given_code(given):
        return [_plug_in_table("server", one) for one in each]
    return given


def _data_table(given: Any) -> Any:
    """The table ``data`` with a name in the place of arrays, a data frame or a data set."""
    if isinstance(given, Mapping):
        source = given.get("source", "")
        named = [source] if isinstance(source, str | Path) else source
        if isinstance(named, list | tuple) and all(isinstance(n, str | Path) for n in named):
            return given
        return {**given, "source": keep_object("data", source)}
    if isinstance(given, str | Path | list | int | float | None):
        return given  # for the parser to name
    return {"source": keep_object("data", given)}


def _model_table(given: Any) -> Any:
    """The table ``model`` with a name in the place of a torch module, a Network or a function."""
    if isinstance(given, Mapping):
        factory = given.get("factory")
        if factory is None or isinstance(factory, str):
            return given
        return {"name": "network", **given, "factory": keep_object("model", factory)}
    if hasattr(given, "named_parameters") or hasattr(given, "trainable") or callable(given):
        return {"name": "network", "factory": keep_object("model", given)}
    if given is None or isinstance(given, str | list | int | float):
        return given  # for the parser to name
    way_out = "give a torch module, a Network, or a table with its name"
    raise refuse("model", "a table or a torch module", type(given).__name__, way_out)


def _is_torch_optimizer(given: Any) -> bool:
    """Whether it is one of torch's optimizers, or a class of them; torch is not imported for it."""
    kinds = (given if isinstance(given, type) else type(given)).__mro__
    return any(k.__module__ == "torch.optim.optimizer" and k.__name__ == "Optimizer" for k in kinds)


def _no_torch_optimizer(given: Any) -> RecipeError:
    name = given.__name__ if isinstance(given, type) else type(given).__name__
    own = "adam" if "adam" in name.lower() else "scale"
    rate = "" if isinstance(given, type) else f", got one with rate {given.defaults.get('lr')!r}"
    return RecipeError(
        f"server must be an optimizer of dpfed, which steps by the noisy sum, and torch's {name} "
        f"steps by gradients in clear{rate}; write server=[{{'name': {own!r}, 'rate': 0.1}}]"
    )


def _is_given_code(given: Any) -> bool:
    return callable(given) or isinstance(given, ClientAlgorithm | ServerOptimizer | Metric)


def parse(tree: Mapping[str, Any]) -> Recipe:
    """A checked recipe from plain tables."""
    tree = with_named_code(tree)
    try:
        return msgspec.convert(_with_method(tree), Recipe)
    except msgspec.ValidationError as error:
        raise RecipeError(_explain(str(error), tree)) from error


def _with_method(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The method's tables, under those that the recipe gives itself."""
    if not isinstance(tree.get("method"), str):
        return dict(tree)
    filled = {**method_tables(tree["method"]), **tree}
    mechanism = filled.pop("mechanism")
    privacy = filled.get("privacy", {})
    if isinstance(privacy, Mapping):
        filled["privacy"] = {"mechanism": mechanism, **privacy}
    return filled


def dump_recipe(recipe: Recipe) -> str:
    """The recipe as TOML, with every field that is set."""
    return to_toml(recipe)


def settings(recipe: Recipe) -> dict[str, Any]:
    """Every value by its dotted key, as ``--set`` takes it."""
    return dict(_leaves(msgspec.to_builtins(recipe)))


def _leaves(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict) and node:
        for name, value in node.items():
            yield from _leaves(value, f"{key}.{name}" if key else str(name))
    elif isinstance(node, list) and node and isinstance(node[0], dict):
        for i, value in enumerate(node):
            yield from _leaves(value, f"{key}.{i}")
    elif node is not None:
        yield key, node


def to_toml(value: Any) -> str:
    """A structure of this kind as TOML, which knows no None: such fields are left out."""
    import tomli_w

    return tomli_w.dumps(_without_none(msgspec.to_builtins(value)))


def _without_none(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _without_none(value) for key, value in tree.items() if value is not None}
    return [_without_none(each) for each in tree] if isinstance(tree, list | tuple) else tree


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file; a run is named after it unless it says otherwise."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # or a name with a zero byte
        raise RecipeError(
            f"recipe {str(path)!r} cannot be read ({getattr(error, 'strerror', error)}); give the "
            f"path of a TOML file, such as 'dpfed new NAME --recipe' writes"
        ) from error
    return toml_tables(content, path)


def toml_tables(content: bytes, path: Path) -> dict[str, Any]:
    """The tables that a TOML file's bytes hold, and a name.

    Args:
        content: what was read of the file, which may be longer.
        path: the file's; a run is named after it unless it says otherwise.
    """
    if len(content) > _MOST_BYTES:
        raise RecipeError(
            f"recipe {str(path)!r} must have at most {_MOST_BYTES} bytes, got more; give a recipe"
        )
    try:
        return {"name": path.stem, **tomllib.loads(content.decode())}
    except (ValueError, RecursionError) as error:
        raise RecipeError(
            f"recipe {str(path)!r} is not TOML ({error}); correct that place"
        ) from error


def assign(tree: Mapping[str, Any], override: str) -> dict[str, Any]:
    """The tables with one ``dotted.key=value`` set; list items are numbered, as server.0.rho."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise refuse("--set", "key=value", override, "write it as in privacy.epsilon=1")
    result = msgspec.json.decode(msgspec.json.encode(tree))
    _set(result, key.strip().split("."), _value(text.strip()), key)
    return dict(result)


def _set(node: Any, keys: list[str], value: Any, label: str) -> None:
    first, *rest = keys
    at: Any = int(first) if isinstance(node, list) and first.isdecimal() else first
    try:
        if not rest:
            node[at] = value
            return
        if isinstance(node, dict):
            node.setdefault(at, {})
        _set(node[at], rest, value, label)
    except (IndexError, TypeError) as error:
        raise RecipeError(
            f"--set {label} finds nothing to set at {first!r}; correct the key, where list items "
            f"are numbered as in server.0.rate"
        ) from error


def _value(text: str) -> Any:
    """A TOML value; bare words are strings."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # not TOML, or a number too long to be read
        return text


_TYPES = {
    "float": "a number",
    "int": "a whole number",
    "str": "a text in quotes",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}


def _explain(message: str, tree: Mapping[str, Any]) -> str:
    """The parser's message as a sentence: the value, what it must be, and the way out."""
    what, _, where = message.partition(" - at `")
    field = where.rstrip("`").removeprefix("$").lstrip(".")
    quoted = what.split("`")[1:2] or [""]
    if what.startswith("Object contains unknown field"):
        return f"{field or 'a recipe'} has no field {quoted[0]!r}; {_nearest(field, quoted[0])}"
    if what.startswith("Object missing required field"):
        return f"{field} has no {quoted[0]!r}, and needs one; set {field}.{quoted[0]}"
    if what.startswith("Invalid enum value"):
        table, _, name = field.rpartition(".")
        kind = get_type_hints(_TABLES[table])[name]
        choices = next(each for each in (*get_args(kind), kind) if issubclass(each, StrEnum))
        return _must_be(field, f"one of {', '.join(choices)}", tree)
    if not what.startswith("Expected `"):
        return f"the recipe cannot be read ({message}); correct that place"
    wanted = [_TYPES.get(kind, kind) for kind in quoted[0].split(" | ") if kind != "null"]
    return _must_be(field, " or ".join(wanted), tree)


def _must_be(field: str, bound: str, tree: Mapping[str, Any]) -> str:
    way_out = "correct it, or leave it out for the default"
    value = _at(tree, field)
    if isinstance(value, Number) and field.endswith("]"):  # one of a list: of records, maybe
        return f"{field} must be {bound}, got a {type(value).__name__}; {way_out}"
    return str(refuse(field, bound, value, way_out))


_TABLES = {
    "": Recipe,
    "ledger": LedgerRecipe,
    "evaluation": EvaluationRecipe,
    "model": ModelRecipe,
    "data": DataRecipe,
    "data.partition": PartitionRecipe,
    "data.mapping": FileMapping,
    "privacy": PrivacyRecipe,
    "privacy.adaptive": AdaptiveRecipe,
    "privacy.participation": Participation,
}
"""If two tables have the same field, the later one is suggested: it is likelier to be meant."""

_INSTEAD = {"batch_size": "set record_rate: no accountant here bounds a batch of a fixed size"}


def _nearest(table: str, word: str) -> str:
    """What may be meant by a field that a table does not have: one of its own, or another's."""
    if word in _INSTEAD:
        return _INSTEAD[word]
    own = sorted(_TABLES[table].__struct_fields__)
    others = {
        name: f"{place}.{name}"
        for place, kind in _TABLES.items()
        if place
        for name in kind.__struct_fields__
    }
    near = [word] if word in others else get_close_matches(word, [*own, *others], 1, 0.7)
    if near and near[0] not in own:
        return f"did you mean {others[near[0]]!r}?"
    return suggest(word, own)


def _at(tree: Any, field: str) -> Any:
    """The value at a path as the parser writes it, a.b[0].c; or the nearest value around it."""
    for key in field.replace("[", ".").replace("]", "").split("."):
        inside = tree.get(key) if isinstance(tree, Mapping) else None
        listed = isinstance(tree, list) and key.isdigit() and int(key) < len(tree)
        found = tree[int(key)] if listed else inside
        if found is None:
            break
        tree = found
    return tree


CONTRACT_SAYS = (
    "schema",
    "missing",
    "fill_missing",
    "center",
    "shift",
    "scale",
    "convolutions",
    "norm",
    "radius",
    "positive_above",
    "backbone",
)
"""Keys of the table ``data`` that would change what a contract says."""


def with_contract(recipe: DataRecipe, root: Path | None) -> DataRecipe:
    """The table with its contract in it, if it names a file; what a contract says is said once.

    Args:
        recipe: the recipe's table ``data``.
        root: where a relative path is looked up, after the working directory.
    """
    if recipe.contract is None:
        if recipe.mapping is not None:
            raise RecipeError(
                "data.mapping needs a contract to map to, and has none; name data.contract"
            )
        return recipe
    for key in CONTRACT_SAYS:
        if getattr(recipe, key) != getattr(DataRecipe(), key):
            bound = "left out beside data.contract, which says all of it"
            raise refuse(f"data.{key}", bound, getattr(recipe, key), "leave it out")
    if isinstance(recipe.contract, Contract):
        return recipe
    found = read_contract(find_file(recipe.contract, root))
    return msgspec.structs.replace(recipe, contract=found)
