# SPDX-License-Identifier: Apache-2.0
"""Compare the short guarantee on a page, and its list of assumptions, with a whole sentence."""

from __future__ import annotations

import re
from pathlib import Path

from dpfed.accounting.guarantee import Guarantee, round_up

ASSUMED = {
    "the server starts no other training on the data": "the server starts no other training",
    "idealized arithmetic": "idealized real numbers",
    "noise from the operating system": "from the operating system's generator",
}
"""What a sentence counts on, beside its neighbours -> how the list on a page says it."""


def check_short_guarantee(page: Path, made: Guarantee) -> None:
    """The page's quoted line has the sentence's first claim, its list every assumption."""
    text = page.read_text(encoding="utf-8")
    first = made.claims[0]
    pair = f"({round_up(first.epsilon)}, {round_up(first.delta)})-DP"
    short = f"{pair} for each {made.unit}, against {first.adversary}, over {made.rounds} rounds."
    assert re.findall(r"^> (.+)$", text, re.MULTILINE) == [short]
    listed = text.partition(short)[2].partition("`guarantee.json`")[0]
    assert f"({made.adjacency})" in made.sentence
    assert f"({made.adjacency})" in listed
    assumed = {each.removeprefix("if ") for each in made.assumptions}
    assert assumed - {first.accounting} == set(ASSUMED)  # a figure's derivation is no assumption
    assert all(words in listed for words in ASSUMED.values())
