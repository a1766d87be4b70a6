# SPDX-License-Identifier: Apache-2.0
"""Tables from made-up runs: figures by hand, and what is missing is said."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from lab.tests.made_up import (
    ACCURACY,
    LOW,
    ODD,
    ROWS,
    SETTINGS,
    STUDY,
    losses,
    one_seed,
    row,
    texts,
    two_axes,
)

from dpfed.accounting import gdp
from dpfed_lab import study_tables as tables
from dpfed_lab.scores import final_rows
from dpfed_lab.significance import paired_table
from dpfed_lab.sweep import tuning_cost

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
    tied = [
        row("0.5", "DP-FedSOFIM", s, accuracy=ACCURACY["0.5", "DP-FedGD"][s] + 1e-6, by_round={})
        for s in (0, 1, 2)
    ]
    rows = [r for r in ROWS if r["method"] == "DP-FedGD"] + tied
    table = tables.progress_table(STUDY, rows, LOW)
    assert {(0, 3), (1, 3)} <= table.bold
    assert (2, 3) not in table.bold


@pytest.mark.parametrize("loss", [math.nan, None, 20.01])
def test_a_run_that_diverged_is_left_out_and_said(loss: float | None) -> None:
    """Its accuracy is a figure, but of a model that nobody would use."""
    lost = ("0.5", "DP-FedGD", 2)
    rows = [
        {**r, "loss": loss} if (r["epsilon"], r["method"], r["seed"]) == lost else r for r in ROWS
    ]
    table = tables.final_table(STUDY, rows)
    assert texts(table)[0][1] == "51.00 ± 1.41"
    assert "Fewer seeds than asked for: epsilon 0.5: DP-FedGD (2 of 3)." in table.note


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
    rows = losses()
    table = tables.final_table(STUDY, rows)
    assert table.title == "Loss at the last round"
    assert texts(table)[1] == ["DP-FedSOFIM", "1.447 ± 0.021 ▲", "1.290 ± 0.017"]
    assert table.bold == {(1, 1), (0, 2), (1, 2)}
    paired = paired_table(STUDY, rows)
    assert str(paired.rows[0][3]) == "-0.033 ± 0.006"
    assert paired.columns[3] == "difference"
    assert paired.note.startswith("Better is below 0.")


def test_a_loss_has_the_name_that_the_study_gives_it_and_its_rounds() -> None:
    study = msgspec.structs.replace(STUDY, loss="squared error")
    table = tables.progress_table(study, losses(), LOW)
    assert table.title == "Squared error by round: epsilon 0.5"
    assert texts(table)[0] == ["DP-FedGD", "1.680 ± 0.020", "1.500 ± 0.020", "1.480 ± 0.020"]
    assert table.bold == {(1, 1), (1, 2), (1, 3)}
    old = [{**r, "by_round": {}} for r in losses()]  # as stored before losses had rounds
    assert tables.progress_table(study, old, LOW).columns == ("method", "round 6")
    lost = [{**r, "accuracy": math.nan} for r in ROWS]  # by_round has accuracies, not losses
    assert tables.progress_table(study, lost, LOW).columns == ("method", "round 6")


def test_losses_have_four_figures_whatever_their_size() -> None:
    small = texts(tables.final_table(STUDY, losses(1e-4)))[1]
    assert small[1] == "14467 ± 208 ▼"
    tiny = texts(tables.final_table(STUDY, losses(1e4)))[2]
    assert tiny[1] == "1.470e-08 ± 3.5e-10 ▲"
    settings = {"epsilon 0.5 | DP-FedGD": {"set": {"rate": 1.0}, "validation": 0.25, "tried": 4}}
    table = tables.settings_table(STUDY, losses(), settings)
    assert "validation loss" in table.columns
    assert texts(table)[0][3] == "0.2500"


def test_a_loss_has_to_reach_all_of_the_baselines() -> None:
    """GD ends at 1.48; SOFIM is at 1.4667 after 2 rounds; the odd one at 1.47 after 6."""
    table = tables.speed_table(STUDY, losses())
    assert table.title == "Rounds to the final loss of DP-FedGD"
    assert [line[1] for line in texts(table)] == ["6", "2", "6"]
    assert "To reach, loss: epsilon 0.5: 1.480; epsilon 8: 1.290." in table.note


def test_one_seed_has_no_deviation_and_no_interval() -> None:
    study, rows = one_seed(), [r for r in ROWS if r["seed"] == 0]
    assert texts(tables.final_table(study, rows))[0] == ["DP-FedGD", "50.00", "70.00"]
    assert "no standard deviation" in tables.final_table(study, rows).note
    paired = paired_table(study, rows)
    assert texts(paired)[0] == ["0.5", "DP-FedSOFIM", "1", "3.00", "-", "-", "-", "-"]
    assert "no interval" in paired.note


def test_only_runs_that_the_study_asks_for_count() -> None:
    wrong: list[dict[str, Any]] = [
        {"stage": "tuning"},
        {"seed": 7},
        {"method": "unknown"},
        {"epsilon": "3"},
        {"rounds": 3},
    ]
    others = [{**ROWS[0], "accuracy": 0.9, **changes} for changes in wrong]
    assert final_rows(STUDY, [*ROWS, *others]) == final_rows(STUDY, ROWS)
    later = row("0.5", "DP-FedGD", 0, accuracy=0.9, set={"server.0.rate": 2.0})
    assert final_rows(STUDY, [*ROWS, later])[0] == later
    assert final_rows(STUDY, [*ROWS, later], SETTINGS)[0] == ROWS[0]


# --------------------------------------------------------------------------------------- the tables


def test_final_table_has_methods_by_the_first_axis() -> None:
    table = tables.final_table(STUDY, ROWS)
    assert table.columns == ("method", "epsilon 0.5", "epsilon 8")
    assert texts(table)[0] == ["DP-FedGD", "52.00 ± 2.00", "71.00 ± 1.00"]
    assert texts(table)[2] == [ODD, "53.00 ± 3.46", "10.00 ± 0.00 ▼"]
    # 71.00 and 71.00 at epsilon 8
    assert table.bold == {(1, 1), (0, 2), (1, 2)}


def test_final_figures_that_differ_significantly_from_the_baseline_are_marked() -> None:
    """Of the four intervals of the paired table, those that exclude 0; the baseline has none."""
    table = tables.final_table(STUDY, ROWS)
    marks = [[getattr(value, "mark", "") for value in line[1:]] for line in table.rows]
    assert marks == [["", ""], ["▲", ""], ["", "▼"]]
    assert "▲ better, ▼ worse than DP-FedGD: statistically significant" in table.note
    assert "the paired 95 % t interval over seeds excludes 0" in table.note
    assert r"55.33 $\pm$ 2.08 $\bigtriangleup$" in table.to_latex()
    single = tables.final_table(one_seed(), ROWS)
    assert "▲" not in single.to_markdown()
    bare = msgspec.structs.replace(STUDY, baseline="nobody")
    assert "▲" not in tables.final_table(bare, ROWS).to_markdown()


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
    assert table.title == "Rounds to 95 % of the final accuracy of DP-FedGD"
    assert "epsilon 0.5: 49.40; epsilon 8: 67.45. Measured every 2 rounds." in table.note


def test_speed_without_a_baseline_says_so() -> None:
    rows = [r for r in ROWS if r["method"] != "DP-FedGD"]
    table = tables.speed_table(STUDY, rows)
    assert {str(value) for row in table.rows for value in row[1:]} == {"-"}
    assert table.note == "No accuracy of DP-FedGD to compare with."


# -------------------------------------------------------------------------------------------- silos


def test_silos_have_their_mean_and_their_worst() -> None:
    worst = {"DP-FedGD": 0.3, "DP-FedSOFIM": 0.2, ODD: None}
    rows = [
        {**r, "worst_silo": None if (w := worst[r["method"]]) is None else w + r["seed"] / 100}
        for r in ROWS
        if r["epsilon"] == "0.5"
    ]
    table = tables.silos_table(STUDY, rows)
    assert table.columns == ("epsilon", "method", "mean (%)", "worst silo (%)")
    assert texts(table)[:3] == [
        ["0.5", "DP-FedGD", "52.00 ± 2.00", "31.00 ± 1.00"],
        ["0.5", "DP-FedSOFIM", "55.33 ± 2.08", "21.00 ± 1.00"],
        ["0.5", ODD, "53.00 ± 3.46", "-"],
    ]
    assert table.bold == {(1, 2), (0, 3)}
    assert tables.silos_table(STUDY, ROWS).rows == ()


# ----------------------------------------------------------------------------------------- settings


def test_settings_say_what_was_tried_and_its_price() -> None:
    table = tables.settings_table(STUDY, ROWS, SETTINGS)
    assert table.columns[-5:] == (
        "setting",
        "validation (%)",
        "tried",
        "composed epsilon",
        "at an edge",
    )
    cost = tuning_cost(4, 0.5, 1e-6)
    assert texts(table)[0] == [
        "0.5",
        "DP-FedGD",
        "server.0.rate = 0.5",
        "41.00",
        "4",
        f"{cost:.2f}",
        "-",
    ]
    # nothing searched: the setting is what the runs say
    assert texts(table)[1] == ["0.5", "DP-FedSOFIM", "server.0.rate = 0.5", "-", "-", "-", "-"]
    assert texts(table)[4][-4:] == ["-", "9", f"{tuning_cost(9, 8.0, 1e-6):.2f}", "-"]


def test_the_price_of_a_trial_is_that_of_a_run_or_else_what_was_asked_for() -> None:
    def cost(rows: list[dict[str, Any]], settings: Any = SETTINGS) -> str:
        return str(tables.settings_table(STUDY, rows, settings).rows[0][-2])

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


def test_a_setting_at_its_grids_edge_is_named() -> None:
    grid = {"server.0.rate": [0.1, 0.5, 1.0]}
    searched = msgspec.structs.replace(STUDY.methods[0], coarse=grid)
    study = msgspec.structs.replace(STUDY, methods=[searched])
    chosen = {"epsilon 0.5 | DP-FedGD": {"set": {"server.0.rate": 1.0}, "tried": 3}}
    table = tables.settings_table(study, ROWS, chosen)
    assert texts(table)[0][-1] == "server.0.rate"
    assert "may lie beyond" in table.note


def test_borrowed_settings_are_named() -> None:
    axis = msgspec.structs.replace(STUDY.axes[0], borrow={"0.5": "8"})
    study = msgspec.structs.replace(STUDY, axes=[axis])
    table = tables.settings_table(study, ROWS, {})
    assert [r[0] for r in table.rows] == ["8", "8", "8"]
    assert "Also used by epsilon 0.5: the settings of epsilon 8." in table.note
