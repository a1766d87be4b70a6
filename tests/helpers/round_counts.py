# SPDX-License-Identifier: Apache-2.0
"""Counts of rounds, and the same by channel."""

from __future__ import annotations

from dpfed.accounting.event_tree import ChannelUse, RoundCounts, RoundKind
from dpfed.core.types import UPDATE


def by_channel(counts: RoundCounts) -> dict[str, dict[float, int]]:
    """Channel -> (shares of noise that an outsider cannot subtract -> number of releases)."""
    found: dict[str, dict[float, int]] = {}
    for kind, attempts in counts.items():
        for use in kind:
            shares = found.setdefault(use.channel, {})
            shares[use.shares] = shares.get(use.shares, 0) + use.releases * attempts
    return found


def updates(counts: RoundCounts) -> int:
    """The number of releases on the update channel."""
    return sum(by_channel(counts).get(UPDATE, {}).values())


def only_updates(shares: dict[float, int]) -> dict[RoundKind, int]:
    """Rounds with one release on the update channel: shares -> attempts."""
    return {(ChannelUse(UPDATE, 1, each),): count for each, count in shares.items()}
