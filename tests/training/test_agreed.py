# SPDX-License-Identifier: Apache-2.0
"""Two plans have one fingerprint exactly if both sides would do, and pay for, the same.

Fields are found by walking through a plan, never listed: a new field of a plan, a mechanism, a
channel or a sum must be in ``Agreed``, or in ``ALONE`` below with the reason why it need not be.
tests/conftest.py reads every plan of the suite back from its JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from flwr.app import ConfigRecord

from dpfed.core.dsse import canonical_json
from dpfed.core.errors import DataError, UnsoundPlan
from dpfed.core.participation import Participation
from dpfed.core.registry import build
from dpfed.core.types import METRICS, UPDATE, Broadcast, Channel, MadeBy, Phase
from dpfed.core.vector import layout_of
from dpfed.recipes.build import plan_for
from dpfed.recipes.schema import parse
from dpfed.training.agreed import FORMAT, Agreed, agreed_of, load_agreed
from dpfed.training.draft import Draft
from dpfed.training.plan import Plan
from dpfed.training.wire.codec import CONTROL, Envelope, Sender, write_reply
from tests.goldens.runs import GOLDENS, MODELS, plan_of
from tests.helpers.rounds import make_plan

VECTORS = Path(__file__).parents[1] / "goldens" / "agreed.json"


def tables(**privacy: Any) -> dict[str, Any]:
    return {"rounds": 5, "method": "dp-fedgd", "privacy": {"std_over_clip": 2.0, **privacy}}


SPOKEN: dict[str, dict[str, Any]] = {
    "record, plain": tables(),
    "person, secure": {**tables(unit="group", trust="distributed"), "sum": {"name": "secure"}},
    "client, drawn": tables(
        unit="client", trust="central", client_rate=0.5, adjacency="zero-out", spare_attempts=2
    ),
    "record, drawn, metrics": {
        **tables(record_rate=0.25, adjacency="zero-out"),
        "evaluation": {"kind": "federated", "every": 2, "metrics": ["accuracy", "loss"]},
    },
    "adaptive": tables(unit="client", adaptive={"share": 0.25}),
    "tree": tables(mechanism="tree"),
    "banded, at most": tables(
        mechanism="banded",
        unit="client",
        trust="central",
        participation={"min_separation": 2, "at_most": 2},
    ),
    "blt": tables(mechanism="blt"),
    "exact": tables(mechanism="discrete_gaussian", colluders=2),
    "clear": {"rounds": 5, "method": "dp-fedgd", "privacy": {"mechanism": "clear"}},
    "derived": {**tables(), "method": "dp-scaffold"},
    "second order": {**tables(), "method": "dp-fednew"},
}


def spoken(name: str) -> Plan:
    unit = SPOKEN[name]["privacy"].get("unit", "record")
    sizes = [1.0] * 4 if unit == "client" else [30.0, 20.0, 25.0, 40.0]
    return plan_for(parse(SPOKEN[name]), sizes, MODELS["softmax"].layout)


# ---------------------------------------------------------------------------- there and back


def vectors() -> dict[str, Any]:
    """As tests/goldens/agreed.json has them: ``python -m tests.training.test_agreed``."""
    made = {name: spoken(name).agreed for name in SPOKEN}
    return {
        name: {"fingerprint": each.fingerprint, "agreed": json.loads(each.text)}
        for name, each in made.items()
    }


@pytest.mark.parametrize("name", SPOKEN)
def test_a_plan_is_written_as_before(name: str) -> None:
    """Another text is another plan to every gate that has approved it: raise FORMAT with it."""
    kept = json.loads(VECTORS.read_text(encoding="utf-8"))[name]
    agreed = spoken(name).agreed
    assert json.loads(agreed.text) == kept["agreed"]
    assert agreed.fingerprint == kept["fingerprint"]


def expected(plan: Plan) -> Iterator[tuple[str, Any, Any]]:
    """What the text says and what the plan does, by name; by the plan's own answers."""
    agreed = load_agreed(plan.agreed.text)
    for name, channel in agreed.channels.items():
        each_round = [many for rounds, many in channel.phases for _ in range(rounds)]
        yield f"{name}: rounds", each_round, [plan.releases(name, r) for r in range(plan.rounds)]
        planned = sum(each_round) + agreed.spare * max(each_round)
        yield f"{name}: planned", planned, plan.planned(name)
        yield f"{name}: size", channel.size or 30, plan.size(name, 30)
        if channel.release is None:
            assert name not in plan.channels
            continue
        made, mechanism = channel.release, plan.channels[name]
        for part in ("clip", "replace_bound", "std", "step", "shares"):
            value = getattr(mechanism, part, None)
            value = mechanism.facts.replace_bound if part == "replace_bound" else value
            yield f"{name}: {part}", getattr(made, part), value
        yield f"{name}: rate", made.draw.options["rate"], mechanism.sampling.rate
    for part in ("unit", "adjacency", "trust", "participation"):
        yield part, getattr(agreed, part), getattr(plan.update, part)
    yield "sizes", agreed.sizes, [float(size) for size in plan.nominal]
    for part in ("rounds", "spare", "open", "weights", "colluders", "loss_bound", "delta"):
        yield part, getattr(agreed, part), getattr(plan, part)
    yield "noise", agreed.noise, plan.noise.source
    yield "draw", agreed.client_draw.options["rate"], plan.client_sampling.rate


@pytest.mark.parametrize("name", [*GOLDENS, *SPOKEN])
def test_the_text_says_what_the_plan_does(name: str) -> None:
    plan = plan_of(GOLDENS[name]) if name in GOLDENS else spoken(name)
    assert load_agreed(plan.agreed.text) == plan.agreed
    assert load_agreed(plan.agreed.text).fingerprint == plan.fingerprint()
    wrong = [part for part, said, done in expected(plan) if said != done]
    assert wrong == []


def test_no_two_of_these_plans_are_the_same() -> None:
    found = [spoken(name).fingerprint() for name in SPOKEN]
    assert len(set(found)) == len(found)


# -------------------------------------------------------------- every field that matters is in it

ALONE = {
    "client.init": "its code is named",
    "client.work": "its code is named",
    "client.units": "each side refuses a plan for another unit",
    "client.linear": "each side refuses a model that is not",
    "client.samples": "each side refuses a draw",
    "client.memory": "words for people",
    "client.companion": "the server's half",
    "client.model": "not of a plan",
    "client.needs": "each side refuses a plan without it",
    "client.settle": "each side has done it",
    "client.trains": "words for people",
    "client.channels.*.budget_fraction": "the noise that it led to is there",
    "client.channels.*.noise": "what the server's optimizer knows of it",
    "server": "it sees what is private already",
    "metrics_every": "the releases of each round are there",
    "noise.seed": "whoever knows it can take the noise off",
    "metrics.*.row": "its code is named",
    "metrics.*.finish": "the server's half",
    "metrics.*.names": "what its figures are called",
}
"""What each side may have otherwise, and why."""


Inside = list[tuple[str, Any, Callable[[Any], Any]]]


def _inside(value: Any) -> Inside | None:
    """The parts of a value: name, what is there, and the value with another; None of a leaf."""
    if isinstance(value, Mapping):
        return [("*", value[key], _in_mapping(value, key)) for key in value]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(n, getattr(value, n), _in_named(value, n)) for n in value._fields]
    if isinstance(value, list | tuple):
        return [("*", each, _in_tuple(tuple(value), at)) for at, each in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name), _in_fields(value, f.name)) for f in fields(value)]
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
        return [(n, getattr(value, n), _in_struct(value, n)) for n in names]
    return None


def parts(value: Any, path: str = "") -> Iterator[tuple[str, Any, Callable[[Any], Any]]]:
    """Each leaf of a value: its path, what is there, and how to make the value with another."""
    inner = _inside(value)
    if inner is None:
        yield path, value, lambda other: other
        return
    for name, each, put in inner:
        at = f"{path}.{name}" if path else name
        if at in ALONE:
            yield at, each, put
            continue
        for deeper, leaf, make in parts(each, at):
            yield deeper, leaf, lambda other, put=put, make=make: put(make(other))  # type: ignore[misc]


def _in_mapping(value: Mapping[str, Any], key: str) -> Callable[[Any], Any]:
    return lambda other: {**value, key: other}


def _in_tuple(value: tuple[Any, ...], at: int) -> Callable[[Any], Any]:
    return lambda other: (*value[:at], other, *value[at + 1 :])


def _in_named(value: Any, name: str) -> Callable[[Any], Any]:
    return lambda other: value._replace(**{name: other})


def _in_struct(value: Any, name: str) -> Callable[[Any], Any]:
    return lambda other: msgspec.structs.replace(value, **{name: other})


def _in_fields(value: Any, name: str) -> Callable[[Any], Any]:
    """Without the checks of ``__init__``: what is refused elsewhere is told apart here, too."""

    def make(other: Any) -> Any:
        made = object.__new__(type(value))
        for each in fields(value):
            changed = other if each.name == name else getattr(value, each.name)
            object.__setattr__(made, each.name, changed)
        return made

    return make


def another(value: Any) -> Any:
    """A value of the same kind that differs by as little as can be."""
    match value:
        case Enum():
            return next(each for each in type(value) if each is not value)
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return math.nextafter(value, math.inf)
        case str():
            return f"{value[:-1]}{'0' if value[-1:] != '0' else '1'}"
    raise NotImplementedError(f"a part of kind {type(value).__name__}")


def full_plans() -> dict[str, Plan]:
    """Plans in which no optional part is left out, all of them together."""
    metered = spoken("record, drawn, metrics")
    blocks = replace(spoken("record, plain"), blocks=("2026-03",), contract="0" * 64)
    channel = Channel((Phase(2, 1), Phase(None, 2)), 30, 1.0, 2.0, 0.5)
    own = make_plan(client=make_plan().client._replace(channels={UPDATE: channel}))
    return {**{name: spoken(name) for name in SPOKEN}, "m": metered, "blocks": blocks, "own": own}


PLANS = full_plans()


def digest(plan: Any) -> str | None:
    """The fingerprint; None of what is no plan at all."""
    try:
        return agreed_of(plan).fingerprint
    except (msgspec.ValidationError, UnsoundPlan):
        return None


@pytest.mark.parametrize("name", PLANS)
def test_every_field_that_matters_changes_it(name: str) -> None:
    before, seen = digest(PLANS[name]), set[str]()
    for path, value, make in parts(PLANS[name]):
        if path in ALONE or value is None:
            continue
        seen.add(path)
        assert digest(make(another(value))) != before, f"{path} = {value!r} is not in it"
    assert {"rounds", "delta", "channels.*.facts.clip", "nominal.*"} <= seen


def test_the_walk_sees_every_field_of_a_plan() -> None:
    """Each in one plan at least: an optional part that none of them has would never be changed."""
    seen = {
        path.split(".")[0] for plan in PLANS.values() for path, v, _ in parts(plan) if v is not None
    }
    assert seen >= {each.name for each in fields(Draft)}


def test_what_each_side_may_have_otherwise_does_not_change_it() -> None:
    plan = PLANS["record, drawn, metrics"]
    same = {
        "server": replace(plan, server=build("server", "adam", {})),
        "noise.seed": replace(make_plan(), noise=replace(make_plan().noise, seed=8)),
        "client.memory": replace(plan, client=plan.client._replace(memory="2 d")),
    }
    assert same["server"].fingerprint() == plan.fingerprint()
    assert same["client.memory"].fingerprint() == plan.fingerprint()
    assert same["noise.seed"].fingerprint() == make_plan().fingerprint()


def test_phases_that_release_alike_are_alike() -> None:
    def phased(*phases: Phase) -> Plan:
        return replace(
            make_plan(), client=make_plan().client._replace(channels={UPDATE: Channel(phases)})
        )

    assert phased(Phase(1, 1), Phase(None, 1)).fingerprint() == make_plan().fingerprint()
    assert phased(Phase(1, 2), Phase(None, 1)).fingerprint() != make_plan().fingerprint()


def test_in_which_rounds_a_metric_is_released_is_in_it() -> None:
    other = {**SPOKEN["record, drawn, metrics"]}
    other["evaluation"] = {**other["evaluation"], "every": 3}
    plan = plan_for(parse(other), [30.0, 20.0, 25.0, 40.0], MODELS["softmax"].layout)
    assert (
        plan.agreed.channels[METRICS] != spoken("record, drawn, metrics").agreed.channels[METRICS]
    )


def test_an_algorithm_is_known_by_its_options_and_by_what_it_is_around() -> None:
    def made(by: MadeBy | None) -> str:
        return replace(make_plan(), client=make_plan().client._replace(made_by=by)).fingerprint()

    gradient = MadeBy("gradient")
    kinds = [
        None,
        gradient,
        MadeBy("gradient", {"rate": 1}),
        MadeBy("gradient", {"rate": 1.0}),
        MadeBy("gradient", {"rate": True}),
        MadeBy("gradient", {"rate": "1"}),
        MadeBy("gradient", {"rate": math.inf}),
        MadeBy("gradient", {"rate": [1]}),
        MadeBy("gradient", {"rate": None}),
        MadeBy("gradient", {}, gradient),
        MadeBy("gradient", {}, MadeBy("gradient", {}, gradient)),
    ]
    assert len({made(each) for each in kinds}) == len(kinds)


# ----------------------------------------------------------------------------- a closed schema


def tree() -> dict[str, Any]:
    return dict(json.loads(spoken("record, plain").agreed.text))


def tables_in(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        for key, each in node.items():
            if key != "options":
                yield from tables_in(each)
    elif isinstance(node, list):
        for each in node:
            yield from tables_in(each)


def test_a_field_more_or_less_is_refused_wherever_it_is() -> None:
    """Each table of the text once with a further key, and once without each of its own."""
    whole = tree()
    closed = [each for each in tables_in(whole) if each is not whole["channels"]]
    assert len(closed) >= 7
    for table in closed:
        table["more"] = 1
        with pytest.raises(DataError, match="fields of"):
            load_agreed(canonical_json(whole))
        del table["more"]
        for key, value in list(table.items()):
            del table[key]
            with pytest.raises(DataError, match="fields of"):
                load_agreed(canonical_json(whole))
            table[key] = value
    assert load_agreed(canonical_json(whole)).text == canonical_json(whole)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rounds", 0),
        ("rounds", 5.0),
        ("rounds", "5"),
        ("rounds", True),
        ("spare", -1),
        ("delta", -1e-5),
        ("delta", 1.5),
        ("sizes", [0.0]),
        ("unit", "person"),
        ("trust", "none"),
        ("noise", "seeded"),
        ("format", "dpfed plan 2"),
        ("contract", "A" * 64),
        ("contract", "0" * 64 + "\n"),
        ("sends_unmodified", 1),
        ("colluders", 0),
    ],
)
def test_a_value_of_another_kind_is_refused(name: str, value: Any) -> None:
    with pytest.raises(DataError):
        load_agreed(canonical_json({**tree(), name: value}))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text + b"\n",
        lambda text: text.replace(b'"delta":1e-05', b'"delta":0.00001'),
        lambda text: text.replace(b'"delta":1e-05', b'"delta":1e-05,"delta":1e-05'),
        lambda text: text.replace(b'"loss_bound":5.0', b'"loss_bound":5'),
        lambda text: text.replace(b'"loss_bound":5.0', b'"loss_bound":NaN'),
        lambda text: text.replace(b'"gradient"', b'"\\u0067radient"'),
        lambda text: json.dumps(json.loads(text)).encode(),
    ],
)
def test_a_plan_has_one_spelling(spoil: Callable[[bytes], bytes]) -> None:
    text = spoken("record, plain").agreed.text
    assert spoil(text) != text
    with pytest.raises(DataError):
        load_agreed(spoil(text))


def test_the_format_stands_for_the_fields_and_for_what_is_said() -> None:
    """Whoever changes a message or a field raises FORMAT, and then this test."""
    layout = layout_of({"w": torch.zeros(2)})
    sender = Sender(layout, "fingerprint", ConfigRecord(), Broadcast(0, torch.zeros(2)))
    sent = sender.order("reply", {UPDATE: b""}).config_records[CONTROL]
    back = write_reply(Envelope(0, 0, "reply", 1), {UPDATE: bytes(8)}).config_records[CONTROL]
    orders = [
        "attempt",
        "channels",
        "fingerprint",
        "names",
        "requests",
        "round",
        "since",
        "stage",
        "training",
    ]
    assert (FORMAT, sorted(sent), sorted(back)) == (
        "dpfed plan 1",
        orders,
        ["attempt", "client", "round", "stage"],
    )
    assert set(Agreed.__struct_fields__) == set(tree())
    assert spoken("banded, at most").agreed.participation == Participation(
        min_separation=2, at_most=2
    )


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(vectors(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
