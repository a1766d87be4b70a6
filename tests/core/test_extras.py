# SPDX-License-Identifier: Apache-2.0
"""A missing package is one sentence with the command, wherever it is needed; a run is not lost."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dpfed import run
from dpfed.core import extras
from dpfed.core.errors import MissingExtra
from dpfed.data.datasets import load

HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""
TINY = {
    "method": "dp-fedgd",
    "rounds": 1,
    "data": {
        "source": "synthetic",
        "options": {"records": 60, "features": 3, "classes": 2},
        "partition": {"clients": 3},
    },
    "privacy": {"epsilon": 2.0},
}


def without(
    hidden: tuple[str, ...], code: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Python in which these packages are not installed."""
    command = [sys.executable, "-c", HIDE.format(hidden=hidden) + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_relay_needs_neither_torch_nor_an_extra() -> None:
    hidden = ("torch", "matplotlib", "pyarrow", "PIL", "scipy", "dp_accounting", "msgspec", "ray")
    code = "import dpfed.flower\ndpfed.flower.silo_app()\nfrom dpfed.silo.relay import app"
    done = without(hidden, code)
    assert done.returncode == 0, done.stderr
    assert without(hidden, "import torch").returncode != 0  # they are hidden indeed


@pytest.mark.slow
def test_all_that_a_silo_needs_is_there_without_the_extras(tmp_path: Path) -> None:
    code = f"""
import dpfed, dpfed.flower, dpfed.cli.main, dpfed.silo.gate, dpfed.audit.report
for name in dpfed.flower.__all__: getattr(dpfed.flower, name)
print(dpfed.run({TINY!r}, out={str(tmp_path / "out")!r}))
"""
    done = without(("matplotlib", "pyarrow", "PIL", "ray", "opacus", "optuna"), code)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("pip install 'dpfed[plots]'") == 1
    assert json.loads((tmp_path / "out" / "guarantee.json").read_text())["epsilon"] <= 2.0
    assert not (tmp_path / "out" / "convergence.png").exists()


def image_folder(folder: Path) -> Path:
    (folder / "train" / "one").mkdir(parents=True)
    (folder / "train" / "one" / "a.png").write_bytes(b"not opened")
    return folder


def table(folder: Path) -> Path:
    (folder / "x.csv").write_text("a,y\n1,0\n2,1\n")
    return folder / "x.csv"


@pytest.mark.parametrize(
    ("module", "extra", "package", "make"),
    [("pyarrow", "tables", "pyarrow", table), ("PIL", "images", "pillow", image_folder)],
)
def test_data_of_a_kind_that_is_not_installed(
    module: str,
    extra: str,
    package: str,
    make: Callable[[Path], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = make(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra) as caught:
        load(source)
    assert f" needs {package}, which cannot be imported (" in str(caught.value)
    assert str(caught.value).endswith(f"); pip install 'dpfed[{extra}]'")


def test_a_picture_that_is_asked_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(TINY)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"a picture needs matplotlib, .*'dpfed\[plots\]'$"):
        result.plot()


def test_files_beside_a_result_are_left_out_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    result = run(TINY)
    extras._say_once.cache_clear()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with caplog.at_level(logging.WARNING, logger="dpfed"):
        for name in ("a", "b"):
            assert (result.save(tmp_path / name) / "guarantee.json").exists()
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "pictures are left out"
    ]


def test_any_other_error_is_not_an_extra_that_is_missing() -> None:
    with pytest.raises(ZeroDivisionError), extras.skip_if_missing("pictures"):
        _ = 1 / 0


@pytest.mark.long
@pytest.mark.slow
def test_a_study_without_plots_is_refused_before_its_first_run(tmp_path: Path) -> None:
    code = "from dpfed.cli.main import main\nmain()"
    done = without(
        ("matplotlib",), code, "reproduce", "sofim-cifar10", "--out", str(tmp_path / "o")
    )
    assert done.returncode == 2, done.stderr
    assert "pip install 'dpfed[plots]'" in " ".join(done.stderr.split())
    assert not (tmp_path / "o").exists()
