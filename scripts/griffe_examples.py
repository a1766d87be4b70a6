# SPDX-License-Identifier: Apache-2.0
"""Show the ``>>>`` examples of docstrings as code on the API page.

Without this, Markdown reads ``>>>`` as a quotation and ``[0.5, 0.7]`` as a link. doctest runs the
examples where they are; here each is put into a fence, before griffe parses the docstring.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^(?:>>> .*)(?:\n(?!\n).*)*", re.MULTILINE)
"""From a prompt to the next empty line."""


def fenced(text: str) -> str:
    """A docstring whose examples are blocks of code."""
    return EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", text)


class Examples(griffe.Extension):
    """Fences the examples of every object that has a docstring."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Called once for each object that was loaded."""
        if not obj.is_alias and obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)
