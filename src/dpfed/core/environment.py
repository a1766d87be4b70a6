# SPDX-License-Identifier: Apache-2.0
"""The environment variables that dpfed reads: set by the owner of a machine, never by a server.

| variable       | what it says                                          | if it is not set        |
|----------------|-------------------------------------------------------|-------------------------|
| DPFED_DATA     | folders in which relative data paths are looked for,  | the recipe's own folder |
|                | and the first of which ``dpfed data get`` writes to   | and the user's          |
| DPFED_STATE    | where a client keeps its state, and its ledger; where | ~/.dpfed                |
|                | a server keeps heads of ledgers                       |                         |
| DPFED_LEDGER   | the ledger's file                                     | in DPFED_STATE          |
| DPFED_DATASET  | the name of a node's data in its ledger; overrides    | the app's name for it   |
|                | the name that the app gives                           |                         |
| DPFED_GATE     | the socket of a silo's gate, for its relay            | /run/dpfed/gate.sock    |
| DPFED_IDENTITY | the folder of a silo's keys, or ``simulated``         | no secure sum           |
"""

from __future__ import annotations

import os
from pathlib import Path

DATA, STATE, LEDGER = "DPFED_DATA", "DPFED_STATE", "DPFED_LEDGER"
DATASET, IDENTITY, GATE = "DPFED_DATASET", "DPFED_IDENTITY", "DPFED_GATE"


def variable(name: str) -> str | None:
    """The value of a variable; None if it is unset or empty."""
    return os.environ.get(name) or None


def data_folders() -> list[Path]:
    """The folders of $DPFED_DATA."""
    named = (variable(DATA) or "").split(os.pathsep)
    return [Path(each).expanduser() for each in named if each]


def user_data_folder() -> Path | None:
    """The user's default data folder; None for a user without a home."""
    base = variable("LOCALAPPDATA" if os.name == "nt" else "XDG_DATA_HOME")
    if base and Path(base).is_absolute():
        return Path(base) / "dpfed"
    try:
        return Path.home() / ".local" / "share" / "dpfed"
    except RuntimeError:
        return None


def state_folder() -> Path:
    """Where a client keeps its state, and a server the heads of ledgers."""
    named = variable(STATE)
    return Path(named).expanduser() if named else Path.home() / ".dpfed"


def ledger_path() -> Path:
    """Where a client keeps its ledger."""
    named = variable(LEDGER)
    return Path(named).expanduser() if named else state_folder() / "ledger.sqlite"
