# SPDX-License-Identifier: Apache-2.0
"""Problems of many small clients as one: linear models, as many records for each client.

Records of all clients lie one after the other, in whole blocks (models.BLOCK): a record's scores
then depend on no other record and not on its place, so they are those that its client gets alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from dpfed.core.stacked import StackedDense, StackedOuter, products, stacked_vectors
from dpfed.core.types import Rows, Unit, Vector
from dpfed.core.vector import one_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dpfed.data.models import LinearProblem


@dataclass(frozen=True, eq=False)
class LinearStack:
    """Clients of one linear model, each with the same number of records."""

    problems: Sequence[LinearProblem]

    @property
    def dimension(self) -> int:
        """The number of parameters."""
        return self.problems[0].dimension

    @property
    def _shape(self) -> tuple[int, int]:
        return len(self.problems), len(self.problems[0].y)

    @cached_property
    def _x(self) -> torch.Tensor:
        return torch.cat([problem.x for problem in self.problems])

    def _residual(self, params: Vector) -> torch.Tensor:
        """[clients, outputs, records]."""
        labels = torch.cat([problem.y for problem in self.problems])
        flat = self.problems[0].residual_of(params, self._x, labels)
        return flat.T.reshape(-1, *self._shape).transpose(0, 1)

    @one_thread()
    def rows(self, params: Vector, unit: Unit) -> Rows:
        """The rows of each client, as its own problem makes them."""
        if unit is Unit.GROUP:
            raise TypeError("groups are not stacked; a client's own problem has its rows")
        residual, feature = self._residual(params), self._x.view(*self._shape, -1)
        bias, (_, records) = self.problems[0].model.bias, self._shape
        if unit is Unit.CLIENT:
            means = products(residual.contiguous(), feature) / max(1, records)
            return StackedDense(stacked_vectors(means, bias))
        norms = torch.cat([problem.feature_norms for problem in self.problems])
        return StackedOuter(residual, feature, norms.view(self._shape), bias)

    def gradient(self, params: Vector) -> Vector:
        """Refused: local steps part the clients' parameters."""
        del params
        raise TypeError("a stack has no common gradient; use each client's own problem")

    def metric_rows(self, params: Vector, unit: Unit, loss_bound: float) -> Rows:
        """Refused: metrics are released client by client."""
        del params, unit, loss_bound
        raise TypeError("a stack has no metrics; use each client's own problem")
