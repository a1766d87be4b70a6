# SPDX-License-Identifier: Apache-2.0
"""The worst participation in a tree, against a search over all patterns and signs."""

from __future__ import annotations

import numpy as np
import pytest

from dpfed.core.errors import Unpriceable
from dpfed.mechanisms._dyadic import worst_squared
from dpfed.mechanisms.tree import tree
from tests.mechanisms.patterns import node_matrix, patterns, worst


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7, 8, 11, 12])
@pytest.mark.parametrize("b", [1, 2, 3, 5])
def test_it_is_what_a_search_over_patterns_and_signs_finds(n: int, b: int) -> None:
    for k in (1, 2, 3, 4):
        assert worst_squared(n, b, k) == worst(node_matrix(n), b, k)


@pytest.mark.parametrize(("n", "b", "k"), [(20, 3, 7), (25, 6, 4), (32, 7, 5), (37, 9, 5)])
def test_longer_trees_by_patterns_alone(n: int, b: int, k: int) -> None:
    """Entries are nowhere negative, so signs can only lower it."""
    X = node_matrix(n).T @ node_matrix(n)
    most = max(float(X[np.ix_(p, p)].sum()) for p in patterns(n, b, k))
    assert worst_squared(n, b, k) == most


def test_in_every_step_it_is_the_known_sum() -> None:
    for n in (1, 2, 7, 64, 70, 255):
        assert worst_squared(n, 1, n) == tree(horizon=300).squared_sensitivity(n)


def test_once_it_is_the_number_of_nodes_over_a_step() -> None:
    for n in (1, 2, 3, 4, 7, 8, 9, 1000):
        assert worst_squared(n, 5, 1) == n.bit_length()


def test_it_never_falls() -> None:
    found = [worst_squared(n, 4, 3) for n in range(80)]
    assert found == sorted(found)
    assert found[0] == 0


def test_what_would_take_too_long_is_refused() -> None:
    with pytest.raises(Unpriceable, match="mechanism 'banded'"):
        worst_squared(100_000, 1000, 50)
