# SPDX-License-Identifier: Apache-2.0
"""The reference engine: determinism and threads. What stops it is in test_loop.py."""

from __future__ import annotations

import torch

from dpfed.audit.client_laws import MODEL
from dpfed.core.types import UPDATE
from dpfed.training.inprocess import rounds
from dpfed.training.plan import Plan
from tests.training.test_round import client_states, make_plan


def finish(plan: Plan, sizes: list[int]) -> torch.Tensor:
    problems = [m.problem for m in client_states(sizes).values()]
    *_, (last, _) = rounds(plan, problems, MODEL.initial(0))
    return last.params


def test_the_same_seed_gives_the_same_bits_whatever_the_threads() -> None:
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(finish(make_plan(nominal=[4000, 500]), [4000, 500]))
        assert torch.get_num_threads() == threads  # handed back as it was
    torch.set_num_threads(before)
    assert torch.equal(*results)


def test_iteration_can_stop_early() -> None:
    problems = [m.problem for m in client_states().values()]
    run = rounds(make_plan(rounds=50), problems, MODEL.initial(0))
    state, _ = next(run)
    assert state.round == 1
    assert sum(state.release_counts[UPDATE].values()) == 1
