# SPDX-License-Identifier: Apache-2.0
"""The secure sum of a simulated run without its masks: the same totals, a third of the time.

In one process nobody is there to hide a term from, and a secure total equals the plain one to the
bit. Masks of 20 clients cost more than their training does, so a study whose noise is keyed by a
seed (research only) leaves them out. Price and words stay those of the sum that it stands for. No
recipe can name this sum, and no engine but the one of this process can run it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dpfed.sums.plain import Plain

if TYPE_CHECKING:
    from dpfed.core.sum_protocol import Sum
    from dpfed.recipes.session import Session


@dataclass(frozen=True, kw_only=True)
class Unmasked(Plain):
    """Adds as ``plain`` does, and is priced as ``stands_for``."""

    stands_for: Sum
    hides_terms: bool = True

    @property
    def against(self) -> str:
        """As the sum that it stands for."""
        return self.stands_for.against

    def least(self, clients: int) -> int:
        """As the sum that it stands for."""
        return self.stands_for.least(clients)

    def min_honest(self, clients: int, colluders: int) -> int:
        """As the sum that it stands for."""
        return self.stands_for.min_honest(clients, colluders)

    def adversary(self, colluders: int) -> str:
        """As the sum that it stands for."""
        return self.stands_for.adversary(colluders)

    def failure(self, clients: int, colluders: int) -> float:
        """As the sum that it stands for."""
        return self.stands_for.failure(clients, colluders)

    def capacity(self) -> float:
        """As the sum that it stands for."""
        return self.stands_for.capacity()


def without_masks(session: Session) -> Session:
    """The run without masks, where there are some and its noise is keyed; else as it is.

    Args:
        session: a run of this process.
    """
    plan = session.plan
    if not plan.sum.hides_terms or session.recipe.privacy.noise != "keyed":
        return session
    return replace(session, plan=replace(plan, sum=Unmasked(stands_for=plan.sum)))
