# SPDX-License-Identifier: Apache-2.0
"""The clean process for code that nobody has reviewed, and the sealed processes that it forks.

    python -m dpfed.data.sealed_child FD FOLDER CALL FUNCTION      (sealed_process.py starts it)

As shard_child.py, with a seal (seal.py): a child gives up all rights, and only then reads the code
and one shard's records. It answers with as many numbers as there are parameters, as bytes of double
precision: no text, no pickle, no length.

| edge case                                          | what happens                                |
|----------------------------------------------------|---------------------------------------------|
| this system cannot make the seal                   | said to the node, before there is data      |
| the code imports what was not imported here        | it fails: no file can be opened             |
| the code does not parse, raises, ends its process  | no answer; nobody learns why                |
| what an earlier child left in processor caches     | a child reads its way through them, first   |
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import sys
import traceback
import types
from collections.abc import Iterator, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from dpfed.core.errors import DataError
from dpfed.data import seal
from dpfed.data.shard_child import (
    ANSWER,
    JOB,
    MOST_TEXT,
    confine,
    job_source,
    keep_only,
    read_frame,
    seed_all,
    serve,
    warm,
    write_answer,
)

ENTRY, MODULE = "train", "shipped"
"""What shipped code must define, and what its module is called."""
PRELOADED = (
    "collections",
    "copy",
    "dataclasses",
    "functools",
    "itertools",
    "json",
    "math",
    "random",
    "statistics",
    "typing",
    "numpy.linalg",
    "numpy.random",
    "torch.nn.functional",
    "torch.nn.utils",
    "torch.optim",
    "torch.utils.data",
    "dpfed.data.train_functions",
)
"""All that shipped code can import, with what these import themselves."""
WHERE_INSTALLED = ("sklearn.linear_model",)
_HEAD = struct.Struct("<Q")
_RINSED, _MOST_RINSED = 2, 1 << 26  # so many times the caches; bytes

# -------------------------------------------------------------------------- a job without a pickle


def packed(job: Mapping[str, Any]) -> bytes:
    """A shard's job as bytes that no reader runs: a head in JSON, then numbers.

    Args:
        job: code, seed, parameters by name, and data as arrays.
    """
    arrays = [*job["parameters"].values(), *job["data"]]
    head = {
        "code": job["code"],
        "seed": job["seed"],
        "names": list(job["parameters"]),
        "arrays": [(np.asarray(each).dtype.str, np.shape(each)) for each in arrays],
    }
    text = json.dumps(head).encode()
    return b"".join([_HEAD.pack(len(text)), text, *(_numbers(each) for each in arrays)])


def _numbers(array: Any) -> bytes:
    made = np.ascontiguousarray(array)
    if made.dtype.kind not in "iufb":
        raise DataError(
            f"data for shipped code must be numbers, got {made.dtype}; give arrays of numbers"
        )
    return made.tobytes()


def unpacked(data: bytes | bytearray) -> dict[str, Any]:
    """The job of ``packed``.

    Args:
        data: its bytes.
    """
    (size,) = _HEAD.unpack_from(data)
    head = json.loads(data[_HEAD.size : _HEAD.size + size])
    arrays = list(_arrays(data, _HEAD.size + size, head["arrays"]))
    count = len(head["names"])
    return {
        "code": head["code"],
        "seed": head["seed"],
        "parameters": dict(zip(head["names"], arrays[:count], strict=True)),
        "data": tuple(arrays[count:]),
    }


def _arrays(data: bytes | bytearray, at: int, kinds: list[tuple[str, list[int]]]) -> Iterator[Any]:
    for kind, shape in kinds:
        count = int(np.prod(shape))
        found = np.frombuffer(data, np.dtype(kind), count, offset=at)
        yield found.reshape(shape).copy()
        at += found.nbytes


# ------------------------------------------------------------------------------- the processes


def main(descriptor: str, folder: str, call: str, function: str) -> None:
    """Import what code may use, stop the clocks, then fork a child for each order.

    Args:
        descriptor: of the socket that orders come from.
        folder: it is removed at the end.
        call: not used: nothing of a training is known to this process.
        function: not used, too.
    """
    del call, function
    control = socket.socket(fileno=int(descriptor))
    try:
        seal.refuse_other_machines()
        _preload()
        cache = np.ones(min(_MOST_RINSED, _RINSED * cache_bytes()) // 8)
        seal.refuse_unfit_process()
        seal.stop_clocks()
    except BaseException:
        control.send(traceback.format_exc()[-MOST_TEXT // 2 :].encode())
        os._exit(1)
    serve(control, folder, partial(_child, cache=cache), seal.numberless_fork())


def _preload() -> None:
    """Import and use once what would open a file, or ask for more, at its first use."""
    for name in PRELOADED:
        import_module(name)
    for name in WHERE_INSTALLED:
        with contextlib.suppress(ImportError):
            import_module(name)
    warm()
    import torch

    # oneDNN writes machine code, and reads the counter
    torch.backends.mkldnn.set_flags(False)  # type: ignore[no-untyped-call]
    _use_torch(torch)
    _use_numpy()
    _use_sklearn()


def _use_torch(torch: Any) -> None:
    nn = torch.nn
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 2))
    x, y = torch.randn(8, 1, 8, 8), torch.zeros(8).long()
    data = torch.utils.data.TensorDataset(x, y)
    for make in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        optimizer = make(net.parameters(), lr=0.1)
        for inputs, labels in torch.utils.data.DataLoader(data, batch_size=4, shuffle=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
    nn.LSTM(2, 2)(torch.randn(3, 2, 2))[0].sum().backward()
    nn.functional.scaled_dot_product_attention(*(torch.randn(1, 2, 4, 4) for _ in range(3)))
    torch.linalg.solve(torch.eye(3), torch.ones(3))
    nn.utils.parameters_to_vector(net.parameters())
    net.load_state_dict(net.state_dict())


def _use_numpy() -> None:
    np.linalg.lstsq(np.eye(3), np.ones(3), rcond=None)
    np.linalg.solve(np.eye(3), np.ones(3))
    np.linalg.svd(np.ones((64, 64)) @ np.ones((64, 64)))
    np.random.default_rng().normal(size=3)
    np.ones(1 << 18) + 1 + 1  # for a large array it looks at its callers, by a library


def _use_sklearn() -> None:
    if "sklearn.linear_model" not in sys.modules:
        return
    from dpfed.data.train_functions import sklearn_train

    made = sklearn_train(sys.modules["sklearn.linear_model"].SGDClassifier, classes=3)
    zeros = {"weight": np.zeros((3, 2)), "bias": np.zeros(3)}
    made(zeros, (np.ones((4, 2)), np.arange(4) % 3))


def cache_bytes() -> int:
    """How large the processor's largest cache is; a large number where the system does not say."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text(encoding="ascii").strip()
        sizes.append(int(text.rstrip("KM")) << {"K": 10, "M": 20}.get(text[-1], 0))
    return max(sizes, default=_MOST_RINSED)


def _child(pipes: list[int], limits: tuple[float, int], base: int, cache: Any) -> None:
    """One shard: seal this process, then read, train, answer and end."""
    with contextlib.suppress(BaseException):  # nobody is told
        keep_only(pipes)
        cache.sum()  # before its time is counted: other shards' traces are not this one's
        confine(*limits, base)
        source = job_source()
        seal.seal(JOB, ANSWER)
        write_answer(_row(unpacked(read_frame(source))))
    os._exit(0)


def _row(job: Mapping[str, Any]) -> bytes:
    """Run the code, which is compiled here and nowhere else."""
    from dpfed.data.train_functions import call

    seed_all(job["seed"])
    module = types.ModuleType(MODULE)
    sys.modules[MODULE] = module
    exec(compile(job["code"], MODULE, "exec"), module.__dict__)  # noqa: S102 (sealed)
    return call(getattr(module, ENTRY), job)


if __name__ == "__main__":
    main(*sys.argv[1:])
