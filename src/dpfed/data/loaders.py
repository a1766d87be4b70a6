# SPDX-License-Identifier: Apache-2.0
"""What people have their records in, as records by index: a DataLoader, a stream, a data set.

A DataLoader's own batches are not used: a guarantee needs single records, drawn as the plan says.
What is taken of it is its data set, and its collate function, called with one record at a time.

A stream (an IterableDataset, a Hugging Face data set with ``streaming=True``) is read again from
its beginning in each pass, one record in memory. How many records it has is declared in public:
what is beyond that number is never used, and what is missing is a record that cannot be read. So
nothing that leaves a client says how many there really were.

Guarantee: what is refused here is refused by types and settings; no record is read for it.

| edge case                                          | what happens                               |
|----------------------------------------------------|--------------------------------------------|
| a DataLoader's batch_size, shuffle, drop_last      | not used; a warning in the local log       |
| a sampler that may leave records out               | DataError: give a Subset                   |
| a stream without a declared number of records      | DataError                                  |
| a stream that cannot begin again (an iterator)     | DataError                                  |
| a Hugging Face stream with map, filter or batch    | DataError: such steps see other records,   |
|                                                    | or end the stream; collate does their work |
| more records than declared                         | are never read                             |
| fewer                                              | zero rows; the local log says so           |
| a stream that raises at a record                   | that record is not usable; a Hugging Face  |
|                                                    | stream goes on after it                    |
| another stream that ends by raising                | the later records are missing, which no    |
|                                                    | guarantee covers: an error in the local log|
| a DatasetDict, a data frame, a text                | DataError that says what to give           |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    default_convert,
)

from dpfed.core.checks import value_in_words
from dpfed.core.errors import DataError, failures
from dpfed.core.log import log

Collate = Callable[[list[Any]], Any]

_TAKE_ALL = (SequentialSampler, RandomSampler, WeightedRandomSampler)
"""Samplers that say in which order, or how often: all records of the data set are meant."""
_ONE_TO_ONE = frozenset(
    {
        "ExamplesIterable",
        "ArrowExamplesIterable",
        "RebatchedArrowExamplesIterable",
        "FormattedExamplesIterable",
        "SelectColumnsIterable",
        "SkipExamplesIterable",
        "TakeExamplesIterable",
        "StepExamplesIterable",
        "InterleavedShardsExamplesIterable",
        "BufferShuffledExamplesIterable",
        "ShuffledDataSourcesExamplesIterable",
        "ShuffledDataSourcesArrowExamplesIterable",
    }
)
"""Steps of a Hugging Face stream that neither change nor choose records by what they hold."""


def of_loader(data: Any, collate: Collate | None) -> tuple[Any, Collate | None]:
    """A DataLoader's data set and collate function; all else as it is.

    Args:
        data: what may be a DataLoader.
        collate: what the caller wants in the place of the loader's.
    """
    if not isinstance(data, DataLoader):
        return data, collate
    _open(data)
    return data.dataset, collate or _own_collate(data)


def _open(loader: DataLoader[Any]) -> None:
    """Say what of a loader is not used, or refuse it."""
    if not isinstance(loader.dataset, IterableDataset):
        _refuse_choosing(loader)
    log.warning(
        "of the DataLoader its data set and collate are used; batch_size, shuffle, sampler and "
        "drop_last are not: dpfed reads single records, and draws batches itself by "
        "privacy.record_rate"
    )


def _refuse_choosing(loader: DataLoader[Any]) -> None:
    """Refuse a sampler that may leave records out: all would be trained on."""
    batches = loader.batch_sampler
    own = batches is not None and type(batches) is not BatchSampler
    chooser: Any = batches if own else loader.sampler
    if own or not isinstance(chooser, _TAKE_ALL):
        raise DataError(
            f"a DataLoader's sampler must be one that leaves no record out, got a "
            f"{type(chooser).__name__}, which is not used here; give its data set, or "
            f"torch.utils.data.Subset(loader.dataset, indices)"
        )


def _own_collate(loader: DataLoader[Any]) -> Collate | None:
    """None if it is torch's: what can become a tensor is taken as it is."""
    own: Any = loader.collate_fn
    if own in (default_collate, default_convert):
        return None
    if loader.batch_sampler is None:  # it is called with a record, and not with a list of them
        return lambda records: default_collate([own(records[0])])
    return own  # type: ignore[no-any-return]


def tensors_of(data: Any) -> tuple[Any, Any] | None:
    """(inputs, targets) of a TensorDataset, or of a part of one; None of anything else.

    Args:
        data: a data set, or a DataLoader of one with torch's own collate.
    """
    if isinstance(data, DataLoader) and _own_collate(data) is None:
        found = tensors_of(data.dataset)
        if found is not None:
            _open(data)
        return found
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        return data.tensors[0], data.tensors[1]
    if isinstance(data, Subset):
        whole = tensors_of(data.dataset)
        if whole is not None:
            index = list(data.indices)
            return whole[0][index], whole[1][index]
    return None


# ---------------------------------------------------------------------------------------- streams


def by_index(data: Any, count: int | None) -> Any:
    """A data set as it is; a stream as one that has a record at each index.

    Args:
        data: a data set or a stream.
        count: the public number of records of a stream.
    """
    refuse_strange(data)
    lacking = [name for name in ("__len__", "__getitem__") if not hasattr(type(data), name)]
    if not lacking and not isinstance(data, IterableDataset):
        if count is not None:
            raise DataError(
                f"count must be left out for a data set that has a length, {len(data)}; it "
                f"declares the records of a stream"
            )
        return data
    if not hasattr(type(data), "__iter__"):
        raise DataError(
            f"a data set must have __len__ and __getitem__, got a {type(data).__name__}, which "
            f"lacks {' and '.join(lacking)}; give what a DataLoader is made of (loader.dataset), "
            f"or a list of the records"
        )
    if hasattr(type(data), "__next__"):
        raise DataError(
            f"a stream must be able to begin again in each round, and a {type(data).__name__} "
            f"cannot; give an object whose __iter__ makes a new one, or a list of the records "
            f"(with __getitem__), or loader.dataset"
        )
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise DataError(
            f"a {type(data).__name__} is a stream without __len__ and __getitem__, so the number "
            f"of its records must be declared in public, got {value_in_words(count)}; give "
            f"count=1000, say, or a data set with a length, such as a list or loader.dataset"
        )
    _refuse_steps(data)
    return Stream(data, count)


def refuse_strange(data: Any) -> None:
    """Refuse what has a length and entries, and no records at its indices."""
    if isinstance(data, Mapping):
        parts = ", ".join(map(str, list(data)[:4]))
        raise DataError(
            f"a data set must have a record at each index, got a {type(data).__name__} with the "
            f"keys {parts}; give one of its parts, such as data['train'], or (x, y)"
        )
    if isinstance(data, str):
        raise DataError(
            f"a data set must have a record at each index, got the text {data!r}; open it first, "
            f"or read a file by dpfed.flower.read_records(source=...)"
        )
    if hasattr(data, "columns") and hasattr(data, "to_numpy"):
        raise DataError(
            f"a data set must have a record at each index, got a {type(data).__name__}; give "
            f"(x, y), that is (frame[features], frame[label])"
        )


def _refuse_steps(stream: Any) -> None:
    """Refuse steps of a Hugging Face stream by which a record may move others."""
    step, found = getattr(stream, "_ex_iterable", None), []
    while step is not None:
        found.append(type(step).__name__)
        step = getattr(step, "ex_iterable", None)
    strange = [name for name in found if name not in _ONE_TO_ONE]
    if strange:
        raise DataError(
            f"a Hugging Face stream must hand on its records one by one, and one of its steps "
            f"(map, filter, batch, rename, interleave: {strange[0]}) may let one record move or "
            f"end others; give the stream before that step, and do its work in collate="
        )


class Stream:
    """A stream as a data set of a declared length: read again from its beginning in each pass.

    Args:
        source: has an ``__iter__`` that begins anew.
        count: how many records it has, in public.

    >>> stream = Stream([5, 6, 7], count=2)
    >>> len(stream), stream[1], stream[0]
    (2, 6, 5)
    """

    def __init__(self, source: Iterable[Any], count: int) -> None:
        self.source, self.count = source, count
        self._iterator: Iterator[Any] | None = None
        self._next = 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> Any:
        """The record at an index; one that is missing, or cannot be read, raises."""
        if self._iterator is None or at < self._next:
            self._iterator, self._next = iter(self.source), 0
        while self._next < at:
            try:
                self._pull()
            except _Ended:
                raise
            except failures():
                continue  # whoever asked for that one has its error
        return self._pull()

    def _pull(self) -> Any:
        at, self._next = self._next, self._next + 1
        try:
            return next(self._iterator)  # type: ignore[arg-type]  # __getitem__ has made it
        except StopIteration:
            raise _Ended(f"the stream has {at} records of {self.count} declared") from None
        except failures() as error:
            self._resume(at + 1, error)
            raise

    def _resume(self, after: int, error: BaseException) -> None:
        """Go on after a record at which the stream raised: a generator is finished by it."""
        if hasattr(self.source, "skip"):
            self._iterator = iter(self.source.skip(after))
            return
        log.error(
            "the stream raised %s at record %d: if it ends there, later records are missing, and "
            "the guarantee does not cover that one record decides this; do what can fail in "
            "collate=",
            type(error).__name__,
            after - 1,
        )


class _Ended(LookupError):
    """There are fewer records than declared."""
