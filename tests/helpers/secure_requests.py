# SPDX-License-Identifier: Apache-2.0
"""What a server may ask the clients of a secure sum, true or false."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
import numpy as np

from dpfed.sums.secagg import messages
from dpfed.sums.secure import Secure, secure
from tests.sums.table import Table

N = 5


ALL = range(N)


VECTORS = {i: np.array([i, -i, 2**40 + i]) for i in ALL}


LOOSE = secure(survivors=0.6)  # 3 of 5


def answered(sum: Secure = LOOSE, **at: int) -> Table:
    """A table whose clients have sent their masked vectors, and nothing else."""
    table = Table(sum, N)
    table.run_round(VECTORS, silent={"repair": ALL, "unmask": ALL}, **at)
    return table


def ask(table: Table, client: int, stage: str, message: msgspec.Struct, **at: int) -> bytes:
    context = table.context(client, **at)
    return table.ask(client, stage, messages.pack_message(message), VECTORS[client], context)


def masked(table: Table, client: int) -> messages.Masked:
    return messages.unpack_masked(table.sent["input", client])[0]


def alive(
    table: Table, client: int, clients: Collection[int] = ALL, **changed: Any
) -> messages.Alive:
    """A request for shares, with the true sealed ones."""
    near = {i: masked(table, i) for i in clients if i != client}
    sealed = {i: message.sealed[client] for i, message in near.items()}
    marks = {i: message.shares[client] for i, message in near.items()}
    return msgspec.structs.replace(messages.Alive(list(clients), sealed, marks), **changed)


def out(*clients: int) -> messages.Dropped:
    return messages.Dropped(list(clients))
