# SPDX-License-Identifier: Apache-2.0
"""Data sets: from a name or a path to tensors, with the source named for every result.

============== ===================================================================================
``x.npz``      arrays x_train, y_train[, x_val, y_val], x_test, y_test (or train_images, ...), or x,
               y[, group][, split], split being 0 for training and 1 for test; never pickled
``x.csv``,     a label column, optional group, silo and ``split`` columns; the other numeric
``x.parquet``  columns are the features, or those of a ``schema`` (tables.py)
several        a list of tables, a pattern such as ``five/*.csv``, or a directory of tables: their
               records together, with one silo per file unless a column names the silos
a directory    images as [train/]<class>/<file>
``hf:NAME``    a Hugging Face data set (needs the extra ``dpfed[hub]``); ``hf:NAME:CONFIG``
``dpfed:NAME`` features that come with the package: fashion-mnist (shipped/README.md)
arrays         in Python, (x, y[, groups]), a dict as in an .npz, a data frame, a TensorDataset, or
               what ``dataset_batches`` makes (in_memory.py)
``synthetic``  generated: class clusters, or ``kind`` = "mixed" or "glm" (synthetic.py)
============== ===================================================================================

Where a relative path is looked up is said in places.py.

What each kind of array becomes:

=============================== ==================================================================
x uint8, three or more axes     images: scaled to [0, 1], channels first
x with x_zero and x_step        an .npz of bytes: (byte - x_zero) * x_step, float32
x anything else                 float32, as it is; NaN stands for a missing value
y whole numbers or booleans     class labels; {-1, 1} becomes {0, 1}; other negative labels: refused
y strings                       class labels, in sorted order
y floats                        targets of a regression; class labels if ``classes`` is given
y or groups with a missing one  refused
y and groups behind a gate      each cell by itself (``public``): what is no class is unknown
a validation part               joins the training part, or is the test part if there is none
=============================== ==================================================================

Everything that is done to features here is either fixed in advance, or reads one record at a
time, or reads public data only, so none of it costs privacy.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dpfed.core.errors import DataError
from dpfed.data import contracted, readers, tables
from dpfed.data._checks import bad_option, require_groups, require_positive
from dpfed.data.cells import word
from dpfed.data.places import TABLES, find_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from dpfed.data.contract import Contract
    from dpfed.data.mapping import FileMapping


@dataclass(frozen=True, eq=False, repr=False)
class Records:
    """Features, labels and, if there are natural groups, group ids. Sensitive.

    Args:
        x: features, one row per record.
        y: a label for each record.
        groups: whose record each one is; None if nobody has several.
        silos: which silo each one is from; None if that is not known.
        places: which row of its source each one is; None means in the order in which they are.
        persons: a number for each record's person, that of the id alone; None if ``groups`` are
            such numbers.
        days: the day on which each one arrived; None if that is not known.

    >>> len(Records(torch.zeros(5, 2), torch.zeros(5)))
    5
    """

    x: torch.Tensor
    """float32 [m, ...]."""
    y: torch.Tensor
    """int64 class labels [m], or float32 targets [m, ...]."""
    groups: torch.Tensor | None = None
    """int64 [m]: the person that each record is of."""
    silos: torch.Tensor | None = None
    """int64 [m]: where the record lies, in a data set of several silos."""
    places: torch.Tensor | None = None
    """int64 [m]: which row of its source the record is, counted before any is left out."""
    persons: torch.Tensor | None = None
    """int64 [m]: a hash of the id of its person, which depends on no other record's."""
    days: torch.Tensor | None = None
    """int64 [m]: when the record arrived, in days since 1970; ``cells.NO_DAY`` if it is no date."""

    def __post_init__(self) -> None:
        ids = (("groups", self.groups), ("silos", self.silos))
        more = (("places", self.places), ("persons", self.persons), ("days", self.days))
        given = (("x", self.x), ("y", self.y), *ids, *more)
        for name, each in given:
            if each is not None and not isinstance(each, torch.Tensor):
                raise DataError(
                    f"{name} must be a torch tensor, got a {type(each).__name__}; "
                    f"give torch.as_tensor({name})"
                )
        lengths = {len(each) for _, each in given if each is not None}
        if len(lengths) != 1:
            raise DataError(
                f"x, y and groups must have one row per record, got lengths {sorted(lengths)}; "
                "give as many labels and groups as there are rows of features"
            )
        if self.x.dtype != torch.float32 or self.y.dtype not in (torch.int64, torch.float32):
            raise DataError(
                "x must be float32 and y int64 (classes) or float32 (targets), got "
                f"x {self.x.dtype} and y {self.y.dtype}; convert them with .float() and .long()"
            )

    def __repr__(self) -> str:
        shape, kind = tuple(self.x.shape[1:]), str(self.y.dtype).removeprefix("torch.")
        return (
            f"Records({len(self)} of shape {shape}, {kind} labels)"  # no values: they are private
        )

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: torch.Tensor) -> Records:
        """The records at ``index``, in its order."""
        ids = (self.groups, self.silos, self.places, self.persons, self.days)
        return Records(
            self.x[index], self.y[index], *(None if each is None else each[index] for each in ids)
        )


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test records, and the name of where they come from."""

    train: Records
    test: Records | None
    classes: int | None
    """None for a regression."""
    source: str
    """To be named in every result."""
    truth: torch.Tensor | None = None
    """The parameters that generated records were made from: weight, then bias."""
    table: tables.TableFacts | None = None
    """What a table's columns became; None if there are no columns."""
    spread: float | None = None
    """How far public records lie from their mean (root mean square), where they center these."""
    mean: torch.Tensor | None = None
    """Their mean, which was subtracted."""
    shape: tuple[int, ...] = ()
    """Of a record's features as they were read, before any step."""
    contract: Contract | None = None
    """What the table was read by; None where nobody agreed on one."""

    def map(self, change: Callable[[Records], Records]) -> Dataset:
        """The same change to the training and to the test records; all else stays."""
        test = None if self.test is None else change(self.test)
        return replace(self, train=change(self.train), test=test)


def load(
    source: str | Path | Sequence[str | Path],
    *,
    root: Path | None = None,
    x: str | Sequence[str] | None = None,
    y: str | None = None,
    groups: str | None = None,
    silo: str | None = None,
    schema: Mapping[str, Sequence[Any]] | None = None,
    split: str | None = readers.SPLIT,
    classes: int | None = None,
    size: int | None = None,
    name: str | None = None,
    labels: Sequence[Any] | None = None,
    public: readers.Public | None = None,
    contract: Contract | None = None,
    mapping: FileMapping | None = None,
    arrival: str | None = None,
    **synthetic_options: Any,
) -> Dataset:
    """The data set called ``source``: a file, a folder, a name on the hub, or generated records.

    Args:
        source: a path, a pattern or a list of paths, ``hf:NAME``, ``dpfed:NAME``, or
            ``synthetic``.
        root: where relative paths are looked up, after the working directory.
        x: the feature array (.npz), column or columns; all other numeric columns if left out.
        y: the label array or column; "y" or "label" if left out.
        groups: the array or column of persons; "group" or "groups" if left out and there is one.
        silo: the array or column of silos; one per file if left out and there are several files.
        schema: of a table, the public range or categories of each feature column (tables.py).
        split: the array or column of 0 (training) and 1 (test), used if there is one; None puts
            all records into the training part, as for a ``holdout`` of whole groups.
        classes: the public number of classes; the largest label plus one if left out.
        size: images of a folder are resized to this height and width.
        name: what ``Dataset.source`` says instead of the file's name.
        labels: the public words that stand for the classes, in order; each cell is then read on its
            own, as with ``public``.
        public: what a gate's policy says of the labels, so that no cell changes how others are
            read: what is no class is -1 (or NaN, for targets), and so is a record without a person.
        contract: what a table is read by; it names features, label and person.
        mapping: how the owner's file says what the contract means.
        arrival: of a table, the column of dates on which records arrived.
        **synthetic_options: of ``synthetic``: kind, and that kind's own (synthetic.py).
    """
    if source == "synthetic":
        given: dict[str, Any] = {} if classes is None else {"classes": classes}
        made = synthetic(**given, **synthetic_options)
        return made if name is None else replace(made, source=name)
    columns = readers.Columns(x=x, y=y, groups=groups, split=split, silo=silo, arrival=arrival)
    if str(source).startswith("data@"):
        from dpfed.data import in_memory  # for runs in one process: no gate loads it

        _refuse_options(str(source), synthetic_options)
        _refuse_contract(contract)
        found = in_memory.read(str(source), columns, schema, classes)
        if found.records is not None:
            return Dataset(found.records, None, None, name or found.words)
        public = _public(classes, labels, public or found.public)
        made = _dataset(found.parts, classes, name or found.words, public)
        return replace(made, table=found.facts)
    paths = [] if str(source).startswith("hf:") else find_files(source, root)
    _refuse_options(str(source), synthetic_options)
    if contract is not None:
        given_twice = {"x": x, "y": y, "groups": groups, "schema": schema, "labels": labels}
        _refuse_beside(contract, {**given_twice, "classes": classes}, paths)
        parts, facts = contracted.read_contracted(paths, contract, mapping, silo, split, arrival)
        said = name or _label(paths)
        made = _dataset(parts, None, said, readers.Public(contract.classes))
        return replace(made, table=facts, contract=contract)
    public = _public(classes, labels, public)
    label = name or (_label(paths) if paths else str(source))
    if paths and all(path.suffix in TABLES for path in paths):
        parts, facts = tables.read_tables(paths, columns, schema, public is not None)
        return replace(_dataset(parts, classes, label, public), table=facts)
    if schema:
        raise DataError(
            f"{label!r} takes no schema, which is for .csv and .parquet; name tables in folders of "
            "their own by a pattern, '*/x.csv', and standardise other data by data.shift and "
            "data.scale"
        )
    if arrival is not None:
        raise DataError(
            f"{label!r} takes no arrival, which is a column of .csv and .parquet; leave it out"
        )
    return _dataset(_read_arrays(str(source), paths, columns, size), classes, label, public)


def _refuse_options(source: str, given: Mapping[str, Any]) -> None:
    if given:
        unknown = ", ".join(sorted(given))
        raise DataError(
            f"{source!r} takes no option {unknown}; it takes x, y, groups, silo, split, "
            "classes, size and name (only 'synthetic' has others)"
        )


def _refuse_contract(contract: Contract | None) -> None:
    if contract is not None:
        raise DataError(
            "a contract is for tables in files, got an object as data.source; give .csv or .parquet"
        )


def _refuse_beside(contract: Contract, given: Mapping[str, Any], paths: list[Path]) -> None:
    """A contract says all of it, and of tables only."""
    for option, value in given.items():
        if value is not None:
            raise bad_option(
                f"data.options.{option}", "left out beside a contract, which says it", value
            )
    if contract.label is None:
        raise DataError("the contract has no label, so that nothing can be trained; add one")
    if not paths or any(path.suffix not in TABLES for path in paths):
        raise DataError(
            "a contract is for tables, got something else as data.source; give .csv or .parquet"
        )


def _public(
    classes: int | None, labels: Sequence[Any] | None, public: readers.Public | None
) -> readers.Public | None:
    """What is public of the labels; None if classes are read from the records."""
    if labels is None:
        return public
    words = [] if isinstance(labels, str) else [word(label) for label in labels]
    if len(set(words) - {""}) != len(words) or len(words) < 2:
        bound = "a list of two or more different words"
        raise bad_option("options.labels", bound, labels, "name each class once, in order")
    declared = classes if public is None else public.classes
    if declared not in (None, len(words)):
        bound = f"as many as classes, {declared}"
        raise bad_option("options.labels", bound, len(words), "name each class once, in order")
    return readers.Public(len(words), tuple(words))


def _read_arrays(
    source: str, paths: list[Path], columns: readers.Columns, size: int | None
) -> dict[str, readers.TablePart]:
    if not paths:
        return readers.read_hub(source.removeprefix("hf:"), columns, size)
    if len(paths) > 1:
        other = next(path for path in paths if path.suffix not in TABLES)
        raise DataError(
            f"several files must all be .csv or .parquet, got {other.name!r}; give one file, or "
            "tables only"
        )
    return readers.read_path(paths[0], columns, size)


def _label(paths: list[Path]) -> str:
    """What a result names as its data: the folder and the file."""
    if len(paths) == 1:
        return "/".join(paths[0].parts[-2:]).lstrip("/")
    shared = Path(os.path.commonpath([path.parent for path in paths]))
    return f"{shared.name or shared.anchor}: {len(paths)} files"


def synthetic(kind: str = "clusters", **options: Any) -> Dataset:
    """Generated records: clusters, mixed or glm, with their options (synthetic.py)."""
    from dpfed.data import synthetic as generators  # for simulations: no gate loads it

    made = generators.make(kind, options)
    truth = None if made.truth is None else torch.from_numpy(made.truth)
    return replace(_dataset(made.parts, made.classes, made.source), truth=truth)


# ------------------------------------------------------------------------- from arrays to records


def _dataset(
    parts: dict[str, readers.TablePart],
    classes: int | None,
    source: str,
    public: readers.Public | None = None,
) -> Dataset:
    if not parts or not any(len(p.y) for p in parts.values()):
        raise DataError(f"{source!r} has no training records; give it features with labels")
    ordered = list(parts.values())
    x = [readers.feature_tensor(p.x) for p in ordered]
    if public is None:
        labels, found = readers.label_tensors([p.y for p in ordered], classes)
        groups = readers.group_tensors([p.groups for p in ordered])
        silos = readers.group_tensors([p.silos for p in ordered])
    else:
        groups = readers.public_ids([p.groups for p in ordered])
        silos = readers.public_ids([p.silos for p in ordered])
        read = [readers.public_labels(p.y, public) for p in ordered]
        labels, found = (
            [_of_somebody(*each) for each in zip(read, groups, strict=True)],
            public.classes,
        )
    places = readers.place_tensors(ordered)
    persons = readers.person_tensors([p.groups for p in ordered])
    days = readers.day_tensors([p.days for p in ordered])
    columns = (x, labels, groups, silos, places, persons, days)
    made = (Records(*each) for each in zip(*columns, strict=True))
    return _assemble(dict(zip(parts, made, strict=True)), found, source)


def _of_somebody(labels: torch.Tensor, groups: torch.Tensor | None) -> torch.Tensor:
    """Labels; unknown if a record names no person, since no person's row may contain it."""
    if groups is None:
        return labels
    unknown = math.nan if labels.is_floating_point() else -1
    return torch.where(groups == readers.NOBODY, unknown, labels)


def unknown_labels(y: torch.Tensor) -> torch.Tensor:
    """Which labels were read as unknown: NaN, or a class below 0."""
    return y.isnan() if y.is_floating_point() else y < 0


def _assemble(records: dict[str, Records], classes: int | None, source: str) -> Dataset:
    if "train" not in records:
        raise DataError(
            f"{source!r} has no training part, only {', '.join(records)}; "
            "name one 'train', or mark its rows with split 0"
        )
    train, val, test = (records.get(part) for part in ("train", "val", "test"))
    if val is None or train is None:
        return Dataset(records["train"], test, classes, source)
    if test is None:
        return Dataset(train, val, classes, f"{source} (validation part as test)")
    return Dataset(_join(train, val), test, classes, f"{source} (train + validation)")


def _join(first: Records, second: Records) -> Records:
    names = ("groups", "silos", "places", "persons", "days")
    pairs = ((getattr(first, name), getattr(second, name)) for name in names)
    ids = (None if a is None or b is None else torch.cat([a, b]) for a, b in pairs)
    x, y = torch.cat([first.x, second.x]), torch.cat([first.y, second.y])
    return Records(x, y, *ids)


# ------------------------------------------------------------------------------------ preparation


def binary(dataset: Dataset, above: float = 0) -> Dataset:
    """Two classes: 1 where the label is above ``above``, which is to be fixed in advance."""
    made = dataset.map(lambda records: replace(records, y=_above(records.y, above)))
    source = f"{dataset.source} (class 1: label > {above:g})"
    # the true parameters generated the labels, not these classes
    return replace(made, classes=2, source=source, truth=None)


def _above(y: torch.Tensor, above: float) -> torch.Tensor:
    return torch.where(unknown_labels(y), -1, (y > above).long())


def fill_missing(records: Records, value: float = 0.0) -> Records:
    """NaN features become ``value``, a constant fixed in advance.

    Never the mean or median of the column: that is a statistic of private records, so that each
    filled row would depend on all the others, and clipping one row would no longer bound what one
    record can do. For the same reason ``value`` must not be chosen by looking at the data.
    """
    if not math.isfinite(value):
        raise bad_option("fill_missing", "a finite number", value, "0 is usual")
    return replace(records, x=torch.where(records.x.isnan(), value, records.x))


def holdout(
    records: Records, fraction: float, seed: int, by_group: bool = False
) -> tuple[Records, Records]:
    """(kept, held): see ``held_out``.

    Args:
        records: what to divide.
        fraction: about how much of it to hold out, above 0 and below 1.
        seed: decides which records or groups are held out.
        by_group: hold out whole groups instead of single records.
    """
    held = held_out(records, fraction, seed, by_group)
    return records.take(~held), records.take(held)


def held_out(records: Records, fraction: float, seed: int, by_group: bool = False) -> torch.Tensor:
    """Which records to hold out, about ``fraction`` of them; with ``by_group``, whole groups.

    Where one person has several records, hold out by group: otherwise the held-out part contains
    persons that the model was trained on, and it measures memorisation.

    Args:
        records: what to divide.
        fraction: about how much of it to hold out, above 0 and below 1.
        seed: decides which records or groups are held out.
        by_group: hold out whole groups instead of single records.
    """
    if not 0 < fraction < 1:
        raise bad_option("the held-out fraction", "above 0 and below 1", fraction, "0.2 is usual")
    ids = _holdout_ids(records, by_group)
    rng = np.random.default_rng(seed)
    groups, inverse, sizes = np.unique(ids, return_inverse=True, return_counts=True)
    if len(groups) < 2:
        what = "groups" if by_group else "records"
        raise DataError(
            f"{what} must be at least 2 to hold some out, got {len(groups)}; "
            "give more, or hold none out"
        )
    order = rng.permutation(len(groups))
    reached = np.cumsum(sizes[order])
    # As near to the fraction as whole groups allow, with at least one group on either side.
    cut = 1 + int(np.abs(reached[:-1] - fraction * len(records)).argmin())
    return torch.from_numpy(np.isin(inverse, order[:cut]))


def _holdout_ids(records: Records, by_group: bool) -> NDArray[np.int64]:
    if not by_group:
        return np.arange(len(records))
    groups = require_groups(records.groups, "by_group", "hold out single records")
    ids: NDArray[np.int64] = groups.numpy()
    return ids


def center(dataset: Dataset, public: Records | str | Path, *, root: Path | None = None) -> Dataset:
    """Subtract the mean of PUBLIC features from the features of both parts.

    The mean of the private features would be a release of its own and is not offered. Missing
    public values are left out of the mean; missing private values stay missing.

    Args:
        dataset: the private data set.
        public: public records with the same features, or their source as ``load`` takes it.
        root: where a relative source is looked up, after the working directory.
    """
    named = "public records"
    if not isinstance(public, Records):
        loaded = load(public, root=root)
        public, named = loaded.train, loaded.source
    if public.x.shape[1:] != dataset.train.x.shape[1:]:
        raise DataError(
            f"public features must have the private ones' shape "
            f"{tuple(dataset.train.x.shape[1:])}, got {tuple(public.x.shape[1:])}; "
            "use the same columns or backbone for both"
        )
    mean = public.x.double().nanmean(dim=0).float()
    away = (public.x.double() - mean).square().nanmean(dim=0)
    made = dataset.map(lambda records: replace(records, x=records.x - mean))
    source = f"{dataset.source}, centred by the mean of {named}"
    return replace(made, source=source, spread=float(away.sum().sqrt()), mean=mean)


def scale_rows(records: Records, radius: float) -> Records:
    """Rows longer than ``radius`` (Euclidean norm) are scaled to it; each row on its own.

    A map of one record at a time moves no other record, so it needs no budget.
    """
    require_positive("1 is usual", radius=radius)
    # A little less than the radius, so that rounding to float32 cannot take a row beyond it.
    return _scaled(records, radius * (1 - 1e-6), shorter=False)


def set_norms(records: Records, norm: float) -> Records:
    """Every row gets this Euclidean norm, each on its own; a row of zeros stays one.

    Only the row's direction is kept. This gives a public scale for the clip: the norm of a linear
    model's gradient is about that of the row.
    """
    require_positive("10 is usual", norm=norm)
    return _scaled(records, norm, shorter=True)


def _scaled(records: Records, norm: float, *, shorter: bool) -> Records:
    rows = records.x.flatten(1).double()
    if not rows.isfinite().all():
        raise DataError(
            f"features must be finite, got {int((~rows.isfinite()).sum())} that are not; "
            "fill missing ones by fill_missing first, and correct infinite ones"
        )
    norms = rows.norm(dim=1, keepdim=True)
    chosen = norms > (0 if shorter else norm)
    factors = (norm / norms).where(chosen, 1.0)
    return replace(records, x=(rows * factors).float().view_as(records.x))
