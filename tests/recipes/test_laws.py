# SPDX-License-Identifier: Apache-2.0
"""Code as a plug-in: it is tried before use, planted bugs are refused, and it has a name."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import dpfed
from dpfed.core import registry
from dpfed.core.errors import DataError, RecipeError, UnsoundPlan
from dpfed.core.metric import Metric, ScoredRecords
from dpfed.core.types import (
    UPDATE,
    BoundedSum,
    Channel,
    ClientAlgorithm,
    Facts,
    ServerOptimizer,
    Unit,
)
from dpfed.flower import make_plan
from dpfed.mechanisms.gaussian import Gaussian, gaussian
from dpfed.recipes.laws import require_laws
from dpfed.recipes.schema import load_recipe
from dpfed.training.plan import Plan

PRIVACY = {"epsilon": 1.0}


def scaled_gradient(factor: float = 1.0, rows: Any = None) -> ClientAlgorithm:
    """The gradient's rows, multiplied before they are clipped; or other rows of them."""

    def work(broadcast: Any, problem: Any, state: Any, release: Any) -> Any:
        made = problem.rows(broadcast.params * factor, release.unit)
        return {UPDATE: release(made if rows is None else rows(made))}, state

    return ClientAlgorithm(lambda params: (), work, frozenset(Unit), sends_unmodified=True)


def halved(rate: float = 0.5) -> ServerOptimizer:
    return ServerOptimizer(init=lambda params: (), update=lambda G, state, seen: (G * rate, state))


def hits(bound: float = 1.0) -> Metric:
    """Right and wrong, counted apart: two such rows are sqrt(2) apart."""

    def row(scored: ScoredRecords) -> torch.Tensor:
        right = (scored.losses > 1).double()
        return torch.stack([right, 1 - right], dim=1)

    def finish(means: Any, std: float) -> dict[str, float]:
        return {"hits": float(means[0])}

    return Metric(2, row, finish, ("hits",), bound, math.sqrt(2))


@dataclass(frozen=True)
class Quiet(Gaussian):
    """Draws half of the noise that it states."""

    def release(self, rows: Any, state: Any, rng: Any) -> Any:
        made, state = super().release(rows, state, rng)
        return replace(made, vector=made.vector // 2), state


@dataclass(frozen=True)
class Cheap(Gaussian):
    """Accounts for half of its releases."""

    def event(self, releases: int, shares: float | None = None) -> Any:
        return super().event(releases // 2, shares)


def of_kind(kind: type[Gaussian]) -> Callable[..., Gaussian]:
    def mechanism(facts: Facts = Facts(), std: float = 1.0) -> Gaussian:
        return kind(**vars(gaussian(facts, std)))

    return mechanism


def plan_of(**sections: Any) -> Plan:
    privacy = {**PRIVACY, **sections.pop("privacy", {})}
    return make_plan([40.0] * 3, rounds=3, privacy=privacy, **sections)


# ------------------------------------------------------------------------------ what may be given


def test_objects_and_functions_are_plug_ins() -> None:
    data = {"options": {"records": 90, "features": 4, "classes": 3}, "partition": {"clients": 3}}
    result = dpfed.run(
        data=data,
        client={"name": scaled_gradient, "factor": 0.5},
        server=[halved(0.25), halved, "scale"],
        privacy={**PRIVACY, "mechanism": of_kind(Gaussian)},
        evaluation={"kind": "federated", "metrics": [hits(), "accuracy"]},
        rounds=2,
    )
    assert result.history[-1]["hits"] is not None
    assert result.guarantee.epsilon <= 1.0


def test_a_recipe_names_a_module_and_a_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toyplug.py").write_text(
        "from dpfed.core import ServerOptimizer, stateless\n"
        "def halve(rate: float = 0.5) -> ServerOptimizer:\n"
        "    return ServerOptimizer(stateless, lambda G, state, seen: (G * rate, state))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "recipe.toml"
    path.write_text('server = [{name = "toyplug:halve", rate = 0.1}]\n[privacy]\nepsilon = 1.0\n')
    recipe = load_recipe(path, ["server.0.rate=0.2"])
    assert recipe.server == [{"name": "toyplug:halve", "rate": 0.2}]
    assert plan_of(server=recipe.server).server.update(torch.ones(1), (), None)[0] == 0.2
    with pytest.raises(RecipeError, match=r"option 'rat'; did.*mean 'rate'"):
        plan_of(server=[{"name": "toyplug:halve", "rat": 1.0}])
    sys.modules.pop("toyplug", None)


@pytest.mark.parametrize("name", ["nowhere_at_all:f", "math:nothing"])
def test_what_cannot_be_imported_is_said(name: str) -> None:
    with pytest.raises(RecipeError, match=rf"{name}.* cannot be imported"):
        plan_of(server=name)


def test_what_is_no_plug_in_of_its_kind_is_refused() -> None:
    with pytest.raises(RecipeError, match="client must be"):
        plan_of(client=halved())
    with pytest.raises(RecipeError, match="sum must be"):
        plan_of(sum=halved)


def test_a_simulation_does_not_get_an_object() -> None:
    data = {"options": {"records": 60, "features": 4, "classes": 2}, "partition": {"clients": 2}}
    with pytest.raises(RecipeError, match="its processes do not have it"):
        dpfed.run(data=data, server=halved(), privacy=PRIVACY, engine="flower-simulation")


def test_another_process_is_told_what_the_name_was() -> None:
    with pytest.raises(RecipeError, match="its own process alone has"):
        plan_of(server="somewhere.update@0123456789ab")


# ---------------------------------------------------------------------------------------- the name


def test_two_objects_never_share_a_fingerprint() -> None:
    one, same = plan_of(client=scaled_gradient(0.5)), plan_of(client=scaled_gradient(0.5))
    other = plan_of(client=scaled_gradient(0.6))
    assert one.fingerprint() == same.fingerprint() != other.fingerprint()
    assert "@" in str(one.client.made_by)


def test_nor_do_two_mechanisms_that_look_alike() -> None:
    class Gaussian(globals()["Gaussian"]):  # type: ignore[misc]
        """The name and the fields of another."""

    named = plan_of(privacy={"mechanism": "gaussian"})
    given = plan_of(privacy={"mechanism": of_kind(Gaussian)})
    assert named.fingerprint() != given.fingerprint()
    assert registry.own_code_of("mechanisms", named.update) == ""


def test_a_checkpoint_of_one_object_is_not_gone_on_with_by_another(tmp_path: Path) -> None:
    data = {"options": {"records": 60, "features": 4, "classes": 2}, "partition": {"clients": 2}}
    given: dict[str, Any] = {"data": data, "privacy": PRIVACY, "rounds": 2}
    dpfed.run(**given, server=halved(0.1), resume=tmp_path)
    dpfed.run(**given, server=halved(0.1), resume=tmp_path)
    with pytest.raises(DataError, match=r"server\.0\.name"):
        dpfed.run(**given, server=halved(0.2), resume=tmp_path)


# ---------------------------------------------------------------------------------- planted bugs


class Unclipped:
    """Rows that state a bound, and do not clip to it."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def clipped_sum(self, clip: float) -> BoundedSum:
        made = self.rows.clipped_sum(1e9)
        return BoundedSum(made.vector, clip, 2 * clip)


def one_sided(declared: float) -> ClientAlgorithm:
    """Rows of norm 1 that declare to be nearer to each other than they are."""
    made = scaled_gradient(rows=lambda rows: rows)
    return made._replace(channels={UPDATE: Channel(clip=1.0, replace_bound=declared)})


@pytest.mark.parametrize(
    "client", [scaled_gradient(rows=Unclipped), one_sided(0.1)], ids=["unclipped", "declared"]
)
def test_rows_beyond_their_bound_are_refused(client: ClientAlgorithm) -> None:
    with pytest.raises(UnsoundPlan, match="breaks its own bound"):
        plan_of(client=client)


def test_a_client_that_raises_is_refused() -> None:
    def broken(rows: Any) -> Any:
        raise ZeroDivisionError("at once")

    with pytest.raises(UnsoundPlan, match="ZeroDivisionError"):
        plan_of(client=scaled_gradient(rows=broken))


def beside(scored: ScoredRecords) -> torch.Tensor:
    """Rows that depend on the other records: ranks."""
    ranks = scored.losses.argsort().argsort().double() / max(1, len(scored.losses))
    return torch.stack([ranks, 1 - ranks], dim=1)


def test_a_metric_beyond_its_bound_is_refused() -> None:
    metric = hits()._replace(row=beside)
    with pytest.raises(UnsoundPlan, match="breaks its own bound"):
        plan_of(evaluation={"kind": "federated", "metrics": [metric]})


@pytest.mark.parametrize("kind", [Quiet, Cheap])
def test_a_mechanism_that_states_too_much_or_costs_too_little_is_refused(kind: Any) -> None:
    with pytest.raises(UnsoundPlan, match="breaks its own bound"):
        plan_of(privacy={"mechanism": of_kind(kind)})


@pytest.mark.parametrize("kind", ["client", "metrics", "mechanisms"])
def test_our_own_plug_ins_keep_these_laws(kind: str) -> None:
    """As code: what is refused above is refused for a reason that they do not give."""
    for name in set(registry.own_names(kind)) - {"clear"}:  # it adds no noise, and says so
        code = registry.name_of(kind, registry.find(kind, name))
        require_laws(kind, code, {}, Unit.RECORD)
