# SPDX-License-Identifier: Apache-2.0
"""Data as an app has it, by index: one shard of it, and made-up records of the same shape.

A part holds its own records and nothing else: arrays and tables are copied, the items of a data set
are fetched one by one. It has the kind of the whole, so that a train function sees no difference.

| data                                          | one shard of it                               |
|-----------------------------------------------|-----------------------------------------------|
| ``Records``                                   | (x, y) as NumPy arrays, readable records only |
| a tuple, list or mapping of arrays            | the same of the arrays' rows                  |
| an array, a tensor                            | its rows                                      |
| a table with ``iloc`` (pandas)                | its rows                                      |
| a DataLoader                                  | one over a part of its data set, with its     |
|                                               | batch size, order and collate function        |
| anything with a length and items (torch's and | a list of its items, as a data set            |
| Hugging Face's data sets)                     |                                               |
| anything else                                 | DataError                                     |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

from dpfed.core.errors import DataError
from dpfed.data.datasets import Records, unknown_labels

Index = NDArray[np.int64]
_ARRAYS = (np.ndarray, torch.Tensor)


class Items(Dataset[Any]):
    """Items that were fetched, as a data set.

    Args:
        items: one for each record.
    """

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = list(items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, at: int) -> Any:
        return self.items[at]


def count(data: Any) -> int:
    """How many records there are.

    Args:
        data: as the app has it.
    """
    if isinstance(data, DataLoader):
        return count(data.dataset)
    if _is_several(data):
        lengths = {len(each) for each in _columns(data)}
        if len(lengths) != 1:
            raise DataError(
                f"arrays of data in shards must have one row per record, got {sorted(lengths)}; "
                f"give as many labels as rows of features"
            )
        return lengths.pop()
    if not hasattr(data, "__len__") or not (
        hasattr(data, "__getitem__") or isinstance(data, Records)
    ):
        raise DataError(
            f"data in shards must have a length and items, got a {type(data).__name__}; give "
            f"arrays, a table, a data set with __len__ and __getitem__, or a DataLoader of one"
        )
    return len(data)


def part(data: Any, index: Index) -> Any:
    """One shard: a copy of these records, of the kind that the data is. Sensitive.

    Args:
        data: as the app has it.
        index: which records.
    """
    made = next((make for fits, make in _PARTS if fits(data)), _items)
    return made(data, index)


def _items(data: Any, index: Index) -> Items:
    return Items([data[int(at)] for at in index])


def _several(data: Any, index: Index) -> Any:
    if isinstance(data, Mapping):
        return {name: part(each, index) for name, each in data.items()}
    made = [part(each, index) for each in data]
    return tuple(made) if isinstance(data, tuple) else made


def _is(kind: type | tuple[type, ...]) -> Callable[[Any], bool]:
    return lambda data: isinstance(data, kind)


def _loader(like: DataLoader[Any], data: Any) -> DataLoader[Any]:
    """A loader over other data; a sampler or workers of the whole are not taken over."""
    shuffle = isinstance(like.sampler, RandomSampler)
    return DataLoader(
        data,
        batch_size=like.batch_size,
        shuffle=shuffle,
        collate_fn=like.collate_fn,
        drop_last=like.drop_last and (like.batch_size or 1) <= len(data),
    )


def _readable(records: Records) -> tuple[NDArray[Any], NDArray[Any]]:
    """Features and labels without records that cannot be used, as the library's own models do."""
    known = records.x.flatten(1).isfinite().all(dim=1) & ~unknown_labels(records.y).reshape(
        len(records), -1
    ).any(dim=1)
    return records.x[known].numpy().copy(), records.y[known].numpy().copy()


def _is_several(data: Any) -> bool:
    """Whether these are columns, each with one row per record."""
    if isinstance(data, Mapping):
        return True
    kinds = (tuple, list)
    return isinstance(data, kinds) and bool(data) and all(isinstance(e, _ARRAYS) for e in data)


_PARTS: tuple[tuple[Callable[[Any], bool], Callable[[Any, Index], Any]], ...] = (
    (_is(Records), lambda data, at: _readable(data.take(torch.from_numpy(at)))),
    (_is_several, _several),
    (_is(torch.Tensor), lambda data, at: data[torch.from_numpy(at)].clone()),
    (_is(np.ndarray), lambda data, at: data[at].copy()),
    (lambda data: hasattr(data, "iloc"), lambda data, at: data.iloc[at].copy()),
    (_is(DataLoader), lambda data, at: _loader(data, part(data.dataset, at))),
    (_is(TensorDataset), lambda data, at: TensorDataset(*part(data.tensors, at))),
)
"""Kinds of data, and what one shard of it is; of any other, its items."""


def _columns(data: Any) -> list[Any]:
    return list(data.values()) if isinstance(data, Mapping) else list(data)


def made_up(data: Any, records: int, classes: int | None = None) -> Any:
    """Made-up records of the shape and types of the first: numbers at random, labels in turn.

    Args:
        data: as the app has it; of its records only shapes and types are looked at.
        records: how many.
        classes: how many classes labels have; None takes two.
    """
    return _Imagined(np.arange(records) % (classes or 2)).data(data)


class _Imagined:
    """Made-up records with these labels."""

    def __init__(self, labels: Index) -> None:
        self.labels, self.random = labels, np.random.default_rng(0)

    def data(self, like: Any) -> Any:
        """Of the kind of other data."""
        if isinstance(like, Records):
            x, y = self.column(like.x.numpy()), self.column(like.y.numpy())
            return Records(torch.from_numpy(x), torch.from_numpy(y))
        if isinstance(like, Mapping):
            return {name: self.data(each) for name, each in like.items()}
        if _is_several(like):
            made = [self.data(each) for each in like]
            return tuple(made) if isinstance(like, tuple) else made
        return self._one(like)

    def _one(self, like: Any) -> Any:
        if isinstance(like, torch.Tensor):
            return torch.from_numpy(self.column(like.numpy()))
        if isinstance(like, np.ndarray):
            return self.column(like)
        if hasattr(like, "iloc"):
            return type(like)({name: self.column(like[name].to_numpy()) for name in like.columns})
        if isinstance(like, DataLoader):
            return _loader(like, self.data(like.dataset))
        if isinstance(like, TensorDataset):
            return TensorDataset(*self.data(like.tensors))
        return Items([self.item(like[0], int(label)) for label in self.labels])

    def column(self, like: NDArray[Any]) -> NDArray[Any]:
        """Numbers of the type of a column: whole ones are labels, if there is one per record."""
        shape = (len(self.labels), *like.shape[1:])
        if like.dtype.kind in "iub" and len(shape) == 1:
            return self.labels.astype(like.dtype)
        if like.dtype.kind in "iub":
            return self.random.integers(0, 2, shape).astype(like.dtype)
        if like.dtype.kind == "f":
            return self.random.uniform(size=shape).astype(like.dtype)
        return np.full(shape, "")  # words: a record's own must not be in a rehearsal

    def item(self, like: Any, label: int) -> Any:
        """One item of a data set: nested as another one is."""
        if isinstance(like, Mapping):
            return {name: self.item(each, label) for name, each in like.items()}
        if isinstance(like, tuple | list):
            made = [self.item(each, label) for each in like]
            return made if isinstance(like, list) else tuple(made)
        if isinstance(like, torch.Tensor):
            return torch.as_tensor(self.item(like.numpy(), label))
        if isinstance(like, np.ndarray) and like.ndim:
            return np.asarray(self.random.uniform(size=like.shape), like.dtype)
        return self._value(like, label)

    def _value(self, like: Any, label: int) -> Any:
        whole = (bool, int, np.integer)
        if isinstance(like, whole) or (isinstance(like, np.ndarray) and like.dtype.kind in "iub"):
            return np.asarray(label, getattr(like, "dtype", type(like)))[()]
        if isinstance(like, float | np.floating | np.ndarray):
            return self.random.uniform()
        if isinstance(like, str):
            return ""
        if hasattr(like, "mode") and hasattr(like, "size"):  # an image of Pillow's
            from PIL import Image

            return Image.new(like.mode, like.size)
        raise DataError(
            f"made-up records must be given for items of type {type(like).__name__}, which nothing "
            f"can be made up for; give made_up=, a function that returns some that are nobody's"
        )
