#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The lock of a data owner's installation: each package with its version and its files' SHA-256.

    scripts/lock.py                  resolve anew, and write release/silo.lock
    scripts/lock.py --check          fail where the lock does not fit pyproject.toml any more
    scripts/lock.py --torch 2.13.0 --out release/silo-gpu.lock      with PyPI's torch, for GPUs
    scripts/lock.py --find-links FOLDER                             a folder of torch's CPU builds

A gate's guarantee is worth what is installed beside it, so an owner installs exactly this, and pip
refuses any file whose hash is not in the list:

    pip install --require-hashes -r silo.lock
    pip install --no-deps dpfed-VERSION-py3-none-any.whl

silo.lock has torch's CPU build: on Linux PyPI's own brings CUDA, four times as much. It has the
hashes of those builds that its maker's index offers: one for each Python, for Linux with x86-64,
and scripts/release.py counts them. silo-gpu.lock is for GPUs, and for all other systems. Both are
for dpfed[tables], and neither names an index: that is for whoever installs to choose (CPU builds
are in PyTorch's own). uv resolves them, from wherever UV_DEFAULT_INDEX or its own configuration
says.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}\b")
LOCK = HERE / "release" / "silo.lock"
HEAD = """\
# What a data owner installs: pip install --require-hashes -r NAME
# Made by scripts/lock.py from pyproject.toml with the extra 'tables', and checked by --check.
"""


def uv() -> str:
    """Flower brings it along."""
    beside = Path(sys.executable).parent / "uv"
    own = HERE / ".venv" / "bin" / "uv"
    found = next((str(each) for each in (beside, own) if each.exists()), shutil.which("uv"))
    return found or sys.exit("uv is missing; pip install uv")


def torch() -> str:
    """The version that the tests run with."""
    found = re.search(r"pip install torch==(\S+)", (HERE / "scripts/install").read_text("utf-8"))
    return found[1] if found else sys.exit("scripts/install pins no torch")


def resolve(version: str, links: str | None, begin: str) -> str:
    """The lock's text; what ``begin`` pins stays as it is where it still fits."""
    with tempfile.TemporaryDirectory() as work:
        held, made = Path(work) / "held.txt", Path(work) / "lock.txt"
        held.write_text(f"torch=={version}\n", encoding="utf-8")
        made.write_text(begin, encoding="utf-8")
        command = [
            uv(),
            "pip",
            "compile",
            "-q",
            "--universal",
            "--python-version",
            "3.11",
            "--extra",
            "tables",
            "--generate-hashes",
            "--no-header",
            "--no-annotate",
            "--prerelease",
            "disallow",
            "--constraint",
            str(held),
            "--output-file",
            str(made),
            "pyproject.toml",
        ]
        backend = ["--torch-backend", "cpu"] if version.endswith("+cpu") else []
        command += ["--find-links", links] if links else backend
        if subprocess.run(command, cwd=HERE, check=False).returncode:
            sys.exit("uv could not resolve pyproject.toml; see above")
        return HEAD + made.read_text(encoding="utf-8")


def pins(text: str) -> list[str]:
    """The packages of a lock with version and marker; files of a version may be added later."""
    return re.findall(r"(?m)^([a-z0-9].*?) *\\?$", text)


def builds_of_torch(text: str) -> int:
    """How many files a lock has for torch."""
    entry = re.search(r"(?m)^torch==.*(?:\n    .*)*", text)
    return len(HASH.findall(entry[0])) if entry else 0


def faults(text: str) -> list[str]:
    """What a lock must not have: a package without a hash, or the name of a host."""
    entries = re.split(r"(?m)^(?=[a-z0-9])", text)[1:]
    bare = [
        each.split()[0] for each in entries if not re.search(r"--hash=sha256:[0-9a-f]{64}", each)
    ]
    named = re.findall(r"https?://\S+|^-\S.*$", text, flags=re.MULTILINE)
    return [f"{each} has no hash" for each in bare] + [f"{each} names a place" for each in named]


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--check", action="store_true")
    asked.add_argument("--torch", default=f"{torch()}+cpu")
    asked.add_argument("--find-links", help="a folder of torch's CPU builds; else PyTorch's index")
    asked.add_argument("--out", type=Path, default=LOCK)
    given = asked.parse_args()
    kept = given.out.read_text(encoding="utf-8") if given.check else ""
    made = resolve(given.torch, given.find_links, kept)
    wrong = faults(made)
    if given.check and pins(made) != pins(kept):
        wrong.append(f"{given.out.name} does not fit pyproject.toml; run scripts/lock.py")
    if wrong:
        sys.exit("\n".join(wrong))
    given.out.write_text(made, encoding="utf-8")
    count = len(re.findall(r"(?m)^[a-z0-9]", made))
    print(f"{given.out.name}: {count} packages, {made.count('--hash')} hashes")


if __name__ == "__main__":
    main()
