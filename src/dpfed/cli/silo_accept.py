# SPDX-License-Identifier: Apache-2.0
"""Behind ``dpfed silo accept``: whether a file may be read by its contract, as its officer sees it.

Guarantee: this alone decides by values, before any terms, at its officer's command, once for a
file, contract and mapping. Approvals and replies ask whether it was done, and look at no value for
that. So a server learns at most that a silo takes part, which no guarantee covers.

| what most (over half) of a column is                    | what happens                         |
|---------------------------------------------------------|--------------------------------------|
| as agreed, or missing                                   | accepted; single values are shown    |
| words that the contract does not have, text in the place| accepted if the officer names the    |
| of numbers, labels of no class: they become missing     | column                               |
| numbers beyond the range: they would become others      | never accepted: map or leave it out  |
| not there, by the header                                | never accepted: map or leave it out  |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dpfed.cli.data import contract_findings
from dpfed.core.checks import refuse
from dpfed.core.errors import DataError
from dpfed.data.compare import Finding
from dpfed.data.contract import Contract
from dpfed.silo.policy import DataPolicy

DECISION = (
    "yours: you have looked at the file. That a silo takes part, or does not, is seen by all, and "
    "no guarantee covers it"
)


class Look(NamedTuple):
    """What an officer sees of one data set, and what stands against it."""

    dataset: str
    findings: tuple[Finding, ...]
    named: tuple[str, ...]
    """Columns that the officer named and of which most is not as agreed."""

    @property
    def lines(self) -> list[str]:
        """What differs, for the officer's screen."""
        said = [
            f"{'WRONG    ' if each.blocks else 'look at  '} {each.said}" for each in self.findings
        ]
        return said or ["look at   every value is as agreed"]

    def check(self) -> None:
        """Refuse what cannot be accepted, or was not named."""
        for each in self.findings:
            if not each.blocks:
                continue
            where = f"data.{self.dataset}.load.mapping"
            if each.cut:
                raise DataError(
                    f"{each.said}, or leave a column of features out by {where}.missing; nothing "
                    f"accepts numbers that would be trained on as others"
                )
            if not each.column:
                raise DataError(f"{each.said}; correct {where}, or the file")
            if each.column not in self.named:
                raise DataError(
                    f"{each.said}; or accept that, with --column {each.column!r}, which you have "
                    f"looked at"
                )


def look(dataset: str, data: DataPolicy, named: Sequence[str] = ()) -> Look:
    """Compare a data set's files with its contract.

    Args:
        dataset: its name in the policy.
        data: what the policy says of it.
        named: columns that the officer accepts although most of each is not as agreed.
    """
    contract = data.load.contract
    if isinstance(contract, Contract):
        for name in named:
            if name not in contract.names:
                raise refuse("--column", f"one of {', '.join(contract.names)}", name, "correct it")
    found = tuple(contract_findings(data.load))
    differing = {each.column for each in found if each.blocks}
    return Look(dataset, found, tuple(name for name in named if name in differing))
