# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib
import pkgutil
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpfed.core import registry
from dpfed.core.errors import RecipeError
from dpfed.core.types import Facts, Trust


@pytest.mark.parametrize("kind", registry.KINDS)
def test_the_file_name_is_the_plug_ins_name(kind: str) -> None:
    package = importlib.import_module(f"dpfed.{kind}")
    found = pkgutil.iter_modules(package.__path__)
    files = sorted(m.name for m in found if not m.ispkg and not m.name.startswith("_"))
    assert list(registry.names(kind)) == files
    for name in files:
        factory = registry.find(kind, name)
        assert factory.__name__ == name
        assert factory.__doc__


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(RecipeError, match=r"plug-in 'sofin'; did.*mean 'sofim'"):
        registry.find("server", "sofin")
    with pytest.raises(RecipeError, match="it has adam, ema"):
        registry.find("server", "zzz")


def test_options_are_checked_against_the_signature() -> None:
    with pytest.raises(RecipeError, match="no option 'roh'; did you mean 'rho'"):
        registry.build("server", "sofim", {"roh": 1.0})
    with pytest.raises(RecipeError, match=r"ema\.beta must be a number, got 'much'"):
        registry.build("server", "ema", {"beta": "much"})
    with pytest.raises(RecipeError, match=r"sofim\.rho.*got 'much'"):
        registry.build("server", "sofim", {"rho": "much"})
    with pytest.raises(RecipeError, match=r"banded\.error.*got 'most'"):
        registry.build("mechanisms", "banded", {"error": "most"})
    assert registry.build("mechanisms", "gaussian", {"std": 3}).std == 3  # an integer is a number


@pytest.mark.parametrize("fact", ["facts", *Facts.__dataclass_fields__])
def test_a_mechanisms_facts_are_no_options(fact: str) -> None:
    with pytest.raises(RecipeError, match=f"mechanisms 'gaussian' has no option '{fact}'"):
        registry.build("mechanisms", "gaussian", {fact: 1.0})


def test_facts_are_checked() -> None:
    with pytest.raises(RecipeError, match="got 'lokal'"):
        Facts(trust="lokal")  # type: ignore[arg-type]
    assert Facts(trust="central").trust is Trust.CENTRAL  # type: ignore[arg-type]


def foreign_mechanism(monkeypatch: pytest.MonkeyPatch, factory: Any) -> None:
    monkeypatch.setattr(registry, "names", lambda kind: ("theirs",))
    monkeypatch.setattr(registry, "find", lambda kind, name: factory)


def test_a_mechanism_says_how_often_units_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign_mechanism(monkeypatch, lambda facts: SimpleNamespace(clip=facts.clip))
    with pytest.raises(RecipeError, match="'theirs' must have an attribute 'participation'"):
        registry.build("mechanisms", "theirs", {}, facts=Facts())


def clear_caches() -> None:
    registry.names.cache_clear()
    registry._foreign.cache_clear()
    registry._installed.cache_clear()


def test_other_packages_plug_in_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("mine", "dpfed.core.chain:identity", "dpfed.server")
    other = EntryPoint("run", "dpfed.core.chain:identity", "console_scripts")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda: EntryPoints([point, other]))
    clear_caches()
    assert "mine" in registry.names("server")
    assert "mine" not in registry.names("client")
    assert "run" not in registry.names("server")
    assert registry.find("server", "mine").__name__ == "identity"
    monkeypatch.undo()
    clear_caches()
    assert "mine" not in registry.names("server")


def test_a_file_without_a_function_of_its_name_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toywrong.py").write_text("def toyright():\n    pass\n")
    folder = importlib.import_module("dpfed.server")
    monkeypatch.setattr(folder, "__path__", [*folder.__path__, str(tmp_path)])
    clear_caches()
    wanted = "^server/toywrong.py must have a function 'toywrong'; rename one of them$"
    with pytest.raises(RecipeError, match=wanted):
        registry.find("server", "toywrong")
    monkeypatch.undo()
    clear_caches()


def test_the_catalogue_describes_every_plug_in() -> None:
    found = {(each["kind"], each["name"]): each for each in registry.catalogue()}
    assert set(found) == {(k, n) for k in registry.KINDS for n in registry.names(k)}
    sofim = found["server", "sofim"]
    assert sofim["options"]["beta"] is None
    assert not {"layout", "epsilon"} & set(sofim["options"])  # facts of a plan
    assert "DP-FedSOFIM" in sofim["paper"]
    assert all(each["summary"] for each in found.values())
