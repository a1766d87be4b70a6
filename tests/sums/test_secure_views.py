# SPDX-License-Identifier: Apache-2.0
"""A malicious server tells each client another lie, and still opens no small sum.

The algebra behind ``Secure.min_honest``: an honest client v sees others in or out, at least
``least`` in with itself. Its own seed is known if least - 1 shares are: from the honest who see v
in, and from colluders. A pair's seed is known if either sees the other out. What can be opened
are the connected components, under unknown pair seeds, all of whose own seeds are known.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

import numpy as np
import pytest

from dpfed.core.errors import UnsoundPlan, Untrusted
from dpfed.sums.secagg import keys, masks, messages, shamir
from dpfed.sums.secure import secure
from tests.sums.table import Table

View = tuple[frozenset[int], frozenset[int]]
"""Whom a client is told to be in, and out; others are not in its cohort."""

MALICIOUS = "malicious"


def bound(n: int, least: int, colluders: int) -> int:
    return 2 * least - n - colluders


# --------------------------------------------------------------------- every view of every client


def views(client: int, n: int, least: int) -> list[View]:
    """All that a client does not refuse: also cohorts that leave someone out from the start."""
    others = [i for i in range(n) if i != client]
    found = []
    for states in product("ioa", repeat=n - 1):  # in, out, absent
        seen = {
            s: frozenset(i for i, t in zip(others, states, strict=True) if t == s) for s in "io"
        }
        if len(seen["i"]) + 1 >= least:
            found.append((seen["i"], seen["o"]))
    return found


def openable(told: tuple[View, ...], n: int, least: int) -> Iterator[set[int]]:
    """The sets of honest clients whose sum the adversary learns; colluders come last."""
    honest = range(len(told))
    cohort = [seen | out for seen, out in told]
    hands = [all(i in cohort[v] for v in told[i][0] if v in honest) for i in honest]
    shares = [
        sum(hands[i] and v in told[i][0] for i in honest if i != v) + len(cohort[v] - set(honest))
        for v in honest
    ]
    hidden = {
        (v, i)
        for v in honest
        for i in honest
        if i in cohort[v] and i not in told[v][1] and v not in told[i][1]
    }
    spoilt = {v for v, i in hidden if (i, v) not in hidden}  # nobody has the other half
    left = set(honest)
    while left:
        found = component(left.pop(), hidden)
        left -= found
        if not found & spoilt and all(shares[v] >= least - 1 for v in found):
            yield found


def component(start: int, edges: set[tuple[int, int]]) -> set[int]:
    found, new = {start}, {start}
    while new:
        new = {i for v, i in edges if v in new} - found
        found |= new
    return found


@pytest.mark.slow
@pytest.mark.parametrize("colluders", [0, 1])
def test_of_five_clients_no_lies_open_fewer_than_the_formula_says(colluders: int) -> None:
    n, least = 5, 4
    choices = [views(client, n, least) for client in range(n - colluders)]
    sizes = {len(found) for told in product(*choices) for found in openable(told, n, least)}
    assert min(sizes) >= bound(n, least, colluders)
    assert max(sizes) == n - colluders  # the honest server's total is among them


def test_the_model_finds_small_sums_where_the_formula_guarantees_none() -> None:
    """Two halves of a cohort with ``least`` a half: each is opened by itself."""
    halves = [{0, 1}, {2, 3}]
    told = tuple(
        next((frozenset(h - {i}), frozenset(range(4)) - h) for h in halves if i in h)
        for i in range(4)
    )
    assert sorted(map(sorted, openable(told, 4, 2))) == [[0, 1], [2, 3]]
    assert bound(4, 2, 0) == 0


# ------------------------------------------------------------- all in or out, as one array of lies


def some_lies_open(size: int, n: int, least: int, colluders: int) -> bool:
    """Whether any views open the sum of the first ``size`` honest clients, and of no others.

    Absent is no better for the server than out (the seed is revealed, and shares are sealed), so
    views are subsets of others that are out. One axis of the arrays is one client's view.
    """
    honest = range(n - colluders)
    target, rest = honest[:size], honest[size:]
    outs = {
        i: [
            set(o) for k in range(n - least + 1) for o in combinations(sorted({*range(n)} - {i}), k)
        ]
        for i in honest
    }

    def sees_out(i: int, v: int) -> np.ndarray:
        shape = [len(outs[j]) if j == i else 1 for j in honest]
        return np.array([v in out for out in outs[i]]).reshape(shape)

    possible = np.ones([len(outs[i]) for i in honest], bool)
    for v in target:
        for i in rest:
            possible &= sees_out(v, i) | sees_out(i, v)
        shares = np.full(possible.shape, colluders, np.int8)
        for i in honest:
            if i != v:
                shares += ~sees_out(i, v)
        possible &= shares >= least - 1
    return bool(possible.any())


@pytest.mark.parametrize(
    ("n", "least", "colluders"),
    [(5, 4, 0), (5, 4, 1), (6, 4, 0), (6, 5, 0), (6, 5, 1), (6, 5, 2), (7, 6, 0), (7, 6, 2)],
)
def test_no_lies_to_all_clients_open_fewer_than_the_formula_says(
    n: int, least: int, colluders: int
) -> None:
    fewest = bound(n, least, colluders)
    assert not any(some_lies_open(size, n, least, colluders) for size in range(1, fewest))
    assert some_lies_open(n - colluders, n, least, colluders)


# ------------------------------------------------------------------ the same, for one set at a time


def best_lies(size: int, n: int, least: int, colluders: int) -> tuple[set[int], ...] | None:
    """For each one outside of the target, whom of the target it is told to be out: or None."""
    rest, gone = n - colluders - size, n - least
    choices = [set(o) for k in range(gone + 1) for o in combinations(range(size), k)]
    for lies in product(choices, repeat=rest):
        out_for = [sum(v in lie for lie in lies) for v in range(size)]
        sees_out = [rest - found for found in out_for]  # the target's own lists do the others
        shares = [size - 1 + rest - found + colluders for found in out_for]
        if max(sees_out) <= gone and min(shares) >= least - 1:
            return lies
    return None


def smallest(n: int, least: int, colluders: int) -> int:
    return next(t for t in range(1, n + 1) if best_lies(t, n, least, colluders) is not None)


@pytest.mark.parametrize("n", [5, 6, 7])
def test_the_formula_holds_for_all_thresholds_and_colluders(n: int) -> None:
    for least in range(n // 2 + 1, n + 1):
        for colluders in range(least - 1):
            fewest = bound(n, least, colluders)
            if fewest >= 2:
                assert smallest(n, least, colluders) >= fewest


def test_the_two_models_agree() -> None:
    for n, least, colluders in [(5, 4, 0), (5, 4, 1), (6, 5, 0), (6, 5, 1)]:
        sizes = range(1, n - colluders + 1)
        assert [some_lies_open(t, n, least, colluders) for t in sizes] == [
            best_lies(t, n, least, colluders) is not None for t in sizes
        ]


def test_the_formula_is_not_too_modest_by_much() -> None:
    assert smallest(7, 5, 0) == bound(7, 5, 0) == 3


# ------------------------------------------------------------------------- against the real clients


def test_lies_to_seven_real_clients_open_the_sum_of_three_as_the_formula_says() -> None:
    """The formula's worst case, run for real: 'malicious' guarantees 3, and 3 it is."""
    lies = {0: [3, 4], 1: [5, 6], 2: [3, 5], 3: [1], 4: [1, 2], 5: [0], 6: [0, 2]}
    sum = secure(survivors=5 / 7, against=MALICIOUS)
    assert sum.min_honest(7, 0) == 3
    table, made = Table(sum, 7), {i: np.array([10**i, 1, i]) for i in range(7)}
    table.run_round(made, silent={"repair": range(7), "unmask": range(7)})
    heads = {i: messages.unpack_masked(table.sent["input", i]) for i in range(7)}
    seeds, shares = {}, {}
    for i, lie in lies.items():
        reply = table.ask(
            i, "repair", messages.pack_message(messages.Dropped(lie)), None, table.context(i)
        )
        seeds |= {(i, j): seed for j, seed in messages.unpack(reply, messages.Seeds).seeds.items()}
        alive = [j for j in range(7) if j not in lie]
        sealed = {j: heads[j][0].sealed[i] for j in alive if j != i}
        marks = {j: heads[j][0].shares[i] for j in alive if j != i}
        request = messages.pack_message(messages.Alive(alive, sealed, marks))
        reply = table.ask(i, "unmask", request, None, table.context(i))
        for j, share in messages.unpack(reply, messages.Shares).shares.items():
            shares.setdefault(j, {})[i] = share
    total = np.zeros(3, np.uint64)
    for v in (0, 1, 2):
        total += np.frombuffer(heads[v][1], np.uint64)
        assert len(shares[v]) == 4
        masks.apply(total, [], [shamir.join(shares[v])])
        for i in (3, 4, 5, 6):
            known = seeds.get((v, i)) or seeds[i, v]
            masks.apply(total, *(([], [known]) if v < i else ([known], [])))
    assert total.view(np.int64).tolist() == (made[0] + made[1] + made[2]).tolist()


def test_two_views_without_a_common_client_are_refused_by_whoever_is_in_the_smaller() -> None:
    sum = secure(survivors=0.7, against=MALICIOUS)
    n, least = 6, sum.least(6)
    assert sum.min_honest(n, 0) == 4
    table = Table(sum, n)
    table.run_round({i: np.zeros(2, np.int64) for i in range(n)}, silent={"input": range(n)})
    for size in range(1, n):
        for group in (range(size), range(size, n)):
            request = messages.pack_message(messages.Cohort(list(group), table.directory.keys))
            if len(group) < least:
                with pytest.raises(
                    Untrusted, match=f"of at least {least} clients, got {len(group)};"
                ):
                    table.ask(group[0], "input", request, [0, 0], table.context(group[0]))


@pytest.mark.parametrize("n", range(2, 13))
def test_what_is_legal_against_a_malicious_server_has_two_honest_in_any_two_views(n: int) -> None:
    for least in range(2, n + 1):
        sum = secure(survivors=least / n, against=MALICIOUS)
        assert sum.least(n) == least
        for colluders in range(n):
            common = least - (n - least)  # two views of ``least`` share at least so many
            if common - colluders >= 2:
                assert sum.min_honest(n, colluders) == common - colluders
                assert sum.failure(n, colluders) == 0
            else:
                with pytest.raises(
                    UnsoundPlan, match=r"honest terms must|open a mask by themselves"
                ):
                    sum.min_honest(n, colluders)


@pytest.mark.parametrize(("n", "colluders", "honest"), [(10, 0, 8), (10, 3, 5), (10, 6, 2)])
def test_a_curious_server_opens_least_less_the_colluders(
    n: int, colluders: int, honest: int
) -> None:
    assert secure(survivors=0.8).min_honest(n, colluders) == honest


def test_against_a_malicious_server_all_are_neighbours_however_many() -> None:
    """A server that lies about dropouts would cut a client off from its few neighbours."""
    assert secure(against=MALICIOUS).failure(200, 3) == 0.0 < secure().failure(200, 3)


def test_so_many_colluders_that_one_would_be_alone_are_refused() -> None:
    with pytest.raises(UnsoundPlan, match=r"at least 9, or 7 colluders .*, got 8;"):
        secure(survivors=0.8).min_honest(10, 7)


def test_a_seed_that_was_revealed_is_of_no_use_in_the_next_attempt() -> None:
    table, zeros = Table(secure(survivors=0.6), 4), {i: np.zeros(4, np.int64) for i in range(4)}

    def commitment(client: int) -> bytes:
        return messages.unpack_masked(table.sent["input", client])[0].pairs[3]

    table.run_round(zeros, silent={"input": [3]})
    for client in range(3):
        table.run_round(zeros, attempt=2 * client + 1, silent={"input": [3]})
        seed = messages.unpack(table.sent["repair", client], messages.Seeds).seeds[3]
        assert keys.digest(seed) == commitment(client)
        table.run_round(zeros, attempt=2 * client + 2)
        assert keys.digest(seed) != commitment(client)
