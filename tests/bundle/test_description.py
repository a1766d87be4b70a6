# SPDX-License-Identifier: Apache-2.0
"""model.json: what it says survives a round trip; what a stranger may write in it is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dpfed.bundle.description import MAX_BYTES, decode, encode
from dpfed.core.errors import DataError, DpfedError


@pytest.fixture
def told(bundle: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((bundle / "model.json").read_bytes())
    return found


def test_what_is_written_is_read(bundle: Path) -> None:
    raw = (bundle / "model.json").read_bytes()
    assert encode(decode(raw)) == raw


def test_it_says_what_a_user_asks(told: dict[str, Any]) -> None:
    assert told["classes"] == ["alive", "dead"]
    assert told["target"] == "outcome"
    assert list(told["input"]["columns"]) == ["age", "dose", "sex"]
    assert told["guarantee"]["claims"][0]["event"]["kind"]
    assert [each["name"] for each in told["metrics"]] == ["accuracy", "loss"]
    accuracy = told["metrics"][0]
    assert accuracy["low"] < accuracy["value"] < accuracy["high"]
    assert told["versions"]["dpfed"]


CHANGES: dict[str, dict[str, Any]] = {
    "another format": {"format": "pickle"},
    "a later version": {"version": 2},
    "an unknown field": {"code": "import os"},
    "an unknown output": {"output": "exec"},
    "too many parameters": {"parameters": [["weight", [1 << 30, 1 << 30]]]},
    "a negative shape": {"parameters": [["weight", [-1]]]},
    "one name twice": {"parameters": [["weight", [1]], ["weight", [1]]]},
    "classes of one name": {"classes": ["a", "a"]},
    "no classes": {"classes": None},
    "more classes than the model has": {"classes": ["a", "b", "c"]},
    "one class": {"classes": ["a"]},
    "an input of no columns": {"input": {"kind": "columns", "columns": []}},
    "an input of a new kind": {"input": {"kind": "pickle", "path": "x"}},
    "a huge array": {"input": {"kind": "array", "shape": [1 << 20, 1 << 20]}},
    "a division by 0": {"steps": [{"step": "divide", "values": [0.0]}]},
    "endless convolutions": {"steps": [{"step": "convolutions", "count": 1 << 40}]},
    "an endless name": {"classes": ["a" * 2000, "b"]},
    "another link": {
        "architecture": {
            "kind": "linear",
            "link": "__import__",
            "features": 4,
            "outputs": 2,
            "bias": True,
        }
    },
    "a guarantee of text": {"guarantee": []},
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_does_not_fit_is_refused(change: str, told: dict[str, Any]) -> None:
    with pytest.raises(DataError):
        decode(json.dumps({**told, **CHANGES[change]}).encode())


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"null", b"{}"])
def test_what_is_no_description_is_refused(raw: bytes) -> None:
    with pytest.raises(DpfedError):
        decode(raw)


def test_a_file_that_is_too_long_is_not_parsed() -> None:
    with pytest.raises(DpfedError, match="at most"):
        decode(b" " * (MAX_BYTES + 1))


def test_a_guarantee_that_is_none_is_refused(bundle: Path) -> None:
    found = decode((bundle / "model.json").read_bytes())
    odd = msgspec.structs.replace(found, guarantee={"claims": "none"})
    with pytest.raises(DataError, match="guarantee"):
        _ = odd.stated
