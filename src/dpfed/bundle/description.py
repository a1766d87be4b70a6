# SPDX-License-Identifier: Apache-2.0
"""model.json as a value: what a model takes, what it is, what it guarantees, how good it is.

Whoever made a bundle is a stranger: what is read here is data, never code, and each size is checked
before anything of that size is made.

| edge case                                            | what happens                        |
|------------------------------------------------------|-------------------------------------|
| more than 8 MiB, not JSON, too deep, an unknown key  | DataError                           |
| another format, or a later version of it             | DataError: which version reads it   |
| sizes that do not fit each other, or beyond the      | DataError, before anything is made  |
| limits below                                         |                                     |
| classes, columns or parameters of the same name      | DataError                           |
| classes or a target that are not the contract's, or  | DataError                           |
| not as many as the linear model tells apart          |                                     |
| a factory that is not one of ``FACTORIES``           | read; its code is the reader's own  |
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dpfed.accounting.guarantee import Guarantee
from dpfed.accounting.stated import read_guarantee, recomputed
from dpfed.core.errors import DataError
from dpfed.core.files import jsonable
from dpfed.core.log import shown
from dpfed.data.contract import Contract

FORMAT, VERSION = "dpfed-model", 1
MAX_BYTES = 1 << 23
"""Of model.json."""
MAX_PARAMETERS = 1 << 31
MAX_FEATURES = 1 << 24
MAX_NAMES = 100_000
"""Columns, classes or parameters at most."""
MAX_WORD = 1000
"""Letters of a name or a word."""

FACTORIES = ("dpfed.data.networks:groupnorm_cnn", "dpfed.data.networks:mlp")
"""Networks that a description may name: this package makes them, from numbers."""


class _Part(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    pass


# -------------------------------------------------------------------------------- what goes in


class ArrayInput(_Part, frozen=True, kw_only=True, tag_field="kind", tag="array"):
    """Numbers of one shape per record."""

    shape: list[int]
    note: str = ""
    """What is to be known of them, in words."""


class ColumnsInput(_Part, frozen=True, kw_only=True, tag_field="kind", tag="columns"):
    """A table's columns of numbers, as they are."""

    columns: list[str]


class SchemaInput(_Part, frozen=True, kw_only=True, tag_field="kind", tag="schema"):
    """A table's columns under public ranges and categories (data.schema)."""

    columns: dict[str, list[int | float | str]]


class ContractInput(_Part, frozen=True, kw_only=True, tag_field="kind", tag="contract"):
    """A table by the contract that all who trained agreed on."""

    contract: Contract


Input = ArrayInput | ColumnsInput | SchemaInput | ContractInput


class Subtract(_Part, frozen=True, kw_only=True, tag_field="step", tag="subtract"):
    """Constants to subtract: one for all features, or one for each."""

    values: list[float]


class Divide(_Part, frozen=True, kw_only=True, tag_field="step", tag="divide"):
    """Constants to divide by."""

    values: list[float]


class Fill(_Part, frozen=True, kw_only=True, tag_field="step", tag="fill"):
    """What a missing value becomes."""

    value: float


class SetNorm(_Part, frozen=True, kw_only=True, tag_field="step", tag="set-norm"):
    """Every row gets this Euclidean norm."""

    norm: float


class LimitNorm(_Part, frozen=True, kw_only=True, tag_field="step", tag="limit-norm"):
    """Longer rows get this Euclidean norm."""

    norm: float


class Convolutions(_Part, frozen=True, kw_only=True, tag_field="step", tag="convolutions"):
    """Random convolutions of a public seed, so many."""

    count: int


class Backbone(_Part, frozen=True, kw_only=True, tag_field="step", tag="backbone"):
    """A frozen public network that turns images into features."""

    name: str
    size: int
    fit: str
    project: int
    weights: str = ""
    """The SHA-256 of its file of weights; "" if a library keeps them."""


Step = Subtract | Divide | Fill | SetNorm | LimitNorm | Convolutions | Backbone

# ------------------------------------------------------------------------------ what computes


class LinearModel(_Part, frozen=True, kw_only=True, tag_field="kind", tag="linear"):
    """One linear layer under a link: softmax, logistic or poisson."""

    link: str
    features: int
    outputs: int
    bias: bool


class StandardisedModel(_Part, frozen=True, kw_only=True, tag_field="kind", tag="standardised"):
    """The same on inputs that it standardises itself."""

    link: str
    features: int
    outputs: int
    bias: bool
    full: bool


class FactoryModel(_Part, frozen=True, kw_only=True, tag_field="kind", tag="network"):
    """A torch module that a function makes from options."""

    factory: str
    options: dict[str, Any]


class PretrainedModel(_Part, frozen=True, kw_only=True, tag_field="kind", tag="pretrained"):
    """A pretrained model of a library, with what was trained of it."""

    library: str
    source: str
    options: dict[str, Any]
    digest: str = ""
    """Of its folder's files; "" if it came by name."""


class OwnModule(_Part, frozen=True, kw_only=True, tag_field="kind", tag="module"):
    """A torch module of somebody's own code."""

    name: str = ""


Architecture = LinearModel | StandardisedModel | FactoryModel | PretrainedModel | OwnModule

SOFTMAX, SIGMOID, EXP, IDENTITY = "softmax", "sigmoid", "exp", "identity"
OUTPUTS = (SOFTMAX, SIGMOID, EXP, IDENTITY)
"""From scores to what is predicted: probabilities of classes; of the second of two; a count."""

# --------------------------------------------------------------------------------- how good


class Metric(_Part, frozen=True, kw_only=True):
    """A figure with its 95 % interval, where one is known."""

    name: str
    value: float
    on: str
    """What it was measured on."""
    round: int
    low: float | None = None
    high: float | None = None
    records: float | None = None
    """How many records it is of."""


class Training(_Part, frozen=True, kw_only=True):
    """How the model came about."""

    method: str = ""
    rounds: int = 0
    """Completed."""
    planned: int = 0
    stopped: str = ""
    """Why it ended early, if it did."""


class Description(_Part, frozen=True, kw_only=True):
    """All that model.json says."""

    format: str = FORMAT
    version: int = VERSION
    name: str
    output: str
    """softmax, sigmoid, exp or identity: from scores to predictions."""
    classes: list[str | int] | None = None
    """In the order of the scores: words, or numbers where nobody declared words."""
    target: str = ""
    """The column of labels, where there was one."""
    positive_above: float | None = None
    """Labels above it are of the second class, where labels were numbers."""
    input: Input
    steps: list[Step] = []
    architecture: Architecture
    parameters: list[tuple[str, list[int]]]
    sha256: str = ""
    """Of model.safetensors."""
    guarantee: dict[str, Any]
    metrics: list[Metric] = []
    training: Training = Training()
    data: str = ""
    """The name of the training data."""
    versions: dict[str, str] = {}
    date: str = ""

    @property
    def stated(self) -> Guarantee:
        """The guarantee as a value: whole, and no epsilon is below the cost of its events."""
        stated = read_guarantee(self.guarantee)
        for claim in stated.claims:
            recomputed(claim, stated.adjacency)
        return stated

    @property
    def size(self) -> int:
        """How many parameters there are."""
        return sum(math.prod(shape) for _, shape in self.parameters)


# ------------------------------------------------------------------------------- to and from text


def encode(description: Description) -> bytes:
    """model.json's content."""
    plain = jsonable(msgspec.to_builtins(description))
    return msgspec.json.format(msgspec.json.encode(plain), indent=2) + b"\n"


def decode(raw: bytes, where: str = "model.json") -> Description:
    """A description, if it is one and its sizes fit each other.

    Args:
        raw: the file's content.
        where: what errors call it.
    """
    if len(raw) > MAX_BYTES:
        raise _unfit(where, f"at most {MAX_BYTES} bytes", len(raw))
    try:
        marked = msgspec.json.decode(raw, type=_Marks)
        if marked.format != FORMAT or marked.version != VERSION:
            got = f"{marked.format} {marked.version}"
            raise DataError(
                f"{where} must be {FORMAT} {VERSION}, got {shown(got)!r}; use the version of dpfed "
                f"that wrote it"
            )
        found = msgspec.json.decode(raw, type=Description)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(
            f"{where} cannot be read ({_short(error)}); get the bundle again, whole"
        ) from error
    check(found)
    return found


class _Marks(msgspec.Struct):
    """What tells a description of another version, which may have other fields."""

    format: str = ""
    version: int = 0


def _short(error: BaseException) -> str:
    return shown(str(error), 200) if not isinstance(error, RecursionError) else "too deep"


def check(description: Description) -> None:
    """Refuse sizes beyond the limits, or that do not fit each other."""
    found = description
    _check_names("parameters", [name for name, _ in found.parameters])
    for name, shape in found.parameters:
        if len(shape) > 8 or any(not 1 <= side <= MAX_PARAMETERS for side in shape):
            raise _unfit(f"parameters: {name[:80]}", "a shape of up to 8 sides", shape[:9])
    if found.size > MAX_PARAMETERS:
        raise _unfit("parameters", f"at most {MAX_PARAMETERS}", found.size)
    if found.output not in OUTPUTS:
        raise _unfit("output", ", ".join(OUTPUTS), found.output[:80])
    read_guarantee(found.guarantee)
    _check_classes(found)
    _check_input(found.input)
    for step in found.steps:
        _check_step(step)
    _check_architecture(found.architecture)
    _check_agreement(found)
    for metric in found.metrics:
        if not all(map(math.isfinite, (metric.value, metric.low or 0, metric.high or 0))):
            raise _unfit(f"metrics: {metric.name[:80]}", "finite", metric.value)


def _unfit(field: str, bound: str, got: object) -> DataError:
    return DataError(f"{field} of a bundle must be {bound}, got {got!r}; get the bundle again")


def _check_names(field: str, names: Sequence[str]) -> None:
    long = [name for name in names if not 0 < len(name) <= MAX_WORD]
    if len(names) > MAX_NAMES or long or len(set(names)) < len(names):
        bound = f"up to {MAX_NAMES} different names of 1 to {MAX_WORD} characters"
        raise _unfit(field, bound, [name[:40] for name in names[:3]])


def _check_classes(found: Description) -> None:
    if found.classes is None:
        if found.output in (SOFTMAX, SIGMOID):
            raise _unfit("classes", f"listed for output {found.output}", None)
        return
    _check_names("classes", [str(each) for each in found.classes])
    many = len(found.classes)
    fits = many == 2 if found.output == SIGMOID else many >= 1
    if found.output not in (SOFTMAX, SIGMOID) or not fits:
        raise _unfit("classes", f"as output {found.output} has", len(found.classes))


def _check_agreement(found: Description) -> None:
    """What is said twice must be the same: a class would get another's name, or nobody's."""
    label = found.input.contract.label if isinstance(found.input, ContractInput) else None
    if label is not None and label.words and list(label.words) != found.classes:
        raise _unfit("classes", f"the contract's, {list(label.words)[:5]}", found.classes)
    if label is not None and label.column != found.target:
        raise _unfit("target", f"the contract's, {label.column!r}", found.target[:80])
    given, classes = found.architecture, found.classes
    if classes is None or not isinstance(given, LinearModel | StandardisedModel):
        return
    scored = 2 if found.output == SIGMOID else given.outputs
    if len(classes) != scored:
        raise _unfit("classes", f"{scored}, as the model tells apart", len(classes))


def _check_input(given: Input) -> None:
    if isinstance(given, ArrayInput):
        sides = len(given.shape) <= 8 and all(1 <= each <= MAX_FEATURES for each in given.shape)
        if not sides or not 1 <= math.prod(given.shape) <= MAX_FEATURES:
            raise _unfit("input.shape", f"up to {MAX_FEATURES} numbers", given.shape[:9])
        return
    if isinstance(given, ContractInput):
        return  # it checks itself
    columns = list(given.columns)
    _check_names("input.columns", columns)
    if not columns:
        raise _unfit("input.columns", "one or more", columns)
    if isinstance(given, SchemaInput):
        from dpfed.data.tables import check_schema

        check_schema(given.columns)
        if sum(map(len, given.columns.values())) > MAX_NAMES:
            raise _unfit("input.columns", f"up to {MAX_NAMES} words", len(columns))


def _check_step(step: Step) -> None:
    fine = True
    match step:
        case Subtract(values=values) | Divide(values=values):
            fine = 0 < len(values) <= MAX_FEATURES and all(map(math.isfinite, values))
            fine = fine and not (isinstance(step, Divide) and 0 in values)
        case Fill():
            fine = math.isfinite(step.value)
        case SetNorm() | LimitNorm():
            fine = 0 < step.norm < math.inf
        case Convolutions():
            fine = 1 <= step.count <= 1 << 16
        case Backbone():
            fine = 1 <= step.size <= 4096 and 0 <= step.project <= 1 << 16
    if not fine:
        raise _unfit("steps", "of finite constants and sizes", type(step).__name__)


def _check_architecture(given: Architecture) -> None:
    if isinstance(given, LinearModel | StandardisedModel):
        links = ("softmax", "logistic", "poisson")
        if given.link not in links:
            raise _unfit("architecture.link", ", ".join(links), given.link[:80])
        sizes = (given.features, given.outputs)
        if not all(1 <= each <= MAX_FEATURES for each in sizes):
            raise _unfit("architecture", f"of 1 to {MAX_FEATURES} features and outputs", sizes)
        if given.link != "softmax" and given.outputs != 1:
            raise _unfit("architecture.outputs", "1", given.outputs)
    elif isinstance(given, FactoryModel | PretrainedModel):
        _check_options(given.options)


def _check_options(options: Mapping[str, Any]) -> None:
    """Options of a function: few numbers, words, and lists of them."""
    if len(msgspec.json.encode(options)) > 1 << 14 or _deepest(options) > 4:
        raise _unfit("architecture.options", "few, and plain", sorted(options)[:3])


def _deepest(tree: Any, depth: int = 0) -> int:
    inside = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, list) else ()
    return max((_deepest(each, depth + 1) for each in inside), default=depth)
