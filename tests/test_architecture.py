# SPDX-License-Identifier: Apache-2.0
"""Rules of the design that are neither an import contract nor a check of text."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "dpfed"
FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.slow
def test_importing_the_package_loads_no_heavy_library() -> None:
    heavy = "{'torch', 'dp_accounting', 'numpy'}"
    code = f"import dpfed, dpfed.core.types, sys; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_no_generator_of_torch_or_numpy_makes_noise() -> None:
    """Noise comes from randomness.py; partitions, which are public, may use numpy's generator."""
    for path in FILES:
        if path.parent.name == "data":
            continue
        text = path.read_text(encoding="utf-8")
        for banned in ("torch.randn", "torch.normal", "np.random", "numpy.random", "import random"):
            assert banned not in text, (path, banned)


def test_server_code_has_no_path_to_data() -> None:
    for path in (SOURCE / "server").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        for banned in (
            "dpfed.data",
            "dpfed.core.rows",
            "dpfed.client",
            "Problem",
            "Rows",
            "Release",
        ):
            assert banned not in text, (path, banned)


def test_nothing_grows_inside_of_a_frozen_state() -> None:
    """States of the round hold mappings and tuples; what grows while a sum goes on is no state."""
    for name in ("training/round.py", "training/loop.py", "sums/secagg/server.py", "sums/plain.py"):
        for node in ast.walk(ast.parse((SOURCE / name).read_text(encoding="utf-8"))):
            frozen = isinstance(node, ast.ClassDef) and any(
                "frozen=True" in ast.unparse(each) for each in node.decorator_list
            )
            public = frozen and not node.name.startswith("_")  # type: ignore[attr-defined]
            for each in node.body if public else ():  # type: ignore[attr-defined]
                if isinstance(each, ast.AnnAssign):
                    kind = ast.unparse(each.annotation)
                    assert not kind.startswith(("dict", "list", "set")), (name, kind)


# ------------------------------------------------------------------------- the library and its lab

TESTS = Path(__file__).parent
TESTS_WITH_THE_LAB = {
    "claims": "figures on pages are computed again from the studies' runs",
    "recipes/test_methods.py": "the benchmark of memory measures each method",
    "soak/load.py": "the app under load is a benchmark's",
    "test_benchmarks.py": "benchmarks are commands of the lab",
    "test_growth.py": "the benchmark of growth",
    "test_reference.py": "docs/reference.md has the fields of a study",
    "test_tree.py": "the benchmark of a tree of aggregators",
    "training/flower/test_strategy.py": "the benchmark of a server's memory",
}
"""The library's tests that may import dpfed_lab, and why; all others run without it."""


def imported(path: Path) -> set[str]:
    """The packages that a file imports."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = [each.name for node in nodes if isinstance(node, ast.Import) for each in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def test_the_librarys_tests_run_without_the_lab() -> None:
    files = [path for path in TESTS.rglob("*.py") if imported(path) & {"dpfed_lab", "lab"}]
    names = (path.relative_to(TESTS) for path in files)
    known = {"claims" if path.parts[0] == "claims" else path.as_posix() for path in names}
    assert known == set(TESTS_WITH_THE_LAB)


def test_the_labs_tests_need_none_of_the_librarys() -> None:
    files = (TESTS.parent / "lab" / "tests").glob("*.py")
    assert [path.name for path in files if "tests" in imported(path)] == []
