# SPDX-License-Identifier: Apache-2.0
"""The documentation: what its pages say is run, and the site is built strictly."""

from __future__ import annotations

import math
import os
import re
import shutil
import site
import subprocess
import sys
import venv
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest

REPOSITORY = Path(__file__).parent.parent
DOCS = REPOSITORY / "docs"
PAGES = sorted(path.name for path in DOCS.glob("*.md"))
ELSEWHERE = {"deployment.md": "needs several hosts: tests/engines/test_deploy.py has its commands"}


def load_script(name: str) -> Any:
    loader = SourceFileLoader(name.replace("-", "_"), str(REPOSITORY / "scripts" / name))
    spec = spec_from_loader(loader.name, loader)
    assert spec
    module = module_from_spec(spec)
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    loader.exec_module(module)
    sys.dont_write_bytecode = before
    return module


pages = load_script("run-page")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """PATH to an environment on top of this one: pages may install into it."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False)
    inner = next(home.glob("lib/python*/site-packages"))
    outer = [folder for folder in site.getsitepackages() if Path(folder).is_dir()]
    lines = [f"import site; site.addsitedir({folder!r})" for folder in outer]
    (inner / "outer.pth").write_text("\n".join(lines) + "\n")
    for name, module in (("pip", "pip"), ("dpfed", "dpfed.cli")):
        script = home / "bin" / name
        script.write_text(f'#!/bin/sh\nexec "{home}/bin/python" -m {module} "$@"\n')
        script.chmod(0o755)
    return f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.parametrize("name", [name for name in PAGES if name not in ELSEWHERE])
def test_the_page_does_what_it_says(
    name: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")  # as pip reads it: without isolation
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("DPFED_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for block in pages.blocks(DOCS / name):
        done = pages.do(block, tmp_path)
        if done is not None:
            assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"


def test_few_blocks_are_left_out() -> None:
    found = [block for name in PAGES for block in pages.blocks(DOCS / name)]
    left_out = [block for block in found if block.why]
    assert len(left_out) <= 3
    assert len([block for block in found if block.language in ("bash", "python")]) > 10


def test_a_page_that_fails_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```bash\ntrue\n```\n\n```python\nraise SystemExit(3)\n```\n")
    script = REPOSITORY / "scripts" / "run-page"
    done = subprocess.run(
        [sys.executable, script, page, tmp_path / "work"],
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "raise SystemExit(3)" in done.stderr


# -------------------------------------------------------------------------------- figures and words


def quoted(path: Path) -> str:
    found = re.search(r"^> (\(.*?)\n\n", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert found
    return found[1].replace("\n> ", " ")


@pytest.mark.parametrize("name", ["index.md", "trust.md"])
def test_the_quoted_promise_is_the_readmes(name: str) -> None:
    assert quoted(DOCS / name) == quoted(REPOSITORY / "README.md")


def test_the_table_of_guesses_is_the_accountants() -> None:
    from dpfed.accounting import gdp

    text = (DOCS / "trust.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d.]+) \| ([\d.]+) % \| ([\d.]+) % \|$", text, re.MULTILINE)
    assert len(rows) == 5
    for epsilon, alone, gaussian in (map(float, row) for row in rows):
        assert alone == pytest.approx(100 / (1 + math.exp(-epsilon)), abs=0.06)
        allowed = NormalDist().cdf(gdp.mu_for(epsilon, 1e-5) / 2)
        assert gaussian == pytest.approx(100 * allowed, abs=0.06)


def test_the_counted_degrees_are_the_graphs() -> None:
    from dpfed.masking.graph import design

    text = (DOCS / "scale.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d,]+)(?: \(measured\))? \| (\d+) \| [\d.]+ kB", text, re.MULTILINE)
    assert len(rows) == 5
    for clients, degree in rows:
        n = int(clients.replace(",", ""))
        assert design(n, math.ceil(0.8 * n), round(0.05 * n)).degree == int(degree)


# ------------------------------------------------------------------------------------- the site


def build(root: Path, target: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [root / "scripts" / "docs", target], env={**os.environ, "PATH": path},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_site_is_built_strictly_and_spelt_right(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    done = build(REPOSITORY, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.with_suffix(".md").name for path in tmp_path.glob("*.html")} == {*PAGES, "404.md"}
    assert "Train as a recipe says" in (tmp_path / "api.html").read_text(encoding="utf-8")
    assert (tmp_path / "outside/results/secure-sum/trust.png").exists()
    for page in tmp_path.glob("*.html"):
        loaded = re.findall(r'(?:src|rel="stylesheet" href)="(https?://[^"]+)"', page.read_text())
        assert loaded == []  # nothing comes from other hosts


def test_a_broken_link_and_a_page_left_out_stop_the_build(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copy(REPOSITORY / "mkdocs.yml", tmp_path)
    for path in REPOSITORY.iterdir():
        if not path.name.startswith(".") and path.name not in ("docs", "mkdocs.yml", "site"):
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / "docs" / "orphan.md").write_text("# Nobody links here\n")
    with (tmp_path / "docs" / "cite.md").open("a") as file:
        file.write("\n[a](nowhere.md) [b](../src/nowhere.py) [c](privacy.md#nowhere)\n")
    done = build(tmp_path, tmp_path / "out")
    assert done.returncode != 0
    for fault in ("orphan.md", "nowhere.md", "src/nowhere.py", "#nowhere"):
        assert fault in done.stderr, done.stderr
