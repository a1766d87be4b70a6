# SPDX-License-Identifier: Apache-2.0
"""A ServerApp's errors as one sentence in its log, with the traceback in a file.

Flower logs the traceback of whatever a ServerApp raises. An error of dpfed's own says in one
sentence what is wrong and what to do; its traceback is for whoever looks into dpfed itself.
"""

from __future__ import annotations

import logging
import os
import tempfile
import traceback
from pathlib import Path

from dpfed.core.errors import DpfedError
from dpfed.core.files import replace_file


class OneSentence(logging.Filter):
    """A filter of Flower's logger: tracebacks of dpfed's own errors go to a file.

    Args:
        folder: where the file ``error.txt`` is written; None is the system's temporary folder.
    """

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__("")
        self.folder = folder

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass, changed where it carries one of dpfed's errors."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, DpfedError):
            place = self._keep(error)
            where = f" (traceback in {place})" if place else ""
            record.msg = f"{record.getMessage()}: {type(error).__name__}: {error}{where}"
            record.args, record.exc_info, record.exc_text = (), None, None
        return True

    def _keep(self, error: DpfedError) -> Path | None:
        """The traceback's file; None where it cannot be written."""
        path = Path(tempfile.gettempdir()) / f"dpfed-error-{os.getpid()}.txt"
        if self.folder is not None:
            path = self.folder / "error.txt"
        try:
            replace_file(path, "".join(traceback.format_exception(error)).encode())
        except OSError:
            return None
        return path


def errors_in_one_sentence(folder: Path | None = None) -> None:
    """Let Flower's log have dpfed's errors in one sentence; the last folder that is named counts.

    Args:
        folder: for the tracebacks; None is the system's temporary folder.
    """
    flower = logging.getLogger("flwr")
    earlier = [each for each in flower.filters if isinstance(each, OneSentence)]
    if not earlier:
        flower.addFilter(OneSentence(folder))
    elif folder is not None:
        earlier[0].folder = folder
