# SPDX-License-Identifier: Apache-2.0
"""Hostile clients: named kinds of lies, a Grid that sends them, and the count of what they did.

A third of the clients lie in every round, many times each, through the real DPStrategy. Every reply
is followed to its end: refused (the round's own log says so), accepted (the sum took it) or a crash
(an exception left the strategy). After each round the model must have moved by the exact sum of the
true releases of those inside: the releases are noted where a client hands them to its sum.

Not among the lies is what is *valid by form*: another vector of integers of the right length within
the range, from the right client in the right round, is a vote that only its sender can vouch for
(``VALID``, counted apart). In a secure sum the same holds for masked words and commitments.
"""

from __future__ import annotations

import logging
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from dpfed.audit.client_laws import MODEL
from dpfed.core.errors import BadReply
from dpfed.core.types import UPDATE
from dpfed.flower import DPStrategy, client_app
from dpfed.sums.plain import Plain
from dpfed.sums.secagg import keys
from dpfed.sums.secagg import messages as secagg
from dpfed.sums.secagg.identity import simulated
from dpfed.sums.secure import Secure
from dpfed.training.plan import Plan
from tests.helpers.rounds import client_states, make_plan
from tests.training.flower.local_grid import LocalGrid, nodes

CLIENTS, LIARS, RATE = 12, 4, 0.5
SIZE = MODEL.layout.size
GRID = "dpfed.grid"
RUDE = "patient 4711 has HIV"

Rng = random.Random
Sent = RecordDict | Error


@dataclass
class Truth:
    """What a lying client should have sent, and what else it has seen."""

    stage: str
    client: int
    control: dict[str, Any]
    messages: dict[str, bytes]
    earlier: dict[str, bytes]
    """Its own messages of an earlier round."""
    before: dict[str, Any]
    """The control record of that round."""
    other: dict[str, bytes]
    """Another client's messages."""
    run: str = ""

    def record(self, control: dict[str, Any] | None = None, **arrays: Array) -> RecordDict:
        """The true reply, with another control record or other arrays."""
        made = arrays or {name: array(data) for name, data in self.messages.items()}
        said = self.control if control is None else control
        return RecordDict({"reply": ArrayRecord(made), "dpfed": ConfigRecord(said)})

    def with_data(self, data: bytes) -> RecordDict:
        """The true reply with other bytes on its first channel."""
        name = next(iter(self.messages))
        return self.record(**{name: array(data)})

    @property
    def data(self) -> bytes:
        return next(iter(self.messages.values()))


def array(data: bytes) -> Array:
    return Array("uint8", (len(data),), GRID, data)


Lie = Callable[[Truth, Rng], Sent]

# ---------------------------------------------------------------- lies that every sum's codec sees


def _floats(truth: Truth, rng: Rng) -> Sent:
    bad = [np.nan, np.inf, -np.inf, 1e30, 1e-30, -0.0]
    values = np.array([rng.choice(bad) for _ in range(SIZE)])
    made = Array(values.astype(rng.choice([np.float32, np.float64])))
    return truth.record(**dict.fromkeys(truth.messages, made))


def _shape(truth: Truth, rng: Rng) -> Sent:
    size = len(truth.data)
    shapes = [(size, 1), (1, size), (), (size + 1,), (0,), (-size,), (size // 4, 4), (2**62,)]
    return _labelled(truth, shape=rng.choice(shapes))


def _dtype(truth: Truth, rng: Rng) -> Sent:
    kinds = ["float32", "float64", "int32", "int64", "<i4", "object", "", "UINT8", "uint8 "]
    return _labelled(truth, dtype=rng.choice(kinds))


def _stype(truth: Truth, rng: Rng) -> Sent:
    return _labelled(truth, stype=rng.choice(["numpy.ndarray", "", "pickle", "dpfed.grid2", "\0"]))


def _labelled(truth: Truth, dtype: str = "uint8", shape: Any = None, stype: str = GRID) -> Sent:
    made = {
        name: Array(dtype, (len(data),) if shape is None else shape, stype, data)
        for name, data in truth.messages.items()
    }
    return truth.record(**made)


def _empty(truth: Truth, rng: Rng) -> Sent:
    return truth.with_data(b"") if rng.random() < 0.5 else RecordDict()


def _changed(name: str, values: Callable[[Any, Rng], Any]) -> Lie:
    def lie(truth: Truth, rng: Rng) -> Sent:
        return truth.record({**truth.control, name: values(truth.control[name], rng)})

    return lie


def _other_number(value: Any, rng: Rng) -> int:
    away = rng.choice([1, -1, 2, 1000, 2**31, -(2**40), 2**62])
    return int(value) + away


def _other_stage(value: Any, rng: Rng) -> str:
    words = {"keys", "input", "repair", "unmask", "reply", "enrol", "", "REPLY", "x" * 1000} - {
        value
    }
    return rng.choice(sorted(words))


_TYPES: list[Any] = ["0", b"0", [0], [], 0.5, float("nan"), float("inf"), ["reply"], b"reply", -1.5]


def _types(truth: Truth, rng: Rng) -> Sent:
    name = rng.choice(list(truth.control))
    return truth.record({**truth.control, name: rng.choice(_TYPES)})


def _no_control(truth: Truth, rng: Rng) -> Sent:
    record = truth.record()
    del record["dpfed"]
    if rng.random() < 0.5:
        record[rng.choice(["dpfed ", "control", "DPFED"])] = ConfigRecord(truth.control)
    return record


def _less_control(truth: Truth, rng: Rng) -> Sent:
    gone = rng.choice(list(truth.control))
    return truth.record({name: value for name, value in truth.control.items() if name != gone})


def _other_records(truth: Truth, rng: Rng) -> Sent:
    """Names that hold a record of another kind."""
    config, metrics = ConfigRecord({"x": 1}), MetricRecord({"x": 1.0})
    wrong = rng.choice(
        [
            {"reply": config},
            {"reply": metrics},
            {"dpfed": metrics},
            {"dpfed": ArrayRecord({"x": array(b"1")})},
        ]
    )
    return RecordDict({**truth.record(), **wrong})


def _unknown_channel(truth: Truth, rng: Rng) -> Sent:
    names = ["x", "metrics", "", "Update", "update ", "../update", "0", "sum\0"]
    return truth.record(**{rng.choice(names): array(truth.data)})


def _missing_channel(truth: Truth, rng: Rng) -> Sent:
    record = truth.record()
    record["reply"] = ArrayRecord()
    return record


def _extra_channel(truth: Truth, rng: Rng) -> Sent:
    extra = {f"x{i}": array(truth.data) for i in range(rng.choice([1, 2, 50]))}
    true = {name: array(data) for name, data in truth.messages.items()}
    return truth.record(**true, **extra)


def _extra_arrays(truth: Truth, rng: Rng) -> Sent:
    extra = {rng.choice(["model", "arrays", "reply2"]): ArrayRecord({"w": array(truth.data)})}
    return RecordDict({**truth.record(), **extra})


def _moved_arrays(truth: Truth, rng: Rng) -> Sent:
    record = truth.record()
    arrays = record.pop("reply")
    return RecordDict({**record, rng.choice(["replies", "arrays", "Reply"]): arrays})


def _error_word(truth: Truth, rng: Rng) -> Sent:
    word = rng.choice(["ClientError", "BudgetSpent", "DataError", "OutOfMemory", "Untrusted"])
    return truth.record({**truth.control, "error": word})


def _rude(truth: Truth, rng: Rng) -> Sent:
    texts: list[Any] = [RUDE, RUDE.encode(), [RUDE], "", "x" * 5000, 7, "%s %d %n", "\x1b[2J"]
    return truth.record({**truth.control, "error": rng.choice(texts)})


def _random_bytes(truth: Truth, rng: Rng) -> Sent:
    length = rng.randrange(0, 3 * len(truth.data))
    while length in _FITTING:
        length += 1
    return truth.with_data(rng.randbytes(length))


def _flipped_labels(truth: Truth, rng: Rng) -> Sent:
    """One bit of a true reply outside of its integers."""
    where = rng.choice(["dtype", "stype", "channel", "shape", "round", "attempt", "client"])
    bit = 1 << rng.randrange(7)
    if where in ("round", "attempt", "client"):
        return truth.record({**truth.control, where: truth.control[where] ^ bit})
    if where == "shape":
        return _labelled(truth, shape=(len(truth.data) ^ bit,))
    if where == "channel":
        return truth.record(**{_flipped(n, rng): array(d) for n, d in truth.messages.items()})
    return _labelled(truth, **{where: _flipped({"dtype": "uint8", "stype": GRID}[where], rng)})


def _flipped(text: str, rng: Rng) -> str:
    raw = bytearray(text.encode())
    raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(7)
    return raw.decode()


def _replayed(truth: Truth, rng: Rng) -> Sent:
    """A true reply of an earlier round, as it was."""
    return truth.record(truth.before, **{n: array(d) for n, d in truth.earlier.items()})


def _as_another(truth: Truth, rng: Rng) -> Sent:
    """Another client's reply, under its name."""
    away = 1 + rng.randrange(CLIENTS - 1)
    said = {**truth.control, "client": (truth.client + away) % CLIENTS}
    return truth.record(said, **{name: array(data) for name, data in truth.other.items()})


def _flower_error(truth: Truth, rng: Rng) -> Sent:
    return Error(rng.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 99, -1, 2**31]), rng.choice([None, RUDE]))


CODEC: dict[str, Lie] = {
    "floats (NaN, inf)": _floats,
    "wrong shape": _shape,
    "wrong dtype": _dtype,
    "wrong stype": _stype,
    "empty": _empty,
    "wrong round": _changed("round", _other_number),
    "wrong attempt": _changed("attempt", _other_number),
    "wrong stage": _changed("stage", _other_stage),
    "wrong client": _changed("client", _other_number),
    "control of wrong types": _types,
    "no control record": _no_control,
    "control lacks a field": _less_control,
    "records of another kind": _other_records,
    "unknown channel": _unknown_channel,
    "missing channel": _missing_channel,
    "extra channel": _extra_channel,
    "extra arrays": _extra_arrays,
    "arrays under another name": _moved_arrays,
    "error word": _error_word,
    "rude error text": _rude,
    "random bytes": _random_bytes,
    "bit flips outside of the integers": _flipped_labels,
    "replay of an earlier round": _replayed,
    "another client's reply": _as_another,
    "Flower error": _flower_error,
}

# ---------------------------------------------------------------------------- lies to the plain sum

_FITTING = {4 * SIZE, 8 * SIZE}


def _huge(truth: Truth, rng: Rng) -> Sent:
    limit = 2**62 // CLIENTS
    big = rng.choice([limit + 1, -limit - 1, 2**63 - 1, -(2**63), 2**62])
    values = [rng.randrange(-limit, limit) for _ in range(SIZE)]
    values[rng.randrange(SIZE)] = big
    return truth.with_data(struct.pack(f"<{SIZE}q", *values))


def _doubles(truth: Truth, rng: Rng) -> Sent:
    """NaN and infinity as they lie in memory: integers beyond the range."""
    values = [rng.choice([float("nan"), float("inf"), -float("inf")]) for _ in range(SIZE)]
    return truth.with_data(struct.pack(f"<{SIZE}d", *values))


def _cut(truth: Truth, rng: Rng) -> Sent:
    return truth.with_data(truth.data[: rng.randrange(len(truth.data))])


def _longer(truth: Truth, rng: Rng) -> Sent:
    more = rng.choice(
        [n for n in (1, 2, 3, 4, 8, SIZE, 8 * SIZE + 1) if 4 * SIZE + n not in _FITTING]
    )
    return truth.with_data(truth.data[: 4 * SIZE].ljust(4 * SIZE, b"\0") + rng.randbytes(more))


PLAIN: dict[str, Lie] = {
    **CODEC,
    "huge values": _huge,
    "NaN and inf bytes as int64": _doubles,
    "truncated": _cut,
    "too long": _longer,
}
DUPLICATE = "duplicate of an accepted reply"

# --------------------------------------------------------------------------- lies to the secure sum


def _bytes_lie(change: Callable[[Truth, Rng], bytes]) -> Lie:
    return lambda truth, rng: truth.with_data(change(truth, rng))


def _short_message(truth: Truth, rng: Rng) -> bytes:
    return truth.data[: rng.randrange(len(truth.data))]


def _long_message(truth: Truth, rng: Rng) -> bytes:
    return truth.data + rng.randbytes(rng.choice([1, 2, 8, 100]))


def _noise_message(truth: Truth, rng: Rng) -> bytes:
    return rng.randbytes(len(truth.data))


def _other_kind(truth: Truth, rng: Rng) -> bytes:
    """A message of another stage, well made."""
    some = {i: rng.randbytes(32) for i in range(3)}
    made = {
        "keys": secagg.pack_message(secagg.Key(rng.randbytes(32), rng.randbytes(64))),
        "input": secagg.pack_masked(secagg.Masked(some, some, some, bytes(32)), memoryview(b"")),
        "repair": secagg.pack_message(secagg.Seeds(some)),
        "unmask": secagg.pack_message(secagg.Shares(some)),
        "server": secagg.pack_message(secagg.Dropped([0])),
    }
    del made[truth.stage]
    return rng.choice(list(made.values()))


def _flip_message(truth: Truth, rng: Rng) -> bytes:
    """One bit, of the length in front where the rest is masked words and commitments."""
    while True:
        raw = bytearray(truth.data)
        raw[rng.randrange(4 if truth.stage == "input" else len(raw))] ^= 1 << rng.randrange(8)
        if not _still_true(truth, bytes(raw)):
            return bytes(raw)


def _still_true(truth: Truth, raw: bytes) -> bool:
    """Fewer of the true shares are a true message: one may have been unreadable."""
    if truth.stage != "unmask":
        return False
    try:
        said = secagg.unpack(raw, secagg.Shares).shares
    except BadReply:
        return False
    return said.items() <= secagg.unpack(truth.data, secagg.Shares).shares.items()


def _anothers_message(truth: Truth, rng: Rng) -> bytes:
    return next(iter(truth.other.values()))


def _misfit(truth: Truth, rng: Rng) -> bytes:
    """Well-formed, and not what the stage's commitments, keys or neighbours allow."""
    return {"keys": _bad_key, "input": _bad_input, "repair": _bad_seeds, "unmask": _bad_shares}[
        truth.stage
    ](truth, rng)


def _bad_key(truth: Truth, rng: Rng) -> bytes:
    key = secagg.unpack(truth.data, secagg.Key)
    weak = rng.choice([bytes(32), b"\1" + bytes(31), b"", bytes(31), bytes(33)])
    signed = keys.signed_text(truth.run, truth.client, weak)
    own = simulated(CLIENTS)[truth.client].sign(signed)  # its own to sign: the key is what is bad
    return secagg.pack_message(
        rng.choice(
            [
                secagg.Key(weak, own),
                secagg.Key(rng.randbytes(32), key.signature),
                secagg.Key(key.key, b""),
                secagg.Key(key.key, simulated(CLIENTS)[truth.client].sign(key.key)),
            ]
        )
    )


def _bad_input(truth: Truth, rng: Rng) -> bytes:
    said, words = secagg.unpack_masked(truth.data)
    parts = {name: dict(getattr(said, name)) for name in ("sealed", "shares", "pairs")}
    own, raw, name = said.own, bytes(words), rng.choice(list(parts))
    at = rng.choice(list(parts[name]))
    match rng.randrange(6):
        case 0:
            del parts[name][at]
        case 1:
            parts[name][rng.choice([truth.client, -1, CLIENTS, 2**40])] = parts[name][at]
        case 2:
            parts[name][at] = parts[name][at][:-1]
        case 3:
            own = own + b"\0"
        case 4:
            raw = raw[: rng.randrange(len(raw))]
        case _:
            raw = raw + bytes(8)
    return secagg.pack_masked(secagg.Masked(**parts, own=own), memoryview(raw))


def _bad_seeds(truth: Truth, rng: Rng) -> bytes:
    seeds = dict(secagg.unpack(truth.data, secagg.Seeds).seeds)
    return secagg.pack_message(secagg.Seeds(_bad_values(seeds, truth, rng)))


def _bad_shares(truth: Truth, rng: Rng) -> bytes:
    shares = dict(secagg.unpack(truth.data, secagg.Shares).shares)
    return secagg.pack_message(secagg.Shares(_bad_values(shares, truth, rng, drop=False)))


def _bad_values(values: dict[int, bytes], truth: Truth, rng: Rng, drop: bool = True) -> Any:
    at = rng.choice(list(values))
    match rng.randrange(4 if drop else 3):
        case 0:
            values[at] = rng.randbytes(len(values[at]))
        case 1:
            values[at] = values[at][:-1]
        case 2:
            values[rng.choice([truth.client, -1, CLIENTS, 2**40])] = values[at]
        case _:
            del values[at]
    return values


_WIRE: dict[str, Lie] = {
    "cut off": _bytes_lie(_short_message),
    "too long": _bytes_lie(_long_message),
    "random bytes": _bytes_lie(_noise_message),
    "another message": _bytes_lie(_other_kind),
    "bit flips": _bytes_lie(_flip_message),
    "another client's": _bytes_lie(_anothers_message),
    "misfits": _bytes_lie(_misfit),
}
STAGES = ("keys", "input", "repair", "unmask")
SECURE: dict[str, Lie] = {f"secure {stage}: {n}": f for stage in STAGES for n, f in _WIRE.items()}

# ---------------------------------------------------------------- what no form can tell from a vote


def _flipped_integers(truth: Truth, rng: Rng) -> Sent:
    raw = bytearray(truth.data)
    raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    return truth.with_data(bytes(raw))


def _nan_words(truth: Truth, rng: Rng) -> Sent:
    """float32 NaN and infinity as they lie in memory are int32 of about 2^31."""
    return truth.with_data(
        struct.pack(f"<{SIZE}f", *rng.choices([np.nan, np.inf, -np.inf], k=SIZE))
    )


def _equal_numbers(truth: Truth, rng: Rng) -> Sent:
    return truth.record({**truth.control, "client": float(truth.client)})


def _extra_config(truth: Truth, rng: Rng) -> Sent:
    record = truth.record({**truth.control, "num-examples": 10**9, "weight": 1e9})
    return RecordDict(
        {**record, "metrics": MetricRecord({"w": 1e9}), "c": ConfigRecord({"w": 1e9})}
    )


VALID: dict[str, Lie] = {
    "bit flips inside the integers": _flipped_integers,
    "float32 NaN and inf bytes as int32": _nan_words,
    "control numbers as equal floats": _equal_numbers,
    "extra config and metrics": _extra_config,
}


# -------------------------------------------------------------------------- following each reply


@dataclass
class Watch:
    """What the round did with each reply in turn, and what clients truly released."""

    ends: list[bool] = field(default_factory=list)
    released: dict[tuple[int, int], np.ndarray[Any, Any]] = field(default_factory=dict)

    def note(self, reply: Any, client: int, round: int) -> None:
        if reply is not None:
            self.released[round, client] = reply[UPDATE].vector.numpy().astype(np.int64)


@dataclass(frozen=True)
class _Watched:
    """Before a sum: what it takes is noted, and who released what."""

    watch: Watch = field(default_factory=Watch, repr=False, compare=False)

    def add(self, session: Any, client: int, messages: Any) -> Any:
        session = super().add(session, client, messages)  # type: ignore[misc]
        self.watch.ends.append(True)
        return session

    def reply(self, stage: str, requests: Any, reply: Any, secret: bytes, context: Any) -> Any:
        self.watch.note(reply, context.client, context.round)
        return super().reply(stage, requests, reply, secret, context)  # type: ignore[misc]


@dataclass(frozen=True)
class WatchedPlain(_Watched, Plain):
    pass


@dataclass(frozen=True)
class WatchedSecure(_Watched, Secure):
    pass


class _Refusals(logging.Handler):
    """The round logs each refusal once, whoever is refused."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(logging.WARNING)
        self.watch, self.texts = watch, Counter[str]()

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("client %d is left out"):
            self.watch.ends.append(False)
            self.texts["rude"] += "4711" in record.getMessage()


@contextmanager
def listening(watch: Watch) -> Iterator[_Refusals]:
    ours, flower, handler = logging.getLogger("dpfed"), logging.getLogger("flwr"), _Refusals(watch)
    before = ours.propagate, flower.level
    ours.addHandler(handler)
    ours.propagate = False
    flower.setLevel(logging.ERROR)
    try:
        yield handler
    finally:
        ours.removeHandler(handler)
        ours.propagate = before[0]
        flower.setLevel(before[1])


# ------------------------------------------------------------------------------------ the grid


class HostileGrid(LocalGrid):
    """The last clients lie: ``flood`` times each, at the stage that is drawn for the round."""

    def __init__(self, app: Any, plan: Plan, lies: dict[str, Lie], rng: Rng, flood: int) -> None:
        super().__init__(app, nodes(CLIENTS))
        self.plan, self.lies, self.rng, self.flood = plan, lies, rng, flood
        self.training = "run"
        self.kinds: list[str] = []
        self.latest: dict[tuple[int, str], tuple[dict[str, Any], dict[str, bytes]]] = {}
        self.first: dict[tuple[int, str], tuple[dict[str, Any], dict[str, bytes]]] = {}
        self.stages: dict[tuple[int, int], str] = {}

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        groups = [self._group(self.sent.pop(each)) for each in list(message_ids)]
        self.rng.shuffle(groups)
        self.kinds += [kind for group in groups for kind, _ in group if kind != "enrol"]
        return [reply for group in groups for _, reply in group]

    def _group(self, message: Message) -> list[tuple[str, Message]]:
        """All that one node sends in answer to one message."""
        node = message.metadata.dst_node_id
        true = self.app(message, self.contexts[node])
        control = dict(true.content.config_records["dpfed"])
        if control["stage"] == "enrol":
            return [("enrol", true)]
        truth = self._truth(node - 100, control, true)
        if self._lies(truth):
            return [self._lie(truth, message) for _ in range(self.flood)]
        if self.rng.random() > 0.1:
            return [("true", true)]
        copies = [Message(truth.record(), reply_to=message) for _ in range(self.rng.choice([1, 3]))]
        return [("true", true), *((DUPLICATE, copy) for copy in copies)]

    def _truth(self, client: int, control: dict[str, Any], true: Message) -> Truth:
        messages = {n: a.data for n, a in true.content.array_records["reply"].items()}
        at = client, control["stage"]
        others = [m for (c, s), (_, m) in self.latest.items() if c != client and s == at[1]]
        before = self.first.get(at, ({**control, "round": -1}, messages))
        self.first.setdefault(at, (control, messages))
        self.latest[at] = control, messages
        run = f"{self.training}/{self.plan.fingerprint()}"
        other = self.rng.choice(others) if others else {n: b"\1" + d for n, d in messages.items()}
        if before[0]["round"] == control["round"]:
            before = {**control, "round": -1}, messages
        return Truth(at[1], client, control, messages, before[1], before[0], other, run)

    def _lies(self, truth: Truth) -> bool:
        """Whether this client lies here: a plain sum has one stage to do it."""
        liar = truth.client - (CLIENTS - LIARS)
        if liar < 0 or len(self.plan.sum.stages) == 1:
            return liar >= 0
        drawn = "keys" if liar == 0 else self.rng.choice(STAGES[1:])
        return self.stages.setdefault((truth.control["round"], truth.client), drawn) == truth.stage

    def _lie(self, truth: Truth, message: Message) -> tuple[str, Message]:
        mine = [kind for kind in SECURE if kind.startswith(f"secure {truth.stage}: ")]
        known = [kind for kind in mine if kind in self.lies]
        others = [kind for kind in self.lies if kind not in SECURE]
        kind = self.rng.choice(known if known and self.rng.random() < 0.5 else others)
        return kind, Message(self.lies[kind](truth, self.rng), reply_to=message)


# ------------------------------------------------------------------------------------- the count


@dataclass
class Tally:
    """By kind of lie: how many were tried, and how they ended."""

    tried: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    crashed: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    inexact: int = 0
    """Rounds that did not complete, or not with the exact sum of the true releases inside."""
    honest_missing: int = 0
    rude: int = 0

    def take(self, kinds: list[str], ends: list[bool], crash: bool) -> None:
        for kind, accepted in zip(kinds, ends, strict=not crash):
            self.tried[kind] += 1
            (self.accepted if accepted else self.refused)[kind] += 1
        if crash:
            self.crashed[kinds[len(ends)] if len(ends) < len(kinds) else "after the replies"] += 1

    def lies(self) -> list[str]:
        return sorted((self.tried | self.crashed).keys() - {"true"})

    def count(self, what: str) -> int:
        return sum(getattr(self, what)[kind] for kind in self.lies())

    def table(self) -> dict[str, dict[str, int]]:
        names = ("tried", "refused", "accepted", "crashed")
        return {kind: {n: getattr(self, n)[kind] for n in names} for kind in self.lies()}


def plan_for(secure: bool, rounds: int) -> tuple[Plan, Watch]:
    watch = Watch()
    total: Any = (
        WatchedSecure(survivors=2 / 3, watch=watch) if secure else WatchedPlain(watch=watch)
    )
    return make_plan(sum=total, nominal=[5] * CLIENTS, rounds=rounds), watch


def soak(
    replies: int,
    seed: int,
    secure: bool,
    tally: Tally,
    flood: int = 25,
    lies: dict[str, Lie] | None = None,
) -> None:
    """Rounds with a third of liars until so many lies were tried."""
    rng, enough = Rng(seed), tally.count("tried") + replies
    lies = lies or ({**CODEC, **SECURE} if secure else PLAIN)
    people = client_states([5] * CLIENTS)
    while tally.count("tried") + tally.count("crashed") < enough:
        plan, watch = plan_for(secure, 400)
        app = client_app(lambda c: people[c.node_config["partition-id"]].problem, plan)
        grid = HostileGrid(app, plan, lies, rng, flood)
        strategy = DPStrategy(plan, training=f"run-{rng.randrange(2**60)}")
        grid.training = strategy.training
        _run(strategy, grid, watch, tally, enough)


class _Enough(Exception):
    """So many were tried."""


def _run(strategy: DPStrategy, grid: HostileGrid, watch: Watch, tally: Tally, enough: int) -> None:
    params = torch.zeros(SIZE)
    inside: list[int] = []

    def look(row: dict[str, Any]) -> None:
        nonlocal params
        inside[:] = sorted(set(range(CLIENTS)) - set(map(int, row["absent"].split())))
        tally.rounds += 1
        tally.honest_missing += len(set(range(CLIENTS - LIARS)) - set(inside))
        now = strategy.step.state.params  # type: ignore[union-attr]
        fits = not row["aborted"] and torch.equal(
            now, stepped(strategy.plan, watch, params, inside)
        )
        tally.inexact += not fits
        params = now
        watch.released.clear()
        _count(grid, watch, tally, crash=False)
        if tally.count("tried") >= enough:
            raise _Enough

    strategy.watch = look
    initial = ArrayRecord(MODEL.layout.unflatten(params))
    with listening(watch) as heard:
        try:
            strategy.start(grid, initial)
        except _Enough:
            pass
        except Exception:
            logging.getLogger(__name__).exception("a crash")
            _count(grid, watch, tally, crash=True)
        tally.rude += heard.texts["rude"]


def _count(grid: HostileGrid, watch: Watch, tally: Tally, crash: bool) -> None:
    tally.take(grid.kinds, watch.ends, crash)
    grid.kinds, watch.ends[:] = [], []


def stepped(plan: Plan, watch: Watch, params: torch.Tensor, inside: list[int]) -> torch.Tensor:
    """The model after a step by the exact sum of what those inside released."""
    mine = [vector for (_, client), vector in watch.released.items() if client in inside]
    total = torch.from_numpy(np.sum(mine, axis=0))
    mean = total.to(params.dtype).mul_(plan.step(UPDATE) / plan.denominator(UPDATE))
    return params - mean * RATE
