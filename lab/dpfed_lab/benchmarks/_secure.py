# SPDX-License-Identifier: Apache-2.0
"""A secure sum in one process, and the bare cryptography that a round of it cannot do without."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from dpfed.core.sum_protocol import Aborted, Opened, Requests, SumContext
from dpfed.core.types import UPDATE, Release
from dpfed.sums.secagg import shamir
from dpfed.sums.secagg.graph import Design, design
from dpfed.sums.secagg.identity import simulated
from dpfed.sums.secagg.server import SUM, Directory
from dpfed.sums.secure import Secure

_ZEROS = bytes(1 << 16)


@dataclass
class Table:
    """Clients that make nothing but their answers, round after round."""

    clients: int
    size: int
    sum: Secure = field(default_factory=Secure)
    colluders: int = 1
    round: int = -1
    directory: Directory = field(default_factory=Directory)
    secrets: dict[int, bytes] = field(default_factory=dict)
    sent: int = 0
    """Bytes from all clients in the last round."""
    got: int = 0
    client_seconds: float = 0.0
    exchanges: int = 0
    clock: Callable[[], float] = time.perf_counter
    """What a client's seconds are read from."""

    def __post_init__(self) -> None:
        self.release = Release(torch.arange(self.size, dtype=torch.int64), 1.0, 1.0)
        self.cohort = dict.fromkeys(range(self.clients), 1.0)

    @property
    def graph(self) -> Design:
        """Who shares masks with whom."""
        return design(self.clients, self.sum.least(self.clients), self.colluders, self.sum.degree)

    def play(self) -> torch.Tensor:
        """One round; the total."""
        self.round += 1
        self.sent = self.got = self.exchanges = 0
        self.client_seconds = 0.0
        following: Requests | Opened | Aborted
        session, following = self.sum.begin(
            self.directory, {UPDATE: self.cohort}, {UPDATE: self.size}, self._seat(-1)
        )
        while isinstance(following, Requests):
            self.exchanges += 1
            for client, request in following.messages[SUM].items():
                message = self._answer(client, following.stage, request)
                session = self.sum.add(session, client, {SUM: message})
            following = self.sum.close(session)
        self.directory = self.sum.directory_after(session)
        assert isinstance(following, Opened)
        return following.totals[UPDATE].vector

    def _answer(self, client: int, stage: str, request: bytes) -> bytes:
        began = self.clock()
        reply = {UPDATE: self.release} if stage == "input" else None
        secret = self.secrets.get(client, b"")
        messages, self.secrets[client] = self.sum.reply(
            stage, {SUM: request}, reply, secret, self._seat(client)
        )
        self.client_seconds += self.clock() - began
        self.sent, self.got = self.sent + len(messages[SUM]), self.got + len(request)
        return messages[SUM]

    def _seat(self, client: int) -> SumContext:
        signer = simulated(self.clients)[client] if client >= 0 else None
        return SumContext(client, self.clients, self.colluders, self.round, 0, "benchmark", signer)


def primitives(clients: int, size: int, graph: Design) -> None:
    """The calls of a round without dropouts, all clients' and the server's, and nothing else.

    Per client: a mask stream per neighbour and one of its own; a derived seed and two derived
    sealing keys per neighbour (its letters out and in); sealing and opening them; a commitment per
    share and per seed, and the server's check of shares; Shamir's split. The server: one stream per
    client, after Shamir's join.
    """
    degree, key = graph.degree, os.urandom(32)
    near = range(degree)
    buffer = bytearray(len(_ZEROS) + 64)
    letter = AESGCM(key).encrypt(bytes(12), bytes(shamir.SHARE_BYTES), None)
    for _ in range(clients):
        for _ in near:
            for _ in range(3):
                HKDFExpand(SHA256(), 32, info=bytes(44)).derive(key)
                hashlib.sha256(key).digest()
            AESGCM(key).encrypt(bytes(12), bytes(shamir.SHARE_BYTES), None)
            AESGCM(key).decrypt(bytes(12), letter, None)
        for _ in range(degree + 2):
            _stream(key, 8 * size, buffer)
        shares = shamir.split(key, near, graph.threshold)
        shamir.join(dict(list(shares.items())[: graph.threshold]))


def _stream(key: bytes, length: int, buffer: bytearray) -> None:
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    for start in range(0, length, len(_ZEROS)):
        stream.update_into(memoryview(_ZEROS)[: length - start], buffer)
