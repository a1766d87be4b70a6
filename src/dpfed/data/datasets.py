# SPDX-License-Identifier: Apache-2.0
"""Data sets: from a name or a path to tensors, with the source named for every result.

============== ===================================================================================
``x.npz``      arrays x_train, y_train[, x_val, y_val], x_test, y_test (or train_images, ...), or x,
               y[, group][, split], split being 0 for training and 1 for test; never pickled
``x.csv``,     a label column, an optional group column, an optional ``split`` column; the other
``x.parquet``  numeric columns are the features
a directory    IDX files (MNIST and its kin, gzipped or not), or images as [train/]<class>/<file>
``hf:NAME``    a Hugging Face data set (needs the extra ``dpfed[hub]``); ``hf:NAME:CONFIG``
``synthetic``  Gaussian class clusters, generated
============== ===================================================================================

A relative path is looked up as given, then under ``root``, then under $DPFED_DATA.

What each kind of array becomes:

=============================== ==================================================================
x uint8, three or more axes     images: scaled to [0, 1], channels first
x anything else                 float32, as it is; NaN stands for a missing value
y whole numbers or booleans     class labels; {-1, 1} becomes {0, 1}; other negative labels: refused
y strings                       class labels, in sorted order
y floats                        targets of a regression; class labels if ``classes`` is given
y or groups with a missing one  refused
a validation part               joins the training part, or is the test part if there is none
=============================== ==================================================================

Everything that is done to features here is either fixed in advance, or reads one record at a
time, or reads public data only, so that none of it has to be paid for.
"""

from __future__ import annotations

import gzip
import math
import os
import zipfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from dpfed.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray
    from PIL import Image

Array = Any
"""A numpy array of any type."""

ENVIRONMENT = "DPFED_DATA"
"""The environment variable that names a directory with data sets and weights."""


@dataclass(frozen=True, eq=False)
class Records:
    """Features, labels and, where there are natural groups, group ids. Sensitive."""

    x: torch.Tensor
    """float32 [m, ...]."""
    y: torch.Tensor
    """int64 class labels [m], or float32 targets [m, ...]."""
    groups: torch.Tensor | None = None
    """int64 [m]."""

    def __post_init__(self) -> None:
        lengths = {len(t) for t in (self.x, self.y, self.groups) if t is not None}
        if len(lengths) != 1:
            raise DataError(
                f"x, y and groups have lengths {sorted(lengths)}, but must have one row per record."
            )
        if self.x.dtype != torch.float32 or self.y.dtype not in (torch.int64, torch.float32):
            raise DataError(
                f"x is {self.x.dtype} and y is {self.y.dtype}, but x must be float32 and y int64 "
                "(classes) or float32 (targets): convert them first."
            )

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: torch.Tensor) -> Records:
        """The records at ``index``, in its order."""
        groups = None if self.groups is None else self.groups[index]
        return Records(self.x[index], self.y[index], groups)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test records, and the name of where they come from."""

    train: Records
    test: Records | None
    classes: int | None
    """None for a regression."""
    source: str
    """To be named in every result."""


class _Part(NamedTuple):
    """Arrays as they were read: before labels are mapped and features converted."""

    x: Array
    y: Array
    groups: Array | None = None


class _Columns(NamedTuple):
    """How the caller names the features, the labels, the groups and the split."""

    x: str | Sequence[str] | None
    y: str | None
    groups: str | None
    split: str | None


def load(
    source: str | Path,
    *,
    root: Path | None = None,
    x: str | Sequence[str] | None = None,
    y: str | None = None,
    groups: str | None = None,
    split: str | None = "split",
    classes: int | None = None,
    size: int | None = None,
    name: str | None = None,
    **synthetic_options: Any,
) -> Dataset:
    """The data set called ``source``: see the table above.

    Args:
        source: a path, ``hf:NAME``, or ``synthetic``.
        root: where relative paths are looked up, after the working directory.
        x: the feature array (.npz), column or columns; all other numeric columns if left out.
        y: the label array or column; "y" or "label" if left out.
        groups: the group array or column; "group" or "groups" if left out and there is one.
        split: the array or column of 0 (training) and 1 (test), used if there is one; None puts
            all records into the training part, as for a ``holdout`` of whole groups.
        classes: the public number of classes; the largest label plus one if left out.
        size: images of a folder are resized to this height and width.
        name: what ``Dataset.source`` says instead of the file's name.
        synthetic_options: of ``synthetic``: records, features, seed, separation.
    """
    text = str(source)
    _check_options(text, set(synthetic_options))
    if text == "synthetic":
        given = {} if classes is None else {"classes": classes}
        made = synthetic(**given, **synthetic_options)
        return made if name is None else replace(made, source=name)
    columns = _Columns(x, y, groups, split)
    if text.startswith("hf:"):
        return _dataset(_read_hub(text.removeprefix("hf:"), columns, size), classes, name or text)
    path = find(source, root)
    label = name or f"{path.parent.name}/{path.name}"
    return _dataset(_read_path(path, columns, size), classes, label)


def _check_options(source: str, given: set[str]) -> None:
    known = {"records", "features", "seed", "separation"} if source == "synthetic" else set()
    if given - known:
        unknown = ", ".join(sorted(given - known))
        allowed = ", ".join(sorted(known)) or "no further options (only 'synthetic' has some)"
        raise DataError(f"{source!r} takes no option {unknown}: it takes {allowed}.")


def find(source: str | Path, root: Path | None = None) -> Path:
    """The first of: ``source`` as given, under ``root``, under $DPFED_DATA."""
    path = Path(source).expanduser()
    places = [path]
    if not path.is_absolute():
        environment = os.environ.get(ENVIRONMENT)
        parents = [p for p in (root, environment) if p]
        places += [Path(parent).expanduser() / path for parent in parents]
    for place in places:
        if place.exists():
            return place
    tried = ", ".join(str(place) for place in places)
    raise DataError(f"{str(source)!r} was not found at {tried}: set {ENVIRONMENT} or give a path.")


def _read_path(path: Path, columns: _Columns, size: int | None) -> dict[str, _Part]:
    if path.is_dir():
        is_idx = any("-images" in p.name and "ubyte" in p.name for p in path.iterdir())
        return _read_idx(path) if is_idx else _read_folder(path, size)
    readers = {".npz": _read_npz, ".csv": _read_table, ".parquet": _read_table}
    if path.suffix not in readers:
        known = ", ".join(sorted(readers))
        raise DataError(f"{path.name!r} is of no known type: use {known}, or a directory.")
    return readers[path.suffix](path, columns)


# --------------------------------------------------------------------------------------- synthetic


def synthetic(
    records: int = 4000,
    features: int = 20,
    classes: int = 10,
    seed: int = 0,
    separation: float = 3.0,
) -> Dataset:
    """Gaussian clusters x = c_y + N(0, I), with the centres at distance ``separation`` from 0.

    At the default separation neighbouring clusters overlap, so that no model is right on all
    records. The test part comes on top: a quarter of ``records``, from the same clusters.
    """
    sizes = {"records": records, "features": features, "classes": classes}
    for option, value in sizes.items():
        if value < 1:
            raise DataError(f"{option} is {value}, but must be at least 1.")
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((classes, features))
    centres *= separation / np.linalg.norm(centres, axis=1, keepdims=True)
    total = records + math.ceil(records / 4)
    # Balanced labels: a quickstart with a class that happens to be missing would teach nothing.
    y = rng.permutation(np.arange(total) % classes)
    x = centres[y] + rng.standard_normal((total, features))
    everything = Records(_features(x), torch.from_numpy(y))
    index = torch.arange(total)
    source = (
        f"synthetic Gaussian clusters ({records} records, {features} features, {classes} classes, "
        f"separation {separation}, seed {seed})"
    )
    train, test = everything.take(index[:records]), everything.take(index[records:])
    return Dataset(train, test, classes, source)


# -------------------------------------------------------------------------------------------- .npz


def _read_npz(path: Path, columns: _Columns) -> dict[str, _Part]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path.name!r} cannot be read as .npz without pickle: {error}.") from error
    parts = _split_parts(arrays, columns)
    return parts or _split_whole(arrays, columns, path.name)


def _split_parts(arrays: Mapping[str, Array], columns: _Columns) -> dict[str, _Part]:
    """x_train, y_train, ...; or train_images, train_labels, ... as in MedMNIST."""
    x, y, group = columns.x or "x", columns.y or "y", columns.groups or "group"
    parts = {}
    for part in ("train", "val", "test"):
        features = arrays.get(f"{x}_{part}", arrays.get(f"{part}_images"))
        labels = arrays.get(f"{y}_{part}", arrays.get(f"{part}_labels"))
        if features is not None and labels is not None:
            parts[part] = _Part(features, labels, arrays.get(f"{group}_{part}"))
    return parts


def _split_whole(arrays: Mapping[str, Array], columns: _Columns, file: str) -> dict[str, _Part]:
    if not (columns.x is None or isinstance(columns.x, str)):
        raise DataError(f"x is {columns.x!r}, but an .npz has one feature array: give its name.")
    features = arrays[_choose(columns.x, ("x",), arrays, file)]
    labels = arrays[_choose(columns.y, ("y", "label"), arrays, file)]
    group = _choose_group(columns.groups, arrays, file)
    whole = _Part(features, labels, None if group is None else arrays[group])
    return _by_split(whole, None if columns.split is None else arrays.get(columns.split))


def _by_split(whole: _Part, split: Array | None) -> dict[str, _Part]:
    if split is None:
        return {"train": whole}
    if len(split) != len(whole.y):
        raise DataError(f"split has {len(split)} entries, but there are {len(whole.y)} records.")
    names = {"train": ("0", "train"), "val": ("val", "validation"), "test": ("1", "test")}
    text = np.char.lower(np.asarray(split).astype(str))
    unknown = sorted(set(text.tolist()) - {value for known in names.values() for value in known})
    if unknown:
        raise DataError(f"split says {unknown[0]!r}, but must be 0 or train, val, 1 or test.")
    chosen = {part: np.isin(text, known) for part, known in names.items()}
    return {part: _rows_of(whole, mask) for part, mask in chosen.items() if mask.any()}


def _rows_of(part: _Part, mask: Array) -> _Part:
    groups = None if part.groups is None else part.groups[mask]
    return _Part(part.x[mask], part.y[mask], groups)


def _choose(asked: str | None, usual: Sequence[str], present: Iterable[str], where: str) -> str:
    names = [asked] if asked is not None else usual
    found = [n for n in names if n in present]
    if not found:
        listed = ", ".join(present)
        wanted = " or ".join(repr(n) for n in names)
        raise DataError(f"{where!r} has no {wanted}, only {listed}: name x, y and groups.")
    return found[0]


def _choose_group(asked: str | None, present: Iterable[str], where: str) -> str | None:
    usual = ("group", "groups")
    if asked is None and not any(n in present for n in usual):
        return None
    return _choose(asked, usual, present, where)


# ------------------------------------------------------------------------------------------ tables


def _read_table(path: Path, columns: _Columns) -> dict[str, _Part]:
    import pyarrow as pa

    try:
        table = _read_arrow(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path.name!r} cannot be read as a table: {error}.") from error
    present = table.column_names
    label = _choose(columns.y, ("y", "label"), present, path.name)
    group = _choose_group(columns.groups, present, path.name)
    kept = _feature_columns(table, columns.x, {label, group, columns.split}, path.name)
    features = np.stack([_numbers(table.column(name)) for name in kept], axis=1)
    labels = _complete(table, label)
    whole = _Part(features, labels, None if group is None else _complete(table, group))
    if columns.split is None or columns.split not in present:
        return {"train": whole}
    return _by_split(whole, _complete(table, columns.split))


def _read_arrow(path: Path) -> Any:
    if path.suffix == ".parquet":
        from pyarrow import parquet

        return parquet.read_table(path)
    from pyarrow import csv

    return csv.read_csv(path)


def _feature_columns(
    table: Any, asked: str | Sequence[str] | None, taken: set[str | None], file: str
) -> list[str]:
    if asked is not None:
        wanted = [asked] if isinstance(asked, str) else asked
        return [_choose(one, (), table.column_names, file) for one in wanted]
    free = [n for n in table.column_names if n not in taken]
    numeric = [n for n in free if _is_numeric(table.column(n).type)]
    if not numeric:
        raise DataError(f"{file!r} has no numeric column besides labels and groups: name them.")
    return numeric


def _is_numeric(kind: Any) -> bool:
    from pyarrow import types

    tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
    return any(test(kind) for test in tests)


def _numbers(column: Any) -> NDArray[np.float32]:
    """A column as float32, nulls as NaN."""
    import pyarrow as pa

    if not _is_numeric(column.type):
        raise DataError(f"A feature column holds {column.type}: encode it as numbers first.")
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    values: NDArray[np.float32] = column.cast(pa.float64()).to_numpy().astype(np.float32)
    return values


def _complete(table: Any, name: str) -> Array:
    column = table.column(name)
    if column.null_count:
        raise DataError(
            f"The column {name!r} lacks {column.null_count} of {len(column)} values, but labels, "
            "groups and splits must be complete: drop those rows first."
        )
    return column.to_numpy()


# ------------------------------------------------------------------------------------------ images


def _read_idx(path: Path) -> dict[str, _Part]:
    """MNIST's format: 00 00 08 <axes>, the big-endian uint32 sizes, then the bytes."""
    parts = {}
    for part, stems in {"train": ("train",), "test": ("t10k", "test")}.items():
        images, labels = (_find_idx(path, stems, kind) for kind in ("images", "labels"))
        if images is not None and labels is not None:
            parts[part] = _Part(_parse_idx(images), _parse_idx(labels))
    return parts


def _find_idx(path: Path, stems: Sequence[str], kind: str) -> Path | None:
    found = sorted({p for stem in stems for p in path.glob(f"*{stem}-{kind}*ubyte*")})
    if len(found) > 1 and {p.name.removesuffix(".gz") for p in found} != {found[0].name}:
        listed = ", ".join(p.name for p in found)
        raise DataError(f"{listed} all look like {stems[0]} {kind}: keep one in {path.name!r}.")
    return found[0] if found else None


def _parse_idx(path: Path) -> NDArray[np.uint8]:
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path.name!r} cannot be unpacked: {error}.") from error
    axes = raw[3] if raw[:3] == b"\0\0\x08" and len(raw) > 3 else 0
    start = 4 + 4 * axes
    shape = tuple(int.from_bytes(raw[i : i + 4], "big") for i in range(4, start, 4))
    if not axes or len(raw) != start + math.prod(shape):
        raise DataError(f"{path.name!r} is no whole IDX file of bytes: get it anew.")
    return np.frombuffer(raw, dtype=np.uint8, offset=start).reshape(shape)


_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"})
_GREY = frozenset({"1", "L"})
_COLOUR = frozenset({"RGB", "RGBA", "P", "LA", "CMYK", "YCbCr"})


def _read_folder(path: Path, size: int | None) -> dict[str, _Part]:
    names = [n for n in ("train", "val", "test") if (path / n).is_dir()]
    if "train" not in names:
        return {"train": _read_classes(path, size)}
    return {n: _read_classes(path / n, size) for n in names}


def _read_classes(path: Path, size: int | None) -> _Part:
    """<class>/<file>; the class is the name of the directory."""
    found = sorted(p for p in path.glob("*/*") if p.suffix.lower() in _SUFFIXES)
    if not found:
        raise DataError(f"{path.name!r} has no images as <class>/<file>.png: check the path.")
    images = [_open_image(p) for p in found]
    return _Part(_stack_images(images, size), np.array([p.parent.name for p in found]))


def _open_image(path: Path) -> Image.Image:
    from PIL import Image

    try:
        with Image.open(path) as image:
            image.load()
            return image.copy()
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path.name!r} cannot be read as an image: {error}.") from error


def _stack_images(images: Sequence[Image.Image], size: int | None) -> NDArray[np.uint8]:
    """uint8 [m, H, W] if all are grey, else [m, H, W, 3]."""
    modes = {image.mode for image in images}
    if not modes <= _GREY | _COLOUR:
        odd = sorted(modes - _GREY - _COLOUR)[0]
        raise DataError(f"An image is of mode {odd!r}: convert it to 8-bit grey or RGB first.")
    mode = "L" if modes <= _GREY else "RGB"
    same = [image.convert(mode) for image in images]
    same = same if size is None else [image.resize((size, size)) for image in same]
    sizes = {image.size for image in same}
    if len(sizes) > 1:
        raise DataError(f"Images come in {len(sizes)} sizes: give size to have them resized.")
    return np.stack([np.asarray(image) for image in same])


# ------------------------------------------------------------------------------------ Hugging Face


def _read_hub(name: str, columns: _Columns, size: int | None) -> dict[str, _Part]:
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"'hf:{name}' needs the package datasets, which is not installed: "
            "pip install 'dpfed[hub]', or give a local path."
        ) from error
    repository, _, configuration = name.partition(":")
    splits = datasets.load_dataset(repository, configuration or None)
    names = {"train": "train", "validation": "val", "test": "test"}
    return {
        part: _hub_part(splits[split], columns, size, name)
        for split, part in names.items()
        if split in splits
    }


def _hub_part(split: Any, columns: _Columns, size: int | None, name: str) -> _Part:
    present = split.column_names
    if not (columns.x is None or isinstance(columns.x, str)):
        raise DataError(f"x is {columns.x!r}, but 'hf:' takes one feature column: give its name.")
    x = list(split[_choose(columns.x, ("image", "img", "x"), present, name)])
    y = np.asarray(list(split[_choose(columns.y, ("label", "y"), present, name)]))
    group = _choose_group(columns.groups, present, name)
    groups = None if group is None else np.asarray(list(split[group]))
    are_images = bool(x) and hasattr(x[0], "convert")
    return _Part(_stack_images(x, size) if are_images else np.asarray(x), y, groups)


# ------------------------------------------------------------------------- from arrays to records


def _dataset(parts: dict[str, _Part], classes: int | None, source: str) -> Dataset:
    if not parts or not any(len(p.y) for p in parts.values()):
        raise DataError(f"{source!r} has no training records: check what it holds.")
    ordered = list(parts.values())
    x = [_features(p.x) for p in ordered]
    labels, found = _label_tensors([p.y for p in ordered], classes)
    groups = _group_tensors([p.groups for p in ordered])
    made = (Records(a, b, c) for a, b, c in zip(x, labels, groups, strict=True))
    return _assemble(dict(zip(parts, made, strict=True)), found, source)


def _assemble(records: dict[str, Records], classes: int | None, source: str) -> Dataset:
    if "train" not in records:
        raise DataError(f"{source!r} has {', '.join(records)}, but no training part.")
    train, val, test = (records.get(part) for part in ("train", "val", "test"))
    if val is None or train is None:
        return Dataset(records["train"], test, classes, source)
    if test is None:
        return Dataset(train, val, classes, f"{source} (validation part as test)")
    return Dataset(_join(train, val), test, classes, f"{source} (train + validation)")


def _join(first: Records, second: Records) -> Records:
    groups = None
    if first.groups is not None and second.groups is not None:
        groups = torch.cat([first.groups, second.groups])
    return Records(torch.cat([first.x, second.x]), torch.cat([first.y, second.y]), groups)


def _features(x: Array) -> torch.Tensor:
    x = np.asarray(x)
    if x.dtype.kind not in "fiub":
        raise DataError(f"Features are of type {x.dtype}, but must be numbers: encode them first.")
    if x.dtype != np.uint8 or x.ndim < 3:
        return torch.from_numpy(x.astype(np.float32))
    if x.ndim == 3:
        x = x[:, None]
    elif x.shape[-1] in (1, 3) and x.shape[1] not in (1, 3):
        x = np.moveaxis(x, -1, 1)
    return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32) / np.float32(255))


def _label_tensors(
    parts: list[Array], classes: int | None
) -> tuple[list[torch.Tensor], int | None]:
    """All parts at once, so that a class has one number in all of them."""
    flat = [_flat(part) for part in parts]
    y = np.concatenate(flat)
    if y.dtype.kind == "f" and classes is None:
        if np.isnan(y).any():
            raise DataError(f"{int(np.isnan(y).sum())} targets are missing: drop those rows first.")
        return [torch.from_numpy(part.astype(np.float32)) for part in flat], None
    numbers = _class_numbers(y)
    most = int(numbers.max()) + 1
    if classes is not None and most > classes:
        raise DataError(f"The largest label is {most - 1}, but classes is {classes}: raise it.")
    cuts = np.cumsum([len(part) for part in flat])[:-1]
    return [torch.from_numpy(part.copy()) for part in np.split(numbers, cuts)], classes or most


def _class_numbers(y: Array) -> NDArray[np.int64]:
    if y.dtype.kind in "USO":
        return _ids(y)
    if y.dtype.kind == "f" and not (np.isfinite(y) & (y == np.round(y))).all():
        raise DataError("Class labels must be whole numbers, but some are not: leave out classes.")
    numbers: NDArray[np.int64] = y.astype(np.int64)
    if set(np.unique(numbers).tolist()) == {-1, 1}:
        return (numbers + 1) // 2
    if numbers.min() < 0:
        raise DataError(f"The smallest label is {numbers.min()}, but must be 0: renumber them.")
    return numbers


def _group_tensors(parts: list[Array | None]) -> list[torch.Tensor | None]:
    if any(part is None for part in parts):
        return [None] * len(parts)
    flat = [_flat(part) for part in parts]
    ids = np.concatenate(flat)
    numbers = ids.astype(np.int64) if ids.dtype.kind in "iub" else _ids(ids)
    cuts = np.cumsum([len(part) for part in flat])[:-1]
    return [torch.from_numpy(part.copy()) for part in np.split(numbers, cuts)]


def _ids(values: Array) -> NDArray[np.int64]:
    """Positions in the sorted list of different values."""
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise DataError("Some group ids are missing: drop those rows first.")
    text = values.astype(str) if values.dtype.kind == "O" else values
    return np.unique(text, return_inverse=True)[1].astype(np.int64)


def _flat(y: Array) -> Array:
    """[m, 1] (as in MedMNIST) to [m]."""
    y = np.asarray(y)
    flat = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if flat.ndim != 1:
        raise DataError(f"Labels have shape {y.shape}, but one number per record is needed.")
    return flat


# ------------------------------------------------------------------------------------ preparation


def binary(dataset: Dataset, above: float = 0) -> Dataset:
    """Two classes: 1 where the label is above ``above``, which is to be fixed in advance."""

    def mapped(records: Records) -> Records:
        return replace(records, y=(records.y > above).long())

    test = None if dataset.test is None else mapped(dataset.test)
    source = f"{dataset.source} (class 1: label > {above:g})"
    return Dataset(mapped(dataset.train), test, 2, source)


def fill_missing(records: Records, value: float = 0.0) -> Records:
    """NaN features become ``value``, a constant fixed in advance.

    Never the mean or median of the column: that is a statistic of private records, so that each
    filled row would depend on all the others, and clipping one row would no longer bound what one
    record can do. For the same reason ``value`` must not be chosen by looking at the data.
    """
    if not math.isfinite(value):
        raise DataError(f"value is {value}, but must be finite: try 0.")
    return replace(records, x=torch.where(records.x.isnan(), value, records.x))


def holdout(
    records: Records, fraction: float, seed: int, by_group: bool = False
) -> tuple[Records, Records]:
    """(kept, held): about ``fraction`` of the records held out; with ``by_group``, whole groups.

    Where one person has several records, hold out by group: otherwise the held-out part contains
    persons that were trained on, and what it measures is memory.
    """
    if not 0 < fraction < 1:
        raise DataError(f"fraction is {fraction}, but must lie between 0 and 1: try 0.2.")
    ids = _holdout_ids(records, by_group)
    rng = np.random.default_rng(seed)
    groups, inverse, sizes = np.unique(ids, return_inverse=True, return_counts=True)
    if len(groups) < 2:
        raise DataError(f"{len(groups)} group or record cannot be divided: at least 2 are needed.")
    order = rng.permutation(len(groups))
    reached = np.cumsum(sizes[order])
    # At least one group on either side; otherwise as near to the fraction as whole groups allow.
    cut = 1 + int(np.abs(reached[:-1] - fraction * len(records)).argmin())
    held = torch.from_numpy(np.isin(inverse, order[:cut]))
    return records.take(~held), records.take(held)


def _holdout_ids(records: Records, by_group: bool) -> NDArray[np.int64]:
    if not by_group:
        return np.arange(len(records))
    if records.groups is None:
        raise DataError("by_group needs group ids, but these records have none: name the column.")
    ids: NDArray[np.int64] = records.groups.numpy()
    return ids


def center(dataset: Dataset, public: Records | str | Path, *, root: Path | None = None) -> Dataset:
    """Subtract the mean of PUBLIC features from the features of both parts.

    The mean of the private features would be a release of its own and is not offered. Missing
    public values are left out of the mean; missing private values stay missing.
    """
    named = "public records"
    if not isinstance(public, Records):
        loaded = load(public, root=root)
        public, named = loaded.train, loaded.source
    if public.x.shape[1:] != dataset.train.x.shape[1:]:
        raise DataError(
            f"Public features have shape {tuple(public.x.shape[1:])}, private ones "
            f"{tuple(dataset.train.x.shape[1:])}: use the same backbone for both."
        )
    mean = public.x.double().nanmean(dim=0).float()
    train = replace(dataset.train, x=dataset.train.x - mean)
    test = None if dataset.test is None else replace(dataset.test, x=dataset.test.x - mean)
    return replace(
        dataset, train=train, test=test, source=f"{dataset.source}, centred by the mean of {named}"
    )


def scale_rows(records: Records, radius: float) -> Records:
    """Rows longer than ``radius`` (Euclidean norm) are scaled to it; each row on its own.

    A map of one record at a time moves no other record, so it needs no budget.
    """
    if not 0 < radius < math.inf:
        raise DataError(f"radius is {radius}, but must be positive and finite: try 1.")
    rows = records.x.flatten(1).double()
    if not rows.isfinite().all():
        raise DataError("Some features are missing or infinite: call fill_missing first.")
    norms = rows.norm(dim=1, keepdim=True)
    # A little less than the radius, so that rounding to float32 cannot carry a row beyond it.
    factors = (radius * (1 - 1e-6) / norms).where(norms > radius * (1 - 1e-6), 1.0)
    return replace(records, x=(rows * factors).float().view_as(records.x))
