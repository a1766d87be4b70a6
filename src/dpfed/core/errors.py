# SPDX-License-Identifier: Apache-2.0
"""The exception tree. Each message is one sentence with the value, the bound and the way out.

    DpfedError
    +-- RecipeError        a recipe or an option is misspelt, missing or out of range
    +-- UnsoundPlan        the parts are fine, but together they would not keep the promise
    +-- Unpriceable        no accountant here gives an upper bound for this
    +-- BudgetSpent        a release would take a data set or a training over its budget
    +-- DataError          a data set, a partition or a backbone cannot be loaded as asked
    +-- BadRelease         rows or a release break what the mechanism was priced for
    +-- BadReply           a message from a client does not fit the round's schema
    +-- Untrusted          the server asks a client for what could show more than the sum
    +-- RoundAborted       too little arrived to open the round
    +-- ClientRefused      a client could not answer; carries a class name, never a sentence

An exception's text may quote data. On a client the sentence goes to the local log, and what
crosses the wire is a name from ``WIRE_NAMES``.
"""

from __future__ import annotations


class DpfedError(Exception):
    """Base of all errors that dpfed raises on purpose."""


class RecipeError(DpfedError, ValueError):
    """A recipe or an option is misspelt, missing or out of range."""


class UnsoundPlan(DpfedError, ValueError):
    """The parts are fine, but together they would not keep the promise."""


class Unpriceable(DpfedError, ValueError):
    """No accountant here gives an upper bound for this event."""


class BudgetSpent(DpfedError, RuntimeError):
    """A release would take a data set or a training over its budget."""


class DataError(DpfedError, ValueError):
    """A data set, a partition or a backbone cannot be loaded as asked."""


class BadRelease(DpfedError, ValueError):
    """Rows or a release break what the mechanism was priced for."""


class BadReply(DpfedError, ValueError):
    """A message from a client does not fit the round's schema."""


class Untrusted(DpfedError, RuntimeError):
    """The server asks a client for what could show more than the sum."""


class RoundAborted(DpfedError, RuntimeError):
    """Too little arrived to open the round."""


class ClientRefused(DpfedError, RuntimeError):
    """A client could not answer; carries a class name, never a sentence."""


WIRE_NAMES = frozenset(
    {
        "BadRelease",
        "BudgetSpent",
        "DataError",
        "UnsoundPlan",
        "Untrusted",
        "OutOfMemory",
        "ClientError",
    }
)


def wire_name(error: BaseException) -> str:
    """The name from the fixed list under which an error on a client crosses the wire."""
    if isinstance(error, MemoryError):
        return "OutOfMemory"
    name = type(error).__name__
    is_ours = isinstance(error, DpfedError)
    return name if is_ours and name in WIRE_NAMES else "ClientError"
