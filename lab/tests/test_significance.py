# SPDX-License-Identifier: Apache-2.0
"""Differences between methods: intervals and tests by hand or by scipy."""

from __future__ import annotations

import pytest
from lab.tests.made_up import ODD, ROWS, STUDY, packed, texts
from scipy import stats

from dpfed.core.errors import RecipeError
from dpfed_lab import significance
from dpfed_lab.significance import McNemar, mcnemar_table, paired_table
from dpfed_lab.table import Number

# ------------------------------------------------------------------------------------- over seeds


def test_paired_differences_are_a_paired_t_interval() -> None:
    table = paired_table(STUDY, ROWS)
    assert table.columns == (
        "epsilon",
        "method",
        "seeds",
        "difference (points)",
        "low",
        "high",
        "excludes 0",
        "p (Holm)",
    )
    first = table.rows[0]
    expected = stats.ttest_rel([53, 56, 57], [50, 52, 54]).confidence_interval(0.95)
    assert [v.mean for v in first[4:6] if isinstance(v, Number)] == pytest.approx(
        [expected.low, expected.high]
    )
    p = stats.ttest_rel([53, 56, 57], [50, 52, 54]).pvalue  # the second of four
    # by hand: differences 3, 4, 3; t(2) = 4.3027
    assert texts(table)[0] == [
        "0.5",
        "DP-FedSOFIM",
        "3",
        "3.33 ± 0.58",
        "1.90",
        "4.77",
        "yes",
        f"{3 * p:.2g}",
    ]
    assert texts(table)[1] == ["0.5", ODD, "3", "1.00 ± 2.00", "-3.97", "5.97", "no", "0.96"]
    assert len(table.rows) == 4


def test_pairs_are_the_seeds_that_both_have() -> None:
    rows = [
        r for r in ROWS if (r["method"], r["seed"]) not in {("DP-FedGD", 0), ("DP-FedSOFIM", 1)}
    ]
    assert texts(paired_table(STUDY, rows))[0][2:4] == ["1", "3.00"]
    assert paired_table(STUDY, rows, baseline="nobody").rows == ()


# ----------------------------------------------------------------------------------- McNemar's test


def test_mcnemar_by_hand() -> None:
    """Against GD: b = 4, c = 0 per seed. Against the odd one: b = 4, c = 2."""
    table = mcnemar_table(STUDY, ROWS)
    chi2 = (12 - 1) ** 2 / 12
    assert texts(table)[0][:6] == ["0.5", "DP-FedGD", "3", "12", "0", f"{chi2:.2f}"]
    assert table.rows[0][6] == f"{stats.chi2.sf(chi2, 1):.2g}" == "0.0015"
    odd = (6 - 1) ** 2 / 18
    assert texts(table)[1][2:6] == ["3", "12", "6", f"{odd:.2f}"]
    assert table.rows[1][6] == table.rows[1][7] == "0.24"
    assert table.rows[0][7] == "0.003"
    assert len(table.rows) == 4


def test_mcnemar_where_two_never_differ_or_differ_evenly() -> None:
    assert (McNemar(1, 0, 0).chi2, McNemar(1, 0, 0).p) == (0.0, 1.0)
    assert (McNemar(1, 5, 5).chi2, McNemar(1, 5, 5).p) == (0.0, 1.0)
    assert McNemar(1, 1, 0).chi2 == 0.0
    assert McNemar(1, 9, 1).chi2 == 4.9


def test_mcnemar_needs_stored_bits_of_the_same_records() -> None:
    rows = [r if r["seed"] == 0 else {k: v for k, v in r.items() if k != "correct"} for r in ROWS]
    assert texts(mcnemar_table(STUDY, rows))[0][2:5] == ["1", "4", "0"]
    rows = [{**r, "tested": 15} if r["method"] == "DP-FedGD" else r for r in ROWS]
    assert [r[1] for r in mcnemar_table(STUDY, rows).rows] == [ODD, ODD]
    bare = [{**r, "correct": None} for r in ROWS]
    assert mcnemar_table(STUDY, bare).rows == ()
    with pytest.raises(RecipeError, match=r"study \(DP-FedGD,.*, got 'nobody'"):
        mcnemar_table(STUDY, ROWS, "nobody")


def test_bits_beyond_the_tested_records_do_not_count() -> None:
    """11 records: packing fills the last byte with zeros."""
    ours = {0: {"correct": packed("11111111111"), "tested": 11}}
    theirs = {0: {"correct": packed("11111111100"), "tested": 11}}
    assert significance.mcnemar(ours, theirs) == McNemar(1, 2, 0)
    assert significance.mcnemar(ours, {1: theirs[0]}) is None


def test_holm_by_hand() -> None:
    assert significance.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert significance.holm([0.9, 0.8]) == [1.0, 1.0]
    assert significance.holm([]) == []
