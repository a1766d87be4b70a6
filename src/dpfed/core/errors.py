# SPDX-License-Identifier: Apache-2.0
"""The exception tree. Each message is one sentence with the value, the bound and the way out.

    DpfedError
    +-- RecipeError        a recipe or an option is misspelt, missing or out of range
    +-- UnsoundPlan        each part is valid, but together they make the guarantee untrue
    +-- Unpriceable        no accountant here gives an upper bound for this
    +-- BudgetSpent        a release would take a data set or a training over its budget
    +-- LedgerRolledBack   others keep a head of a ledger that is not in its chain
    +-- MissingExtra       an optional package is not installed
    +-- DataError          a data set, a partition or a backbone cannot be loaded as asked
    +-- BadRelease         rows or a release break what the accounting assumes
    +-- BadReply           a message from a client does not fit the round's schema
    +-- Untrusted          the server asks a client for what could show more than the sum
    +-- RoundAborted       too little arrived to open the round
    +-- ClientRefused      a client could not answer; its text is a class name, never a sentence

No value of a record enters a text (``checks.value_in_words``), but a client's code may raise errors
of its own that quote one. On a client the sentence goes to the local log, and only a name from
``WIRE_NAMES`` is sent to the server.
"""

from __future__ import annotations

import re
import textwrap


class DpfedError(Exception):
    """Base of all errors that dpfed raises on purpose."""


class RecipeError(DpfedError, ValueError):
    """A recipe or an option is misspelt, missing or out of range.

    >>> try:
    ...     raise RecipeError("epsilon must be above 0, got -1; raise it")
    ... except ValueError as error:
    ...     print(error)
    epsilon must be above 0, got -1; raise it
    """


class UnsoundPlan(DpfedError, ValueError):
    """Each part is valid, but together they would make the guarantee untrue.

    >>> try:
    ...     raise UnsoundPlan("a round must have noise, got none; set privacy.epsilon")
    ... except ValueError as error:
    ...     print(error)
    a round must have noise, got none; set privacy.epsilon
    """


class Unpriceable(DpfedError, ValueError):
    """No accountant here gives an upper bound for this event."""


class BudgetSpent(DpfedError, RuntimeError):
    """A release would take a data set or a training over its budget."""


class LedgerRolledBack(DpfedError, RuntimeError):
    """Others keep a head of this ledger that is not in its chain: an older copy was put back."""


class MissingExtra(DpfedError, ImportError):
    """An optional package is not installed, or cannot be imported."""


class DataError(DpfedError, ValueError):
    """A data set, a partition or a backbone cannot be loaded as asked.

    >>> try:
    ...     raise DataError("the table has no column 'ill'; name one of age, sex")
    ... except ValueError as error:
    ...     print(error)
    the table has no column 'ill'; name one of age, sex
    """


class BadRelease(DpfedError, ValueError):
    """Rows or a release break what the accounting assumes."""


class BadReply(DpfedError, ValueError):
    """A message from a client does not fit the round's schema."""


class Untrusted(DpfedError, RuntimeError):
    """The server asks a client for what could show more than the sum."""


class RoundAborted(DpfedError, RuntimeError):
    """Too little arrived to open the round."""


class ClientRefused(DpfedError, RuntimeError):
    """A client could not answer; its text is a class name, never a sentence."""


WIRE_NAMES = frozenset(
    {
        "BadRelease",
        "BudgetSpent",
        "DataError",
        "LedgerRolledBack",
        "UnsoundPlan",
        "Untrusted",
        "OutOfMemory",
        "ClientError",
    }
)


_contained: list[type[BaseException]] = [Exception, SystemExit]


def failures() -> tuple[type[BaseException], ...]:
    """The exceptions that code may raise on a record: all are caught, and none is shown outside.

    In a user's own process a KeyboardInterrupt is the user's, and stops the run; in a gate's child
    it can only be a record's (``contain_all``).
    """
    return tuple(_contained)


def contain_all() -> None:
    """Contain every exception: for a process that neither a user nor an event loop interrupts."""
    _contained.append(BaseException)


def wire_name(error: BaseException) -> str:
    """The name from the fixed list that a client sends to the server in the place of an error."""
    if isinstance(error, MemoryError):
        return "OutOfMemory"
    name = type(error).__name__
    is_ours = isinstance(error, DpfedError)
    return name if is_ours and name in WIRE_NAMES else "ClientError"


def as_sentence(error: DpfedError | OSError) -> str:
    """What a user is told of an error of dpfed's, or of the system's (a full disk, say)."""
    if isinstance(error, DpfedError):
        return str(error)
    where = f" ({str(error.filename)!r})" if error.filename else ""
    return f"the system refused{where}: {error.strerror or error}; fix that, and run again"


def first_sentence(error: BaseException) -> str:
    """The class of another library's error and its first sentence, which may run over lines."""
    words = " ".join(str(error).split())
    first = re.split(r"[.!?] (?=[A-Z])", words)[0].rstrip(" .:")
    short = textwrap.shorten(first, 200, placeholder=" ...")
    return f"{type(error).__name__}: {short}" if short else type(error).__name__
