# SPDX-License-Identifier: Apache-2.0
"""A secure sum of a few vectors: in one process, or between processes over any connection.

    party --[masked vector]--> server          stages of sums/secure.py, as bytes:
    party <-[who is in]------- server          a frame is (stage, message), and an empty one ends

The terms are hidden, the total is not: it is private if the terms are shares of noise (NoisySum). A
sum of plain integers opens the exact total, so whoever wants that says ``exact_total=True``.

A connection is one of ``multiprocessing`` (a Pipe, or Listener and Client over TCP), or anything
with its ``send_bytes``, ``recv_bytes`` and ``poll``. The server may be any of the processes. Each
party has a signing key, and learns the public keys of the others by another way than the server.

| edge case                                     | what happens                                     |
|-----------------------------------------------|--------------------------------------------------|
| a party is gone, or silent beyond ``timeout`` | it is left out, if ``survivors`` allows that     |
| too few are left                              | RoundAborted; nothing is opened                  |
| the server swaps a key, or names strangers    | the party refuses (Untrusted) and sends nothing  |
| vectors of other lengths, other doors' shares | refused: before anything is sent, or by the sum  |
| a party is asked twice                        | refused: its object answers one sum              |
| a share of noise that was taken before        | UnsoundPlan, whatever became of that sum         |
| plain integers without ``exact_total``        | refused                                          |
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol, TypeAlias

import msgspec
import torch

from dpfed.core.checks import is_count, refuse
from dpfed.core.errors import BadReply, DpfedError, RoundAborted
from dpfed.core.log import log
from dpfed.core.sum_protocol import Aborted, Opened, Requests, Signer, SumContext
from dpfed.core.types import UPDATE, Release, Vector
from dpfed.parts.noisy_sum import MAX_PARTIES, NoiseShare, NoisySum, NoisyValue
from dpfed.sums.secagg.identity import Roster, SigningKey, simulated
from dpfed.sums.secagg.server import SUM
from dpfed.sums.secure import Secure, secure

_NAME = "in one process"
Term: TypeAlias = "NoiseShare | torch.Tensor"


class Connection(Protocol):
    """What ``multiprocessing.connection`` gives on either end."""

    def send_bytes(self, buf: bytes, /) -> None:
        """Send one frame."""

    def recv_bytes(self, maxlength: int | None = None, /) -> bytes:
        """Wait for one frame."""

    def poll(self, timeout: float | None = 0.0, /) -> bool:
        """Whether a frame arrives within so many seconds."""


@dataclass(frozen=True, eq=False)
class _Terms:
    """What a sum is of: how it is made, and one party's release."""

    release: Release
    sum: Secure
    colluders: int


def _terms(term: Term, parties: int, exact_total: bool) -> _Terms:
    if isinstance(term, NoiseShare):
        if term.parties != parties:
            way = "give as many terms, or make the door for this number"
            raise refuse("parties", f"{term.parties}, as the noise was made for", parties, way)
        return _Terms(term.release, term.sum, term.colluders)
    if not exact_total or term.is_floating_point() or term.dim() != 1:
        bound = "shares of a NoisySum; or flat tensors of integers, with exact_total=True"
        way = "NoisySum(parties=...) makes shares, whose total is private"
        raise refuse("a term", bound, f"{tuple(term.shape)} of {term.dtype}", way)
    most = 2**62 // parties
    if term.numel() and not -most <= int(term.min()) <= int(term.max()) <= most:
        raise refuse("an integer", f"within {most:.3g} of 0, so that no total wraps", "more")
    return _Terms(Release(term.long(), 0.0, 1.0), secure(survivors=1.0), colluders=1)


def _take(term: Term) -> None:
    if isinstance(term, NoiseShare):
        term.take()


class SumParty:
    """One party of a secure sum between processes: it answers the server until the sum is over.

    Args:
        index: this party's place, from 0.
        term: a share of a NoisySum with ``parties``; or a flat tensor of integers.
        key: its signing key: ``dpfed.parts.own_key(folder, make=True)``.
        keys: the public keys of all parties, by place, learned by another way than the server.
        name: the sum's name, the same for all, and never used for another sum.
        exact_total: let plain integers be summed: the exact total is opened to the server.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from dpfed.parts import own_key
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     mine = own_key(Path(folder), make=True)
    >>> keys = [mine.public, bytes(32), bytes(range(32))]
    >>> SumParty(0, torch.arange(4), mine, keys, name="poll-1", exact_total=True)
    <party 0 of 3 in the sum 'poll-1'>
    """

    def __init__(
        self,
        index: int,
        term: Term,
        key: SigningKey,
        keys: Sequence[bytes],
        *,
        name: str,
        exact_total: bool = False,
    ) -> None:
        if not 0 <= index < len(keys) or keys[index] != key.public:
            way = "give the public keys in the parties' order"
            raise refuse("keys", f"all parties' public keys, this one's at {index}", len(keys), way)
        roster = Roster(tuple(f"party-{i}" for i in range(len(keys))), tuple(keys))
        terms = _terms(term, len(keys), exact_total)
        self._said = f"<party {index} of {len(keys)} in the sum {name!r}>"
        mine = key.within(roster, index)
        self._member = _Member(terms, _context(index, len(keys), terms, name, mine))
        _take(term)

    def __repr__(self) -> str:
        return self._said

    def run(self, connection: Connection) -> None:
        """Answer the server over a connection until the sum is over.

        It raises Untrusted, and sends nothing more, if the server does what it must not.

        Args:
            connection: to the server.
        """
        while frame := connection.recv_bytes():
            stage, message = msgspec.msgpack.decode(frame, type=tuple[str, bytes])
            connection.send_bytes(self._member.reply(stage, message))


class _Member:
    """A party as the protocol sees it: its term, and what it keeps between stages."""

    def __init__(self, terms: _Terms, context: SumContext) -> None:
        self._terms, self._context = terms, context
        self._secret, self._used, self._process = b"", False, os.getpid()
        self._lock = threading.Lock()

    def __reduce__(self) -> NoReturn:
        """No copies: each could put the same share of noise into a sum of its own."""
        raise TypeError("a party of a secure sum is not copied or pickled; make one for each sum")

    def reply(self, stage: str, message: bytes) -> bytes:
        """The answer to one request of the server."""
        release = None
        with self._lock:  # of two threads with one party, one has the share
            if stage == self._terms.sum.release_stage:
                if self._used or os.getpid() != self._process:
                    raise BadReply(
                        "a SumParty answers one sum, in the process that made it; make another "
                        "one, with another name"
                    )
                self._used, release = True, {UPDATE: self._terms.release}
            made, self._secret = self._terms.sum.reply(
                stage, {SUM: message}, release, self._secret, self._context
            )
        return made[SUM]


class SumServer:
    """The server of a secure sum between processes: it learns the total, and no term.

    Args:
        parties: how many there are.
        size: the length of the vectors.
        name: the sum's name, as all parties have it.
        door: a NoisySum like the parties' own, from which noise and survivors are known; None is a
            sum of plain integers, of all parties.
        timeout: seconds to wait for a party in each stage.

    >>> SumServer(parties=3, size=4, name="poll-1").parties
    3
    """

    def __init__(
        self,
        parties: int,
        size: int,
        name: str,
        door: NoisySum | None = None,
        timeout: float = 60.0,
    ) -> None:
        if not (is_count(parties, 3) and parties <= MAX_PARTIES):
            raise refuse(
                "parties", f"from 3 to {MAX_PARTIES}", parties, "two know each other's term"
            )
        self.parties, self._size = parties, size
        self._name, self._timeout = _checked_name(name), timeout
        self._empty = _Terms(Release(torch.zeros(0), 0.0, 1.0), secure(survivors=1.0), 1)
        if door is not None:
            self._empty = _terms(door.template, parties, exact_total=False)

    def run(self, connections: Sequence[Connection]) -> NoisyValue:
        """Ask the parties stage by stage, and open the total.

        Args:
            connections: to the parties, by their places.

        Returns:
            the total, with the known noise in it.
        """
        if len(connections) != self.parties:
            raise refuse("connections", f"{self.parties}, one per party", len(connections))
        here = dict(enumerate(connections))

        def ask(stage: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
            return _asked(here, stage, requests, self._timeout)

        try:
            return _open(self._empty, self.parties, self._size, self._name, ask)
        finally:
            for each in here.values():
                _send(each, b"")


def _asked(
    here: dict[int, Connection], stage: str, requests: Mapping[int, bytes], timeout: float
) -> dict[int, bytes]:
    """The replies of those who are there; whoever is not is dropped."""
    for party, message in requests.items():
        if party in here and not _send(here[party], msgspec.msgpack.encode((stage, message))):
            del here[party]
    found = {}
    for party in [each for each in requests if each in here]:
        try:
            if not here[party].poll(timeout):
                raise EOFError(f"no reply within {timeout:g} s")
            found[party] = here[party].recv_bytes()
        except (EOFError, OSError) as error:
            log.warning("party %d is left out of the sum in stage %r: %s", party, stage, error)
            del here[party]
    return found


def _send(connection: Connection, frame: bytes) -> bool:
    try:
        connection.send_bytes(frame)
    except (OSError, ValueError):  # closed at either end
        return False
    return True


class Ask(Protocol):
    """One stage: requests to parties, and the replies of those who are there."""

    def __call__(self, stage: str, requests: Mapping[int, bytes], /) -> Mapping[int, bytes]:
        """Send each party its request, and wait for the replies."""


def _open(terms: _Terms, parties: int, size: int, name: str, ask: Ask) -> NoisyValue:
    """All stages, and the total."""
    protocol, context = terms.sum, _context(-1, parties, terms, name, None)
    cohort = dict.fromkeys(range(parties), 1.0)
    following: Requests | Opened | Aborted
    session, following = protocol.begin(
        protocol.directory(), {UPDATE: cohort}, {UPDATE: size}, context
    )
    while isinstance(following, Requests):
        replies = ask(following.stage, following.messages[SUM])
        for party, message in sorted(replies.items()):
            try:
                session = protocol.add(session, party, {SUM: message})
            except DpfedError as error:
                log.warning("party %d is left out of the sum: %s", party, error)
        following = protocol.close(session)
    if isinstance(following, Aborted):
        raise RoundAborted(f"the sum was not opened: {following.reason}; begin another one")
    assert isinstance(following, Opened)  # noqa: S101
    total, release = following.totals[UPDATE], terms.release
    value: Vector = total.vector * release.step if release.std else total.vector
    return NoisyValue(value, release.std * math.sqrt(len(total.clients)))


def _checked_name(name: str) -> str:
    if not name:
        raise refuse("name", "a text that no other sum has", name, "use one such as 'poll-7'")
    return name


def _context(
    index: int, parties: int, terms: _Terms, name: str, signer: Signer | None
) -> SumContext:
    return SumContext(
        client=index,
        clients=parties,
        colluders=terms.colluders,
        round=0,
        attempt=0,
        run=f"dpfed.parts/{_checked_name(name)}/{terms.release.step!r}",
        signer=signer,
    )


def secure_sum(terms: Sequence[Term], *, exact_total: bool = False) -> NoisyValue:
    """A secure sum in one process: the protocol of several, to see and to test it.

    Args:
        terms: shares of a NoisySum, one of each party; or flat tensors of integers.
        exact_total: let plain integers be summed, though their total is exact.

    Returns:
        the total, with the known noise in it.

    >>> secure_sum([torch.tensor([1, 2]), torch.tensor([3, 4]), torch.tensor([5, 6])],
    ...            exact_total=True).value.tolist()
    [9, 12]
    """
    parties = len(terms)
    if not 3 <= parties <= MAX_PARTIES:
        raise refuse("terms", f"from 3 to {MAX_PARTIES}", parties, "two know each other's term")
    found = [_terms(each, parties, exact_total) for each in terms]
    alike = {(each.release.vector.numel(), each.release.step, each.sum) for each in found}
    if len(alike) != 1:
        raise refuse(
            "terms", "of one length, from doors of one kind", len(alike), "make them alike"
        )
    for each in terms:
        _take(each)
    members = [
        _Member(term, _context(index, parties, term, _NAME, simulated(parties)[index]))
        for index, term in enumerate(found)
    ]

    def ask(stage: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        return {party: members[party].reply(stage, message) for party, message in requests.items()}

    return _open(found[0], parties, found[0].release.vector.numel(), _NAME, ask)
