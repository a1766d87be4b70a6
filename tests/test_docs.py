# SPDX-License-Identifier: Apache-2.0
"""The documentation: what its pages say is run, and the site is built strictly."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest

from tests.helpers.guarantees import check_short_guarantee
from tests.helpers.pages import DOCS, REPOSITORY, pages

PAGES = sorted(path.name for path in DOCS.glob("*.md"))
_EXCLUDED = re.search(
    r"^exclude_docs: \|\n((?:  \S+\n)+)",
    (REPOSITORY / "mkdocs.yml").read_text("utf-8"),
    re.MULTILINE,
)
AUTHORS = set(_EXCLUDED[1].split()) if _EXCLUDED else set()
"""Pages that are read in the repository only."""
NEWCOMER = ("quickstart.md", "your-own-optimizer.md")
"""tests/soak/newcomer runs these from an empty environment, before a release, and the long
suite in this one, the first of them also up to its ``flwr run``."""
SIMULATOR_PAGES = ("nvflare.md",)
"""NVFlare's simulator takes a minute, here and in tests/nvflare."""
METHOD_PAGES = ("dp-fedsofim.md", "dp-fedadamw.md", "dp-fednew.md", "fednewton.md")
"""Alike in form; they train for 10 to 30 s."""
ELSEWHERE = {
    "index.md": "its commands are the quickstart's first, which are run",
    "deployment.md": "needs several hosts: tests/soak/month.py is them, by turns",
    "ledger.md": "its commands are those of a deployment: tests/soak/month.py runs them",
    "operations.md": "needs a gate that runs: tests/silo/test_figures.py has its commands",
    "silo.md": "needs root and users of its own: tests/cli/test_silo_install.py has its commands",
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """PATH to an environment on top of this one: pages may install into it."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False)
    inner = next(home.glob("lib/python*/site-packages"))
    outer = [folder for folder in site.getsitepackages() if Path(folder).is_dir()]
    lines = [f"import site; site.addsitedir({folder!r})" for folder in outer]
    (inner / "outer.pth").write_text("\n".join(lines) + "\n")
    for name, module in (("pip", "pip"), ("dpfed", "dpfed.cli.main")):
        script = home / "bin" / name
        script.write_text(f'#!/bin/sh\nexec "{home}/bin/python" -m {module} "$@"\n')
        script.chmod(0o755)
    places = [home / "bin", Path(sys.executable).parent, os.environ["PATH"]]  # flwr is in the 2nd
    return os.pathsep.join(map(str, places))


SLOW_PAGES = (
    *("models.md", "language-models.md", "watching.md", "accounting.md"),
    *("parts.md", "statistics.md", "use-the-model.md", "contract.md"),
    *("data.md", "methods.md"),
)
"""Pages that train for 5 to 25 s."""


def marked(name: str) -> Any:
    """Pages on which Flower starts a SuperLink of its own, within 15 s, take turns."""
    long = (*NEWCOMER, *METHOD_PAGES, *SIMULATOR_PAGES, *SLOW_PAGES)
    marks = [pytest.mark.long] if name in long else []
    if any("flwr run" in block.text for block in pages.blocks(DOCS / name)):
        marks.append(pytest.mark.xdist_group("flower"))
    return pytest.param(name, marks=marks)


def test_the_newcomer_runs_the_pages_that_are_left_to_it() -> None:
    script = (REPOSITORY / "tests/soak/newcomer").read_text(encoding="utf-8")
    assert all(f"page {Path(name).stem}\n" in script for name in NEWCOMER)
    before = (REPOSITORY / "tests/soak/before_release").read_text(encoding="utf-8")
    assert "tests/soak/newcomer --all" in before


def test_the_first_page_says_what_the_newcomer_runs() -> None:
    said, run = (
        [
            line
            for block in pages.blocks(DOCS / name)
            if block.language not in pages.PROSE
            for line in block.text.splitlines()
        ]
        for name in ("index.md", NEWCOMER[0])
    )
    assert said
    assert set(said) <= set(run)


@pytest.fixture
def reader(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of somebody who reads a page."""
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")  # as pip reads it: without isolation
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("DPFED_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("PYTHONPATH", raising=False)


def follow(blocks: list[Any], folder: Path) -> None:
    """Do what blocks of a page say."""
    with pages.own_flower():
        for block in blocks:
            for _ in range(3):  # Flower gives its link 15 s, which a busy machine does not keep
                done = pages.do(block, folder)
                if done is None or "Failed to start local SuperLink" not in done.stderr:
                    break
            if done is not None:
                assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"


@pytest.mark.slow
@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("name", [marked(name) for name in PAGES if name not in ELSEWHERE])
def test_the_page_does_what_it_says(name: str, tmp_path: Path) -> None:
    follow(pages.blocks(DOCS / name), tmp_path)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.xdist_group("flower")
@pytest.mark.usefixtures("reader")
def test_the_first_steps_of_the_quickstart(tmp_path: Path) -> None:
    """A demo, a new app, and ``flwr run``; the rest of the page is in the long suite."""
    found = pages.blocks(DOCS / NEWCOMER[0])
    last = next(at for at, block in enumerate(found) if "flwr run" in block.text)
    follow(found[: last + 1], tmp_path)
    assert (tmp_path / "my-app/out/guarantee.json").stat().st_size


def read_aloud(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What scripts/run_page.py makes of a page with this text."""
    (folder / "page.md").write_text(text)
    return subprocess.run(
        [
            sys.executable,
            REPOSITORY / "scripts" / "run_page.py",
            folder / "page.md",
            folder / "work",
        ],
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )


SAMPLE = "one 1.5 %\n...\nthree: the rest ...\nfour\n"


@pytest.mark.parametrize(
    ("output", "missing"),
    [
        ("zero\n\x1b[1mone\x1b[0m   27.25 %\ntwo\nthree: the rest of it\nfour\nfive\n", None),
        ("one 1.5 points\nthree: the rest of it\nfour\n", "one 1.5 %"),
        ("three: the rest of it\none 1.5 %\nfour\n", "three: the rest ..."),  # in this order
        ("one 1.5 %\nthree: the rest of it\nand\nfour\n", "four"),  # nothing between the two
    ],
)
def test_a_sample_is_compared_with_what_is_printed(output: str, missing: str | None) -> None:
    assert pages.not_printed(SAMPLE, output) == missing


def test_a_sample_may_hold_the_figures_too() -> None:
    assert pages.not_printed("one 1.5\n", "one 2.5\n") is None
    assert pages.not_printed("one 1.5\n", "one 2.5\n", exactly=True) == "one 1.5"


@pytest.mark.slow
def test_a_sample_that_is_not_what_a_block_prints_is_noticed(tmp_path: Path) -> None:
    page = "```bash\necho accuracy 7 {}\n```\n\n<!-- prints -->\n```text\naccuracy 9 %\n```\n"
    assert read_aloud(page.format("%"), tmp_path).returncode == 0
    done = read_aloud(page.format("points"), tmp_path)
    assert done.returncode == 1
    assert "the page says that this is printed, which is not so: 'accuracy 9 %'" in done.stderr


def test_each_command_of_the_quickstart_shows_what_it_prints() -> None:
    said = [
        block for block in pages.blocks(DOCS / NEWCOMER[0]) if block.language in pages.LANGUAGES
    ]
    assert all(block.prints or block.why or block.title for block in said)
    assert len([block for block in said if block.prints]) > 8


@pytest.mark.slow
def test_a_page_that_fails_is_noticed(tmp_path: Path) -> None:
    done = read_aloud("```bash\ntrue\n```\n\n```python\nraise SystemExit(3)\n```\n", tmp_path)
    assert done.returncode == 1
    assert "raise SystemExit(3)" in done.stderr


@pytest.mark.slow
def test_a_block_that_takes_longer_than_the_page_says_is_noticed(tmp_path: Path) -> None:
    done = read_aloud("<!-- within 1 s -->\n```bash\nsleep 1.1\n```\n", tmp_path)
    assert done.returncode == 1
    assert "this block took 1 s, more than 1:\nsleep 1.1" in done.stderr
    assert read_aloud("<!-- within 9 s -->\n```bash\ntrue\n```\n", tmp_path).returncode == 0


@pytest.mark.slow
def test_what_a_page_leaves_running_ends_with_it(tmp_path: Path) -> None:
    daemon = "setsid sleep 300 >/dev/null 2>&1 &\necho $! > pid\n"
    for last in ("true", "false"):
        done = read_aloud(f"```bash\n{daemon}{last}\n```\n", tmp_path)
        assert done.returncode == (last == "false"), done.stderr
        pid = (tmp_path / "work/pid").read_text().strip()
        status = Path("/proc", pid, "status")  # one that nobody waits for is a zombie
        assert not status.exists() or "State:\tZ" in status.read_text()


def test_the_quickstart_and_a_new_apps_readme_give_the_same_steps() -> None:
    said = [
        line.strip()
        for block in pages.blocks(DOCS / "quickstart.md")
        if block.language == "bash"
        for line in block.text.splitlines()
    ]
    for kind in ("rows", "recipe"):
        readme = REPOSITORY / f"src/dpfed/cli/templates/{kind}/README.md.template"
        steps = re.findall(r"^    (.+?)  +# \d\.", readme.read_text(), re.MULTILINE)
        assert len(steps) == 3
        assert steps[0].startswith(
            "pip install"
        )  # the page installs from a clone, as one can today
        assert [line for line in said if line in steps] == steps[1:]


# -------------------------------------------------------------------------------- figures and words


@pytest.mark.slow
def test_every_field_of_a_guarantee_is_explained(tmp_path: Path) -> None:
    import dpfed

    data = {"options": {"records": 200}}
    dpfed.run(rounds=1, method="dp-fedgd", data=data, privacy={"epsilon": 1.0}, out=tmp_path)
    written = json.loads((tmp_path / "guarantee.json").read_text(encoding="utf-8"))
    text = (DOCS / "accounting.md").read_text(encoding="utf-8").partition("## guarantee.json")[2]
    said = [
        name
        for cell in re.findall(r"^\| (`.+?) \|", text, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", cell)
    ]
    assert sorted(said) == sorted(written)


def quoted(path: Path) -> str:
    found = re.search(r"^> (\(.*?)\n\n", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert found
    return found[1].replace("\n> ", " ")


def quickstart_guarantee() -> Any:
    from dpfed.recipes.build import plan_for_clients
    from dpfed.recipes.federation import federation
    from dpfed.recipes.schema import load_recipe

    recipe = load_recipe(REPOSITORY / "examples" / "recipes" / "quickstart.toml")
    silos = federation(recipe)
    return plan_for_clients(recipe, silos.clients, silos.model).guarantee()


def test_the_quoted_guarantee_is_the_quickstarts() -> None:
    assert quoted(DOCS / "trust.md") == str(quickstart_guarantee())


def test_the_first_page_has_it_in_short_and_lists_what_it_assumes() -> None:
    check_short_guarantee(DOCS / "index.md", quickstart_guarantee())


def test_the_table_of_guesses_is_the_accountants() -> None:
    from dpfed.accounting import gdp

    text = (DOCS / "trust.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d.]+) \| ([\d.]+) % \| ([\d.]+) % \|$", text, re.MULTILINE)
    assert len(rows) == 5
    for epsilon, alone, gaussian in (map(float, row) for row in rows):
        assert alone == pytest.approx(100 / (1 + math.exp(-epsilon)), abs=0.06)
        allowed = NormalDist().cdf(gdp.mu_for(epsilon, 1e-5) / 2)
        assert gaussian == pytest.approx(100 * allowed, abs=0.06)


def clips(**asked: Any) -> float:
    """The noise of a client over its clip."""
    from dpfed.recipes.noise_for import noise_for

    return float(
        noise_for(**{"delta": 1e-5, "clients": 20, "rounds": 70, **asked})["std_over_clip"]
    )


@pytest.mark.parametrize("epsilon", [0.5, 1, 5, 10])
def test_the_reference_values_are_the_accountants(epsilon: float) -> None:
    from dpfed.recipes.noise_for import noise_for

    text = (DOCS / "privacy.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| {epsilon:g} \| ([\d.]+(?: \| [\d.]+){{5}}) \|$", text, re.MULTILINE)
    local = noise_for(epsilon=epsilon, delta=1e-5, rounds=70, clients=20)
    sums = [
        clips(epsilon=epsilon, trust="distributed", survivors=survivors, colluders=colluders)
        for survivors, colluders in ((20, 0), (16, 1))
    ]
    others = local["claims"][1]["epsilon"]
    exact = [local["mu"], local["sigma_g"], local["std_over_clip"], others, *sums]
    assert [float(word) for word in row.split(" | ")] == pytest.approx(exact, rel=5e-4)


@pytest.mark.slow
def test_the_noise_in_the_text_is_the_accountants() -> None:
    from dpfed.flower import make_plan

    all_of_them, secure = (
        clips(epsilon=1),
        clips(epsilon=1, trust="distributed", survivors=16, colluders=1),
    )
    zeroed = clips(epsilon=1, adjacency="zero-out")
    privacy = {"epsilon": 1.0, "adjacency": "zero-out", "record_rate": 0.1}
    drawn = make_plan([2500] * 20, rounds=70, privacy=privacy).update
    text = (DOCS / "accounting.md").read_text(encoding="utf-8")
    assert f"is s / C: {all_of_them:.1f}, {secure:.1f} and {zeroed:.1f} here" in text
    assert f"needs {drawn.std / drawn.clip:.1f} clips of noise instead of {zeroed:.1f}" in text
    ten = [clips(epsilon=1, rounds=40, clients=10, trust=t) for t in ("local", "distributed")]
    quick = (DOCS / "quickstart.md").read_text(encoding="utf-8")
    assert f"contribute: {ten[0]:.1f} and {ten[1]:.1f}" in quick


def test_the_counted_degrees_are_the_graphs() -> None:
    from dpfed.sums.secagg.graph import design

    text = (DOCS / "scale.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d,]+)(?: \(measured\))? \| (\d+) \| [\d.]+ kB", text, re.MULTILINE)
    assert len(rows) == 4
    for clients, degree in rows:
        n = int(clients.replace(",", ""))
        assert design(n, math.ceil(0.8 * n), round(0.05 * n)).degree == int(degree)


# ------------------------------------------------------------------------------------- the site


def build(root: Path, target: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [root / "scripts" / "docs", target],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
@pytest.mark.slow
def test_the_site_is_built_strictly_and_spelt_right(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    done = build(REPOSITORY, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    made = {path.with_suffix(".md").name for path in tmp_path.glob("*.html")}
    assert made == {*PAGES, "404.md"} - AUTHORS
    api = (tmp_path / "api.html").read_text(encoding="utf-8")
    assert "Train as a recipe says" in api
    assert '<span class="gp">&gt;&gt;&gt; </span>' in api  # examples are code, not quotations
    assert (tmp_path / "outside/lab/studies/secure-sum/results/trust.png").exists()
    for page in tmp_path.glob("*.html"):
        loaded = re.findall(r'(?:src|rel="stylesheet" href)="(https?://[^"]+)"', page.read_text())
        assert loaded == []  # nothing comes from other hosts


@pytest.mark.long
@pytest.mark.slow
def test_a_broken_link_and_a_page_left_out_stop_the_build(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copy(REPOSITORY / "mkdocs.yml", tmp_path)
    for path in REPOSITORY.iterdir():
        if not path.name.startswith(".") and path.name not in ("docs", "mkdocs.yml", "site"):
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / "docs" / "orphan.md").write_text("# Nobody links here\n")
    with (tmp_path / "docs" / "index.md").open("a") as file:
        file.write("\n[a](nowhere.md) [b](../src/nowhere.py) [c](trust.md#nowhere)\n")
    done = build(tmp_path, tmp_path / "out")
    assert done.returncode != 0
    for fault in ("orphan.md", "nowhere.md", "src/nowhere.py", "#nowhere"):
        assert fault in done.stderr, done.stderr
