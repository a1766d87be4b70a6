# SPDX-License-Identifier: Apache-2.0
"""What the refusal of an option looks like, for ``pytest.raises(match=...)``."""

from __future__ import annotations

from collections.abc import Iterable


def named(owner: str, options: Iterable[str]) -> str:
    """One of these options by its full name, its bound, and the value that breaks it."""
    return rf"^{owner}\.({'|'.join(options)}) must be .+, got .+; .+"
