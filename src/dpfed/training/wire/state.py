# SPDX-License-Identifier: Apache-2.0
"""A client's own state between rounds, on the client's disk: safetensors, never pickle.

Keyed by (training, client, round, attempt). The server says which total had this client's last
reply, and its state continues from there: an attempt that was not committed, or whose reply came
too late, has no effect. That state is kept, and the last two that were written.
Flower's ``context.state`` is empty in a new run; a state under the training's name is not.

Guarantee: a training's folder belongs to one plan, and to one name under which its releases are
counted (``bind``). Correlated noise resumes from the state after all releases that the client's own
ledger counts, or not at all (``load_noise``): the server's round number has no say in it.

| edge case                                          | what happens                             |
|----------------------------------------------------|------------------------------------------|
| another plan, or another name of the data          | UnsoundPlan                              |
| a folder of states that says no plan               | UnsoundPlan                              |
| the noise's state is lost, older or newer than the | UnsoundPlan: begin a new training        |
| ledger (a backup, a crash while it was written)    |                                          |
| an algorithm's state is lost                       | it continues as a new client, a warning  |
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from dpfed.core.environment import state_folder
from dpfed.core.errors import DataError, UnsoundPlan
from dpfed.core.files import DRAFT, locked_file, replace_file, sync_folder
from dpfed.core.log import log
from dpfed.core.types import State
from dpfed.training.state_tree import join_state, leaves, split_state

At = tuple[int, int]
"""A round and its attempt."""

_STATES_KEPT = 2
_SECRET = "sum.vault"  # noqa: S105 (a file name)
_PLAN, _LOCK, _NOISE = "plan", "lock", "mechanisms"


def folder_for(training: str, client: int, root: Path | None = None) -> Path:
    """Where a client keeps its state.

    Args:
        training: the name of the training: up to 100 word characters, '-' and '.', no '.' first.
        client: the client's index in the plan.
        root: the folder of all trainings; None is $DPFED_STATE, or .dpfed in the home folder.
    """
    if not re.fullmatch(r"[\w.-]{1,100}", training) or training.startswith("."):
        raise DataError(
            f"training must be 1 to 100 of the characters A-Z a-z 0-9 - _ . and not begin with a "
            f"dot, got {training!r}; give DPStrategy such a name"
        )
    return (root or state_folder()) / training / f"client-{client}"


def bind(folder: Path, plan: str, dataset: str) -> None:
    """Bind a training's folder to one plan and one ledger; refuse it to any other.

    Args:
        folder: where the client keeps its state (``folder_for``).
        plan: the plan's fingerprint.
        dataset: the name under which the training's releases are counted.
    """
    path, ours = folder / _PLAN, f"{plan}\n{dataset}\n"
    if path.exists():
        found = path.read_text(encoding="utf-8")
    else:
        names = {each.name for each in folder.iterdir()} - {_LOCK}
        begun = any(not name.endswith(DRAFT) for name in names)  # a draft of a killed process
        found = "" if begun else ours
        if not begun:
            replace_file(path, ours.encode())
    if found != ours:
        raise UnsoundPlan(
            f"{folder} must be of this plan, and of data under the name {dataset!r}, got states of "
            f"others, or that say neither; give this training another name"
        )


def load_noise(
    folder: Path, made: Mapping[str, int], fresh: Mapping[str, State]
) -> dict[str, State]:
    """The states of correlated noise after all releases that were made; refuses any other.

    Two releases from one state, or a schedule that begins anew, cost more than is accounted for.

    Args:
        folder: where the client keeps its state (``folder_for``).
        made: channel -> in how many attempts the client's own ledger says that it was used.
        fresh: the states that the channels' noise begins with: the form.
    """
    template = (dict.fromkeys(made, 0), {name: fresh[name] for name in made})
    counted, states = load_at(folder / _NOISE, (0, 0), template) if _begun(folder) else template
    if counted != dict(made):
        raise UnsoundPlan(
            f"the noise in {folder} must be that after {dict(made)} attempts, as the ledger says, "
            f"got {counted}; begin a new training, since its earlier noise cannot be gone on with"
        )
    return dict(states)


def _begun(folder: Path) -> bool:
    return (folder / _NOISE / _name((0, 0))).exists()


def save_noise(folder: Path, made: Mapping[str, int], states: Mapping[str, State]) -> None:
    """Write the states of correlated noise, with the number of attempts that they are after.

    Args:
        folder: where the client keeps its state (``folder_for``).
        made: channel -> in how many attempts it was used, this one included.
        states: the channels' states; others than those in ``made`` are not kept.
    """
    save_state(folder / _NOISE, 0, (dict(made), {name: states[name] for name in made}))


def load_at(folder: Path, at: At, template: State) -> State:
    """The state after one attempt of a round; if it is missing, the template: as a new client.

    Args:
        folder: where the client keeps its states (``folder_for``).
        at: the round and the attempt after which the state was written.
        template: the state of a new client; it gives the form.
    """
    path = folder / _name(at)
    if not leaves(template):
        return template
    if not path.exists():
        log.warning("%s is missing: this client continues as a new one", path)
        return template
    try:
        with safe_open(path, framework="pt") as file:
            numbers = dict(json.loads(file.metadata()["numbers"]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} cannot be read; restore it, or begin a new training") from error
    return join_state(template, tensors, numbers)


def save_state(
    folder: Path, round: int, state: State, attempt: int = 0, since: At | None = None
) -> None:
    """Write the state after ``round`` atomically; forget all but the last two, and ``since``.

    Args:
        folder: where the client keeps its states (``folder_for``); made if it is not there.
        round: the round that the state is of, from 0.
        state: what is written; nothing is, if it has neither tensors nor numbers.
        attempt: the attempt at the round, from 0.
        since: the round and attempt whose state is kept, too; None keeps no other.
    """
    tensors, numbers = split_state(state)
    if not tensors and not numbers:
        return
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / _name((round, attempt))
    draft = path.with_suffix(".draft")
    written = _kept(folder)
    save_file(tensors, draft, metadata={"numbers": json.dumps(numbers)})
    with draft.open("rb") as file:
        os.fsync(file.fileno())  # going back to an earlier state would reuse noise, and cost more
    now = max(time.time_ns(), 1 + max(written.values(), default=0))
    os.utime(draft, ns=(now, now))  # this time, not the round, tells which two are the last
    draft.replace(path)
    sync_folder(folder)
    newest = sorted(written, key=lambda at: written[at])
    others = [at for at in newest if at != (round, attempt)]
    for at in others[: len(others) + 1 - _STATES_KEPT]:
        if at != since:
            (folder / _name(at)).unlink(missing_ok=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder: two messages of a client at once would both start from the same state."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with locked_file(folder / _LOCK):
        yield


def read_secret(folder: Path) -> bytes:
    """The sum's secret on this client; empty if there is none."""
    path = folder / _SECRET
    return path.read_bytes() if path.exists() else b""


def write_secret(folder: Path, secret: bytes) -> None:
    """Replace the secret; a crash leaves the old or the new one. Only the owner may read it.

    It is on the disk before the reply leaves: a mask that was sent is never made again.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace_file(folder / _SECRET, secret)


def _name(at: At) -> str:
    return f"{at[0]}-{at[1]}.safetensors" if at[1] else f"{at[0]}.safetensors"


def _kept(folder: Path) -> dict[At, int]:
    """The states in the folder, and when each was written."""
    found = {}
    for path in folder.glob("*.safetensors"):
        if match := re.fullmatch(r"(\d+)(?:-(\d+))?", path.stem):
            found[int(match[1]), int(match[2] or 0)] = path.stat().st_mtime_ns
    return found
