# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import pytest
import torch

from dpfed.core.chain import chain, identity, rescale, stateless
from dpfed.core.errors import UnsoundPlan
from dpfed.core.types import Aggregate, ServerOptimizer, State, Vector


def sharing(name: str) -> ServerOptimizer:
    link = identity()
    return link._replace(share=lambda _: {name: torch.ones(1)})


def test_identity_passes_on_and_an_empty_chain_is_identity() -> None:
    G = torch.randn(3)
    seen = Aggregate(0, G, G, 0.0, 1)
    for optimizer in (identity(), chain()):
        direction, _ = optimizer.update(G, optimizer.init(G), seen)
        assert direction is G


def test_what_links_share_is_merged() -> None:
    both = chain(sharing("c"), sharing("d"))
    assert sorted(both.share(both.init(torch.zeros(1)))) == ["c", "d"]


def test_two_links_cannot_share_one_name() -> None:
    both = chain(sharing("c"), sharing("c"))
    with pytest.raises(UnsoundPlan, match="share \\['c'\\]"):
        both.share(both.init(torch.zeros(1)))


def test_a_link_without_a_buffer_reusing_path_is_used_as_it_is() -> None:
    plain = ServerOptimizer(stateless, lambda d, s, _: (d + 1, s))
    both = chain(plain, plain)
    G = torch.zeros(2)
    assert both.update_ is not None
    direction, _ = both.update_(G, both.init(G), Aggregate(0, G, G, 0.0, 1))
    assert direction.tolist() == [2, 2]
    assert G.tolist() == [0, 0]


def test_what_follows_in_a_chain_is_told_the_new_noise_level_and_clip() -> None:
    seen: list[float] = []
    clips: list[float] = []

    def update(direction: Vector, state: State, aggregate: Aggregate) -> tuple[Vector, State]:
        seen.append(aggregate.std)
        clips.append(aggregate.clip)
        return direction, state

    spy = ServerOptimizer(init=stateless, update=update)
    links = chain(rescale(0.5), chain(rescale(0.1), identity()), spy, spy)
    params = torch.zeros(2)
    links.update(params, links.init(params), Aggregate(0, params, params, 3.0, 1, clip=2.0))
    assert seen[0] == pytest.approx(0.15)
    assert clips[0] == pytest.approx(0.1)
    assert math.isnan(seen[1])  # unless a link says what it does to noise, nothing is known


def test_a_gain_may_follow_from_the_state_before_the_step() -> None:
    seen: list[float] = []

    def update(direction: Vector, state: State, aggregate: Aggregate) -> tuple[Vector, State]:
        seen.append(aggregate.std)
        return direction, state

    doubling = ServerOptimizer(
        init=lambda _: 1.0, update=lambda d, s, _: (d * s, 2 * s), gain=lambda state: state
    )
    links = chain(chain(rescale(0.5), doubling), ServerOptimizer(init=stateless, update=update))
    params = torch.ones(2)
    state = links.init(params)
    for expected in (0.5, 1.0, 2.0):
        direction, state = links.update(params, state, Aggregate(0, params, params, 3.0, 1))
        assert direction.tolist() == [expected] * 2
        assert seen[-1] == 3.0 * expected
