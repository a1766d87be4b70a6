# SPDX-License-Identifier: Apache-2.0
"""The nouns of one round, in the order in which data meets them.

    Broadcast --> Rows --> BoundedSum --> Release --> [sum] --> Aggregate --> params, next Broadcast
     server       client: sensitive      | boundary |          server: post-processing only

No logic lives here, and neither torch nor dp_accounting is imported at run time, so that
``import dpfed`` stays fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import torch
    from dp_accounting import DpEvent
    from numpy.typing import NDArray

    Vector: TypeAlias = torch.Tensor
    """The model's flat parameters, or anything of their shape (1-D)."""
else:
    Vector = Any

State: TypeAlias = Any
"""A NamedTuple of vectors and numbers, or ``()``."""

UPDATE = "update"
"""The channel that every client algorithm answers on: a (pseudo-)gradient."""

METRICS = "metrics"
"""The channel of federated evaluation: (correct, clipped loss) sums, priced like any other."""


# ------------------------------------------------------------------------------ what is promised


class Unit(StrEnum):
    """Whose presence is hidden: what one row stands for."""

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
    """The mean over clients of (S_i + E_i) / nominal_i (seed 000, Algorithm 1, lines 8 and 11)."""


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


@dataclass(frozen=True, eq=False)
class BoundedSum:
    """A sum of clipped rows. Sensitive.

    One unit adds at most ``bound`` (in the Euclidean norm) to ``vector``; exchanging one unit for
    another moves it by at most ``swap``: 2 * bound for ordinary rows, less where rows share a cone.
    """

    vector: Vector
    bound: float
    swap: float


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
    """The known noise level of each coordinate of ``mean``."""
    clients: int
    public: Mapping[str, Vector] = field(default_factory=dict)
    """The means of the other channels."""


# ------------------------------------------------------------------------------------- plug-ins


class Stream(Protocol):
    """Random bits and what is made of them (see randomness.py)."""

    def normal(self, size: int) -> NDArray[np.float64]: ...


class Problem(Protocol):
    """One client's data with the model to be fitted. Sensitive, but for ``dimension``."""

    @property
    def dimension(self) -> int: ...

    def rows(self, params: Vector, unit: Unit) -> Rows:
        """Per-unit gradients of the loss at ``params``."""

    def metric_rows(self, params: Vector, unit: Unit, loss_bound: float) -> Rows:
        """Per-unit (correct, loss clipped to [0, loss_bound] over loss_bound)."""


class Releaser(Protocol):
    """The one door out of a client: rows in, release out, and each call is booked.

    ``nominal`` is the public size declared at enrolment. It is the only size that an algorithm
    may divide by: the true one is data.
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


class ClientAlgorithm(NamedTuple):
    """What a client does in a round."""

    init: Callable[[Vector], State]
    work: Callable[[Broadcast, Problem, State, Releaser], tuple[Reply, State]]
    units: frozenset[Unit]
    """What it can protect: declared here, proved by a law test."""
    releases: Mapping[str, int] = {UPDATE: 1}
    """How often it calls the releaser in a round, by channel: what the accountant prices."""
    unchanged: bool = False
    """Each release is sent as it is, once: only then does other clients' noise hide it too."""
    companion: ServerOptimizer | None = None
    """The server half of two-sided methods; it runs before the plan's own optimizer."""


class Sampling(Protocol):
    """Which units take part in a release, and what that is worth."""

    def amplify(self, event: DpEvent) -> DpEvent: ...


class Mechanism(Protocol):
    """One frozen value that executes and prices itself. Its noise is written in one place.

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

    def init(self, size: int) -> State: ...

    def release(self, rows: Rows, state: State, rng: Stream) -> tuple[Release, State]:
        """On the client."""

    def finish(self, total: Total, state: State, rng: Stream) -> tuple[Release, State]:
        """On the server, after the sum; may add to the total where it lies."""

    def event(self, releases: int, shares: float | None = None) -> DpEvent:
        """The cost of the first ``releases`` releases, to whom ``shares`` shares are unknown."""

    def with_std(self, std: float) -> Mechanism:
        """The same mechanism at another noise level: what calibration returns."""


# ----------------------------------------------------------------------------------------- sums


@dataclass(frozen=True)
class Requests:
    """A stage is over: what to ask each client for in the next one."""

    stage: str
    messages: Mapping[int, bytes]


@dataclass(frozen=True)
class Aborted:
    """The round cannot be opened."""

    reason: str


Session: TypeAlias = Any
"""What a Sum keeps on the server between messages."""

Secret: TypeAlias = Any
"""What a Sum keeps on the client between stages."""


class Sum(Protocol):
    """Turns releases into a total in one or more exchanges of bytes."""

    @property
    def hides_terms(self) -> bool:
        """Whether the server learns nothing but the total."""

    @property
    def stages(self) -> tuple[str, ...]: ...

    @property
    def release_stage(self) -> str:
        """The stage at which a client hands over its release."""

    def answer(
        self, stage: str, request: bytes, release: Release | None, secret: Secret
    ) -> tuple[bytes, Secret]:
        """On the client; may refuse."""

    def begin(self, cohort: Mapping[int, float], round: int, size: int) -> Session:
        """On the server: who may answer, each with its public weight, and how long a vector is."""

    def add(self, session: Session, client: int, message: bytes) -> Session:
        """One message at a time; O(size) memory in all. Refuses what does not fit the schema."""

    def close(self, session: Session) -> Requests | Total | Aborted:
        """At the stage's deadline."""


Nominal: TypeAlias = Sequence[float]
"""The clients' public sizes, by client index."""
