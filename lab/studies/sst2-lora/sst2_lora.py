#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""SST-2 at epsilon 8: an adapter on a pretrained sentence encoder, against its frozen features.

    DPFED_DATA=../shared/data lab/studies/sst2-lora/sst2_lora.py lab/studies/sst2-lora/results --work FOLDER --seeds 0,1,2

Three silos of 4,000 training sentences or phrases each, drawn from the 67,349; each record is
protected (zero-out, Poisson draws), noise is each silo's own. Accuracy is on the 872 of the
development part. The settings of head and lora-adam were fixed in advance; those of lora were
written down when the figure of lora-adam on these 872 was known, so it is that much too good.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

TRAIN, SILOS, LENGTH, ROUNDS, RATE = 12_000, 3, 24, 40, 0.02
PRIVACY = {"epsilon": 8.0, "delta": 1e-5, "clip": 1.0, "adjacency": "zero-out", "noise": "keyed"}
LORA = {
    "lora-adam": (8, [{"name": "adam"}, {"name": "scale", "rate": 0.01}]),
    "lora": (2, [{"name": "scale", "rate": 1.0}]),
}
"""Rank and optimizer of the server."""


def texts(path: Path) -> tuple[list[str], np.ndarray]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [row["text"] for row in rows], np.array([int(row["label"]) for row in rows])


def token_file(data: Path, folder: Path, out: Path) -> Path:
    """Records of token numbers, cut to LENGTH; 0 is not attended to."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    arrays: dict[str, Any] = {}
    for part in ("train", "dev"):
        words, y = texts(data / f"sst2_{part}.tsv.gz")
        if part == "train":
            chosen = np.random.default_rng(0).permutation(len(words))[:TRAIN]
            words, y = [words[i] for i in chosen], y[chosen]
        made = tokenizer(words, truncation=True, max_length=LENGTH, padding="max_length")
        name = {"train": "train", "dev": "test"}[part]
        arrays[f"x_{name}"] = np.array(made["input_ids"], dtype=np.float32)
        arrays[f"y_{name}"] = y
    np.savez(out / "tokens.npz", **arrays)
    return out / "tokens.npz"


@torch.no_grad()
def feature_file(tokens: Path, folder: Path, out: Path) -> Path:
    """What the frozen encoder makes of them: the mean over the tokens."""
    from transformers import AutoModel

    encoder = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    arrays = dict(np.load(tokens))
    for name in ("x_train", "x_test"):
        made = []
        for ids in torch.split(torch.from_numpy(arrays[name]).long(), 128):
            mask = (ids != 0).long()
            hidden = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
            seen = mask[:, :, None]
            made.append((hidden * seen).sum(1) / seen.sum(1).clamp(min=1))
        arrays[name] = torch.cat(made).numpy()
    np.savez(out / "features.npz", **arrays)
    return out / "features.npz"


def recipe(kind: str, source: Path, folder: Path) -> dict[str, Any]:
    """The head learns on frozen features in whole batches: it is cheap, and gets more rounds."""
    data = {"source": str(source), "partition": {"name": "iid", "clients": SILOS}}
    common = {"data": data, "name": f"sst2-{kind}"}
    if kind == "head":
        return {
            **common,
            "rounds": 40,
            "model": {"name": "softmax"},
            "privacy": PRIVACY,
            "server": [{"name": "adam"}, {"name": "scale", "rate": 0.05}],
            "client": {"name": "gradient"},
            "evaluation": {"every": 10},
        }
    rank, server = LORA[kind]
    lora = {"r": rank, "lora_alpha": 2 * rank, "target_modules": ["query", "value"]}
    model = {
        "name": "transformers",
        "chunk": 16,
        "options": {"source": str(folder), "task": "pool", "lora": lora},
    }
    privacy = {**PRIVACY, "record_rate": RATE}
    return {
        **common,
        "rounds": ROUNDS,
        "model": model,
        "privacy": privacy,
        "server": server,
        "client": {"name": "gradient"},
        "evaluation": {"every": 10},
    }


def main() -> None:
    from dpfed import run

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--kinds", default="head,lora-adam,lora")
    parser.add_argument("--engine", default="in-process")
    parser.add_argument("--work", type=Path, required=True, help="for tokens and features")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    asked.work.mkdir(parents=True, exist_ok=True)
    data = Path(os.environ["DPFED_DATA"]) / "text"
    folder = (data / "minilm-l3").resolve()
    tokens, features = asked.work / "tokens.npz", asked.work / "features.npz"
    if not tokens.exists():
        token_file(data, folder, asked.work)
    if not features.exists():
        feature_file(tokens, folder, asked.work)
    for seed in map(int, asked.seeds.split(",")):
        for kind in asked.kinds.split(","):
            begin = time.process_time(), time.time()
            found = run(
                recipe(kind, features if kind == "head" else tokens, folder),
                seed=seed,
                engine=asked.engine,
            )
            line = {
                "model": kind,
                "seed": seed,
                "engine": asked.engine,
                "accuracy": found.accuracy,
                "rounds": found.recipe.rounds,
                "parameters": found.params.numel(),
                "rows": found.rows,
                "guarantee": str(found.guarantee),
                "cpu_seconds": time.process_time() - begin[0],
                "seconds": time.time() - begin[1],
            }
            with (asked.out / "runs.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
