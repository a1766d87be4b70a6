# SPDX-License-Identifier: Apache-2.0
"""Approvals: one name, one set of terms; and a server's text cannot steer a screen."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from dpfed.core.errors import UnsoundPlan
from dpfed.recipes.terms import read_terms
from dpfed.silo.approvals import Approvals
from tests.silo.gates import terms_for


def agreed(folder: Path, days: float = 1.0, **changes: object) -> Approvals:
    text = terms_for(folder, 2, **changes).read_text()
    approvals = Approvals(folder)
    approvals.approve(read_terms(text), text, days=days, by="root")
    return approvals


def test_what_is_approved_is_found_until_it_is_revoked(tmp_path: Path) -> None:
    approvals = agreed(tmp_path)
    assert approvals.terms("gated").name == "gated"
    approvals.revoke("gated")
    with pytest.raises(UnsoundPlan, match="is revoked here"):
        approvals.terms("gated")
    agreed(tmp_path)  # the same terms again
    assert approvals.terms("gated").name == "gated"


def test_an_approval_ends(tmp_path: Path) -> None:
    with pytest.raises(UnsoundPlan, match="is expired here"):
        agreed(tmp_path, days=0).terms("gated")


def test_other_terms_under_an_approved_name_are_refused(tmp_path: Path) -> None:
    agreed(tmp_path)
    with pytest.raises(UnsoundPlan, match="give it another name"):
        agreed(tmp_path, rounds=4)


def test_a_name_that_nobody_approved_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsoundPlan, match="is not approved here"):
        Approvals(tmp_path).terms("x")
    with pytest.raises(UnsoundPlan, match="no training"):
        Approvals(tmp_path).revoke("x")


def test_ten_thousand_names_are_one_line(tmp_path: Path) -> None:
    approvals = Approvals(tmp_path)
    for at in range(200):
        approvals.note("refused", f"\x1b[2Jname-{at}", "UnsoundPlan")
    (only,) = approvals.events()
    assert (only.times, only.training) == (200, "")
    assert only.said == "\N{REPLACEMENT CHARACTER}[2Jname-199: UnsoundPlan"


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    agreed(tmp_path)
    assert (tmp_path / "approvals.sqlite").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("seed", range(3))
def test_two_terms_at_once_do_not_both_get_the_name(tmp_path: Path, seed: int) -> None:
    """A policy's rule approves while an officer is asked: the ledger's turn decides."""
    texts = [terms_for(tmp_path, 2, rounds=rounds).read_text() for rounds in (3, 4)]
    asked = [read_terms(text) for text in texts]
    children = []
    for terms, text in zip(asked, texts, strict=True):
        child = os.fork()
        if child == 0:
            code = 1
            with suppress(UnsoundPlan):
                Approvals(tmp_path).approve(terms, text, days=1, by="root")
                code = 0
            os._exit(code)
        children.append(child)
    codes = [os.waitpid(child, 0)[1] for child in children]
    assert sorted(map(os.waitstatus_to_exitcode, codes)) == [0, 1]
    winner = asked[0 if codes[0] == 0 else 1]
    assert Approvals(tmp_path).terms("gated").recipe.rounds == winner.recipe.rounds
