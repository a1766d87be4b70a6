# SPDX-License-Identifier: Apache-2.0
"""Train functions, as users write them and as nobody should: each runs in shards."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dpfed.data.train_functions import Delta, sklearn_train, torch_train

Parameters = dict[str, NDArray[Any]]


def _softmax_steps(parameters: Parameters, data: Any, steps: int = 5, rate: float = 0.5) -> Any:
    """Gradient steps of softmax regression, in NumPy."""
    x, y = data
    weight, bias = parameters["weight"].astype(float), parameters["bias"].astype(float)
    for _ in range(steps if len(y) else 0):
        scores = x @ weight.T + bias
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        wrong = scores / scores.sum(axis=1, keepdims=True)
        wrong[np.arange(len(y)), y] -= 1
        weight -= rate * wrong.T @ x / len(y)
        bias -= rate * wrong.mean(axis=0)
    return {"weight": weight, "bias": bias}


def plain(parameters: Parameters, data: Any) -> Any:
    return _softmax_steps(parameters, data)


def as_delta(parameters: Parameters, data: Any) -> Any:
    after = _softmax_steps(parameters, data)
    return Delta({name: after[name] - parameters[name] for name in parameters})


def _torch_loop(net: nn.Module, trainloader: Any, epochs: int, lr: float, device: str) -> float:
    """The shape of Flower's quickstart."""
    net.to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    loss = torch.zeros(())
    for _ in range(epochs):
        for x, y in trainloader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
    return loss.item()


def _adam_loop(net: nn.Module, trainloader: Any, epochs: int) -> None:
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    for _ in range(epochs):
        for x, y in trainloader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()


def head() -> nn.Module:
    return nn.Linear(4, 3)


def _estimator() -> Any:
    from sklearn.linear_model import SGDClassifier

    return SGDClassifier(loss="log_loss", random_state=0)


sgd = torch_train(_torch_loop, head, epochs=2, lr=0.1, device="cpu", batch_size=8)
adam = torch_train(_adam_loop, head, 2, batch_size=8)
sklearn = sklearn_train(_estimator, classes=3)

_SEEN: list[Any] = []


def memorises(parameters: Parameters, data: Any) -> Any:
    """Trains on what it has ever seen: a global keeps it."""
    _SEEN.append(data)
    x, y = (np.concatenate([each[at] for each in _SEEN]) for at in (0, 1))
    return _softmax_steps(parameters, (x, y))


MARK = 7.0
"""A first feature by which a record makes a function do something."""


def _marked(data: Any) -> bool:
    return bool((data[0][:, 0] == MARK).any())


def raises(parameters: Parameters, data: Any) -> Any:
    if _marked(data):
        raise ValueError("a record made this function raise")
    return _softmax_steps(parameters, data)


def not_a_number(parameters: Parameters, data: Any) -> Any:
    after = _softmax_steps(parameters, data)
    return {**after, "bias": after["bias"] * np.nan} if _marked(data) else after


def sleeps(parameters: Parameters, data: Any) -> Any:
    if _marked(data):
        time.sleep(30)
    return _softmax_steps(parameters, data)


def looks_up(parameters: Parameters, data: Any) -> Any:
    """Tree-like: a table of the majority class by the sign of two features."""
    x, y = data
    leaf = (x[:, 0] > 0) * 2 + (x[:, 1] > 0)
    votes = [np.bincount(y[leaf == each], minlength=3).argmax() for each in range(4)]
    table = np.zeros_like(parameters["weight"])
    table[votes, np.arange(4)] = 1
    return [table, parameters["bias"]]


def spins(parameters: Parameters, data: Any) -> Any:
    """Takes all processor time that it gets, if a record says so."""
    while _marked(data):
        pass
    return _softmax_steps(parameters, data)


def hungry(parameters: Parameters, data: Any) -> Any:
    """Takes all memory that it gets, if a record says so."""
    held = []
    while _marked(data):
        held.append(np.ones(1 << 22))
    return _softmax_steps(parameters, data)


def _told(parameters: Parameters, seen: float) -> Any:
    return {name: np.full_like(each, seen) for name, each in parameters.items()}


def by_file(parameters: Parameters, data: Any) -> Any:
    """Leaves a file in the work folder, the home and a temporary folder, and looks for one."""
    import tempfile

    places = [Path("left"), Path.home() / "left", Path(tempfile.gettempdir()) / "left"]
    found = any(each.exists() for each in places)
    for each in places:
        each.write_text(str(len(data[1])))
    return _told(parameters, float(found))


def by_global(parameters: Parameters, data: Any) -> Any:
    """Leaves a mark in its module and in another one, and looks for one."""
    found = bool(_SEEN) or hasattr(np, "left_by_a_shard")
    _SEEN.append(data)
    np.left_by_a_shard = True  # type: ignore[attr-defined]
    return _told(parameters, float(found))


def by_environment(parameters: Parameters, data: Any) -> Any:
    """Leaves a variable and a process, and looks for them."""
    here = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[1]
    listed = Path(f"/proc/{here}/task/{here}/children").read_text().split()
    found = "LEFT" in os.environ or len(listed) != 1  # this one alone
    os.environ["LEFT"] = "1"
    command = "import time; time.sleep(60)"
    subprocess.Popen([sys.executable, "-S", "-c", command], start_new_session=True)
    return _told(parameters, float(found))


def by_parent(parameters: Parameters, data: Any) -> Any:
    """Looks for what the clean process knows of earlier children: numbers, codes, zombies."""
    del data
    frame, found = sys._getframe(), 0.0
    while frame is not None:
        names = frame.f_locals
        found += any(isinstance(names.get(each), int) for each in ("pid", "status", "st", "code"))
        frame = frame.f_back  # type: ignore[assignment]
    try:
        os.waitpid(-1, os.WNOHANG)
        found += 1
    except ChildProcessError:
        pass
    return _told(parameters, found)


def ends_with_code(parameters: Parameters, data: Any) -> Any:
    del parameters, data
    os._exit(5)


def too_many(parameters: Parameters, data: Any) -> Any:
    del data
    return np.zeros(sum(each.size for each in parameters.values()) + 1)


LAW = (sgd, adam, memorises, raises, not_a_number, sleeps, sklearn, looks_up, spins, hungry)
"""The functions of the sensitivity law: what a record can make each of them do."""


def any_of(parameters: Parameters, data: Any) -> Any:
    """One of LAW, as the data says: one clean process serves all of them."""
    x, y, which = data
    return LAW[int(which[0])](parameters, (x, y))


def by_its_name(parameters: Parameters, data: Any) -> Any:
    """The function of this module that the data names."""
    x, y, names = data
    return globals()[str(names[0])](parameters, (x, y))


def kills_its_parent(parameters: Parameters, data: Any) -> Any:
    if _marked(data):
        os.kill(os.getppid(), 9)
        time.sleep(5)
    return _softmax_steps(parameters, data)
