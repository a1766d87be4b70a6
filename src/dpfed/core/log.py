# SPDX-License-Identifier: Apache-2.0
"""The one logger, ``dpfed``. What it says of records is their number, never a value.

Untrusted text can contain control characters that steer a terminal, or forge a line of a log. It
passes ``shown``; a process that serves others logs with ``OneLine``.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger("dpfed")
_MAX_LINE_LENGTH = 1000
_SILENCE_S = 3.0  # a person who waits longer without a word thinks that it hangs


def shown(text: str, most: int = 80) -> str:
    """Sanitise untrusted text for a terminal: one line, no control characters.

    Args:
        text: as it came.
        most: how many characters of it.
    """
    return "".join(map(_plain, text[:most])) + "..." * (len(text) > most)


def _plain(character: str) -> str:
    """The character, or a replacement if it is a control, direction, line end or private sign."""
    fine = character.isprintable() and unicodedata.category(character)[0] not in "CZM"
    return character if fine or character == " " else "\N{REPLACEMENT CHARACTER}"


def places(error: BaseException | None) -> str:
    """Where an error was raised, and its class, but no words of it: they may quote a record.

    Args:
        error: what code raised on records.
    """
    if error is None:
        return "no error"
    lines = "".join(traceback.format_tb(error.__traceback__, limit=-20))
    return f"{type(error).__name__} (its words may quote a record, and are left out)\n{lines}"


class OneLine(logging.Formatter):
    """A log formatter: the words of each message and each error on one line of limited length.

    Only the places in our own code have lines of their own.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The record's message, then its error and those before it."""
        said = [f"{record.levelname} {shown(record.getMessage(), _MAX_LINE_LENGTH)}"]
        error = record.exc_info[1] if record.exc_info else None
        while error is not None and len(said) < 9:
            places = "".join(traceback.format_tb(error.__traceback__, limit=-20))
            said.append(f"{places}{type(error).__name__}: {shown(str(error), _MAX_LINE_LENGTH)}")
            error = error.__cause__ or error.__context__
        return "\n".join(said)


@contextmanager
def say_if_slow(words: str, seconds: float = _SILENCE_S) -> Iterator[None]:
    """Say on standard error what is waited for, if it takes longer than a few seconds.

    No thread of it is left afterwards: a gate forks.

    Args:
        words: what is being done; names and sizes that are public to whoever reads them.
        seconds: before they are said.
    """
    timer = threading.Timer(seconds, lambda: print(f"{words} ...", file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
