# SPDX-License-Identifier: Apache-2.0
"""A table of clients around a secure sum, in one process; a test says who drops out when."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from dpfed.core.errors import DpfedError
from dpfed.core.sum_protocol import Aborted, Opened, Requests, SumContext
from dpfed.core.types import UPDATE, Release
from dpfed.sums.secagg.identity import simulated
from dpfed.sums.secagg.server import SUM, Directory, Session
from dpfed.sums.secure import Secure

Tamper = Callable[[str, int, bytes], bytes]


def unmodified(stage: str, client: int, message: bytes) -> bytes:
    return message


@dataclass
class Table:
    """Clients with their vaults, and a server that keeps its directory between rounds."""

    sum: Secure
    clients: int
    colluders: int = 0
    run: str = "run/plan"
    secrets: dict[int, bytes] = field(default_factory=dict)
    directory: Directory = field(default_factory=Directory)
    refused: dict[int, str] = field(default_factory=dict)
    stages: list[str] = field(default_factory=list)
    sent: dict[tuple[str, int], bytes] = field(default_factory=dict)
    session: Session | None = None
    """The server's side of the round that is run."""
    channels: Mapping[str, int] | None = None
    """Each channel's size, if a vector is to be cut into several."""
    left_open: bool = False
    """Whether the server left its spool file open at the end; it is then closed here."""

    def context(self, client: int, round: int = 0, attempt: int = 0) -> SumContext:
        signer = simulated(self.clients)[client] if client >= 0 else None
        return SumContext(
            client=client,
            clients=self.clients,
            colluders=self.colluders,
            round=round,
            attempt=attempt,
            run=self.run,
            signer=signer,
        )

    def ask(self, client: int, stage: str, request: bytes, vector: Any, at: SumContext) -> bytes:
        """One client's answer; its vault is kept."""
        reply = None
        if stage == self.sum.release_stage:
            parts = torch.as_tensor(vector).split(list(self.sizes(vector).values()))
            releases = [Release(part, std=1.0, step=1.0) for part in parts]
            reply = dict(zip(self.sizes(vector), releases, strict=True))
        messages, secret = self.sum.reply(
            stage, {SUM: request}, reply, self.secrets.get(client, b""), at
        )
        self.secrets[client] = secret
        return messages[SUM]

    def sizes(self, vector: Any) -> Mapping[str, int]:
        return self.channels or {UPDATE: len(vector)}

    def run_round(
        self,
        vectors: Mapping[int, Any],
        *,
        round: int = 0,
        attempt: int = 0,
        silent: Mapping[str, Collection[int]] | None = None,
        to_client: Tamper = unmodified,
        to_server: Tamper = unmodified,
    ) -> Opened | Aborted:
        """A round over the clients in ``vectors``; ``silent`` says who drops out before a stage.

        Who is silent stays silent, also if the stage that it was to be silent at is left out.
        """
        sizes = self.sizes(next(iter(vectors.values())))
        cohorts = {name: dict.fromkeys(vectors, 1.0) for name in sizes}
        server = replace(self.context(-1, round, attempt), roster=simulated(self.clients)[0])
        session, following = self.sum.begin(self.directory, cohorts, sizes, server)
        self.session = session
        self.stages, self.refused, self.sent = [], {}, {}
        try:
            while isinstance(following, Requests):
                before = self.sum.stages[: self.sum.stages.index(following.stage) + 1]
                gone = {client for stage in before for client in (silent or {}).get(stage, ())}
                self._exchange(session, following, vectors, gone, to_client, to_server, server)
                following = self.sum.close(session)
        finally:
            self.left_open = not session.spool.closed
            session.spool.close()
            self.directory = self.sum.directory_after(session)
        return following

    def _exchange(
        self,
        session: Session,
        requests: Requests,
        vectors: Mapping[int, Any],
        gone: set[int],
        to_client: Tamper,
        to_server: Tamper,
        server: SumContext,
    ) -> None:
        stage = requests.stage
        self.stages.append(stage)
        for client, request in requests.messages[SUM].items():
            if client in gone:
                continue
            context = replace(self.context(client), round=server.round, attempt=server.attempt)
            try:
                asked = to_client(stage, client, request)
                message = self.ask(client, stage, asked, vectors[client], context)
                self.sent[stage, client] = message
                self.sum.add(session, client, {SUM: to_server(stage, client, message)})
            except DpfedError as error:
                self.refused[client] = f"{type(error).__name__}: {error}"


def total(vectors: Mapping[int, Any], clients: Collection[int]) -> list[int]:
    """The plain integer sum."""
    return np.sum([np.asarray(vectors[c], dtype=object) for c in clients], axis=0).tolist()
