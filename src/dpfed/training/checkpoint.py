# SPDX-License-Identifier: Apache-2.0
"""A run that can be resumed: after each round the whole state of the server is in one file.

    training.txt           the name of the training, by which clients and ledgers know it
    layout.json            the names and shapes of the model's parameters
    model.json             what the model takes and is (dpfed/bundle), where a recipe says so
    asked.json             the round and attempt that clients are asked for, and whether in all of
                           them so far all who had enrolled were behind gates: written before they
                           are asked
    progress.safetensors   model, optimizer, mechanisms and client states as tensors; round,
                           attempt, release counts, keys and history as JSON: replaced after each
                           round

Guarantee: whenever the process dies, ``load`` finds the last committed round, and no round that was
committed is asked for again. An attempt that was asked for and not committed counts as spent, once.
Where clients store their replies it is asked for again, in the same bytes; otherwise the round
continues as a new attempt, with new noise. Files are replaced as a whole and synced, never pickled.

| edge case                                        | what happens                              |
|--------------------------------------------------|-------------------------------------------|
| the process dies before, in or after a round     | the attempt is asked for again, or anew   |
| it dies while a file is written                  | the earlier file is still there           |
| another plan, model or training under the folder | refused: DataError                        |
| a file that is cut off or is not ours            | refused: DataError                        |
| another process continues the run in the folder  | refused: DataError                        |
| asked.json is not there                          | not known to be behind gates: not said    |
| another version of dpfed made the rounds so far  | goes on; ``Saved.made_by`` says which     |
| an older file than clients were asked after,     | refused: DataError, as rounds that were   |
| where the server adds the noise                  | broadcast would get new noise             |
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import takewhile
from operator import index
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from dpfed._version import VERSION as DPFED
from dpfed.accounting.event_tree import ChannelUse, RoundCounts
from dpfed.core.errors import DataError
from dpfed.core.files import jsonable, locked_file, replace_file
from dpfed.core.log import shown
from dpfed.core.types import State, Trust
from dpfed.core.vector import Layout
from dpfed.training.plan import Plan
from dpfed.training.round import ServerState, next_attempt
from dpfed.training.state_tree import join_state, split_state

VERSION = 1
_MAX_ATTEMPTS = 100_000  # at one round: a larger number was never written here
_ASKED, _STATE, _TRAINING = "asked.json", "progress.safetensors", "training.txt"
_LOCK, _LAYOUT = "lock", "layout.json"
MODEL_DESCRIPTION = "model.json"


@dataclass(frozen=True)
class CommittedRound:
    """A committed round: with these it can be run again, bit for bit, if noise is keyed."""

    round: int
    attempt: int
    clients: tuple[int, ...]


def committed_round(plan: Plan, before: ServerState, clients: tuple[int, ...]) -> CommittedRound:
    """What is kept of a round. The number of an open population's slot says nothing later on.

    Args:
        plan: the run's plan.
        before: the server before the round.
        clients: those in its total.
    """
    return CommittedRound(before.round, before.attempt, () if plan.open else clients)


@dataclass(frozen=True, eq=False)
class Saved:
    """A checkpoint as found on disk."""

    state: ServerState
    committed: tuple[CommittedRound, ...]
    history: list[dict[str, Any]]
    clients: State
    gated: bool = False
    """Whether all who had enrolled were behind gates, in each attempt that was asked for."""
    made_by: str = DPFED
    """The version of dpfed that made the last round."""


@dataclass(frozen=True, eq=False, kw_only=True)
class KeptModel:
    """The model in a checkpoint, by its parameters' names, and how it came about."""

    tensors: dict[str, torch.Tensor]
    training: str
    round: int
    history: list[dict[str, Any]]


class _RowTexts:
    """Rows as JSON, each written out once: a commit has all rows of the training so far."""

    def __init__(self) -> None:
        self._known: list[tuple[object, str]] = []

    def of(self, rows: Sequence[object], plain: Callable[[Any], object]) -> str:
        """All rows as one JSON array; only those that were not among the last ones are encoded.

        Args:
            rows: the rows of the last call, the same objects, and further ones; or others.
            plain: a row as plain data.
        """
        known = self._known
        same = sum(
            1 for _ in takewhile(lambda pair: pair[0] is pair[1][0], zip(rows, known, strict=False))
        )
        del known[same:]
        known += [(row, json.dumps(plain(row))) for row in rows[same:]]
        return f"[{', '.join(text for _, text in known)}]"


@dataclass(frozen=True)
class Checkpoint:
    """The folder of one run."""

    folder: Path
    _rows: _RowTexts = field(default_factory=_RowTexts, init=False, repr=False, compare=False)
    _played: _RowTexts = field(default_factory=_RowTexts, init=False, repr=False, compare=False)

    @property
    def begun(self) -> bool:
        """Whether clients have been asked for anything."""
        return (self.folder / _ASKED).exists()

    def training(self, name: str) -> str:
        """The name under which the run began; a new one for a new run."""
        path = self.folder / _TRAINING
        if not path.exists():
            if self.begun:  # under a name that the caller gave it
                return name
            self._write(_TRAINING, f"{name}-{secrets.token_hex(4)}".encode())
        return path.read_text(encoding="utf-8")

    def describe(self, layout: Layout) -> None:
        """Keep the parameters' names and shapes: with them ``model`` gives the model."""
        shapes = {name: list(shape) for name, shape in layout.shapes.items()}
        self._write(_LAYOUT, json.dumps(shapes).encode())

    def describe_model(self, description: bytes) -> None:
        """Keep what the model takes and is: with it ``model`` can be left as a bundle."""
        self._write(MODEL_DESCRIPTION, description)

    def model(self) -> KeptModel:
        """The model of the last committed round, without the plan that it came from."""
        facts, tensors = self._read()
        if facts is None:
            raise DataError(
                f"{self.folder} has no committed round, so there is no model; give the folder that "
                f"the run was started with as its checkpoint"
            )
        path = self.folder / _LAYOUT
        try:
            params = tensors["0"]  # the first leaf of the tree
            shapes = json.loads(path.read_bytes()) if path.exists() else {"params": [len(params)]}
            layout = Layout({name: tuple(shape) for name, shape in shapes.items()})
            return KeptModel(
                tensors=layout.unflatten(params),
                training=str(facts["training"]),
                round=index(facts["round"]),
                history=_rows(facts),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _unreadable(path) from error

    def _write(self, name: str, content: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_file(self.folder / name, content, 0o666)  # less what the umask takes away

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder: two processes would ask for the same attempts. A crash unlocks it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            try:
                stack.enter_context(locked_file(self.folder / _LOCK, wait=False))
            except BlockingIOError as error:
                raise DataError(
                    f"another process continues the run in {self.folder}; end that one first"
                ) from error
            yield

    def ask(self, state: ServerState, gated: bool = False) -> None:
        """Before clients are asked: from now on the attempt counts as spent.

        Args:
            state: the server before the attempt.
            gated: whether all who have enrolled are behind gates, in this attempt and all before.
        """
        content = {"round": state.round, "attempt": state.attempt, "gated": gated}
        self._write(_ASKED, json.dumps(content).encode())

    def commit(
        self,
        plan: Plan,
        state: ServerState,
        committed: Sequence[CommittedRound],
        history: Sequence[Mapping[str, Any]],
        clients: State = (),
    ) -> None:
        """After a round: all of it, or nothing.

        Args:
            plan: the run's plan.
            state: the server after the round.
            committed: all rounds that were completed so far.
            history: their rows, and those of attempts that were aborted.
            clients: what the engine keeps for its clients.
        """
        # an attempt that is asked for once more counts by asked.json, and not twice
        counts = state.release_counts if state.counts_before is None else state.counts_before
        facts = {
            "version": VERSION,
            "dpfed": DPFED,
            "plan": plan.fingerprint(),
            "training": state.training,
            "round": state.round,
            "attempt": state.attempt,
            "rounds": [[count, [list(use) for use in kind]] for kind, count in counts.items()],
            "directory": plan.sum.pack_directory(state.directory).hex(),
        }
        tensors, facts["numbers"] = split_state(self._tree(state, clients))
        played = self._played.of(committed, lambda at: [at.round, at.attempt, list(at.clients)])
        rows = self._rows.of(history, jsonable)
        text = f'{json.dumps(facts)[:-1]}, "played": {played}, "history": {rows}}}'
        self._write(_STATE, save(tensors, {"facts": text}))

    @staticmethod
    def _tree(state: ServerState, clients: State) -> State:
        mechanisms = dict(state.mechanisms)
        return (state.params, state.optimizer, mechanisms, clients)

    def load(
        self, plan: Plan, fresh: ServerState, clients: State = (), again: bool = False
    ) -> Saved | None:
        """The last committed round, to resume from; None if there is none yet.

        Args:
            plan: the run's plan: a checkpoint of another one is refused.
            fresh: the server as a new run would begin: it gives the form.
            clients: what a new engine would keep for its clients: the form, too.
            again: whether an attempt that died may be asked for once more: only where clients
                send the replies that they have stored; otherwise it is made anew.
        """
        facts, tensors = self._read()
        if facts is None:
            begun = self._spend_asked(plan, fresh, again)
            if begun is fresh:
                return None
            return Saved(
                state=begun, committed=(), history=[], clients=clients, gated=self._gated()
            )
        self._check(plan, fresh, facts)
        try:
            saved = self._saved(plan, fresh, clients, facts, tensors)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"the checkpoint in {self.folder} lacks a part ({error}); resume with the recipe "
                f"that it was begun with, or choose another folder"
            ) from error
        state = self._spend_asked(plan, saved.state, again)
        return replace(saved, state=state, gated=self._gated())

    def _gated(self) -> bool:
        """Whether all were behind gates, by the newest file: it is written before an attempt."""
        path = self.folder / _ASKED
        return path.exists() and json.loads(path.read_bytes()).get("gated") is True

    def _saved(
        self,
        plan: Plan,
        fresh: ServerState,
        clients: State,
        facts: dict[str, Any],
        tensors: dict[str, torch.Tensor],
    ) -> Saved:
        template = self._tree(fresh, clients)
        params, optimizer, mechanisms, kept = join_state(template, tensors, facts["numbers"])
        at, attempt = index(facts["round"]), index(facts["attempt"])
        state = replace(
            fresh,
            round=at,
            attempt=attempt,
            params=params,
            optimizer=optimizer,
            mechanisms=mechanisms,
            release_counts=_round_counts(plan, facts, at),
            directory=plan.sum.unpack_directory(bytes.fromhex(facts["directory"])),
            cohort=plan.draw(at, attempt),
        )
        committed = tuple(CommittedRound(r, a, tuple(clients)) for r, a, clients in facts["played"])
        return Saved(state, committed, _rows(facts), kept, made_by=shown(str(facts["dpfed"]), 40))

    def history(self) -> list[dict[str, Any]]:
        """The rows that were written with the last committed round."""
        facts, _ = self._read()
        return [] if facts is None else _rows(facts)

    def _read(self) -> tuple[dict[str, Any] | None, dict[str, torch.Tensor]]:
        path = self.folder / _STATE
        if not path.exists():
            return None, {}
        try:
            with safe_open(path, framework="pt") as file:
                facts = dict(json.loads(file.metadata()["facts"]))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise _unreadable(path) from error
        return facts, tensors

    def _check(self, plan: Plan, fresh: ServerState, facts: dict[str, Any]) -> None:
        ours = {"version": VERSION, "plan": plan.fingerprint(), "training": fresh.training}
        for name, value in ours.items():
            if facts.get(name) != value:
                raise DataError(
                    f"{self.folder} holds a run of another {name}; resume with the recipe that it "
                    f"was begun with, or choose another folder"
                )

    def _asked_for(self) -> tuple[int, int]:
        """The round and attempt that were asked for last."""
        path = self.folder / _ASKED
        try:
            asked = json.loads(path.read_bytes())
            at, attempt = index(asked["round"]), index(asked["attempt"])
            if attempt > _MAX_ATTEMPTS:
                raise ValueError(attempt)
        except (ValueError, KeyError, TypeError) as error:
            raise _unreadable(path) from error
        return at, attempt

    def _spend_asked(self, plan: Plan, state: ServerState, again: bool) -> ServerState:
        """Attempts that were asked for and never committed are spent; the last may be repeated."""
        if not (self.folder / _ASKED).exists():
            return state
        at, attempt = self._asked_for()
        if at > state.round and plan.update.trust is Trust.CENTRAL:
            raise DataError(
                f"the checkpoint in {self.folder} is of round {state.round}, and clients were "
                f"asked for round {at}; bring back the newest one, since a round that was "
                f"broadcast must not get new noise"
            )
        if at > state.round:  # rounds that were completed, and are not in this older checkpoint
            return _with_lost_rounds(plan, state, at, attempt)
        while at == state.round and state.attempt < attempt:
            state = next_attempt(plan, _spent(plan, state))
        if (at, attempt) != (state.round, state.attempt):
            return state
        spent = _spent(plan, state)
        if again:  # it counts from now on, and once
            return replace(spent, counts_before=state.release_counts)
        return next_attempt(plan, spent)


def _round_counts(plan: Plan, facts: Mapping[str, Any], completed: int) -> RoundCounts:
    """What was released so far, of the plan's channels: one left out would count as unspent."""
    found = {
        tuple(ChannelUse(str(name), index(many), float(h)) for name, many, h in kind): index(count)
        for count, kind in facts["rounds"]
    }
    uses = [use for kind in found for use in kind]
    unknown = {use.channel for use in uses} - plan.channels.keys()
    least = min([1, *found.values(), *(min(use.releases, use.shares) for use in uses)])
    most = max([1.0, *(use.shares for use in uses)])
    if unknown or not least >= 1 or most > len(plan.nominal) or not all(found):
        raise ValueError(f"channels {sorted(unknown)}, {most:g} shares of noise")
    for name in plan.channels:
        made = sum(u.releases * n for kind, n in found.items() for u in kind if u.channel == name)
        if made < sum(plan.releases(name, at) for at in range(completed)):
            raise ValueError(f"{made} releases on {name} in {completed} rounds")
    return found


def _with_lost_rounds(plan: Plan, state: ServerState, at: int, attempt: int) -> ServerState:
    """The state with what was asked for after it: each round once, the last with its attempts."""
    counts = Counter(dict(state.release_counts))
    counts.update(plan.round_kind(each) for each in range(state.round, at))
    counts[plan.round_kind(at)] += attempt + 1
    return replace(state, release_counts=counts)


def _spent(plan: Plan, state: ServerState) -> ServerState:
    """The state with the coming attempt counted: how far it went is unknown."""
    return replace(state, release_counts=plan.counts_after(state.release_counts, state.round))


def _unreadable(path: Path) -> DataError:
    return DataError(f"{path} cannot be read; restore it, or begin in a new folder")


def _rows(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The history in a checkpoint."""
    found = facts.get("history")
    if not isinstance(found, list):
        raise DataError("the checkpoint has no history; restore it, or begin in a new folder")
    return found
