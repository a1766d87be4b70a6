# SPDX-License-Identifier: Apache-2.0
"""What is handed out: the wheel, the source archive, the changelog, the forms for issues."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
SOURCE = REPOSITORY / "src"
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {
    "dev", "docs", "hub", "mlflow", "opacus", "search", "simulation", "tensorboard", "text", "timm",
}  # fmt: skip


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build")
    target = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", target, REPOSITORY],
        check=True, capture_output=True,
    )  # fmt: skip
    return target


@pytest.mark.slow
@pytest.mark.xdist_group("dist")  # built once
def test_the_wheel_has_every_file_of_the_package(dist: Path) -> None:
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        inside = {name for name in wheel.namelist() if name.startswith("dpfed/")}
    tracked = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*")
        if path.is_file() and path.suffix != ".pyc" and "egg-info" not in str(path)
    }
    assert inside == tracked
    assert "dpfed/py.typed" in inside
    assert "dpfed/experiments/studies/sofim-cifar10.toml" in inside
    assert "dpfed/experiments/studies/sofim-cifar10.settings.json" in inside


@pytest.mark.slow
@pytest.mark.xdist_group("dist")  # built once
def test_the_wheel_says_what_it_needs(dist: Path) -> None:
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith("METADATA"))
        metadata = Parser().parsestr(wheel.read(name).decode())
        scripts = wheel.read(name.replace("METADATA", "entry_points.txt")).decode()
    assert set(metadata.get_all("Provides-Extra")) == EXTRAS
    required = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert len(required) == len(PROJECT["dependencies"]) <= 17  # click is typer's own, held back
    assert "dpfed = dpfed.cli.main:main" in scripts


@pytest.mark.slow
@pytest.mark.xdist_group("dist")  # built once
def test_the_source_archive_builds_on_and_tests(dist: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    for name in ("pyproject.toml", "LICENSE", "CITATION.cff", "SECURITY.md", "CHANGELOG.md",
                 "src/dpfed/py.typed", "tests/conftest.py", "docs/quickstart.md", "scripts/test",
                 "benchmarks/__main__.py", "mkdocs.yml"):  # fmt: skip
        assert name in inside
    assert not [name for name in inside if name.startswith((".venv", "runs", "site", "results"))]


@pytest.mark.slow
def test_the_changelog_is_made_of_its_fragments() -> None:
    pytest.importorskip("towncrier")
    done = subprocess.run(
        [sys.executable, "-m", "towncrier", "build", "--draft", "--version", PROJECT["version"],
         "--date", "2026-01-01"],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for heading in ("Added", "Privacy"):
        assert heading in done.stdout
    kinds = {path.suffixes[0] for path in (REPOSITORY / "changelog.d").glob("*.md")}
    assert kinds <= {".added", ".changed", ".fixed", ".privacy"}


@pytest.mark.parametrize("name", ["bug", "feature", "privacy"])
def test_a_form_for_issues_can_be_filled_in(name: str) -> None:
    yaml = pytest.importorskip("yaml")
    path = REPOSITORY / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml"
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= set(form)
    ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert len(ids) == len(set(ids)) > 1
    if name != "feature":
        assert "SECURITY.md" in form["body"][0]["attributes"]["value"]


def test_the_citation_can_be_read() -> None:
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors", "version", "license"} <= set(citation)
    assert citation["license"] == PROJECT["license"]
