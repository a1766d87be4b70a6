# SPDX-License-Identifier: Apache-2.0
"""Files from public servers: resumed, bounded, and checked before anything reads them.

The server, whoever sits between, and the archive are not trusted:

======================= ========================================================================
what may be hostile     what holds it
======================= ========================================================================
an address, a redirect  https only; http only on this machine, and only if asked for there
a body without end      no more bytes than declared are kept; a redirect's body is not read
a slow server           fewer than MIN_BYTES_PER_S for PACE_WINDOW_S end it, in headers, too
an early end            a ``.part`` file, which is continued (HTTP Range), never read as whole
another file            size and checksum of the whole file, before it gets its name
a tar, a zip            nothing is written to disk: named members are read into memory, each up
                        to a bound; links, devices, sparse files, paths that leave the archive
                        and large extended headers end the reading
======================= ========================================================================
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import http.client
import io
import ipaddress
import json
import ssl
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast
from urllib.parse import urlsplit

from dpfed.core.errors import DataError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

TIMEOUT_S = 30.0
"""Seconds without a byte that end a connection."""
PACE_WINDOW_S, MIN_BYTES_PER_S = 30.0, 1024
"""A connection slower than MIN_BYTES_PER_S over PACE_WINDOW_S seconds is closed."""
ATTEMPTS, RETRY_PAUSE_S = 5, 1.0
"""Attempts to continue a broken download, and the first pause in seconds; it doubles."""
MAX_REDIRECTS = 5
READ_BYTES = 1 << 16
MAX_HEADER_BYTES = 1 << 16
"""Bytes of an extended header of a tar archive, which are skipped and never kept."""
TAR_SLACK_BYTES = 1 << 24
"""Bytes that a tar archive may have in addition to the members that are asked for."""
MAX_MEMBERS = 10_000
"""Members of a zip archive: its list of them is read as a whole."""

Progress = Callable[[int, int], None]
"""Called with the bytes that have arrived and the bytes expected."""


@dataclass(frozen=True)
class RemoteFile:
    """A file: its address, and how to check that it is the right one."""

    url: str
    size: int
    """Bytes; if not ``exact``, an estimate: at most twice as many are read."""
    digest: str | None = None
    """``sha256:...`` or ``md5:...``, as somebody publishes it; None if nobody does."""
    exact: bool = True

    @property
    def name(self) -> str:
        """The last part of its address."""
        return urlsplit(self.url).path.rpartition("/")[2].replace("%20", " ")

    @property
    def limit(self) -> int:
        """The most bytes that are ever read of it."""
        return self.size if self.exact else 2 * self.size


class _TransferBroken(Exception):
    """A connection that ended early, or a server that is busy: what has arrived is kept."""


class _RangeRefused(_TransferBroken):
    """The server has no bytes after the part that is here."""


# ------------------------------------------------------------------------------------- the transfer


def download(file: RemoteFile, folder: Path, progress: Progress | None = None) -> Path:
    """The verified file in ``folder``; an interrupted download resumes where it stopped.

    Args:
        file: what to fetch. Its name in the folder is the last part of its address.
        folder: made if it is not there; ``NAME.part`` is in it while a download is incomplete.
        progress: called with the bytes so far and in all.

    Raises:
        DataError: the address is refused, the server sent too much, too little, too slowly or
            something else than the declared file, or the disk is full. Only an incomplete
            download leaves a ``.part`` file.
    """
    check_address(file.url)
    target = folder / file.name
    part = target.with_name(f"{target.name}.part")
    with writing(folder):
        if not target.exists():
            _complete(file, part, progress or (lambda _done, _total: None))
            _verify_or_drop(file, part)
            part.replace(target)
            _origin(part).unlink(missing_ok=True)
    _verify_or_drop(file, target)  # also a file that was there before
    return target


def verify(file: RemoteFile, path: Path) -> None:
    """Refuse a file whose size or checksum is not the declared one."""
    size = path.stat().st_size
    if size > file.limit or (file.exact and size != file.size):
        raise DataError(
            f"{path.name} has {size:,} bytes, but {'' if file.exact else 'about '}{file.size:,} "
            "are due; it is not used: fetch it again, or from elsewhere by --from"
        )
    if file.digest is None:
        return
    kind, _, due = file.digest.partition(":")
    with path.open("rb") as stream:
        got = hashlib.file_digest(stream, lambda: hashlib.new(kind, usedforsecurity=False))
    if got.hexdigest() != due:
        raise DataError(
            f"{path.name} has the {kind} {got.hexdigest()}, but {due} is due; it is not used: "
            "fetch it again, or from elsewhere by --from"
        )


def _verify_or_drop(file: RemoteFile, path: Path) -> None:
    try:
        verify(file, path)
    except DataError:
        path.unlink(missing_ok=True)
        _origin(path).unlink(missing_ok=True)
        raise


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """One sentence for an error of the disk; if it is full, the partial file is deleted."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            for pattern in ("*.part", "*.part.origin"):
                for each in folder.glob(pattern):
                    each.unlink(missing_ok=True)
            raise DataError(
                f"the disk of {folder} is full; no part was kept: make room, or give another "
                "folder by --to"
            ) from error
        raise DataError(
            f"{error.filename or folder} cannot be used ({error.strerror}); give another folder "
            "by --to"
        ) from error


def _complete(file: RemoteFile, part: Path, progress: Progress) -> None:
    """Download until ``part`` is complete; only attempts that bring almost nothing count."""
    failed = 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            return _transfer(file, part, progress)
        except _TransferBroken as error:
            done = part.stat().st_size if part.exists() else 0
            failed = 1 if done - before > file.size // 100 else failed + 1
            if failed >= ATTEMPTS:
                raise DataError(
                    f"{file.url} could not be read to its end: {error}; {done:,} of {file.size:,} "
                    "bytes are here, and the same command continues there"
                ) from error
        time.sleep(RETRY_PAUSE_S * 2 ** (failed - 1))


def _transfer(file: RemoteFile, part: Path, progress: Progress) -> None:
    """One connection, up to the end of the file."""
    start = _resumable(file, part)
    if file.exact and start == file.size:
        return
    try:
        opened = _open(file.url, start, _origin_of(part).get("etag", ""))
    except _RangeRefused:  # the file is shorter than our part, which is of another version
        part.unlink(missing_ok=True)
        raise
    with opened as answer:
        start = _start_of(answer, start)
        total = _length(answer)
        if total is not None:
            total += start
        _check_length(file, total)
        etag = answer.headers.get("ETag", "")
        strong = etag if etag.startswith('"') and len(etag) < 200 else ""
        _origin(part).write_text(json.dumps({"url": file.url, "etag": strong}), encoding="utf-8")
        with part.open("ab" if start else "wb") as out:
            done = _pour(answer, out, start, file, total, progress)
    if total is None and not (file.exact or file.digest):
        part.unlink()
        raise DataError(
            f"{file.url}: the server does not say how long the file is, so that a part could be "
            "taken for the whole; download it by other means and give it by --from"
        )
    if done < (file.size if file.exact else total or 0):
        raise _TransferBroken(f"the connection ended after {done:,} bytes")


def _pour(
    answer: Any, out: BinaryIO, done: int, file: RemoteFile, total: int | None, progress: Progress
) -> int:
    while True:
        try:
            block = answer.read1(READ_BYTES)
        except http.client.IncompleteRead as error:
            raise _TransferBroken("the connection ended early") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _TransferBroken(_words(error)) from error
        if not block:
            return done
        done += len(block)
        if done > file.limit:
            out.truncate(0)
            raise DataError(
                f"{file.url} sends more than {file.limit:,} bytes; nothing of it was kept: fetch "
                "it from elsewhere by --from"
            )
        out.write(block)
        progress(done, total or file.size)


def _resumable(file: RemoteFile, part: Path) -> int:
    """How many bytes of this address are here; a part of another address is dropped."""
    if not part.exists():
        return 0
    if _origin_of(part).get("url") != file.url or part.stat().st_size > file.limit:
        part.unlink()
        return 0
    return part.stat().st_size


def _origin(part: Path) -> Path:
    """Where a part came from, so that two versions of a file are not joined."""
    return part.with_name(f"{part.name}.origin")


def _origin_of(part: Path) -> dict[str, str]:
    try:
        said = json.loads(_origin(part).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def _start_of(answer: Any, asked: int) -> int:
    """Where the answer begins: at 0 unless the server honours the range."""
    if answer.headers.get("Content-Encoding", "identity") != "identity":
        raise DataError(
            f"{answer.url} answers in the encoding {answer.headers['Content-Encoding'][:40]!r}, "
            "which was not asked for; fetch the file from elsewhere by --from"
        )
    if answer.status != 206:
        return 0
    said = answer.headers.get("Content-Range", "")
    if not said.startswith(f"bytes {asked}-"):
        raise DataError(
            f"{answer.url} was asked for bytes from {asked} and sends {said[:60]!r}; fetch the "
            "file from elsewhere by --from"
        )
    return asked


def _length(answer: Any) -> int | None:
    said = answer.headers.get("Content-Length", "")
    return int(said) if said.isascii() and said.isdigit() and len(said) < 16 else None


def _check_length(file: RemoteFile, total: int | None) -> None:
    if total is None or (total == file.size if file.exact else total <= file.limit):
        return
    raise DataError(
        f"{file.url} announces {total:,} bytes, but {'' if file.exact else 'about '}{file.size:,} "
        "are due; fetch it from elsewhere by --from"
    )


# ----------------------------------------------------------------------------------- the connection


def check_address(url: str) -> None:
    """Refuse an address that is neither https nor http on this machine."""
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return
    if parts.scheme == "http" and _is_loopback(parts.hostname or ""):
        return
    raise DataError(
        f"{url!r} is not fetched: an address must begin with https:// (http:// only on this "
        "machine); download it by other means and give the file by --from"
    )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Redirects(urllib.request.HTTPRedirectHandler):
    """A redirect keeps to https; a public server never leads to a service on this machine."""

    max_redirections = MAX_REDIRECTS
    max_repeats = 2

    def redirect_request(
        self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: str
    ) -> Any:
        fp.close()  # else urllib would read the whole body, however long it is
        check_address(newurl)
        if urlsplit(req.full_url).scheme == "https" and urlsplit(newurl).scheme != "https":
            raise DataError(
                f"{req.full_url} leads from https to {newurl!r}, which is not followed; fetch the "
                "file from elsewhere by --from"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _PacedReader(io.RawIOBase):
    """A socket's stream that raises when the server sends too slowly."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._since, self._count = time.monotonic(), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        count = cast("int | None", self._raw.readinto(buffer))
        self._count += count or 0
        spent = time.monotonic() - self._since
        if spent > PACE_WINDOW_S:
            if self._count < MIN_BYTES_PER_S * spent:
                raise TimeoutError(f"it brought {self._count:,} bytes in {spent:.0f} s")
            self._since, self._count = time.monotonic(), 0
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _PacedResponse(http.client.HTTPResponse):
    def __init__(self, sock: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp.close()
        self.fp = io.BufferedReader(_PacedReader(sock.makefile("rb", buffering=0)))


class _Http(http.client.HTTPConnection):
    response_class = _PacedResponse


class _Https(http.client.HTTPSConnection):
    response_class = _PacedResponse


class _HttpHandler(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Http, req)


class _HttpsHandler(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Https, req, context=ssl.create_default_context())


def _open(url: str, start: int, etag: str) -> Any:
    """The answer with the file's bytes from ``start`` on, or with all of them."""
    from dpfed._version import VERSION

    headers = {"User-Agent": f"dpfed/{VERSION}", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if etag:
            headers["If-Range"] = etag
    request = urllib.request.Request(url, headers=headers)  # noqa: S310  by check_address
    try:
        return _opener(urlsplit(url).scheme == "http").open(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        error.close()
        raise _refusal(url, error.code) from error
    except (OSError, http.client.HTTPException) as error:
        raise _TransferBroken(_words(error)) from error


def _opener(local: bool) -> urllib.request.OpenerDirector:
    """An opener without urllib's handlers for file:, ftp: and data:."""
    opener = urllib.request.OpenerDirector()
    opener.add_handler(urllib.request.ProxyHandler({} if local else None))
    for handler in (_HttpHandler, _HttpsHandler, _Redirects):
        opener.add_handler(handler())
    opener.add_handler(urllib.request.HTTPDefaultErrorHandler())
    opener.add_handler(urllib.request.HTTPErrorProcessor())
    return opener


def _refusal(url: str, code: int) -> Exception:
    if code == 416:
        return _RangeRefused("the server has no such range")
    if code in (408, 429) or code >= 500:
        return _TransferBroken(f"the server answers {code}")
    return DataError(f"{url}: the server answers {code}; fetch the file from elsewhere by --from")


def _words(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    return " ".join(str(reason).split())[:200] or type(error).__name__


# ------------------------------------------------------------------------------------- the archives


def read_bounded(stream: Any, limit: int, name: str, *, more: bool = False) -> bytes:
    """All bytes of a stream, of which ``limit`` is the most, however well they were packed.

    Args:
        stream: what is unpacked.
        limit: the most bytes that are made.
        name: what a message calls it.
        more: leave what lies beyond where it is; otherwise it is refused.
    """
    try:
        content = bytes(stream.read(limit if more else limit + 1))
    except (EOFError, OSError, ValueError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(
            f"{name} cannot be unpacked ({_words(error)}); fetch it again, or by --from"
        ) from error
    if len(content) > limit:
        raise DataError(
            f"{name} unpacks to more than {limit:,} bytes; it is not used: fetch it from elsewhere "
            "by --from"
        )
    return content


def gunzip(path: Path, limit: int) -> bytes:
    """The content of a gzip file, of at most ``limit`` bytes."""
    with gzip.open(path) as stream:
        return read_bounded(stream, limit, path.name)


def tar_members(path: Path, wanted: Mapping[str, int]) -> dict[str, bytes]:
    """Members of a gzipped tar by their whole names, each with the most bytes it may have.

    Written here since ``tarfile`` reads an extended header of any length into memory. Extended
    headers are skipped: a member whose name needs one is not found.
    """
    found: dict[str, bytes] = {}
    with gzip.open(path) as packed:
        stream = _BoundedReader(packed, sum(wanted.values()) + TAR_SLACK_BYTES, path.name)
        while True:
            block = stream.take(512)
            if not block.strip(b"\0"):  # the end of the archive, or its zero block
                break
            name, kind, size = _tar_header(block, path.name)
            _check_name(path.name, name)
            if kind in "xgLK":
                if size > MAX_HEADER_BYTES:
                    raise _hostile(path.name, f"an extended header of {size:,} bytes")
            elif kind not in "05":
                raise _hostile(path.name, f"the member {name!r}, a link or a device")
            keep = kind == "0" and name in wanted and name not in found
            if keep and size > wanted[name]:
                raise _hostile(path.name, f"the member {name!r} of {size:,} bytes")
            if keep:
                found[name] = stream.take(size)
            stream.skip(-size % 512 if keep else size + -size % 512)
    return _all_of(found, wanted, path.name)


class _BoundedReader:
    """A stream of at most ``limit`` bytes, which must not end inside of a member."""

    def __init__(self, stream: Any, limit: int, name: str) -> None:
        self._stream, self._left, self._name = stream, limit, name

    def take(self, size: int) -> bytes:
        content = read_bounded(self._stream, min(size, self._left), self._name, more=True)
        self._left -= len(content)
        if content and len(content) < size:
            raise _hostile(self._name, "an end inside of a member, or more bytes than are due")
        return content

    def skip(self, size: int) -> None:
        while size > 0:
            size -= len(self.take(min(size, READ_BYTES))) or size


def _tar_header(block: bytes, archive: str) -> tuple[str, str, int]:
    """A member's name, kind and size; any error in the header becomes one refusal."""
    try:
        blank = block[:148] + b" " * 8 + block[156:]
        if len(block) != 512 or sum(blank) != int(block[148:156].strip(b"\0 "), 8):
            raise ValueError("bad sum")
        size = int(block[124:136].strip(b"\0 ") or b"0", 8)  # octal, below 8 GiB
        name = block[:100].split(b"\0")[0].decode("utf-8")
        if block[257:263] == b"ustar\0" and (prefix := block[345:500].split(b"\0")[0]):
            name = f"{prefix.decode('utf-8')}/{name}"
    except ValueError as error:
        raise _hostile(archive, "a header that is none") from error
    if size < 0:
        raise _hostile(archive, "a header that is none")
    return name, chr(block[156]).replace("\0", "0"), size


def zip_members(source: Path | bytes, wanted: Mapping[str, int], name: str) -> dict[str, bytes]:
    """Members of a zip by their whole names, each with the most bytes it may have.

    Args:
        source: a file, or its content.
        wanted: the names, and bounds in bytes.
        name: what messages call the archive.
    """
    found: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(
            io.BytesIO(source) if isinstance(source, bytes) else source
        ) as archive:
            members = archive.infolist()
            if len(members) > MAX_MEMBERS:
                raise _hostile(name, f"{len(members):,} members")
            for each in members:
                _check_name(name, each.filename)
                if each.filename not in wanted or each.filename in found:
                    continue
                if (each.external_attr >> 28) == 0xA or each.flag_bits & 1:
                    raise _hostile(name, f"the member {each.filename!r}, a link or encrypted")
                if each.file_size > wanted[each.filename]:
                    raise _hostile(name, f"{each.filename!r} of {each.file_size:,} bytes")
                with archive.open(each) as stream:
                    found[each.filename] = read_bounded(stream, wanted[each.filename], name)
    except (OSError, ValueError, NotImplementedError, RuntimeError, zipfile.BadZipFile) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{name} is no zip archive ({_words(error)}); fetch it again, or by --from"
        ) from error
    return _all_of(found, wanted, name)


def _check_name(archive: str, name: str) -> None:
    if name.startswith(("/", "\\")) or ":" in name or ".." in name.replace("\\", "/").split("/"):
        raise _hostile(archive, f"the member {name!r}, which leaves the archive")


def _all_of(found: dict[str, bytes], wanted: Mapping[str, int], name: str) -> dict[str, bytes]:
    missing = [each for each in wanted if each not in found]
    if missing:
        raise DataError(f"{name} lacks {missing[0]!r}; fetch it again, or from elsewhere by --from")
    return found


def _hostile(archive: str, what: str) -> DataError:
    return DataError(f"{archive} has {what}; it is not used: fetch it from elsewhere by --from")
