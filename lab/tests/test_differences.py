# SPDX-License-Identifier: Apache-2.0
"""Dots of paired differences: the right figures, colour only where the interval excludes 0."""

from __future__ import annotations

import pytest
from lab.tests.made_up import HIGH, LOW, ODD, ROWS, STUDY, losses, one_seed
from matplotlib.colors import to_hex

from dpfed_lab.differences import GREY, difference_dots
from dpfed_lab.figures import Picture, styles_of


def drawn(picture: Picture | None) -> dict[str, tuple[float, str]]:
    """Method -> mean and colour of its dot."""
    assert picture is not None
    axes = picture.figure.axes[0]
    names = [text.get_text() for text in axes.get_yticklabels()]
    dots = [line for line in axes.get_lines() if line.get_marker() not in ("None", "|")]
    by_place = {
        round(float(dot.get_ydata()[0])): (float(dot.get_xdata()[0]), to_hex(dot.get_color()))  # type: ignore[index]
        for dot in dots
    }
    return {name: by_place[place] for place, name in enumerate(names)}


def test_a_dot_is_the_mean_of_the_pairs_and_the_best_comes_first() -> None:
    found = drawn(difference_dots(STUDY, ROWS, LOW))
    assert list(found) == ["DP-FedSOFIM", ODD]
    assert found["DP-FedSOFIM"][0] == pytest.approx(10 / 3)
    assert found[ODD][0] == pytest.approx(1)


def test_only_what_is_significant_has_its_colour() -> None:
    low, high = (drawn(difference_dots(STUDY, ROWS, cell)) for cell in (LOW, HIGH))
    styles = styles_of(STUDY)
    assert low["DP-FedSOFIM"][1] == to_hex(styles["DP-FedSOFIM"].colour)
    assert low[ODD][1] == GREY
    assert high["DP-FedSOFIM"][1] == GREY
    assert high[ODD][1] == to_hex(styles[ODD].colour)


def test_the_caption_and_the_words_say_what_the_dots_do() -> None:
    picture = difference_dots(STUDY, ROWS, LOW)
    assert picture is not None
    assert "less DP-FedGD's" in picture.caption
    assert "DP-FedSOFIM 3.33 (" in picture.alt
    assert picture.name == "differences-epsilon-0_5"


def test_of_losses_less_is_better() -> None:
    picture = difference_dots(STUDY, losses(), LOW)
    assert picture is not None
    assert "Better is left" in picture.caption


def test_one_seed_has_no_interval_and_no_figure() -> None:
    assert difference_dots(one_seed(), ROWS, LOW) is None
