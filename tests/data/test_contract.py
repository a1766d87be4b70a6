# SPDX-License-Identifier: Apache-2.0
"""The contract: what becomes of a cell, what a contract may not be, and what its digest covers."""

from __future__ import annotations

import math
import sys
from subprocess import run
from time import process_time

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed.core.errors import DataError, DpfedError, RecipeError
from dpfed.data.contract import (
    MAX_BYTES,
    UNKNOWN,
    Column,
    Contract,
    Label,
    contract_of,
    differences,
    read_contract,
)

AGE = {"name": "age", "kind": "number", "range": [20, 100]}
LACTATE = {"name": "lactate", "kind": "number", "range": [0.1, 10], "scale": "log", "missing": 1.0}
SEX = {"name": "sex", "kind": "category", "words": ["f", "m", "x"]}
SMOKER = {"name": "smoker", "kind": "flag", "words": ["no", "yes"]}
LABEL = {"column": "outcome", "words": ["alive", "dead"]}
WARD = {
    "row": "one admission",
    "person": "patient",
    "columns": [AGE, LACTATE, SEX, SMOKER],
    "label": LABEL,
}
TABLE = {
    "outcome": ["dead", "alive", "lost", ""],
    "sex": ["m", "f", "q", "NA"],
    "age": ["60", "20", "140", "n/a"],
    "lactate": ["1", "0.1", "0", "?"],
    "smoker": ["yes", "no", "maybe", ""],
    "patient": ["a", "b", "b", "c"],
}


def ward(**changes) -> Contract:
    return contract_of({**WARD, **changes})


def test_a_table_becomes_features_in_the_contracts_order() -> None:
    made = ward()
    assert made.features == ("age", "lactate", "sex=f", "sex=m", "sex=x", "smoker")
    assert made.width == 6
    assert made.classes == 2
    expected = [
        [0, 0, 0, 1, 0, 1],
        [-1, -1, 1, 0, 0, -1],
        [1, -1, 0, 0, 0, 0],  # beyond a range: cut; words that nobody knows: missing
        [0, 0, 0, 0, 0, 0],
    ]
    assert made.encode(TABLE) == pytest.approx(np.array(expected), abs=1e-6)
    assert made.encode(TABLE).dtype == np.float32
    assert made.labels(TABLE).tolist() == [1, 0, UNKNOWN, UNKNOWN]
    assert made.decode([0, 1]) == ["alive", "dead"]


def test_missing_is_a_constant_that_is_neither_cut_nor_logged_as_a_number() -> None:
    lactate = Column(**LACTATE)
    assert lactate.encode("") == lactate.encode("1.0")
    sentinel = contract_of({"columns": [LACTATE], "missing_words": ["-999"]})
    table = {"lactate": ["-999", "-999.0", "-998"]}
    assert sentinel.encode(table)[:, 0].tolist() == pytest.approx([0.0, 0.0, -1.0])
    assert sentinel.values("lactate", table["lactate"]) == [None, None, 0.1]
    assert Column(**{**AGE, "missing": 100}).encode("") == (1.0,)
    assert Column(**{**SEX, "missing": "x"}).encode("") == (0.0, 0.0, 1.0)
    assert Column(**{**SEX, "missing": "x"}).encode("unheard of") == (0.0, 0.0, 1.0)
    assert Column(**{**SMOKER, "missing": "no"}).encode("") == (-1.0,)


def test_a_word_may_mean_missing_in_one_column_alone() -> None:
    made = contract_of({"columns": [{**AGE, "missing_words": ["99"]}, LACTATE]})
    assert made.values("age", ["99", "98"]) == [None, 98.0]
    assert made.values("lactate", ["99", "98"]) == [10.0, 10.0]


@pytest.mark.parametrize(
    ("cell", "feature"),
    [("yes", 1), ("1", 0), (True, 0)],
)
def test_a_flag_has_its_own_words(cell, feature) -> None:
    assert Column(**SMOKER).encode(cell) == (feature,)
    plain = Column(name="smoker", kind="flag")
    for yes in ("1", 1, True, "true", "TRUE", 1.0):
        assert plain.encode(yes) == (1.0,)
    for no in ("0", False, "False"):
        assert plain.encode(no) == (-1.0,)
    assert plain.encode("yes") == (0.0,)


def test_a_target_is_cut_and_stays_in_its_unit() -> None:
    made = contract_of({"columns": [AGE], "label": {"column": "stay", "range": [0, 30]}})
    read = made.labels({"stay": ["4.5", "99", "", "long"]})
    assert read[:2].tolist() == [4.5, 30.0]
    assert np.isnan(read[2:]).all()
    assert made.classes is None


def test_labels_are_mapped_by_word_however_they_are_spelled() -> None:
    made = contract_of({"columns": [AGE], "label": {"column": "y", "words": ["1", "2"]}})
    assert made.labels({"y": ["01", 2, 2.0, "1.0", "3"]}).tolist() == [0, 1, 1, 0, UNKNOWN]


CELLS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(["f", "m", "yes", "no", "NA", "1e400", "-1e400", "5e-324", "_1", "\0"]),
)
RECORDS = st.lists(st.tuples(CELLS, CELLS, CELLS, CELLS, CELLS), min_size=1, max_size=5)
NAMES = ("age", "lactate", "sex", "smoker", "outcome")


def by_column(records) -> dict[str, list]:
    return {name: [record[at] for record in records] for at, name in enumerate(NAMES)}


@given(records=RECORDS, other=st.tuples(*[CELLS] * 5), data=st.data())
def test_one_changed_record_moves_one_row(records, other, data) -> None:
    """The sensitivity view: whatever a record holds, all other rows keep their bits."""
    made, at = ward(), data.draw(st.integers(0, len(records) - 1))
    changed = [*records[:at], other, *records[at + 1 :]]
    before, after = (by_column(each) for each in (records, changed))
    for read in (made.encode, made.labels):
        pairs = enumerate(zip(read(before), read(after), strict=True))
        moved = {i for i, (a, b) in pairs if a.tobytes() != b.tobytes()}
        assert moved <= {at}
    alone = made.encode(by_column([records[at]]))
    assert alone.tobytes() == made.encode(before)[at : at + 1].tobytes()


@given(cells=st.lists(CELLS, min_size=1, max_size=4))
def test_every_feature_lies_between_its_ends(cells) -> None:
    for column in ward().columns:
        for cell in cells:
            made = column.encode(cell)
            assert len(made) == len(column.features)
            assert all(-1 <= each <= 1 for each in made)


class _ByTheMean(Contract, frozen=True):
    """The bug that is feared: a missing value becomes the mean of the file."""

    def encode(self, table):
        made = super().encode(table)
        known = [float(c) for c in table["age"] if c not in ("", "n/a")]
        made[[c in ("", "n/a") for c in table["age"]], 0] = np.mean(known) / 100
        return made


def test_a_planted_mean_moves_other_rows() -> None:
    planted = _ByTheMean(columns=ward().columns, label=ward().label)
    other = {**TABLE, "age": ["90", *TABLE["age"][1:]]}
    rows = [i for i in range(4) if not (planted.encode(TABLE)[i] == planted.encode(other)[i]).all()]
    assert rows == [0, 3]


# -------------------------------------------------------------------------------- the fingerprint


CHANGES = {
    "label words in another order": {"label": {**LABEL, "words": ["dead", "alive"]}},
    "columns in another order": {"columns": [LACTATE, AGE, SEX, SMOKER]},
    "another range": {"columns": [{**AGE, "range": [18, 100]}, LACTATE, SEX, SMOKER]},
    "another unit": {"columns": [{**AGE, "unit": "months"}, LACTATE, SEX, SMOKER]},
    "another scale": {"columns": [AGE, {**LACTATE, "scale": "linear"}, SEX, SMOKER]},
    "another constant": {"columns": [AGE, {**LACTATE, "missing": 2}, SEX, SMOKER]},
    "words in another order": {
        "columns": [AGE, LACTATE, {**SEX, "words": ["m", "f", "x"]}, SMOKER]
    },
    "another kind": {
        "columns": [AGE, LACTATE, SEX, {**SMOKER, "kind": "category"}],
    },
    "another person": {"person": "case"},
    "another row": {"row": "one patient"},
    "other missing words": {"missing_words": ["-1"]},
    "one column less": {"columns": [AGE, LACTATE, SEX]},
    "no label": {"label": None},
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_the_digest_differs_where_the_meaning_differs(changes) -> None:
    other = ward(**changes)
    assert other.digest != ward().digest
    assert list(differences(ward(), other))
    assert not list(differences(other, other))


def test_the_digest_is_of_the_meaning_and_not_of_the_spelling() -> None:
    spelled = ward(
        columns=[{**AGE, "range": [20.0, 1e2]}, LACTATE, SEX, SMOKER],
        missing_words=["?", "None", "NULL", "nan", "N/A", "na"],
    )
    assert spelled.digest == ward().digest
    by_hand = Contract(
        columns=[Column(**AGE), Column(**LACTATE), Column(**SEX), Column(**SMOKER)],
        label=Label(**LABEL),
        person="patient",
        row="one admission",
    )
    assert by_hand.digest == ward().digest
    again = msgspec.json.decode(msgspec.json.encode(ward()), type=Contract)
    assert again == ward()
    assert again.digest == ward().digest


def test_the_digest_stays() -> None:
    """A golden: contracts that were agreed on must not change their fingerprint."""
    assert ward().digest == "4a056b0b162aa4013261e45083ad88b49f9f7f71056d69c4b1f421338f0c983c"


def test_marks_of_private_values_are_named() -> None:
    drafted = ward(columns=[{**AGE, "from_records": ["range"]}, SEX])
    assert drafted.drafted == ("columns.age.range",)
    assert drafted.digest != ward(columns=[AGE, SEX]).digest
    assert not ward().drafted


# ------------------------------------------------------------------------- what comes from others

WRONG = {
    "a control sign": {"columns": [{**SEX, "words": ["f", "m\x1b[2J"]}]},
    "a line end": {"columns": [{**SEX, "words": ["f", "m\nforged"]}]},
    "a sign that turns text": {"columns": [{**SEX, "words": ["f", "m\u202e"]}]},
    "a formula": {"columns": [{**SEX, "words": ["f", "=HYPERLINK(1)"]}]},
    "a formula as a name": {"columns": [{**SEX, "name": "@SUM(A1)"}]},
    "a formula as a label": {"label": {"column": "y", "words": ["a", "-cmd|' /C calc'!A0"]}},
    "a word without an end": {"columns": [{**SEX, "words": ["f", "m" * 81]}]},
    "too many words": {"columns": [{**SEX, "words": [f"w{i}" for i in range(1001)]}]},
    "too many columns": {"columns": [{**AGE, "name": f"c{i}"} for i in range(1001)]},
    "too many features": {
        "columns": [
            {"name": f"c{i}", "kind": "category", "words": [f"w{j}" for j in range(1000)]}
            for i in range(11)
        ]
    },
    "too many missing words": {"missing_words": [f"w{i}" for i in range(1001)]},
    "one word twice": {"columns": [{**SEX, "words": ["3", "03"]}]},
    "a column twice": {"columns": [AGE, AGE]},
    "a feature twice": {"columns": [SEX, {**AGE, "name": "sex=f"}]},
    "the label as a feature": {"columns": [AGE, {**SEX, "name": "outcome"}]},
    "the person as a feature": {"columns": [AGE, {**SEX, "name": "patient"}]},
    "a value that means missing": {"columns": [{**SEX, "words": ["f", "None"]}]},
    "a class that means missing": {"label": {"column": "y", "words": ["?", "yes"]}},
    "a range upside down": {"columns": [{**AGE, "range": [100, 20]}]},
    "a range without an end": {"columns": [{**AGE, "range": [0, math.inf]}]},
    "a range of nothing": {"columns": [{**AGE, "range": [0, 5e-324]}]},
    "a range that overflows": {"columns": [{**AGE, "range": [-1.7e308, 1.7e308]}]},
    "NaN": {"columns": [{**AGE, "range": [math.nan, 1]}]},
    "a logarithm of nothing": {"columns": [{**LACTATE, "range": [0, 10]}]},
    "no range": {"columns": [{"name": "age", "kind": "number"}]},
    "words of a number": {"columns": [{**AGE, "words": ["1"]}]},
    "a constant beyond the range": {"columns": [{**AGE, "missing": 10}]},
    "a constant that is a word": {"columns": [{**AGE, "missing": "old"}]},
    "a constant that is no word": {"columns": [{**SEX, "missing": "q"}]},
    "three words of a flag": {"columns": [{**SMOKER, "words": ["a", "b", "c"]}]},
    "no words": {"columns": [{"name": "sex", "kind": "category"}]},
    "one class": {"label": {"column": "y", "words": ["a"]}},
    "a label of nothing": {"label": {"column": "y"}},
    "a mark on nothing": {"columns": [{**AGE, "from_records": ["nothing"]}]},
    "no columns": {"columns": []},
    "an unknown field": {"note": "x"},
    "no name": {"columns": [{**AGE, "name": ""}]},
    "a unit that steers": {"columns": [{**AGE, "unit": "\x1b]0;x\x07"}]},
}


@pytest.mark.parametrize("changes", WRONG.values(), ids=WRONG)
def test_refused(changes) -> None:
    began = process_time()
    with pytest.raises(RecipeError) as found:
        ward(**changes)
    assert str(found.value).isprintable()
    assert process_time() - began < 2


def test_letters_of_every_language_are_fine() -> None:
    words = ("männlich", "महिला", "<5", "a,b;c", "-1", "+2", "x=y")
    assert Column(name="geschlecht", kind="category", words=words).vocabulary["महिला"] == 1


def test_files(tmp_path) -> None:
    path = tmp_path / "contract.toml"
    path.write_text('columns = [{name = "age", kind = "number", range = [20, 100]}]\n')
    assert read_contract(path).columns == (Column(**AGE),)
    for text in ("columns = [", "columns = 3", "#" * MAX_BYTES + "\n", "[" * 5000):
        path.write_text(text)
        with pytest.raises(RecipeError):
            read_contract(path)
    path.write_bytes(b"\xff")
    with pytest.raises(RecipeError):
        read_contract(path)
    with pytest.raises(RecipeError):
        read_contract(tmp_path / "none.toml")


def test_headers() -> None:
    made = ward()
    assert made.names == ("age", "lactate", "sex", "smoker", "outcome", "patient")
    header = ["extra", "patient", "outcome", "smoker", "sex", "lactate", "age"]
    assert made.places(header)["age"] == 6
    for wrong in (header[:-1], [*header, "age"]):
        with pytest.raises(DataError, match="age"):
            made.places(wrong)


def test_what_is_not_there_is_named() -> None:
    for call in (
        lambda: ward().encode({}),
        lambda: ward().column("weight"),
        lambda: ward().decode([2]),
        lambda: ward(label=None).labels(TABLE),
        lambda: ward(label=None).decode([0]),
    ):
        with pytest.raises(DpfedError):
            call()


@pytest.mark.slow
def test_torch_is_not_loaded() -> None:
    code = "import sys, dpfed.data.contract; sys.exit('torch' in sys.modules)"
    assert run([sys.executable, "-c", code]).returncode == 0
