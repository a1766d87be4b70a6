# SPDX-License-Identifier: Apache-2.0
"""The lower layers run once: the layers above them give the whole model's scores and gradients."""

from pathlib import Path

import pytest
import torch

from dpfed.core.errors import RecipeError
from dpfed.core.types import Unit
from dpfed.data.batches import tensor_batches
from dpfed.data.frozen_layers import hidden_states, top_layers
from dpfed.data.modules import Network
from dpfed.data.pretrained import TokenIds, text_model

WORDS, T = 13, 6
LORA = {"r": 2, "target_modules": ["query", "value"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = pytest.importorskip("transformers")
    pytest.importorskip("peft")
    torch.manual_seed(0)
    config = library.BertConfig(
        vocab_size=WORDS,
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=20,
        max_position_embeddings=T,
    )
    where = tmp_path_factory.mktemp("encoder")
    library.BertModel(config).save_pretrained(where)
    return where


def token_ids(count: int = 8) -> torch.Tensor:
    ids = torch.randint(1, WORDS, (count, T), generator=torch.Generator().manual_seed(0))
    ids[::2, 4:] = 0
    return ids


@pytest.mark.sample(3)
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_scores_and_gradients_are_those_of_the_whole_model(folder: Path, layers: int) -> None:
    ids, y = token_ids(), torch.arange(8) % 2
    last = {**LORA, "layers_to_transform": list(range(3 - layers, 3))}
    whole = Network(TokenIds(text_model(folder, task="pool", classes=2, lora=last), padding=0))
    top = Network(top_layers(folder, layers=layers, classes=2, lora=LORA))
    assert top.layout.size == whole.layout.size
    x = hidden_states(folder, ids, layers=layers)
    assert not x[::2, 4:].any()
    params = whole.initial(0) + 0.1
    torch.testing.assert_close(top.score(params, x), whole.score(params, ids))
    kinds = (top.problem(tensor_batches(x, y)), whole.problem(tensor_batches(ids, y)))
    assert top.rows_by(tensor_batches(x, y)) == "ghost"
    one, other = (each.rows(params, Unit.RECORD).clipped_sum(0.1).vector for each in kinds)
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    assert one.norm() > 0


def test_without_an_adapter_all_parameters_of_these_layers_are_trained(folder: Path) -> None:
    names = Network(top_layers(folder, layers=1, classes=2)).layout.shapes
    assert not any("embeddings" in name or "layer.1" in name for name in names)
    assert any("attention" in name for name in names)


@pytest.mark.parametrize("layers", [0, 4])
def test_there_are_no_more_layers_than_the_model_has(folder: Path, layers: int) -> None:
    with pytest.raises(RecipeError, match="from 1 to the model's 3"):
        top_layers(folder, layers=layers)
    with pytest.raises(RecipeError, match="from 1 to the model's 3"):
        hidden_states(folder, token_ids(), layers=layers)


def test_a_model_of_another_kind_is_refused(tmp_path: Path) -> None:
    library = pytest.importorskip("transformers")
    library.GPT2Model(
        library.GPT2Config(vocab_size=9, n_positions=4, n_embd=8, n_layer=1, n_head=2)
    ).save_pretrained(tmp_path)
    with pytest.raises(RecipeError, match="such as BERT, got a GPT2Model"):
        top_layers(tmp_path)
