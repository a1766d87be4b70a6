# SPDX-License-Identifier: Apache-2.0
"""A report on records for their owner, before anything is trained on them.

A record with a missing value is ignored in training, and nobody outside may be told: a client that
refused because of it would reveal something of its records. So the owner looks first, on their own
machine, and decides: ``data.missing``, ``data.schema``, ``data.shift`` and ``scale``.

Guarantee: what is found here is shown only to those who may read the records. It changes no reply,
and is in no result.

| edge case                                 | what happens                                    |
|-------------------------------------------|-------------------------------------------------|
| images, or other records without columns  | records with a missing value are counted only   |
| a column without a single value           | missing everywhere, and not constant            |
| an infinite value                         | counts as missing: its record is ignored        |
| a schema                                  | its public ranges stand for the columns' scales |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from dpfed.data.datasets import Dataset, Records, unknown_labels

UNSCALED_RATIO = 20.0
"""Warn if the largest column scale is at least this many times the smallest."""
MAX_COLUMNS_NAMED = 6
"""The most columns that a sentence names."""


@dataclass(frozen=True)
class ColumnScreen:
    """One feature of all records."""

    name: str
    missing: int
    outside: int
    low: float = field(repr=False)
    high: float = field(repr=False)

    @property
    def constant(self) -> bool:
        """Whether all records have the same value."""
        return self.low == self.high

    @property
    def scale(self) -> float:
        """Its largest absolute value."""
        return max(abs(self.low), abs(self.high))


@dataclass(frozen=True, kw_only=True)
class Screen:
    """What the owner should look at."""

    records: int
    incomplete: int
    """Records with one or more missing values."""
    persons: int = 0
    """Persons with such a record: if the unit is a person, all of their records are ignored."""
    columns: tuple[ColumnScreen, ...] = ()
    left_out: tuple[str, ...] = ()
    missing: str | None = None
    """What the owner has decided: ``drop`` or ``fill``."""
    public: bool = False
    """Whether a schema says the ranges."""
    unlabelled: int = 0
    """Records whose label is unknown, or that name no person where others do."""

    def findings(self) -> list[str]:
        """What is to be decided, one sentence each, with the way out."""
        made = (
            self._unlabelled(),
            self._missing(),
            self._outside(),
            self._left_out(),
            self._constant(),
            self._unscaled(),
        )
        return [each for each in made if each]

    @property
    def lost(self) -> str:
        """How many records are ignored, in words; empty if none is."""
        if not self.incomplete or self.missing == "fill":
            return ""
        part = 100 * self.incomplete / self.records
        return f"{self.incomplete:,} of {self.records:,} records ({part:.0f} %) are ignored"

    def _unlabelled(self) -> str:
        if not self.unlabelled:
            return ""
        return (
            f"{self.unlabelled:,} of {self.records:,} records are ignored, since their label "
            f"is no class (or number), or they name no person; correct them, or say which words "
            f"stand for the classes in load.options.labels"
        )

    def _missing(self) -> str:
        if not self.incomplete or self.missing:
            return ""
        where = _named({c.name: c.missing for c in self.columns if c.missing})
        whole = f", and all records of {self.persons:,} persons where unit = 'group'"
        return (
            f"{self.lost}, since a value is missing{where}{whole if self.persons else ''}; set "
            f"data.missing = 'fill' (a public constant in its place) or 'drop' (leave it so), or "
            f"name fewer columns"
        )

    def _outside(self) -> str:
        outside = {c.name: c.outside for c in self.columns if c.outside}
        if not outside:
            return ""
        return (
            f"{sum(outside.values()):,} values lie outside of data.schema{_named(outside)}, and "
            f"are taken as its nearest end, or as no category; correct the values, or the schema"
        )

    def _left_out(self) -> str:
        if not self.left_out:
            return ""
        return (
            f"columns that hold no numbers are left out: {_some(self.left_out)}; give their "
            f"categories or range in data.schema, or name the features in data.options.x"
        )

    def _constant(self) -> str:
        same = [column.name for column in self.columns if column.constant]
        if not same or self.public:
            return ""
        return f"columns have one value only: {_some(same)}; leave them out by data.options.x"

    def _unscaled(self) -> str:
        scales = {c.name: c.scale for c in self.columns if 0 < c.scale < math.inf}
        if self.public or not scales:
            return ""
        scales["the model's constant 1"] = 1.0
        least, most = min(scales, key=scales.__getitem__), max(scales, key=scales.__getitem__)
        ratio = scales[most] / scales[least]
        if ratio < UNSCALED_RATIO:
            return ""
        return (
            f"the largest column scale is over {10 ** int(math.log10(ratio)):,} times the smallest "
            f"({most} and {least}), so that noise drowns the small one; give public ranges in "
            f"data.schema, or data.shift and data.scale"
        )


def screen(dataset: Dataset, missing: str | None = None) -> Screen:
    """Look at all records, after they were standardised and before missing values are filled.

    Args:
        dataset: the records.
        missing: the owner's decision; None if there is none yet.
    """
    parts = [each for each in (dataset.train, dataset.test) if each is not None]
    x = parts[0].x if len(parts) == 1 else torch.cat([part.x for part in parts])
    table = dataset.table
    known = x.isfinite()
    holes = ~known.flatten(1).all(dim=1) if x.numel() else torch.zeros(0, dtype=torch.bool)
    named = table is not None and x.dim() == 2 and len(table.features) == x.shape[1]
    plain = [str(i) for i in range(x.shape[1])] if x.dim() == 2 else []
    names = table.features if named and table is not None else plain
    outside = table.outside if named and table is not None else ()
    return Screen(
        records=len(x),
        incomplete=int(holes.sum()),
        persons=_persons(parts, holes),
        missing=missing,
        public=bool(outside),
        unlabelled=sum(_unlabelled(part.y) for part in parts),
        columns=tuple(_columns(x, known, names, outside)),
        left_out=table.left_out if table is not None else (),
    )


def _unlabelled(y: torch.Tensor) -> int:
    """Records without a label: of several, as of tokens, all are missing."""
    return int(
        unknown_labels(y).flatten(1).all(dim=1).sum() if y.dim() > 1 else unknown_labels(y).sum()
    )


def _persons(parts: Sequence[Records], holes: torch.Tensor) -> int:
    """How many persons have such a record; a number means another person in another silo."""
    found = set[tuple[int, int]]()
    start = 0
    for part in parts:
        here, start = holes[start : start + len(part)], start + len(part)
        if part.groups is not None:
            silos = torch.zeros_like(part.groups) if part.silos is None else part.silos
            found |= set(zip(silos[here].tolist(), part.groups[here].tolist(), strict=True))
    return len(found)


def _columns(
    x: torch.Tensor, known: torch.Tensor, names: Sequence[str], outside: Sequence[int]
) -> list[ColumnScreen]:
    if not names or not len(x):
        return []
    low = x.where(known, math.inf).amin(dim=0).tolist()
    high = x.where(known, -math.inf).amax(dim=0).tolist()
    missing = (~known).sum(dim=0).tolist()
    return [
        ColumnScreen(
            name=name,
            missing=missing[i],
            outside=outside[i] if outside else 0,
            low=low[i],
            high=high[i],
        )
        for i, name in enumerate(names)
    ]


def _named(counts: dict[str, int]) -> str:
    if not counts:
        return ""
    ranked = sorted(counts, key=lambda name: -counts[name])
    return f" ({_some([f'{name} {counts[name]:,}' for name in ranked])})"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_COLUMNS_NAMED} more" if len(names) > MAX_COLUMNS_NAMED else ""
    return f"{', '.join(names[:MAX_COLUMNS_NAMED])}{more}"
