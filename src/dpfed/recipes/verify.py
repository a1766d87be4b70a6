# SPDX-License-Identifier: Apache-2.0
"""Verify a training's evidence, offline: who signed what, if it agrees, and what it costs.

Nothing of the folder is trusted but what the silos' keys have signed, and the keys themselves are
to be given from elsewhere (``roster``), or compared with those that each silo's own gate shows.

    complete      every silo has signed, all agrees, and adds up to what the guarantee claims
    incomplete    nothing contradicts, and something is missing: each is named
    refused       something contradicts what the silos have signed: each is named

The verdict is about what left the silos. It says which model it belongs to, by the digest that the
server named to all silos, and which of the broadcasts a model file is, if it is an earlier one.

Guarantee: files are opened without following links, by fixed names, up to fixed sizes; JSON with
two readings is refused. No path, code or address in the folder is used, and nothing is written.

| edge case                                      | what happens                                    |
|------------------------------------------------|-------------------------------------------------|
| a link, a folder, a device, a file too large   | refused                                         |
| a file that is not of the form, or not listed  | refused                                         |
| no statement of a silo, or not all receipts    | incomplete                                      |
| a claim that no silo has signed (clients       | incomplete: it is the server's word             |
| dropped out, which leaves less noise to others)|                                                 |
| an app without gates                           | said: by the app that the server shipped        |
| a draw of clients that is secret               | nothing on rounds is expected, nor accepted     |
| events that would take too long to account for | refused                                         |
| a model file that no silo was told of          | refused                                         |
| a guarantee of which any field is not what the | refused, with its name                          |
| silos have signed                              |                                                 |
| a silo that may still answer orders (``open``) | incomplete: rounds may be left out              |
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from dpfed._version import VERSION
from dpfed.accounting.guarantee import GATED, SHIPPED, Claim, Guarantee
from dpfed.accounting.stated import claim_of, read_guarantee, recomputed, same
from dpfed.core.dsse import Json, Statement, canonical_json, open_statement, strict_json
from dpfed.core.errors import DataError, DpfedError
from dpfed.core.log import shown
from dpfed.core.types import Adjacency, Trust
from dpfed.data.contract import contract_of
from dpfed.recipes.evidence import (
    AUDIT,
    FILES,
    FOLDER,
    GUARANTEE,
    HISTORY,
    INDEX,
    SBOM,
    TERMS,
)
from dpfed.recipes.terms import Terms, check_numbers, read_terms
from dpfed.sums.secagg.identity import CA, ROSTER, SIGNATURE, Roster, parse_roster
from dpfed.training.flower.evidence import RECEIPTS, ROUNDS, STATEMENTS
from dpfed.training.history import participants, took_part
from dpfed.training.wire.evidence import (
    ASSUMPTIONS,
    FIRST,
    GATE,
    MODEL,
    RECEIPT,
    ROOM,
    STATEMENT,
    UNCOUNTED,
    cohort_digest,
    link,
)

COMPLETE, INCOMPLETE, REFUSED = "complete", "incomplete", "refused"
MODEL_FILE = "model.safetensors"
BUNDLE_FILE = f"model/{MODEL_FILE}"
"""The same parameters in the bundle, which is what others load."""
DESCRIPTION_FILE = "model/model.json"
_SMALL, _LARGE = 1 << 24, 1 << 27
_MOST_BYTES = {STATEMENTS: _LARGE, RECEIPTS: _LARGE, ROUNDS: _LARGE, HISTORY: _LARGE}
_MOST_HEADER_BYTES = 1 << 24
_MOST_LINES = 1_000_000
_NEEDED = (TERMS, ROSTER, STATEMENTS, GUARANTEE, HISTORY, SBOM)
_SAME = (
    "training",
    "clients",
    "terms",
    "terms_sha256",
    "contract",
    "plan",
    "unit",
    "adjacency",
    "blocks",
    "trust",
    "rounds",
    "attempts",
    "claims",
    "assumes",
)


class Problem(NamedTuple):
    """One thing that is wrong, or missing."""

    name: str
    """A fixed word."""
    said: str
    missing: bool = False
    """Whether something is only not there."""


class SiloEvidence(NamedTuple):
    """What one silo has signed."""

    client: int
    name: str
    key: str
    stated: bool
    by: str
    answered: int | None
    """Rounds that it answered; None where that is secret, or not stated."""
    receipts: int
    software: str


@dataclass(frozen=True)
class Verified:
    """What was found in an evidence folder."""

    training: str
    anchored: bool
    """Whether the silos' keys came from elsewhere than the folder."""
    silos: tuple[SiloEvidence, ...]
    claims: tuple[tuple[str, float, float], ...]
    """Adversary, epsilon as computed again, delta: of each claim that all silos have signed."""
    model: str
    """The digest that the silos were told at the end."""
    file: str
    """What the model file beside the folder is, in words."""
    guarantee: Guarantee | None
    """As the server states it; where the verdict is complete, as the silos have signed it."""
    answered: Json
    """Who is in the totals of which rounds, as silos and server have it; empty if nobody has."""
    problems: tuple[Problem, ...]
    notes: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The guarantee in one sentence; "" if there is none."""
        return self.guarantee.sentence if self.guarantee else ""

    @property
    def verdict(self) -> str:
        """complete, incomplete or refused."""
        if any(not each.missing for each in self.problems):
            return REFUSED
        return INCOMPLETE if self.problems else COMPLETE

    def to_json(self) -> Json:
        """The same as one JSON object."""
        return {
            "verdict": self.verdict,
            "training": self.training,
            "keys": "given" if self.anchored else "of the folder itself: compare them",
            "silos": [each._asdict() for each in self.silos],
            "claims": [
                {"adversary": who, "epsilon": epsilon, "delta": delta}
                for who, epsilon, delta in self.claims
            ],
            "model": self.model,
            "file": self.file,
            "sentence": self.sentence,
            "problems": [each._asdict() for each in self.problems],
            "notes": list(self.notes),
        }


@dataclass
class _Found:
    """What has been read and found so far."""

    files: dict[str, bytes] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    index: Json = field(default_factory=dict)
    roster: Roster = field(default_factory=lambda: Roster((), ()))
    statements: dict[int, Statement] = field(default_factory=dict)
    receipts: dict[int, list[Statement]] = field(default_factory=dict)
    cohorts: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    committed: list[tuple[int, int, list[int]]] = field(default_factory=list)
    claims: list[tuple[str, float, float]] = field(default_factory=list)
    guarantee: Guarantee | None = None
    contents: Json = field(default_factory=dict)
    answered: Json = field(default_factory=dict)
    sizes: list[float] | None = None
    """Each silo's public number of units, where the silos' terms have it."""
    expected: Json | None = None
    """What their plan says of a secret draw."""
    file: str = "no model was looked at"

    def refuse(self, name: str, said: str) -> None:
        self.problems.append(Problem(name, said))

    def miss(self, name: str, said: str) -> None:
        self.problems.append(Problem(name, said, missing=True))

    @property
    def agreed(self) -> Json:
        """What the first statement says: the others must say the same."""
        return next(iter(self.statements.values())).predicate if self.statements else {}


def verify_evidence(out: Path, roster: Path | None = None) -> Verified:
    """Look at everything in ``out/evidence``, and at the model files beside it.

    Args:
        out: a run's folder, or its evidence folder itself, from anyone.
        roster: the silos' roster from elsewhere; None takes the folder's own.
    """
    found = _Found()
    folder = out if out.name == FOLDER else out / FOLDER
    if roster is not None:
        _given_roster(roster)
    steps: tuple[Callable[[], None], ...] = (
        lambda: _read_files(found, folder, out),
        lambda: _read_index(found),
        lambda: _read_roster(found, roster),
        lambda: _read_statements(found),
        lambda: _read_receipts(found),
        lambda: _read_rounds(found),
        lambda: _check_agreement(found),
        lambda: _check_terms(found),
        lambda: _check_chains(found),
        lambda: _check_rounds(found),
        lambda: _check_guarantee(found),
        lambda: _check_others(found),
    )
    for step in steps:
        _attempt(found, step)
    _attempt(found, lambda: _check_model(found, out if out.name != FOLDER else out.parent))
    silos: list[SiloEvidence] = []
    _attempt(found, lambda: silos.extend(_silos(found)))
    return Verified(
        training=str(found.agreed.get("training", "")),
        anchored=roster is not None,
        silos=tuple(silos),
        claims=tuple(found.claims),
        model=_model_of(found),
        file=found.file,
        guarantee=found.guarantee,
        answered=found.answered,
        problems=tuple(dict.fromkeys(found.problems)),
        notes=tuple(found.notes),
    )


def _attempt(found: _Found, step: Callable[[], None]) -> None:
    """One step of the checks: whatever a stranger's files make it raise is a problem of theirs."""
    try:
        step()
    except Exception as error:
        found.refuse("malformed", _said(error))


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {shown(str(error), 300)}"


# --------------------------------------------------------------------------------------- files


def read_bounded(path: Path, most: int) -> bytes | None:
    """A plain file's content, up to a size; None if there is none. No link is followed.

    Args:
        path: whose folder was looked at before.
        most: the maximum number of bytes.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(
            f"{path.name} must be a plain file ({error.strerror}); ask for the folder again"
        ) from None
    with os.fdopen(handle, "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise _malformed(path.name, "the form of a plain file")
        if facts.st_size > most:
            raise _malformed(path.name, f"at most {most} bytes")
        return file.read(most)


def _read_files(found: _Found, folder: Path, out: Path) -> None:
    try:
        plain = stat.S_ISDIR(folder.lstat().st_mode)
    except OSError:
        found.miss("no-evidence", f"there is no folder {FOLDER}")
        return
    if not plain:
        found.refuse("link", f"{FOLDER} must be a folder, got a link or a file")
        return
    _refuse_strays(found, folder)
    for name in (INDEX, *FILES):
        try:
            content = read_bounded(folder / name, _MOST_BYTES.get(name, _SMALL))
        except DataError as error:
            found.refuse("unfit-file", str(error))
            continue
        if content is not None:
            found.files[name] = content
    beside = read_bounded(out / GUARANTEE, _SMALL) if out != folder else None
    if beside is not None and beside != found.files.get(GUARANTEE, beside):
        found.refuse("other-guarantee", f"{GUARANTEE} beside the folder is not the one in it")


def _refuse_strays(found: _Found, folder: Path) -> None:
    with os.scandir(folder) as listed:
        for count, entry in enumerate(listed):
            if count > 100 or entry.name not in (*FILES, INDEX):
                found.refuse("stray-file", f"{entry.name[:60]!r} does not belong there")
                return


def _read_index(found: _Found) -> None:
    for name in (*_NEEDED, INDEX):
        if name not in found.files:
            found.miss("no-file", f"{name} is not there")
    if INDEX not in found.files:
        return
    index = strict_json(found.files[INDEX])
    if set(index) != {"version", "training", "layout", "committed", "files"}:
        raise _malformed(INDEX, "its five keys, and no others")
    if _whole(index["version"]) != 1:
        raise DataError(f"{INDEX} must be of version 1; update dpfed")
    found.index = index
    _compare_files(found, dict(index["files"]))
    for each in index["committed"]:
        if set(each) != {"round", "attempt", "clients"}:
            raise _malformed("a committed round", "round, attempt and clients")
        clients = [_whole(client) for client in each["clients"]]
        found.committed.append((_whole(each["round"]), _whole(each["attempt"]), clients))


def _compare_files(found: _Found, listed: Mapping[str, Any]) -> None:
    for name, digest in listed.items():
        if name not in found.files:
            found.miss("no-file", f"{str(name)[:60]!r} is listed, and not there")
        elif hashlib.sha256(found.files[name]).hexdigest() != digest:
            found.refuse("changed-file", f"{name} is not the file that {INDEX} lists")
    for name in set(found.files) - set(listed) - {INDEX}:
        found.refuse("unlisted-file", f"{name} is not in {INDEX}")


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
        raise DataError(f"a number must be whole and at least 0, got {str(value)[:40]}")
    return value


def _read_roster(found: _Found, given: Path | None) -> None:
    own = found.files.get(ROSTER)
    if given is not None:
        content = _given_roster(given)
        if own is not None and own != content:
            theirs, mine = parse_roster(own), parse_roster(content)
            if theirs.keys != mine.keys:
                found.refuse("other-roster", f"{ROSTER} has other keys than the roster given")
        own = content
    if own is None:
        return
    strict_json(own)
    found.roster = parse_roster(own)
    pinned = _pinned_roster(found.files.get(TERMS, b""))
    if pinned and pinned != hashlib.sha256(own).hexdigest():
        way_out = "" if given else ": give theirs, by --roster"
        found.refuse("other-roster", f"the terms pin another roster{way_out}")


def _given_roster(path: Path) -> bytes:
    """What the verifier gives, and nobody else: a mistake in it is no verdict about the folder."""
    content = read_bounded(path.absolute(), _SMALL)
    if content is None:
        raise DataError(f"there is no roster {str(path)!r}; give the silos' own")
    try:
        strict_json(content)
        parse_roster(content)
    except (DpfedError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DataError(
            f"the roster {str(path)!r} must be as docs/evidence.md has it, and is not "
            f"({str(error).partition(';')[0]}); correct it"
        ) from error
    return content


def _pinned_roster(terms: bytes) -> str:
    try:
        return read_terms(terms).pins.roster if terms else ""
    except DpfedError:
        return ""  # named by _check_terms


def _lines(found: _Found, name: str) -> list[bytes]:
    content = found.files.get(name, b"")
    if content and not content.endswith(b"\n"):
        raise _malformed(name, "a whole line at its end")
    lines = content.split(b"\n")[:-1]
    if len(lines) > _MOST_LINES:
        raise _malformed(name, f"at most {_MOST_LINES} lines")
    return lines


def _signed(found: _Found, line: bytes, kind: str) -> tuple[int, Statement] | None:
    """A line's statement, and which silo's key signed it: the one that it names as its own."""
    for client, key in _candidates(found, line):
        said = open_statement(line, key)
        if said.predicate_type != kind or set(said.subject) != {MODEL}:
            raise _malformed("a line", f"type {kind}, about a model")
        if _whole(said.predicate["client"]) != client:
            found.refuse("another-silo", f"{_name(found, client)} signed as another silo")
            return None
        return client, said
    found.refuse("foreign-key", f"a line of type {kind} is signed by a key of nobody's")
    return None


def _candidates(found: _Found, line: bytes) -> Iterator[tuple[int, bytes]]:
    tree = strict_json(line)
    named = tree["signatures"][0]["keyid"] if isinstance(tree, dict) else ""
    for client, key in enumerate(found.roster.keys):
        if key.hex() == named:
            yield client, key


def _name(found: _Found, client: int) -> str:
    names = found.roster.names
    return names[client] if client < len(names) else f"silo {client}"


def _read_statements(found: _Found) -> None:
    for line in _lines(found, STATEMENTS):
        try:
            opened = _signed(found, line, STATEMENT)
        except (DataError, KeyError, TypeError, IndexError) as error:
            found.refuse("bad-statement", _said(error))
            continue
        if opened is None:
            continue
        client, said = opened
        if client in found.statements:
            found.refuse("two-statements", f"{_name(found, client)} has two statements")
        found.statements[client] = said
        if said.predicate["open"] is not False:
            found.miss("open-training", f"{_name(found, client)} may still answer orders of it")
    for client, name in enumerate(found.roster.names):
        if client not in found.statements:
            found.miss("no-statement", f"{name} has made no statement")


def _read_receipts(found: _Found) -> None:
    for line in _lines(found, RECEIPTS):
        try:
            opened = _signed(found, line, RECEIPT)
        except (DataError, KeyError, TypeError, IndexError) as error:
            found.refuse("bad-receipt", _said(error))
            continue
        if opened is not None:
            found.receipts.setdefault(opened[0], []).append(opened[1])


def _read_rounds(found: _Found) -> None:
    for line in _lines(found, ROUNDS):
        each = strict_json(line)
        if set(each) != {"round", "attempt", "cohort"}:
            raise _malformed(f"a line of {ROUNDS}", "round, attempt and cohort")
        at = _whole(each["round"]), _whole(each["attempt"])
        cohort = [_whole(client) for client in each["cohort"]]
        if found.cohorts.setdefault(at, cohort) != cohort:
            found.refuse("two-cohorts", f"round {at[0]}, attempt {at[1]} has two cohorts")


# ------------------------------------------------------------------------- what silos have signed


def _check_agreement(found: _Found) -> None:
    agreed = found.agreed
    for client, said in found.statements.items():
        _compare_statements(found, client, said)
        if said.predicate.get("earlier"):
            found.notes.append(f"{_name(found, client)} states that {UNCOUNTED}")
    if not agreed:
        return
    if agreed["clients"] != len(found.roster.keys):
        found.refuse("other-roster", f"the silos state that they are {agreed['clients']}")
    if found.index and found.index["training"] != agreed["training"]:
        found.refuse("other-training", f"{INDEX} names another training than the silos")
    secret = "answered" not in agreed
    if secret and (found.receipts or found.cohorts or found.committed):
        found.refuse("participation", "who took part must stay secret here, and is told")
    versions = {_software(said.predicate) for said in found.statements.values()}
    if len(versions) > 1:
        found.notes.append(f"the silos ran different software: {', '.join(sorted(versions))}")


def _compare_statements(found: _Found, client: int, said: Statement) -> None:
    """A silo's statement beside the first one."""
    for name in _SAME:
        if not same(said.predicate.get(name), found.agreed.get(name)):
            found.refuse("disagree", f"{_name(found, client)} states another {name}")
    if said.subject != {MODEL: _model_of(found)}:
        found.refuse("other-model", f"{_name(found, client)} was told of another model")
    if ("answered" in said.predicate) != ("answered" in found.agreed):
        found.refuse("disagree", f"{_name(found, client)} states rounds, and others do not")


def _software(predicate: Mapping[str, Any]) -> str:
    told = predicate["software"]
    return ", ".join(
        f"{name} {str(told[name]['version'])[:40]} ({str(told[name]['sha256'])[:8]})"
        for name in sorted(told)[:4]
    )


def _check_terms(found: _Found) -> None:
    agreed, text = found.agreed, found.files.get(TERMS)
    if not agreed or text is None:
        return
    if not agreed["terms"]:
        if text:
            found.refuse("other-terms", "the silos have stated no terms, and there are some")
        return
    if hashlib.sha256(text).hexdigest() != agreed["terms_sha256"]:
        found.refuse("other-terms", "the silos have approved another text of terms")
        return
    terms = read_terms(text)
    contract = getattr(terms.pins.contract, "digest", "")
    if terms.fingerprint != agreed["terms"] or terms.name != agreed["training"]:
        found.refuse("other-terms", "the silos have approved other terms")
    elif contract != agreed["contract"] or len(terms.pins.sizes) != agreed["clients"]:
        found.refuse("other-terms", "the silos state another contract, or number of silos")
    else:
        found.sizes = list(terms.pins.sizes)
        _check_plan(found, terms)


def _check_plan(found: _Found, terms: Terms) -> None:
    """What the terms cost, by our own computation: the silos' trees of events must be the same."""
    if terms.pins.dpfed != VERSION or not terms.described:
        found.notes.append(
            f"the terms' own plan was not computed again: they are of dpfed {terms.pins.dpfed[:20]}"
        )
        return
    check_numbers(terms)
    stated = terms.plan.guarantee()
    mine = [json.loads(canonical_json(each.event)) for each in stated.claims]
    theirs = [each["event"] for each in found.agreed["claims"]]
    if terms.plan.fingerprint() != found.agreed["plan"] or mine != theirs:
        found.refuse("other-plan", "the terms make another plan than the silos state")
    elif terms.plan.draw_is_secret:
        found.expected = participants(terms.plan, ())


def _check_chains(found: _Found) -> None:
    for client, said in found.statements.items():
        if "answered" in said.predicate:
            _check_chain(found, client, said.predicate)
    for client in set(found.receipts) - set(found.statements):
        found.notes.append(f"{_name(found, client)} has receipts, and no statement")


def _check_chain(found: _Found, client: int, predicate: Json) -> None:
    """That a silo's receipts are what it states, and all of it."""
    name, before = _name(found, client), FIRST
    own = found.receipts.get(client, [])
    receipts = {(each.predicate["round"], each.predicate["attempt"]): each for each in own}
    if len(receipts) < len(own):
        found.refuse("two-receipts", f"{name} has two receipts for one attempt")
    for each in predicate["answered"]:
        body = {
            "training": predicate["training"],
            "plan": predicate["plan"],
            "client": client,
            "round": each["round"],
            "attempt": each["attempt"],
            "shared": each["shared"],
            "cohort": each["cohort"],
            "before": before,
        }
        before = link(each["model"], body)
        receipt = receipts.pop((each["round"], each["attempt"]), None)
        if receipt is None:
            found.miss("no-receipt", f"{name} has no receipt for round {each['round'] + 1}")
        elif link(receipt.subject[MODEL], receipt.predicate) != before:
            found.refuse("other-receipt", f"{name}'s receipt is not what it states")
    if before != predicate["chain"]:
        found.refuse("broken-chain", f"the rounds that {name} states are not its chain")
    if receipts:
        found.refuse("old-statement", f"{name} answered rounds that it does not state")


def _check_rounds(found: _Found) -> None:
    agreed = found.agreed
    if "answered" not in agreed:
        return
    seen = _answered(found)
    if len(seen) > _whole(agreed["attempts"]):
        found.refuse("too-many", f"{len(seen)} attempts were answered, of {agreed['attempts']}")
    for at, by in sorted(seen.items()):
        _check_attempt(found, at, by)
    for place, committed in enumerate(found.committed):
        _check_committed(found, place, committed, seen)
    if len(found.committed) > _whole(agreed["rounds"]):
        found.refuse("too-many", f"there are more rounds than the {agreed['rounds']} agreed on")


def _answered(found: _Found) -> dict[tuple[int, int], dict[int, Json]]:
    """By round and attempt: what each silo states of it."""
    seen: dict[tuple[int, int], dict[int, Json]] = {}
    for client, said in found.statements.items():
        for each in said.predicate.get("answered", []):
            by = seen.setdefault((_whole(each["round"]), _whole(each["attempt"])), {})
            if client in by:
                found.refuse("twice", f"{_name(found, client)} states one attempt twice")
            by[client] = each
    return seen


def _check_attempt(found: _Found, at: tuple[int, int], by: Mapping[int, Json]) -> None:
    """That all silos which answered an attempt were sent the same, and were asked."""
    what = f"round {at[0] + 1}, attempt {at[1]}"
    if len({(each["model"], each["shared"]) for each in by.values()}) > 1:
        found.refuse("two-broadcasts", f"{what}: the silos were sent different models")
    if len({each["cohort"] for each in by.values()}) > 1:
        found.refuse("two-cohorts", f"{what}: the silos were told of different cohorts")
    cohort = found.cohorts.get(at)
    if cohort is None:
        found.miss("no-cohort", f"{what}: {ROUNDS} does not say who was asked")
    elif any(each["cohort"] != cohort_digest(cohort) for each in by.values()):
        found.refuse("other-cohort", f"{what}: the silos were told of another cohort")
    elif not set(by) <= set(cohort):
        found.refuse("other-cohort", f"{what}: a silo answered that was not asked")


def _check_committed(
    found: _Found,
    place: int,
    committed: tuple[int, int, list[int]],
    seen: Mapping[tuple[int, int], Mapping[int, Json]],
) -> None:
    """That the silos in a total have stated that they answered."""
    number, attempt, clients = committed
    if number != place:
        found.refuse("other-rounds", f"round {place + 1} is missing of those committed")
    for client in clients:
        if client in found.statements and client not in seen.get((number, attempt), {}):
            said = f"{_name(found, client)} has not answered round {number + 1}"
            found.refuse("not-answered", f"{said}, and is in its total")
    if not clients or len(set(clients)) < len(clients):
        found.refuse("other-rounds", f"round {number + 1} must have silos, each once")
    if not all(0 <= client < found.agreed["clients"] for client in clients):
        found.refuse("other-rounds", f"round {number + 1} has a silo that there is not")


# --------------------------------------------------------------------------------- the guarantee


def _check_guarantee(found: _Found) -> None:
    content = found.files.get(GUARANTEE)
    if content is not None:
        found.contents = strict_json(content)
        try:
            found.guarantee = read_guarantee(found.contents)
        except DataError as error:
            found.refuse("other-guarantee", str(error))
    for tree in found.agreed.get("claims", []):
        _compute_again(found, tree)
    if found.guarantee is None or not found.agreed:
        return
    _check_claims(found, found.guarantee)
    _compare_whole(found, found.guarantee)
    _check_answered(found)
    _note_the_servers_part(found)
    found.guarantee = replace(found.guarantee, realised=(), opinions=())  # the server's word


def _compute_again(found: _Found, tree: Json) -> None:
    """A signed claim's epsilon, from its own tree of events."""
    claim = claim_of(tree)
    try:
        again = recomputed(claim, Adjacency(found.agreed["adjacency"]))
    except DataError as error:
        found.refuse("other-epsilon", str(error))
        return
    found.claims.append((claim.adversary, again, claim.delta))


def _compare_whole(found: _Found, stated: Guarantee) -> None:
    """That each field of the guarantee is what the silos have signed, or says less."""
    agreed = found.agreed
    if set(agreed["assumes"]) != set(ASSUMPTIONS):
        raise _malformed("a statement", f"the assumptions {', '.join(ASSUMPTIONS)}")
    signed = _signed_guarantee(found, stated)
    for each in fields(Guarantee):
        one, other = getattr(stated, each.name), getattr(signed, each.name)
        if one != other:
            said = f"the guarantee says {each.name} = {shown(str(one), 60)!r}"
            found.refuse("other-guarantee", f"{said}, and the silos {shown(str(other), 60)!r}")
    if not 0 <= stated.rounds <= _whole(agreed["rounds"]):
        found.refuse("too-many", f"{stated.rounds} rounds are claimed, of {agreed['rounds']}")
    if found.contents.get("training", agreed["training"]) != agreed["training"]:
        found.refuse("other-training", f"{GUARANTEE} names another training than the silos")


def _signed_guarantee(found: _Found, stated: Guarantee) -> Guarantee:
    """The guarantee that the silos' statements make.

    Its claims were compared one by one. What no silo can sign, and no sentence says, is the
    server's: ``realised`` and ``opinions``; and the number of rounds where it is secret.
    """
    agreed = found.agreed
    said = [each.predicate for each in found.statements.values()]
    gated = all(each["by"] == GATE for each in said)
    room = all(each["budget"] == ROOM for each in said)
    facts = {
        **stated.to_json(),
        **{name: agreed[name] for name in ("unit", "adjacency", "trust")},
        **agreed["assumes"],
        "blocks": agreed.get("blocks", []),
        "budgeted": stated.budgeted and room,
        "enforced": GATED if stated.enforced == GATED and gated else SHIPPED,
    }
    if "answered" in agreed:
        facts["rounds"] = len(found.committed)
    return msgspec.convert(facts, Guarantee, strict=False)


def _check_claims(found: _Found, stated: Guarantee) -> None:
    signed = {each["adversary"]: each for each in found.agreed["claims"]}
    for claim in stated.claims:
        own = signed.get(claim.adversary)
        if own is None:
            found.miss("unsigned-claim", f"no silo has signed the claim against {claim.adversary}")
        else:
            _compare_claim(found, claim, own)
    if not stated.claims or stated.epsilon < max(each["epsilon"] for each in signed.values()):
        found.refuse("other-epsilon", "the largest claim is below the largest that was signed")


def _compare_claim(found: _Found, claim: Claim, own: Json) -> None:
    """One claim of the guarantee beside the one that the silos have signed."""
    if (claim.delta, claim.delta_reserved) != (own["delta"], own["delta_reserved"]):
        found.refuse("other-claim", f"another delta is claimed against {claim.adversary}")
    elif not claim.epsilon >= own["epsilon"] * (1 - 1e-12):
        said = f"epsilon {claim.epsilon:.6g} is claimed against {claim.adversary}"
        found.refuse("other-epsilon", f"{said}, and {own['epsilon']:.6g} was signed")
    elif canonical_json(claim.event) != canonical_json(own["event"]):
        if claim.epsilon > own["epsilon"]:
            found.miss("unsigned-claim", f"no silo has signed the claim of {claim.adversary}")
        else:
            found.refuse("other-claim", f"other events are claimed of {claim.adversary}")
    elif claim.accounting != own["accounting"]:
        found.refuse("other-claim", f"another accountant is named for {claim.adversary}")


def _note_the_servers_part(found: _Found) -> None:
    """What the claims rest on that a server did, and that no silo can have signed."""
    if found.agreed["trust"] == Trust.CENTRAL:
        found.notes.append("that the server has added the noise is the server's word")
    elif found.agreed["trust"] == Trust.LOCAL and len(found.agreed["claims"]) > 1:
        found.notes.append(
            "the claims against others than the server count on it that the server has added up "
            "all releases of a round, which is its word; the one against the server does not"
        )


def _check_answered(found: _Found) -> None:
    """Who took part, as guarantee.json says it: it must be what silos and server have, whole."""
    told, clients = found.contents.get("answered"), _whole(found.agreed["clients"])
    if "answered" not in found.agreed:
        mine = found.expected
    else:
        names = list(found.roster.names)
        named = names if isinstance(told, dict) and told.get("roster") is True else None
        mine = took_part(found.sizes or [0.0] * clients, found.committed, named)
        if found.sizes is None and isinstance(told, dict):
            # nobody has signed how many there are, so that no page says it
            told = {name: value for name, value in told.items() if name != "units"}
            del mine["units"]
    if mine is not None and not same(told, mine):
        found.refuse("other-participants", "the guarantee says otherwise who took part")
    elif mine is not None:
        found.answered = mine
    if not same(found.contents.get("participants", clients), clients):
        found.refuse("other-participants", f"the silos state that they are {clients}")


def _check_others(found: _Found) -> None:
    """History, bill of materials and audit: that they are what they are called."""
    done = [
        row["round"]
        for row in map(strict_json, _lines(found, HISTORY))
        if isinstance(row, dict) and not row.get("aborted")
    ]
    if found.guarantee is not None and done != list(range(1, found.guarantee.rounds + 1)):
        found.refuse("other-history", f"{HISTORY} has other rounds than the guarantee")
    if SBOM in found.files:
        bill = strict_json(found.files[SBOM], most_bytes=_SMALL)
        if bill.get("bomFormat") != "CycloneDX" or not isinstance(bill.get("components"), list):
            found.refuse("other-sbom", f"{SBOM} is not a bill of materials by CycloneDX")
    if AUDIT in found.files:
        strict_json(found.files[AUDIT], most_bytes=_SMALL)
    if (SIGNATURE in found.files) != (CA in found.files):
        found.refuse("unfit-file", f"{SIGNATURE} and {CA} must come together")


# ------------------------------------------------------------------------------------- the model


def _model_of(found: _Found) -> str:
    said = next(iter(found.statements.values()), None)
    return said.subject[MODEL] if said else ""


def _check_model(found: _Found, out: Path) -> None:
    """What the model files beside the evidence are."""
    if not found.index:
        found.file = f"nothing here says what {MODEL_FILE} should be"
        return
    said = [_check_file(found, out, name) for name in (MODEL_FILE, BUNDLE_FILE)]
    found.file = "; ".join(filter(None, said)) or f"there is no {MODEL_FILE} here"
    _check_description(found, out / DESCRIPTION_FILE)


def _check_file(found: _Found, out: Path, name: str) -> str:
    """What one model file is; "" if it is not there."""
    path = out / name
    try:
        if path.parent != out and path.parent.is_symlink():
            raise _malformed(path.parent.name, "the form of a folder")
        digest = model_file_digest(path, found.index.get("layout", []))
    except Exception as error:
        found.refuse("bad-model", f"{name}: {_said(error)}")
        return f"{name} is not a model that can be compared"
    if digest is None:
        return ""
    if not found.statements:
        return f"nobody has signed for {name}"
    if digest == _model_of(found):
        return f"{name} is the model that the silos were told the training ended with"
    sent = {each["model"]: each["round"] for each in found.agreed.get("answered", [])}
    if digest in sent:
        return f"{name} is the model that round {sent[digest] + 1} began with"
    found.refuse("other-model", f"{name} is a model that no silo was told of")
    return f"{name} is of another training"


def _check_description(found: _Found, path: Path) -> None:
    """What a bundle says of itself, where that is signed: its guarantee, and its contract."""
    if path.parent.is_symlink():
        return  # is refused with the parameters in it
    content = read_bounded(path, _SMALL)
    if content is None or not found.agreed or not found.contents:
        return
    told = strict_json(content, most_bytes=_SMALL)
    if problem := description_problem(told, found.contents, found.agreed["contract"]):
        found.refuse("other-bundle", f"{DESCRIPTION_FILE} {problem}")
    found.notes.append(
        f"of {DESCRIPTION_FILE} the silos have signed the guarantee and the contract: its classes, "
        "its steps and its figures are the word of whoever ran it"
    )


def description_problem(told: Json, guarantee: Json, contract: str) -> str:
    """What a bundle's model.json says otherwise than the silos have signed; "" if nothing.

    Args:
        told: model.json.
        guarantee: guarantee.json, which was compared with the statements.
        contract: the digest of the contract that the silos state; "" for none.

    >>> description_problem({"guarantee": {"epsilon": 0.1}, "input": {}}, {"epsilon": 1.0}, "")
    'states another guarantee (epsilon)'
    """
    stated = told["guarantee"]
    names = {each.name for each in fields(Guarantee)} | {"sentence", "epsilon", *stated}
    other = sorted(name for name in names if not same(stated.get(name), guarantee.get(name)))
    if other:
        return f"states another guarantee ({shown(', '.join(other), 200)})"
    read_by = told["input"].get("contract")
    if (contract_of(read_by).digest if read_by else "") != contract:
        return "reads records by another contract than the silos' own"
    return ""


def model_file_digest(path: Path, layout: list[str]) -> str | None:
    """The digest of a safetensors file's parameters, as silos sign it; None if there is none.

    Args:
        path: the file.
        layout: the parameters' names, in their order.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with os.fdopen(handle, "rb") as file:
        size, tree = _header(file)
        if sorted(tree) != sorted(layout) or not layout:
            raise _malformed(path.name, f"the parameters that {INDEX} lists")
        if any(tree[name]["dtype"] != "F32" for name in layout):
            raise _malformed(path.name, "float32 parameters")
        shapes = [(name, [_whole(n) for n in tree[name]["shape"]]) for name in layout]
        found = hashlib.sha256(canonical_json(shapes) + b"\n")
        for name, shape in shapes:
            first, last = map(_whole, tree[name]["data_offsets"])
            if last - first != 4 * math.prod(shape):
                raise _malformed(path.name, "parameters of their shapes' sizes")
            file.seek(8 + size + first)
            for part in _parts(file, last - first):
                found.update(part)
    return found.hexdigest()


def _header(file: BinaryIO) -> tuple[int, Json]:
    """How long a safetensors file's header is, and what it says."""
    size = 0
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        size = int.from_bytes(file.read(8), "little")
    if not 0 < size <= _MOST_HEADER_BYTES:
        raise _malformed(MODEL_FILE, "the form of safetensors")
    tree = strict_json(file.read(size), most_bytes=_MOST_HEADER_BYTES)
    tree.pop("__metadata__", None)
    return size, tree


def _parts(file: BinaryIO, size: int) -> Iterator[bytes]:
    """So many bytes, a few at a time."""
    while size:
        part = file.read(min(size, 1 << 20))
        if not part:
            raise _malformed(MODEL_FILE, "all bytes that it lists")
        size -= len(part)
        yield part


def _malformed(what: str, bound: str) -> DataError:
    return DataError(f"{what} must have {bound}, and has not; ask for the folder again")


def _silos(found: _Found) -> Iterator[SiloEvidence]:
    for client, (name, key) in enumerate(zip(found.roster.names, found.roster.keys, strict=True)):
        said = found.statements.get(client)
        predicate = said.predicate if said else {}
        try:
            software = _software(predicate) if said else ""
        except (KeyError, TypeError, AttributeError):
            software = "not stated as agreed"
        yield SiloEvidence(
            client=client,
            name=name,
            key=key.hex(),
            stated=said is not None,
            by=re.sub(r"[^ -~]", "?", str(predicate.get("by", "")))[:100],
            answered=len(predicate["answered"]) if "answered" in predicate else None,
            receipts=len(found.receipts.get(client, [])),
            software=re.sub(r"[^ -~]", "?", software),
        )
