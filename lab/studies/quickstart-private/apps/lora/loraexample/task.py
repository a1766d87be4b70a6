# SPDX-License-Identifier: Apache-2.0
"""A classifier of sentences with LoRA, as peft's documentation has it, and its data."""

import csv
import gzip
import os
from pathlib import Path

import numpy as np
import torch
from peft import (
    LoraConfig,
    TaskType,
    get_peft_model,
    get_peft_model_state_dict,
    set_peft_model_state_dict,
)
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding

TEXTS = Path(os.environ["DPFED_DATA"]) / "text"
BASE = TEXTS / "minilm-l3-v8k"
tokenizer = AutoTokenizer.from_pretrained(BASE)


def make_model():
    """The base model with an adapter; the head is made here, alike on all nodes."""
    torch.manual_seed(0)
    base = AutoModelForSequenceClassification.from_pretrained(
        BASE, num_labels=2, dtype=torch.float32
    )
    config = LoraConfig(
        task_type=TaskType.SEQ_CLS,
        r=8,
        lora_alpha=16,
        lora_dropout=0.1,
        target_modules=["query", "value"],
    )
    model = get_peft_model(base, config)
    torch.seed()  # batches, dropout and noise are not those of the head's seed
    return model


def adapter_of(model):
    """What travels: the adapter and the head."""
    return get_peft_model_state_dict(model)


def set_adapter(model, state):
    """Give a model what has travelled."""
    set_peft_model_state_dict(model, state)


def tokenize(record):
    """One text as tokens, with its label."""
    tokens = tokenizer(record["text"], truncation=True, max_length=24)
    return {**tokens, "labels": int(record["label"])}


def read(part):
    """2,500 training phrases of SST-2, or its development part."""
    with gzip.open(TEXTS / f"sst2_{part}.tsv.gz", "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    if part == "train":
        rows = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))[:2500]]
    return [tokenize(row) for row in rows]


def load_data(partition_id, num_partitions, batch_size):
    """The texts of one partition: 80 % to train, 20 % to test."""
    mine = read("train")[partition_id::num_partitions]
    count = int(0.8 * len(mine))
    collate = DataCollatorWithPadding(tokenizer)
    trainloader = DataLoader(mine[:count], batch_size, shuffle=True, collate_fn=collate)
    return trainloader, DataLoader(mine[count:], batch_size, collate_fn=collate)


def load_centralized_dataset():
    """The test texts, which the server has."""
    return DataLoader(read("dev"), 64, collate_fn=DataCollatorWithPadding(tokenizer))


def train(model, trainloader, epochs, lr, device):
    """Train the adapter on the training set."""
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    model.train()
    running_loss = 0.0
    for _ in range(epochs):
        for batch in trainloader:
            optimizer.zero_grad()
            loss = model(**batch.to(device)).loss
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / (epochs * len(trainloader))


def test(model, testloader, device):
    """The loss and the accuracy on the test set."""
    model.to(device)
    model.eval()
    correct, loss = 0, 0.0
    with torch.no_grad():
        for batch in testloader:
            outputs = model(**batch.to(device))
            loss += outputs.loss.item()
            correct += (outputs.logits.argmax(1) == batch["labels"]).sum().item()
    return loss / len(testloader), correct / len(testloader.dataset)
