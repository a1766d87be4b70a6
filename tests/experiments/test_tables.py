# SPDX-License-Identifier: Apache-2.0
"""Tables from made-up runs: figures by hand or by scipy, and what is missing is said."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from scipy import stats

from dpfed.accounting import gdp
from dpfed.errors import RecipeError
from dpfed.experiments import tables
from dpfed.experiments.study import Study
from dpfed.experiments.sweep import tuning_cost
from dpfed.experiments.tables import McNemar, Number, Table

ODD = "50%_new|x"
"""A label that means something to Markdown and to LaTeX."""

STUDY = msgspec.convert(
    {
        "title": "made up",
        "base": {"rounds": 6, "privacy": {"delta": 1e-6}},
        "axes": [{"label": "epsilon", "key": "privacy.epsilon", "values": [0.5, 8.0]}],
        "methods": [{"label": "DP-FedGD"}, {"label": "DP-FedSOFIM"}, {"label": ODD}],
        "final": {"seeds": [0, 1, 2], "every": 2},
    },
    Study,
)
LOW, HIGH = {"epsilon": "0.5"}, {"epsilon": "8"}

ACCURACY = {
    ("0.5", "DP-FedGD"): (0.50, 0.52, 0.54),
    ("0.5", "DP-FedSOFIM"): (0.53, 0.56, 0.57),
    ("0.5", ODD): (0.51, 0.51, 0.57),
    ("8", "DP-FedGD"): (0.70, 0.71, 0.72),
    ("8", "DP-FedSOFIM"): (0.70, 0.70, 0.73),
    ("8", ODD): (0.10, 0.10, 0.10),
}
BEHIND = {"DP-FedGD": (0.2, 0.02), "DP-FedSOFIM": (0.02, 0.01), ODD: (0.09, 0.05)}
"""By how much rounds 2 and 4 are behind round 6."""

RIGHT = {
    "DP-FedGD": "1111111100000000",
    "DP-FedSOFIM": "1111111111110000",
    ODD: "0000111111111100",
}
"""Of 16 test records; every seed and cell has the same."""


def packed(bits: str) -> str:
    return np.packbits([int(bit) for bit in bits]).tobytes().hex()


def row(epsilon: str, method: str, seed: int, **changes: Any) -> dict[str, Any]:
    final = ACCURACY[epsilon, method][seed]
    early, late = BEHIND[method]
    values = {
        "key": f"{epsilon} {method} {seed}",
        "stage": "final",
        "epsilon": epsilon,
        "method": method,
        "seed": seed,
        "set": {"server.0.rate": 0.5},
        "accuracy": final,
        "loss": 2 - final,
        "by_round": {"2": final - early, "4": final - late, "6": final},
        "rounds": 6,
        "epsilon_server": float(epsilon),
        "epsilon_others": float(epsilon) / 3,
        "guarantee": f"({epsilon}, 1e-06)-DP for each record.",
        "data": "made-up records",
        "evaluation": "on test records that the server holds",
        "seconds": 1.5,
        "correct": packed(RIGHT[method]),
        "tested": 16,
    }
    return {**values, **changes}


def trial(epsilon: str, method: str, number: int, **point: Any) -> dict[str, Any]:
    return {
        "key": f"t {epsilon} {method} {number}",
        "stage": "tuning",
        "entry": f"epsilon {epsilon} | {method}",
        "point": point,
        "accuracy": 0.4 + number / 100,
        "loss": 1.0,
        "seconds": 1.0,
    }


ROWS = [row(epsilon, method, seed) for (epsilon, method) in ACCURACY for seed in (0, 1, 2)]
SETTINGS = {
    "epsilon 0.5 | DP-FedGD": {"set": {"server.0.rate": 0.5}, "validation": 0.41, "tried": 4},
    "epsilon 8 | DP-FedSOFIM": {"set": {"server.0.rate": 0.5}, "validation": None, "tried": 9},
}


def texts(table: Table) -> list[list[str]]:
    return [[str(value) for value in row] for row in table.rows]


def one_seed() -> Study:
    return msgspec.structs.replace(STUDY, final=msgspec.structs.replace(STUDY.final, seeds=(0,)))


# ------------------------------------------------------------------------------- accuracy by round


def test_progress_is_mean_and_sample_deviation_by_round_in_the_studys_order() -> None:
    table = tables.progress_table(STUDY, ROWS, LOW)
    assert table.columns == ("method", "round 2", "round 4", "round 6")
    assert texts(table) == [
        ["DP-FedGD", "32.00 ± 2.00", "50.00 ± 2.00", "52.00 ± 2.00"],
        ["DP-FedSOFIM", "53.33 ± 2.08", "54.33 ± 2.08", "55.33 ± 2.08"],
        [ODD, "44.00 ± 3.46", "48.00 ± 3.46", "53.00 ± 3.46"],
    ]
    assert table.bold == {(1, 1), (1, 2), (1, 3)}
    assert table.note == "Mean ± sample standard deviation over 3 seeds."


def test_figures_that_look_the_same_are_all_best() -> None:
    tied = [row("0.5", "DP-FedSOFIM", s, accuracy=ACCURACY["0.5", "DP-FedGD"][s] + 1e-6,
                by_round={}) for s in (0, 1, 2)]  # fmt: skip
    rows = [r for r in ROWS if r["method"] == "DP-FedGD"] + tied
    table = tables.progress_table(STUDY, rows, LOW)
    assert {(0, 3), (1, 3)} <= table.bold
    assert (2, 3) not in table.bold


def test_a_missing_seed_is_left_out_and_said() -> None:
    rows = [r for r in ROWS if (r["method"], r["seed"]) != ("DP-FedGD", 2)]
    table = tables.progress_table(STUDY, rows, LOW)
    assert texts(table)[0][3] == "51.00 ± 1.41"
    assert "Fewer seeds than asked for: epsilon 0.5: DP-FedGD (2 of 3)." in table.note


@pytest.mark.parametrize("value", [math.nan, None])
def test_a_run_without_a_figure_counts_as_a_missing_seed_in_all_rounds(value: float | None) -> None:
    rows = [*ROWS, row("0.5", "DP-FedGD", 2, accuracy=value)]
    table = tables.progress_table(STUDY, rows, LOW)
    assert texts(table)[0][1:] == ["31.00 ± 1.41", "49.00 ± 1.41", "51.00 ± 1.41"]
    assert "DP-FedGD (2 of 3)" in table.note


def test_without_accuracy_the_loss_is_shown_and_less_is_better() -> None:
    rows = [{**r, "accuracy": None, "by_round": {}} for r in ROWS]
    table = tables.final_table(STUDY, rows)
    assert table.title == "Loss at the last round"
    assert texts(table)[1] == ["DP-FedSOFIM", "1.4467 ± 0.0208", "1.2900 ± 0.0173"]
    assert table.bold == {(1, 1), (0, 2), (1, 2)}
    assert texts(tables.speed_table(STUDY, rows)) == [[m.label, "-", "-"] for m in STUDY.methods]
    paired = tables.paired_table(STUDY, rows)
    assert str(paired.rows[0][3]) == "-0.0333 ± 0.0058"
    assert paired.note.startswith("Better is below 0.")


def test_one_seed_has_no_deviation_and_no_interval() -> None:
    study, rows = one_seed(), [r for r in ROWS if r["seed"] == 0]
    assert texts(tables.final_table(study, rows))[0] == ["DP-FedGD", "50.00", "70.00"]
    assert "no standard deviation" in tables.final_table(study, rows).note
    paired = tables.paired_table(study, rows)
    assert texts(paired)[0] == ["0.5", "DP-FedSOFIM", "1", "3.00", "-", "-", "-"]
    assert "no interval" in paired.note


def test_only_runs_that_the_study_asks_for_count() -> None:
    wrong: list[dict[str, Any]] = [
        {"stage": "tuning"}, {"seed": 7}, {"method": "unknown"}, {"epsilon": "3"}, {"rounds": 3},
    ]  # fmt: skip
    others = [{**ROWS[0], "accuracy": 0.9, **changes} for changes in wrong]
    assert tables.final_rows(STUDY, [*ROWS, *others]) == tables.final_rows(STUDY, ROWS)
    later = row("0.5", "DP-FedGD", 0, accuracy=0.9, set={"server.0.rate": 2.0})
    assert tables.final_rows(STUDY, [*ROWS, later])[0] == later
    assert tables.final_rows(STUDY, [*ROWS, later], SETTINGS)[0] == ROWS[0]


# --------------------------------------------------------------------------------------- the tables


def test_final_table_has_methods_by_the_first_axis() -> None:
    table = tables.final_table(STUDY, ROWS)
    assert table.columns == ("method", "epsilon 0.5", "epsilon 8")
    assert texts(table)[0] == ["DP-FedGD", "52.00 ± 2.00", "71.00 ± 1.00"]
    assert texts(table)[2] == [ODD, "53.00 ± 3.46", "10.00 ± 0.00"]
    # 71.00 and 71.00 at epsilon 8
    assert table.bold == {(1, 1), (0, 2), (1, 2)}


def two_axes() -> tuple[Study, list[dict[str, Any]]]:
    split = {"label": "split", "choices": {"iid": {}, "skewed": {}}, "tuned": False}
    study = msgspec.convert({**msgspec.to_builtins(STUDY), "axes":
                            [*msgspec.to_builtins(STUDY.axes), split]}, Study)  # fmt: skip
    skewed = [{**r, "split": "skewed", "accuracy": r["accuracy"] - 0.05} for r in ROWS]
    return study, [*({**r, "split": "iid"} for r in ROWS), *skewed]


def test_further_axes_are_blocks_with_their_own_best() -> None:
    study, rows = two_axes()
    table = tables.final_table(study, rows)
    assert table.columns == ("split", "method", "epsilon 0.5", "epsilon 8")
    assert texts(table)[0] == ["iid", "DP-FedGD", "52.00 ± 2.00", "71.00 ± 1.00"]
    assert texts(table)[3] == ["skewed", "DP-FedGD", "47.00 ± 2.00", "66.00 ± 1.00"]
    assert table.bold == {(1, 2), (0, 3), (1, 3), (4, 2), (3, 3), (4, 3)}


def test_a_study_without_axes_has_one_column() -> None:
    study = msgspec.structs.replace(STUDY, axes=[])
    rows = [{k: v for k, v in r.items() if k != "epsilon"} for r in ROWS if r["epsilon"] == "0.5"]
    table = tables.final_table(study, rows)
    assert table.columns == ("method", "all runs")
    assert texts(table)[0] == ["DP-FedGD", "52.00 ± 2.00"]


def test_speed_is_the_first_round_at_95_percent_of_the_baselines_end() -> None:
    """Goals: 0.95 * 52 = 49.4 and 0.95 * 71 = 67.45."""
    table = tables.speed_table(STUDY, ROWS)
    assert texts(table) == [["DP-FedGD", "4", "4"], ["DP-FedSOFIM", "2", "2"], [ODD, "6", "-"]]
    assert table.bold == {(1, 1), (1, 2)}
    assert "epsilon 0.5: 49.40; epsilon 8: 67.45. Measured every 2 rounds." in table.note


def test_speed_without_a_baseline_says_so() -> None:
    rows = [r for r in ROWS if r["method"] != "DP-FedGD"]
    table = tables.speed_table(STUDY, rows)
    assert {str(value) for row in table.rows for value in row[1:]} == {"-"}
    assert table.note == "No accuracy of DP-FedGD to compare with."


def test_paired_differences_are_a_paired_t_interval() -> None:
    table = tables.paired_table(STUDY, ROWS)
    assert table.columns == ("epsilon", "method", "seeds", "difference (points)", "low", "high",
                             "excludes 0")  # fmt: skip
    first = table.rows[0]
    expected = stats.ttest_rel([53, 56, 57], [50, 52, 54]).confidence_interval(0.95)
    assert [v.mean for v in first[4:6] if isinstance(v, Number)] == pytest.approx(
        [expected.low, expected.high]
    )
    # by hand: differences 3, 4, 3; t(2) = 4.3027
    assert texts(table)[0] == ["0.5", "DP-FedSOFIM", "3", "3.33 ± 0.58", "1.90", "4.77", "yes"]
    assert texts(table)[1] == ["0.5", ODD, "3", "1.00 ± 2.00", "-3.97", "5.97", "no"]
    assert len(table.rows) == 4


def test_pairs_are_the_seeds_that_both_have() -> None:
    rows = [
        r for r in ROWS if (r["method"], r["seed"]) not in {("DP-FedGD", 0), ("DP-FedSOFIM", 1)}
    ]
    assert texts(tables.paired_table(STUDY, rows))[0][2:4] == ["1", "3.00"]
    assert tables.paired_table(STUDY, rows, baseline="nobody").rows == ()


# ----------------------------------------------------------------------------------- McNemar's test


def test_mcnemar_by_hand() -> None:
    """Against GD: b = 4, c = 0 per seed. Against the odd one: b = 4, c = 2."""
    table = tables.mcnemar_table(STUDY, ROWS)
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
    assert texts(tables.mcnemar_table(STUDY, rows))[0][2:5] == ["1", "4", "0"]
    rows = [{**r, "tested": 15} if r["method"] == "DP-FedGD" else r for r in ROWS]
    assert [r[1] for r in tables.mcnemar_table(STUDY, rows).rows] == [ODD, ODD]
    bare = [{**r, "correct": None} for r in ROWS]
    assert tables.mcnemar_table(STUDY, bare).rows == ()
    with pytest.raises(RecipeError, match="no method 'nobody'; it has DP-FedGD"):
        tables.mcnemar_table(STUDY, ROWS, "nobody")


def test_bits_beyond_the_tested_records_do_not_count() -> None:
    """11 records: packing fills the last byte with zeros."""
    ours = {0: {"correct": packed("11111111111"), "tested": 11}}
    theirs = {0: {"correct": packed("11111111100"), "tested": 11}}
    assert tables.mcnemar(ours, theirs) == McNemar(1, 2, 0)
    assert tables.mcnemar(ours, {1: theirs[0]}) is None


def test_holm_by_hand() -> None:
    assert tables.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert tables.holm([0.9, 0.8]) == [1.0, 1.0]
    assert tables.holm([]) == []


# ----------------------------------------------------------------------------------------- settings


def test_settings_say_what_was_tried_and_its_price() -> None:
    table = tables.settings_table(STUDY, ROWS, SETTINGS)
    assert table.columns[-4:] == ("setting", "validation (%)", "tried", "composed epsilon")
    cost = tuning_cost(4, 0.5, 1e-6)
    assert texts(table)[0] == [
        "0.5",
        "DP-FedGD",
        "server.0.rate = 0.5",
        "41.00",
        "4",
        f"{cost:.2f}",
    ]
    # nothing searched: the setting is what the runs say
    assert texts(table)[1] == ["0.5", "DP-FedSOFIM", "server.0.rate = 0.5", "-", "-", "-"]
    assert texts(table)[4][-3:] == ["-", "9", f"{tuning_cost(9, 8.0, 1e-6):.2f}"]


def test_the_price_of_a_trial_is_that_of_a_run_or_else_what_was_asked_for() -> None:
    def cost(rows: list[dict[str, Any]], settings: Any = SETTINGS) -> str:
        return str(tables.settings_table(STUDY, rows, settings).rows[0][-1])

    assert cost([]) == f"{tuning_cost(4, 0.5, 1e-6):.2f}"
    assert cost([row("0.5", "DP-FedGD", 0, epsilon_server=0.25)]) == (
        f"{tuning_cost(4, 0.25, 1e-6):.2f}"
    )
    assert cost([row("0.5", "DP-FedGD", 0, epsilon_server=math.inf)]) == "no privacy"


def test_the_whole_search_composes() -> None:
    squares = 4 * gdp.mu_for(0.5, 1e-6) ** 2 + 9 * gdp.mu_for(8.0, 1e-6) ** 2
    runs, cost = tables.search_cost(STUDY, ROWS, SETTINGS)
    assert (runs, cost) == (13, pytest.approx(gdp.epsilon_for(1e-6, math.sqrt(squares))))
    assert tables.search_cost(STUDY, ROWS, SETTINGS, LOW) == (
        4,
        pytest.approx(tuning_cost(4, 0.5, 1e-6)),
    )
    assert tables.search_cost(STUDY, ROWS, {}) == (0, None)
    bare = msgspec.structs.replace(STUDY, axes=[])
    assert tables.search_cost(bare, [], {"DP-FedGD": {"tried": 3}}) == (3, None)


def test_borrowed_settings_are_named() -> None:
    axis = msgspec.structs.replace(STUDY.axes[0], borrow={"0.5": "8"})
    study = msgspec.structs.replace(STUDY, axes=[axis])
    table = tables.settings_table(study, ROWS, {})
    assert [r[0] for r in table.rows] == ["8", "8", "8"]
    assert "Also used by epsilon 0.5: the settings of epsilon 8." in table.note


def test_side_by_side() -> None:
    theirs = {
        ("8", "DP-FedGD", 6): 70.5, ("0.5", "DP-FedSOFIM", 4): 55.0, ("0.5", "DP-FedGD", 6): 53.25,
        ("0.5", "DP-FedGD", 5): 50.0, ("0.5", "Elsewhere", 6): 60.0,
    }  # fmt: skip
    table = tables.side_by_side(STUDY, ROWS, theirs)
    assert table.columns == ("epsilon", "method", "round", "theirs", "ours", "difference")
    assert texts(table) == [
        ["0.5", "DP-FedGD", "5", "50.00", "-", "-"],
        ["0.5", "DP-FedGD", "6", "53.25", "52.00 ± 2.00", "-1.25"],
        ["0.5", "DP-FedSOFIM", "4", "55.00", "54.33 ± 2.08", "-0.67"],
        ["0.5", "Elsewhere", "6", "60.00", "-", "-"],
        ["8", "DP-FedGD", "6", "70.50", "71.00 ± 1.00", "0.50"],
    ]
    assert len(tables.side_by_side(STUDY, ROWS, theirs, rounds=[6]).rows) == 3


# -------------------------------------------------------------------------------- how it is written

SMALL = Table(
    "A & B", ("method", "a_1"), ((ODD, Number(1.234, 0.5)), ("{x}", "-")), "100 % ^2.",
    frozenset({(0, 1)}),
)  # fmt: skip


def test_markdown() -> None:
    assert SMALL.to_markdown() == (
        "### A & B\n\n| method | a\\_1 |\n|---|---:|\n| 50%\\_new\\|x | **1.23 ± 0.50** |\n"
        "| {x} | - |\n\n100 % ^2.\n"
    )


def test_latex_is_escaped() -> None:
    text = SMALL.to_latex()
    assert r"\caption{A \& B. 100 \% \textasciicircum{}2.}" in text
    assert r"50\%\_new|x & \textbf{1.23 $\pm$ 0.50} \\" in text
    assert r"\{x\} & - \\" in text
    assert r"\begin{tabular}{lr}" in text
    assert tables._in_latex("a\\b~<$") == r"a\textbackslash{}b\textasciitilde{}$<$\$"


def test_csv_is_numbers_in_full_with_the_deviation_beside() -> None:
    found = list(csv.reader(io.StringIO(SMALL.to_csv())))
    assert found == [["method", "a_1", "a_1 std"], [ODD, "1.234", "0.5"], ["{x}", "", ""]]
    table = tables.progress_table(STUDY, ROWS, LOW)
    rows = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert float(rows[1]["round 6"]) == pytest.approx(100 * (0.53 + 0.56 + 0.57) / 3)
    assert float(rows[1]["round 6 std"]) == pytest.approx(np.std([53, 56, 57], ddof=1))
