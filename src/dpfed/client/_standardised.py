# SPDX-License-Identifier: Apache-2.0
"""The model that DP-FedAuto brings: a linear one that standardises its inputs itself.

    z = transform (x - center),   v = z / |z|,   scores = weight v + bias bias_input

Standardiser and head are one flat vector and one module with named tensors: center, transform (a
matrix, or one number), bias_input, weight, bias. It takes features as they are, so that a model
that was exported needs nothing else.

A client's side has three kinds of rows, each the mean over the unit's own records:

    mean_rows      u = z / max(1, |z|)           in the unit ball
    moment_rows    v v^T                         positive semidefinite, Frobenius norm at most 1
    rows           residual x [v, bias_input]    the head's gradient, clipped by the mechanism

Guarantee: for any center, transform and bias_input that a server sends, rows keep these bounds and
each depends on its own unit only, to the last bit. The server's numbers meet the records in double
precision, in blocks of models.BLOCK_RECORDS, and norms are added up in a fixed order.

| edge case                                           | what happens                            |
|-----------------------------------------------------|-----------------------------------------|
| z is 0, or has a NaN or an infinity                 | a whole row of zeros, the bias included |
| z is finite and its square is not (1e300, 1e-300)   | scaled by a power of two first          |
| a label that the link does not know                 | zero rows; the local log says how many  |
| a client without records                            | zero rows                               |
| a bias_input that is not finite                     | no unit counts in ``rows``              |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from dpfed.core.checks import refuse
from dpfed.core.clipping import directions_and_norms, rows_in_block
from dpfed.core.matrices import Gram, MatrixRows
from dpfed.core.metric import MetricRow
from dpfed.core.rows import Dense, Outer
from dpfed.core.types import FeatureRange, OwnModel, Problem, Rows, Shapes, Unit, Vector
from dpfed.core.vector import Layout, head_of, one_thread
from dpfed.data.datasets import Records
from dpfed.data.models import (
    BLOCK_RECORDS,
    Linear,
    LinearProblem,
    made_up,
    say_unknown,
    unit_ids,
    whole_blocks,
)

MEAN, SECOND = "mean", "second"
"""The channels of the two statistics."""

BIAS_INPUT = 0.3
"""What a bias is multiplied by at the start; the server half may lower it."""

_MAX_MATRIX_FEATURES = 723
"""By default a transform is a matrix up to 723 features: 2^18 numbers in the largest reply."""


@dataclass(frozen=True)
class Standardiser:
    """The shape of a linear model that standardises its inputs.

    ``full`` is whether its transform is a matrix; if not, it is one number.
    """

    outputs: int
    features: int
    bias: bool = True
    full: bool = True

    @property
    def layout(self) -> Layout:
        """The standardiser's tensors first, then the head's as nn.Linear orders them."""
        side = self.features
        shapes: dict[str, tuple[int, ...]] = {"center": (side,)}
        shapes["transform"] = (side, side) if self.full else (1,)
        if self.bias:
            shapes["bias_input"] = (1,)
        shapes["weight"] = (self.outputs, side)
        shapes |= {"bias": (self.outputs,)} if self.bias else {}
        return Layout(shapes, trained_by="fedauto")

    @property
    def head(self) -> int:
        """How many numbers the head has: the last ones of the flat vector."""
        return self.outputs * (self.features + self.bias)


def standardises(shapes: Shapes) -> bool:
    """Whether tensors of these names are those of a model that standardises its inputs."""
    return {"center", "transform"} <= set(shapes) and len(shapes.get("weight", ())) == 2


def standardiser_of(layout: Layout | None, full: bool = True) -> Standardiser:
    """The standardiser and head that a layout is, or that a linear layer becomes.

    Args:
        layout: of a model that standardises its inputs, or of one linear layer.
        full: whether a linear layer's transform is to be a matrix.
    """
    if layout is None or not standardises(layout.shapes):
        head = head_of(layout, "fedauto")
        return Standardiser(head.outputs, head.inputs - head.bias, head.bias, full)
    outputs, features = layout.shapes["weight"]
    matrix = len(layout.shapes["transform"]) == 2
    return Standardiser(outputs, features, "bias" in layout.shapes, matrix)


@runtime_checkable
class MomentProblem(Problem, Protocol):
    """A problem whose model standardises its inputs by private moments of them."""

    def mean_rows(self, params: Vector, unit: Unit) -> Rows:
        """Per-unit rows in the unit ball."""

    def moment_rows(self, params: Vector, unit: Unit) -> MatrixRows:
        """Per-unit positive semidefinite matrices of Frobenius norm at most 1."""


@dataclass(frozen=True)
class Standardised:
    """A softmax head or a logistic regression on standardised inputs.

    Args:
        link: softmax, logistic or poisson.
        features: how many a record has.
        outputs: how many scores; the classes of softmax.
        bias: whether the head has one.
        full: whether the transform is a matrix, from a private second moment; None decides by the
            number of features.
        center: a public guess of the features' mean, such as the middle of their ranges: one number
            for all, or one for each.
        radius: a public guess of a record's distance from it, such as half the ranges' diagonal;
            None is sqrt(features), for columns of a size of about 1.

    >>> Standardised("softmax", features=4, outputs=3).outputs
    3
    """

    link: str
    features: int
    outputs: int = 1
    bias: bool = True
    full: bool | None = None
    center: float | tuple[float, ...] = 0.0
    radius: float | None = None

    def __post_init__(self) -> None:
        given = self.center if isinstance(self.center, tuple) else (self.center,)
        if len(given) not in (1, self.features) or not all(map(math.isfinite, given)):
            bound = f"finite numbers, 1 or {self.features} of them"
            raise refuse("center", bound, self.center, "give one for each feature")
        if self.radius is not None and not 0 < self.radius < math.inf:
            raise refuse("radius", "a finite number above 0", self.radius)

    @property
    def head(self) -> Linear:
        """The linear model on standardised inputs."""
        return Linear(self.link, self.features, self.outputs, self.bias)

    @property
    def shape(self) -> Standardiser:
        """The sizes of its parts."""
        full = self.features <= _MAX_MATRIX_FEATURES if self.full is None else self.full
        return Standardiser(self.outputs, self.features, self.bias, full)

    @property
    def layout(self) -> Layout:
        """Its named tensors, in the order of the flat vector."""
        return self.shape.layout

    def initial(self, seed: int) -> Vector:
        """The public guesses, and a head of zeros."""
        del seed
        scale = 1 / (math.sqrt(self.features) if self.radius is None else self.radius)
        tensors = {name: torch.zeros(size) for name, size in self.layout.shapes.items()}
        tensors["center"] += torch.tensor(self.center)
        side = self.features if self.shape.full else 1
        tensors["transform"] = (torch.eye(side) * scale).view_as(tensors["transform"])
        if self.bias:
            tensors["bias_input"] += BIAS_INPUT
        return self.layout.flatten(tensors)

    def problem(self, records: Records) -> StandardisedProblem:
        """One client's records with this model."""
        made = self._problem(records)
        say_unknown(made.known)
        return made

    def _problem(self, records: Records) -> StandardisedProblem:
        inner = replace(self.head, bias=False)._problem(records)
        x = records.x.flatten(1)
        return StandardisedProblem(
            model=self, x=x, y=inner.y, groups=records.groups, known=inner.known
        )

    def judge(self, params: Vector, records: Records) -> tuple[torch.Tensor, torch.Tensor]:
        """Per record: right or not, and the loss."""
        return self._problem(records).judge(params)

    def module(self, params: Vector) -> StandardisedModule:
        """The trained model as a torch module that takes features as they are."""
        return StandardisedModule(self.layout.unflatten(params))

    @property
    def needs(self) -> str:
        """What a model that was exported takes and does, in one sentence."""
        bias = " + bias bias_input" if self.bias else ""
        return (
            f"takes {self.features} features as they are; scores = weight v{bias}, where "
            f"v = z / |z| and z = transform (x - center)"
        )


def _around(
    model: Any, public_range: Callable[[int], FeatureRange], channels: Collection[str]
) -> Standardised:
    """The linear model of a recipe with a standardiser before it, at the public guesses."""
    center, radius = public_range(model.features)
    return Standardised(
        link=model.link,
        features=model.features,
        outputs=model.outputs,
        bias=model.bias,
        full=SECOND in channels,
        center=center,
        radius=radius,
    )


STANDARDISED = OwnModel(owns=standardises, around=_around)
"""What generic code asks of it, by ``ClientAlgorithm.model``."""


class StandardisedModule(nn.Module):
    """Standardiser and head as one module, whose state dict is what model.safetensors holds."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            held = tensor.detach().clone()
            if name in {"weight", "bias"}:
                self.register_parameter(name, nn.Parameter(held))
            else:
                self.register_buffer(name, held)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The scores of features [records, features]."""
        tensors = dict(self.state_dict(keep_vars=True))
        z, transform = x.flatten(1) - tensors["center"], tensors["transform"]
        z = z @ transform.T if transform.dim() == 2 else z * transform
        norm = z.norm(dim=1, keepdim=True)
        v = torch.where(norm > 0, z / norm, 0.0)
        scores: torch.Tensor = v @ tensors["weight"].T
        if "bias" not in tensors:
            return scores
        scores += (norm > 0) * tensors["bias_input"] * tensors["bias"]
        return scores


@dataclass(frozen=True, eq=False, repr=False)
class StandardisedProblem:
    """One client's records with the model; standardised inputs are cached until they change."""

    model: Standardised
    x: torch.Tensor
    y: torch.Tensor
    groups: torch.Tensor | None = None
    known: torch.Tensor | None = None
    """Which records have a label that the link knows; None means all of them."""
    _kept: list[tuple[Vector, LinearProblem]] = field(init=False, default_factory=list, repr=False)

    @property
    def dimension(self) -> int:
        """The number of parameters, the standardiser's included."""
        return self.model.layout.size

    def made_up(self) -> StandardisedProblem:
        """The same on made-up records, on which a round is tried before it touches data."""
        x, y, groups = made_up(self.x, self.y, self.groups)
        return StandardisedProblem(self.model, x, y, groups)

    def doubled(self) -> StandardisedProblem:
        """The same in double precision."""
        return replace(self, x=self.x.double())

    # ------------------------------------------------------------------------- standardised inputs

    def _blocks(self, params: Vector) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Unit vectors v = z / |z| and norms |z|, some records at a time, in double precision."""
        parts = self.model.layout.unflatten(params)
        center, transform = parts["center"].double(), parts["transform"].double()
        most = max(1, rows_in_block(self.model.features) // BLOCK_RECORDS) * BLOCK_RECORDS
        for part in torch.split(self.x, most):
            z = whole_blocks(part).double() - center
            z = (transform @ z.T).T if transform.dim() == 2 else z * transform
            yield directions_and_norms(z[: len(part)])

    def _directions(self, params: Vector) -> torch.Tensor:
        """V of each record, in the features' own precision; zero if the label is not known."""
        made = [v.to(self.x.dtype) for v, _ in self._blocks(params)]
        return self._of_known(torch.cat(made) if made else self.x)

    def _of_known(self, rows: torch.Tensor) -> torch.Tensor:
        return rows if self.known is None else torch.where(self.known[:, None], rows, 0.0)

    def _inner(self, params: Vector) -> LinearProblem:
        """The head's problem on standardised inputs, with a further input for the bias."""
        before = params[: -self.model.shape.head]
        if not self._kept or not torch.equal(self._kept[0][0], before):
            self._kept[:] = [(before.clone(), self._standardised(params))]
        return self._kept[0][1]

    def _standardised(self, params: Vector) -> LinearProblem:
        v = self._directions(params)
        if self.model.bias:
            b = self.model.layout.unflatten(params)["bias_input"].to(v.dtype)
            there = (v != 0).any(dim=1, keepdim=True)
            v = torch.cat([v, torch.where(there, b, 0.0)], dim=1)
        return LinearProblem(
            model=self.model.head, x=v.contiguous(), y=self.y, groups=self.groups, known=self.known
        )

    def _head(self, params: Vector) -> Vector:
        return params[-self.model.shape.head :]

    # ---------------------------------------------------------------------------------------- rows

    @one_thread()
    def mean_rows(self, params: Vector, unit: Unit) -> Rows:
        """Z, cut to norm 1: its mean over the unit's own records."""
        blocks = self._blocks(params)
        made = [(v * norms.clamp(max=1.0)[:, None]).to(self.x.dtype) for v, norms in blocks]
        u = self._of_known(torch.cat(made) if made else self.x)
        if unit is Unit.CLIENT:
            return Dense(u.double().sum(dim=0, keepdim=True) / max(1, len(u)))
        return Dense(u, None) if unit is Unit.RECORD else Dense(*self._shared(u, power=1.0))

    @one_thread()
    def moment_rows(self, params: Vector, unit: Unit) -> MatrixRows:
        """V v^T: its mean over the unit's own records."""
        v = self._directions(params)
        if unit is Unit.GROUP:
            return Gram(*self._shared(v, power=0.5))
        return Gram(v, mean=unit is Unit.CLIENT)

    @one_thread()
    def rows(self, params: Vector, unit: Unit) -> Rows:
        """The head's gradients: their mean over the unit's own records."""
        rows = self._inner(params).rows(self._head(params), unit)
        if unit is not Unit.GROUP or not isinstance(rows, Outer):
            return rows
        residual, _ = self._shared(rows.residual, power=1.0)
        return replace(rows, residual=residual)

    def _shared(self, rows: torch.Tensor, power: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows divided by a power of the person's number of records: their sum is then a mean."""
        groups = unit_ids(self.groups, Unit.GROUP, len(rows))
        _, index, counts = torch.unique(groups, return_inverse=True, return_counts=True)
        return rows / counts[index].to(rows.dtype).pow(power)[:, None], groups

    @one_thread()
    def gradient(self, params: Vector) -> Vector:
        """The head's mean gradient over all records, in clear."""
        return self._inner(params).gradient(self._head(params))

    # ------------------------------------------------------------------------------------- judging

    def scores(self, params: Vector) -> torch.Tensor:
        """[records, outputs]: a record's depend on no other's, to the last bit."""
        return self._inner(params).scores(self._head(params))

    @one_thread()
    def judge(self, params: Vector) -> tuple[torch.Tensor, torch.Tensor]:
        """Per record: right or not, and the loss; both 0 if the label is not known."""
        return self._inner(params).judge(self._head(params))

    @one_thread()
    def metric_rows(self, params: Vector, unit: Unit, loss_bound: float) -> Rows:
        """Per unit: right or not, and the clipped loss."""
        return self._inner(params).metric_rows(self._head(params), unit, loss_bound)

    @one_thread()
    def judged(self, params: Vector, unit: Unit, row: MetricRow) -> torch.Tensor:
        """Per unit, the mean of the row over its own records."""
        return self._inner(params).judged(self._head(params), unit, row)
