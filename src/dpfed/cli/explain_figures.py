# SPDX-License-Identifier: Apache-2.0
"""What a board asks first of a run: accuracy, participants, rounds, what was wasted, when.

Only what is public or was priced is in guarantee.json, and so here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from dpfed.accounting.guarantee import Claim, Guarantee, epsilon_of
from dpfed.core.errors import RecipeError, Unpriceable
from dpfed.core.types import Adjacency, Unit

AS_WRITTEN = (
    "as whoever ran it wrote them: only that no epsilon is below the cost of the events beside "
    "it was computed again. What a participant itself "
)
AS_WRITTEN += "released is in its own ledger (dpfed ledger show, verify) and its gate's log."
_PAIR = re.compile(r"\([^()]+, [^()]+\)-DP")
PLURAL = {Unit.RECORD: "records", Unit.GROUP: "persons", Unit.CLIENT: "participants"}


def run_figures(contents: Mapping[str, Any], found: Guarantee) -> Iterator[str]:
    """What a board asks first; a file of an earlier version has none of it."""
    if contents.get("accuracy") is not None:
        yield f"Accuracy: {100 * float(contents['accuracy']):.1f} % at the end."
    if contents.get("participants"):
        units = f"{float(contents.get('units') or 0):,.0f} {PLURAL[found.unit]}"
        private = found.adjacency is Adjacency.ADD_REMOVE
        known = "a nominal number, since the true one is private" if private else "a public number"
        planned, told = int(contents["participants"]), contents.get("answered")
        took = told.get("took_part", planned) if isinstance(told, Mapping) else planned
        few = "" if took == planned else f"{took} took part, of "
        counted = "" if found.unit is Unit.CLIENT else f", with {units} in all ({known})"
        yield f"Participants: {few}{planned}{counted}."
    if contents.get("rounds_asked"):
        wasted = contents.get("wasted_attempts") or 0
        lost = f"{wasted} attempts brought no total and were paid for" if wasted else "none wasted"
        yield f"Rounds: {found.rounds} played of {contents['rounds_asked']} asked for; {lost}."
    for word, key in (("Began", "started"), ("Ended", "finished")):
        if contents.get(key):
            yield f"{word}: {str(contents[key]).replace('T', ' ')[:16]} UTC."


def refuse_other_figures(contents: Mapping[str, Any], found: Guarantee) -> None:
    """A sentence must have the figures of the claims beside it: somebody has edited one of them."""
    said = _PAIR.findall(str(contents.get("sentence", found.sentence)))
    if said != (stated := _PAIR.findall(found.sentence)):
        raise RecipeError(
            f"guarantee.json's sentence says {' and '.join(said) or 'nothing'}, and its claims "
            f"{' and '.join(stated) or 'nothing'}; ask for the file as dpfed wrote it"
        )
    for claim in found.claims:
        again = _computed_again(claim, found.adjacency)
        if again > claim.epsilon * (1 + _TOLERANCE):
            raise RecipeError(
                f"guarantee.json claims epsilon {claim.epsilon:g} against {claim.adversary}, and "
                f"the events beside it cost {again:g}; ask for the file as dpfed wrote it"
            )


_TOLERANCE = 1e-6


def _computed_again(claim: Claim, adjacency: Adjacency) -> float:
    """The epsilon of a claim's own events; 0 where it has none, as in files of version 0.2."""
    if not claim.event:
        return 0.0
    try:
        return epsilon_of(claim.event, claim.delta - claim.delta_reserved, adjacency)[0]
    except (Unpriceable, KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise RecipeError(
            f"guarantee.json has events that cannot be accounted for ({error}); ask for the file "
            f"as dpfed wrote it"
        ) from error
