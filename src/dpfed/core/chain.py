# SPDX-License-Identifier: Apache-2.0
"""Server optimizers in a row: ``chain(sofim(), scale(0.1))`` runs from left to right."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dpfed.core.errors import UnsoundPlan
from dpfed.core.types import Aggregate, ServerOptimizer, State, Vector


def stateless(update: object) -> State:
    """The state of an optimizer that has none: give it as ``init``.

    Args:
        update: the parameters, which are not looked at.

    >>> stateless(None)
    ()
    """
    del update
    return ()


def _pass_on(direction: Vector, state: State, _: Aggregate) -> tuple[Vector, State]:
    return direction, state


def identity() -> ServerOptimizer:
    """Leaves the direction as it is."""
    return ServerOptimizer(init=stateless, update=_pass_on, update_=_pass_on, gain=1.0)


def chain(*links: ServerOptimizer) -> ServerOptimizer:
    """Each optimizer takes the direction that the one before it gave."""

    def init(params: Vector) -> State:
        return tuple(link.init(params) for link in links)

    def walk(direction: Vector, state: State, seen: Aggregate, reuse: bool) -> tuple[Vector, State]:
        after = []
        for link, inner in zip(links, state, strict=True):
            step = link.update_ if reuse and link.update_ else link.update
            gain = _gain(link, inner)
            direction, inner_after = step(direction, inner, seen)
            after.append(inner_after)
            seen = _scaled(seen, gain)
        return direction, tuple(after)

    def update(direction: Vector, state: State, seen: Aggregate) -> tuple[Vector, State]:
        return walk(direction, state, seen, reuse=False)

    def update_(direction: Vector, state: State, seen: Aggregate) -> tuple[Vector, State]:
        return walk(direction, state, seen, reuse=True)

    def share(state: State) -> Mapping[str, Vector]:
        shared: dict[str, Vector] = {}
        for link, inner in zip(links, state, strict=True):
            _merge(shared, link.share(inner))
        return shared

    return ServerOptimizer(
        init=init,
        update=update,
        share=share,
        update_=update_,
        gain=lambda state: math.prod(map(_gain, links, state)),
        settings=lambda seen: _settings(links, seen),
    )


def _settings(links: Sequence[ServerOptimizer], seen: Aggregate) -> Mapping[str, float]:
    """What all links step by; what a link says of its own direction, those after it multiply."""
    told: dict[str, float] = {}
    for link in links:
        gain = math.nan if callable(link.gain) else link.gain
        told = {n: v * gain if n.startswith("eta") else v for n, v in told.items()}
        told.update(link.settings(seen))
        seen = _scaled(seen, gain)
    return told


def _scaled(seen: Aggregate, gain: float) -> Aggregate:
    """What the link after one with this gain is told."""
    return replace(seen, std=seen.std * gain, clip=seen.clip * gain)


def _gain(link: ServerOptimizer, state: State) -> float:
    """What a link multiplies noise by, in the round that begins with this state of its."""
    return link.gain(state) if callable(link.gain) else link.gain


def _merge(shared: dict[str, Vector], more: Mapping[str, Vector]) -> None:
    twice = sorted(shared.keys() & more.keys())
    if twice:
        raise UnsoundPlan(f"two optimizers of one chain share {twice}; keep one of them")
    shared.update(more)


def rescale(rate: float) -> ServerOptimizer:
    """Multiply the direction: the server half of an algorithm that sends sums of gradients.

    Args:
        rate: the factor.

    >>> import torch
    >>> seen = Aggregate(0, torch.zeros(2), torch.ones(2), std=0.1, clients=5)
    >>> rescale(0.5).update(seen.mean, (), seen)[0].tolist()
    [0.5, 0.5]
    """

    def update(direction: Vector, state: State, _: Aggregate) -> tuple[Vector, State]:
        return direction * rate, state

    def update_(direction: Vector, state: State, _: Aggregate) -> tuple[Vector, State]:
        return direction.mul_(rate), state

    return ServerOptimizer(init=stateless, update=update, update_=update_, gain=rate)
