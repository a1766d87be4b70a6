# SPDX-License-Identifier: Apache-2.0
"""A user's train function as rows: one for each shard of a silo's records.

    source --> shard of each record --> one process per shard --> k rows --> clip, sum, noise
               (by its place alone)     (shard_process.py)

The records of a silo are divided into k shards. The function, as it is, trains on each shard from
the same parameters; the update of a shard is a row. One record is in one shard, so that replacing
it changes one row, whatever the function does: the clipped sum moves by at most twice the clip.

Guarantee: replacing a record by another one at its place changes one row; replacing a person's
records by those of another person changes at most two, the shards of both ids, and there rows are
clipped to half the clip. So the sum moves by at most twice the clip, if the train function reads no
data but its shard and leaves nothing outside its process. Nothing is claimed for a function that
wants to: it must be reviewed.

| edge case                                      | what happens                                   |
|------------------------------------------------|------------------------------------------------|
| a record that is lost, or that has no class    | it is missing in its shard; no other moves     |
| records of a table that are for testing only   | left out after each record has its shard       |
| the function raises, is late, dies, takes too  | its shard's row is zero; the local log has the |
| much memory, returns anything but d finite     | traceback                                      |
| numbers                                        |                                                |
| an empty shard                                 | a zero row; the function is not called         |
| a unit of clients                              | UnsoundPlan: use ``private`` without shards    |
| ids of persons that collide                    | 2^-63 a pair: the two count as one person      |
| records without places (made by an app)        | the place is the index in what the app loaded  |
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpfed.core.errors import DataError, UnsoundPlan, failures
from dpfed.core.log import log
from dpfed.core.metric import Judged, MetricRow
from dpfed.core.rows import Dense
from dpfed.core.types import BoundedSum, Problem, Rows, Unit, Vector
from dpfed.core.vector import Layout
from dpfed.data import shard_data
from dpfed.data.datasets import Records
from dpfed.data.shard_process import DEFAULT_LIMITS, Answer, CleanProcess, Limits

_MOST_LOGGED = 3  # tracebacks of a round

Index = NDArray[np.int64]
Pack = Callable[[Vector], dict[str, Any]]
"""From the parameters to what a shard's process gets of them."""


@dataclass(frozen=True)
class Cut:
    """Into how many shards records are divided, and by which public seed.

    Args:
        shards: how many.
        seed: of the division: the run's.

    >>> Cut(shards=4).of_places(np.arange(8)).tolist()
    [0, 3, 2, 1, 1, 0, 3, 2]
    """

    shards: int
    seed: int = 0

    def of_places(self, places: Index) -> Index:
        """The shard of each record, by its place in the source alone.

        Of each ``shards`` places that follow each other, every shard gets one, in an order that the
        seed decides: shards are even, and a sorted or periodic source is mixed.
        """
        if not len(places):
            return np.zeros(0, np.int64)
        blocks, within = np.divmod(places, self.shards)
        order = {int(block): self._order(int(block)) for block in np.unique(blocks)}
        pairs = zip(blocks.tolist(), within.tolist(), strict=True)
        return np.array([order[block][at] for block, at in pairs], np.int64)

    def _order(self, block: int) -> list[int]:
        """A permutation of the shards, from the seed and the number of a block."""
        keys = _hashed(self.seed, np.arange(self.shards) + block * self.shards)
        ranks: list[int] = np.argsort(np.argsort(keys, kind="stable"), kind="stable").tolist()
        return ranks

    def of_persons(self, ids: Index) -> Index:
        """The shard of each record, by a keyed hash of the id of its person."""
        found, inverse = np.unique(ids, return_inverse=True)
        key = hashlib.sha256(b"dpfed persons %d" % self.seed).digest()
        shards = [self._of_person(key, int(person)) for person in found]
        return np.array(shards, np.int64)[inverse]

    def _of_person(self, key: bytes, person: int) -> int:
        made = hashlib.blake2b(person.to_bytes(8, "big", signed=True), key=key, digest_size=16)
        return int.from_bytes(made.digest(), "big") % self.shards


def _hashed(seed: int, numbers: Index) -> NDArray[np.uint64]:
    """A fixed hash of numbers, the same in every version of every library (splitmix64)."""
    start = int.from_bytes(hashlib.sha256(b"dpfed shards %d" % seed).digest()[:8], "big")
    with np.errstate(over="ignore"):
        mixed = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = mixed + np.uint64(start)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@dataclass(frozen=True, eq=False)
class PersonShards(Dense):
    """Rows of which replacing a person may change two: each is clipped to half the clip."""

    def clipped_sum(self, clip: float) -> BoundedSum:
        """The sum; two rows of half the clip move it as far as one of the whole clip."""
        return replace(super().clipped_sum(clip / 2), bound=clip, replace_bound=2 * clip)

    def clipped_rows(self, clip: float) -> Iterator[torch.Tensor]:
        """The rows one by one."""
        return super().clipped_rows(clip / 2)


def parameters_of(layout: Layout) -> Pack:
    """Parameters as named NumPy arrays, as a train function gets them.

    Args:
        layout: the model's names and shapes.
    """

    def pack(params: Vector) -> dict[str, Any]:
        named = layout.unflatten(params.detach().cpu())
        return {"parameters": {name: each.numpy().copy() for name, each in named.items()}}

    return pack


@dataclass(frozen=True, eq=False)
class ShardedProblem:
    """A silo's records and a train function: its rows are those of the shards. Sensitive.

    Args:
        data: the records, as the app has them (shard_data.py).
        cut: how they are divided.
        dimension: the number of parameters.
        pack: what a shard's process gets of the parameters.
        process: where shards run.
        limits: what one shard may use.
        persons: a stable id for each record, where the unit is a person.
        model: the model on the same records, for metrics; None has none.
        classes: how many there are, for made-up records.
        stand_in: made-up records of the app's own; None makes some of the shape of the first.
        declared: the public number of units, which the number of made-up records follows; None
            means that the number of records is public.
    """

    data: Any
    cut: Cut
    dimension: int
    pack: Pack
    process: CleanProcess
    limits: Limits = DEFAULT_LIMITS
    persons: Index | None = None
    model: Problem | None = None
    classes: int | None = None
    stand_in: Any = None
    declared: float | None = None
    rehearsing: bool = field(default=False, kw_only=True)
    """Whether the records are made up: what goes wrong is then raised."""

    @property
    def code(self) -> tuple[str, str]:
        """What makes its rows: another function is rehearsed anew."""
        return self.process.call, self.process.function

    def rows(self, params: Vector, unit: Unit) -> Rows:
        """One row for each shard: the parameters before the function's work, less those after."""
        members = self.members(unit)
        packed = self.pack(params)
        made = np.zeros((self.cut.shards, self.dimension))
        failed = 0
        for shard, index in enumerate(members):
            if not len(index):
                continue
            answer = self._answer(shard, index, packed, params)
            if answer.row is not None:
                made[shard] = answer.row
                continue
            if self.rehearsing:
                raise DataError(
                    f"the train function must return {self.dimension} finite numbers for a shard "
                    f"of made-up records in {self.limits.seconds:g} s, and does not; correct it, "
                    f"or raise train.seconds and train.memory. What it said:\n{answer.said}"
                )
            failed += 1
            if failed <= _MOST_LOGGED:
                log.warning("shard %d has a zero row, nobody is told: %s", shard, answer.said)
        if failed:
            log.warning("%d of %d shards have zero rows: see above", failed, self.cut.shards)
        matrix = torch.from_numpy(made)
        return PersonShards(matrix) if unit is Unit.GROUP else Dense(matrix)

    def _answer(self, shard: int, index: Index, packed: dict[str, Any], params: Vector) -> Answer:
        """A shard's row; what goes wrong on its records is its own matter, here as well."""
        try:
            job = {
                **packed,
                "data": shard_data.part(self.data, index),
                "seed": _seed(params, shard),
            }
            if self.rehearsing:
                return self.process.try_out(job, self.dimension, self.limits)
            return self.process.run(job, self.dimension, self.limits)
        except failures() as error:
            if self.rehearsing:
                raise
            return Answer(None, f"{type(error).__name__}: {error}")

    def members(self, unit: Unit) -> list[Index]:
        """The records of each shard, by index. Sensitive."""
        return self._by_person if self._needs_persons(unit) else self._by_place

    def _needs_persons(self, unit: Unit) -> bool:
        if unit is Unit.CLIENT:
            raise UnsoundPlan(
                "privacy.unit must be record or group for a train function in shards, got client; "
                "leave the shards out: the whole update is then one row"
            )
        if unit is Unit.GROUP and self.persons is None:
            raise UnsoundPlan(
                "privacy.unit must be record for records without persons, got group; name the "
                "column of persons, or protect records"
            )
        return unit is Unit.GROUP

    @cached_property
    def _by_place(self) -> list[Index]:
        return self._divided(self.cut.of_places(_places(self.data)))

    @cached_property
    def _by_person(self) -> list[Index]:
        persons = np.zeros(0, np.int64) if self.persons is None else self.persons
        return self._divided(self.cut.of_persons(persons))

    def _divided(self, shards: Index) -> list[Index]:
        order = np.argsort(shards, kind="stable")
        ends = np.searchsorted(shards[order], np.arange(self.cut.shards + 1))
        return [order[a:b] for a, b in itertools.pairwise(ends)]

    def made_up(self) -> ShardedProblem:
        """One shard of made-up records: what is wrong with the function raises on them."""
        units = shard_data.count(self.data) if self.declared is None else self.declared
        size = max(2, 2 * math.ceil(units / self.cut.shards))
        made = self.stand_in
        if made is None:
            made = shard_data.made_up(self.data, size, self.classes)
        return replace(
            self,
            data=made,
            cut=replace(self.cut, shards=1),
            persons=np.zeros(shard_data.count(made), np.int64),
            model=_made_up(self.model),
            rehearsing=True,
        )

    def gradient(self, params: Vector) -> Vector:
        """Refused: a train function has none."""
        del params
        raise UnsoundPlan("a train function has no gradient; use client 'gradient' with it")

    def metric_rows(self, params: Vector, unit: Unit, loss_bound: float) -> Rows:
        """Per unit, by the model: records are judged one by one, whatever their shards."""
        return self._model().metric_rows(params, unit, loss_bound)

    def judged(self, params: Vector, unit: Unit, row: MetricRow) -> torch.Tensor:
        """Per unit the mean of a metric's row, by the model."""
        model = self._model()
        if not isinstance(model, Judged):
            raise UnsoundPlan(
                f"evaluation.metrics needs a problem with a function judged, got a "
                f"{type(model).__name__}; leave evaluation.metrics out"
            )
        return model.judged(params, unit, row)

    def _model(self) -> Problem:
        if self.model is None:
            raise UnsoundPlan(
                "a train function of an app has no metrics to release, since dpfed does not know "
                "the model; turn evaluation off"
            )
        return self.model


def _made_up(model: Problem | None) -> Any:
    make = getattr(model, "made_up", None)
    return model if make is None else make()


def _places(data: Any) -> Index:
    """Where each record is in its source, before anything was left out."""
    if isinstance(data, Records) and data.places is not None:
        places: Index = data.places.numpy()
        return places
    return np.arange(shard_data.count(data))


def _seed(params: Vector, shard: int) -> int:
    """Random states of a shard's process: another one in each round, from public values alone."""
    content = params.detach().cpu().numpy().tobytes()
    made = hashlib.blake2b(content, key=shard.to_bytes(8, "big"), digest_size=8)
    return int.from_bytes(made.digest(), "big") >> 1
