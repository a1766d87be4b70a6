# SPDX-License-Identifier: Apache-2.0
"""Masks by content: their law, what they depend on, and attention beside torch's own.

What they are for is tested in tests/attacks/test_dropout.py.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from dpfed.data.batches import Batch
from dpfed.data.masks import content_seeds, drawn_by_content, draws_of, keep_mask

SEEDS = torch.arange(400) * 7919 - 1_000_003


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_entries_stay_with_the_probability_that_is_asked_for(p: float) -> None:
    kept = keep_mask(SEEDS, 0, (50, 20), p).double()
    spread = (p * (1 - p) / kept.numel()) ** 0.5
    assert float(kept.mean()) == pytest.approx(1 - p, abs=5 * spread)
    assert float((kept.mean(dim=0) - (1 - p)).abs().max()) < 6 * (p * (1 - p) / 400) ** 0.5
    assert (
        float((kept.flatten(1).mean(dim=1) - (1 - p)).abs().max()) < 6 * (p * (1 - p) / 1e3) ** 0.5
    )


def test_places_calls_and_records_are_unrelated() -> None:
    first, second = (keep_mask(SEEDS, call, (500,), 0.5).double() - 0.5 for call in (0, 1))
    limit = 6 * 0.25 / 500**0.5
    assert float((first * second).mean(dim=1).abs().max()) < limit
    assert float((first[1:] * first[:-1]).mean(dim=1).abs().max()) < limit
    assert float((first[:, 1:] * first[:, :-1]).mean(dim=0).abs().max()) < 6 * 0.25 / 400**0.5


def test_the_ends_of_the_range() -> None:
    assert bool(keep_mask(SEEDS, 0, (9,), 0.0).all())
    assert not bool(keep_mask(SEEDS, 0, (9,), 1.0).any())
    with drawn_by_content(SEEDS[:3]):
        assert not bool(functional.dropout(torch.ones(3, 4), 1.0).any())
        x = torch.ones(3, 4)
        assert functional.dropout(x, 0.0) is x
        assert functional.dropout(x, 0.5, training=False) is x


def test_a_mask_depends_on_its_own_seed_alone() -> None:
    whole = keep_mask(SEEDS, 3, (7, 5), 0.4)
    assert torch.equal(keep_mask(SEEDS[100:], 3, (7, 5), 0.4), whole[100:])
    assert torch.equal(keep_mask(SEEDS[7:8], 3, (7, 5), 0.4), whole[7:8])


def test_what_stays_is_scaled_and_channels_go_together() -> None:
    x = torch.ones(3, 8, 5, 5)
    with drawn_by_content(SEEDS[:3]):
        assert set(nn.Dropout(0.75)(x).unique().tolist()) == {0.0, 4.0}
        made = nn.Dropout2d(0.5)(x)
        held = torch.ones(3, 4)
        assert functional.dropout(held, 0.5, inplace=True) is held
    assert bool((made == made[:, :, :1, :1]).all())
    assert set(made.unique().tolist()) == {0.0, 2.0}
    assert set(held.unique().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("masked", ["none", "bool", "float", "causal", "groups"])
def test_attention_is_torchs_own_but_for_what_is_left_out(masked: str) -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(3, 4, 6, 8, generator=generator)
    k, v = (torch.randn(3, 2 if masked == "groups" else 4, 6, 8, generator=generator) for _ in "kv")
    seen = torch.rand(3, 1, 6, 6, generator=generator) < 0.7
    seen[0, 0, 0] = False  # attends to nothing
    options = {
        "none": {},
        "bool": {"attn_mask": seen},
        "causal": {"is_causal": True},
        "float": {"attn_mask": torch.randn(6, 6, generator=generator), "scale": 0.3},
        "groups": {"enable_gqa": True},
    }[masked]
    expected = functional.scaled_dot_product_attention(q, k, v, **options)  # type: ignore[arg-type]
    with drawn_by_content(SEEDS[:3]):
        found = functional.scaled_dot_product_attention(q, k, v, dropout_p=1e-12, **options)  # type: ignore[arg-type]
        dropped = functional.scaled_dot_product_attention(q, k, v, dropout_p=0.5, **options)  # type: ignore[arg-type]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(dropped, expected, atol=0.1)


def test_seeds_follow_from_every_part_of_a_record_and_from_the_turn() -> None:
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    x[2], y[2] = x[0], y[0]
    seeds = content_seeds(Batch(x, y), b"1")
    assert seeds[0] == seeds[2]
    assert len(set(seeds.tolist())) == 3
    assert torch.equal(content_seeds(Batch(x.flip(0), y.flip(0)), b"1").flip(0), seeds)
    others = [
        content_seeds(Batch(x, 1 - y), b"1"),
        content_seeds(Batch(x, y), b"2"),
        content_seeds(Batch({"z": x}, y), b"1"),
        content_seeds(Batch(x.view(4, 3, 1), y), b"1"),
        content_seeds(Batch(x.double(), y), b"1"),
    ]
    for other in others:
        assert not bool((other == seeds).any())


def test_the_trial_tells_whether_masks_are_drawn() -> None:
    layer = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    for training in (True, False):
        layer.train(training)
        found = draws_of(lambda: layer(torch.ones(3, 3)).sum(dim=1), SEEDS[:3])
        assert found is training
