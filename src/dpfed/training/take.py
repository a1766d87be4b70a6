# SPDX-License-Identifier: Apache-2.0
"""What the server does with clients' answers: each goes into the sum, or is noted as refused.

Small answers are added several at a time, where the sum can (``SendsReleases``): a round of many
small clients costs calls, not arithmetic. A large one is added at once, so that no second one has
to be held.

| edge case                                      | what happens                                |
|------------------------------------------------|---------------------------------------------|
| one of several cannot be added                 | each is added alone, in the order they came |
| a sum of someone's own inherits the passes     | its own ``add``, one by one                 |
| the transport breaks off                       | its error is raised: there is no round      |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpfed.core.errors import WIRE_NAMES, BadReply, ClientRefused
from dpfed.core.log import log
from dpfed.core.stacked import defines
from dpfed.core.sum_protocol import SendsReleases

if TYPE_CHECKING:
    from collections.abc import Iterable, MutableMapping

    from dpfed.core.sum_protocol import Answer, Messages, Session, Sum

AT_ONCE = 1 << 18
"""Bytes of the answers that are added in one pass: they stay in cache."""


class Taking:
    """The answers of one stage.

    Args:
        adder: the sum.
        session: its session; it is replaced by what follows from it.
        refused: why clients are left out, which is added to.
        level: of the log, for these.
    """

    def __init__(
        self, adder: Sum, session: Session, refused: MutableMapping[int, str], level: int
    ) -> None:
        self.session = session
        self._adder, self._refused, self._level = adder, refused, level
        self._many: SendsReleases | None = None
        if isinstance(adder, SendsReleases) and defines(type(adder), "add", "add_many"):
            self._many = adder
        self._waiting: list[tuple[int, Messages]] = []
        self._held = 0

    def all(self, answers: Iterable[tuple[int, Answer]]) -> Session:
        """Take them as they come; the session after the last one."""
        for client, answer in answers:
            self._take(client, answer)
            del answer  # or two messages are alive while the next one is made
        self._flush()
        return self.session

    def _take(self, client: int, answer: Answer) -> None:
        if isinstance(answer, ClientRefused):
            return self._note(client, answer)
        self._held += sum(map(len, answer.values()))
        self._waiting.append((client, answer))
        return self._flush() if not self._many or self._held >= AT_ONCE else None

    def _flush(self) -> None:
        waiting, self._waiting, self._held = self._waiting, [], 0
        after = None
        if self._many and len(waiting) > 1:
            after = self._many.add_many(self.session, waiting)
        if after is not None:
            self.session = after
            return
        for client, answer in waiting:
            try:
                self.session = self._adder.add(self.session, client, answer)
            except (BadReply, ClientRefused) as error:
                self._note(client, error)

    def _note(self, client: int, error: BadReply | ClientRefused) -> None:
        hint = "; its own log says why" if str(error) in WIRE_NAMES else ""
        log.log(self._level, "client %d is left out of this round: %s%s", client, error, hint)
        self._refused[client] = str(error)
