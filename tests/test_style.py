# SPDX-License-Identifier: Apache-2.0
"""How the code speaks: parameters that are documented, errors of one form, the house's words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "dpfed"
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}
NAMES = {str(path.relative_to(SOURCE)): path for path in TREES}

# --------------------------------------------------------------------------------- parameters


def parameters(node: ast.FunctionDef) -> list[str]:
    """The names of a function's parameters, ``self`` left out."""
    given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    extra = [each for each in (node.args.vararg, node.args.kwarg) if each]
    return [each.arg for each in (*given, *extra) if each.arg not in ("self", "cls", "_")]


def public_functions(path: Path) -> Iterator[ast.FunctionDef]:
    for node in TREES[path].body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node


def documented(node: ast.FunctionDef) -> set[str]:
    """The parameters that a docstring's section Args names."""
    text = ast.get_docstring(node) or ""
    _, found, section = text.partition("Args:\n")
    section = re.split(r"\n\n|\n\S", section)[0] if found else ""
    return set(re.findall(r"^\s{4}\*{0,2}(\w+):", section, re.MULTILINE))


@pytest.mark.parametrize("name", NAMES)
def test_public_functions_document_their_parameters(name: str) -> None:
    """Three parameters or more: each has a line with its unit, its range and what None means."""
    for node in public_functions(NAMES[name]):
        wanted = parameters(node)
        if len(wanted) >= 3:
            missing = [each for each in wanted if each not in documented(node)]
            assert not missing, f"{name}:{node.lineno} {node.name}: {missing}"


# ------------------------------------------------------------------------------------- errors

ERRORS = {
    "RecipeError", "UnsoundPlan", "Unpriceable", "BudgetSpent", "DataError", "BadRelease",
    "BadReply", "Untrusted", "RoundAborted", "DpfedError",
}  # fmt: skip
PROPER = (
    "Flower",
    "Opacus",
    "OpenSSH",
    "RDP",
    "PLD",
    "SuperLink",
    "SuperNode",
    "DPStrategy",
    "TLS",
)


def text_of(node: ast.expr) -> str | None:
    """A literal message, {} in the place of values."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [each.value if isinstance(each, ast.Constant) else "{}" for each in node.values]
        return "".join(map(str, parts))
    return None


def messages(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            called = node.func
            name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
            text = text_of(node.args[0])
            if name in ERRORS and text is not None and text.strip() != "{}":
                yield node.lineno, name, text


@pytest.mark.parametrize("name", NAMES)
def test_an_error_is_one_sentence_in_one_form(name: str) -> None:
    """Lower case, no full stop, "NAME must be BOUND, got VALUE", then the way out."""
    for line, _, text in messages(TREES[NAMES[name]]):
        where = f"{name}:{line} {text!r}"
        assert not text[:1].isupper() or text.startswith(PROPER), f"{where}: begins in upper case"
        assert not text.rstrip().endswith((".", "!", ":")), f"{where}: ends with a stop"
        assert not re.search(r"\bis \{\}[^;]*, (and|but) (it )?must be\b", text), f"{where}: got?"
        if not text.endswith("{}"):  # what is put in there may have the way out
            assert "; " in text, f"{where}: no way out"


# -------------------------------------------------------------------------------------- words

GONE = {
    "promise": "guarantee", "promises": "guarantees", "promised": "guaranteed",
    "mended": "fixed", "mend": "fix", "settled": "statistically significant",
    "shelf": "cache", "desk": "responder", "diary": "run log", "letters": "keys",
    "pads": "masks", "seat": "context",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_the_houses_words(name: str) -> None:
    """One word for one thing: what stands on the left is not said any more."""
    text = NAMES[name].read_text(encoding="utf-8").lower()
    found = {word for word in GONE if re.search(rf"(?<![\w.\"'-]){word}(?![\w\"'-])", text)}
    assert not found, {word: GONE[word] for word in found}
