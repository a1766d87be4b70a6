# SPDX-License-Identifier: Apache-2.0
"""A run as a value: its result, its files, and its three kinds of evaluation."""

from __future__ import annotations

import csv
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import dpfed
from dpfed.core.errors import DataError, RecipeError
from dpfed.recipes.result import began_at, claim_folder, clear_result, free_folder, is_taken
from tests.helpers.recipe_runs import TINY


def run(**changes: Any) -> dpfed.Result:
    return dpfed.run(TINY, **changes)


def test_a_result_has_model_history_and_guarantee() -> None:
    result = run()
    assert [row["round"] for row in result.history] == [1, 2, 3, 4, 5, 6]
    assert result.guarantee.epsilon == pytest.approx(5.0, rel=1e-8)
    assert result.params.shape == (18,)
    assert result.accuracy == result.history[-1]["accuracy"] > 0.5
    spent = [row["epsilon"] for row in result.history]
    assert spent == sorted(spent)
    assert "noise keyed by a seed (research only)" in str(result.guarantee)


def test_the_same_seed_gives_the_same_bits_and_another_one_others() -> None:
    assert torch.equal(run().params, run().params)
    assert not torch.equal(run().params, run(seed=1).params)


def test_noise_of_the_operating_system_differs_from_run_to_run() -> None:
    privacy = {"epsilon": 5.0}
    one, other = run(privacy=privacy), run(privacy=privacy)
    assert not torch.equal(one.params, other.params)
    assert "noise from the operating system" in str(one.guarantee)


def test_files_are_written_and_agree_with_the_result(tmp_path: Path) -> None:
    result = run(out=tmp_path / "out")
    folder = tmp_path / "out"
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == len(lines) == 6
    assert float(rows[-1]["accuracy"]) == lines[-1]["accuracy"] == result.accuracy
    saved = load_file(folder / "model.safetensors")
    assert torch.equal(result.model.layout.flatten(saved), result.params)
    promise = json.loads((folder / "guarantee.json").read_text())
    assert promise["sentence"] == result.guarantee.sentence
    assert promise["evaluation"] == "on test records that the server holds"
    assert (folder / "convergence.png").read_bytes().startswith(b"\x89PNG")
    again = dpfed.run(folder / "recipe.toml")
    assert torch.equal(again.params, result.params)


def test_federated_evaluation_is_noisy_near_the_truth_and_inside_the_budget() -> None:
    loud = run(evaluation={"kind": "federated", "every": 2, "share": 0.5})
    assert loud.guarantee.epsilon == pytest.approx(5.0, rel=1e-8)
    measured = [row["accuracy"] is not None for row in loud.history]
    assert measured == [False, True, False, True, False, True]
    assert all(0 <= row["accuracy"] <= 1 for row in loud.history if row["accuracy"] is not None)
    assert "metrics channel, which has noise" in loud.evaluation
    clear = {"kind": "federated"}
    exact = run(evaluation=clear, privacy={"mechanism": "clear", "clip": 2.0})
    assert exact.history[-1]["accuracy"] > 0.8


def test_exact_evaluation_says_that_it_is_not_covered() -> None:
    result = run(evaluation={"kind": "exact"})
    assert "not covered by the guarantee" in result.evaluation
    last = result.history[-1]
    assert 0 <= last["worst_silo"] <= last["accuracy"] <= 1


def test_evaluation_can_be_off() -> None:
    result = run(evaluation={"kind": "off"})
    assert all(row["accuracy"] is None for row in result.history)
    assert math.isnan(result.accuracy)
    assert result.evaluation == "not measured"
    result.plot()


def test_clear_runs_say_that_they_are_not_private(tmp_path: Path) -> None:
    result = run(privacy={"mechanism": "clear"}, out=tmp_path)
    assert str(result.guarantee) == "No privacy: 6 rounds in clear, for comparison only."
    assert json.loads((tmp_path / "guarantee.json").read_text())["epsilon"] == "inf"


@pytest.mark.parametrize("unit", ["record", "client"])
@pytest.mark.parametrize("trust", ["local", "central"])
def test_units_and_trusts_train(unit: str, trust: str) -> None:
    privacy = {"epsilon": 50.0, "unit": unit, "trust": trust, "noise": "keyed"}
    result = run(privacy=privacy)
    assert result.guarantee.epsilon == pytest.approx(50.0, rel=1e-6)
    assert result.accuracy > 0.5


def test_a_recipe_can_be_given_as_sections_or_tables_or_a_file(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="did you mean 'privacy'"):
        dpfed.run(privcay={"epsilon": 1.0})
    short = {"method": "dp-fedgd", "rounds": 1, "data": TINY["data"], "privacy": {"epsilon": 1.0}}
    assert len(dpfed.run(**short).history) == 1
    assert len(dpfed.run(short, rounds=2).history) == 2
    path = tmp_path / "r.toml"
    path.write_text(
        'method = "dp-fedgd"\nrounds = 2\n[data]\nsource = "synthetic"\n[privacy]\nepsilon = 1.0\n'
    )
    assert len(dpfed.run(path, rounds=3).history) == 3
    assert len(dpfed.run(path, overrides=("rounds=1",)).history) == 1


def test_watch_sees_every_round() -> None:
    seen: list[tuple[int, int]] = []
    run(watch=lambda row, rounds: seen.append((row["round"], rounds)))
    assert seen == [(t, 6) for t in range(1, 7)]


def test_the_signal_to_noise_ratio_comes_from_the_known_noise() -> None:
    quiet, loud = run(privacy={"epsilon": 500.0}), run(privacy={"epsilon": 0.01})
    assert quiet.history[0]["snr"] > 10
    assert loud.history[0]["snr"] < 1


@pytest.mark.parametrize("dataset", ["cifar10", "fashion"])
def test_the_papers_setting_trains_on_real_features(
    dataset: str, shared_data: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten rounds of the paper's setting on two sets of features."""
    monkeypatch.setenv("DPFED_DATA", str(shared_data))
    path = repository / "examples" / "recipes" / "first-table" / f"{dataset}.toml"
    result = dpfed.run(
        path,
        server=[{"name": "sofim", "preset": "paper"}],
        overrides=("rounds=10", "privacy.epsilon=10"),
    )
    assert result.accuracy > 0.4
    assert [row["clients"] for row in result.history] == [20] * 10


def test_a_linear_model_starts_at_random_where_the_recipe_says_so() -> None:
    began = [run(model={"start": each}, rounds=1) for each in ("zero", "random", "random")]
    assert began[0].accuracy != began[1].accuracy
    assert torch.equal(began[1].params, began[2].params)
    free = {"data": TINY["data"], "privacy": {"epsilon": 2.0}, "rounds": 2}
    assert dpfed.run(free, model={"start": "random"}).recipe.method is None
    with pytest.raises(RecipeError, match=r"model\.start must be left out with client 'fedauto'"):
        dpfed.run({**free, "rounds": 4}, method="dp-fedauto", model={"start": "random"})
    network = {"name": "network", "factory": lambda: torch.nn.Linear(5, 3), "start": "random"}
    with pytest.raises(RecipeError, match=r"model\.start must be left out with model\.name"):
        dpfed.run(free, model=network)


def test_a_run_keeps_what_its_server_stepped_by(tmp_path: Path) -> None:
    """Of a rule, of the authors' settings with a rate after them, and of what has neither."""
    untuned = run(method="dp-fedsofim", server=[{"name": "sofim"}], privacy={"epsilon": 1.0})
    assert untuned.steps["eta / rho"] == untuned.steps["eta"] / untuned.steps["rho"]
    assert untuned.steps["beta"] == pytest.approx(1 - 1 / 6**0.5)
    assert "steps" in untuned._repr_html_()
    tables = [{"name": "sofim", "preset": "paper"}, {"name": "scale", "rate": 2.0}]
    theirs = run(method="dp-fedsofim", server=tables, privacy={"epsilon": 5.0})
    assert theirs.steps == {"eta": 1.6, "rho": 0.5, "beta": 0.9, "eta / rho": 3.2}
    theirs.save(tmp_path)
    assert json.loads((tmp_path / "guarantee.json").read_text())["steps"] == theirs.steps
    again = dpfed.run(tmp_path / "recipe.toml")
    assert again.steps == theirs.steps
    assert run(method="dp-fedadam", server=[{"name": "adam"}]).steps == {}


def test_a_run_without_test_records_says_so_before_it_spends(tmp_path: Path) -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "own.npz", x=rng.normal(size=(300, 4)).astype("f4"), y=rng.integers(0, 3, 300)
    )
    data = {"source": str(tmp_path / "own.npz"), "partition": {"clients": 3}}
    (warning,) = run(data=data, rounds=2).warnings
    assert "no test records" in warning
    assert "data.holdout = 0.2" in warning
    held = run(data={**data, "holdout": 0.2}, rounds=2)
    assert held.warnings == ()
    assert held.accuracy >= 0


def test_a_run_goes_on_with_the_recipe_that_it_began_with(tmp_path: Path) -> None:
    def die(row: dict[str, Any], rounds: int) -> None:
        raise KeyboardInterrupt

    kept = tmp_path / "kept"
    with pytest.raises(KeyboardInterrupt):
        run(resume=kept, watch=die)
    faster = [{"name": "sofim"}, {"name": "scale", "rate": 2.0}]  # the plan does not know it
    with pytest.raises(DataError, match=r"server\.1\.rate must be 1\.0, .* holds, got 2\.0; "):
        run(resume=kept, server=faster)
    options = {**TINY["data"]["options"], "seed": 7}  # other records of the same shape
    with pytest.raises(DataError, match=r"data\.options\.seed must be None,.*, got 7"):
        run(resume=kept, data={**TINY["data"], "options": options})
    assert len(run(resume=kept).history) == 6  # the round that it died at the sight of is kept


# ------------------------------------------------------------------- nothing is written over


def test_a_second_run_writes_over_no_result_unless_told(tmp_path: Path) -> None:
    run(out=tmp_path / "out")
    before = (tmp_path / "out/model.safetensors").read_bytes()
    with pytest.raises(RecipeError, match="another run's result"):
        run(seed=1, out=tmp_path / "out")
    assert (tmp_path / "out/model.safetensors").read_bytes() == before
    run(seed=1, out=tmp_path / "out", overwrite=True)
    assert (tmp_path / "out/model.safetensors").read_bytes() != before


def test_a_training_has_a_folder_of_its_own(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert claim_folder(out, "one") == out
    (out / "metrics.jsonl").write_text("{}\n")
    assert claim_folder(out, "one") == out, "it goes on"
    assert claim_folder(out, "two") == tmp_path / "out-2"
    assert claim_folder(tmp_path / "out-2", "two") == tmp_path / "out-2"
    assert free_folder(out) == tmp_path / "out-2", "nothing was written there yet"
    (tmp_path / "out-2/guarantee.json").write_text("{}")
    assert free_folder(out) == tmp_path / "out-3"
    assert claim_folder(out, "two") == tmp_path / "out-2", "it goes on where it was"
    assert claim_folder(out, "three") == tmp_path / "out-3"


def test_a_training_began_with_its_first_process(tmp_path: Path) -> None:
    out = claim_folder(tmp_path / "out", "one")
    os.utime(out / "training.txt", (1_750_000_000, 1_750_000_000))
    (out / "metrics.jsonl").write_text("{}\n")
    assert claim_folder(out, "one") == out, "it goes on after a crash"
    assert began_at(out) == "2025-06-15T15:06:40+00:00"
    assert began_at(tmp_path) is None


def test_the_head_of_a_table_alone_takes_no_folder(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("round,accuracy\n")
    assert not is_taken(tmp_path)
    (tmp_path / "metrics.csv").write_text("round,accuracy\n1,0.5\n")
    assert is_taken(tmp_path)


def test_a_run_that_goes_on_keeps_the_model_that_is_there(tmp_path: Path) -> None:
    """Whatever goes wrong then, a model that was paid for is not lost."""
    (tmp_path / "model.safetensors").write_text("model")
    (tmp_path / "guarantee.json").write_text("{}")
    (tmp_path / "error.json").write_text("{}")
    clear_result(tmp_path, [{"round": 1}])
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"model.safetensors", "guarantee.json", "metrics.jsonl"}
    clear_result(tmp_path)
    assert not list(tmp_path.iterdir())
