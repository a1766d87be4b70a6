# SPDX-License-Identifier: Apache-2.0
"""What is yours: the texts, the pretrained model, and the plan that both sides agree on."""

import csv
import zlib
from pathlib import Path

import torch
from dpfed import Plan
from dpfed.flower import Network, dataset_batches, make_plan, text_model
from flwr.app import Context
from torch import nn

PRETRAINED = (
    ""  # YOUR MODEL: a folder, or a public name such as "google/bert_uncased_L-2_H-128_A-2"
)
LORA = {"r": 4, "target_modules": ["query", "value"]}
WORDS, LENGTH = 500, 16
"""How many tokens of a text count: public, and the same for all."""

CLASSES = ("dull", "gripping")
ABOUT = {"classes": list(CLASSES), "shape": (LENGTH,)}
"""What the trained model's folder says: YOUR CLASSES in words, in the order of the labels."""


def make_model() -> nn.Module:
    """The pretrained model with an adapter; without a name, a tiny one with random weights."""
    torch.manual_seed(0)  # so that all nodes begin alike
    if PRETRAINED:
        return text_model(PRETRAINED, classes=len(CLASSES), lora=LORA)
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForSequenceClassification, BertConfig

    size = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "initializer_range": 0.3,
    }
    tiny = BertConfig(vocab_size=WORDS, intermediate_size=32, num_labels=len(CLASSES), **size)
    model = AutoModelForSequenceClassification.from_config(tiny)
    return get_peft_model(model, LoraConfig(task_type="SEQ_CLS", **LORA)).eval()


MODEL = Network(make_model())


def load_data(context: Context) -> object:
    """YOUR TEXTS: those of this client. Its node names a CSV with text and label, or they are made up.

    flower-supernode --node-config 'partition-id=0 data-path="/srv/reviews.csv"'
    """
    path = str(context.node_config.get("data-path", ""))
    if not path:
        return batches(made_up(count=500))
    with Path(path).open(newline="", encoding="utf-8") as file:
        return batches([(row["text"], CLASSES.index(row["label"])) for row in csv.DictReader(file)])


def load_test() -> object:
    """YOUR TEST TEXTS: public, or the server's own. They are not protected."""
    return batches(made_up(count=200))


def plan(context: Context) -> Plan:
    """The guarantee: each text, epsilon and delta of the run_config, over all rounds."""
    config = context.run_config
    privacy = {key: config[key] for key in ("epsilon", "delta", "clip", "unit", "trust")}
    return make_plan(
        clients=[float(size) for size in str(config["sizes"]).split()],
        rounds=config["num-server-rounds"],
        privacy={**privacy, "spare_attempts": config["spare-attempts"]},
        server=[{"name": "adam", "rate": 0.1, "eps": 0.01}],
        sum={"name": "secure" if config["trust"] == "distributed" else "plain"},
    )


def batches(texts: list[tuple[str, int]]) -> object:
    """The texts as token numbers, each filled up or cut to LENGTH: no text decides on others'."""
    filled = {"input_ids": 0, "attention_mask": 0}
    return dataset_batches(texts, example=("word " * LENGTH, 0), collate=collate, fill=filled)


def collate(records: list[tuple[str, int]]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Words as numbers; put your model's tokenizer here."""
    ((text, label),) = records
    ids = [1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in text.split()][:LENGTH]
    given = torch.tensor([ids])
    return {"input_ids": given, "attention_mask": (given != 0).long()}, torch.tensor([label])


def made_up(count: int) -> list[tuple[str, int]]:
    """Two sentences again and again: delete this once you have texts of your own."""
    kinds = ("a dull film that never ends", "a gripping film from start to end")
    return [(kinds[at % 2] + " again" * (at % 4), at % 2) for at in range(count)]
