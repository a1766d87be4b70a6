# SPDX-License-Identifier: Apache-2.0
"""Stacked problems: each client's rows to the last bit, and what a stack refuses."""

from __future__ import annotations

import pytest
import torch

from dpfed.core.stacked import StackedRows
from dpfed.core.types import Unit
from dpfed.data.datasets import Records
from dpfed.data.models import LARGE_CLIENT, Linear, LinearProblem, LinearStack


def problems(model: Linear, clients: int, records: int) -> list[LinearProblem]:
    made = torch.Generator().manual_seed(records)
    labels = max(2, model.outputs) + 1  # one of them is unknown to softmax
    return [
        model.problem(
            Records(
                torch.randn(records, model.features, generator=made),
                torch.randint(labels, (records,), generator=made),
            )
        )
        for _ in range(clients)
    ]


@pytest.mark.parametrize("unit", [Unit.RECORD, Unit.CLIENT])
@pytest.mark.parametrize("records", [1, 5, 64, 192, 193, 400, 2600])  # the last: large
@pytest.mark.parametrize("large", [1.0, 1e8])
def test_rows_of_a_stack_are_each_clients_own(unit: Unit, records: int, large: float) -> None:
    """Also where weights cancel, so that scores are nothing but rounding."""
    for model in (Linear("softmax", 12, 5), Linear("logistic", 30, bias=False)):
        clients = problems(model, 5, records)
        params = torch.arange(clients[0].dimension).float().sin() * large
        stack = clients[0].stack(clients)
        assert stack is not None
        found = stack.rows(params, unit)
        assert isinstance(found, StackedRows)
        sums = found.clipped_sums(0.7)
        wanted = [client.rows(params, unit).clipped_sum(0.7).vector for client in clients]
        assert torch.equal(sums.matrix[sums.usable], torch.stack(wanted)[sums.usable])


def test_large_clients_are_not_copied_and_larger_ones_not_stacked() -> None:
    model = Linear("logistic", 64)
    small, large, larger = (problems(model, 2, LARGE_CLIENT // 65 * k) for k in (1, 2, 20))
    assert isinstance(LinearStack(small)._features, torch.Tensor)
    for kept, problem in zip(LinearStack(large)._features, large, strict=True):
        assert kept.data_ptr() == problem.x.data_ptr()
    assert larger[0].stack(larger) is None
    assert larger[0].rows(torch.zeros(65), Unit.RECORD).clipped_sum(1.0).vector.shape == (65,)


def test_only_alike_problems_have_one_key() -> None:
    model = Linear("softmax", 4, 3)
    (one, two), (other,) = problems(model, 2, 5), problems(model, 1, 6)
    assert one.stack_key == two.stack_key
    assert one.stack_key != other.stack_key
    assert one.stack_key != one.doubled().stack_key
    assert one.stack_key != problems(Linear("softmax", 4, 3, bias=False), 1, 5)[0].stack_key


def test_a_stack_refuses_what_is_each_clients_own() -> None:
    stack = LinearStack(problems(Linear("softmax", 4, 3), 2, 5))
    assert stack.dimension == 15
    params = torch.zeros(15)
    with pytest.raises(TypeError, match="groups are not stacked"):
        stack.rows(params, Unit.GROUP)
    with pytest.raises(TypeError, match="no common gradient"):
        stack.gradient(params)
    with pytest.raises(TypeError, match="no metrics"):
        stack.metric_rows(params, Unit.RECORD, 1.0)
