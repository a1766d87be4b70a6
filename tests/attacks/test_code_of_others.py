# SPDX-License-Identifier: Apache-2.0
"""Attacks by code that its reader did not choose: in a statement, a gate's environment, a name.

A statement's folder comes from whoever trained. A gate that is started without environment
variables must stay without them when ``dpfed silo serve`` becomes its process. And an algorithm
that is given as an object is known by a digest: two that share one would share a name, a
fingerprint and the trial of their bounds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dpfed
from dpfed.cli.explain import gather_statement, markdown
from dpfed.core.code_digest import code_digest
from dpfed.core.types import ServerOptimizer
from dpfed.recipes.run import run
from dpfed.silo import gate_command

TRAP = "dpfed_statement_trap"


def test_reading_a_statement_runs_nothing_that_its_recipe_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {"options": {"records": 60, "features": 3, "classes": 2}, "partition": {"clients": 2}}
    run(data=data, method="dp-fedgd", rounds=1, privacy={"epsilon": 1.0}, out=tmp_path)
    recipe = tmp_path / "recipe.toml"
    (tmp_path / f"{TRAP}.py").write_text("def anything(*a, **k):\n    raise SystemExit\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    named = recipe.read_text().replace('"gaussian"', f'"{TRAP}:anything"')
    recipe.write_text(named)
    assert TRAP in named
    assert "neither is kept" in markdown(gather_statement(tmp_path))
    assert TRAP not in sys.modules


@pytest.mark.parametrize(
    ("name", "flag"), [("isolated", "-I"), ("ignore_environment", "-E"), ("no_user_site", "-s")]
)
def test_a_gate_is_started_with_the_flags_of_its_command(
    monkeypatch: pytest.MonkeyPatch, name: str, flag: str
) -> None:
    names = ("isolated", "ignore_environment", "no_user_site")
    for on in (0, 1):
        flags = SimpleNamespace(**{**dict.fromkeys(names, 0), name: on})
        with monkeypatch.context() as patched:
            patched.setattr(sys, "flags", flags)
            words = gate_command()
        assert words == [sys.executable, "-P", *[flag] * on, "-m", "dpfed.silo"]


@pytest.mark.slow
@pytest.mark.parametrize(("flag", "kept"), [("-I", True), ("-P", False)])
def test_a_gate_stays_as_isolated_as_the_command_that_becomes_it(
    tmp_path: Path, flag: str, kept: bool
) -> None:
    source = str(Path(dpfed.__file__).parents[1])
    code = (
        f"import os, sys; sys.path.insert(0, {source!r}); from dpfed.silo import gate_command; "
        "words = gate_command(); assert words[-2:] == ['-m', 'dpfed.silo']; "
        "os.execv(words[0], [*words[:-2], '-c', 'import sys; print(*sys.path)'])"
    )
    done = subprocess.run(
        [sys.executable, flag, "-c", code],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (str(tmp_path) in done.stdout.split()) is not kept


def optimizer(first: Any, second: Any, third: Any) -> ServerOptimizer:
    def init(params: Any) -> Any:
        return first

    def update(G: Any, state: Any, seen: Any) -> tuple[Any, Any]:
        return G, second

    def share(state: Any) -> Any:
        return third

    return ServerOptimizer(init=init, update=update, share=share)


@pytest.mark.parametrize("place", range(3))
def test_each_function_of_an_object_counts_with_what_it_closes_over(place: int) -> None:
    """A list that was freed lent its id to the next, which was then taken for seen already."""
    held: list[Any] = [0.1, 0.1, 0.1]
    before = code_digest(optimizer(*held))
    held[place] = 0.2
    assert code_digest(optimizer(*held)) != before


class Rates(list[float]):
    """A list with something beside its items."""

    def __init__(self, power: float) -> None:
        super().__init__([1.0])
        self.power = power


def with_attribute(rate: float) -> Any:
    def step() -> float:
        return float(vars(step)["rate"])

    vars(step)["rate"] = rate
    return step


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([(1, 2), 3], [(1,), 2, 3]),
        ({"a": (1,)}, {"a": (), 1: ()}),
        (Rates(1.0), Rates(2.0)),
        (with_attribute(0.1), with_attribute(0.2)),
    ],
)
def test_values_of_another_shape_have_another_digest(one: Any, other: Any) -> None:
    assert code_digest(one) == code_digest(one)
    assert code_digest(one) != code_digest(other)
