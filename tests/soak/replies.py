#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Send many hostile replies through the real DPStrategy, and count how each one ended.

    nice tests/soak/replies.py --replies 100000 --write results/hostile/replies.json

Three quarters go to the plain sum, the rest to the secure one; a third of the clients lie in every
round. It exits with 1 if a reply was accepted, if anything crashed, or if a round did not complete
with the exact sum of the releases inside. What is valid by form is counted apart: see
tests/training/flower/hostile.py for the kinds, and docs/threats.md for what bounds a valid vote.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pytest
from tests.training.flower import hostile
from tests.training.flower.local_grid import become_a_server


def machine() -> dict[str, int]:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"cores": os.cpu_count() or 0, "memory_gib": round(pages / 2**30)}


def figures(replies: int, seed: int) -> dict[str, Any]:
    began = time.perf_counter()
    tally, votes = hostile.Tally(), hostile.Tally()
    hostile.soak(replies * 3 // 4, seed, secure=False, tally=tally)
    plain = tally.rounds
    hostile.soak(replies - tally.count("tried"), seed + 1, secure=True, tally=tally)
    hostile.soak(
        max(100, replies // 100), seed + 2, secure=False, tally=votes, flood=1, lies=hostile.VALID
    )
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "command": f"tests/soak/replies.py --replies {replies} --seed {seed}",
        "machine": machine(),
        "clients": hostile.CLIENTS,
        "hostile": hostile.LIARS,
        "seed": seed,
        "replies": tally.count("tried"),
        "kinds": len(tally.lies()),
        "refused": tally.count("refused"),
        "accepted": tally.count("accepted"),
        "crashed": tally.count("crashed"),
        "rounds_plain": plain,
        "rounds_secure": tally.rounds - plain,
        "rounds_not_exact": tally.inexact,
        "honest_clients_missing": tally.honest_missing,
        "rude_texts_in_the_log": tally.rude,
        "seconds": round(time.perf_counter() - began, 1),
        "by_kind": tally.table(),
        "valid_by_form": {name: votes.table()[name] for name in hostile.VALID},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replies", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with (
        tempfile.TemporaryDirectory(prefix="dpfed-hostile-", dir=memory) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("DPFED_STATE", folder)
        patch.setenv("DPFED_IDENTITY", "simulated")
        become_a_server(patch)
        found = figures(options.replies, options.seed)
    text = json.dumps(found, indent=2) + "\n"
    if options.write:
        options.write.parent.mkdir(parents=True, exist_ok=True)
        options.write.write_text(text, encoding="utf-8")
    print(text)
    wrong = ("accepted", "crashed", "rounds_not_exact", "honest_clients_missing")
    sys.exit(any(found[name] for name in (*wrong, "rude_texts_in_the_log")))


if __name__ == "__main__":
    main()
