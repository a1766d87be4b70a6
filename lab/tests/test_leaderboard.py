# SPDX-License-Identifier: Apache-2.0
"""All studies on one page: which lines are compared, what is marked, and what is never averaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dpfed.core.errors import RecipeError
from dpfed_lab.leaderboard import NO_PRIVACY, WITHIN, Board, BoardLine, collect
from dpfed_lab.table import Number

STUDY = """
title = "made up"
about = "For tests."
[base]
rounds = 6
[base.data]
source = "features/cifar10.npz"
[base.data.partition]
name = "iid"
clients = 5
[base.privacy]
delta = 1e-6
[[axes]]
label = "epsilon"
key = "privacy.epsilon"
values = [1.0, 8.0]
[[methods]]
label = "DP-FedGD"
set = {method = "dp-fedgd"}
coarse = {"server.0.rate" = [0.1, 1.0]}
[[methods]]
label = "EMA-only"
set = {method = "ema-only"}
coarse = {"server.1.rate" = [0.1, 1.0]}
[[methods]]
label = "DP-FedAuto"
set = {method = "dp-fedauto"}
[final]
seeds = [0, 1, 2]
"""

Figures = dict[tuple[str, str], tuple[float | str, ...]]
FIGURES: Figures = {
    ("1", "DP-FedGD"): (0.50, 0.52, 0.54),
    ("1", "EMA-only"): (0.51, 0.51, 0.545),
    ("1", "DP-FedAuto"): (0.40, 0.42, 0.43),
    ("8", "DP-FedGD"): (0.70, 0.71, 0.72),
    ("8", "EMA-only"): (0.80, 0.81, 0.82),
    ("8", "DP-FedAuto"): (0.60, 0.60, 0.60),
}


def settings(tried: int = 2, **more: Any) -> dict[str, Any]:
    return {
        f"epsilon {epsilon} | {method}": {"set": {}, "tried": tried, **more}
        for epsilon in ("1", "8")
        for method in ("DP-FedGD", "EMA-only")
    }


def write(
    root: Path,
    name: str,
    figures: Figures = FIGURES,
    study: str = STUDY,
    chosen: dict[str, Any] | None = None,
    losses: dict[tuple[str, str, int], float | str] | None = None,
) -> Path:
    """A study's folder, as it is kept."""
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "study.toml").write_text(study, encoding="utf-8")
    text = json.dumps(settings() if chosen is None else chosen)
    (folder / "settings.json").write_text(text, encoding="utf-8")
    lines = ["epsilon,method,seed,accuracy,loss"]
    for (epsilon, method), values in figures.items():
        for seed, value in enumerate(values):
            loss = (losses or {}).get((epsilon, method, seed), 1.0)
            lines.append(f"{epsilon},{method},{seed},{value},{loss}")
    (folder / "final.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def boards(root: Path) -> tuple[Board, Board]:
    """The tuned and the untuned board of one task."""
    tuned, untuned = collect(root).boards
    return tuned, untuned


def line(board: Board, method: str) -> BoardLine:
    (found,) = (line for line in board.lines if line.method == method)
    return found


def test_tuned_and_untuned_stand_apart(tmp_path: Path) -> None:
    write(tmp_path, "one")
    tuned, untuned = boards(tmp_path)
    assert tuned.tuned
    assert [each.method for each in tuned.lines] == ["EMA-only", "DP-FedGD"]
    assert not untuned.tuned
    assert [each.settings for each in untuned.lines] == ["defaults"]
    assert line(tuned, "DP-FedGD").settings == "2 tried"
    assert tuned.task.records == "CIFAR-10"
    assert (
        tuned.task.details == "5 clients, at random, one record protected (replace-one, "
        "delta 1e-06)"
    )
    assert tuned.task.trust == "local"


def test_the_best_and_what_is_within_noise_of_it(tmp_path: Path) -> None:
    write(tmp_path, "one")
    tuned, untuned = boards(tmp_path)
    gd, ema = line(tuned, "DP-FedGD"), line(tuned, "EMA-only")
    assert tuned.best("1") is ema
    assert tuned.best("8") is ema
    close, far = tuned.value(gd, "1"), tuned.value(gd, "8")
    assert isinstance(close, Number)
    assert isinstance(far, Number)
    assert (close.mark, far.mark) == (WITHIN, "")
    assert close.mean == pytest.approx(52)
    assert far.std == pytest.approx(1)
    assert str(tuned.value(ema, "1")) == "52.17 ± 2.02", "the best has no mark"
    assert untuned.best("1") is None, "one line is the best of nothing"


def test_pairs_not_spreads_decide(tmp_path: Path) -> None:
    """Seeds move both alike: the spread is far larger than the difference, which is certain."""
    figures: Figures = {
        **FIGURES,
        ("1", "DP-FedGD"): (0.30, 0.50, 0.70),
        ("1", "EMA-only"): (0.31, 0.5101, 0.71),
    }
    write(tmp_path, "one", figures)
    tuned, _ = boards(tmp_path)
    assert not tuned.within_noise(line(tuned, "DP-FedGD"), "1")


@pytest.mark.parametrize("loss", ["", "nan", "inf", 20.5])
def test_divergence_is_marked_and_never_averaged(tmp_path: Path, loss: float | str) -> None:
    write(tmp_path, "one", losses={("1", "EMA-only", 2): loss})
    tuned, _ = boards(tmp_path)
    ema = line(tuned, "EMA-only")
    assert tuned.value(ema, "1") == "1 of 3 diverged"
    assert ema.mean("1") is None
    assert tuned.best("1") is None, "the other one stands alone"
    assert isinstance(tuned.value(ema, "8"), Number)


def test_a_large_loss_that_is_none_of_a_classifier_is_no_divergence(tmp_path: Path) -> None:
    errors: Figures = dict.fromkeys(FIGURES, ("", "", ""))
    losses: dict[tuple[str, str, int], float | str]
    losses = {(*key, seed): 100.0 + seed for key in FIGURES for seed in range(3)}
    write(tmp_path, "one", errors, losses={**losses, ("1", "EMA-only", 0): 90.0})
    tuned, _ = boards(tmp_path)
    assert tuned.task.measure.sign == -1
    assert tuned.best("1") is line(tuned, "EMA-only"), "less is better"


def test_only_the_same_problem_shares_a_board(tmp_path: Path) -> None:
    write(tmp_path, "one")
    write(tmp_path, "two", study=STUDY.replace("clients = 5", "clients = 7"))
    write(tmp_path, "three", study=STUDY.replace("delta = 1e-6", 'delta = 1e-6\ntrust = "central"'))
    found = collect(tmp_path).boards
    assert len(found) == 6
    assert {board.task.trust for board in found} == {"local", "central"}
    assert all(len({each.studies for each in board.lines}) == 1 for board in found)


def test_centring_and_weights_are_part_of_how(tmp_path: Path) -> None:
    write(tmp_path, "one")
    centred = 'source = "features/cifar10.npz"\ncenter = "features/cifar100-test.npz"'
    study = STUDY.replace('source = "features/cifar10.npz"', centred)
    write(tmp_path, "two", study=study.replace("delta =", 'weights = "average"\ndelta ='))
    tuned, _ = boards(tmp_path)
    assert {each.how for each in tuned.lines} == {"6 rounds", "6 rounds, centred, average"}


def test_runs_that_two_studies_share_are_one_line(tmp_path: Path) -> None:
    write(tmp_path, "one")
    write(tmp_path, "two", {**FIGURES, ("1", "EMA-only"): (0.5, 0.5, 0.6)})
    tuned, _ = boards(tmp_path)
    assert line(tuned, "DP-FedGD").studies == ("one", "two")
    assert {each.studies for each in tuned.lines if each.name == "ema-only"} == {("one",), ("two",)}


def test_settings_lent_by_other_records_are_untuned(tmp_path: Path) -> None:
    lent = settings(lent="sofim-cifar10")
    write(tmp_path, "same", chosen=lent)
    write(tmp_path, "other", study=STUDY.replace("cifar10.npz", "malaria.npz"), chosen=lent)
    by_records = {board.task.records: board for board in collect(tmp_path).boards if board.tuned}
    assert set(by_records) == {"CIFAR-10"}
    tuned = by_records["CIFAR-10"]
    assert {each.settings for each in tuned.lines} == {"lent by sofim-cifar10, same records"}


def test_settings_lent_by_a_cell_with_other_records_are_untuned(tmp_path: Path) -> None:
    axis = """
[[axes]]
label = "images"
tuned = false
[axes.choices.malaria]
"data.source" = "features/malaria.npz"
[axes.choices.X-rays]
"data.source" = "features/covid-radiography.npz"
"""
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / "study.toml").write_text(STUDY + axis, encoding="utf-8")
    chosen = {
        f"epsilon 1 | images malaria | {m}": {"set": {}, "tried": 4}
        for m in ("DP-FedGD", "EMA-only")
    }
    (folder / "settings.json").write_text(json.dumps(chosen), encoding="utf-8")
    lines = [
        f"1,{images},DP-FedGD,{seed},0.5{seed},1"
        for images in ("malaria", "X-rays")
        for seed in range(3)
    ]
    text = "\n".join(["epsilon,images,method,seed,accuracy,loss", *lines])
    (folder / "final.csv").write_text(text, encoding="utf-8")
    found = {board.task.records: board.tuned for board in collect(tmp_path).boards}
    assert found == {"Malaria cells": True, "Chest X-rays": False}


def test_one_run_is_a_look_and_not_a_search(tmp_path: Path) -> None:
    write(tmp_path, "one", chosen=settings(tried=1))
    (board,) = collect(tmp_path).boards
    assert not board.tuned


def test_an_axis_of_settings_is_part_of_the_methods_name(tmp_path: Path) -> None:
    study = STUDY.replace('key = "privacy.epsilon"', 'key = "server.0.rate"')
    study = study.replace('label = "epsilon"', 'label = "rate"').replace(
        "delta = 1e-6", "delta = 1e-6\nepsilon = 3.0"
    )
    study = (
        "".join(study.partition('[[methods]]\nlabel = "EMA')[:1]) + "[final]\nseeds = [0, 1, 2]\n"
    )
    folder = write(tmp_path, "one", study=study)
    text = (folder / "final.csv").read_text(encoding="utf-8").replace("epsilon,", "rate,")
    (folder / "final.csv").write_text(text, encoding="utf-8")
    (board,) = collect(tmp_path).boards
    assert board.epsilons == ("3",)
    assert {each.method for each in board.lines} == {"DP-FedGD, rate 1", "DP-FedGD, rate 8"}


def test_a_label_that_hides_the_method_gets_its_name(tmp_path: Path) -> None:
    write(
        tmp_path,
        "one",
        {("1", "FedSGD"): (0.1, 0.2, 0.3)},
        STUDY.replace('label = "DP-FedGD"', 'label = "FedSGD"'),
    )
    (board,) = collect(tmp_path).boards
    assert [each.method for each in board.lines] == ["dp-fedgd: FedSGD"]


def test_no_privacy_has_a_column_of_its_own(tmp_path: Path) -> None:
    choices = (
        """choices = {"1" = {"privacy.epsilon" = 1.0}, inf = {"privacy.mechanism" = "clear"}}"""
    )
    study = STUDY.replace('key = "privacy.epsilon"\nvalues = [1.0, 8.0]', choices)
    figures = {("inf" if e == "8" else e, m): v for (e, m), v in FIGURES.items()}
    write(tmp_path, "one", figures, study, {})
    assert {board.epsilons for board in collect(tmp_path).boards} == {("1", NO_PRIVACY)}


def test_what_is_withdrawn_or_has_one_seed_is_listed_with_why(tmp_path: Path) -> None:
    write(tmp_path, "kept")
    (write(tmp_path, "gone") / "withdrawn.md").write_text("Cut by\nhand.\n", encoding="utf-8")
    write(tmp_path, "single", {key: values[:1] for key, values in FIGURES.items()})
    (write(tmp_path, "unfinished") / "final.csv").unlink()
    noise = STUDY.replace('key = "privacy.epsilon"', 'key = "privacy.std_over_clip"')
    write(tmp_path, "noise", FIGURES, noise, {})
    found = collect(tmp_path)
    assert list(found.about) == ["kept"]
    assert found.left_out == {
        "gone": "Cut by hand.",
        "noise": "at one noise multiplier, where its methods have different epsilons",
        "single": "one seed, so nothing says how far its figures move by chance",
        "unfinished": "no final runs",
    }


def test_a_folder_without_studies_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="folder that 'dpfed sweep'"):
        collect(tmp_path)


def test_a_home_game_is_known(tmp_path: Path) -> None:
    write(tmp_path, "home")
    write(tmp_path, "away", study=STUDY.replace("cifar10.npz", "har.npz"))
    found = {
        (board.task.records, each.name): each.at_home
        for board in collect(tmp_path).boards
        for each in board.lines
    }
    assert found["CIFAR-10", "dp-fedauto"]
    assert not found["CIFAR-10", "dp-fedgd"]
    assert not found["Human activity", "dp-fedauto"]
