# SPDX-License-Identifier: Apache-2.0
"""docs/mistakes.md, line by line: each is refused or said before anything is spent.

A line that is refused has no model. Of the others, the rows of the good records are asked for, and
are no zero: none ends as pure noise.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    SubsetRandomSampler,
    TensorDataset,
)

from dpfed.core.errors import DpfedError
from dpfed.core.types import Unit
from dpfed.flower import Network, dataset_batches, make_plan, tensor_batches
from tests.helpers.pages import DOCS

X, Y = torch.rand(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3
TOKENS = {"input_ids": [1] * 8, "token_type_ids": [0] * 8, "labels": 0}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def fit(module: nn.Module, x: Any = X, y: Any = Y, loss: Any = "cross-entropy") -> Any:
    return Network(module, loss).problem(tensor_batches(x, y))


def plan(**sections: Any) -> Any:
    return make_plan([10] * 6, rounds=3, **{"privacy": {"epsilon": 1.0}, **sections})


class Noisy(Dataset[Any]):
    """Adds another random number each time."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, at: int) -> Any:
        return X[at] + torch.rand(4), int(Y[at])


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(zip(X, Y, strict=True))


class Detached(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).detach()


class Shared(nn.Module):
    """The same layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.layer(torch.tanh(self.layer(x))))
        return out


def with_holes() -> torch.Tensor:
    x = X.clone()
    x[3, 1] = float("nan")
    return x


def unequal() -> Any:
    records = [{"input_ids": [1] * (5 + i % 4), "labels": i % 3} for i in range(20)]
    module = nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), nn.Linear(16, 3))
    collate = _ids
    return Network(module).problem(records, {"input_ids": [1] * 8, "labels": 0}, collate=collate)


def _ids(records: list[Any]) -> Any:
    return torch.tensor([records[0]["input_ids"]]), torch.tensor([records[0]["labels"]])


MISTAKES: dict[str, Callable[[], Any]] = {
    "a DataLoader, with its batches and order": lambda: Network(net()).problem(
        DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True)
    ),
    "a DataLoader whose sampler chooses": lambda: Network(net()).problem(
        DataLoader(TensorDataset(X, Y), sampler=SubsetRandomSampler(range(5)))
    ),
    "a data set without an example": lambda: Network(net()).problem(Noisy()),
    "a data set with random transforms": lambda: Network(net()).problem(
        Noisy(), (torch.zeros(4), 0)
    ),
    "a stream without a number of records": lambda: dataset_batches(Stream(), (torch.zeros(4), 0)),
    "a collate that forgets the batch's axis": lambda: dataset_batches(
        [(X[0], 0)], (torch.zeros(4), 0), collate=lambda records: records[0]
    ),
    "named columns for a module that takes one tensor": lambda: Network(net()).problem(
        [{"img": x, "label": 0} for x in X], {"img": X[0], "label": 0}, target="label"
    ),
    "another name of the label's column": lambda: Network(net()).problem(
        [{"x": x, "label": 0} for x in X], {"x": X[0], "label": 0}
    ),
    "fill without token_type_ids": lambda: dataset_batches([], TOKENS, fill={"input_ids": 0}),
    "texts of unequal length without fill": unequal,
    "inputs and labels of unequal length": lambda: fit(net(), X, Y[:5]),
    "words as labels": lambda: fit(net(), X, ["ill"] * 20),
    "a loss that is reduced": lambda: Network(net(), nn.CrossEntropyLoss()),
    "a loss with one value per output": lambda: fit(
        nn.Linear(4, 1), X, (Y % 2).float()[:, None], nn.BCEWithLogitsLoss(reduction="none")
    ),
    "targets of another shape than scores": lambda: fit(
        nn.Linear(4, 1), X, Y.float(), nn.MSELoss(reduction="none")
    ),
    "a loss's class": lambda: Network(net(), nn.CrossEntropyLoss),  # type: ignore[arg-type]
    "a loss that ignores the labels": lambda: fit(net(), loss=lambda s, y: s.square().sum(dim=1)),
    "labels as decimal numbers": lambda: fit(net(), X, Y.float()),
    "labels one-hot": lambda: fit(net(), X, functional.one_hot(Y)),
    "labels from 1 instead of 0": lambda: fit(net(), X, Y + 1),
    "one score for two classes": lambda: fit(nn.Linear(4, 1), X, Y % 2),
    "a softmax at the end": lambda: fit(nn.Sequential(net(), nn.Softmax(dim=1))),
    "BatchNorm": lambda: Network(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))),
    "a layer that is used twice": lambda: fit(Shared()),
    "a module's class": lambda: Network(nn.Linear),  # type: ignore[arg-type]
    "nothing to train": lambda: Network(net().requires_grad_(requires_grad=False)),
    "detach() or no_grad() in the module": lambda: fit(Detached(4, 3)),
    "dropout in eval()": lambda: fit(nn.Sequential(nn.Dropout(0.5), net()).eval()),
    "a module that returns a pair": lambda: fit(nn.LSTM(4, 3, batch_first=True), X[:, None]),
    "a wrong input shape": lambda: fit(net(), torch.rand(20, 5)),
    "images as bytes": lambda: fit(net(), (X * 255).byte()),
    "inputs that are not scaled": lambda: fit(net(), X * 5000),
    "missing values": lambda: fit(net(), with_holes()),
    "cuda where there is none": lambda: Network(net(), device="cuda").problem((X, Y)),
    "an optimizer of torch": lambda: plan(server=torch.optim.Adam(net().parameters(), lr=0.1)),
    "a rate of 0": lambda: plan(server=[{"name": "scale", "rate": 0}]),
    "a batch size": lambda: plan(privacy={"epsilon": 1.0, "batch_size": 32}),
}
LINE = re.compile(r"^\| (.+?) \| (refused|warns|says) \| (.+) \|$", re.MULTILINE)
PAGE = {
    name: (what, said)
    for name, what, said in LINE.findall(DOCS.joinpath("mistakes.md").read_text())
}


def said_by(mistake: Callable[[], Any], log: pytest.LogCaptureFixture) -> tuple[str, str, Any]:
    """What came of a mistake, the sentence, and the problem if there is one."""
    with log.at_level(logging.INFO, logger="dpfed"):
        try:
            made = mistake()
            made.rows(made.model.initial(0), Unit.RECORD)
        except DpfedError as error:
            return "refused", str(error), None
    lines = [each for each in log.records if each.levelno >= logging.WARNING] or log.records
    level = "warns" if lines[0].levelno >= logging.WARNING else "says"
    return level, lines[0].getMessage(), made


def test_the_page_has_all_of_them() -> None:
    assert list(PAGE) == list(MISTAKES)
    assert len(PAGE) >= 25


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_as_the_page_says_and_never_by_noise(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("dpfed").propagate = True
    found, sentence, problem = said_by(MISTAKES[name], caplog)
    what, said = PAGE[name]
    pattern = ".*".join(map(re.escape, said.strip("`").split("...")))
    assert re.fullmatch(pattern, sentence, re.DOTALL), sentence
    assert found == what
    assert "\n" not in sentence
    if problem is not None:
        rows = problem.rows(problem.model.initial(0), Unit.RECORD)
        length = float(rows.clipped_sum(1.0).vector.norm())
        assert length > 0.05, "noise is all that would be trained on"
