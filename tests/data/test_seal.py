# SPDX-License-Identifier: Apache-2.0
"""The seal itself: its program judged call by call, and what it refuses to begin with."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import sys

import pytest

from dpfed.core.errors import DataError
from dpfed.data import seal

ALLOW, KILL, EPERM, EBADF = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050009
X86_64, I386 = 0xC000003E, 0x40000003
NEWEST = 600
"""No system call has this number yet."""


def judged(number: int, *arguments: int, kind: int = X86_64) -> int:
    """What the kernel would do, by its rules for such a program (BPF)."""
    given = [each & (1 << 64) - 1 for each in (*arguments, 0, 0, 0, 0, 0, 0)[:6]]
    shown = struct.pack("<iIQ6Q", number, kind, 0, *given)
    program = list(struct.iter_unpack("HBBI", seal.seccomp_filter(3, 4)))
    word, at = 0, 0
    while True:
        code, yes, no, value = program[at]
        at += 1
        if code == 0x06:
            return int(value)
        if code == 0x20:
            (word,) = struct.unpack_from("<I", shown, value)
            continue
        met = {0x15: word == value, 0x35: word >= value, 0x45: bool(word & value)}[code]
        at += yes if met else no


def test_nine_calls_are_left_and_every_other_is_refused() -> None:
    assert len(seal.CALLS) == 9
    for number in range(NEWEST):
        expected = EPERM
        if number in seal.CALLS.values():
            anonymous = (0, 4096, 3, 0x22, -1, 0)
            arguments = {"read": (3,), "write": (4,), "mmap": anonymous, "madvise": (0, 0, 4)}
            name = next(name for name, each in seal.CALLS.items() if each == number)
            assert judged(number, *arguments.get(name, ())) == ALLOW, name
        else:
            assert judged(number) == expected, number


def test_calls_of_other_kinds_of_programs_end_the_process() -> None:
    for number in range(NEWEST):
        assert judged(number, kind=I386) == KILL
        assert judged(number | 0x40000000) == KILL
    assert judged(-1) == KILL


def test_one_descriptor_is_read_and_one_is_written() -> None:
    read, write = seal.CALLS["read"], seal.CALLS["write"]
    for descriptor in range(-3, 300):
        assert judged(read, descriptor) == (ALLOW if descriptor == 3 else EBADF)
        assert judged(write, descriptor) == (ALLOW if descriptor == 4 else EBADF)


def test_memory_is_its_own_and_never_machine_code() -> None:
    map_, protect, advise = (seal.CALLS[name] for name in ("mmap", "mprotect", "madvise"))
    for rights in range(16):
        runs = bool(rights & 4)
        assert judged(map_, 0, 4096, rights, 0x22, -1, 0) == (EPERM if runs else ALLOW)
        assert judged(protect, 0, 4096, rights) == (EPERM if runs else ALLOW)
    assert judged(map_, 0, 4096, 3, 0x02, 3, 0) == EPERM  # of a file
    for bit in (1 << each for each in range(32)):
        kept = {0x02, 0x10, 0x20, 0x4000, 0x20000}  # private, fixed, anonymous, noreserve, stack
        expected = ALLOW if bit in kept else EPERM
        assert judged(map_, 0, 4096, 3, 0x22 | bit, -1, 0) == expected, hex(bit)
    for advice in range(110):
        assert judged(advise, 0, 4096, advice) == (ALLOW if advice == 4 else EPERM)


def test_what_a_sealed_process_must_not_begin_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(DataError, match="Linux on aarch64"):
        seal.refuse_other_machines()


def code_of(body: str) -> str:
    return f"from dpfed.data import seal\n{body}\nprint('fit')"


def tried(body: str, *, rseq: bool = False) -> str:
    variables = os.environ | ({} if rseq else seal.NO_RSEQ)
    command = [sys.executable, "-c", code_of(body)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip().splitlines()[-1]


@pytest.fixture
def _right_machine() -> None:
    try:
        seal.refuse_other_machines()
    except DataError as error:
        pytest.skip(f"THE SEAL IS NOT TESTED HERE: {error}")


@pytest.mark.slow
@pytest.mark.usefixtures("_right_machine")
def test_a_process_that_shares_memory_is_not_forked_from() -> None:
    assert tried("seal.refuse_unfit_process()") == "fit"
    shared = "import mmap; held = mmap.mmap(-1, 4096)\nseal.refuse_unfit_process()"
    assert "must be its own" in tried(shared)
    later = (
        "import mmap, tempfile; file = tempfile.TemporaryFile(); file.write(bytes(4096))\n"
        "file.flush(); held = mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ)"
    )
    assert "must be its own" in tried(f"{later}\nseal.refuse_unfit_process()")
    runs = "import mmap; held = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE, 7)"
    assert "not written and run" in tried(f"{runs}\nseal.refuse_unfit_process()")


@pytest.mark.usefixtures("_right_machine")
def test_a_system_that_counts_what_all_have_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal, "_flags", lambda: iter(()))
    monkeypatch.setattr(seal.Path, "read_text", lambda *_, **__: "2\n")
    monkeypatch.setattr(seal, "_rseq_size", lambda: 0)
    with pytest.raises(DataError, match="overcommit_memory"):
        seal.refuse_unfit_process()


@pytest.mark.slow
@pytest.mark.usefixtures("_right_machine")
def test_a_process_that_the_kernel_tells_of_breaks_is_not_forked_from() -> None:
    found = tried("import ctypes; seal.refuse_unfit_process()", rseq=True)
    assert "rseq" in found or found == "fit"  # an older libc does not use it


@pytest.mark.slow
@pytest.mark.usefixtures("_right_machine")
def test_clocks_that_are_stopped() -> None:
    body = (
        "import time; seal.stop_clocks()\n"
        "assert time.time() == time.monotonic() == time.perf_counter() == 0\n"
        "assert not [each for each in seal.mappings() if each.name.startswith('[vvar')]\n"
        "assert [each.rights for each in seal.mappings() if each.name == '[vdso]'] == ['r-xp']"
    )
    assert tried(body) == "fit"


@pytest.mark.slow
@pytest.mark.usefixtures("_right_machine")
def test_a_process_seals_itself_and_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dpfed.data.seal"],
        env=os.environ | seal.NO_RSEQ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == seal.SEALED, done.stderr


def test_this_process_has_clocks_and_is_not_sealed() -> None:
    """What the tests above look for is there before."""
    with mmap.mmap(-1, 4096) as page:
        assert len(page) == 4096
    names = {each.name for each in seal.mappings()} if sys.platform == "linux" else {"[vdso]"}
    assert "[vdso]" in names
