# SPDX-License-Identifier: Apache-2.0
"""Figures from made-up runs: the right figures, the same style everywhere, letters large enough."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Text

from dpfed.experiments import figures
from dpfed.experiments.figures import COLOURS, YELLOW, Picture, style_of
from dpfed.experiments.study import Contestant
from tests.experiments.test_tables import HIGH, LOW, ODD, ROWS, STUDY, one_seed, trial, two_axes

TRIALS = [
    trial("0.5", "DP-FedSOFIM", n, **{"server.0.rho": rho, "server.1.rate": rate, "beta": beta})
    for n, (rho, rate, beta) in enumerate(
        (rho, rate, beta) for rho in (0.1, 1.0, 10.0) for rate in (0.5, 2.0) for beta in (0.8, 0.9)
    )
]
ENTRY = "epsilon 0.5 | DP-FedSOFIM"


def heat() -> Picture:
    picture = figures.heat_map(TRIALS, ENTRY, ("server.1.rate", "server.0.rho"))
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


def test_every_known_method_has_its_own_style() -> None:
    known = list(figures._KNOWN)
    assert len({(style_of(name).colour, style_of(name).line) for name in known}) == len(known)
    assert len(set(COLOURS)) == 8
    assert style_of("DP-FedSOFIM") == style_of("dp-fedsofim")


def test_an_unknown_method_has_the_same_style_in_every_process() -> None:
    """Drawn from a digest of the label, not from hash(), which differs from process to process."""
    assert style_of("Ours") == style_of("ours")
    colours = [style_of(name).colour for name in ("Ours", "A", "B")]
    assert colours == [figures.SKY, figures.BLUE, figures.SKY]


def test_a_method_has_the_same_colour_in_every_figure() -> None:
    lines, bars, frontier, _ = pictures()
    labels = [method.label for method in STUDY.methods]
    for picture in (lines, frontier):
        drawn = {str(line.get_label()): line for line in picture.figure.axes[0].get_lines()}
        for label in labels:
            style, line = style_of(label), drawn[label]
            assert to_hex(str(line.get_color())).upper() == style.colour
            assert (line.get_linestyle(), line.get_marker()) == (style.line, style.marker)
    filled = [bar for bar in bars.figure.axes[0].patches if bar.get_fill()]
    shown = [to_hex(bar.get_facecolor()).upper() for bar in filled]
    assert shown == [style_of(label).colour for label in labels]
    assert [bar.get_hatch() or "" for bar in filled] == [style_of(name).hatch for name in labels]


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


def test_pale_yellow_gets_an_outline() -> None:
    label = next(name for name in map(str, range(100)) if style_of(name).colour == YELLOW)
    study = msgspec.structs.replace(STUDY, methods=[Contestant(label=label)])
    rows = [{**r, "method": label} for r in ROWS if r["method"] == "DP-FedGD"]
    (line,) = figures.convergence(study, rows, LOW).figure.axes[0].get_lines()
    assert line.get_path_effects()


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


def test_a_study_of_losses_has_bars_of_losses() -> None:
    rows = [{**r, "accuracy": None, "by_round": {}} for r in ROWS]
    picture = figures.final_bars(STUDY, rows, LOW)
    assert picture.figure.axes[0].get_xlabel() == "loss"
    assert "At the end: DP-FedSOFIM 1.4467" in picture.alt


def test_a_frontier_needs_two_epsilons() -> None:
    (picture,) = figures.frontiers(STUDY, ROWS)
    line = next(x for x in picture.figure.axes[0].get_lines() if x.get_label() == "DP-FedGD")
    assert np.asarray(line.get_xdata()).tolist() == [0.5, 8]
    assert np.asarray(line.get_ydata()).tolist() == pytest.approx([52, 71])
    assert picture.name == "frontier"
    assert figures.frontiers(msgspec.structs.replace(STUDY, axes=[]), ROWS) == []
    axis = msgspec.structs.replace(STUDY.axes[0], values=[0.5, math.inf])
    assert figures.frontiers(msgspec.structs.replace(STUDY, axes=[axis]), ROWS) == []


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
    picture = figures.heat_map(TRIALS, ENTRY)
    assert picture is not None
    assert picture.figure.axes[0].get_xlabel() == "server.0.rho"
    assert figures.heat_maps(STUDY, TRIALS, "DP-FedSOFIM")[0].name == picture.name
    assert figures.heat_maps(STUDY, TRIALS, "DP-FedGD") == []


def test_no_map_without_two_numbers() -> None:
    one = [trial("0.5", "A", n, rate=float(n), name="x", flag=bool(n)) for n in range(3)]
    assert figures.heat_map(one, "epsilon 0.5 | A") is None
    assert figures.heat_map([], ENTRY) is None
    lost = [{**row, "accuracy": math.nan} for row in TRIALS]
    assert figures.heat_map(lost, ENTRY) is None


def test_a_random_search_is_drawn_as_points() -> None:
    tried = [trial("0.5", "A", n, rate=10.0 ** (n / 5), rho=float(n % 7)) for n in range(20)]
    picture = figures.heat_map(tried, "epsilon 0.5 | A")
    assert picture is not None
    axes = picture.figure.axes[0]
    assert not axes.images
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "linear")


def test_files_are_written_and_do_not_change(tmp_path: Path) -> None:
    def written() -> dict[str, bytes]:
        for picture in pictures():
            figures.save(picture, tmp_path)
        return {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    first = written()
    assert len(first) == 8
    assert first == written()
    drawn: list[Any] = [figures.svg(heat()), figures.svg(heat())]
    assert drawn[0] == drawn[1]
    assert drawn[0].startswith(b"<?xml")


def test_names_are_safe_for_files() -> None:
    assert figures.slug("epsilon 0.5 | 50%_new|x") == "epsilon-0_5-50-new-x"
    assert figures.slug("../a/b") == "__-a-b"
