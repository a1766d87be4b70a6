# SPDX-License-Identifier: Apache-2.0
"""Downloads from a server on loopback that cuts, drips, lies and redirects; hostile archives."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import socket
import tarfile
import threading
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed.core.errors import DataError
from dpfed.data import download as module
from dpfed.data.download import (
    RemoteFile,
    check_address,
    download,
    gunzip,
    tar_members,
    verify,
    zip_members,
)
from tests.helpers.file_server import CONTENT, Handler, Server, serving

DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_PAUSE_S", 0.0)
    monkeypatch.setattr(module, "TIMEOUT_S", 5.0)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


def remote(server: Server, **changes: Any) -> RemoteFile:
    return RemoteFile(**({"url": server.url, "size": len(CONTENT), "digest": DIGEST} | changes))


def parts(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ------------------------------------------------------------------------------------- the transfer


def test_a_whole_file_arrives_with_progress(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = download(remote(server), tmp_path / "new", lambda *now: seen.append(now))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert parts(path.parent) == ["set.bin"]
    assert "Range" not in server.seen[0]


def test_a_cut_connection_is_continued(server: Server, tmp_path: Path) -> None:
    server.cut = [300_000, 300_000]
    assert download(remote(server), tmp_path).read_bytes() == CONTENT
    assert [each.get("Range") for each in server.seen] == [None, "bytes=300000-", "bytes=600000-"]
    assert server.seen[1]["If-Range"].startswith('"')


def test_a_later_command_continues(server: Server, tmp_path: Path) -> None:
    server.cut = [300_000] + [0] * 10
    with pytest.raises(DataError, match=r"300,000 of 1,048,576 bytes are here, and the same"):
        download(remote(server), tmp_path)
    assert parts(tmp_path) == ["set.bin.part", "set.bin.part.origin"]
    server.cut = []
    assert download(remote(server), tmp_path).read_bytes() == CONTENT
    assert server.seen[-1]["Range"] == "bytes=300000-"


def test_a_server_without_ranges_begins_again(server: Server, tmp_path: Path) -> None:
    server.ranges, server.cut = False, [300_000]
    assert download(remote(server), tmp_path).read_bytes() == CONTENT


def test_parts_of_two_addresses_are_not_joined(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set.bin.part").write_bytes(b"other" * 10)
    (tmp_path / "set.bin.part.origin").write_text('{"url": "https://elsewhere/set.bin"}')
    assert download(remote(server), tmp_path).read_bytes() == CONTENT
    assert "Range" not in server.seen[0]


def test_a_part_beyond_the_end_is_dropped(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set.bin.part").write_bytes(CONTENT + b"more")
    (tmp_path / "set.bin.part.origin").write_text(f'{{"url": "{server.url}"}}')
    file = remote(server, size=len(CONTENT), exact=False)
    assert download(file, tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("digest", [f"sha256:{'0' * 64}", f"md5:{'0' * 32}"])
def test_a_wrong_checksum_deletes_the_part(server: Server, tmp_path: Path, digest: str) -> None:
    kind, due = digest.split(":")
    got = hashlib.new(kind, CONTENT).hexdigest()
    with pytest.raises(DataError, match=f"has the {kind} {got}, but {due} is due"):
        download(remote(server, digest=digest), tmp_path)
    assert parts(tmp_path) == []


def test_a_file_that_lay_there_is_verified_too(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set.bin").write_bytes(CONTENT[:-1] + b"x")
    with pytest.raises(DataError, match="sha256"):
        download(remote(server), tmp_path)
    assert parts(tmp_path) == []


@pytest.mark.parametrize("size", [len(CONTENT) - 1, len(CONTENT) + 1])
def test_another_announced_size_is_refused(server: Server, tmp_path: Path, size: int) -> None:
    with pytest.raises(DataError, match=f"announces 1,048,576 bytes, but {size:,} are due"):
        download(remote(server, size=size), tmp_path)
    assert not (tmp_path / "set.bin").exists()


def unannounced(*blocks: bytes, pause: float = 0.0, times: int = 1) -> Callable[[Handler], bool]:
    def answer(handler: Handler) -> bool:
        handler.send_response(200)
        handler.end_headers()
        for _ in range(times):
            for block in blocks:
                try:
                    handler.wfile.write(block)
                except OSError:
                    return True
                time.sleep(pause)
        return True

    return answer


def test_a_body_without_end_is_not_kept(server: Server, tmp_path: Path) -> None:
    server.before = unannounced(CONTENT, times=10_000)
    with pytest.raises(DataError, match="sends more than 1,048,576 bytes"):
        download(remote(server), tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 1000


def test_an_unannounced_end_is_not_taken_for_the_whole(server: Server, tmp_path: Path) -> None:
    server.before = unannounced(CONTENT[:1000])
    with pytest.raises(DataError, match="after 1,000 bytes"):
        download(remote(server), tmp_path)
    with pytest.raises(DataError, match="how long the file"):
        download(remote(server, digest=None, exact=False), tmp_path / "other")
    assert not list(tmp_path.rglob("set.bin"))


def test_a_drip_is_ended(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PACE_WINDOW_S", 0.2)
    monkeypatch.setattr(module, "ATTEMPTS", 1)
    server.before = unannounced(b"x", pause=0.01, times=500)
    began = time.monotonic()
    with pytest.raises(DataError, match=r"it brought \d+ bytes in 0 s"):
        download(remote(server), tmp_path)
    assert time.monotonic() - began < 3


def test_a_drip_of_headers_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PACE_WINDOW_S", 0.2)
    monkeypatch.setattr(module, "ATTEMPTS", 1)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            connection, _ = listening.accept()
            with connection:
                try:
                    for byte in b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 200:
                        connection.sendall(bytes([byte]))
                        time.sleep(0.01)
                except OSError:
                    pass

        threading.Thread(target=drip, daemon=True).start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/set.bin"
        began = time.monotonic()
        with pytest.raises(DataError, match=r"it brought \d+ bytes"):
            download(RemoteFile(url, 10), tmp_path)
        assert time.monotonic() - began < 3


def redirect(to: str, sent: list[int] | None = None) -> Callable[[Handler], bool]:
    """Redirects with a long body, of which ``sent`` gets the blocks that somebody took."""

    def answer(handler: Handler) -> bool:
        if handler.path == "/end":
            return False
        handler.send_response(302)
        handler.send_header("Location", to)
        handler.end_headers()
        with suppress(OSError):
            for _ in range(100):
                handler.wfile.write(b"x" * 1_000_000)
                if sent is not None:
                    sent.append(1_000_000)
        return True

    return answer


@pytest.mark.parametrize(
    "to", ["file:///etc/passwd", "ftp://127.0.0.1/x", "http://192.0.2.1/x", "data:,x"]
)
def test_redirects_to_other_schemes_are_refused(server: Server, tmp_path: Path, to: str) -> None:
    server.before = redirect(to)
    with pytest.raises(DataError, match=r"must begin with https|the server answers 302"):
        download(remote(server), tmp_path)
    assert parts(tmp_path) == []


def test_a_redirect_on_this_machine_is_followed_unread(server: Server, tmp_path: Path) -> None:
    sent: list[int] = []
    server.before = redirect("/end", sent)
    assert download(remote(server), tmp_path).read_bytes() == CONTENT
    assert sum(sent) < 50_000_000  # what fits into the buffers of a socket


def test_redirects_in_a_circle_end(server: Server, tmp_path: Path) -> None:
    server.before = redirect("/again")
    with pytest.raises(DataError, match="the server answers 302"):
        download(remote(server), tmp_path)
    assert len(server.seen) < 10


def test_https_never_leads_to_http_here() -> None:
    request = module.urllib.request.Request("https://a.example/x")
    with pytest.raises(DataError, match="leads from https to"):
        module._Redirects().redirect_request(
            request, io.BytesIO(), 302, "", {}, "http://127.0.0.1/admin"
        )


@pytest.mark.parametrize(
    "url", ["http://example.org/x", "ftp://example.org/x", "file:///x", "https:///x", "x"]
)
def test_only_https_is_fetched(url: str) -> None:
    with pytest.raises(DataError, match="must begin with https"):
        check_address(url)


def test_a_missing_file_is_one_sentence(server: Server, tmp_path: Path) -> None:
    server.before = lambda handler: handler.send_error(404) is None
    with pytest.raises(DataError, match="the server answers 404"):
        download(remote(server), tmp_path)
    assert len(server.seen) == 1


def test_a_packed_answer_is_refused(server: Server, tmp_path: Path) -> None:
    def answer(handler: Handler) -> bool:
        handler.send_response(200)
        handler.send_header("Content-Encoding", "gzip")
        handler.end_headers()
        return True

    server.before = answer
    with pytest.raises(DataError, match="encoding 'gzip'"):
        download(remote(server), tmp_path)


def test_a_range_from_elsewhere_is_refused(server: Server, tmp_path: Path) -> None:
    def answer(handler: Handler) -> bool:
        if "Range" not in handler.headers:
            return False
        handler.send_response(206)
        handler.send_header("Content-Range", "bytes 5-10/11")
        handler.end_headers()
        return True

    server.before, server.cut = answer, [1000]
    with pytest.raises(DataError, match="from 1000 and sends 'bytes 5-10/11'"):
        download(remote(server), tmp_path)


def test_a_full_disk_leaves_nothing(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(answer: Any, out: Any, *_: Any) -> int:
        out.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "_pour", full)
    with pytest.raises(DataError, match="part was kept: make"):
        download(remote(server), tmp_path)
    assert parts(tmp_path) == []


def test_a_truncated_file_is_not_verified(tmp_path: Path) -> None:
    path = tmp_path / "set.bin"
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(DataError, match="has 1,048,575 bytes, but 1,048,576 are due"):
        verify(RemoteFile("https://x/set.bin", len(CONTENT), DIGEST), path)


# ------------------------------------------------------------------------------------- the archives


def tar(tmp_path: Path, *members: tarfile.TarInfo, content: bytes = b"", **options: Any) -> Path:
    path = tmp_path / "set.tar.gz"
    with tarfile.open(path, "w:gz", **options) as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(content[: member.size]))
    return path


def member(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.size, made.type = size, kind
    return made


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_of_a_tar_are_read(tmp_path: Path, format: int) -> None:
    folder = member("a", kind=tarfile.DIRTYPE)
    long = member("b" * 200, 700)
    names = [folder, member("a/one", 700), member("a/none"), long, member("a/two", 512)]
    path = tar(
        tmp_path,
        *(names if format != tarfile.USTAR_FORMAT else names[:3] + names[4:]),
        content=CONTENT,
        format=format,
    )
    found = tar_members(path, {"a/one": 700, "a/two": 512, "a/none": 0})
    assert found == {"a/one": CONTENT[:700], "a/two": CONTENT[:512], "a/none": b""}


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (member("../x"), "leaves the archive"),
        (member("/x"), "leaves the archive"),
        (member("a/../../x"), "leaves the archive"),
        (member("l", kind=tarfile.SYMTYPE), "a link or a device"),
        (member("l", kind=tarfile.LNKTYPE), "a link or a device"),
        (member("l", kind=tarfile.CHRTYPE), "a link or a device"),
        (member("l", kind=tarfile.GNUTYPE_SPARSE), "a link or a device"),
        (member("a", 701), "the member 'a' of 701 bytes"),
    ],
)
def test_a_hostile_member_ends_the_reading(tmp_path: Path, bad: tarfile.TarInfo, said: str) -> None:
    path = tar(tmp_path, bad, member("a", 700), content=CONTENT)
    with pytest.raises(DataError, match=said):
        tar_members(path, {"a": 700})


def bomb(tmp_path: Path, head: tarfile.TarInfo, size: int) -> Path:
    path = tmp_path / "bomb.tar.gz"
    with gzip.open(path, "wb", compresslevel=1) as out:
        out.write(head.tobuf(tarfile.GNU_FORMAT))
        for _ in range(size >> 20):
            out.write(bytes(1 << 20))
    return path


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (tarfile.XHDTYPE, "an extended header of 67,108,864 bytes"),
        (tarfile.GNUTYPE_LONGNAME, "an extended header of 67,108,864 bytes"),
        (tarfile.REGTYPE, "more bytes than are due"),
    ],
)
def test_a_bomb_is_not_unpacked(tmp_path: Path, kind: bytes, said: str) -> None:
    path = bomb(tmp_path, member("big", 64 << 20, kind), 64 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=said):
            tar_members(path, {"a": 700})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


def test_a_tar_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = tar(tmp_path, member("a", 700), content=CONTENT)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="cannot be unpacked"):
        tar_members(path, {"a": 700})
    path.write_bytes(gzip.compress(member("a", 700).tobuf() + b"x" * 100))
    with pytest.raises(DataError, match="an end inside of a member"):
        tar_members(path, {"a": 700})
    with pytest.raises(DataError, match="lacks 'b'"):
        tar_members(tar(tmp_path, member("a")), {"b": 700})


def zipped(tmp_path: Path, *names: str, content: bytes = b"abc") -> Path:
    path = tmp_path / "set.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, content)
    return path


def test_members_of_a_zip_are_read(tmp_path: Path) -> None:
    path = zipped(tmp_path, "a", "b/c")
    assert zip_members(path, {"b/c": 3}, "set.zip") == {"b/c": b"abc"}
    assert zip_members(path.read_bytes(), {"a": 3}, "set.zip") == {"a": b"abc"}


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "..\\x", "c:x"])
def test_a_zip_that_leaves_itself_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="leaves the archive"):
        zip_members(zipped(tmp_path, name, "a"), {"a": 3}, "set.zip")


def test_a_zip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = zipped(tmp_path, "a", content=bytes(64 << 20))
    with pytest.raises(DataError, match="'a' of 67,108,864 bytes"):
        zip_members(path, {"a": 1000}, "set.zip")
    raw = bytearray(path.read_bytes())  # a member that lies about its size
    for mark, place in ((b"PK\1\2", 24), (b"PK\3\4", 22)):
        at = raw.index(mark) + place
        raw[at : at + 4] = (1000).to_bytes(4, "little")
    with pytest.raises(DataError, match=r"cannot be unpacked|more than 1,000|no zip archive"):
        zip_members(bytes(raw), {"a": 1000}, "set.zip")


def test_links_in_a_zip_and_broken_ones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "set.zip"
    link = zipfile.ZipInfo("a")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(DataError, match="a link or encrypted"):
        zip_members(path, {"a": 100}, "set.zip")
    with pytest.raises(DataError, match="is no zip archive"):
        zip_members(b"PK\3\4 no", {"a": 100}, "set.zip")


def test_a_gzip_bomb_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(bytes(1 << 24)))
    with pytest.raises(DataError, match="unpacks to more than 1,000 bytes"):
        gunzip(path, 1000)


@given(st.binary(max_size=2000), st.integers(0, 3000), st.integers(0, 255))
def test_any_archive_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, junk: bytes, at: int, byte: int
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    with gzip.open(tar(folder, member("a", 700), content=CONTENT)) as packed:
        raw = bytearray(packed.read()[:3000])
    raw[at % len(raw)] = byte
    for content in (bytes(raw), junk):
        path = folder / "x"
        for data in (content, gzip.compress(content, 1)):
            path.write_bytes(data)
            for read in (tar_members, lambda p, w: zip_members(p, w, "x")):
                with suppress(DataError):
                    assert len(read(path, {"a": 700})["a"]) <= 700
