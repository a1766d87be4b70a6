# SPDX-License-Identifier: Apache-2.0
"""Optional packages: where one is missing, the error names the command that installs it.

| edge case                              | what happens                                         |
|----------------------------------------|------------------------------------------------------|
| the package is missing, or is broken   | ``MissingExtra``, before anything is read or spent   |
| a file that only shows a result        | left out, and said once: a run is not lost for it    |
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from dpfed.core.errors import MissingExtra, first_sentence
from dpfed.core.log import log


@contextmanager
def require_extra(extra: str, what: str, package: str | None = None) -> Iterator[None]:
    """Wrap the import of an optional package: if it fails, say which extra to install.

    Args:
        extra: the extra of dpfed that installs it.
        what: what needs it, as the sentence's subject.
        package: its name, where that is not the extra's.
    """
    try:
        yield
    except Exception as error:  # some packages raise what their own imports raise
        raise MissingExtra(
            f"{what} needs {package or extra}, which cannot be imported ({first_sentence(error)}); "
            f"pip install 'dpfed[{extra}]'"
        ) from error


@contextmanager
def skip_if_missing(files: str) -> Iterator[None]:
    """Skip optional output (plots) if its package is missing; log once.

    Args:
        files: what they are, in the plural, for the log.
    """
    try:
        yield
    except MissingExtra as error:
        _say_once(f"{files} are left out: {error}")


@cache
def _say_once(sentence: str) -> None:
    log.warning(sentence)
