# SPDX-License-Identifier: Apache-2.0
"""One owner's records, with what their owner should look at before a training.

What the screen finds never leaves the machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpfed.core.log import log
from dpfed.data.datasets import Dataset, Records
from dpfed.data.readers import Public
from dpfed.data.screen import Screen, screen
from dpfed.recipes.records import decided_missing, load_features, split_and_clean
from dpfed.recipes.schema import Recipe, parse


def screened_dataset(
    whole: Recipe, root: Path | None, public: Public | None = None
) -> tuple[Dataset, Screen]:
    """The data set as ``load_dataset`` makes it, and what to look at in its records.

    Args:
        whole: the recipe.
        root: where a relative source is looked up, after the working directory.
        public: what a gate's policy says of the labels; None sees it from the records.
    """
    dataset = load_features(whole.data, root, public)
    found = screen(dataset, decided_missing(whole.data))
    return split_and_clean(whole, dataset), found


def read_records(**data: Any) -> Records:
    r"""One silo's own records, by the keys of a recipe's table ``data``: for an app of one's own.

    A relative source is looked for in the folders that $DPFED_DATA names on this host. What to look
    at in the records is logged here, and sent to nobody.

    Args:
        **data: source, options, schema, missing, shift, scale, and so on.

    Returns:
        features and labels, with whose they are if the table says so.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "ward.csv"
    ...     _ = path.write_text("age,ill\n61,0\n45,1\n")
    ...     len(read_records(source=str(path), options={"y": "ill"}, missing="drop"))
    2
    """
    dataset, found = screened_dataset(parse({"data": data}), None)
    for sentence in found.findings():
        log.warning("data: %s", sentence)
    return dataset.train
