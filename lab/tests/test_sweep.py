# SPDX-License-Identifier: Apache-2.0
"""Searching and running studies: what is tried, on which records, and that a kill loses nothing."""

from __future__ import annotations

import csv
import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from lab.tests.studies import STUDY, write

from dpfed.accounting import gdp
from dpfed.core.errors import RecipeError, UnsoundPlan
from dpfed.recipes import schema as recipes
from dpfed_lab import study as studies
from dpfed_lab.jobs import ProgressFile, Store, make_job, run_jobs, run_one
from dpfed_lab.reproduce import TIMING, dump_study, miniature, reproduce
from dpfed_lab.sweep import (
    RUNS,
    Workspace,
    _best,
    at_edges,
    entries_of,
    final,
    label_of,
    score,
    search,
    settings_for,
    trial,
    tuning_cost,
)

# ----------------------------------------------------------------------------------------- studies


def small(**changes: Any) -> studies.Study:
    return msgspec.convert({**STUDY, **changes}, studies.Study)


def test_a_study_goes_to_toml_and_back(tmp_path: Path) -> None:
    study = studies.load_study(write(tmp_path))
    assert study == small()
    (tmp_path / "again.toml").write_text(dump_study(study))
    assert studies.load_study(tmp_path / "again.toml") == study


def test_the_packages_studies_are_sound() -> None:
    assert "sofim-cifar10" in studies.study_names()
    for name in studies.study_names():
        study = studies.load_study(name)
        assert study.about
        assert study.source
        labels = [method.label for method in study.methods]
        assert len(set(labels)) == len(labels)
        assert study.baseline in labels
        for entry in entries_of(study):  # every trial is a recipe that parses
            point = {key: values[0] for key, values in entry[2].coarse.items()}
            trial(Workspace(study, Path()), entry, point)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "title = 1",
            r"bad\.toml' cannot be read \(Expected `str`, got `int`.*; correct that place",
        ),
        ("nonsense", r"bad\.toml' cannot be read \(Expected '=' after a key"),
        (
            'title = "x"\nbas = 1',
            r"bad\.toml' cannot be read \(Object contains unknown field `bas`",
        ),
    ],
)
def test_a_wrong_study_is_answered_in_a_sentence(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(RecipeError, match=message):
        studies.load_study(tmp_path / "bad.toml")


def test_an_unknown_study_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(RecipeError, match=r"study must be .*cifar10.*, got 'sofim-cifar11'; "):
        studies.load_study("sofim-cifar11")


def test_cells_are_all_combinations_and_tuning_uses_the_first_of_what_is_not_tuned() -> None:
    study = small()
    everything = [cell for cell, _ in studies.cells(study)]
    assert len(everything) == 4
    assert everything[0] == {"epsilon": "1", "split": "iid"}
    assert [cell["split"] for cell, _ in studies.cells(study, tuned_only=True)] == ["iid", "iid"]
    assert studies.tuned_cell(study, {"epsilon": "8", "split": "skewed"}) == {
        "epsilon": "8",
        "split": "iid",
    }


def test_a_value_may_borrow_the_settings_of_another() -> None:
    axis = {**STUDY["axes"][0], "values": [0.5, 1.0, 8.0], "borrow": {"0.5": "1"}}
    study = small(axes=[axis])
    assert [cell["epsilon"] for cell, _ in studies.cells(study)] == ["0.5", "1", "8"]
    assert [cell["epsilon"] for cell, _ in studies.cells(study, tuned_only=True)] == ["1", "8"]
    assert studies.tuned_cell(study, {"epsilon": "0.5"}) == {"epsilon": "1"}
    settings = {"epsilon 1 | DP-FedGD": {"set": {"server.0.rate": 0.7}}}
    assert settings_for(study, settings, {"epsilon": "0.5"}, "DP-FedGD") == {"server.0.rate": 0.7}


# -------------------------------------------------------------------------------------------- jobs


def job(**changes: Any) -> Any:
    return make_job(STUDY["base"], {"name": "one"}, {"privacy.epsilon": 1.0, **changes})


def test_a_key_follows_from_the_recipe_and_the_labels() -> None:
    other = make_job(STUDY["base"], {"name": "two"}, {"privacy.epsilon": 1.0})
    assert job().key == job().key
    assert len({job().key, other.key, job(seed=3).key}) == 3


def test_runs_that_were_kept_compressed_are_not_made_again(tmp_path: Path) -> None:
    first = Store.open(tmp_path / "a" / RUNS)
    made = run_jobs([job()], first, workers=1)
    (tmp_path / "b").mkdir()
    kept = gzip.compress((tmp_path / "a" / RUNS).read_bytes())
    (tmp_path / "b" / f"{RUNS}.gz").write_bytes(kept)
    again = Store.open(tmp_path / "b" / RUNS)
    assert run_jobs([job()], again, workers=1) == made
    assert not (tmp_path / "b" / RUNS).exists()


def test_a_value_at_the_edge_of_a_grid_is_named() -> None:
    grids = {"coarse": {"a": [1.0, 10.0], "b": [1, 2], "c": [True, False, 3]}, "fine": {"a": [3.0]}}
    method = msgspec.convert({"label": "m", **grids}, studies.Contestant)
    assert at_edges(method, {"a": 10.0, "b": 2, "c": True}) == ["a"]
    assert at_edges(method, {"a": 1.0}) == ["a"]
    assert at_edges(method, {"a": 3.0, "b": 1}) == []


def test_progress_is_in_a_file(tmp_path: Path) -> None:
    kept = ProgressFile(tmp_path)

    def facts() -> dict[str, Any]:
        found: dict[str, Any] = json.loads((tmp_path / "progress.json").read_text())
        return found

    kept.write(7, 9, "m seed 0: 50 %")  # seven were made by an earlier process
    assert (facts()["done"], facts()["of"], facts()["seconds_left"]) == (7, 9, None)
    time.sleep(0.6)
    kept.write(8, 9, "m seed 1: 50 %")
    assert facts()["seconds_left"] == 1
    kept.write(1, 4, "the next stage")
    assert facts()["seconds_left"] is None


def test_changes_of_every_type_reach_the_recipe() -> None:
    made = job(
        **{
            "name": 'quo"ted',
            "data.partition.options": {"alpha": 0.5},
            "method": "dp-fedfc",
            "client.gamma": 2.0,
            "server": [{"name": "scale", "rate": 3.0}],
        }
    ).recipe
    assert made.name == 'quo"ted'
    assert made.data.partition.options == {"alpha": 0.5}
    assert made.client == {"name": "fedfc", "gamma": 2.0}
    assert made.server == [{"name": "scale", "rate": 3.0}]


def test_a_row_says_all_that_a_table_needs() -> None:
    kept = make_job(STUDY["base"], {"name": "one"}, {"privacy.epsilon": 1.0}, keep=("correct",))
    row = run_one(kept)
    assert row["epsilon_server"] == pytest.approx(1.0)
    assert "DP for each record" in row["guarantee"]
    assert set(row["by_round"]) == {"1", "2", "3", "4"}
    correct = np.unpackbits(np.frombuffer(bytes.fromhex(row["correct"]), np.uint8))[: row["tested"]]
    assert correct.mean() == pytest.approx(row["accuracy"])
    assert run_one(kept)["accuracy"] == row["accuracy"]


def test_a_run_that_fails_names_itself() -> None:
    with pytest.raises((RecipeError, UnsoundPlan)):
        run_one(make_job(STUDY["base"], {"name": "odd"}, {"privacy.epsilon": 1.0, "rounds": 0}))


def test_stored_runs_are_not_run_again_and_a_cut_line_is(tmp_path: Path) -> None:
    jobs = [job(), job(seed=1), job()]
    seen: list[tuple[int, int]] = []
    store = Store.open(tmp_path / "deep" / RUNS)
    rows = run_jobs(jobs, store, 1, lambda done, total, _: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]
    assert rows[0] == rows[2]
    path = tmp_path / "deep" / RUNS
    first, second = path.read_text().splitlines()
    path.write_text(first + "\n" + second[:40])  # as a kill leaves it
    again = Store.open(path)
    assert len(again.rows) == 1
    assert [r["accuracy"] for r in run_jobs(jobs, again, 1)] == [r["accuracy"] for r in rows]
    lines = path.read_text().splitlines()
    assert len(lines) == 3
    assert json.loads(lines[2])["key"] == json.loads(second)["key"]


# ------------------------------------------------------------------------------------------ search


def test_trials_hold_records_out_and_never_touch_the_test_set(tmp_path: Path) -> None:
    workspace = Workspace(small(), tmp_path)
    entry = entries_of(workspace.study)[0]
    made = trial(workspace, entry, {"server.0.rate": 0.3}).recipe
    assert (made.data.validation, made.rounds) == (0.2, 3)
    from dpfed.recipes.federation import federation

    silos = federation(made)
    whole = federation(msgspec.structs.replace(made, data=recipes.load_recipe(STUDY["base"]).data))
    assert silos.test is not None
    assert whole.test is not None
    held = {tuple(row) for row in silos.test.x.tolist()}
    assert not held & {tuple(row) for row in whole.test.x.tolist()}
    assert not held & {tuple(row) for client in silos.clients for row in client.x.tolist()}


def test_no_two_cells_are_judged_by_one_seed_and_all_methods_of_a_cell_are(tmp_path) -> None:
    def seeds(**tune: int) -> dict[str, set[int]]:
        study = small(tune={**STUDY["tune"], **tune})
        found: dict[str, set[int]] = {}
        for entry in entries_of(study):
            made = trial(Workspace(study, tmp_path), entry, {})
            found.setdefault(label_of(entry[0], ""), set()).add(made.recipe.seed)
        return found

    by_cell = seeds()
    assert all(len(each) == 1 for each in by_cell.values())
    assert len(set.union(*by_cell.values())) == len(by_cell) == 2
    assert by_cell == seeds()
    assert not set.union(*by_cell.values()) & set.union(*seeds(seed=8).values())


def test_generated_records_are_drawn_anew_with_the_seed_where_a_study_says_so(tmp_path) -> None:
    kept = {**STUDY["final"], "redraw": ["data.options.seed"]}
    study = small(final=kept)
    made = trial(Workspace(study, tmp_path), entries_of(study)[0], {"server.0.rate": 0.3}).recipe
    assert made.data.options["seed"] == made.seed

    def first(study: studies.Study, folder: str) -> list[dict[str, Any]]:
        chosen = {"DP-FedGD": {"server.0.rate": 0.3}, "DP-FedAvg": {}}
        settings = {
            label_of(cell, m.label): {"set": chosen[m.label]} for cell, _, m in entries_of(study)
        }
        rows = final(Workspace(study, tmp_path / folder, workers=1), settings)
        return [row for row in rows if row["method"] == "DP-FedGD"][:2]

    assert len({row["data"] for row in first(study, "anew")}) == 2  # the source names its seed
    assert len({row["data"] for row in first(small(), "same")}) == 1


DISTANCES = {
    "data": {
        "source": "synthetic",
        "partition": {"name": "natural"},
        "options": {"kind": "glm", "clients": 3, "records": 300, "features": 3},
    },
    "model": {"name": "logistic"},
    "privacy": {"noise": "keyed", "epsilon": 8.0},
}
NEWTON = {
    "label": "FedNewton",
    "set": {"method": "fednewton", "rounds": 2, "client.start": 1, "client.steps": 2},
    "coarse": {"client.damping": [0.1, 1.0]},
}


@pytest.mark.parametrize("kind", ["test", "exact", "federated", "estimate", "truth"])
def test_the_studys_own_evaluation_judges_and_a_methods_own_rounds_count(kind: str) -> None:
    base = {**DISTANCES, "rounds": 5, "evaluation": {"kind": kind}}
    workspace = Workspace(small(base=base, axes=[], methods=[STUDY["methods"][0], NEWTON]), Path())
    ours, own = (trial(workspace, entry, {}).recipe for entry in entries_of(workspace.study))
    assert (ours.rounds, own.rounds) == (STUDY["tune"]["rounds"], 2) == (3, 2)
    for made in (ours, own):
        assert (made.evaluation.kind, made.evaluation.every) == (kind, made.rounds)
        assert made.data.validation == 0.2


def test_what_a_study_says_nothing_about_is_judged_on_held_out_records() -> None:
    workspace = Workspace(small(), Path())
    assert trial(workspace, entries_of(workspace.study)[0], {}).recipe.evaluation.kind == "test"


@pytest.mark.parametrize("kind", ["estimate", "truth"])
def test_a_search_by_distance_keeps_the_nearest(kind: str, tmp_path: Path) -> None:
    base = {**DISTANCES, "evaluation": {"kind": kind}}
    workspace = Workspace(small(base=base, axes=[], methods=[NEWTON]), tmp_path, workers=1)
    (found,) = search(workspace).values()
    rows = list(workspace.store().rows.values())
    assert len(rows) == found["tried"] == 2
    assert all(row["accuracy"] is None for row in rows)
    assert found["validation"] == min(row["loss"] for row in rows)


@pytest.mark.parametrize("name", ["fednewton-mse", "fednewton-mnist"])
def test_the_newton_studies_search_what_they_say(name: str) -> None:
    study = studies.load_study(name)
    kind = study.base.get("evaluation", {}).get("kind", "test")
    for entry in entries_of(study):
        made = trial(Workspace(study, Path()), entry, {}).recipe
        assert made.rounds == entry[2].set.get("rounds", study.base["rounds"])
        assert (made.evaluation.kind, made.evaluation.every) == (kind, made.rounds)


def test_no_setting_is_judged_where_nothing_is_measured() -> None:
    base = {**STUDY["base"], "evaluation": {"kind": "off"}}
    workspace = Workspace(small(base=base), Path())
    with pytest.raises(RecipeError, match=r"'off', which.*use 'test'"):
        trial(workspace, entries_of(workspace.study)[0], {})


def test_two_stages_of_grids_choose_the_best_of_both(tmp_path: Path) -> None:
    workspace = Workspace(small(), tmp_path, workers=1)
    found = search(workspace)
    assert set(found) == {
        label_of({"epsilon": e, "split": "iid"}, m)
        for e in ("1", "8")
        for m in ("DP-FedGD", "DP-FedAvg")
    }
    rows = list(workspace.store().rows.values())
    for name, chosen in found.items():
        tried = [row for row in rows if row["entry"] == name]
        assert chosen["tried"] == len(tried) == (4 if "FedGD" in name else 2)
        assert chosen["validation"] == max(row["accuracy"] for row in tried)


def test_a_misspelt_key_of_a_grid_is_found_before_the_first_run(tmp_path: Path) -> None:
    methods = [
        {"label": "DP-FedGD", "set": {"method": "dp-fedgd"}, "coarse": {"server.0.rte": [0.1, 1.0]}}
    ]
    workspace = Workspace(small(methods=methods), tmp_path, workers=1)
    with pytest.raises(RecipeError, match="DP-FedGD: server 'scale' has no option 'rte'"):
        search(workspace)
    assert not workspace.store().rows


@pytest.mark.parametrize(
    ("trials", "searched", "bound"),
    [
        (40, "coarse = { x = [1] }", "0 for grids"),
        (0, "space = { x = { low = 1, high = 2 } }", "at least 1 for a space"),
    ],
)
def test_a_search_that_would_try_one_point_over_and_over_is_refused(
    tmp_path: Path, trials: int, searched: str, bound: str
) -> None:
    """Before: 40 trials that a study had from the one it is like ran the same point 40 times."""
    path = tmp_path / "study.toml"
    path.write_text(
        f'like = "sofim-wide"\n[tune]\ntrials = {trials}\n[[methods]]\nlabel = "mine"\n'
        f'set = {{ method = "dp-fedgd" }}\n{searched}\n'
    )
    with pytest.raises(RecipeError, match=f"tune.trials must be {bound}, as 'mine' has, got"):
        studies.load_study(path)


@pytest.mark.long
def test_optuna_searches_the_space_and_goes_on_where_it_was(tmp_path: Path) -> None:
    study = small(tune={**STUDY["tune"], "trials": 3}, axes=STUDY["axes"][:1])
    calls: list[int] = []
    workspace = Workspace(study, tmp_path, workers=2, watch=lambda done, _, __: calls.append(done))
    found = search(workspace)
    assert calls[-1] == 12
    for name, chosen in found.items():
        assert chosen["tried"] == 3
        if "FedAvg" in name:
            assert chosen["set"]["client.steps"] in {1, 2, 3}
            assert chosen["set"]["server.0.rate"] in {0.5, 1.0}
        else:
            assert 0.01 <= chosen["set"]["server.0.rate"] <= 10
    size = (tmp_path / RUNS).stat().st_size
    assert search(Workspace(study, tmp_path, workers=2)) == found
    assert (tmp_path / RUNS).stat().st_size == size


def test_labels_that_are_not_classes_are_judged_by_their_loss() -> None:
    assert score({"accuracy": 0.5, "loss": 9.0}) == 0.5
    assert score({"accuracy": None, "loss": 2.0}) == -2.0
    assert score({"accuracy": None, "loss": float("nan")}) == -np.inf
    tried = [{"point": {}, "accuracy": None, "loss": loss} for loss in (3.0, 2.0)]
    assert _best(tried)["validation"] == 2.0


def test_a_trial_that_diverged_is_chosen_only_if_all_did() -> None:
    wild = {"point": {"rate": 3.0}, "accuracy": 0.5, "loss": 21.0}
    tame = {"point": {"rate": 0.1}, "accuracy": 0.2, "loss": 1.0}
    refused = {
        "entry": "one",
        "point": {"rate": -1.0},
        "accuracy": None,
        "loss": None,
        "refused": "no",
    }
    assert score(wild) == -np.inf < score(tame)
    assert _best([refused, wild, tame])["set"] == {"rate": 0.1}
    assert _best([refused, wild])["set"] == {"rate": 3.0}
    with pytest.raises(RecipeError, match="setting that was tried"):
        _best([refused])


def test_what_tuning_would_cost_is_the_composition_of_its_runs() -> None:
    mu = gdp.mu_for(1.0, 1e-5)
    assert tuning_cost(1, 1.0, 1e-5) == pytest.approx(1.0)
    assert tuning_cost(100, 1.0, 1e-5) == pytest.approx(gdp.epsilon_for(1e-5, 10 * mu))


# ------------------------------------------------------------------------------------------- final


def test_final_runs_use_the_settings_of_their_cell(tmp_path: Path) -> None:
    study = small()
    settings = {"epsilon 8 | split iid | DP-FedGD": {"set": {"server.0.rate": 0.7}}}
    rows = final(Workspace(study, tmp_path, workers=1), settings)
    assert len(rows) == 2 * 2 * 2 * 2
    assert [row["seed"] for row in rows[:2]] == [0, 1]
    for row in rows:
        tuned = row["epsilon"] == "8" and row["method"] == "DP-FedGD"
        assert row["set"] == ({"server.0.rate": 0.7} if tuned else {})
        assert set(row["by_round"]) == {"2", "4"}
    fixed = small(settings={"DP-FedAvg": {"client.steps": 2}})
    assert settings_for(fixed, {}, {"epsilon": "1", "split": "iid"}, "DP-FedAvg") == {
        "client.steps": 2
    }


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [{name: v for name, v in row.items() if name not in TIMING} for row in rows]


@pytest.mark.slow
def test_two_runs_give_the_same_table_but_for_timing(tmp_path: Path) -> None:
    source = write(tmp_path)
    for name in ("one", "two"):
        reproduce(source, tmp_path / name, tune=True, workers=1)
    assert table(tmp_path / "one/final.csv") == table(tmp_path / "two/final.csv")
    assert (tmp_path / "one/settings.json").read_text() == (
        tmp_path / "two/settings.json"
    ).read_text()
    assert studies.load_study(tmp_path / "one/study.toml") == small()


CHILD = """
import sys
from pathlib import Path
from dpfed_lab.reproduce import reproduce

if __name__ == "__main__":
    reproduce(sys.argv[1], Path(sys.argv[2]), tune=True, workers=2)
"""


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def _runs(pid: str) -> bool:
    """Whether a process runs; one that ended stays listed as a zombie where nobody waits for it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_sweep_goes_on_and_gives_the_same_table(tmp_path: Path) -> None:
    source, script = write(tmp_path), tmp_path / "child.py"
    script.write_text(CHILD)
    reproduce(source, tmp_path / "whole", tune=True, workers=1)
    command = [sys.executable, str(script), str(source), str(tmp_path / "killed")]
    child = subprocess.Popen(
        command, env=os.environ | {"OMP_NUM_THREADS": "1"}, start_new_session=True
    )
    runs = tmp_path / "killed" / RUNS
    deadline = time.monotonic() + 180
    while not (runs.exists() and runs.read_text().count("\n") >= 3):
        assert time.monotonic() < deadline
        assert child.poll() is None
        time.sleep(0.02)
    workers = _children(child.pid)
    assert workers
    child.kill()  # the parent alone: its workers leave by themselves
    child.wait()
    while any(_runs(worker) for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    done = len(Store.open(runs).rows)
    assert not (tmp_path / "killed/final.csv").exists()
    again: list[int] = []
    reproduce(source, tmp_path / "killed", tune=True, workers=1, watch=lambda *_: again.append(1))
    whole = len(Store.open(tmp_path / "whole" / RUNS).rows)
    assert len(again) == whole - done
    assert table(tmp_path / "killed/final.csv") == table(tmp_path / "whole/final.csv")


def test_a_miniature_is_the_same_study_in_few_rounds() -> None:
    mini = miniature(studies.load_study("sofim-cifar10"))
    assert [axis.values for axis in mini.axes] == [[1.0, 5.0]]
    assert len(entries_of(mini)) == 2 * len(mini.methods)
    assert mini.final.seeds == (0,)
    assert mini.base["rounds"] == 6
    assert all(len(v) == 1 for method in mini.methods for v in method.coarse.values())


def test_a_miniature_keeps_the_ends_of_what_is_searched() -> None:
    """A value that borrows would miss its lender; choices are shortened like values."""
    choices = {name: {"data.partition.name": name} for name in ("iid", "dirichlet", "shards", "x")}
    axes = [
        {**STUDY["axes"][0], "values": [0.5, 1.0, 3.0, 8.0], "borrow": {"0.5": "1"}},
        {"label": "split", "choices": choices, "borrow": {"x": "iid"}},
    ]
    mini = miniature(small(axes=axes))
    assert mini.axes[0].values == [1.0, 8.0]
    assert list(mini.axes[1].choices) == ["iid", "shards"]
    assert [axis.borrow for axis in mini.axes] == [{}, {}]
    assert all(studies.tuned_cell(mini, cell) == cell for cell, _ in studies.cells(mini))


# ------------------------------------------------------------------------------ studies like others


def test_a_study_stands_on_the_one_that_it_is_like(tmp_path: Path) -> None:
    below = studies.load_study("sofim-cifar10")
    (tmp_path / "mine.toml").write_text(
        'like = "sofim-cifar10"\ntitle = "Mine"\n'
        '[base.data.partition]\nname = "iid"\noptions = {}\n'
    )
    mine = studies.load_study(tmp_path / "mine.toml")
    assert mine.title == "Mine"
    assert mine.methods == below.methods
    partition = mine.base["data"]["partition"]
    assert partition == {"name": "iid", "clients": 20, "options": {}}
    assert mine.base["privacy"] == below.base["privacy"]
    (tmp_path / "whole.toml").write_text(dump_study(mine))
    assert studies.load_study(tmp_path / "whole.toml") == msgspec.structs.replace(mine, like="")


def test_a_setting_that_a_method_refuses_is_the_worst_and_stops_nothing(tmp_path: Path) -> None:
    changes = {"method": "dp-adafedprox", "client.rate": 10.0, "privacy.epsilon": 1.0}
    method = {"label": "AdaFedProx", "set": changes, "coarse": {"client.mu": [0.01, 5.0]}}
    workspace = Workspace(small(methods=[method], axes=[]), tmp_path, workers=1)
    assert search(workspace)["AdaFedProx"]["set"] == {"client.mu": 0.01}
    refused = [row for row in workspace.store().rows.values() if "refused" in row]
    assert [row["point"]["client.mu"] for row in refused] == [5.0]
    worse = small(methods=[{**method, "coarse": {"client.mu": [5.0]}}], axes=[])
    with pytest.raises(RecipeError, match=r"valid; adafedprox\.mu"):
        search(Workspace(worse, tmp_path, workers=1))


def test_an_axis_may_not_be_called_like_a_column_of_a_run(tmp_path: Path) -> None:
    axis = {"label": "data", "key": "privacy.epsilon", "values": [1.0]}
    with pytest.raises(RecipeError, match=r"axes\.label must not be 'data'"):
        studies.load_study(write(tmp_path, axes=[axis]))
    row = run_one(make_job(STUDY["base"], {}, {"method": "dp-fedgd", "privacy.epsilon": 1.0}))
    assert set(row) <= studies.TAKEN
