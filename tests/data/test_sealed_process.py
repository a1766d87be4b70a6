# SPDX-License-Identifier: Apache-2.0
"""Shipped code in a sealed process: it trains as elsewhere, and nothing that it tries gets out."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfed.core.errors import DataError
from dpfed.data import seal
from dpfed.data.sealed_child import packed, unpacked
from dpfed.data.sealed_process import SealedProcess, sealed_process
from dpfed.data.shard_process import Answer, Limits, _children
from tests.helpers import hostile_code as hostile

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("sealed")]
LIMITS = Limits(seconds=0.4, memory=1 << 28)
LONG = Limits(seconds=5.0, memory=1 << 29)
SIZE = 15
PLAIN = """
import numpy as np

def train(parameters, data):
    x, y = data
    scores = x @ parameters["weight"].T + parameters["bias"]
    wrong = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    wrong[np.arange(len(y)), y] -= 1
    weight = parameters["weight"] - 0.5 * wrong.T @ x / len(y)
    return [weight, parameters["bias"] - 0.5 * wrong.mean(axis=0)]
"""
TORCH = """
import dataclasses
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

@dataclasses.dataclass
class Settings:
    rate: float = 0.1

def train(parameters, data):
    began = time.time()
    net = nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2), nn.Flatten())
    net = nn.Linear(4, 3)
    net.load_state_dict({name: torch.from_numpy(each) for name, each in parameters.items()})
    optimizer = torch.optim.Adam(net.parameters(), lr=Settings().rate)
    set_ = TensorDataset(*(torch.as_tensor(each) for each in data))
    for x, y in DataLoader(set_, batch_size=4, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    assert time.time() == began
    return {name: each.numpy() for name, each in net.state_dict().items()}
"""


def job(mark: bool = False) -> dict[str, Any]:
    random = np.random.default_rng(0)
    x = random.normal(size=(10, 4)).astype(np.float32)
    if mark:
        x[:] = hostile.MARK
    parameters = {"weight": np.zeros((3, 4), np.float32), "bias": np.zeros(3, np.float32)}
    return {"parameters": parameters, "data": (x, random.integers(0, 3, 10)), "seed": 1}


class Shared:
    """One clean process for the code of all tests: it knows of none."""

    def __init__(self) -> None:
        self.process = SealedProcess(PLAIN)
        self.process.start()

    def run(self, code: str, limits: Limits = LIMITS, **changes: Any) -> Answer:
        self.process._code = code
        return self.process.run({**job(), **changes}, SIZE, limits)


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    try:
        seal.refuse_other_machines()
    except DataError as error:
        pytest.skip(f"THE SEAL IS NOT TESTED HERE: {error}")
    made = Shared()  # on a machine of the right kind nothing is skipped: what fails here, fails
    yield made
    made.process.close()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.001)
        yield server.getsockname()[1]
        with pytest.raises(TimeoutError):  # nobody has ever come
            server.accept()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("outside")
    made.chmod(0o777)  # sealed code could write here, if it could open a file
    for each in made.parents[:2]:
        each.chmod(0o711)
    (made / "secret").write_text("seventeen letters")
    return made


def attempted(shared: Shared, attack: str, port: int, folder: Path, **more: Any) -> Answer:
    code = hostile.sealed(attack, PORT=port, FOLDER=folder)
    process = shared.process._process
    assert process is not None
    before = process.pid
    answer = shared.run(code, **more)
    assert not (folder / "planted").exists()
    assert not Path("/dev/shm/dpfed-planted").exists()
    assert not _children(before)
    assert shared.process._process is process, "the clean process has ended"
    assert shared.process.running
    return answer


def cases(found: dict[str, str]) -> Any:
    return pytest.mark.parametrize("attack", found.values(), ids=found.keys())


@cases({**hostile.OUTSIDE, **hostile.OTHERS, **hostile.CLOCKS, **hostile.MACHINE})
def test_what_gets_nowhere(shared: Shared, attack: str, port: int, folder: Path) -> None:
    answer = attempted(shared, attack, port, folder, limits=LONG)
    assert answer.row is None or not answer.row.any(), answer.row
    assert "by the clock" not in answer.said  # it had its time, and got nothing
    honest = shared.run(PLAIN, LONG)
    assert honest.row is not None
    assert honest.row.any()


@cases(hostile.EARLIER)
def test_what_an_earlier_shard_had(shared: Shared, attack: str, port: int, folder: Path) -> None:
    for marked in (True, False, False):
        answer = attempted(shared, attack, port, folder, limits=LONG, data=job(marked)["data"])
        if not marked:
            assert answer.row is None or not answer.row.any(), answer.row


SCAN = """
import ctypes
import numpy as np
from dpfed.data.train_functions import Delta

FOUND, PART = np.zeros(SIZE), np.empty(1 << 18, np.int32)

def train(parameters, data):
    count = 0
    for start, end in RANGES:
        for at in range(start, end, 1 << 20):
            size = min(end - at, 1 << 20) // 4
            ctypes.memmove(PART.ctypes.data, at, 4 * size)
            places = np.flatnonzero((PART[:size] > FIRST) & (PART[:size] < FIRST + 2000))
            for place in places if len(places) < 1000 else ():  # not a library's table
                FOUND[2 * count : 2 * count + 2] = at + 4 * place, PART[place]
                count += 1
    for _ in range(10_000_000):  # while the test reads the number elsewhere
        pass
    return Delta(FOUND)
"""


@pytest.mark.long
def test_no_memory_has_the_number_of_a_process(shared: Shared) -> None:
    """It rises with each process that the machine starts: so it is a clock across shards."""
    clean = shared.process._process
    assert clean is not None
    ranges = [
        tuple(int(each, 16) for each in line.split()[0].split("-"))
        for line in Path(f"/proc/{clean.pid}/maps").read_text().splitlines()
        if line.split()[1].startswith("rw")
    ]
    size = 2_000_000
    code = SCAN.replace("RANGES", repr(ranges)).replace("FIRST", str(clean.pid))
    shared.process._code = code.replace("SIZE", str(size))
    given = {**job(), "parameters": {"w": np.zeros(size)}}
    runs: list[tuple[set[int], dict[int, int]]] = []
    for _ in range(3):
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(shared.process.run, given, size, Limits(30.0, 1 << 30))
            numbers: set[int] = set()
            while not done.done():
                numbers |= _children(clean.pid)
                time.sleep(0.01)
        row = done.result().row
        assert row is not None, done.result()
        places = -row.reshape(-1, 2)
        runs.append((numbers, {int(at): int(found) for at, found in places if at}))
    seen = [{at for at, found in words.items() if found in numbers} for numbers, words in runs]
    assert not seen[0] & seen[1]  # what is at one place each time is the number, not a chance
    assert not seen[1] & seen[2]
    last = [
        {at for at, found in words.items() if found in numbers}
        for (numbers, _), (_, words) in pairwise(runs)
    ]
    assert not last[0] & last[1]  # nor is that of the shard before it


@cases(hostile.HARMLESS)
def test_an_answer_that_is_none(shared: Shared, attack: str, port: int, folder: Path) -> None:
    answer = attempted(shared, attack, port, folder)
    assert answer.row is None or not answer.row.any(), answer.row
    assert "123" not in answer.said  # of the data, nothing is said
    assert shared.run(PLAIN, LONG).row is not None


def test_a_whole_answer_and_no_end(shared: Shared, port: int, folder: Path) -> None:
    """How it ended nobody reads: it is a row, if its processor time was over before the clock's."""
    answer = attempted(shared, hostile.NO_END, port, folder)
    given = float(job()["data"][0][0, 0])
    assert answer.row is None or answer.row.tolist() == [given] * SIZE
    assert shared.run(PLAIN, LONG).row is not None


@pytest.mark.parametrize("code", hostile.NOT_CODE.values(), ids=hostile.NOT_CODE.keys())
def test_a_text_that_is_no_train_function(shared: Shared, code: str) -> None:
    assert shared.run(code).row is None


def test_the_numbers_of_what_is_tried() -> None:
    found = [hostile.OUTSIDE, hostile.OTHERS, hostile.CLOCKS, hostile.MACHINE, hostile.EARLIER]
    assert sum(map(len, [*found, hostile.HARMLESS, hostile.NOT_CODE])) >= 56 + 20


@pytest.mark.parametrize("code", [PLAIN, TORCH], ids=["numpy", "torch"])
def test_code_that_means_well_has_the_bits_of_any_other_process(shared: Shared, code: str) -> None:
    import sys
    import types

    from dpfed.data.train_functions import call

    first, second = (shared.run(code, LONG).row for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.tobytes() == second.tobytes()
    if code is PLAIN:
        module = types.ModuleType("here")
        exec(code, module.__dict__)
        assert call(module.train, job()) == first.tobytes()
    assert "shipped" not in sys.modules


def test_scikit_learn_where_it_is_installed(shared: Shared) -> None:
    pytest.importorskip("sklearn")
    code = (
        "from sklearn.linear_model import SGDClassifier\n"
        "from dpfed.data.train_functions import sklearn_train\n"
        "train = sklearn_train(lambda: SGDClassifier(loss='log_loss'), classes=3)\n"
    )
    answer = shared.run(code, LONG)
    assert answer.row is not None
    assert answer.row.any()


def test_the_clean_process_has_a_clock_and_the_attacks_work_without_a_seal(tmp_path: Path) -> None:
    """What the tests above would see if a wall were missing: each wall has an attack of its own."""
    secret = tmp_path / "secret"
    secret.write_text("x")
    for name in ("a file that everybody may read", "fork", "a pipe", "time", "a memory file"):
        found = {**hostile.OUTSIDE, **hostile.OTHERS, **hostile.CLOCKS}[name]
        space: dict[str, Any] = {}
        exec(hostile.sealed(found, FOLDER=tmp_path), space)
        x, y = job()["data"]
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            got = space["attack"]({}, x, y)
            os.write(writing, b"1" if got else b"0")
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reading, 1) == b"1", name
        os.close(reading)
        os.close(writing)


def test_a_job_is_numbers_and_a_head() -> None:
    given = {**job(), "code": PLAIN}
    found = unpacked(packed(given))
    assert found["code"] == PLAIN
    assert found["seed"] == 1
    assert list(found["parameters"]) == ["weight", "bias"]
    for mine, made in zip(given["data"], found["data"], strict=True):
        assert mine.dtype == made.dtype
        assert np.array_equal(mine, made)
    with pytest.raises(DataError, match="must be numbers"):
        packed({**given, "data": (np.array(["a"]),)})


def test_an_answer_is_as_long_as_a_row_and_nothing_else() -> None:
    read = SealedProcess(PLAIN).answered
    row = np.arange(3.0).tobytes()
    assert read(bytearray(row), 3, ended=False) is None
    found = read(bytearray(row), 3, ended=True)
    assert found is not None
    assert found.row is not None
    assert found.row.tolist() == [0.0, 1.0, 2.0]
    for wrong in (row[:-1], row + b"x", b"", row[:16] + np.array([np.nan]).tobytes()):
        found = read(bytearray(wrong), 3, ended=True)
        assert found is not None
        assert found.row is None
    more = read(bytearray(row + b"x"), 3, ended=False)  # at once, not when it ends
    assert more is not None
    assert more.row is None


def test_one_clean_process_for_each_code() -> None:
    assert sealed_process(PLAIN) is sealed_process(PLAIN)
    assert sealed_process(PLAIN) is not sealed_process(TORCH)
    assert sealed_process(PLAIN).function != sealed_process(TORCH).function
