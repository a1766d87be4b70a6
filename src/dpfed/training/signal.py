# SPDX-License-Identifier: Apache-2.0
"""A plan's longest possible signal beside its noise, and the warning before anything is spent.

What is read is public: the plan, and the model's shape (accounting/signal.py has the equation).
"""

from __future__ import annotations

import math
from weakref import WeakKeyDictionary, WeakSet

from dpfed.accounting.event_tree import GaussianRelease
from dpfed.accounting.signal import Signal
from dpfed.core.log import log
from dpfed.core.types import UPDATE, Mechanism
from dpfed.core.vector import Layout
from dpfed.training.draft import Draft


def signal_of(plan: Draft, model: Layout | int) -> Signal:
    """The signal of a plan's updates beside their noise.

    Args:
        plan: what is done.
        model: the names and shapes of its parameters, or only how many there are.
    """
    size = model if isinstance(model, int) else model.size
    rows, update = plan.denominator(UPDATE), plan.update
    return Signal(
        parameters=plan.size(UPDATE, size),
        rows=rows,
        noise_std=plan.noise_std(UPDATE) * rows / update.clip,
        averaged=_averaged(update, plan.declared[UPDATE].planned(plan.rounds)),
        clients=len(plan.nominal),
        unit=update.unit,
        trust=update.trust,
        one_layer=True if plan.client.linear else _is_one_layer(model),
    )


def _averaged(mechanism: Mechanism, releases: int) -> float:
    """How many releases of independent noise have as little noise in their mean.

    The best average of noise C^-1 z has |C (1, ..., 1)|^2: the squared sensitivity of a unit that
    is in every release. The sum over clients goes on in all rounds, whoever takes part in which.
    """
    if mechanism.independent:
        return float(releases)
    everywhere = mechanism.with_facts(participation=None)
    if isinstance(everywhere, GaussianRelease):
        return everywhere.squared_sensitivity(releases)
    return math.inf


def _is_one_layer(model: Layout | int) -> bool | None:
    """Whether a model has one matrix at most; None where only its size is known."""
    if isinstance(model, int):
        return None
    return sum(len(shape) > 1 for shape in model.shapes.values()) <= 1


def noise_warning(plan: Draft, model: Layout | int) -> str | None:
    """The warning of a plan that has little hope; None if there is none, or no model is trained.

    Args:
        plan: what is done.
        model: the names and shapes of its parameters, or only how many there are.
    """
    return signal_of(plan, model).warning if plan.client.trains else None


_looked_at: WeakKeyDictionary[Draft, set[object]] = WeakKeyDictionary()
_warned: WeakSet[Draft] = WeakSet()


def warn_of_noise(plan: Draft, model: Layout | int) -> None:
    """Log the warning of a plan that has little hope, once for each plan.

    Args:
        plan: what is done.
        model: the names and shapes of its parameters, or only how many there are.
    """
    shape = model if isinstance(model, int) else tuple(model.shapes.items())
    known = _looked_at.setdefault(plan, set())
    if shape in known:
        return
    known.add(shape)
    warning = noise_warning(plan, model)
    if warning and plan not in _warned:
        _warned.add(plan)
        log.warning("%s", warning)
