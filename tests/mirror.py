# SPDX-License-Identifier: Apache-2.0
"""Where a module's tests are: ``room/module.py`` in ``tests/room/test_module.py``, or as listed.

A module that stands in ELSEWHERE has its tests in files that are named after what it is a part of;
each of them is a file of tests, and one of them must speak of it.

    python -m tests.mirror sums/secure.py      prints the files with a module's tests
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "dpfed"

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
    "cli/features.py": ("cli/test_main.py",),
    "cli/methods.py": ("cli/test_main.py",),
    "cli/new.py": ("cli/test_start.py",),
    "cli/run.py": ("cli/test_main.py",),
    "client/questions/cells.py": ("client/questions/test_rows.py",),
    "client/questions/columns.py": ("client/questions/test_rows.py",),
    "client/questions/forecast.py": ("recipes/test_answers.py",),
    "client/questions/model.py": ("client/test_statistics.py",),
    "client/_blocks.py": ("client/test_fedadamw.py",),
    "client/_paced.py": ("client/test_fedauto.py", "oracles/test_fedauto.py"),
    "client/_local_steps.py": ("recipes/test_methods.py", "laws/test_client_laws.py"),
    "client/fedavg.py": ("recipes/test_methods.py", "laws/test_client_laws.py"),
    "client/gradient.py": ("oracles/test_algorithm1.py", "laws/test_client_laws.py"),
    "core/clipping.py": ("core/test_rows.py", "mechanisms/test_discrete_gaussian.py"),
    "core/errors.py": ("test_mistakes.py",),
    "core/sum_protocol.py": ("sums/test_plain.py", "sums/test_secure.py"),
    "core/testing.py": ("laws/test_server_laws.py",),
    "core/types.py": ("training/test_round.py",),
    "_version.py": ("silo/test_policy.py",),
    "data/_checks.py": ("data/test_readers.py",),
    "data/module_checks.py": ("data/test_layer_hooks.py", "attacks/test_batch_losses.py"),
    "data/architectures.py": ("data/test_backbones.py",),
    "data/folder_digest.py": ("attacks/test_model_options.py",),
    "data/places.py": ("data/test_datasets.py", "data/test_tables.py"),
    "data/samplers.py": ("data/test_layer_hooks.py", "data/test_networks.py"),
    "flower.py": ("test_public_api.py", "training/flower/test_strategy.py"),
    "mechanisms/_noise.py": ("mechanisms/test_gaussian.py", "laws/test_mechanism_laws.py"),
    "metrics/_classes.py": ("metrics/test_recall.py", "metrics/test_auc.py"),
    "metrics/_numbers.py": ("metrics/test_accuracy.py", "metrics/test_loss.py"),
    "recipes/federation.py": ("recipes/test_build.py",),
    "recipes/features.py": ("data/test_featurize.py",),
    "recipes/model.py": ("recipes/test_build.py",),
    "recipes/network.py": ("recipes/test_build.py", "data/test_modules.py"),
    "recipes/records.py": ("recipes/test_build.py",),
    "recipes/flower_app.py": ("recipes/test_simulation.py",),
    "recipes/session.py": ("recipes/test_run.py", "training/test_checkpoint.py"),
    "recipes/result.py": ("recipes/test_run.py", "recipes/test_simulation.py"),
    "recipes/sinks/csv.py": ("recipes/sinks/test_open.py",),
    "recipes/sinks/mlflow.py": ("recipes/sinks/test_open.py",),
    "recipes/sinks/tensorboard.py": ("recipes/sinks/test_open.py",),
    "recipes/sinks/wandb.py": ("recipes/sinks/test_open.py",),
    "server/_moments.py": ("server/test_adam.py", "server/test_yogi.py"),
    "server/_rank_one.py": ("server/test_sofim.py",),
    "server/scale.py": ("laws/test_server_laws.py",),
    "server/sofim_printed.py": ("server/test_sofim.py",),
    "sums/secagg/client.py": ("sums/test_secure.py", "sums/test_secure_attacks.py"),
    "sums/secagg/messages.py": ("sums/test_secure_attacks.py",),
    "sums/secagg/server.py": ("sums/test_secure.py", "sums/test_secure_attacks.py"),
    "silo/__main__.py": ("silo/test_modules.py",),
    "cli/verify.py": ("recipes/test_verify.py",),
    "recipes/evidence.py": ("recipes/test_verify.py",),
    "training/flower/evidence.py": ("recipes/test_verify.py",),
    "training/wire/heads.py": ("silo/test_heads.py", "training/flower/test_heads.py"),
    "training/wire/evidence.py": ("silo/test_handler.py", "recipes/test_verify.py"),
    "cli/silo_text.py": ("silo/test_handler.py",),
    "cli/limits.py": ("attacks/test_strangers_files.py",),
    "accounting/stated.py": ("attacks/test_whole_guarantee.py",),
    "cli/silo.py": ("silo/test_gate.py", "cli/test_silo_install.py"),
    "cli/silo_check.py": ("cli/test_silo_install.py",),
    "training/account.py": ("accounting/ledger/test_ledger.py",),
    "training/draft.py": ("training/test_round.py", "attacks/test_participation.py"),
    "training/reply.py": ("training/test_round.py", "laws/test_client_laws.py"),
    "training/stopping.py": ("training/test_loop.py",),
    "training/wire/stored_replies.py": ("attacks/test_asking_again.py",),
    "training/flower/client.py": ("training/flower/test_strategy.py",),
    "training/wire/responder.py": ("attacks/test_asking_again.py", "attacks/test_kept_noise.py"),
    "training/wire/codec.py": ("training/flower/test_strategy.py", "test_fuzz.py"),
    "training/wire/state.py": ("training/flower/test_resume.py", "test_fuzz.py"),
    "training/flower/trained.py": (
        "attacks/test_batchnorm.py",
        "attacks/test_local_evaluation.py",
    ),
    "training/wire/enrolment.py": (
        "training/flower/test_strategy.py",
        "training/flower/test_slots.py",
    ),
    "training/flower/replies.py": ("training/flower/test_strategy.py",),
    "training/flower/transport.py": ("training/test_loop.py", "training/flower/test_strategy.py"),
    "training/history.py": ("recipes/sinks/test_open.py",),
    "training/soundness.py": ("training/test_round.py", "recipes/test_build.py"),
    "training/state_tree.py": ("training/test_checkpoint.py", "test_fuzz.py"),
}


def modules(root: Path) -> list[str]:
    source = root / "src" / "dpfed"
    paths = (path for path in source.rglob("*.py") if path.name != "__init__.py")
    return sorted(str(path.relative_to(source)) for path in paths)


def mirror(module: str) -> Path:
    """Where a module's tests are by its name."""
    path = Path(module)
    return TESTS / path.parent / f"test_{path.stem.lstrip('_')}.py"


def files_for(module: str) -> list[Path]:
    """The files with a module's tests."""
    return [TESTS / name for name in ELSEWHERE.get(module, ())] or [mirror(module)]


def words(source: Path) -> set[str]:
    """What a test that speaks of a module may say: its name, or a name that it defines."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    defined = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    return {source.stem.lstrip("_"), *(name for name in defined if not name.startswith("_"))}


def unmirrored(root: Path) -> Iterator[tuple[str, str]]:
    """Modules whose tests are not where one looks for them, and why."""
    found = modules(root)
    yield from ((name, "is in ELSEWHERE, and not in src") for name in set(ELSEWHERE) - set(found))
    for module in found:
        yield from ((module, what) for what in _faults(root, module))


def _faults(root: Path, module: str) -> Iterator[str]:
    tests = root / "tests"
    where = tests / mirror(module).relative_to(TESTS)
    if module not in ELSEWHERE:
        if not where.exists():
            named = where.relative_to(root)
            yield f"no tests: write {named}, or name its tests in ELSEWHERE of tests/mirror.py"
        return
    if where.exists():
        yield f"has {where.relative_to(root)}: take it out of ELSEWHERE of tests/mirror.py"
    files = [tests / name for name in ELSEWHERE[module]]
    yield from (f"{path.relative_to(root)} is not there" for path in files if not path.is_file())
    texts = [path.read_text(encoding="utf-8") for path in files if path.is_file()]
    known = words(root / "src" / "dpfed" / module)
    if not any(word in text for text in texts for word in known):
        yield "its tests, by ELSEWHERE of tests/mirror.py, do not mention it"


def main(*named: str) -> None:
    for module in (each.removeprefix("src/dpfed/") for each in named or [""]):
        if module not in modules(TESTS.parent):
            raise SystemExit(f"src/dpfed has no {module!r}; name a module such as sums/secure.py")
        for path in files_for(module):
            print(path.relative_to(TESTS.parent))


if __name__ == "__main__":
    main(*sys.argv[1:])
