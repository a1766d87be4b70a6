# SPDX-License-Identifier: Apache-2.0
"""From a plan to the ledger: what a client is about to release in a round, under its data's name.

    ledger = open_account("adult", epsilon=8.0, delta=1e-5)      # from a recipe's [ledger]
    ClientState(client, problem, ledger=ledger)

Guarantee: ``begin`` enters every release that the plan makes in the round, on all channels, before
any noise is drawn; a release stays charged even if the algorithm then skips it. Simulated clients
share one dataset name, each with its own sub-account and budget ("adult/3"): a record is at one
client. That holds while records stay where they are, so runs on one name must partition the data
the same way. A node's owner can give the node's data a name of its own: $DPFED_DATASET.

| edge case                                      | what happens                                    |
|------------------------------------------------|-------------------------------------------------|
| neither a name nor a ledger is given           | no account: nothing is written anywhere         |
| $DPFED_LEDGER without any name                 | DataError: the owner wants a ledger, so name it |
| a name with a '/', or an empty one             | DataError                                       |
| $DPFED_DATASET and a recipe's name             | the owner's is used                             |
| on a node: a recipe names a file or a budget   | ignored with a warning: the owner decides       |
| the budget of one of many clients is spent     | only that client is refused                     |
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from dpfed.accounting.event_tree import gaussian_mu_squared
from dpfed.accounting.events import below_mark, through_zero
from dpfed.accounting.guarantee import strongest
from dpfed.accounting.ledger.balance import Budget, Cost, converted
from dpfed.accounting.ledger.blocks import BEFORE, account_of, by_block
from dpfed.accounting.ledger.conversions import LedgerKey, Server, adversary_of, factor
from dpfed.accounting.ledger.enquiries import Enquiries
from dpfed.accounting.ledger.ledger import Forecast, Ledger
from dpfed.accounting.ledger.request import ChannelRequest, Request
from dpfed.core.dsse import Json
from dpfed.core.environment import DATASET, LEDGER, ledger_path, variable
from dpfed.core.errors import DataError, DpfedError
from dpfed.core.log import log
from dpfed.core.sampling import Everyone
from dpfed.core.types import Broadcast, Trust
from dpfed.training.plan import Plan


class AccountHolder(Protocol):
    """What the ledger needs of a client: its index, and whether its noise is stateful."""

    @property
    def client(self) -> int:
        """Its index in the plan."""

    @property
    def mechanisms(self) -> object:
        """States of its correlated noise; empty if it has made no such noise yet."""


@dataclass(frozen=True, eq=False)
class Account:
    """A ledger, the name of the data, and the budget that a recipe states, if it does."""

    ledger: Ledger
    dataset: str
    divided: bool = True
    """Whether clients divide the name, or it is one client's own."""
    budget: Budget | None = None
    blocks: tuple[str, ...] = ()
    """The blocks of data that arrives whose units are used; empty if the data has no blocks."""

    def key(self, plan: Plan, client: int) -> LedgerKey:
        """The key under which a client's releases are entered."""
        return _key(plan, f"{self.dataset}/{client}" if self.divided else self.dataset)

    def entered(self, plan: Plan, client: int) -> LedgerKey:
        """The key whose rows tell what a client has entered: of blocks the first, as all agree."""
        key = self.key(plan, client)
        return key._replace(dataset=account_of(key.dataset, self.blocks[0])) if self.blocks else key

    def request(self, plan: Plan, broadcast: Broadcast, member: AccountHolder) -> Request:
        """What a client is about to release."""
        at = broadcast.round
        releases = {name: plan.releases(name, at) for name in plan.channels}
        whole = self._whole(plan, broadcast.training, member.client, releases)
        return replace(
            whole,
            round=at,
            attempt=broadcast.attempt,
            fresh=not member.mechanisms,
            drawn=_drawn_round(plan, at),
        )

    def _whole(
        self, plan: Plan, training: str, client: int, releases: Mapping[str, int]
    ) -> Request:
        """A training as the ledger sees it, with ``releases`` per channel in the next round."""
        return Request(
            key=self.key(plan, client),
            training=training,
            client=client,
            round=0,
            attempt=0,
            parts=_parts(plan, releases),
            delta_reserved=plan.delta_reserved,
            plan=plan.fingerprint(),
            whole=plan.whole_event,
            drawn=_drawn_round(plan, 0),
            covered=_covered(plan),
            participation=plan.participation,
        )

    def begin_all(
        self, plan: Plan, broadcast: Broadcast, members: Sequence[AccountHolder]
    ) -> dict[int, tuple[int, ...] | DpfedError]:
        """Enter the round of several clients in one commit: rows, or why not, by client."""
        if self.budget and members:
            self.ledger.agree(self._stated(plan), self.budget)
        asked = [self.request(plan, broadcast, member) for member in members]
        if self.blocks:
            return {each.client: self._begin_in_blocks(each) for each in asked}
        found = self.ledger.begin_all(asked)
        return {member.client: rows for member, rows in zip(members, found, strict=True)}

    def _begin_in_blocks(self, request: Request) -> tuple[int, ...] | DpfedError:
        try:
            return self.ledger.begin_together(by_block(request, self.blocks))
        except DpfedError as error:
            return error

    def refusals(self, plan: Plan, training: str, clients: Iterable[int]) -> dict[int, DpfedError]:
        """Before a training's first order: clients whose budget cannot pay for all of it, and why.

        The reply follows from the owner's budget and ledger, and from no record.

        Args:
            plan: what the training would release.
            training: its name.
            clients: their indices in the plan.
        """
        if self.budget:
            self.ledger.agree(self._stated(plan), self.budget)
        asked = [self._whole(plan, training, client, {}) for client in clients]
        return self.ledger.refusals([part for one in asked for part in by_block(one, self.blocks)])

    def admit(self, plan: Plan, training: str, client: int) -> None:
        """Before a training begins on a node: refuse it as a whole, or accept all of it.

        Where the data is one owner's, what the plan costs is kept free for it from then on.

        Args:
            plan: what the training would release.
            training: its name.
            client: the client's index in the plan.
        """
        key = self.key(plan, client)
        if not self.divided and self.ledger.budget_of(key.dataset):
            self._note_enquiry(self.ledger.balance().resolve(key).dataset, plan.fingerprint())
            whole = self._whole(plan, training, client, {})
            self.ledger.claim_together(by_block(whole, self.blocks))
            return
        for error in self.refusals(plan, training, [client]).values():
            raise error

    def forecast(
        self, plan: Plan, training: str, client: int, target: LedgerKey, budget: Budget
    ) -> dict[str, Forecast]:
        """The data's cost in a budget's terms, now and after a training; as an enrolment decides.

        By block; "" where the data has none.

        Args:
            plan: what the training would release.
            training: its name; what it has released before counts once.
            client: the client's index in the plan.
            target: what the budget is stated for.
            budget: epsilon, delta and whether a replaced record stays with its person.
        """
        return {
            one.block: self.ledger.forecast(one, target._replace(dataset=one.key.dataset), budget)
            for one in by_block(self._whole(plan, training, client, {}), self.blocks)
        }

    def leave(self, training: str) -> None:
        """The training has ended: what is left of its claim is free for others."""
        if not self.divided:
            for block in self.blocks or (BEFORE,):
                self.ledger.waive(account_of(self.dataset, block), training)

    def close(self, plan: Plan, training: str, client: int, model: str) -> None:
        """From now on the training answers no order: one more row, on the disk.

        Args:
            plan: the training's plan.
            training: its name.
            client: the client's index.
            model: the digest of the model that its statement is about.
        """
        dataset = self._run(plan, training, client)[0]
        row = {"dataset": dataset, "training": training, "client": client, "model": model}
        self.ledger.change(lambda _, append: append(kind="closed", **row))

    def closed_for(self, plan: Plan, training: str, client: int) -> str | None:
        """The model that a closing statement was about; None if the training is open.

        Args:
            plan: the training's plan.
            training: its name.
            client: the client's index.
        """
        return self.ledger.balance().closed.get(self._run(plan, training, client))

    def _run(self, plan: Plan, training: str, client: int) -> tuple[str, str, int]:
        dataset = self.entered(plan, client).dataset
        return self.ledger.balance().base_of(dataset), training, client

    def attended(self, plan: Plan, training: str, client: int) -> tuple[int, ...]:
        """The rounds of a training in a client's ledger, whether or not the reply was sent.

        Args:
            plan: the training's plan.
            training: its name.
            client: the client's index.
        """
        run = self._run(plan, training, client)
        return tuple(self.ledger.balance().attended.get(run, {}).values())

    def _note_enquiry(self, dataset: str, plan: str) -> None:
        known = self.ledger.balance().plans.items()
        used = frozenset(each for (name, *_), each in known if name.partition("/")[0] == dataset)
        Enquiries(self.ledger.path).note(dataset, plan, used)

    def _stated(self, plan: Plan) -> LedgerKey:
        """What a recipe's budget is stated for: the plan's own guarantee, against its server."""
        server = Server.OUTSIDERS if plan.update.trust is Trust.CENTRAL else Server.CURIOUS
        return _key(plan, self.dataset)._replace(adversary=server, colluders=plan.colluders)

    def begin(self, plan: Plan, broadcast: Broadcast, member: AccountHolder) -> tuple[int, ...]:
        """Enter the round of one client, or refuse it."""
        found = self.begin_all(plan, broadcast, [member])[member.client]
        if isinstance(found, DpfedError):
            raise found
        return found

    def confirm(self, rows: Iterable[int]) -> None:
        """Confirm that the releases of these rows were made."""
        self.ledger.confirm(rows)


def _key(plan: Plan, dataset: str) -> LedgerKey:
    mechanism = plan.update
    server, colluders = adversary_of(mechanism.trust, plan.sum.against, plan.colluders)
    return LedgerKey(
        dataset=dataset,
        unit=mechanism.unit,
        adjacency=mechanism.adjacency,
        adversary=server,
        colluders=colluders,
    )


def _parts(plan: Plan, releases: Mapping[str, int]) -> dict[str, ChannelRequest]:
    """The plan's channels, each with its releases in this round and in the whole plan."""
    return {
        name: ChannelRequest(mechanism, releases.get(name, 0), plan.planned(name))
        for name, mechanism in plan.channels.items()
    }


def whole_cost(plan: Plan, target: LedgerKey, budget: Budget) -> float:
    """What all of a plan costs in the terms of a budget, as epsilon: infinite without a bound.

    A plan states its own epsilon at its own delta, unit and adjacency: not what its owner counts.

    Args:
        plan: what is to be released.
        target: what the budget is stated for.
        budget: it gives the delta.
    """
    key, lost = _key(plan, target.dataset), plan.delta_reserved
    mu_squared = gaussian_mu_squared(plan.whole_event, key.adjacency)
    body = {"mu_squared": mu_squared, "event": plan.whole_event, "lost": lost}
    cost = Cost()
    add = cost.add if mu_squared is not None else cost.add_whole
    add(key, {**body, "training": "", "client": 0})
    times = factor(key, target, covered=_covered(plan), keeps_person=budget.keeps_person)
    return converted(cost, times, key, target).epsilon(budget.delta, target.adjacency)


def _drawn_round(plan: Plan, round: int) -> Json | None:
    """The event of a round for which clients are drawn: all of its channels together."""
    if isinstance(plan.amplification, Everyone):
        return None
    made = plan.released({plan.round_kind(round): 1})
    tree = made.event(strongest(made))
    inner = below_mark(tree)
    (event,) = (tree if inner is None else inner)["events"]
    return dict(event) if inner is None else through_zero(event)


def _covered(plan: Plan) -> bool:
    """Whether a row's norm is at most the distance that is accounted for a replaced unit."""
    bounds = {name: plan.declared[name].replace_bound for name in plan.channels}
    return all(bound is None or bound >= plan.channels[name].clip for name, bound in bounds.items())


def open_account(
    dataset: str | None,
    *,
    path: str | Path | None = None,
    epsilon: float | None = None,
    delta: float = 1e-5,
    environment: bool = False,
) -> Account | None:
    """The account of a data set in the ledger; None if neither a name nor a ledger is given.

    Args:
        dataset: the recipe's name for the data, without a '/'; None keeps no account.
        path: the ledger's file; None is $DPFED_LEDGER, or ledger.sqlite beside clients' states.
        epsilon: the budget of each client's data over all runs, above 0; None sets no budget.
        delta: the delta of that budget; not used without epsilon.
        environment: on a node, where the recipe is not the owner's: $DPFED_DATASET overrides
            ``dataset``, and with it the account is one client's own; path and budget are the
            owner's alone ($DPFED_LEDGER, dpfed ledger budget), and the recipe's are not used.
    """
    own = variable(DATASET) if environment else None
    name = own or dataset
    if name is None:
        if environment and variable(LEDGER):
            raise DataError(f"${LEDGER} is set, but the data has no name; set ${DATASET} too")
        return None
    if not name or "/" in name:
        label = f"${DATASET}" if own else "the data's name (ledger.dataset)"
        raise DataError(
            f"{label} must be one or more characters without a '/', got {name!r}; use one such as "
            f"'adult'"
        )
    if environment and (path is not None or epsilon is not None):
        log.warning("the recipe's ledger.path and budget are not used: a node's owner sets them")
        path = epsilon = None
    where = ledger_path() if path is None else Path(path).expanduser()
    budget = None if epsilon is None else Budget(epsilon, delta)
    return Account(_opened(where.resolve(), os.getpid()), name, own is None, budget)


@lru_cache(maxsize=8)
def _opened(path: Path, process: int) -> Ledger:
    """One ledger per process and file, so that its rows are read once."""
    del process
    return Ledger(path)
