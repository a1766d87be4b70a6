# SPDX-License-Identifier: Apache-2.0
"""Four hospitals, one of them with other columns, words, ranges or units: refused, or mapped.

Before contracts, such a hospital was approved under the same fingerprint, and trained on as if its
columns and classes were the others'.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from pathlib import Path
from pwd import getpwuid
from typing import Any

import pytest
import torch

from dpfed.cli.silo_check import _check_contracts as check_contracts
from dpfed.cli.silo_check import _Site
from dpfed.cli.silo_text import proposal, verdict
from dpfed.core.errors import DataError, RecipeError, UnsoundPlan
from dpfed.data.datasets import Records
from dpfed.flower import DPStrategy
from dpfed.recipes.terms import Terms, read_terms
from dpfed.silo.approvals import Approvals
from dpfed.silo.handler import RequestHandler
from dpfed.silo.owner import load_records
from dpfed.silo.policy import load_policy, permit
from dpfed.training.inprocess import rounds
from dpfed.training.wire.codec import named_arrays
from tests.helpers.handlers import enrolment, said
from tests.helpers.wards import (
    CONTRACT,
    NAMES,
    RECORDS,
    Record,
    contract,
    data_of,
    records,
    ward_terms,
    write_ward,
)
from tests.silo.gates import Silo, gates, grid_of
from tests.training.flower.local_grid import become_a_server

TODAY = dt.date(2026, 11, 16)
ODD = 2
"""The hospital where something is planted."""
AGE, WEIGHT, SEX, SMOKER = CONTRACT["columns"]


def policy_of(folder: Path, path: Path, agreed: dict[str, Any] | None = None, **load: Any) -> Path:
    silo = Silo(folder, ODD)
    silo.write(**data_of(path, agreed, **load))
    return silo.policy


def accepted(handler: RequestHandler) -> None:
    """As an officer does who has looked at the files."""
    for name, data in handler.policy.data.items():
        handler.approvals.accept(name, data.reading, by="root")


def planted(**made: Any) -> list[Record]:
    return [{**each, **{name: call(each) for name, call in made.items()}} for each in records(ODD)]


def same(one: Records, other: Records) -> bool:
    assert one.groups is not None
    assert other.groups is not None
    parts = ((one.x, other.x), (one.y, other.y), (one.groups, other.groups))
    return all(torch.equal(mine, its) for mine, its in parts)


# --------------------------------------------------------------- a hospital with another contract

OTHERS: dict[str, dict[str, Any]] = {
    "label words": {**CONTRACT, "label": {"column": "outcome", "words": ["dead", "alive"]}},
    "the columns' order": {**CONTRACT, "columns": [WEIGHT, AGE, SEX, SMOKER]},
    "words": {**CONTRACT, "columns": [AGE, WEIGHT, {**SEX, "words": ["m", "f"]}, SMOKER]},
    "range": {**CONTRACT, "columns": [{**AGE, "range": [0, 120]}, WEIGHT, SEX, SMOKER]},
    "unit": {**CONTRACT, "columns": [AGE, {**WEIGHT, "unit": "lb"}, SEX, SMOKER]},
}


@pytest.mark.parametrize("what", OTHERS)
def test_another_meaning_is_another_fingerprint_and_refused(tmp_path: Path, what: str) -> None:
    asked = ward_terms(tmp_path)
    other = ward_terms(tmp_path, agreed=OTHERS[what])
    assert other.fingerprint != asked.fingerprint
    assert other.plan.fingerprint() != asked.plan.fingerprint()
    path = write_ward(tmp_path / "north.csv", records(ODD))
    found = load_policy(policy_of(tmp_path / "silo", path, OTHERS[what]))
    with pytest.raises(UnsoundPlan, match=rf"load\.contract.*{what.rsplit(maxsplit=1)[-1]}"):
        permit(found, asked, TODAY)
    assert permit(found, other, TODAY)


def test_terms_and_policy_both_have_a_contract_or_neither(tmp_path: Path) -> None:
    path = write_ward(tmp_path / "north.csv", records(ODD))
    asked = ward_terms(tmp_path)
    text = (tmp_path / "terms.toml").read_text()
    cut = text[: text.index("[terms.contract]")]
    without = read_terms(cut)
    with_one = load_policy(policy_of(tmp_path / "one", path))
    plain = Silo(tmp_path / "two", ODD)
    plain.write(shape=[5], classes=2)
    for found, terms in ((with_one, without), (load_policy(plain.policy), asked)):
        with pytest.raises(UnsoundPlan, match=r"load\.contract"):
            permit(found, terms, TODAY)
    assert permit(with_one, asked, TODAY)
    assert permit(load_policy(plain.policy), without, TODAY)


def test_only_a_class_name_crosses_the_wire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DPFED_STATE", "DPFED_LEDGER", "DPFED_IDENTITY"):
        monkeypatch.setenv(name, "")
    path = write_ward(tmp_path / "north.csv", records(ODD))
    rules = {"approve": "within-policy", "most_epsilon": 3.0, "week_epsilon": 3.0}
    silo = Silo(tmp_path / "silo", ODD)
    silo.write(**data_of(path, OTHERS["label words"]), **rules)
    handler = RequestHandler(load_policy(silo.policy))
    handler.open()
    accepted(handler)
    asked = ward_terms(tmp_path)
    answer = said(handler.reply(enrolment(asked.name, asked.text)))
    assert answer["error"] == "UnsoundPlan"
    assert "dead" not in str(answer)


# -------------------------------------------------------------------- a hospital with another file

MAPPED: dict[str, tuple[list[Record], dict[str, Any]]] = {
    "columns in another order": (records(ODD), {"names": NAMES[::-1]}),
    "an extra column, semicolons": (planted(note=lambda r: "x"), {"separator": ";"}),
    "labels numbered the other way": (
        planted(outcome=lambda r: str(int(r["outcome"] == "alive"))),
        {"mapping": {"words": {"outcome": {"1": "alive", "0": "dead"}}}},
    ),
    "other names": (
        [{"Alter" if k == "age" else k: v for k, v in each.items()} for each in records(ODD)],
        {"mapping": {"rename": {"Alter": "age"}}},
    ),
    "no such column": (
        [{k: v for k, v in each.items() if k != "smoker"} for each in planted(smoker=lambda _: "")],
        {"mapping": {"missing": ["smoker"]}},
    ),
    "another unit": (
        planted(weight=lambda r: str(int(r["weight"]) * 1024)),
        {"mapping": {"factor": {"weight": 1 / 1024}}},
    ),
}


def odd_file(folder: Path, case: str) -> tuple[Path, dict[str, Any]]:
    found, how = MAPPED[case]
    path = write_ward(folder / "north.csv", found, how.get("names"), how.get("separator", ","))
    return path, {"mapping": how["mapping"]} if "mapping" in how else {}


@pytest.mark.parametrize("case", MAPPED)
def test_what_a_mapping_says_gives_the_same_records(tmp_path: Path, case: str) -> None:
    blank = planted(smoker=lambda _: "") if case == "no such column" else records(ODD)
    as_agreed = write_ward(tmp_path / "as-agreed.csv", blank)
    plain = load_policy(policy_of(tmp_path / "plain", as_agreed)).data["sepsis"]
    path, load = odd_file(tmp_path, case)
    odd = load_policy(policy_of(tmp_path / "odd", path, **load)).data["sepsis"]
    assert same(load_records("sepsis", odd), load_records("sepsis", plain))


UNMAPPED = ["labels numbered the other way", "another unit"]


@pytest.mark.parametrize("case", [None, *UNMAPPED])
def test_until_the_officer_has_accepted_the_file_nothing_runs_whatever_is_in_it(
    tmp_path: Path, case: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And once they have, no value decides: what differs is shown."""
    for name in ("DPFED_STATE", "DPFED_LEDGER", "DPFED_IDENTITY"):
        monkeypatch.setenv(name, "")
    path = odd_file(tmp_path, case)[0] if case else write_ward(tmp_path / "n.csv", records(ODD))
    rules = {"approve": "within-policy", "most_epsilon": 3.0, "week_epsilon": 3.0}
    silo = Silo(tmp_path / "silo", ODD)
    silo.write(**data_of(path), **rules)
    handler, asked = RequestHandler(load_policy(silo.policy)), ward_terms(tmp_path)
    handler.open()
    before = said(handler.reply(enrolment(asked.name, asked.text)))
    with pytest.raises(UnsoundPlan, match="dpfed silo accept"):
        proposal(handler, asked)
    accepted(handler)
    assert "this one is number 2" in proposal(handler, asked)
    assert not verdict(handler, asked).refused
    after = said(handler.reply(enrolment(asked.name, asked.text)))
    assert (before.get("error"), after.get("error")) == ("UnsoundPlan", None)


def test_another_file_contract_or_mapping_is_to_be_accepted_anew(tmp_path: Path) -> None:
    path = write_ward(tmp_path / "north.csv", records(ODD))
    made = [
        policy_of(tmp_path / "a", path),
        policy_of(tmp_path / "b", write_ward(tmp_path / "other.csv", records(ODD))),
        policy_of(tmp_path / "c", path, OTHERS["label words"]),
        policy_of(tmp_path / "d", path, mapping={"factor": {"weight": 2.0}}),
        policy_of(tmp_path / "e", path, mapping={"missing": ["weight"]}),
    ]
    assert len({load_policy(each).data["sepsis"].reading for each in made}) == len(made)
    again = load_policy(policy_of(tmp_path / "f", path)).data["sepsis"].reading
    assert again == load_policy(made[0]).data["sepsis"].reading


def test_labels_that_are_no_words_train_nothing(tmp_path: Path) -> None:
    """Accepted by name, they are unknown: their rows are zero, and not another class's."""
    path, _ = odd_file(tmp_path, "labels numbered the other way")
    odd = load_policy(policy_of(tmp_path / "odd", path)).data["sepsis"]
    found = load_records("sepsis", odd)
    assert (found.y == -1).all()
    problem = ward_terms(tmp_path).model.problem(found)
    assert not problem.gradient(torch.zeros(problem.dimension)).any()


def test_a_header_without_a_column_keeps_the_gate_from_starting(tmp_path: Path) -> None:
    path, _ = odd_file(tmp_path, "other names")
    odd = load_policy(policy_of(tmp_path / "odd", path)).data["sepsis"]
    with pytest.raises(DataError, match=r"north\.csv.*'age'"):
        load_records("sepsis", odd)


def test_a_value_never_keeps_the_gate_from_starting(tmp_path: Path) -> None:
    """One changed record moves its own row, whatever is in it."""
    plain = write_ward(tmp_path / "plain.csv", records(ODD))
    before = load_records("sepsis", load_policy(policy_of(tmp_path / "a", plain)).data["sepsis"])
    for cell in ("nan", "1e999", "x" * 9000, "'", "\x00", "=1+1", "\u202e", "9" * 400):
        hostile = [dict.fromkeys(NAMES, cell), *records(ODD)[1:]]
        path = write_ward(tmp_path / "odd.csv", hostile)
        after = load_records("sepsis", load_policy(policy_of(tmp_path / "b", path)).data["sepsis"])
        assert torch.equal(after.x[1:], before.x[1:])
        assert torch.equal(after.y[1:], before.y[1:])
        assert after.x.isfinite().all()
        assert after.x.abs().max() <= 1


# ------------------------------------------------------------------------- what an owner says


def test_the_officer_sees_what_is_read_and_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DPFED_STATE", "DPFED_LEDGER", "DPFED_IDENTITY"):
        monkeypatch.setenv(name, "")
    path, load = odd_file(tmp_path, "another unit")
    handler = RequestHandler(load_policy(policy_of(tmp_path / "odd", path, **load)))
    accepted(handler)
    shown = proposal(handler, ward_terms(tmp_path))
    assert f"contract {contract().digest[:16]}" in shown
    assert "alive is 0, dead is 1" in shown
    assert "by your mapping, weight = 0.000976562 * the file's number (kg)" in shown


def test_the_check_of_a_silo_compares_each_file(tmp_path: Path) -> None:
    path, load = odd_file(tmp_path, "another unit")
    for given, word in ((load, "warning: data sepsis: north.csv"), ({}, "another unit")):
        found = load_policy(policy_of(tmp_path / "odd", path, **given))
        lines = list(check_contracts(_Site(path, found, getpwuid(0), [])))
        assert any(word in line for line in lines)
        assert lines[-1].startswith(f"data sepsis: compared with contract {contract().digest[:16]}")
    plain = Silo(tmp_path / "plain", ODD)
    plain.write()
    site = _Site(path, load_policy(plain.policy), getpwuid(0), [])
    assert not list(check_contracts(site))


WRONG: dict[str, dict[str, Any]] = {
    "shape": {"shape": [4]},
    "classes": {"classes": 3},
    "scale": {"load": {"scale": 2.0}},
    "mapping": {"load": {"mapping": {"factor": {"sex": 2.0}}}},
    "absolute": {"load": {"contract": "contract.toml"}},
    "mapping needs": {"load": {"contract": None, "mapping": {"decimal": ","}}},
}


@pytest.mark.parametrize("why", WRONG)
def test_a_policy_that_says_it_twice_or_otherwise_is_refused(tmp_path: Path, why: str) -> None:
    path = write_ward(tmp_path / "north.csv", records(ODD))
    made = data_of(path)
    load = {**made["load"], **WRONG[why].get("load", {})}
    changed = {**made, **WRONG[why], "load": {k: v for k, v in load.items() if v is not None}}
    silo = Silo(tmp_path / "silo", ODD)
    silo.write(**changed)
    with pytest.raises(RecipeError, match=why):
        load_policy(silo.policy)


def test_a_contract_may_be_a_file_of_its_own(tmp_path: Path) -> None:
    from dpfed.recipes.schema import to_toml

    (tmp_path / "contract.toml").write_text(to_toml(CONTRACT))
    path = write_ward(tmp_path / "north.csv", records(ODD))
    silo = Silo(tmp_path / "silo", ODD)
    made = data_of(path)
    made["load"]["contract"] = str(tmp_path / "contract.toml")
    silo.write(**made)
    assert permit(load_policy(silo.policy), ward_terms(tmp_path), TODAY)


# ---------------------------------------------------------------------------------- four real gates


def _expected(terms: Terms, folder: Path) -> torch.Tensor:
    """In one process, on all files as agreed."""
    problems = []
    for number in range(4):
        path = write_ward(folder / f"agreed-{number}.csv", records(number))
        data = load_policy(policy_of(folder / f"agreed-{number}", path)).data["sepsis"]
        problems.append(terms.model.problem(load_records("sepsis", data)))
    *_, (step, _) = rounds(terms.plan, problems, terms.initial)
    return step.params


@pytest.mark.long
@pytest.mark.slow
def test_four_gates_one_of_them_mapped_train_the_bits_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become_a_server(monkeypatch)
    terms = ward_terms(tmp_path)
    assert terms.pins.sizes == [float(RECORDS)] * 4
    with gates(tmp_path, 4) as owners:
        for each in owners:
            path, load = write_ward(each.folder / "ward.csv", records(each.number)), {}
            if each.number == ODD:
                path, load = odd_file(each.folder, "labels numbered the other way")
            each.write(**data_of(path, **load))
            each.approve(tmp_path / "terms.toml")
            each.spawn()
        for each in owners:
            each.wait()
        strategy = DPStrategy(terms.plan, training=terms.name, wait=20)
        strategy.start(grid_of(owners), named_arrays(terms.model.layout, terms.initial))
        assert strategy.step is not None
        assert torch.equal(strategy.step.state.params, _expected(terms, tmp_path))
        assert math.isfinite(float(strategy.step.state.params.sum()))


# -------------------------------------------------------- each case, planted at one of four gates

REFUSED: dict[str, tuple[dict[str, Any] | None, str | None]] = {
    **{f"a contract with other {what}": (other, None) for what, other in OTHERS.items()},
    **{f"a file with {case}": (None, case) for case in UNMAPPED},
}
"""By what is planted: the silo's own contract, or its file, without a mapping."""


COLUMN = {"labels numbered the other way": "outcome", "another unit": "weight"}


def _trained(owners: list[Silo], terms: Terms) -> tuple[int, torch.Tensor]:
    """How many silos were in the sum, and what was trained."""
    for each in owners:  # the odd one's, too: as if its officer had been talked into it
        Approvals(each.folder / "state").approve(terms, terms.text, days=1, by="root")
    strategy = DPStrategy(terms.plan, training=terms.name, wait=2, wait_lost=0)
    start = named_arrays(terms.model.layout, terms.initial)
    result = strategy.start(grid_of(owners), start)
    assert strategy.step is not None
    return int(result.history[0]["clients"]), strategy.step.state.params


def _plant(odd: Silo, what: str, terms: Path) -> None:
    """Another contract or file, whose officer does what the commands let them do."""
    agreed, case = REFUSED[what]
    path = odd.folder / "ward.csv" if case is None else odd_file(odd.folder, case)[0]
    odd.write(**data_of(path, agreed), epsilon=8.0)
    accepted = odd.command("accept", "--yes")
    approved = odd.command("approve", str(terms), "--yes")
    if case is None:
        assert "accepted: data sepsis" in accepted
        assert "load.contract" in approved
    else:
        assert f"north.csv, column '{COLUMN[case]}'" in accepted
        assert "dpfed silo accept" in approved
    assert "approved for" not in approved


@pytest.fixture
def four(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Silo]]:
    """Four gates with room for many trainings; all but the odd one are started."""
    become_a_server(monkeypatch)
    with gates(tmp_path, 4) as owners:
        for each in owners:
            path = write_ward(each.folder / "ward.csv", records(each.number))
            each.write(**data_of(path), epsilon=8.0)
            if each.number != ODD:
                each.accept()
                each.start()
        yield owners


SHORT: dict[str, Any] = {"privacy": {"epsilon": 0.2, "noise": "keyed"}, "rounds": 1}


@pytest.mark.long  # a gate starts for each case; the policies' level is above
def test_each_that_is_planted_at_a_real_gate_is_not_in_the_sum(
    four: list[Silo], tmp_path: Path
) -> None:
    odd, digests = four[ODD], {contract().digest}
    for number, what in enumerate(REFUSED):
        terms = ward_terms(tmp_path, name=f"refused-{number}", **SHORT)
        _plant(odd, what, tmp_path / "terms.toml")
        odd.start()
        assert _trained(four, terms)[0] == 3, what
        assert "epsilon 0 is spent" in odd.command("status"), what
        digests.add(getattr(load_policy(odd.policy).data["sepsis"].load.contract, "digest", ""))
        odd.kill()
    assert len(digests) == 1 + len(OTHERS), "another meaning has another digest"


@pytest.mark.long  # the same, mapped
def test_each_that_is_mapped_at_a_real_gate_trains_the_bits_of_one_process(
    four: list[Silo], tmp_path: Path
) -> None:
    odd = four[ODD]
    for number, case in enumerate(each for each in MAPPED if each != "no such column"):
        terms = ward_terms(tmp_path, name=f"mapped-{number}", **SHORT)
        path, load = odd_file(odd.folder, case)
        odd.write(**data_of(path, **load), epsilon=8.0)
        assert "accepted: data sepsis" in odd.command("accept", "--yes")
        odd.start()
        found, params = _trained(four, terms)
        assert found == 4, case
        assert torch.equal(params, _expected(terms, tmp_path)), case
        odd.kill()
