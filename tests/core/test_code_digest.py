# SPDX-License-Identifier: Apache-2.0
"""Code that differs has another digest, and code that does not has the same, in every process."""

from __future__ import annotations

import functools
import importlib
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dpfed.core.code_digest import code_digest
from dpfed.core.errors import RecipeError
from dpfed.core.types import ServerOptimizer
from dpfed.server.sofim import sofim


def optimizer(held: Any, other: Any = None) -> ServerOptimizer:
    def update(G: Any, state: Any, seen: Any) -> tuple[Any, Any]:
        return G * held, other

    return ServerOptimizer(init=lambda params: (), update=update)


DIFFERENT: list[tuple[Any, Any]] = [
    (0.1, 0.2),
    (1, 1.0),
    (True, 1),
    ("1", 1),
    ([1, 2], [2, 1]),
    ({"a": 1}, {"a": 2}),
    ({1, 2}, {1, 3}),
    (torch.zeros(3), torch.zeros(4)),
    (torch.zeros(3), torch.tensor([0.0, 0.0, 1e-30])),
    (functools.partial(max, 1), functools.partial(max, 2)),
    (len, max),
    (lambda: 1, 1),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_a_plug_in_holds_tells_it_from_another(one: Any, other: Any) -> None:
    assert code_digest(optimizer(one)) == code_digest(optimizer(one))
    assert code_digest(optimizer(one)) != code_digest(optimizer(other))
    assert code_digest(optimizer("x", one)) != code_digest(optimizer(one, "x"))


def test_our_own_optimizers_have_one_by_their_options() -> None:
    assert code_digest(sofim(rho=1.0)) == code_digest(sofim(rho=1.0))
    assert code_digest(sofim(rho=1.0)) != code_digest(sofim(rho=2.0))


def test_another_source_is_another_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    found = []
    for helper in ("1", "2"):
        (tmp_path / "toycode.py").write_text(f"H = {helper}\ndef f():\n    return H\n")
        importlib.invalidate_caches()
        sys.modules.pop("toycode", None)
        found.append(code_digest(importlib.import_module("toycode").f))
    sys.modules.pop("toycode", None)
    assert found[0] != found[1]


def test_code_without_a_file_counts_too() -> None:
    def made(text: str) -> Callable[..., Any]:
        space: dict[str, Any] = {"__name__": "nowhere"}
        exec(text, space)
        return space["f"]  # type: ignore[no-any-return]

    assert code_digest(made("def f(x): return x + 1")) == code_digest(
        made("def f(x): return x + 1")
    )
    assert code_digest(made("def f(x): return x + 1")) != code_digest(
        made("def f(x): return x + 2")
    )


def test_what_shows_no_value_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"lock.*module:function"):
        code_digest(optimizer(threading.Lock()))


def test_what_contains_itself_has_an_end() -> None:
    held: list[Any] = [1]
    held.append(held)
    assert len(code_digest(optimizer(held))) == 64


@pytest.mark.slow
def test_another_process_finds_the_same() -> None:
    code = (
        "from dpfed.core.code_digest import code_digest as d; "
        "from dpfed.server.sofim import sofim; print(d(sofim(rho=1.0)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == code_digest(sofim(rho=1.0))
