#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All that a release consists of, in dist/; publishing it is a person's act.

    scripts/release.py --check     only say what stands in the way of a release
    scripts/release.py             refuse if anything does, then build and check all
    scripts/release.py --trial     build and check, whatever stands in the way: for CI, or a look
    scripts/release.py --fold      move the fragments of changelog.d into CHANGELOG.md

In dist/: the wheels and source archives of dpfed and dpfed-lab, which ``twine check --strict`` has
passed; silo.lock and silo-gpu.lock, lists with hashes of what a data owner installs; and
dpfed-VERSION.cdx.json, the first as a CycloneDX bill of materials, made and validated by
cyclonedx-bom. build, twine and cyclonedx-bom are installed into an environment that is thrown away.

--fold takes what towncrier makes of the fragments (it must be installed, as the extra dev does). If
CHANGELOG.md has a section of this version already, which a person may have shortened, the entries
are added at the end of its parts; nothing that stands there is changed but the date.
"""

from __future__ import annotations

import argparse
import datetime as dt
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(HERE / "lab"), str(HERE / "scripts")]
from dpfed_lab.benchmarks._freshness import stale  # noqa: E402  found by the lines above
from lock import builds_of_torch  # noqa: E402

TOOLS = ("build>=1.2", "twine>=6", "cyclonedx-bom>=7")
MARKER = "<!-- towncrier release notes start -->\n"
PLACEHOLDER = re.compile(r"PLACEHOLDER|\.invalid\b", re.IGNORECASE)


def project(root: Path) -> dict[str, Any]:
    """The table [project] of pyproject.toml: version, authors and urls are said there alone."""
    tables = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return dict(tables["project"])


def in_the_way(root: Path) -> list[str]:
    """What must be done before a release, a sentence each."""
    about = project(root)
    version, found = about["version"], []
    for author in about["authors"]:
        found += [f"authors: {each!r}" for each in author.values() if PLACEHOLDER.search(each)]
    found += [
        f"urls: {name} = {url!r}" for name, url in about["urls"].items() if PLACEHOLDER.search(url)
    ]
    found = [f"pyproject.toml has a placeholder, {each}; fill it in" for each in found]
    if left := sorted(path.name for path in (root / "changelog.d").glob("*.*.md")):
        found.append(f"changelog.d has {len(left)} fragments; scripts/release.py --fold")
    if f"dpfed {version} " not in (root / "CHANGELOG.md").read_text(encoding="utf-8"):
        found.append(f"CHANGELOG.md says nothing of {version}; scripts/release.py --fold")
    said = {
        "lab/pyproject.toml": f'version = "{version}"',
        "src/dpfed/_version.py": f'VERSION = "{version}"',
        "CITATION.cff": f"version: {version}",
        "SECURITY.md": f"| {version.rpartition('.')[0]}.x | yes |",
    }
    if about["optional-dependencies"]["lab"] != [f"dpfed-lab=={version}"]:
        found.append(f"pyproject.toml does not ask for dpfed-lab=={version} in its extra lab")
    if project(root / "lab")["dependencies"] != [f"dpfed=={version}"]:
        found.append(f"lab/pyproject.toml does not ask for dpfed=={version}")
    found += [
        f"{name} does not say {text!r}"
        for name, text in said.items()
        if text not in (root / name).read_text(encoding="utf-8")
    ]
    pythons = sum(": 3." in each for each in about["classifiers"])
    builds = builds_of_torch((root / "release" / "silo.lock").read_text(encoding="utf-8"))
    if builds < pythons:
        found.append(
            f"release/silo.lock has {builds} CPU builds of torch for {pythons} versions of Python; "
            f"run scripts/lock.py where PyTorch's CPU index can be reached"
        )
    return found + list(stale(root))


def newer_flower(root: Path) -> str:
    """What to do about a Flower that is newer than the tested ones; "" if there is none.

    Args:
        root: the repository.
    """
    line = next(each for each in project(root)["dependencies"] if each.startswith("flwr"))
    beyond = re.search(r"<(\d+)\.(\d+)", line)
    asked = [sys.executable, "-m", "pip", "index", "versions", "flwr"]
    told = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    newest = re.search(r"flwr \((\d+)\.(\d+)", told)
    if newest is None:
        return "whether a newer flwr is out is not known: pip cannot list its versions here"
    if beyond is None or tuple(map(int, newest.groups())) < tuple(map(int, beyond.groups())):
        return ""
    version = ".".join(newest.groups())
    return (
        f"flwr {version} is out, and pyproject.toml allows flwr below {'.'.join(beyond.groups())}; "
        f"run scripts/test-flower {version}, then raise the bound"
    )


def fold(root: Path, date: str) -> int:
    """Move the fragments into CHANGELOG.md; how many there were."""
    fragments = sorted((root / "changelog.d").glob("*.*.md"))
    if not fragments:
        return 0
    version = project(root)["version"]
    command = [sys.executable, "-m", "towncrier", "build", "--draft"]
    command += ["--version", version, "--date", date]
    made = subprocess.run(command, cwd=root, check=False, capture_output=True, text=True)
    if made.returncode:
        sys.exit(f"towncrier failed: {made.stderr.strip()}")
    page = root / "CHANGELOG.md"
    page.write_text(folded(page.read_text(encoding="utf-8"), made.stdout), encoding="utf-8")
    for path in fragments:
        path.unlink()
    return len(fragments)


def folded(page: str, new: str) -> str:
    """The change log with a new section; its entries, if it has a section of that version."""
    title, more = _parts(re.sub(r"(?m)^  - ", "- ", new))  # towncrier indents a fragment's list
    before, marker, rest = page.partition(MARKER)
    if not marker:
        sys.exit(f"CHANGELOG.md has no line {MARKER.strip()!r}; put it above the first section")
    heading = title.rpartition(" (")[0]  # without its date
    found = re.search(rf"(?ms)^{re.escape(heading)} \(.*?(?=^## |\Z)", rest)
    opening, parts = _parts(found.group()) if found else ("", {})
    _, _, words = opening.partition("\n")  # above the first part
    for kind, entries in more.items():
        parts[kind] = "\n".join(each for each in (parts.get(kind), entries) if each)
    section = "\n\n".join(
        [
            title,
            *filter(None, [words.strip()]),
            *(f"{kind}\n\n{parts[kind]}" for kind in sorted(parts)),
        ]
    )
    rest = rest.replace(found.group(), "") if found else rest
    return f"{before}{marker}\n{section}\n\n{rest.lstrip()}"


def _parts(section: str) -> tuple[str, dict[str, str]]:
    """The title of a section, and its text by the headings of its parts."""
    title, *parts = re.split(r"(?m)^(?=### )", section.strip())
    pairs = (part.partition("\n") for part in parts)
    return title.strip(), {kind.strip(): text.strip() for kind, _, text in pairs}


def run(*command: str | Path) -> None:
    done = subprocess.run([str(each) for each in command], cwd=HERE, check=False)
    if done.returncode:
        sys.exit(f"{Path(command[0]).name} failed")


def build(target: Path) -> None:
    """Wheel, source archive, lock and bill of materials, each checked."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    with tempfile.TemporaryDirectory() as work:
        run(sys.executable, "-m", "venv", work)
        python = Path(work) / "bin" / "python"
        run(python, "-m", "pip", "--disable-pip-version-check", "install", "-q", *TOOLS)
        for source in (HERE, HERE / "lab"):
            run(python, "-m", "build", "--outdir", target, source)
        run(python, "-m", "twine", "check", "--strict", *sorted(target.iterdir()))
        shutil.copy(HERE / "release" / "silo-gpu.lock", target)
        lock = shutil.copy(HERE / "release" / "silo.lock", target)
        bill = target / f"dpfed-{project(HERE)['version']}.cdx.json"
        run(
            python,
            "-m",
            "cyclonedx_py",
            "requirements",
            "--pyproject",
            HERE / "pyproject.toml",
            "--mc-type",
            "library",
            "--output-reproducible",
            "--of",
            "JSON",
            "--validate",
            "-o",
            bill,
            lock,
        )


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--check", action="store_true")
    asked.add_argument("--trial", action="store_true")
    asked.add_argument("--fold", action="store_true")
    given = asked.parse_args()
    if given.fold:
        count = fold(HERE, dt.datetime.now(dt.UTC).date().isoformat())
        print(f"{count} fragments are in CHANGELOG.md now; read its section once more")
        return
    found = in_the_way(HERE)
    if found:
        print("\n".join(found), file=sys.stderr)
    if found and not given.trial:
        sys.exit(f"{len(found)} things stand in the way of a release")
    if note := newer_flower(HERE):
        print(note)
    if not given.check:
        build(HERE / "dist")
        for path in sorted((HERE / "dist").iterdir()):
            print(f"{path.stat().st_size:>10,}  dist/{path.name}")


if __name__ == "__main__":
    main()
