# SPDX-License-Identifier: Apache-2.0
"""A ledger around somebody else's mechanism: on the disk before it runs, whatever it then does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)

from dpfed.accounting.ledger.balance import Budget
from dpfed.accounting.ledger.conversions import LedgerKey
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.core.errors import BudgetSpent, RecipeError, Unpriceable, UnsoundPlan
from dpfed.core.types import Adjacency
from dpfed.parts import charged


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


def declare(path: Path, epsilon: float, adjacency: str = "replace-one") -> None:
    ledger = Ledger(path)
    ledger.declare(LedgerKey("ward", adjacency=Adjacency(adjacency)), Budget(epsilon, 1e-5))
    ledger.close()


def spent(path: Path, adjacency: str = "replace-one") -> float:
    ledger = Ledger(path)
    neighbours = Adjacency(adjacency)
    cost = ledger.spent(LedgerKey("ward", adjacency=neighbours))
    assert ledger.verify() == []
    ledger.close()
    return cost.epsilon(1e-5, neighbours)


def use(path: Path, event: DpEvent, name: str, **changes: Any) -> float:
    with charged(event, dataset="ward", name=name, ledger=path, **changes) as epsilon:
        return epsilon


# mu = 2 / 20 * sqrt(100) = 1 under replace-one: epsilon 4.3772 at 1e-5 (Dong et al. 2022)
HUNDRED = SelfComposedDpEvent(GaussianDpEvent(20.0), 100)


@pytest.mark.parametrize(
    "event",
    [
        HUNDRED,
        GaussianDpEvent(2.0),
        ComposedDpEvent([SelfComposedDpEvent(GaussianDpEvent(20.0), 99), GaussianDpEvent(20.0)]),
    ],
)
def test_gaussian_events_cost_what_the_closed_form_says(event: DpEvent, path: Path) -> None:
    assert use(path, event, "one") == pytest.approx(4.3772, rel=1e-4)
    assert spent(path) == pytest.approx(4.3772, rel=1e-4)


def test_they_add_up_by_the_square_of_mu(path: Path) -> None:
    for name in ("first", "second", "third", "fourth"):
        use(path, GaussianDpEvent(4.0), name)  # mu = 1/2 each
    assert spent(path) == pytest.approx(4.3772, rel=1e-4)


def test_another_adjacency_counts_by_its_own_factor(path: Path) -> None:
    """A zero-out cost is doubled in a replace-one budget: mu 1/2 is 1 there."""
    declare(path, 5.0)
    use(path, GaussianDpEvent(2.0), "half", adjacency="zero-out")
    assert spent(path) == pytest.approx(4.3772, rel=1e-4)
    with pytest.raises(BudgetSpent):
        use(path, GaussianDpEvent(2.0), "more", adjacency="zero-out")


def test_a_replaced_record_says_nothing_of_a_removed_one(path: Path) -> None:
    """The author may have accounted for a distance that is shorter than a row."""
    declare(path, 50.0, "zero-out")
    with pytest.raises(UnsoundPlan, match="bounds no releases for"):
        use(path, GaussianDpEvent(2.0), "half")
    assert spent(path, "zero-out") == 0


def test_laplace_and_draws_are_reserved_as_a_whole(path: Path) -> None:
    declare(path, 1.0, "add-remove")
    assert use(path, LaplaceDpEvent(2.0), "mean", adjacency="add-remove") == pytest.approx(
        0.5, rel=1e-3
    )
    drawn = SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(4.0)), 100)
    use(path, drawn, "sgd", adjacency="add-remove")
    assert 0.5 < spent(path, "add-remove") <= 1.0
    with pytest.raises(BudgetSpent, match="raise it"):
        use(path, LaplaceDpEvent(1.0), "median", adjacency="add-remove")


def test_the_cost_stays_if_the_block_fails_and_a_name_is_used_once(path: Path) -> None:
    seen: list[float] = []

    def theirs() -> None:
        with charged(HUNDRED, dataset="ward", name="x", ledger=path):
            seen.append(spent(path))  # on the disk before anything happens
            raise KeyError

    with pytest.raises(KeyError):
        theirs()
    assert seen == [pytest.approx(4.3772, rel=1e-4)]
    assert spent(path) == pytest.approx(4.3772, rel=1e-4)
    ran = False
    with pytest.raises(UnsoundPlan), charged(HUNDRED, dataset="ward", name="x", ledger=path):
        ran = True
    with pytest.raises(UnsoundPlan):
        use(path, GaussianDpEvent(9.0), "x")
    assert not ran


@pytest.mark.parametrize(
    ("event", "changes", "error"),
    [
        (NonPrivateDpEvent(), {}, Unpriceable),
        (GaussianDpEvent(0.0), {}, Unpriceable),
        (PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0)), {}, Unpriceable),  # replace-one
        (HUNDRED, {"dataset": "a/b"}, RecipeError),
        (HUNDRED, {"dataset": ""}, RecipeError),
        (HUNDRED, {"name": ""}, RecipeError),
        (HUNDRED, {"adjacency": "remove"}, ValueError),
    ],
)
def test_what_has_no_price_or_no_name_does_not_run(
    event: DpEvent, changes: dict[str, Any], error: type[Exception], path: Path
) -> None:
    asked = {"dataset": "ward", "name": "x", "ledger": path, **changes}
    with pytest.raises(error), charged(event, **asked):
        pytest.fail("it ran")
    assert not path.exists() or spent(path) == 0
