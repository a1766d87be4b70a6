# SPDX-License-Identifier: Apache-2.0
"""What server and clients must agree on before they work together, as data, and its fingerprint.

``agreed_of(plan)`` has all of a plan that decides what a client releases, how it is bounded, what
noise it gets, how often, and what that costs. The fingerprint is SHA-256 of its canonical JSON.
``load_agreed`` reads that JSON back: the schema is closed, so it means what it says or is refused.

Not in it: the model, the server's optimizer and its rate, which cost nothing; the noise's seed,
which only a client may know; and what follows from the rest, such as epsilon.

| edge case                                   | what happens                                       |
|---------------------------------------------|----------------------------------------------------|
| phases that are written otherwise           | equal: what counts is the releases of each round   |
| an algorithm that was made by hand          | known by its code's name: its options are not seen |
| a mechanism that no package offers          | a digest of its code is in its name                |
| a part that is not plain data               | its representation stands for it                   |
| JSON with another field, type or spelling   | DataError                                          |
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cached_property
from itertools import groupby
from typing import Annotated, Any, Literal

import msgspec

from dpfed.core.dsse import canonical_json, strict_json
from dpfed.core.errors import DataError, UnsoundPlan
from dpfed.core.files import jsonable
from dpfed.core.metric import Metric
from dpfed.core.participation import Participation
from dpfed.core.registry import own_code_of
from dpfed.core.types import (
    Adjacency,
    Channel,
    MadeBy,
    Mechanism,
    NoiseSource,
    Sampling,
    Trust,
    Unit,
    Weights,
    place_of,
)
from dpfed.training.draft import Draft

FORMAT = "dpfed plan 1"
"""Raise it if ``Agreed`` or a message between server and clients changes."""

Digest = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Count = Annotated[int, msgspec.Meta(ge=0)]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
Above = Annotated[float, msgspec.Meta(gt=0)]
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A closed table: every field is there, and no other."""


class PlugIn(_Table, frozen=True):
    """A plug-in by its name, with all of its options, defaults too."""

    name: str
    options: dict[str, Any]
    """Plain data: what ``_plain`` makes of a value."""
    inner: PlugIn | None
    """The plug-in that it is around."""


class Release(_Table, frozen=True):
    """How a channel's releases are made, and what one of them costs."""

    clip: Above
    replace_bound: Above
    std: Annotated[float, msgspec.Meta(ge=0)]
    step: Above
    """The grid that they lie on."""
    shares: Annotated[float, msgspec.Meta(ge=1)]
    draw: PlugIn
    """Which units take part."""
    noise: PlugIn
    """The mechanism, with what is its own."""


class AgreedChannel(_Table, frozen=True):
    """What leaves a client under one name."""

    phases: list[tuple[AtLeastOne, Count]]
    """How many rounds in turn make how many releases each: all rounds."""
    size: AtLeastOne | None
    """The length of its vectors; None is the model's."""
    sent: bool
    census: bool
    clip: Above | None
    """The bound of a row, if it follows from the algorithm."""
    replace_bound: Above | None
    """How far replacing one unit moves the sum, if it follows from the algorithm."""
    release: Release | None
    """None of a derived channel."""


class AgreedMetric(_Table, frozen=True):
    """A metric, and the bounds that the accounting uses."""

    made: PlugIn
    size: AtLeastOne
    bound: Above
    replace_bound: Above


class Agreed(_Table, frozen=True, dict=True):
    """The agreed half of a plan: all sides have it alike.

    >>> from dpfed.flower import make_plan
    >>> plan = make_plan(clients=4, rounds=3, privacy={"epsilon": 2.0, "unit": "client"})
    >>> agreed = agreed_of(plan)
    >>> agreed.rounds, agreed.channels["update"].phases, agreed.algorithm.name
    (3, [(3, 1)], 'gradient')
    >>> load_agreed(agreed.text) == agreed, agreed.fingerprint == plan.fingerprint()
    (True, True)
    """

    format: Literal["dpfed plan 1"]
    rounds: AtLeastOne
    spare: Count
    unit: Unit
    adjacency: Adjacency
    trust: Trust
    sizes: list[Above]
    """Public sizes in units, by client; of an open population, by slot."""
    open: bool
    weights: Weights
    colluders: AtLeastOne
    participation: Participation | None
    client_draw: PlugIn
    channels: dict[str, AgreedChannel]
    algorithm: PlugIn
    sends_unmodified: bool
    reuses_own_releases: bool
    metrics: list[AgreedMetric]
    loss_bound: Above
    sum: PlugIn
    noise: NoiseSource
    delta: Fraction
    contract: Digest | None
    blocks: list[str]

    @cached_property
    def text(self) -> bytes:
        """Its canonical JSON."""
        return canonical_json(msgspec.to_builtins(self))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of its canonical JSON, in hexadecimal digits."""
        return hashlib.sha256(self.text).hexdigest()


def load_agreed(text: bytes) -> Agreed:
    """What ``Agreed.text`` has written; DataError for anything else.

    Args:
        text: bytes from anywhere.
    """
    try:
        agreed = msgspec.convert(strict_json(text), Agreed)
    except msgspec.ValidationError as error:
        raise DataError(f"a plan must have the fields of {FORMAT!r}: {error}") from error
    if agreed.text != text:
        raise DataError("a plan must be canonical JSON, got another spelling of it; write it anew")
    return agreed


def agreed_of(plan: Draft) -> Agreed:
    """The agreed half of a plan.

    Args:
        plan: all that a run does.
    """
    update, client = plan.update, plan.client
    shared = {(m.unit, m.adjacency, m.trust, m.participation) for m in plan.channels.values()}
    if len(shared) != 1:  # they are written once
        raise UnsoundPlan(f"all channels must share {shared}; make them alike")
    tree = {
        "format": FORMAT,
        "rounds": plan.rounds,
        "spare": plan.spare,
        "unit": update.unit,
        "adjacency": update.adjacency,
        "trust": update.trust,
        "sizes": [float(size) for size in plan.nominal],
        "open": plan.open,
        "weights": plan.weights,
        "colluders": plan.colluders,
        "participation": _limits(update.participation),
        "client_draw": _draw(plan.client_sampling),
        "channels": {n: _channel(plan, n, channel) for n, channel in plan.declared.items()},
        "algorithm": _plug_in(client.made_by or MadeBy(place_of(client.work))),
        "sends_unmodified": client.sends_unmodified,
        "reuses_own_releases": client.reuses_own_releases,
        "metrics": [_metric(metric) for metric in plan.metrics],
        "loss_bound": float(plan.loss_bound),
        "sum": _plug_in(MadeBy(_name(plan.sum, "dpfed.sums"), _own_fields(plan.sum))),
        "noise": plan.noise.source,
        "delta": float(plan.delta),
        "contract": plan.contract or None,
        "blocks": list(plan.blocks),
    }
    return msgspec.convert(tree, Agreed)


def _channel(plan: Draft, name: str, channel: Channel) -> dict[str, Any]:
    each_round = channel.releases_by_round(plan.rounds)
    mechanism = plan.channels.get(name)
    return {
        "phases": [(len(list(run)), releases) for releases, run in groupby(each_round)],
        "size": channel.size,
        "sent": channel.sent,
        "census": channel.census,
        "clip": channel.clip,
        "replace_bound": channel.replace_bound,
        "release": None if mechanism is None else _release(mechanism),
    }


def _release(mechanism: Mechanism) -> dict[str, Any]:
    name = own_code_of("mechanisms", mechanism) or _name(mechanism, "dpfed.mechanisms")
    own = _own_fields(mechanism, "facts", "std", "sampling", "shares")
    return {
        "clip": float(mechanism.clip),
        "replace_bound": float(mechanism.facts.replace_bound),
        "std": float(mechanism.std),
        "step": float(mechanism.step),
        "shares": float(mechanism.shares),
        "draw": _draw(mechanism.sampling),
        "noise": _plug_in(MadeBy(name, own)),
    }


def _draw(sampling: Sampling) -> dict[str, Any]:
    return _plug_in(MadeBy(place_of(sampling), {"rate": float(sampling.rate)}))


def _metric(metric: Metric) -> dict[str, Any]:
    return {
        "made": _plug_in(metric.made_by or MadeBy(place_of(metric.row))),
        "size": metric.size,
        "bound": float(metric.bound),
        "replace_bound": float(metric.replace_bound),
    }


def _limits(participation: Participation | None) -> dict[str, int] | None:
    return None if participation is None else msgspec.structs.asdict(participation)


def _plug_in(made_by: MadeBy) -> dict[str, Any]:
    return {
        "name": made_by.name,
        "options": {name: _plain(value) for name, value in made_by.options.items()},
        "inner": None if made_by.inner is None else _plug_in(made_by.inner),
    }


def _name(value: object, home: str) -> str:
    """The plug-in's name: its file's, if that is in ``home``."""
    where, _, file = type(value).__module__.rpartition(".")
    return file if where == home else place_of(value)


def _own_fields(value: object, *others: str) -> Mapping[str, Any]:
    """What a value has beside the fields that stand elsewhere."""
    if not is_dataclass(value):
        return {"is": value}
    return {n: getattr(value, n) for n in (each.name for each in fields(value)) if n not in others}


def _plain(value: object) -> Any:
    """A value as JSON has it, read back: lists for tuples, words for what is not finite."""
    try:
        return json.loads(canonical_json(jsonable(msgspec.to_builtins(value, str_keys=True))))
    except (TypeError, ValueError):
        return repr(value)
