# SPDX-License-Identifier: Apache-2.0
"""No value of a record is in a message, a log record, a repr or a traceback text of ours.

Errors and logs leave a machine: into a ticket, a chat, a log server. So a canary is put wherever
a caller can put records by mistake or on purpose: as any argument of any public function, and in
cells of files and arrays that cannot be read. Arguments are discovered by their signatures.

Left out on purpose: ``dpfed data check``, by which an owner looks at their own file on their own
screen; and a text where a name or a path stands, since no argument takes texts as records.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import logging
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import dpfed
from dpfed import flower, parts
from dpfed.core.checks import value_in_words
from dpfed.core.types import Unit
from dpfed.data.datasets import Records

CANARY = 31337.25
WORD = "QX31337Q"
SIGN = "31337"

X, Y = np.full((40, 3), CANARY, "f4"), np.arange(40) % 2
CLEAN = np.linspace(-1, 1, 120, dtype="f4").reshape(40, 3)
PAIRS = [(row.tolist(), int(label)) for row, label in zip(X, Y, strict=True)]
WRONG: dict[str, Any] = {
    "an array": X,
    "a tensor": torch.from_numpy(X),
    "pairs": PAIRS,
    "lists": X.tolist(),
    "a list": X[0].tolist(),
    "a tuple of arrays": (X, Y),
    "tables": [{"x": CANARY, "word": WORD}] * 10,
    "a table": {"x": X, "y": PAIRS, "word": WORD},
    "a frame": pd.DataFrame({"x": [CANARY] * 9, "word": [WORD] * 9}),
    "a set": {CANARY, WORD},
    "bytes": f"{WORD}".encode(),
}

NET = nn.Linear(3, 2)
PRIVACY = {"epsilon": 1.0}
CALLS: dict[str, dict[str, Any]] = {
    "dpfed.run": {"data": (CLEAN, Y), "privacy": PRIVACY, "rounds": 1, "method": "dp-fedgd"},
    "dpfed.calibrate": {"epsilon": 1.0, "delta": 1e-5, "rounds": 3},
    "dpfed.load": {"folder": "nowhere"},
    "flower.make_plan": {
        "clients": [40], "rounds": 1, "privacy": PRIVACY, "client": "gradient", "server": "scale",
        "sum": "plain", "evaluation": {}, "name": "run", "seed": 0, "method": None,
    },
    "flower.Linear": {"link": "softmax", "features": 3, "outputs": 2},
    "flower.Network": {"module": NET},
    "flower.dataset_batches": {
        "dataset": [(torch.zeros(3), 0)], "example": (torch.zeros(3), 0), "most": 8,
    },
    "flower.tensor_batches": {"dataset": torch.utils.data.TensorDataset(torch.zeros(4, 3))},
    "flower.evaluate": {
        "model": flower.Network(NET), "params": flower.Network(NET).initial(0),
        "records": Records(torch.from_numpy(CLEAN), torch.from_numpy(Y)),
    },
    "flower.augmented": {
        "records": Records(torch.from_numpy(CLEAN), torch.from_numpy(Y)),
        "change": lambda x, generator: x,
    },
    "flower.loss_by_name": {"name": "squared"},
    "flower.read_records": {"source": "nowhere.npz"},
    "parts.NoisySum": {"clip": 1.0, "epsilon": 1.0, "delta": 1e-5},
    "parts.noisy_metrics": {
        "scores": torch.zeros(40, 2), "labels": torch.zeros(40).long(), "metrics": ["accuracy"],
        "epsilon": 1.0,
    },
    "parts.secure_sum": {"terms": [torch.zeros(3).long()] * 3},
    "parts.server_step": {},
    "parts.charged": {"event": None, "dataset": "d", "name": "n"},
}  # fmt: skip
OWN_PARAMETERS = {"dpfed.run": ("recipe", "seed", "out", "overrides", "engine", "sinks", "model")}
"""Parameters that a signature hides, or all that are tried of a function that trains."""
FITTING = {("clients", "a list")}
"""What is right there: public sizes, which a plan shows."""


def leaks(text: str) -> bool:
    return SIGN in text


def of_ours(error: BaseException) -> str:
    """The text of an error and of those that led to it, without the lines of this test's code."""
    chain, texts = error, []
    while chain is not None:
        texts.append(f"{type(chain).__name__}: {chain}")
        chain = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)
    return "\n".join(texts)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[Callable[[], Any]], str]:
    """All that a call says: its error, those behind it, its log, and the repr of its result."""
    caplog.set_level(logging.DEBUG, logger="dpfed")

    def tell(call: Callable[[], Any]) -> str:
        caplog.clear()
        try:
            made = repr(call())
        except Exception as error:
            made = of_ours(error)
        return made + caplog.text

    return tell


def parameters(name: str, call: Any) -> list[str]:
    signature = inspect.signature(call).parameters.values()
    named = [each.name for each in signature if each.kind is not each.VAR_KEYWORD]
    return sorted({*named, *CALLS[name]} | {*OWN_PARAMETERS.get(name, ())})


def cases() -> Iterator[Any]:
    modules = {"dpfed": dpfed, "flower": flower, "parts": parts}
    for name, given in CALLS.items():
        where, _, what = name.partition(".")
        call = getattr(modules[where], what)
        for parameter in parameters(name, call):
            yield pytest.param(call, given, parameter, id=f"{name}-{parameter}")


@pytest.mark.parametrize(("call", "given", "parameter"), cases())
def test_records_as_any_argument(
    call: Any, given: dict[str, Any], parameter: str, told: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for kind, wrong in WRONG.items():
        if (parameter, kind) in FITTING:
            continue
        said = told(lambda wrong=wrong: call(**{**given, parameter: wrong}))
        assert not leaks(said), f"{parameter} as {kind}: {said[:300]}"


@pytest.mark.parametrize("section", ["data", "model", "privacy", "evaluation"])
@pytest.mark.parametrize(
    "field", ["source", "options", "partition", "name", "clip", "kind", "norm"]
)
def test_records_as_a_field_of_a_section(section: str, field: str, told: Any) -> None:
    given = CALLS["dpfed.run"]
    for kind, wrong in WRONG.items():
        said = told(lambda wrong=wrong: dpfed.run(**{**given, section: {field: wrong}}))
        assert not leaks(said), f"{section}.{field} as {kind}: {said[:300]}"


# ------------------------------------------------------------- cells and arrays that cannot be read

HEAD = "a,b,label\n"
FILES = {
    "a line of too many cells": HEAD + "1,2,0\n" * 5 + f"3,{WORD},4,1\n",
    "an open quote": HEAD + "1,2,0\n" * 5 + f'3,"{WORD},1\n' + "1,2,1\n" * 5,
    "a label below 0": HEAD + "1,2,0\n2,1,1\n" * 5 + "1,2,-31337\n",
    "a label above the classes": HEAD + "1,2,0\n2,1,1\n" * 5 + "1,2,31337\n",
    "a word in a column of numbers": HEAD + "1,2,0\n2,1,1\n" * 5 + f"1,{WORD},0\n",
    "a word as a label": HEAD + "1,2,0\n2,1,1\n" * 5 + f"1,2,{WORD}\n",
    "a number out of range": HEAD + "1,2,0\n2,1,1\n" * 5 + "1,31337,0\n",
    "bytes of another encoding": HEAD + "1,2,0\n2,1,1\n" * 5 + f"1,{WORD}\udcff,0\n",
}


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
@pytest.mark.parametrize("options", [{}, {"classes": 2}, {"split": "b"}], ids=str)
def test_files_that_cannot_be_read(text: str, options: Any, told: Any, tmp_path: Path) -> None:
    path = tmp_path / "ward.csv"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    data = {"source": str(path), "partition": {"clients": 2}, "options": options}
    given = {**CALLS["dpfed.run"], "data": data}
    assert not leaks(told(lambda: dpfed.run(**given)))


CONTRACT = {
    "columns": [
        {"name": "a", "kind": "number", "range": [0.0, 9.0]},
        {"name": "b", "kind": "category", "words": ["low", "high"]},
    ],
    "label": {"column": "label", "words": ["0", "1"]},
}


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_files_that_a_contract_reads(text: str, told: Any, tmp_path: Path) -> None:
    path = tmp_path / "ward.csv"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    data = {"source": str(path), "partition": {"clients": 2}, "contract": CONTRACT}
    said = told(lambda: dpfed.run(**{**CALLS["dpfed.run"], "data": data}))
    assert not leaks(said)
    assert "contract must" not in said  # the contract itself is read


ODD = np.zeros((40, 3), dtype=object)
ODD[3, 1] = WORD
ARRAYS = {
    "a word among numbers": (ODD, Y),
    "words": (np.full((40, 3), WORD), Y),
    "words as labels": (CLEAN, np.array([WORD] * 40)),
    "labels below 0": (CLEAN, np.where(Y, -31337, 0)),
    "labels of no class": (CLEAN, np.where(Y, 31337.5, 0)),
    "groups of words": (CLEAN, Y, np.array([WORD] * 40)),
    "a column of words and numbers": pd.DataFrame({"a": [WORD] + [1.5] * 39, "label": Y}),
    "numbers of another scale": (np.where(CLEAN > 0.5, 31337, CLEAN).astype("f4"), Y),
    "numbers that are not finite": (np.where(CLEAN > 0.5, np.inf, X).astype("f4"), Y),
}


@pytest.mark.parametrize("model", [{"name": "softmax"}, {"name": "logistic"}, NET], ids=str)
@pytest.mark.parametrize("given", ARRAYS.values(), ids=ARRAYS)
def test_arrays_that_cannot_be_used(given: Any, model: Any, told: Any) -> None:
    data = {"source": given, "partition": {"clients": 2}}
    given = {**CALLS["dpfed.run"], "data": data, "model": model}
    assert not leaks(told(lambda: dpfed.run(**given)))


class Odd:
    """A data set of 20 records, some of which cannot be read."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __len__(self) -> int:
        return 20

    def __getitem__(self, at: int) -> Any:
        if self.how == "raises" and at % 3 == 0:
            raise ValueError(f"cannot read {WORD}")
        if self.how == "another shape" and at == 4:
            return torch.zeros(31337), 0
        if self.how == "a text":
            return torch.zeros(3), WORD
        if self.how == "an unknown label":
            return torch.zeros(3), 31337
        return torch.full((3,), CANARY), 0


class Picky(nn.Module):
    """A network that raises on some records, and quotes them."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x > 1000).any()):
            raise ValueError(f"too large: {x.tolist()}")
        return self.last(x)


@pytest.mark.parametrize("how", ["raises", "another shape", "a text", "an unknown label", "large"])
@pytest.mark.parametrize("module", [NET, Picky()], ids=["linear", "picky"])
def test_records_on_which_code_fails(how: str, module: nn.Module, told: Any) -> None:
    network = flower.Network(module)
    problem = network.problem(flower.dataset_batches(Odd(how), (torch.zeros(3), 0)))
    rows = lambda: problem.rows(network.initial(0), Unit.RECORD).clipped_sum(1.0)  # noqa: E731
    assert not leaks(told(rows))
    batches = flower.dataset_batches(Odd(how), (torch.zeros(3), 0))
    assert not leaks(told(lambda: flower.evaluate(network, network.initial(0), batches)))
    assert not leaks(told(lambda: flower.augmented(batches, lambda x, g: x)))


def test_a_run_on_which_a_network_fails(told: Any) -> None:
    given = {**CALLS["dpfed.run"], "data": (X, Y), "model": Picky(), "method": "dp-fedavg"}
    said = told(lambda: dpfed.run(**given))
    assert "words may quote a record" in said
    assert not leaks(said)


# ------------------------------------------------------------------------------------------- reprs


def holding_records() -> Iterator[type]:
    """Our dataclasses that can clip and add up rows: they hold records, or sums without noise."""
    seen = set()
    for place in ("core", "data", "client"):
        package = importlib.import_module(f"dpfed.{place}")
        for found in pkgutil.walk_packages(package.__path__, f"dpfed.{place}."):
            for kind in vars(importlib.import_module(found.name)).values():
                rows = any(hasattr(kind, name) for name in ("clipped_sum", "rows", "replace_bound"))
                ours = str(getattr(kind, "__module__", "")).startswith("dpfed.")
                data = inspect.isclass(kind) and dataclasses.is_dataclass(kind)
                if data and rows and ours and kind not in seen:
                    seen.add(kind)
                    yield kind


@pytest.mark.parametrize("kind", holding_records(), ids=lambda kind: kind.__name__)
def test_no_repr_shows_rows(kind: type) -> None:
    fields = [each for each in dataclasses.fields(kind) if each.repr]
    tensors = [each.name for each in fields if "Tensor" in str(each.type) or each.type == "Vector"]
    own = not kind.__dataclass_params__.repr  # type: ignore[attr-defined]
    assert own or not tensors, f"{kind.__name__} shows {tensors}: give its dataclass repr=False"


def test_records_and_their_parts_show_their_number_only() -> None:
    records = Records(torch.from_numpy(X), torch.from_numpy(Y), torch.full((40,), 31337))
    assert not leaks(repr(records))
    problem = flower.Linear("softmax", 3, 2).problem(records)
    assert not leaks(repr(problem))
    assert not leaks(repr(problem.rows(torch.zeros(8), Unit.RECORD).clipped_sum(1e9)))


# ------------------------------------------------------------------------------------- the words


def test_the_law_sees_a_leak() -> None:
    assert leaks(of_ours(ValueError(f"got {PAIRS!r}")))
    outer = KeyError("x")
    outer.__cause__ = ValueError(f"could not convert {WORD}")
    assert leaks(of_ours(outer))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (3, "3"),
        ("a", "'a'"),
        (None, "None"),
        (["a", "b"], "['a', 'b']"),
        ([], "[]"),
        ([1, 2], "a list of 2"),
        ((np.zeros(3),), "a tuple of 1"),
        (np.zeros((2, 3)), "an ndarray of shape (2, 3)"),
        ({"a": 1}, "a dict of 1"),
        (["a" * 300], "a list of 1"),
        (torch.zeros(2, 3).shape, "(2, 3)"),
        (Path("/x"), repr(Path("/x"))),
        (nn.Linear, "Linear"),
        (nn.Identity(), "an Identity"),
    ],
    ids=str,
)
def test_a_value_in_words(value: Any, words: str) -> None:
    assert value_in_words(value) == words


def test_a_long_text_is_cut() -> None:
    assert value_in_words("a" * 300) == repr("a" * 200 + "...")
