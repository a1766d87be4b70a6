#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Do what a page says, to the letter: run its code blocks in their order, in a folder.

    scripts/run_page.py docs/quickstart.md FOLDER

A block with a title is a file, and is written. Of the others `bash` and `python` are run, by the
commands that PATH finds; `toml` must be a recipe. `<!-- not run: why -->` before a block leaves it
out, `<!-- within 60 s -->` holds it to a time (DPFED_PATIENCE=3: to three times that, where other
programs run beside it), `<!-- month: name -->` is the name by which tests/soak/month.py runs it,
and `text` and `diff` are not code. `<!-- prints -->` before a `text` block says that the block
before it prints these lines, in this order: `...` stands for any lines, or for the rest of a line,
and figures may differ, since noise does; `<!-- prints exactly -->` holds the figures, too. Stops at
the first block that fails, with what it said. Daemons that a block started end with the page.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

BLOCK = re.compile(
    r"(?:^<!-- (?:not run: (?P<why>.+?)|within (?P<within>\d+) s|month: (?P<month>[\w-]+)"
    r"|(?P<prints>prints(?: exactly)?)) -->\n+)?"
    r"^```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?[^\n]*\n(?P<text>.*?)^```$",
    flags=re.DOTALL | re.MULTILINE,
)
PARSE = (
    "import sys, tomllib; from dpfed.recipes.schema import parse; "
    "parse(tomllib.loads(sys.stdin.read()))"
)
LANGUAGES = {"bash": ["bash", "-euo", "pipefail", "-c"], "python": ["python", "-c"]}
PROSE = ("text", "diff")
PATIENCE = 600.0
"""Seconds after which a block hangs, and is ended."""


class Block(NamedTuple):
    language: str
    title: str | None
    text: str
    why: str | None
    """Why it is not run."""
    within: float
    """Seconds that the page allows."""
    month: str | None
    """Its name in tests/soak/month.py, which runs it at a host of its own."""
    prints: str | None = None
    """What it prints, as the page shows it."""
    exactly: bool = False
    """Whether it prints these very figures."""


def blocks(page: Path) -> list[Block]:
    made: list[Block] = []
    for m in BLOCK.finditer(page.read_text(encoding="utf-8")):
        if m["prints"]:
            exactly = m["prints"].endswith("exactly")
            made[-1] = made[-1]._replace(prints=m["text"], exactly=exactly)
        within = float(m["within"] or PATIENCE)
        made.append(Block(m["language"], m["title"], m["text"], m["why"], within, m["month"]))
    return made


def do(block: Block, folder: Path) -> subprocess.CompletedProcess[str] | None:
    """Run or write one block; None where there is nothing to run."""
    if block.why or block.language in PROSE:
        return None
    if block.title:
        (folder / block.title).parent.mkdir(parents=True, exist_ok=True)
        (folder / block.title).write_text(block.text, encoding="utf-8")
        return None
    if block.language == "toml":
        return _call(["python", "-c", PARSE], folder, block.text)
    if block.language not in LANGUAGES:
        sys.exit(f"a block is {block.language!r}; say one of {[*LANGUAGES, 'toml', *PROSE]}")
    done = _call([*LANGUAGES[block.language], block.text], folder)
    if block.prints is not None and not done.returncode:
        missing = not_printed(block.prints, done.stdout + done.stderr, block.exactly)
        if missing is not None:
            said = f"the page says that this is printed, which is not so: {missing!r}"
            return subprocess.CompletedProcess(done.args, 1, done.stdout, done.stderr + said)
    return done


COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
FIGURES = re.compile(r"\d+(?:[.,]\d+)*")


def not_printed(expected: str, output: str, exactly: bool = False) -> str | None:
    """The first line of a page's sample that the output lacks, or None."""

    def plain(text: str) -> list[str]:
        lines = (" ".join(COLOURS.sub("", line).split()) for line in text.splitlines())
        return [line if exactly else FIGURES.sub("0", line) for line in lines]

    printed = plain(output)
    places = set(range(len(printed)))  # where the next line of the sample may be: first, anywhere
    for shown, line in zip(expected.splitlines(), plain(expected), strict=True):
        if line == "...":
            places = set(range(min(places), len(printed)))
            continue
        places = {i + 1 for i, said in enumerate(printed) if i in places and _fits(line, said)}
        if not places:
            return shown
    return None


def _fits(line: str, said: str) -> bool:
    return said.startswith(line.removesuffix("...")) if line.endswith("...") else line == said


def _call(
    command: list[str], folder: Path, text: str | None = None
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "MPLBACKEND": "agg"},
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired as error:
        said = error.stdout.decode() if isinstance(error.stdout, bytes) else ""
        return subprocess.CompletedProcess(command, 124, said, f"hung for {PATIENCE:g} s")


# --------------------------------------------------------------------------------- Flower's daemons

MARK = "DPFED_PAGE"


@contextlib.contextmanager
def own_flower() -> Iterator[None]:
    """An environment in which `flwr run .` meets no other job's daemons, and leaves none behind.

    It starts a SuperLink at ports of the whole machine, in the background; that starts a SuperExec,
    and that Ray. All carry a mark in their environment, by which they are found (on Linux).
    """
    before, mark = dict(os.environ), secrets.token_hex(8)
    # a short name: Ray's sockets lie in it, with up to 103 bytes of path
    folder = tempfile.TemporaryDirectory(prefix="page-", dir="/tmp", ignore_cleanup_errors=True)
    with folder as home:
        os.environ.pop("RAY_ADDRESS", None)
        os.environ |= {MARK: mark, **_settings(home)}
        try:
            yield
        finally:
            os.environ.clear()
            os.environ |= before
            _end(f"{MARK}={mark}".encode())


def _settings(home: str) -> dict[str, str]:
    first, second = _free_ports()
    return {
        "FLWR_HOME": f"{home}/flwr",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": first,
        "FLWR_LOCAL_CONTROL_API_PORT": second,
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # no index offers dpfed yet
        "RAY_TMPDIR": home,
        "RAY_AUTH_MODE": "token",  # it listens on all interfaces
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def _free_ports() -> tuple[str, str]:
    with socket.socket() as first, socket.socket() as second:
        for probe in (first, second):
            probe.bind(("127.0.0.1", 0))
        return str(first.getsockname()[1]), str(second.getsockname()[1])


def _end(mark: bytes, grace: float = 5.0) -> None:
    """Ask all who carry the mark to end, and after some seconds make them."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + grace
        while (pids := _marked(mark)) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(0.2)


def _marked(mark: bytes) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


# ----------------------------------------------------------------------------------------- the page


def main() -> None:
    page, folder = map(Path, sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # by way of `finally`
    with own_flower():
        for block in blocks(page):
            _hold(page, folder, block)


def _hold(page: Path, folder: Path, block: Block) -> None:
    """Run one block, say what it took, and stop if it failed or was too slow."""
    begun = time.perf_counter()
    done = do(block, folder)
    took = time.perf_counter() - begun
    shown = block.title or "; ".join(block.text.strip().splitlines())
    print(f"{took:7.1f} s  {block.language:6} {shown[:80]}", flush=True)
    if done is not None and done.returncode:
        sys.exit(f"{page}: this block failed:\n{block.text}\n{done.stdout}\n{done.stderr}")
    allowed = block.within * float(os.environ.get("DPFED_PATIENCE", "1"))
    if took > allowed:
        sys.exit(f"{page}: this block took {took:.0f} s, more than {allowed:g}:\n{block.text}")


if __name__ == "__main__":
    main()
