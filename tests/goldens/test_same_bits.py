# SPDX-License-Identifier: Apache-2.0
"""``scripts/same_bits.py`` sees a changed bit, and the kept digests are of the plans it trains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from scripts import same_bits

KEPT: dict[str, Any] = json.loads(
    Path(__file__).with_name("same_bits.json").read_text(encoding="utf-8")
)
NAMES = [name for name, _ in same_bits.plans()]


def test_each_plan_has_its_digest() -> None:
    assert list(KEPT["digests"]) == NAMES
    assert len(set(KEPT["digests"].values())) == 9


def test_a_change_is_named_and_so_is_a_plan_that_came_or_went() -> None:
    baseline = {"machine": same_bits.machine(), "digests": {"a": "1", "b": "2"}}
    assert same_bits.compare(baseline, {"a": "1", "b": "2"}) == ""
    assert same_bits.compare(baseline, {"a": "1", "b": "3"}) == "changed: b\n"
    assert same_bits.compare(baseline, {"b": "2", "c": "3"}) == "changed: a\nchanged: c\n"


def test_of_another_machine_only_equal_digests_pass() -> None:
    baseline = {"machine": {"vectors": "?", "torch": "?"}, "digests": {"a": "1"}}
    assert same_bits.compare(baseline, {"a": "1"}) == ""
    assert "nothing was compared" in same_bits.compare(baseline, {"a": "2"})


@pytest.mark.skipif(KEPT["machine"] != same_bits.machine(), reason="floats round another way here")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sample(3)
def test_the_bits_are_those_of_before(name: str) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert same_bits.digest(dict(same_bits.plans())[name]) == KEPT["digests"][name]
    finally:
        torch.set_num_threads(threads)
