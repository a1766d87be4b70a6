# SPDX-License-Identifier: Apache-2.0
"""Two sides that agree on a fingerprint agree on what is done; a recipe has one place for a field.

Before: the fingerprint did not cover where noise comes from, what the client algorithm is called
and set to, whether it builds on its own releases, or the wire format. A client that drew its noise
from the operating system agreed with a server whose plan keyed it, a checkpoint of one algorithm
went on with another, and ``privacy.options`` replaced the adjacency after the sizes had been taken
for the recipe's own.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dpfed.audit.client_laws import MODEL
from dpfed.core.errors import DataError, RecipeError
from dpfed.core.randomness import Noise
from dpfed.core.registry import build
from dpfed.core.types import Unit
from dpfed.data.datasets import Records
from dpfed.recipes.build import plan_for_clients
from dpfed.recipes.schema import PrivacyRecipe, parse
from dpfed.training.checkpoint import Checkpoint
from dpfed.training.plan import Plan
from dpfed.training.round import start
from tests.helpers.rounds import make_plan


def with_client(name: str, **options: Any) -> Plan:
    return make_plan(client=build("client", name, options, unit=Unit.RECORD))


OTHERS = {
    "noise from the operating system": lambda: make_plan(noise=Noise(None)),
    "another algorithm": lambda: with_client("adadps"),
    "other options": lambda: with_client("adadps", eps=0.5),
    "other defaults": lambda: with_client("adadps", beta=0.5),
    "builds on its releases": lambda: make_plan(
        client=make_plan().client._replace(reuses_own_releases=True)
    ),
    "spare attempts": lambda: make_plan(spare=1),
}


def test_each_has_a_fingerprint_of_its_own() -> None:
    """Before: all of them had the same one."""
    found = {name: make().fingerprint() for name, make in OTHERS.items()}
    assert make_plan().fingerprint() not in found.values()
    assert len(set(found.values())) == len(OTHERS)


def test_the_same_algorithm_built_twice_agrees_whatever_was_left_out() -> None:
    assert with_client("adadps").fingerprint() == with_client("adadps", eps=1).fingerprint()


def test_algorithms_made_by_hand_are_told_apart_by_their_code() -> None:
    from dpfed.client.adadps import adadps
    from dpfed.client.gradient import gradient

    one, same, other = (
        make_plan(client=made).fingerprint() for made in (gradient(), gradient(), adadps())
    )
    assert one == same
    assert one != other


@pytest.mark.parametrize("name", OTHERS)
def test_a_checkpoint_does_not_go_on_with_another_plan(name: str, tmp_path: Path) -> None:
    """Before: it did, with every one of these but for spare attempts."""
    plan, checkpoint = make_plan(), Checkpoint(tmp_path)
    fresh = start(plan, MODEL.initial(0))
    checkpoint.commit(plan, replace(fresh, round=1), [], [])
    other = OTHERS[name]()
    with pytest.raises(DataError, match="a run of another plan"):
        checkpoint.load(other, start(other, MODEL.initial(0)))


# ------------------------------------------------------------------------------- privacy.options


def sizes(**privacy: Any) -> list[float]:
    records = [Records(torch.randn(n, 4), torch.zeros(n).long()) for n in (5, 7)]
    tables = parse({"privacy": {"std_over_clip": 2.0, **privacy}})
    return list(plan_for_clients(tables, records).nominal)


def test_options_do_not_undo_the_refusal_of_true_sizes() -> None:
    """Before: the plan was an add-remove one, and divided by the clients' true sizes."""
    with pytest.raises(RecipeError, match=r"declare privacy\.nominal"):
        sizes(adjacency="add-remove")
    with pytest.raises(RecipeError, match=r"privacy\.options .*'adjacency'.*privacy\.adjacency"):
        sizes(options={"adjacency": "add-remove"})


@pytest.mark.parametrize("field", PrivacyRecipe.__struct_fields__)
def test_no_field_of_privacy_is_repeated_in_its_options(field: str) -> None:
    with pytest.raises(RecipeError, match=field):
        sizes(options={field: "record" if field == "unit" else 1})


def test_the_mechanisms_own_options_are_taken() -> None:
    assert sizes(mechanism="discrete_gaussian", options={"bits": 12}) == [5.0, 7.0]
