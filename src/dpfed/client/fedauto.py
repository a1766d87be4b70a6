# SPDX-License-Identifier: Apache-2.0
"""DP-FedAuto: two private statistics, then gradient steps whose rate is read off the noise.

Nothing is tuned: the same constants serve every data set and every epsilon. The model standardises
its inputs by what was released (_standardised.py), in three kinds of rounds:

    round 0    mean      u = z / max(1, |z|), z = (x - m0) / R0         f1 = 5 % of mu^2
    round 1    second    v v^T, v = (x - m) / |x - m|                  f2 = 10 %
    then       update    (p - y) x [A v / |A v|, b], clipped to C       the rest

with m0, R0 public guesses, m and A functions of the releases (_paced.py, the server half). With
``second`` "none" there is no round 1, and A is 1: 10^4 features work, too.

Sensitivity, where a unit is a record, a person or a client, whose row is the mean over its own
records; R replace-one, Z zero-out, A add-remove:

    mean     |u| <= 1, also of a mean of such:                            R 2, Z 1, A 1
    second   a mean of v v^T is positive semidefinite, and |v v^T| = |v|^2 <= 1. For such P, Q
             <P, Q> >= 0, so |P - Q|^2 <= |P|^2 + |Q|^2 <= 2:             R sqrt 2, Z 1, A 1
    update   clipped to C:                                                R 2 C, Z C, A C

Truncated to a grid a matrix is not positive semidefinite any more: where the mechanism does that,
replacing one counts as 2. The bounds hold for any center, transform and b that is broadcast: z is
cut or divided by its norm in double precision, a z without a finite norm is a row of zeros, and
the mechanism clips last. A releases-only m and A make all later rounds adaptive composition.

Inferred: which records a person's rows are a mean of (all of them), and that a logistic regression
counts as two classes. ``second`` = "auto" takes the matrix where the noise leaves something of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from dpfed.client._paced import paced
from dpfed.client._standardised import (
    MEAN,
    SECOND,
    STANDARDISED,
    MomentProblem,
    Standardiser,
    standardiser_of,
    standardises,
)
from dpfed.core import (
    UPDATE,
    Broadcast,
    Channel,
    ClientAlgorithm,
    Phase,
    PlanNeeds,
    Problem,
    Releaser,
    Reply,
    State,
    Unit,
    Weights,
    checks,
    stateless,
)
from dpfed.core.errors import UnsoundPlan
from dpfed.core.matrices import triangle
from dpfed.core.vector import Layout

PAPER = "dpfed's own; spectrum: Bun et al. 2016; shrinkage: James and Stein 1961"

MAX_FEATURES, MAX_FEATURES_IN_DOUBT = 2048, 723
"""Features above which the second moment is never sent; or only if the noise is clearly small."""
CLEAR_EDGE = 30.0
"""The noise is clearly small if d e is at most this, with e its largest eigenvalue."""

NEEDS = PlanNeeds(
    rounds=4,
    weights=Weights.SUM,
    independent_noise=True,
    own_steps=True,
    reason="whose first rounds release means over all units",
)


def fedauto(
    second: Literal["auto", "full", "none"] = "auto",
    clip: float = 0.5,
    mean_share: float = 0.05,
    second_share: float = 0.1,
    beta: float = 0.5,
    pace: float = 1.0,
    damping: float = 5.0,
    cap: float = 2.0,
    layout: Layout | None = None,
    truncates: bool = False,
) -> ClientAlgorithm:
    """Private mean and second moment, then gradients of the head on standardised inputs.

    Args:
        second: full releases the second moment, none leaves it out, auto decides by the noise.
        clip: the clip C of a row of gradients, above 0; the recipe's own is not used.
        mean_share: the mean's part f1 of the squared mu, between 0 and 1.
        second_share: the second moment's part f2 of it; with ``mean_share`` below 1.
        beta: how much of the mean gradient's average is kept per round, in [0, 1).
        pace: the noise in a score after all steps, above 0: the rate is pace / (std sqrt(steps)).
        damping: what is added to the spectrum, in units of K tau, at least 0.
        cap: the largest rate, in units of the number of classes over the curvature, above 0.
        layout: the model's names and shapes; the plan fills it in.
        truncates: whether the mechanism truncates rows to a grid; the plan fills it in.
    """
    checks.check_positive("fedauto", clip=clip, pace=pace, cap=cap)
    checks.check_fraction("fedauto", mean_share=mean_share, second_share=second_share)
    if (total := mean_share + second_share) >= 1:
        raise checks.refuse("fedauto.mean_share + second_share", "below 1", total)
    checks.check_decay("fedauto", beta=beta)
    checks.check_not_negative("fedauto", damping=damping)
    shape = _shape(layout, second)
    first = 2 if shape.full else 1

    def work(
        broadcast: Broadcast, problem: Problem, state: State, release: Releaser
    ) -> tuple[Reply, State]:
        inner, params, at = _standardised(problem), broadcast.params, broadcast.round
        if at == 0:
            return {MEAN: release(inner.mean_rows(params, release.unit), MEAN)}, state
        if at < first:
            return {SECOND: release(inner.moment_rows(params, release.unit), SECOND)}, state
        return {UPDATE: release(inner.rows(params, release.unit))}, state

    channels = {
        UPDATE: Channel((Phase(first, 0), Phase(None, 1)), size=shape.head, clip=clip),
        MEAN: Channel(
            (Phase(1, 1), Phase(None, 0)), shape.features, 1.0, budget_fraction=mean_share
        ),
    }
    if shape.full:
        channels[SECOND] = _second(shape.features, second_share, truncates)
    decided = second != "auto" or _is_given(layout)
    return ClientAlgorithm(
        init=stateless,
        work=work,
        units=frozenset(Unit),
        channels=channels,
        sends_unmodified=True,
        linear=True,
        memory="f^2" if shape.full else "f",
        model=STANDARDISED,
        needs=NEEDS,
        companion=paced(shape, beta=beta, pace=pace, damping=damping, cap=cap),
        settle=None if decided else lambda levels: _decided(shape.features, levels),
    )


def _is_given(layout: Layout | None) -> bool:
    """Whether the plan's model is the method's own already, made by the user."""
    return layout is not None and standardises(layout.shapes)


def _shape(layout: Layout | None, second: str) -> Standardiser:
    """The model's own, which says whether there is a second moment; else that of a new one."""
    shape = standardiser_of(layout, second != "none")
    if _is_given(layout) and second != "auto" and (second == "full") != shape.full:
        raise checks.refuse("fedauto.second", "as the model's transform is, or 'auto'", second)
    return shape


def _second(features: int, share: float, truncates: bool) -> Channel:
    bound = None if truncates else math.sqrt(2)
    phases = (Phase(1, 0), Phase(1, 1), Phase(None, 0))
    return Channel(phases, triangle(features), clip=1.0, replace_bound=bound, budget_fraction=share)


def _standardised(problem: Problem) -> MomentProblem:
    if isinstance(problem, MomentProblem):
        return problem
    raise UnsoundPlan(
        f"fedauto needs a model that standardises its inputs, got {type(problem).__name__}; use "
        f"dpfed.flower.Standardised"
    )


def _decided(features: int, levels: Mapping[str, float]) -> Mapping[str, Any]:
    """Whether the second moment is released: by the noise's edge e, and by bytes.

    The eigenvalues of pure noise reach e = s2 sqrt(2 d), those of the matrix add up to 1.
    """
    edge = levels[SECOND] * math.sqrt(2 * features)
    most = MAX_FEATURES if features * edge <= CLEAR_EDGE else MAX_FEATURES_IN_DOUBT
    return {"second": "full" if edge < 1 and features <= most else "none"}
