# SPDX-License-Identifier: Apache-2.0
"""A sampler that always draws the same batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import dp_accounting as dp
import numpy as np
import torch


@dataclass(frozen=True)
class FixedBatch:
    """What a plug-in of another package might bring: ``size`` of ``of`` units, each time."""

    size: int
    of: int

    @property
    def rate(self) -> float:
        return self.size / self.of

    def draw(self, units: int, rng: Any) -> torch.Tensor:
        order = np.argsort(rng.words(units), kind="stable")
        return torch.from_numpy(np.isin(np.arange(units), order[: self.size]))

    def amplify(self, event: dp.DpEvent) -> dp.DpEvent:
        return dp.SampledWithoutReplacementDpEvent(self.of, self.size, event)
