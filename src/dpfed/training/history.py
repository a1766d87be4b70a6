# SPDX-License-Identifier: Apache-2.0
"""What a run lets people watch: one row per round, with these columns.

The numbers that ``evaluation.metrics`` names come after them, by the metrics channel alone; then
those that the server's own ``evaluate_fn`` returns, under its names.

| column                    | where it comes from                                                  |
|---------------------------|----------------------------------------------------------------------|
| round, seconds            | the server's own count and clock                                     |
| accuracy, loss            | by ``evaluation.kind``: test records that the server holds (test),   |
|                           | or the metrics channel, which has noise (federated)                  |
| any other name            | a number that the server's own ``evaluate_fn`` has returned          |
| worst_silo                | ``evaluation.kind = "exact"`` only: in clear, and the report says so |
| epsilon, epsilon_others   | spent so far: against the server, against the guarantee's others     |
| surplus, snr              | of the private mean, its known noise and the public plan             |
| clients, missing, absent, | who answered, who did not, and the error's name where there was one: |
| refused, aborted          | the server sees that. Where the accounting relies on a secret draw   |
|                           | of clients, clients is the expected number; the others and seconds   |
|                           | are empty                                                            |

Who is in which rounds' totals is ``participants``, for guarantee.json and the statement page:
names, or the expected number if the accounting relies on a secret draw of clients.

Guarantee: whoever shows or stores a row adds nothing to what the guarantee covers: not to what the
server knows, nor, if only the server may know who was drawn, to what everyone does. A client's
own losses, counts and times are no columns: they would be releases outside of the accounting.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from dpfed.core.extras import require_extra
from dpfed.core.files import from_word
from dpfed.core.types import Aggregate, Trust
from dpfed.core.vector import dot
from dpfed.training.metrics import measured
from dpfed.training.plan import Plan
from dpfed.training.round import RoundResult, ServerState, clients_told

if TYPE_CHECKING:
    from pandas import DataFrame

Row: TypeAlias = dict[str, Any]
"""One round: plain numbers and texts, ready for CSV and JSON; None if there is no figure."""

COLUMNS = (
    "round",
    "accuracy",
    "loss",
    "worst_silo",
    "epsilon",
    "epsilon_others",
    "surplus",
    "snr",
    "clients",
    "missing",
    "absent",
    "refused",
    "aborted",
    "seconds",
)


JUDGED = ("accuracy", "loss", "worst_silo")
"""The columns that a server may measure on records of its own."""


def make_row(
    plan: Plan,
    state: ServerState,
    result: RoundResult,
    judged: Mapping[str, float | None],
    seconds: float,
) -> Row:
    """The row of a round.

    Args:
        plan: what is done, and what it costs.
        state: the server after the round.
        result: how the round ended.
        judged: what the server itself has measured; the metrics channel stands before it, and a
            name that is a column of its own is not taken from it, but accuracy, loss, worst_silo.
        seconds: how long the round took.
    """
    spent = plan.guarantee(state.release_counts, state.round)
    columns = columns_of(plan)
    row = {
        **{name: value for name, value in judged.items() if name in JUDGED},
        **measured(result.aggregate, plan.loss_bound, plan.metrics),
        "round": state.round,
        "epsilon": spent.claims[0].epsilon,
        "epsilon_others": spent.claims[-1].epsilon,
        "surplus": surplus(plan, len(result.clients)),
        "snr": signal_to_noise(result.aggregate),
        "clients": clients_told(plan, len(result.clients)),
        **({} if plan.draw_is_secret else _conduct(plan, result, seconds)),
    }
    own = {name: known(value) for name, value in judged.items() if name not in columns}
    return {**only_columns(row, columns), **own}


def columns_of(plan: Plan) -> tuple[str, ...]:
    """The columns of a plan's rows: those of all plans, then what its metrics are called."""
    named = [name for metric in plan.metrics for name in metric.names]
    return (*COLUMNS, *(name for name in named if name not in COLUMNS))


def _conduct(plan: Plan, result: RoundResult, seconds: float) -> Row:
    """Who did not reply, and how long the round took. These show who was asked.

    Of an open population, how many: the number of a slot says nothing about a device.
    """
    said = [f"{client}: {why}" for client, why in result.refused.items()]
    if plan.open:
        said = [f"{count} times {why}" for why, count in Counter(result.refused.values()).items()]
    return {
        "missing": len(result.missing),
        "absent": "" if plan.open else " ".join(map(str, result.missing)),
        "refused": " | ".join(said),
        "aborted": result.aborted or "",
        "seconds": seconds,
    }


class CompletedRound(Protocol):
    """A completed round."""

    @property
    def round(self) -> int:
        """The round's number, from 0."""

    @property
    def clients(self) -> tuple[int, ...]:
        """The clients in its total."""


MAX_NAMED_CLIENTS = 200
"""Of more clients, guarantee.json has numbers and no names."""


def participants(
    plan: Plan, rounds: Sequence[CompletedRound], names: Sequence[str] | None = None
) -> dict[str, Any]:
    """Who took part, round by round: the facts that guarantee.json and the statement page show.

    Where the accounting relies on a secret draw of clients, these are the plan's own numbers,
    whoever answered. An open population has none: there is no list of devices.

    Args:
        plan: what was done.
        rounds: the completed rounds, with the clients in their totals.
        names: the clients' names in the roster; None calls them by their numbers.
    """
    if plan.open:
        return {}
    if plan.draw_is_secret:
        return {"planned": len(plan.nominal), "expected": clients_told(plan, 0)}
    return took_part(plan.nominal, [(each.round, 0, each.clients) for each in rounds], names)


def took_part(
    nominal: Sequence[float],
    rounds: Sequence[tuple[int, int, Sequence[int]]],
    names: Sequence[str] | None = None,
) -> dict[str, Any]:
    """The same, where no draw is secret.

    Args:
        nominal: each client's public number of units.
        rounds: number, attempt and clients of each total.
        names: the clients' names in the roster; None calls them by their numbers.
    """
    planned = len(nominal)
    cohorts = [clients for _, _, clients in rounds]
    counts = Counter(client for clients in cohorts for client in clients)
    facts: dict[str, Any] = {
        "planned": planned,
        "took_part": sum(counts[client] > 0 for client in range(planned)),
        "units": math.fsum(nominal[client] for client in range(planned) if counts[client]),
        "fewest": min(map(len, cohorts), default=0),
        "most": max(map(len, cohorts), default=0),
    }
    if planned > MAX_NAMED_CLIENTS:
        return facts
    called = [f"client {client}" for client in range(planned)] if names is None else list(names)
    facts["roster"] = names is not None
    facts["rounds_of"] = {called[client]: counts[client] for client in range(planned)}
    facts["rounds"] = [
        {"from": first, "to": last, "clients": [called[client] for client in clients]}
        for first, last, clients in _alike(rounds)
    ]
    return facts


def _alike(
    rounds: Sequence[tuple[int, int, Sequence[int]]],
) -> list[tuple[int, int, tuple[int, ...]]]:
    """Consecutive rounds with the same clients, as (first, last, clients), counted from 1."""
    found: list[tuple[int, int, tuple[int, ...]]] = []
    for number, _, cohort in rounds:
        clients, at = tuple(sorted(cohort)), number + 1
        if found and found[-1][2] == clients and found[-1][1] == at - 1:
            found[-1] = (found[-1][0], at, clients)
        else:
            found.append((at, at, clients))
    return found


def only_columns(row: Mapping[str, Any], columns: Sequence[str] = COLUMNS) -> Row:
    """A row with only these columns, in their order."""
    return {name: known(row.get(name)) for name in columns}


def with_own_numbers(row: Mapping[str, Any], columns: Sequence[str]) -> Row:
    """A row's columns, and its numbers under other names: those of the server's ``evaluate_fn``.

    Args:
        row: a row of a history.
        columns: the columns that each row has.
    """
    own = {
        name: known(value)
        for name, value in row.items()
        if name not in columns and isinstance(value, int | float) and not isinstance(value, bool)
    }
    return {**only_columns(row, columns), **own}


def wasted_attempts(history: Sequence[Mapping[str, Any]]) -> int:
    """How many attempts gave no total but raised epsilon."""
    before, wasted = 0.0, 0
    for row in history:
        spent = float(from_word(row["epsilon"]))
        wasted += bool(row["aborted"]) and spent > before
        before = max(before, spent)
    return wasted


def known(value: Any) -> Any:
    """A figure as rows have it: None if it is not a number."""
    return None if isinstance(value, float) and math.isnan(value) else value


def to_frame(rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    """A history as a pandas DataFrame: a line per attempt at a round, a column per figure.

    Args:
        rows: as ``Result.history`` and ``DPResult.history`` have them.
    """
    with require_extra("pandas", "to_frame"):
        from pandas import DataFrame
    names = dict.fromkeys([*COLUMNS, *(name for row in rows for name in row)])
    return DataFrame([{name: row.get(name) for name in names} for row in rows], columns=[*names])


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a row, which can be plotted over rounds."""
    return {
        name: float(value)
        for name, value in row.items()
        if name != "round" and isinstance(value, int | float) and math.isfinite(value)
    }


def signal_to_noise(seen: Aggregate | None) -> float | None:
    """The aggregate's signal-to-noise ratio, from the release and its known noise level."""
    if seen is None or math.isnan(seen.std):
        return None
    noise = seen.mean.numel() * seen.std**2
    signal = max(0.0, dot(seen.mean, seen.mean) - noise)
    return math.sqrt(signal / noise) if noise else math.inf


def surplus(plan: Plan, clients: int) -> float:
    """How much more noise a total of ``clients`` clients has than needed: 0.1 is 10 %."""
    mechanism = plan.update
    if mechanism.trust is not Trust.DISTRIBUTED or not clients or not mechanism.std:
        return 0.0
    return math.sqrt(clients / mechanism.shares) - 1
