# SPDX-License-Identifier: Apache-2.0
"""A look at a few of a network's records before anything is spent, for their owner's eyes only.

Guarantee: what is found is said in this machine's log. It changes no row, refuses nothing, and no
error of it comes through: a refusal would tell others something of the records.

| edge case                                            | what is said                           |
|------------------------------------------------------|----------------------------------------|
| records that cannot be read                          | how many of the first ones, and why    |
| none of the first ones                               | that only noise would be trained on    |
| labels outside of the classes                        | how many: of all, if they are in memory|
| inputs that are not finite                           | how many records have one              |
| inputs beyond 100                                    | how far they go: scale them            |
| a record that differs when it is read again          | that random transforms belong elsewhere|
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import torch

from dpfed.core.errors import failures
from dpfed.core.log import log, places
from dpfed.data.batches import Batch, Batches

LOOKED_AT = 8
"""How many of the first records are read."""
LARGE = 100.0
"""Inputs beyond this are said to be unscaled: images in bytes, amounts of money."""


def look(
    batches: Batches,
    classes: int | None = None,
    *,
    numbers: bool = True,
    said: set[str] | None = None,
) -> None:
    """Say in the local log what looks wrong in the first records.

    Args:
        batches: the records.
        classes: how many there are, if labels are classes.
        numbers: whether inputs are quantities; those of an embedding are names.
        said: what was said of other clients' records, of which it is not said again but for numbers
            in it; gets what is said now.
    """
    said = set() if said is None else said
    try:
        for sentence in _findings(batches, classes, numbers=numbers):
            kind = re.sub(r"[\d.e+]+", "", sentence)
            if kind not in said:
                log.warning("data: %s", sentence)
            said.add(kind)
    except failures() as error:
        log.debug("the records could not be looked at: %s", places(error))


def _findings(batches: Batches, classes: int | None, *, numbers: bool) -> Iterator[str]:
    first = batches.read(torch.arange(min(LOOKED_AT, batches.most, len(batches))))
    read = first if first.usable is None else first[first.usable]
    if len(first) and not len(read):
        yield (
            f"none of the first {len(first)} records can be read: if no other can, the model is "
            f"trained on noise alone; correct the example, collate or fill"
        )
        return
    labels = read.targets if batches.labels is None else batches.labels
    if classes is not None:
        yield from _labels(labels, classes)
    yield from _inputs(read, LARGE if numbers else math.inf)
    if batches.labels is None and (first.usable is None or bool(first.usable[0])):
        yield from _again(first[:1], batches.read(torch.arange(1)))


def _labels(labels: torch.Tensor, classes: int) -> Iterator[str]:
    unknown = (labels < 0) | (labels >= classes)
    if bool(unknown.any()):
        yield (
            f"{int(unknown.sum())} of {len(labels)} records have a label that the model does not "
            f"know, and are ignored; number classes from 0 to {classes - 1}, or give the last "
            f"layer more outputs"
        )


def _inputs(read: Batch, most: float) -> Iterator[str]:
    for name, each in read.tensors().items():
        if name == "targets" or not each.is_floating_point():
            continue
        rows = each.flatten(1) if each.dim() > 1 else each[:, None]
        holes = ~rows.isfinite().all(dim=1)
        if bool(holes.any()):
            yield (
                f"{int(holes.sum())} of the first {len(read)} records have a number in {name} that "
                f"is not finite, and are ignored; put a public constant in its place"
            )
        largest = float(rows[~holes].abs().max()) if bool((~holes).any()) and rows.numel() else 0.0
        if largest > most:
            yield (
                f"{name} has numbers above {most:g}, which drown all else; divide by a public "
                f"constant, as x / 255 for images, so that numbers are about 1"
            )


def _again(first: Batch, second: Batch) -> Iterator[str]:
    before, after = first.tensors(), second.tensors()
    if any(not torch.equal(before[name], after[name]) for name in before) and not any(
        each.is_floating_point() and not bool(each.isfinite().all()) for each in before.values()
    ):
        yield (
            "the first record differs when it is read again, so that a guarantee for each record "
            "rests on random numbers of the data set; take random transforms out of it, and give "
            "them to dpfed.flower.augmented"
        )
