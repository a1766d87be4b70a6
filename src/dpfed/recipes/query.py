# SPDX-License-Identifier: Apache-2.0
"""A query: a recipe with questions in the place of a method.

    name = "ward-2026"
    [data]
    source = "patients.csv"
    contract = "contract.toml"
    [privacy]
    epsilon = 0.5
    [[ask]]
    name = "age"
    kind = "mean"
    column = "age"

It is the recipe of one round of the algorithm ``statistics``: plan, terms, ledger, gate and engines
take it as any other. What a query cannot have (a method, a model, rounds) is refused by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpfed.core.checks import refuse
from dpfed.core.errors import RecipeError

ALGORITHM = "statistics"
ASK, COLUMNS = "ask", "columns"
"""Tables of a query; ``columns`` says what a contract says, where there is none."""
MODEL = "logistic"
"""Its place is taken by the questions."""
_OWN = ("method", "model", "client", "server", "rounds", "evaluation")
_DRAWS = ("record_rate", "client_rate", "cohort", "participation", "adaptive", "clip", "weights")


def with_questions(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's tables, with those that ``[[ask]]`` stands for.

    Args:
        tree: a recipe's or a query's tables.

    >>> made = with_questions({"ask": [{"name": "all", "kind": "count"}]})
    >>> made["rounds"], made["client"]["name"]
    (1, 'statistics')
    """
    if ASK not in tree:
        return dict(tree)
    for key in _OWN:
        if key in tree:
            raise RecipeError(f"a query has no {key!r}, which is a training's; leave it out")
    privacy = tree.get("privacy", {})
    for key in _DRAWS if isinstance(privacy, Mapping) else ():
        if key in privacy:
            raise RecipeError(
                f"a query has no 'privacy.{key}': each unit's row has a bound of its own and is in "
                f"the sum once; leave it out"
            )
    asked = tree[ASK]
    if not isinstance(asked, list) or not all(isinstance(each, Mapping) for each in asked):
        raise refuse(ASK, "tables, one [[ask]] for each question", asked, "see docs/statistics.md")
    rest = {key: value for key, value in tree.items() if key not in (ASK, COLUMNS)}
    client = {"name": ALGORITHM, "questions": [_as_floats(each) for each in asked]}
    if COLUMNS in tree:
        client[COLUMNS] = tree[COLUMNS]
    return {
        **rest,
        "client": client,
        "model": {"name": MODEL},
        "rounds": 1,
        "evaluation": {"kind": "off"},
    }


def _as_floats(node: Any) -> Any:
    """Whole numbers as floats: terms bound what counts memory, and an edge does not."""
    if isinstance(node, Mapping):
        return {k: v if k == "cells" else _as_floats(v) for k, v in node.items()}
    if isinstance(node, list):
        return [_as_floats(each) for each in node]
    whole = isinstance(node, int) and not isinstance(node, bool)
    return float(node) if whole else node
