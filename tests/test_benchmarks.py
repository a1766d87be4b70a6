# SPDX-License-Identifier: Apache-2.0
"""The kept figures of benchmarks: which code they are of, and the page that shows them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dpfed_lab.benchmarks import _freshness, _page
from dpfed_lab.benchmarks.__main__ import names

ROOT = Path(__file__).parent.parent
SOURCE = '''"""A module."""
import torch

def double(x):
    """Twice."""
    return 2 * x
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with one benchmark, one module and figures of it."""
    for folder in ("lab/dpfed_lab/benchmarks", "src/dpfed/core", "results/benchmarks"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "lab/dpfed_lab/benchmarks/twice.py").write_text(
        'MEASURES = ("dpfed.core.double",)\n'
    )
    (tmp_path / "src/dpfed/core/double.py").write_text(SOURCE)
    kept = {"measured": {"twice": _freshness.digest("twice", tmp_path)}, "results": {"twice": []}}
    (tmp_path / "results/benchmarks/twice.json").write_text(json.dumps(kept))
    return tmp_path


@pytest.mark.parametrize("name", names())
def test_each_benchmark_names_modules_that_exist(name: str) -> None:
    assert _freshness.measures(name)
    assert len(_freshness.digest(name)) == 16


def test_a_change_that_cannot_change_a_figure_does_not_count(root: Path) -> None:
    text = SOURCE.replace("import torch", "import torch  # a comment\nimport os")
    text = text.replace('"""Twice."""', '"""Two times."""').replace("2 * x", "(2\n        * x)")
    (root / "src/dpfed/core/double.py").unlink()
    (root / "src/dpfed/doubled.py").write_text(text)  # moved, too
    (root / "lab/dpfed_lab/benchmarks/twice.py").write_text('MEASURES = ("dpfed.doubled",)\n')
    assert list(_freshness.stale(root)) == []


def test_other_code_makes_figures_stale(root: Path) -> None:
    (root / "src/dpfed/core/double.py").write_text(SOURCE.replace("2 * x", "x + x"))
    (said,) = _freshness.stale(root)
    assert "scripts/bench twice --json results/benchmarks/twice.json" in said


def test_figures_without_a_digest_are_stale(root: Path) -> None:
    (root / "results/benchmarks/twice.json").write_text(json.dumps({"results": {"twice": []}}))
    (said,) = _freshness.stale(root)
    assert "does not say which code it is of" in said
    assert list(_freshness.without_digest(root)) == [root / "results/benchmarks/twice.json"]


@pytest.mark.skipif(not (ROOT / "results").exists(), reason="an sdist has no results")
def test_the_page_lists_all_files_that_do_not_say_which_code_they_are_of() -> None:
    page = ROOT / "results/benchmarks/README.md"
    text = page.read_text(encoding="utf-8")
    _, _, section = text.partition("## Which code a figure is of")
    listed = {(page.parent / name).resolve() for name in re.findall(r"\]\((.+?\.json)\)", section)}
    assert listed == set(_freshness.without_digest())


def test_a_module_that_is_gone_is_an_error(root: Path) -> None:
    (root / "src/dpfed/core/double.py").unlink()
    with pytest.raises(LookupError, match=r"dpfed\.core\.double"):
        list(_freshness.stale(root))


@pytest.mark.skipif(not (ROOT / "results").exists(), reason="an sdist has no results")
def test_the_tables_of_the_page_are_those_of_the_files() -> None:
    page = ROOT / "results/benchmarks/table.md"
    text = page.read_text(encoding="utf-8")
    assert len(_page.BLOCK.findall(text)) == 6
    assert _page.with_tables(text, page.parent) == text, "python -m dpfed_lab.benchmarks --page"
