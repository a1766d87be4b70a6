# SPDX-License-Identifier: Apache-2.0
"""What a board asks first of a run: accuracy, participants, rounds, what was wasted, when.

Only what is public or was priced is in guarantee.json, and so here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dpfed.accounting.guarantee import Guarantee
from dpfed.core.types import Adjacency, Unit

_PLURAL = {Unit.RECORD: "records", Unit.GROUP: "persons", Unit.CLIENT: "participants"}


def run_figures(contents: Mapping[str, Any], found: Guarantee) -> Iterator[str]:
    """What a board asks first; a file of an earlier version has none of it."""
    if contents.get("accuracy") is not None:
        yield f"Accuracy: {100 * float(contents['accuracy']):.1f} % at the end."
    if contents.get("participants"):
        units = f"{float(contents.get('units') or 0):,.0f} {_PLURAL[found.unit]}"
        private = found.adjacency is Adjacency.ADD_REMOVE
        known = "a nominal number, since the true one is private" if private else "a public number"
        yield f"Participants: {contents['participants']}, with {units} in all ({known})."
    if contents.get("rounds_asked"):
        wasted = contents.get("wasted_attempts") or 0
        lost = f"{wasted} attempts brought no total and were paid for" if wasted else "none wasted"
        yield f"Rounds: {found.rounds} played of {contents['rounds_asked']} asked for; {lost}."
    for word, key in (("Began", "started"), ("Ended", "finished")):
        if contents.get(key):
            yield f"{word}: {str(contents[key]).replace('T', ' ')[:16]} UTC."
