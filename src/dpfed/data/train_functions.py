# SPDX-License-Identifier: Apache-2.0
"""What a train function gets and returns, and adapters for functions of other shapes.

    def train(parameters, data):        # named NumPy arrays; one shard's records
        ...
        return parameters               # all of them after training; or Delta(...)

A function runs in a process of its own for each shard (shard_child.py). What it returns becomes the
shard's row: the parameters before, less those after.

| what it returns                                     | what it stands for                        |
|-----------------------------------------------------|-------------------------------------------|
| a mapping with the names that came in               | the parameters after training             |
| a list or tuple of arrays, in the order of the names| the same                                  |
| one flat array                                      | the same, one after the other             |
| an estimator with ``coef_`` (and ``intercept_``)    | the same, these two                       |
| ``Delta`` of one of them                            | what is to be added to the parameters     |
| another number of arrays, another shape             | no row; in the rehearsal an error         |
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfed.data.shard_child import MOST_TEXT

Parameters = dict[str, NDArray[Any]]
TrainFunction = Callable[[Parameters, Any], Any]

CALL = "dpfed.data.train_functions:call"
"""What runs in a shard's process."""


class Delta(NamedTuple):
    """What a train function returns in the place of parameters: the change of each.

    Args:
        arrays: a mapping, a list or one flat array, as for parameters.

    >>> Delta([0.5, -0.5]).arrays
    [0.5, -0.5]
    """

    arrays: Any


def call(function: TrainFunction, job: Mapping[str, Any]) -> bytes:
    """In a shard's process: the function's row, as bytes of double precision.

    Args:
        function: the user's.
        job: parameters and data of one shard.
    """
    before: Parameters = job["parameters"]
    found = function({name: array.copy() for name, array in before.items()}, job["data"])
    return row_of(before, found).tobytes() + imported_modules(job)


def imported_modules(job: Mapping[str, Any]) -> bytes:
    """On made-up records: the modules that are imported by now, behind the row.

    Args:
        job: it says whether it is a trial.
    """
    if not job.get("modules"):
        return b""
    return "\n".join(sys.modules).encode()[:MOST_TEXT].rpartition(b"\n")[0]


def row_of(before: Parameters, found: Any) -> NDArray[np.float64]:
    """The parameters before, less those after, as one vector.

    Args:
        before: named arrays, as the function got them.
        found: what it returned.
    """
    if isinstance(found, Delta):
        return -_flat(before, found.arrays)
    start = np.concatenate([array.astype(np.float64).reshape(-1) for array in before.values()])
    return start - _flat(before, found)


def _flat(like: Parameters, found: Any) -> NDArray[np.float64]:
    """What a function returned, in the order of the parameters, if all of it fits."""
    shapes = [array.shape for array in like.values()]
    if hasattr(found, "coef_"):
        found = [found.coef_, *([found.intercept_] if len(like) > 1 else [])]
    if isinstance(found, Mapping) and like.keys() <= found.keys():
        found = [found[name] for name in like]
    if isinstance(found, Sequence) and not isinstance(found, str):
        arrays = [_array(each) for each in found]
        if [each.shape for each in arrays] == shapes:
            return np.concatenate([each.reshape(-1) for each in arrays])
        got: Any = [each.shape for each in arrays]
    else:
        whole = _array(found)
        if whole.shape == (sum(array.size for array in like.values()),):
            return whole
        got = whole.shape
    raise ValueError(
        f"a train function must return arrays of the shapes {dict(zip(like, shapes, strict=True))},"
        f" or one flat array, got {got}; return all parameters that came in"
    )


def _array(found: Any) -> NDArray[np.float64]:
    tensor = found.detach().cpu() if hasattr(found, "detach") else found
    return np.asarray(tensor, dtype=np.float64)


def torch_train(
    train: Callable[..., Any],
    model: Callable[[], Any],
    *arguments: Any,
    batch_size: int = 32,
    **options: Any,
) -> TrainFunction:
    """A train function from the shape of Flower's quickstart: ``train(net, trainloader, ...)``.

    Args:
        train: it trains the model in place; what it returns (a loss) is dropped.
        model: makes the model; its parameters get the values that came in.
        *arguments: what ``train`` gets after model and loader, such as epochs, rate and device.
        batch_size: of the loader, where the shard's data is not a loader already.
        **options: the same by name.

    Returns:
        a function of parameters and data, to be named as module:name.

    >>> from torch import nn
    >>> def train(net, trainloader, epochs): ...
    >>> made = torch_train(train, lambda: nn.Linear(2, 1), epochs=1)
    >>> zeros = {"weight": np.zeros((1, 2)), "bias": np.zeros(1)}
    >>> sorted(made(zeros, (np.zeros((4, 2)), np.zeros(4))))
    ['bias', 'weight']
    """

    def run(parameters: Parameters, data: Any) -> Parameters:
        import torch

        net = model()
        tensors = {name: torch.from_numpy(array) for name, array in parameters.items()}
        net.load_state_dict({**net.state_dict(), **tensors})
        train(net, as_loader(data, batch_size), *arguments, **options)
        after = net.state_dict()
        return {name: after[name].detach().cpu().numpy() for name in parameters}

    return run


def as_loader(data: Any, batch_size: int) -> Any:
    """A shard's data as a DataLoader: as it is, or around a data set, or around arrays.

    Args:
        data: a DataLoader, a data set with a length, or a tuple of arrays.
        batch_size: of the loader that is made.
    """
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    if isinstance(data, DataLoader):
        return data
    if isinstance(data, tuple):
        data = TensorDataset(*(torch.as_tensor(each) for each in data))
    return DataLoader(data, batch_size=batch_size, shuffle=True)


def sklearn_train(
    make: Callable[[], Any], classes: int | None = None, passes: int = 1
) -> TrainFunction:
    """A train function from a linear estimator of scikit-learn's with ``partial_fit``.

    Args:
        make: makes the estimator, such as ``lambda: SGDClassifier(loss="log_loss")``.
        classes: how many there are, whichever a shard has; None for a regression.
        passes: how often it goes over the shard.

    Returns:
        a function of parameters and data (x, y), to be named as module:name.

    >>> from sklearn.linear_model import SGDClassifier
    >>> made = sklearn_train(SGDClassifier, classes=3)
    >>> zeros = {"weight": np.zeros((3, 2)), "bias": np.zeros(3)}
    >>> made(zeros, (np.ones((4, 2)), np.zeros(4))).coef_.shape
    (3, 2)
    """

    def run(parameters: Parameters, data: Any) -> Any:
        estimator, (x, y) = make(), data
        weight, *bias = parameters.values()
        estimator.coef_ = weight.astype(np.float64)
        estimator.intercept_ = np.concatenate(bias) if bias else np.zeros(len(weight))
        estimator.intercept_ = estimator.intercept_.astype(np.float64)
        known = {} if classes is None else {"classes": np.arange(classes)}
        for _ in range(passes):
            estimator.partial_fit(np.asarray(x, np.float64), y, **known)
        return estimator

    return run
