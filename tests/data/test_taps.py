# SPDX-License-Identifier: Apache-2.0
"""Rows by factors, by torch.func and by Opacus equal record-by-record gradients, layer by layer.

The oracle is autograd on one record at a time. Clips are chosen by the rows' own norms: some
rows are clipped, and some are not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from dpfed.core.errors import RecipeError
from dpfed.core.ghost import Ghost
from dpfed.core.rows import Chunks, Dense
from dpfed.core.types import Unit
from dpfed.data.batches import Batches, tensor_batches
from dpfed.data.losses import Huber, Loss, Tokens, cross_entropy
from dpfed.data.modules import Network, seeded
from dpfed.data.samplers import by_itself
from dpfed.data.taps import Unsupported, factors_of

RECORDS, T, WORDS = 7, 6, 13


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(RECORDS, *shape, generator=torch.Generator().manual_seed(seed))


def words(seed: int = 0) -> torch.Tensor:
    return torch.randint(0, WORDS, (RECORDS, T), generator=torch.Generator().manual_seed(seed))


LABELS = torch.arange(RECORDS) % 3


class Attention(nn.Module):
    """Self-attention of linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (layer(x).view(len(x), -1, 2, 4).transpose(1, 2) for layer in self._three())
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        out: torch.Tensor = self.head(self.out(mixed).mean(dim=1))
        return out

    def _three(self) -> tuple[nn.Module, ...]:
        return self.q, self.k, self.v


LAYERS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)),
               numbers(4)),
    "linear, tokens": (lambda: nn.Sequential(nn.Linear(4, 5, bias=False), nn.GELU(), nn.Flatten(),
                                             nn.Linear(5 * T, 3)), numbers(T, 4)),
    "conv2d": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, stride=2), nn.Tanh(),
                                     nn.Flatten(), nn.Linear(36, 3)), numbers(2, 6, 6)),
    "conv2d, groups": (lambda: nn.Sequential(
        nn.Conv2d(4, 6, (3, 2), groups=2, dilation=2, padding="same", padding_mode="circular"),
        nn.Flatten(), nn.Linear(150, 3)), numbers(4, 5, 5)),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(4, 5, 3, padding=2, bias=False), nn.Flatten(),
                                     nn.Linear(40, 3)), numbers(4, T)),
    "embedding": (lambda: nn.Sequential(nn.Embedding(WORDS, 4, padding_idx=0), nn.Flatten(),
                                        nn.Linear(4 * T, 3)), words()),
    "layer norm": (lambda: nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Flatten(),
                                         nn.Linear(5 * T, 3)), numbers(T, 4)),
    "layer norm, two axes": (lambda: nn.Sequential(nn.LayerNorm((T, 4)), nn.Flatten(),
                                                   nn.Linear(4 * T, 3)), numbers(T, 4)),
    "rms norm": (lambda: nn.Sequential(nn.RMSNorm(4), nn.Flatten(), nn.Linear(4 * T, 3)),
                 numbers(T, 4)),
    "group norm": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(),
                                         nn.Flatten(), nn.Linear(64, 3)), numbers(2, 6, 6)),
    "attention": (Attention, numbers(T, 8)),
}  # fmt: skip


def oracle(model: Network, batches: Batches, params: torch.Tensor) -> torch.Tensor:
    return by_itself(model, params)(batches.read(torch.arange(len(batches))))


def hold(model: Network, batches: Batches) -> None:
    """Rows as they are, and their clipped sums, against the oracle."""
    params = model.initial(0) + 0.05 * torch.sin(torch.arange(model.layout.size) * 1.7)
    slow = oracle(model, batches, params)
    typical = float(slow.norm(dim=1).median())
    rows: Any = model.problem(batches).rows(params, Unit.RECORD)
    if isinstance(rows, Ghost):
        layers, usable = rows.factors(torch.arange(model.chunk))
        assert bool(usable.all())
        made = torch.stack([torch.cat([e.row(i) for e in layers]) for i in range(model.chunk)])
        torch.testing.assert_close(
            made.float(), slow[: model.chunk], rtol=1e-4, atol=1e-5 * max(1.0, typical)
        )
    for clip in (1e6 * typical, typical, 1e-3 * typical):
        found, expected = rows.clipped_sum(clip).vector, Dense(slow).clipped_sum(clip).vector
        scale = 1e-5 * min(clip, float(slow.norm(dim=1).max()))
        assert float((found - expected).norm()) <= scale * len(slow), clip


@pytest.mark.parametrize("sampler", ["ghost", "func", "opacus"])
@pytest.mark.parametrize("name", LAYERS)
def test_rows_are_the_gradients_of_single_records(name: str, sampler: str) -> None:
    if sampler == "opacus":
        pytest.importorskip("opacus")
        if name in ("conv2d, groups", "linear", "embedding"):
            pytest.skip("Opacus takes no circular padding, in-place layer or padding_idx")
    make, x = LAYERS[name]
    hold(Network(seeded(make, 0), chunk=3, sampler=sampler), tensor_batches(x, LABELS))


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_train_and_dropout_are_as_the_module_has_them(training: bool) -> None:
    module = seeded(lambda: nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 3)), 0)
    model = Network(module.train(training), chunk=4, sampler="ghost")
    batches = tensor_batches(numbers(4), LABELS)
    rows = model.problem(batches).rows(model.initial(0), Unit.RECORD)
    first, second = (rows.clipped_sum(1.0).vector for _ in range(2))
    assert torch.equal(first, second) != training
    assert module.training == training


# --------------------------------------------------------------------------------- what is refused


class Twice(nn.Module):
    """A layer at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))))
        return out


class Borrowed(Twice):
    """A layer's weight that other code uses, too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.tanh(self.layer(x)) @ self.layer.weight)
        return out


class Overwritten(Twice):
    """A layer whose input is changed after it was used."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x + 0
        y = self.layer(h)
        h.mul_(2)
        out: torch.Tensor = self.head(y + h)
        return out


class Reshaped(Twice):
    """A layer that is called with all records in one row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.layer(x.reshape(1, -1, 4)).reshape(len(x), -1))
        return out


class Functional(Twice):
    """A parameter that no layer's forward uses."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(nn.functional.linear(x, self.layer.weight, self.layer.bias))
        return out


class Owned(Twice):
    """A parameter that belongs to the module itself."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.layer(x) * self.scale)
        return out


class Tied(Twice):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(4, 4)
        self.other.weight = self.layer.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.other(self.layer(x)))
        return out


REFUSED: dict[str, tuple[type[Twice], str]] = {
    "twice": (Twice, "layer 'layer' is used 2 times"),
    "borrowed": (Borrowed, "parameter 'layer.weight' is used 2 times"),
    "reshaped": (Reshaped, "not called with one entry per record"),
    "functional": (Functional, "do not give the gradients of single records"),
    "owned": (Owned, "whose factors are not known"),
    "tied": (Tied, "a trained parameter belongs to two layers"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_factors_is_refused_and_auto_makes_rows_instead(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, message = REFUSED[name]
    batches = tensor_batches(numbers(4), LABELS)
    model = Network(seeded(make, 0), chunk=3, sampler="ghost")
    with pytest.raises(RecipeError, match=f"{message}.*; use sampler 'auto'"):
        model.problem(batches).rows(model.initial(0), Unit.RECORD)
    auto = Network(seeded(make, 0), chunk=3)
    with caplog.at_level(logging.INFO, logger="dpfed"):
        rows = auto.problem(batches).rows(auto.initial(0), Unit.RECORD)
    assert isinstance(rows, Chunks)
    assert message in caplog.text
    hold(auto, batches)


def test_an_input_that_is_overwritten_is_noticed() -> None:
    model = Network(seeded(Overwritten, 0), chunk=3, sampler="ghost")
    batch = tensor_batches(numbers(4), LABELS).read(torch.arange(3))
    with pytest.raises(Unsupported, match="the input of layer 'layer' is overwritten"):
        factors_of(model, model.initial(0))(batch)


def test_a_parameter_used_twice_by_some_data_only_counts_for_nothing() -> None:
    """What a trial on made-up records cannot see is looked for in every pass."""

    class Sometimes(Twice):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.layer(x)
            return self.head(self.layer(h) if float(x.detach().abs().max()) > 50 else h)  # type: ignore[no-any-return]

    model = Network(seeded(Sometimes, 0), chunk=3, sampler="ghost")
    x = numbers(4)
    small = model.problem(tensor_batches(x[1:], LABELS[1:])).rows(model.initial(0), Unit.RECORD)
    x[0] *= 1000
    rows: Any = model.problem(tensor_batches(x, LABELS)).rows(model.initial(0), Unit.RECORD)
    torch.testing.assert_close(rows.clipped_sum(1.0).vector, small.clipped_sum(1.0).vector)
    with pytest.raises(Unsupported, match="used 2 times"):
        factors_of(model, model.initial(0))(tensor_batches(x, LABELS).read(torch.arange(2)))


def test_a_layer_that_is_not_reached_has_a_zero_gradient() -> None:
    class Idle(Twice):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x)  # type: ignore[no-any-return]

    model = Network(seeded(Idle, 0), chunk=3, sampler="ghost")
    rows = model.problem(tensor_batches(numbers(4), LABELS)).rows(model.initial(0), Unit.RECORD)
    made = model.layout.unflatten(rows.clipped_sum(1.0).vector)
    assert not made["layer.weight"].any()
    assert made["head.weight"].any()


def test_persons_and_exact_integers_get_rows_that_are_made() -> None:
    model = Network(seeded(LAYERS["linear"][0], 0), chunk=3)
    batches = tensor_batches(numbers(4), LABELS, torch.arange(RECORDS) // 2)
    problem = model.problem(batches)
    assert isinstance(problem.rows(model.initial(0), Unit.GROUP), Chunks)
    rows = problem.rows(model.initial(0), Unit.RECORD)
    assert isinstance(rows, Ghost)
    assert len(torch.cat(list(rows.clipped_rows(1.0)))) == RECORDS


# ------------------------------------------------------------------------------- transformers, LoRA

ATTENDED = torch.ones(RECORDS, T, dtype=torch.int64)
SMALL = {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 20}  # fmt: skip


def lora(module: nn.Module, targets: list[str], task: str) -> nn.Module:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(
        r=2, target_modules=targets, task_type=task, fan_in_fan_out="c_attn" in targets
    )
    return peft.get_peft_model(module, config)  # type: ignore[no-any-return]


def bert(tied: bool) -> tuple[nn.Module, Loss]:
    library = pytest.importorskip("transformers")
    config = library.BertConfig(**SMALL, num_labels=3, max_position_embeddings=T,
                                tie_word_embeddings=tied)  # fmt: skip
    if tied:
        return lora(library.BertForMaskedLM(config), ["query", "value"], None), Tokens()  # type: ignore[arg-type]
    module = library.BertForSequenceClassification(config)
    return lora(module, ["query", "value"], "SEQ_CLS"), cross_entropy


def gpt2(tied: bool) -> tuple[nn.Module, Loss]:
    library = pytest.importorskip("transformers")
    config = library.GPT2Config(vocab_size=WORDS, n_embd=16, n_layer=2, n_head=2, n_positions=T,
                                tie_word_embeddings=tied)  # fmt: skip
    return lora(library.GPT2LMHeadModel(config), ["c_attn"], "CAUSAL_LM"), Tokens(shift=True)


def llama(tied: bool) -> tuple[nn.Module, Loss]:
    library = pytest.importorskip("transformers")
    config = library.LlamaConfig(**SMALL, num_key_value_heads=1, max_position_embeddings=T,
                                 tie_word_embeddings=tied)  # fmt: skip
    return lora(library.LlamaForCausalLM(config), ["q_proj", "v_proj"], "CAUSAL_LM"), Tokens(True)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("make", [bert, gpt2, llama], ids=lambda make: make.__name__)
@pytest.mark.parametrize("sampler", ["ghost", "opacus", "auto"])
def test_adapters_of_transformers(make: Any, sampler: str, padded: bool, tied: bool) -> None:
    torch.manual_seed(0)
    module, loss = make(tied)
    module.eval()
    mask = ATTENDED.clone()
    if padded:
        mask[::2, T - 2 :] = 0
    ids = words()
    targets = LABELS if loss is cross_entropy else torch.where(mask.bool(), ids, -100)
    batches = tensor_batches({"input_ids": ids, "attention_mask": mask}, targets)
    model = Network(module, loss, chunk=3, sampler=sampler)
    if sampler == "auto":
        assert model.rows_by(batches) == "ghost"
    hold(model, batches)


def test_numbers_are_fitted_too() -> None:
    model = Network(seeded(LAYERS["linear"][0], 0), Huber(0.5), chunk=3, sampler="ghost")
    hold(model, tensor_batches(numbers(4), numbers(3, seed=4)))
