# SPDX-License-Identifier: Apache-2.0
"""Tables in notebooks: whatever a name is, it is text there."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

import dpfed
from dpfed.core.html import html_table
from dpfed.core.types import MadeBy
from dpfed.flower import make_plan

HOSTILE = """<script>alert(1)</script><img src=x onerror="a()">'"&amp;"""


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[Any] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[Any]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


PLAIN = {"table", "thead", "tbody", "tr", "th", "td", "p", "b"}


def check_plain(made: str, *hostile: str) -> Tags:
    found = Tags()
    found.feed(made)
    assert found.tags <= PLAIN
    assert not found.attributes
    for each in hostile:
        assert each in found.text
    return found


def test_every_place_of_a_table_is_escaped() -> None:
    check_plain(html_table(HOSTILE, [HOSTILE], [[HOSTILE]], HOSTILE), *[HOSTILE] * 4)
    check_plain(html_table("", (), [[HOSTILE, HOSTILE]]), HOSTILE)


@pytest.fixture(scope="module")
def result() -> dpfed.Result:
    data = {"options": {"records": 60, "features": 3, "classes": 2}, "partition": {"clients": 2}}
    return dpfed.run(data=data, privacy={"epsilon": 1.0}, rounds=2, method="dp-fedgd", name=HOSTILE)


def test_a_result_shows_what_was_learned_and_what_it_cost(result: dpfed.Result) -> None:
    spoilt = replace(result, warnings=(HOSTILE,), stopped=HOSTILE, source=HOSTILE)
    found = check_plain(spoilt._repr_html_(), HOSTILE, result.guarantee.sentence)
    assert found.text.count(HOSTILE) == 4
    assert "2 of 2" in found.text
    assert f"{100 * result.accuracy:.1f} %" in found.text


def test_a_guarantee_has_a_line_per_adversary(result: dpfed.Result) -> None:
    claims = result.guarantee.claims
    spoilt = replace(result.guarantee, claims=(replace(claims[0], adversary=HOSTILE), *claims[1:]))
    found = check_plain(spoilt._repr_html_(), HOSTILE)
    assert spoilt._repr_html_().count("<tr>") == 1 + len(claims)
    assert "1e-05" in found.text


def test_a_plan_says_who_does_what() -> None:
    plan = make_plan(clients=4, rounds=3, privacy={"epsilon": 2.0, "unit": "client"})
    found = check_plain(plan._repr_html_(), str(plan.guarantee()))
    assert "each client, replace-one" in found.text
    spoilt = replace(plan, client=plan.client._replace(made_by=MadeBy(HOSTILE)))
    check_plain(spoilt._repr_html_(), HOSTILE)
