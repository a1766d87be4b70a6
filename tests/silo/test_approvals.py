# SPDX-License-Identifier: Apache-2.0
"""Approvals: one name, one set of terms; and a server's text cannot steer a screen."""

from __future__ import annotations

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


def test_two_terms_at_once_do_not_both_get_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy's rule approves while an officer is asked: neither finds the other's at first."""
    approvals = agreed(tmp_path)
    monkeypatch.setattr(Approvals, "_at", lambda *_: None)
    with pytest.raises(UnsoundPlan, match="give it another name"):
        agreed(tmp_path, rounds=4)
    monkeypatch.undo()
    assert approvals.terms("gated").recipe.rounds == 3
