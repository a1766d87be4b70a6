# SPDX-License-Identifier: Apache-2.0
"""A user's own train function as a problem: what it did to the parameters is the client's one row.

    names, in the order      the arrays that are trained: the row
    other floating arrays    stay on this node, in Flower's Context: the function gets its own back
    integers, booleans       are the server's, before and after

Guarantee: nothing but the row is read off what the function returns. An evaluate function of the
user's runs after the row is made, at most once for each that is counted; what it returns or raises
is a line of the local log, and changes no bit of the reply.

| edge case                                          | what happens                              |
|----------------------------------------------------|-------------------------------------------|
| a plan for records or groups                       | UnsoundPlan, before the function is run   |
| an order that names an array that is not floating  | DataError, before the function is run     |
| the function raises, exits, or returns other names | the row is zero (reply.py)                |
| or shapes                                          |                                           |
| the evaluate function raises, exits or returns     | a line in the local log                   |
| something else                                     |                                           |
| a new Flower run, whose Context is empty           | what was kept begins as the server has it |
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from dpfed.core.errors import DataError, UnsoundPlan
from dpfed.core.log import log
from dpfed.core.rows import Dense
from dpfed.core.types import Rows, Unit, Vector
from dpfed.core.vector import users_threads
from dpfed.training.wire.codec import ARRAYS, CONTROL

Train = Callable[[Message, Context], Message]

KEPT = "dpfed.kept"
"""The record in the Context's state that has the arrays of this node."""


@dataclass(frozen=True, eq=False)
class Trained:
    """A problem whose one row is what the user's train function did to the parameters."""

    message: Message
    context: Context
    train: Train
    evaluate: Train | None = None
    """A user's own evaluate function, for this node's log."""

    @property
    def dimension(self) -> int:
        """The number of parameters that are trained."""
        return sum(math.prod(self._arrays[name].shape) for name in self._names)

    @property
    def _arrays(self) -> ArrayRecord:
        return self.message.content.array_records[ARRAYS]

    @property
    def _names(self) -> list[str]:
        return [str(n) for n in self.message.content.config_records[CONTROL]["names"]]  # type: ignore[union-attr]

    def made_up(self) -> Trained:
        """The same problem with a function that changes nothing: to check that the order fits."""
        wrong = [name for name in self._names if not _floats(self._arrays[name])]
        if wrong:
            raise DataError(
                f"array {wrong[0]!r} must be floating point to be trained, got "
                f"{self._arrays[wrong[0]].dtype}; use the same version of dpfed on the server"
            )
        return replace(self, train=_unchanged, evaluate=None)

    def rows(self, params: Vector, unit: Unit) -> Rows:
        """One row: the parameters before the user's function minus those after it."""
        if unit is not Unit.CLIENT:
            raise UnsoundPlan(
                f"privacy.unit must be client for a train function, which is one row, got {unit}; "
                f"set it in the plan"
            )
        kept = [n for n in self._arrays if n not in self._names and _floats(self._arrays[n])]
        given = self._with_kept(kept)
        before = _copied(given)
        with users_threads():
            reply = self.train(given, self.context)
        after = self._returned(reply, [*self._names, *kept])
        if kept:
            own = ArrayRecord({name: after[name] for name in kept})
            self.context.state.array_records[KEPT] = own
        flat = [torch.from_numpy(after[n].numpy().copy()).reshape(-1) for n in self._names]
        row = (params - torch.cat(flat))[None]
        if self.evaluate is not None:
            _look(self.evaluate, before, self.context)
        return Dense(row)

    def _with_kept(self, kept: list[str]) -> Message:
        """The message with the arrays of this node in the place of the server's."""
        own = self.context.state.array_records.get(KEPT)
        if own is None or set(own) != set(kept):
            return self.message
        arrays = ArrayRecord({**self._arrays, **own})
        return _copied(self.message, {ARRAYS: arrays})

    def _returned(self, reply: Message, names: list[str]) -> ArrayRecord:
        """The arrays of the function's reply, if they are those that came in."""
        records = list(reply.content.array_records.values())
        sent = {name: self._arrays[name].shape for name in names}
        found = [{name: array.shape for name, array in each.items()} for each in records]
        if len(found) != 1 or not sent.items() <= found[0].items():
            raise DataError(
                f"the train function must return one ArrayRecord with {sent}, got {found}; return "
                f"the model's parameters under the names that came in"
            )
        return records[0]

    def gradient(self, params: Vector) -> Vector:
        """Refused: a train function has none."""
        del params
        raise UnsoundPlan("a train function has no gradient; use client 'gradient' with it")

    def metric_rows(self, params: Vector, unit: Unit, loss_bound: float) -> Rows:
        """Refused: a train function has none."""
        del params, unit, loss_bound
        raise UnsoundPlan("a train function has no metrics to release; turn evaluation off")


def _copied(message: Message, records: Mapping[str, ArrayRecord] | None = None) -> Message:
    """A copy of the message: in one process, clients may share its content."""
    made = copy.copy(message)
    made.content = RecordDict({**message.content, **(records or {})})
    return made


def _look(evaluate: Train, message: Message, context: Context) -> None:
    """Run the user's evaluate function on the model that came in; the result goes to this log."""
    here = copy.copy(context)
    here.state = RecordDict(dict(context.state))  # the next round's training has it as it was
    try:
        with users_threads():
            found = evaluate(message, here).content.metric_records
        said = {name: value for record in found.values() for name, value in record.items()}
        log.info("evaluated on this node only, nothing was sent: %s", said)
    except (Exception, SystemExit):
        log.exception("the evaluate function failed on this node; nothing was sent")


def _unchanged(message: Message, context: Context) -> Message:
    del context
    return Message(RecordDict({ARRAYS: message.content.array_records[ARRAYS]}), reply_to=message)


def _floats(array: Array) -> bool:
    return np.issubdtype(np.dtype(array.dtype), np.floating)
