# SPDX-License-Identifier: Apache-2.0
"""What all tests share: small federations, and a seed-free way to make records."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from dpfed.core import registry
from dpfed.core.dsse import MOST_BYTES
from dpfed.data.models import Linear
from dpfed.training import plan as plans
from dpfed.training.agreed import Agreed, load_agreed
from dpfed.training.draft import Draft
from tests.helpers.left_behind import Watch, watch

settings.register_profile(
    "ci", deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("long", settings.get_profile("ci"), max_examples=50)
settings.load_profile("ci")  # scripts/test --long says --hypothesis-profile=long

REPOSITORY = Path(__file__).parent.parent

# ------------------------------------------------------------------------------------- the suites

HEAVY = ("python", "flwr", "flower-", "dpfed")
"""Programs that a test which is neither slow nor long must not start."""
PATIENCE = 20.0
"""Seconds of processor time that such a test may take in the fast suite, which it would make slow:
five times what it should, since machines differ. Other programs and threads do not count."""


def is_slow(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("slow", "long"))


def _read_back(plan: Draft) -> Agreed:
    """What ``agreed_of`` makes of any plan of the suite, which its text must give back."""
    agreed = _AGREED_OF(plan)
    if len(agreed.text) > MOST_BYTES:  # a million devices
        return agreed
    again = load_agreed(agreed.text)
    assert again == agreed, "a plan is not what its own text says"
    assert again.fingerprint == agreed.fingerprint
    return agreed


_AGREED_OF = plans.agreed_of
plans.agreed_of = _read_back


def pytest_configure() -> None:
    sys.addaudithook(_refuse_processes)


_RUNNING: list[pytest.Item] = []
_WATCH = pytest.StashKey[Watch | None]()
_LEFT_AT_WORKERS: list[str] = []


def _refuse_processes(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen" and _RUNNING and not is_slow(_RUNNING[-1]):
        program = Path(os.fsdecode(arguments[0])).name
        if program.startswith(HEAVY):
            raise RuntimeError(f"this test starts {program}; mark it slow")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Processes of tests end with the tests; xdist's controller has none."""
    is_worker = hasattr(session.config, "workerinput")
    if is_worker or getattr(session.config.option, "dist", "no") == "no":
        session.config.stash[_WATCH] = watch()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process that is left behind fails the run; a worker tells the controller."""
    kept = sys.modules.get("tests.training.flower.preloaded")
    if kept is not None:
        kept.close_commands()
    held = session.config.stash.get(_WATCH, None)
    found = [f"{each.command[:80]!r} of {each.test}" for each in (held.close() if held else [])]
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_behind"] = found
    _say_left_behind(session, found)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    _LEFT_AT_WORKERS.extend(getattr(node, "workeroutput", {}).get("left_behind", []))


def _say_left_behind(session: pytest.Session, found: list[str]) -> None:
    found = found + _LEFT_AT_WORKERS
    if found and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    for each in found if reporter else ():
        reporter.write_line(f"left behind, and ended: {each}", red=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    _RUNNING.append(item)
    try:
        return (yield)
    finally:
        _RUNNING.pop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    began = time.thread_time()
    result = yield
    spent = time.thread_time() - began
    if spent > PATIENCE and not is_slow(item) and item.config.getoption("-m"):
        pytest.fail(f"this test takes {spent:.0f} s; make it shorter, or mark it slow")
    return result


@pytest.hookimpl(tryfirst=True)  # before -m selects by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The long suite runs only when asked for. Of a ``sample``'s cases, all but some are in it."""
    cases = Counter[str]()
    for item in items:
        sample = item.get_closest_marker("sample")
        if sample is not None:
            family = item.nodeid.partition("[")[0]
            if cases[family] % sample.args[0]:
                item.add_marker(pytest.mark.long)
            cases[family] += 1
    if config.getoption("-m"):
        return
    skip = pytest.mark.skip(reason="long suite: scripts/test --long")
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(skip)


# ------------------------------------------------------------------------------ what tests share


@pytest.fixture(autouse=True)
def installed_packages() -> Generator[None]:
    """A test that leaves its own entry points in the registry's cache would break later ones."""
    yield
    kept = registry._installed
    if kept.cache_info().currsize and len(kept()) < 10:  # those of pytest and its plug-ins alone
        kept.cache_clear()
        pytest.fail("this test leaves entry points that are not the installed ones")


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data beside the checkout, or in the first place that DPFED_DATA names."""
    named = os.environ.get("DPFED_DATA", str(REPOSITORY.parent / "shared" / "data"))
    folder = Path(named.split(os.pathsep)[0])
    if not folder.is_dir():
        pytest.skip("no real data: set DPFED_DATA")
    return folder


@pytest.fixture
def softmax() -> Linear:
    return Linear("softmax", features=5, outputs=3)
