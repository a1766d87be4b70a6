# SPDX-License-Identifier: Apache-2.0
"""Readers: from a file, a directory or a Hugging Face name to arrays, and from arrays to tensors.

A reader returns its parts ("train", "val", "test") as they are stored. The tensors are made from
all parts at once, so that a class or a group has one number in all of them. What can be read, and
what each kind of array becomes, is in the tables of ``dpfed.data.datasets``; call its ``load``.
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from dpfed.core.errors import DataError, first_sentence
from dpfed.core.extras import require_extra
from dpfed.data._checks import bad_option, unreadable
from dpfed.data.cells import number, word

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from PIL import Image

Array = Any
"""A numpy array of any type."""


class TablePart(NamedTuple):
    """Arrays as they were read: before labels are mapped and features converted."""

    x: Array
    y: Array
    groups: Array | None = None
    silos: Array | None = None
    places: Array | None = None
    """Which row of its source each record is; None means that no row was left out."""
    days: Array | None = None
    """When each record arrived, as ``arrival_days`` has it."""

    def __repr__(self) -> str:
        return f"TablePart({len(self.y)} records)"


SPLIT = "split"
"""The column or array of marks of training and test, unless a caller names another."""


class Columns(NamedTuple):
    """How the caller names the features, the labels, the groups, the split and the silos."""

    x: str | Sequence[str] | None
    y: str | None
    groups: str | None
    split: str | None
    silo: str | None = None
    arrival: str | None = None
    """Of tables only: when each record arrived."""


class Public(NamedTuple):
    """What is public of the labels, so that each one is read on its own (``public_labels``)."""

    classes: int | None = None
    """How many classes there are; None if labels are numbers."""
    labels: tuple[str, ...] | None = None
    """The words that stand for the classes, in order; None if labels are the classes' numbers."""


def read_path(path: Path, columns: Columns, size: int | None) -> dict[str, TablePart]:
    """The parts of a file or a directory.

    Args:
        path: an .npz file, or a directory of images; tables.py reads tables.
        columns: which arrays or columns to read; a directory has none.
        size: images in a directory are resized to this height and width; None leaves them.
    """
    if path.is_dir():
        return _read_folder(path, size)
    if path.suffix != ".npz":
        raise DataError(
            f"{path.name!r} has an unknown type; use .csv, .npz, .parquet, or a directory"
        )
    return _read_npz(path, columns)


# -------------------------------------------------------------------------------------------- .npz


def load_npz(path: Path) -> dict[str, Array]:
    """The arrays of an .npz; never a pickle that could run code."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        way_out = "write it with numpy.savez, from arrays of numbers or texts"
        raise unreadable(path, ".npz without pickle", error, way_out) from error


def _read_npz(path: Path, columns: Columns) -> dict[str, TablePart]:
    return parts_of(_decoded(load_npz(path), columns), columns, path.name)


def parts_of(arrays: Mapping[str, Array], columns: Columns, where: str) -> dict[str, TablePart]:
    """The parts of named arrays, by the names that an .npz has.

    Args:
        arrays: by name.
        columns: how the caller names them.
        where: the file, for messages.
    """
    return _split_parts(arrays, columns) or _split_whole(arrays, columns, where)


def _decoded(arrays: dict[str, Array], columns: Columns) -> dict[str, Array]:
    """Features that are stored as bytes, as numbers: (byte - x_zero) * x_step."""
    x = _one_name(columns.x) or "x"
    zero, step = arrays.get(f"{x}_zero"), arrays.get(f"{x}_step")
    if zero is None or step is None:
        return arrays
    coded = [name for name in (x, f"{x}_train", f"{x}_val", f"{x}_test") if name in arrays]
    for name in coded:
        _check_code(f"{x}_zero", zero, arrays[name])
        _check_code(f"{x}_step", step, arrays[name])
    numbers = {name: (arrays[name].astype(np.float32) - zero) * step for name in coded}
    return arrays | numbers


def _check_code(name: str, given: Array, x: Array) -> None:
    """Refuse what is neither one number nor one per feature.

    Any other shape would be broadcast: against records, or into records of more axes.
    """
    fits = given.shape in ((), (1,), x.shape[1:])
    if x.ndim < 1 or not fits or given.dtype.kind not in "fiu" or not np.isfinite(given).all():
        raise DataError(
            f"{name} must be one finite number, or one for each feature (shape {x.shape[1:]}), got "
            f"shape {given.shape} of {given.dtype}; correct it, or leave out {name}"
        )


def _split_parts(arrays: Mapping[str, Array], columns: Columns) -> dict[str, TablePart]:
    """x_train, y_train, ...; or train_images, train_labels, ... as in MedMNIST."""
    x, y, group = columns.x or "x", columns.y or "y", columns.groups or "group"
    parts = {}
    for part in ("train", "val", "test"):
        features = arrays.get(f"{x}_{part}", arrays.get(f"{part}_images"))
        labels = arrays.get(f"{y}_{part}", arrays.get(f"{part}_labels"))
        if features is not None and labels is not None:
            silos = arrays.get(f"{columns.silo}_{part}")
            parts[part] = TablePart(features, labels, arrays.get(f"{group}_{part}"), silos)
    return parts


def _split_whole(arrays: Mapping[str, Array], columns: Columns, file: str) -> dict[str, TablePart]:
    features = arrays[choose(_one_name(columns.x), ("x",), arrays, file)]
    labels = arrays[choose(columns.y, ("y", "label"), arrays, file)]
    group = choose_group(columns.groups, arrays, file)
    silos = None if columns.silo is None else arrays[choose(columns.silo, (), arrays, file)]
    whole = TablePart(features, labels, None if group is None else arrays[group], silos)
    return by_split(whole, None if columns.split is None else arrays.get(columns.split))


def _one_name(x: str | Sequence[str] | None) -> str | None:
    if x is None or isinstance(x, str):
        return x
    raise bad_option("x", "the name of one feature array", x, "only tables take several columns")


def by_split(whole: TablePart, split: Array | None) -> dict[str, TablePart]:
    """The parts that a column of 0 (training) and 1 (test), or of their names, makes."""
    if split is None:
        return {"train": whole}
    if len(split) != len(whole.y):
        raise DataError(
            f"split must have one entry per record, got {len(split)} for {len(whole.y)} records; "
            "give each record one"
        )
    names = {"train": ("0", "train"), "val": ("val", "validation"), "test": ("1", "test")}
    text = np.char.lower(np.asarray(split).astype(str))
    unknown = sorted(set(text.tolist()) - {value for known in names.values() for value in known})
    if unknown:
        raise DataError(
            f"split must be 0 or train, val or validation, 1 or test, and "
            f"{int(np.isin(text, unknown).sum())} of {len(text)} are not; correct those rows"
        )
    chosen = {part: np.isin(text, known) for part, known in names.items()}
    return {part: _rows_of(whole, mask) for part, mask in chosen.items() if mask.any()}


def _rows_of(part: TablePart, mask: Array) -> TablePart:
    given = (part.groups, part.silos, part.days)
    groups, silos, days = (None if ids is None else ids[mask] for ids in given)
    places = np.arange(len(part.y)) if part.places is None else part.places
    return part._replace(
        x=part.x[mask], y=part.y[mask], groups=groups, silos=silos, places=places[mask], days=days
    )


def choose(asked: str | None, usual: Sequence[str], present: Iterable[str], where: str) -> str:
    """The name of an array or a column.

    Args:
        asked: as the caller names it; None takes the first usual name that is there.
        usual: the names that are tried.
        present: the names that there are.
        where: the file, for the message.
    """
    names = [asked] if asked is not None else usual
    found = [n for n in names if n in present]
    if not found:
        listed = ", ".join(present)
        wanted = " or ".join(repr(n) for n in names)
        raise DataError(f"{where!r} has no {wanted}, only {listed}; name x, y and groups")
    return found[0]


def choose_group(asked: str | None, present: Iterable[str], where: str) -> str | None:
    """The name of the groups' array or column; None if nobody asks for one and there is none.

    Args:
        asked: as the caller names it.
        present: the names that there are.
        where: the file, for the message.
    """
    usual = ("group", "groups")
    if asked is None and not any(n in present for n in usual):
        return None
    return choose(asked, usual, present, where)


# ------------------------------------------------------------------------------------------ images


_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"})
_GREY = frozenset({"1", "L"})
_COLOUR = frozenset({"RGB", "RGBA", "P", "LA", "CMYK", "YCbCr"})


def _read_folder(path: Path, size: int | None) -> dict[str, TablePart]:
    names = [n for n in ("train", "val", "test") if (path / n).is_dir()]
    if "train" not in names:
        return {"train": _read_classes(path, size)}
    return {n: _read_classes(path / n, size) for n in names}


def _read_classes(path: Path, size: int | None) -> TablePart:
    """<class>/<file>; the class is the name of the directory."""
    found = sorted(p for p in path.glob("*/*") if p.suffix.lower() in _SUFFIXES)
    if not found:
        raise DataError(
            f"{path.name!r} has no images as <class>/<file>.png; "
            "check the path, sort them into one folder per class, or name tables by a pattern, "
            "'*/x.csv'"
        )
    images = [_open_image(p) for p in found]
    return TablePart(_stack_images(images, size), np.array([p.parent.name for p in found]))


def _open_image(path: Path) -> Image.Image:
    with require_extra("images", "a folder of images", "pillow"):
        from PIL import Image

    try:
        with Image.open(path) as image:
            image.load()
            return image.copy()
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise unreadable(path, "an image", error, "replace or remove it") from error


def _stack_images(images: Sequence[Image.Image], size: int | None) -> NDArray[np.uint8]:
    """uint8 [m, H, W] if all are grey, else [m, H, W, 3]."""
    modes = {image.mode for image in images}
    if not modes <= _GREY | _COLOUR:
        odd = sorted(modes - _GREY - _COLOUR)[0]
        raise DataError(f"an image is of mode {odd!r}; convert it to 8-bit grey or RGB first")
    mode = "L" if modes <= _GREY else "RGB"
    same = [image.convert(mode) for image in images]
    same = same if size is None else [image.resize((size, size)) for image in same]
    sizes = {image.size for image in same}
    if len(sizes) > 1:
        raise DataError(f"images come in {len(sizes)} sizes; give size to have them resized")
    return np.stack([np.asarray(image) for image in same])


# ------------------------------------------------------------------------------------ Hugging Face


def read_hub(name: str, columns: Columns, size: int | None) -> dict[str, TablePart]:
    """The parts of NAME or NAME:CONFIG on the Hugging Face hub.

    Args:
        name: NAME or NAME:CONFIG, without ``hf:``.
        columns: which columns to read; the split is the hub's own.
        size: images are resized to this height and width; None leaves them.
    """
    with require_extra("hub", f"'hf:{name}'", "datasets"):
        import datasets
    repository, _, configuration = name.partition(":")
    try:
        splits = datasets.load_dataset(repository, configuration or None)
    except MemoryError:
        raise
    except Exception as error:  # of datasets, huggingface_hub, requests or httpx: no common base
        raise DataError(
            f"'hf:{name}' could not be loaded from the Hugging Face hub ({first_sentence(error)}); "
            "check the name (hf:NAME or hf:NAME:CONFIG) and the network, or give a local path"
        ) from error
    names = {"train": "train", "validation": "val", "test": "test"}
    return {
        part: _hub_part(splits[split], columns, size, name)
        for split, part in names.items()
        if split in splits
    }


def _hub_part(split: Any, columns: Columns, size: int | None, name: str) -> TablePart:
    present = split.column_names
    x = list(split[choose(_one_name(columns.x), ("image", "img", "x"), present, name)])
    y = np.asarray(list(split[choose(columns.y, ("label", "y"), present, name)]))
    group = choose_group(columns.groups, present, name)
    groups = None if group is None else np.asarray(list(split[group]))
    are_images = bool(x) and hasattr(x[0], "convert")
    return TablePart(_stack_images(x, size) if are_images else np.asarray(x), y, groups)


# ------------------------------------------------------------------------- from arrays to tensors


def feature_tensor(x: Array) -> torch.Tensor:
    """Features as float32; images scaled to [0, 1], channels first."""
    x = np.asarray(x)
    if x.dtype.kind not in "fiub":
        raise DataError(f"features must be numbers, got {x.dtype}; encode them first")
    if x.dtype != np.uint8 or x.ndim < 3:
        return torch.from_numpy(x.astype(np.float32))
    if x.ndim == 3:
        x = x[:, None]
    elif x.shape[-1] in (1, 3) and x.shape[1] not in (1, 3):
        x = np.moveaxis(x, -1, 1)
    return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32) / np.float32(255))


def label_tensors(parts: list[Array], classes: int | None) -> tuple[list[torch.Tensor], int | None]:
    """The labels of each part, and the number of classes; None for a regression."""
    flat = [_flat(part) for part in parts]
    y = np.concatenate(flat)
    if y.dtype.kind == "f" and classes is None:
        if np.isnan(y).any():
            raise DataError(f"{int(np.isnan(y).sum())} targets are missing; drop those rows first")
        return [torch.from_numpy(part.astype(np.float32)) for part in flat], None
    numbers = _class_numbers(y)
    most = int(numbers.max()) + 1
    if classes is not None and most > classes:
        raise DataError(
            f"labels must be below classes = {classes}, and {int((numbers >= classes).sum())} of "
            f"{len(numbers)} are not; raise classes"
        )
    cuts = np.cumsum([len(part) for part in flat])[:-1]
    return [torch.from_numpy(part.copy()) for part in np.split(numbers, cuts)], classes or most


def _class_numbers(y: Array) -> NDArray[np.int64]:
    if y.dtype.kind in "USO":
        return _ids(y)
    if y.dtype.kind == "f" and not (whole := np.isfinite(y) & (y == np.round(y))).all():
        raise DataError(
            f"class labels must be whole numbers, and {int((~whole).sum())} of {len(y)} are not; "
            "leave out classes for a regression"
        )
    numbers: NDArray[np.int64] = y.astype(np.int64)
    if set(np.unique(numbers).tolist()) == {-1, 1}:
        return (numbers + 1) // 2
    if numbers.min() < 0:
        raise DataError(
            f"labels must be at least 0, and {int((numbers < 0).sum())} of {len(numbers)} are not; "
            "renumber them from 0"
        )
    return numbers


def group_tensors(parts: list[Array | None]) -> list[torch.Tensor | None]:
    """The group ids of each part; None for all of them if one part has none."""
    if any(part is None for part in parts):
        return [None] * len(parts)
    flat = [_flat(part) for part in parts]
    ids = np.concatenate(flat)
    numbers = ids.astype(np.int64) if ids.dtype.kind in "iub" else _ids(ids)
    cuts = np.cumsum([len(part) for part in flat])[:-1]
    return [torch.from_numpy(part.copy()) for part in np.split(numbers, cuts)]


def place_tensors(parts: Sequence[TablePart]) -> list[torch.Tensor]:
    """Which row of its source each record is; parts that are sources of their own follow on."""
    found, begun = [], 0
    for part in parts:
        if part.places is None:
            found.append(torch.arange(begun, begun + len(part.y)))
            begun += len(part.y)
        else:
            found.append(torch.from_numpy(np.asarray(part.places, np.int64)))
    return found


def day_tensors(parts: list[Array | None]) -> list[torch.Tensor | None]:
    """The day on which each record arrived; None for all of them if one part has none."""
    given = [part for part in parts if part is not None]
    if len(given) < len(parts):
        return [None] * len(parts)
    return [torch.from_numpy(np.asarray(part, np.int64)) for part in given]


def person_tensors(parts: list[Array | None]) -> list[torch.Tensor | None]:
    """A number for each record's person, by the words of the id's own cell alone.

    Positions in a sorted list of ids would not do: one more id moves those after it.
    """
    if any(part is None for part in parts):
        return [None] * len(parts)
    cells = [_flat(part).tolist() for part in parts]
    made = {cell: _person(cell) for part in cells for cell in part}
    return [torch.tensor([made[cell] for cell in part], dtype=torch.int64) for part in cells]


def _person(cell: object) -> int:
    made = hashlib.blake2b(word(cell).encode(), digest_size=8, person=b"dpfed")
    return int.from_bytes(made.digest(), "big") >> 1


def _ids(values: Array) -> NDArray[np.int64]:
    """Positions in the sorted list of different values."""
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise DataError(
            f"{int(np.isnan(values).sum())} group ids are missing; drop those rows first"
        )
    text = values.astype(str) if values.dtype.kind == "O" else values
    return np.unique(text, return_inverse=True)[1].astype(np.int64)


# ------------------------------------------------------------- one cell at a time, for a gate


def public_labels(cells: Array, public: Public) -> torch.Tensor:
    """Labels from public facts and each record's own cell: no cell changes how others are read.

    int64 if there are classes, and -1 if a cell is none of them; else float32, and NaN if
    a cell is no number. Models know neither, so that such a record's row is zero.
    """
    each = _flat(cells).tolist()
    if public.classes is None:
        with np.errstate(over="ignore"):
            return torch.from_numpy(np.array([number(cell) for cell in each], dtype=np.float32))
    if public.labels is not None:
        place = {word(label): at for at, label in enumerate(public.labels)}
        return torch.tensor([place.get(word(cell), -1) for cell in each], dtype=torch.int64)
    found = [number(cell) for cell in each]
    known = (n.is_integer() and 0 <= n < public.classes for n in found)
    numbers = [int(n) if k else -1 for n, k in zip(found, known, strict=True)]
    return torch.tensor(numbers, dtype=torch.int64)


NOBODY = -1
"""The person of records that name none."""


def public_ids(parts: list[Array | None]) -> list[torch.Tensor | None]:
    """The group ids of each part by each record's own cell; NOBODY if there is none."""
    given = [part for part in parts if part is not None]
    if len(given) < len(parts):
        return [None] * len(parts)
    words = [[word(cell) for cell in _flat(part).tolist()] for part in given]
    place = {name: at for at, name in enumerate(sorted({w for part in words for w in part} - {""}))}
    return [torch.tensor([place.get(w, NOBODY) for w in part], dtype=torch.int64) for part in words]


def _flat(y: Array) -> Array:
    """[m, 1] (as in MedMNIST) to [m]."""
    y = np.asarray(y)
    flat = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if flat.ndim != 1:
        raise DataError(
            f"labels and groups must have one value per record, got shape {y.shape}; "
            "give one column of each"
        )
    return flat
