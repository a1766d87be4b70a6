# SPDX-License-Identifier: Apache-2.0
"""The networks that come along: records do not mix, and per-record gradients flow."""

import pytest
import torch

from dpfed.core.errors import RecipeError
from dpfed.core.types import Unit
from dpfed.data.datasets import Records
from dpfed.data.modules import Network, seeded
from dpfed.data.networks import groupnorm_cnn, mlp


def made(**options) -> Network:
    return Network(seeded(lambda: groupnorm_cnn(**options), 0), chunk=3)


def records_of(count: int, inputs: int = 3, side: int = 16) -> Records:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(count, inputs, side, side, generator=generator)
    return Records(x, torch.arange(count) % 10)


@pytest.mark.parametrize(
    ("options", "inputs", "side"),
    [
        ({}, 3, 32),
        ({"inputs": 1, "pool": 2, "channels": (8, 16, 32)}, 1, 28),
        ({"pool": 2, "cells": 1}, 3, 17),
    ],
)
def test_scores_have_one_row_per_record_whatever_the_size(options, inputs, side) -> None:
    network, records = made(**options), records_of(4, inputs, side)
    assert network.score(network.initial(0), records.x).shape == (4, 10)


def test_records_do_not_mix() -> None:
    network, records = made(), records_of(6)
    params = network.initial(0)
    alone = torch.cat([network.score(params, x[None]) for x in records.x])
    torch.testing.assert_close(network.score(params, records.x), alone)
    other = records.x.clone()
    other[0] = 1 - other[0]
    torch.testing.assert_close(network.score(params, other)[1:], alone[1:])


@pytest.mark.parametrize("sampler", ["func", "opacus"])
def test_per_record_gradients_flow_to_every_tensor(sampler: str) -> None:
    if sampler == "opacus":
        pytest.importorskip("opacus")
    module = seeded(groupnorm_cnn, 0)
    network, records = Network(module, chunk=3, sampler=sampler), records_of(5)
    params = network.initial(0)
    rows = network.problem(records).rows(params, Unit.RECORD)
    total = rows.clipped_sum(1e6).vector.float()
    # The slow oracle: one record at a time through autograd.
    slow = torch.zeros_like(params)
    for i in range(5):
        here = params.clone().requires_grad_()
        loss = network.loss(network.score(here, records.x[i : i + 1]), records.y[i : i + 1]).sum()
        slow += torch.autograd.grad(loss, here)[0]
    torch.testing.assert_close(total, slow, rtol=1e-4, atol=1e-5)
    for name, part in network.layout.unflatten(total).items():
        assert part.abs().max() > 0, name


def test_brightness_and_contrast_do_not_matter() -> None:
    network, records = made(), records_of(3)
    params = network.initial(0)
    torch.testing.assert_close(
        network.score(params, records.x),
        network.score(params, records.x * 0.5 + 0.3),
        rtol=1e-3,
        atol=1e-3,
    )


def test_the_size_is_that_of_its_layers() -> None:
    assert made().layout.size == 27 * 16 + 2 * 16 + 9 * 16 * 32 + 2 * 32 + (32 * 4 * 4 + 1) * 10
    assert torch.equal(made().initial(0), made().initial(0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"channels": (6,)},
            r"channels must be .* multiples of groups = 4, got a tuple of 1; change",
        ),
        ({"channels": ()}, r"channels must be one or more .*, got \(\)"),
        ({"channels": (8, 0)}, r"channels must be one or more positive .*, got a tuple of 2"),
        ({"pool": 0}, "pool must be a whole number, at least 1, got 0"),
        ({"classes": 0}, "classes must be a whole number, at least 1, got 0"),
        ({"groups": 0}, "groups must be a whole number, at least 1, got 0"),
    ],
)
def test_what_cannot_be_built_is_refused(options, message) -> None:
    with pytest.raises(RecipeError, match=message):
        groupnorm_cnn(**options)


def test_a_network_for_tables_scores_each_record_by_itself() -> None:
    network = Network(seeded(lambda: mlp(5, classes=3, width=4), 0))
    params, x = network.initial(0), torch.linspace(-1, 1, 20).reshape(4, 5)
    assert params.numel() == (5 + 1) * 4 + (4 + 1) * 3
    alone = torch.cat([network.score(params, each[None]) for each in x])
    assert torch.allclose(network.score(params, x), alone, atol=1e-6)


@pytest.mark.parametrize("wrong", [{"features": 0}, {"classes": 0}, {"width": 0}])
def test_a_network_for_tables_has_no_empty_layer(wrong) -> None:
    with pytest.raises(RecipeError, match=next(iter(wrong))):
        mlp(**{"features": 5, **wrong})
