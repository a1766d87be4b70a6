# SPDX-License-Identifier: Apache-2.0
"""Each key of a policy refuses what it is there for, by its name; and nothing is half-applied."""

from __future__ import annotations

import datetime as dt
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfed._version import VERSION
from dpfed.core.errors import DpfedError, RecipeError, UnsoundPlan
from dpfed.recipes.terms import package_digest, read_terms
from dpfed.silo.policy import permit
from tests.helpers.policies import PRIVACY, TODAY, policy, terms
from tests.silo.gates import terms_for


def test_terms_within_the_policy_are_permitted(tmp_path: Path) -> None:
    found = policy(tmp_path, most_epsilon=2.0, most_rounds=3, largest_model=21, size=90.0)
    assert permit(found, terms(tmp_path), TODAY) is found.data["sepsis"]


KEYED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "most_rounds": ({"most_rounds": 2}, {}),
    "largest_model": ({"largest_model": 20}, {}),
    "most_epsilon": ({"most_epsilon": 1.999}, {}),
    "size": ({"size": 91.0}, {}),
    "client": ({"client": 3}, {}),
    "shape": ({"shape": [7]}, {}),
    "classes": ({"classes": 4}, {}),
    "since": ({"since": dt.date(2026, 11, 17)}, {}),
    "until": ({"until": dt.date(2026, 11, 15)}, {}),
    "trust": ({}, {"privacy": {**PRIVACY, "trust": "central"}}),
    "keyed_noise": ({"keyed_noise": False}, {}),
    "methods": ({"methods": ["dp-scaffold"]}, {}),
    "noise in every release": ({}, {"privacy": {"mechanism": "clear"}}),
    "a mechanism of": ({}, {"privacy": {**PRIVACY, "mechanism": "tree"}}),
    "models": ({"models": ["logistic"]}, {}),
    "factories": ({}, {"model": {"name": "network", "factory": "os:system"}}),
    "evaluation": ({}, {"evaluation": {"kind": "exact"}}),
}


@pytest.mark.parametrize("key", KEYED)
def test_each_key_refuses_and_is_named(tmp_path: Path, key: str) -> None:
    rule, change = KEYED[key]
    asked, found = terms(tmp_path, **change), policy(tmp_path, **rule)
    with pytest.raises(UnsoundPlan, match=key):
        permit(found, asked, TODAY)


def test_a_model_comes_with_an_approved_algorithm_only(tmp_path: Path) -> None:
    """dp-fedauto brings its model: neither can be had where the owner has not approved it."""
    asked = terms(tmp_path, method="dp-fedauto", rounds=4)
    assert "transform" in asked.model.layout.shapes
    allowed = policy(tmp_path, methods=["dp-fedauto"], most_rounds=4)
    assert permit(allowed, asked, TODAY) is allowed.data["sepsis"]
    with pytest.raises(UnsoundPlan, match=r"methods: an algorithm of .*got 'fedauto'"):
        permit(policy(tmp_path, methods=["dp-fedgd"], most_rounds=4), asked, TODAY)
    small = policy(tmp_path, methods=["dp-fedauto"], most_rounds=4, largest_model=30)
    with pytest.raises(UnsoundPlan, match="largest_model"):  # of the model that is brought
        permit(small, asked, TODAY)


def test_metrics_of_another_package_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their code would make rows of the owner's records; what they cost is in the plan's price."""
    measured = {"kind": "federated", "metrics": ["accuracy", {"name": "recall", "classes": 3}]}
    found, asked = policy(tmp_path), terms(tmp_path, evaluation=measured)
    assert permit(found, asked, TODAY) is found.data["sepsis"]
    monkeypatch.setattr("dpfed.silo.policy.own_names", lambda kind: ("accuracy",))
    with pytest.raises(UnsoundPlan, match=r"evaluation\.metrics.*got 'recall'"):
        permit(found, asked, TODAY)


def test_terms_of_another_version_are_refused(tmp_path: Path) -> None:
    text = terms_for(tmp_path, 3).read_text()
    other = text.replace(f'dpfed = "{VERSION}"', 'dpfed = "0.0.0"')
    assert other != text
    with pytest.raises(UnsoundPlan, match=r"dpfed \(installed\).*got '0\.0\.0'"):
        permit(policy(tmp_path), read_terms(other), TODAY)


def test_a_pinned_package_must_be_the_installed_one(tmp_path: Path) -> None:
    found, asked = policy(tmp_path, factories={"tomli_w.models:small": {}}), terms(tmp_path)
    asked.pins.packages["tomli_w"] = package_digest("tomli-w")
    permit(found, asked, TODAY)
    asked.pins.packages["tomli_w"] = package_digest("msgspec")
    with pytest.raises(UnsoundPlan, match="tomli_w as the terms pin it"):
        permit(found, asked, TODAY)


def test_packages_that_no_model_comes_from_are_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever writes terms lets the gate read through all that is installed."""
    found, asked = policy(tmp_path, factories={"tomli_w.models:small": {}}), terms(tmp_path)
    asked.pins.packages["torch"] = "0"
    digest = "dpfed.recipes.terms.package_digest"
    monkeypatch.setattr(digest, lambda name: pytest.fail(name))
    with pytest.raises(UnsoundPlan, match="nothing of package 'torch'"):
        permit(found, asked, TODAY)


@pytest.mark.parametrize(
    "privacy",
    [
        {"epsilon": 1.0, "delta": 0.4},
        {"epsilon": 1.9, "adjacency": "zero-out"},
        {"epsilon": 1.9, "unit": "client", "adjacency": "zero-out"},
        {"epsilon": 1.9, "delta": 1e-4},
    ],
)
def test_a_ceiling_is_in_the_owners_own_terms(tmp_path: Path, privacy: dict[str, Any]) -> None:
    """An epsilon at a large delta, or of another adjacency, is a larger one of the owner's."""
    found, asked = policy(tmp_path, most_epsilon=2.0), terms(tmp_path, privacy=privacy)
    assert asked.plan.guarantee().claims[0].epsilon < 2.0
    with pytest.raises(UnsoundPlan, match=r"most_epsilon: at most 2, got '([2-9]|inf)"):
        permit(found, asked, TODAY)


def test_what_a_training_costs_is_what_its_rounds_are_booked_at(tmp_path: Path) -> None:
    found, asked = policy(tmp_path).data["sepsis"], terms(tmp_path)
    assert found.cost(asked) == pytest.approx(2.0, rel=1e-6)


def test_spare_attempts_are_rounds_too(tmp_path: Path) -> None:
    found = policy(tmp_path, most_rounds=4)
    permit(found, terms(tmp_path, privacy={**PRIVACY, "spare_attempts": 1}), TODAY)
    with pytest.raises(UnsoundPlan, match="most_rounds: at most 4, got '10002'"):
        permit(found, terms(tmp_path, privacy={**PRIVACY, "spare_attempts": 9_999}), TODAY)


def test_a_secure_sum_needs_the_pinned_roster_and_enough_silos(tmp_path: Path) -> None:
    roster = tmp_path / "roster.json"
    roster.write_text("{}")
    change = {"privacy": {**PRIVACY, "trust": "distributed"}, "sum": {"name": "secure"}}
    asked = read_terms(terms_for(tmp_path, 3, roster, **change).read_bytes())
    trust = ["local", "distributed"]
    permit(policy(tmp_path, {"identity": str(tmp_path)}, trust=trust), asked, TODAY)
    with pytest.raises(UnsoundPlan, match="least_silos"):
        permit(
            policy(tmp_path, {"identity": str(tmp_path)}, trust=trust, least_silos=4), asked, TODAY
        )
    with pytest.raises(UnsoundPlan, match="identity"):
        permit(policy(tmp_path, trust=trust), asked, TODAY)
    roster.write_text("{ }")
    with pytest.raises(UnsoundPlan, match="roster that the owner pinned"):
        permit(policy(tmp_path, {"identity": str(tmp_path)}, trust=trust), asked, TODAY)


@pytest.mark.parametrize(
    ("options", "fits"),
    [
        ({"width": 8}, True),
        ({"width": 9}, False),
        ({"width": 8.0}, False),
        ({"width": True}, False),
        ({"act": "relu"}, True),
        ({"act": "tanh"}, False),
        ({"other": 1}, False),
    ],
)
def test_a_factorys_options_keep_to_their_list(
    tmp_path: Path, options: dict[str, Any], fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dpfed.silo import policy as module

    found = policy(tmp_path, factories={"numpy:zeros": {"width": [1, 8], "act": ["relu"]}})
    model = {"name": "network", "factory": "numpy:zeros", "options": options}
    asked = terms(tmp_path, model=model)
    with pytest.raises(UnsoundPlan, match="a pin of package 'numpy'"):
        module._permit_factory(found.data["sepsis"], asked)
    asked.pins.packages["numpy"] = "pinned"
    if fits:
        module._permit_factory(found.data["sepsis"], asked)
    else:
        with pytest.raises(UnsoundPlan, match="factories"):
            module._permit_factory(found.data["sepsis"], asked)


def test_a_factory_that_is_not_listed_is_refused_pinned_or_not(tmp_path: Path) -> None:
    found = policy(tmp_path, factories={"numpy:zeros": {}})
    asked = terms(tmp_path, model={"name": "network", "factory": "numpy:ones"})
    asked.pins.packages["numpy"] = package_digest("numpy")
    with pytest.raises(UnsoundPlan, match=r"factories: one of \['numpy:zeros'\]"):
        permit(found, asked, TODAY)


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gate.socket": ({"socket": "gate.sock"}, {}),
    "gate.relay_users": ({"relay_users": []}, {}),
    "gate.answer_after": ({"answer_after": 601.0}, {}),
    "gate.most_bytes": ({"most_bytes": 5}, {}),
    "data.sepsis.client": ({}, {"client": -1}),
    "data.sepsis.epsilon": ({}, {"epsilon": 0.0}),
    "data.sepsis.delta": ({}, {"delta": 1.0}),
    "data.sepsis.colluders": ({}, {"colluders": 0}),
    "data.sepsis.shape": ({}, {"shape": []}),
    "data.sepsis.size": ({}, {"adjacency": "add-remove"}),
    "data.sepsis.approve": ({}, {"approve": "within-policy"}),
    "dp-unknown": ({}, {"methods": ["dp-unknown"]}),
    "unknown field": ({"port": 1}, {}),
    "data.options": ({}, {"load": {"source": 3}}),
}


@pytest.mark.parametrize("key", WRONG)
def test_a_policy_that_cannot_be_is_refused(tmp_path: Path, key: str) -> None:
    gate, data = WRONG[key]
    with pytest.raises(RecipeError) as error:
        policy(tmp_path, gate, **data)
    assert key == "data.options" or key in str(error.value)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_any_bytes_as_terms_are_refused_in_one_sentence(raw: bytes) -> None:
    with pytest.raises(DpfedError):
        read_terms(raw)


@settings(max_examples=100, deadline=None)
@given(
    key=st.sampled_from(["name", "rounds", "privacy", "client", "server", "terms", "sum", "model"]),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
        max_leaves=6,
    ),
)
def test_terms_with_anything_in_one_place_are_read_or_refused_by_name(key: str, value: Any) -> None:
    import tomli_w

    tree: dict[str, Any] = {
        "name": "x",
        "rounds": 2,
        "privacy": {"epsilon": 1.0},
        "terms": {"dataset": "d", "shape": [2], "classes": 2, "sizes": [5.0, 5.0], "dpfed": "0"},
    }
    try:
        text = tomli_w.dumps({**tree, key: value})
    except (TypeError, ValueError):
        return
    with suppress(DpfedError):  # and no other error
        assert read_terms(text).fingerprint
