# SPDX-License-Identifier: Apache-2.0
"""What is handed out: the wheel, the source archive, the changelog, the forms for issues."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

REPOSITORY = Path(__file__).parent.parent
SOURCE = REPOSITORY / "src"
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {
    "all",
    "dev",
    "docs",
    "export",
    "features",
    "hub",
    "images",
    "lab",
    "mlflow",
    "nvflare",
    "opacus",
    "pandas",
    "plots",
    "search",
    "simulation",
    "slurm",
    "tables",
    "tensorboard",
    "text",
    "timm",
    "wandb",
}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build")
    target = tmp_path_factory.mktemp("dist")
    for source in (REPOSITORY, REPOSITORY / "lab"):
        subprocess.run(
            [sys.executable, "-m", "build", "--no-isolation", "--outdir", target, source],
            check=True,
            capture_output=True,
        )
    return target


@pytest.mark.slow
@pytest.mark.xdist_group("dist")  # built once
def test_the_wheel_has_every_file_of_the_package(dist: Path) -> None:
    with zipfile.ZipFile(next(dist.glob("dpfed-*.whl"))) as wheel:
        inside = {name for name in wheel.namelist() if name.startswith("dpfed/")}
    tracked = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*")
        if path.is_file() and path.suffix != ".pyc" and "egg-info" not in str(path)
    }
    assert inside == tracked
    assert "dpfed/py.typed" in inside
    assert {"dpfed/data/shipped/fashion-mnist.npz", "dpfed/data/shipped/README.md"} <= inside


@pytest.mark.slow
@pytest.mark.xdist_group("dist")  # built once
def test_the_labs_wheel_has_its_studies_and_no_results(dist: Path) -> None:
    lab = REPOSITORY / "lab"
    with zipfile.ZipFile(next(dist.glob("dpfed_lab-*.whl"))) as wheel:
        inside = {name for name in wheel.namelist() if name.startswith("dpfed_lab/")}
        entries = wheel.read(next(n for n in wheel.namelist() if n.endswith("entry_points.txt")))
    kept = ("study.toml", "settings.json", "paper.csv")
    studies = {path for name in kept for path in lab.glob(f"studies/*/{name}")}
    wanted = {f"dpfed_lab/{path.relative_to(lab)}" for path in studies}
    wanted |= {f"dpfed_lab/{path.relative_to(lab)}" for path in lab.glob("papers/*.csv")}
    code = (path for path in (lab / "dpfed_lab").rglob("*") if path.suffix in (".py", ".css"))
    wanted |= {str(path.relative_to(lab)) for path in code}
    assert inside == wanted
    for name in ("sweep", "reproduce", "report", "leaderboard"):
        assert f"{name} = dpfed_lab.commands:{name}" in entries.decode()


def test_the_lab_is_of_the_same_version() -> None:
    about = tomllib.loads((REPOSITORY / "lab/pyproject.toml").read_text(encoding="utf-8"))
    assert about["project"]["version"] == PROJECT["version"]
    assert about["project"]["dependencies"] == [f"dpfed=={PROJECT['version']}"]
    assert PROJECT["optional-dependencies"]["lab"] == [f"dpfed-lab=={PROJECT['version']}"]
    ours = (REPOSITORY / "LICENSE").read_bytes()
    assert (REPOSITORY / "lab/LICENSE").read_bytes() == ours


def test_what_is_shipped_is_small_and_says_where_it_is_from() -> None:
    shipped = SOURCE / "dpfed/data/shipped"
    assert sum(path.stat().st_size for path in shipped.iterdir()) < 5_000_000
    page = (shipped / "README.md").read_text(encoding="utf-8")
    for path in shipped.glob("*.npz"):
        assert f"`{path.name}`" in page
    assert "The MIT License (MIT). Copyright © 2017 Zalando SE" in page


@pytest.mark.slow
@pytest.mark.xdist_group("dist")  # built once
def test_the_wheel_says_what_it_needs(dist: Path) -> None:
    with zipfile.ZipFile(next(dist.glob("dpfed-*.whl"))) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith("METADATA"))
        metadata = Parser().parsestr(wheel.read(name).decode())
        scripts = wheel.read(name.replace("METADATA", "entry_points.txt")).decode()
    assert set(metadata.get_all("Provides-Extra")) == EXTRAS
    required = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert len(required) == len(PROJECT["dependencies"])
    assert "dpfed = dpfed.cli.main:main" in scripts


@pytest.mark.slow
@pytest.mark.xdist_group("dist")  # built once
def test_the_source_archive_builds_on_and_tests(dist: Path) -> None:
    with tarfile.open(next(dist.glob("dpfed-*.tar.gz"))) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    for name in (
        "pyproject.toml",
        "LICENSE",
        "CITATION.cff",
        "SECURITY.md",
        "CHANGELOG.md",
        "src/dpfed/py.typed",
        "tests/conftest.py",
        "lab/studies/sofim-cifar10/study.toml",
        "docs/quickstart.md",
        "scripts/test",
        "lab/dpfed_lab/benchmarks/__main__.py",
        "mkdocs.yml",
    ):
        assert name in inside
    assert not [name for name in inside if name.startswith((".venv", "runs", "site", "results"))]
    assert not [name for name in inside if "/results/" in name]


@pytest.mark.slow
def test_the_changelog_is_made_of_its_fragments() -> None:
    pytest.importorskip("towncrier")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "towncrier",
            "build",
            "--draft",
            "--version",
            PROJECT["version"],
            "--date",
            "2026-01-01",
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kinds = {path.suffixes[0] for path in (REPOSITORY / "changelog.d").glob("*.md")}
    for kind in kinds:
        assert f"### {kind[1:].title()}" in done.stdout
    lines = done.stdout.splitlines()
    assert not [line for line in lines if line.startswith("- - ") or line.endswith("-folder)")]
    assert kinds <= {".added", ".changed", ".fixed", ".privacy"}


MADE = """## dpfed 0.3.0 (2026-01-02)

### Added

- New.
  Its second line.

### Privacy

- A bound.
"""
OLDER = "## dpfed 0.2.0 (2025-01-01)\n\n### Added\n\n- Old.\n"


def test_folding_twice_leaves_one_section_of_a_version() -> None:
    release = script("release")
    head = f"# Changelog\n\n{release.MARKER}\n"
    once = release.folded(head + OLDER, MADE)
    assert once == head + MADE + "\n" + OLDER
    shortened = once.replace("- New.\n  Its second line.", "Read on.\n\n**Group**\n\n- Shorter.")
    later = "## dpfed 0.3.0 (2026-01-09)\n\n### Added\n\n- Later.\n\n### Fixed\n\n- A fault.\n"
    twice = release.folded(shortened, later)
    dated, _, rest = shortened.partition("- Shorter.\n")
    added = "- Shorter.\n- Later.\n\n### Fixed\n\n- A fault.\n"
    assert twice == dated.replace("01-02", "01-09") + added + rest
    assert release.folded(head, MADE) == head + MADE + "\n"


def test_words_above_the_first_part_of_a_section_stay() -> None:
    release = script("release")
    page = f"{release.MARKER}\n{MADE}".replace("(2026-01-02)", "(2026-01-02)\n\nRead this first.")
    again = release.folded(page, MADE.replace("01-02", "01-03"))
    assert "(2026-01-03)\n\nRead this first.\n\n### Added" in again


@pytest.mark.slow
def test_fragments_are_folded_into_the_change_log_and_removed(tmp_path: Path) -> None:
    pytest.importorskip("towncrier")
    for name in ("pyproject.toml", "release/changelog.jinja"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((REPOSITORY / name).read_text(encoding="utf-8"))
    release = script("release")
    page = tmp_path / "CHANGELOG.md"
    page.write_text(f"# Changelog\n\n{release.MARKER}\n{OLDER}")
    (tmp_path / "changelog.d").mkdir()
    (tmp_path / "src" / "dpfed").mkdir(parents=True)
    for date, text in (("2026-01-01", "- First.\n- More."), ("2026-01-02", "Second.")):
        (tmp_path / "changelog.d" / "a.fixed.md").write_text(text)
        assert release.fold(tmp_path, date) == 1
    assert release.fold(tmp_path, "2026-01-03") == 0
    version = PROJECT["version"]
    said = (
        f"## dpfed {version} (2026-01-02)\n\n### Fixed\n\n- First.\n- More.\n- Second.\n\n{OLDER}"
    )
    assert page.read_text() == f"# Changelog\n\n{release.MARKER}\n{said}"


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


# -------------------------------------------------------------------------------------- the README


def flower_versions() -> tuple[str, str]:
    """The first and the last minor version of Flower that dpfed allows."""
    (line,) = [each for each in PROJECT["dependencies"] if "flwr" in each]
    bounds = {each.operator: each.version for each in Requirement(line).specifier}
    major, minor = bounds["<"].split(".")
    return bounds[">="], f"{major}.{int(minor) - 1}"


README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def test_the_badges_say_what_the_metadata_say() -> None:
    shown = re.findall(r"!\[(.+?)\]\(https://img\.shields\.io/badge/(.+?)-blue\)", README)
    said = sorted(
        {each.rpartition(" ")[2] for each in PROJECT["classifiers"] if ":: 3." in each}, key=Version
    )
    floor, newest = flower_versions()
    assert dict(shown) == {
        f"license: {PROJECT['license']}": f"license-{PROJECT['license'].replace('-', '--')}",
        f"Python {said[0]} to {said[-1]}": f"Python-{said[0]}_to_{said[-1]}",
        f"Flower {floor} to {newest}": f"Flower-{floor}_to_{newest}",
    }


# ------------------------------------------------------------------------------------- the release


def script(name: str) -> ModuleType:
    """A script of scripts/ as a module."""
    loader = SourceFileLoader(name, str(REPOSITORY / "scripts" / f"{name}.py"))
    made = module_from_spec(spec_from_loader(name, loader))  # type: ignore[arg-type]
    loader.exec_module(made)
    return made


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """A repository of which nothing stands in the way of a release."""
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    text = text.replace("PLACEHOLDER: who publishes dpfed", "A. Person")
    text = text.replace(".invalid", ".example")
    text = text.replace("placeholder@dpfed", "person@dpfed")
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    (tmp_path / "changelog.d").mkdir()
    (tmp_path / "CHANGELOG.md").write_text(f"## dpfed {PROJECT['version']} (2026-01-01)\n")
    (tmp_path / "release").mkdir()
    builds = "".join(f"    --hash=sha256:{n:064x} \\\n" for n in range(4))
    (tmp_path / "release" / "silo.lock").write_text(f"torch==2.13.0+cpu \\\n{builds}")
    for name in ("lab/pyproject.toml", "src/dpfed/_version.py", "CITATION.cff", "SECURITY.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((REPOSITORY / name).read_text(encoding="utf-8"))
    return tmp_path


def test_a_release_is_refused_while_placeholders_stand(ready: Path) -> None:
    release = script("release")
    assert release.in_the_way(ready) == []
    kept = (ready / "pyproject.toml").read_text(encoding="utf-8")
    for field in [*PROJECT["urls"].values(), *PROJECT["authors"][0].values()]:
        filled = field.replace(".invalid", ".example").replace("placeholder@", "person@")
        filled = filled.replace("PLACEHOLDER: who publishes dpfed", "A. Person")
        if filled == field:
            continue  # a person has filled it in
        (ready / "pyproject.toml").write_text(kept.replace(filled, field, 1), encoding="utf-8")
        found = release.in_the_way(ready)
        assert found, field
        assert all("pyproject.toml has a placeholder" in each for each in found)


OTHER_LAB = f'[project]\nversion = "0.0.1"\ndependencies = ["dpfed=={PROJECT["version"]}"]\n'


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("changelog.d/new.added.md", "More.", "changelog.d has 1 fragments"),
        ("CHANGELOG.md", "# Changelog", "CHANGELOG.md says nothing of"),
        ("CITATION.cff", "version: 0.0.1", "CITATION.cff does not say"),
        ("SECURITY.md", "| 0.0.x | yes |", "SECURITY.md does not say"),
        ("release/silo.lock", "torch==2.13.0+cpu", "release/silo.lock has 0 CPU builds of torch"),
        ("lab/pyproject.toml", OTHER_LAB, "lab/pyproject.toml does not say"),
    ],
)
def test_what_else_stands_in_the_way(name: str, text: str, said: str, ready: Path) -> None:
    (ready / name).write_text(text, encoding="utf-8")
    (found,) = script("release").in_the_way(ready)
    assert found.startswith(said)


def test_a_release_is_refused_while_a_figure_is_of_other_code(
    ready: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--trial builds all the same, with a warning; without it nothing is built."""
    release = script("release")
    kept = ready / "results/benchmarks/speed.json"
    kept.parent.mkdir(parents=True)
    kept.write_text('{"measured": {"sofim_step": "of-yesterday"}, "results": {"sofim_step": []}}')
    for folder in ("lab/dpfed_lab/benchmarks", "src/dpfed"):
        shutil.copytree(REPOSITORY / folder, ready / folder, dirs_exist_ok=True)
    (found,) = release.in_the_way(ready)
    assert "speed.json is of other code for sofim_step; run scripts/bench sofim_step" in found
    built: list[Path] = []
    monkeypatch.setattr(release, "HERE", ready)
    monkeypatch.setattr(release, "build", built.append)
    monkeypatch.setattr(release, "newer_flower", lambda root: "")
    monkeypatch.setattr("sys.argv", ["release.py"])
    with pytest.raises(SystemExit, match="1 things stand in the way of a release"):
        release.main()
    assert built == []
    (ready / "dist").mkdir()
    monkeypatch.setattr("sys.argv", ["release.py", "--trial"])
    release.main()
    assert built == [ready / "dist"]


def test_placeholders_are_in_one_file() -> None:
    found = script("release").PLACEHOLDER
    pages = [
        *REPOSITORY.glob("*.md"),
        *REPOSITORY.glob("*.cff"),
        *REPOSITORY.glob("*.yml"),
        *(REPOSITORY / "docs").glob("*.md"),
    ]
    assert [path.name for path in pages if found.search(path.read_text(encoding="utf-8"))] == []


# ---------------------------------------------------------------------------------------- the lock


def locked() -> dict[str, str]:
    """Package -> the version that an owner installs on this Python."""
    text = (REPOSITORY / "release" / "silo.lock").read_text(encoding="utf-8")
    lines = re.findall(r"(?m)^([a-z0-9][^\\\n]*)", text)
    needed = [Requirement(line.strip()) for line in lines]
    here = [each for each in needed if each.marker is None or each.marker.evaluate()]
    return {each.name: next(iter(each.specifier)).version for each in here}


def test_a_flower_beyond_the_tested_ones_is_named(
    monkeypatch: pytest.MonkeyPatch, ready: Path
) -> None:
    release, (_, newest) = script("release"), flower_versions()
    major, minor = newest.split(".")
    for version, said in (
        (f"flwr ({newest}.3)", ""),
        (f"flwr ({major}.{int(minor) + 1}.0)", f"flwr {major}.{int(minor) + 1} is out"),
        ("", "whether a newer flwr is out is not known"),
    ):
        told = SimpleNamespace(stdout=version)
        monkeypatch.setattr(release.subprocess, "run", lambda *_, told=told, **__: told)
        found = release.newer_flower(ready)
        assert found.startswith(said)
        assert bool(found) == bool(said)


def test_the_lock_has_all_that_a_silo_needs_with_hashes_and_no_host() -> None:
    text = (REPOSITORY / "release" / "silo.lock").read_text(encoding="utf-8")
    assert script("lock").faults(text) == []
    found = locked()
    for line in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["tables"]]:
        needed = Requirement(line)
        assert needed.specifier.contains(found[needed.name]), line
    assert not {"matplotlib", "pillow", "ray"} & set(found)
    assert Version(found["torch"]).local == "cpu"
    assert [name for name in found if name.startswith(("nvidia", "cuda", "triton"))] == []
    assert all(not Version(version).is_prerelease for version in found.values())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("absl-py==2.5.1\n", "absl-py==2.5.1 has no hash"),
        ("absl-py==2.5.1 \\\n    --hash=sha256:12\n", "absl-py==2.5.1 has no hash"),
        ("--index-url https://mirror.example/simple\n", "names a place"),
    ],
)
def test_a_lock_with_a_hole_is_refused(text: str, said: str) -> None:
    found = script("lock").faults(text)
    assert found
    assert said in found[0]


def test_the_lock_is_for_the_torch_of_the_tests() -> None:
    assert locked()["torch"] == f"{script('lock').torch()}+cpu"


# ------------------------------------------------------------------------------------ the workflows

WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_write_only_where_it_says_so(path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    flow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert flow["permissions"] == {"contents": "read"}
    for name, job in flow["jobs"].items():
        assert job["timeout-minutes"] <= 90, name
        called = re.findall(r"(?:scripts|tests/soak)/[\w.-]+", str(job))
        assert all((REPOSITORY / script).exists() for script in called), called


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_uses_actions_by_their_commits(path: Path) -> None:
    used = re.findall(r"uses: (.+)", path.read_text(encoding="utf-8"))
    assert used
    for each in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+", each), each


def test_a_release_is_published_without_a_secret_and_after_a_person() -> None:
    yaml = pytest.importorskip("yaml")
    (path,) = [path for path in WORKFLOWS if path.stem == "release"]
    text = path.read_text(encoding="utf-8")
    publish = yaml.safe_load(text)["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["environment"] == "release"
    assert set(publish["needs"]) == {"build", "source"}
    assert "secrets." not in text


def test_the_workflows_try_what_the_metadata_say() -> None:
    yaml = pytest.importorskip("yaml")
    text = (REPOSITORY / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    said = {each.rpartition(" ")[2] for each in PROJECT["classifiers"] if ":: 3." in each}
    assert set(jobs["fast"]["strategy"]["matrix"]["python"]) == said
    assert min(said) == PROJECT["requires-python"].removeprefix(">=")
    floor, _ = flower_versions()
    assert jobs["flower"]["strategy"]["matrix"]["version"] == [f"{floor}.0", "newest"]
