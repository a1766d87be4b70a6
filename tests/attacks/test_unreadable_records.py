# SPDX-License-Identifier: Apache-2.0
"""Data of which no record can be read: it trained on nothing, and paid a whole budget for it.

A DataLoader in the place of a data set (of which its data set is taken now), or a ``fill`` without
the ``token_type_ids`` that a BERT tokenizer adds, made every record unreadable: zero rows, full
noise, and a line in the local log.
``evaluate`` said accuracy 0.0 of such records. What is refused now is refused by public facts: the
object's type, the example, and made-up records. No record is read for it.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from dpfed.core.errors import DataError
from dpfed.core.types import Unit
from dpfed.flower import Network, Records, dataset_batches, evaluate

PAIR = (torch.zeros(3), 0)


class Broken:
    """A disk on which nothing can be read; it counts who tries."""

    def __init__(self) -> None:
        self.tries = 0

    def __len__(self) -> int:
        return 20

    def __getitem__(self, at: int) -> Any:
        self.tries += 1
        raise OSError("disk")


class Half(Broken):
    """Every second record can be read: class 1, which the model below says of all."""

    def __getitem__(self, at: int) -> Any:
        return (torch.ones(3), 1) if at % 2 else super().__getitem__(at)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([PAIR])


class Instance:
    """Looks like a data set on the instance alone, as a lenient check would ask."""

    def __init__(self) -> None:
        self.__len__ = lambda: 3
        self.__getitem__ = lambda at: PAIR


def ones() -> Network:
    module = nn.Linear(3, 2)
    nn.init.zeros_(module.weight)
    with torch.no_grad():
        module.bias.copy_(torch.tensor([0.0, 1.0]))
    return Network(module)


UNREAD = [DataLoader(Stream()), Stream(), iter([PAIR]), Instance()]


@pytest.mark.parametrize("data", UNREAD, ids=lambda each: type(each).__name__)
def test_what_has_no_record_at_an_index_is_refused_by_its_type(data: Any) -> None:
    with pytest.raises(DataError, match=r"__getitem__.*loader\.dataset"):
        dataset_batches(data, PAIR)


ENCODED = {"input_ids": [1] * 8, "attention_mask": [1] * 8, "token_type_ids": [0] * 8, "labels": 0}


def test_a_fill_without_a_tensor_of_the_example_is_refused_before_a_record_is_read() -> None:
    data = Broken()
    with pytest.raises(DataError, match="without 'token_type_ids'"):
        dataset_batches(data, ENCODED, fill={"input_ids": 0, "attention_mask": 0})
    assert data.tries == 0


def test_a_fill_of_a_tensor_that_the_example_lacks_is_refused() -> None:
    names = ("input_ids", "attention_mask", "token_type_ids")
    with pytest.raises(DataError, match="got 'token_types'"):
        dataset_batches([ENCODED], ENCODED, fill=dict.fromkeys((*names, "token_types"), 0))


def test_a_tensor_whose_length_never_differs_is_named_with_none() -> None:
    example = {"input_ids": [1] * 8, "age": [0.5, 0.5], "labels": 0}
    records = [{"input_ids": [1, 2], "age": [0.1, 0.2], "labels": 1}]
    found = dataset_batches(records, example, fill={"input_ids": 0, "age": None})
    batch = found.read(torch.arange(1))
    assert batch.usable is not None
    assert batch.usable.all()
    assert batch.tensors()["input_ids"].tolist() == [[1, 2, 0, 0, 0, 0, 0, 0]]


def once(records: list[Any], seen: list[int] = []) -> Any:  # noqa: B006 (a state is the point)
    seen.append(1)
    if len(seen) > 1:
        raise RuntimeError("the tokenizer is closed")
    return torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64)


def grows(records: list[Any], seen: list[int] = []) -> Any:  # noqa: B006
    seen.append(1)
    return torch.zeros(1, 2 + len(seen)), torch.zeros(1, dtype=torch.int64)


@pytest.mark.parametrize("collate", [once, grows])
def test_a_collate_to_which_the_example_is_unreadable_is_refused(collate: Any) -> None:
    data = Broken()
    with pytest.raises(DataError, match="example must be readable"):
        dataset_batches(data, PAIR, collate=collate)
    assert data.tries == 0


def test_a_fill_that_cannot_fill_is_refused() -> None:
    wrong: Any = {"x": "nothing"}
    with pytest.raises(DataError, match="example must be readable"):
        dataset_batches(Broken(), PAIR, fill=wrong)


def test_evaluating_on_nothing_readable_is_an_error_and_no_accuracy() -> None:
    model = ones()
    with pytest.raises(DataError, match="least 1 of 20 records"):
        evaluate(model, model.initial(0), dataset_batches(Broken(), PAIR))
    with pytest.raises(DataError, match=r"least 1 to evaluate.*got 0"):
        evaluate(model, model.initial(0), Records(torch.zeros(0, 3), torch.zeros(0).long()))


def test_records_that_cannot_be_read_are_no_wrong_answers(caplog: Any) -> None:
    model = ones()
    with caplog.at_level(logging.WARNING, logger="dpfed"):
        found = evaluate(model, model.initial(0), dataset_batches(Half(), PAIR))
    assert (found.accuracy, found.records) == (1.0, 10)
    assert "evaluated on 10 of 20 records" in caplog.text


def test_a_client_still_does_not_refuse_because_of_its_records() -> None:
    """Once data has been touched nothing is refused: what cannot be read is a zero row."""
    model = ones()
    problem = model.problem(dataset_batches(Broken(), PAIR))
    found = problem.rows(model.initial(0), Unit.RECORD).clipped_sum(1.0).vector
    assert found.norm() == 0


# ------------------------------------------------------------------------- the example of the docs


def bert(home: Path) -> Path:
    """A tiny BERT with a tokenizer that, as BERT's do, gives token_type_ids."""
    transformers = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
    home.mkdir()
    vocabulary = home / "vocab.txt"
    vocabulary.write_text("\n".join([*words, *(f"##{each}" for each in words[5:])]) + "\n")
    transformers.BertTokenizerFast(str(vocabulary)).save_pretrained(home)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=57, intermediate_size=16, **size)
    transformers.BertForSequenceClassification(config).save_pretrained(home)
    return home


def minilm(home: Path) -> Path:
    folder = Path(os.environ.get("DPFED_DATA", "")) / "text" / "minilm-l3"
    return folder if folder.is_dir() else pytest.skip("no MiniLM in $DPFED_DATA/text")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("source", [bert, minilm])
def test_the_docs_example_of_an_adapter_trains_on_its_records_as_it_stands(
    source: Any, tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    pytest.importorskip("peft")
    page = (repository / "docs" / "models.md").read_text(encoding="utf-8")
    section = page[page.index("## A transformer with an adapter") :]
    block = re.search(r"^```text\n(.*?)^```", section, flags=re.DOTALL | re.MULTILINE)
    assert block
    (tmp_path / "FOLDER").symlink_to(source(tmp_path / "model"))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    with caplog.at_level(logging.WARNING, logger="dpfed"):
        exec(block.group(1), names)
        rows = names["problem"].rows(names["params"], Unit.RECORD)
        total = rows.clipped_sum(1.0).vector
    assert "cannot be read" not in caplog.text
    assert total.norm() > 0
    assert evaluate(names["model"], names["params"], names["records"]).records == 2
    assert (tmp_path / "ADAPTER" / "adapter_config.json").is_file()
