# SPDX-License-Identifier: Apache-2.0
"""A guarantee is one value: whichever of its fields a pack or a bundle changes is noticed.

Before: ``dpfed verify`` compared six fields of the bundle's guarantee with the run's, and nothing
of a summary of who took part without its rounds; ``dpfed.load`` took any sentence. So a bundle
could say "exact integer arithmetic" and "audited by the regulator", and the verdict was complete.

What is changed here is made consistent again (sentence, epsilon, mu), as a liar would.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dpfed.accounting.event_tree import gaussian_mu_squared
from dpfed.accounting.guarantee import SHIPPED, Claim, Guarantee, SecondOpinion, epsilon_of
from dpfed.accounting.stated import check_events, read_guarantee, recomputed
from dpfed.bundle.description import decode
from dpfed.core.errors import DataError
from dpfed.core.types import Adjacency
from dpfed.recipes.verify import COMPLETE, INCOMPLETE, REFUSED, verify_evidence
from tests.helpers.evidence_packs import gated_training
from tests.recipes.test_verify import Pack, other_check  # noqa: F401  a fixture

UNSIGNED = {"realised", "opinions"}
"""In no sentence, and left out of what ``verify_evidence`` returns."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evidence")
    gated_training(folder)
    return folder


def other(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, StrEnum):
        return next(each for each in type(value) if each != value)
    if isinstance(value, int | float):
        return value + 1 if isinstance(value, int) else value / 2 or 1e-6
    if isinstance(value, str):
        return "each record is drawn with probability 0.01"
    if isinstance(value, dict):  # a claim's events
        return {"kind": "Gaussian", "noise_multiplier": 99.0}
    return {"blocks": ("2026-01",), "realised": (0.5,), "opinions": (SecondOpinion(0.1, 3.0),)}


def mutants(stated: Guarantee) -> Iterator[tuple[str, Guarantee]]:
    """The guarantee with one field changed: each of its own, and each of its claims'."""
    for each in fields(Guarantee):
        value = other(getattr(stated, each.name))
        if each.name == "claims":
            for part in fields(Claim):
                first, *rest = stated.claims
                changed = replace(first, **{part.name: other(getattr(first, part.name))})
                yield f"claims.{part.name}", replace(stated, claims=(changed, *rest))
            yield "claims", replace(stated, claims=stated.claims[1:])
            continue
        if each.name == "enforced":
            value = SHIPPED
        value = value[each.name] if isinstance(value, dict) else value
        yield each.name, replace(stated, **{each.name: value})


def stated_of(trained: Path) -> Guarantee:
    told = json.loads((trained / "out" / "guarantee.json").read_bytes())
    return msgspec.convert(told, Guarantee, strict=False)


def test_each_field_of_a_guarantee_is_changed_here(trained: Path) -> None:
    stated = stated_of(trained)
    seen = dict(mutants(stated))
    assert {name.partition(".")[0] for name in seen} == {each.name for each in fields(Guarantee)}
    assert all(made.to_json() != stated.to_json() for made in seen.values())


@pytest.mark.slow
def test_whichever_field_of_a_bundles_guarantee_is_changed_it_is_noticed(
    trained: Path,
    tmp_path: Path,
    other_check: Any,  # noqa: F811
) -> None:
    pack = Pack(trained, tmp_path)
    path = pack.out / "model" / "model.json"
    about = json.loads(path.read_bytes())
    for name, made in mutants(stated_of(trained)):
        path.write_text(json.dumps({**about, "guarantee": made.to_json()}))
        found = verify_evidence(pack.out, pack.roster)
        assert "other-bundle" in {each.name for each in found.problems}, name
        assert other_check.verdict(pack.out, pack.roster.read_bytes())[0] == REFUSED, name


@pytest.mark.slow
def test_whichever_field_of_a_packs_guarantee_is_changed_it_is_noticed(
    trained: Path,
    tmp_path: Path,
    other_check: Any,  # noqa: F811
) -> None:
    """Or it says less than the silos have signed, or is not in the value that is shown."""
    stated = stated_of(trained)
    says_less = {"budgeted", "enforced"}
    for name, made in mutants(stated):
        pack = Pack(trained, tmp_path / name)
        shutil.rmtree(pack.out / "model")
        whole = made.to_json()
        pack.guarantee(lambda told, whole=whole: told.update(whole))
        found = verify_evidence(pack.out, pack.roster)
        check = other_check.verdict(pack.out, pack.roster.read_bytes())[0]
        if name in UNSIGNED | says_less:
            assert (found.verdict, check) == (COMPLETE, COMPLETE), (name, found.problems)
            assert found.guarantee is not None
            assert (found.guarantee.realised, found.guarantee.opinions) == ((), ())
            assert found.guarantee.budgeted <= stated.budgeted
            continue
        # a claim against somebody whom no silo named is nobody's
        expected = INCOMPLETE if name == "claims.adversary" else REFUSED
        assert (found.verdict, check) == (expected, expected), (name, found.problems)


# ----------------------------------------------------------------------- what is read of a stranger


def test_what_follows_from_a_guarantee_must_be_what_follows(trained: Path) -> None:
    told = stated_of(trained).to_json()
    assert read_guarantee(told).to_json() == told
    for name in told:
        with pytest.raises(DataError):
            read_guarantee({**told, name: None})
    for free in ("certified by a notary", "if the app is fine"):
        with pytest.raises(DataError, match="enforced"):
            read_guarantee(replace(stated_of(trained), enforced=free).to_json())
    for wrong in (
        {"sentence": told["sentence"].replace("(2, ", "(0.2, ")},
        {"epsilon": 0.1},
        {"claims": []},
        {"claims": [{**told["claims"][0], "mu": 0.1}, *told["claims"][1:]]},
        {"budgeted": 1},
    ):
        with pytest.raises(DataError, match="guarantee"):
            read_guarantee({**told, **wrong})


def test_a_bundle_whose_guarantee_does_not_add_up_is_not_loaded(trained: Path) -> None:
    """Before: ``dpfed.load(...).guarantee`` was whatever sentence these fields make."""
    about = json.loads((trained / "out" / "model" / "model.json").read_bytes())
    assert decode(json.dumps(about).encode()).stated == stated_of(trained)
    better = {"idealized": False, "noise": "os", "rounds": 1}
    for name, value in better.items():
        guarantee = {**about["guarantee"], name: value}
        with pytest.raises(DataError, match="sentence must follow"):
            decode(json.dumps({**about, "guarantee": guarantee}).encode())
    claim = replace(stated_of(trained).claims[0], epsilon=0.5)
    cheap = replace(stated_of(trained), claims=(claim,)).to_json()
    with pytest.raises(DataError, match="the events beside it cost"):
        _ = decode(json.dumps({**about, "guarantee": cheap}).encode()).stated


@pytest.mark.parametrize("steers", ["\x1b[2J", "\u202e", "a\nb", "x" * 2000])
def test_no_word_of_a_guarantee_steers_a_terminal(trained: Path, steers: str) -> None:
    stated = stated_of(trained)
    first, *rest = stated.claims
    for made in (
        replace(stated, draws=steers),
        replace(stated, enforced=steers),
        replace(stated, blocks=(steers,)),
        replace(stated, claims=(replace(first, adversary=steers), *rest)),
        replace(stated, claims=(replace(first, accounting=steers), *rest)),
    ):
        with pytest.raises(DataError) as error:
            read_guarantee(made.to_json())
        assert steers not in str(error.value)


def drawn(multiplier: float, count: int = 1, rate: float = 0.5) -> dict[str, Any]:
    one = {"kind": "Gaussian", "noise_multiplier": multiplier}
    event = {"kind": "PoissonSampled", "rate": rate, "event": one}
    return {"kind": "SelfComposed", "count": count, "event": event}


@pytest.mark.parametrize(
    "event",
    [
        {"kind": "Composed", "events": [drawn(1.0), drawn(1e-3)["event"]["event"]]},
        {"kind": "Composed", "events": [drawn(0.05, 156_250, 0.5 - n / 1000) for n in range(60)]},
        drawn(1.0, 10**8),
        drawn(1.0, 1, 1e-9),
        drawn(1.0, True),
        drawn(-1.0),
        {"kind": "Composed", "events": [{"kind": "NoOp"}] * 10_001},
        {"kind": "Laplace", "noise_multiplier": 1e-6},
        {"kind": "Gaussian", "noise_multiplier": float("nan")},
        {"kind": "Gaussian", "noise_multiplier": "inf"},
        {"kind": "Unheard"},
        [],
        None,
    ],
)
def test_events_whose_accounting_might_not_end_are_refused_before_it_begins(event: Any) -> None:
    """Before: a noise multiplier of 0.001 beside a draw took 7.9 gigabytes."""
    with pytest.raises(DataError):
        check_events(event)


def test_events_of_ordinary_trainings_are_taken() -> None:
    for event in (drawn(1.0, 100_000, 0.001), drawn(0.7, 1000, 0.05), drawn(0.5, 10_000, 0.01)):
        check_events(event)
    without = {"kind": "SelfComposed", "count": 10**6, "event": {"kind": "Gaussian"}}
    without["event"]["noise_multiplier"] = 1e-3  # the closed form has no grid
    check_events(without)
    assert gaussian_mu_squared(without, Adjacency.ZERO_OUT) == pytest.approx(1e12)


def test_a_claim_below_its_events_is_refused() -> None:
    event = {"kind": "Gaussian", "noise_multiplier": 2.0}
    epsilon, how = epsilon_of(event, 1e-5, Adjacency.ZERO_OUT)
    claim = Claim("the server", epsilon, 1e-5, how, event=event)
    assert recomputed(claim, Adjacency.ZERO_OUT) == epsilon
    with pytest.raises(DataError, match="the events beside it cost"):
        recomputed(replace(claim, epsilon=0.9 * epsilon), Adjacency.ZERO_OUT)
