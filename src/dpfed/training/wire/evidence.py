# SPDX-License-Identifier: Apache-2.0
"""What a client signs: a receipt for each round that it answers, and one statement of the training.

    receipt     subject    model: the digest of the broadcast's parameters
                predicate  training, plan, client, round, attempt, shared, cohort; reply: a
                           commitment to what was sent; before: the link to the receipt before
    statement   subject    model: the digest that the server named, of the model at the end
                predicate  training, client, terms, plan, claims (each with its tree of events);
                           open: whether orders may be answered after it;
                           assumes: what else the guarantee's sentence says, and rests on;
                           answered: the rounds, by their receipts without the replies; chain: the
                           last link; budget; earlier: that it counts no earlier releases, if
                           so; head, software; by: whose process this is

Both are in-toto Statements in DSSE envelopes (core/dsse.py). Whoever has them can check, without
the silo, what it was asked and by which plan it answered (docs/evidence.md).

Guarantee: a statement is the same, to the bit, for neighbouring data: it follows from terms, plan,
orders and the ledger's head. A reply enters a receipt only as HMAC-SHA256 under a salt of 256 bits
that the silo alone can make and the server alone is told: a plain digest would let readers try out
small replies, and under central trust those have no noise. Where the accounting relies on a secret
draw of clients there is no receipt, and a statement says nothing on who took part, nor a head.

| edge case                                         | what happens                               |
|---------------------------------------------------|--------------------------------------------|
| a client without a key                            | no receipts; a statement is refused        |
| the byte-identical order once more                | the same receipt                           |
| killed after the reply was stored, before its     | the receipt is made when the order comes   |
| receipt was                                       | again                                      |
| killed while the receipt was written              | the half line is dropped, and made again   |
| an open population, or a draw that is secret      | no receipts                                |
| a server that names no model, or no digest        | the statement is about no model; refused   |
| an order after a statement that is not open       | refused: the ledger's chain has a row      |
| a second statement after it, of another model     | refused                                    |
| a process that the app brought                    | "by the app that the server shipped"       |
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, NamedTuple

import dpfed
from dpfed._version import VERSION
from dpfed.core.dsse import Json, Statement, canonical_json, make_statement
from dpfed.core.errors import BadReply
from dpfed.core.files import jsonable
from dpfed.core.sum_protocol import Messages
from dpfed.core.types import Vector
from dpfed.sums.secagg.identity import SigningKey
from dpfed.training.plan import Plan

STATEMENT = "urn:dpfed:statement:1"
RECEIPT = "urn:dpfed:receipt:1"
GATE = "a process of the data's owner, which alone reads the data"
APP = "the app that the server shipped"
MODEL = "model"
"""The name of a receipt's, and of a statement's, subject."""
ROOM = "the ledger had room for it"
UNCOUNTED = "releases before the budget that now stands are not counted in it"
ASSUMPTIONS = ("noise", "idealized", "shares", "draws", "colluders", "correlated")
"""What a guarantee says besides its claims, and rests on: fields of ``Guarantee``."""
NO_MODEL = hashlib.sha256(b"").hexdigest()
"""The digest of a statement that is about no model: its owner made it, and knows of none."""
FIRST = "0" * 64
"""What stands before the first receipt of a chain."""
MOST_RECEIPT_BYTES = 1 << 13
_FILE = "receipts.jsonl"


class Receipt(NamedTuple):
    """A signed receipt, and the salt of its commitment, which is for the server alone."""

    envelope: bytes
    salt: bytes


class Asked(NamedTuple):
    """What an order asks, as far as a receipt names it."""

    training: str
    client: int
    round: int
    attempt: int
    model: str
    shared: str
    cohort: str
    order: str
    """The digest of the whole order."""


# ----------------------------------------------------------------------------------- digests


def model_digest(arrays: Iterable[tuple[str, Sequence[int], bytes]]) -> str:
    """The digest of a model: names and shapes in their order, then the bytes of all arrays.

    Args:
        arrays: name, shape, and the little-endian bytes of float32.

    >>> model_digest([("w", [1], bytes(4))])[:16]
    'aa64a283f00c9e3d'
    """
    named = [(name, list(shape), content) for name, shape, content in arrays]
    found = hashlib.sha256(canonical_json([[name, shape] for name, shape, _ in named]) + b"\n")
    for _, _, content in named:
        found.update(content)
    return found.hexdigest()


def checked_digest(model: str) -> str:
    """The digest of a model as a server names it; BadReply if it is none.

    Args:
        model: 64 hexadecimal digits; "" of no model.
    """
    if model and (len(model) != 64 or set(model) - set("0123456789abcdef")):
        raise BadReply("a model must be named by 64 hexadecimal digits; update the server's dpfed")
    return model


def vector_digest(shapes: Mapping[str, Sequence[int]], params: Vector) -> str:
    """``model_digest`` of flat parameters.

    Args:
        shapes: the names and shapes of the arrays, in their order.
        params: their values, one after the other.
    """
    flat = params.float().contiguous().numpy().tobytes()
    first, *others = shapes.items()
    rest = [(name, shape, b"") for name, shape in others]
    return model_digest([(*first, flat), *rest])


def cohort_digest(clients: Iterable[int]) -> str:
    """The digest of a list of clients.

    Args:
        clients: their indices, in any order.

    >>> cohort_digest([2, 0]) == cohort_digest([0, 2])
    True
    """
    return hashlib.sha256(canonical_json(sorted(clients))).hexdigest()


def shared_digest(shared: Mapping[str, Vector]) -> str:
    """The digest of what a server optimizer publishes beside the parameters; "" if nothing."""
    if not shared:
        return ""
    named = {
        name: hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()
        for name, tensor in shared.items()
    }
    return hashlib.sha256(canonical_json(named)).hexdigest()


def commitment(salt: bytes, reply: Messages) -> str:
    """What a receipt says of a reply: nothing, to whoever has no salt.

    Args:
        salt: 32 bytes.
        reply: the messages, by channel.
    """
    found = hmac.new(salt, digestmod="sha256")
    for name, message in sorted(reply.items()):
        for part in (name.encode(), message):
            found.update(len(part).to_bytes(8, "big") + part)
    return found.hexdigest()


def link(model: str, predicate: Mapping[str, Any]) -> str:
    """A receipt's link in the chain: a digest of all but the reply, so that no record moves it.

    Args:
        model: the digest that is the receipt's subject.
        predicate: the receipt's.
    """
    said = {name: value for name, value in predicate.items() if name != "reply"}
    return hashlib.sha256(canonical_json([model, said])).hexdigest()


# ----------------------------------------------------------------------------------- receipts


def gives_receipts(plan: Plan) -> bool:
    """Whether clients may say which rounds they answered: not where that must stay secret."""
    return not plan.open and not plan.draw_is_secret


def receipt_for(
    folder: Path, key: SigningKey, plan: Plan, asked: Asked, reply: Messages
) -> Receipt:
    """The receipt of a reply that is on the disk; made once, and on the disk when this returns.

    Args:
        folder: the client's folder of the training, which the caller has locked.
        key: the client's.
        plan: what it has agreed to.
        asked: the order.
        reply: what is about to be sent.
    """
    salt = hmac.digest(key.secret("reply salt"), asked.order.encode(), "sha256")
    kept = _lines(folder)
    found = _find(kept, asked.round, asked.attempt)
    if found is None:
        predicate = {
            "training": asked.training,
            "plan": plan.fingerprint(),
            "client": asked.client,
            "round": asked.round,
            "attempt": asked.attempt,
            "shared": asked.shared,
            "cohort": asked.cohort,
            "before": link(*json.loads(kept[-1])) if kept else FIRST,
            "reply": commitment(salt, reply),
        }
        found = (asked.model, predicate)
        _append(folder, found)
    model, predicate = found
    said = Statement({MODEL: model}, RECEIPT, predicate)
    return Receipt(make_statement(said, key.sign, key.public), salt)


def _find(kept: Sequence[bytes], round: int, attempt: int) -> tuple[str, Json] | None:
    """The receipt of a round and attempt, the latest lines first; only likely lines are parsed."""
    marks = (b'"round":%d,' % round, b'"attempt":%d,' % attempt)  # as canonical_json writes them
    for line in reversed(kept):
        if all(mark in line for mark in marks):
            model, predicate = json.loads(line)
            if (predicate["round"], predicate["attempt"]) == (round, attempt):
                return model, predicate
    return None


def _read(folder: Path) -> list[tuple[str, Json]]:
    """The receipts so far: model and predicate."""
    return [(model, predicate) for model, predicate in map(json.loads, _lines(folder))]


def _lines(folder: Path) -> list[bytes]:
    """The receipts so far; a last line without its end was not written whole, and is dropped."""
    path = folder / _FILE
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        os.truncate(path, len(whole))
    return whole.splitlines()


def _append(folder: Path, receipt: tuple[str, Json]) -> None:
    handle = os.open(folder / _FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(handle, "ab") as file:
        file.write(canonical_json(receipt) + b"\n")
        file.flush()
        os.fsync(handle)


# ---------------------------------------------------------------------------------- statements


class Facts(NamedTuple):
    """What a client's statement says beside its plan: all of it is known without the data."""

    terms: str = ""
    """The fingerprint of the terms that its owner has approved; "" of an app without terms."""
    terms_sha256: str = ""
    """The digest of their text."""
    contract: str = ""
    """The digest of the data contract in them."""
    budgeted: bool = False
    """Whether its ledger has a budget for the data, and had room for what was answered."""
    renewed: bool = False
    """Whether that budget was declared anew after a loss had exhausted the one before."""
    head: str = ""
    """The ledger's head."""


def statement_of(
    *,
    key: SigningKey,
    plan: Plan,
    facts: Facts,
    training: str,
    client: int,
    gated: bool,
    folder: Path,
    model: str,
    open: bool,
) -> bytes:
    """The signed statement of a training: what was agreed to, what was answered, what it costs.

    Args:
        key: the client's.
        plan: what it has agreed to.
        facts: what its owner's files say.
        training: the training's name.
        client: the client's index.
        gated: whether this is a process of the data's owner.
        folder: the client's folder of the training.
        model: the digest of the model that it is about, by the server's word; "" of none.
        open: whether more orders of the training may be answered after it.
    """
    checked_digest(model)
    stated = plan.guarantee()
    predicate: Json = {
        "training": training,
        "client": client,
        "clients": len(plan.nominal),
        "by": GATE if gated else APP,
        "terms": facts.terms,
        "terms_sha256": facts.terms_sha256,
        "contract": facts.contract,
        "plan": plan.fingerprint(),
        "unit": str(stated.unit),
        "adjacency": str(stated.adjacency),
        "trust": str(stated.trust),
        "open": open,
        "rounds": plan.rounds,
        "attempts": plan.attempts,
        "claims": [
            {
                "adversary": claim.adversary,
                "epsilon": claim.epsilon,
                "delta": claim.delta,
                "delta_reserved": claim.delta_reserved,
                "accounting": claim.accounting,
                "event": asdict(claim)["event"],
            }
            for claim in stated.claims
        ],
        "assumes": {name: jsonable(getattr(stated, name)) for name in ASSUMPTIONS},
        "budget": ROOM if facts.budgeted else "none is declared",
        "software": software(),
    }
    if facts.renewed:
        predicate["earlier"] = UNCOUNTED
    if plan.blocks:
        predicate["blocks"] = list(plan.blocks)
    if gives_receipts(plan):
        kept = _read(folder)
        predicate["answered"] = [
            {
                "round": said["round"],
                "attempt": said["attempt"],
                "model": seen,
                "shared": said["shared"],
                "cohort": said["cohort"],
            }
            for seen, said in kept
        ]
        predicate["chain"] = link(*kept[-1]) if kept else FIRST
        predicate["head"] = facts.head
    said = Statement({MODEL: model or NO_MODEL}, STATEMENT, predicate)
    return make_statement(said, key.sign, key.public)


@lru_cache(maxsize=1)
def software() -> dict[str, dict[str, str]]:
    """Versions and digests of what runs here: of dpfed's own files, and of torch's list of files.

    >>> sorted(software())
    ['dpfed', 'torch']
    """
    root = Path(dpfed.__file__).parent
    found = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        found.update(name.encode() + b"\n" + hashlib.sha256(path.read_bytes()).digest())
    own = {"version": VERSION, "sha256": found.hexdigest()}
    try:
        torch = distribution("torch")
        listed = torch.read_text("RECORD") or ""
        version = torch.version
    except PackageNotFoundError:
        listed, version = "", "unknown"
    return {
        "dpfed": own,
        "torch": {"version": version, "sha256": hashlib.sha256(listed.encode()).hexdigest()},
    }
