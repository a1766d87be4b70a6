#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A consortium's first month, by machine: five hospitals, a crash, a renewal, a sixth hospital.

    tests/soak/month.py            from an empty environment and the wheel; cold, with real waits
    tests/soak/month.py --short    with this Python's environment, in some 5 minutes: what CI runs
    tests/soak/month.py --keep     leaves the folder, with all logs

The commands are the blocks of docs/data.md, deployment.md and ledger.md that are marked
`<!-- month: NAME -->`, run at folders that stand for hosts: each has only what it was handed. These
words are others on one machine: the server's name and port, `/srv/dpfed` and `/var/lib/dpfed`, a
silo's NAME, and each training's own name, epsilon and number of rounds. A marked block that was not
run is an error. At the end all ledgers must verify, and it prints what the crashes have wasted.

| edge case                                  | what happens                                        |
|--------------------------------------------|-----------------------------------------------------|
| a killed SuperNode is refused for a minute | it is started again until it is taken; with --short |
|                                            | the SuperLink's record of its heartbeat is aged     |
| the silo dies after it has released        | what is in no total is wasted at that silo          |
| --short                                    | processes are forked from one that has imported all |
|                                            | commands: else importing torch takes most of it     |
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import secrets
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
PAGES = ("data", "deployment", "ledger")
SILOS = ("north", "south", "east", "west", "coast")
SIXTH = "hill"
PATIENTS = 400  # per hospital, as docs/data.md makes them
DELTA = 1e-5
MARK = "DPFED_TEST_NET"  # one per host

At = tuple[int, int]


def blocks() -> dict[str, Any]:
    """The pages' marked blocks, by name."""
    loader = SourceFileLoader("run_page", str(CHECKOUT / "scripts/run_page.py"))
    spec = spec_from_loader(loader.name, loader)
    if spec is None:
        sys.exit("error: scripts/run_page.py cannot be read")
    pages = module_from_spec(spec)
    loader.exec_module(pages)
    found = [block for page in PAGES for block in pages.blocks(CHECKOUT / f"docs/{page}.md")]
    return {block.month: block for block in found if block.month}


def wait_for(what: str, done: Callable[[], Any], seconds: float) -> Any:
    """What ``done`` returns, once that is true."""
    deadline = time.monotonic() + seconds
    while not (found := done()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} took longer than {seconds:g} s")
        time.sleep(0.02)
    return found


class Month:
    """Hosts are folders of ``work``: operator, server, and one per silo."""

    def __init__(self, work: Path, short: bool) -> None:
        self.work, self.short, self.id = work, short, secrets.token_hex(8)
        self.blocks, self.used = blocks(), set[str]()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.more: dict[str, str] = {}
        self.port = 0
        self.starts = 0
        self.killed: list[At] = []
        self.patience = 600.0  # of a machine with other work; an idle one needs a tenth
        for host in ("operator", "server", *SILOS, SIXTH):
            (work / host / "srv").mkdir(parents=True)

    # ------------------------------------------------------------------------- the pages' commands

    def text(self, name: str, host: str, **words: str) -> str:
        """A block, with the few words that are others here."""
        self.used.add(name)
        text = self.blocks[name].text
        places = {
            "fl.example.org": "127.0.0.1",
            "--port 8000": f"--port {self.port}",
            "8001": str(self.port),
            "/srv/dpfed": str(self.work / host / "srv"),
            "/var/lib/dpfed": str(self.work / "server/var"),
            "NAME": host,
            **words,
        }
        for old, new in places.items():
            text = text.replace(old, new)
        return str(text)

    def do(self, name: str, host: str, *, code: int = 0, **words: str) -> str:
        """Run a block at a host to its end, and return what it said."""
        command = ["bash", "-euo", "pipefail", "-c", self.text(name, host, **words)]
        if self.blocks[name].language == "python":
            command = [sys.executable, "-c", self.text(name, host, **words)]
        done = subprocess.run(
            command,
            cwd=self.work / host,
            env=self.environment(host),
            text=True,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=self.patience * 10,
        )
        if done.returncode != code:
            sys.exit(f"{name} at {host} ended with {done.returncode}, not {code}:\n{done.stdout}")
        return done.stdout

    def start(self, name: str, host: str, **words: str) -> Path:
        """Run a block that goes on running; its log."""
        self.starts += 1
        log = self.work / f"logs/{self.starts:02}-{host}-{name}.log"
        log.parent.mkdir(exist_ok=True)
        with log.open("wb") as sink:
            self.processes[f"{name} {host}"] = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", self.text(name, host, **words)],
                cwd=self.work / host,
                env=self.environment(host),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return log

    def environment(self, host: str) -> dict[str, str]:
        """Nothing that belongs to another silo; commands of this environment first."""
        own = {
            name: v for name, v in os.environ.items() if not name.startswith(("DPFED_", "FLWR_"))
        }
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        return own | {
            "PATH": path,
            "FLWR_HOME": str(self.work / host / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "NO_PROXY": "127.0.0.1,localhost",
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "MPLBACKEND": "agg",
            MARK: f"{self.id}/{host}",
            **self.more,
        }

    # ------------------------------------------------------------------------------- the processes

    def start_server(self) -> None:
        from dpfed.core.processes import comes_up

        log = self.start("superlink", "server")
        process, ca = self.processes["superlink server"], self.work / "server/server/ca.crt"
        if not comes_up(f"127.0.0.1:{self.port}", process, self.patience, ca):
            sys.exit(f"the SuperLink did not start:\n{log.read_text()}")

    def start_silos(self, *names: str) -> None:
        logs = {name: self.start("supernode", name) for name in names}
        deadline = time.monotonic() + self.patience
        while waiting := [n for n, log in logs.items() if "SuperNode ID:" not in log.read_text()]:
            for name in waiting:
                if self.processes[f"supernode {name}"].poll() is None:
                    continue
                if "Failed to activate" not in logs[name].read_text():
                    sys.exit(f"{name} did not start:\n{logs[name].read_text()}")
                time.sleep(5.0)  # as the page says: the SuperLink takes it for online for a minute
                logs[name] = self.start("supernode", name)
            if time.monotonic() > deadline:
                sys.exit(f"{waiting} did not come online")
            time.sleep(0.1)

    def stop(self, name: str) -> None:
        """Ask a process to end, and its children with it."""
        self._end(name, [signal.SIGTERM] * 8 + [signal.SIGKILL] * 8)

    def kill(self, name: str) -> None:
        """As a power cut would."""
        self._end(name, [signal.SIGKILL] * 16)

    def _end(self, name: str, signals: list[signal.Signals]) -> None:
        process, host = self.processes.pop(name), name.split()[1]
        for turn, number in enumerate(signals):
            first = [process.pid] if process.poll() is None else []
            pids = first if number == signal.SIGTERM and first else [*first, *self.marked(host)]
            for pid in pids if turn == 0 or number == signal.SIGKILL else []:  # asked once
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            deadline = time.monotonic() + 1.0
            while (process.poll() is None or self.marked(host)) and time.monotonic() < deadline:
                time.sleep(0.05)
            if process.poll() is not None and not self.marked(host):
                break
        process.wait(10)

    def marked(self, host: str) -> list[int]:
        """Processes of a host: they carry its mark in their environment. "" is all hosts."""
        wanted, found = f"{MARK}={self.id}/{host}".encode(), []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (entry / "environ").read_bytes().split(b"\0")
                if wanted in words or (not host and any(w.startswith(wanted) for w in words)):
                    found.append(int(entry.name))
        return found

    def close(self) -> None:
        """End all that is left, whoever started it."""
        deadline = time.monotonic() + 20.0
        while (left := self.marked("")) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self.processes.values():
                process.poll()
            time.sleep(0.1)

    def still_trains(self) -> None:
        """Once the training's `flwr run` has ended there is nothing more to wait for."""
        if self.processes["run server"].poll() is not None:
            raise RuntimeError("the training has ended too early")

    def tails(self) -> str:
        """The ends of all logs: why a scene has failed."""
        logs = sorted((self.work / "logs").glob("*.log"))
        return "\n".join(f"-- {log.name}\n{log.read_text()[-2000:]}" for log in logs)

    # ------------------------------------------------------------------------------ what is written

    def rows(self, silo: str) -> list[dict[str, Any]]:
        """The rows of a silo's ledger, also while it is written to."""
        path = self.work / silo / "state/ledger.sqlite"
        if not path.exists():
            return []
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as file:
            return [json.loads(body) for (body,) in file.execute("SELECT body FROM rows")]

    def booked(self, silo: str, training: str) -> dict[At, float]:
        """Attempts of a training that the silo has released for, and mu^2 of each."""
        costs: dict[At, float] = {}
        for row in self.rows(silo):
            if row["kind"] == "entry" and row["training"] == training:
                at = row["round"], row["attempt"]
                costs[at] = costs.get(at, 0.0) + float(row["mu_squared"])
        return costs

    def out(self, training: str) -> Path | None:
        """The folder with the result of a training, once it is there."""
        for path in (self.work / "server/visits-app").glob("out*/guarantee.json"):
            with contextlib.suppress(ValueError):
                if json.loads(path.read_text())["training"] == training:
                    return path.parent
        return None


# ----------------------------------------------------------------------------------- the first week


def bring_data(month: Month) -> str:
    """Five CSVs; each owner looks at their own, and sees what is missing."""
    for number, silo in enumerate((*SILOS, SIXTH, "server")):
        folder = month.work / silo / "srv"
        month.do("visits", silo, **{"Random(0)": f"Random({number})"})  # type: ignore[arg-type]
        shutil.move(month.work / silo / "visits.csv", folder / "visits.csv")
        if silo != "server":
            spoil(folder / "visits.csv")
    (month.work / "server/srv/visits.csv").rename(month.work / "server/srv/test.csv")
    words = {"visits.csv": "srv/visits.csv"}
    with ThreadPoolExecutor(len(SILOS)) as pool:
        look = pool.map(lambda silo: (silo, month.do("check", silo, code=1, **words)), SILOS)
    said = dict(look)
    if any("a value is missing (dose" not in each for each in said.values()):
        sys.exit(f"a hospital was not told of its missing values: {said}")
    make_app(month)
    decided = Path(month.work / "north/visits.toml")
    decided.write_text(
        '[data]\nsource = "srv/visits.csv"\nmissing = "fill"\n'
        'options = { y = "ill", groups = "patient" }\n'
    )
    month.do("check", "north", **{"visits.csv --y ill --groups patient": "visits.toml"})  # type: ignore[arg-type]
    return f"{len(SILOS)} files, each owner told of missing values, and decided"


def spoil(path: Path) -> None:
    """A device was out of order: every ninth dose is missing."""
    lines = path.read_text().splitlines()
    for number in range(9, len(lines), 9):
        age, pressure, _, *rest = lines[number].split(",")
        lines[number] = ",".join([age, pressure, "", *rest])
    path.write_text("\n".join(lines) + "\n")


def make_app(month: Month) -> None:
    """`dpfed new`, the page's task.py, and the table of docs/data.md in its pyproject.toml."""
    home = month.work / "server"
    subprocess.run(
        ["dpfed", "new", "visits-app"],
        cwd=home,
        env=month.environment("server"),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (home / "visits-app/visits_app/task.py").write_text(month.text("task", "server"))
    set_config(month, len(SILOS))


def set_config(month: Month, silos: int) -> None:
    """What all silos agree on, in the app's pyproject.toml."""
    path = month.work / "server/visits-app/pyproject.toml"
    text = path.read_text()
    values = {
        "sizes": " ".join([str(PATIENTS)] * silos),
        "unit": "group",
        "trust": "distributed",
        "data": "visits of generated patients",
    }
    for key, value in values.items():
        text = re.sub(rf'^{key} = "[^"]*"', f'{key} = "{value}"', text, flags=re.MULTILINE)
    path.write_text(text)


def deploy(month: Month) -> str:
    """Keys and certificates."""
    from dpfed.core.processes import free_port

    month.port = free_port()
    said = month.do("init", "operator")
    return said.splitlines()[-1]


def rehearse(month: Month, rounds: int) -> str:
    """The whole federation on the operator's machine, with made-up records."""
    home = month.work / "operator"
    shutil.copytree(month.work / "server/visits-app", home / "visits-app")
    for number, silo in enumerate(SILOS):
        made = home / "made-up" / silo
        made.mkdir(parents=True)
        month.do("visits", "operator", **{"Random(0)": f"Random({90 + number})"})  # type: ignore[arg-type]
        shutil.move(home / "visits.csv", made / "visits.csv")
    shutil.copy(home / "made-up/north/visits.csv", home / "made-up/test.csv")
    month.more["DPFED_DATA"] = str(home / "made-up")  # of its ServerApp: test.csv
    out = home / "rehearsed"
    words = {"num-server-rounds=20": f'num-server-rounds={rounds} out="{out}"'}
    said = month.do("try", "operator", **words)  # type: ignore[arg-type]
    del month.more["DPFED_DATA"]
    if not (out / "guarantee.json").is_file():
        sys.exit(f"the rehearsal left no guarantee:\n{said}")
    left = month.marked("operator")
    if left:
        sys.exit(f"the rehearsal has left processes behind: {left}")
    return said.splitlines()[-2][:60] if said else ""


def hand_over(month: Month) -> str:
    """Each host gets its own part, and the private keys go from where they were made."""
    fed = month.work / "operator/fed"
    shutil.copytree(fed / "server", month.work / "server/server")
    for silo in SILOS:
        give(month, silo)
    home = month.work / "server/flwr"
    home.mkdir(exist_ok=True)
    connection = (fed / "config.toml").read_text()
    connection = connection.replace(
        str(fed / "ca/ca.crt"), str(month.work / "server/server/ca.crt")
    )
    (home / "config.toml").write_text(connection)
    return "server/ and nodes/NAME/"


def give(month: Month, silo: str) -> None:
    source, target = month.work / "operator/fed/nodes" / silo, month.work / silo
    shutil.copytree(source, target, dirs_exist_ok=True)
    for key in ("node.key", "identity.key"):
        (source / key).unlink()


def open_federation(month: Month) -> str:
    """Budgets, the SuperLink, who may join, and the silos."""
    for silo in SILOS:
        month.do("budget", silo)
    month.start_server()
    said = month.do("register", "server")
    month.start_silos(*SILOS)
    return f"{said.count('registered')} registered"


# ------------------------------------------------------------------------------------ the trainings


def words_of(training: str, epsilon: float, rounds: int) -> dict[str, str]:
    return {
        '"ward"': f'"{training}"',
        "/ward": f"/{training}",
        "epsilon=2.0": f"epsilon={epsilon}",
        "num-server-rounds=20": f"num-server-rounds={rounds}",
    }


def first_training(month: Month, rounds: int) -> str:
    """It loses a silo in round 2, and the SuperLink in its last round; the same words again."""
    words = words_of("ward", 2.0, rounds)
    month.start("run", "server", **words)
    victim = SILOS[1]
    wait_for("round 2", lambda: (1, 0) in month.booked(victim, "ward"), month.patience * 4)
    month.kill(f"supernode {victim}")
    miss_heartbeats(month, victim)
    month.start_silos(victim)
    others = [silo for silo in SILOS if silo != victim]

    def last() -> list[str]:
        booked = [s for s in others if (rounds - 1, 0) in month.booked(s, "ward")]
        if not booked:
            month.still_trains()
        return booked

    wait_for("the last round", last, month.patience * 2)
    month.kill("superlink server")
    month.killed.append((rounds - 1, 0))
    month.kill("run server")
    month.start_server()
    log = month.start("run", "server", **words)
    finish(month, log, "ward")
    history = (month.out("ward") or Path()) / "metrics.csv"
    played = len(history.read_text().splitlines()) - 1
    month.do("statement", "server", **{"explain out": "explain visits-app/out"})  # type: ignore[arg-type]
    for name in ("model.safetensors", "statement.html"):
        if not (month.work / "server/visits-app/out" / name).is_file():
            sys.exit(f"the first training left no {name}")
    return f"{played} rows of {rounds} rounds, model and statement are there"


def finish(month: Month, log: Path, training: str) -> None:
    """Wait until a training's `flwr run` ends; it must leave a model."""
    process = month.processes.pop("run server")
    wait_for(f"training {training}", lambda: process.poll() is not None, month.patience * 10)
    if month.out(training) is None:
        server = sorted((month.work / "logs").glob("*-server-superlink.log"))[-1]
        sys.exit(f"no result of {training}:\n{log.read_text()}\n{server.read_text()[-4000:]}")


def miss_heartbeats(month: Month, silo: str) -> None:
    """Spare us the minute after which the SuperLink gives up a node that is silent."""
    if not month.short:
        return
    path = month.work / "server/server/superlink.db"
    with contextlib.closing(sqlite3.connect(path, timeout=30)) as database:
        database.execute("UPDATE node SET online_until = 0 WHERE name = ?", (silo,))
        database.commit()
    time.sleep(3.0)  # a SuperNode that is not forked takes that long: the server sees it go


def second_training(month: Month, rounds: int) -> str:
    """It does not fit into what is left at five hospitals: refused before anything is asked."""
    log = month.start("run", "server", **words_of("large", 2.9, rounds))
    process = month.processes.pop("run server")
    wait_for("the refusal", lambda: process.poll() is not None, month.patience * 4)
    said = log.read_text()
    if "suffices for the whole training, so none of it was asked for" not in said:
        sys.exit(f"a training that does not fit was not refused at enrolment:\n{said}")
    spent = [silo for silo in (*SILOS, SIXTH) if month.booked(silo, "large")]
    kept = [row["kind"] for row in month.rows(SIXTH)]
    if spent or kept != ["budget", "claim", "waive"]:  # it could have paid, and is free again
        sys.exit(f"a training that was refused has spent at {spent}, or is kept at {SIXTH}: {kept}")
    return str(re.findall(r"\d+ of \d+ clients have no budget[^,]*", said)[-1])


def third_training(month: Month, rounds: int) -> str:
    """A smaller one, with the sixth hospital in it."""
    log = month.start("run", "server", **words_of("small", 1.0, rounds))
    finish(month, log, "small")
    said = json.loads(((month.out("small") or Path()) / "guarantee.json").read_text())
    if said["participants"] != len(SILOS) + 1 or said["wasted_attempts"]:
        sys.exit(f"the third training had {said['participants']} silos")
    return f"{said['participants']} hospitals, accuracy {said['accuracy']:.3f}"


# -------------------------------------------------------------------------------------- the renewal


def renew(month: Month) -> str:
    """All certificates and a sixth silo; stop, hand over what it says, start the server first."""
    month.do("renew", "operator")
    for silo in SILOS:
        month.stop(f"supernode {silo}")
    month.stop("superlink server")
    fed = month.work / "operator/fed"
    for silo in SILOS:
        for name in ("ca.crt", "roster.json", "roster.sig", "start-supernode.sh"):
            shutil.copy(fed / "nodes" / silo / name, month.work / silo / name)
    for name in ("ca.crt", "server.crt", "server.key", "roster.json", "roster.sig"):
        shutil.copy(fed / "server" / name, month.work / "server/server" / name)
    shutil.copytree(fed / "server/nodes", month.work / "server/server/nodes", dirs_exist_ok=True)
    give(month, SIXTH)
    month.do("budget", SIXTH)
    set_config(month, len(SILOS) + 1)
    month.start_server()
    registered = month.do("register", "server")
    if f"{SIXTH}: registered" not in registered or "was registered before" not in registered:
        sys.exit(f"the sixth silo was not registered:\n{registered}")
    month.start_silos(*SILOS, SIXTH)
    return f"{len(SILOS) + 1} silos online under new certificates"


# ------------------------------------------------------------------------------------------ the end


def epsilon(mu_squared: float) -> float:
    from dpfed.accounting.gdp import epsilon_for

    return epsilon_for(DELTA, math.sqrt(mu_squared))


def in_totals(month: Month, silo: str, training: str) -> dict[At, float]:
    """The attempts of a training whose total has the silo's release: the last one of each round."""
    from dpfed.training.checkpoint import Checkpoint

    client, counted = (*SILOS, SIXTH).index(silo), dict[At, float]()
    booked = month.booked(silo, training)
    rows = Checkpoint(month.work / "server/var" / training).history() if booked else []
    for row in rows:
        if not row["aborted"] and str(client) not in str(row["absent"]).split():
            at = max(at for at in booked if at[0] == row["round"] - 1)
            counted[at] = booked[at]
    return counted


def account(month: Month) -> Iterator[str]:
    """What the crashes have wasted, in epsilon at the silo that they hit most."""
    worst = before = 0.0
    for silo in (*SILOS, SIXTH):
        month.do("verify", silo)
        booked = [month.booked(silo, each) for each in ("ward", "small")]
        spent = math.fsum(cost for each in booked for cost in each.values())
        kept = [in_totals(month, silo, each) for each in ("ward", "small")]
        useful = math.fsum(cost for each in kept for cost in each.values())
        again = math.fsum(booked[0].get(at, 0.0) for at in month.killed)
        worst = max(worst, epsilon(spent) - epsilon(useful))
        before = max(before, epsilon(spent + again) - epsilon(useful))
        yield (
            f"{silo}: epsilon {epsilon(spent):.3f} spent, {epsilon(useful):.3f} of it in totals, "
            f"ledger verified"
        )
    yield (
        f"wasted in the crashes: epsilon {worst:.3f} at the silo that they hit most; "
        f"{before:.3f} if no answer were stored and sent again"
    )


def play(month: Month) -> None:
    rounds, fewest = (5, 4) if month.short else (10, 4)  # the default method has 4 or more
    scenes: list[tuple[str, Callable[[], str]]] = [
        ("five CSVs", lambda: bring_data(month)),
        ("keys and certificates", lambda: deploy(month)),
        ("rehearsal", lambda: rehearse(month, fewest)),
        ("hand-over", lambda: hand_over(month)),
        ("five silos online", lambda: open_federation(month)),
        ("a training, two crashes", lambda: first_training(month, rounds)),
        ("renewal, a sixth silo", lambda: renew(month)),
        ("a training too large", lambda: second_training(month, rounds)),
        ("a smaller one", lambda: third_training(month, fewest)),
    ]
    began = time.monotonic()
    for words, scene in scenes:
        from_here = time.monotonic()
        print(f"== {words}", flush=True)
        said = scene()
        print(f"== {words}: {said} ({time.monotonic() - from_here:.0f} s)", flush=True)
    for line in account(month):
        print(line)
    unused = set(month.blocks) - month.used
    if unused:
        sys.exit(f"blocks that are marked for the month and were not run: {sorted(unused)}")
    print(f"month: ok ({time.monotonic() - began:.0f} s)")


# ---------------------------------------------------------------------------------- the environment


def from_the_wheel(work: Path) -> list[str]:
    """An empty environment with the wheel in it; its Python, to run this file again."""
    home = work / "env"
    venv.create(home, with_pip=True, upgrade_deps=True)
    pip = [str(home / "bin/python"), "-m", "pip", "-q", "--disable-pip-version-check"]
    torch = re.search(r"^pip install (torch\S*)", (CHECKOUT / "scripts/install").read_text(), re.M)
    steps = [
        ["wheel", "--no-deps", "--wheel-dir", str(work), str(CHECKOUT)],
        ["install", "--no-compile", torch[1] if torch else "torch"],
    ]
    for step in steps:
        subprocess.run([*pip, *step], check=True)
    wheel = next(work.glob("dpfed-*.whl"))
    subprocess.run([*pip, "install", "--no-compile", f"{wheel}[all]"], check=True)
    return [str(home / "bin/python"), str(Path(__file__).resolve())]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true", help="this environment, warm processes")
    parser.add_argument("--keep", action="store_true", help="leave the folder")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # by way of `finally`
    work = options.inside or Path(tempfile.mkdtemp(prefix="month-"))
    try:
        if options.short or options.inside:
            inside(work, options.short)
        else:
            again = from_the_wheel(work)
            clean = {n: v for n, v in os.environ.items() if n not in ("PYTHONPATH", "VIRTUAL_ENV")}
            sys.exit(
                subprocess.run([*again, "--inside", str(work)], env=clean, check=False).returncode
            )
    finally:
        if options.keep:
            print(f"kept: {work}")
        elif not options.inside:
            shutil.rmtree(work, ignore_errors=True)


def inside(work: Path, short: bool) -> None:
    month = Month(work, short)
    with contextlib.ExitStack() as stack:
        if short:
            sys.path.insert(0, str(CHECKOUT))
            from tests.training.flower.preloaded import preloaded

            month.more |= stack.enter_context(preloaded(work))
            month.more["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "0.2"
        stack.callback(month.close)
        try:
            play(month)
        except BaseException:
            print(month.tails(), flush=True)
            raise


if __name__ == "__main__":
    main()
