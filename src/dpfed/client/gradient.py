# SPDX-License-Identifier: Apache-2.0
"""One full-batch gradient per round: the client half of DP-FedGD and DP-FedSOFIM.

Nair et al. 2026, eqs. (1) and (2), Algorithm 1, lines 5 to 8:

    S_i,t = sum over records of clip(grad l(theta_t; x, y), C)
    g_i,t = (S_i,t + E_i,t) / |D_i|

The clip, the sum and the noise are the mechanism's; the division by a public size is the round's.
At group level a row is the sum of one person's gradients, at client level the client's mean.
"""

from __future__ import annotations

from dpfed.core import (
    UPDATE,
    Broadcast,
    ClientAlgorithm,
    Problem,
    Releaser,
    Reply,
    State,
    Unit,
    stateless,
)

PAPER = "McMahan et al. 2017; Nair et al. 2026 (DP-FedGD)"


def gradient() -> ClientAlgorithm:
    """DP-FedGD's client: one clipped, noised gradient sum, sent as it is."""

    def work(
        broadcast: Broadcast, problem: Problem, state: State, release: Releaser
    ) -> tuple[Reply, State]:
        rows = problem.rows(broadcast.params, release.unit)
        return {UPDATE: release(rows)}, state

    return ClientAlgorithm(
        init=stateless,
        work=work,
        units=frozenset(Unit),
        sends_unmodified=True,
    )
