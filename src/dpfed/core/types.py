# SPDX-License-Identifier: Apache-2.0
"""The nouns of one round, in the order in which data meets them.

    Broadcast --> Rows --> BoundedSum --> Release --> [sum] --> Aggregate --> params, next Broadcast
     server       client: sensitive      | boundary |          server: post-processing only

No logic lives here, and neither torch nor dp_accounting is imported at run time, so that
``import dpfed`` stays fast.

Words that all modules use:

| word            | meaning                                                                       |
|-----------------|-------------------------------------------------------------------------------|
| unit            | whose data is protected: a record, a group (person), or a client              |
| row             | the vector of one unit, before or after clipping                              |
| release         | a noisy sum of clipped rows: it may leave the client, and it costs budget     |
| channel         | a name under which releases are made, accounted for and added up              |
| reply           | what a client sends in a round: one release per channel                       |
| stage           | one exchange of messages between server and clients; a secure sum has several |
| total           | the opened sum of the clients' replies on one channel                         |
| attempt         | one try at a round; a retry draws new noise, at full cost                     |
| nominal         | a client's public size in units: the only size that code may divide by        |
| cohort          | the clients that are asked in a round                                         |
| draw            | a random choice of units or clients (sampling)                                |
| noise share     | the noise that one client adds under distributed trust                        |
| step, grid      | releases are whole multiples of a public step                                 |
| priced          | covered by the accounting                                                     |
| made-up records | random records of the right shape, on which code is tried before data         |
| open population | devices that no list names; they fill the slots of a round as they come       |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, TypeAlias, runtime_checkable

from dpfed.core.checks import refuse

if TYPE_CHECKING:
    import numpy as np
    import torch
    from dp_accounting import DpEvent
    from numpy.typing import NDArray

    from dpfed.core.normals import Draws
    from dpfed.core.participation import Participation  # a relay runs without msgspec

    Vector: TypeAlias = torch.Tensor
    """The model's flat parameters, or anything of their shape (1-D)."""
else:
    Vector = Any

State: TypeAlias = Any
"""A NamedTuple of vectors and numbers, or ``()``."""

UPDATE = "update"
"""The channel that every client algorithm replies on: a (pseudo-)gradient."""

METRICS = "metrics"
"""The channel of federated evaluation: sums of metrics, a channel like any other."""


# ---------------------------------------------------------------------------- what is guaranteed


class _Word(StrEnum):
    """Words that a caller writes; what is none of them is refused without its value."""

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise refuse(cls.__name__.lower(), f"one of {', '.join(cls)}", value, "correct it")


class Unit(_Word):
    """Whose data is protected: what one row stands for.

    >>> [str(unit) for unit in Unit]
    ['record', 'group', 'client']
    """

    RECORD = "record"
    GROUP = "group"
    CLIENT = "client"


class Trust(_Word):
    """What the server is trusted with."""

    LOCAL = "local"
    """The server reads each client's release; each release is private on its own."""
    DISTRIBUTED = "distributed"
    """The server can open only the sum; the noise shares in it add up."""
    CENTRAL = "central"
    """The server sees clipped sums in clear and adds the noise itself."""


class Adjacency(_Word):
    """What "two neighbouring data sets" means. Maps one to one onto dp_accounting's relation."""

    REPLACE_ONE = "replace-one"
    ADD_REMOVE = "add-remove"
    ZERO_OUT = "zero-out"


class Weights(_Word):
    """How clients' sums become one mean.

    >>> [str(each) for each in Weights]
    ['sum', 'average']
    """

    SUM = "sum"
    """The total of all sums, divided by one public number."""
    AVERAGE = "average"
    """The mean over clients of (S_i + E_i) / nominal_i (Nair et al., Algorithm 1, lines 8, 11)."""


class NoiseSource(StrEnum):
    """Where the bits of the noise come from."""

    OPERATING_SYSTEM = "os"
    KEYED = "keyed"


@dataclass(frozen=True)
class Facts:
    """What the plan decides for every mechanism, whatever noise that adds.

    A recipe sets these in fields of its own (``privacy.clip``, ``privacy.unit``, ...), never as
    options of a mechanism.

    Args:
        clip: the Euclidean norm that a unit's row is clipped to, above 0.
        unit: whose data is protected: what one row stands for.
        adjacency: which data sets count as neighbours.
        trust: who adds the noise, and what the server sees.
        replace_bound: how far replacing one unit moves the sum; NaN means 2 * clip, which holds for
            any rows.
        participation: how often a unit takes part, and how far apart; None means in every round.

    >>> Facts(clip=1.5, trust="central").replace_bound
    3.0
    """

    clip: float = 1.0
    unit: Unit = Unit.RECORD
    adjacency: Adjacency = Adjacency.REPLACE_ONE
    trust: Trust = Trust.LOCAL
    replace_bound: float = math.nan
    participation: Participation | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.clip) and self.clip > 0):
            raise refuse("clip", "a finite number above 0", self.clip, "1 is usual")
        for name, words in (("unit", Unit), ("adjacency", Adjacency), ("trust", Trust)):
            if (given := getattr(self, name)) not in list(words):
                raise refuse(name, f"one of {', '.join(words)}", given)
            object.__setattr__(self, name, words(given))
        if math.isnan(self.replace_bound):
            object.__setattr__(self, "replace_bound", 2 * self.clip)


# ----------------------------------------------------------------------- the path, in its order


@dataclass(frozen=True, eq=False)
class Broadcast:
    """What the server publishes at the start of a round. Public.

    >>> import torch
    >>> Broadcast(2, torch.zeros(3), training="ward-7").attempt
    0
    """

    round: int
    params: Vector
    shared: Mapping[str, Vector] = field(default_factory=dict)
    attempt: int = 0
    """How often this round was opened before: a retry draws new noise, at full cost."""
    training: str = "run"
    """The name of the training, stable when it is resumed."""


@dataclass(frozen=True, eq=False, repr=False)
class BoundedSum:
    """A sum of clipped rows. Sensitive.

    One unit adds at most ``bound`` (in the Euclidean norm) to ``vector``; replacing one unit by
    another moves it by at most ``replace_bound``: 2 * bound for ordinary rows, less for rows that
    lie in one cone.
    """

    vector: Vector
    bound: float
    replace_bound: float


@runtime_checkable
class Rows(Protocol):
    """Per-unit vectors that know how to clip and sum themselves. Sensitive."""

    def clipped_sum(self, clip: float) -> BoundedSum: ...


@dataclass(frozen=True, eq=False)
class Release:
    """What may leave a client: integers on a public grid, so that a total is the same in any order.

    The value is ``vector * step``; ``vector`` is int32 where it fits, else int64. ``std`` is the
    known standard deviation of the noise in each coordinate of the value.

    >>> import torch
    >>> release = Release(torch.tensor([3, -1], dtype=torch.int32), std=0.5, step=0.25)
    >>> (release.vector * release.step).tolist()
    [0.75, -0.25]
    """

    vector: Vector
    std: float
    step: float


Reply: TypeAlias = Mapping[str, Release]
"""Channel -> release."""

Nominal: TypeAlias = Sequence[float]
"""The clients' public sizes, by client index."""


@dataclass(frozen=True, eq=False)
class Total:
    """The opened sum of a round on one channel: int64 on the grid of the releases in it."""

    vector: Vector
    clients: tuple[int, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Aggregate:
    """All that server code ever sees of a round.

    >>> import torch
    >>> seen = Aggregate(0, torch.zeros(3), torch.ones(3), std=0.1, clients=5)
    >>> float(seen.mean.sum()), seen.std
    (3.0, 0.1)
    """

    round: int
    params: Vector
    mean: Vector
    std: float
    """The known noise level of each coordinate of ``mean``; NaN if it is not known."""
    clients: float
    """How many are in the mean; if the guarantee counts on a secret draw of clients, how many
    are expected in it: the drawn number is in nothing that server code sees."""
    public: Mapping[str, Vector] = field(default_factory=dict)
    """The means of the other channels."""
    enrolled: int = 0
    """How many clients the plan has."""
    participation_rate: float = 1.0
    """The fraction of them that is expected in a round: the mean divides by it."""
    lead: str = UPDATE
    """The channel whose mean is ``mean``."""
    rounds: int = 0
    """How many rounds the plan has."""
    planned_std: float = math.nan
    """What the plan expects ``std`` to be on the update channel if everyone takes part."""
    noise_stds: Mapping[str, float] = field(default_factory=dict)
    """The known standard deviation of the noise in each channel's mean."""
    clip: float = math.nan
    """The norm bound of a row in ``mean``, in the mean's own unit; NaN if there is none."""


# ------------------------------------------------------------------------------------- plug-ins


class Problem(Protocol):
    """One client's data with the model to be fitted. Sensitive, except ``dimension``.

    >>> import torch
    >>> from dpfed.flower import Linear, Records
    >>> records = Records(torch.eye(2), torch.arange(2))
    >>> problem = Linear("softmax", features=2, outputs=2).problem(records)
    >>> problem.dimension, problem.rows(torch.zeros(6), Unit.RECORD).clipped_sum(1.0).bound
    (6, 1.0)
    """

    @property
    def dimension(self) -> int: ...

    def rows(self, params: Vector, unit: Unit) -> Rows:
        """Per-unit gradients of the loss at ``params``."""

    def gradient(self, params: Vector) -> Vector:
        """The mean gradient over all records, in clear: for local steps at client level."""

    def metric_rows(self, params: Vector, unit: Unit, loss_bound: float) -> Rows:
        """Per-unit (correct, loss clipped to [0, loss_bound] over loss_bound)."""


class Releaser(Protocol):
    """The one door out of a client: rows in, release out, and each call is accounted for.

    ``nominal`` is the number of units that is expected in a release: the public size declared at
    enrolment, times the sampling rate. It is the only size that an algorithm may divide by: the
    true one is data.

    A client algorithm gets one as its last argument:

    >>> def work(broadcast, problem, state, release):
    ...     rows = problem.rows(broadcast.params, release.unit)
    ...     return {UPDATE: release(rows)}, state
    """

    unit: Unit
    nominal: float

    def __call__(self, rows: Rows, channel: str = UPDATE) -> Release: ...


def _share_nothing(_: State) -> Mapping[str, Vector]:
    return {}


def _settle_nothing(_: Aggregate) -> Mapping[str, float]:
    return {}


class ServerOptimizer(NamedTuple):
    """Direction in, direction out; the round applies ``params - direction``. Chainable and pure.

    ``update_`` is the same map and may overwrite the direction and the state that it is given
    (a law test holds it to ``update``); the round uses it where it exists.

    >>> import torch
    >>> halve = ServerOptimizer(lambda params: (), lambda G, state, seen: (G / 2, state))
    >>> seen = Aggregate(0, torch.zeros(2), torch.ones(2), std=0.1, clients=5)
    >>> halve.update(seen.mean, halve.init(seen.params), seen)[0].tolist()
    [0.5, 0.5]
    """

    init: Callable[[Vector], State]
    update: Callable[[Vector, State, Aggregate], tuple[Vector, State]]
    share: Callable[[State], Mapping[str, Vector]] = _share_nothing
    update_: Callable[[Vector, State, Aggregate], tuple[Vector, State]] | None = None
    gain: float | Callable[[State], float] = math.nan
    """The factor by which it scales noise, or a function from its state to that factor; the next
    optimizer in a chain is told."""
    settings: Callable[[Aggregate], Mapping[str, float]] = _settle_nothing
    """What it steps by, by name, as a run prints it. Numbers whose name begins with "eta" are in
    units of its own direction: a constant factor that follows in a chain multiplies them."""


class Phase(NamedTuple):
    """``rounds`` rounds with ``releases`` releases in each; None means all rounds that follow.

    >>> Phase(rounds=None, releases=1)
    Phase(rounds=None, releases=1)
    """

    rounds: int | None
    releases: int


class Channel(NamedTuple):
    """What leaves a client under one name: what the accountant has to account for.

    >>> Channel(phases=(Phase(1, 3), Phase(None, 1))).planned(rounds=4)
    6
    """

    phases: tuple[Phase, ...] = (Phase(None, 1),)
    size: int | None = None
    """The length of its vectors; None means the model's."""
    clip: float | None = None
    """The bound of a row, if it follows from the algorithm; None means the recipe's clip."""
    replace_bound: float | None = None
    """How far replacing one unit moves the sum; None is twice the clip."""
    budget_fraction: float | None = None
    """The fraction of the squared mu that it may use; None is what the others leave."""
    sent: bool = True
    """Whether a reply goes out on it; if not, only the client itself uses the releases."""
    noise: float = 1.0
    """The reply's noise level over that of one release; NaN if it is not known."""
    census: bool = False
    """Whether every unit counts once: none is left out by a draw, no client is weighted."""

    @property
    def derived(self) -> bool:
        """Whether its replies are functions of what was released on the other channels."""
        return not any(phase.releases for phase in self.phases)

    def planned(self, rounds: int, spare: int = 0) -> int:
        """Releases in ``rounds`` rounds and ``spare`` further attempts, each the costliest."""
        each = self.releases_by_round(rounds)
        return sum(each) + spare * max(each, default=0)

    def releases_by_round(self, rounds: int) -> tuple[int, ...]:
        """How many releases are made in each of the first rounds: one pass over the phases."""
        spans = (
            repeat(releases, rounds if many is None else many) for many, releases in self.phases
        )
        return tuple(islice(chain(chain.from_iterable(spans), repeat(0)), max(0, rounds)))

    def releases(self, round: int) -> int:
        """How many releases are made in a round."""
        begun = 0
        for rounds, releases in self.phases:
            if rounds is None or round < begun + rounds:
                return releases
            begun += rounds
        return 0


Channels: TypeAlias = Mapping[str, Channel]


def channels_due(channels: Channels, releases: Callable[[str], int]) -> list[str]:
    """The channels with a reply in a round, the update first; derived ones follow it.

    Args:
        channels: all that a client may reply on.
        releases: how many releases a channel makes in that round, by its name.
    """
    found = [
        name
        for name, channel in channels.items()
        if channel.sent and releases(UPDATE if channel.derived else name)
    ]
    return sorted(found, key=lambda name: name != UPDATE)


Work: TypeAlias = Callable[[Broadcast, Problem, State, Releaser], tuple[Reply, State]]
"""An algorithm's work: from broadcast, data, state and releaser to its reply and new state."""


Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
"""The shapes of a model's tensors, by name."""


class FeatureRange(NamedTuple):
    """What is public of the features: a middle of their ranges, and how far records lie from it.

    Args:
        center: one number for all features, or one for each.
        radius: the distance; None if it is not known.

    >>> FeatureRange(center=0.5, radius=2.0).radius
    2.0
    """

    center: float | tuple[float, ...] = 0.0
    """One number for all features, or one for each."""
    radius: float | None = None
    """None if nothing is known."""


class OwnModel(NamedTuple):
    """The model that an algorithm brings, in the place of the one that a recipe names.

    It is reached only through the algorithm, so that whoever approves the algorithm has approved
    its model: neither a recipe nor a server names it.

    Args:
        owns: whether parameters of these names and shapes are the model's.
        around: makes it from the recipe's model, what is public of the features, and the channels.

    >>> OwnModel(owns=lambda shapes: "center" in shapes, around=lambda model, *_: model).owns({})
    False
    """

    owns: Callable[[Shapes], bool]
    """Whether tensors of these names and shapes are this model's."""
    around: Callable[[Any, Callable[[int], FeatureRange], Collection[str]], Any]
    """(the recipe's model, number of features -> what is public of them, channels) -> the model."""


class PlanNeeds(NamedTuple):
    """What an algorithm needs of its plan; any other plan is refused (training/soundness.py).

    Args:
        rounds: the fewest rounds.
        weights: how clients' sums must be weighted; None is either way.
        independent_noise: whether each release must have noise of its own.
        own_steps: whether it paces its own steps, so that no other optimizer fits.
        reason: why, for the error.

    >>> PlanNeeds(rounds=2, reason="the first round measures").rounds
    2
    """

    rounds: int = 1
    """The fewest rounds."""
    weights: Weights | None = None
    """How clients are weighted; None is any way."""
    independent_noise: bool = False
    """Noise that is not correlated over rounds."""
    own_steps: bool = False
    """No server optimizer: its companion decides about each step."""
    reason: str = ""
    """Why, for the error: "whose first rounds ..."."""


class MadeBy(NamedTuple):
    """The name of a plug-in with all of its options, defaults too.

    >>> str(MadeBy("adaptive", {"rate": 0.2}, MadeBy("gradient")))
    'adaptive(gradient(), rate=0.2)'
    """

    name: str
    options: Mapping[str, Any] = {}
    inner: MadeBy | None = None
    """The plug-in that it is around."""

    def __str__(self) -> str:
        around = [] if self.inner is None else [str(self.inner)]
        options = [f"{key}={value!r}" for key, value in self.options.items()]
        return f"{self.name}({', '.join([*around, *options])})"


class ClientAlgorithm(NamedTuple):
    """What a client does in a round.

    A channel without any releases is derived: its replies are functions of what was released on
    the others in the same round, and cost nothing more.

    >>> def work(broadcast, problem, state, release):
    ...     rows = problem.rows(broadcast.params, release.unit)
    ...     return {UPDATE: release(rows)}, state
    >>> algorithm = ClientAlgorithm(lambda params: (), work, frozenset(Unit), sends_unmodified=True)
    >>> list(algorithm.channels)
    ['update']
    """

    init: Callable[[Vector], State]
    work: Work
    units: frozenset[Unit]
    """The units that it can protect: declared here, tested by laws."""
    channels: Channels = {UPDATE: Channel()}  # noqa: RUF012 (nobody writes to it)
    sends_unmodified: bool = False
    """Each release is sent as it is, once: only then does other clients' noise hide it too."""
    reuses_own_releases: bool = False
    """Later replies depend on its own earlier releases: sound only if each is private alone."""
    linear: bool = False
    """It needs a model of one linear layer."""
    samples: bool = True
    """Its rows may be drawn at random."""
    memory: str = "d"
    """What a client must hold while it works, in terms of the model's size d and its inputs f."""
    companion: ServerOptimizer | None = None
    """The server half of two-sided methods; it runs before the plan's own optimizer."""
    model: OwnModel | None = None
    """The model that it brings; None trains the one that the recipe or the user names."""
    needs: PlanNeeds = PlanNeeds()
    """What it needs of the plan."""
    settle: Callable[[Mapping[str, float]], Mapping[str, Any]] | None = None
    """Options that the plan's noise levels decide, by channel: public, before the first round."""
    made_by: MadeBy | None = None
    """The registry writes it, and both sides compare it; None if it was made by hand."""
    trains: bool = True
    """Whether its update is a step of a model; not, if it answers questions."""


def place_of(code: Any) -> str:
    """Where a function, a class or an instance's class is written, as module.name.

    Args:
        code: the object.

    >>> place_of(place_of)
    'dpfed.core.types.place_of'
    """
    named = code if hasattr(code, "__qualname__") else type(code)
    return f"{named.__module__}.{named.__qualname__}"


class Stream(Protocol):
    """A source of random bits, and of normals made from them: one per release."""

    def normal(self, size: int) -> NDArray[np.float64]:
        """``size`` independent standard normals."""

    def words(self, count: int) -> NDArray[np.uint64]:
        """``count`` 64-bit words."""

    def write(self, out: NDArray[np.uint64]) -> None:
        """Fill ``out`` with words."""

    def draws(self, size: int, level: float, step: float) -> Draws:
        """The same normals times ``level``, as exact as a grid of ``step`` needs."""


class Sampling(Protocol):
    """Which units take part in a release, and how that changes its cost."""

    @property
    def rate(self) -> float:
        """The fraction of all units that is expected to take part."""

    def draw(self, units: int, rng: Stream) -> torch.Tensor | None:
        """Who takes part: a boolean per unit; None means everyone."""

    def amplify(self, event: DpEvent) -> DpEvent:
        """The event under this draw, amplified."""


class Mechanism(Protocol):
    """One frozen value that makes releases and states their cost. Its noise is set in one place.

    ``std`` is the noise of one share: a client's under LOCAL and DISTRIBUTED, the server's under
    CENTRAL. ``shares`` is how many independent shares the adversary cannot subtract.
    """

    @property
    def facts(self) -> Facts:
        """What the plan decided; the next five properties read it."""

    @property
    def clip(self) -> float: ...
    @property
    def unit(self) -> Unit: ...
    @property
    def adjacency(self) -> Adjacency: ...
    @property
    def trust(self) -> Trust: ...
    @property
    def participation(self) -> Participation | None: ...
    @property
    def std(self) -> float: ...
    @property
    def step(self) -> float: ...
    @property
    def sampling(self) -> Sampling: ...
    @property
    def shares(self) -> float: ...
    @property
    def independent(self) -> bool:
        """Whether each release has noise of its own, at the same level."""

    @property
    def exact(self) -> bool:
        """Whether integers and exact draws are used where the accounting assumes real numbers."""

    def init(self, size: int) -> State: ...

    def release(self, rows: Rows, state: State, rng: Stream) -> tuple[Release, State]:
        """On the client: one release of the rows, and the new state."""

    def finish(self, total: Total, state: State, rng: Stream) -> tuple[Release, State]:
        """On the server, after the sum; may change the total in place."""

    def event(self, releases: int, shares: float | None = None) -> DpEvent:
        """The cost of the first ``releases`` releases if ``shares`` shares are unknown."""

    def with_facts(self, **changes: Any) -> Mechanism:
        """The same noise level under other facts, such as ``trust=Trust.CENTRAL``."""

    def with_std(self, std: float) -> Mechanism:
        """The same mechanism at another noise level: what calibration returns."""

    def with_sampling(self, sampling: Sampling) -> Mechanism:
        """The same mechanism on a draw of the units; refuses one that it cannot account for."""
