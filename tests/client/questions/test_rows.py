# SPDX-License-Identifier: Apache-2.0
"""Cells of values, to the last bit; what is missing counts nowhere."""

from __future__ import annotations

import math

import pytest
import torch

from dpfed.client.questions.cells import cell_of, halved_sum, summed_bounds, upper_cell
from dpfed.client.questions.columns import Column, read_column
from dpfed.client.questions.query import read_questions
from dpfed.client.questions.rows import joint_rows

AGE = Column(at=0, low=18.0, high=90.0)
INCOME = Column(at=0, low=1e3, high=1e6, log=True)


@pytest.mark.parametrize("column", [AGE, INCOME])
def test_a_value_that_is_an_edge_is_in_the_cell_that_begins_there(column: Column) -> None:
    edges = column.grid(64)
    x = torch.tensor([[column.feature(edge)] for edge in edges])
    values = read_column(x, torch.zeros(len(x)), column)
    assert cell_of(values, column, edges).tolist() == [*range(64), 63]
    assert upper_cell(values, column, edges).tolist() == [0, *range(64)]


def test_a_value_outside_of_a_histogram_s_edges_is_in_no_bin() -> None:
    x = torch.tensor([[AGE.feature(each)] for each in (20, 40, 60, 80)])
    values = read_column(x, torch.zeros(4), AGE)
    assert cell_of(values, AGE, [30, 50, 70]).tolist() == [-1, 0, 1, -1]


def test_what_is_no_value_is_missing() -> None:
    nothing = torch.zeros(4)
    x = torch.tensor([[math.nan, 0, 0], [math.inf, 1, 1], [5.0, 1, 0], [-5.0, 0, 1]])
    assert read_column(x, nothing, AGE).nan_to_num(9).tolist() == [9, 9, 1, -1]
    flag = read_column(x, nothing, Column(at=1, words=("no", "yes"), flag=True))
    assert flag.nan_to_num(9).tolist() == [9, 1, 1, 9]
    word = read_column(x, nothing, Column(at=1, words=("a", "b")))
    assert word.nan_to_num(9).tolist() == [9, 9, 0, 1]
    label = torch.tensor([-1, 0, 1, 2])
    assert read_column(x, label, Column(at=-1, words=("a", "b"))).nan_to_num(9).tolist() == [
        9,
        0,
        1,
        9,
    ]


def test_the_root_of_the_cumulative_sum_is_one() -> None:
    C = halved_sum(30)
    assert torch.allclose(C @ C, torch.tril(torch.ones(30, 30, dtype=torch.float64)))
    longest, apart = summed_bounds(30)
    assert longest == pytest.approx(float(C[:, 0].norm()))
    assert longest <= apart <= math.sqrt(2) * longest
    assert longest**2 <= 1.1 + math.log(30) / math.pi


def test_a_record_s_row_does_not_depend_on_others() -> None:
    questions = read_questions(
        [
            {"name": "m", "kind": "mean", "column": "age"},
            {"name": "q", "kind": "quantiles", "column": "age"},
        ],
        {"age": AGE},
    )
    x, y = torch.rand(50, 1) * 2 - 1, torch.zeros(50)
    together = joint_rows(questions, {"age": AGE}, x, y)
    alone = torch.cat([joint_rows(questions, {"age": AGE}, x[k : k + 1], y[:1]) for k in range(50)])
    assert torch.equal(together, alone)
