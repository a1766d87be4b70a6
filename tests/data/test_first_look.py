# SPDX-License-Identifier: Apache-2.0
"""What is said of the first records: in the local log alone, and whatever they are."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn

from dpfed.data.batches import Batches, dataset_batches, tensor_batches
from dpfed.data.first_look import LOOKED_AT, look
from dpfed.flower import Network

X, Y = torch.rand(30, 4), torch.arange(30) % 3


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Any:
    logging.getLogger("dpfed").propagate = True

    def findings(batches: Batches, **how: Any) -> list[str]:
        caplog.clear()
        look(batches, **how)
        return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]

    return findings


def test_nothing_is_said_of_records_that_are_fine(said: Any) -> None:
    assert said(tensor_batches(X, Y), classes=3) == []
    ids = torch.arange(120).view(30, 4).float() * 100
    assert said(tensor_batches(ids, Y), classes=3, numbers=False) == []


def test_labels_in_memory_are_all_looked_at(said: Any) -> None:
    late = Y.clone()
    late[29] = 9
    (found,) = said(tensor_batches(X, late), classes=3)
    assert "1 of 30 records have a label that the model does not know, and are" in found
    assert said(tensor_batches(X, late).take(torch.arange(20)), classes=3) == []


def test_of_many_clients_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("dpfed").propagate = True
    model = Network(nn.Linear(4, 3))
    for client in range(3):
        model.problem((X * (1000 + client), Y))
    assert len([each for each in caplog.records if "drown" in each.getMessage()]) == 1


def test_of_a_data_set_the_first_records_are_read_and_no_more(said: Any) -> None:
    read = []

    class Listed:
        def __len__(self) -> int:
            return 30

        def __getitem__(self, at: int) -> Any:
            read.append(at)
            return X[at], int(Y[at])

    assert said(dataset_batches(Listed(), (torch.zeros(4), 0)), classes=3) == []
    assert read == [*range(LOOKED_AT), 0]


def test_if_no_record_can_be_read_it_says_that_noise_is_all(said: Any) -> None:
    found = said(dataset_batches(["nothing"] * 30, (torch.zeros(4), 0)))
    assert "8 of 8 records cannot be read, the first by ValueError" in found[0]
    assert "trained on noise alone" in found[1]


@pytest.mark.parametrize("records", [[], ["nothing"], [(torch.full((4,), torch.nan), 0)]])
def test_a_look_refuses_nothing(records: list[Any]) -> None:
    """A refusal would tell the server what a record is: the problem is made of any records."""
    batches = dataset_batches(records, (torch.zeros(4), 0))
    assert Network(nn.Linear(4, 3)).problem(batches).dimension == 15

    def fails(index: torch.Tensor) -> Any:
        raise RuntimeError("a disk")

    broken = Batches(fails, 30, batches.stand_in)
    assert Network(nn.Linear(4, 3)).problem(broken).dimension == 15
