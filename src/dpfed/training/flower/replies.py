# SPDX-License-Identifier: Apache-2.0
"""Replies over Flower's Grid, pulled a few at a time, as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from dpfed.core.errors import BadReply

_RESEND_AFTER_S = 300.0  # a silent node gets the same order again; then after 3 times as long
_LOOK_INTERVAL_S = 0.5  # between two looks at who is online
RELAY_FAILED = 7100
"""The code, none of Flower's, of a relay under another engine that has no reply of its gate."""
_MIN_POLL_S, _MAX_POLL_S = 0.01, 0.25  # between two looks for replies: rarer, the longer it takes


def replies(
    grid: Grid,
    sent: Mapping[str, int],
    timeout: float,
    batch: int,
    ask: Callable[[Collection[int]], Mapping[str, int]] | None = None,
) -> Iterator[Message]:
    """What nodes reply to one order each, as it comes, until all are here, gone, or too late.

    A SuperNode that is killed and restarted between two looks at who is online has lost its order,
    and Flower does not report it; hence ``ask``.

    Args:
        grid: where the messages were pushed.
        sent: the messages, and the node of each.
        timeout: how many seconds to wait.
        batch: how many are pulled at once.
        ask: pushes the same orders to silent nodes once more; None if nothing is asked twice.
    """
    sent, waiting = dict(sent), set(sent.values())
    answered: dict[int, str] = {}  # node -> the order that it has answered first
    began = time.monotonic()
    deadline, look = began + timeout, began + 2.0
    patience, again = _RESEND_AFTER_S, began + _RESEND_AFTER_S
    while waiting and time.monotonic() < deadline:
        pulled = _pull(grid, [i for i, node in sent.items() if node in waiting], batch)
        found = bool(pulled)
        while pulled:
            order = pulled[-1].metadata.reply_to_message_id
            waiting.discard(sent[order])
            if answered.setdefault(sent[order], order) == order:
                yield pulled.pop()  # a second reply to the same order is refused where it is read
            else:
                pulled.pop()
        if found:
            continue
        now = time.monotonic()
        if now > look:  # those who went offline will not answer
            waiting &= set(grid.get_node_ids())
            look = now + _LOOK_INTERVAL_S
        if ask and waiting and now > again:
            sent.update(ask(waiting))
            patience *= 3
            again = now + patience
        time.sleep(min(_MAX_POLL_S, max(_MIN_POLL_S, (now - began) / 20)))


def _pull(grid: Grid, pending: list[str], batch: int) -> list[Message]:
    """Pull a few of the replies that are there, the last one first."""
    for at in range(0, len(pending), batch):
        pulled = list(grid.pull_messages(pending[at : at + batch]))
        if pulled:
            return pulled[::-1]
    return []


def flower_error(reply: Message) -> str:
    """Flower's error as its code only, as its text may quote what a client raised."""
    words = {
        1: "that the ClientApp did not load",
        2: "that the ClientApp raised",
        3: "no reply in time",
        5: "that the node is offline",
        8: "that the ClientApp crashed",
    }
    if reply.error.code == RELAY_FAILED:
        return "the site's relay brought no reply of its gate"
    return f"Flower reports {words.get(reply.error.code, 'an error')} (code {reply.error.code})"


def enrolment_of(reply: Message) -> RecordDict:
    """What a node says about itself; BadReply if it could not be asked."""
    if reply.has_error():
        raise BadReply(
            f"{flower_error(reply)}; its log says why, and its ClientApp must be a dpfed one"
        )
    return reply.content
