# SPDX-License-Identifier: Apache-2.0
"""``dpfed audit``: the table, the files, the exit codes; and the report's edge cases."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpfed.audit import report, suite
from dpfed.audit.finding import Verdict, judged, skipped, subject
from dpfed.cli.main import app
from dpfed.core.errors import RecipeError
from dpfed.recipes import schema as recipes
from tests.audit.planted import BUGS, small, target

RUNNER = CliRunner()
ONLY = ["--only", "noise-scale", "--only", "clip"]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(recipes.dump_recipe(small()), encoding="utf-8")
    return path


def test_a_sound_recipe_passes_and_leaves_its_findings(recipe: Path, tmp_path: Path) -> None:
    done = RUNNER.invoke(
        app, ["audit", str(recipe), "--quick", "--seed", "1", "--out", str(tmp_path / "out"), *ONLY]
    )
    assert done.exit_code == 0, done.output
    assert "nothing found" in done.output
    found = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert not found["flagged"]
    assert [each["audit"] for each in found["audits"]] == ["noise-scale", "clip"]
    assert found["guarantee"].startswith("(1, 1e-05)-DP")
    assert (tmp_path / "out" / "audit.png").stat().st_size > 10_000


def test_a_flag_is_exit_code_1(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = judged("noise-scale", 1.0, math.inf, "all", "planted")
    monkeypatch.setitem(suite.AUDITS, "noise-scale", lambda _: flag)
    asked = ["audit", str(recipe), "--out", str(tmp_path), "--only", "noise-scale"]
    done = RUNNER.invoke(app, asked)
    assert done.exit_code == 1
    assert "FLAGGED" in done.output
    assert json.loads((tmp_path / "audit.json").read_text())["audits"][0]["found"] == "inf"


def test_an_audit_that_does_not_exist_is_refused_before_anything_runs() -> None:
    with pytest.raises(RecipeError, match="there is no audit 'noise'"):
        suite.chosen(["noise"])
    assert suite.chosen(["clip", "noise-scale", "clip"]) == ["noise-scale", "clip"]
    assert suite.chosen() == list(suite.AUDITS)


def test_a_recipe_that_guarantees_nothing_is_refused() -> None:
    with pytest.raises(RecipeError, match="nothing to audit"):
        subject(small(mechanism="clear", epsilon=None))


def test_the_recipes_epsilon_is_held_against_a_plan_that_claims_more() -> None:
    sound = target()
    assert sound.claimed <= 1.0
    assert sound.others < sound.claimed


def test_membership_needs_records_that_were_held_out() -> None:
    from dataclasses import replace

    whole = target()
    silos = replace(whole.federation, test=None)
    found = suite.AUDITS["membership"](replace(whole, federation=silos))
    assert found.verdict is Verdict.SKIPPED
    assert "data.holdout" in found.detail


def test_membership_of_a_model_that_learned_its_records_by_heart() -> None:
    import numpy as np

    from dpfed.audit.membership import advantage_bound, attack
    from dpfed.audit.statistics import epsilon_of

    rng = np.random.default_rng(0)
    members, others = rng.normal(2, 1, 2000), rng.normal(0, 1, 2000)
    true, false, low, high = attack(members, others)
    assert true - false > advantage_bound(1.0, 1e-5) == pytest.approx(math.tanh(0.5), abs=1e-5)
    assert epsilon_of(low, high, 1e-5) > 1.0
    assert advantage_bound(math.inf, 1e-5) == pytest.approx(1.0)


def test_a_table_and_a_figure_of_all_verdicts(tmp_path: Path) -> None:
    sound = target()
    findings = [
        judged("noise-scale", 1.0, 2.2, "sees noise 1 % short", "short", 0.99),
        judged("order", 1.0, math.inf, "sees one bit", "broken"),
        judged("clip", 1.0, math.nan, "sees", "fine"),
        skipped("membership", 0.3, "no records"),
    ]
    assert [each.verdict.name for each in findings] == ["FLAGGED", "FLAGGED", "PASSED", "SKIPPED"]
    assert report.findings_table(findings).row_count == 4
    report.write_findings(sound, findings, tmp_path / "deep" / "er")
    assert (tmp_path / "deep" / "er" / "audit.png").exists()
    assert report.findings_json(sound, findings)["flagged"]


def test_a_bug_is_reported_with_what_it_is_worth() -> None:
    found = suite.AUDITS["noise-scale"](BUGS["half the noise"](target()))
    assert found.found == pytest.approx(2.13, abs=0.05)  # epsilon of twice the mu of epsilon 1
    assert "0.50" in found.detail
