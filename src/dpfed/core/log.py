# SPDX-License-Identifier: Apache-2.0
"""The one logger, ``dpfed``. A client's log may quote data, and stays on the client.

Text that came from elsewhere can steer the screen that shows it, or forge a line of a log: it
passes ``shown``, and a process that answers to others logs by ``OneLine``.
"""

from __future__ import annotations

import logging
import traceback
import unicodedata

log = logging.getLogger("dpfed")
_MOST = 1000


def shown(text: str, most: int = 80) -> str:
    """Text from elsewhere, fit for a screen: one line, and nothing that steers it.

    Args:
        text: as it came.
        most: how many characters of it.
    """
    return "".join(map(_plain, text[:most])) + "..." * (len(text) > most)


def _plain(character: str) -> str:
    """The same, unless it is a control, a direction, a line end or a private sign."""
    fine = character.isprintable() and unicodedata.category(character)[0] not in "CZM"
    return character if fine or character == " " else "\N{REPLACEMENT CHARACTER}"


class OneLine(logging.Formatter):
    """What is logged, with the words of each message and each error on one line, and not endless.

    Only the places in our own code have lines of their own.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The record's message, then its error and those before it."""
        said = [f"{record.levelname} {shown(record.getMessage(), _MOST)}"]
        error = record.exc_info[1] if record.exc_info else None
        while error is not None and len(said) < 9:
            places = "".join(traceback.format_tb(error.__traceback__, limit=-20))
            said.append(f"{places}{type(error).__name__}: {shown(str(error), _MOST)}")
            error = error.__cause__ or error.__context__
        return "\n".join(said)
