# SPDX-License-Identifier: Apache-2.0
"""A matplotlib figure that a notebook shows by itself, without pyplot and its global state."""

from __future__ import annotations

from io import BytesIO

from matplotlib.figure import Figure


class Picture(Figure):
    """A Figure; where pyplot is loaded its own way of showing figures stands before this one."""

    def _repr_png_(self) -> bytes:
        made = BytesIO()
        self.savefig(made, format="png", dpi=110)
        return made.getvalue()
