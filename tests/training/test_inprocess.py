# SPDX-License-Identifier: Apache-2.0
"""The reference engine: determinism, threads, and what stops it."""

from __future__ import annotations

import pytest
import torch

from dpfed.core.errors import RoundAborted
from dpfed.core.types import UPDATE
from dpfed.training.inprocess import rounds
from dpfed.training.round import Plan
from tests.laws.leaks import MODEL
from tests.training.test_round import make_plan, members


def finish(plan: Plan, sizes: list[int]) -> torch.Tensor:
    problems = [m.problem for m in members(sizes).values()]
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
    problems = [m.problem for m in members().values()]
    run = rounds(make_plan(rounds=50), problems, MODEL.initial(0))
    progress, _ = next(run)
    assert progress.round == 1
    assert sum(progress.books[UPDATE].values()) == 1


def test_a_round_that_nobody_answers_stops_the_run() -> None:
    class Broken:
        dimension = MODEL.layout.size

        def rows(self, *_: object) -> None:
            raise RuntimeError("disk on fire")

    with pytest.raises(RoundAborted, match="round 0 cannot be opened: no client answered"):
        list(rounds(make_plan(nominal=[5]), [Broken()], MODEL.initial(0)))  # type: ignore[list-item]


def test_one_broken_client_does_not_stop_the_others() -> None:
    class Broken:
        dimension = MODEL.layout.size

        def rows(self, *_: object) -> None:
            raise RuntimeError("disk on fire")

    problems = [Broken(), *(m.problem for m in members().values())]
    plan = make_plan(nominal=[5, 12, 30, 21])
    *_, (_, outcome) = rounds(plan, problems, MODEL.initial(0))  # type: ignore[arg-type]
    assert outcome.missing == (0,)
    assert outcome.refused == {0: "ClientError"}
