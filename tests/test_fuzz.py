# SPDX-License-Identifier: Apache-2.0
"""Whatever lies in a file or a message, it is read or refused by name: no other exception.

Hypothesis edits true files (bits, bytes, JSON values) and makes up others. The documented refusals
are DpfedErrors; a KeyError, a hang or a segmentation fault is a bug here.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from dpfed.accounting.ledger.balance import Budget
from dpfed.accounting.ledger.conversions import LedgerKey
from dpfed.accounting.ledger.journal import Journal, _digest
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.accounting.ledger.request import ChannelRequest, Request
from dpfed.audit.client_laws import MODEL
from dpfed.core.errors import BadReply, DataError, DpfedError
from dpfed.core.types import Facts
from dpfed.mechanisms.gaussian import gaussian
from dpfed.recipes import schema as recipe
from dpfed.sums.secagg import client as sum_client
from dpfed.sums.secagg import identity, messages
from dpfed.sums.secure import secure
from dpfed.training.checkpoint import Checkpoint, CommittedRound
from dpfed.training.round import start
from dpfed.training.wire import state as states
from dpfed.training.wire.codec import Envelope, read_order, read_reply
from tests.helpers.ledgers import whole_of
from tests.helpers.rounds import make_plan

pytestmark = pytest.mark.slow

FACTOR = int(os.environ.get("DPFED_FUZZ", "1"))  # so many times more cases than in CI
SHARED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
FUZZ = settings(max_examples=150 * FACTOR, suppress_health_check=SHARED)

# ------------------------------------------------------------------------------------ mutations

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.integers()
    | st.floats()
    | st.text(max_size=9)
)
JSON = st.recursive(
    SCALARS,
    lambda kids: (
        st.lists(kids, max_size=4) | st.dictionaries(st.text(max_size=6), kids, max_size=4)
    ),
    max_leaves=8,
)


@st.composite
def edits(draw: Any, original: bytes) -> bytes:
    """The original with some bytes flipped, cut out, put in, or all of it replaced."""
    raw = bytearray(original)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(raw)))
        match draw(st.integers(0, 4)):
            case 0 if at < len(raw):
                raw[at] ^= 1 << draw(st.integers(0, 7))
            case 1:
                del raw[at:]
            case 2:
                del raw[at : at + draw(st.integers(1, 64))]
            case 3:
                raw[at:at] = draw(st.binary(max_size=12) | st.sampled_from([b"9" * 9, b"null"]))
            case _:
                raw[at : at + 4] = draw(st.binary(max_size=8))
    return bytes(raw)


@st.composite
def edited_tree(draw: Any, original: Any) -> Any:
    """The tree with one part gone, or replaced by anything."""
    tree = json.loads(json.dumps(original))
    node, steps = tree, draw(st.integers(1, 4))
    for step in range(steps):
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            break
        key = draw(st.sampled_from(keys))
        below = node[key]
        if step + 1 < steps and isinstance(below, dict | list) and below:
            node = below
        elif draw(st.booleans()):
            node[key] = draw(JSON)
            break
        else:
            del node[key]
            break
    return tree


def refused_or_read(read: Callable[[], Any], *allowed: type[Exception]) -> Any:
    expected = allowed or (DpfedError,)
    try:
        return read()
    except expected:
        return None


# -------------------------------------------------------------------------------------- recipes

TOML = b"""
method = "DP-FedGD"
rounds = 12
[data]
source = "synthetic"
partition = { name = "iid", clients = 4 }
[privacy]
epsilon = 1.5
trust = "local"
[[server]]
name = "scale"
rate = 0.5
[ledger]
dataset = "adult"
"""
KEYS = st.sampled_from(
    [
        "rounds",
        "privacy.epsilon",
        "server.0.rate",
        "server.9.rate",
        "data",
        "data.x.y.z",
        "server.\u00b2.a",
        "method",
        "privacy.options.a",
        "ledger.dataset",
        "",
        ".",
        "..",
        "server.-1",
        "client.name.x",
    ]
)
OVERRIDES = st.lists(
    st.builds(lambda key, value: f"{key}={value}", KEYS | st.text(max_size=9), st.text(max_size=20))
    | st.sampled_from(
        [f"seed={'9' * 5000}", "seed=" + "9" * 30, "privacy.epsilon=nan", "data=[[[["]
    ),
    max_size=3,
)


@FUZZ
@given(text=edits(TOML) | st.binary(max_size=60), overrides=OVERRIDES)
def test_a_recipe_file_is_read_or_refused(
    tmp_path: Path, text: bytes, overrides: list[str]
) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(text)
    refused_or_read(lambda: recipe.load_recipe(path, overrides))


@FUZZ
@given(tree=edited_tree(recipe.msgspec.to_builtins(recipe.Recipe())), overrides=OVERRIDES)
def test_a_recipe_tree_is_read_or_refused(tree: Any, overrides: list[str]) -> None:
    if isinstance(tree, dict):
        refused_or_read(lambda: recipe.load_recipe(tree, overrides))


@FUZZ
@given(name=st.text(max_size=30))
def test_a_recipe_of_any_name_is_read_or_refused(name: str) -> None:
    refused_or_read(lambda: recipe.load_recipe("/nowhere/" + name))


# --------------------------------------------------------------------------------------- ledgers


def request(at: int) -> Request:
    parts = {"update": ChannelRequest(gaussian(Facts(1.0), 20.0), 1, 9)}
    return Request(LedgerKey("d"), "t", 0, at, 0, parts, "p", whole_of(parts))


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger of a few rows, closed: one file and its head."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.sqlite"
    book = Ledger(path)
    book.declare(LedgerKey("d"), Budget(4.0, 1e-5))
    for at in range(3):
        book.confirm(book.begin(request(at)))
    book.close()
    assert not path.with_name("ledger.sqlite-wal").exists()
    return path


def use(path: Path) -> None:
    """All that a client and its owner do with a ledger."""
    book = Ledger(path)
    try:
        for act in (
            lambda: book.spent(LedgerKey("d")),
            lambda: book.begin(request(7)),
            book.verify,
            book.export,
            lambda: book.declare(LedgerKey("e"), Budget(1.0, 1e-5)),
        ):
            refused_or_read(act)
    finally:
        book.close()


def copied(ledger: Path, memory: bool = True) -> Path:
    shm = "/dev/shm" if memory and Path("/dev/shm").is_dir() else None
    folder = Path(tempfile.mkdtemp(dir=shm))
    for name in ("ledger.sqlite", "ledger.sqlite.head"):
        shutil.copy(ledger.with_name(name), folder / name)
    return folder / "ledger.sqlite"


@settings(FUZZ, max_examples=100 * FACTOR)
@given(data=st.data())
def test_the_bytes_of_a_ledger_are_read_or_refused(ledger: Path, data: Any) -> None:
    path = copied(ledger)
    try:
        path.write_bytes(data.draw(edits(ledger.read_bytes())))
        refused_or_read(lambda: use(path))
    finally:
        shutil.rmtree(path.parent, ignore_errors=True)


@settings(FUZZ, max_examples=100 * FACTOR)
@given(data=st.data())
def test_the_head_of_a_ledger_is_read_or_refused(ledger: Path, data: Any) -> None:
    path, head = copied(ledger), ledger.with_name("ledger.sqlite.head").read_bytes()
    made = edits(head) | edited_tree(json.loads(head)).map(lambda tree: json.dumps(tree).encode())
    try:
        path.with_name("ledger.sqlite.head").write_bytes(data.draw(made))
        refused_or_read(lambda: use(path))
    finally:
        shutil.rmtree(path.parent, ignore_errors=True)


@settings(FUZZ, max_examples=80 * FACTOR)
@given(data=st.data(), rehash=st.booleans())
def test_an_edited_row_is_refused_also_in_a_chain_made_anew(
    ledger: Path, data: Any, rehash: bool
) -> None:
    """Who can write to the disk can forge the chain (docs/ledger.md): no client may crash."""
    path = copied(ledger)
    try:
        changed = _edit_row(path, data, rehash)
        book = refused_or_read(lambda: Ledger(path))
        assert book is not None
        if changed and not rehash:
            with pytest.raises(DataError):
                book.spent(LedgerKey("d"))
        book.close()
        refused_or_read(lambda: use(path))
    finally:
        shutil.rmtree(path.parent, ignore_errors=True)


def _edit_row(path: Path, data: Any, rehash: bool) -> bool:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("DROP TRIGGER no_update")
    rows = db.execute("SELECT number, body, hash FROM rows ORDER BY number").fetchall()
    at = data.draw(st.integers(0, len(rows) - 1))
    text = json.dumps(data.draw(edited_tree(json.loads(rows[at][1]))))
    bodies = [body for _, body, _ in rows]
    changed, bodies[at] = text != bodies[at], text
    last = "0" * 64
    for (number, _, digest), body in zip(rows, bodies, strict=True):
        last = _digest(last, body) if rehash else digest
        db.execute("UPDATE rows SET body = ?, hash = ? WHERE number = ?", (body, last, number))
    db.close()
    if rehash:
        head = path.with_name("ledger.sqlite.head")
        head.write_text(json.dumps({**json.loads(head.read_bytes()), "hash": last}))
    return changed


def test_a_journal_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"SQLite format 3\0" + bytes(200))
    with pytest.raises(DataError):
        Journal(tmp_path / "x")


# ------------------------------------------------------------------------------------ checkpoints


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, bytes]:
    plan = make_plan(sum=secure(survivors=1.0))
    progress = start(plan, torch.ones(MODEL.layout.size))
    folder = tmp_path_factory.mktemp("checkpoint")
    Checkpoint(folder).commit(plan, progress, [CommittedRound(0, 0, (0, 1))], [{"round": 1}])
    return plan, progress, (folder / "progress.safetensors").read_bytes()


def resumed(kept: Any, folder: Path, progress: bytes, asked: bytes) -> Any:
    (folder / "progress.safetensors").write_bytes(progress)
    (folder / "asked.json").write_bytes(asked)
    checkpoint = Checkpoint(folder)
    refused_or_read(checkpoint.history)
    return refused_or_read(lambda: checkpoint.load(kept[0], kept[1]))


ASKED = b'{"round": 0, "attempt": 0}'


@pytest.mark.parametrize(
    "counts",
    [
        {"rounds": [[9, [["tpdate", 1, 1.0]]]]},
        {"rounds": "none"},
    ],
)
def test_a_checkpoint_that_counts_other_channels_is_refused(
    kept: Any, tmp_path: Path, counts: dict[str, Any]
) -> None:
    """Found by the test below; one that is left out would count as unspent."""
    size = struct.unpack("<Q", kept[2][:8])[0]
    facts = json.loads(json.loads(kept[2][8 : 8 + size])["__metadata__"]["facts"])
    text = json.dumps({**facts, **counts})
    (tmp_path / "progress.safetensors").write_bytes(
        save_tensors(load_tensors(kept[2]), {"facts": text})
    )
    with pytest.raises(DataError, match="lacks a part"):
        Checkpoint(tmp_path).load(kept[0], kept[1])


@settings(FUZZ, max_examples=100 * FACTOR)
@given(data=st.data())
def test_the_bytes_of_a_checkpoint_are_read_or_refused(
    kept: Any, tmp_path: Path, data: Any
) -> None:
    resumed(kept, tmp_path, data.draw(edits(kept[2])), ASKED)


@settings(FUZZ, max_examples=150 * FACTOR)
@given(data=st.data())
def test_the_facts_of_a_checkpoint_are_read_or_refused(
    kept: Any, tmp_path: Path, data: Any
) -> None:
    size = struct.unpack("<Q", kept[2][:8])[0]
    facts = json.loads(json.loads(kept[2][8 : 8 + size])["__metadata__"]["facts"])
    text = json.dumps(data.draw(edited_tree(facts) | JSON))
    found = save_tensors(load_tensors(kept[2]), {"facts": text})
    resumed(kept, tmp_path, found, ASKED)


@settings(FUZZ, max_examples=60 * FACTOR)
@given(data=st.data())
def test_tensors_of_another_form_are_refused(kept: Any, tmp_path: Path, data: Any) -> None:
    (tmp_path / "p").write_bytes(kept[2])
    with safe_open(tmp_path / "p", framework="pt") as file:
        metadata = file.metadata()
    shape = data.draw(st.sampled_from([(), (1,), (MODEL.layout.size + 1,), (3, 5), (0,)]))
    kind = data.draw(st.sampled_from([torch.float32, torch.int64, torch.float64]))
    tensors = {"0": torch.zeros(shape, dtype=kind)}
    assert resumed(kept, tmp_path, save_tensors(tensors, metadata), ASKED) is None


@settings(FUZZ, max_examples=150 * FACTOR)
@given(data=st.data())
def test_what_was_asked_is_read_or_refused(kept: Any, tmp_path: Path, data: Any) -> None:
    tree = {"round": 0, "attempt": 0}
    text = data.draw(edits(ASKED) | edited_tree(tree).map(lambda t: json.dumps(t).encode()))
    resumed(kept, tmp_path, kept[2], text)


# --------------------------------------------------------------------------------- client states


class Kept(NamedTuple):
    c: torch.Tensor
    t: int


@settings(FUZZ, max_examples=150 * FACTOR)
@given(data=st.data())
def test_a_clients_state_is_read_or_refused(tmp_path: Path, data: Any) -> None:
    states.save_state(tmp_path, 0, Kept(torch.ones(4), 3))
    path = tmp_path / "0.safetensors"
    path.write_bytes(data.draw(edits(path.read_bytes())))
    found = refused_or_read(
        lambda: states.load_at(tmp_path, (0, 0), Kept(torch.zeros(4), 0)), DataError
    )
    if found is not None:
        assert found.c.shape == (4,)
        assert isinstance(found.t, int | float)


@settings(FUZZ, max_examples=80 * FACTOR)
@given(numbers=JSON, shape=st.sampled_from([(), (1,), (4,), (2, 2), (5,)]))
def test_a_clients_state_of_another_form_is_refused(
    tmp_path: Path, numbers: Any, shape: tuple[int, ...]
) -> None:
    content = save_tensors({"0": torch.zeros(shape)}, {"numbers": json.dumps(numbers)})
    (tmp_path / "0.safetensors").write_bytes(content)
    found = refused_or_read(
        lambda: states.load_at(tmp_path, (0, 0), Kept(torch.zeros(4), 0)), DataError
    )
    if found is not None:
        assert found.c.shape == (4,)
        assert isinstance(found.t, int | float)


@FUZZ
@given(data=st.data())
def test_a_vault_is_read_or_refused(data: Any) -> None:
    context = _seat()
    vault = sum_client.open_vault(b"", context)
    sum_client.offer_key(vault, context)
    refused_or_read(lambda: sum_client.open_vault(data.draw(edits(vault.lock())), context))


def _seat() -> Any:
    from dpfed.core.sum_protocol import SumContext

    return SumContext(0, 3, 1, 0, 0, "run/x", identity.simulated(3)[0])


# ------------------------------------------------------------------------------- codec and wire

VALUES = (
    st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.text(max_size=9)
    | st.binary(max_size=9)
    | st.booleans()
    | st.lists(st.text(max_size=4), max_size=3)
    | st.lists(st.binary(max_size=4))
    | st.lists(st.integers(-9, 9), max_size=3)
)
NAMES = st.sampled_from(
    [
        "round",
        "attempt",
        "stage",
        "client",
        "error",
        "training",
        "fingerprint",
        "names",
        "channels",
        "requests",
        "x",
    ]
)
CONTROL = st.dictionaries(NAMES, VALUES).map(ConfigRecord)
ARRAY = st.builds(
    Array,
    st.sampled_from(["uint8", "float32", "int64", "object", "x"]),
    st.lists(st.integers(-2, 9), max_size=3).map(tuple),
    st.sampled_from(["dpfed.grid", "numpy.ndarray", ""]),
    st.binary(max_size=24),
)
ARRAYS = st.dictionaries(st.sampled_from(["update", "sum", "x"]), ARRAY).map(ArrayRecord)
RECORDS = st.dictionaries(
    st.sampled_from(["dpfed", "reply", "arrays", "shared", "config"]), CONTROL | ARRAYS
).map(RecordDict)
TRUE = {"round": 1, "attempt": 0, "stage": "reply", "client": 2}


@FUZZ
@given(records=RECORDS, arrays=ARRAYS, true=st.booleans())
def test_a_reply_of_any_records_is_read_or_refused(records: Any, arrays: Any, true: bool) -> None:
    if true:
        records["dpfed"], records["reply"] = ConfigRecord(TRUE), arrays
    refused_or_read(lambda: read_reply(records, Envelope(1, 0, "reply", 2)), BadReply)


@FUZZ
@given(records=RECORDS, control=CONTROL, arrays=ARRAYS)
def test_an_order_of_any_records_is_read_or_refused(
    records: Any, control: Any, arrays: Any
) -> None:
    control["names"] = control.get("names", list(arrays))
    records["dpfed"], records["arrays"] = control, arrays
    refused_or_read(lambda: read_order(records), BadReply)


KINDS = [
    messages.Key,
    messages.Keys,
    messages.Cohort,
    messages.Dropped,
    messages.Seeds,
    messages.Alive,
    messages.Shares,
]
MESSAGE = messages.pack_message(messages.Alive([0, 1], {1: bytes(49)}, {1: bytes(32)}))


@settings(FUZZ, max_examples=300 * FACTOR)
@given(data=st.binary(max_size=80) | edits(MESSAGE), kind=st.sampled_from(KINDS))
def test_bytes_on_the_masks_wire_are_read_or_refused(data: bytes, kind: Any) -> None:
    refused_or_read(lambda: messages.unpack(data, kind), BadReply)
    refused_or_read(lambda: messages.unpack_masked(data), BadReply)


@pytest.mark.parametrize(
    "opener", [b"\x91", b"\x81", b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"]
)
def test_deep_or_vast_messages_are_refused(opener: bytes) -> None:
    for kind in KINDS:
        with pytest.raises(BadReply):
            messages.unpack(opener * 100_000, kind)


# ----------------------------------------------------------------------------------------- rosters


@FUZZ
@given(data=st.data())
def test_a_roster_is_read_or_refused(data: Any) -> None:
    content = identity.dump_roster(["a", "b"], [bytes(32), bytes(31) + b"\1"])
    tree = edited_tree(json.loads(content)).map(lambda t: json.dumps(t).encode())
    found = data.draw(edits(content) | tree)
    refused_or_read(lambda: identity._parse(Path("roster.json"), found), DataError)


# ---------------------------------------------------------------------------------- no pickle


def calls(tree: ast.AST) -> list[tuple[str, ast.Call]]:
    return [(ast.unparse(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]


def keyword(call: ast.Call, name: str) -> Any:
    found = [each.value for each in call.keywords if each.arg == name]
    return ast.literal_eval(found[0]) if found else None


def test_no_file_is_ever_unpickled(repository: Path) -> None:
    """pickle may be named for its exception alone; torch and numpy load without it."""
    seen = 0
    for path in sorted((repository / "src/dpfed").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        attributes = {ast.unparse(n) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
        assert {a for a in attributes if a.startswith("pickle.")} <= {"pickle.UnpicklingError"}, (
            path
        )
        modules = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        assert not modules & {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}, path
        for name, call in calls(tree):
            if name == "torch.load":
                assert keyword(call, "weights_only") is True, path
                seen += 1
            if name in ("np.load", "numpy.load"):
                assert keyword(call, "allow_pickle") is False, path
                seen += 1
    assert seen >= 2
