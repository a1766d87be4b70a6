# SPDX-License-Identifier: Apache-2.0
"""Private statistics: all questions about a table as one bounded row per unit, in one release.

    a unit's records --> joint row (questions/rows.py) --> [clip, noise, sum] --> answers
    client: sensitive                                     | the update channel |  post-processing

With K questions the row has norm at most sqrt(K), which is the channel's clip, so that no row is
ever cut; replacing a unit moves the sum by at most sqrt(r_1^2 + ... + r_K^2), r_k <= 2 being what
it moves question k by, in bounds of that. Truncated to a grid rows leave that set; where the
mechanism does that, replacing one counts as 2 sqrt(K).

The server half sets the parameters to the released means. A second round would be a second
release, of the same questions with new noise: their average is kept.
"""

from __future__ import annotations

from typing import Any

from dpfed.client.questions.columns import Column
from dpfed.client.questions.model import columns_of, own_model
from dpfed.client.questions.query import read_questions
from dpfed.core import (
    UPDATE,
    Aggregate,
    Broadcast,
    Channel,
    ClientAlgorithm,
    PlanNeeds,
    Problem,
    Releaser,
    Reply,
    ServerOptimizer,
    State,
    Unit,
    Weights,
    stateless,
)
from dpfed.core.checks import refuse
from dpfed.core.metric import joint_bound, joint_replace_bound, joint_size
from dpfed.core.types import Vector

PAPER = "dpfed's own; cumulative counts: Fichtenberger et al. 2023"

_DEFAULT: list[dict[str, Any]] = [{"name": "x0", "kind": "mean", "column": "x0"}]


def statistics(
    questions: list[dict[str, Any]] | None = None,
    columns: dict[str, Column] | None = None,
    truncates: bool = False,
    contract: Any = None,
) -> ClientAlgorithm:
    """Counts, means, histograms, quantiles, tables and survival curves in one release.

    Args:
        questions: one table each, as in docs/statistics.md; None asks for the mean of x0.
        columns: by name what is public of each column: its place among the features, its range or
            words; left out where there is a data contract, and without both it is the first feature
            as x0, with the range [-1, 1].
        truncates: whether the mechanism truncates rows to a grid; the plan fills it in.
        contract: the data contract, or None; the plan fills it in.
    """
    if contract is not None and columns is not None:
        raise refuse("statistics.columns", "left out beside data.contract", list(columns)[:5])
    known = {"x0": Column(at=0)} if columns is None else columns
    known = known if contract is None else columns_of(contract)
    asked = read_questions(_DEFAULT if questions is None else questions, known)

    def work(
        broadcast: Broadcast, problem: Problem, state: State, release: Releaser
    ) -> tuple[Reply, State]:
        return {UPDATE: release(problem.rows(broadcast.params, release.unit))}, state

    channel = Channel(
        size=joint_size(asked),
        clip=joint_bound(asked),
        replace_bound=None if truncates else joint_replace_bound(asked),
    )
    return ClientAlgorithm(
        init=stateless,
        work=work,
        units=frozenset({Unit.RECORD, Unit.GROUP}),
        channels={UPDATE: channel},
        sends_unmodified=True,
        linear=True,
        trains=False,
        samples=False,
        memory="f",
        model=own_model(asked, known),
        needs=PlanNeeds(weights=Weights.SUM, own_steps=True),
        companion=_kept_means(),
    )


def _kept_means() -> ServerOptimizer:
    """Parameters that are the average of all released means."""

    def update(G: Vector, state: State, seen: Aggregate) -> tuple[Vector, State]:
        return (seen.params - G) / (seen.round + 1), state

    return ServerOptimizer(stateless, update)
