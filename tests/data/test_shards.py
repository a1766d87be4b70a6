# SPDX-License-Identifier: Apache-2.0
"""Rows of a train function in shards: how far one record or person moves them, whatever it does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dpfed.core.errors import DataError, UnsoundPlan
from dpfed.core.rows import Dense
from dpfed.core.types import Unit
from dpfed.data.datasets import Records
from dpfed.data.models import Linear
from dpfed.data.shard_process import Answer, CleanProcess, Limits
from dpfed.data.shards import Cut, PersonShards, ShardedProblem, parameters_of
from dpfed.data.train_functions import CALL, row_of
from tests.helpers import train_functions

MODEL = Linear("softmax", 4, 3)
SIZE = MODEL.layout.size
SHARDS, RECORDS, CLIP = 4, 40, 0.5
FUNCTIONS = "tests.helpers.train_functions"
START = torch.linspace(-0.1, 0.1, SIZE)


@pytest.fixture(scope="module")
def chosen() -> Iterator[CleanProcess]:
    process = CleanProcess(CALL, f"{FUNCTIONS}:any_of")
    for function in range(len(train_functions.LAW)):  # what each imports is imported once
        made = problem_of(data_for(function), process)
        job = {**made.pack(START), "data": data_for(function), "seed": 0}
        assert process.try_out(job, SIZE, made.limits).row is not None
    yield process
    process.close()


def data_for(function: int = 0, seed: int = 0) -> tuple[NDArray[Any], ...]:
    random = np.random.default_rng(seed)
    x = random.normal(size=(RECORDS, 4)).astype(np.float32)
    return x, random.integers(0, 3, RECORDS), np.full(RECORDS, function)


def replaced(data: tuple[NDArray[Any], ...], where: Any) -> tuple[NDArray[Any], ...]:
    """The same records, but one or some of them, which ask the function for all that it can do."""
    x, y, *rest = (each.copy() for each in data)
    x[where] = train_functions.MARK
    y[where] = (y[where] + 1) % 3
    return (x, y, *rest)


def problem_of(data: Any, process: Any, **changes: Any) -> ShardedProblem:
    limits = Limits(seconds=1.5, memory=1 << 29)
    return ShardedProblem(
        data, Cut(SHARDS), SIZE, parameters_of(MODEL.layout), process, limits, **changes
    )


def moved(one: ShardedProblem, other: ShardedProblem, unit: Unit) -> tuple[int, float]:
    """How many rows differ, and how far the clipped sums are apart, in clips."""
    rows = [each.rows(START, unit) for each in (one, other)]
    assert all(isinstance(each, Dense) for each in rows)
    first, second = (each.matrix for each in rows)  # type: ignore[attr-defined]
    sums = [each.clipped_sum(CLIP).vector.double() for each in rows]
    return int((first != second).any(dim=1).sum()), float((sums[0] - sums[1]).norm()) / CLIP


@pytest.mark.xdist_group("shards")
@pytest.mark.slow
@pytest.mark.parametrize("function", range(len(train_functions.LAW)))
@pytest.mark.long
def test_a_replaced_record_moves_one_row(chosen: CleanProcess, function: int) -> None:
    data = data_for(function)
    changed, far = moved(
        problem_of(data, chosen), problem_of(replaced(data, 17), chosen), Unit.RECORD
    )
    assert changed == 1
    assert 0 < far <= 2 + 1e-9


@pytest.mark.xdist_group("shards")
@pytest.mark.slow
@pytest.mark.parametrize("function", range(len(train_functions.LAW)))
@pytest.mark.long
def test_a_replaced_person_moves_two_rows_of_half_the_clip(
    chosen: CleanProcess, function: int
) -> None:
    data, persons = data_for(function), np.arange(RECORDS) // 4
    where = persons == 3
    others = np.where(where, 77, persons)
    one = problem_of(data, chosen, persons=persons)
    same_id = problem_of(replaced(data, where), chosen, persons=persons)
    other_id = problem_of(replaced(data, where), chosen, persons=others)
    changed, far = moved(one, same_id, Unit.GROUP)
    assert changed == 1
    assert 0 < far <= 1 + 1e-9
    assert Cut(SHARDS).of_persons(np.array([3]))[0] != Cut(SHARDS).of_persons(np.array([77]))[0]
    changed, far = moved(one, other_id, Unit.GROUP)
    assert 1 <= changed <= 2  # a lookup may find the same majority
    assert 0 < far <= 2 + 1e-9


@pytest.mark.xdist_group("shards")
@pytest.mark.long
@pytest.mark.slow
def test_on_a_busy_machine_a_slow_and_a_hungry_shard_empty_no_other(chosen: CleanProcess) -> None:
    """Each shard has its own processor time and memory, whatever else the machine does."""
    ended = threading.Event()
    busy = [threading.Thread(target=lambda: _spin(ended)) for _ in range(2)]
    for each in busy:
        each.start()
    try:
        for name in ("sleeps", "spins", "hungry"):
            data = data_for(train_functions.LAW.index(getattr(train_functions, name)))
            one, other = problem_of(data, chosen), problem_of(replaced(data, 5), chosen)
            assert moved(one, other, Unit.RECORD)[0] == 1
    finally:
        ended.set()
        for each in busy:
            each.join()


def _spin(ended: threading.Event) -> None:
    while not ended.is_set():
        sum(range(1000))


# ------------------------------------------------------------------------------- planted bugs


class InThisProcess:
    """A planted bug: all shards run in one process, and share its globals."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.call = function, CALL

    def run(self, job: Mapping[str, Any], size: int, limits: Limits) -> Answer:
        del size, limits
        x, y, *_ = job["data"]
        return Answer(row_of(job["parameters"], self.function(job["parameters"], (x, y))))


def test_a_shared_global_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    data = data_for()
    made = []
    for each in (data, replaced(data, 3)):
        monkeypatch.setattr(train_functions, "_SEEN", [])
        shared = InThisProcess(train_functions.memorises)
        made.append(problem_of(each, shared).rows(START, Unit.RECORD))
    first, second = (each.matrix for each in made)  # type: ignore[attr-defined]
    assert int((first != second).any(dim=1).sum()) > 1


class ByRank(ShardedProblem):
    """A planted bug: a record's shard follows from its rank among those that are left."""

    @property
    def _by_place(self) -> Any:
        return self._divided(self.cut.of_places(np.arange(len(self.data.y))))


def left_out(at: int | None) -> Records:
    """A silo's records for training: those that a column of the table does not mark for testing."""
    x, y, _ = data_for()
    whole = Records(torch.from_numpy(x), torch.from_numpy(y), places=torch.arange(RECORDS))
    kept = torch.ones(RECORDS, dtype=torch.bool)
    if at is not None:
        kept[at] = False
    return whole.take(kept)


@pytest.mark.parametrize("kind", [ShardedProblem, ByRank])
def test_a_shard_by_rank_after_filtering_is_caught(kind: type[ShardedProblem]) -> None:
    here = InThisProcess(train_functions.plain)
    one, other = (
        kind(left_out(at), Cut(SHARDS), SIZE, parameters_of(MODEL.layout), here)  # type: ignore[arg-type]
        for at in (None, 9)
    )
    changed = moved(one, other, Unit.RECORD)[0]
    assert (changed > 1) if kind is ByRank else (changed == 1)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("module", ["dpfed.data.shard_child", "tests.helpers.exit_code_zygote"])
def test_a_parent_that_reads_exit_codes_is_caught(module: str) -> None:
    process = CleanProcess(CALL, f"{FUNCTIONS}:by_parent")
    process.module = module
    try:
        rows = problem_of(data_for(), process).rows(torch.zeros(SIZE), Unit.RECORD)
        found = -rows.matrix[:, 0]  # type: ignore[attr-defined]
        assert bool(found.any()) == (module != "dpfed.data.shard_child")
    finally:
        process.close()


# ---------------------------------------------------------------------------- edge cases, in order


def test_shards_are_even_and_mixed_whatever_the_order_of_the_source() -> None:
    shards = Cut(7, seed=3).of_places(np.arange(700))
    assert (np.bincount(shards) == 100).all()
    assert len(set(shards[:7].tolist())) == 7
    assert shards[:7].tolist() != shards[7:14].tolist()
    assert (Cut(7, seed=4).of_places(np.arange(700)) != shards).any()


def test_a_record_has_the_same_shard_whoever_else_is_there() -> None:
    cut, places, persons = Cut(5), np.arange(93), np.arange(93) * 7
    for some in (places % 3 == 0, places > 40):
        assert (cut.of_places(places)[some] == cut.of_places(places[some])).all()
        assert (cut.of_persons(persons)[some] == cut.of_persons(persons[some])).all()


def test_a_record_that_cannot_be_read_is_missing_in_its_own_shard() -> None:
    x, y, _ = data_for()
    x[3, 1] = np.nan
    y[8] = -1
    records = Records(torch.from_numpy(x), torch.from_numpy(y))
    rows = problem_of(records, InThisProcess(train_functions.plain)).rows(START, Unit.RECORD)
    assert rows.matrix.isfinite().all()  # type: ignore[attr-defined]


def test_an_empty_shard_is_a_zero_row_and_nothing_is_called() -> None:
    def never(*_: Any) -> Any:
        raise AssertionError

    data = tuple(each[:0] for each in data_for())
    rows = problem_of(data, InThisProcess(never)).rows(START, Unit.RECORD)
    assert not rows.matrix.any()  # type: ignore[attr-defined]
    assert len(rows.matrix) == SHARDS  # type: ignore[attr-defined]


def test_whatever_raises_here_is_its_shards_own_matter(caplog: pytest.LogCaptureFixture) -> None:
    bad = InThisProcess(train_functions.raises)
    rows = problem_of(replaced(data_for(), 2), bad).rows(START, Unit.RECORD)
    assert int(rows.matrix.any(dim=1).sum()) == SHARDS - 1  # type: ignore[attr-defined]
    assert "a record made this function raise" in caplog.text


def test_clients_and_missing_persons_are_refused() -> None:
    made = problem_of(data_for(), InThisProcess(train_functions.plain))
    with pytest.raises(UnsoundPlan, match="leave the shards out"):
        made.rows(START, Unit.CLIENT)
    with pytest.raises(UnsoundPlan, match="name the column of persons"):
        made.rows(START, Unit.GROUP)
    with pytest.raises(UnsoundPlan, match="has no gradient"):
        made.gradient(START)
    with pytest.raises(UnsoundPlan, match="turn evaluation off"):
        made.metric_rows(START, Unit.RECORD, 5.0)


def test_rows_of_persons_are_clipped_to_half_and_say_the_whole_bound() -> None:
    rows = PersonShards(torch.eye(3) * 5)
    made = rows.clipped_sum(1.0)
    assert (made.bound, made.replace_bound) == (1.0, 2.0)
    assert float(made.vector.max()) <= 0.5
    assert max(float(block.norm(dim=1).max()) for block in rows.clipped_rows(1.0)) <= 0.5


@pytest.mark.long
@pytest.mark.slow
def test_the_rehearsal_shows_the_traceback_of_a_function_that_never_works() -> None:
    process = CleanProcess(CALL, f"{FUNCTIONS}:too_many")
    try:
        with pytest.raises(DataError, match="must return arrays of the shapes"):
            problem_of(data_for()[:2], process).made_up().rows(START, Unit.RECORD)
    finally:
        process.close()


def test_random_states_differ_by_shard_and_round() -> None:
    seen: list[int] = []

    class Looks(InThisProcess):
        def run(self, job: Mapping[str, Any], size: int, limits: Limits) -> Answer:
            seen.append(job["seed"])
            return super().run(job, size, limits)

    made = problem_of(data_for()[:2], Looks(train_functions.plain))
    made.rows(START, Unit.RECORD)
    made.rows(START + 1, Unit.RECORD)
    assert len(set(seen)) == 2 * SHARDS
    made.rows(START, Unit.RECORD)
    assert seen[-SHARDS:] == seen[:SHARDS]


def test_metrics_are_the_models() -> None:
    x, y, _ = data_for()
    records = Records(torch.from_numpy(x), torch.from_numpy(y))
    inner = MODEL.problem(records)
    made = problem_of(records, InThisProcess(train_functions.plain), model=inner)
    wanted = inner.metric_rows(START, Unit.RECORD, 5.0).clipped_sum(1.0).vector
    assert torch.equal(made.metric_rows(START, Unit.RECORD, 5.0).clipped_sum(1.0).vector, wanted)
    assert replace(made, model=None).model is None


def test_made_up_records_follow_the_public_size_alone() -> None:
    """A record that is lost must not show in a rehearsal."""
    x, y, _ = data_for()
    problems = [problem_of(data, None, declared=RECORDS) for data in ((x, y), (x[: SHARDS + 1], y))]
    sizes = [len(each.made_up().data[0]) for each in problems]
    assert sizes == [2 * -(-RECORDS // SHARDS)] * 2
