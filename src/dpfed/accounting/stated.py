# SPDX-License-Identifier: Apache-2.0
"""A guarantee as a file states it: read whole, and bounded before anything is computed of it.

Whoever wrote the file is a stranger. A guarantee is one value: whatever stands beside its fields
(the sentence, the largest epsilon, a claim's mu) must follow from them.

| edge case                                           | what happens                               |
|-----------------------------------------------------|--------------------------------------------|
| a field that is missing, or of another type         | DataError                                  |
| a sentence, an epsilon or a mu of another guarantee | DataError                                  |
| words that nobody here writes, or that could steer  | DataError                                  |
| a terminal                                          |                                            |
| events whose accounting would take too much time or | DataError, before it begins                |
| memory (a noise multiplier of 0.001 beside a draw)  |                                            |
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import msgspec

from dpfed.accounting.event_tree import gaussian_mu_squared
from dpfed.accounting.guarantee import (
    EXACT,
    GATED,
    NONE,
    PLD,
    RDP,
    SHIPPED,
    TRIANGLE,
    Claim,
    Guarantee,
    epsilon_of,
)
from dpfed.core.dsse import Json
from dpfed.core.errors import DataError
from dpfed.core.log import shown
from dpfed.core.types import Adjacency

_ACCOUNTANTS = (EXACT, PLD, RDP, TRIANGLE, NONE)
_MOST_CLAIMS, _MOST_TEXT, _MOST_COUNT = 8, 1000, 1 << 53
_MOST_NODES, _MOST_DEPTH, _MOST_RELEASES = 10_000, 32, 10_000_000
_LEAST_RATE = 1e-6
_MOST_CELLS = 3e6
"""Losses on the grid of a PLD, over all kinds of releases: less than a gigabyte, some seconds."""
_CELLS = 1e4
"""Of dp_accounting's grid, for one unit of privacy loss."""
_TOLERANCE = 1e-6


def read_guarantee(contents: Mapping[str, Any]) -> Guarantee:
    """The guarantee in a JSON object that may have other keys; DataError if it is not a whole one.

    Args:
        contents: as ``Guarantee.to_json`` makes it.

    >>> from dpfed.flower import make_plan
    >>> privacy = {"epsilon": 2.0, "unit": "client"}
    >>> stated = make_plan(clients=4, rounds=3, privacy=privacy).guarantee()
    >>> read_guarantee(stated.to_json()) == stated
    True
    >>> try:
    ...     read_guarantee({**stated.to_json(), "epsilon": 0.1})
    ... except ValueError as error:
    ...     print(error)
    a guarantee's epsilon must follow from its claims and assumptions, and does not; train again
    """
    try:
        stated = msgspec.convert(contents, Guarantee, strict=False)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise DataError(f"this is no guarantee ({shown(str(error), 200)}); train again") from error
    _check_numbers(stated)
    for text in _texts(stated):
        if shown(text, _MOST_TEXT) != text:
            raise _unfit("words", f"one plain line of at most {_MOST_TEXT} characters")
    if stated.enforced not in ("", GATED, SHIPPED):
        raise _unfit("'enforced'", f"{GATED!r}, {SHIPPED!r} or nothing")
    for claim in stated.claims:
        check_events(claim.event)
    whole = stated.to_json()
    for name in {*whole, *({"blocks"} & set(contents))}:  # written only where there are some
        if not same(contents.get(name), whole.get(name, [])):
            raise DataError(
                f"a guarantee's {name} must follow from its claims and assumptions, and does not; "
                f"train again"
            )
    return stated


def _texts(stated: Guarantee) -> Iterator[str]:
    yield from (stated.draws, stated.enforced, *stated.blocks)
    for claim in stated.claims:
        yield from (claim.adversary, claim.accounting)


def _check_numbers(stated: Guarantee) -> None:
    claims, opinions = stated.claims, stated.opinions
    bounds = [bound for each in opinions for bound in (each.at_least, each.at_most)]
    figures = [each for each in (*stated.realised, *bounds) if each is not None]
    one_delta = len({each.delta for each in claims}) == 1
    conditions = {
        f"1 to {_MOST_CLAIMS} claims": 1 <= len(claims) <= _MOST_CLAIMS,
        "epsilons of at least 0": all(each.epsilon >= 0 for each in claims),
        "one delta, above 0 and below 1": one_delta and all(0 < each.delta < 1 for each in claims),
        "less reserved than its delta": all(0 <= c.delta_reserved < c.delta for c in claims),
        "an accountant of dpfed's": all(c.accounting in _ACCOUNTANTS for c in claims),
        "a number of rounds": 0 <= stated.rounds <= _MOST_COUNT,
        "a number of colluders": 0 <= stated.colluders <= _MOST_COUNT,
        "finite shares of noise, above 0": 0 < stated.shares < math.inf,
        "other figures of at least 0": all(each >= 0 for each in figures),
        "one other figure for each claim": max(len(stated.realised), len(opinions)) <= _MOST_CLAIMS,
    }
    for bound, true in conditions.items():
        if not true:
            raise DataError(f"a guarantee must have {bound}, and has not; train again")


def _unfit(what: str, bound: str) -> DataError:
    return DataError(f"a guarantee's {what} must be {bound}; train again")


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same: true is no 1, and 1.0 is 1.

    >>> same({"rounds": 1.0}, {"rounds": 1}), same(True, 1)
    (True, False)
    """
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def recomputed(claim: Claim, adjacency: Adjacency) -> float:
    """The epsilon of a claim's own events; DataError if the claim is smaller.

    Args:
        claim: of a stranger's guarantee.
        adjacency: what neighbouring data sets are.
    """
    check_events(claim.event)
    again, _ = epsilon_of(claim.event, claim.delta - claim.delta_reserved, adjacency)
    if not again <= claim.epsilon * (1 + _TOLERANCE):
        raise DataError(
            f"epsilon {claim.epsilon:.6g} is claimed against {shown(claim.adversary)}, and the "
            f"events beside it cost {again:.6g}; ask for the file as dpfed wrote it"
        )
    return again


def claim_of(tree: Json) -> Claim:
    """A claim as silos sign it: its six fields, and no others."""
    claim = msgspec.convert(tree, Claim, strict=True)
    if set(tree) != set(asdict(claim)) or not same(tree["event"], claim.event):
        raise _unfit("claim", f"of the fields {', '.join(asdict(claim))}")
    return claim


# ---------------------------------------------------------------------- bounds before work


def check_events(event: Json) -> None:
    """Refuse a tree of events that is none, or whose accounting might not end.

    Args:
        event: from anyone.
    """
    nodes, cells = 0, 0.0
    waiting: list[tuple[Any, int, float, int]] = [(event, 1, 1.0, 0)]
    while waiting:
        node, count, rate, depth = waiting.pop()
        nodes += 1
        if nodes > _MOST_NODES or depth > _MOST_DEPTH or count > _MOST_RELEASES:
            raise _too_long()
        parts, more, drawn = _parts_of(node)
        if not parts:
            cells += _grid(node, count, rate)
        waiting += [(part, count * more, rate * drawn, depth + 1) for part in parts]
    if cells > _MOST_CELLS and gaussian_mu_squared(event, Adjacency.ZERO_OUT) is None:
        raise _too_long()


def _parts_of(node: Any) -> tuple[list[Any], int, float]:
    """The events in a node, how often it has them, and at which rate it draws."""
    match node:
        case {"kind": "Composed", "events": [*parts]}:
            return parts, 1, 1.0
        case {"kind": "SelfComposed", "event": part}:
            return [part], _number(node, "count", 0, _MOST_RELEASES, whole=True), 1.0
        case {"kind": "PoissonSampled", "event": part}:
            return [part], 1, _number(node, "rate", _LEAST_RATE, 1)
        case {"kind": "ThroughZero", "event": part}:
            return [part], 1, 1.0
        case {"kind": "Gaussian" | "Laplace" | "NoOp" | "NonPrivate"}:
            return [], 1, 1.0
        case {"kind": "ZCDp"}:
            _number(node, "rho", 0, 1e12)
            _number(node, "xi", 0, 1e12)
            return [], 1, 1.0
    raise DataError(
        f"an event must be of a kind that dpfed knows, got {shown(str(node))!r}; update dpfed"
    )


def _grid(leaf: Json, count: int, rate: float) -> float:
    """About how many losses a PLD has for ``count`` releases: mean and ten deviations both ways."""
    if leaf["kind"] not in ("Gaussian", "Laplace"):
        return 0.0
    multiplier: float = _number(leaf, "noise_multiplier", 1e-9, 1e12)
    if leaf["kind"] == "Laplace":
        return 2 * _CELLS * count / multiplier
    square = count / multiplier**2  # mu^2, if each release were made of all
    whole = square / 2 + 10 * math.sqrt(square)
    if rate == 1:
        return 2 * _CELLS * whole
    one = 0.5 / multiplier**2 + 10 / multiplier
    spread = count * rate**2 * math.expm1(min(700.0, 1 / multiplier**2))  # chi^2 bounds the drift
    return 2 * _CELLS * min(whole, one + spread + 10 * math.sqrt(spread))


def _number(node: Json, name: str, low: float, high: float, *, whole: bool = False) -> Any:
    value = node.get(name)
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if not low <= number <= high or (whole and not isinstance(number, int)):
        raise DataError(
            f"{name} of an event must be {'whole and ' * whole}from {low:g} to {high:g}, got "
            f"{shown(str(value), 40)}"
        )
    return value


def _too_long() -> DataError:
    return DataError(
        "the events must be fewer, or with more noise, so that accounting ends; ask for the file "
        "as dpfed wrote it"
    )
