# SPDX-License-Identifier: Apache-2.0
"""The model card: what it says, and that words of others do nothing in it."""

from __future__ import annotations

import re
from pathlib import Path

import markdown
import msgspec
import pytest
import yaml

from dpfed.accounting.guarantee import Guarantee
from dpfed.bundle.card import model_card, prose, quoted
from dpfed.bundle.description import (
    ArrayInput,
    Description,
    PretrainedModel,
    SchemaInput,
    decode,
)
from dpfed.core.log import shown

EVIL = (
    "<script>alert(1)</script>",
    "`<img src=x onerror=alert(1)>`",
    "](javascript:alert(1)) [x](http://x)",
    "a|b|c",
    "line\n\n# heading\n---\nevil: 1",
    "\x1b[31mred\u202egnp",
    "``` x",
    "&lt;b&gt;",
)


@pytest.fixture
def found(bundle: Path) -> Description:
    return decode((bundle / "model.json").read_bytes())


def test_it_says_what_a_person_asks(found: Description) -> None:
    card = model_card(found)
    for said in ("`alive`, `dead`", "dpfed predict", "`age`", "from 18 to 100", "95 % interval"):
        assert said in card
    assert found.stated.claims[0].adversary in card
    assert len(card.split()) < 450, "a minute"


def test_a_language_model_is_no_regression(found: Description) -> None:
    base = PretrainedModel(library="transformers", source="tiny", options={"task": "causal"})
    wrote = msgspec.structs.replace(
        found, architecture=base, classes=None, input=ArrayInput(shape=[32])
    )
    card = model_card(wrote)
    assert "text-generation" in card
    assert "texts of 32 tokens" in card
    for wrong in ("regression", "a number", "dpfed predict"):
        assert wrong not in card


def front(card: str) -> dict[str, object]:
    told: dict[str, object] = yaml.safe_load(card.split("---\n")[1])
    return told


def test_the_front_matter_is_yaml(found: Description) -> None:
    told = front(model_card(found))
    assert told["library_name"] == "dpfed"
    assert "differential-privacy" in told["tags"]  # type: ignore[operator]


@pytest.mark.parametrize("evil", EVIL)
def test_words_of_others_do_nothing(evil: str, found: Description) -> None:
    adversary = shown(evil)  # a guarantee with words that steer is not read at all
    claims = [{**found.guarantee["claims"][0], "adversary": adversary}]
    told = {**found.guarantee, "claims": claims}
    guarantee = msgspec.convert(told, Guarantee, strict=False).to_json()
    odd = msgspec.structs.replace(
        found,
        name=evil,
        data=evil,
        target=evil,
        classes=[evil, "b"],
        input=SchemaInput(columns={evil: [evil, "b"]}),
        guarantee=guarantee,
        versions={evil: evil},
    )
    card = model_card(odd)
    assert front(card)["library_name"] == "dpfed"
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202a-\u202e]", card)
    html = markdown.markdown(card.partition("---\n# ")[2], extensions=["tables"])
    tags = set(re.findall(r"<(/?\w+)", html))
    plain = {"h1", "h2", "p", "code", "pre", "table", "thead", "tbody", "tr", "th", "td", "em"}
    assert tags <= plain | {f"/{tag}" for tag in plain}
    assert "href" not in html


def test_a_span_cannot_be_ended() -> None:
    assert quoted("a`b") == "`a'b`"
    assert "*" not in prose("*x* <b> [a](b)")
    assert quoted("") == "` `"
