# SPDX-License-Identifier: Apache-2.0
"""The nouns of one round, in the order in which data meets them.

    Broadcast --> Rows --> BoundedSum --> Release --> [sum] --> Aggregate --> params, next Broadcast
     server       client: sensitive      | boundary |          server: post-processing only

No logic lives here, and neither torch nor dp_accounting is imported at run time, so that
``import dpfed`` stays fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    import torch
    from dp_accounting import DpEvent

    from dpfed.core.randomness import Stream
    from dpfed.core.sampling import Sampling

    Vector: TypeAlias = torch.Tensor
    """The model's flat parameters, or anything of their shape (1-D)."""
else:
    Vector = Any

State: TypeAlias = Any
"""A NamedTuple of vectors and numbers, or ``()``."""

UPDATE = "update"
"""The channel that every client algorithm answers on: a (pseudo-)gradient."""

METRICS = "metrics"
"""The channel of federated evaluation: sums of metrics, a channel like any other."""


# ---------------------------------------------------------------------------- what is guaranteed


class Unit(StrEnum):
    """Whose data is protected: what one row stands for."""

    RECORD = "record"
    GROUP = "group"
    CLIENT = "client"


class Trust(StrEnum):
    """What the server is trusted with."""

    LOCAL = "local"
    """The server reads each client's release; each release is private on its own."""
    DISTRIBUTED = "distributed"
    """The server can open only the sum; the noise shares in it add up."""
    CENTRAL = "central"
    """The server sees clipped sums in clear and adds the noise itself."""


class Adjacency(StrEnum):
    """What "two neighbouring data sets" means. Maps one to one onto dp_accounting's relation."""

    REPLACE_ONE = "replace-one"
    ADD_REMOVE = "add-remove"
    ZERO_OUT = "zero-out"


class Weights(StrEnum):
    """How clients' sums become one mean."""

    SUM = "sum"
    """The total of all sums, divided by one public number."""
    AVERAGE = "average"
    """The mean over clients of (S_i + E_i) / nominal_i (Nair et al., Algorithm 1, lines 8, 11)."""


class NoiseSource(StrEnum):
    """Where the bits of the noise come from."""

    OPERATING_SYSTEM = "os"
    KEYED = "keyed"


# ----------------------------------------------------------------------- the path, in its order


@dataclass(frozen=True, eq=False)
class Broadcast:
    """What the server publishes at the start of a round. Public."""

    round: int
    params: Vector
    shared: Mapping[str, Vector] = field(default_factory=dict)
    attempt: int = 0
    """How often this round was opened before: a retry draws new noise, at full cost."""
    training: str = "run"
    """The name of the training, stable when it is resumed."""


@dataclass(frozen=True, eq=False)
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
    """All that server code ever sees of a round."""

    round: int
    params: Vector
    mean: Vector
    std: float
    """The known noise level of each coordinate of ``mean``; NaN where it is not known."""
    clients: float
    """How many are in the mean; where the guarantee counts on a secret draw of clients, how many
    are expected in it: the drawn number is in nothing that server code sees."""
    public: Mapping[str, Vector] = field(default_factory=dict)
    """The means of the other channels."""
    enrolled: int = 0
    """How many clients the plan has."""
    rate: float = 1.0
    """The part of them that is expected in a round: the mean divides by it."""
    lead: str = UPDATE
    """The channel whose mean is ``mean``."""
    rounds: int = 0
    """How many rounds the plan has."""
    planned_std: float = math.nan
    """What ``std`` is on the update channel by the plan: if everyone takes part."""
    levels: Mapping[str, float] = field(default_factory=dict)
    """The known noise level of each channel's mean."""
    clip: float = math.nan
    """The norm bound of a row in ``mean``, in the mean's own unit; NaN where there is none."""


# ------------------------------------------------------------------------------------- plug-ins


class Problem(Protocol):
    """One client's data with the model to be fitted. Sensitive, but for ``dimension``."""

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
    """

    unit: Unit
    nominal: float

    def __call__(self, rows: Rows, channel: str = UPDATE) -> Release: ...


def _share_nothing(_: State) -> Mapping[str, Vector]:
    return {}


class ServerOptimizer(NamedTuple):
    """Direction in, direction out; the round applies ``params - direction``. Chainable and pure.

    ``update_`` is the same map and may overwrite the direction and the state that it is given
    (a law test holds it to ``update``); the round uses it where it exists.
    """

    init: Callable[[Vector], State]
    update: Callable[[Vector, State, Aggregate], tuple[Vector, State]]
    share: Callable[[State], Mapping[str, Vector]] = _share_nothing
    update_: Callable[[Vector, State, Aggregate], tuple[Vector, State]] | None = None
    gain: float | Callable[[State], float] = math.nan
    """The factor on the noise, or how it follows from the state: who follows in a chain is told."""


class Phase(NamedTuple):
    """So many rounds, with so many releases in each; ``rounds`` None means all that follow."""

    rounds: int | None
    releases: int


class Channel(NamedTuple):
    """What leaves a client under one name: what the accountant has to account for."""

    phases: tuple[Phase, ...] = (Phase(None, 1),)
    size: int | None = None
    """The length of its vectors; None is the model's."""
    clip: float | None = None
    """The bound of a row, where it follows from the algorithm; None is the recipe's clip."""
    replace_bound: float | None = None
    """How far replacing one unit moves the sum; None is twice the clip."""
    share: float | None = None
    """The part of the squared mu that it may use; None is what the others leave."""
    sent: bool = True
    """Whether a reply goes out on it; if not, the releases are used by the client alone."""
    noise: float = 1.0
    """The reply's noise level over that of one release; NaN where it is not known."""
    census: bool = False
    """Every unit counts once: none is left out by a draw, and no client is weighted."""

    @property
    def derived(self) -> bool:
        """Whether its replies are functions of what was released on the other channels."""
        return not any(phase.releases for phase in self.phases)

    def planned(self, rounds: int, spare: int = 0) -> int:
        """How many releases so many rounds make, and spare attempts, each at the costliest one."""
        each = [self.releases(at) for at in range(rounds)]
        return sum(each) + spare * max(each, default=0)

    def releases(self, round: int) -> int:
        """How many are made in a round."""
        begun = 0
        for rounds, releases in self.phases:
            if rounds is None or round < begun + rounds:
                return releases
            begun += rounds
        return 0


Channels: TypeAlias = Mapping[str, Channel]


def channels_due(channels: Channels, round: int) -> list[str]:
    """The channels with a reply in a round, the update first; derived ones follow it."""
    found = [
        name
        for name, channel in channels.items()
        if channel.sent and (channels[UPDATE] if channel.derived else channel).releases(round)
    ]
    return sorted(found, key=lambda name: name != UPDATE)


Work: TypeAlias = Callable[[Broadcast, Problem, State, Releaser], tuple[Reply, State]]
"""What an algorithm does with the broadcast, its data and its state; it sends what was released."""


class ClientAlgorithm(NamedTuple):
    """What a client does in a round.

    A channel without any releases is derived: its replies are functions of what was released on
    the others in the same round, and cost nothing more.
    """

    init: Callable[[Vector], State]
    work: Work
    units: frozenset[Unit]
    """What it can protect: declared here, proved by a law test."""
    channels: Channels = {UPDATE: Channel()}  # noqa: RUF012 (nobody writes to it)
    sends_unmodified: bool = False
    """Each release is sent as it is, once: only then does other clients' noise hide it too."""
    reuses_own_releases: bool = False
    """Later replies depend on its own earlier releases: sound only where each is private alone."""
    linear: bool = False
    """It needs a model of one linear layer."""
    samples: bool = True
    """Its rows may be drawn at random."""
    memory: str = "d"
    """What a client must hold while it works, in terms of the model's size d and its inputs f."""
    companion: ServerOptimizer | None = None
    """The server half of two-sided methods; it runs before the plan's own optimizer."""
    standardises: bool = False
    """It fits a model that standardises its inputs (vector.Standardiser), paced by the noise."""
    settle: Callable[[Mapping[str, float]], Mapping[str, Any]] | None = None
    """Options that the plan's noise levels decide, by channel: public, before the first round."""
    made_by: str = ""
    """The plug-in's name and options: the registry writes it, and both sides compare it."""


class Mechanism(Protocol):
    """One frozen value that makes releases and states their cost. Its noise is set in one place.

    ``std`` is the noise of one share: a client's under LOCAL and DISTRIBUTED, the server's under
    CENTRAL. ``shares`` is how many independent shares the adversary cannot subtract.
    """

    @property
    def clip(self) -> float: ...
    @property
    def std(self) -> float: ...
    @property
    def step(self) -> float: ...
    @property
    def unit(self) -> Unit: ...
    @property
    def adjacency(self) -> Adjacency: ...
    @property
    def trust(self) -> Trust: ...
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
        """On the client."""

    def finish(self, total: Total, state: State, rng: Stream) -> tuple[Release, State]:
        """On the server, after the sum; may add to the total where it lies."""

    def event(self, releases: int, shares: float | None = None) -> DpEvent:
        """The cost of the first ``releases`` releases if ``shares`` shares are unknown."""

    def with_std(self, std: float) -> Mechanism:
        """The same mechanism at another noise level: what calibration returns."""

    def with_sampling(self, sampling: Sampling) -> Mechanism:
        """The same mechanism on a draw of the units; refuses one that it cannot account for."""
