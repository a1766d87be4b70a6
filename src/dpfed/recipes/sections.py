# SPDX-License-Identifier: Apache-2.0
"""A recipe's tables as types: what ``dpfed.run`` and ``make_plan`` take, for editors and mypy.

Each is a ``TypedDict``: calling it makes a plain dict, so ``Privacy(epsilon=1.0)`` and
``{"epsilon": 1.0}`` are the same value, and only what is written is set. The tables are checked
when the recipe is read (``schema``), whose fields these are: tests/recipes/test_sections.py checks
that names, types and descriptions match the schema.
"""

from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any, Literal, Protocol, Required, TypeAlias, TypedDict

from dpfed.core.metric import Metric
from dpfed.core.types import (
    Adjacency,
    ClientAlgorithm,
    Mechanism,
    NoiseSource,
    ServerOptimizer,
    Trust,
    Unit,
    Weights,
)
from dpfed.recipes.schema import EvaluationKind, Missing

PlugIn: TypeAlias = str | Mapping[str, Any]
"""A plug-in's name, or a table with its ``name`` and its options."""
ClientPlugIn: TypeAlias = PlugIn | ClientAlgorithm | Callable[..., ClientAlgorithm]
ServerPlugIn: TypeAlias = PlugIn | ServerOptimizer | Callable[..., ServerOptimizer]
MechanismPlugIn: TypeAlias = str | Callable[..., Mechanism]
DataObject: TypeAlias = Sized | tuple[Any, ...]
"""Arrays (x, y), a data frame, a dict of arrays as in an .npz, a data set, a DataLoader."""
MetricPlugIn: TypeAlias = PlugIn | Metric | Callable[..., Metric]


class TrainedModule(Protocol):
    """A ``Network``: any torch module with a loss."""

    @property
    def module(self) -> Any:
        """The torch module."""


class Partition(TypedDict, total=False):
    """How records are divided into clients: a recipe's table ``data.partition``.

    Args:
        name: iid, dirichlet, shards, counts or natural; see docs/data.md.
        clients: How many clients; by default one per group for natural, otherwise 20.
        options: Options of the partition, such as alpha of dirichlet.

    >>> Partition(name="dirichlet", clients=10, options={"alpha": 0.5})
    {'name': 'dirichlet', 'clients': 10, 'options': {'alpha': 0.5}}
    """

    name: str
    clients: int | None
    options: Mapping[str, Any]


class Data(TypedDict, total=False):
    """Where records come from, and what is done to each on its own: a recipe's table ``data``.

    Args:
        source: A path, pattern, list of tables, or folder: see docs/data.md; in Python also
            (x, y).
        missing: drop, or fill. Unset means drop, with a warning.
        schema: For tables: the public range [low, high] or the categories of each feature column.
        contract: For tables: what all silos read theirs by, in the place of schema and of columns'
            names.
        mapping: How this owner's file says what the contract means: rename, factor, offset, words.
        center: Public data whose mean is subtracted from all features.
        fill_missing: A public constant that replaces missing values; implies fill.
        shift: Public constants to subtract from the features: one for all, or one for each.
        scale: Public constants to divide the features by afterwards, never computed from the data.
        convolutions: Number of random convolutions that turn a record [channels, time] into
            features.
        norm: If given, every feature row is scaled to this norm, shorter ones too.
        radius: Scale longer feature rows to this norm.
        low: The public lower end of each feature, or one for all; dp-fedauto starts in the middle.
        high: The public upper end.
        positive_above: Labels above this become class 1, others class 0.
        backbone: A public, frozen network that turns images into features.
        backbone_size: Height and width that images get first.
        backbone_fit: How they get it: pad or resize.
        backbone_project: Keep this many columns, along the leading directions of its own
            classifier. Unset: all.
        backbone_weights: The file with its weights.
        backbone_cache: A folder that keeps features between runs; as private as the images.
        holdout: The part of the records that becomes the test set, the same for every seed.
        validation: The part of the training records that replaces the test set, for tuning.
        by_group: Hold out whole groups (patients, sites).
        options: Column names and reader options: x, y, groups, silo, classes and so on.
        partition: How records are divided into clients.

    >>> Data(source="ward.csv", options={"y": "died"}, holdout=0.2)["holdout"]
    0.2
    """

    source: str | Sequence[str] | DataObject
    missing: Missing | Literal["drop", "fill"] | None
    schema: Mapping[str, Sequence[int | float | str]] | None
    contract: str | Mapping[str, Any] | None
    mapping: Mapping[str, Any] | None
    center: str | None
    fill_missing: float | None
    shift: float | Sequence[float]
    scale: float | Sequence[float]
    convolutions: int
    norm: float | None
    radius: float | None
    low: float | Sequence[float] | None
    high: float | Sequence[float] | None
    positive_above: float | None
    backbone: str | None
    backbone_size: int
    backbone_fit: str
    backbone_project: int | None
    backbone_weights: str | None
    backbone_cache: str | None
    holdout: float
    validation: float
    by_group: bool
    options: Mapping[str, Any]
    partition: Partition | Mapping[str, Any]


class Model(TypedDict, total=False):
    """What is trained: a recipe's table ``model``.

    Args:
        name: softmax, logistic, poisson, network, transformers or timm.
        bias: Whether a linear model has a bias.
        start: What a linear model begins with: zero, or random normal numbers by the seed.
        factory: For a network: package.module:name, a function that returns a torch module; or a
            module.
        chunk: How many records' gradients a network holds in memory: up to the next multiple of 64.
        sampler: How a network's rows are made: see docs/models.md.
        options: Options of the factory or library.
        loss: Unset means cross-entropy for classes, half the squared error for numbers.

    >>> Model(name="network", factory="my_package.models:small")["name"]
    'network'
    """

    name: str
    bias: bool
    start: str
    factory: str | Callable[..., Any] | None
    chunk: int
    sampler: str
    options: Mapping[str, Any]
    loss: PlugIn | None


class AdaptiveClip(TypedDict, total=False):
    """A clip that follows a quantile of the norms: a recipe's table ``privacy.adaptive``.

    Args:
        quantile: The part of the units whose rows should be within the clip.
        rate: How fast the clip moves: by at most a factor of exp(rate) per round.
        share: The share of mu^2 spent on counting.

    >>> Privacy(epsilon=1.0, adaptive=AdaptiveClip(quantile=0.5))["adaptive"]
    {'quantile': 0.5}
    """

    quantile: float
    rate: float
    share: float


class Participation(TypedDict, total=False):
    """How often a client takes part: a recipe's table ``privacy.participation``.

    Args:
        min_separation: Minimum gap between two rounds of the same unit; 1 is every round.
        at_most: In how many rounds of a training a unit takes part at most.

    >>> Participation(min_separation=10, at_most=3)
    {'min_separation': 10, 'at_most': 3}
    """

    min_separation: Required[int]
    at_most: Required[int]


class Privacy(TypedDict, total=False):
    """What is guaranteed: a recipe's table ``privacy``.

    Give ``epsilon``, or ``std_over_clip``, or the mechanism ``"clear"`` for no noise.

    Args:
        mechanism: gaussian, discrete_gaussian (exact integers), tree, banded, blt, or clear for no
            noise.
        epsilon: What all rounds together may cost; determines the noise.
        delta: Delta; should be well below 1 / the number of units.
        clip: The maximum norm of a unit's row; longer rows are scaled down.
        adaptive: If present (even {}), adaptive clipping is on: see docs/methods.md.
        std_over_clip: Noise per round over the clip, instead of epsilon.
        unit: What is protected: record, group (a person) or client.
        adjacency: replace-one, zero-out or add-remove.
        trust: local (noise at each client), distributed (secure sum) or central (at the server).
        weights: How clients' sums are weighted: sum, or average over clients.
        noise: os (the operating system), or keyed by the seed, for repeatable research.
        colluders: How many clients may pool what they know; their noise does not count.
        nominal: The public size of every client; required under add-remove.
        record_rate: The probability with which each unit is drawn for each release (Poisson).
        client_rate: The probability with which each client is drawn in each round (Poisson).
        participation: A client takes part at_most times, min_separation rounds apart:
            docs/scale.md.
        cohort: An open population: this many devices are asked in a round, whoever is there.
        spare_attempts: Extra attempts that the noise is sized for. Without any, a failed attempt
            costs a round.
        options: Options of the mechanism.

    >>> Privacy(epsilon=8, delta=1e-3, unit="client")
    {'epsilon': 8, 'delta': 0.001, 'unit': 'client'}
    """

    mechanism: MechanismPlugIn
    epsilon: float | None
    delta: float
    clip: float
    adaptive: AdaptiveClip | Mapping[str, Any] | None
    std_over_clip: float | None
    unit: Unit | Literal["record", "group", "client"]
    adjacency: Adjacency | Literal["replace-one", "add-remove", "zero-out"]
    trust: Trust | Literal["local", "distributed", "central"]
    weights: Weights | Literal["sum", "average"]
    noise: NoiseSource | Literal["os", "keyed"]
    colluders: int
    nominal: float | None
    record_rate: float
    client_rate: float
    participation: Participation | Mapping[str, Any] | None
    cohort: int | None
    spare_attempts: int | None
    options: Mapping[str, Any]


class Evaluation(TypedDict, total=False):
    """How accuracy is known: a recipe's table ``evaluation``.

    Args:
        kind: test, federated, exact, estimate, truth or off.
        every: How many rounds lie between two measurements.
        share: federated: the metrics channel's share of mu^2.
        loss_bound: federated: the maximum that a record's loss counts for.
        metrics: federated: names, or tables with options; unset means accuracy and loss.
        holdout: exact: the part of each client's records that is held out.

    >>> Evaluation(kind="federated", every=5)
    {'kind': 'federated', 'every': 5}
    """

    kind: EvaluationKind | Literal["test", "federated", "exact", "estimate", "truth", "off"]
    every: int
    share: float
    loss_bound: float
    metrics: Sequence[MetricPlugIn] | None
    holdout: float


class Ledger(TypedDict, total=False):
    """The data's budget, and where costs are recorded: a recipe's table ``ledger``.

    Args:
        dataset: The owner's name for the data.
        epsilon: The budget over all runs; without it, costs are only recorded.
        delta: The budget's delta.
        path: The file; by default $DPFED_LEDGER, or ledger.sqlite beside the clients' state.

    >>> Ledger(dataset="sepsis", epsilon=2.0)
    {'dataset': 'sepsis', 'epsilon': 2.0}
    """

    dataset: Required[str]
    epsilon: float | None
    delta: float
    path: str | None


class Sections(TypedDict, total=False):
    """What a recipe has, as keywords of ``dpfed.run``.

    Args:
        name: The run's name in its results.
        method: A name from 'dpfed methods'; sets client, server and mechanism.
        rounds: The number of rounds; by default 20 for dp-fedauto, 100 for a network.
        data: Where records come from.
        model: What is trained.
        privacy: What is guaranteed.
        client: The client's algorithm and its options.
        sum: How releases are added: plain or secure, with options.
        server: The server's optimizers, one after the other.
        evaluation: How accuracy is known.
        ledger: The data's budget, and where costs are recorded.

    >>> Sections(rounds=10, privacy=Privacy(epsilon=1.0))
    {'rounds': 10, 'privacy': {'epsilon': 1.0}}
    """

    name: str
    method: str | None
    rounds: int
    data: Data | Mapping[str, Any] | DataObject
    model: Model | Mapping[str, Any] | Callable[..., Any] | TrainedModule
    privacy: Privacy | Mapping[str, Any]
    client: ClientPlugIn
    sum: PlugIn
    server: str | ServerOptimizer | Callable[..., ServerOptimizer] | Sequence[ServerPlugIn]
    evaluation: Evaluation | Mapping[str, Any]
    ledger: Ledger | Mapping[str, Any] | None


class PlanSections(Sections, total=False):
    """What a recipe has, as keywords of ``make_plan``; of data, model and ledger nothing is used.

    Args:
        seed: The seed of partition and model, and of keyed noise.
    """

    seed: int
