#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What comes next, by role: letters of Shakespeare's plays, for the study of natural users.

    DPFED_DATA=DATA lab/studies/users/role_features.py DIR [--windows 64]

reads DATA/text/shakespeare_roles.tsv.gz and writes DIR/features/roles.npz with

    x (n, 84)    the three letters before, one of 28 each: a to z, a space, anything else
    y (n,)       the letter that follows, 0 to 27
    group (n,)   whose words they are: one of 760 roles, each with at most so many windows

Windows are drawn at random from all that a role says, by a fixed seed. Takes some seconds.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import os
from pathlib import Path

import numpy as np

LETTERS = "abcdefghijklmnopqrstuvwxyz "
BEFORE, SEED = 3, 0


def spoken(path: Path) -> dict[str, str]:
    """All that each role says, as one text."""
    said: dict[str, list[str]] = {}
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            said.setdefault(row["user"], []).append(row["text"].lower())
    return {role: " ".join(texts) for role, texts in said.items()}


def windows(text: str, most: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Contexts, one row each, and the letters that follow them."""
    ids = np.array([LETTERS.find(letter) % 28 for letter in text])  # not found: the last of 28
    ends = np.sort(rng.permutation(np.arange(BEFORE, len(ids)))[:most])
    found = np.stack([ids[ends - back] for back in range(1, BEFORE + 1)], axis=1)
    return np.eye(28, dtype=np.float16)[found].reshape(len(ends), -1), ids[ends]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--windows", type=int, default=64, help="of a role; at most")
    asked = parser.parse_args()
    rng = np.random.default_rng(SEED)
    said = spoken(Path(os.environ["DPFED_DATA"]) / "text/shakespeare_roles.tsv.gz")
    parts = [windows(text, asked.windows, rng) for _, text in sorted(said.items())]
    group = np.repeat(np.arange(len(parts)), [len(y) for _, y in parts])
    (asked.out / "features").mkdir(parents=True, exist_ok=True)
    x, y = (np.concatenate(each) for each in zip(*parts, strict=True))
    np.savez_compressed(asked.out / "features/roles.npz", x=x, y=y, group=group)
    print(f"{len(y):,} windows of {len(parts)} roles")


if __name__ == "__main__":
    main()
