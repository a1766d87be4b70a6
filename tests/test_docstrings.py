# SPDX-License-Identifier: Apache-2.0
"""Each public name explains itself in ``help()``, with an example that runs where it is written."""

from __future__ import annotations

import doctest
import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import dpfed
import dpfed.accounting
import dpfed.core
import dpfed.flower
import dpfed.parts
from dpfed.core.log import log

PUBLIC = (dpfed, dpfed.flower, dpfed.core, dpfed.accounting, dpfed.parts)
ELSEWHERE = re.compile(r"file's docstring|see above|table above|see below", re.IGNORECASE)
"""Words that lead out of ``help()``."""


def documented() -> Iterator[tuple[str, Any]]:
    """Every public function and class; a text or a type's other name has no docstring."""
    for module in PUBLIC:
        for name in module.__all__:
            value = getattr(module, name)
            if value is not Any and (inspect.isclass(value) or inspect.isroutine(value)):
                yield f"{module.__name__}.{name}", value


NAMES = dict(documented())
HOMES = sorted({value.__module__ for value in NAMES.values()})


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_stands_alone(name: str) -> None:
    value, doc = NAMES[name], inspect.getdoc(NAMES[name]) or ""
    assert re.match(r"[^\n]+[.:]\s", doc), "one sentence first"
    assert ">>>" in doc, "an example"
    assert not ELSEWHERE.search(doc)
    if inspect.isroutine(value) and inspect.signature(value).parameters:
        assert "Args:\n" in doc


@pytest.mark.parametrize("home", HOMES)
def test_its_example_runs(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "disabled", True)
    found = doctest.testmod(sys.modules[home])
    assert found.attempted
    assert not found.failed


def test_most_public_names_are_looked_at() -> None:
    """Names load on first use: were the walk empty, nothing above would fail."""
    assert {"dpfed.run", "dpfed.flower.make_plan", "dpfed.core.Channel"} <= set(NAMES)
    assert "dpfed.flower" in HOMES
