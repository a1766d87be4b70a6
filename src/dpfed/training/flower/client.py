# SPDX-License-Identifier: Apache-2.0
"""The client's side of a Flower app: a ClientApp, or a mod of the user's own ClientApp.

    app = dpfed.flower.client_app(problem, plan)          # problem(context), plan(context)

    app = ClientApp(mods=[dpfed.flower.private(plan)])    # client level: whatever train does
    @app.train()
    def train(message, context): ...

The client builds the plan by itself, from what its owner agreed to: clip and noise never come from
the server. A message of a server that runs another plan is refused. Whatever goes wrong here leaves
as a class name only; the whole sentence is in the local log.

What is released, counted and stored: responder.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from dpfed.core.environment import IDENTITY, variable
from dpfed.core.errors import DataError
from dpfed.core.log import log
from dpfed.core.types import Problem
from dpfed.sums.secagg.identity import KEY, SIMULATED, SigningKey, own_key
from dpfed.training.account import Account, open_account
from dpfed.training.flower.trained import Train, Trained
from dpfed.training.plan import Plan
from dpfed.training.wire.evidence import Facts
from dpfed.training.wire.responder import respond

MakeProblem = Callable[[Context], Problem]
MakePlan = Callable[[Context], Plan]
MakeAccount = Callable[[Context], "Account | None"]

_NOT_ANSWERED = (
    "the server asked this node for %r, and got an empty reply: what it would return has no "
    "noise; private(plan, evaluate=FUNCTION) runs it here after each round, for this log, and a "
    "metric that the server may know is evaluation.kind = 'federated'"
)
_MAX_CACHED = 64  # entries of a cache: simulated clients share a process
_CACHES: dict[str, dict[Any, Any]] = {}


def client_app(
    problem: MakeProblem, plan: Plan | MakePlan, ledger: str | MakeAccount | None = None
) -> ClientApp:
    """A ClientApp that answers a DPStrategy from this problem, under this plan.

    Args:
        problem: makes the node's data and model from its Context.
        plan: what the node's owner has agreed to, or a function that makes it from the Context.
        ledger: the name of the data, under which releases are entered before they are made, or a
            function that opens the account; $DPFED_DATASET, the owner's name, overrides a name.
            None, if the owner sets none, counts each training by itself, beside its state.

    >>> from dpfed.flower import make_plan
    >>> plan = make_plan(clients=4, rounds=3, privacy={"epsilon": 2.0, "unit": "client"})
    >>> type(client_app(lambda context: my_problem(context), plan)).__name__
    'ClientApp'
    """
    app = ClientApp()
    owner = _Owner(plan, problem, ledger)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(respond(message.content, _AppNode(owner, context)), reply_to=message)

    return app


def private(
    plan: Plan | MakePlan,
    ledger: str | MakeAccount | None = None,
    evaluate: Train | None = None,
) -> Callable[[Message, Context, Train], Message]:
    """A mod: the user's train function runs as it is, and only its private update leaves.

    The update (parameters before minus after) is one row: the guarantee is for each client. Metrics
    and all else that the function returns stay here; so do arrays that the server's strategy keeps
    out of a row (``DPStrategy(keep=...)``), which the function finds again in the next round.

    Give it to the ClientApp itself, so that it stands before each of its functions. An
    ``@app.evaluate`` or ``@app.query`` beside ``@app.train`` would else answer whoever asks, as
    often as they ask, with the exact loss and number of records. Behind it they are not run, since
    no round is counted for them: the reply is empty, and the local log says so.

    Args:
        plan: what the node's owner has agreed to, or a function that makes it from the Context.
        ledger: as for ``client_app``.
        evaluate: the app's own evaluate function: it runs here after each round's training, on the
            model that came in, and its metrics are in this node's log alone.

    Returns:
        a mod, for ``ClientApp(mods=[...])``.

    >>> from dpfed.flower import make_plan
    >>> plan = make_plan(clients=4, rounds=3, privacy={"epsilon": 2.0, "unit": "client"})
    >>> type(ClientApp(mods=[private(plan)])).__name__
    'ClientApp'
    """
    owner = _Owner(plan, None, ledger)

    def mod(message: Message, context: Context, call_next: Train) -> Message:
        asked = message.metadata.message_type
        if asked.partition(".")[0] != MessageType.TRAIN:
            log.warning(_NOT_ANSWERED, asked)
            return Message(RecordDict(), reply_to=message)
        trained = Trained(message, context, call_next, evaluate)
        node = _AppNode(owner, context, trained)
        return Message(respond(message.content, node), reply_to=message)

    return mod


@dataclass(eq=False)
class _Owner:
    """The data and plan that an app gave; problems are built once per process and client."""

    plan: Plan | MakePlan
    problem: MakeProblem | None
    ledger: str | MakeAccount | None = None
    own: dict[str, dict[Any, Any]] = field(default_factory=dict)

    def once(self, make: Any, key: tuple[Any, ...], context: Context) -> Any:
        """The value that ``make`` gives for a key; it is made once per process.

        Simulation pickles the app for each message: a named function's cache outlives it.
        """
        name = f"{getattr(make, '__module__', '')}.{getattr(make, '__qualname__', '<unnamed>')}"
        cache = (self.own if "<" in name else _CACHES).setdefault(name, {})
        if key not in cache:
            while len(cache) >= _MAX_CACHED:
                cache.pop(next(iter(cache)))
            cache[key] = make(context)
        return cache[key]


@dataclass(frozen=True, eq=False)
class _AppNode:
    """The node that a Flower app runs on: what it says may depend only on its Context."""

    owner: _Owner
    context: Context
    trained: Problem | None = None
    """A user's own train function, instead of a problem."""
    gated: bool = False
    zero_rows: bool = False

    @property
    def key(self) -> SigningKey | None:
        """The key in the folder that the node's owner names; of simulated clients none."""
        folder = variable(IDENTITY) or SIMULATED
        known = folder != SIMULATED and (Path(folder) / KEY).exists()
        return own_key(Path(folder)) if known else None

    def facts(self, training: str) -> Facts:
        """Nothing: an app has no terms, and who declared a budget is in its owner's ledger."""
        del training
        return Facts()

    def meet(self, heads: Sequence[bytes]) -> None:
        """Nothing: an app hands out no heads, since whoever ships it could leave that out."""

    def keep(self, heads: Iterable[bytes]) -> list[bytes]:
        """Nothing."""
        del heads
        return []

    def head(self) -> bytes:
        """None."""
        return b""

    @property
    def client(self) -> int:
        if "partition-id" not in self.context.node_config and self.plan("").open:
            return 0  # the device itself; several on one disk need numbers
        return client_index(self.context)

    @property
    def run(self) -> tuple[Any, ...]:
        """What the run is told by."""
        return (self.context.run_id, repr(sorted(self.context.run_config.items())))

    def plan(self, training: str) -> Plan:
        """The plan of a run; it may depend on the run's configuration only."""
        del training
        if isinstance(self.owner.plan, Plan):
            return self.owner.plan
        plan: Plan = self.owner.once(self.owner.plan, self.run, self.context)
        return plan

    def account(self) -> Account | None:
        """Where this node's releases are entered, if its owner or the app names the data."""
        if self.owner.ledger is None or isinstance(self.owner.ledger, str):
            return open_account(self.owner.ledger, environment=True)
        return self.owner.ledger(self.context)

    def problem(self) -> Problem:
        """The node's own data."""
        if self.trained is not None:
            return self.trained
        key = (*self.run, self.client)
        problem: Problem = self.owner.once(self.owner.problem, key, self.context)
        return problem


def client_index(context: Context) -> int:
    """Which client of the plan this node is: its partition-id, set by the node's owner."""
    value = context.node_config.get("partition-id")
    if type(value) is not int:
        raise DataError(
            f"partition-id must be a whole number, got {value!r}; start the node with "
            f"--node-config partition-id=N"
        )
    return value
