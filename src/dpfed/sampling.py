# SPDX-License-Identifier: Apache-2.0
"""Which units take part in a release: the draw and its price live together.

Poisson and fixed-size sampling are not here yet, and a plan cannot ask for them: what cannot be
priced is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclass(frozen=True)
class Everyone:
    """Every unit takes part in every release: nothing is amplified."""

    def amplify(self, event: DpEvent) -> DpEvent:
        """The event, unchanged."""
        return event


EVERYONE = Everyone()
