# SPDX-License-Identifier: Apache-2.0
"""Enquiries: which plans have asked, before their first release, whether a budget suffices.

A client says at enrolment whether a whole training fits into what is left of its data's budget. It
says so of its policy and its ledger alone, never of a record; but who asks for one plan after
another, and runs none of them, reads off what is left. So each data set answers a few such plans in
a day, and then none that it has not seen.

    ledger.sqlite.enquiries      beside the ledger: data set -> plan -> when it asked first

Guarantee: after MOST plans that released nothing, another one is refused without a look at the
balance, until a day has passed since the first of them. A plan that has asked before, or has
releases in the ledger, is answered as often as it asks.

| edge case                         | what happens                                        |
|-----------------------------------|-----------------------------------------------------|
| the file is lost or cannot be read| it begins anew: it protects no record               |
| the clock goes back               | times that lie ahead count as now                   |
| two processes at once             | one after the other                                 |
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfed.core.errors import UnsoundPlan
from dpfed.core.files import locked_file, replace_file

MOST = 5
"""Plans that may ask in a day and release nothing."""
DAY = 86_400.0


@dataclass(frozen=True)
class Enquiries:
    """The file beside a ledger."""

    ledger: Path

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.ledger.with_name(f"{self.ledger.name}.enquiries")

    def note(self, dataset: str, plan: str, used: frozenset[str], now: float | None = None) -> None:
        """Count a plan that asks; refuse it where too many have.

        Args:
            dataset: the data that is asked about.
            plan: the plan's fingerprint.
            used: plans with releases on the data: they do not count.
            now: in seconds; None is the clock's.
        """
        if plan in used:
            return
        at = time.time() if now is None else now
        with locked_file(self.path.with_name(f"{self.path.name}.lock")):
            asked = self._read()
            mine = {p: min(t, at) for p, t in asked.get(dataset, {}).items()
                    if p not in used and at - t < DAY}  # fmt: skip
            if plan not in mine and len(mine) >= MOST:
                raise UnsoundPlan(
                    f"plans that ask for {dataset!r} and release nothing must be at most {MOST} in "
                    f"a day, got one more; try again tomorrow"
                )
            mine.setdefault(plan, at)
            replace_file(self.path, json.dumps({**asked, dataset: mine}).encode())

    def _read(self) -> dict[str, dict[str, float]]:
        try:
            found: Any = json.loads(self.path.read_bytes())
            return {str(d): {str(p): float(t) for p, t in ps.items()} for d, ps in found.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}
