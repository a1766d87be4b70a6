# SPDX-License-Identifier: Apache-2.0
"""What the design says about the tree, held by tests. Import contracts are in scripts/check."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "dpfed"
FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_opens_with_its_licence_and_a_docstring(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# SPDX-License-Identifier: Apache-2.0\n")
    assert ast.get_docstring(ast.parse(text))


DESIGN = (SOURCE.parent.parent / "docs" / "design.md").read_text(encoding="utf-8")


def test_the_design_has_the_contract_inside_of_training() -> None:
    settings = tomllib.loads((SOURCE.parent.parent / "pyproject.toml").read_text(encoding="utf-8"))
    found = settings["tool"]["importlinter"]["contracts"]
    (layers,) = [each["layers"] for each in found if each["name"] == "Inside of training"]
    assert f"Inside of training: `{' > '.join(layers)}`." in DESIGN


@pytest.mark.parametrize("page", ["docs/design.md", "docs/api.md", "src/dpfed/core/__init__.py"])
def test_what_plug_ins_build_on_is_what_they_import(page: str) -> None:
    rooms = ("client", "mechanisms", "sums", "server", "metrics")
    texts = [path.read_text("utf-8") for room in rooms for path in (SOURCE / room).glob("*.py")]
    wanted = {name for text in texts for name in re.findall(r"from dpfed\.core\.(\w+)", text)}
    text = (SOURCE.parent.parent / page).read_text(encoding="utf-8").replace("\n", " ")
    said = set(re.findall(r"\w+", text.partition("Plug-ins build on ")[2].partition(". ")[0]))
    modules = {path.stem for path in (SOURCE / "core").glob("*.py")}
    assert said & modules == {*wanted, "chain", "testing"}  # for those of other packages


@pytest.mark.slow
def test_importing_the_package_loads_no_heavy_library() -> None:
    heavy = "{'torch', 'dp_accounting', 'numpy'}"
    code = f"import dpfed, dpfed.core.types, sys; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_no_generator_of_torch_or_numpy_makes_noise() -> None:
    """Noise comes from randomness.py; partitions, which are public, may use numpy's generator."""
    for path in FILES:
        if path.parent.name == "data":
            continue
        text = path.read_text(encoding="utf-8")
        for banned in ("torch.randn", "torch.normal", "np.random", "numpy.random", "import random"):
            assert banned not in text, (path, banned)


def test_server_code_has_no_path_to_data() -> None:
    for path in (SOURCE / "server").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        for banned in (
            "dpfed.data",
            "dpfed.core.rows",
            "dpfed.client",
            "Problem",
            "Rows",
            "Release",
        ):
            assert banned not in text, (path, banned)


def test_the_public_names_load() -> None:
    import dpfed

    for name in dpfed.__all__:
        assert getattr(dpfed, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'runn'"):
        _ = dpfed.runn  # type: ignore[attr-defined]


# ------------------------------------------------------------------------- one name, one home

TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


def fields_of() -> dict[str, int]:
    """How many fields the dataclasses and named tuples have."""
    found = {}
    for tree in TREES.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                kinds = [ast.unparse(each) for each in (*node.decorator_list, *node.bases)]
                if any("dataclass" in kind or kind == "NamedTuple" for kind in kinds):
                    found[node.name] = sum(isinstance(each, ast.AnnAssign) for each in node.body)
    return found


def test_constructors_with_more_than_four_fields_are_called_by_keywords() -> None:
    known, wrong = fields_of(), []
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                texts = all(isinstance(each, ast.Constant) for each in node.args)  # rich's Table
                if known.get(node.func.id, 0) > 4 and len(node.args) > 4 and not texts:
                    wrong.append(f"{path.name}:{node.lineno} {node.func.id}")
    assert wrong == []


def test_nothing_grows_inside_of_a_frozen_state() -> None:
    """States of the round hold mappings and tuples; what grows while a sum goes on is no state."""
    for name in ("training/round.py", "training/loop.py", "sums/secagg/server.py", "sums/plain.py"):
        for node in ast.walk(TREES[SOURCE / name]):
            frozen = isinstance(node, ast.ClassDef) and any(
                "frozen=True" in ast.unparse(each) for each in node.decorator_list
            )
            public = frozen and not node.name.startswith("_")  # type: ignore[attr-defined]
            for each in node.body if public else ():  # type: ignore[attr-defined]
                if isinstance(each, ast.AnnAssign):
                    kind = ast.unparse(each.annotation)
                    assert not kind.startswith(("dict", "list", "set")), (name, kind)
