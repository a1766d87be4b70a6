# SPDX-License-Identifier: Apache-2.0
"""Which kept figures are of code that has changed since, by ``scripts/check`` or as a module.

    python -m dpfed_lab.benchmarks._freshness            says which are stale, as a warning
    python -m dpfed_lab.benchmarks._freshness --strict   exits with 1 if any is: for a release

A benchmark names the modules that it measures, ``MEASURES``. A digest of their code is stored
beside its figures, and compared with the code as it is now. Dates would not do: a clone may have no
history, and formatting, comments, docstrings and moves change a file's date but not its speed. The
digest is of the syntax tree without docstrings and imports; where a module lies is not in it.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
KEPT = Path("results") / "benchmarks"


def measures(name: str, root: Path = ROOT) -> tuple[str, ...]:
    """The modules that a benchmark says it measures; read, not imported, since that takes torch."""
    tree = ast.parse(
        (root / "lab" / "dpfed_lab" / "benchmarks" / f"{name}.py").read_text(encoding="utf-8")
    )
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MEASURES":
            return tuple(ast.literal_eval(node.value))
    raise LookupError(
        f"lab/dpfed_lab/benchmarks/{name}.py has no MEASURES; name the modules that it measures"
    )


def digest(name: str, root: Path = ROOT) -> str:
    """Of the code that a benchmark measures, as it is now."""
    found = sorted(_code(_source(module, root)) for module in measures(name, root))
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:16]


def _source(module: str, root: Path) -> str:
    place = root.joinpath("src", *module.split("."))
    files = [place.with_suffix(".py"), place / "__init__.py"]
    for path in files:
        if path.exists():
            return path.read_text(encoding="utf-8")
    raise LookupError(f"there is no module {module}; correct MEASURES of the benchmark")


def _code(source: str) -> str:
    """The syntax tree without docstrings and imports."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list):
                setattr(node, field, [each for each in body if not _is_no_code(each)])
    return ast.dump(tree)


def _is_no_code(node: ast.AST) -> bool:
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return text or isinstance(node, ast.Import | ast.ImportFrom)


def stale(root: Path = ROOT) -> Iterator[str]:
    """A sentence for each benchmark whose kept figures are of other code, with the command."""
    for path in sorted((root / KEPT).glob("*.json")):
        kept = json.loads(path.read_text(encoding="utf-8"))
        names = list(kept["results"]) if "results" in kept else []
        then = kept.get("measured", {})
        old = [name for name in names if then.get(name) != digest(name, root)]
        if old:
            command = f"scripts/bench {' '.join(names)} --json {KEPT / path.name}"
            said = "is of other code for" if then else "does not say which code it is of, for"
            yield f"{KEPT / path.name} {said} {', '.join(old)}; run {command}"


def without_digest(root: Path = ROOT) -> Iterator[Path]:
    """Kept figures that do not say of which code; results/benchmarks/README.md has a list."""
    for path in sorted((root / "results").rglob("*.json")):
        kept = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(kept, dict) and "measured" not in kept:
            yield path


def main() -> int:
    """Print what is stale."""
    found = list(stale())
    for each in found:
        sys.stderr.write(f"benchmarks: {each}\n")
    return 1 if found and "--strict" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
