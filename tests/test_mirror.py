# SPDX-License-Identifier: Apache-2.0
"""Where a module's tests are: ``room/module.py`` in ``tests/room/test_module.py``, or as listed.

A module that stands in ELSEWHERE has its tests in files that are named after what it is a part of;
each of them is a file of tests, and one of them must speak of it.

    python -m tests.test_mirror sums/secure.py      prints the files with a module's tests
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "dpfed"
MODULES = sorted(
    str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if path.name != "__init__.py"
)

ELSEWHERE: dict[str, tuple[str, ...]] = {
    "accounting/attack_odds.py": ("cli/test_start.py",),
    "accounting/ledger/balance.py": (
        "accounting/ledger/test_ledger.py",
        "accounting/ledger/test_drawn_rounds.py",
    ),
    "accounting/second_opinion.py": ("accounting/test_event_tree.py",),
    "accounting/events.py": ("accounting/ledger/test_ledger.py",),
    "accounting/ledger/journal.py": ("accounting/ledger/test_ledger.py",),
    "accounting/ledger/limits.py": ("attacks/test_participation.py",),
    "accounting/ledger/request.py": (
        "accounting/ledger/test_ledger.py",
        "accounting/ledger/test_drawn_rounds.py",
    ),
    "accounting/ledger/verification.py": ("accounting/ledger/test_claims.py",),
    "audit/adversary_view.py": ("audit/test_planted.py",),
    "audit/client_laws.py": ("laws/test_client_laws.py",),
    "audit/clip.py": ("audit/test_planted.py",),
    "audit/finding.py": ("audit/test_planted.py",),
    "audit/membership.py": ("cli/test_audit.py",),
    "audit/noise.py": ("audit/test_planted.py",),
    "audit/one_run.py": ("audit/test_planted.py",),
    "audit/order.py": ("audit/test_planted.py",),
    "audit/report.py": ("cli/test_audit.py",),
    "audit/suite.py": ("audit/test_planted.py",),
    "cli/demo.py": ("cli/test_start.py",),
    "cli/deploy/certificates.py": ("cli/deploy/test_deploy.py",),
    "cli/deploy/command.py": ("cli/deploy/test_deploy.py",),
    "cli/deploy/scripts.py": ("cli/deploy/test_deploy.py",),
    "cli/doctor.py": ("cli/test_start.py",),
    "cli/explain.py": ("cli/test_start.py",),
    "cli/explain_figures.py": ("cli/test_start.py",),
    "cli/explain_page.py": ("cli/test_start.py",),
    "cli/methods.py": ("cli/test_main.py",),
    "cli/new.py": ("cli/test_start.py",),
    "client/_blocks.py": ("client/test_fedadamw.py",),
    "client/_paced.py": ("client/test_fedauto.py", "oracles/test_fedauto.py"),
    "client/_local_steps.py": ("recipes/test_methods.py", "laws/test_client_laws.py"),
    "client/fedavg.py": ("recipes/test_methods.py", "laws/test_client_laws.py"),
    "client/gradient.py": ("oracles/test_algorithm1.py", "laws/test_client_laws.py"),
    "core/clipping.py": ("core/test_rows.py", "mechanisms/test_discrete_gaussian.py"),
    "core/errors.py": ("test_mistakes.py",),
    "core/metric.py": ("core/test_metric_rows.py", "laws/test_metric_laws.py"),
    "core/sum_protocol.py": ("sums/test_plain.py", "sums/test_secure.py"),
    "core/testing.py": ("laws/test_server_laws.py",),
    "core/types.py": ("training/test_round.py",),
    "data/_checks.py": ("data/test_readers.py",),
    "data/_trials.py": ("data/test_taps.py", "attacks/test_batch_losses.py"),
    "data/architectures.py": ("data/test_backbones.py",),
    "data/samplers.py": ("data/test_taps.py", "data/test_networks.py"),
    "experiments/findings.py": ("experiments/test_report.py",),
    "experiments/heat_map.py": ("experiments/test_figures.py",),
    "experiments/jobs.py": ("experiments/test_sweep.py",),
    "experiments/reproduce.py": ("experiments/test_sweep.py", "experiments/test_miniature.py"),
    "experiments/scores.py": ("experiments/test_study_tables.py",),
    "experiments/study.py": ("experiments/test_sweep.py",),
    "flower.py": ("test_public_api.py", "training/flower/test_strategy.py"),
    "mechanisms/_noise.py": ("mechanisms/test_gaussian.py", "laws/test_mechanism_laws.py"),
    "metrics/_classes.py": ("metrics/test_recall.py", "metrics/test_auc.py"),
    "metrics/_numbers.py": ("metrics/test_accuracy.py", "metrics/test_loss.py"),
    "recipes/federation.py": ("recipes/test_build.py",),
    "recipes/flower_app.py": ("recipes/test_simulation.py",),
    "recipes/prepared.py": ("recipes/test_run.py", "training/test_checkpoint.py"),
    "recipes/result.py": ("recipes/test_run.py", "recipes/test_simulation.py"),
    "recipes/sinks/csv.py": ("recipes/sinks/test_open.py",),
    "recipes/sinks/mlflow.py": ("recipes/sinks/test_open.py",),
    "recipes/sinks/tensorboard.py": ("recipes/sinks/test_open.py",),
    "server/_moments.py": ("server/test_adam.py", "server/test_yogi.py"),
    "server/scale.py": ("laws/test_server_laws.py",),
    "sums/secagg/client.py": ("sums/test_secure.py", "sums/test_secure_attacks.py"),
    "sums/secagg/messages.py": ("sums/test_secure_attacks.py",),
    "sums/secagg/server.py": ("sums/test_secure.py", "sums/test_secure_attacks.py"),
    "cli/officer.py": ("silo/test_keeper.py",),
    "cli/silo.py": ("silo/test_gate.py", "cli/test_silo_install.py"),
    "cli/silo_check.py": ("cli/test_silo_install.py",),
    "training/account.py": ("accounting/ledger/test_ledger.py",),
    "training/cohorts.py": ("training/test_round.py", "attacks/test_participation.py"),
    "training/answer.py": ("training/test_round.py", "laws/test_client_laws.py"),
    "training/ending.py": ("training/test_loop.py",),
    "training/flower/answers.py": ("attacks/test_asking_again.py",),
    "training/flower/client.py": ("training/flower/test_strategy.py",),
    "training/flower/responder.py": ("attacks/test_asking_again.py", "attacks/test_kept_noise.py"),
    "training/flower/codec.py": ("training/flower/test_strategy.py", "test_fuzz.py"),
    "training/flower/state.py": ("training/flower/test_resume.py", "test_fuzz.py"),
    "training/flower/trained.py": (
        "attacks/test_batchnorm.py",
        "attacks/test_local_evaluation.py",
    ),
    "training/flower/enrolment.py": (
        "training/flower/test_strategy.py",
        "training/flower/test_slots.py",
    ),
    "training/flower/replies.py": ("training/flower/test_strategy.py",),
    "training/flower/transport.py": ("training/test_loop.py", "training/flower/test_strategy.py"),
    "training/history.py": ("recipes/sinks/test_open.py",),
    "training/plan.py": ("training/test_round.py", "recipes/test_build.py"),
    "training/soundness.py": ("training/test_round.py", "recipes/test_build.py"),
    "training/state_tree.py": ("training/test_checkpoint.py", "test_fuzz.py"),
}


def mirror(module: str) -> Path:
    path = Path(module)
    return TESTS / path.parent / f"test_{path.stem.lstrip('_')}.py"


def files_for(module: str) -> list[Path]:
    """The files with a module's tests."""
    return [TESTS / name for name in ELSEWHERE.get(module, ())] or [mirror(module)]


def main(*modules: str) -> None:
    for module in (each.removeprefix("src/dpfed/") for each in modules or [""]):
        if module not in MODULES:
            raise SystemExit(f"src/dpfed has no {module!r}; name a module such as sums/secure.py")
        for path in files_for(module):
            print(path.relative_to(TESTS.parent))


@pytest.mark.parametrize("module", MODULES)
def test_a_modules_tests_are_found_by_its_name(module: str) -> None:
    where = mirror(module).relative_to(TESTS.parent)
    if module in ELSEWHERE:
        assert not mirror(module).exists(), f"{module} has {where}: take it out of ELSEWHERE"
    else:
        wanted = f"{module} has no tests: write {where}, or name its tests in ELSEWHERE"
        assert mirror(module).exists(), wanted
    for path in files_for(module):
        assert path.is_file(), f"{module}: {path} is not there"
        assert path.name.startswith("test_"), f"{module}: {path} is not a file of tests"


def test_the_list_has_no_module_that_is_gone() -> None:
    assert set(ELSEWHERE) <= set(MODULES)


def words(module: str) -> set[str]:
    """What a test that speaks of a module may say: its path, its name, or a name that it has."""
    tree = ast.parse((SOURCE / module).read_text(encoding="utf-8"))
    defined = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    stem = Path(module).stem.lstrip("_")
    return {stem, *(name for name in defined if not name.startswith("_"))}


@pytest.mark.parametrize("module", [each for each in MODULES if each in ELSEWHERE])
def test_the_tests_elsewhere_speak_of_it(module: str) -> None:
    texts = [(TESTS / name).read_text(encoding="utf-8") for name in ELSEWHERE[module]]
    assert any(word in text for text in texts for word in words(module)), module


def test_a_modules_tests_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main("sums/secure.py", "src/dpfed/core/sum_protocol.py")
    said = capsys.readouterr().out.split()
    assert said == ["tests/sums/test_secure.py", "tests/sums/test_plain.py", said[0]]
    with pytest.raises(SystemExit, match=r"has no 'sums/nothing\.py'; name a module"):
        main("sums/nothing.py")


if __name__ == "__main__":
    main(*sys.argv[1:])
