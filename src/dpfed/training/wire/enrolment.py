# SPDX-License-Identifier: Apache-2.0
"""Enrolment on the server: ask a node who it is, and read its reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from dpfed.core.errors import WIRE_NAMES, BadReply
from dpfed.training.plan import Plan
from dpfed.training.wire.codec import CONTROL
from dpfed.training.wire.responder import ENROL, HEADS, TERMS


def enrolment(told: Mapping[str, Any], terms: str = "", heads: Sequence[bytes] = ()) -> RecordDict:
    """The message that asks a node who it is.

    Args:
        told: what else it says, such as the training's name.
        terms: the text of the training's terms, for owners who approve by rule; or "".
        heads: of ledgers, as they were handed out: each gate looks at its own.
    """
    control: dict[str, Any] = {"stage": ENROL, **told, **({TERMS: terms} if terms else {})}
    control.update({HEADS: list(heads)} if heads else {})
    return RecordDict({CONTROL: ConfigRecord(control)})


class Refusal(BadReply):
    """A node that refused to enrol, and the class of its reason."""

    def __init__(self, reason: str) -> None:
        said = f"it could not say who it is ({reason!r}); its log says why"
        if reason == "BudgetSpent":
            said = (
                "its budget does not suffice for the whole training (BudgetSpent), and nothing was "
                "asked of it; plan a smaller one, or ask its owner"
            )
        if reason == "LedgerRolledBack":
            said = (
                "its ledger is an older copy than what is kept of it here (LedgerRolledBack), so "
                "it answers nothing; its owner must run 'dpfed ledger declare-lost'"
            )
        super().__init__(said)
        self.reason = reason


def enrolled(content: RecordDict, plan: Plan) -> tuple[int, bool]:
    """Which client a node is, and whether it says that it is behind a gate."""
    control = content.config_records.get(CONTROL, ConfigRecord())
    client = control.get("client")
    reason = control.get("error")
    if reason is not None or type(client) is not int:
        raise Refusal(reason if isinstance(reason, str) and reason in WIRE_NAMES else "None")
    if not plan.open and not 0 <= client < len(plan.nominal):
        raise BadReply(
            f"its partition-id must be from 0 to {len(plan.nominal) - 1}, got {client}; correct "
            f"its --node-config, or start fewer SuperNodes"
        )
    if control.get("fingerprint") != plan.fingerprint():
        raise BadReply("it has agreed to another plan; give both sides the same run_config")
    return client, control.get("gate") is True
