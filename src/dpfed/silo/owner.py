# SPDX-License-Identifier: Apache-2.0
"""What a silo's owner has: the policy, and the files of the gate's state. No data, and no torch.

The owner's commands need no more than this, and answer at once; the gate's request handler is this
and the data (handler.py).
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dpfed.accounting.ledger.balance import Budget
from dpfed.accounting.ledger.heads import Conflict
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.core.environment import IDENTITY, LEDGER, STATE
from dpfed.core.errors import DataError, UnsoundPlan
from dpfed.recipes.schema import Recipe
from dpfed.silo.approvals import LEDGER_FILE, Approvals
from dpfed.silo.policy import DataPolicy, Mode, Policy, permit
from dpfed.silo.sources import check_accounts
from dpfed.sums.secagg.identity import SigningKey, own_key

if TYPE_CHECKING:
    from dpfed.data.datasets import Records
    from dpfed.recipes.terms import Terms


@dataclass(eq=False)
class Owner:
    """Policy, approvals, ledger and key of a silo; the folder of its state is made if missing."""

    policy: Policy

    def __post_init__(self) -> None:
        gate = self.policy.gate
        self.state = Path(gate.state)
        self.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.environ[STATE] = str(self.state / "trainings")
        os.environ[LEDGER] = str(self.state / LEDGER_FILE)
        os.environ[IDENTITY] = gate.identity
        self.approvals = Approvals(self.state)

    @cached_property
    def key(self) -> SigningKey:
        """What this gate signs with: the roster's key, or one of its own beside the ledger."""
        folder = self.policy.gate.identity
        return own_key(Path(folder)) if folder else own_key(self.state, make=True)

    def ledger(self) -> Ledger:
        """The owner's ledger, with all of its rows to be read."""
        return Ledger(self.state / LEDGER_FILE)

    @property
    def conflict(self) -> Conflict:
        """Heads that others keep of this gate's ledger, and that are not in its chain."""
        return Conflict(self.state / LEDGER_FILE)

    @property
    def has_rules(self) -> bool:
        """Whether any training can be approved by rule."""
        return any(each.approve is Mode.WITHIN_POLICY for each in self.policy.data.values())

    def check_accounts(self) -> dict[str, str]:
        """Refuse a policy that has two budgets for one account, or two accounts for one file.

        So is a budget that is neither above nor below the one that the owner's command declared.

        Returns:
            by real path, and by device and inode: the account of its records.
        """
        names, counted = self.ledger().balance(), self.approvals.sources()
        for name, data in self.policy.data.items():
            names.allowed(data.key(name), data.budget)
        return check_accounts(self.policy, names.base_of, counted)

    def budget(self, name: str) -> Budget:
        """What all trainings on a data set may cost, once a gate has started with this policy.

        Args:
            name: the data set's in the policy.
        """
        data = self.policy.data[name]
        with suppress(DataError):  # then no gate starts with it
            return self.ledger().balance().allowed(data.key(name), data.budget).budget
        return data.budget

    def permitted(self, terms: Terms) -> DataPolicy:
        """The policy of the terms' data set, if it allows them today."""
        data = permit(self.policy, terms, self.approvals.now().date())
        if data.reading and self.approvals.acceptance(data.reading) is None:
            raise UnsoundPlan(
                f"nobody has accepted how data.{terms.pins.dataset} is read by its contract; look "
                f"at it with 'dpfed silo accept'"
            )
        return data


def refuse_shared_state(folder: Path) -> None:
    """Refuse a state folder in which others could put an older ledger, or another key.

    A volume that is root's and of this process's group (Kubernetes' ``fsGroup``) is its own.

    Args:
        folder: gate.state.
    """
    facts = folder.stat()
    volume = facts.st_uid == 0 and facts.st_gid == os.getegid()
    if not (volume or facts.st_uid == os.geteuid()) or facts.st_mode & (0o002 if volume else 0o022):
        raise DataError(
            f"gate.state must be writable by the gate's user alone, got mode "
            f"{facts.st_mode & 0o7777:o} of user {facts.st_uid} at {str(folder)!r}; 'chmod go-w' "
            f"it, and chown it to the gate's user"
        )


def lower_budget(name: str, data: DataPolicy, stands: Budget) -> str:
    """That the owner's command has lowered a budget, in words.

    Args:
        name: the data set's in the policy.
        data: what the policy says of it.
        stands: what it may cost all the same.
    """
    return (
        f"the budget of data.{name} is {stands}, by the owner's last command, and not the "
        f"{data.budget} of silo.toml, which is more; 'dpfed ledger budget' raises it"
    )


def load_records(name: str, data: DataPolicy) -> Records:
    """Load a data set, and refuse one whose records have another shape than the policy says.

    Labels and persons are read cell by cell, by what the policy says: no cell changes how another
    is read.
    """
    from dpfed.recipes.records import load_dataset  # torch

    found = load_dataset(Recipe(data=data.load), None, data.public).train
    shape = list(found.x.shape[1:])
    if shape != data.shape:
        raise DataError(
            f"data.{name}.shape must be {shape}, as its records have it, got {data.shape}; correct "
            f"the policy, or name a table's feature columns in load.options.x or load.schema"
        )
    return found
