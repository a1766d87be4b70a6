# SPDX-License-Identifier: Apache-2.0
"""The server's half of evidence: keeps what clients sign, as it comes, in a folder.

    receipts.jsonl     a signed receipt in each line
    rounds.jsonl       who was asked for releases in each attempt
    statements.jsonl   what each client stated at the end
    keys.json          public keys, by client, as nodes said them when they enrolled

Nothing of it is checked here: whoever reads it checks it (recipes/verify.py). Nothing is kept where
the accounting relies on a secret draw of clients, nor of an open population, but the statements.

| edge case                                     | what happens                                     |
|-----------------------------------------------|--------------------------------------------------|
| a receipt or statement that is too long       | not kept, and logged                             |
| the same line again, after a resume           | kept once                                        |
| a training that goes on in another process    | its lines are added to those that are there      |
| a file that has grown past MOST_FILE_BYTES    | nothing more is kept, and logged                 |
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import RecordDict

from dpfed.core.dsse import MOST_BYTES, canonical_json
from dpfed.core.files import replace_file
from dpfed.core.log import log
from dpfed.training.wire.codec import CONTROL
from dpfed.training.wire.evidence import MOST_RECEIPT_BYTES
from dpfed.training.wire.responder import KEY, RECEIPT, STATEMENT

RECEIPTS, ROUNDS, STATEMENTS, KEYS = (
    "receipts.jsonl",
    "rounds.jsonl",
    "statements.jsonl",
    "keys.json",
)
MOST_FILE_BYTES = 1 << 26


class EvidenceFolder:
    """Where a server keeps what clients sign.

    Args:
        folder: made if missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys: dict[int, str] = {}
        self._seen: dict[str, set[bytes]] = {}
        self._sizes: dict[str, int] = {}

    def asked(self, round: int, attempt: int, cohort: Iterable[int]) -> None:
        """Keep who is asked for releases in an attempt.

        Args:
            round: the round, from 0.
            attempt: the attempt at it.
            cohort: the clients.
        """
        self._add(
            ROUNDS,
            canonical_json({"round": round, "attempt": attempt, "cohort": sorted(cohort)}),
        )

    def replied(self, content: RecordDict) -> None:
        """Keep the receipt in a reply, if there is one."""
        receipt = _control(content).get(RECEIPT)
        if isinstance(receipt, bytes):
            if len(receipt) > MOST_RECEIPT_BYTES or b"\n" in receipt:
                log.warning("a receipt of %d bytes is not kept", len(receipt))
            else:
                self._add(RECEIPTS, receipt)

    def enrolled(self, client: int, content: RecordDict) -> None:
        """Remember the public key that a node says."""
        key = _control(content).get(KEY)
        if isinstance(key, str) and re.fullmatch("[0-9a-f]{64}", key):
            self.keys[client] = key

    def stated(self, found: Mapping[int, RecordDict]) -> None:
        """Keep the statements of clients, in the place of earlier ones.

        Args:
            found: what each client has answered.
        """
        lines = []
        for client, content in sorted(found.items()):
            made = _control(content).get(STATEMENT)
            if not isinstance(made, bytes) or len(made) > MOST_BYTES or b"\n" in made:
                log.warning("client %d made no statement; its own log says why", client)
                continue
            lines.append(made + b"\n")
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_file(self.folder / STATEMENTS, b"".join(lines), 0o644)
        keys = canonical_json({str(client): key for client, key in sorted(self.keys.items())})
        replace_file(self.folder / KEYS, keys, 0o644)

    def _add(self, name: str, line: bytes) -> None:
        path = self.folder / name
        if name not in self._seen:
            self.folder.mkdir(parents=True, exist_ok=True)
            content = path.read_bytes() if path.exists() else b""
            whole = content[: content.rfind(b"\n") + 1]  # the rest was not written whole
            replace_file(path, whole, 0o644)
            self._seen[name], self._sizes[name] = set(whole.splitlines()), len(whole)
        if line in self._seen[name]:
            return
        if self._sizes[name] + len(line) >= MOST_FILE_BYTES:
            log.warning("%s is full: the evidence of this training will be incomplete", path)
            return
        with path.open("ab") as file:
            file.write(line + b"\n")
        self._seen[name].add(line)
        self._sizes[name] += len(line) + 1


def _control(content: RecordDict) -> Any:
    """What a reply says besides its arrays; empty if it says nothing."""
    return content.config_records.get(CONTROL, {})
