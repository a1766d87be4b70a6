# SPDX-License-Identifier: Apache-2.0
"""Bounds of data options, in the same sentences as ``dpfed.core.checks`` but as DataError."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dpfed.core.checks import refuse
from dpfed.core.errors import DataError, first_sentence

if TYPE_CHECKING:
    from pathlib import Path

    import torch


def bad_option(name: str, bound: str, value: Any, way_out: str = "") -> DataError:
    """The error of a value that breaks its bound.

    Args:
        name: the option, as a user writes it.
        bound: what it must be.
        value: what it is.
        way_out: what to do about it; empty is to leave it out.
    """
    return DataError(str(refuse(name, bound, value, way_out)))


def require_one(**values: int) -> None:
    """Refuse a count below 1."""
    for name, value in values.items():
        if value < 1:
            raise bad_option(name, "a whole number, at least 1", value)


def require_positive(way_out: str = "", /, **values: float) -> None:
    """Refuse what is not a finite number above 0."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise bad_option(name, "a finite number above 0", value, way_out)


def require_from_zero(**values: float) -> None:
    """Refuse what is not a finite number, at least 0."""
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise bad_option(name, "a finite number, at least 0", value)


def require_groups(groups: torch.Tensor | None, who: str, otherwise: str) -> torch.Tensor:
    """The group ids, or an error where records have none.

    Args:
        groups: the records' group ids; None if they have none.
        who: what needs them, as the user has asked for it.
        otherwise: what to do if there are no groups.
    """
    if groups is None:
        raise DataError(
            f"{who} needs a group id for every record, and these records have none; "
            f"name the group column in data.options.groups, or {otherwise}"
        )
    return groups


def unreadable(path: Path, what: str, error: Exception, way_out: str) -> DataError:
    """The error of a file that is not what its name says.

    Args:
        path: the file.
        what: what it was read as.
        error: what the reader's library raised.
        way_out: what to do about it.
    """
    said = first_sentence(error)
    return DataError(f"{path.name!r} cannot be read as {what} ({said}); {way_out}")
