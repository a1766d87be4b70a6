# SPDX-License-Identifier: Apache-2.0
"""Problems: a model with its loss, and one client's records under it.

A ``Model`` is public: its layout, its start, how it is judged. ``model.problem(records)`` is one
client's private side: rows of gradients at record, group or client level.

    softmax    scores X W^T + b, cross-entropy                residual  softmax(s) - onehot(y)
    logistic   one score, log(1 + e^s) - y s, y in {0, 1}     residual  sigmoid(s) - y
    poisson    one score, e^s - y s                           residual  e^s - y
    network    any torch module with a loss per batch         rows by torch.func or Opacus

The first three are one linear layer: their rows are `Outer`, and no per-record gradient is built.

Guarantee: no value of a record makes a problem raise; a record that cannot be used adds nothing,
and changes no other record's row. What works for no record is refused when a problem is made.

| edge case                                           | what happens                         |
|-----------------------------------------------------|--------------------------------------|
| a label outside of the classes, a target that the   | zero row, zero metric; the local log |
| link cannot have (a negative count, a NaN)          | says how many                        |
| a feature that is not finite                        | the unit is ignored                  |
| labels of another type, records of another width    | DataError                            |
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import torch
from torch.nn import functional

from dpfed.core.checks import refuse
from dpfed.core.clipping import row_norms
from dpfed.core.errors import DataError
from dpfed.core.log import log
from dpfed.core.matrices import Gram, Hessians, MatrixRows
from dpfed.core.metric import MetricRow, ScoredRecords
from dpfed.core.rows import Dense, Outer, group_sums, linear_vector
from dpfed.core.types import Problem, Rows, Unit, Vector
from dpfed.core.vector import Layout, one_thread
from dpfed.data._checks import require_groups
from dpfed.data.datasets import Records


@dataclass(frozen=True)
class Evaluation:
    """How good a model is on some records. Accuracy is NaN if labels are not classes."""

    accuracy: float
    loss: float
    records: int
    loss_std: float = 0.0
    """How far the records' losses spread around their mean."""


class Model(Protocol):
    """A model without data: public."""

    @property
    def layout(self) -> Layout: ...

    def initial(self, seed: int) -> Vector:
        """The parameters that training starts from: public, as they follow from the seed only."""

    def problem(self, records: Records) -> Problem:
        """The model with one client's records. Sensitive."""

    def judge(self, params: Vector, records: Records) -> tuple[torch.Tensor, torch.Tensor]:
        """Per record: whether the prediction is right (1.0 or 0.0), and the loss."""


def evaluate(model: Model, params: Vector, records: Records) -> Evaluation:
    """Accuracy and mean loss on records that may be looked at; unreadable ones are left out.

    Args:
        model: what is evaluated.
        params: its flat parameters.
        records: public or held-out records, one or more that can be read: the result has no noise.

    Returns:
        accuracy, loss and the number of records.

    >>> model = Linear("softmax", features=2, outputs=2)
    >>> records = Records(torch.eye(2), torch.tensor([0, 1]))
    >>> evaluate(model, torch.zeros(model.layout.size), records).records
    2
    """
    if not len(records):
        raise DataError("records must be at least 1 to evaluate a model on, got 0; give some")
    if not isinstance(model, _ReadReporter):
        correct, losses = model.judge(params, records)
        return _evaluation(correct, losses)
    correct, losses, read = model.judge_read(params, records)
    known = read > 0
    if not bool(known.any()):
        raise DataError(
            f"at least 1 of {len(records)} records must be readable to evaluate a model on them, "
            f"got none; see the log, or read the first one by hand"
        )
    if not bool(known.all()):
        log.warning("evaluated on %d of %d records: see above", int(known.sum()), len(records))
        correct, losses = correct[known], losses[known]
    return _evaluation(correct, losses)


def _evaluation(correct: torch.Tensor, losses: torch.Tensor) -> Evaluation:
    spread = float(losses.double().std(correction=min(1, len(losses) - 1)))
    return Evaluation(float(correct.mean()), float(losses.mean()), len(correct), spread)


@runtime_checkable
class _ReadReporter(Protocol):
    """A model that knows which records it could read: one that reads them by index."""

    def judge_read(
        self, params: Vector, records: Any
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]: ...


def metric_rows(
    correct: torch.Tensor,
    losses: torch.Tensor,
    groups: torch.Tensor | None,
    unit: Unit,
    bound: float,
) -> Rows:
    """Per unit (right or not, loss in [0, bound] over bound): a point of the unit square.

    Args:
        correct: per record, 1.0 if the prediction is right and 0.0 if it is not.
        losses: per record.
        groups: the records' group ids; needed if a unit is a group.
        unit: what one row stands for; of several records it has the mean.
        bound: losses are clipped to [0, bound], above 0.
    """
    table = torch.stack([correct, losses.clamp(0, bound) / bound], dim=1)
    return Dense(unit_means(table, groups, unit))


def unit_means(table: torch.Tensor, groups: torch.Tensor | None, unit: Unit) -> torch.Tensor:
    """Per unit the mean over its own records.

    Args:
        table: one row per record.
        groups: the records' group ids; needed if a unit is a group.
        unit: what one row stands for.
    """
    if unit is Unit.RECORD:
        return table
    index = unit_ids(groups, unit, len(table))
    _, counts = torch.unique(index, return_counts=True)
    means: torch.Tensor = group_sums(table, index) / counts[:, None]
    return means


def unit_ids(groups: torch.Tensor | None, unit: Unit, records: int) -> torch.Tensor:
    """Which unit each record belongs to, by its number.

    Args:
        groups: the records' group ids; needed if a unit is a group.
        unit: group or client; a client is one unit, with the number 0.
        records: how many records there are.
    """
    if unit is Unit.CLIENT:
        return torch.zeros(records, dtype=torch.int64)
    return require_groups(groups, "unit 'group'", "use unit 'record'")


def made_up(
    x: torch.Tensor, y: torch.Tensor, groups: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Three made-up records: features in [0, 1], class 0, two persons.

    On them code is tried before it meets data.

    Args:
        x: features whose shape and type they have.
        y: labels whose shape and type they have.
        groups: group ids; None if the records have none.
    """
    size = math.prod(x.shape[1:])
    made = torch.stack([torch.zeros(size), torch.ones(size), torch.linspace(0, 1, size)])
    people = None if groups is None else torch.tensor([0, 1, 1])
    return made.view(3, *x.shape[1:]).to(x), y.new_zeros(3, *y.shape[1:]), people


def say_unknown(known: torch.Tensor | None) -> None:
    """Log on this machine only how many labels the model does not know."""
    if known is not None and not bool(known.all()):
        log.warning(
            "%d of %d records have a label that the model does not know; they are ignored",
            int((~known).sum()),
            len(known),
        )


BLOCK_RECORDS = 192
"""Records are computed this many at a time, or a multiple of it; empty ones fill the last block.

A library adds up in an order that may depend on how many records there are, and on a record's place
among the last ones. Where a server sends large weights that cancel, a score is nothing but
rounding, and one record more or less would turn the rows of others. 192 records fill the registers
of every width (64 times 3), so that no record is at an edge: tests/laws/test_sensitivity.py. They
are computed in one thread, whoever asks: several would share records out by their number.
"""


def whole_blocks(tensor: torch.Tensor, block: int = BLOCK_RECORDS) -> torch.Tensor:
    """One entry per record, with zeros up to a multiple of ``block``."""
    missing = -len(tensor) % block
    if not missing:
        return tensor
    return torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])])


# -------------------------------------------------------------------------------- linear models


class Link(Protocol):
    """What a linear model does with its scores."""

    def known(self, y: torch.Tensor, outputs: int) -> torch.Tensor:
        """Which labels the model can be fitted to."""

    def residual(self, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The loss's gradient with respect to the scores; may overwrite the scores."""

    def judge(self, scores: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Per record: right or not, and the loss."""

    def curvature(self, scores: torch.Tensor) -> torch.Tensor:
        """The loss's second derivative with respect to the scores, [records, outputs, outputs].

        Positive semidefinite as it stands in memory, not only over the reals: bounds rest on it.
        """


class _Softmax:
    def known(self, y: torch.Tensor, outputs: int) -> torch.Tensor:
        return (y >= 0) & (y < outputs)

    def residual(self, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        residual = torch.softmax(scores.T, dim=0).T  # torch is slow along a short last axis
        minus_one = residual.new_full((1, 1), -1.0).expand(len(y), 1)
        return residual.scatter_add_(1, y[:, None], minus_one)

    def judge(self, scores: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        right = (scores.argmax(dim=1) == y).to(scores.dtype)
        return right, functional.cross_entropy(scores, y, reduction="none")

    def curvature(self, scores: torch.Tensor) -> torch.Tensor:
        """Of diag(p) - p p^T the Laplacian form: p_i p_j off the diagonal, and their sums on it.

        As it stands in memory, it is positive semidefinite: no entry off the diagonal is above 0,
        and each one on it is at least the sum of its row's others, rounded upwards. The difference
        diag(p) - p p^T cancels where a class is nearly certain, and was indefinite then.
        """
        p = torch.softmax(scores.double(), dim=1)
        weights = p[:, :, None] * p[:, None, :]
        weights.diagonal(dim1=1, dim2=2).zero_()
        upwards = 1 + len(p[0]) * 2.0**-51  # above the rounding error of a sum of len(p[0]) numbers
        return torch.diag_embed(weights.sum(dim=2) * upwards).sub_(weights)


class _Logistic:
    def known(self, y: torch.Tensor, outputs: int) -> torch.Tensor:
        return (y >= 0) & (y <= outputs)

    def residual(self, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return scores.sigmoid_().sub_(y[:, None])

    def judge(self, scores: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        score, target = scores[:, 0], y.to(scores.dtype)
        right = ((score > 0) == (target > 0.5)).to(scores.dtype)
        return right, functional.binary_cross_entropy_with_logits(score, target, reduction="none")

    def curvature(self, scores: torch.Tensor) -> torch.Tensor:
        p = torch.sigmoid(scores)
        return (p * (1 - p))[:, :, None]


class _Poisson:
    def known(self, y: torch.Tensor, outputs: int) -> torch.Tensor:
        del outputs
        return (y >= 0) & torch.isfinite(y)

    def residual(self, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return scores.exp_().sub_(y[:, None])

    def judge(self, scores: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        score, target = scores[:, 0], y.to(scores.dtype)
        return torch.full_like(score, math.nan), score.exp() - target * score

    def curvature(self, scores: torch.Tensor) -> torch.Tensor:
        return scores.exp()[:, :, None]


_LINKS: dict[str, Link] = {"softmax": _Softmax(), "logistic": _Logistic(), "poisson": _Poisson()}


STARTS = ("zero", "random")
"""What a linear model may begin with."""


@dataclass(frozen=True)
class Linear:
    """A linear layer under a link: softmax head, logistic or Poisson regression.

    Args:
        link: softmax, logistic or poisson.
        features: how many numbers a record has.
        outputs: how many scores; the classes of softmax.
        bias: whether there is one.
        start: "zero", where these convex losses may as well begin, or "random", as the authors of
            DP-FedSOFIM begin: normal numbers, by the seed alone.

    >>> Linear("softmax", features=4, outputs=3).layout.size
    15
    """

    link: str
    features: int
    outputs: int = 1
    bias: bool = True
    start: str = "zero"

    def __post_init__(self) -> None:
        if not isinstance(self.link, str) or self.link not in _LINKS:
            raise refuse("link", f"one of {', '.join(_LINKS)}", self.link)
        for name, value in (("features", self.features), ("outputs", self.outputs)):
            if not isinstance(value, int) or value < 1:
                raise refuse(name, "a whole number, at least 1", value)
        if not isinstance(self.bias, bool):
            raise refuse("bias", "True or False", self.bias)
        if self.start not in STARTS:
            raise refuse("start", f"one of {', '.join(STARTS)}", self.start)

    @cached_property
    def layout(self) -> Layout:
        """As nn.Linear names and orders them."""
        shapes: dict[str, tuple[int, ...]] = {"weight": (self.outputs, self.features)}
        return Layout({**shapes, "bias": (self.outputs,)} if self.bias else shapes)

    def initial(self, seed: int) -> Vector:
        """Zero, or normal numbers with half of Glorot's standard deviation, by the seed alone."""
        size = self.layout.size
        if self.start == "zero":
            return torch.zeros(size)
        std = 0.5 * math.sqrt(2 / (self.features + self.bias + self.outputs))
        return std * torch.randn(size, generator=torch.Generator().manual_seed(seed))

    def problem(self, records: Records) -> LinearProblem:
        """One client's records with a column of ones for the bias."""
        made = self._problem(records)
        say_unknown(made.known)
        return made

    def _problem(self, records: Records) -> LinearProblem:
        x = records.x.flatten(1)
        if x.shape[1] != self.features:
            raise DataError(
                f"records must have the model's {self.features} features, got {x.shape[1]}; "
                "give each client the columns of the model"
            )
        self._check_labels(records.y)
        if self.bias:
            x = torch.cat([x, x.new_ones(len(x), 1)], dim=1)
        known = _LINKS[self.link].known(records.y, self.outputs)
        if bool(known.all()):
            return LinearProblem(model=self, x=x.contiguous(), y=records.y, groups=records.groups)
        # without features, the bias included, a row and a second derivative are zero
        x, y = torch.where(known[:, None], x, 0.0), torch.where(known, records.y, 0)
        return LinearProblem(self, x.contiguous(), y, records.groups, known=known)

    def _check_labels(self, y: torch.Tensor) -> None:
        """Refuse by the type of labels, which is public; never by their values."""
        if y.dim() != 1 or (self.link == "softmax" and y.is_floating_point()):
            kind = "class labels, int64" if self.link == "softmax" else "one number per record"
            raise DataError(
                f"labels of a {self.link} model must be {kind}, got {y.dtype} of shape "
                f"{tuple(y.shape)}; convert them, or use another model"
            )

    def judge(self, params: Vector, records: Records) -> tuple[torch.Tensor, torch.Tensor]:
        """Per record: right or not, and the loss."""
        return self._problem(records).judge(params)

    def matrix(self, params: Vector) -> torch.Tensor:
        """Weight and bias side by side, [outputs, features (+ 1)]."""
        parts = self.layout.unflatten(params)
        if not self.bias:
            return parts["weight"]
        return torch.cat([parts["weight"], parts["bias"][:, None]], dim=1)


@dataclass(frozen=True, eq=False, repr=False)
class LinearProblem:
    """One client's side of a linear model."""

    model: Linear
    x: torch.Tensor
    y: torch.Tensor
    groups: torch.Tensor | None = None
    known: torch.Tensor | None = None
    """Which records have a label that the link knows; None means all of them."""

    def __repr__(self) -> str:
        return f"LinearProblem({self.model!r}, {len(self.y)} records)"

    @property
    def dimension(self) -> int:
        """The number of parameters."""
        return self.model.layout.size

    def made_up(self) -> LinearProblem:
        """The same on made-up records, on which a round is tried before it touches data."""
        x, y, groups = made_up(self.x, self.y, self.groups)
        return replace(self, x=x, y=y, groups=groups, known=None)

    @cached_property
    def feature_norms(self) -> torch.Tensor:
        """The norms of the feature rows: the same in every round, so computed once."""
        return row_norms(self.x)

    @cached_property
    def _labels(self) -> torch.Tensor:
        return whole_blocks(self.y)

    def _scores(self, params: Vector) -> torch.Tensor:
        """X W^T + b of whole blocks, [outputs, records and empty ones]."""
        weights, whole = self.model.matrix(params), len(self.x) // BLOCK_RECORDS * BLOCK_RECORDS
        last = whole_blocks(self.x[whole:])  # not kept: a small client's is mostly empty ones
        if not whole or not len(last):
            return weights @ (self.x if whole else last).T
        scores = weights.new_empty(len(weights), whole + BLOCK_RECORDS)
        torch.mm(weights, self.x[:whole].T, out=scores[:, :whole])
        torch.mm(weights, last.T, out=scores[:, whole:])
        return scores

    @one_thread()
    def scores(self, params: Vector) -> torch.Tensor:
        """X W^T + b, [records, outputs]: a record's depend on no other's, to the last bit."""
        return self._scores(params).T[: len(self.y)]

    def _residual(self, params: Vector) -> torch.Tensor:
        residual = _LINKS[self.model.link].residual(self._scores(params).T, self._labels)
        return residual[: len(self.y)]

    @one_thread()
    def rows(self, params: Vector, unit: Unit) -> Rows:
        """Residual x feature per record; by group, or the client's mean as one row."""
        residual = self._residual(params)
        if unit is Unit.CLIENT:
            return Dense(self._mean(residual)[None])
        groups = self._groups(unit)
        return Outer(
            residual=residual,
            feature=self.x,
            bias=self.model.bias,
            groups=groups,
            feature_norms=self.feature_norms,
        )

    def doubled(self) -> LinearProblem:
        """The same in double precision."""
        return replace(self, x=self.x.double())

    @one_thread()
    def judge(self, params: Vector) -> tuple[torch.Tensor, torch.Tensor]:
        """Per record: right or not, and the loss; both 0 if the label is not known."""
        judged = _LINKS[self.model.link].judge(self._scores(params).T, self._labels)
        right, loss = (each[: len(self.y)] for each in judged)
        if self.known is None:
            return right, loss
        return torch.where(self.known, right, 0.0), torch.where(self.known, loss, 0.0)

    def loss(self, params: Vector) -> float:
        """The mean loss over all records, in clear."""
        return float(self.judge(params)[1].mean())

    @one_thread()
    def gradient(self, params: Vector) -> Vector:
        """The mean gradient over all records, in clear."""
        return self._mean(self._residual(params))

    def _mean(self, residual: torch.Tensor) -> Vector:
        mean = residual.T @ self.x / max(1, len(self.y))
        return linear_vector(mean, self.model.bias)

    def gram_rows(self, unit: Unit) -> MatrixRows:
        """X x^T per record, by group, or the client's mean."""
        return Gram(self.x, self._groups(unit), mean=unit is Unit.CLIENT)

    @one_thread()
    def hessian_rows(self, params: Vector, unit: Unit) -> MatrixRows:
        """S (x) x x^T per record, by group, or the client's mean."""
        curvature = _LINKS[self.model.link].curvature(self._scores(params).T)[: len(self.y)]
        groups = self._groups(unit)
        return Hessians(curvature, self.x, self.model.bias, groups, mean=unit is Unit.CLIENT)

    def _groups(self, unit: Unit) -> torch.Tensor | None:
        return unit_ids(self.groups, unit, len(self.y)) if unit is Unit.GROUP else None

    def metric_rows(self, params: Vector, unit: Unit, loss_bound: float) -> Rows:
        """Per unit: right or not, and the clipped loss."""
        correct, losses = self.judge(params)
        return metric_rows(correct, losses, self.groups, unit, loss_bound)

    @one_thread()
    def judged(self, params: Vector, unit: Unit, row: MetricRow) -> torch.Tensor:
        """Per unit, the mean of the row over its own records; 0 if a label is not known."""
        link, scores = _LINKS[self.model.link], self._scores(params).T
        right, losses = link.judge(scores, self._labels)
        scores = scores.exp() if self.model.link == "poisson" else scores
        table = row(ScoredRecords(scores, self._labels, right, losses))[: len(self.y)]
        if self.known is not None:
            table = torch.where(self.known[:, None], table, 0.0)
        return unit_means(table, self.groups, unit)
