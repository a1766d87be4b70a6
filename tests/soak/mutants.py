#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One-line privacy mutants: does a test fail when the code that holds a guarantee is wrong?

    tests/soak/mutants.py                     all of tests/mutants.toml, on one core; twenty minutes
    tests/soak/mutants.py --only ledger       those whose module or name has the word
    tests/soak/mutants.py --sample            those marked `sample = true`, a dozen from all rooms
    tests/soak/mutants.py --out results/mutants/table.md

Each mutant changes one place in a copy of src. The tests that it names itself run against the copy,
then those that the map of tests/mirror.py has for its module, until one fails; the long suite
is left out. A mutant that no test catches survives, and the exit code is 1; one that changes what
nobody can observe is marked `equivalent`, with the reason, and is not run. In the end the tests
that failed run once more, on the code as it is, and must pass.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))

import pytest  # noqa: E402
from tests.mirror import ELSEWHERE, mirror  # noqa: E402

LIST = REPOSITORY / "tests" / "mutants.toml"
SOURCE = REPOSITORY / "src"
PATIENCE = 300.0
"""Seconds that a mutant's tests may take: one that never ends was caught, too."""
HEAVY = ("torch", "scipy.special", "dp_accounting", "flwr.app", "flwr.clientapp")
"""Imported once, before the tests' processes are forked off; dpfed never is."""
QUIET = {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg", "FLWR_TELEMETRY_ENABLED": "0"}


@dataclass(frozen=True)
class Mutant:
    """One change of one module."""

    module: str
    name: str
    before: str
    after: str
    tests: tuple[str, ...] = ()
    sample: bool = False
    equivalent: str = ""

    def places(self) -> int:
        """In how many places of its module it could be made; must be 1."""
        return self._text().count(self.before)

    def source(self) -> str:
        """The module's text with the change; refuses a place that is not there exactly once."""
        if self.places() != 1:
            raise SystemExit(
                f"{self.module} must have one place {self.before!r} (mutant {self.name!r}), got "
                f"{self.places()}; bring tests/mutants.toml up to date"
            )
        return self._text().replace(self.before, self.after)

    def mapped(self) -> list[str]:
        """The files of tests that the map names for its module, without those in ``tests``."""
        found = [f"tests/{name}" for name in ELSEWHERE.get(self.module, ())]
        if not found:
            found = [str(mirror(self.module).relative_to(REPOSITORY))]
        tests = [each for each in found if each.split("/")[-1].startswith("test_")]
        return [each for each in tests if each not in self.tests]

    def _text(self) -> str:
        return (SOURCE / "dpfed" / self.module).read_text(encoding="utf-8")


@dataclass(frozen=True)
class Outcome:
    """What the tests made of a mutant."""

    mutant: Mutant
    caught: bool
    seconds: float
    by: str
    """The test that failed."""


def load() -> list[Mutant]:
    """All mutants of the list."""
    tables = tomllib.loads(LIST.read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**{**table, "tests": tuple(table.get("tests", ()))}) for table in tables]


# ---------------------------------------------------------------------------------- running tests


class _Watch:
    """Writes down the tests that failed: a plug-in of pytest."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)


def run_tests(checks: list[str], mutant: Mutant | None = None) -> list[str]:
    """The tests that failed, in a process of their own; with a mutant only the first of them.

    Args:
        checks: files of tests, or tests; none of them fails if there are none.
        mutant: what is changed in the copy of src; None changes nothing.
    """
    if not checks:
        return []
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        folder = Path(name)
        copy = folder / "src"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        if mutant:
            (copy / "dpfed" / mutant.module).write_text(mutant.source(), encoding="utf-8")
        process = os.fork()
        if not process:
            _child(folder, [*(["-x"] if mutant else []), *checks])
        code = _wait(process, PATIENCE if mutant else 4 * PATIENCE)
        found = folder / "failed.json"
        if code in (0, 1, 2) and found.exists():
            failed: list[str] = json.loads(found.read_text(encoding="utf-8"))
            return failed
        if code < 0:
            return ["the process ended, or did not end"]
        raise SystemExit(f"pytest cannot run {checks}:\n{(folder / 'said').read_text()}")


def _child(folder: Path, checks: list[str]) -> None:
    """Runs the tests against the copy in this folder, and ends the process."""
    code = 3
    try:
        os.setpgid(0, 0)
        os.chdir(REPOSITORY)
        said = os.open(folder / "said", os.O_WRONLY | os.O_CREAT)
        os.dup2(said, 1)
        os.dup2(said, 2)
        os.environ.update(
            PYTHONPATH=str(folder / "src"),
            PYTHONDONTWRITEBYTECODE="1",
            HYPOTHESIS_STORAGE_DIRECTORY=str(folder / "hypothesis"),
        )
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(folder / "src"))
        watch = _Watch()
        quiet = ["-q", "--no-header", "--tb=no", "-p", "no:cacheprovider"]
        code = int(pytest.main([*quiet, *checks], plugins=[watch]))
        (folder / "failed.json").write_text(json.dumps(watch.failed), encoding="utf-8")
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(process: int, patience: float) -> int:
    """The exit code of a process; below 0 if it was ended, by itself or by lack of patience."""
    began = time.monotonic()
    while time.monotonic() - began < patience:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return -signal.SIGKILL


def outcome_of(mutant: Mutant) -> Outcome:
    """Whether a test fails, and which one."""
    began = time.perf_counter()
    failed = run_tests(list(mutant.tests), mutant) or run_tests(mutant.mapped(), mutant)
    return Outcome(mutant, bool(failed), time.perf_counter() - began, (failed or [""])[0])


def false_alarms(found: list[Outcome]) -> list[str]:
    """Tests that caught a mutant, but fail without any."""
    return run_tests(sorted({each.by for each in found if each.by.startswith("tests/")}))


# ------------------------------------------------------------------------------------ the table


def table(found: list[Outcome], equivalent: list[Mutant]) -> str:
    """The page: the command, when and where it ran, counts, and a row for each mutant."""
    caught = sum(each.caught for each in found)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    machine = f"{platform.machine()}, {os.cpu_count()} cores (one used), {memory:.0f} GiB"
    spent = sum(each.seconds for each in found) / 60
    head = [
        "# Privacy mutants",
        "",
        "Each row is one place of the code made wrong on purpose, so that a guarantee no longer",
        "holds, and the first test that failed. tests/mutants.toml has the changes themselves.",
        "",
        f"- command: `{' '.join(['tests/soak/mutants.py', *sys.argv[1:]])}`",
        f"- date: {datetime.now(UTC):%Y-%m-%d}; machine: {machine}; {spent:.0f} minutes",
        f"- tried {len(found) + len(equivalent)}: caught {caught}, survived {len(found) - caught}, "
        f"equivalent {len(equivalent)}",
        "",
        "| module | what is wrong | caught by | seconds |",
        "|---|---|---|---:|",
    ]
    rows = [
        _row(each.mutant, _plain(each.by) if each.caught else "**survived**", f"{each.seconds:.1f}")
        for each in found
    ]
    same = [_row(each, f"equivalent: {each.equivalent}", "") for each in equivalent]
    return "\n".join([*head, *rows, *same]) + "\n"


def _row(mutant: Mutant, *cells: str) -> str:
    return f"| {' | '.join([mutant.module, mutant.name, *cells])} |"


def _plain(test: str) -> str:
    """A test's name without the folder of all tests, and without what would end a cell."""
    return "`" + test.removeprefix("tests/").replace("|", "/").replace("`", "'") + "`"


def chosen(word: str, sample: bool) -> list[Mutant]:
    """The mutants that are asked for; all places must be there before the first one runs."""
    found = [
        each
        for each in load()
        if word in f"{each.module} {each.name}" and (each.sample or not sample)
    ]
    for each in found:
        each.source()
    return found


def main(arguments: Any = None) -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="those whose module or name has this word")
    parser.add_argument("--sample", action="store_true", help="a dozen, from all rooms")
    parser.add_argument("--out", type=Path, help="write the table here")
    options = parser.parse_args(arguments)
    mutants = chosen(options.only, options.sample)
    equivalent = [each for each in mutants if each.equivalent]
    os.environ.update(QUIET)
    for name in HEAVY:
        importlib.import_module(name)
    found = []
    for mutant in mutants:
        if mutant.equivalent:
            continue
        found.append(each := outcome_of(mutant))
        word = "caught  " if each.caught else "SURVIVED"
        said = f"{mutant.module}: {mutant.name}  {each.by}"
        print(f"{word} {each.seconds:5.1f} s  {said}", flush=True)
    survived = [each for each in found if not each.caught]
    print(
        f"{len(found)} mutants, {len(found) - len(survived)} caught, {len(survived)} survived, "
        f"{len(equivalent)} equivalent"
    )
    if wrong := false_alarms(found):
        sys.exit(f"these tests fail without any mutant, too: {wrong}")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(table(found, equivalent), encoding="utf-8")
    sys.exit(bool(survived))


if __name__ == "__main__":
    main()
