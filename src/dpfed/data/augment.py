# SPDX-License-Identifier: Apache-2.0
"""Augmentation: each record is changed by a stream of its own, which no other record can move.

    records = augmented(records, lambda x, generator: x + 0.1 * torch.randn(x.shape, ...))

A record's stream follows from a secret of the client, from the record's own content and from the
turn, a digest of the parameters that its gradient is taken at; never from its index, which shifts
when another record leaves: then all the others would be changed anew, and one record would move
the sum by as many clips as there are records after it.

Guarantee: what training sees of a record is a function of that record, the secret and public
numbers. So whatever it does, neighbouring data still differ in one row.

| edge case                                          | what happens                              |
|----------------------------------------------------|-------------------------------------------|
| two records of the same content                    | are changed alike                         |
| a change that raises on a record, or changes shape | the record is not usable; a line in the   |
|                                                    | local log                                 |
| the same on made-up records                        | DataError when it is asked for            |
| a change that uses torch's own generator           | the user's word: give it the one it gets  |
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from dpfed.core.errors import DataError, failures
from dpfed.core.log import log, places
from dpfed.data.batches import Batch, Batches, Inputs, record_batches
from dpfed.data.datasets import Records

Change = Callable[[Any, torch.Generator], Any]
"""(one record's inputs: a tensor, or a dict of them; its stream) -> the same, changed."""


def augmented(
    records: Records | Batches, change: Change, *, secret: bytes | None = None
) -> Batches:
    """Records that are augmented for training, each by its own random stream, not for metrics.

    Args:
        records: one client's.
        change: (inputs of one record, generator) -> inputs of the same shapes and types; all that
            is random in it must come from the generator.
        secret: 32 bytes that stay on the client; None draws them.

    Returns:
        the records; ``len`` of them is the same.

    >>> import torch
    >>> records = Records(torch.zeros(5, 2), torch.zeros(5, dtype=torch.int64))
    >>> noisy = augmented(records, lambda x, rng: x + torch.rand(x.shape, generator=rng))
    >>> len(noisy)
    5
    """
    batches = record_batches(records)
    key = secrets.token_bytes(32) if secret is None else secret
    if len(key) != 32:
        raise DataError(
            f"secret must have 32 bytes, got {len(key)}; give secrets.token_bytes(32), or None"
        )
    changed = _Augmenter(change, key)
    try:
        for at in range(len(batches.stand_in)):
            changed.one(batches.stand_in[at : at + 1], b"made up")
    except Exception as error:
        raise DataError(
            f"the change must keep a record's shapes and types, and fails on a made-up one "
            f"({type(error).__name__}: {error}); correct it"
        ) from error
    return replace(batches, change=changed)


@dataclass(frozen=True, eq=False)
class _Augmenter:
    change: Change
    secret: bytes

    def __call__(self, batch: Batch, turn: bytes) -> Batch:
        """The records of a batch, one by one; what fails is left as it is, and not usable."""
        made = [self._or_none(batch[at : at + 1], turn) for at in range(len(batch))]
        lost = torch.tensor([each is None for each in made], dtype=torch.bool)
        if not made:
            return batch
        if bool(lost.any()):
            log.warning("%d records cannot be augmented; they are ignored", int(lost.sum()))
        named = [
            (batch[at : at + 1] if each is None else each).tensors() for at, each in enumerate(made)
        ]
        whole = {name: torch.cat([each[name] for each in named]) for name in named[0]}
        usable = ~lost if batch.usable is None else batch.usable & ~lost
        return replace(batch.like(whole), usable=usable)

    def _or_none(self, record: Batch, turn: bytes) -> Batch | None:
        try:
            return self.one(record, turn)
        except failures() as error:
            log.debug("a record cannot be changed: %s", places(error))
            return None

    def one(self, record: Batch, turn: bytes) -> Batch:
        """One record, changed; raises where that fails."""
        inputs: Inputs = record.inputs
        generator = self._stream(record, turn)
        if isinstance(inputs, torch.Tensor):
            return replace(record, inputs=_like(inputs, self.change(inputs[0].clone(), generator)))
        made = self.change({name: each[0].clone() for name, each in inputs.items()}, generator)
        return replace(record, inputs={n: _like(each, made[n]) for n, each in inputs.items()})

    def _stream(self, record: Batch, turn: bytes) -> torch.Generator:
        """The record's random stream, from its content: names, types, shapes and bytes."""
        found = hashlib.blake2b(turn, key=self.secret, digest_size=8)
        for name, each in record.tensors().items():
            raw = each.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            about = f"{name} {each.dtype} {tuple(each.shape)} "
            found.update(len(about).to_bytes(8, "big") + about.encode() + raw)
        return torch.Generator().manual_seed(int.from_bytes(found.digest(), "big") >> 1)


def _like(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    if after.shape != before.shape[1:] or after.dtype != before.dtype:
        raise ValueError(
            f"{tuple(before.shape[1:])} {before.dtype} has become {tuple(after.shape)} "
            f"{after.dtype}"
        )
    return after[None]
