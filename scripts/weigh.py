#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What an installation weighs, before and after: packages, megabytes, and the time of imports.

    scripts/weigh.py BEFORE [--extras all]     BEFORE is a commit; prints a table, as Markdown

For each of the commit BEFORE and this checkout, one after the other: an empty environment, the
torch of scripts/install, then the wheel with what it requires, held to that torch. Packages are
counted without pip and dpfed itself. Times are of the processor, which a busy machine changes
little: the medians of five new processes, after one that compiles, the environments in turn.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
TIMED = {
    "import dpfed": ["python", "-c", "import dpfed"],
    "dpfed --help": ["dpfed", "--help"],
    "import dpfed.flower": ["python", "-c", "import dpfed.flower"],
    "the relay (silo_app)": ["python", "-c", "from dpfed.flower import silo_app"],
}
CALM = {
    name: value
    for name, value in os.environ.items()
    if name not in {"PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE"}
}


def quiet(*command: str | Path, cwd: Path | None = None) -> str:
    words = [str(each) for each in command]
    done = subprocess.run(words, capture_output=True, text=True, cwd=cwd, env=CALM, check=False)
    if done.returncode:
        sys.exit(f"{command[0]} failed: {done.stderr[-2000:]}")
    return done.stdout


def torch() -> str:
    """The torch that development installs: one pin for all."""
    found = re.search(r"pip install (torch==\S+)", (HERE / "scripts/install").read_text("utf-8"))
    if found is None:
        sys.exit("scripts/install pins no torch")
    return found[1]


def environment(source: Path, folder: Path, extras: str) -> Path:
    """An environment with the wheel of a source tree, and nothing else."""
    quiet(sys.executable, "-m", "venv", folder / "env")
    pip = (folder / "env/bin/python", "-m", "pip", "--disable-pip-version-check")
    quiet(*pip, "wheel", "-q", "--no-deps", "--wheel-dir", folder, source)
    (wheel,) = folder.glob("dpfed-*.whl")
    (folder / "held.txt").write_text(torch() + "\n", encoding="utf-8")
    quiet(*pip, "install", "-q", torch())
    wanted = f"{wheel}[{extras}]" if extras else str(wheel)
    quiet(*pip, "install", "-q", "-c", folder / "held.txt", wanted)
    return folder / "env"


def size(folder: Path, *, compiled: bool = True) -> float:
    """In megabytes (10^6 bytes) of files, with what pip has compiled or without."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(p.stat().st_size for p in files if compiled or p.suffix != ".pyc") / 1e6


def seconds(envs: list[Path], command: list[str]) -> list[float]:
    """Of the processor, for each environment."""
    taken: list[list[float]] = [[] for _ in envs]
    for _ in range(6):
        for env, found in zip(envs, taken, strict=True):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            quiet(env / "bin" / command[0], *command[1:], cwd=env)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return [statistics.median(found[1:]) for found in taken]


def weigh(env: Path) -> dict[str, float]:
    pip = (env / "bin/python", "-m", "pip", "--disable-pip-version-check")
    listed = json.loads(quiet(*pip, "list", "--format", "json"))
    names = {each["name"].lower() for each in listed} - {"pip", "dpfed", "setuptools"}
    (site,) = env.glob("lib/python3*/site-packages")
    pips = [each for each in site.glob("pip*") if each.is_dir()]
    whole = [
        size(site, compiled=all_) - sum(size(each, compiled=all_) for each in pips)
        for all_ in (True, False)
    ]
    torches = sum(size(each) for each in site.glob("torch*") if each.is_dir())
    return {
        "packages": len(names),
        "MB": whole[0],
        "MB, nothing compiled": whole[1],
        "MB of torch": torches,
    }


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("before")
    asked.add_argument("--extras", default="")
    given = asked.parse_args()
    commit = quiet("git", "rev-parse", "--short", given.before, cwd=HERE).strip()
    with tempfile.TemporaryDirectory() as work:
        sources = {f"before ({commit})": Path(work) / "source", "after": HERE}
        sources[f"before ({commit})"].mkdir()
        archive = Path(work) / "before.tar"
        quiet("git", "archive", "-o", archive, given.before, cwd=HERE)
        quiet("tar", "-xf", archive, "-C", Path(work) / "source")
        envs = {}
        for place, (name, source) in enumerate(sources.items()):
            folder = Path(work) / str(place)
            folder.mkdir()
            envs[name] = environment(source, folder, given.extras)
        found = {name: weigh(env) for name, env in envs.items()}
        for what, command in TIMED.items():
            for name, taken in zip(envs, seconds(list(envs.values()), command), strict=True):
                found[name][f"{what}, s"] = taken
    print(
        f"`scripts/weigh.py {' '.join(sys.argv[1:])}`, {dt.datetime.now(dt.UTC).date()}, "
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB, "
        f"Python {platform.python_version()}, {torch()}\n"
    )
    print("| |", " | ".join(found), "|\n|---|" + "---:|" * len(found))
    for what in next(iter(found.values())):
        cells = [each[what] for each in found.values()]
        digits = 2 if what.endswith(", s") else 0
        print(f"| {what} |", " | ".join(f"{cell:,.{digits}f}" for cell in cells), "|")


if __name__ == "__main__":
    main()
