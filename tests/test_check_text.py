# SPDX-License-Identifier: Apache-2.0
"""scripts/check_text.py finds a fault of each kind, at its line, and nothing in a sound tree."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

import tests.mirror
from scripts import check_text

LICENCE = "# SPDX-License-Identifier: Apache-2.0\n"
SOUND = {
    "src/dpfed/core/__init__.py": LICENCE
    + '"""Plug-ins build on chain, rows and testing. More."""\n',
    "src/dpfed/core/rows.py": LICENCE
    + '"""Rows."""\n\nraise DataError("rows must be 1, got 2; add one")\n',
    "src/dpfed/core/chain.py": f'{LICENCE}"""Chains."""\n',
    "src/dpfed/core/testing.py": f'{LICENCE}"""Laws."""\n',
    "src/dpfed/client/one.py": f'{LICENCE}"""One."""\n\nfrom dpfed.core.rows import Row\n',
    "tests/core/test_rows.py": "",
    "tests/core/test_chain.py": "",
    "tests/core/test_testing.py": "",
    "tests/client/test_one.py": "",
    "README.md": "# Title\n\n[a page](docs/page.md#a-heading), [here](#title), [there](https://x.example)\n",
    "docs/page.md": "# A heading\n\n```python\n[0](1)\n```\n",
    "CONTRIBUTING.md": "Read `core/rows.py` and `tests/core/test_rows.py`.\n",
    "results/README.md": "- [study](study/table.csv): one.\n",
    "results/study/table.csv": "",
}


class Plant(NamedTuple):
    """A text put at the end of a file, or a file that is made or taken away."""

    file: str
    text: str | None
    line: int
    said: str
    """What the finding names."""


ARGS = '\n\ndef scale(a, b, c):\n    """.\n\n    Args:\n        a: one.\n        c: two.\n    """\n'
MANY = "\n\nclass Many(NamedTuple):\n" + "".join(f"    f{i}: int\n" for i in range(5))
PLANTS = {
    "no licence": Plant("src/dpfed/server/two.py", '"""Two."""\n', 1, "SPDX"),
    "no docstring": Plant("src/dpfed/server/two.py", LICENCE, 1, "docstring"),
    "a parameter": Plant("src/dpfed/core/rows.py", ARGS, 7, "scale does not say in Args .*: b$"),
    "positional": Plant("src/dpfed/core/rows.py", f"{MANY}\nMany(x, 2, 3, 4, 5)\n", 14, "Many"),
    "upper case": Plant("src/dpfed/core/rows.py", 'DataError("No; x")\n', 5, "upper case"),
    "a stop": Plant("src/dpfed/core/rows.py", 'DataError("no; x.")\n', 5, "stop"),
    "no bound": Plant(
        "src/dpfed/core/rows.py", 'DataError(f"a is {x}, but must be 1; x")\n', 5, "got"
    ),
    "no way out": Plant("src/dpfed/core/rows.py", 'DataError("no rows")\n', 5, "way out"),
    "a word": Plant("src/dpfed/core/rows.py", "# one promise\n", 5, "'guarantee'"),
    "a link": Plant("README.md", "[b](nowhere.md)\n", 4, "nowhere.md"),
    "a picture": Plant("README.md", '<img src="nowhere.png">\n', 4, "nowhere.png"),
    "a heading": Plant("README.md", "[b](docs/page.md#lost)\n", 4, "#lost"),
    "a path": Plant("CONTRIBUTING.md", "Also `core/lost.py`.\n", 2, "core/lost.py"),
    "a folder": Plant("results/other/table.csv", "", 1, "other"),
    "plug-ins": Plant("src/dpfed/client/one.py", "from dpfed.core.grid import g\n", 2, "grid"),
    "no tests": Plant("tests/client/test_one.py", None, 1, "tests/client/test_one.py"),
}
FOUND_IN = {
    "a folder": "results/README.md",
    "plug-ins": "src/dpfed/core/__init__.py",
    "no tests": "src/dpfed/client/one.py",
}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository in which nothing is wrong."""
    monkeypatch.setattr(tests.mirror, "ELSEWHERE", {})
    for name, text in SOUND.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_nothing_is_found_in_a_sound_tree(tree: Path) -> None:
    assert check_text.findings(tree) == []


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_fault_is_found(
    name: str, tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant = PLANTS[name]
    path = tree / plant.file
    if plant.text is None:
        path.unlink()
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        path.write_text(before + plant.text, encoding="utf-8")
    if path.name == "two.py":
        (tree / "tests/server").mkdir()
        (tree / "tests/server/test_two.py").touch()
    if name == "plug-ins":
        (tree / "src/dpfed/core/grid.py").write_text(f'{LICENCE}"""Grids."""\n')
        (tree / "tests/core/test_grid.py").touch()
    with pytest.raises(SystemExit) as ended:
        check_text.main(str(tree))
    (said,) = capsys.readouterr().out.splitlines()
    assert ended.value.code == 1
    assert said.startswith(f"{FOUND_IN.get(name, plant.file)}:{plant.line}: ")
    assert re.search(plant.said, said)


def test_a_module_elsewhere(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no file of its own name, and is mentioned in the one that the map has for it."""
    monkeypatch.setattr(tests.mirror, "ELSEWHERE", {"client/one.py": ("core/test_rows.py",)})
    said = [each.what for each in check_text.findings(tree)]
    assert [any(word in each for each in said) for word in ("take it out", "mention")] == [True] * 2
    (tree / "tests/client/test_one.py").unlink()
    (tree / "tests/core/test_rows.py").write_text("one")
    assert check_text.findings(tree) == []


def test_a_modules_tests_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    tests.mirror.main("sums/secure.py", "src/dpfed/core/sum_protocol.py")
    said = capsys.readouterr().out.split()
    assert said == ["tests/sums/test_secure.py", "tests/sums/test_plain.py", said[0]]
    with pytest.raises(SystemExit, match=r"sums/nothing\.py"):
        tests.mirror.main("sums/nothing.py")
