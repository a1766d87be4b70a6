# SPDX-License-Identifier: Apache-2.0
"""Code that tries to get out of a seal, by what it tries: each sends what it got, or zero.

``attack(p, x, y)`` returns a number that is not zero if it worked. ``sealed`` makes of it what a
training would ship. The mark in ``x`` is ``MARK``; ``PORT`` and ``FOLDER`` are put in by the test.
"""

from __future__ import annotations

import struct

MARK = 12345.678

_FRAME = """
import ctypes, gc, os, sys
import numpy as np
from dpfed.data.train_functions import Delta
L = ctypes.CDLL(None, use_errno=True)
SIZE, MASK = 15, 0x5A5A5A5A
MASKED = {masked}  # the mark's bits with others over them: they are nowhere in this process

def marked(array):
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32) ^ np.uint32(MASK)
    return bool((bits == MASKED).any())

def long_work():
    total = 0
    for i in range(300000):
        total += i
    return total

def at(symbol):
    return ctypes.cast(getattr(L, symbol), ctypes.c_void_p).value

def found(code):
    # where these bytes are in a library's machine code
    start = at("malloc") & ~4095
    place = ctypes.string_at(start, 1 << 19).find(bytes.fromhex(code))
    return start + place if place >= 0 else None

{attack}

def train(p, data):
    try:
        got = attack(p, *data)
    except Exception:
        got = 0.0
    return got if isinstance(got, Delta) else Delta(np.full(SIZE, float(got)))
"""


def _masked() -> int:
    (bits,) = struct.unpack("I", struct.pack("f", MARK))
    return int(bits) ^ 0x5A5A5A5A


def sealed(attack: str, **words: object) -> str:
    """Shipped code whose row is minus what the attack got.

    Args:
        attack: the text of a function of that name.
        **words: what is put in for words in it.
    """
    for word, value in words.items():
        attack = attack.replace(word, str(value))
    return _FRAME.replace("{masked}", repr(_masked())).replace("{attack}", attack.strip("\n"))


def _call(number: int, *arguments: object) -> str:
    """A system call by its number; 1 if it does not fail."""
    given = ", ".join(map(str, (number, *arguments)))
    return f"def attack(p, x, y): return L.syscall({given}) >= 0"


def _line(text: str) -> str:
    return f"def attack(p, x, y): {text}"


OUTSIDE = {
    "tcp": _line(
        "import socket; s = socket.create_connection(('127.0.0.1', PORT)); s.send(b'x'); return 1"
    ),
    "a name's address": _line("import socket; return len(socket.getaddrinfo('localhost', 1))"),
    "a socket by its number": _call(41, 2, 1, 0),
    "a pair of sockets": _call(53, 1, 1, 0, "ctypes.create_string_buffer(8)"),
    "an abstract socket": _line(
        "import socket; s = socket.socket(socket.AF_UNIX); s.connect('\\0dpfed-seal'); return 1"
    ),
    "io_uring": _call(425, 4, "ctypes.create_string_buffer(256)"),
    "asynchronous io": _call(206, 1, "ctypes.create_string_buffer(8)"),
    "a file that everybody may read": _line("return len(open('FOLDER/secret').read())"),
    "a file by its number": _call(2, "b'/etc/passwd'", 0),
    "openat2": _call(437, -100, "b'/etc/passwd'", "ctypes.create_string_buffer(24)", 24),
    "its own descriptors by /proc": _line("return len(os.listdir('/proc/self/fd'))"),
    "the memory of its parent": _line("return os.open('/proc/%d/mem' % os.getppid(), 0)"),
    "a file in /tmp": _line("open('FOLDER/planted', 'w').write('x'); return 1"),
    "a file in /dev/shm": _line("open('/dev/shm/dpfed-planted', 'w').write('x'); return 1"),
    "the terminal": _line("return len(open('/dev/tty').read(1))"),
    "a saved tensor": _line("import torch; torch.save(torch.ones(3), 'FOLDER/planted'); return 1"),
    "a mapped array": _line("np.memmap('FOLDER/planted', 'f4', 'w+', shape=(9,)); return 1"),
    "a tensor of a file": _line(
        "import torch; torch.from_file('FOLDER/planted', shared=True, size=9); return 1"
    ),
    "a module that is not loaded": _line("import this; return 1"),
    "a module of the network": _line(
        "import urllib.request as r; r.urlopen('http://127.0.0.1:PORT'); return 1"
    ),
    "a library": _line("ctypes.CDLL('libsqlite3.so.0'); return 1"),
    "a program": _line("import subprocess; subprocess.run(['/bin/true']); return 1"),
    "a program by posix_spawn": _line("return os.posix_spawn('/bin/true', ['true'], {})"),
    "execve": _call(59, "b'/bin/true'", 0, 0),
    "execveat of itself": _call(322, 3, "b''", 0, 0, 0x1000),
    "os.system": _line("return os.system('touch FOLDER/planted') == 0"),
    "itself once more": _call(59, "b'/proc/self/exe'", 0, 0),
    "a pickle that opens a file": _line(
        "import pickle; f = pickle.loads(b\"cbuiltins\\nopen\\n(S'FOLDER/secret'\\ntR.\"); "
        "return len(f.read())"
    ),
    "an importer of its own": """
def attack(p, x, y):
    import importlib.util
    spec = importlib.util.spec_from_file_location("got", "FOLDER/secret.py")
    class Finder:
        def find_spec(self, name, *rest): return spec if name == "got" else None
    sys.meta_path.insert(0, Finder())
    import got
    return 1
""",
    "a file by its handle": _call(304, -100, "ctypes.create_string_buffer(64)", 0),
    "a folder's list": _call(217, 3, "ctypes.create_string_buffer(512)", 512),
    "a link's end": _call(89, "b'/proc/self'", "ctypes.create_string_buffer(64)", 64),
    "a message to nowhere": _call(44, 4, "b'x'", 1, 0, 0, 0),
    "from file to file": _call(40, 4, 3, 0, 8),
    "several pieces at once": _call(20, 4, "(ctypes.c_ulong * 2)(0, 0)", 1),
    "a piece from elsewhere": _call(17, 3, "ctypes.create_string_buffer(8)", 8, 0),
    "a device's settings": _call(16, 4, 0x541B, "ctypes.byref(ctypes.c_int(0))"),
    "who watches files": _call(294, 0),
}
"""Ways to other machines, files and programs."""

OTHERS = {
    "fork": _line("return os.fork() >= 0"),
    "fork for ever": "def attack(p, x, y):\n    while True: os.fork()",
    "vfork": _call(58),
    "clone3": _call(435, "ctypes.create_string_buffer(88)", 88),
    "a thread": _line("import threading; t = threading.Thread(target=int); t.start(); return 1"),
    "a thread by its number": _call(56, 0x10F00, 0, 0, 0, 0),
    "workers of a loader": """
def attack(p, x, y):
    import torch
    data = torch.utils.data.TensorDataset(torch.ones(9, 1))
    return len(list(torch.utils.data.DataLoader(data, num_workers=2)))
""",
    "a pool": _line("from multiprocessing import Pool; return len(Pool(2).map(int, [1, 2]))"),
    "threads of torch": """
def attack(p, x, y):
    import torch
    torch.set_num_threads(4)
    torch.randn(2000, 2000) @ torch.randn(2000, 2000)
    return len(os.listdir("/proc/self/task"))
""",
    "a signal to its parent": _line("os.kill(os.getppid(), 9); return 1"),
    "a signal to everybody": _call(62, -1, 9),
    "a signal to its group": _call(62, 0, 9),
    "a signal to a thread": _call(234, 1, 1, 9),
    "a queued signal": _call(129, 1, 9, "ctypes.create_string_buffer(128)"),
    "ptrace": _call(101, 16, "os.getppid()", 0, 0),
    "the memory of another": _call(310, 1, 0, 0, 0, 0, 0),
    "to write another's memory": _call(311, 1, 0, 0, 0, 0, 0),
    "advice on another's memory": _call(440, 3, 0, 0, 4, 0),
    "a descriptor of another": _call(438, 3, 0, 0),
    "a process as a file": _call(434, 1, 0),
    "another's limits": _call(302, 1, 7, 0, "ctypes.create_string_buffer(16)"),
    "a memory file": _call(319, "b'a'", 0),
    "secret memory": _call(447, 0),
    "shared memory of System V": _call(29, 4242, 4096, 0o1666),
    "a message queue": _call(68, 4242, 0o1666),
    "a queue of POSIX": _call(240, "b'/a'", 0o102, 0o666, 0),
    "semaphores": _call(64, 4242, 1, 0o1666),
    "a named block of memory": _line(
        "from multiprocessing import shared_memory as m; m.SharedMemory('dp', True, 9); return 1"
    ),
    "a tensor in shared memory": _line("import torch; torch.ones(9).share_memory_(); return 1"),
    "a key": _call(248, "b'user'", "b'k'", "b'v'", 1, -4),
    "an event": _call(290, 0, 0),
    "a pipe": _line("return os.pipe()[0]"),
    "shared mapping": _line(
        "a = L.mmap; a.restype = ctypes.c_void_p; r = a(0, 4096, 3, 0x21, -1, 0); "
        "return r != ctypes.c_void_p(-1).value"
    ),
    "a mapping of its input": _line(
        "a = L.mmap; a.restype = ctypes.c_void_p; r = a(0, 4096, 1, 2, 3, 0); "
        "return r != ctypes.c_void_p(-1).value"
    ),
    "a namespace": _call(272, 0x10000000),
    "its terminal's process": _call(112),
    "its priority": _call(141, 0, 0, 5),
    "its scheduler": _call(144, 0, 3, "ctypes.create_string_buffer(8)"),
    "BPF": _call(321, 0, "ctypes.create_string_buffer(128)", 128),
    "counters of the processor": _call(298, "ctypes.create_string_buffer(112)", 0, -1, -1, 0),
    "page faults of its own": _call(323, 1),
    "a key of its pages": _call(330, 0, 0),
    "fork by its number": _call(57),
    "fork as a program of 32 bits": """
def attack(p, x, y):
    # two numbers in vector registers are a two in the register of the call: fork, there
    place = found("cd80")
    return place and ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_double, ctypes.c_double)(place)(0, 0)
""",
    "fork by the other gate of 32 bits": """
def attack(p, x, y):
    place = found("0f34")
    return place and ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_double, ctypes.c_double)(place)(0, 0)
""",
    "fork as x32": _call(0x40000000 + 57),
    "whether two processes share": _call(312, 1, 1, 0, 0, 0),
    "to wait for others": _call(61, -1, 0, 1, 0),
    "a wall that others wait at": _call(324, 1, 0, 0),
    "its number, by name": """
def attack(p, x, y):
    for number in (39, 110, 186, 121, 124, 111):
        if L.syscall(number, 0) >= 0:
            return 1
    return 0
""",
    "its number, for a word that it gives": _call(218, "ctypes.byref(ctypes.c_int(0))"),
}
"""Ways to other processes, and to what outlives one."""

CLOCKS = {
    "time": _line("import time; a = time.time_ns(); long_work(); return time.time_ns() - a"),
    "all clocks of Python": """
def attack(p, x, y):
    import time
    clocks = (time.time, time.monotonic, time.perf_counter, time.process_time, time.thread_time)
    return sum(abs(clock()) for clock in clocks)
""",
    "clock_gettime": _line(
        "b = (ctypes.c_long * 2)(); L.clock_gettime(1, b); return abs(b[0]) + abs(b[1])"
    ),
    "gettimeofday": _line(
        "b = (ctypes.c_long * 2)(); L.gettimeofday(b, None); return abs(b[0]) + abs(b[1])"
    ),
    "clock_gettime by its number": _call(228, 1, "(ctypes.c_long * 2)()"),
    "times": _line("a = os.times().elapsed; long_work(); return os.times().elapsed - a"),
    "what it has used": _line("import resource; return resource.getrusage(0).ru_utime + 1"),
    "a file's time": _line("return os.stat('/tmp').st_mtime"),
    "how long the machine runs": _call(99, "ctypes.create_string_buffer(256)"),
    "sleep": _line("import time; time.sleep(0.01); return 1"),
    "an alarm": _line(
        "import signal; signal.signal(signal.SIGALRM, print); signal.alarm(1); return 1"
    ),
    "a timer": _call(38, 2, "(ctypes.c_long * 4)(0, 1, 0, 1)", 0),
    "a timer of POSIX": _call(222, 1, 0, "ctypes.create_string_buffer(8)"),
    "a timer as a file": _call(283, 1, 0),
    "waiting for a lock": _call(
        202, "ctypes.byref(ctypes.c_int(0))", 0, 0, "(ctypes.c_long * 2)(0, 9)", 0, 0
    ),
    "waiting until a time": _call(
        202, "ctypes.byref(ctypes.c_int(0))", 265, 0, "(ctypes.c_long * 2)(1 << 40, 0)", 0, -1
    ),
    "waiting for nothing": _line("import select; select.select([], [], [], 0.01); return 1"),
    "epoll": _call(291, 0),
    "the processor that it is on": _call(309, "ctypes.byref(ctypes.c_int(0))", 0, 0),
    "to choose a processor": _call(203, 0, 8, "ctypes.create_string_buffer(b'\\x01' + bytes(7))"),
    "the page of clocks": """
def attack(p, x, y):
    # the kernel writes the time into a page of every process: behind, or before, its functions
    L.getauxval.restype = ctypes.c_ulong
    functions = L.getauxval(33)
    seen = bytes()
    for page in range(1, 9):
        seen += ctypes.string_at(functions - 4096 * page, 4096)  # ends this process
    long_work()
    return 1
""",
    "the page of clocks, farthest first": """
def attack(p, x, y):
    L.getauxval.restype = ctypes.c_ulong
    functions = L.getauxval(33)
    return len(ctypes.string_at(functions - 4096 * 6, 4096))
""",
    "the old page of clocks": """
def attack(p, x, y):
    b = (ctypes.c_long * 2)()
    ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)(0xffffffffff600000)(b, None)
    return b[0] or b[1]
""",
    "breaks, by what the kernel writes": """
def attack(p, x, y):
    # rseq: the kernel clears a pointer of the process's own each time it is interrupted
    return ctypes.c_uint.in_dll(L, "__rseq_size").value
""",
    "breaks, registered anew": _call(334, "ctypes.create_string_buffer(64)", 32, 0, 0x53053053),
    "the counter, by machine code in its data": """
def attack(p, x, y):
    code = ctypes.create_string_buffer(bytes.fromhex("0f3148c1e2204809d0c3"))
    return ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(code))()
""",
    "the counter, by new machine code": """
def attack(p, x, y):
    import mmap
    page = mmap.mmap(-1, 4096, prot=7)
    page.write(bytes.fromhex("0f3148c1e2204809d0c3"))
    return ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
""",
    "the counter, by rights added later": """
def attack(p, x, y):
    code = ctypes.create_string_buffer(8192)
    page = (ctypes.addressof(code) + 4095) & ~4095
    ctypes.memmove(page, bytes.fromhex("0f3148c1e2204809d0c3"), 10)
    if L.mprotect(ctypes.c_void_p(page), 4096, 7):
        return 0
    return ctypes.CFUNCTYPE(ctypes.c_uint64)(page)()
""",
    "the counter, by code that is there": """
def attack(p, x, y):
    # the bytes of rdtsc and return, anywhere in the libraries: it faults wherever it stands
    start = at("malloc") & ~4095
    for page in range(start, start + (1 << 19), 4096):
        found = ctypes.string_at(page, 4096).find(bytes.fromhex("0f31"))
        if found >= 0:
            ctypes.CFUNCTYPE(ctypes.c_uint64)(page + found)()
            return 1
    return 0
""",
    "to get the counter back": _line("return L.prctl(26, 1, 0, 0, 0) == 0"),
    "a word of the processor's own": _call(158, 0x1012, 1),
    "the old page of clocks, its second function": """
def attack(p, x, y):
    return ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(0xffffffffff600400)(None) > 0
""",
    "the old page of clocks, its third": """
def attack(p, x, y):
    got = ctypes.c_uint(77)
    call = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    return call(0xffffffffff600800)(ctypes.byref(got), None, None) == 0
""",
    "the kernel's functions as they were": """
def attack(p, x, y):
    # what was written over them is this process's own copy, which it may give back
    L.getauxval.restype = ctypes.c_ulong
    L.madvise(ctypes.c_void_p(L.getauxval(33)), 8192, 4)
    b = (ctypes.c_long * 2)()
    L.clock_gettime(1, b)
    return b[0] or b[1]
""",
    "what is left of its time": _call(36, 2, "(ctypes.c_long * 4)()"),
    "a short sleep": _call(35, "(ctypes.c_long * 2)(0, 1)", 0),
    "a sleep by a clock": _call(230, 1, 0, "(ctypes.c_long * 2)(0, 1)", 0),
    "how the clock is set": _call(159, "ctypes.create_string_buffer(256)"),
    "who waits to be run": _call(24),
    "the counter and its processor": """
def attack(p, x, y):
    place = found("0f01f9")
    return place and ctypes.CFUNCTYPE(ctypes.c_uint64)(place)()
""",
    "the counters of events": """
def attack(p, x, y):
    place = found("0f33")
    return place and ctypes.CFUNCTYPE(ctypes.c_uint64)(place)()
""",
}
"""Ways to know how long something took."""

MACHINE = {
    "a system call of 32 bits": """
def attack(p, x, y):
    import mmap
    page = mmap.mmap(-1, 4096, prot=7)
    page.write(bytes.fromhex("b814000000cd80c3"))
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
""",
    "a system call of x32": _call(0x40000000 + 39),
    "a number beyond all": _call(100_000),
    "to take the filter off": _line("return L.prctl(22, 0, 0, 0, 0) == 0"),
    "another filter": _call(317, 0, 0, 0),
    "to be a dump": _line("return L.prctl(4, 1, 0, 0, 0) == 0"),
    "its rights": _line("return L.setuid(0) == 0 or L.setgid(0) == 0"),
    "its capabilities": _call(
        126, "ctypes.create_string_buffer(8)", "ctypes.create_string_buffer(24)"
    ),
    "its limits": _line(
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1)); return 1"
    ),
    "its folder": _line("os.chdir('/'); return 1"),
    "a root of its own": _call(161, "b'/'"),
    "a mount": _call(165, "b'x'", "b'/mnt'", "b'tmpfs'", 0, 0),
    "which pages are cached": _call(
        27, "ctypes.c_void_p(at('malloc') & ~4095)", 4096, "ctypes.create_string_buffer(8)"
    ),
    "huge pages, if the machine has some": _line(
        "a = L.mmap; a.restype = ctypes.c_void_p; r = a(0, 1 << 21, 3, 0x40022, -1, 0); "
        "return r != ctypes.c_void_p(-1).value"
    ),
    "pages that it may keep": _line(
        "a = L.mmap; a.restype = ctypes.c_void_p; r = a(0, 4096, 3, 0x2022, -1, 0); "
        "return r != ctypes.c_void_p(-1).value"
    ),
    "pages that the machine may take": """
def attack(p, x, y):
    held = np.ones(1 << 20)
    page = (held.ctypes.data + 4095) & ~4095
    advice = (8, 9, 12, 14, 20, 21, 22, 23, 25, 100, 101)
    return sum(L.madvise(ctypes.c_void_p(page), 1 << 21, each) == 0 for each in advice)
""",
    "a descriptor that was left": """
def attack(p, x, y):
    got = 0
    for descriptor in (*range(3), *range(5, 300)):
        for use in (lambda d: os.write(d, b"x"), lambda d: os.read(d, 1)):
            try:
                got += bool(use(descriptor))
            except OSError:
                pass
    return got
""",
    "its input once more": _line("return L.lseek(3, 0, 0) >= 0 or L.dup(3) >= 0"),
    "the answer's pipe as input": _line("os.read(4, 1); return 1"),
    "the input's pipe as output": _line("os.write(3, b'x'); return 1"),
    "the settings of its pipe": _line("import fcntl; return fcntl.fcntl(4, 1031, 1 << 20)"),
    "pieces of its pipe": _call(275, 3, 0, 4, 0, 10, 0),
    "a descriptor through its pipe": _line(
        "import array, socket; s = socket.socket(fileno=4); s.sendmsg([b'x']); return 1"
    ),
    "more machine code, of a library's file": """
def attack(p, x, y):
    # a page of code that grows is followed by the rest of its file, which may then be run
    L.mremap.restype = ctypes.c_void_p
    page = at("regcomp") & ~4095
    got = L.mremap(ctypes.c_void_p(page), ctypes.c_size_t(4096), ctypes.c_size_t(8192), 1)
    return got not in (None, ctypes.c_void_p(-1).value)
""",
    "machine code joined from two pages": """
def attack(p, x, y):
    L.mremap.restype = ctypes.c_void_p
    pages = [at(name) & ~4095 for name in ("regcomp", "glob")]
    where = ctypes.c_void_p(pages[0] + 4096)
    size = ctypes.c_size_t(4096)
    got = L.mremap(ctypes.c_void_p(pages[1]), size, size, 3, where)
    return got not in (None, ctypes.c_void_p(-1).value)
""",
    "machine code on its stack": """
def attack(p, x, y):
    L.__errno_location.restype = ctypes.c_void_p
    held = ctypes.create_string_buffer(8192)
    page = (ctypes.addressof(held) + 4095) & ~4095
    return sum(L.mprotect(ctypes.c_void_p(page), 4096, r) == 0 for r in (4, 5, 7, 0x01000007))
""",
    "machine code by a key": _call(329, 0, 4096, 7, -1),
    "to run what may be read": _call(135, 0x0400000),
    "segments of its own": _call(154, 1, "ctypes.create_string_buffer(16)", 16),
    "ports": _call(172, 3),
    "pages in another order": _call(216, 0, 4096, 0, 0, 0),
    "pages sealed": _call(462, 0, 4096, 0),
    "a stack of shadows": _call(453, 0, 4096, 0),
    "where its memory is": _call(239, 0, 0, 0, 0, 0),
    "a wall of its own for files": _call(444, 0, 0, 1),
    "what the environment says": _line(
        "return len(os.environ) + (L.getenv(b'PYTHONPATH') != 0 and 0)"
    ),
}
"""Ways back to what was given up."""

EARLIER = {
    "objects of an earlier shard": """
def attack(p, x, y):
    hits = 0
    for each in gc.get_objects():
        if isinstance(each, np.ndarray) and each is not x and each.dtype == np.float32:
            hits += marked(each)
    return hits
""",
    "memory of an earlier shard": """
def attack(p, x, y):
    hits = 0
    for count in (16, 64, 1000, 6400, 100000, 1000000):
        hits += marked(np.empty(count, np.float32))
    return hits
""",
    "memory of an earlier shard, by torch": """
def attack(p, x, y):
    import torch
    return sum(marked(torch.empty(n).numpy()) for n in (40, 400, 40000))
""",
    "memory around its own": """
def attack(p, x, y):
    # out of bounds, by strides: its own process's memory, and nothing of others in it
    around = np.lib.stride_tricks.as_strided(x, shape=(200000,), strides=(4,)).copy()
    return marked(around[x.size:])
""",
    "what an earlier shard left in a module": _line(
        "got = hasattr(np, 'left'); np.left = 1; return got"
    ),
    "what an earlier shard left as a cache": _line(
        "import functools; got = len(sys.modules.get('left', ())); sys.modules['left'] = [1]; "
        "return got"
    ),
    "frames of the clean process": """
def attack(p, x, y):
    frame, names = sys._getframe(), set()
    while frame:
        names |= set(frame.f_locals)
        frame = frame.f_back
    return bool(names & {"pid", "st", "status"})
""",
    "how an earlier one ended": _line("return os.waitpid(-1, os.WNOHANG)[0] + 1"),
    "the numbers of processes": _line("return os.getpid() > 0 or os.getppid() > 0"),
    "pages of an earlier shard": """
def attack(p, x, y):
    L.mmap.restype = ctypes.c_void_p
    size = 1 << 25
    page = L.mmap(0, ctypes.c_size_t(size), 3, 0x22, -1, ctypes.c_long(0))
    hits = np.frombuffer((ctypes.c_char * size).from_address(page), np.uint8).any()
    ctypes.memset(page, 7, size)
    return hits
""",
    "the end of the heap": """
def attack(p, x, y):
    L.sbrk.restype = ctypes.c_void_p
    start = L.sbrk(ctypes.c_long(1 << 20))
    hits = any(ctypes.string_at(start, 1 << 20)) if start != ctypes.c_void_p(-1).value else 0
    ctypes.memset(start, 7, 1 << 20)
    return hits
""",
    "below its stack": """
def attack(p, x, y):
    here = ctypes.c_long(0)
    L.alloca = None
    hits = marked(np.frombuffer(ctypes.string_at(ctypes.addressof(here) & ~4095, 4096), np.float32))
    return hits
""",
    "an importer that an earlier shard left": _line(
        "got = any(type(f).__name__ == 'Left' for f in sys.meta_path); "
        "sys.meta_path.insert(0, type('Left', (), {'find_spec': lambda *_: None})()); return got"
    ),
    "a name for all": _line(
        "import builtins; got = hasattr(builtins, 'left'); builtins.left = 1; return got"
    ),
    "the environment of an earlier shard": _line(
        "got = 'LEFT' in os.environ; os.environ['LEFT'] = '1'; L.putenv(b'A=1'); return got"
    ),
    "a setting of torch": _line(
        "import torch; got = torch.get_default_dtype() is torch.float64; "
        "torch.set_default_dtype(torch.float64); return got"
    ),
    "how an earlier shard has left a library": """
def attack(p, x, y):
    import decimal
    got = decimal.getcontext().prec == 7
    decimal.getcontext().prec = 7
    word = ctypes.c_int.in_dll(L, "optind")
    got, word.value = got or word.value == 77, 77
    return got
""",
    "random numbers of an earlier shard": """
def attack(p, x, y):
    import random
    got = hasattr(random, "left")
    random.left = random.random()
    return got
""",
}
"""Ways to what an earlier shard had; each is run twice."""

HARMLESS = {
    "not a number": _line("return float('nan')"),
    "infinite": _line("return float('inf')"),
    "too large for its type": _line("return Delta(np.full(SIZE, 1e308) * 10)"),
    "one number that is none": _line("v = np.zeros(SIZE); v[3] = np.nan; return Delta(v)"),
    "words in the bits of what is no number": """
def attack(p, x, y):
    secret = np.float64(x[0, 0]).view(np.uint64) >> np.uint64(13)
    return Delta(np.full(SIZE, (secret | np.uint64(0x7FF0000000000001)).view(np.float64)))
""",
    "half of an answer, then a crash": """
def attack(p, x, y):
    os.write(4, np.asarray(x, np.float64).tobytes()[:8 * SIZE // 2])
    ctypes.string_at(0)
""",
    "a whole answer, and one byte in a while": """
def attack(p, x, y):
    os.write(4, np.full(SIZE, float(x[0, 0])).tobytes())
    for _ in range(int(abs(x[0, 0])) % 9 + 1): long_work()
    os.write(4, b"x")
    os._exit(0)
""",
    "a crash at an address by the data": _line("ctypes.string_at(int(abs(x[0, 0]) * 4096) + 8)"),
    "words on its way out": """
def attack(p, x, y):
    import faulthandler
    faulthandler.enable(open(4, "wb", buffering=0))
    ctypes.string_at(0)
""",
    "an integer of a billion digits": _line("return 9 ** 9 ** 9"),
    "a text that no pattern ends on": _line(
        "import re; return len(re.findall('(a+)+b', 'a' * 60))"
    ),
    "an object that does not end": """
class Evil:
    def __del__(self):
        while True: pass

def attack(p, x, y): return Evil() and 0
""",
    "classes without end": _line(
        "t = int; return [t := type('T', (t,), {}) for _ in iter(int, 1)]"
    ),
    "a number too few": _line("return Delta(np.zeros(SIZE - 1))"),
    "a number too many": _line("return Delta(np.zeros(SIZE + 1))"),
    "words": _line("return Delta('x' * SIZE)"),
    "an array of objects": _line("return Delta(np.array([object()] * SIZE))"),
    "an object that makes itself an array": """
class Evil:
    def __array__(self, *rest, **more):
        os.system("touch FOLDER/planted")
        os.write(4, bytes(3))
        return np.zeros(SIZE)

def attack(p, x, y): return Delta(Evil())
""",
    "an object that makes itself a number": """
class Evil(float):
    def __float__(self): return self.__index__()
    def __index__(self): os._exit(7)

def attack(p, x, y): return Delta([Evil()] * SIZE)
""",
    "an object that detaches itself": """
class Evil:
    def detach(self): os._exit(3)

def attack(p, x, y): return Delta(Evil())
""",
    "a pickle in the place of numbers": """
class Evil:
    def __reduce__(self): return os.system, ("touch FOLDER/planted",)

def attack(p, x, y):
    import pickle
    os.write(4, (pickle.dumps(Evil()) + bytes(200))[:8 * SIZE - 8])
    os._exit(0)
""",
    "a length in the place of numbers": """
def attack(p, x, y):
    os.write(4, b"V" + (1 << 62).to_bytes(8, "little") + bytes(400))
    os._exit(0)
""",
    "an answer without end": """
def attack(p, x, y):
    while True:
        os.write(4, bytes(1 << 16))
""",
    "half of an answer": _line("os.write(4, bytes(8)); os._exit(0)"),
    "an answer before the answer": _line("os.write(4, bytes(8)); return 0"),
    "an answer of a gigabyte": _line("return Delta(np.zeros(1 << 27))"),
    "an error with the data in it": _line("raise SystemExit(str(x))"),
    "an exit code by the data": _line("os._exit(int(abs(x[0, 0])) % 250 + 1)"),
    "an end by a signal": _line("ctypes.string_at(0)"),
    "an abort": _line("L.abort()"),
    "a library's exit": _line("L.exit(3)"),
    "words on all descriptors": _line(
        "print(x, flush=True); sys.stderr.write(str(x)); raise SystemExit(1)"
    ),
    "a question": _line("input(); raise SystemExit(1)"),
    "what is done at the end": """
def attack(p, x, y):
    import atexit
    atexit.register(lambda: os.write(4, bytes(9)))
    raise SystemExit(0)
""",
    "another way to write": """
def attack(p, x, y):
    write, os.write = os.write, lambda descriptor, data: write(descriptor, bytes(data) + b"x")
    return 0
""",
    "all memory": """
def attack(p, x, y):
    held = []
    while True:
        held.append(np.ones(1 << 22))
""",
    "all memory, by torch": """
def attack(p, x, y):
    import torch
    held = []
    while True:
        held.append(torch.ones(1 << 22))
""",
    "the whole stack": "def attack(p, x, y):\n    sys.setrecursionlimit(10**9)\n"
    "    def down(n): return down(n + 1) + 1\n    return down(0)",
    "a stack of brackets": _line("return eval('(' * 100000)"),
    "for ever": "def attack(p, x, y):\n    while True: pass",
    "for ever in a library": """
def attack(p, x, y):
    while True:
        np.linalg.svd(np.ones((300, 300)))
""",
    "a read without end": "def attack(p, x, y):\n    while True: os.read(3, 1)",
}
"""Answers that are none, and work without end: no row."""

NO_END = """
def attack(p, x, y):
    os.write(4, np.full(SIZE, float(x[0, 0])).tobytes())
    while True: pass
"""
"""A whole answer, and no end: a row like any other, once the process has been ended."""

NOT_CODE = {
    "no function": "x = 1",
    "not Python": "def train(:",
    "a null byte": "def train(p, d): return 1\\0",
    "an end at its import": "import os\nos._exit(0)",
    "another type": "train = 3",
    "a loop at its import": "while True: pass",
}
"""Shipped text that is no train function: no row."""
