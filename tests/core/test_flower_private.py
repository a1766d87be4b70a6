# SPDX-License-Identifier: Apache-2.0
"""Flower's private names: one file uses them, and they still do there what dpfed needs.

Public is what Flower's own ``__all__`` lists, module by module from ``flwr`` down. The last tests
are to run on each Flower that dpfed supports: ``scripts/test-flower VERSION --beside``.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from dpfed.core import flower_private
from dpfed.core.flower_private import from_bytes, to_bytes

ROOT = Path(__file__).parents[2]
ADAPTER = ROOT / "src/dpfed/core/flower_private.py"
FOLDERS = ("src", "lab", "tests", "scripts", "examples", "docs")
WARMED = ROOT / "tests/training/flower/preloaded.py"
"""Loads modules of Flower before its commands do, if they are there, and uses no name of them."""
RELEASE = tuple(map(int, version("flwr").split(".")[:2]))
LINES = re.compile(
    r"^[ \t>+.]*(?:from (?P<home>flwr[\w.]*) import (?P<names>\([^)]*\)|[^\n#;]+)"
    r"|import (?P<module>flwr[\w.]*))",
    re.MULTILINE,
)
"""An import, also in the text of an app, of a page or of a diff."""


def is_public(name: str) -> bool:
    """Whether Flower lists each part of a dotted name in the ``__all__`` of what it is in."""
    found = import_module("flwr")
    for part in name.split(".")[1:]:
        if part not in getattr(found, "__all__", ()):
            return part == "__version__"
        found = getattr(found, part)
    return True


def named(text: str) -> Iterator[str]:
    """What of Flower a text imports, as dotted names."""
    for line in LINES.finditer(text):
        if line["module"]:
            yield line["module"]
        for each in re.findall(r"\w+", re.sub(r" as \w+|#.*", "", line["names"] or "")):
            yield f"{line['home']}.{each}"


def used(code: str) -> Iterator[str]:
    """What of Flower a file of code names by attribute, or by a text as for ``import_module``."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute) and (dotted := _dotted(node)).startswith("flwr."):
            yield dotted
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"\Aflwr(?:\.\w+)+\Z", node.value)


def _dotted(node: ast.expr) -> str:
    """The text of names joined by dots; of any other expression nothing."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def private(text: str, code: bool = True) -> set[str]:
    """The private names of Flower in a text."""
    found = {*named(text), *(used(text) if code else ())}
    return {name for name in found if not is_public(name)}


def test_no_other_file_imports_a_private_name_of_flower() -> None:
    kinds, seen = (".py", ".md", ".template", ".toml", ".sh", ""), set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix not in kinds or "results" in path.parts or not path.is_file():
                continue
            text = path.read_text(encoding="utf-8", errors="ignore")
            if "flwr" not in text or path in (ADAPTER, WARMED, Path(__file__)):
                continue
            seen.add(path)
            assert not private(text, path.suffix == ".py"), path
    assert len(seen) > 80
    assert private(ADAPTER.read_text(encoding="utf-8"))  # what is looked for can be found


@pytest.mark.parametrize(
    "code",
    [
        "from flwr.common.serde import recorddict_to_proto",
        "from flwr.common import ndarrays_to_parameters as there",
        "    from flwr.app import (\n    Message,\n    message,\n)",
        "import flwr.proto.recorddict_pb2 as pb",
        "import flwr\nprint(flwr.common.logger)",
        "import_module('flwr.supercore.task_identity')",
        "APP = '''\nfrom flwr.server.strategy import FedAvg\n'''",
        "from flwr import simulation",
        "from flwr.serverapp.exception import PrivacyBudgetExhausted",
    ],
)
def test_a_private_import_is_noticed(code: str) -> None:
    assert private(code.removeprefix("    "))


@pytest.mark.parametrize(
    "code",
    [
        "from flwr.app import Message, RecordDict  # as public as can be",
        "from flwr.serverapp.strategy import FedAvg",
        "from flwr.clientapp.mod import LocalDpMod",
        "import flwr.app",
        "import flwr\nprint(flwr.__version__, flwr.app.Message)",
    ],
)
def test_a_public_one_is_not(code: str) -> None:
    assert not private(code)


# ----------------------------------------------------------------- on each Flower that is supported


def everything() -> RecordDict:
    """One of each kind of record, and of each kind of value."""
    numbers = Array(np.arange(6, dtype=np.float32).reshape(2, 3))
    grid = Array("uint8", (3,), "dpfed.grid", b"\x00\x01\xff")
    config = ConfigRecord(
        {"text": "ä", "flag": True, "number": -3, "half": 0.5, "raw": b"\x00", "list": [b"", b"x"]}
    )
    return RecordDict(
        {
            "arrays": ArrayRecord({"layer.weight": numbers, "grid": grid}),
            "metrics": MetricRecord({"loss": 0.25, "counts": [1, 2]}),
            "dpfed": config,
            "empty": ConfigRecord(),
        }
    )


def test_records_come_back_as_they_were() -> None:
    sent, found = everything(), from_bytes(to_bytes(everything()))
    assert list(found) == list(sent)
    for name, record in sent.items():
        assert type(found[name]) is type(record)
        assert dict(found[name]) == dict(record)
    assert from_bytes(b"") == RecordDict()


ENCODED = (
    "0a2f0a057265706c7912260a240a06757064617465121a0a0575696e74381201021a0a64706665642e677269642202"
    "01020a160a056470666564220d0a0b0a05726f756e6412021006"
)
"""Written by 1.41.0."""


def test_the_bytes_are_the_same_in_every_version() -> None:
    """A relay and its gate may run two versions of Flower: what one writes the other reads."""
    content = RecordDict(
        {
            "reply": ArrayRecord({"update": Array("uint8", (2,), "dpfed.grid", b"\x01\x02")}),
            "dpfed": ConfigRecord({"round": 3}),
        }
    )
    assert to_bytes(content).hex() == ENCODED
    assert from_bytes(bytes.fromhex(ENCODED)) == content


@pytest.mark.parametrize("raw", [b"no records", b"\xff" * 20, b"\x0a\x05\x0a\x01a"])
def test_what_is_not_a_record_is_an_exception(raw: bytes) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011 (whatever kind protobuf or Flower raises)
        from_bytes(raw)


CODE = """
import sys
from flwr.app import Message, RecordDict
from dpfed.core.flower_private import become_node, from_bytes, to_bytes
from_bytes(to_bytes(RecordDict()))
assert "torch" not in sys.modules
become_node(7)
message = Message(RecordDict(), dst_node_id=2, message_type="train")
assert (message.metadata.run_id, message.metadata.src_node_id) == (7, 7)
"""


@pytest.mark.slow
def test_a_process_becomes_a_node_and_loads_no_torch() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True)


def test_every_name_of_the_table_is_there() -> None:
    for name, home in flower_private.HOMES.items():
        if home.startswith("flwr.supernode") and RELEASE < (1, 40):
            assert find_spec(home) is None  # stand-in devices need a newer one
        else:
            assert callable(getattr(flower_private, name)), name


def test_another_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'serde'"):
        flower_private.serde  # noqa: B018
