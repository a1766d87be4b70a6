#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kill Flower's processes in the middle of a training and start them again, many times.

    tests/soak/restart.py --cycles 20 > results/ledger/restart.json

A real federation on loopback: TLS, node keys, 3 silos, DP-SCAFFOLD at d = 10^5, each silo with its
control variate and its ledger on its own disk. In turn the ServerApp, the SuperLink (with its
ServerApp) and one SuperNode get SIGKILL, each at a random moment of a round, and are started again;
the server by a further ``flwr run`` with the same checkpoint and training. At the end the model
must be that of the committed rounds played once more in this process, bit for bit, all ledgers must
verify, and no attempt may be booked twice or without having been asked for. It exits with 1 if not.

| edge case                                     | what happens                                    |
|-----------------------------------------------|-------------------------------------------------|
| the training ends before all cycles are done  | it ends by an error: ask for more ``--rounds``  |
| a killed SuperNode is refused for a minute    | the SuperLink's record of its heartbeat is aged |
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.training.flower.network import Net
from tests.training.flower.preloaded import commands
from tests.training.flower.restart import Training

from dpfed.cli.deploy import deploy
from dpfed.recipes import schema as recipes

SILOS = ["north", "south", "west"]
VICTIMS = ("serverapp", "superlink", "supernode")
ROOM = 2  # rounds that the plan has for each one that is wanted


def write_recipe(folder: Path, rounds: int) -> Path:
    """DP-SCAFFOLD on a softmax head of 10 classes and 9,999 features: d = 10^5."""
    tables: dict[str, Any] = {
        "rounds": rounds,
        "seed": 7,
        "data": {
            "source": "synthetic",
            "options": {"records": 240, "features": 9999, "classes": 10},
            "partition": {"name": "dirichlet", "clients": len(SILOS), "options": {"alpha": 0.5}},
        },
        "privacy": {"epsilon": 100.0, "noise": "keyed"},
        "client": {"name": "scaffold", "steps": 2},
        "evaluation": {"kind": "off"},
    }
    path = folder / "recipe.toml"
    path.write_text(recipes.dump_recipe(recipes.load_recipe(tables)), encoding="utf-8")
    return path


def cycle(
    training: Training,
    victim: str,
    rng: random.Random,
    longest: float,
    died: set[tuple[int, int]],
) -> float:
    """Kill at a random moment of a round, start again; seconds until a later one is asked for."""
    moment = rng.uniform(0.0, longest)
    time.sleep(moment)
    began, at = time.monotonic(), training.asked()
    if training.ended:
        sys.exit("error: the training ended before all cycles were done; use more --rounds")
    if victim == "supernode":
        training.restart_node(rng.choice(SILOS))
    else:
        if victim == "superlink":
            training.restart_superlink()
        else:
            training.kill_serverapp()
        at = training.asked()  # the last one that the dead server asked for
        died.add(at)
        training.start()
    training.wait_asked(at)
    taken = time.monotonic() - began
    print(
        f"{victim} at {at}, {moment:.1f} s in; next {training.asked()} after {taken:.1f} s",
        file=sys.stderr,
        flush=True,
    )
    return taken


def soak(work: Path, cycles: int, rounds: int, seed: int) -> tuple[dict[str, Any], bool]:
    rng = random.Random(seed)
    for name in ("DPFED_STATE", "DPFED_LEDGER", "DPFED_DATASET", "DPFED_IDENTITY"):
        os.environ.pop(name, None)  # each silo has its own, in its folder
    deploy.init(work / "fed", server_names=["127.0.0.1"], nodes=SILOS)
    env = {"OMP_NUM_THREADS": "1", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2", **commands()}
    kills: Counter[str] = Counter()
    waits: list[float] = []
    died: set[tuple[int, int]] = set()  # attempts that were open when their server was killed
    with Net(work, SILOS, folder=work / "fed", env=env) as net:
        recipe = write_recipe(work, ROOM * rounds)
        training = Training(net, work / "run", recipe, rounds, timeout=12.0)
        training.start()
        training.wait_asked((0, 0))
        for number in range(cycles):
            victim = VICTIMS[number % len(VICTIMS)]
            waits.append(cycle(training, victim, rng, 3.0, died))
            kills[victim] += 1
        left = training.wait(600.0)
    found = training.look()
    for sentence in found.problems:
        print(f"wrong: {sentence}", file=sys.stderr)
    kept = {(each.round, each.attempt) for each in found.committed}
    made = [at for name in SILOS for at in found.booked[name]]
    whole = [row for row in left.history if not row["aborted"]]
    counted = sum(len(each.clients) for each in found.committed)
    good = found.same_bits and not found.problems and len(whole) == len(kept) == rounds
    return {
        "kills": dict(kills),
        "flwr_runs": training.runs,
        "parameters": 100_000,
        "silos": len(SILOS),
        "rounds_committed": len(kept),
        "rows_of_history": len(whole),
        "rounds_without_a_silo": sum(len(each.clients) < len(SILOS) for each in found.committed),
        "attempts_asked_again": len(died & kept),
        "attempts_wasted": found.wasted,
        "entries_in_ledgers": len(made),
        "entries_wasted": len(made) - counted,
        "model_equals_replay_bit_for_bit": found.same_bits,
        "wrong_in_ledgers_or_records": len(found.problems),
        "epsilon_spent": round(left.guarantee.claims[0].epsilon, 3),
        "seconds_to_go_on_median": round(sorted(waits)[len(waits) // 2], 1),
        "seconds_to_go_on_max": round(max(waits), 1),
    }, good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=0, help="committed at the end; 3 per cycle")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, help="a folder that is kept, with all logs")
    options = parser.parse_args()
    rounds = options.rounds or 3 * options.cycles
    began = time.perf_counter()
    if options.work:
        options.work.mkdir(parents=True)
        figures, good = soak(options.work, options.cycles, rounds, options.seed)
    else:
        with tempfile.TemporaryDirectory(prefix="dpfed-restart-") as folder:
            figures, good = soak(Path(folder), options.cycles, rounds, options.seed)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    about = {
        "command": " ".join(["tests/soak/restart.py", *sys.argv[1:]]),
        "date": datetime.now(UTC).date().isoformat(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1),
        "seed": options.seed,
    }
    about |= {"cycles": options.cycles, **figures}
    print(json.dumps({**about, "seconds": round(time.perf_counter() - began, 1)}, indent=2))
    sys.exit(not good)


if __name__ == "__main__":
    main()
