#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Frozen text features for the studies: SST-2 and Medical Abstracts under a small public encoder.

    DPFED_DATA=DATA lab/scripts/text_features.py DIR [--train 20000] [--tokens 64]
    DPFED_DATA=DATA lab/scripts/text_features.py DIR --short

reads DATA/text (the encoder minilm-l3, and the texts) and writes

    DIR/features/sst2.npz       x_train (20000, 384), y_train, x_test (872, 384), y_test
    DIR/features/medical.npz    x (2888, 384), y
    DIR/features/shakespeare.npz    x (3000, 384), y = 0: public text, whose mean centers the others

and with --short, for the study adamw-sst2, 10,000 of SST-2's records at 24 tokens:

    DIR/features/sst2-short.npz     x_train (10000, 384), ..., the same features
    DIR/features/sst2-hidden.npz    x_train (10000, 24, 384), ..., the tokens below the last layer

A feature is the mean of the last layer over a text's own tokens. SST-2's training records are drawn
at random from its 67,349 phrases, many of which are parts of one sentence: the record is the
phrase. The encoder is public; nothing here looks at labels. Takes some minutes on two cores.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import os
from pathlib import Path

import numpy as np
import torch
from transformers import BertModel, BertTokenizerFast

from dpfed.data.frozen_layers import hidden_states

SEED, BATCH, PUBLIC = 0, 64, 3000


def read_column(path: Path, name: str) -> list[str]:
    """One column of a table."""
    csv.field_size_limit(1 << 24)
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [row[name] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]


def read(path: Path) -> tuple[list[str], np.ndarray]:
    """The texts and labels of a table."""
    return read_column(path, "text"), np.array([int(y) for y in read_column(path, "label")])


@torch.no_grad()
def encode(folder: Path, texts: list[str], tokens: int) -> np.ndarray:
    """Mean over tokens of the last layer; texts of like length together, to pad little."""
    model = BertModel.from_pretrained(folder, add_pooling_layer=False, dtype=torch.float32)
    model.eval()
    tokenizer = BertTokenizerFast.from_pretrained(folder)
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    out = np.zeros((len(texts), model.config.hidden_size), np.float16)
    for start in range(0, len(order), BATCH):
        these = order[start : start + BATCH]
        batch = tokenizer(
            [texts[i] for i in these],
            padding=True,
            truncation=True,
            max_length=tokens,
            return_tensors="pt",
        )
        mask = batch["attention_mask"][..., None].float()
        hidden = model(**batch).last_hidden_state
        out[these] = ((hidden * mask).sum(1) / mask.sum(1)).numpy()
    return out


def short(source: Path, out: Path) -> None:
    """Records of 24 tokens: their features, and what the last layer gets."""
    tokenizer = BertTokenizerFast.from_pretrained(source / "minilm-l3")
    features: dict[str, np.ndarray] = {}
    hidden: dict[str, np.ndarray] = {}
    for part, name, count in (("train", "train", 10_000), ("dev", "test", None)):
        texts, y = read(source / f"sst2_{part}.tsv.gz")
        if count is not None:
            kept = np.random.default_rng(SEED).permutation(len(texts))[:count]
            texts, y = [texts[i] for i in kept], y[kept]
        ids = tokenizer(
            texts, padding="max_length", truncation=True, max_length=24, return_tensors="pt"
        )["input_ids"]
        states = hidden_states(source / "minilm-l3", ids, layers=1)
        hidden |= {f"x_{name}": states.half().numpy(), f"y_{name}": y}
        made = encode(source / "minilm-l3", texts, 24)
        features |= {f"x_{name}": made, f"y_{name}": y}
    np.savez(out / "sst2-short.npz", **features)  # type: ignore[arg-type]
    np.savez(out / "sst2-hidden.npz", **hidden)  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("dir", type=Path)
    parser.add_argument("--train", type=int, default=20_000, help="training records of SST-2")
    parser.add_argument("--tokens", type=int, default=64, help="tokens kept of a text")
    parser.add_argument("--short", action="store_true", help="what adamw-sst2 needs, only")
    asked = parser.parse_args()
    source, out = Path(os.environ["DPFED_DATA"]) / "text", asked.dir / "features"
    out.mkdir(parents=True, exist_ok=True)
    if asked.short:
        short(source, out)
        return

    public = read_column(source / "shakespeare_roles.tsv.gz", "text")
    some = np.random.default_rng(SEED).permutation(len(public))[:PUBLIC]
    x = encode(source / "minilm-l3", [public[i] for i in some], asked.tokens)
    np.savez(out / "shakespeare.npz", x=x, y=np.zeros(len(x), np.int64))

    texts, y = read(source / "medical_abstracts_test.tsv.gz")
    np.savez(out / "medical.npz", x=encode(source / "minilm-l3", texts, asked.tokens), y=y)

    texts, y = read(source / "sst2_train.tsv.gz")
    kept = np.random.default_rng(SEED).permutation(len(texts))[: asked.train]
    train = encode(source / "minilm-l3", [texts[i] for i in kept], asked.tokens)
    texts, y_test = read(source / "sst2_dev.tsv.gz")
    test = encode(source / "minilm-l3", texts, asked.tokens)
    np.savez(out / "sst2.npz", x_train=train, y_train=y[kept], x_test=test, y_test=y_test)


if __name__ == "__main__":
    main()
