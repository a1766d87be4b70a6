# SPDX-License-Identifier: Apache-2.0
"""Records that are read when they are needed: an index goes in, a batch comes out.

A client's records may be tensors or arrays of any type, a dict of them (what a transformer takes),
or a data set of torch or Hugging Face, a DataLoader or a stream (loaders.py), with a collate
function. Of what is no array nothing is loaded at once: draws, groups and labels go by index, and
memory is that of one batch.

A data set's records are collated one by one and brought to the shapes of a public example, so that
no record decides how long the others are padded: the row of one record must not depend on another.

Guarantee: no record makes ``read`` raise, or changes the shape of a batch; what cannot be read is
the example in its place, and not ``usable``.

| edge case                                         | what happens                              |
|---------------------------------------------------|-------------------------------------------|
| a record that the data set or collate raises on   | not usable; a line in the local log       |
| a record that lacks a tensor of the example       | not usable, likewise                      |
| a shorter or longer tensor, ``fill`` has its name | filled up or cut, along all its axes      |
| another shape, and no ``fill``; other axes        | not usable, likewise                      |
| a DataLoader, a stream                            | loaders.py                                |
| a data set without ``__len__`` or ``__getitem__`` | DataError when batches are made: by its   |
|                                                   | type, and no record is read               |
| ``fill`` lacks a tensor of the example that has   | DataError when batches are made: of other |
| axes of its own, or names one that it lacks       | lengths, no record could be read          |
| made-up records that cannot be read or filled up  | DataError when batches are made           |
| tensors of unequal length                         | DataError when batches are made           |
| a batch without targets                           | DataError when batches are made           |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn import functional

from dpfed.core.checks import value_in_words
from dpfed.core.errors import DataError, failures
from dpfed.core.log import log, places
from dpfed.data import loaders
from dpfed.data.datasets import Records
from dpfed.data.models import made_up

Inputs = torch.Tensor | dict[str, torch.Tensor]
"""What a module is called with: one tensor, or keywords."""

SEEDS = "dpfed seeds"
"""The name of the records' seeds (masks.py) among a batch's tensors."""


@dataclass(frozen=True, eq=False, repr=False)
class Batch:
    """Some records: the module's inputs, and the targets of its outputs. Sensitive."""

    inputs: Inputs
    targets: torch.Tensor
    usable: torch.Tensor | None = None
    """Which records count, bool [k]; None means all of them."""
    seeds: torch.Tensor | None = None
    """A number from each record's content, if dropout masks are drawn (masks.py), int64 [k]."""

    def __repr__(self) -> str:
        shapes = {name: tuple(each.shape) for name, each in self.tensors().items()}
        return f"Batch({shapes})"  # no values: records are sensitive

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: Any) -> Batch:
        usable, seeds = (None if t is None else t[index] for t in (self.usable, self.seeds))
        return Batch(_each(lambda t: t[index], self.inputs), self.targets[index], usable, seeds)

    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors by name: ``x`` if there is one input, and ``targets``; seeds, if any."""
        inputs = self.inputs if isinstance(self.inputs, dict) else {"x": self.inputs}
        seeds = {} if self.seeds is None else {SEEDS: self.seeds}
        return {**inputs, "targets": self.targets, **seeds}

    def like(self, tensors: Mapping[str, torch.Tensor]) -> Batch:
        """A batch of the same kind from named tensors."""
        inputs = {n: each for n, each in tensors.items() if n not in ("targets", SEEDS)}
        one = inputs if isinstance(self.inputs, dict) else inputs["x"]
        return Batch(one, tensors["targets"], self.usable, tensors.get(SEEDS))

    def to(self, device: torch.device | str) -> Batch:
        """The batch on a device."""
        return self.like({name: each.to(device) for name, each in self.tensors().items()})

    def filled(self, size: int, empty: Batch) -> Batch:
        """``size`` records, copies of ``empty`` (one record) after the last one."""
        missing = size - len(self)
        if missing <= 0:
            return self
        ends = empty.seeded().tensors()
        made = {
            name: torch.cat([each, ends[name].to(each).expand(missing, *each.shape[1:])])
            for name, each in self.tensors().items()
        }
        return replace(self, usable=None).like(made)

    def seeded(self) -> Batch:
        """The batch with seeds; made-up records have 0."""
        if self.seeds is not None:
            return self
        return replace(self, seeds=torch.zeros(len(self), dtype=torch.int64))

    def without(self, failed: torch.Tensor, empty: Batch) -> Batch:
        """The batch with copies of ``empty`` in the place of the records in ``failed``."""
        ends, made = empty.seeded().tensors(), {}
        for name, each in self.tensors().items():
            made[name] = each.clone()
            made[name][failed] = ends[name].to(each)
        return self.like(made)


def _each(change: Callable[[torch.Tensor], torch.Tensor], inputs: Inputs) -> Inputs:
    if isinstance(inputs, dict):
        return {name: change(each) for name, each in inputs.items()}
    return change(inputs)


@dataclass(frozen=True, eq=False, repr=False)
class Batches:
    """One client's records, read by index. Make it with ``tensor_batches`` or ``dataset_batches``.

    ``stand_in`` are three made-up records of the same shapes and types: public.
    """

    read: Callable[[torch.Tensor], Batch]
    count: int
    stand_in: Batch
    groups: torch.Tensor | None = None
    """Whose record each one is, int64 [records]."""
    most: int = 512
    """How many are read at a time, at most."""
    change: Callable[[Batch, bytes], Batch] | None = None
    """Augmentation (augment.py): (records, turn) -> the records that training sees."""
    labels: torch.Tensor | None = None
    """All targets, if they are in memory."""

    def __post_init__(self) -> None:
        if self.groups is not None and len(self.groups) != self.count:
            raise DataError(
                f"groups must be one number per record, {self.count} in all, got "
                f"{len(self.groups)}; give as many as there are records"
            )

    def __repr__(self) -> str:
        made = self.stand_in.tensors().items()
        return f"Batches({self.count} records of { {n: tuple(t.shape[1:]) for n, t in made} })"

    def __len__(self) -> int:
        return self.count

    def take(self, index: torch.Tensor) -> Batches:
        """The records at ``index``, in its order; none of them is read."""
        index = torch.nonzero(index).squeeze(1) if index.dtype == torch.bool else index
        groups, labels = (None if t is None else t[index] for t in (self.groups, self.labels))
        return replace(
            self,
            read=lambda part: self.read(index[part]),
            count=len(index),
            groups=groups,
            labels=labels,
        )

    def at(self, turn: bytes) -> Batches:
        """The records as training sees them at one turn."""
        change = self.change
        if change is None:
            return self
        return replace(self, read=lambda index: change(self.read(index), turn), change=None)

    def made_up(self) -> Batches:
        """Three made-up records of two persons, to try code on."""
        made = self.stand_in
        people = None if self.groups is None else torch.tensor([0, 1, 1])
        return replace(self, read=lambda index: made[index], count=3, groups=people, labels=None)


def tensor_batches(
    inputs: ArrayLike | Mapping[str, ArrayLike],
    targets: ArrayLike,
    groups: ArrayLike | None = None,
) -> Batches:
    """Records that lie in tensors or arrays, one row per record.

    Tensors stay as they are. Of arrays and data frames, numbers in double precision become single,
    and whole labels int64.

    Args:
        inputs: what the module is called with: a tensor or an array, or a dict of them, its
            keywords.
        targets: labels or numbers, as the loss takes them.
        groups: whose record each one is, whole numbers; None if nobody has several.

    Returns:
        the records by index, as ``Network.problem`` takes them.

    >>> len(tensor_batches(torch.zeros(5, 3), torch.zeros(5, dtype=torch.int64)))
    5
    """
    made: Inputs = (
        {name: as_tensor(name, each) for name, each in inputs.items()}
        if isinstance(inputs, Mapping) and not hasattr(inputs, "to_numpy")
        else as_tensor("inputs", inputs)
    )
    targets = as_tensor("targets", targets, labels=True)
    groups = None if groups is None else as_tensor("groups", groups, labels=True)
    whole = Batch(made, targets)
    lengths = {len(each) for each in whole.tensors().values()}
    if len(lengths) != 1:
        raise DataError(
            f"inputs and targets must have one row per record, got lengths {sorted(lengths)}; "
            "give as many of each"
        )
    stand_in = whole.like({name: _three(each) for name, each in whole.tensors().items()})
    targets_made = targets.new_zeros(3, *targets.shape[1:])
    stand_in = replace(stand_in, targets=targets_made)
    return Batches(lambda index: whole[index], len(targets), stand_in, groups, labels=targets)


def _three(like: torch.Tensor) -> torch.Tensor:
    made, _, _ = made_up(like, like, None)
    return made


ArrayLike = Any
"""A tensor, or what NumPy makes an array of: an array, a data frame or its columns, a list."""


def as_tensor(name: str, given: ArrayLike, *, labels: bool = False) -> torch.Tensor:
    """A tensor as it is; an array as one, in single precision.

    Args:
        name: what it is, for the error.
        given: a tensor, or what NumPy makes an array of.
        labels: whether whole numbers shall be int64, as losses take them.
    """
    if isinstance(given, torch.Tensor):
        return given
    try:
        array = np.asarray(given)
    except Exception as error:
        raise _no_numbers(name, type(given).__name__) from error
    if array.dtype == object and array.ndim == 2:  # a data frame of several types
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise _no_numbers(name, "columns of words") from error
    if array.dtype.kind not in "biuf" or not array.ndim:
        raise _no_numbers(name, f"a {type(given).__name__} of {array.dtype}")
    if array.dtype.kind == "f":
        array = array.astype(np.float32)
    elif labels or (array.dtype.kind == "u" and array.dtype.itemsize > 1):
        array = array.astype(np.int64)
    return torch.from_numpy(np.ascontiguousarray(array))


def _no_numbers(name: str, got: str) -> DataError:
    return DataError(
        f"{name} must be a tensor or an array of numbers, one row per record, got {got}; number "
        f"classes from 0 by a public list, encode words, and give arrays"
    )


def record_batches(records: Any, example: Any = None, **how: Any) -> Batches:
    """Records in any form as batches.

    Args:
        records: ``Records``, ``Batches``; (x, y) of tensors, arrays or data frames; a data set, a
            DataLoader or a stream.
        example: one made-up record, for what is read by index and is no TensorDataset.
        **how: the other arguments of ``dataset_batches``.
    """
    if isinstance(records, Batches):
        _refuse_example(records, example, how)
        return records
    if isinstance(records, Records):
        _refuse_example(records, example, how)
        return tensor_batches(records.x, records.y, records.groups)
    if isinstance(records, tuple) and len(records) in (2, 3):
        _refuse_example(records, example, how)
        return tensor_batches(*records)
    if example is not None:
        return dataset_batches(records, example, **how)
    tensors = None if how.get("collate") else loaders.tensors_of(records)
    if tensors is not None:
        _refuse_example(records, None, {n: each for n, each in how.items() if n != "groups"})
        return tensor_batches(*tensors, groups=how.get("groups"))
    loaders.refuse_strange(records)
    raise DataError(
        f"a {type(records).__name__} needs example=, one made-up record of the shape that all "
        f"have, such as example=(torch.zeros(3, 32, 32), 0): no record of yours may decide the "
        f"shape of the others; or give (x, y), two arrays"
    )


def _refuse_example(records: Any, example: Any, how: Mapping[str, Any]) -> None:
    given = ["example"] * (example is not None) + [n for n, each in how.items() if each is not None]
    if given:
        raise DataError(
            f"{given[0]} is for data sets that are read by index, got it beside "
            f"{type(records).__name__}; leave it out"
        )


# ------------------------------------------------------------------------------ map-style data sets


class MapStyle(Protocol):
    """A data set of torch or of Hugging Face: a length, and a record at each index."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


def dataset_batches(
    dataset: MapStyle | Iterable[Any],
    example: Any,
    *,
    collate: Callable[[list[Any]], Any] | None = None,
    target: str = "labels",
    fill: Mapping[str, float | None] | None = None,
    groups: torch.Tensor | Sequence[int] | None = None,
    most: int = 64,
    count: int | None = None,
) -> Batches:
    """Records of a data set, a DataLoader or a stream, each one read and collated on its own.

    Args:
        dataset: what gives a record for an index: of torch, or of Hugging Face ``datasets``; or a
            DataLoader of it, whose collate is used, and whose batches and order are not; or a
            stream.
        example: one made-up record as the data set gives them: public. Its shapes are everyone's.
        collate: a list of one record -> (inputs, targets), or a dict with targets in it; None takes
            what can become a tensor as it is.
        target: the key of the targets in a dict.
        fill: by name of a tensor ("x" and "targets" in a pair), the number that shorter ones are
            filled up with, as a tokenizer's padding does: longer ones are cut. It names every
            tensor of the example that has axes of its own; the number is None for one whose shape
            never differs. Without ``fill`` no shape may differ.
        groups: whose record each one is; None if nobody has several.
        most: how many records are in memory at a time, at least 1.
        count: of a stream, the public number of its records: more are not used, and missing ones
            are records that cannot be read.

    Returns:
        the records by index, as ``Network.problem`` takes them.

    >>> records = [(torch.ones(3), 0), (torch.zeros(3), 1)]
    >>> len(dataset_batches(records, example=(torch.zeros(3), 0)))
    2
    """
    data, collate = loaders.of_loader(dataset, collate)
    read = loaders.by_index(data, count)
    collated = collate or _plain
    try:
        made = _batch(collated([example]), target)
    except Exception as error:
        raise DataError(
            f"the example must be a record as the data set gives them, with targets, and cannot be "
            f"collated ({type(error).__name__}: {error}); give one, with its {target!r}, or name "
            f"the targets' key in target="
        ) from error
    names = made.tensors()
    _refuse_unbatched(names)
    _refuse_unfilled(names, fill)
    known = {name: value for name, value in (fill or {}).items() if value is not None}
    reader = _Reader(dataset=read, collate=collated, target=target, fill=known, empty=made)
    _try_reading(reader, example)
    turned = made.like({name: _turned(each) for name, each in names.items()})
    both = {name: torch.cat([t, turned.tensors()[name], t]) for name, t in names.items()}
    ids = None if groups is None else torch.as_tensor(groups, dtype=torch.int64)
    return Batches(read=reader, count=len(read), stand_in=made.like(both), groups=ids, most=most)


def _refuse_unbatched(example: Mapping[str, Any]) -> None:
    """Refuse a collate that does not make a batch of one record."""
    for name, each in example.items():
        if not isinstance(each, torch.Tensor) or not each.dim() or len(each) != 1:
            shape = tuple(each.shape) if isinstance(each, torch.Tensor) else type(each).__name__
            raise DataError(
                f"collate must make a batch of its one record, tensors with a first axis of 1, got "
                f"{name} of {shape}; add the axis, as x[None] and torch.tensor([label])"
            )


def _refuse_unfilled(
    example: Mapping[str, torch.Tensor], fill: Mapping[str, float | None] | None
) -> None:
    """Refuse a ``fill`` that forgets a tensor: records of other lengths would all be left out."""
    if not fill:
        return
    open_ended = [name for name, each in example.items() if each.dim() > 1]
    forgotten = [name for name in open_ended if name not in fill]
    if forgotten:
        raise DataError(
            f"fill must name each tensor of the example that has axes of its own, got "
            f"{value_in_words(sorted(fill))} without {forgotten[0]!r}: a record whose "
            f"{forgotten[0]} is of another length could not be read; add {forgotten[0]!r}: 0, or "
            f"None if its length never differs"
        )
    strange = sorted(fill.keys() - example.keys())
    if strange:
        raise DataError(
            f"fill must name tensors of the example, which has {sorted(example)}, got "
            f"{strange[0]!r}; leave it out, or add it to the example"
        )


def _try_reading(reader: _Reader, example: Any) -> None:
    """Refuse a reader that cannot read made-up records: it could read no others.

    They are the example once more, and the example with the tensors in ``fill`` cut to one element.
    """
    try:
        for most in (None, 1):
            made = _batch(reader.collate([example]), reader.target).tensors()
            for name, like in reader.empty.tensors().items():
                cut = most if name in reader.fill and like.dim() > 1 else None
                reader._fitted(name, made[name][:, :cut] if cut else made[name], like)
    except Exception as error:
        raise DataError(
            f"the example must be readable as a record, and is not ({type(error).__name__}: "
            f"{error}), so that no record would be; correct collate or fill"
        ) from error


def _turned(record: torch.Tensor) -> torch.Tensor:
    """Another record of the same values: the second made-up one."""
    return record.roll(1, dims=1) if record.dim() > 1 else record


class _OtherShape(ValueError):
    """A tensor of a record has not the example's shape; the words say nothing of the record."""


@dataclass(frozen=True, eq=False)
class _Reader:
    """Reads records one by one; an error in one of them does not change the others."""

    dataset: MapStyle
    collate: Callable[[list[Any]], Any]
    target: str
    fill: dict[str, float]
    empty: Batch

    def __call__(self, index: torch.Tensor) -> Batch:
        found = [self._record(int(at)) for at in index]
        lost = [each for each in found if isinstance(each, str)]
        usable = torch.tensor([not isinstance(each, str) for each in found], dtype=torch.bool)
        if lost:
            log.warning(
                "%d of %d records cannot be read, the first by %s; they are ignored",
                len(lost),
                len(index),
                lost[0],
            )
        records = [self.empty if isinstance(each, str) else each for each in found]
        if not records:
            return self.empty[:0]
        named = [each.tensors() for each in records]
        whole = {name: torch.cat([each[name] for each in named]) for name in named[0]}
        return replace(self.empty.like(whole), usable=usable)

    def _record(self, at: int) -> Batch | str:
        """The record at an index; why, if it is not like the example."""
        try:
            made = _batch(self.collate([self.dataset[at]]), self.target).tensors()
            whole = {n: self._fitted(n, made[n], e) for n, e in self.empty.tensors().items()}
            return self.empty.like(whole)
        except failures() as error:
            log.debug("record %d cannot be read: %s", at, places(error))
            return str(error) if isinstance(error, _OtherShape) else type(error).__name__

    def _fitted(self, name: str, tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """The tensor in the example's shape and type."""
        if tensor.shape != like.shape:
            if tensor.dim() != like.dim() or name not in self.fill:
                raise _OtherShape(
                    f"a shape of {name} that is not the example's {tuple(like.shape[1:])} (name it "
                    f"in fill, or correct collate)"
                )
            value = self.fill[name]
            tensor = tensor[tuple(slice(size) for size in like.shape)]
            missing = [w - g for w, g in zip(like.shape, tensor.shape, strict=True)]
            ends = [end for short in reversed(missing) for end in (0, short)]
            tensor = functional.pad(tensor, ends, value=value)
        return tensor.to(like.dtype)


def _batch(collated: Any, target: str) -> Batch:
    """What a collate function made of one record; columns that are no tensors are left out."""
    if not isinstance(collated, Mapping):
        inputs, targets = collated
        return Batch(dict(inputs) if isinstance(inputs, Mapping) else inputs, targets)
    named = {name: each for name, each in collated.items() if isinstance(each, torch.Tensor)}
    return Batch(named, named.pop(target))


def _plain(records: list[Any]) -> Any:
    """A batch of one record: what can become a tensor, with one axis more."""
    record = records[0]
    if isinstance(record, Mapping):
        known = {name: _tensor(value) for name, value in record.items()}
        return {name: each for name, each in known.items() if each is not None}
    x, y = record
    return torch.as_tensor(x)[None], torch.as_tensor(y)[None]


def _tensor(value: Any) -> torch.Tensor | None:
    """The value as a tensor with an axis for records; None for texts and the like."""
    try:
        return torch.as_tensor(value)[None]
    except (TypeError, ValueError, RuntimeError):
        return None
