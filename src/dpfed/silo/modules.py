# SPDX-License-Identifier: Apache-2.0
"""Behind ``dpfed silo check --modules``: lists the modules that a gate loads, for its reviewer.

They are found by loading them, in a separate process. It opens the policy as a gate does, on a copy
of the state: it reads the data, builds what is approved, and rehearses each kind of round on
made-up records. So the list has only the algorithms, mechanisms and models that this policy and
these terms use. It names modules, and nothing of the data; no release is made, and what it writes
is in a folder that is removed.

| edge case                                   | what happens                                    |
|---------------------------------------------|-------------------------------------------------|
| run as root                                 | the process is the state folder's owner's       |
| nothing is approved                         | what every gate loads                           |
| terms that are not approved yet             | loaded, too, if no code or file of others makes |
|                                             | their model; else UnsoundPlan: approve first    |
| data that cannot be loaded                  | the error that the gate would end with          |
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from dpfed.core.database import copy_file
from dpfed.core.errors import DataError, UnsoundPlan
from dpfed.core.types import Broadcast
from dpfed.recipes.model import is_loaded
from dpfed.recipes.terms import read_terms
from dpfed.silo import gate_command
from dpfed.silo.approvals import CLOCK, FILE, LEDGER_FILE, REVOCATIONS, SOURCES
from dpfed.silo.blocks import FILE as BLOCKS
from dpfed.silo.handler import RequestHandler
from dpfed.silo.policy import load_policy
from dpfed.training.reply import ClientState, rehearse


class LoadedModules(NamedTuple):
    """The modules of a gate's process."""

    lines: dict[str, int]
    """Lines of each file of dpfed, by the module's name."""
    others: list[str]
    """Other packages, without those of Python itself."""

    def report(self) -> Iterator[str]:
        """Line by line, with the total at the end."""
        for name, lines in sorted(self.lines.items()):
            yield f"{lines:6d}  {name}"
        yield f"{sum(self.lines.values()):6d}  lines in {len(self.lines)} modules of dpfed"
        yield f"other packages: {', '.join(self.others)}"


def gate_modules(policy: Path, terms: Sequence[Path] = ()) -> LoadedModules:
    """Load what a gate loads in a new process, and say what that was.

    Args:
        policy: the owner's file.
        terms: of trainings that are not approved yet, to be loaded beside those that are.
    """
    state = Path(load_policy(policy).gate.state)
    owner = state.stat() if os.geteuid() == 0 and state.exists() else None
    command = [*gate_command(), "--modules", str(policy), *map(str, terms)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        user=owner.st_uid if owner else None,
        group=owner.st_gid if owner else None,
        extra_groups=[] if owner else None,
    )
    if done.returncode:
        said = done.stderr.strip() or (
            f"the process that lists a gate's modules ended with code {done.returncode}, without a "
            f"word; look for a record or a model that ends it, or takes all memory"
        )
        raise DataError(said.splitlines()[-1].removeprefix("error: "))
    return LoadedModules(*json.loads(done.stdout))


def print_modules(policy: Path, *terms: Path) -> None:
    """In the new process: load, then print the modules as JSON."""
    import_module("dpfed.silo.gate")
    with tempfile.TemporaryDirectory() as folder:
        _load(policy, terms, Path(folder))
    lines = {name: _lines(name) for name in sys.modules if name.split(".")[0] == "dpfed"}
    lines["dpfed.silo.__main__"] = _lines("__main__")
    del lines[__name__]  # a gate does not load this file
    tops = {name.split(".")[0] for name in sys.modules}
    named = {name for name in tops - sys.stdlib_module_names if not name.startswith("_")}
    print(json.dumps([lines, sorted(named - {"dpfed"})]))


def _load(path: Path, terms: Sequence[Path], state: Path) -> None:
    """Open the gate on a copy of its state, and rehearse every training that is approved in it."""
    policy = load_policy(path)
    for name in (FILE, REVOCATIONS, CLOCK, SOURCES, LEDGER_FILE, BLOCKS):
        if (found := Path(policy.gate.state) / name).exists():
            copy_file(found, state / name)
    handler = RequestHandler(replace(policy, gate=replace(policy.gate, state=str(state))))
    for each in terms:
        _approve_in_copy(handler, each.read_text(encoding="utf-8"))
    handler.open()
    now = handler.approvals.now()
    for approval in handler.approvals.all():
        if approval.state(now) == "approved":
            made, problem = handler.training(approval.name)
            optimizer, params = made.plan.optimizer, made.initial
            shared = optimizer.share(optimizer.init(params))  # as the first order has it
            broadcast = Broadcast(0, params, shared, training=approval.name)
            rehearse(made.plan, broadcast, ClientState(0, problem))


def _approve_in_copy(handler: RequestHandler, text: str) -> None:
    asked = read_terms(text)
    if is_loaded(asked.recipe.model):
        raise UnsoundPlan(
            f"the model {asked.recipe.model.name!r} of {asked.name!r} is loaded once its terms are "
            f"approved, and not before; approve them, and list the modules then"
        )
    data = handler.policy.data.get(asked.pins.dataset)
    if data is not None and data.reading:
        handler.approvals.accept(asked.pins.dataset, data.reading, by="this list")
    handler.permitted(asked)
    handler.approvals.approve(asked, text, days=1, by="this list")


def _lines(name: str) -> int:
    file = getattr(sys.modules[name], "__file__", None)
    return len(Path(file).read_text(encoding="utf-8").splitlines()) if file else 0
