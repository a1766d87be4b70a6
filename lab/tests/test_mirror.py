# SPDX-License-Identifier: Apache-2.0
"""Where a module's tests are: ``module.py`` in ``tests/test_module.py``, or as listed."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "dpfed_lab"

ELSEWHERE = {
    "findings": ("test_report",),
    "heat_map": ("test_figures",),
    "jobs": ("test_sweep",),
    "paper_tables": ("test_settings",),
    "progress": ("test_commands",),
    "reproduce": ("test_sweep", "test_miniature"),
    "scores": ("test_study_tables",),
    "study": ("test_sweep",),
}


def test_a_modules_tests_are_found_by_its_name() -> None:
    found = {path.stem for path in SOURCE.glob("*.py")} | {"theory"}
    assert set(ELSEWHERE) <= found
    for name in sorted(found - {"__init__"}):
        files = ELSEWHERE.get(name, (f"test_{name}",))
        assert all((TESTS / f"{file}.py").is_file() for file in files), name
        assert name not in ELSEWHERE or not (TESTS / f"test_{name}.py").exists(), name
