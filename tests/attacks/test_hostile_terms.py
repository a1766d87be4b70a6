# SPDX-License-Identifier: Apache-2.0
"""Attacks by the numbers and the noise that terms choose.

Before: terms with ``record_rate = 1e-300`` kept a gate, and its officer's command, at calibration
for ever; a clip of 1e-320 and an infinite cost were permitted; and no policy could ask for exact
noise, which none permitted, either.
"""

from __future__ import annotations

import time
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tomli_w

from dpfed.core.errors import DpfedError, RecipeError, UnsoundPlan
from dpfed.recipes.schema import Recipe
from dpfed.recipes.terms import DRAWN, RANGES, check_numbers, read_terms
from dpfed.silo import policy as policies
from dpfed.silo.policy import limited_time, permit
from tests.helpers.policies import PRIVACY, TODAY, policy, terms
from tests.silo.gates import terms_for


def numbers(kind: Any, above: str = "") -> Iterator[str]:
    """Every field of a recipe that takes a number, by its dotted key; lists of options apart."""
    for name, hint in typing.get_type_hints(kind).items():
        key = f"{above}{name}"
        for each in (hint, *typing.get_args(hint)):
            if isinstance(each, type) and issubclass(each, msgspec.Struct):
                yield from numbers(each, f"{key}.")
            elif each in (int, float):
                yield key


def test_every_number_of_terms_has_a_range() -> None:
    """The law: a number that is added to a recipe, and has no range, fails here."""
    given = {key for key in numbers(Recipe) if not key.startswith(("data.", "ledger."))}
    assert given == set(RANGES)
    assert set(DRAWN) <= set(RANGES)


def hostile(key: str) -> list[float]:
    least, most = RANGES[key]
    beyond: list[float] = [least - max(1, abs(least)), most * 2 + 1, -1, 0 if least > 0 else -2]
    if isinstance(least, float) or isinstance(most, float):
        beyond += [
            float("nan"),
            float("inf"),
            -float("inf"),
            1e-320 if least > 0 else -1e-320,
            1e308,
        ]
    return [*beyond, 10**30] if isinstance(least, int) and isinstance(most, int) else beyond


@pytest.mark.parametrize("key", sorted(RANGES))
def test_hostile_numbers_are_refused_in_one_sentence_at_once(tmp_path: Path, key: str) -> None:
    found, base = policy(tmp_path, adjacency="zero-out"), terms_for(tmp_path, 3).read_text()
    for value in hostile(key):
        tree = tomllib.loads(base)
        table: Any = tree
        *above, name = key.split(".")
        for each in above:
            table = table.setdefault(each, {})
        if key == "privacy.std_over_clip":
            del tree["privacy"]["epsilon"]
        if key.startswith("privacy.participation"):
            tree["privacy"]["participation"] = {"min_separation": 1, "at_most": 1}
            table = tree["privacy"]["participation"]
        table[name] = value
        began = time.process_time()
        with pytest.raises(DpfedError) as error:
            permit(found, read_terms(tomli_w.dumps(tree)), TODAY)
        assert name in str(error.value), value
        assert time.process_time() - began < 2.0


@pytest.mark.parametrize("value", [1e13, -1e13, float("nan"), float("inf"), 10**40])
def test_hostile_numbers_among_options_are_refused(tmp_path: Path, value: float) -> None:
    changes: list[dict[str, Any]] = [
        {"client": {"name": "gradient", "x": value}},
        {"server": [{"name": "scale", "rate": value}]},
        {"privacy": {"epsilon": 1.0, "options": {"x": [1.0, [value]]}}},
        {"sum": {"name": "plain", "x": value}},
        {"model": {"options": {"a": {"b": value}}}},
        {"model": {"loss": {"name": "huber", "x": value}}},
        {"evaluation": {"kind": "federated", "metrics": [{"name": "recall", "x": value}]}},
    ]
    for change in changes:
        with pytest.raises(RecipeError):
            check_numbers(terms(tmp_path, **change))


def test_a_metric_of_a_billion_classes_is_refused_before_it_is_made(tmp_path: Path) -> None:
    """Its names alone would take a hundred gigabytes, and before any approval."""
    measured = {"kind": "federated", "metrics": [{"name": "recall", "classes": 10**9}]}
    with pytest.raises(RecipeError, match=r"evaluation\.metrics in terms"):
        permit(policy(tmp_path), terms(tmp_path, evaluation=measured), TODAY)
    with pytest.raises(RecipeError, match="an option in terms must be from"):
        permit(policy(tmp_path), terms(tmp_path, sum={"name": "plain", "x": 10**6}), TODAY)


@pytest.mark.parametrize("size", [1e-320, 0.0, -1.0, 1e12, float("nan"), float("inf")])
def test_a_silos_declared_size_is_a_number_of_units(tmp_path: Path, size: float) -> None:
    with pytest.raises(RecipeError, match=r"terms\.sizes"):
        terms_for(tmp_path, 3, sizes=[size, 90.0, 90.0])


def test_ranges_of_features_do_not_overflow(tmp_path: Path) -> None:
    asked = terms(tmp_path, data={"low": -1e308, "high": 1e308})
    with pytest.raises(RecipeError, match=r"terms\.low and terms\.high"):
        check_numbers(asked)


def test_with_draws_an_accountants_grid_has_an_end(tmp_path: Path) -> None:
    """Little noise and a draw: a privacy loss of 10^12, in steps of 10^-4, is no list."""
    drawn = {"adjacency": "zero-out", "record_rate": 0.5}
    for privacy in ({"epsilon": 51.0}, {"std_over_clip": 0.049}):
        check_numbers(terms(tmp_path, privacy=privacy))
        with pytest.raises(RecipeError, match="in terms must be from"):
            check_numbers(terms(tmp_path, privacy={**privacy, **drawn}))
        with pytest.raises(RecipeError, match="in terms must be from"):
            check_numbers(terms(tmp_path, privacy={**privacy, "client_rate": 0.5}))


def test_calibration_that_takes_too_long_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever numbers make it so: the processor's time is bounded, not the numbers alone."""

    def never(*_: object) -> float:
        while True:
            pass

    monkeypatch.setattr(policies, "CALIBRATION_CPU_S", 0.2)
    monkeypatch.setattr(policies.DataPolicy, "cost", never)
    began = time.process_time()
    with pytest.raises(UnsoundPlan, match=r"found in 0\.2 s"):
        permit(policy(tmp_path), terms(tmp_path), TODAY)
    assert time.process_time() - began < 2.0


@pytest.mark.long
@pytest.mark.slow
def test_a_small_rate_ends_in_time_and_its_way_out_is_one(tmp_path: Path) -> None:
    """Within the ranges, and far beyond ten seconds: refused; with noise that is given, priced."""
    found, drawn = policy(tmp_path, adjacency="zero-out"), {"adjacency": "zero-out"}
    began = time.process_time()
    asked = {**drawn, "record_rate": 1e-5, "epsilon": 2.0}
    with pytest.raises(UnsoundPlan, match=r"state privacy\.std_over_clip"):
        permit(found, terms(tmp_path, privacy=asked), TODAY)
    assert time.process_time() - began < 15.0
    given = {**drawn, "record_rate": 0.01, "std_over_clip": 1.0}
    assert permit(found, terms(tmp_path, privacy=given, rounds=100), TODAY)


def test_the_limit_of_time_is_taken_back_and_hides_no_other_error() -> None:
    with limited_time(0.2):
        pass
    with pytest.raises(KeyError), limited_time(0.2):
        raise KeyError
    began = time.process_time()
    while time.process_time() - began < 0.4:
        pass  # no signal comes
    with pytest.raises(UnsoundPlan, match="must be found in 5 s"), limited_time(5.0):
        raise MemoryError


def test_a_cost_without_a_bound_is_refused(tmp_path: Path) -> None:
    """A draw under replace-one has none for an owner who counts zero-out: nothing could be paid."""
    drawn = {"std_over_clip": 9.0, "record_rate": 0.5}
    owner = policy(tmp_path, adjacency="zero-out")
    with pytest.raises(UnsoundPlan, match="bound for each record"):
        permit(owner, terms(tmp_path, privacy=drawn, rounds=100), TODAY)


@pytest.mark.parametrize("option", ["std", "replace_bound"])
def test_an_option_that_the_plan_decides_is_refused(tmp_path: Path, option: str) -> None:
    asked = terms(tmp_path, privacy={**PRIVACY, "options": {option: 1e-9}})
    with pytest.raises(UnsoundPlan, match=rf"privacy\.options.*got '{option}'"):
        permit(policy(tmp_path), asked, TODAY)


# ----------------------------------------------------------------------------------------- noise

EXACT = {**PRIVACY, "mechanism": "discrete_gaussian"}


def test_exact_noise_is_allowed_wherever_gaussian_noise_is(tmp_path: Path) -> None:
    found = policy(tmp_path)
    assert permit(found, terms(tmp_path, privacy=EXACT), TODAY) is found.data["sepsis"]
    correlated = policy(tmp_path, methods=["dp-ftrl"])
    with pytest.raises(UnsoundPlan, match="methods: a mechanism of"):
        permit(correlated, terms(tmp_path, privacy=EXACT), TODAY)


def test_an_owner_can_demand_exact_noise(tmp_path: Path) -> None:
    found = policy(tmp_path, mechanisms=["discrete_gaussian"])
    assert permit(found, terms(tmp_path, privacy=EXACT), TODAY) is found.data["sepsis"]
    with pytest.raises(UnsoundPlan, match=r"mechanisms: one of \['discrete_gaussian'\]"):
        permit(found, terms(tmp_path), TODAY)
    measured = terms(tmp_path, privacy=EXACT, evaluation={"kind": "federated"})
    assert permit(found, measured, TODAY)
    assert {each.exact for each in measured.plan.channels.values()} == {True}


def test_noise_of_another_channel_keeps_to_the_list_too(tmp_path: Path) -> None:
    """Metrics beside correlated noise have Gaussian noise, which the terms do not name."""
    asked = {"privacy": {**PRIVACY, "mechanism": "tree"}, "method": "dp-ftrl"}
    found = policy(tmp_path, mechanisms=["tree"], methods=["dp-ftrl"])
    permit(found, terms(tmp_path, **asked), TODAY)
    with pytest.raises(UnsoundPlan, match=r"mechanisms.*gaussian on channel metrics"):
        permit(found, terms(tmp_path, **asked, evaluation={"kind": "federated"}), TODAY)
    free = policy(tmp_path, methods=["dp-ftrl"])
    permit(free, terms(tmp_path, **asked, evaluation={"kind": "federated"}), TODAY)


@pytest.mark.parametrize("name", ["clear", "gauss", ""])
def test_a_policy_lists_noise_that_there_is(tmp_path: Path, name: str) -> None:
    with pytest.raises(RecipeError, match=r"data\.sepsis\.mechanisms must be some of"):
        policy(tmp_path, mechanisms=[name])


def test_without_a_list_no_clear_release_passes(tmp_path: Path) -> None:
    with pytest.raises(UnsoundPlan, match="noise in every release"):
        permit(
            policy(tmp_path, mechanisms=["gaussian"]),
            terms(tmp_path, privacy={"mechanism": "clear"}),
            TODAY,
        )


@pytest.mark.parametrize("weight", [[], [["weight", [3, 2, 1]]]])
def test_a_layout_that_only_looks_like_an_algorithms_own_model(
    tmp_path: Path, weight: list[Any]
) -> None:
    """Parameters of the names that dp-fedauto's model has, of other shapes, ended in a KeyError."""
    honest = tomllib.loads(terms_for(tmp_path, 3).read_text())
    layout = [["center", [6]], ["transform", [6, 6]], *weight]
    tree = {
        **honest,
        "method": "dp-fedauto",
        "rounds": 6,
        "model": {"name": "network", "factory": "torch.nn:Linear"},
        "terms": {**honest["terms"], "layout": layout},
    }
    with pytest.raises(DpfedError):
        _ = read_terms(tomli_w.dumps(tree)).plan
