# SPDX-License-Identifier: Apache-2.0
"""Terms: one meaning, one fingerprint; no path, code or data in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpfed.core.errors import RecipeError
from dpfed.data.contract import Contract, contract_of
from dpfed.recipes.schema import to_toml
from dpfed.recipes.terms import package_digest, read_terms, write_terms
from tests.helpers.wards import CONTRACT, ward_terms
from tests.silo.gates import terms_for

TEXT = """
name = "one"
method = "dp-fedgd"
rounds = 2
{more}
[privacy]
epsilon = 1.0
[terms]
dataset = "d"
shape = [2]
classes = 2
sizes = [5.0, 5.0]
dpfed = "0.2.0"
"""


def text(more: str = "") -> str:
    return TEXT.format(more=more)


def test_the_fingerprint_is_of_the_meaning_not_of_the_spelling() -> None:
    one = read_terms(text()).fingerprint
    assert read_terms(text("# a comment")).fingerprint == one
    assert read_terms(text("seed = 0")).fingerprint == one  # the default, spelt out
    assert read_terms(text("seed = 1")).fingerprint != one
    assert read_terms(text().replace("5.0, 5.0", "5.0, 6.0")).fingerprint != one


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ('[data]\nsource = "/etc/passwd"', "no table 'data'"),
        ('[ledger]\ndataset = "x"', "no table 'ledger'"),
        ('[client]\nname = "gradient"\nrate = "/etc/passwd"', "one word"),
        ('[client]\nname = "gradient"\nrate = "http://x"', "one word"),
        ('[model]\nname = "softmax"\noptions = {at = "/etc/passwd"}', "one word"),
        ('[model]\nname = "softmax"\nloss = {name = "/etc/passwd"}', "one word"),
        ("unknown = 1", "unknown"),
    ],
)
def test_what_terms_cannot_have_is_named(more: str, why: str) -> None:
    with pytest.raises(RecipeError, match=why):
        read_terms(text(more))


@pytest.mark.parametrize("name", ["../x", "", "a" * 65, "a b", "x\n", "\u202ex"])
def test_names_fit_a_file_and_a_screen(name: str) -> None:
    import json

    with pytest.raises(RecipeError, match="name must be 1 to 64"):
        read_terms(text().replace('"one"', json.dumps(name)))


def test_long_ones_are_not_read() -> None:
    with pytest.raises(RecipeError, match="at most 65536 bytes"):
        read_terms(text("#" + "x" * 70_000))


def test_server_and_silo_make_the_same_plan_of_them(tmp_path: Path) -> None:
    path = terms_for(tmp_path, 3)
    one, other = read_terms(path.read_bytes()), read_terms(path.read_text())
    assert one.plan.fingerprint() == other.plan.fingerprint()
    assert one.model.layout == other.model.layout


def test_ranges_are_where_the_standardiser_begins() -> None:
    plain = text().replace("dp-fedgd", "dp-fedauto").replace("rounds = 2", "rounds = 9")
    found = read_terms(plain.replace("[terms]", "[terms]\nlow = 0.0\nhigh = [1.0, 3.0]"))
    parts = found.model.layout.unflatten(found.initial)
    assert parts["center"].tolist() == [0.5, 1.5]
    assert 1 / float(parts["transform"].view(-1)[0]) == pytest.approx(10**0.5 / 2)


@pytest.mark.parametrize(
    "ranges",
    [
        "low = 0.0",
        "high = 1.0",
        "low = [0.0]\nhigh = 1.0",
        "low = nan\nhigh = 1.0",
        "low = 0.0\nhigh = [inf, 1.0]",
    ],
)
def test_ranges_that_are_none_are_refused(ranges: str) -> None:
    with pytest.raises(RecipeError, match=r"terms\.(low|high)"):
        read_terms(text().replace("[terms]", f"[terms]\n{ranges}"))


def test_a_huge_shape_costs_nothing_to_refuse() -> None:
    huge = text().replace("[2]", "[1000000000, 1000000]")
    read_terms(huge.replace("[terms]", "[terms]\nlow = 0.0\nhigh = 1.0"))


def test_a_packages_digest_is_of_its_files() -> None:
    assert package_digest("tomli-w") == package_digest("tomli-w") != package_digest("msgspec")
    with pytest.raises(RecipeError, match="not installed"):
        package_digest("no-such-package")


def test_a_packages_digest_is_of_what_its_files_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = tmp_path / "one_model-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: one-model\nVersion: 1.0\n")
    (facts / "RECORD").write_text("one_model.py,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    digests = []
    for said in ("layers = 1", "layers = 2"):
        (tmp_path / "one_model.py").write_text(said)
        digests.append(package_digest("one-model"))
    assert digests[0] != digests[1]


@pytest.mark.parametrize("record", ["", "x.pth,,\n", "__editable___x_finder.py,,\nx.pth,,\n"])
def test_a_package_whose_code_is_elsewhere_has_no_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: str
) -> None:
    """An editable install: its code changes, and what is installed of it does not."""
    facts = tmp_path / "elsewhere-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    (facts / "RECORD").write_text(record)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RecipeError, match="installed with its code"):
        package_digest("elsewhere")
    with pytest.raises(RecipeError, match="'' is not installed"):
        package_digest("")


# ------------------------------------------------------------------------------------- a contract


def test_a_contract_is_in_both_fingerprints(tmp_path: Path) -> None:
    found = ward_terms(tmp_path)
    contract = found.pins.contract
    assert isinstance(contract, Contract)
    assert found.plan.contract == contract.digest
    assert found.pins.shape == [5]
    assert found.pins.classes == 2
    plain = read_terms(found.text[: found.text.index("[terms.contract]")])
    assert plain.fingerprint != found.fingerprint
    assert plain.plan.fingerprint() != found.plan.fingerprint()


@pytest.mark.parametrize(
    ("written", "instead", "why"),
    [
        ("shape = [\n    5,\n]", "shape = [4]", "shape"),
        ("classes = 2", "classes = 3", "classes"),
        ('"dead"', '"dead\\u001b[2J"', "words"),
        ('"dead"', '"=cmd()"', "words"),
        ('name = "age"', 'name = "outcome"', "different names"),
        ('name = "age"\n', 'name = "age"\nfrom_records = ["range"]\n', "from_records"),
        ('name = "age"\n', 'name = "age"\nunheard = 1\n', "unheard"),
    ],
)
def test_a_contract_of_others_is_checked(
    tmp_path: Path, written: str, instead: str, why: str
) -> None:
    text = ward_terms(tmp_path).text
    assert written in text
    with pytest.raises(RecipeError, match=why) as found:
        read_terms(text.replace(written, instead, 1))
    assert str(found.value).isprintable()


def test_a_contract_without_a_label_trains_nothing(tmp_path: Path) -> None:
    agreed = {key: value for key, value in CONTRACT.items() if key != "label"}
    with pytest.raises(RecipeError, match="label"):
        ward_terms(tmp_path, agreed=agreed)


def test_a_recipe_names_a_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "contract.toml").write_text(to_toml(CONTRACT))
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('rounds = 3\nmethod = "dp-fedgd"\n[privacy]\nepsilon = 1.0\n[data]\n')
    with pytest.raises(RecipeError, match="shape"):
        write_terms(recipe, dataset="d", sizes=[5.0, 5.0])
    recipe.write_text(f'{recipe.read_text()}contract = "contract.toml"\n')
    made = read_terms(write_terms(recipe, dataset="d", sizes=[5.0, 5.0]))
    assert made.pins.contract == contract_of(CONTRACT)
