# SPDX-License-Identifier: Apache-2.0
"""Norms of rows before and after the clip, in a simulation, to choose a clip. NOT PRIVATE.

Exact norms are data. So this is no field of a recipe, and nothing that travels can ask for it: no
terms, no order, no app. ``dpfed.run(row_norms=True)`` watches in its own process what algorithms
hand to their releasers; releases are the same bits with and without. Nothing of it is saved.

| edge case                                   | what happens                                      |
|---------------------------------------------|---------------------------------------------------|
| another engine, or a recipe with a ledger   | RecipeError, before anything is spent             |
| rows that cannot be made one by one         | that channel has no norms, and the log says so    |
| norms that cannot be computed               | likewise; the release is made as ever             |
| a draw of records                           | norms of all rows, drawn or not                   |
| a clip that adapts                          | norms in units of the round's clip                |
| rehearsals on made-up records               | are not watched                                   |
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from dpfed.core.adaptive_rows import unit_norms
from dpfed.core.log import log
from dpfed.core.rows import UnitRows
from dpfed.core.types import UPDATE, Broadcast, Problem, Release, Releaser, Reply, Rows, State, Unit
from dpfed.training.plan import Plan
from dpfed.training.reply import PricedReleaser


@dataclass(frozen=True, eq=False)
class RowNorms:
    """One client's rows in one release: their norms before and after the clip. NOT PRIVATE.

    For the eyes of whoever has the data; the guarantee of the run does not cover it.

    >>> norms = RowNorms(1, 0, "update", 1.0, torch.tensor([0.5, 4.0]), torch.tensor([0.5, 1.0]))
    >>> norms, norms.clipped
    (<norms of 2 rows, not private>, 0.5)
    """

    round: int
    client: int
    channel: str
    clip: float
    before: torch.Tensor
    after: torch.Tensor

    @property
    def clipped(self) -> float:
        """The fraction of rows that the clip has shortened."""
        return float((self.before > self.clip).double().mean()) if len(self.before) else 0.0

    def __repr__(self) -> str:
        return f"<norms of {len(self.before)} rows, not private>"


@dataclass(frozen=True, eq=False)
class NormWatch:
    """Collects norms while a plan runs in this process."""

    found: list[RowNorms] = field(default_factory=list)

    def watching(self, plan: Plan) -> Plan:
        """The same plan, whose algorithm is watched on its way to the releaser.

        Args:
            plan: what is done.
        """
        work = plan.client.work

        def watched(
            broadcast: Broadcast, problem: Problem, state: State, release: Releaser
        ) -> tuple[Reply, State]:
            if type(release) is not PricedReleaser:  # a rehearsal
                return work(broadcast, problem, state, release)
            return work(broadcast, problem, state, _Watching(self, plan, release))

        return replace(plan, client=plan.client._replace(work=watched))

    def note(self, plan: Plan, release: PricedReleaser, rows: Rows, channel: str) -> None:
        """Note the norms of rows; whatever goes wrong here leaves the release as it is.

        Args:
            plan: what is done.
            release: whose rows they are.
            rows: what is about to be released.
            channel: on which channel.
        """
        clip = plan.channels[channel].clip
        try:
            if not isinstance(rows, UnitRows):
                raise TypeError(f"{type(rows).__name__} are not made one by one")
            before = unit_norms(rows)
            after = torch.cat([block.norm(dim=1) for block in rows.clipped_rows(clip)])
        except Exception as error:
            log.warning("row_norms: channel %r has no norms: %s", channel, error)
            return
        at = release.round + 1, release._client, channel, clip
        self.found.append(RowNorms(*at, before.cpu(), after.cpu()))


class _Watching:
    """A releaser that looks at rows on their way to the one door."""

    def __init__(self, watch: NormWatch, plan: Plan, release: PricedReleaser) -> None:
        self._watch, self._plan, self._release = watch, plan, release
        self.unit: Unit = release.unit
        self.nominal: float = release.nominal

    def __call__(self, rows: Rows, channel: str = UPDATE) -> Release:
        made = self._release(rows, channel)
        self._watch.note(self._plan, self._release, rows, channel)
        return made
