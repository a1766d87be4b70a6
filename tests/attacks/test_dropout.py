# SPDX-License-Identifier: Apache-2.0
"""Dropout masks by place in the batch: one record less gave all records after it other masks.

Before: torch's own generator drew the masks of a batch, so that one of 300 records moved the sum
by 16 clips (priced: 1), and whether a record was drawn by ``record_rate`` moved it by 9. Now masks
follow from a record's own content, and whatever else is random is refused.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from dpfed.core.errors import RecipeError
from dpfed.core.types import Unit
from dpfed.data.batches import Batches, tensor_batches
from dpfed.data.datasets import Records
from dpfed.data.losses import Tokens, cross_entropy
from dpfed.data.modules import Network, seeded
from tests.laws.shapes import SMALL, WORDS, T

CLIP, COUNT = 0.1, 40


def dropped() -> nn.Module:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 5))

    return seeded(make, 1).train()


def people(count: int = COUNT) -> Records:
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(count, 20, generator=generator), torch.arange(count) % 5
    return Records(x, y, torch.arange(count) // 3)


def part(records: Records, kept: Any) -> Records:
    assert records.groups is not None
    return Records(records.x[kept], records.y[kept], records.groups[kept])


def total(model: Network, records: Any, unit: Unit) -> torch.Tensor:
    torch.manual_seed(7)
    rows: Any = model.problem(records).rows(model.initial(0), unit)
    found: torch.Tensor = rows.clipped_sum(CLIP).vector
    return found.double()


@pytest.mark.parametrize("unit", [Unit.RECORD, Unit.GROUP])
@pytest.mark.parametrize("sampler", ["auto", "ghost", "func", "alone", "opacus"])
def test_one_record_less_moves_the_sum_by_one_clip(sampler: str, unit: Unit) -> None:
    if sampler == "opacus":
        pytest.importorskip("opacus")
    model, records = Network(dropped(), sampler=sampler, chunk=16), people()
    first = 1 if unit is Unit.RECORD else 3
    whole = total(model, records, unit)
    less = total(model, part(records, slice(first, None)), unit)
    assert 0 < float((whole - less).norm()) <= CLIP
    turned = total(model, part(records, torch.arange(COUNT).flip(0)), unit)
    assert float((whole - turned).norm()) < 1e-6 * CLIP


@pytest.mark.parametrize("sampler", ["ghost", "func", "alone"])
def test_whether_a_record_is_drawn_moves_the_sum_by_one_clip(sampler: str) -> None:
    model, kept, sums = Network(dropped(), sampler=sampler, chunk=16), torch.rand(COUNT) < 0.3, []
    for drawn in (True, False):
        kept[0] = drawn
        rows: Any = model.problem(people()).rows(model.initial(0), Unit.RECORD)
        sums.append(rows.select(kept).clipped_sum(CLIP).vector.double())
    assert float((sums[0] - sums[1]).norm()) <= CLIP


def test_no_record_moves_the_metrics_of_others() -> None:
    model, records = Network(dropped()), people()
    whole, less = (
        model.judge(model.initial(0), r) for r in (records, part(records, slice(1, None)))
    )
    assert torch.equal(whole[1][1:], less[1])


# ---------------------------------------------------------------------------- transformers and peft


def texts(loss: Any) -> Batches:
    ids = torch.randint(0, WORDS, (9, T), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[::2, T - 2 :] = 0
    targets = torch.arange(9) % 3 if loss is cross_entropy else ids
    return tensor_batches({"input_ids": ids, "attention_mask": mask}, targets)


def adapter(name: str, attention: str) -> tuple[nn.Module, Any]:
    library, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    torch.manual_seed(0)
    loss: Any
    if name == "bert":
        config = library.BertConfig(
            **SMALL, num_labels=3, max_position_embeddings=T, attn_implementation=attention
        )
        module, targets, loss = (
            library.BertForSequenceClassification(config),
            ["query"],
            cross_entropy,
        )
    else:
        config = library.GPT2Config(
            vocab_size=WORDS,
            n_embd=16,
            n_layer=2,
            n_head=2,
            n_positions=T,
            attn_implementation=attention,
        )
        module, targets, loss = library.GPT2LMHeadModel(config), ["c_attn"], Tokens(shift=True)
    lora = peft.LoraConfig(
        r=2, target_modules=targets, lora_dropout=0.3, fan_in_fan_out=name == "gpt2"
    )
    return peft.get_peft_model(module, lora).train(), loss


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["auto", "ghost", "alone"])  # vmap cannot read their padding
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["bert", "gpt2"])
@pytest.mark.long
def test_so_it_is_with_adapters_of_transformers(name: str, attention: str, sampler: str) -> None:
    module, loss = adapter(name, attention)
    model, records = Network(module, loss, chunk=4, sampler=sampler), texts(loss)
    assert model.draws(records)
    with torch.no_grad():  # LoRA starts at zero, where hardly any gradient is
        for parameter in module.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    whole, less = (
        total(model, each, Unit.RECORD) for each in (records, records.take(torch.arange(1, 9)))
    )
    assert 0 < float((whole - less).norm()) <= CLIP


def test_masks_are_the_same_for_all_samplers_and_new_with_the_parameters() -> None:
    sums = [
        total(Network(dropped(), sampler=s), people(), Unit.RECORD)
        for s in ("ghost", "func", "alone")
    ]
    for other in sums[1:]:
        torch.testing.assert_close(sums[0], other, rtol=1e-4, atol=1e-7)
    model = Network(dropped())
    start = model.initial(0)
    near = start * (1 + 1e-6)
    one, two = (model.judge(params, people())[1] for params in (start, near))
    assert float((one - two).abs().max()) > 1e-2  # other masks, not other parameters


# -------------------------------------------------------------------------------- what is refused


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(20, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x + torch.rand_like(x))
        return out


class Sequences(nn.Module):
    """Dropout with the tokens first, as many as there are made-up records."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x[:, :12].view(len(x), 3, 4).transpose(0, 1)
        out: torch.Tensor = self.layer(nn.functional.dropout(tokens, 0.5).sum(dim=0))
        return out


class Attended(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True)
        self.layer = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.view(len(x), 5, 4)
        out: torch.Tensor = self.layer(self.attention(tokens, tokens, tokens)[0].sum(dim=1))
        return out


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(4, 4, 2, dropout=0.5, batch_first=True)
        self.layer = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(self.inner(x.view(len(x), 5, 4))[0][:, -1])
        return out


class Twice(nn.Module):
    """Runs its forward pass once more while gradients are taken."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = dropped()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.utils.checkpoint import checkpoint

        out: torch.Tensor = checkpoint(self.inner, x, use_reentrant=False)
        return out


class Alpha(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(20, 9), nn.AlphaDropout(0.5), nn.Linear(9, 5))


@pytest.mark.parametrize("kind", [Noisy, Recurrent, Twice, Alpha])
def test_other_random_numbers_are_refused(kind: type[nn.Module]) -> None:
    with pytest.raises(RecipeError, match="from each record alone"):
        Network(kind().train()).problem(people())


def test_weights_of_all_heads_together_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"first axis.*got shape"):
        Network(Attended().train()).problem(people())


class Encoded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3, batch_first=True)
        self.layer = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(self.inner(x.view(len(x), 5, 4)).sum(dim=1))
        return out


@pytest.mark.parametrize("sampler", ["auto", "func", "alone"])
def test_torchs_own_encoder_layer_draws_by_content(sampler: str) -> None:
    model, records = Network(seeded(Encoded, 0).train(), sampler=sampler, chunk=16), people()
    assert model.problem(records).model.draws(model.problem(records).records)
    whole, less = (
        total(model, each, Unit.RECORD) for each in (records, part(records, slice(1, None)))
    )
    assert 0 < float((whole - less).norm()) <= CLIP


def test_axes_that_are_not_records_are_refused() -> None:
    """By what masks do to other records' rows: three tokens look like three made-up records."""
    model = Network(Sequences().train())
    with pytest.raises(RecipeError, match=r"depend on that record alone|one entry per record"):
        model.problem(people()).rows(model.initial(0), Unit.RECORD)


@pytest.mark.parametrize("kind", [Attended, Recurrent, Alpha])
def test_in_eval_nothing_is_drawn_and_nothing_refused(kind: type[nn.Module]) -> None:
    model = Network(kind().eval())
    model.problem(people()).rows(model.initial(0), Unit.RECORD)


def test_a_module_that_goes_into_train_later_is_tried_again() -> None:
    model = Network(Alpha().eval())
    problem = model.problem(people())
    model.module.train()
    with pytest.raises(RecipeError, match="follow from each record"):
        problem.rows(model.initial(0), Unit.RECORD).clipped_sum(CLIP)
