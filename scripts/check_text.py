#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Look for faults in text: licences, docstrings, errors, words, links, places of tests.

    scripts/check_text.py [FOLDER]    prints ``file:line: what`` for each, and fails if there is one

No code of the library is imported, so that this takes seconds; ``scripts/check`` calls it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.mirror import unmirrored  # noqa: E402

PACKAGES = ("src/dpfed", "lab/dpfed_lab")


class Finding(NamedTuple):
    """What is wrong, and where."""

    path: Path
    line: int
    what: str


def modules(root: Path) -> list[Path]:
    """The Python files of the packages."""
    found = (
        path
        for each in PACKAGES
        for path in (root / each).rglob("*.py")
        if "benchmarks" not in path.parts  # scripts, whose functions nobody calls
    )
    return sorted(path for path in found if path.parent.name != "theory")  # the papers' letters


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


def _numbered(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a text with their numbers."""
    return enumerate(text.splitlines(), 1)


# ------------------------------------------------------------------------------ each file of code

LICENCE = "# SPDX-License-Identifier: Apache-2.0\n"


def openings(root: Path) -> Iterator[Finding]:
    """A module opens with its licence and a docstring."""
    for path in modules(root):
        if not text_of(path).removeprefix("#!/usr/bin/env python3\n").startswith(LICENCE):
            yield Finding(path, 1, f"the file does not open with {LICENCE.strip()!r}")
        if not ast.get_docstring(tree_of(path)):
            yield Finding(path, 1, "the file has no docstring")


def parameters(node: ast.FunctionDef) -> list[str]:
    """The names of a function's parameters, ``self`` left out."""
    given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    extra = [each for each in (node.args.vararg, node.args.kwarg) if each]
    return [each.arg for each in (*given, *extra) if each.arg not in ("self", "cls", "_")]


def documented(node: ast.FunctionDef) -> set[str]:
    """The parameters that a docstring's section Args names."""
    _, found, section = (ast.get_docstring(node) or "").partition("Args:\n")
    section = re.split(r"\n\n|\n\S", section)[0] if found else ""
    return set(re.findall(r"^\s{4}\*{0,2}(\w+):", section, re.MULTILINE))


def undocumented(root: Path) -> Iterator[Finding]:
    """A public function with three parameters or more says in Args what each of them is."""
    for path in modules(root):
        for node in tree_of(path).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                wanted = parameters(node)
                missing = [each for each in wanted if each not in documented(node)]
                if len(wanted) >= 3 and missing:
                    what = f"{node.name} does not say in Args what it takes: {', '.join(missing)}"
                    yield Finding(path, node.lineno, what)


KEYWORDS_ABOVE = 4
"""Positional arguments that a constructor may get; with more of them a reader has to count."""


def fields_of(root: Path) -> dict[str, int]:
    """How many fields the dataclasses and named tuples have."""
    found = {}
    for path in modules(root):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                kinds = [ast.unparse(each) for each in (*node.decorator_list, *node.bases)]
                if any("dataclass" in kind or kind == "NamedTuple" for kind in kinds):
                    found[node.name] = sum(isinstance(each, ast.AnnAssign) for each in node.body)
    return found


def positional(root: Path) -> Iterator[Finding]:
    """Dataclasses with many fields are made by keywords."""
    known = fields_of(root)
    for path in modules(root):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                texts = all(isinstance(each, ast.Constant) for each in node.args)  # rich's Table
                many = min(known.get(node.func.id, 0), len(node.args)) > KEYWORDS_ABOVE
                if many and not texts:
                    what = f"{node.func.id} gets {len(node.args)} values without their names"
                    yield Finding(path, node.lineno, what)


# ------------------------------------------------------------------------------------------ errors

ERRORS = {
    "RecipeError",
    "UnsoundPlan",
    "Unpriceable",
    "BudgetSpent",
    "DataError",
    "BadRelease",
    "BadReply",
    "Untrusted",
    "RoundAborted",
    "DpfedError",
}
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


def literal(node: ast.expr) -> str | None:
    """A literal message, {} in the place of values."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [each.value if isinstance(each, ast.Constant) else "{}" for each in node.values]
        return "".join(map(str, parts))
    return None


def messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each error's message."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            called = node.func
            name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
            text = literal(node.args[0])
            if name in ERRORS and text is not None and text.strip() != "{}":
                yield node.lineno, text


def faults_of(text: str) -> Iterator[str]:
    """What is wrong with a message: it is "NAME must be BOUND, got VALUE; WAY OUT"."""
    if text[:1].isupper() and not text.startswith(PROPER):
        yield "begins in upper case"
    if text.rstrip().endswith((".", "!", ":")):
        yield "ends with a stop"
    if re.search(r"\bis \{\}[^;]*, (and|but) (it )?must be\b", text):
        yield "does not say 'must be BOUND, got VALUE'"
    if not text.endswith("{}") and "; " not in text:  # what is put in there may have the way out
        yield "has no way out after '; '"


def errors(root: Path) -> Iterator[Finding]:
    """An error is one sentence in one form."""
    for path in modules(root):
        for line, text in messages(tree_of(path)):
            for fault in faults_of(text):
                yield Finding(path, line, f"the error {text!r} {fault}")


# ------------------------------------------------------------------------------------------- words

GONE = {
    "promise": "guarantee",
    "promises": "guarantees",
    "promised": "guaranteed",
    "mended": "fixed",
    "mend": "fix",
    "settled": "statistically significant",
    "shelf": "cache",
    "desk": "responder",
    "diary": "run log",
    "letters": "keys",
    "pads": "masks",
    "seat": "context",
}
_GONE = re.compile(rf"(?<![\w.\"'-])({'|'.join(GONE)})(?![\w\"'-])", re.IGNORECASE)


def words(root: Path) -> Iterator[Finding]:
    """One word for one thing."""
    for path in modules(root):
        for line, text in _numbered(text_of(path)):
            for found in _GONE.finditer(text):
                say = GONE[found[0].lower()]
                yield Finding(path, line, f"the word is {say!r}, not {found[0].lower()!r}")


# ------------------------------------------------------------------------------------------- pages

LINK = re.compile(r"(?:\]\(|src=\"|srcset=\")(?P<target>[^)#\s\"]*)(?P<anchor>#[^)\s\"]+)?[)\"]")
_BLOCK = re.compile(r"^( *```).*?^\1", re.MULTILINE | re.DOTALL)


def pages(root: Path) -> list[Path]:
    """Every page of the repository."""
    folders = ("docs", "results", "lab", "examples", ".github", "release", "src")
    inside = [path for each in folders for path in (root / each).rglob("*.md")]
    return sorted([*root.glob("*.md"), *inside])


@cache
def anchors(path: Path) -> set[str]:
    """The names that mkdocs or a forge gives to a page's headings, and those of its own."""
    titles = re.findall(r"^#+ (.+)$", text_of(path), re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", title.lower()).strip() for title in titles]
    made = {re.sub(space, "-", title) for title in plain for space in (r"[-\s]+", r"\s")}
    own = re.findall(r"(?:id=\"|\{ ?#)([\w-]+)", text_of(path))
    generated = re.findall(r"^::: ([\w.]+)$", text_of(path), re.MULTILINE)
    return {f"#{each}" for each in (*made, *own, *generated)}


def lines_of_prose(text: str) -> Iterator[tuple[int, str]]:
    """Number and text of the lines outside of code blocks."""
    blank = _BLOCK.sub(lambda found: "\n" * found[0].count("\n"), text)
    return _numbered(blank)


def broken(page: Path, target: str, anchor: str) -> str | None:
    """What is wrong with a link of a page."""
    path = page.parent / target if target else page
    if re.match(r"\w+:", target):  # another host's
        return None
    if not path.exists():
        return f"the link leads nowhere: {target}"
    if anchor and path.suffix == ".md" and anchor not in anchors(path):
        return f"the page has no such heading: {target}{anchor}"
    return None


def links(root: Path) -> Iterator[Finding]:
    """Links inside the repository lead somewhere."""
    for page in pages(root):
        for line, text in lines_of_prose(text_of(page)):
            for found in LINK.finditer(text):
                if what := broken(page, found["target"], found["anchor"] or ""):
                    yield Finding(page, line, what)


PATHS_NAMED = {
    "CONTRIBUTING.md": r"`([\w./-]+/[\w./-]+|\w+\.py)[^`\w]*`",
    ".github/pull_request_template.md": r"`([\w./-]+/[\w./-]+)[^`\w]*`",
    "docs/papers.md": r"`((?:tests|scripts|lab)/[\w./-]+)",
}
"""Page for authors -> what a path looks like there."""
_PLACEHOLDER = re.compile(r"ROOM|MODULE|NAME")


def paths(root: Path) -> Iterator[Finding]:
    """The files that a page for authors names are there: in the repository, or in the package."""
    for page, pattern in ((root / name, each) for name, each in PATHS_NAMED.items()):
        text = text_of(page) if page.exists() else ""
        for line, found in ((n, m) for n, t in _numbered(text) for m in re.findall(pattern, t)):
            there = any((top / found).exists() for top in (root, root / "src" / "dpfed"))
            if not there and not _PLACEHOLDER.search(found):
                yield Finding(page, line, f"there is no {found}")


def overview(root: Path) -> Iterator[Finding]:
    """results/README.md has one line for each folder, and for each study with results."""
    page = root / "results" / "README.md"
    if not page.exists():  # a source archive has no results
        return
    own = {path.name: path.name for path in page.parent.glob("*/") if path.name != "images"}
    studies = (root / "lab" / "studies").glob("*/results")
    own |= {path.parent.name: f"../lab/studies/{path.parent.name}/results" for path in studies}
    for name, place in sorted(own.items()):
        said = re.findall(rf"(?m)^- \[{name}\]\({place}/\S+\): .+$", text_of(page))
        if len(said) != 1:
            yield Finding(page, 1, f"{len(said)} lines of 'The folders' are about {name}")


ROOMS_OF_PLUG_INS = ("client", "mechanisms", "sums", "server", "metrics")
FOR_OTHER_PACKAGES = {"chain", "testing"}


def plug_ins(root: Path) -> Iterator[Finding]:
    """Where a page says "Plug-ins build on ...", it names the modules of core that they import."""
    core = root / "src" / "dpfed" / "core"
    texts = [
        text_of(path) for room in ROOMS_OF_PLUG_INS for path in (core.parent / room).glob("*.py")
    ]
    used = {name for text in texts for name in re.findall(r"from dpfed\.core\.(\w+)", text)}
    for page in (root / "docs" / "design.md", root / "docs" / "api.md", core / "__init__.py"):
        before, found, after = (text_of(page) if page.exists() else "").partition(
            "Plug-ins build on "
        )
        said = set(re.findall(r"\w+", after.replace("\n", " ").partition(". ")[0]))
        modules_named = said & {path.stem for path in core.glob("*.py")}
        if found and modules_named != used | FOR_OTHER_PACKAGES:
            wrong = ", ".join(sorted(modules_named ^ (used | FOR_OTHER_PACKAGES)))
            line = before.count("\n") + 1
            yield Finding(page, line, f"'Plug-ins build on' is wrong about {wrong}")


def mirror(root: Path) -> Iterator[Finding]:
    """A module's tests are found by its name."""
    for module, what in unmirrored(root):
        yield Finding(root / "src" / "dpfed" / module, 1, what)


CHECKS: tuple[Callable[[Path], Iterable[Finding]], ...] = (
    openings,
    undocumented,
    positional,
    errors,
    words,
    links,
    paths,
    overview,
    plug_ins,
    mirror,
)


def findings(root: Path) -> list[Finding]:
    """All that is wrong with the text of a repository."""
    return [found for check in CHECKS for found in check(root)]


def main(folder: str = str(ROOT)) -> None:
    """Print what is found, and fail if that is anything."""
    root = Path(folder).resolve()
    found = findings(root)
    for each in found:
        print(f"{each.path.relative_to(root)}:{each.line}: {each.what}")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
