# SPDX-License-Identifier: Apache-2.0
"""Laws of server optimizers, over all that the registry finds; and each law catches a breach."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dpfed.core import registry
from dpfed.core import testing as laws
from dpfed.core.chain import identity, stateless
from dpfed.core.testing import SERVER_LAWS, Law
from dpfed.core.types import Aggregate, ServerOptimizer
from dpfed.server.sofim import sofim
from dpfed.server.sofim_printed import sofim_printed

OPTIMIZERS = list(registry.names("server"))


def test_discovery_finds_the_optimizers() -> None:
    assert {"sofim", "sofim_printed", "ema", "scale"} <= set(OPTIMIZERS)


@pytest.mark.parametrize("law", SERVER_LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_law_holds(name: str, law: Law) -> None:
    law(name)


SOFIMS: dict[str, dict[str, Any]] = {
    "rho": {"rho": 0.5},
    "rho, corrected": {"rho": 0.5, "corrected": True},
    "warm-up": {"rho": 0.5, "corrected": True, "warmup": 1},
}
"""What the defaults do not reach: the laws build a plug-in without options."""


@pytest.mark.parametrize("law", SERVER_LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("options", SOFIMS.values(), ids=SOFIMS)
@pytest.mark.parametrize("form", [sofim, sofim_printed])
def test_the_law_holds_for_both_forms_of_sofim(
    form: Any, options: dict[str, Any], law: Law, monkeypatch: pytest.MonkeyPatch
) -> None:
    _find_also("variant", lambda: form(**options), monkeypatch)
    law("variant")


# ----------------------------------------------------------------------------- planted breaches


def _optimizer(step: Callable[..., Any], **more: Any) -> ServerOptimizer:
    return ServerOptimizer(stateless, lambda G, state, seen: (step(G, seen), state), **more)


def needs_an_argument(rate: float) -> ServerOptimizer:
    return _optimizer(lambda G, seen: G * rate)


def no_optimizer() -> Any:
    return "sofim"


def other_dtype() -> ServerOptimizer:
    return _optimizer(lambda G, seen: G.double())


def other_shape() -> ServerOptimizer:
    return _optimizer(lambda G, seen: G[:-1])


def overwrites() -> ServerOptimizer:
    return _optimizer(lambda G, seen: G.mul_(2))


def divides_by_the_norm() -> ServerOptimizer:
    return _optimizer(lambda G, seen: G / G.norm())


CALLS: list[int] = []


def has_a_memory() -> ServerOptimizer:
    def step(G: torch.Tensor, _: Aggregate) -> torch.Tensor:
        CALLS.append(1)
        return G * len(CALLS)

    return _optimizer(step)


def other_bits() -> ServerOptimizer:
    return identity()._replace(update_=lambda G, state, seen: (G * (1 + 2**-20), state))


BREACHES = [
    (needs_an_argument, laws.builds_with_no_arguments, TypeError),
    (no_optimizer, laws.builds_with_no_arguments, AssertionError),
    (other_dtype, laws.keeps_shape_and_dtype, AssertionError),
    (other_shape, laws.keeps_shape_and_dtype, AssertionError),
    (overwrites, laws.is_pure, AssertionError),
    (has_a_memory, laws.is_pure, AssertionError),
    (divides_by_the_norm, laws.is_finite_at_zero, AssertionError),
    (has_a_memory, laws.is_post_processing, AssertionError),
    (has_a_memory, laws.fits_into_a_chain, AssertionError),
    (other_bits, laws.reuses_buffers_to_the_bit, AssertionError),
]


@pytest.mark.parametrize(
    ("factory", "law", "error"), BREACHES, ids=lambda part: getattr(part, "__name__", "")
)
def test_a_breach_is_caught(
    factory: Any, law: Law, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    _find_also("planted", factory, monkeypatch)
    with pytest.raises(error):
        law("planted")


def _find_also(added: str, factory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    find = registry.find
    monkeypatch.setattr(
        registry, "find", lambda kind, name: factory if name == added else find(kind, name)
    )
