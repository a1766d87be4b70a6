# SPDX-License-Identifier: Apache-2.0
"""dp_accounting's events as JSON and back, so that anyone can account for them later.

Guarantee: ``from_json(to_json(event)) == event`` for every kind listed, counts and floats to the
last bit; a kind that is not listed is refused, never dropped. Gaussian events are written without
importing dp_accounting, since the import takes more than a second.

| edge case                                     | what happens                               |
|-----------------------------------------------|--------------------------------------------|
| an event of another kind                      | Unpriceable, with its name                 |
| JSON of an unknown kind                       | Unpriceable, with what it says             |
| a sampled or a composed event                 | its parts are written the same way         |
| an infinite cost                              | NonPrivate, since JSON has no infinity     |
| a count below 0, noise of 0 or less, a rate   | Unpriceable, wherever JSON is priced: two  |
| above 1; a NaN, an infinity, a word           | of them could cancel a cost                |
| draws under replace-one (ThroughZero)         | Unpriceable: dp_accounting has no such     |
|                                               | event; guarantee.py prices the JSON        |
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

from dpfed.accounting.gdp import SENSITIVITY
from dpfed.core.dsse import Json
from dpfed.core.errors import Unpriceable
from dpfed.core.types import Adjacency

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_NUMBERS = {
    "noise_multiplier": "a number above 0",
    "rate": "a number above 0 and at most 1",
    "count": "a whole number, at least 0",
}


def checked(tree: Json) -> Json:
    """The tree, if each of its numbers can be one of an event; whoever prices JSON asks here."""
    ahead: list[Any] = [tree]
    while ahead:
        node = ahead.pop()
        if not isinstance(node, dict):
            raise Unpriceable(f"an event must be a JSON object, got a {type(node).__name__}")
        for name, bound in _NUMBERS.items():
            if name in node and not _fits(name, node[name]):
                raise Unpriceable(
                    f"{name} of an event must be {bound}, got {str(node[name])[:40]}; put back the "
                    f"file as it was written"
                )
        ahead += [node["event"]] if "event" in node else []
        ahead += node.get("events", ())
    return tree


def _fits(name: str, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if name == "count":
        return isinstance(value, int) and value >= 0
    return 0 < value <= (1 if name == "rate" else sys.float_info.max)


def gaussian_event(noise_multiplier: float, count: int = 1) -> Json:
    """``count`` Gaussian releases, in dp_accounting's convention."""
    one = {"kind": "Gaussian", "noise_multiplier": noise_multiplier}
    return {"kind": "SelfComposed", "count": count, "event": one}


def gaussian_with_mu_squared(mu_squared: float, adjacency: Adjacency) -> Json:
    """One Gaussian release with this squared mu, in place of any releases that cost the same."""
    if mu_squared == 0:
        return {"kind": "NoOp"}
    if math.isinf(mu_squared):
        return {"kind": "NonPrivate"}
    return gaussian_event(SENSITIVITY[adjacency] / math.sqrt(mu_squared))


def repeated(one: Json, count: int) -> Json:
    """``count`` releases that are each the event ``one``, as a row of the ledger has them."""
    inner = below_mark(one)
    if inner is not None:
        return through_zero(repeated(inner, count))
    if one["kind"] == "SelfComposed":
        return {**one, "count": one["count"] * count}
    return one  # NonPrivate: a second release in the clear costs no more


def times(event: Json, count: int) -> Json:
    """The event, ``count`` times."""
    return event if count == 1 else {"kind": "SelfComposed", "count": count, "event": event}


def once(event: Json) -> Json:
    """The event that is repeated; the event itself if it is not a repetition."""
    inner: Json = event["event"] if event["kind"] == "SelfComposed" else event
    return inner


def through_zero(event: Json) -> Json:
    """Releases with a draw under replace-one: priced by way of a zeroed unit (triangle.py).

    Args:
        event: the tree of all of them, in zero-out's multipliers: std / clip in every leaf.
    """
    return {"kind": "ThroughZero", "event": event}


def below_mark(event: Json) -> Json | None:
    """The tree in zero-out's multipliers of which ``through_zero`` made this event, or None."""
    inner: Json | None = event["event"] if event["kind"] == "ThroughZero" else None
    return inner


def composed(parts: list[Json]) -> Json:
    """One event for all ``parts`` together."""
    return {"kind": "Composed", "events": parts}


def to_json(event: Any) -> Json:
    """An event as JSON objects."""
    import dp_accounting as dp

    match event:
        case dp.GaussianDpEvent() | dp.LaplaceDpEvent():
            kind, multiplier = type(event).__name__, float(event.noise_multiplier)
            if not multiplier:
                return {"kind": "NonPrivate"}
            return {"kind": kind.removesuffix("DpEvent"), "noise_multiplier": multiplier}
        case dp.SelfComposedDpEvent():
            one = to_json(event.event)
            return {"kind": "SelfComposed", "count": int(event.count), "event": one}
        case dp.ComposedDpEvent():
            return composed([to_json(part) for part in event.events])
        case dp.PoissonSampledDpEvent():
            rate = float(event.sampling_probability)
            return {"kind": "PoissonSampled", "rate": rate, "event": to_json(event.event)}
        case dp.ZCDpEvent():
            return {"kind": "ZCDp", "rho": float(event.rho), "xi": float(event.xi)}
        case dp.NoOpDpEvent() | dp.NonPrivateDpEvent():
            return {"kind": type(event).__name__.removesuffix("DpEvent")}
    raise Unpriceable(
        f"an event of kind {type(event).__name__} cannot be accounted for; use releases "
        f"that are Gaussian or Laplace, sampled by Poisson draws or not"
    )


def from_json(tree: Json) -> DpEvent:
    """The event that ``to_json`` wrote."""
    return _event(checked(tree))


def _event(tree: Json) -> DpEvent:
    import dp_accounting as dp

    match tree:
        case {"kind": "Gaussian", "noise_multiplier": multiplier}:
            return dp.GaussianDpEvent(multiplier)
        case {"kind": "Laplace", "noise_multiplier": multiplier}:
            return dp.LaplaceDpEvent(multiplier)
        case {"kind": "SelfComposed", "count": count, "event": one}:
            return dp.SelfComposedDpEvent(_event(one), count)
        case {"kind": "Composed", "events": parts}:
            return dp.ComposedDpEvent([_event(part) for part in parts])
        case {"kind": "PoissonSampled", "rate": rate, "event": one}:
            return dp.PoissonSampledDpEvent(rate, _event(one))
        case {"kind": "ZCDp", "rho": rho, "xi": xi}:
            return dp.ZCDpEvent(rho, xi)
        case {"kind": "NoOp" | "NonPrivate" as kind}:
            return dp.NoOpDpEvent() if kind == "NoOp" else dp.NonPrivateDpEvent()
    raise Unpriceable(
        f"this version of dpfed has no event of dp_accounting's for {str(tree)[:80]!r}; "
        f"update dpfed, or account for draws under replace-one (ThroughZero) run by run"
    )
