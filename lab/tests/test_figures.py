# SPDX-License-Identifier: Apache-2.0
"""Figures from made-up runs: the right figures, the same style everywhere, letters large enough."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from lab.tests.made_up import (
    HIGH,
    LOW,
    ODD,
    ROWS,
    STUDY,
    losses,
    one_seed,
    trial,
    two_axes,
)
from matplotlib.colors import to_hex
from matplotlib.text import Text

from dpfed_lab import figures, heat_map
from dpfed_lab.figures import COLOURS, YELLOW, Picture, styles_of
from dpfed_lab.study import Contestant, Study

TRIALS = [
    trial("0.5", "DP-FedSOFIM", n, **{"server.0.rho": rho, "server.1.rate": rate, "beta": beta})
    for n, (rho, rate, beta) in enumerate(
        (rho, rate, beta) for rho in (0.1, 1.0, 10.0) for rate in (0.5, 2.0) for beta in (0.8, 0.9)
    )
]
ENTRY = "epsilon 0.5 | DP-FedSOFIM"


def heat() -> Picture:
    picture = heat_map.heat_map(TRIALS, ENTRY, ("server.1.rate", "server.0.rho"))
    assert picture is not None
    return picture


def pictures() -> list[Picture]:
    return [
        figures.convergence(STUDY, ROWS, LOW),
        figures.final_bars(STUDY, ROWS, HIGH),
        *figures.frontiers(STUDY, ROWS),
        heat(),
    ]


# ---------------------------------------------------------------------------------------- the style


def named(*labels: str) -> Study:
    return msgspec.structs.replace(STUDY, methods=[Contestant(label=label) for label in labels])


def test_every_known_method_has_its_own_style() -> None:
    known = list(figures._KNOWN)
    styles = styles_of(named(*known))
    assert len({(style.colour, style.line) for style in styles.values()}) == len(known)
    assert len(set(COLOURS)) == 8
    assert styles_of(named("DP-FedSOFIM"))["DP-FedSOFIM"] == styles["dp-fedsofim"]


def test_other_methods_get_what_the_known_ones_leave_free() -> None:
    labels = ["DP-FedSOFIM", *(f"rho {n}" for n in range(20)), "DP-FedGD"]
    styles = styles_of(named(*labels))
    assert styles["DP-FedSOFIM"] == styles_of(STUDY)["DP-FedSOFIM"]
    assert len({(style.colour, style.line) for style in styles.values()}) == len(labels)
    assert [styles[f"rho {n}"].colour for n in range(2)] == [figures.BLUE, figures.GREEN]
    assert styles["rho 19"].colour == YELLOW  # pale, so last
    assert {style.hatch for style in styles.values()} == {"", "////", "...."}
    assert len(styles_of(named(*map(str, range(60))))) == 60


def test_a_method_has_the_same_colour_in_every_figure() -> None:
    lines, bars, frontier, _ = pictures()
    labels, styles = [method.label for method in STUDY.methods], styles_of(STUDY)
    for picture in (lines, frontier):
        drawn = {str(line.get_label()): line for line in picture.figure.axes[0].get_lines()}
        for label in labels:
            style, line = styles[label], drawn[label]
            assert to_hex(str(line.get_color())).upper() == style.colour
            assert (line.get_linestyle(), line.get_marker()) == (style.line, style.marker)
    filled = [bar for bar in bars.figure.axes[0].patches if bar.get_fill()]
    shown = [to_hex(bar.get_facecolor()).upper() for bar in filled]
    assert shown == [styles[label].colour for label in labels]
    assert [bar.get_hatch() or "" for bar in filled] == [styles[name].hatch for name in labels]


def test_letters_are_8_points_at_the_width_of_a_column() -> None:
    for picture in pictures():
        assert picture.figure.get_figwidth() == 3.4
        picture.figure.draw_without_rendering()
        sizes = [
            text.get_fontsize()
            for text in picture.figure.findobj(Text)
            if isinstance(text, Text) and text.get_text()
        ]
        assert sizes
        assert min(sizes) >= 8, picture.name


def test_pale_yellow_gets_an_outline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "MANY", 99)
    labels = [f"m{n}" for n in range(22)]
    study, gd = named(*labels), [r for r in ROWS if r["method"] == "DP-FedGD"]
    rows = [{**r, "method": label} for r in gd for label in labels]
    lines = figures.convergence(study, rows, LOW).figure.axes[0].get_lines()
    outlined = [line.get_label() for line in lines if line.get_path_effects()]
    assert outlined == [name for name, style in styles_of(study).items() if style.colour == YELLOW]
    assert outlined == ["m21"]


# -------------------------------------------------------------------------------------- the figures


def test_lines_are_means_with_a_band() -> None:
    picture = figures.convergence(STUDY, ROWS, LOW)
    axes = picture.figure.axes[0]
    line = next(each for each in axes.get_lines() if each.get_label() == "DP-FedGD")
    assert np.asarray(line.get_xdata()).tolist() == [2, 4, 6]
    assert np.asarray(line.get_ydata()).tolist() == pytest.approx([32, 50, 52])
    assert len(axes.collections) == 3
    assert picture.name == "convergence-epsilon-0_5"
    assert "over 3 seeds" in picture.caption
    assert picture.alt.endswith(f"DP-FedSOFIM 55.33, {ODD} 53.00, DP-FedGD 52.00.")


@pytest.mark.parametrize("letters", [5, 23, 25, 40])
def test_a_legend_is_never_cut_off(letters: int) -> None:
    labels = [f"{n:{letters}}".replace(" ", "e") for n in range(9)]
    gd = [r for r in ROWS if r["method"] == "DP-FedGD"]
    rows = [{**r, "method": label} for r in gd for label in labels]
    figure = figures.convergence(named(*labels), rows, LOW).figure
    figure.draw_without_rendering()
    legend = figure.legends[-1].get_window_extent()
    assert figure.bbox.x0 <= legend.x0
    assert legend.x1 <= figure.bbox.x1
    assert figure.axes[0].get_window_extent().height > figure.bbox.height / 3


def test_a_long_measure_is_not_cut_off() -> None:
    study = msgspec.structs.replace(STUDY, loss="squared distance to the non-private estimate")
    rows = [{**r, "accuracy": None, "loss": 10.0 ** -r["seed"]} for r in ROWS]
    figure = figures.convergence(study, rows, LOW).figure
    figure.draw_without_rendering()
    label = figure.axes[0].yaxis.label
    assert "squared distance" in label.get_text()
    extent = label.get_window_extent()
    assert figure.bbox.y0 <= extent.y0
    assert extent.y1 <= figure.bbox.y1


def test_of_many_lines_the_best_and_the_baseline_have_a_colour() -> None:
    labels = [m.label for m in STUDY.methods]
    more = [f"m{n}" for n in range(6)]
    study = msgspec.structs.replace(
        STUDY, methods=[*STUDY.methods, *(Contestant(label=label) for label in more)]
    )
    worst = [r for r in ROWS if r["method"] == "DP-FedGD"]
    rows = [*ROWS, *({**r, "method": label} for label in more for r in worst)]
    picture = figures.convergence(study, rows, LOW)
    lines = {str(each.get_label()): each.get_color() for each in picture.figure.axes[0].get_lines()}
    grey = {label for label, colour in lines.items() if colour == figures.GREY}
    assert set(lines) >= {*labels, *more}
    assert {"DP-FedSOFIM", "DP-FedGD"}.isdisjoint(grey)  # the best, and the baseline
    assert len(lines) - len(grey) in (figures.MANY // 2, figures.MANY // 2 + 1)
    assert "In colour: the best" in picture.caption
    few = figures.convergence(STUDY, ROWS, LOW)
    assert figures.GREY not in {each.get_color() for each in few.figure.axes[0].get_lines()}
    assert "In colour" not in few.caption


def test_rounds_are_on_a_logarithmic_axis_where_early_ones_were_measured() -> None:
    rounds = ("1", "10", "40")
    rows = [{**r, "by_round": dict(zip(rounds, r["by_round"].values(), strict=True))} for r in ROWS]
    axes = figures.convergence(STUDY, rows, LOW).figure.axes[0]
    assert (axes.get_xscale(), axes.get_xlabel()) == ("log", "round (log scale)")
    late = figures.convergence(STUDY, ROWS, LOW).figure.axes[0]
    assert (late.get_xscale(), late.get_xlabel()) == ("linear", "round")


def test_one_seed_has_no_band() -> None:
    picture = figures.convergence(one_seed(), ROWS, LOW)
    assert not picture.figure.axes[0].collections
    assert "One seed." in picture.caption


def test_bars_start_at_zero_and_skip_what_was_not_run() -> None:
    rows = [r for r in ROWS if r["method"] != "DP-FedSOFIM"]
    axes = figures.final_bars(STUDY, rows, HIGH).figure.axes[0]
    widths = [bar.get_width() for bar in axes.patches if bar.get_fill()]  # type: ignore[attr-defined]
    assert widths == pytest.approx([71, 10])
    assert axes.get_xlim()[0] == 0
    assert [label.get_text() for label in axes.get_yticklabels()] == ["DP-FedGD", ODD]


def test_bars_are_marked_where_the_difference_is_significant() -> None:
    picture = figures.final_bars(STUDY, ROWS, LOW)
    written = [text.get_text() for text in picture.figure.axes[0].texts]
    assert written == ["52.00", "55.33 ▲", "53.00"]
    assert "▲ better, ▼ worse than DP-FedGD" in picture.caption
    assert "▲" not in figures.final_bars(one_seed(), ROWS, LOW).caption


def test_a_study_of_losses_has_bars_and_lines_of_losses() -> None:
    picture = figures.final_bars(STUDY, losses(), LOW)
    assert picture.figure.axes[0].get_xlabel() == "loss"
    assert "At the end: DP-FedSOFIM 1.447" in picture.alt
    lines = figures.convergence(STUDY, losses(), LOW).figure.axes[0]
    assert (lines.get_ylabel(), lines.get_yscale()) == ("loss", "linear")
    line = next(each for each in lines.get_lines() if each.get_label() == "DP-FedGD")
    assert np.asarray(line.get_ydata()).tolist() == pytest.approx([1.68, 1.5, 1.48])


def test_losses_over_more_than_a_decade_are_on_a_logarithmic_axis() -> None:
    rows = losses(1e3)
    for picture in (figures.convergence(STUDY, rows, LOW), *figures.frontiers(STUDY, rows)):
        axes = picture.figure.axes[0]
        assert (axes.get_ylabel(), axes.get_yscale()) == ("loss (log scale)", "log")
        picture.figure.draw_without_rendering()
        words = [label.get_text() for label in axes.get_yticklabels()]
        assert "0.001" in words or "0.0001" in words
    dots = figures.final_bars(STUDY, rows, LOW).figure.axes[0]
    assert (dots.get_xscale(), len(dots.patches)) == ("log", 0)
    assert [text.get_text() for text in dots.texts] == ["1.480", "0.001447 ▲", "1.470e-06 ▲"]
    # an accuracy is never: 10 and 71 % are more than a decade apart from 1 %
    tiny = [{**r, "accuracy": r["accuracy"] / 100 if r["seed"] else 0.9} for r in ROWS]
    assert figures.convergence(STUDY, tiny, LOW).figure.axes[0].get_yscale() == "linear"


def test_a_frontier_needs_two_epsilons() -> None:
    (picture,) = figures.frontiers(STUDY, ROWS)
    line = next(x for x in picture.figure.axes[0].get_lines() if x.get_label() == "DP-FedGD")
    assert np.asarray(line.get_xdata()).tolist() == [0.5, 8]
    assert np.asarray(line.get_ydata()).tolist() == pytest.approx([52, 71])
    assert picture.name == "frontier"
    assert figures.frontiers(msgspec.structs.replace(STUDY, axes=[]), ROWS) == []
    axis = msgspec.structs.replace(STUDY.axes[0], values=[0.5, math.inf])
    assert figures.frontiers(msgspec.structs.replace(STUDY, axes=[axis]), ROWS) == []


def with_axis(label: str, values: list[Any], **more: Any) -> tuple[Study, list[dict[str, Any]]]:
    axis = {"label": label, "key": "server.0.rate", "values": values, **more}
    study = msgspec.convert({**msgspec.to_builtins(STUDY), "axes": [axis]}, Study)
    names = dict(zip(("0.5", "8"), study.axes[0].options(), strict=True))
    return study, [{**r, label: names[r["epsilon"]]} for r in ROWS]


def test_another_first_axis_of_numbers_has_lines_as_well() -> None:
    study, rows = with_axis("rounds left", [6, 6.5])
    (picture,) = figures.frontiers(study, rows)
    axes = picture.figure.axes[0]
    assert (picture.name, axes.get_xlabel(), axes.get_xscale()) == (
        "by-rounds-left",
        "rounds left",
        "linear",
    )
    assert picture.caption.startswith("Final accuracy (%) by rounds left.")
    study, rows = with_axis("alpha", [10.0, 0.1])
    axes = figures.frontiers(study, rows)[0].figure.axes[0]
    assert (axes.get_xlabel(), axes.get_xscale()) == ("alpha (log scale)", "log")
    assert np.asarray(axes.get_lines()[0].get_xdata()).tolist() == [0.1, 10]


def test_an_axis_of_words_has_no_lines_even_if_a_later_one_is_epsilon() -> None:
    study, rows = two_axes()
    turned = msgspec.structs.replace(study, axes=study.axes[::-1])
    assert figures.frontiers(turned, rows) == []


def test_other_axes_make_one_frontier_each() -> None:
    study, rows = two_axes()
    names = [picture.name for picture in figures.frontiers(study, rows)]
    assert names == ["frontier-split-iid", "frontier-split-skewed"]


def test_a_map_shows_the_best_over_what_else_was_tuned() -> None:
    picture = heat()
    axes = picture.figure.axes[0]
    shown = axes.images[0].get_array()
    assert shown is not None
    # trials are numbered rho by rho, then rate, then beta, and get 0.40 + number / 100
    assert np.asarray(shown).tolist() == pytest.approx(np.array([[41, 43], [45, 47], [49, 51]]))
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("server.1.rate", "server.0.rho")
    assert "The best over beta at each point." in picture.caption
    assert picture.alt.endswith("the best is 51 at 2 and 10.")


def test_a_map_takes_the_keys_with_the_most_values() -> None:
    picture = heat_map.heat_map(TRIALS, ENTRY)
    assert picture is not None
    assert picture.figure.axes[0].get_xlabel() == "server.0.rho"
    assert heat_map.heat_maps(STUDY, TRIALS, "DP-FedSOFIM")[0].name == picture.name
    assert heat_map.heat_maps(STUDY, TRIALS, "DP-FedGD") == []


def test_no_map_without_two_numbers() -> None:
    one = [trial("0.5", "A", n, rate=float(n), name="x", flag=bool(n)) for n in range(3)]
    assert heat_map.heat_map(one, "epsilon 0.5 | A") is None
    assert heat_map.heat_map([], ENTRY) is None
    lost = [{**row, "accuracy": math.nan} for row in TRIALS]
    assert heat_map.heat_map(lost, ENTRY) is None


def test_a_random_search_is_drawn_as_points() -> None:
    tried = [trial("0.5", "A", n, rate=10.0 ** (n / 5), rho=float(n % 7)) for n in range(20)]
    picture = heat_map.heat_map(tried, "epsilon 0.5 | A")
    assert picture is not None
    axes = picture.figure.axes[0]
    assert not axes.images
    assert (axes.get_xscale(), axes.get_yscale()) == ("linear", "log")


def test_a_short_random_search_is_no_grid() -> None:
    """Ten points without a shared value would be a grid with ninety empty cells."""
    tried = [
        trial(
            "0.5",
            "A",
            n,
            **{"server.1.rate": 10.0**-n, "privacy.clip": 1.5**n, "server.0.rho": float(n)},
        )
        for n in range(10)
    ]
    picture = heat_map.heat_map(tried, "epsilon 0.5 | A")
    assert picture is not None
    axes = picture.figure.axes[0]
    assert not axes.images
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("server.0.rho", "privacy.clip")
    assert "The best over server.1.rate" in picture.caption


@pytest.mark.long
@pytest.mark.slow
def test_files_are_written_and_do_not_change(tmp_path: Path) -> None:
    def written() -> dict[str, bytes]:
        for picture in pictures():
            figures.save_picture(picture, tmp_path)
        return {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    first = written()
    assert len(first) == 12
    assert first == written()
    drawn: list[Any] = [figures.svg(heat()), figures.svg(heat())]
    assert drawn[0] == drawn[1]
    assert drawn[0].startswith(b"<?xml")


def test_names_are_safe_for_files() -> None:
    assert figures.slug("epsilon 0.5 | 50%_new|x") == "epsilon-0_5-50-new-x"
    assert figures.slug("../a/b") == "__-a-b"
