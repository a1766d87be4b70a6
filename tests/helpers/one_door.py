# SPDX-License-Identifier: Apache-2.0
"""Who releases: calls of the one door, and calls of mechanisms, of which none may be outside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from dpfed.mechanisms.gaussian import Gaussian
from dpfed.training.reply import PricedReleaser


@dataclass
class Door:
    """What was counted."""

    passed: int = 0
    released: int = 0
    inside: bool = False


def watched(monkeypatch: pytest.MonkeyPatch) -> Door:
    """Counts from here on; a release that does not pass the door fails at once."""
    door, call, release = Door(), PricedReleaser.__call__, Gaussian.release

    def passed(self: PricedReleaser, *args: Any) -> Any:
        if type(self) is not PricedReleaser:  # a rehearsal's releases nothing
            return call(self, *args)
        door.passed += 1
        door.inside = True
        try:
            return call(self, *args)
        finally:
            door.inside = False

    def released(self: Gaussian, *args: Any) -> Any:
        assert door.inside, "a mechanism released beside the door"
        door.released += 1
        return release(self, *args)

    monkeypatch.setattr(PricedReleaser, "__call__", passed)
    monkeypatch.setattr(Gaussian, "release", released)
    return door
