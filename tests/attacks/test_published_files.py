# SPDX-License-Identifier: Apache-2.0
"""What a gate writes where others may write, and what it reads while somebody edits it.

A collector's folder is often open to a group. Whoever can place a link there must not choose which
file of the gate's own is overwritten or appended to.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from dpfed.core.files import replace_file
from dpfed.recipes.terms import read_terms
from dpfed.silo.policy import read_policy
from dpfed.silo.publish import Publisher, running
from dpfed.sums.secagg.identity import own_key
from tests.helpers.handlers import (
    _own_environment,  # noqa: F401
    handler,
)
from tests.silo.gates import Silo, terms_for

SILO = Path(__file__).parents[2] / "src" / "dpfed" / "silo"


def watched(folder: Path) -> Publisher:
    """A gate that publishes into ``folder / "open"``, with an event to write."""
    (folder / "open").mkdir(exist_ok=True)
    names = {"events": "events.jsonl", "metrics": "dpfed.prom", "page": "page.html"}
    gate = {key: str(folder / "open" / name) for key, name in names.items()}
    text = terms_for(folder, 3).read_text()
    held = handler(folder, gate)
    held.approvals.approve(read_terms(text), text, days=1, by="root")
    return Publisher(held)


@pytest.mark.parametrize("name", ["dpfed.prom", "page.html", "events.jsonl"])
@pytest.mark.parametrize("form", ["{}", "{}.draft", ".{}.draft"])
def test_a_link_in_an_open_folder_reaches_no_file_of_the_gate(
    tmp_path: Path, name: str, form: str
) -> None:
    publisher = watched(tmp_path)
    key = publisher.handler.state / "identity.key"
    before = key.read_bytes()
    (tmp_path / "open" / form.format(name)).symlink_to(key)
    publisher.publish()
    assert key.read_bytes() == before
    assert key.stat().st_mode & 0o777 == 0o600
    own_key(publisher.handler.state)
    metrics = tmp_path / "open" / "dpfed.prom"
    assert metrics.is_file()
    assert not metrics.is_symlink()
    assert metrics.stat().st_mode & 0o777 == 0o644


def test_a_pipe_in_the_place_of_the_log_stops_no_gate(tmp_path: Path) -> None:
    publisher = watched(tmp_path)
    os.mkfifo(tmp_path / "open" / "events.jsonl")
    publisher.publish()  # it would wait for a reader for ever
    assert (tmp_path / "open" / "dpfed.prom").is_file()


def test_a_link_whose_name_was_guessed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, true = [], os.open
    (tmp_path / "key").write_bytes(b"the key")

    def watched_open(path: Path, flags: int, mode: int = 0o777) -> int:
        drawn.append(Path(path).name)
        return true(path, flags, mode)

    monkeypatch.setattr(os, "open", watched_open)
    replace_file(tmp_path / "a", b"one")
    replace_file(tmp_path / "a", b"two")
    drafts = [name for name in drawn if name.startswith(".a.")]
    assert len(set(drafts)) == 2  # no two alike
    monkeypatch.setattr("dpfed.core.files.secrets.token_hex", lambda _: "0")
    (tmp_path / ".a.0.draft").symlink_to(tmp_path / "key")
    with pytest.raises(FileExistsError):
        replace_file(tmp_path / "a", b"three")
    assert (tmp_path / "key").read_bytes() == b"the key"
    assert (tmp_path / "a").read_bytes() == b"two"


_WRITERS = ("write_text(", "write_bytes(", "os.open(", "mkstemp(", "NamedTemporaryFile(", ".touch(")
_TO_WRITE = re.compile(r"""(?<!fd)open\([^)]*["'][wax]b?\+?["']""")
_ALLOWED = {
    ("gate.py", "write_text("),  # /proc/self/oom_score_adj
    ("publish.py", "os.open("),  # the log, which is appended to: without following a link
    ("tunnel.py", "os.open("),  # a key: O_EXCL
}


def test_the_silo_room_writes_files_by_one_function() -> None:
    """Law: no module of the room writes a file by hand."""
    found = set()
    for path in SILO.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        found |= {(path.name, word) for word in _WRITERS if word in text}
        found |= {(path.name, each) for each in _TO_WRITE.findall(text)}
    assert found <= _ALLOWED


def test_the_digest_is_of_the_policy_that_was_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An officer's edit while the gate starts is enforced by nobody; so nobody says that it is."""
    silo = Silo(tmp_path / "silo", 0)
    silo.write(most_rounds=10)
    content, read = silo.policy.read_bytes(), Path.read_bytes

    def edited(path: Path) -> bytes:
        found = read(path)
        if path == silo.policy:
            silo.write(most_rounds=1)  # as soon as it was read
        return found

    with monkeypatch.context() as within:
        within.setattr(Path, "read_bytes", edited)
        policy, digest = read_policy(silo.policy)
    assert policy.data["sepsis"].most_rounds == 10
    assert digest == hashlib.sha256(content).hexdigest()
    assert silo.policy.read_bytes() != content
    held = watched(tmp_path)
    held.begin(digest)
    assert running(held.handler.state)["policy"] == digest


def test_a_gate_notes_the_digest_that_it_was_started_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dpfed.silo.__main__ as process
    from dpfed.silo import gate

    silo, seen = Silo(tmp_path / "silo", 0), []
    silo.write(most_rounds=10)
    expected = hashlib.sha256(silo.policy.read_bytes()).hexdigest()

    def run(policy: object, ready: Callable[[], None], digest: str) -> None:
        silo.write(most_rounds=1)
        seen.append(digest)

    monkeypatch.setattr(gate, "run_gate", run)
    process.main([str(silo.policy)])
    assert seen == [expected]
