# SPDX-License-Identifier: Apache-2.0
"""The seal: what a process gives up, for ever, before it reads code that nobody has reviewed.

    stop_clocks()                # once, in the process that the others are forked from
    seal(reading, writing)       # in each of them; there is no way back

Guarantee: from then on a process computes. It reads one descriptor and writes another; it has nine
system calls (``CALLS``) and any other is refused; it gets memory that is its own, holds no file and
runs no machine code that was not there before. It has no clock: the processor's counter faults, the
system's calls are refused, the kernel's page of clocks is unmapped, and the kernel does not tell it
when it was interrupted (rseq). Experimental: what is left to an attacker is in docs/shards.md.

| edge case                                            | what happens                              |
|------------------------------------------------------|-------------------------------------------|
| another system than Linux on x86-64, a kernel without| DataError, in one sentence, before a      |
| a part of it                                         | process has data                          |
| a system call of another kind of program (32-bit)    | the process is ended                      |
| any other system call than the nine                  | EPERM; a program that needs it fails      |
| memory of a file, shared memory, huge pages, code    | EPERM                                     |
| mremap, which libraries do without                   | EPERM: it would grow a library's code by  |
|                                                      | the rest of its file, and join pages      |
| memory that is shared and may be written, or is both | DataError: a process would find there     |
| written and run, from before the seal                | what an earlier one wrote                 |
| a system that counts what memory all processes asked | DataError: a refusal would tell of others |
| for                                                  |                                           |
| its own number, which rises with each process that   | not in its memory: ``fork`` writes none   |
| the machine starts, and so is a clock                |                                           |
| ``time.time()`` and its like                         | zero; ``time.sleep`` fails                |
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from dpfed.core.errors import DataError

with contextlib.suppress(ImportError):  # on other systems this is read, and never run
    import resource

CALLS = {
    "read": 0,
    "write": 1,
    "mmap": 9,
    "mprotect": 10,
    "munmap": 11,
    "brk": 12,
    "madvise": 28,
    "exit_group": 231,
    "getrandom": 318,
}
"""The system calls that are left, by their number on x86-64."""

NO_RSEQ = {"GLIBC_TUNABLES": "glibc.pthread.rseq=0"}
"""Of the environment of a process that is to be sealed: else the kernel tells it of each break."""

# ----------------------------------------------------------------------------------- the filter

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _EBADF = 1, 9
_X86_64, _X32 = 0xC000003E, 0x40000000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # places in what a filter is shown
_RUN = 4  # of a page's rights
_OWN_MEMORY = 0x02 | 0x10 | 0x20 | 0x4000 | 0x20000  # private, fixed, anonymous, noreserve, stack
_ANONYMOUS = 0x20
_DONTNEED = 4  # the advice of a library that gives memory back; any other shows the machine's state


def _instruction(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("HBBI", code, yes, no, value & 0xFFFFFFFF)


def _argument(place: int) -> bytes:
    """Load the lower half of an argument, which is all that the kernel looks at here."""
    return _instruction(_LOAD, _ARGUMENTS + 8 * place)


def _return(action: int) -> bytes:
    return _instruction(_RETURN, action)


def _only(place: int, value: int, error: int) -> bytes:
    """Allow a call whose argument is this one; any other has an error."""
    return (
        _argument(place)
        + _instruction(_EQUAL, value, no=1)
        + _return(_ALLOW)
        + _return(_ERRNO | error)
    )


def _unless(place: int, bits: int) -> bytes:
    """Refuse a call whose argument has one of these bits; else go on."""
    return _argument(place) + _instruction(_ANY_BIT, bits, no=1) + _return(_ERRNO | _EPERM)


def _with(place: int, bits: int) -> bytes:
    """Refuse a call whose argument has none of these bits; else go on."""
    return _argument(place) + _instruction(_ANY_BIT, bits, yes=1) + _return(_ERRNO | _EPERM)


def seccomp_filter(reading: int, writing: int) -> bytes:
    """The program by which the kernel judges each system call.

    Args:
        reading: the one descriptor that may be read.
        writing: the one that may be written.
    """
    conditions = {
        "read": _only(0, reading, _EBADF),
        "write": _only(0, writing, _EBADF),
        "mmap": _unless(2, _RUN) + _unless(3, ~_OWN_MEMORY) + _with(3, _ANONYMOUS),
        "mprotect": _unless(2, _RUN),
        "madvise": _only(2, _DONTNEED, _EPERM),
    }
    program = (
        _instruction(_LOAD, _ARCHITECTURE)
        + _instruction(_EQUAL, _X86_64, yes=1)
        + _return(_KILL)
        + _instruction(_LOAD, _NUMBER)
        + _instruction(_AT_LEAST, _X32, no=1)
        + _return(_KILL)
    )
    for name, number in CALLS.items():
        judged = conditions.get(name, b"") + _return(_ALLOW)
        program += _instruction(_EQUAL, number, no=len(judged) // 8) + judged
    return program + _return(_ERRNO | _EPERM)


# ------------------------------------------------------------------------------ what is given up

_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_TSC = 4, 22, 26
_PR_SET_NO_NEW_PRIVS, _PR_SET_SPECULATION = 38, 53
_TSC_FAULTS, _FILTER, _FORCE_DISABLE = 2, 2, 8
_STORE_BYPASS, _INDIRECT_BRANCH = 0, 1
_LIMITS = ("CORE", "NPROC", "MEMLOCK", "MSGQUEUE", "SIGPENDING", "FSIZE")


def seal(reading: int, writing: int) -> None:
    """Give up all that a computation does not need, in this process and for ever.

    Args:
        reading: the descriptor that may be read afterwards.
        writing: the one that may be written.
    """
    os.environ.clear()
    _stay_on_one_processor()
    for name in _LIMITS:
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (0, 0))
    _prctl(_PR_SET_DUMPABLE, 0)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    for kind in (_STORE_BYPASS, _INDIRECT_BRANCH):
        with contextlib.suppress(DataError):  # a processor that does not have it, or always does it
            _prctl(_PR_SET_SPECULATION, kind, _FORCE_DISABLE)
    _prctl(_PR_SET_TSC, _TSC_FAULTS)
    program = ctypes.create_string_buffer(seccomp_filter(reading, writing))
    head = struct.pack("HxxxxxxQ", (len(program) - 1) // 8, ctypes.addressof(program))
    held = ctypes.create_string_buffer(head)
    _prctl(_PR_SET_SECCOMP, _FILTER, ctypes.addressof(held))


def _stay_on_one_processor() -> None:
    """On which one it is would tell what others do."""
    allowed = os.sched_getaffinity(0)
    if len(allowed) == 1:
        return
    try:
        os.sched_setaffinity(0, {max(allowed)})
    except OSError as error:
        raise DataError(
            "a sealed process must stay on one processor, and this system does not let it; allow "
            "sched_setaffinity, or give the gate one processor (CPUAffinity= in its unit)"
        ) from error


def _prctl(option: int, *values: int) -> None:
    given = [ctypes.c_ulong(each) for each in (*values, 0, 0, 0, 0)[:4]]
    if ctypes.CDLL(None, use_errno=True).prctl(ctypes.c_int(option), *given):
        reason = os.strerror(ctypes.get_errno())
        raise DataError(
            f"this system must let a process give up its rights for a seal, and refuses prctl "
            f"{option} ({reason}); use Linux 5.9 or newer on x86-64, with seccomp"
        )


# --------------------------------------------------------------------------------- no number

_FORK, _WIPE_ON_FORK = 57, 18


def numberless_fork() -> Callable[[], bool]:
    """A fork that leaves the number of the new process in no memory, neither here nor there.

    Numbers rise with each process that the machine starts, and who connects to it can make it start
    some (sshd forks for each connection). So a number tells how long earlier shards took: glibc's
    fork writes it into the new process, and Python's returns it here, where the next one finds it.

    Returns:
        a function that forks, and says whether this is the new process. A fork that fails leaves
        no new process, and is not told.
    """
    page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    page.madvise(_WIPE_ON_FORK)
    page[0] = 1
    call = ctypes.PyDLL(None).syscall
    call.restype = None

    def fork() -> bool:
        call(_FORK)
        return page[0] == 0

    return fork


# ---------------------------------------------------------------------------------- no clock

_ZERO_AT_SECOND = bytes.fromhex("48c70600000000 48c7460800000000 31c0c3".replace(" ", ""))
_ZERO_AT_FIRST = bytes.fromhex("48c70700000000 48c7470800000000 31c0c3".replace(" ", ""))
_ZERO, _NO_SUCH_CALL = bytes.fromhex("31c0c3"), bytes.fromhex("48c7c0daffffffc3")
_INSTEAD = {
    "clock_gettime": _ZERO_AT_SECOND,
    "gettimeofday": _ZERO_AT_FIRST,
    "time": _ZERO,
    "clock_getres": _ZERO,
}
"""Machine code in the place of the kernel's functions: (clock, *time), (*time, *zone), ..."""
_READ_WRITE, _READ_RUN = 3, 5


class Mapping(NamedTuple):
    """A part of this process's memory."""

    start: int
    end: int
    rights: str
    name: str


def mappings() -> Iterator[Mapping]:
    """This process's memory, as the kernel lists it."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        yield _mapping(line)


def _mapping(line: str) -> Mapping:
    extent, rights, _, _, _, *name = line.split(maxsplit=5)
    start, end = (int(each, 16) for each in extent.split("-"))
    return Mapping(start, end, rights, name[0] if name else "")


def stop_clocks() -> None:
    """The kernel's functions for the time return zero here, and its pages of clocks are gone.

    Processes that are forked from this one have neither, too.
    """
    library = ctypes.CDLL(None, use_errno=True)
    for each in [found for found in mappings() if found.name == "[vdso]"]:
        image = ctypes.string_at(each.start, each.end - each.start)
        _protect(library, each, _READ_WRITE)
        for name, place, size in _functions(image):
            code = _INSTEAD.get(name.removeprefix("__vdso_"), _NO_SUCH_CALL)
            ctypes.memmove(each.start + place, code[: size or len(code)], min(len(code), size))
        _protect(library, each, _READ_RUN)
    for each in [found for found in mappings() if found.name.startswith("[vvar")]:
        extent = ctypes.c_size_t(each.end - each.start)
        if library.munmap(ctypes.c_void_p(each.start), extent):
            raise _sealed_pages()


def _protect(library: ctypes.CDLL, page: Mapping, rights: int) -> None:
    extent = ctypes.c_size_t(page.end - page.start)
    if library.mprotect(ctypes.c_void_p(page.start), extent, rights):
        raise _sealed_pages()


def _sealed_pages() -> DataError:
    return DataError(
        "a process to be sealed must be able to remove the kernel's clocks from its memory, and "
        "this kernel keeps them there (CONFIG_MSEAL_SYSTEM_MAPPINGS); boot one without that option"
    )


def _functions(image: bytes) -> Iterator[tuple[str, int, int]]:
    """Name, place and size of each function of a shared library in memory (ELF, 64 bits)."""
    (table,) = struct.unpack_from("<Q", image, 40)
    size, count = struct.unpack_from("<HH", image, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", image, table + at * size) for at in range(count)]
    for _, kind, _, _, start, length, link, *_ in sections:
        if kind != 11:  # the names that other programs look for
            continue
        for at in range(start, start + length, 24):
            word, info, _, _, value, extent = struct.unpack_from("<IBBHQQ", image, at)
            begin = sections[link][4] + word
            if info & 15 == 2:  # a function
                yield image[begin : image.index(b"\0", begin)].decode(), value, extent


# ------------------------------------------------------------------------------ what must be so


def refuse_other_machines() -> None:
    """Refuse a machine on which this seal is not known to hold; nothing is changed."""
    here = f"{platform.system()} on {platform.machine()}"
    if here != "Linux on x86_64" or sys.maxsize < 1 << 32:
        raise DataError(
            f"shipped code is sealed on Linux on x86_64 only, got {here}; run the gate there, or "
            f"review the function and list it in 'sharded'"
        )


def refuse_unfit_process() -> None:
    """Refuse to fork sealed processes from this one, if they would share more than they should."""
    rseq = _rseq_size()
    if rseq:
        raise DataError(
            f"a process to be sealed must run without rseq, got {rseq} bytes of it; start it with "
            f"{NO_RSEQ}"
        )
    for each, flags in _flags():
        shared = "sh" in flags and "mw" in flags  # it may be written, if not yet
        if shared or each.rights.startswith("rwx"):
            raise DataError(
                f"memory of a process to be sealed must be its own, and not written and run, got "
                f"{each.rights!r} of {each.name or 'no file'!r}; use other versions of its packages"
            )
    if Path("/proc/sys/vm/overcommit_memory").read_text(encoding="ascii").strip() == "2":
        raise DataError(
            "a system for sealed processes must not count the memory that all processes ask "
            "for, got vm.overcommit_memory = 2; set it to 0"
        )


def _rseq_size() -> int:
    try:
        return ctypes.c_uint.in_dll(ctypes.CDLL(None), "__rseq_size").value
    except ValueError:  # an older libc, which does not use it
        return 0


def _flags() -> Iterator[tuple[Mapping, set[str]]]:
    """This process's memory, with what the kernel says of each part (VmFlags)."""
    mapping = None
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        word, *words = line.split()
        if word == "VmFlags:" and mapping is not None:
            yield mapping, set(words)
        elif not word.endswith(":"):
            mapping = _mapping(line)


SEALED = "sealed"
"""What a process says that has sealed itself: ``python -m dpfed.data.seal``."""


def _try() -> None:
    """Seal this process, find that it is, and say so."""
    refuse_other_machines()
    refuse_unfit_process()
    stop_clocks()
    seal(0, 1)
    try:
        os.open("/", os.O_RDONLY)
    except PermissionError:
        os.write(1, SEALED.encode())
    os._exit(0)


if __name__ == "__main__":
    _try()
