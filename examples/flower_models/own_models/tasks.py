# SPDX-License-Identifier: Apache-2.0
"""Four tasks: a model with its loss, and the records of one partition. All records are made up."""

import zlib
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from dpfed.flower import Network, dataset_batches, loss_by_name, tensor_batches, text_model

SIZE, WORDS, LENGTH = 300, 500, 12


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


def visits_model(folder: str) -> Network:
    """A network of one's own; LayerNorm, not BatchNorm."""
    layers = (nn.Linear(8, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 2))
    return Network(nn.Sequential(*layers))


def visits_records(partition: int) -> Any:
    """The example is made up: its shapes are those of every record."""
    return dataset_batches(Visits(partition), example=(torch.zeros(8), 0))


# ------------------------------------------------------------------------- numbers, several labels


def doses_model(folder: str) -> Network:
    """One number per record."""
    return Network(nn.Linear(8, 1), loss_by_name("huber", delta=1.0))


def doses_records(partition: int) -> Any:
    """The dose follows from three of the features."""
    x = drawn(partition, SIZE, 8)
    return tensor_batches(x, x[:, :3].sum(dim=1, keepdim=True))


def findings_model(folder: str) -> Network:
    """Three labels, each 0 or 1."""
    return Network(nn.Linear(8, 3), loss_by_name("multi-label"))


def findings_records(partition: int) -> Any:
    """Each finding follows from one feature."""
    x = drawn(partition, SIZE, 8)
    return tensor_batches(x, (x[:, :3] > 0).float())


# -------------------------------------------------------------------------- a transformer with LoRA


def text_network(folder: str) -> Network:
    """A pretrained encoder with an adapter; without a folder, a tiny one."""
    lora = {"r": 4, "target_modules": ["query", "value"]}
    if folder:
        return Network(text_model(folder, classes=2, lora=lora), chunk=16)
    from transformers import BertConfig, BertForSequenceClassification

    from dpfed.data.pretrained import adapted

    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(vocab_size=WORDS, intermediate_size=32, num_labels=2, **size)
    return Network(adapted(BertForSequenceClassification(config), lora, "SEQ_CLS"), chunk=16)


def collate(records: list[tuple[str, int]]) -> dict[str, torch.Tensor]:
    """Words as numbers; a tokenizer of your model takes this place."""
    ((text, label),) = records
    ids = [1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in text.split()]
    given = torch.tensor([ids])
    return {"input_ids": given, "attention_mask": torch.ones_like(given),
            "labels": torch.tensor([label])}  # fmt: skip


def text_records(partition: int) -> Any:
    """Texts of unequal length, filled up to the example's."""
    kinds = ("a fine day at the sea", "a dull and rainy day")
    texts = [(kinds[at % 2] + " again" * (at % 4), at % 2) for at in range(SIZE)]
    example = (" ".join(["word"] * LENGTH), 0)
    return dataset_batches(
        texts, example, collate=collate, fill={"input_ids": 0, "attention_mask": 0}
    )


TASKS = {
    "visits": (visits_model, visits_records),
    "doses": (doses_model, doses_records),
    "findings": (findings_model, findings_records),
    "text": (text_network, text_records),
}
