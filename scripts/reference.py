#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/reference.md: every field of a recipe, a study and a policy, from the code that reads them.

scripts/reference.py            writes the page; tests/test_reference.py holds it to the code
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference.md"
PLACES = {
    "A recipe": (
        "dpfed.recipes.schema",
        {
            "Recipe": "",
            "DataRecipe": "data",
            "PartitionRecipe": "data.partition",
            "FileMapping": "data.mapping",
            "ModelRecipe": "model",
            "PrivacyRecipe": "privacy",
            "EvaluationRecipe": "evaluation",
            "AdaptiveRecipe": "privacy.adaptive",
            "LedgerRecipe": "ledger",
        },
    ),
    "A contract (data.contract, terms.contract, or a file)": (
        "dpfed.data.contract",
        {"Contract": "", "Column": "columns", "Label": "label"},
    ),
    "A study": (
        "dpfed_lab.study",
        {
            "Study": "",
            "Axis": "[axes]",
            "Contestant": "[methods]",
            "Tuning": "tune",
            "Final": "final",
        },
    ),
    "A policy (silo.toml)": (
        "dpfed.silo.policy",
        {
            "GatePolicy": "gate",
            "DataPolicy": "data.NAME",
            "PretrainedPolicy": "data.NAME.pretrained.SOURCE",
            "BlocksPolicy": "data.NAME.blocks",
        },
    ),
}


class Field(NamedTuple):
    """One line of the page."""

    name: str
    value: str
    words: str


def fields(struct: type[msgspec.Struct]) -> Iterator[Field]:
    """A struct's fields; the string below one says what it means."""
    (node,) = ast.parse(inspect.getsource(struct)).body
    defaults = {each.name: _default(each) for each in msgspec.structs.fields(struct)}
    assert isinstance(node, ast.ClassDef)  # noqa: S101 (a type checker's)
    for each, below in pairwise([*node.body, ast.Pass()]):
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            words = ""
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                words = " ".join(str(below.value.value).split()).replace("``", "`")
            name = each.target.id
            kind = _kind(each.annotation)
            value = defaults[name] if defaults[name] is not None else f"{kind}, required"
            yield Field(name, value or kind, words)


def _kind(annotation: ast.expr) -> str:
    """A type in a reader's words."""
    text = re.sub(r" \| (msgspec\.UnsetType|None)", "", ast.unparse(annotation))
    names = r"\b(PlugIn|\w+Recipe|Tuning|Final|Contract|Label|FileMapping|dict)\b"
    text = re.sub(names, "table", text).replace("tuple[Column, ...]", "list")
    text = text.replace("tuple[float, float]", "[low, high]")
    text = re.sub(r"\b(list|table)\[.*\]", r"\1", text.replace("dt.date", "date"))
    words = {
        "str": "text",
        "int": "integer",
        "float": "number",
        "Missing": "text",
        "Kind": "text",
        " | ": " or ",
    }
    for code, word in words.items():
        text = text.replace(code, word)
    return text


def _default(field: msgspec.structs.FieldInfo) -> str | None:
    """As a file would write it; empty for a table of its own or an unset field."""
    if field.required:
        return None
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    if value is None or isinstance(value, msgspec.Struct | msgspec.UnsetType):
        return ""
    return f"`{json.dumps(msgspec.to_builtins(value))}`"


def page() -> str:
    """The whole page."""
    lines = [
        "# Every field",
        "",
        "Here you can look up every key of a recipe, a study and a policy. The value is the "
        "default, or the type. Unknown keys are refused. `dpfed methods --plug-ins` lists the "
        "options of plug-ins. `scripts/reference.py` generates this page from the code.",
        "",
    ]
    for title, (module, structs) in PLACES.items():
        lines += [f"## {title}", ""]
        for struct, table in structs.items():
            lines += [f"### `[{table}]`" if table else "### At the top", ""]
            lines += ["| key | value | meaning |", "|---|---|---|"]
            found = fields(getattr(import_module(module), struct))
            lines += [_line(each) for each in found if not _has_own_table(each.name, structs)]
            lines.append("")
    return "\n".join(lines)


def _has_own_table(name: str, structs: dict[str, str]) -> bool:
    """Whether a table of the page is this field, and says more of it than a line could."""
    return name in {table.strip("[]").rpartition(".")[2] for table in structs.values()}


def _line(each: Field) -> str:
    return f"| `{each.name}` | {each.value} | {each.words.replace('|', '/')} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
