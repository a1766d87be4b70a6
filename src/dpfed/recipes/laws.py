# SPDX-License-Identifier: Apache-2.0
"""Checks that user-supplied plug-in code must pass before a plan uses it.

An installed plug-in has its package's tests; ``module:function`` and objects may have none. Those
that state a bound of their own are tried here, on made-up records, before the first round: rows of
a client algorithm against its channels, a metric's rows against its ``replace_bound``, and a
mechanism's measured noise against the noise that it states and accounts for. A server optimizer
states none: it sees nothing but private means.

These trials find mistakes, not malice: code on one's own machine can do anything. Terms, which
others write, name installed plug-ins only.

| edge case                                    | what happens                                    |
|----------------------------------------------|-------------------------------------------------|
| a bound that is broken, or code that raises  | UnsoundPlan, in one sentence                    |
| noise that is not Gaussian                   | UnsoundPlan: its privacy cost cannot be checked |
|                                              | empirically                                     |
| a metric that fits no made-up record         | UnsoundPlan                                     |
| a client that does not protect the unit      | not tried: the plan refuses it                  |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from dpfed.accounting.accountant import RELATIONS, GaussianAccountant
from dpfed.core import registry
from dpfed.core.errors import DpfedError, UnsoundPlan
from dpfed.core.metric import Metric, MetricRow, ScoredRecords, joint_row
from dpfed.core.randomness import Noise
from dpfed.core.rows import Dense
from dpfed.core.testing import exchange_keeps_its_bound
from dpfed.core.types import (
    UPDATE,
    Broadcast,
    ClientAlgorithm,
    Facts,
    FeatureRange,
    Mechanism,
    Release,
    Rows,
    Unit,
)
from dpfed.data.datasets import Records
from dpfed.data.models import Linear

_ROUNDING = 1 + 1e-9
_NOISE_NUMBERS = 40_000
"""Noise samples drawn: enough to estimate their standard deviation to 0.4 %."""
_NOISE_TOLERANCE = 0.03
_RELEASES = 4
_RECORDS = 12
_MODEL = Linear("softmax", features=4, outputs=3)
_kept: set[tuple[str, str, str, str]] = set()
"""(kind, name, options, unit) of what has been tried in this process."""


def require_laws(kind: str, name: str, options: Mapping[str, Any], unit: Unit) -> None:
    """Refuse code that breaks a bound that it states.

    Args:
        kind: client, server, mechanisms or metrics.
        name: the plug-in's name; those of installed plug-ins are not tried.
        options: the recipe's options.
        unit: whom the plan protects.

    Raises:
        UnsoundPlan: says what was stated, and what was found.
    """
    key = (kind, name, repr(sorted(options.items())), str(unit))
    if kind not in _LAWS or not registry.is_code(name) or key in _kept:
        return
    try:
        _LAWS[kind](name, options, unit)
    except DpfedError:
        raise
    except AssertionError as error:
        raise UnsoundPlan(f"{kind} {name!r} breaks its own bound: {error}; correct it") from error
    except Exception as error:
        raise UnsoundPlan(
            f"{kind} {name!r} must run on the laws' made-up records, got {type(error).__name__} "
            f"({error}); correct it, or install it as a plug-in with tests of its own"
        ) from error
    _kept.add(key)


# ------------------------------------------------------------------------------- client algorithms


class _RowCollector:
    """A releaser that keeps the rows it is given, and releases zeros."""

    def __init__(self, algorithm: ClientAlgorithm, unit: Unit) -> None:
        self.unit, self.nominal = unit, float(_RECORDS)
        self.seen: list[tuple[str, Rows]] = []
        self._channels, self._size = algorithm.channels, _model_of(algorithm).layout.size

    def __call__(self, rows: Rows, channel: str = UPDATE) -> Release:
        self.seen.append((channel, rows))
        size = self._channels[channel].size or self._size
        return Release(torch.zeros(size, dtype=torch.int32), std=1.0, step=2.0**-10)


def _model_of(algorithm: ClientAlgorithm) -> Any:
    """The laws' model, or the one that the algorithm brings in its place."""
    if algorithm.model is None:
        return _MODEL
    return algorithm.model.around(_MODEL, lambda _: FeatureRange(), algorithm.channels)


def _made_up_records(seed: float) -> Records:
    at = torch.arange(_RECORDS * 4).view(_RECORDS, 4)
    labels = torch.arange(_RECORDS) * (1 + int(seed)) % 3
    return Records(2 * torch.sin((at + 1) * (seed + 0.5)), labels, torch.arange(_RECORDS) // 2)


def _neighbours(unit: Unit) -> Iterator[tuple[Records, Records]]:
    """Records of a client, and the same with one unit in the place of another."""
    one = _made_up_records(1)
    moved = {Unit.RECORD: slice(7, 8), Unit.GROUP: slice(6, 8), Unit.CLIENT: slice(0, _RECORDS)}
    for scale in (1e-3, 1.0, 1e5, 1e30):
        x, y = one.x.clone(), one.y.clone()
        x[moved[unit]] = -scale * one.x[moved[unit]]
        y[moved[unit]] = (one.y[moved[unit]] + 1) % 3
        yield one, Records(x, y, one.groups)


def _collected(algorithm: ClientAlgorithm, unit: Unit, data: Records) -> list[tuple[str, Rows]]:
    """The rows that the algorithm passes to the releaser in two rounds."""
    door, model = _RowCollector(algorithm, unit), _model_of(algorithm)
    params = torch.linspace(-1, 1, model.layout.size)
    half = algorithm.companion
    shared = {} if half is None else dict(half.share(half.init(params)))
    state = algorithm.init(params)
    for at in range(2):
        broadcast = Broadcast(at, params * (at + 1), shared)
        _, state = algorithm.work(broadcast, model.problem(data), state, door)
    return door.seen


def _rows_keep_what_channels_declare(name: str, options: Mapping[str, Any], unit: Unit) -> None:
    algorithm = registry.build(
        "client", name, options, unit=unit, layout=_MODEL.layout, truncates=False
    )
    if unit not in algorithm.units:
        return
    for one, other in _neighbours(unit):
        pairs = zip(
            _collected(algorithm, unit, one), _collected(algorithm, unit, other), strict=True
        )
        for (channel, rows), (_, instead) in pairs:
            declared = algorithm.channels[channel]
            clip = declared.clip or 1.0
            stated = 2 * clip if declared.replace_bound is None else declared.replace_bound
            made = rows.clipped_sum(clip)
            exchange_keeps_its_bound(rows, instead, clip)
            _hold(made.bound <= clip * _ROUNDING, f"channel {channel!r}", clip, made.bound)
            moved = float((made.vector.double() - instead.clipped_sum(clip).vector).norm())
            _hold(moved <= stated * _ROUNDING, f"replacing a unit on {channel!r}", stated, moved)


# ------------------------------------------------------------------------------------------ metrics


def _made_up_scores() -> Iterator[ScoredRecords]:
    """Records under models of some numbers of classes, and under one that predicts a number."""
    at = torch.arange(_RECORDS, dtype=torch.float32)
    right, losses = (at % 2), at.square() / 10
    for outputs in (1, 2, 3, 5, 10):
        scores = 9 * torch.sin(torch.outer(at + 1, torch.arange(1.0, outputs + 1)))
        labels = torch.arange(_RECORDS) % max(outputs, 2)
        yield ScoredRecords(scores, labels, right, losses)
    yield ScoredRecords(1e3 * torch.sin(at), at - 5, torch.full((_RECORDS,), math.nan), losses)


def _metric_rows_keep_their_distance(name: str, options: Mapping[str, Any], unit: Unit) -> None:
    del unit  # a person's or a client's row is a mean of records' rows, which keeps both bounds
    metric: Metric = registry.build("metrics", name, options)
    row, tried = joint_row([metric]), 0
    for scored in _made_up_scores():
        rows = _rows_of(row, scored)
        if rows is None:
            continue
        tried += 1
        stated = metric.replace_bound / metric.bound
        apart = float(torch.cdist(rows, rows).max())
        _hold(apart <= stated * (1 + 1e-6), "the distance of two rows, in bounds", stated, apart)
        for at in range(_RECORDS):
            alone = row(ScoredRecords(*(each[at : at + 1] for each in scored)))
            if not torch.allclose(alone[0], rows[at], atol=1e-6):
                raise AssertionError("a record's row depends on the records beside it")
    if not tried:
        raise AssertionError("it fits no made-up record, so its bound cannot be tried")


def _rows_of(row: MetricRow, scored: ScoredRecords) -> torch.Tensor | None:
    """The rows, or None from a metric that is made for another number of classes."""
    try:
        return row(scored)
    except Exception:
        return None


# --------------------------------------------------------------------------------------- mechanisms


def _noise_is_what_is_paid_for(name: str, options: Mapping[str, Any], unit: Unit) -> None:
    facts = Facts(clip=2.0, unit=unit)
    given = {"std": 1.0, **{key: value for key, value in options.items() if key != "std"}}
    made: Mechanism = registry.build(
        "mechanisms", name, given, facts=facts, horizon=_RELEASES, rounds=_RELEASES
    )
    asked = (facts.clip, facts.unit, facts.adjacency, facts.trust)
    if (made.clip, made.unit, made.adjacency, made.trust) != asked:
        raise AssertionError(f"the plan asks for clip, unit, adjacency and trust {asked}")
    _hold(made.with_std(7.0).std >= 7.0, "with_std(7)", 7.0, made.with_std(7.0).std)
    _row_is_clipped(made)
    state, drawn = made.init(_NOISE_NUMBERS), []
    for call in range(_RELEASES):
        zeros = Dense(torch.zeros(1, _NOISE_NUMBERS))
        release, state = made.release(zeros, state, Noise(0).stream("laws", call))
        noise = release.vector.double().numpy() * release.step
        least = release.std * (1 - _NOISE_TOLERANCE)
        _hold(noise.std() >= least, f"the noise of release {call}", release.std, noise.std())
        drawn.append(noise)
    _price_covers(made, np.stack(drawn))


def _row_is_clipped(made: Mechanism) -> None:
    quiet = made.with_std(made.clip / 20)  # 16 numbers of it have a fifth of the clip's norm
    rows = Dense(torch.full((1, 16), 1e6))
    release, _ = quiet.release(rows, quiet.init(16), Noise(0).stream("laws"))
    norm = float((release.vector.double() * release.step).norm())
    _hold(norm <= 2 * made.clip, "a clipped row's norm", made.clip, norm)


def _price_covers(made: Mechanism, noise: np.ndarray[Any, Any]) -> None:
    """A unit that moves every release by D costs at least D^2 1^T S^-1 1, S the covariance."""
    accountant = GaussianAccountant(RELATIONS[made.adjacency])
    event = made.event(_RELEASES)
    if not accountant.supports(event):
        raise AssertionError("its event is not that of Gaussian noise, so it cannot be measured")
    accountant.compose(event)
    measured = (2 * made.clip) ** 2 * float(np.linalg.inv(np.cov(noise)).sum())
    paid = accountant.mu**2
    _hold(paid >= measured * (1 - 2 * _NOISE_TOLERANCE), "mu squared of 4 releases", paid, measured)


def _hold(lawful: bool, what: str, stated: float, found: float) -> None:
    if not lawful:
        raise AssertionError(f"{what} is stated as {stated:.6g} and found to be {found:.6g}")


_LAWS: dict[str, Callable[[str, Mapping[str, Any], Unit], None]] = {
    "client": _rows_keep_what_channels_declare,
    "metrics": _metric_rows_keep_their_distance,
    "mechanisms": _noise_is_what_is_paid_for,
}
