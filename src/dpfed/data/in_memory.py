# SPDX-License-Identifier: Apache-2.0
"""Records that a caller of ``dpfed.run`` has in memory: arrays, data frames, data sets.

============================== ====================================================================
(x, y), (x, y, groups)         arrays, tensors or data frames' columns; as in an .npz
{"x_train": ..., ...}          a dict of arrays: their names are those of an .npz
a data frame                   of pandas, polars or pyarrow: as a table in a file
a TensorDataset, a part of it, its tensors
a DataLoader of one
``dataset_batches(...)``       any data set or stream, with its public example; all is read at once
============================== ====================================================================

They become what the same data become in a file (datasets.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dpfed.core.errors import DataError
from dpfed.core.extras import require_extra
from dpfed.core.registry import kept_object
from dpfed.data import loaders, readers, tables
from dpfed.data.batches import Batches
from dpfed.data.datasets import Records


@dataclass(frozen=True, eq=False, repr=False)
class Found:
    """Arrays of records, and what a result says of them."""

    parts: dict[str, readers.TablePart]
    words: str
    facts: tables.TableFacts | None = None
    public: readers.Public | None = None
    """What is public of the labels, if unreadable records are among them."""
    records: Records | None = None
    """The records as they are, if they have several labels each: tokens, voxels, findings."""


def read(
    name: str,
    columns: readers.Columns,
    schema: Mapping[str, Sequence[Any]] | None,
    classes: int | None,
) -> Found:
    """The arrays of an object.

    Args:
        name: as ``keep_object`` has named it.
        columns: which columns or arrays to read, where they have names.
        schema: of a data frame, the public range or categories of each feature column.
        classes: the public number of classes, if the caller says it.
    """
    given = kept_object("data", name)
    if is_frame(given):
        parts, facts = tables.read_frame(_arrow(given), columns, schema)
        return Found(parts, "a data frame given in Python", facts)
    if schema:
        raise DataError("data.schema is for tables, got arrays; give a data frame, or leave it out")
    if isinstance(given, Batches):
        return _of_batches(given, classes)
    if isinstance(given, Mapping):
        arrays = {key: _array(key, each) for key, each in given.items()}
        parts = readers.parts_of(arrays, columns, "the dict of arrays")
        return Found(parts, "arrays given in Python")
    if isinstance(given, tuple) and len(given) in (2, 3):
        x, y, *groups = (_array(n, each) for n, each in zip("xyg", given, strict=False))
        part, words = _same_length(x, y, *groups), "arrays given in Python"
        if y.ndim > 1 and y.shape[1:] != (1,):
            return Found({}, words, records=_of_several(part))
        return Found({"train": part}, words)
    tensors = loaders.tensors_of(given)
    if tensors is not None:
        x, y = (each.detach().cpu().numpy() for each in tensors)
        return Found({"train": readers.TablePart(x, y)}, "a TensorDataset given in Python")
    raise DataError(
        f"data must be (x, y) of arrays, a dict of arrays, a data frame or a TensorDataset, got a "
        f"{type(given).__name__}; give dataset_batches(data, example=...) of dpfed.flower, with "
        f"one made-up record as example"
    )


def is_frame(given: Any) -> bool:
    """Whether it is a data frame: of pandas, polars or pyarrow."""
    return hasattr(given, "columns") and (hasattr(given, "to_numpy") or hasattr(given, "to_pandas"))


def _arrow(frame: Any) -> Any:
    with require_extra("tables", "a data frame", "pyarrow"):
        import pyarrow as pa
    try:
        if isinstance(frame, pa.Table):
            table = frame
        elif hasattr(frame, "__arrow_c_stream__"):
            table = pa.table(frame)
        else:
            table = pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError):
        raise DataError(
            "a data frame must hold one kind of value in each column, and a column holds several; "
            "convert it with astype(str), or to numbers"
        ) from None  # Arrow's error may quote a cell
    return table.cast(pa.schema([(each.name, _plain_type(each.type)) for each in table.schema]))


def _plain_type(kind: Any) -> Any:
    """Texts and categories as texts, as they are in a file; all else as it is."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    return pa.string() if str(kind) in ("string_view", "large_string") else kind


def _array(name: str, given: Any) -> readers.Array:
    if isinstance(given, torch.Tensor):
        return given.detach().cpu().numpy()
    try:
        array = np.asarray(given)
        return array.astype(np.float64) if array.dtype == object and array.ndim == 2 else array
    except Exception:
        raise DataError(
            f"{name} must be an array with one row per record, got a {type(given).__name__} of "
            f"words or unequal rows; encode words as numbers, or give a data frame with data.schema"
        ) from None  # NumPy's error quotes the cell


def _same_length(x: Any, y: Any, groups: Any = None) -> readers.TablePart:
    lengths = {each.shape[0] if each.ndim else 0 for each in (x, y, groups) if each is not None}
    if len(lengths) != 1:
        raise DataError(
            f"x, y and groups must have one row per record, got lengths {sorted(lengths)}; "
            "give as many of each"
        )
    return readers.TablePart(x, y, groups)


def _of_several(part: readers.TablePart) -> Records:
    """Records with several labels each: whole numbers as int64, others as float32."""
    if part.y.dtype.kind not in "fiub":
        raise DataError(f"y must be an array of numbers, got {part.y.dtype}; number the classes")
    y = torch.from_numpy(np.ascontiguousarray(part.y))
    groups = None if part.groups is None else readers.group_tensors([part.groups])[0]
    y = y.float() if y.is_floating_point() else y.long()
    return Records(readers.feature_tensor(part.x), y, groups)


def _of_batches(given: Batches, classes: int | None) -> Found:
    """All records, read at once; of one that cannot be read the label is unknown."""
    made = [given.read(i) for i in torch.split(torch.arange(len(given)), given.most)]
    if any(isinstance(each.inputs, dict) for each in made):
        raise DataError(
            "records of a recipe must be one tensor each, got a dict of inputs; give a collate "
            "that returns (x, y), or use Network.problem in a Flower app"
        )
    y = torch.cat([each.targets for each in made])
    usable = torch.cat([_usable(each) for each in made]).view(-1, *[1] * (y.dim() - 1))
    unknown = math.nan if y.is_floating_point() else -1
    y = torch.where(usable, y, torch.full_like(y, unknown))
    x = torch.cat([torch.as_tensor(each.inputs).float() for each in made])
    words = "a data set given in Python"
    if y.dim() > 1 and y.shape[1:] != (1,):
        targets = y.float() if y.is_floating_point() else y.long()
        return Found({}, words, records=Records(x, targets, given.groups))
    whole = None if y.is_floating_point() else classes or int(y.max()) + 1
    groups = None if given.groups is None else given.groups.numpy()
    part = readers.TablePart(x.numpy(), y.numpy(), groups)
    return Found({"train": part}, words, public=readers.Public(whole))


def _usable(batch: Any) -> torch.Tensor:
    return torch.ones(len(batch), dtype=torch.bool) if batch.usable is None else batch.usable
