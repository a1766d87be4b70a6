# SPDX-License-Identifier: Apache-2.0
"""What an owner's machines may know of a gate: budgets, trainings, counts; as values, and as text.

``gate_figures`` reads ledger and approvals. The texts made of them are for a person (``dpfed silo
status``), for a program (``--json``), and for Prometheus (``metrics_text``).

Guarantee: ``metrics_text`` has nothing that depends on a record. How many answers had zero rows
does, so it is in the figures of the owner's own commands, and not in the metrics, which go to
machines that may show them to others.

| edge case                                  | what happens                                        |
|--------------------------------------------|-----------------------------------------------------|
| what is left cannot be said (draws)        | None; the metric is left out                        |
| a training that was never asked            | 0 answers, and no time of a last one                |
| the ledger is an older copy (wire/heads.py)| said first: nothing is answered                     |
| a word in a label that Prometheus may      | escaped; names are 1 to 64 of A-Z a-z 0-9 - _ .     |
| misread                                    |                                                     |
"""

from __future__ import annotations

import datetime as dt
import math
import tomllib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from dpfed.core.log import shown
from dpfed.silo.approvals import ZERO_ROWS

if TYPE_CHECKING:
    from dpfed.accounting.ledger.ledger import Ledger
    from dpfed.silo.owner import Owner
    from dpfed.silo.policy import DataPolicy


class DataFigures(NamedTuple):
    """What a data set, or one block of it, has spent of its budget."""

    name: str
    """Of a block: the data set's name, "/" and the block's."""
    epsilon: float
    """Of the budget."""
    delta: float
    spent: float
    """Infinite if there is no bound."""
    left: float | None
    """For one more training; None where it cannot be said, or was not asked for."""
    overspent: bool
    approvals: int
    """How many trainings on it may ask today."""


class TrainingFigures(NamedTuple):
    """One training that was ever approved here."""

    name: str
    fingerprint: str
    state: str
    """approved, expired or revoked."""
    until: str
    by: str
    answered: int
    refused: int
    zero_rows: int
    """Answers that were made without the data; depends on records."""
    last: str
    """When the last order came that was answered; "" if none was."""
    dpfed: str = ""
    """The version that its terms are of; a gate of another one refuses it."""


class GateFigures(NamedTuple):
    """A gate, as its owner may see it."""

    at: str
    data: tuple[DataFigures, ...]
    trainings: tuple[TrainingFigures, ...]
    refused_unknown: int
    """Refusals under names that nobody has approved."""
    key: str = ""
    """The gate's public key, as 64 hexadecimal digits."""
    rolled_back: bool = False
    """Whether others keep a head that is not in the ledger's chain: nothing is answered."""

    def to_json(self) -> dict[str, Any]:
        """The figures as one JSON object."""
        return {
            "at": self.at,
            "key": self.key,
            "rolled_back": self.rolled_back,
            "data": [each._asdict() for each in self.data],
            "trainings": [each._asdict() for each in self.trainings],
            "refused_unknown": self.refused_unknown,
        }


def gate_figures(handler: Owner, *, left: bool = True) -> GateFigures:
    """Budgets, approvals and counts of a gate, from its own files.

    Args:
        handler: the silo's.
        left: whether to compute what is left of each budget, which needs SciPy.
    """
    approvals, ledger = handler.approvals, handler.ledger()
    now, events, found = approvals.now(), approvals.events(), approvals.all()
    pins = {each.name: _pins_of(each.terms) for each in found}
    named = {name: str(of.get("dataset", "")) for name, of in pins.items()}
    standing = [named[each.name] for each in found if each.state(now) == "approved"]
    data = []
    for name, account, policy in _accounts(handler, ledger):
        cost, budget = ledger.spent(policy.key(account)), handler.budget(name)
        rest = cost.left(budget) if left else math.nan
        data.append(
            DataFigures(
                name=account,
                epsilon=budget.epsilon,
                delta=budget.delta,
                spent=cost.epsilon(budget.delta, policy.adjacency),
                left=None if math.isnan(rest) else rest,
                overspent=not cost.within(budget, policy.adjacency),
                approvals=standing.count(name),
            )
        )

    def count(kind: str, training: str) -> int:
        return sum(e.times for e in events if (e.kind, e.training) == (kind, training))

    trainings = tuple(
        TrainingFigures(
            name=each.name,
            fingerprint=each.fingerprint,
            state=each.state(now),
            until=each.until,
            by=shown(each.by),
            answered=count("answered", each.name),
            refused=count("refused", each.name),
            zero_rows=count(ZERO_ROWS, each.name),
            last=max(
                (e.last for e in events if (e.kind, e.training) == ("answered", each.name)),
                default="",
            ),
            dpfed=str(pins[each.name].get("dpfed", "")),
        )
        for each in found
    )
    return GateFigures(
        at=now.isoformat(),
        data=tuple(data),
        trainings=trainings,
        refused_unknown=count("refused", ""),
        key=handler.key.public.hex(),
        rolled_back=bool(handler.conflict),
    )


def _accounts(handler: Owner, ledger: Ledger) -> Iterator[tuple[str, str, DataPolicy]]:
    """Each data set's name and policy, once for each of its accounts, which blocks have."""
    balance = ledger.balance()
    for name, policy in handler.policy.data.items():
        base = balance.base_of(name)
        for account in balance.accounts_of(name):
            if len(balance.accounts_of(name)) == 1 or balance.guarantees.get(account):
                yield name, name + account.removeprefix(base), policy


def _pins_of(terms: str) -> dict[str, Any]:
    """What approved terms are bound to; they were read whole when they were approved."""
    found: dict[str, Any] = tomllib.loads(terms).get("terms", {})
    return found


# -------------------------------------------------------------------------------------- Prometheus


def metrics_text(figures: GateFigures) -> str:
    """The figures in Prometheus' text format, without what depends on records.

    >>> none = GateFigures("2026-01-01T00:00:00+00:00", (), (), 3)
    >>> print(metrics_text(none).splitlines()[-1])
    dpfed_unknown_refusals_total 3
    """
    lines: list[str] = []
    for name, kind, said, samples in _metrics(figures):
        lines += [f"# HELP {name} {said}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{_labels(labels)} {value:.12g}" for labels, value in samples]
    return "\n".join(lines) + "\n"


Sample = tuple[dict[str, str], float]


def _metrics(figures: GateFigures) -> Iterator[tuple[str, str, str, list[Sample]]]:
    """Each metric: its name, type and meaning, and its samples."""
    data = figures.data
    yield (
        "dpfed_budget_epsilon",
        "gauge",
        "The budget of all trainings.",
        [({"data": each.name}, each.epsilon) for each in data],
    )
    yield (
        "dpfed_spent_epsilon",
        "gauge",
        "What was released so far costs.",
        [({"data": each.name}, each.spent) for each in data],
    )
    yield (
        "dpfed_left_epsilon",
        "gauge",
        "What one more training may cost.",
        [({"data": each.name}, each.left) for each in data if each.left is not None],
    )
    yield (
        "dpfed_overspent",
        "gauge",
        "1 if more is spent than the budget allows.",
        [({"data": each.name}, each.overspent) for each in data],
    )
    yield (
        "dpfed_standing_approvals",
        "gauge",
        "Trainings that may ask today.",
        [({"data": each.name}, each.approvals) for each in data],
    )
    yield (
        "dpfed_ledger_rolled_back",
        "gauge",
        "1 if the ledger is an older copy than others keep a head of.",
        [({}, figures.rolled_back)],
    )
    trainings = [({"training": each.name}, each) for each in figures.trainings]
    yield (
        "dpfed_answers_total",
        "counter",
        "Orders that were answered.",
        [(labels, each.answered) for labels, each in trainings],
    )
    yield (
        "dpfed_refusals_total",
        "counter",
        "Orders that were refused.",
        [(labels, each.refused) for labels, each in trainings],
    )
    yield (
        "dpfed_last_answer_timestamp_seconds",
        "gauge",
        "When the last order came that was answered.",
        [(labels, _seconds(t.last)) for labels, t in trainings if t.last],
    )
    yield (
        "dpfed_approved_until_timestamp_seconds",
        "gauge",
        "When a standing approval ends.",
        [(labels, _seconds(t.until)) for labels, t in trainings if t.state == "approved"],
    )
    yield (
        "dpfed_figures_timestamp_seconds",
        "gauge",
        "When these figures were written.",
        [({}, _seconds(figures.at))],
    )
    yield (
        "dpfed_unknown_refusals_total",
        "counter",
        "Orders under names that nobody has approved.",
        [({}, figures.refused_unknown)],
    )


def _seconds(text: str) -> float:
    return dt.datetime.fromisoformat(text).timestamp()


def _labels(labels: dict[str, str]) -> str:
    escaped = {
        name: value.replace("\\", r"\\").replace('"', r"\"") for name, value in labels.items()
    }
    inside = ",".join(f'{name}="{value}"' for name, value in escaped.items())
    return f"{{{inside}}}" if inside else ""
