# SPDX-License-Identifier: Apache-2.0
"""An attack: terms that name code in the place of a plug-in, so that a server chooses what is run.

A recipe of one's own may name ``module:function``. The module below notes that it was imported,
which is all that an attacker needs: code runs on import.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from dpfed.core import registry
from dpfed.core.errors import DpfedError, RecipeError
from dpfed.recipes.build import plan_for
from dpfed.recipes.schema import parse
from dpfed.recipes.terms import Terms, read_terms
from dpfed.silo.policy import permit
from tests.silo.gates import terms_for
from tests.silo.test_policy import PRIVACY, TODAY, policy

TRAP = "dpfed_trap"
CODE = ["os:system", f"{TRAP}:anything", f"{TRAP}.anything@0123456789ab", f"{TRAP}:", ":", "@"]
PLACES: dict[str, Any] = {
    "client": lambda code: {"client": {"name": code}},
    "server": lambda code: {"server": [{"name": "scale"}, {"name": code}]},
    "a server in words": lambda code: {"server": code},
    "sum": lambda code: {"sum": {"name": code}},
    "mechanism": lambda code: {"privacy": {**PRIVACY, "mechanism": code}},
    "metric": lambda code: {"evaluation": {"kind": "federated", "metrics": [code]}},
    "metric's table": lambda code: {
        "evaluation": {"kind": "federated", "metrics": ["loss", {"name": code}]}
    },
    "an option": lambda code: {"client": {"name": "gradient", "rate": code}},
    "mechanism's option": lambda code: {"privacy": {**PRIVACY, "options": {"std": code}}},
    "model": lambda code: {"model": {"name": "network", "factory": code}},
    "model's name": lambda code: {"model": {"name": code}},
    "loss": lambda code: {"model": {"loss": {"name": code}}},
    "sinks": lambda code: {"sinks": [code]},
    "method": lambda code: {"method": code},
}


@pytest.fixture(autouse=True)
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{TRAP}.py").write_text("def anything(*a, **k):\n    raise SystemExit\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, TRAP, raising=False)


@pytest.mark.parametrize("code", CODE)
@pytest.mark.parametrize("place", PLACES)
def test_terms_that_name_code_import_nothing(tmp_path: Path, place: str, code: str) -> None:
    found, honest = policy(tmp_path), terms_for(tmp_path, 3).read_text()
    tree = {**tomllib.loads(honest), **PLACES[place](code)}
    with pytest.raises(DpfedError) as error:
        permit(found, read_terms(tomli_w.dumps(tree)), TODAY)
    assert "\n" not in str(error.value)
    assert TRAP not in sys.modules


PLUG_INS = ["client", "server", "a server in words", "sum", "mechanism", "metric", "metric's table"]


@pytest.mark.parametrize("place", PLUG_INS)
def test_it_is_refused_when_the_terms_are_read(tmp_path: Path, place: str) -> None:
    """Before a policy is asked, which would refuse most of it for another reason."""
    honest = tomllib.loads(terms_for(tmp_path, 3).read_text())
    with pytest.raises(RecipeError, match=rf"a plug-in in terms .*{TRAP}:anything"):
        read_terms(tomli_w.dumps({**honest, **PLACES[place](f"{TRAP}:anything")}))


@pytest.mark.parametrize("place", ["client", "server", "mechanism", "metric"])
def test_a_plan_of_terms_has_a_second_lock(tmp_path: Path, place: str) -> None:
    """Were the text not refused, the plan would still be built of installed plug-ins only."""
    code = f"{TRAP}:anything"
    honest = read_terms(terms_for(tmp_path, 3).read_text())
    recipe = parse({"privacy": PRIVACY, **PLACES[place](code)})
    with pytest.raises(RecipeError, match=f"installed plug-in here, got '{code}'"):
        _ = Terms(recipe, honest.pins).plan
    assert TRAP not in sys.modules


def test_the_trap_is_one() -> None:
    """In a recipe of one's own the same name is imported: the tests above can fail."""
    recipe = parse({"privacy": {"epsilon": 1.0}, "server": f"{TRAP}:anything"})
    with pytest.raises(SystemExit):
        plan_for(recipe, [4.0] * 3)
    assert TRAP in sys.modules


@pytest.mark.parametrize("kind", ["sums", "sinks"])
def test_sums_and_sinks_are_never_code(kind: str) -> None:
    with pytest.raises(RecipeError, match="installed plug-in"):
        registry.find(kind, f"{TRAP}:anything")
    assert TRAP not in sys.modules
