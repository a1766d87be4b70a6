# SPDX-License-Identifier: Apache-2.0
"""results/: pictures show the committed runs."""

from __future__ import annotations

import html
import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.claims.devices import users_ahead
from tests.claims.files import RESULTS, ROOT, ends, lead
from tests.claims.other_methods import auto_ten, persons
from tests.claims.second_order import on_adult, on_fashion
from tests.claims.sofim import correlated, trusts

mpl = pytest.importorskip("matplotlib")
pytestmark = pytest.mark.skipif(not RESULTS.exists(), reason="an sdist has no results")

IMAGES = RESULTS / "images"
SHOWN = re.compile(r"!\[([^]]*)\]\(images/([\w-]+)\.svg\)")


def overview() -> str:
    return (RESULTS / "README.md").read_text(encoding="utf-8")


# ------------------------------------------------------------------------------------- pictures


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "lab/scripts/results_figures.py"))


@pytest.fixture(scope="module")
def points(script: dict[str, Any]) -> dict[str, Any]:
    """Of every picture, from the runs."""
    return {name: read() for name, (read, _) in script["FIGURES"].items()}


def drawn(path: Path) -> Any:
    """The points that a picture says it shows."""
    found = re.search(r"<dc:description>(.*?)</dc:description>", path.read_text("utf-8"), re.DOTALL)
    assert found
    return json.loads(html.unescape(found[1]))


def test_each_answer_has_a_picture_with_words(script: dict[str, Any]) -> None:
    answers = re.split(r"(?m)^### \d\. ", overview())[1:]
    found = [SHOWN.findall(answer) for answer in answers]
    assert all(len(each) == 1 and len(each[0][0]) > 50 for each in found)
    assert [each[0][1] for each in found] == list(script["FIGURES"])
    assert {path.stem for path in IMAGES.iterdir()} == set(script["FIGURES"])
    assert max(path.stat().st_size for path in IMAGES.iterdir()) < 60_000


def test_pictures_show_the_committed_runs(script: dict[str, Any], points: dict[str, Any]) -> None:
    for name in script["FIGURES"]:
        now = json.loads(script["described"](points[name]))
        assert drawn(IMAGES / f"{name}.svg") == now, "run lab/scripts/results_figures.py"


def test_a_run_that_changes_is_noticed(script: dict[str, Any]) -> None:
    read, _ = script["FIGURES"]["persons"]
    kept = script["runs"]("silos", "DP-FedGD")
    row = next(
        row for row in kept if (row["epsilon"], row["silos"]) == ("5", "activity, 30 subjects")
    )
    kept.append({**row, "accuracy": str(float(row["accuracy"]) + 0.1)})
    try:
        assert json.loads(script["described"](read())) != drawn(IMAGES / "persons.svg")
    finally:
        kept.pop()


@pytest.mark.slow
def test_the_script_draws_the_committed_pictures(
    script: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte, where matplotlib is the version that drew them."""
    made_by = set(re.findall(r"Matplotlib v([\d.]+),", (IMAGES / "tuned.svg").read_text("utf-8")))
    if made_by != {mpl.__version__}:
        pytest.skip(f"drawn by matplotlib {made_by}, here {mpl.__version__}")
    monkeypatch.setattr("sys.argv", ["results-figures", str(tmp_path)])
    script["main"]()
    for path in IMAGES.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name


def test_pictures_show_what_the_claims_compute(points: dict[str, Any]) -> None:
    """The points, by the functions that fill the gaps of the pages."""
    fashion = {"records": "Fashion-MNIST", "epsilon": "10"}
    for method, value in points["tuned"]["Fashion-MNIST, epsilon 10"].items():
        assert value == pytest.approx(lead("sofim-fair", method, **fashion))
    by_set = points["untuned"]["DP-FedAuto, 10 rounds"].values()
    means = [sum(cells.values()) / len(cells) for cells in by_set]
    assert sorted(means) == pytest.approx(sorted(auto_ten()))
    adam = [each["DP-FedAdam"] for each in points["curvature"].values()]
    adult = [v for e in ("1", "10") for v in on_adult("DP-FedFC", "DP-FedAdam", e)]
    assert adam == pytest.approx([*on_fashion()[2:6], *adult])
    secure = points["secure-sum"]
    gains = [up - low for up, low in zip(secure["distributed"], secure["local"], strict=True)]
    assert [*gains, *secure["none"]] == pytest.approx(trusts()[:5])
    devices, silos = points["noise"].values()
    assert [devices["banded"][0], devices["BLT"][0]] == pytest.approx(users_ahead()[:2])
    assert ends(-each for each in silos["tree"]) == pytest.approx(correlated("sofim-cifar10"))
    assert list(points["persons"]["malaria"].values()) == pytest.approx(persons())
