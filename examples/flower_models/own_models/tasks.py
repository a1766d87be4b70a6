# SPDX-License-Identifier: Apache-2.0
"""Four tasks: a model with its loss, and the records of one partition. All records are made up."""

import zlib
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from dpfed.flower import Network, dataset_batches, loss_by_name, tensor_batches

SIZE, WORDS = 300, 500


def drawn(partition: int, *shape: int) -> torch.Tensor:
    """Numbers that follow from the partition alone."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(partition))


# ---------------------------------------------------------------- an nn.Module and a torch Dataset


class Visits(Dataset):  # type: ignore[type-arg]
    """Two classes, read one by one."""

    def __init__(self, partition: int) -> None:
        self.x = drawn(partition, SIZE, 8)

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.x[index], int(self.x[index, :2].sum() > 0)


def visits_model(folder: str) -> Any:
    """A network of one's own; LayerNorm, not BatchNorm."""
    layers = (nn.Linear(8, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 2))
    return Network(nn.Sequential(*layers))


def visits_records(partition: int) -> Any:
    """The example is made up: its shapes are those of every record."""
    return dataset_batches(Visits(partition), example=(torch.zeros(8), 0))


# ------------------------------------------------------------------------- numbers, several labels


def doses_model(folder: str) -> Any:
    """One number per record."""
    return Network(nn.Linear(8, 1), loss_by_name("huber", delta=1.0))


def doses_records(partition: int) -> Any:
    """The dose follows from three of the features."""
    x = drawn(partition, SIZE, 8)
    return tensor_batches(x, x[:, :3].sum(dim=1, keepdim=True))


def findings_model(folder: str) -> Any:
    """Three labels, each 0 or 1."""
    return Network(nn.Linear(8, 3), loss_by_name("multi-label"))


def findings_records(partition: int) -> Any:
    """Each finding follows from one feature."""
    x = drawn(partition, SIZE, 8)
    return tensor_batches(x, (x[:, :3] > 0).float())


# -------------------------------------------------------------------------- a transformer with LoRA


def text_network(folder: str) -> Any:
    """A pretrained encoder with an adapter; without a folder, a tiny one."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForSequenceClassification as Model
    from transformers import BertConfig

    lora = LoraConfig(r=4, target_modules=["query", "value"], task_type="SEQ_CLS")
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    size |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # few texts
    tiny = BertConfig(vocab_size=WORDS, intermediate_size=32, num_labels=2, **size)
    model = Model.from_pretrained(folder, num_labels=2) if folder else Model.from_config(tiny)
    return Network(get_peft_model(model, lora))


def collate(records: list[tuple[str, int]]) -> Any:
    """Words as numbers, filled up to the longest; a tokenizer of your model takes this place."""
    texts, labels = zip(*records, strict=True)
    ids = [[1 + zlib.crc32(w.encode()) % (WORDS - 1) for w in text.split()] for text in texts]
    given = nn.utils.rnn.pad_sequence([torch.tensor(each) for each in ids], batch_first=True)
    inputs = {"input_ids": given, "attention_mask": (given != 0).long()}
    return inputs, torch.tensor(labels)


def text_records(partition: int) -> Any:
    """Texts of unequal length, each filled up to the example's: no record decides on others'."""
    kinds = ("a fine day at the sea", "a dull and rainy day")
    texts = [(kinds[at % 2] + " again" * (at % 4), at % 2) for at in range(SIZE)]
    filled = {"input_ids": 0, "attention_mask": 0}
    return dataset_batches(texts, example=("word " * 12, 0), collate=collate, fill=filled)


MODELS = {
    "visits": visits_model,
    "doses": doses_model,
    "findings": findings_model,
    "text": text_network,
}
RECORDS = {
    "visits": visits_records,
    "doses": doses_records,
    "findings": findings_records,
    "text": text_records,
}
